//! The clock of a thread, and the deadlines its tasks wait for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::Instant;

/// Microseconds on a clock that never goes back and never shows 0.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn now_us() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let epoch = *EPOCH.get_or_init(Instant::now);
    epoch.elapsed().as_micros() as u64 + 1
}

/// Tasks that wait for a time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// By deadline in microseconds, and a number that tells those of one deadline apart.
    waiting: RefCell<BTreeMap<(u64, u64), Waker>>,
    /// The number given last.
    last: Cell<u64>,
    /// When it was last looked who is due.
    now: Cell<u64>,
}

impl Timers {
    /// Wakes whose time has come.
    pub(crate) fn fire(&self) {
        let now = now_us();
        self.now.set(now);
        loop {
            // A wake-up must not find this borrowed.
            let mut waiting = self.waiting.borrow_mut();
            let waker = match waiting.first_entry() {
                Some(entry) if entry.key().0 <= now => entry.remove(),
                _ => return,
            };
            drop(waiting);
            waker.wake();
        }
    }

    /// Microseconds from the last look until the next one's time, so as much too long as the round has taken: one look
    /// at the clock a round is enough.
    pub(crate) fn until_next(&self) -> Option<u64> {
        let waiting = self.waiting.borrow();
        let ((deadline, _), _) = waiting.first_key_value()?;
        Some(deadline.saturating_sub(self.now.get()))
    }

    /// A number for one more wait, which tells it from others of the same deadline.
    pub(crate) fn next_number(&self) -> u64 {
        let number = self.last.get() + 1;
        self.last.set(number);
        number
    }

    /// Wakes the waker at the deadline, in microseconds of [`now_us`]. A later call of the same wait replaces its waker.
    pub(crate) fn wait(&self, deadline: u64, number: u64, waker: &Waker) {
        let replaced = self.waiting.borrow_mut().insert((deadline, number), waker.clone());
        drop(replaced);
    }

    /// Forgets a wait.
    pub(crate) fn forget(&self, deadline: u64, number: u64) {
        let waker = self.waiting.borrow_mut().remove(&(deadline, number));
        drop(waker);
    }
}
