use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::Method;
use super::upstream::{UpstreamHost, seconds};

/// How the health of an upstream's nodes is found out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checks {
    /// Checks that the gateway makes by itself.
    pub active: ActiveChecks,
    /// Looking at the requests that are forwarded anyway. Only beside `active`, which brings a node back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passive: Option<PassiveChecks>,
}

/// Checks that the gateway makes by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveChecks {
    /// What a check is.
    pub r#type: CheckType,
    /// Seconds for all of a check, decimals allowed.
    #[serde(with = "seconds")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0))]
    pub timeout: Duration,
    /// How many nodes of the upstream are checked at one time; 256 at most over all upstreams.
    #[schemars(range(min = 1))]
    pub concurrency: u32,
    /// Host of the checks' requests, and the name that a node's certificate has to carry. Unset: what `pass_host` says
    /// for requests, the node's own name for `pass`.
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
    /// Whether a node's certificate is verified, for the type `https`: by an authority of `tls.trusted_certificate` in
    /// the settings.
    pub https_verify_certificate: bool,
    /// Further fields of the checks' requests, each `Name: value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "headers_schema")]
    pub req_headers: Vec<String>,
    /// What makes a node healthy.
    pub healthy: ActiveHealthy,
    /// What makes a node unhealthy.
    pub unhealthy: ActiveUnhealthy,
}

/// What a check is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckType {
    /// A request, judged by the status of its answer.
    #[default]
    Http,
    /// The same over TLS.
    Https,
    /// A connection that can be opened.
    Tcp,
}

/// What makes a node healthy, for active checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveHealthy {
    /// Seconds between two checks of a healthy node.
    #[schemars(range(min = 1))]
    pub interval: u32,
    /// Statuses that count as a success.
    #[schemars(schema_with = "statuses_schema")]
    pub http_statuses: Vec<u16>,
    /// So many successes in a row make an unhealthy node healthy.
    #[schemars(range(min = 1, max = 254))]
    pub successes: u8,
}

/// What makes a node unhealthy, for active checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveUnhealthy {
    /// Seconds between two checks of an unhealthy node.
    #[schemars(range(min = 1))]
    pub interval: u32,
    /// Statuses that count as a failure. One that stands in neither list counts as nothing.
    #[schemars(schema_with = "statuses_schema")]
    pub http_statuses: Vec<u16>,
    /// So many such statuses, or answers that are not HTTP, without a success between them make a node unhealthy.
    #[schemars(range(min = 1, max = 254))]
    pub http_failures: u8,
    /// The same for connections that are refused or reset.
    #[schemars(range(min = 1, max = 254))]
    pub tcp_failures: u8,
    /// The same for timeouts.
    #[schemars(range(min = 1, max = 254))]
    pub timeouts: u8,
}

/// Looking at the requests that are forwarded anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PassiveChecks {
    /// What counts: with `tcp` connections and timeouts but no statuses; `http` and `https` are the same here.
    pub r#type: CheckType,
    /// What makes a node healthy.
    pub healthy: PassiveHealthy,
    /// What makes a node unhealthy.
    pub unhealthy: PassiveUnhealthy,
}

/// What makes a node healthy, for passive checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PassiveHealthy {
    /// Statuses that count as a success.
    #[schemars(schema_with = "statuses_schema")]
    pub http_statuses: Vec<u16>,
    /// So many successes in a row make an unhealthy node healthy; 0: they do not count.
    #[schemars(range(max = 254))]
    pub successes: u8,
}

/// What makes a node unhealthy, for passive checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PassiveUnhealthy {
    /// Statuses that count as a failure. One that stands in neither list counts as nothing.
    #[schemars(schema_with = "statuses_schema")]
    pub http_statuses: Vec<u16>,
    /// So many such statuses without a success between them make a node unhealthy; 0: they do not count.
    #[schemars(range(max = 254))]
    pub http_failures: u8,
    /// The same for connections that are refused or reset.
    #[schemars(range(max = 254))]
    pub tcp_failures: u8,
    /// The same for timeouts.
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
    /// Its name in a file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
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

/// CONNECT asks for a tunnel and not for an answer.
fn method_schema(_: &mut SchemaGenerator) -> Schema {
    let methods = Method::ALL.into_iter().filter(|method| *method != Method::Connect).map(Method::as_str);
    json_schema!({ "type": "string", "enum": methods.collect::<Vec<_>>() })
}
