//! What the loader asks about plugins, whose insides this crate does not know.

use crate::{Diagnostic, Node};

/// The plugins the gateway has.
pub trait PluginCatalog {
    /// Names of all plugins, in any order.
    fn names(&self) -> Vec<&str>;

    /// Checks one plugin configuration (without its `_meta`). Paths in the findings are relative to `conf`; warnings
    /// go into the list of an `Err` too, which is then no refusal when it holds nothing but warnings.
    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Result<(), Vec<Diagnostic>>;

    /// Whether a plugin that is not in [`names`](Self::names) exists in APISIX, so that it is missing here rather
    /// than misspelt.
    fn peers_known(&self, name: &str) -> bool {
        APISIX_PLUGINS.contains(&name)
    }

    /// Whether the gateway has the plugin, and its settings leave it out.
    fn is_left_out(&self, _name: &str) -> bool {
        false
    }

    /// Whether the plugin authenticates, so that a credential may hold it.
    fn is_auth(&self, name: &str) -> bool {
        AUTH_PLUGINS.contains(&name)
    }
}

/// Where a plugin configuration stands, which decides the schema it is checked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// On a route, a service, a plugin config or a consumer group.
    Route,
    /// On a consumer or one of its credentials: authentication plugins take the consumer's own data there.
    Consumer,
    /// In a global rule.
    GlobalRule,
    /// In `plugin_metadata`.
    Metadata,
}

/// A catalog without any plugin, for tools and tests that look at the rest of a document.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPlugins;

impl PluginCatalog for NoPlugins {
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn check(&self, _: &str, _: Scope, _: &Node) -> Result<(), Vec<Diagnostic>> {
        Ok(())
    }
}

/// APISIX's plugins that authenticate.
pub const AUTH_PLUGINS: &[&str] = &[
    "basic-auth",
    "hmac-auth",
    "jwe-decrypt",
    "jwt-auth",
    "key-auth",
    "ldap-auth",
    "ldap-auth-advanced",
    "multi-auth",
    "wolf-rbac",
];

/// The plugins that come with APISIX 3.18, default list and opt-in ones.
#[rustfmt::skip]
pub const APISIX_PLUGINS: &[&str] = &[
    "acl", "ai", "ai-aliyun-content-moderation", "ai-aws-content-moderation", "ai-cache", "ai-lakera-guard",
    "ai-prompt-decorator", "ai-prompt-guard", "ai-prompt-template", "ai-proxy", "ai-proxy-multi", "ai-rag",
    "ai-rate-limiting", "ai-request-rewrite", "api-breaker", "attach-consumer-label", "authz-casbin",
    "authz-casdoor", "authz-keycloak", "aws-lambda", "azure-functions", "basic-auth", "batch-requests",
    "body-transformer", "brotli", "cas-auth", "chaitin-waf", "clickhouse-logger", "client-control",
    "consumer-restriction", "cors", "csrf", "data-mask", "datadog", "degraphql", "dingtalk-auth", "dubbo-proxy",
    "echo", "elasticsearch-logger", "error-log-logger", "error-page", "example-plugin", "exit-transformer",
    "ext-plugin-post-req", "ext-plugin-post-resp", "ext-plugin-pre-req", "fault-injection", "feishu-auth",
    "file-logger", "forward-auth", "gm", "google-cloud-logging", "graphql-limit-count", "graphql-proxy-cache",
    "grpc-transcode", "grpc-web", "gzip", "hmac-auth", "http-dubbo", "http-logger", "inspect", "ip-restriction",
    "jwe-decrypt", "jwt-auth", "kafka-logger", "kafka-proxy", "key-auth", "lago", "ldap-auth",
    "ldap-auth-advanced", "limit-conn", "limit-count", "limit-req", "log-rotate", "loggly", "loki-logger",
    "mcp-bridge", "mocking", "mqtt-proxy", "multi-auth", "node-status", "oas-validator", "ocsp-stapling", "opa",
    "openfunction", "openid-connect", "opentelemetry", "openwhisk", "prometheus", "proxy-buffering", "proxy-cache",
    "proxy-control", "proxy-mirror", "proxy-rewrite", "public-api", "real-ip", "redirect", "referer-restriction",
    "request-id", "request-validation", "response-rewrite", "rocketmq-logger", "saml-auth", "server-info",
    "serverless-post-function", "serverless-pre-function", "skywalking", "skywalking-logger", "sls-logger",
    "splunk-hec-logging", "syslog", "tcp-logger", "tencent-cloud-cls", "traffic-label", "traffic-split",
    "ua-restriction", "udp-logger", "uri-blocker", "wolf-rbac", "workflow", "zipkin",
];
