//! The `Date` field (RFC 9110 section 6.6.1), rendered once a second.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Cached `Date: …` line of one worker.
#[derive(Debug)]
pub struct DateLine {
    second: u64,
    line: [u8; LEN],
}

/// Last second of the year 9999; httpdate refuses later ones.
const LAST: u64 = 253_402_300_799;

/// `Date: ` + 29 bytes of IMF-fixdate + CRLF.
const LEN: usize = 37;

impl Default for DateLine {
    fn default() -> Self {
        Self { second: u64::MAX, line: *b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n" }
    }
}

impl DateLine {
    /// Line for a time in seconds since 1970, including its line end.
    pub fn at(&mut self, unix_seconds: u64) -> &[u8] {
        if unix_seconds != self.second {
            self.second = unix_seconds;
            let at = UNIX_EPOCH + Duration::from_secs(unix_seconds.min(LAST));
            if let Some(mut room) = self.line.get_mut(6..LEN - 2) {
                // The date has exactly this length, and writing into memory cannot fail otherwise.
                let _ = write!(room, "{}", httpdate::HttpDate::from(at));
            }
        }
        &self.line
    }
}

/// Parses a date in any of HTTP's three formats (RFC 9110 section 5.6.7); returns seconds since 1970.
#[must_use]
pub fn parse(text: &[u8]) -> Option<u64> {
    let at = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    at.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Appends a date in HTTP's preferred format (IMF-fixdate).
pub fn push(out: &mut Vec<u8>, unix_seconds: u64) {
    let at = UNIX_EPOCH + Duration::from_secs(unix_seconds.min(LAST));
    // Writing into memory cannot fail.
    let _ = write!(out, "{}", httpdate::HttpDate::from(at));
}

/// Time since 1970; 0 if the clock is before 1970.
#[must_use]
pub fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{DateLine, parse, push};

    #[test]
    fn renders_the_example_of_rfc_9110() {
        let mut d = DateLine::default();
        assert_eq!(d.at(784_111_777), b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        assert_eq!(d.at(784_111_778), b"Date: Sun, 06 Nov 1994 08:49:38 GMT\r\n");
    }

    #[test]
    fn the_three_forms_are_read() {
        for (text, at) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777)),
            ("Sun Nov  6 08:49:37 1994", Some(784_111_777)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 06 Nov 1994 25:49:37 GMT", None),
            ("784111777", None),
            ("", None),
            ("\u{e9}", None),
        ] {
            assert_eq!(parse(text.as_bytes()), at, "{text}");
        }
    }

    #[test]
    fn a_date_is_written_whatever_it_is() {
        for (at, text) in [(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"), (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT")]
        {
            let mut out = Vec::new();
            push(&mut out, at);
            assert_eq!(out, text.as_bytes());
        }
    }
}
