//! Questions of the loader about plugins, whose insides this crate does not know.
#![allow(clippy::disallowed_types, reason = "loading and compiling take the lock, never a worker")]

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, mem};

use crate::{Diagnostic, Node};

/// The plugins the gateway has.
pub trait PluginCatalog {
    /// Names of all plugins, in any order.
    fn names(&self) -> Vec<&str>;

    /// Checks one plugin configuration (without its `_meta`), and compiles it where a plugin is built of it.
    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Checked;

    /// True if a plugin that is not in [`names`](Self::names) exists in APISIX, so that it is missing here rather than
    /// misspelt.
    fn peers_known(&self, name: &str) -> bool {
        APISIX_PLUGINS.contains(&name)
    }

    /// True if the gateway has the plugin, but the settings leave it out.
    fn is_left_out(&self, _name: &str) -> bool {
        false
    }

    /// True if the plugin authenticates, so that a credential may hold its configuration.
    fn is_auth(&self, name: &str) -> bool;
}

/// Result of checking a plugin configuration.
#[derive(Default)]
pub struct Checked {
    /// Errors and warnings. Paths are relative to the configuration.
    pub found: Vec<Diagnostic>,
    /// The compiled configuration, for whoever builds the plugin of it.
    pub compiled: Option<CompiledConf>,
}

/// A configuration that a plugin has compiled, in a type of which this crate knows nothing.
pub type CompiledConf = Box<dyn Any + Send>;

/// Compiled configurations between the check of a document or a change and the build of its plugins, by the number in
/// [`PluginConf`](crate::PluginConf). Each is taken once; the plugin of a configuration that is not here is compiled
/// anew. Clones share them.
#[derive(Clone, Default)]
pub struct CompiledConfs(Arc<Mutex<HashMap<i64, CompiledConf>>>);

impl CompiledConfs {
    /// Takes a configuration out.
    pub fn take(&self, number: i64) -> Option<CompiledConf> {
        self.lock().remove(&number)
    }

    /// Drops all that nobody took.
    pub fn clear(&self) {
        drop(mem::take(&mut *self.lock()));
    }

    /// Moves all configurations to a new owner.
    pub(crate) fn moved(&self) -> Self {
        Self(Arc::new(Mutex::new(mem::take(&mut *self.lock()))))
    }

    /// Keeps a configuration. Its number is unique in the process and above 0.
    pub(crate) fn put(&self, conf: CompiledConf) -> i64 {
        static LAST: AtomicI64 = AtomicI64::new(0);
        let number = LAST.fetch_add(1, Relaxed) + 1;
        self.lock().insert(number, conf);
        number
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, CompiledConf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CompiledConfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}

/// Always equal: the compiled forms say nothing that the rest of a document does not.
impl PartialEq for CompiledConfs {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The place of a plugin's configuration, which decides the schema it is checked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A route, a service, a plugin config or a consumer group.
    Route,
    /// A consumer or one of its credentials: authentication plugins take the consumer's own data there.
    Consumer,
    /// On a stream route, or on a service as a stream route takes it: only some plugins run there.
    StreamRoute,
    /// In a global rule.
    GlobalRule,
    /// `plugin_metadata`.
    Metadata,
}

/// A catalog without any plugin, for tools and tests that look at the rest of a document.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPlugins;

impl PluginCatalog for NoPlugins {
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn check(&self, _: &str, _: Scope, _: &Node) -> Checked {
        Checked::default()
    }

    fn is_auth(&self, _: &str) -> bool {
        false
    }
}

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

/// The plugins that APISIX 3.18 enables by default, with their priorities; those that run first stand first.
#[rustfmt::skip]
pub const APISIX_DEFAULT_PLUGINS: &[(&str, i32)] = &[
    ("real-ip", 23000), ("ai", 22900), ("client-control", 22000), ("proxy-buffering", 21991),
    ("proxy-control", 21990), ("request-id", 12015), ("zipkin", 12011), ("ext-plugin-pre-req", 12000),
    ("fault-injection", 11000), ("mocking", 10900), ("serverless-pre-function", 10000), ("cors", 4000),
    ("ip-restriction", 3000), ("ua-restriction", 2999), ("referer-restriction", 2990), ("csrf", 2980),
    ("uri-blocker", 2900), ("request-validation", 2800), ("chaitin-waf", 2700), ("multi-auth", 2600),
    ("openid-connect", 2599), ("saml-auth", 2598), ("cas-auth", 2597), ("authz-casbin", 2560),
    ("authz-casdoor", 2559), ("wolf-rbac", 2555), ("ldap-auth-advanced", 2541), ("ldap-auth", 2540),
    ("hmac-auth", 2530), ("basic-auth", 2520), ("jwt-auth", 2510), ("jwe-decrypt", 2509), ("key-auth", 2500),
    ("dingtalk-auth", 2430), ("feishu-auth", 2420), ("acl", 2410), ("consumer-restriction", 2400),
    ("attach-consumer-label", 2399), ("forward-auth", 2002), ("opa", 2001), ("authz-keycloak", 2000),
    ("data-mask", 1500), ("proxy-cache", 1085), ("body-transformer", 1080), ("ai-request-rewrite", 1073),
    ("ai-prompt-guard", 1072), ("ai-prompt-template", 1071), ("ai-prompt-decorator", 1070), ("ai-rag", 1060),
    ("ai-proxy-multi", 1041), ("ai-proxy", 1040), ("ai-cache", 1035), ("ai-aws-content-moderation", 1031),
    ("ai-rate-limiting", 1030), ("ai-aliyun-content-moderation", 1029), ("ai-lakera-guard", 1028),
    ("proxy-mirror", 1010), ("graphql-proxy-cache", 1009), ("proxy-rewrite", 1008), ("workflow", 1006),
    ("api-breaker", 1005), ("graphql-limit-count", 1004), ("limit-conn", 1003), ("limit-count", 1002),
    ("limit-req", 1001), ("gzip", 995), ("traffic-label", 967), ("traffic-split", 966), ("redirect", 900),
    ("response-rewrite", 899), ("oas-validator", 512), ("mcp-bridge", 510), ("degraphql", 509), ("kafka-proxy", 508),
    ("grpc-transcode", 506), ("grpc-web", 505), ("http-dubbo", 504), ("public-api", 501), ("prometheus", 500),
    ("datadog", 495), ("lago", 415), ("loki-logger", 414), ("elasticsearch-logger", 413), ("echo", 412),
    ("loggly", 411), ("http-logger", 410), ("splunk-hec-logging", 409), ("skywalking-logger", 408),
    ("google-cloud-logging", 407), ("sls-logger", 406), ("tcp-logger", 405), ("kafka-logger", 403),
    ("rocketmq-logger", 402), ("syslog", 401), ("udp-logger", 400), ("file-logger", 399), ("clickhouse-logger", 398),
    ("tencent-cloud-cls", 397), ("inspect", 200), ("example-plugin", 0), ("aws-lambda", -1899),
    ("azure-functions", -1900), ("openwhisk", -1901), ("openfunction", -1902), ("serverless-post-function", -2000),
    ("ext-plugin-post-req", -3000), ("ext-plugin-post-resp", -4000),
];
