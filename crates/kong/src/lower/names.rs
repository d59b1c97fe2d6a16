//! Names: of Kong's plugins, those that are there and those that are not, and of consumers.

use weir_config::diagnostic::nearest;
use weir_config::{Diagnostic, Hint, Username};

use crate::document::{Entity, rule};
use crate::front_end::plugin_names;

/// Name of the plugin that asks clients for certificates in TLS.
pub(crate) const MTLS_AUTH: &str = "mtls-auth";

/// The name of a consumer in the model: the user name where the model takes it, else the id.
pub(crate) fn key(consumer: &Entity) -> String {
    let name = consumer.name.as_deref().filter(|name| Username::new(name).is_some());
    name.unwrap_or(&consumer.id).to_owned()
}

/// True for a plugin that there is; says what is wrong with others.
pub(super) fn is_known(plugin: &Entity, found: &mut Vec<Diagnostic>) -> bool {
    let Some(name) = plugin.text("name") else { return false };
    if plugin_names().any(|known| known == name) {
        return true;
    }
    let fault = match () {
        () if BUNDLED.contains(&name) => plugin.fault("name", format!("plugin '{name}' of Kong is not supported yet")),
        () if ENTERPRISE.contains(&name) => {
            plugin.fault("name", format!("plugin '{name}' of Kong Enterprise is not supported yet"))
        }
        () => {
            let near = nearest(name, plugin_names().chain(BUNDLED.iter().copied()));
            let hint = Hint::nearest(near);
            Diagnostic {
                hint,
                ..Diagnostic::error(
                    plugin.node.mark_of("name"),
                    plugin.at("name"),
                    rule(format!("plugin '{name}' is not known")),
                )
            }
        }
    };
    found.push(fault);
    false
}

/// True for a plugin that is not supported and guards nothing: a request may pass without it.
pub(crate) fn may_be_left_out(name: &str) -> bool {
    let is_kongs = BUNDLED.contains(&name) || ENTERPRISE.contains(&name);
    is_kongs && !GUARDS.contains(&name) && !plugin_names().any(|known| known == name)
}

/// Plugins that authenticate, limit or check requests.
#[rustfmt::skip]
const GUARDS: &[&str] = &[
    "acl", "ai-prompt-guard", "ai-rate-limiting-advanced", "ai-semantic-prompt-guard", "application-registration",
    "basic-auth", "bot-detection", "hmac-auth", "ip-restriction", "jwt", "key-auth", "ldap-auth", "mtls-auth", "oauth2",
    "opa", "openid-connect", "rate-limiting", "rate-limiting-advanced", "request-size-limiting",
    "request-termination", "request-validator", "response-ratelimiting", "session", "standard-webhooks",
];

/// The plugins that come with Kong 3.9.
#[rustfmt::skip]
const BUNDLED: &[&str] = &[
    "acl", "acme", "ai-prompt-decorator", "ai-prompt-guard", "ai-prompt-template", "ai-proxy", "ai-request-transformer",
    "ai-response-transformer", "aws-lambda", "azure-functions", "basic-auth", "bot-detection", "correlation-id", "cors",
    "datadog", "file-log", "grpc-gateway", "grpc-web", "hmac-auth", "http-log", "ip-restriction", "jwt", "key-auth",
    "ldap-auth", "loggly", "oauth2", "opentelemetry", "post-function", "pre-function", "prometheus", "proxy-cache",
    "rate-limiting", "redirect", "request-size-limiting", "request-termination", "request-transformer",
    "response-ratelimiting", "response-transformer", "session", "standard-webhooks", "statsd", "syslog", "tcp-log",
    "udp-log", "zipkin",
];

/// Plugins of Kong Enterprise that real files use.
const ENTERPRISE: &[&str] = &[
    "ai-proxy-advanced",
    "ai-rate-limiting-advanced",
    "ai-semantic-cache",
    "ai-semantic-prompt-guard",
    "application-registration",
    "canary",
    "exit-transformer",
    "jq",
    "mocking",
    "mtls-auth",
    "opa",
    "openid-connect",
    "proxy-cache-advanced",
    "rate-limiting-advanced",
    "request-transformer-advanced",
    "request-validator",
    "route-by-header",
    "upstream-timeout",
];
