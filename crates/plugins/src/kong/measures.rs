//! Numbers about exchanges, as Kong's plugins for agents of metrics tell them.

use weir_plugin::View;

/// Quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Requests,
    Latency,
    RequestSize,
    ResponseSize,
    UpstreamLatency,
    KongLatency,
}

impl Measure {
    /// The measure that a configuration names.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "request_count" => Self::Requests,
            "latency" => Self::Latency,
            "request_size" => Self::RequestSize,
            "response_size" => Self::ResponseSize,
            "upstream_latency" => Self::UpstreamLatency,
            "kong_latency" => Self::KongLatency,
            _ => return None,
        })
    }

    /// End of the names of metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Requests => "request.count",
            Self::Latency => "latency",
            Self::RequestSize => "request.size",
            Self::ResponseSize => "response.size",
            Self::UpstreamLatency => "upstream_latency",
            Self::KongLatency => "kong_latency",
        }
    }

    /// The number of an exchange: milliseconds, bytes or 1. `None`: no upstream was asked.
    pub(super) fn of(self, x: View<'_>) -> Option<u64> {
        Some(match self {
            Self::Requests => 1,
            Self::Latency => x.duration() / 1000,
            Self::RequestSize => x.received(),
            Self::ResponseSize => x.sent(),
            Self::UpstreamLatency => x.upstream_us()? / 1000,
            Self::KongLatency => x.duration().saturating_sub(x.upstream_us().unwrap_or(0)) / 1000,
        })
    }
}

/// The type of a metric in the protocol.
pub(super) fn letters(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "counter" => "c",
        "gauge" => "g",
        "histogram" => "h",
        "timer" => "ms",
        "set" => "s",
        "meter" => "m",
        "distribution" => "d",
        _ => return None,
    })
}

/// Appends a name in which every byte that the protocol has a use for becomes `_`.
pub(super) fn push_name(text: &[u8], out: &mut Vec<u8>) {
    out.extend(text.iter().map(|byte| match byte {
        b'.' | b':' | b'|' | b'@' | b'#' | b',' | b'\n' | b'\r' => b'_',
        byte => *byte,
    }));
}
