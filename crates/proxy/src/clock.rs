//! The worker's clock: microseconds, read from the kernel only on request.

use std::cell::Cell;

pub use weir_runtime::now_us;

/// A cached clock for one worker.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    now: Cell<u64>,
    /// Microseconds since 1970 at `now` 0.
    unix_offset: Cell<u64>,
}

impl Clock {
    /// Reads the clock.
    pub(crate) fn refresh(&self) -> u64 {
        let now = now_us();
        self.now.set(now);
        now
    }

    /// The last reading.
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    /// Follows changes of the wall clock; called now and then, not for every request.
    pub(crate) fn adjust(&self) {
        let unix = weir_wire::date::unix_now().as_micros() as u64;
        self.unix_offset.set(unix.saturating_sub(self.refresh()));
    }

    /// Milliseconds since 1970 at the last reading.
    pub(crate) fn unix_ms(&self) -> u64 {
        (self.unix_offset.get() + self.now.get()) / 1000
    }
}
