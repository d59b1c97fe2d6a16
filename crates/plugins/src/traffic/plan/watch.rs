//! Shares of limits that callers have used, for whoever is to hear of them.

use crossbeam_queue::ArrayQueue;

use crate::traffic::limit_count::counter::{Charge, Taken};

/// Notes that wait at most.
const WAITING: usize = 4096;

/// A caller has used a share of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUse {
    /// Name of the counter: `CALLER:PLAN:PER:WINDOW:SCOPE:ID` for a plan.
    pub name: Box<[u8]>,
    /// The limit.
    pub count: u64,
    /// Units that are used.
    pub used: u64,
    /// The share, in percent.
    pub share: u8,
    /// Milliseconds until the window ends.
    pub reset: u64,
}

/// Notes of shares that have been reached. A request that reaches none allocates nothing and writes nothing.
#[derive(Debug)]
pub struct QuotaWatch {
    /// In percent.
    shares: Box<[u8]>,
    notes: ArrayQueue<QuotaUse>,
}

impl QuotaWatch {
    pub(super) fn new(shares: &[u8]) -> Self {
        Self { shares: shares.into(), notes: ArrayQueue::new(WAITING) }
    }

    /// The oldest note that nobody has taken. Notes beyond those that wait were dropped.
    #[must_use]
    pub fn take(&self) -> Option<QuotaUse> {
        self.notes.pop()
    }

    /// Looks at a request that was counted.
    pub(crate) fn see(&self, name: &[u8], charge: &Charge, taken: &Taken) {
        let count = charge.quota.count;
        if !taken.passed || charge.units == 0 {
            return;
        }
        let used = count.saturating_sub(taken.remaining);
        let before = used.saturating_sub(charge.units);
        for share in &self.shares {
            let threshold = (u128::from(count) * u128::from(*share)).div_ceil(100) as u64;
            // Of all requests exactly one steps over it.
            if before < threshold && threshold <= used {
                let note = QuotaUse { name: name.into(), count, used, share: *share, reset: taken.reset };
                let _ = self.notes.push(note);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::QuotaWatch;
    use crate::traffic::limit_count::counter::{Charge, Counter, Quota, WindowKind};
    use crate::traffic::table::Entry;

    #[test]
    fn a_share_is_noted_once() {
        let watch = QuotaWatch::new(&[50, 80, 100]);
        let charge = |units| {
            let quota = Quota { count: 7, window: 1000, kind: WindowKind::Fixed };
            Charge { units, ..Charge::one(&quota) }
        };
        let counter = Counter::unused();
        let mut noted = Vec::new();
        for units in [1, 2, 0, 1, 3, 1] {
            let taken = counter.charge(0, &charge(units)).expect("alive");
            watch.see(b"a", &charge(units), &taken);
            noted.push(std::iter::from_fn(|| watch.take().map(|note| (note.share, note.used))).collect::<Vec<_>>());
        }
        assert_eq!(noted, [vec![], vec![], vec![], vec![(50, 4)], vec![(80, 7), (100, 7)], vec![]]);
        // A queue that nobody empties takes no more.
        for _ in 0..10_000 {
            let taken = Counter::unused().charge(0, &charge(7)).expect("alive");
            watch.see(b"a", &charge(7), &taken);
        }
        assert_eq!(std::iter::from_fn(|| watch.take()).count(), super::WAITING);
    }
}
