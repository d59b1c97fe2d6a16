//! Requests of one key that are under way.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::traffic::table::Entry;

/// A count.
#[derive(Debug)]
pub(crate) struct Count(AtomicU64);

/// Marks a count that is being taken out of its table.
const DEAD: u64 = u64::MAX;

impl Count {
    /// One request more, unless there are `max`: gives how many there are now. `Some(None)` when there is no place,
    /// `None` when the count is dead.
    pub(crate) fn enter(&self, max: u64) -> Option<Option<u64>> {
        let mut count = self.0.load(Acquire);
        loop {
            match count {
                DEAD => return None,
                n if n >= max => return Some(None),
                n => match self.0.compare_exchange_weak(n, n + 1, AcqRel, Acquire) {
                    Ok(_) => return Some(Some(n + 1)),
                    Err(now_there) => count = now_there,
                },
            }
        }
    }

    /// One request less: one that has entered.
    pub(crate) fn leave(&self) {
        let before = self.0.fetch_sub(1, AcqRel);
        debug_assert!(before > 0 && before != DEAD, "whoever leaves has entered");
    }
}

impl Entry for Count {
    fn unused() -> Self {
        Self(AtomicU64::new(0))
    }

    fn retire(&self, _: u64, _: u64) -> bool {
        self.0.compare_exchange(0, DEAD, AcqRel, Acquire).is_ok()
    }

    fn is_dead(&self) -> bool {
        self.0.load(Acquire) == DEAD
    }
}

#[cfg(test)]
mod tests {
    use super::{Count, Entry};
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[test]
    fn who_leaves_makes_room() {
        let count = Count::unused();
        for expected in [Some(1), Some(2), None] {
            assert_eq!(count.enter(2), Some(expected));
        }
        count.leave();
        assert_eq!((count.enter(2), count.enter(3), count.enter(1)), (Some(Some(2)), Some(Some(3)), Some(None)));
    }

    #[test]
    fn only_an_empty_count_is_retired() {
        let count = Count::unused();
        assert_eq!(count.enter(1), Some(Some(1)));
        assert!(!count.retire(0, 0) && !count.is_dead());
        count.leave();
        assert!(count.retire(0, 0) && count.is_dead() && !count.retire(0, 0));
        assert_eq!(count.enter(1), None);
    }

    #[test]
    fn never_are_more_under_way_than_may() {
        let (count, inside, most, entered) = (Count::unused(), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        if count.enter(3).flatten().is_some() {
                            most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                            entered.fetch_add(1, SeqCst);
                            inside.fetch_sub(1, SeqCst);
                            count.leave();
                        }
                    }
                });
            }
        });
        assert!(most.into_inner() <= 3 && entered.into_inner() > 0);
        assert!(count.retire(0, 0), "nobody is left");
    }
}
