//! Clock of a thread, and the deadlines that its tasks wait for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::Instant;

/// Microseconds on a monotonic clock that never reads 0.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn now_us() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let epoch = *EPOCH.get_or_init(Instant::now);
    epoch.elapsed().as_micros() as u64 + 1
}

/// Tasks that wait for a deadline.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Wakers by deadline in microseconds, and by a number that distinguishes waits with the same deadline.
    waiting: RefCell<BTreeMap<(u64, u64), Waker>>,
    /// Last assigned number.
    last: Cell<u64>,
    /// Time of the last check for due timers.
    now: Cell<u64>,
}

impl Timers {
    /// Wakes the tasks whose deadline has passed.
    pub(crate) fn fire(&self) {
        let now = now_us();
        self.now.set(now);
        loop {
            // Waking a task must not happen while the map is borrowed.
            let mut waiting = self.waiting.borrow_mut();
            let waker = match waiting.first_entry() {
                Some(entry) if entry.key().0 <= now => entry.remove(),
                _ => return,
            };
            drop(waiting);
            waker.wake();
        }
    }

    /// Microseconds from the last check until the next deadline. The result is too long by the duration of the round,
    /// but reads the clock only once per round.
    pub(crate) fn until_next(&self) -> Option<u64> {
        let waiting = self.waiting.borrow();
        let ((deadline, _), _) = waiting.first_key_value()?;
        Some(deadline.saturating_sub(self.now.get()))
    }

    /// Unique number for a wait.
    pub(crate) fn next_number(&self) -> u64 {
        let number = self.last.get() + 1;
        self.last.set(number);
        number
    }

    /// Wakes the waker at the deadline, in microseconds of [`now_us`]. A later call for the same wait replaces its
    /// waker.
    pub(crate) fn wait(&self, deadline: u64, number: u64, waker: &Waker) {
        let replaced = self.waiting.borrow_mut().insert((deadline, number), waker.clone());
        drop(replaced);
    }

    /// Cancels a wait.
    pub(crate) fn forget(&self, deadline: u64, number: u64) {
        let waker = self.waiting.borrow_mut().remove(&(deadline, number));
        drop(waker);
    }
}
