//! Points in time as texts for collectors.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

/// Appends milliseconds since 1970 as `2026-01-01T00:00:00.000Z` (RFC 3339).
pub(crate) fn push_rfc3339(unix_ms: u64, out: &mut Vec<u8>) {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
    let stamp = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    // Writing into a vector does not fail.
    let _ = PRINTER.print_timestamp(&stamp.unwrap_or_default(), &mut *out);
}

#[cfg(test)]
mod tests {
    use super::push_rfc3339;

    #[test]
    fn stamps_have_milliseconds() {
        for (ms, text) in [(0, "1970-01-01T00:00:00.000Z"), (1_767_225_600_007, "2026-01-01T00:00:00.007Z")] {
            let mut out = Vec::new();
            push_rfc3339(ms, &mut out);
            assert_eq!(out, text.as_bytes());
        }
    }
}
