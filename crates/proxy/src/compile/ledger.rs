//! The sum of what a configuration takes compiled, item by item, so that it is bounded before anything is built.

use std::cell::Cell;

use weir_expr::{TooLarge, metered};

/// Bytes of all items. The bytes of an item are recorded with its compiled form, and given back when that is dropped.
#[derive(Debug)]
pub(super) struct Ledger {
    limit: u64,
    total: Cell<u64>,
}

impl Ledger {
    /// A ledger with `limit` bytes, of which `total` are taken.
    pub(super) fn new(limit: u64, total: u64) -> Self {
        Self { limit, total: Cell::new(total) }
    }

    pub(super) fn total(&self) -> u64 {
        self.total.get()
    }

    /// Builds a value within the bytes that are left, and returns how many it took.
    pub(super) fn measure<T>(&self, build: impl FnOnce() -> T) -> (T, u64) {
        let (built, taken) = metered(self.limit.saturating_sub(self.total()), build);
        self.total.set(self.total().saturating_add(taken));
        (built, taken)
    }

    /// Takes bytes for a value that is about to be built.
    pub(super) fn take(&self, bytes: u64) -> Result<(), TooLarge> {
        let (taken, _) = self.measure(|| weir_expr::spend(bytes));
        taken
    }

    /// Gives the bytes of a dropped value back.
    pub(super) fn give_back(&self, bytes: u64) {
        self.total.set(self.total().saturating_sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    use weir_expr::spend;

    use super::Ledger;

    #[test]
    fn a_sum_is_bounded() {
        let ledger = Ledger::new(100, 30);
        assert_eq!(ledger.measure(|| spend(50)), (Ok(()), 50));
        assert!(ledger.take(21).is_err() && ledger.take(20).is_ok());
        assert_eq!(ledger.total(), 100);
        ledger.give_back(70);
        // A value built within another is recorded apart.
        let ((), outer) = ledger.measure(|| assert_eq!(ledger.measure(|| spend(60)), (Ok(()), 60)));
        assert_eq!((outer, ledger.total()), (0, 90));
    }
}
