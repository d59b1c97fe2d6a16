use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::Method;
use super::upstream::{UpstreamHost, seconds};

/// Health checks of an upstream's nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checks {
    /// Checks that the gateway makes by itself.
    pub active: ActiveChecks,
    /// Judgement of nodes by the requests that are forwarded anyway. Only beside `active`, which brings a node back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passive: Option<PassiveChecks>,
    /// No active checks are made: a node that requests have found unhealthy stays so until Kong's Admin API says
    /// otherwise, or the gateway starts anew. An extension, for Kong's family.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_passive: bool,
    /// Percentage of the nodes' weight that has to be exceeded by those that are healthy: otherwise requests are answered
    /// with 503. Unset: with no healthy node all of them are used. An extension, for Kong's family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub threshold: Option<u8>,
}

/// Checks that the gateway makes by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveChecks {
    /// Kind of check.
    pub r#type: CheckType,
    /// Seconds for all of a check, decimals allowed.
    #[serde(with = "seconds")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0))]
    pub timeout: Duration,
    /// Nodes of the upstream that are checked at one time; 256 at most over all upstreams.
    #[schemars(range(min = 1))]
    pub concurrency: u32,
    /// Host of the checks' requests, and the name that a node's certificate has to carry. Unset: the Host that requests
    /// get by `pass_host`, or the node's own name for `pass`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<UpstreamHost>,
    /// Port that is checked. Unset: the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// Method of the checks' requests.
    #[schemars(schema_with = "method_schema")]
    pub http_method: String,
    /// Target of the checks' requests: path and query.
    #[schemars(length(max = 4096), regex(pattern = r"^/[!-~]*$"), extend("x-expected" = PATH_EXPECTED))]
    pub http_path: String,
    /// Body of the checks' requests.
    #[schemars(length(max = 65536))]
    pub http_req_body: String,
    /// Verification of a node's certificate, for the type `https`: by an authority of `tls.trusted_certificate` in the
    /// settings.
    pub https_verify_certificate: bool,
    /// Further fields of the checks' requests, each `Name: value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "headers_schema")]
    pub req_headers: Vec<String>,
    /// Rules by which a node becomes healthy.
    pub healthy: ActiveHealthy,
    /// Rules by which a node becomes unhealthy.
    pub unhealthy: ActiveUnhealthy,
}

/// Kind of check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckType {
    /// A request, judged by the status of its answer; over HTTP/2 where requests to the node are, unless `port` is set.
    #[default]
    Http,
    /// The same over TLS.
    Https,
    /// A connection that can be opened.
    Tcp,
    /// A call of `grpc.health.v1.Health/Check` for the whole server, over TLS with `scheme: grpcs`. `SERVING` counts as the
    /// status 200, any other answer as 503. An extension.
    Grpc,
}

/// Rules by which a node becomes healthy, for active checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveHealthy {
    /// Seconds between two checks of a healthy node.
    #[schemars(range(min = 1))]
    pub interval: u32,
    /// Statuses that count as a success.
    #[schemars(schema_with = "statuses_schema")]
    pub http_statuses: Vec<u16>,
    /// Number of successes in a row that makes an unhealthy node healthy.
    #[schemars(range(min = 1, max = 254))]
    pub successes: u8,
}

/// Rules by which a node becomes unhealthy, for active checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveUnhealthy {
    /// Seconds between two checks of an unhealthy node.
    #[schemars(range(min = 1))]
    pub interval: u32,
    /// Statuses that count as a failure. Statuses in neither list do not count.
    #[schemars(schema_with = "statuses_schema")]
    pub http_statuses: Vec<u16>,
    /// Number of such statuses, or answers that are not HTTP, without a success between them, that makes a node
    /// unhealthy; 0, an extension: they do not count.
    #[schemars(range(max = 254))]
    pub http_failures: u8,
    /// Number of refused or reset connections with the same effect; 0, an extension: they do not count.
    #[schemars(range(max = 254))]
    pub tcp_failures: u8,
    /// Number of timeouts with the same effect; 0, an extension: they do not count.
    #[schemars(range(max = 254))]
    pub timeouts: u8,
}

/// Judgement of nodes by the requests that are forwarded anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PassiveChecks {
    /// Events that count: with `tcp` connections and timeouts but no statuses; `http` and `https` are the same here.
    pub r#type: CheckType,
    /// Rules by which a node becomes healthy.
    pub healthy: PassiveHealthy,
    /// Rules by which a node becomes unhealthy.
    pub unhealthy: PassiveUnhealthy,
}

/// Rules by which a node becomes healthy, for passive checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PassiveHealthy {
    /// Statuses that count as a success.
    #[schemars(schema_with = "statuses_schema")]
    pub http_statuses: Vec<u16>,
    /// Number of successes in a row that makes an unhealthy node healthy; 0: they do not count.
    #[schemars(range(max = 254))]
    pub successes: u8,
}

/// Rules by which a node becomes unhealthy, for passive checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PassiveUnhealthy {
    /// Statuses that count as a failure. Statuses in neither list do not count.
    #[schemars(schema_with = "statuses_schema")]
    pub http_statuses: Vec<u16>,
    /// Number of such statuses without a success between them that makes a node unhealthy; 0: they do not count.
    #[schemars(range(max = 254))]
    pub http_failures: u8,
    /// Number of refused or reset connections with the same effect.
    #[schemars(range(max = 254))]
    pub tcp_failures: u8,
    /// Number of timeouts with the same effect.
    #[schemars(range(max = 254))]
    pub timeouts: u8,
}

impl Default for ActiveChecks {
    fn default() -> Self {
        Self {
            r#type: CheckType::Http,
            timeout: Duration::from_secs(1),
            concurrency: 10,
            host: None,
            port: None,
            http_method: "GET".to_owned(),
            http_path: "/".to_owned(),
            http_req_body: String::new(),
            https_verify_certificate: true,
            req_headers: Vec::new(),
            healthy: ActiveHealthy::default(),
            unhealthy: ActiveUnhealthy::default(),
        }
    }
}

impl Default for ActiveHealthy {
    fn default() -> Self {
        Self { interval: 1, http_statuses: vec![200, 302], successes: 2 }
    }
}

impl Default for ActiveUnhealthy {
    fn default() -> Self {
        Self {
            interval: 1,
            http_statuses: vec![429, 404, 500, 501, 502, 503, 504, 505],
            http_failures: 5,
            tcp_failures: 2,
            timeouts: 3,
        }
    }
}

impl Default for PassiveHealthy {
    fn default() -> Self {
        let statuses = (200..=208).chain([226]).chain(300..=308);
        Self { http_statuses: statuses.collect(), successes: 5 }
    }
}

impl Default for PassiveUnhealthy {
    fn default() -> Self {
        Self { http_statuses: vec![429, 500, 503], http_failures: 5, tcp_failures: 2, timeouts: 7 }
    }
}

impl CheckType {
    /// Name of the type in a file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
        }
    }
}

const PATH_EXPECTED: &str = "a path that begins with '/', percent-encoded where it needs to be";
const HEADER_EXPECTED: &str = "a field as it is sent: 'Name: value'";

fn statuses_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "uniqueItems": true,
        "items": { "type": "integer", "minimum": 200, "maximum": 599 }
    })
}

fn headers_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "uniqueItems": true,
        "items": {
            "type": "string",
            "maxLength": 8192,
            // RFC 9110 section 5.1: a name is a token; section 5.5: a value has no control bytes but tabs.
            // In the words that the regular expressions of JSON Schema share with ours.
            "pattern": r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*$",
            "x-expected": HEADER_EXPECTED
        }
    })
}

/// CONNECT requests a tunnel and not a response.
fn method_schema(_: &mut SchemaGenerator) -> Schema {
    let methods = Method::ALL.into_iter().filter(|method| *method != Method::Connect).map(Method::as_str);
    json_schema!({ "type": "string", "enum": methods.collect::<Vec<_>>() })
}
