//! Counts of plans, which may be kept beyond the process.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, OnceLock};

use crossbeam_queue::SegQueue;
use weir_config::Period;
use weir_plugin::StateRegistry;

use super::{period_name, watch::QuotaWatch};
use crate::traffic::key::{Key, Which};
use crate::traffic::limit_count::counter::{Charge, Counter, MAX_COUNT, Taken};
use crate::traffic::meter::{Span, length};
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
    /// Notes of used shares, where somebody is to hear of them.
    watch: OnceLock<Arc<QuotaWatch>>,
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
            watch: OnceLock::new(),
        })
    }

    /// Notes from now on what changes.
    pub fn keep(&self) {
        self.keeps.store(true, Relaxed);
    }

    /// Notes from now on when a caller has used one of these shares of a limit, in percent. Only the first call has an
    /// effect.
    pub fn watch(&self, shares: &[u8]) -> Arc<QuotaWatch> {
        Arc::clone(self.watch.get_or_init(|| Arc::new(QuotaWatch::new(shares))))
    }

    /// The notes, where somebody is to hear of them.
    pub(crate) fn watched(&self) -> Option<&QuotaWatch> {
        self.watch.get().map(AsRef::as_ref)
    }

    /// Puts a count back that was kept. False without room for it.
    #[must_use]
    pub fn restore(&self, kept: &PlanCount) -> bool {
        let Some(counter) = Counter::restored(kept.ends, kept.count, kept.before) else { return true };
        let name = OnceLock::from(kept.name.clone());
        let entry = Named { counter, name, noted: AtomicBool::new(false) };
        self.table(kept.linger).restore(Key::new(0, &kept.name), entry, kept.linger).is_ok()
    }

    /// Usage of a plan's limit, and the milliseconds until it is renewed; `None` where nothing is. The parts are
    /// those of the name: caller, plan, period, window, scope and id.
    #[must_use]
    pub fn used(&self, parts: &[&str; 6], now: u64) -> Option<(u64, u64)> {
        let (name, charge) = Self::named(parts, now)?;
        let taken = self.look(&name, now, &charge)?;
        Some((MAX_COUNT - taken.remaining, taken.reset)).filter(|(used, _)| *used > 0)
    }

    /// Begins such a count anew. False where there is none.
    pub fn reset(&self, parts: &[&str; 6]) -> bool {
        Self::named(parts, 0).is_some_and(|(name, charge)| self.clear(&name, &charge))
    }

    /// The name of a count, and a charge that finds it; `None` for a period that there is not.
    fn named(parts: &[&str; 6], now: u64) -> Option<(Vec<u8>, Charge)> {
        const PERIODS: [Period; 7] =
            [Period::Second, Period::Minute, Period::Hour, Period::Day, Period::Week, Period::Month, Period::Year];
        let [.., per, window, _, _] = parts;
        let per = PERIODS.into_iter().find(|period| period_name(*period) == *per)?;
        let span = match *window {
            "fixed" => Span::Fixed(length(per)),
            "sliding" => Span::Sliding(length(per)),
            "calendar" => Span::Calendar(per),
            _ => return None,
        };
        Some((parts.join(":").into_bytes(), span.charge(MAX_COUNT, 0, now)))
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
    pub(crate) fn window(&self, name: &[u8]) -> Option<(u64, u64)> {
        let (ends, count, _) = self.fixed.look(Which::Key(Key::new(0, name)), |entry| entry.counter.parts())??;
        Some((ends, count))
    }

    fn table(&self, linger: u64) -> &Table<Named> {
        if linger > 0 { &self.sliding } else { &self.fixed }
    }

    /// Counts a request against a limit.
    pub(crate) fn charge(&self, name: &[u8], now: u64, charge: &Charge) -> Result<Taken, Full> {
        let (key, linger) = (Key::new(0, name), charge.quota.linger());
        self.table(linger).ask(Which::Key(key), now, linger, |entry| {
            let taken = entry.counter.charge(now, charge)?;
            let has_changed = charge.units > 0 && (taken.passed || charge.counts_refused);
            if has_changed && charge.period >= SHORTEST {
                self.note(entry, name, key, linger);
            }
            Some(taken)
        })
    }

    /// Looks at a count without making one.
    pub(crate) fn look(&self, name: &[u8], now: u64, charge: &Charge) -> Option<Taken> {
        let table = self.table(charge.quota.linger());
        let look = Charge { units: 0, ..*charge };
        table.look(Which::Key(Key::new(0, name)), |entry| entry.counter.charge(now, &look)).flatten()
    }

    /// Forgets a count. False where there is none.
    pub(crate) fn clear(&self, name: &[u8], charge: &Charge) -> bool {
        let (key, linger) = (Key::new(0, name), charge.quota.linger());
        let cleared = self.table(linger).look(Which::Key(key), |entry| {
            let cleared = entry.counter.clear().is_some();
            if cleared {
                self.note(entry, name, key, linger);
            }
            cleared
        });
        cleared.unwrap_or(false)
    }

    /// Notes that a count has changed.
    fn note(&self, entry: &Named, name: &[u8], key: Key, linger: u64) {
        if !self.keeps.load(Relaxed) {
            return;
        }
        // Between the count before this and the look at the note, so that one of both sides sees the other.
        fence(SeqCst);
        if !entry.noted.load(Relaxed) && !entry.noted.swap(true, SeqCst) {
            entry.name.get_or_init(|| name.into());
            self.changed.push(Change { key, linger });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PlanCount, PlanCounts, Span, length};
    use crate::traffic::limit_count::counter::{Charge, Quota, WindowKind};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use weir_config::Period;
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
        let take = |name: &[u8], quota| counts.charge(name, 1000, &Charge::one(quota)).expect("room").passed;
        assert!(take(b"a", &FIXED));
        assert_eq!(changed(&counts), [], "nobody keeps them");
        counts.keep();
        (0..3).for_each(|_| assert!(take(b"a", &FIXED)));
        assert!(take(b"b", &SLIDING));
        assert!(take(b"second", &Quota { window: 1000, ..FIXED }));
        let count =
            |name: &[u8], count, linger| PlanCount { name: name.into(), ends: 1000 + HOUR, count, before: 0, linger };
        assert_eq!(changed(&counts), [count(b"a", 4, 0), count(b"b", 1, HOUR)]);
        assert_eq!(changed(&counts), []);
        assert!(take(b"b", &SLIDING));
        assert_eq!(changed(&counts), [count(b"b", 2, HOUR)]);
    }

    #[test]
    fn restored_counts_go_on() {
        let counts = PlanCounts::of(&StateRegistry::default(), 2);
        let kept =
            |name: &[u8], linger| PlanCount { name: name.into(), ends: HOUR, count: 5, before: linger / HOUR, linger };
        assert!(counts.restore(&kept(b"a", 0)) && counts.restore(&kept(b"a", HOUR)));
        assert!(!PlanCounts::of(&StateRegistry::default(), 0).restore(&kept(b"b", 0)), "there is no room");
        let quota = Quota { count: 6, ..FIXED };
        let next = || counts.charge(b"a", 1000, &Charge::one(&quota)).expect("room").passed;
        assert_eq!([next(), next()], [true, false]);
        // One that is cleared is newer than what was kept of it.
        counts.keep();
        counts.clear(b"a", &Charge::one(&quota));
        let cleared = PlanCount { ends: HOUR + 1, count: 0, before: 0, ..kept(b"a", 0) };
        assert_eq!(changed(&counts), [cleared]);
        let parts = |caller| [caller, "gold", "year", "fixed", "plan", ""];
        let name = parts("jack").join(":");
        assert!(counts.charge(name.as_bytes(), 1000, &Span::Fixed(length(Period::Year)).charge(9, 4, 1000)).is_ok());
        let used = |caller| counts.used(&parts(caller), 1000).map(|(used, _)| used);
        assert_eq!((used("jack"), used("jill")), (Some(4), None));
        assert_eq!((counts.reset(&parts("jack")), counts.reset(&parts("jill")), used("jack")), (true, false, None));
        let left = |name: &[u8]| counts.look(name, 1000, &Charge::one(&quota)).map(|taken| taken.remaining);
        assert_eq!((left(b"a"), left(b"nobody")), (Some(6), None));
    }

    #[test]
    fn no_count_is_missed_while_they_are_taken() {
        let counts = PlanCounts::of(&StateRegistry::default(), 10);
        counts.keep();
        let (done, mut last) = (AtomicBool::new(false), 0);
        std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                let one = Charge::one(&FIXED);
                (0..200_000).for_each(|_| assert!(counts.charge(b"a", 0, &one).expect("room").passed));
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
