//! JSON written as it is made, without a tree.

use serde::de::IgnoredAny;
use weir_expr::Value;

/// An object being written.
#[derive(Debug)]
pub(crate) struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> Object<'o> {
    pub(crate) fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    pub(crate) fn end(self) {
        self.out.push(b'}');
    }

    #[inline]
    fn separate(&mut self) {
        if !self.is_empty {
            self.out.push(b',');
        }
        self.is_empty = false;
    }

    /// Begins a field, whose value comes next. The key is a constant with nothing to escape.
    #[inline]
    pub(crate) fn key(&mut self, key: &'static str) -> &mut Vec<u8> {
        debug_assert!(is_plain(key.as_bytes()), "{key}");
        self.separate();
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    /// Appends the beginning of a field, or a whole one, that was written as JSON before.
    #[inline]
    pub(crate) fn written(&mut self, json: &[u8]) -> &mut Vec<u8> {
        self.separate();
        self.out.extend_from_slice(json);
        self.out
    }

    pub(crate) fn escaped_key(&mut self, key: &[u8]) -> &mut Vec<u8> {
        self.separate();
        push_string(self.out, key);
        self.out.push(b':');
        self.out
    }

    /// The same, for the name of a field of a message, in lower case.
    pub(crate) fn lowered_key(&mut self, name: &[u8]) -> &mut Vec<u8> {
        self.separate();
        self.out.push(b'"');
        let begin = self.out.len();
        if is_plain(name) {
            self.out.extend_from_slice(name);
        } else {
            escape(name, self.out);
        }
        lower(self.out.get_mut(begin..).unwrap_or_default());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    /// Writes an object as the value of a field.
    #[inline]
    pub(crate) fn nested(&mut self, key: &'static str, write: impl FnOnce(&mut Object<'_>)) {
        push_object(self.key(key), write);
    }
}

/// Appends an object.
#[inline]
pub(crate) fn push_object(out: &mut Vec<u8>, write: impl FnOnce(&mut Object<'_>)) {
    let mut object = Object::begin(out);
    write(&mut object);
    object.end();
}

/// Appends a text. What is not UTF-8 in it becomes U+FFFD.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    if is_plain(text) {
        out.extend_from_slice(text);
    } else {
        escape(text, out);
    }
    out.push(b'"');
}

/// In each byte of a word of eight, the number 1.
const ONES: u64 = u64::MAX / 255;
/// The highest bit of each byte.
const HIGH: u64 = ONES * 0x80;

/// True for a text that stands in JSON as it is. Eight bytes at a time; most texts here are short, for which vectors take
/// longer than they save.
fn is_plain(text: &[u8]) -> bool {
    let (words, rest) = text.as_chunks::<8>();
    let marked = words.iter().fold(0, |marked, word| marked | marks(u64::from_le_bytes(*word)));
    let last = match text.last_chunk::<8>() {
        // Bytes of the word before may be among these, and are looked at twice.
        Some(last) => u64::from_le_bytes(*last),
        None => rest.iter().fold(ONES * u64::from(b' '), |word, byte| word << 8 | u64::from(*byte)),
    };
    (marked | marks(last)) & HIGH == 0
}

/// The highest bit is set in some byte if one of the eight does not stand in JSON as it is.
fn marks(word: u64) -> u64 {
    let is = |byte: u8| {
        let differs = word ^ (ONES * u64::from(byte));
        differs.wrapping_sub(ONES) & !differs
    };
    let is_control = word.wrapping_sub(ONES * 0x20) & !word;
    let is_above_tilde = word | word.wrapping_add(ONES);
    is_control | is(b'"') | is(b'\\') | is_above_tilde
}

/// Replaces the letters A to Z by a to z.
fn lower(text: &mut [u8]) {
    let in_word = |chunk: &mut [u8; 8]| {
        let word = u64::from_le_bytes(*chunk);
        let low = word & !HIGH;
        let is_upper = (low + ONES * u64::from(0x80 - b'A')) & !(low + ONES * u64::from(0x7f - b'Z')) & !word & HIGH;
        *chunk = (word | is_upper >> 2).to_le_bytes();
    };
    text.as_chunks_mut::<8>().0.iter_mut().for_each(in_word);
    match text.last_chunk_mut::<8>() {
        Some(last) => in_word(last),
        None => text.iter_mut().for_each(|byte| byte.make_ascii_lowercase()),
    }
}

fn is_plain_byte(byte: u8) -> bool {
    (0x20..=0x7e).contains(&byte) & (byte != b'"') & (byte != b'\\')
}

/// Appends a variable's value: numbers, booleans and JSON as they are, all else as a text.
#[inline]
pub(crate) fn push_value(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Number(number) => weir_wire::push_number(out, number),
        Value::Boolean(_) | Value::Millis(_) => value.write_to(out),
        Value::Json(json) => push_json(out, json),
        Value::Bytes(text) => push_string(out, text),
        Value::Ip(_) => {
            out.push(b'"');
            value.write_to(out);
            out.push(b'"');
        }
    }
}

/// Appends JSON out of a client's body, on one line: a line feed in it would let a client write log lines of its own.
fn push_json(out: &mut Vec<u8>, json: &str) {
    match serde_json::from_str::<IgnoredAny>(json) {
        Ok(_) => out.extend(json.bytes().map(|byte| if byte < b' ' { b' ' } else { byte })),
        Err(_) => push_string(out, json.as_bytes()),
    }
}

/// Appends microseconds as milliseconds.
pub(crate) fn push_seconds_as_millis(out: &mut Vec<u8>, us: u64) {
    weir_wire::push_number(out, us / 1000);
    let rest = us % 1000;
    if rest > 0 {
        let digit = |number: u64| b'0' + number as u8;
        out.extend_from_slice(&[b'.', digit(rest / 100), digit(rest / 10 % 10), digit(rest % 10)]);
    }
}

/// Ends a text whose bytes stand from `begin` on as they came.
pub(crate) fn end_string(out: &mut Vec<u8>, begin: usize) {
    let text = out.get(begin..).unwrap_or_default();
    if !is_plain(text) {
        let plain = text.iter().take_while(|byte| is_plain_byte(**byte)).count();
        let rest = out.split_off(begin + plain);
        escape(&rest, out);
    }
    out.push(b'"');
}

/// Ends a text that holds JSON, which stands from `begin` on: what is written here has nothing but quotes and backslashes to
/// escape. It is moved from its end on, so that no memory is needed beside it.
pub(crate) fn end_nested(out: &mut Vec<u8>, begin: usize) {
    let is_escaped = |byte: u8| byte == b'"' || byte == b'\\';
    let more = out.get(begin..).unwrap_or_default().iter().filter(|byte| is_escaped(**byte)).count();
    let (mut from, mut to) = (out.len(), out.len() + more);
    out.resize(to, 0);
    while to > from {
        from -= 1;
        let byte = out.get(from).copied().unwrap_or_default();
        for byte in std::iter::once(byte).chain(is_escaped(byte).then_some(b'\\')) {
            to -= 1;
            if let Some(room) = out.get_mut(to) {
                *room = byte;
            }
        }
    }
    out.push(b'"');
}

#[cold]
fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        for byte in chunk.valid().bytes() {
            match byte {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                0..=0x1f | 0x7f => {
                    let hex = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0') as u8;
                    out.extend_from_slice(b"\\u00");
                    out.extend([hex(byte >> 4), hex(byte & 15)]);
                }
                // Bytes of longer characters stay as they are.
                byte => out.push(byte),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Object, end_nested, is_plain, is_plain_byte, lower, push_seconds_as_millis, push_string, push_value};
    use weir_expr::Value;

    #[test]
    fn eight_bytes_at_a_time_are_as_one_at_a_time() {
        for byte in 0..=u8::MAX {
            for length in 1..20 {
                for at in [0, length / 2, length - 1] {
                    let mut text = vec![b'Z'; length];
                    text[at] = byte;
                    assert_eq!(is_plain(&text), is_plain_byte(byte), "{text:?}");
                    let expected = text.to_ascii_lowercase();
                    lower(&mut text);
                    assert_eq!(text, expected);
                }
            }
        }
        assert!(is_plain(b"") && !is_plain(b"\xff\x7e\x7e\x7e\x7e\x7e\x7e\x7e"));
    }

    #[test]
    fn json_within_a_text_is_escaped_in_its_place() {
        for inner in ["", "{}", r#"{"a":"b\"c\\d"}"#, r#""""#] {
            let mut out = b"ahead\"".to_vec();
            let begin = out.len();
            out.extend_from_slice(inner.as_bytes());
            end_nested(&mut out, begin);
            let text: String = serde_json::from_slice(&out["ahead".len()..]).unwrap();
            assert_eq!(text, inner);
        }
    }

    #[test]
    fn whatever_is_written_is_json() {
        let mut out = Vec::new();
        let mut object = Object::begin(&mut out);
        let texts: [&[u8]; 5] = [b"plain", b"a\"b\\c/d", b"\0\x01\x1f\x7f\n\r\t", "ü€😀".as_bytes(), b"a\xff\xfeb"];
        for (at, text) in texts.iter().enumerate() {
            push_string(object.escaped_key(at.to_string().as_bytes()), text);
        }
        push_value(object.lowered_key(b"X-Number"), Value::Number(7));
        push_value(object.escaped_key(b"a\"b"), Value::Millis(1234));
        push_value(object.key("true"), Value::Boolean(true));
        push_value(object.key("ip"), Value::Ip(std::net::IpAddr::from([1, 2, 3, 4])));
        push_value(object.key("list"), Value::Json("[1,\n{\"a\": \"b\"}\r\n]"));
        push_value(object.key("torn"), Value::Json("1}\n{\"a\":2"));
        push_seconds_as_millis(object.key("ms"), 12_034);
        push_seconds_as_millis(object.key("whole"), 12_000);
        object.nested("object", |object| object.nested("empty", |_| {}));
        object.end();
        assert!(!out.contains(&b'\n') && !out.contains(&b'\r'), "one line");
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&json["list"], &json["torn"]), (&serde_json::json!([1, { "a": "b" }]), &"1}\n{\"a\":2".into()));
        let lossy = texts.map(|text| String::from_utf8_lossy(text).into_owned());
        for (at, text) in lossy.iter().enumerate() {
            assert_eq!(json[at.to_string()], *text);
        }
        assert_eq!((&json["x-number"], &json["a\"b"], &json["true"]), (&7.into(), &1.234.into(), &true.into()));
        assert_eq!((&json["ms"], &json["whole"], &json["ip"]), (&12.034.into(), &12.into(), &"1.2.3.4".into()));
        assert_eq!(json["object"], serde_json::json!({ "empty": {} }));
    }
}
