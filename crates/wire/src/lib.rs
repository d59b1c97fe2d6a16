//! HTTP on bytes: message heads, framing, chunked coding, targets. No I/O, no allocation per message.
//!
//! A head is the read buffer plus spans ([`fields::Fields`]); edits go to an overlay. Framing is decided once, in the
//! header pass, by RFC 9112 section 6, strictly: what is ambiguous is a [`Reject`], and the connection is closed.

pub mod authority;
pub mod buffer;
pub mod chunked;
pub mod date;
pub mod fields;
pub mod forwarded;
pub mod head;
pub mod method;
pub mod name;
pub mod proxy_protocol;
pub mod query;
pub mod status;
pub mod target;

/// Why a message is refused: a status code and a short reason, both fixed.
///
/// Small and `Copy`, so that refusing costs nothing. For an upstream's response the status is always 502.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    /// The status code to answer with (400 to 505).
    pub status: u16,
    /// What was wrong, in a few words, for the log and the error body.
    pub reason: &'static str,
}

impl Reject {
    /// A refusal with 400 (Bad Request).
    #[must_use]
    pub const fn bad(reason: &'static str) -> Self {
        Self { status: 400, reason }
    }

    /// A refusal with any status.
    #[must_use]
    pub const fn new(status: u16, reason: &'static str) -> Self {
        Self { status, reason }
    }
}

impl std::fmt::Display for Reject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.status, self.reason)
    }
}

/// A range of a buffer, small enough to keep many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The span `start..end`; positions past 4 GiB do not occur (buffers are bounded far below).
    #[must_use]
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether it holds no byte.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The bytes it names; empty when it does not lie inside `base`.
    #[must_use]
    pub fn of(self, base: &[u8]) -> &[u8] {
        base.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// Whether a byte may stand in a token (RFC 9110 section 5.6.2).
#[must_use]
pub const fn is_tchar(b: u8) -> bool {
    matches!(b, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}

/// Whether a byte may stand in a field value (RFC 9110 section 5.5): visible, obs-text, space or tab.
#[must_use]
pub const fn is_field_byte(b: u8) -> bool {
    matches!(b, b'\t' | 0x20..=0x7e | 0x80..=0xff)
}

/// A field value or list element without the optional white space around it (RFC 9110 section 5.6.3).
#[must_use]
pub fn trim_ows(mut v: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = v {
        v = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = v {
        v = rest;
    }
    v
}

/// The elements of a comma-separated list (RFC 9110 section 5.6.1), trimmed; empty elements are kept.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(trim_ows)
}

/// Appends a decimal number.
pub fn push_number(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// The first byte from `at` on that is below `least` or DEL; the end when there is none. `least` is at most 128.
pub(crate) fn first_below(buf: &[u8], mut at: usize, least: u8) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES * 128;
    while let Some(word) = buf.get(at..at + 8).and_then(|b| <[u8; 8]>::try_from(b).ok()) {
        let word = u64::from_le_bytes(word);
        // The lowest marked byte is a true one; those above it may be marked by a borrow.
        let below = word.wrapping_sub(ONES * u64::from(least)) & !word;
        let del = word ^ (ONES * 0x7f);
        let marked = (below | (del.wrapping_sub(ONES) & !del)) & HIGH;
        if marked != 0 {
            return at + (marked.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let rest = buf.get(at..).unwrap_or_default();
    at + rest.iter().position(|b| *b < least || *b == 0x7f).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::first_below;

    #[test]
    fn control_bytes_are_found_wherever_they_stand() {
        for least in [0x20u8, 0x21] {
            for len in 0..40 {
                let clean: Vec<u8> = (0..len).map(|i| [b'a', 0x80, 0xff, b'!', 0x7e][i % 5]).collect();
                assert_eq!(first_below(&clean, 0, least), len);
                for at in 0..len {
                    for b in [0, 0x09, 0x0d, 0x1f, 0x7f] {
                        let mut bytes = clean.clone();
                        bytes[at] = b;
                        // Bytes after it that a borrow could mark do not matter.
                        if let Some(next) = bytes.get_mut(at + 1) {
                            *next = least;
                        }
                        assert_eq!(first_below(&bytes, 0, least), at, "{b} at {at} of {len}");
                    }
                }
            }
        }
    }
}
