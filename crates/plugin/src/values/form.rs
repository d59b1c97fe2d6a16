//! Fields of forms: `application/x-www-form-urlencoded`, and `multipart/form-data` (RFC 7578).

use std::ops::Range;

use weir_wire::query;

use super::Found;

/// All fields of a form with this name.
pub(super) fn fields(body: &[u8], name: &[u8]) -> Found {
    let mut list = String::new();
    let mut last = Found::Nothing;
    for field in body.split(|b| *b == b'&').filter(|field| query::has_name(field, name)) {
        let fresh = match field.contains(&b'=') {
            false => Found::Boolean(true),
            true => {
                let mut text = Vec::new();
                query::decode(query::value(field), &mut text);
                Found::Decoded(text)
            }
        };
        append(&mut list, std::mem::replace(&mut last, fresh));
    }
    if list.is_empty() {
        return last;
    }
    append(&mut list, last);
    list.pop();
    Found::List(format!("[{list}]"))
}

/// Writes a field as an element of a list, with a comma behind it.
fn append(list: &mut String, field: Found) {
    match field {
        Found::Boolean(boolean) => list.push_str(if boolean { "true," } else { "false," }),
        Found::Decoded(text) => {
            list.push_str(&serde_json::Value::String(String::from_utf8_lossy(&text).into_owned()).to_string());
            list.push(',');
        }
        _ => {}
    }
}

/// Position of the body of the last part with this name.
pub(super) fn part(body: &[u8], boundary: &[u8], name: &[u8]) -> Option<Range<usize>> {
    let mut found = None;
    let mut begin = None;
    for at in memchr::memmem::find_iter(body, boundary) {
        let before = body.get(..at).unwrap_or_default();
        let Some(before) = before.strip_suffix(b"--") else { continue };
        // A delimiter stands at the beginning of a line, and ends its own (RFC 2046 section 5.1.1).
        let Some(end) = before.strip_suffix(b"\r\n").map(<[u8]>::len).or(before.is_empty().then_some(0)) else {
            continue;
        };
        let behind = body.get(at + boundary.len()..).unwrap_or_default();
        let line = memchr::memchr(b'\n', behind).map_or(behind.len(), |at| at + 1);
        let tail = weir_wire::trim_ows(behind.get(..line).unwrap_or_default().trim_ascii_end());
        if !tail.is_empty() && tail != b"--" {
            continue;
        }
        if let Some(part) = begin.and_then(|begin: usize| content(body, begin..end, name)) {
            found = Some(part);
        }
        if tail == b"--" {
            break;
        }
        begin = Some(at + boundary.len() + line);
    }
    found
}

/// The content of a part, when it has this name.
fn content(body: &[u8], part: Range<usize>, name: &[u8]) -> Option<Range<usize>> {
    let mut at = part.start;
    let mut is_named = false;
    loop {
        let rest = body.get(at..part.end)?;
        let length = memchr::memmem::find(rest, b"\r\n")?;
        let line = rest.get(..length)?;
        at += length + 2;
        if line.is_empty() {
            return is_named.then_some(at..part.end.max(at));
        }
        let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
        let (field, value) = line.split_at_checked(colon)?;
        if field.eq_ignore_ascii_case(b"content-disposition") {
            let parameters = value.iter().position(|b| *b == b';').and_then(|at| value.get(at..)).unwrap_or_default();
            let written = parameter(parameters, b"name").unwrap_or_default();
            is_named |= written.iter().filter(|b| **b != b'\\').eq(name.iter());
        }
    }
}

/// A parameter of a field, such as `; name="a"`: what stands between its quotes, with the backslashes of what is escaped.
pub(super) fn parameter<'a>(mut parameters: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        parameters = parameters.strip_prefix(b";")?.trim_ascii_start();
        let length = parameters.iter().position(|b| matches!(b, b'=' | b';')).unwrap_or(parameters.len());
        let (name, rest) = parameters.split_at_checked(length)?;
        let value = match rest.strip_prefix(b"=") {
            Some(quoted) if quoted.starts_with(b"\"") => {
                let quoted = quoted.get(1..)?;
                let end = end_of_quote(quoted)?;
                parameters = quoted.get(end + 1..)?.trim_ascii_start();
                quoted.get(..end)?
            }
            Some(token) => {
                let end = token.iter().position(|b| *b == b';').unwrap_or(token.len());
                parameters = token.get(end..)?;
                token.get(..end)?.trim_ascii_end()
            }
            None => {
                parameters = rest;
                &[]
            }
        };
        if name.trim_ascii().eq_ignore_ascii_case(wanted) {
            return Some(value).filter(|value| !value.is_empty());
        }
    }
}

fn end_of_quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}
