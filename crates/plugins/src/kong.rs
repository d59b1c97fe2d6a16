//! Kong's plugins: their configurations and words, over the engines of the others.
//!
//! Those that run before the consumer is known in Kong's order of priorities (above 1000) use the phase `rewrite`, the
//! others `access`, so that the whole order is Kong's and what stands at a consumer takes effect below authentication.

mod acl;
mod acme;
mod answers;
mod arguments;
mod aws_lambda;
mod azure_functions;
mod basic_auth;
mod body;
mod bot_detection;
mod caller;
mod canary;
mod captures;
mod consumer;
mod correlation_id;
mod cors;
mod counted_by;
mod datadog;
mod edits;
mod file_log;
mod functions;
mod grpc_gateway;
mod grpc_web;
mod hmac_auth;
mod http_log;
mod ip_restriction;
mod jwt;
mod key_auth;
mod ldap_auth;
mod log;
mod loggly;
mod measures;
mod media;
mod mocking;
mod mtls_auth;
mod no_route;
mod oauth2;
mod openid_connect;
mod opentelemetry;
mod prometheus;
mod proxy_cache;
mod rate_limiting;
mod rate_limiting_advanced;
mod redirect;
pub(crate) mod redis;
mod request_size_limiting;
mod request_termination;
mod request_transformer;
mod request_validator;
mod response_ratelimiting;
mod response_transformer;
pub(crate) mod route;
mod route_by_header;
mod session;
mod standard_webhooks;
mod statsd;
mod syslog;
mod tcp_log;
mod template;
mod trace;
mod upstream_timeout;
mod zipkin;

use weir_plugin::host::Definition;

pub use oauth2::{Token, TokenChange, Tokens, random_text};
pub use proxy_cache::entries::{cached_entry, remove_all_cached, remove_cached};

/// Every plugin of the family, in the order of names.
#[must_use]
pub fn definitions() -> &'static [&'static dyn Definition] {
    &[
        &acl::Acl,
        &acme::Acme,
        &answers::Answers,
        &aws_lambda::AwsLambda,
        &azure_functions::AzureFunctions,
        &basic_auth::BasicAuth,
        &bot_detection::BotDetection,
        &canary::Canary,
        &consumer::Consumer,
        &correlation_id::CorrelationId,
        &cors::Cors,
        &datadog::Datadog,
        &file_log::FileLog,
        &grpc_gateway::GrpcGateway,
        &grpc_web::GrpcWeb,
        &hmac_auth::HmacAuth,
        &http_log::HttpLog,
        &ip_restriction::IpRestriction,
        &jwt::Jwt,
        &key_auth::KeyAuth,
        &ldap_auth::LdapAuth,
        &loggly::Loggly,
        &mocking::Mocking,
        &mtls_auth::MtlsAuth,
        &no_route::NoRoute,
        &oauth2::Oauth2,
        &openid_connect::OpenidConnect,
        &opentelemetry::Opentelemetry,
        &crate::traffic::plan::OnPlan,
        &functions::PostFunction,
        &functions::PreFunction,
        &prometheus::Prometheus,
        &proxy_cache::ProxyCache,
        &rate_limiting::RateLimiting,
        &rate_limiting_advanced::RateLimitingAdvanced,
        &redirect::Redirect,
        &request_size_limiting::RequestSizeLimiting,
        &request_termination::RequestTermination,
        &request_transformer::RequestTransformer,
        &request_transformer::RequestTransformerAdvanced,
        &request_validator::RequestValidator,
        &response_ratelimiting::ResponseRateLimiting,
        &response_transformer::ResponseTransformer,
        &route::Route,
        &route_by_header::RouteByHeader,
        &session::Session,
        &standard_webhooks::StandardWebhooks,
        &statsd::Statsd,
        &syslog::Syslog,
        &tcp_log::TcpLog,
        &tcp_log::UdpLog,
        &upstream_timeout::UpstreamTimeout,
        &zipkin::Zipkin,
    ]
}

/// True for a plugin that every configuration gets and none may name.
#[must_use]
pub fn is_internal(name: &str) -> bool {
    matches!(name, "answers" | "consumer" | "no-route" | "route")
}
