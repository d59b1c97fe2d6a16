//! Nodes that do not take connections, set aside for a moment: as long as their upstream has others, no request waits
//! for them.

pub(crate) mod watch;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock;

/// Whether a node is set aside. It outlives a change of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// When it was set aside, in microseconds of the clock, which tells one time from the next; 0: it is not.
    since: AtomicU64,
}

impl Aside {
    /// Whether it is.
    pub(crate) fn is_set(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// Sets it; `None` when it was set already.
    pub(super) fn set(&self) -> Option<u64> {
        let now = clock::now_us();
        self.since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok().then_some(now)
    }

    /// When it was set, as long as it is; 0: it is not.
    fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    /// Ends it; false when it was not set.
    fn clear(&self) -> bool {
        self.since.swap(0, Ordering::Relaxed) != 0
    }

    /// Ends the time that began at `since`; false when that has ended before.
    fn end(&self, since: u64) -> bool {
        self.since.compare_exchange(since, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
