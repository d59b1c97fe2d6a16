//! Peaks in the use of memory, after which what was freed is given back to the system.

use std::fs;

/// Less than so many bytes is not worth it.
const LEAST: usize = 16 << 20;
/// Bytes that a connection with a request under way takes, about.
const CONNECTION: usize = 24 << 10;

/// What was in use, and most of it, since memory was given back last.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    highest: usize,
    /// Bytes of the process that were in memory after that.
    resident: usize,
}

impl Peaks {
    /// Looks once a second: `buffers` is the most that was taken of the budget for buffers since the last look; where a
    /// configuration was freed, `freed` is what the process has in memory after that. True when memory is to be given
    /// back.
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

    /// Memory was given back, and so much is left.
    pub(crate) fn settle(&mut self, resident: usize) {
        self.resident = resident;
    }
}

/// Bytes of the process that are in memory; 0 where that cannot be read.
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
