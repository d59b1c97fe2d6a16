//! Splits a head into lines, names and values in one pass; bytes that need only checking are read eight at a time.

use super::TOO_MANY_FIELDS;
use crate::fields::{Field, Fields, State};
use crate::name::{Known, mark};
use crate::{Reject, Span, first_below, is_tchar};

/// A request line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) method: Span,
    pub(super) target: Span,
    pub(super) minor: u8,
    /// Offset of the first field.
    pub(super) end: usize,
}

/// A status line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatusLine {
    pub(super) minor: u8,
    pub(super) status: u16,
    pub(super) reason: Span,
    /// Offset of the first field.
    pub(super) end: usize,
}

const BAD_LINE: Reject = Reject::bad("malformed request line");
const BAD_STATUS: Reject = Reject::bad("malformed status line");

const TCHAR: [bool; 256] = {
    let mut table = [false; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = is_tchar(b as u8);
        b += 1;
    }
    table
};

/// Token bytes that no recipient behind the gateway confuses with others. CGI programs cannot distinguish the
/// remaining token bytes from `-` ([`crate::name::same_in_cgi`]).
const PLAIN: [bool; 256] = {
    let mut table = [false; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = (b as u8).is_ascii_alphanumeric() || b as u8 == b'-';
        b += 1;
    }
    table
};

/// Finds the end of the token that begins at `at`.
fn token_end(buf: &[u8], at: usize) -> usize {
    let rest = buf.get(at..).unwrap_or_default();
    at + rest.iter().position(|b| !TCHAR[usize::from(*b)]).unwrap_or(rest.len())
}

/// Parses a request line that begins at `at`; `None` if the line is incomplete.
pub(super) fn request_line(buf: &[u8], at: usize) -> Result<Option<RequestLine>, Reject> {
    let method_end = token_end(buf, at);
    match buf.get(method_end) {
        None => return Ok(None),
        Some(b' ') if method_end > at => {}
        Some(_) => return Err(BAD_LINE),
    }
    let target = method_end + 1;
    let target_end = first_below(buf, target, 0x21);
    match buf.get(target_end) {
        None => return Ok(None),
        Some(b' ') if target_end > target => {}
        Some(_) => return Err(BAD_LINE),
    }
    let version = target_end + 1;
    let Some(minor) = version_at(buf, version)? else { return Ok(None) };
    let Some(end) = line_end(buf, version + 8, BAD_LINE)? else { return Ok(None) };
    Ok(Some(RequestLine { method: Span::new(at, method_end), target: Span::new(target, target_end), minor, end }))
}

/// Parses `HTTP/1.0` or `HTTP/1.1`; returns the minor version.
fn version_at(buf: &[u8], at: usize) -> Result<Option<u8>, Reject> {
    match buf.get(at..at + 8) {
        Some(b"HTTP/1.1") => Ok(Some(1)),
        Some(b"HTTP/1.0") => Ok(Some(0)),
        Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor])
            if major.is_ascii_digit() && minor.is_ascii_digit() && buf.get(at + 8).is_none_or(|b| *b == b'\r') =>
        {
            Err(Reject::new(505, "HTTP version not supported"))
        }
        Some(_) => Err(Reject::bad("malformed HTTP version")),
        None => {
            let begun = buf.get(at..).unwrap_or_default();
            // An incomplete text that cannot become a version is refused at once.
            let fits =
                begun.iter().zip(b"HTTP/d.d").all(|(b, want)| b == want || (*want == b'd' && b.is_ascii_digit()));
            if fits { Ok(None) } else { Err(Reject::bad("malformed HTTP version")) }
        }
    }
}

/// Expects CRLF at `at`; returns the offset after it, or `None` if it is incomplete.
fn line_end(buf: &[u8], at: usize, error: Reject) -> Result<Option<usize>, Reject> {
    match (buf.get(at), buf.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (None, _) | (Some(b'\r'), None) => Ok(None),
        _ => Err(error),
    }
}

/// Parses a status line at the front; `None` if the line is incomplete.
pub(super) fn status_line(buf: &[u8]) -> Result<Option<StatusLine>, Reject> {
    let Some(minor) = version_at(buf, 0)? else { return Ok(None) };
    let Some(after) = buf.get(8..13) else {
        // ` 200` and the byte after it.
        let begun = buf.get(8..).unwrap_or_default();
        let fits = begun.iter().zip(b" ddd").all(|(b, want)| b == want || (*want == b'd' && b.is_ascii_digit()));
        return if fits { Ok(None) } else { Err(BAD_STATUS) };
    };
    let [b' ', a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', end @ (b' ' | b'\r')] = after else {
        return Err(BAD_STATUS);
    };
    let digit = |d: &u8| u16::from(d - b'0');
    let status = digit(a) * 100 + digit(b) * 10 + digit(c);
    let reason = if *end == b' ' { 13 } else { 12 };
    let reason_end = value_end(buf, reason);
    let Some(end) = line_end(buf, reason_end, BAD_STATUS)? else { return Ok(None) };
    Ok(Some(StatusLine { minor, status, reason: Span::new(reason, reason_end), end }))
}

/// Finds the end of the value that begins at `at`: the first control byte other than a tab.
fn value_end(buf: &[u8], at: usize) -> usize {
    let mut end = first_below(buf, at, 0x20);
    while buf.get(end) == Some(&b'\t') {
        end = first_below(buf, end + 1, 0x20);
    }
    end
}

/// Parses field lines from `at` up to the empty line; returns the offset of the body, or `None` if more bytes are
/// needed. `most` is the maximum number of fields.
pub(super) fn fields(buf: &[u8], mut at: usize, most: usize, fields: &mut Fields) -> Result<Option<usize>, Reject> {
    loop {
        if buf.get(at) == Some(&b'\r') {
            return line_end(buf, at, Reject::bad("malformed line end"));
        }
        let Some((name_end, id)) = field_name(buf, at, fields)? else { return Ok(None) };
        let mut value = name_end + 1;
        while matches!(buf.get(value), Some(b' ' | b'\t')) {
            value += 1;
        }
        let line = value_end(buf, value);
        let end = match buf.get(line..).unwrap_or_default() {
            [b'\r', b'\n', ..] => line + 2,
            [] | [b'\r'] => return Ok(None),
            [b'\r', ..] => return Err(Reject::bad("bare CR in a field")),
            [b'\n', ..] => return Err(Reject::bad("bare LF in a field")),
            _ => return Err(Reject::bad("control byte in a field value")),
        };
        let mut value_last = line;
        while value_last > value && matches!(buf.get(value_last - 1), Some(b' ' | b'\t')) {
            value_last -= 1;
        }
        if fields.list.len() >= most {
            return Err(TOO_MANY_FIELDS);
        }
        let name = Span::new(at, name_end);
        let mark = mark(id, name.of(buf));
        fields.push(Field { name, value: Span::new(value, value_last), end: end as u32, id, mark, state: State::Kept });
        at = end;
    }
}

/// Parses the name of the field line at `at`; returns the offset of its colon and its id, or `None` if the bytes end
/// before. A name with bytes outside [`PLAIN`] is recorded in `fields`.
fn field_name(buf: &[u8], at: usize, fields: &mut Fields) -> Result<Option<(usize, Known)>, Reject> {
    let rest = buf.get(at..).unwrap_or_default();
    if let Some(colon @ 1..) = colon_within(rest) {
        let name = rest.get(..colon).unwrap_or_default();
        let id = Known::classify(name);
        // A known name is always a token, so it needs no further check.
        if id != Known::Other || name.iter().all(|b| PLAIN[usize::from(*b)]) {
            return Ok(Some((at + colon, id)));
        }
    }
    other_field_name(buf, at, fields)
}

/// Slow path of [`field_name`]: a long name, a name with bytes outside [`PLAIN`], an incomplete or a malformed one.
#[inline(never)]
fn other_field_name(buf: &[u8], at: usize, fields: &mut Fields) -> Result<Option<(usize, Known)>, Reject> {
    let rest = buf.get(at..).unwrap_or_default();
    let mut name_end = at + rest.iter().position(|b| !PLAIN[usize::from(*b)]).unwrap_or(rest.len());
    if buf.get(name_end).is_some_and(|b| TCHAR[usize::from(*b)]) {
        name_end = token_end(buf, name_end);
        fields.note_lookalike();
    }
    match buf.get(name_end) {
        None => Ok(None),
        // A known name also gets here near the end of the received bytes.
        Some(b':') if name_end > at => Ok(Some((name_end, Known::classify(buf.get(at..name_end).unwrap_or_default())))),
        Some(b' ' | b'\t') if name_end == at => Err(Reject::bad("line folding")),
        Some(b' ' | b'\t') => Err(Reject::bad("white space before the colon")),
        Some(_) => Err(Reject::bad("malformed field name")),
    }
}

/// Offset of the first colon within the first 24 bytes: no known name is longer.
fn colon_within(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate().take(3) {
        let differs = u64::from_le_bytes(*word) ^ (ONES * b':' as u64);
        // The lowest marked byte is a true match.
        let colons = differs.wrapping_sub(ONES) & !differs & (ONES * 128);
        if colons != 0 {
            return Some(at * 8 + (colons.trailing_zeros() / 8) as usize);
        }
    }
    None
}
