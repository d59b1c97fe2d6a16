//! HTTP on bytes: message heads, framing, chunked coding, targets. No I/O, no allocation per message.
//!
//! A head is the read buffer plus spans ([`fields::Fields`]); edits go to an overlay. Framing is decided once, in the
//! header pass, strictly by RFC 9112 section 6: an ambiguous message is a [`Reject`], and the connection is closed.

pub mod authority;
pub mod buffer;
pub mod chunked;
pub mod date;
pub mod fields;
pub mod forwarded;
pub mod head;
pub mod http2;
pub mod method;
pub mod mqtt;
pub mod name;
pub mod proxy_protocol;
pub mod query;
pub mod status;
pub mod target;
pub mod websocket;

/// Refusal of a message: a status code and a short reason, both constants.
///
/// The type is small and `Copy`, so refusing is cheap. For an upstream's response the status is always 502.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    /// Status code of the answer (400 to 505).
    pub status: u16,
    /// Short reason for the log and the error body.
    pub reason: &'static str,
}

impl Reject {
    /// Refusal with 400 (Bad Request).
    #[must_use]
    pub const fn bad(reason: &'static str) -> Self {
        Self { status: 400, reason }
    }

    /// Refusal with any status.
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

/// Range of a buffer, compact because a head has many of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Span of `start..end`. Offsets beyond 4 GiB do not occur: buffers are bounded far below.
    #[must_use]
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// True if the span is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Bytes of the span; empty if it does not lie inside `base`.
    #[must_use]
    pub fn of(self, base: &[u8]) -> &[u8] {
        base.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// True if a byte is allowed in a token (RFC 9110 section 5.6.2).
#[must_use]
pub const fn is_tchar(b: u8) -> bool {
    matches!(b, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}

/// True if a byte is allowed in a field value (RFC 9110 section 5.5): visible, obs-text, space or tab.
#[must_use]
pub const fn is_field_byte(b: u8) -> bool {
    matches!(b, b'\t' | 0x20..=0x7e | 0x80..=0xff)
}

/// Field value or list element without surrounding optional white space (RFC 9110 section 5.6.3).
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

/// Elements of a comma-separated list (RFC 9110 section 5.6.1), trimmed; empty elements are kept.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(trim_ows)
}

/// Appends a decimal number.
pub fn push_number(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Offset of the first byte from `at` on that is below `least` or DEL, or the end if there is none. `least` is at
/// most 128.
pub(crate) fn first_below(buf: &[u8], mut at: usize, least: u8) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES * 128;
    while let Some(word) = buf.get(at..at + 8).and_then(|b| <[u8; 8]>::try_from(b).ok()) {
        let word = u64::from_le_bytes(word);
        // The lowest marked byte is a true match; a borrow may mark bytes above it.
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
                        // Later bytes, which a borrow could mark, do not affect the result.
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
