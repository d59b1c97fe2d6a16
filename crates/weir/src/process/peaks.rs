//! Peaks in memory use, after which freed memory is returned to the system.

use std::fs;

/// Minimum number of bytes for which returning memory is worth its cost.
const LEAST: usize = 16 << 20;
/// Approximate bytes of a connection with a request in flight.
const CONNECTION: usize = 24 << 10;

/// Memory in use, and its maximum, since memory was last returned.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    highest: usize,
    /// Resident bytes of the process after memory was last returned.
    resident: usize,
}

impl Peaks {
    /// Returns true when memory is to be returned to the system. Called once a second: `buffers` is the maximum taken from
    /// the budget for buffers since the last call; `freed` is the resident size of the process after a configuration was
    /// freed, if one was.
    pub(crate) fn have_passed(&mut self, buffers: usize, connections: usize, freed: Option<usize>) -> bool {
        let now = buffers + connections * CONNECTION;
        self.highest = self.highest.max(now);
        let passed = self.highest - now >= LEAST && now <= self.highest / 2;
        let due = passed || freed.is_some_and(|resident| resident > self.resident + LEAST);
        if due {
            self.highest = now;
        }
        due
    }

    /// Records that memory was returned, with the `resident` bytes that are left.
    pub(crate) fn settle(&mut self, resident: usize) {
        self.resident = resident;
    }
}

/// Resident bytes of the process; 0 if the kernel does not report them.
pub(crate) fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use super::{CONNECTION, LEAST, Peaks};

    #[test]
    fn memory_is_given_back_after_a_peak_and_not_during_it() {
        let mut peaks = Peaks::default();
        let mut look = |buffers, connections| peaks.have_passed(buffers, connections, None);
        assert!(!look(LEAST / 2, 0) && !look(0, 0), "too little");
        assert!(!look(4 * LEAST, 0) && !look(3 * LEAST, 0), "still there");
        assert!(look(LEAST / 2, 0) && !look(0, 0), "once for a peak");
        let many = 2 * LEAST / CONNECTION;
        assert!(!look(0, many) && look(0, 10) && !look(0, 10));
        assert!(peaks.have_passed(0, 0, Some(2 * LEAST)), "what a configuration took");
        peaks.settle(2 * LEAST);
        assert!(!peaks.have_passed(0, 0, Some(2 * LEAST)), "there is no more of it");
    }
}
