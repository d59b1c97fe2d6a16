//! Counts of plans, which may be kept beyond the process.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, OnceLock};

use crossbeam_queue::SegQueue;
use weir_plugin::StateRegistry;

use crate::traffic::key::{Key, Which};
use crate::traffic::limit_count::counter::{Counter, Quota, Taken};
use crate::traffic::table::{Entry, Full, Table};

/// Shortest window in milliseconds that is kept: a shorter one is over before a process has started again.
const SHORTEST: u64 = 1001;

/// Counts of all callers on plans, which outlive changes of plans.
///
/// With [`PlanCounts::keep`] a count that has changed is noted, once until it is taken: a request on a known key allocates
/// nothing and takes no lock, and the notes are never more than the keys.
#[derive(Debug)]
pub struct PlanCounts {
    fixed: Table<Named>,
    /// Apart from the others, for counts stay a window longer.
    sliding: Table<Named>,
    changed: SegQueue<Change>,
    keeps: AtomicBool,
}

/// A count as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanCount {
    /// Name of the count: caller, plan, period, window, and the key of the limit.
    pub name: Box<[u8]>,
    /// End of its window, in milliseconds since 1970.
    pub ends: u64,
    /// Requests that have passed in the window.
    pub count: u64,
    /// Those of the window before.
    pub before: u64,
    /// Milliseconds for which it is needed after its end: the length of a sliding window, 0 for any other.
    pub linger: u64,
}

#[derive(Debug)]
struct Change {
    key: Key,
    linger: u64,
}

/// A counter with its name, which it gets with the first request that is kept.
#[derive(Debug)]
struct Named {
    counter: Counter,
    name: OnceLock<Box<[u8]>>,
    /// True while there is a note of it.
    noted: AtomicBool,
}

impl Entry for Named {
    fn unused() -> Self {
        Self { counter: Counter::unused(), name: OnceLock::new(), noted: AtomicBool::new(false) }
    }

    fn retire(&self, now: u64, linger: u64) -> bool {
        self.counter.retire(now, linger)
    }

    fn is_dead(&self) -> bool {
        self.counter.is_dead()
    }
}

impl PlanCounts {
    /// The counts of all plans of a configuration, for up to `limit_keys` keys, and as many of sliding windows.
    #[must_use]
    pub fn of(states: &StateRegistry, limit_keys: usize) -> Arc<Self> {
        states.get_or_create(&format!("plan counts {limit_keys}"), || Self {
            fixed: Table::new(limit_keys),
            sliding: Table::new(limit_keys),
            changed: SegQueue::new(),
            keeps: AtomicBool::new(false),
        })
    }

    /// Notes from now on what changes.
    pub fn keep(&self) {
        self.keeps.store(true, Relaxed);
    }

    /// Puts a count back that was kept. False without room for it.
    #[must_use]
    pub fn restore(&self, kept: &PlanCount) -> bool {
        let Some(counter) = Counter::restored(kept.ends, kept.count, kept.before) else { return true };
        let name = OnceLock::from(kept.name.clone());
        let entry = Named { counter, name, noted: AtomicBool::new(false) };
        self.table(kept.linger).restore(Key::new(0, &kept.name), entry, kept.linger).is_ok()
    }

    /// Hands over up to `most` counts that have changed since they were handed over.
    pub fn take_changed(&self, most: usize, out: &mut Vec<PlanCount>) {
        for _ in 0..most {
            let Some(Change { key, linger }) = self.changed.pop() else { return };
            let found = self.table(linger).look(Which::Key(key), |entry| {
                entry.noted.store(false, SeqCst);
                // A request that has counted before this is in what is read below; a later one makes a note again.
                fence(SeqCst);
                let (ends, count, before) = entry.counter.parts()?;
                Some(PlanCount { name: entry.name.get()?.clone(), ends, count, before, linger })
            });
            // Without it, its window is over.
            out.extend(found.flatten());
        }
    }

    /// The end of the window of a count that does not slide, and the requests in it.
    pub(crate) fn look(&self, name: &[u8]) -> Option<(u64, u64)> {
        let (ends, count, _) = self.fixed.look(Which::Key(Key::new(0, name)), |entry| entry.counter.parts())??;
        Some((ends, count))
    }

    fn table(&self, linger: u64) -> &Table<Named> {
        if linger > 0 { &self.sliding } else { &self.fixed }
    }

    /// Counts a request against a limit with a period of so many milliseconds.
    pub(crate) fn take(&self, name: &[u8], now: u64, quota: &Quota, period: u64) -> Result<Taken, Full> {
        let (key, linger) = (Key::new(0, name), quota.linger());
        self.table(linger).ask(Which::Key(key), now, linger, |entry| {
            let taken = entry.counter.take(now, quota)?;
            if taken.passed && period >= SHORTEST && self.keeps.load(Relaxed) {
                // Between the count above and the look at the note, so that one of both sides sees the other.
                fence(SeqCst);
                if !entry.noted.load(Relaxed) && !entry.noted.swap(true, SeqCst) {
                    entry.name.get_or_init(|| name.into());
                    self.changed.push(Change { key, linger });
                }
            }
            Some(taken)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{PlanCount, PlanCounts};
    use crate::traffic::limit_count::counter::{Quota, WindowKind};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use weir_plugin::StateRegistry;

    const HOUR: u64 = 3_600_000;
    const FIXED: Quota = Quota { count: 1_000_000, window: HOUR, kind: WindowKind::Fixed };
    const SLIDING: Quota = Quota { kind: WindowKind::Sliding, ..FIXED };

    fn changed(counts: &PlanCounts) -> Vec<PlanCount> {
        let mut out = Vec::new();
        counts.take_changed(usize::MAX, &mut out);
        out
    }

    #[test]
    fn a_changed_count_is_handed_over_once() {
        let counts = PlanCounts::of(&StateRegistry::default(), 10);
        let take = |name: &[u8], quota| counts.take(name, 1000, quota, quota.window).expect("room").passed;
        assert!(take(b"a", &FIXED));
        assert_eq!(changed(&counts), [], "nobody keeps them");
        counts.keep();
        (0..3).for_each(|_| assert!(take(b"a", &FIXED)));
        assert!(take(b"b", &SLIDING));
        assert!(counts.take(b"second", 1000, &Quota { window: 1000, ..FIXED }, 1000).expect("room").passed);
        let count =
            |name: &[u8], count, linger| PlanCount { name: name.into(), ends: 1000 + HOUR, count, before: 0, linger };
        assert_eq!(changed(&counts), [count(b"a", 4, 0), count(b"b", 1, HOUR)]);
        assert_eq!(changed(&counts), []);
        assert!(take(b"b", &SLIDING));
        assert_eq!(changed(&counts), [count(b"b", 2, HOUR)]);
    }

    #[test]
    fn restored_counts_go_on() {
        let counts = PlanCounts::of(&StateRegistry::default(), 1);
        let kept =
            |name: &[u8], linger| PlanCount { name: name.into(), ends: HOUR, count: 5, before: linger / HOUR, linger };
        assert!(counts.restore(&kept(b"a", 0)) && counts.restore(&kept(b"a", HOUR)));
        assert!(!counts.restore(&kept(b"b", 0)), "there is room for one");
        let quota = Quota { count: 6, ..FIXED };
        let next = || counts.take(b"a", 1000, &quota, HOUR).expect("room").passed;
        assert_eq!([next(), next()], [true, false]);
    }

    #[test]
    fn no_count_is_missed_while_they_are_taken() {
        let counts = PlanCounts::of(&StateRegistry::default(), 10);
        counts.keep();
        let (done, mut last) = (AtomicBool::new(false), 0);
        std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                (0..200_000).for_each(|_| assert!(counts.take(b"a", 0, &FIXED, HOUR).expect("room").passed));
                done.store(true, SeqCst);
            });
            while !done.load(SeqCst) && !counting.is_finished() {
                last = changed(&counts).last().map_or(last, |one| one.count);
            }
        });
        last = changed(&counts).last().map_or(last, |one| one.count);
        assert_eq!(last, 200_000);
    }
}
