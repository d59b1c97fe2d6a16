//! The list of all plugins. There is no other.

use weir_plugin::host::Definition;

use crate::auth::attach_consumer_label::AttachConsumerLabel;
use crate::auth::authz_casbin::AuthzCasbin;
use crate::auth::authz_casdoor::AuthzCasdoor;
use crate::auth::authz_keycloak::AuthzKeycloak;
use crate::auth::basic_auth::BasicAuth;
use crate::auth::cas_auth::CasAuth;
use crate::auth::forward_auth::ForwardAuth;
use crate::auth::hmac_auth::HmacAuth;
use crate::auth::jwe_decrypt::JweDecrypt;
use crate::auth::jwt_auth::JwtAuth;
use crate::auth::key_auth::KeyAuth;
use crate::auth::ldap_auth::LdapAuth;
use crate::auth::ldap_auth_advanced::LdapAuthAdvanced;
use crate::auth::multi_auth::MultiAuth;
use crate::auth::opa::Opa;
use crate::auth::openid_connect::OpenidConnect;
use crate::auth::saml_auth::SamlAuth;
use crate::auth::wolf_rbac::WolfRbac;
use crate::external::{ExtPluginPostReq, ExtPluginPostResp, ExtPluginPreReq};
use crate::functions::aws_lambda::AwsLambda;
use crate::functions::azure_functions::AzureFunctions;
use crate::functions::http_dubbo::HttpDubbo;
use crate::functions::openfunction::Openfunction;
use crate::functions::openwhisk::Openwhisk;
use crate::general::fault_injection::FaultInjection;
use crate::general::mocking::Mocking;
use crate::general::public_api::PublicApi;
use crate::general::redirect::Redirect;
use crate::general::request_id::RequestId;
use crate::observe::clickhouse_logger::ClickhouseLogger;
use crate::observe::datadog::Datadog;
use crate::observe::elasticsearch_logger::ElasticsearchLogger;
use crate::observe::error_log_logger::ErrorLogLogger;
use crate::observe::file_logger::FileLogger;
use crate::observe::google_cloud_logging::GoogleCloudLogging;
use crate::observe::http_logger::HttpLogger;
use crate::observe::kafka_logger::KafkaLogger;
use crate::observe::lago::Lago;
use crate::observe::log_rotate::LogRotate;
use crate::observe::loggly::Loggly;
use crate::observe::loki_logger::LokiLogger;
use crate::observe::node_status::NodeStatus;
use crate::observe::opentelemetry::Opentelemetry;
use crate::observe::prometheus::Prometheus;
use crate::observe::rocketmq_logger::RocketmqLogger;
use crate::observe::server_info::ServerInfo;
use crate::observe::skywalking::Skywalking;
use crate::observe::skywalking_logger::SkywalkingLogger;
use crate::observe::sls_logger::SlsLogger;
use crate::observe::splunk_hec_logging::SplunkHecLogging;
use crate::observe::syslog::Syslog;
use crate::observe::tcp_logger::TcpLogger;
use crate::observe::tencent_cloud_cls::TencentCloudCls;
use crate::observe::udp_logger::UdpLogger;
use crate::observe::zipkin::Zipkin;
use crate::requests::batch_requests::BatchRequests;
use crate::requests::client_control::ClientControl;
use crate::requests::oas_validator::OasValidator;
use crate::requests::proxy_buffering::ProxyBuffering;
use crate::requests::proxy_control::ProxyControl;
use crate::requests::real_ip::RealIp;
use crate::requests::request_validation::RequestValidation;
use crate::scripts::exit_transformer::ExitTransformer;
use crate::scripts::serverless::{ServerlessPostFunction, ServerlessPreFunction};
use crate::security::acl::Acl;
use crate::security::chaitin_waf::ChaitinWaf;
use crate::security::consumer_restriction::ConsumerRestriction;
use crate::security::cors::Cors;
use crate::security::csrf::Csrf;
use crate::security::data_mask::DataMask;
use crate::security::ip_restriction::IpRestriction;
use crate::security::ocsp_stapling::OcspStapling;
use crate::security::referer_restriction::RefererRestriction;
use crate::security::ua_restriction::UaRestriction;
use crate::security::uri_blocker::UriBlocker;
use crate::traffic::api_breaker::ApiBreaker;
use crate::traffic::graphql_limit_count::GraphqlLimitCount;
use crate::traffic::graphql_proxy_cache::GraphqlProxyCache;
use crate::traffic::limit_conn::LimitConn;
use crate::traffic::limit_count::LimitCount;
use crate::traffic::limit_req::LimitReq;
use crate::traffic::mqtt_proxy::MqttProxy;
use crate::traffic::plan::OnPlan;
use crate::traffic::proxy_cache::ProxyCache;
use crate::traffic::proxy_mirror::ProxyMirror;
use crate::traffic::traffic_label::TrafficLabel;
use crate::traffic::traffic_split::TrafficSplit;
use crate::traffic::workflow::Workflow;
use crate::transform::body_transformer::BodyTransformer;
use crate::transform::brotli::Brotli;
use crate::transform::degraphql::Degraphql;
use crate::transform::echo::Echo;
use crate::transform::error_page::ErrorPage;
use crate::transform::grpc_transcode::GrpcTranscode;
use crate::transform::grpc_web::GrpcWeb;
use crate::transform::gzip::Gzip;
use crate::transform::proxy_rewrite::ProxyRewrite;
use crate::transform::response_rewrite::ResponseRewrite;

/// Every plugin, in the order of names.
#[must_use]
pub fn definitions() -> &'static [&'static dyn Definition] {
    &[
        &Acl,
        &ChaitinWaf,
        &ApiBreaker,
        &AttachConsumerLabel,
        &AuthzCasbin,
        &AuthzCasdoor,
        &AuthzKeycloak,
        &AwsLambda,
        &AzureFunctions,
        &BasicAuth,
        &BatchRequests,
        &BodyTransformer,
        &Brotli,
        &CasAuth,
        &ClickhouseLogger,
        &ClientControl,
        &ConsumerRestriction,
        &Cors,
        &Csrf,
        &DataMask,
        &Datadog,
        &Degraphql,
        &Echo,
        &ElasticsearchLogger,
        &ErrorLogLogger,
        &ErrorPage,
        &ExitTransformer,
        &ExtPluginPostReq,
        &ExtPluginPostResp,
        &ExtPluginPreReq,
        &FaultInjection,
        &FileLogger,
        &ForwardAuth,
        &GoogleCloudLogging,
        &GrpcTranscode,
        &GrpcWeb,
        &Gzip,
        &HmacAuth,
        &HttpLogger,
        &IpRestriction,
        &JweDecrypt,
        &JwtAuth,
        &KafkaLogger,
        &RocketmqLogger,
        &KeyAuth,
        &Lago,
        &LdapAuth,
        &LdapAuthAdvanced,
        &LimitConn,
        &GraphqlLimitCount,
        &GraphqlProxyCache,
        &LimitCount,
        &LimitReq,
        &Loggly,
        &LokiLogger,
        &Mocking,
        &MqttProxy,
        &MultiAuth,
        &LogRotate,
        &NodeStatus,
        &OcspStapling,
        &OasValidator,
        &Opa,
        &SamlAuth,
        &HttpDubbo,
        &Openfunction,
        &OpenidConnect,
        &Opentelemetry,
        &Openwhisk,
        &OnPlan,
        &Prometheus,
        &ProxyBuffering,
        &ProxyCache,
        &ProxyControl,
        &ProxyMirror,
        &ProxyRewrite,
        &PublicApi,
        &RealIp,
        &Redirect,
        &RefererRestriction,
        &RequestId,
        &RequestValidation,
        &ResponseRewrite,
        &ServerInfo,
        &ServerlessPostFunction,
        &ServerlessPreFunction,
        &Skywalking,
        &SkywalkingLogger,
        &SlsLogger,
        &SplunkHecLogging,
        &Syslog,
        &TcpLogger,
        &TencentCloudCls,
        &TrafficLabel,
        &TrafficSplit,
        &UaRestriction,
        &UdpLogger,
        &UriBlocker,
        &WolfRbac,
        &Workflow,
        &Zipkin,
    ]
}
