//! The time of one request, split into what the gateway took and what the upstream took.

/// Adds up the microseconds that a request spent waiting for upstreams, over all tries.
///
/// Times are readings of the worker's clock in microseconds; only differences are used, so the origin does not matter.
/// The upstream's share runs from the moment a try begins (picking a connection included) to the last byte of the
/// answer or to the failure of the try; all the rest is the gateway's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    started: u64,
    waiting_since: Option<u64>,
    upstream: Option<u64>,
}

/// A finished [`Latency`], in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Split {
    /// From the first byte of the request to the end of the answer.
    pub request_us: u64,
    /// The part spent on upstreams; `None` when none was asked.
    pub upstream_us: Option<u64>,
    /// `request_us` without `upstream_us`.
    pub gateway_us: u64,
}

impl Latency {
    /// A request whose first byte came at `now`.
    pub fn start(now: u64) -> Self {
        Self { started: now, waiting_since: None, upstream: None }
    }

    /// A try of an upstream begins. A try that is still open ends here.
    pub fn upstream_begins(&mut self, now: u64) {
        self.upstream_ends(now);
        self.upstream.get_or_insert(0);
        self.waiting_since = Some(now);
    }

    /// The open try, if any, is over: answered in full, or failed.
    pub fn upstream_ends(&mut self, now: u64) {
        if let (Some(since), Some(total)) = (self.waiting_since.take(), self.upstream.as_mut()) {
            *total = total.saturating_add(now.saturating_sub(since));
        }
    }

    /// The split at `now`, the end of the answer. A try that is still open counts up to `now`.
    pub fn finish(mut self, now: u64) -> Split {
        self.upstream_ends(now);
        let request_us = now.saturating_sub(self.started);
        let upstream_us = self.upstream.map(|upstream| upstream.min(request_us));
        Split { request_us, upstream_us, gateway_us: request_us - upstream_us.unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_splits_into_gateway_and_upstream() {
        type Step = (char, u64);
        let cases: [(&str, &[Step], u64, Split); 5] = [
            ("no upstream", &[], 130, Split { request_us: 30, upstream_us: None, gateway_us: 30 }),
            (
                "one try",
                &[('b', 110), ('e', 125)],
                130,
                Split { request_us: 30, upstream_us: Some(15), gateway_us: 15 },
            ),
            (
                "a failed try and a second one",
                &[('b', 105), ('e', 110), ('b', 112), ('e', 120)],
                130,
                Split { request_us: 30, upstream_us: Some(13), gateway_us: 17 },
            ),
            ("cut while waiting", &[('b', 110)], 130, Split { request_us: 30, upstream_us: Some(20), gateway_us: 10 }),
            (
                "a clock that steps back",
                &[('b', 110), ('e', 105)],
                90,
                Split { request_us: 0, upstream_us: Some(0), gateway_us: 0 },
            ),
        ];
        for (name, steps, end, expected) in cases {
            let mut latency = Latency::start(100);
            for (step, at) in steps {
                match step {
                    'b' => latency.upstream_begins(*at),
                    _ => latency.upstream_ends(*at),
                }
            }
            assert_eq!(latency.finish(end), expected, "{name}");
        }
    }
}
