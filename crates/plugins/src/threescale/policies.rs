//! The policies that a chain may hold, and their compilation.

mod answers;
mod apicast;
mod checks;
mod content_caching;
mod custom_metrics;
mod default_credentials;
mod headers;
mod introspection;
mod payload_limits;
mod rate_limit;
mod roles;
mod routing;
mod tls_validation;
mod urls;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weir_config::Node;
use weir_plugin::{BuildCx, CompileCx, Invalid};

pub(super) use apicast::Apicast;

use super::authorise::{Batching, Caching};
use super::condition::{self, Condition};
use super::policy::Policy;

/// Policies that are served, with those that the reader of a configuration takes into the upstream.
pub const SUPPORTED: &[&str] = &[
    "3scale_batcher",
    "apicast",
    "caching",
    "conditional",
    "content_caching",
    "cors",
    "custom_metrics",
    "default_credentials",
    "echo",
    "headers",
    "http_proxy",
    "ip_check",
    "jwt_claim_check",
    "keycloak_role_check",
    "logging",
    "maintenance_mode",
    "payload_limits",
    "rate_limit",
    "request_unbuffered",
    "retry",
    "rewrite_url_captures",
    "routing",
    "statuscode_overwrite",
    "tls",
    "tls_validation",
    "token_introspection",
    "upstream",
    "upstream_connection",
    "upstream_mtls",
    "url_rewriting",
    "websocket",
];

/// Policies of APIcast that are refused, with what to do instead.
pub const REFUSED: &[(&str, &str)] = &[
    ("3scale_referrer", "the referrer is not told to the backend"),
    ("camel", "requests are not sent by way of a proxy of Camel"),
    ("clear_context", "a chain has nothing that could be cleared"),
    ("fapi", "the checks of FAPI are not made"),
    ("grpc", "gRPC is not spoken with upstreams of this family"),
    ("jwt_parser", "tokens are read by the authentication method oidc"),
    ("liquid_context_debug", "the context of templates is not shown"),
    ("nginx_filters", "there is no nginx whose filters could be switched"),
    ("oauth_mtls", "tokens are not bound to certificates of clients"),
    ("on_failed", "a policy that cannot be loaded refuses the configuration"),
    ("rate_limit_headers", "limits of the backend are not told in fields"),
    ("soap", "actions of SOAP have no metrics"),
];

/// The policies that the reader of a configuration takes into the upstream and the listeners, where a condition has no place.
const OF_CONNECTIONS: [&str; 6] = ["http_proxy", "retry", "tls", "upstream_connection", "upstream_mtls", "websocket"];

/// The name of a policy without the words that may stand before it.
#[must_use]
pub fn name_of(name: &str) -> &str {
    name.strip_prefix("apicast.policy.").unwrap_or(name)
}

/// A policy in its place.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) policy: Box<dyn Policy>,
    /// All of them have to hold.
    pub(super) conditions: Vec<Arc<Condition>>,
}

/// Surroundings of a policy that is built.
pub(super) struct Site<'a> {
    pub(super) build: &'a BuildCx<'a>,
    /// Number of the policy in the chain.
    pub(super) number: usize,
    /// `hostname_rewrite` of the service.
    pub(super) host: &'a str,
    /// The upstream of the service.
    pub(super) upstream: &'a Map<String, Value>,
    /// The service.
    pub(super) id: &'a str,
}

type Build = Box<dyn FnOnce(&Site<'_>) -> Result<Box<dyn Policy>, Invalid> + Send>;

/// A policy, before it is built.
pub(super) struct DraftLink {
    build: Build,
    conditions: Vec<Arc<Condition>>,
}

impl std::fmt::Debug for DraftLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftLink").field("conditions", &self.conditions).finish_non_exhaustive()
    }
}

impl DraftLink {
    /// A policy that depends on nothing but its configuration.
    pub(super) fn of(policy: impl Policy + 'static) -> Self {
        Self::built(move |_| Ok(policy))
    }

    /// A policy that is built when its surroundings are known.
    fn built<P: Policy + 'static>(build: impl FnOnce(&Site<'_>) -> Result<P, Invalid> + Send + 'static) -> Self {
        Self { build: Box::new(|site| Ok(Box::new(build(site)?))), conditions: Vec::new() }
    }

    pub(super) fn build(self, site: &Site<'_>) -> Result<Link, Invalid> {
        Ok(Link { policy: (self.build)(site)?, conditions: self.conditions })
    }
}

/// The policies of a chain, before they are built.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) links: Vec<DraftLink>,
    pub(super) has_apicast: bool,
    pub(super) caching: Option<Caching>,
    pub(super) batching: Option<Batching>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct CachingConf {
    caching_type: Caching,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct BatchingConf {
    #[serde(default = "ten")]
    auths_ttl: u64,
    #[serde(default = "ten")]
    batch_report_seconds: u64,
}

fn ten() -> u64 {
    10
}

#[derive(Debug, Deserialize, JsonSchema)]
struct LoggingConf {
    #[serde(default = "yes")]
    enable_access_logs: bool,
    #[serde(default)]
    custom_logging: String,
    #[serde(default)]
    enable_json_logs: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ConditionalConf {
    condition: condition::Conf,
    policy_chain: Vec<NamedConf>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct NamedConf {
    name: String,
}

/// Reads the configuration of a policy at a place of that of the service.
fn read<T: DeserializeOwned>(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<T> {
    match conf.parse_into::<T>() {
        Ok(read) => Some(read),
        Err(fault) => {
            cx.add([fault.under(field)]);
            None
        }
    }
}

impl Found {
    /// Adds a policy. False with an error among the findings.
    pub(super) fn add(
        &mut self,
        name: &str,
        conf: &Node,
        place: &str,
        conditions: &[Arc<Condition>],
        cx: &CompileCx<'_>,
    ) -> bool {
        let field = format!("{place}.configuration");
        let name = name_of(name);
        let link = match name {
            "conditional" => return self.add_conditional(conf, &field, conditions, cx),
            "apicast" => {
                self.has_apicast = true;
                Some(DraftLink::of(Apicast))
            }
            "caching" => {
                let Some(conf) = read::<CachingConf>(conf, &field, cx) else { return false };
                self.caching = Some(conf.caching_type);
                return true;
            }
            "3scale_batcher" => self.batcher(conf, place, conditions, cx),
            "logging" => return check_logging(conf, &field, cx),
            // Bodies are never held whole, unless a policy reads them.
            "request_unbuffered" => return true,
            known if OF_CONNECTIONS.contains(&known) => {
                if !conditions.is_empty() {
                    cx.say([Invalid::new(place, format!("{known} is not supported inside of conditional"))]);
                }
                return conditions.is_empty();
            }
            _ => self.compile(name, conf, place, &field, cx),
        };
        let Some(mut link) = link else { return false };
        link.conditions = conditions.to_vec();
        self.links.push(link);
        true
    }

    fn compile(&self, name: &str, conf: &Node, place: &str, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
        match name {
            "content_caching" => content_caching::compile(conf, field, cx),
            "cors" => answers::cors(conf, field, cx),
            "custom_metrics" => custom_metrics::compile(conf, field, cx),
            "default_credentials" => default_credentials::compile(conf, field, cx),
            "echo" => answers::echo(conf, field, cx),
            "headers" => headers::compile(conf, field, cx),
            "ip_check" => checks::ip_check(conf, field, cx),
            "jwt_claim_check" => checks::jwt_claim_check(conf, field, cx),
            "keycloak_role_check" => roles::compile(conf, field, cx),
            "maintenance_mode" => answers::maintenance_mode(conf, field, cx),
            "payload_limits" => payload_limits::compile(conf, field, cx),
            "rate_limit" => rate_limit::compile(conf, field, cx),
            "rewrite_url_captures" => urls::rewrite_url_captures(conf, field, cx),
            "routing" => routing::routing(conf, field, cx),
            "statuscode_overwrite" => answers::statuscode_overwrite(conf, field, cx),
            "tls_validation" => tls_validation::compile(conf, field, cx),
            "token_introspection" => introspection::compile(conf, field, cx),
            "upstream" => routing::upstream(conf, field, cx),
            "url_rewriting" => urls::url_rewriting(conf, field, cx),
            _ => {
                let known = REFUSED.iter().find(|(known, _)| *known == name);
                let text = match known {
                    Some((_, reason)) => format!("the policy {name} is not supported: {reason}"),
                    None => format!("the policy '{name}' is not known: expected one of {}", SUPPORTED.join(", ")),
                };
                cx.say([Invalid::new(format!("{place}.name"), text)]);
                None
            }
        }
    }

    fn batcher(
        &mut self,
        conf: &Node,
        place: &str,
        conditions: &[Arc<Condition>],
        cx: &CompileCx<'_>,
    ) -> Option<DraftLink> {
        let field = format!("{place}.configuration");
        let conf = read::<BatchingConf>(conf, &field, cx)?;
        let fault = |field: String, text: &str| {
            cx.say([Invalid::new(field, text)]);
            None
        };
        if !conditions.is_empty() {
            return fault(place.to_owned(), "3scale_batcher is not supported inside of conditional");
        }
        if self.batching.is_some() {
            return fault(place.to_owned(), "a second 3scale_batcher in one chain is not supported");
        }
        if !(1..=86_400).contains(&conf.batch_report_seconds) {
            return fault(format!("{field}.batch_report_seconds"), "expected 1 to 86400 seconds");
        }
        if conf.auths_ttl > 86_400 {
            return fault(format!("{field}.auths_ttl"), "expected at most 86400 seconds");
        }
        self.batching = Some(Batching { auths_ttl: conf.auths_ttl, batch_report_seconds: conf.batch_report_seconds });
        Some(DraftLink::of(apicast::Batcher))
    }

    fn add_conditional(&mut self, conf: &Node, field: &str, conditions: &[Arc<Condition>], cx: &CompileCx<'_>) -> bool {
        let Some(read) = read::<ConditionalConf>(conf, field, cx) else { return false };
        let condition = Condition::compile(&read.condition, &format!("{field}.condition"));
        let Some(condition) = cx.ok(condition) else { return false };
        let conditions: Vec<Arc<Condition>> = conditions.iter().cloned().chain([Arc::new(condition)]).collect();
        let written = conf.get("policy_chain").and_then(Node::as_seq).unwrap_or_default();
        let empty = Node::empty_map();
        let mut is_good = true;
        for (at, policy) in read.policy_chain.iter().enumerate() {
            let conf = written.get(at).and_then(|node| node.get("configuration")).unwrap_or(&empty);
            is_good &= self.add(&policy.name, conf, &format!("{field}.policy_chain[{at}]"), &conditions, cx);
        }
        is_good
    }
}

/// Access logs are a setting of the gateway: what asks for other ones is refused.
fn check_logging(conf: &Node, field: &str, cx: &CompileCx<'_>) -> bool {
    let Some(read) = read::<LoggingConf>(conf, field, cx) else { return false };
    let fault = |name: &str, is_wrong: bool| {
        let text = "access logs are those of the settings: see access_log.path and access_log.format";
        is_wrong.then(|| Invalid::new(format!("{field}.{name}"), text))
    };
    let faults = [
        fault("enable_access_logs", !read.enable_access_logs),
        fault("custom_logging", !read.custom_logging.is_empty()),
        fault("enable_json_logs", read.enable_json_logs),
    ];
    let is_good = faults.iter().all(Option::is_none);
    cx.say(faults.into_iter().flatten());
    is_good
}
