//! Load of a node as balancers need it: requests under way, and response time. Kept on the endpoint, so that it counts
//! for all workers and outlives a change; written without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Milliseconds after which the weight of an old response has decayed to 1/e.
const DECAY_MS: f32 = 10_000.0;
/// Microseconds that a failed try counts at least: a node that fails at once is not a quick one.
const FAILED_US: u64 = 5_000_000;
/// Most milliseconds that the clocks of two workers may be apart.
const BEHIND_MS: u32 = 60_000;
/// Attempts to record an observation before it is dropped, because other workers keep recording theirs.
const OFFERS: u32 = 4;

/// The load of a node.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Requests under way, of the upstreams that balance by them.
    active: AtomicU32,
    latency: Latency,
}

/// A request under way; when this is dropped, however that comes about, it is not any more.
#[derive(Debug)]
pub(crate) struct Active<'a>(&'a AtomicU32);

impl Load {
    /// Counts a request while what is returned lives.
    pub(crate) fn begin(&self) -> Active<'_> {
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(&self.active)
    }

    pub(crate) fn active(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    /// Takes in that a try took so many microseconds to its answer, or to its failure.
    pub(crate) fn observe(&self, took_us: u64, failed: bool, now_ms: u64) {
        let took_us = if failed { took_us.max(FAILED_US) } else { took_us };
        self.latency.observe(took_us as f32, now_ms as u32);
    }

    /// The average of what was observed, less for every moment since: a node that was slow is tried again some time.
    pub(crate) fn latency(&self, now_ms: u64) -> f32 {
        self.latency.at(now_ms as u32)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An average of microseconds that decays exponentially: the average as `f32`, and below it the millisecond of the last
/// observation, modulo 2³². One word, so that both change together.
#[derive(Debug, Default)]
struct Latency(AtomicU64);

impl Latency {
    fn observe(&self, took_us: f32, now_ms: u32) {
        let mut seen = self.0.load(Ordering::Relaxed);
        for _ in 0..OFFERS {
            let (average, last) = unpack(seen);
            // The first one stands for itself.
            let kept = if seen == 0 { 0.0 } else { decay(now_ms.wrapping_sub(last)) };
            let next = pack(average * kept + took_us * (1.0 - kept), now_ms);
            match self.0.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => seen = other,
            }
        }
    }

    fn at(&self, now_ms: u32) -> f32 {
        let (average, last) = unpack(self.0.load(Ordering::Relaxed));
        average * decay(now_ms.wrapping_sub(last))
    }
}

/// Factor of an average that is left after so many milliseconds.
fn decay(elapsed_ms: u32) -> f32 {
    // The clock of one worker may be a little behind another's.
    let elapsed_ms = if elapsed_ms > u32::MAX - BEHIND_MS { 0 } else { elapsed_ms };
    (-(elapsed_ms as f32) / DECAY_MS).exp()
}

fn pack(average: f32, at_ms: u32) -> u64 {
    u64::from(average.to_bits()) << 32 | u64::from(at_ms)
}

fn unpack(packed: u64) -> (f32, u32) {
    (f32::from_bits((packed >> 32) as u32), packed as u32)
}

#[cfg(test)]
mod tests {
    use super::Load;

    #[test]
    fn latency_is_an_average_that_fades() {
        let load = Load::default();
        assert_eq!(load.latency(5_000), 0.0, "nothing is known");
        load.observe(1_000, false, 5_000);
        assert_eq!(load.latency(5_000), 1_000.0, "the first observation stands for itself");
        let close = |found: f32, wanted: f32| assert!((found - wanted).abs() < wanted * 0.01, "{found} for {wanted}");
        close(load.latency(15_000), 1_000.0 / std::f32::consts::E);
        assert_eq!(load.latency(4_990), 1_000.0, "the clock of another worker is behind");
        load.observe(3_000, false, 15_000);
        let kept = 1.0 / std::f32::consts::E;
        close(load.latency(15_000), 1_000.0 * kept + 3_000.0 * (1.0 - kept));
        assert!(load.latency(15_000 + 600_000) < 0.001);

        // Many small observations come to their average.
        for ms in 0..100_000 {
            load.observe(if ms % 2 == 0 { 100 } else { 300 }, false, 20_000 + ms);
        }
        close(load.latency(120_000), 200.0);
    }

    #[test]
    fn a_failure_is_slow_however_soon_it_comes() {
        let load = Load::default();
        load.observe(10, true, 1);
        assert_eq!(load.latency(1), 5_000_000.0);
    }

    #[test]
    fn latency_goes_on_when_its_clock_begins_anew() {
        let load = Load::default();
        let wraps = 1 << 32;
        load.observe(1_000, false, wraps - 5_000);
        let left = load.latency(wraps + 5_000);
        assert!((left - 1_000.0 / std::f32::consts::E).abs() < 1.0, "{left}");
    }

    #[test]
    fn requests_under_way_are_counted_while_they_live() {
        let load = Load::default();
        let (one, two) = (load.begin(), load.begin());
        assert_eq!(load.active(), 2);
        drop(one);
        assert_eq!(load.active(), 1);
        drop(two);
        assert_eq!(load.active(), 0);
    }
}
