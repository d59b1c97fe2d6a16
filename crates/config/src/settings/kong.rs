//! Settings of Kong's family.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name, version and fields that Kong's family announces to clients and upstreams.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Kong {
    /// Fields that responses get, as `headers` of kong.conf. `server_tokens` stands for `Via` and `Server`,
    /// `latency_tokens` for the three latencies. Empty: none.
    #[schemars(length(max = 16))]
    pub headers: Vec<KongHeader>,
    /// Fields that upstreams get, as `headers_upstream` of kong.conf. Empty: none.
    #[schemars(length(max = 4))]
    pub headers_upstream: Vec<KongUpstreamHeader>,
    /// Version of Kong that clients, upstreams and the Admin API are told.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9A-Za-z.+-]+$"), extend("x-expected" = "a version such as 3.9.3"))]
    pub version: String,
}

/// A field of responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum KongHeader {
    /// `Via` and `Server`.
    #[serde(rename = "server_tokens")]
    ServerTokens,
    /// The three latencies.
    #[serde(rename = "latency_tokens")]
    LatencyTokens,
    /// `Via`.
    Via,
    /// `Server`.
    Server,
    /// Milliseconds that the upstream took.
    #[serde(rename = "X-Kong-Upstream-Latency")]
    UpstreamLatency,
    /// Milliseconds before the upstream.
    #[serde(rename = "X-Kong-Proxy-Latency")]
    ProxyLatency,
    /// Milliseconds of an answer made here.
    #[serde(rename = "X-Kong-Response-Latency")]
    ResponseLatency,
    /// Milliseconds of an answer of the Admin API.
    #[serde(rename = "X-Kong-Admin-Latency")]
    AdminLatency,
    /// Status of the upstream's response.
    #[serde(rename = "X-Kong-Upstream-Status")]
    UpstreamStatus,
    /// Id of the request.
    #[serde(rename = "X-Kong-Request-Id")]
    RequestId,
}

/// A field of requests to upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum KongUpstreamHeader {
    /// Id of the request.
    #[serde(rename = "X-Kong-Request-Id")]
    RequestId,
}

impl Default for Kong {
    fn default() -> Self {
        Self {
            headers: vec![KongHeader::ServerTokens, KongHeader::LatencyTokens, KongHeader::RequestId],
            headers_upstream: vec![KongUpstreamHeader::RequestId],
            version: "3.9.3".to_owned(),
        }
    }
}

impl Kong {
    /// True if responses get a field, by its own name or by that of its group.
    #[must_use]
    pub fn has(&self, header: KongHeader) -> bool {
        let group = match header {
            KongHeader::Via | KongHeader::Server => Some(KongHeader::ServerTokens),
            KongHeader::UpstreamLatency
            | KongHeader::ProxyLatency
            | KongHeader::ResponseLatency
            | KongHeader::AdminLatency => Some(KongHeader::LatencyTokens),
            _ => None,
        };
        self.headers.iter().any(|given| *given == header || Some(*given) == group)
    }
}
