//! The part of a stored answer that a request asks for: all of it, a range, or nothing where the client has it already
//! (RFC 9110 sections 13 and 14, RFC 9111 section 4.3.2).

use std::ops::Range;

use weir_plugin::Request;
use weir_wire::date;

use crate::cache::directives::Parts;
use crate::cache::zone::Stored;

/// The part of a stored answer that is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// The client has the answer: 304.
    Unchanged,
    /// The bytes from here to there: 206.
    Range(Range<usize>),
    /// The answer has none of the bytes: 416.
    OutOfRange,
}

impl Part {
    /// The part of a stored answer for this request. Conditions and ranges are for answers with the status 200 alone;
    /// `If-Match` and `If-Unmodified-Since` are not for caches.
    pub(super) fn of(request: &Request, stored: &Stored) -> Self {
        if stored.status != 200 {
            return Self::Whole;
        }
        let field = |name: &str| request.field_str(name);
        let is_known = match (field("if-none-match"), field("if-modified-since")) {
            (Some(wanted), _) => has_tag(wanted, stored),
            (None, Some(since)) => is_unchanged_since(since, stored),
            (None, None) => false,
        };
        if is_known {
            return Self::Unchanged;
        }
        let Some(asked) = field("range").filter(|_| request.method_bytes() == b"GET") else { return Self::Whole };
        match field("if-range") {
            Some(validator) if !is_exactly(validator, stored) => Self::Whole,
            _ => range(asked, stored.body_len()),
        }
    }

    /// True if bytes of the body are sent.
    pub(super) fn has_body(&self) -> bool {
        matches!(self, Self::Whole | Self::Range(_))
    }
}

/// The value of a field of a stored answer.
pub(super) fn value<'s>(stored: &'s Stored, name: &str) -> Option<&'s [u8]> {
    stored.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| &**value)
}

/// True if `If-None-Match` names the tag of a stored answer, by the weak comparison (RFC 9110 section 8.8.3.2).
fn has_tag(wanted: &[u8], stored: &Stored) -> bool {
    let opaque = |tag: &'_ [u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
    let Some(own) = value(stored, "etag").map(opaque) else { return false };
    Parts(wanted).any(|tag| tag == b"*" || opaque(tag) == own)
}

/// True if a stored answer was last changed at this time or before. One that does not tell when counts from its `Date`
/// (RFC 9111 section 4.3.2).
fn is_unchanged_since(since: &[u8], stored: &Stored) -> bool {
    let changed = value(stored, "last-modified").or_else(|| value(stored, "date"));
    match (date::parse(since), changed.and_then(date::parse)) {
        (Some(since), Some(changed)) => changed <= since,
        _ => false,
    }
}

/// True if `If-Range` is the strong tag, or the very time of the last change, of a stored answer (RFC 9110 section 13.1.5).
fn is_exactly(validator: &[u8], stored: &Stored) -> bool {
    let name = if validator.starts_with(b"\"") { "etag" } else { "last-modified" };
    !validator.starts_with(b"W/") && value(stored, name) == Some(validator)
}

/// The one range that is asked for. Several are answered with all bytes, as is what cannot be read (RFC 9110 section 14.2).
fn range(asked: &[u8], len: usize) -> Part {
    let read = || {
        let (unit, ranges) = std::str::from_utf8(asked).ok()?.split_once('=')?;
        let (first, last) = ranges.trim().split_once('-').filter(|_| unit.trim().eq_ignore_ascii_case("bytes"))?;
        // A number that is too large is the largest.
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse::<usize>().unwrap_or(usize::MAX))
        };
        Some(match (first.trim(), last.trim()) {
            ("", last) => len.saturating_sub(number(last)?)..len,
            (first, "") => number(first)?..len,
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then(|| first..last.saturating_add(1).min(len))?
            }
        })
    };
    match read() {
        None => Part::Whole,
        Some(range) if range.start >= len || range.is_empty() => Part::OutOfRange,
        Some(range) => Part::Range(range),
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, range};

    #[test]
    fn one_range_is_read() {
        for (asked, part) in [
            ("bytes=0-0", Part::Range(0..1)),
            ("bytes=2-4", Part::Range(2..5)),
            ("Bytes = 2-4", Part::Range(2..5)),
            ("bytes=7-", Part::Range(7..10)),
            ("bytes=7-99999999999999999999999", Part::Range(7..10)),
            ("bytes=-3", Part::Range(7..10)),
            ("bytes=-30", Part::Range(0..10)),
            ("bytes=-0", Part::OutOfRange),
            ("bytes=10-", Part::OutOfRange),
            ("bytes=99999999999999999999999-", Part::OutOfRange),
            ("bytes=4-2", Part::Whole),
            ("bytes=0-1,4-5", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=a-b", Part::Whole),
            ("lines=1-2", Part::Whole),
            ("bytes", Part::Whole),
        ] {
            assert_eq!(range(asked.as_bytes(), 10), part, "{asked}");
        }
        assert_eq!(range(b"bytes=0-", 0), Part::OutOfRange);
    }
}
