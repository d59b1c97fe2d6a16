//! Nodes that do not take connections, set aside for a moment: as long as their upstream has others, no request waits
//! for them.

pub(crate) mod watch;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock;

/// State of a node that may be set aside. Outlives a change of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Ejection {
    /// Time when the node was set aside, in microseconds of the clock, which distinguishes two ejections; 0: not set
    /// aside.
    since: AtomicU64,
}

impl Ejection {
    /// True while the node is set aside.
    pub(crate) fn is_set(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// Sets it; `None` when it was set already.
    pub(super) fn set(&self) -> Option<u64> {
        let now = clock::now_us();
        self.since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok().then_some(now)
    }

    /// Time of the current ejection; 0: not set aside.
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
