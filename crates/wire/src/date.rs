//! The `Date` field (RFC 9110 section 6.6.1), rendered once a second.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A cached `Date: …` line for one worker.
#[derive(Debug)]
pub struct DateLine {
    second: u64,
    line: [u8; LEN],
}

/// `Date: ` + 29 bytes of IMF-fixdate + CRLF.
const LEN: usize = 37;

impl Default for DateLine {
    fn default() -> Self {
        Self { second: u64::MAX, line: *b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n" }
    }
}

impl DateLine {
    /// The line for this moment (seconds since 1970), with its line end.
    pub fn at(&mut self, unix_seconds: u64) -> &[u8] {
        if unix_seconds != self.second {
            self.second = unix_seconds;
            // httpdate refuses years past 9999.
            let at = UNIX_EPOCH + Duration::from_secs(unix_seconds.min(253_402_300_799));
            if let Some(mut room) = self.line.get_mut(6..LEN - 2) {
                // It has exactly this length, and writing into memory does not fail otherwise.
                let _ = write!(room, "{}", httpdate::HttpDate::from(at));
            }
        }
        &self.line
    }
}

/// Seconds since 1970 now; 0 when the clock is before that.
#[must_use]
pub fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::DateLine;

    #[test]
    fn renders_the_example_of_rfc_9110() {
        let mut d = DateLine::default();
        assert_eq!(d.at(784_111_777), b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        assert_eq!(d.at(784_111_778), b"Date: Sun, 06 Nov 1994 08:49:38 GMT\r\n");
    }
}
