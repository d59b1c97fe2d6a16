//! One counter: the requests of one key, in one word that changes as a whole.

use portable_atomic::AtomicU128;
use portable_atomic::Ordering::{AcqRel, Acquire};

use crate::traffic::table::Entry;

/// Most requests a window may allow.
pub(crate) const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;
/// Longest window in seconds: 136 years.
pub(crate) const MAX_WINDOW: u64 = u32::MAX as u64;

/// Bits of each count; 48 are left for the window's end in milliseconds, which last for 8,900 years.
const COUNT_BITS: u32 = 40;

/// The number of requests that are allowed, and the time they are allowed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota {
    /// 1 to [`MAX_COUNT`].
    pub(crate) count: u64,
    /// Milliseconds; 1 to 1000 × [`MAX_WINDOW`].
    pub(crate) window: u64,
    pub(crate) kind: WindowKind,
}

impl Quota {
    /// Milliseconds for which a counter is needed after its window's end.
    pub(crate) fn linger(&self) -> u64 {
        match self.kind {
            WindowKind::Fixed => 0,
            WindowKind::Sliding => self.window,
        }
    }
}

/// The movement of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowKind {
    /// Begins with a request, and the next one begins with the first request after its end.
    Fixed,
    /// Ends now: the requests of the window before count by the share of it that still lies within.
    Sliding,
}

/// Units of a quota that a request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) quota: Quota,
    /// Milliseconds of the whole period, of which the quota's window may be the rest: that of a calendar is.
    pub(crate) period: u64,
    /// Units that the request uses; 0 only looks.
    pub(crate) units: u64,
    /// True if the units of a refused request count as well.
    pub(crate) counts_refused: bool,
}

impl Charge {
    /// One request.
    pub(crate) fn one(quota: &Quota) -> Self {
        Self { quota: *quota, period: quota.window, units: 1, counts_refused: false }
    }
}

/// The verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) passed: bool,
    /// Requests that would pass now.
    pub(crate) remaining: u64,
    /// Milliseconds until the window ends.
    pub(crate) reset: u64,
}

/// A counter. Times are milliseconds of a clock that never goes back and that all threads share; threads may read it a
/// little late.
#[derive(Debug)]
pub(crate) struct Counter(AtomicU128);

/// The state of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    /// The end of the window; 0 before the first request.
    end: u64,
    /// Requests that passed in it.
    count: u64,
    /// Requests that passed in the one before, when that ended as this one began.
    before: u64,
}

impl Window {
    const fn pack(self) -> u128 {
        (self.end as u128) << (2 * COUNT_BITS) | (self.count as u128) << COUNT_BITS | self.before as u128
    }

    const fn unpack(word: u128) -> Self {
        Self {
            end: (word >> (2 * COUNT_BITS)) as u64,
            count: (word >> COUNT_BITS) as u64 & MAX_COUNT,
            before: word as u64 & MAX_COUNT,
        }
    }

    /// The window in which `now` lies.
    fn at(self, now: u64, quota: &Quota) -> Self {
        if now < self.end {
            return self;
        }
        let fresh = Self { end: now + quota.window, count: 0, before: 0 };
        match quota.kind {
            WindowKind::Fixed => fresh,
            // Two windows without a request leave nothing to slide over.
            WindowKind::Sliding if self.end == 0 || now - self.end >= quota.window => fresh,
            WindowKind::Sliding => Self { end: self.end + quota.window, count: 0, before: self.count },
        }
    }

    /// The amount that counts against the quota, in requests, rounded up.
    fn used(self, now: u64, quota: &Quota) -> u64 {
        // A window that began under a longer quota is as if it began now.
        let left = (self.end.saturating_sub(now)).min(quota.window);
        let weighted = u128::from(self.before) * u128::from(left);
        self.count.saturating_add(weighted.div_ceil(u128::from(quota.window.max(1))) as u64)
    }
}

/// Marks a counter that is being taken out of its table: nobody counts in it any more.
const DEAD: u128 = u128::MAX;

impl Counter {
    /// A counter with these numbers; `None` where they are none of a counter.
    pub(crate) fn restored(end: u64, count: u64, before: u64) -> Option<Self> {
        let fits = end < 1 << (128 - 2 * COUNT_BITS) && count <= MAX_COUNT && before <= MAX_COUNT;
        let word = Window { end, count, before }.pack();
        (fits && word != DEAD).then(|| Self(AtomicU128::new(word)))
    }

    /// The end of its window, the requests in it and those of the one before; `None` for a dead one.
    pub(crate) fn parts(&self) -> Option<(u64, u64, u64)> {
        let word = self.0.load(Acquire);
        let Window { end, count, before } = Window::unpack(word);
        (word != DEAD).then_some((end, count, before))
    }

    /// Asks for one request; `None` when the counter is dead.
    pub(crate) fn take(&self, now: u64, quota: &Quota) -> Option<Taken> {
        self.charge(now, &Charge::one(quota))
    }

    /// Asks for the units of a request; `None` when the counter is dead.
    ///
    /// Exact: whatever threads ask at once, no more than the quota pass in a window.
    pub(crate) fn charge(&self, now: u64, charge: &Charge) -> Option<Taken> {
        let Charge { quota, units, counts_refused, .. } = charge;
        let mut word = self.0.load(Acquire);
        loop {
            if word == DEAD {
                return None;
            }
            let window = Window::unpack(word).at(now, quota);
            let used = window.used(now, quota);
            let reset = window.end.saturating_sub(now);
            let passed = used.saturating_add(*units) <= quota.count;
            if *units == 0 || !passed && !counts_refused {
                return Some(Taken { passed, remaining: quota.count.saturating_sub(used), reset });
            }
            let next = Window { count: window.count.saturating_add(*units).min(MAX_COUNT), ..window };
            match self.0.compare_exchange_weak(word, next.pack(), AcqRel, Acquire) {
                Ok(_) => {
                    let remaining = quota.count.saturating_sub(used.saturating_add(*units));
                    return Some(Taken { passed, remaining, reset });
                }
                Err(now_there) => word = now_there,
            }
        }
    }

    /// Forgets the requests of the window; `None` when the counter is dead. The window ends a millisecond later, by which
    /// what is kept of it elsewhere is known to be older.
    pub(crate) fn clear(&self) -> Option<()> {
        let mut word = self.0.load(Acquire);
        while word != DEAD {
            let end = Window::unpack(word).end;
            let cleared = Window { end: if end == 0 { 0 } else { end + 1 }, count: 0, before: 0 };
            match self.0.compare_exchange_weak(word, cleared.pack(), AcqRel, Acquire) {
                Ok(_) => return Some(()),
                Err(now_there) => word = now_there,
            }
        }
        None
    }
}

impl Entry for Counter {
    fn unused() -> Self {
        Self(AtomicU128::new(0))
    }

    fn retire(&self, now: u64, linger: u64) -> bool {
        let word = self.0.load(Acquire);
        word != DEAD
            && now >= Window::unpack(word).end.saturating_add(linger)
            && self.0.compare_exchange(word, DEAD, AcqRel, Acquire).is_ok()
    }

    fn is_dead(&self) -> bool {
        self.0.load(Acquire) == DEAD
    }
}

#[cfg(test)]
mod tests {
    use super::{Charge, Counter, Entry, MAX_COUNT, MAX_WINDOW, Quota, Taken, Window, WindowKind};

    const FIXED: Quota = Quota { count: 2, window: 1000, kind: WindowKind::Fixed };
    const SLIDING: Quota = Quota { count: 10, window: 1000, kind: WindowKind::Sliding };

    /// A counter that has let one request pass, at 0.
    fn begun(quota: &Quota) -> Counter {
        let counter = Counter::unused();
        assert!(counter.take(0, quota).is_some_and(|taken| taken.passed));
        counter
    }

    fn passed(remaining: u64, reset: u64) -> Option<Taken> {
        Some(Taken { passed: true, remaining, reset })
    }

    fn rejected(reset: u64) -> Option<Taken> {
        Some(Taken { passed: false, remaining: 0, reset })
    }

    #[test]
    fn a_window_is_one_word() {
        for window in [
            Window { end: 0, count: 0, before: 0 },
            Window { end: 1, count: 2, before: 3 },
            Window { end: (1 << 48) - 2, count: MAX_COUNT, before: MAX_COUNT },
            Window { end: MAX_WINDOW * 1000 * 60, count: 1, before: MAX_COUNT },
        ] {
            assert_eq!(Window::unpack(window.pack()), window);
        }
    }

    #[test]
    fn a_fixed_window_begins_with_its_first_request() {
        let counter = Counter::unused();
        for (now, taken) in [
            (500, passed(1, 1000)),
            (900, passed(0, 600)),
            (1499, rejected(1)),
            (1500, passed(1, 1000)),
            // A thread whose clock is late counts in the window that has begun.
            (1490, passed(0, 1010)),
            (9000, passed(1, 1000)),
        ] {
            assert_eq!(counter.take(now, &FIXED), taken, "at {now}");
        }
    }

    #[test]
    fn a_sliding_window_remembers_the_one_before() {
        let counter = begun(&SLIDING);
        for n in 1..10 {
            assert_eq!(counter.take(n, &SLIDING), passed(9 - n, 1000 - n));
        }
        for (now, taken) in [
            (999, rejected(1)),
            // All ten of the window before still count.
            (1000, rejected(1000)),
            (1001, rejected(999)),
            // A tenth of it is over: one passes, and at once no second one.
            (1100, passed(0, 900)),
            (1100, rejected(900)),
            (1500, passed(3, 500)),
            // The window before held two, of which two tenths count: rounded up, one.
            (2800, passed(8, 200)),
            (9999, passed(9, 1000)),
        ] {
            assert_eq!(counter.take(now, &SLIDING), taken, "at {now}");
        }
    }

    #[test]
    fn a_sliding_window_never_lets_more_pass_than_two_quotas_in_two_windows() {
        let counter = Counter::unused();
        let mut times = Vec::new();
        for now in (0..20_000).step_by(7) {
            if counter.take(now, &SLIDING).unwrap().passed {
                times.push(now);
            }
        }
        for begin in (0..18_000).step_by(100) {
            let within = times.iter().filter(|t| (begin..begin + 2000).contains(*t)).count();
            assert!(within <= 20, "{within} from {begin} on");
        }
        // The estimate refuses little more than the exact sliding window.
        assert!(times.len() >= 175, "{} of 200", times.len());
    }

    #[test]
    fn a_counter_is_retired_once_and_only_when_it_is_over() {
        let counter = begun(&FIXED);
        assert!(!counter.retire(999, 0));
        assert!(!counter.retire(1500, 1000));
        assert!(!counter.is_dead());
        assert!(counter.retire(1000, 0));
        assert!(!counter.retire(1000, 0));
        assert!(counter.is_dead());
        assert_eq!(counter.take(1000, &FIXED), None);
    }

    #[test]
    fn units_count_together_and_refused_ones_where_that_is_asked_for() {
        let counter = Counter::unused();
        let quota = Quota { count: 10, ..FIXED };
        let charge = |units, counts_refused| {
            let charge = Charge { units, counts_refused, ..Charge::one(&quota) };
            counter.charge(0, &charge).map(|taken| (taken.passed, taken.remaining))
        };
        assert_eq!(charge(7, false), Some((true, 3)));
        assert_eq!(charge(0, false), Some((true, 3)), "a look");
        assert_eq!(charge(4, false), Some((false, 3)), "which does not fit");
        assert_eq!(charge(3, false), Some((true, 0)));
        assert_eq!(charge(5, true), Some((false, 0)), "which counts");
        assert_eq!(counter.parts(), Some((1000, 15, 0)));
        assert_eq!(charge(u64::MAX, true), Some((false, 0)));
        assert_eq!(counter.parts(), Some((1000, MAX_COUNT, 0)));
        assert_eq!(counter.clear(), Some(()));
        assert_eq!((counter.parts(), charge(10, false)), (Some((1001, 0, 0)), Some((true, 0))));
    }

    #[test]
    fn the_largest_quota_counts() {
        let quota = Quota { count: MAX_COUNT, window: MAX_WINDOW * 1000, kind: WindowKind::Sliding };
        let counter = begun(&quota);
        assert_eq!(counter.take(1, &quota), passed(MAX_COUNT - 2, MAX_WINDOW * 1000 - 1));
    }
}
