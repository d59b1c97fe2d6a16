//! One leaky bucket: what is in it and when that was so, in one word that changes as a whole.

use portable_atomic::AtomicU128;
use portable_atomic::Ordering::{AcqRel, Acquire};

use crate::traffic::table::Entry;

/// The amount that one request adds.
const REQUEST: f64 = 1000.0;

/// The leak rate and the capacity of a bucket. Amounts are thousandths of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate {
    /// A second.
    leak: f64,
    /// Before a request.
    burst: f64,
}

impl Rate {
    /// `rate` requests a second, more than 0, and as many as `burst` waiting.
    pub(crate) fn new(rate: f64, burst: f64) -> Self {
        Self { leak: rate * REQUEST, burst: burst * REQUEST }
    }

    /// Thousandths of a request that leak in a second, and that may be in the bucket before a request.
    pub(crate) fn in_thousandths(&self) -> [f64; 2] {
        [self.leak, self.burst]
    }

    /// Milliseconds after which a full bucket is empty.
    pub(crate) fn drain_ms(&self) -> u64 {
        // A rate near 0 takes for ever; the conversion saturates.
        ((self.burst + REQUEST) / self.leak * 1000.0).ceil() as u64
    }
}

/// A bucket. Times are milliseconds of a clock that never goes back and that all threads share; threads may read it a
/// little late.
#[derive(Debug)]
pub(crate) struct Bucket(AtomicU128);

/// The state of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    /// The time of this level; 0 before the first request.
    at: u64,
    /// Thousandths of a request, rounded down.
    excess: u64,
}

/// Marks a bucket that is being taken out of its table.
const DEAD: u128 = u128::MAX;

impl Level {
    const fn pack(self) -> u128 {
        (self.at as u128) << 64 | self.excess as u128
    }

    const fn unpack(word: u128) -> Self {
        Self { at: (word >> 64) as u64, excess: word as u64 }
    }
}

impl Bucket {
    /// Adds one request, if it finds no more than the burst, and gives the milliseconds until what it found has leaked;
    /// `Some(None)` when it finds more, `None` when the bucket is dead.
    ///
    /// Exact: whatever threads ask at once, no request is forgotten. Where lua-resty-limit-traffic takes the difference
    /// of two late clocks for time that has passed, whatever its sign, here nothing leaks.
    pub(crate) fn pour(&self, now: u64, rate: &Rate) -> Option<Option<u64>> {
        let mut word = self.0.load(Acquire);
        loop {
            if word == DEAD {
                return None;
            }
            let level = Level::unpack(word);
            let excess = match level.at {
                0 => 0.0,
                at => {
                    let leaked = rate.leak * now.saturating_sub(at) as f64 / 1000.0;
                    (level.excess as f64 - leaked + REQUEST).max(0.0)
                }
            };
            if excess > rate.burst {
                return Some(None);
            }
            let next = Level { at: level.at.max(now).max(1), excess: excess as u64 };
            match self.0.compare_exchange_weak(word, next.pack(), AcqRel, Acquire) {
                Ok(_) => return Some(Some((excess / rate.leak * 1000.0) as u64)),
                Err(now_there) => word = now_there,
            }
        }
    }
}

impl Entry for Bucket {
    fn unused() -> Self {
        Self(AtomicU128::new(0))
    }

    fn retire(&self, now: u64, linger: u64) -> bool {
        let word = self.0.load(Acquire);
        word != DEAD
            && now >= Level::unpack(word).at.saturating_add(linger)
            && self.0.compare_exchange(word, DEAD, AcqRel, Acquire).is_ok()
    }

    fn is_dead(&self) -> bool {
        self.0.load(Acquire) == DEAD
    }
}

#[cfg(test)]
mod tests {
    use super::{Bucket, Entry, Rate};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    fn passed(wait: u64) -> Option<Option<u64>> {
        Some(Some(wait))
    }

    const REJECTED: Option<Option<u64>> = Some(None);

    #[test]
    fn what_is_early_waits_for_its_turn() {
        let bucket = Bucket::unused();
        let rate = Rate::new(10.0, 2.0);
        for (now, poured) in [
            (5000, passed(0)),
            (5000, passed(100)),
            (5000, passed(200)),
            (5000, REJECTED),
            // A rejected request adds nothing. After 99 ms there are 10 thousandths too many.
            (5099, REJECTED),
            (5100, passed(200)),
            // A thread whose clock is late finds what there is.
            (5090, REJECTED),
            (5250, passed(150)),
            (5900, passed(0)),
            (5950, passed(50)),
        ] {
            assert_eq!(bucket.pour(now, &rate), poured, "at {now}");
        }
    }

    #[test]
    fn without_a_burst_requests_come_apart() {
        for (rate, apart) in [(1.0, 1000), (0.1, 10_000), (4.0, 250), (1000.0, 1)] {
            let (bucket, rate) = (Bucket::unused(), Rate::new(rate, 0.0));
            for n in 0..5 {
                let now = 77 + n * apart;
                assert_eq!(bucket.pour(now, &rate), passed(0), "{rate:?} at {now}");
                assert_eq!(bucket.pour(now + apart - 1, &rate), REJECTED, "{rate:?} after {now}");
            }
        }
    }

    #[test]
    fn a_bucket_is_retired_once_and_only_when_it_is_empty() {
        let (bucket, rate) = (Bucket::unused(), Rate::new(10.0, 2.0));
        for _ in 0..3 {
            assert!(bucket.pour(1000, &rate).flatten().is_some());
        }
        assert_eq!(rate.drain_ms(), 300);
        assert!(!bucket.retire(1299, rate.drain_ms()) && !bucket.is_dead());
        assert!(bucket.retire(1300, rate.drain_ms()) && bucket.is_dead());
        assert!(!bucket.retire(1300, rate.drain_ms()));
        assert_eq!(bucket.pour(1300, &rate), None);
    }

    #[test]
    fn the_extremes_of_a_rate_count() {
        for (rate, burst) in [(1e-300, 0.0), (1e9, 1e9), (1e-9, 1e9)] {
            let (bucket, rate) = (Bucket::unused(), Rate::new(rate, burst));
            assert_eq!(bucket.pour(1, &rate), passed(0));
            assert_eq!(bucket.pour(1, &rate).flatten().is_some(), burst > 0.0);
            assert!(!bucket.retire(1, rate.drain_ms()));
        }
    }

    #[test]
    fn exactly_the_burst_passes_under_contention() {
        let (bucket, rate) = (Bucket::unused(), Rate::new(1.0, 500.0));
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (bucket, passed) = (&bucket, &passed);
                scope.spawn(move || {
                    for n in 0..1000 {
                        // Clocks differ by less than a request takes to leak, to and fro.
                        let now = 10_000 + (n + thread) % 8;
                        if bucket.pour(now, &rate).flatten().is_some() {
                            passed.fetch_add(1, Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 501);
    }
}
