//! Decisions which traces are reported.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Caller, TraceId};

/// A sampler and its options.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(crate) struct SamplerConf {
    /// `always_on`: all requests. `always_off`: none. `trace_id_ratio`: the share `options.fraction`. `parent_base`: as the caller
    /// has decided, and for requests without a caller's trace as `options.root` says.
    name: SamplerName,
    /// Its options.
    options: SamplerOptions,
}

/// Name of a sampler.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum SamplerName {
    AlwaysOn,
    #[default]
    AlwaysOff,
    TraceIdRatio,
    ParentBase,
}

/// Options of a sampler.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SamplerOptions {
    /// Share of the traces that `trace_id_ratio` reports. It is decided by the id of the trace, so that all services with the
    /// same share report the same traces.
    #[schemars(range(min = 0, max = 1))]
    fraction: f64,
    /// The sampler of `parent_base` for requests without a caller's trace.
    root: RootConf,
}

/// A sampler for requests without a caller's trace.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RootConf {
    /// `always_on`, `always_off` or `trace_id_ratio`.
    name: RootName,
    /// Its options.
    options: RootOptions,
}

/// Name of a sampler for requests without a caller's trace.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum RootName {
    AlwaysOn,
    #[default]
    AlwaysOff,
    TraceIdRatio,
}

/// Options of a sampler for requests without a caller's trace.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RootOptions {
    /// Share of the traces that `trace_id_ratio` reports.
    #[schemars(range(min = 0, max = 1))]
    fraction: f64,
}

/// A sampler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler {
    /// True if the caller's decision is taken over.
    follows_caller: bool,
    /// Share of the other traces.
    share: Share,
}

/// A share of traces: those whose last 63 bits are below this.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share(u64);

impl Share {
    /// A share between 0 and 1.
    pub(crate) fn new(fraction: f64) -> Self {
        // 2^63; a number out of the range ends at its bounds.
        Self((fraction.clamp(0.0, 1.0) * 9_223_372_036_854_775_808.0) as u64)
    }

    /// True if the trace is within the share.
    pub(crate) fn has(self, trace: TraceId) -> bool {
        (trace.number as u64 >> 1) < self.0
    }
}

impl SamplerConf {
    /// The sampler.
    pub(crate) fn sampler(&self) -> Sampler {
        let alone = |share| Sampler { follows_caller: false, share: Share::new(share) };
        match self.name {
            SamplerName::AlwaysOn => alone(1.0),
            SamplerName::AlwaysOff => alone(0.0),
            SamplerName::TraceIdRatio => alone(self.options.fraction),
            SamplerName::ParentBase => {
                let root = &self.options.root;
                let share = match root.name {
                    RootName::AlwaysOn => 1.0,
                    RootName::AlwaysOff => 0.0,
                    RootName::TraceIdRatio => root.options.fraction,
                };
                Sampler { follows_caller: true, share: Share::new(share) }
            }
        }
    }
}

impl Sampler {
    /// True if the spans of this trace are reported.
    pub(crate) fn decide(self, trace: TraceId, caller: Option<&Caller>) -> bool {
        match caller.and_then(|caller| caller.is_sampled) {
            Some(decision) if self.follows_caller => decision,
            _ => self.share.has(trace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Caller, SamplerConf, TraceId};

    #[test]
    fn samplers_decide_by_their_names() {
        let trace = |low: u64| TraceId { number: u128::from(low), is_short: false };
        let (low, high) = (trace(u64::MAX / 10), trace(u64::MAX / 10 * 9));
        let caller = |is_sampled| Caller { trace: low, span: None, is_sampled: Some(is_sampled) };
        let (yes, no) = (caller(true), caller(false));
        // Without a caller for a low and a high id, then with callers that report and do not.
        for (conf, expected) in [
            ("{}", [false; 4]),
            (r#"{"name": "always_on"}"#, [true; 4]),
            (r#"{"name": "always_off"}"#, [false; 4]),
            (r#"{"name": "trace_id_ratio", "options": {"fraction": 0.5}}"#, [true, false, true, true]),
            (r#"{"name": "trace_id_ratio", "options": {"fraction": 1}}"#, [true; 4]),
            (r#"{"name": "trace_id_ratio"}"#, [false; 4]),
            (r#"{"name": "parent_base"}"#, [false, false, true, false]),
            (r#"{"name": "parent_base", "options": {"root": {"name": "always_on"}}}"#, [true, true, true, false]),
            (
                r#"{"name": "parent_base", "options": {"root": {"name": "trace_id_ratio", "options": {"fraction": 0.5}}}}"#,
                [true, false, true, false],
            ),
        ] {
            let sampler = serde_json::from_str::<SamplerConf>(conf).unwrap().sampler();
            let found = [
                sampler.decide(low, None),
                sampler.decide(high, None),
                sampler.decide(low, Some(&yes)),
                sampler.decide(low, Some(&no)),
            ];
            assert_eq!(found, expected, "{conf}");
        }
    }
}
