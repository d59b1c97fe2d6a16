//! JSON that is looked at in place: parts of a text that is known to be JSON, without a tree of it in memory.

use std::borrow::Cow;

use crate::value::Value;

/// The elements of a list or the members of an object, in their order; none of anything else.
///
/// The text has to be JSON, as a parser has found it. Of what is none it hands out something, and it never panics.
#[derive(Clone, Debug)]
pub struct JsonParts<'a> {
    rest: &'a str,
    is_object: bool,
}

/// A part of a list or an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonPart<'a> {
    /// The member's name as it is written, without its quotes; `None` for an element.
    pub name: Option<&'a str>,
    /// The value as it is written.
    pub value: &'a str,
}

impl<'a> JsonParts<'a> {
    /// The parts of this value.
    pub fn of(json: &'a str) -> Self {
        let json = json.trim_start_matches(is_blank);
        let rest = json.strip_prefix(['[', '{']).unwrap_or_default();
        Self { rest, is_object: json.starts_with('{') }
    }
}

impl<'a> Iterator for JsonParts<'a> {
    type Item = JsonPart<'a>;

    fn next(&mut self) -> Option<JsonPart<'a>> {
        let mut rest = self.rest.trim_start_matches(|c| is_blank(c) || c == ',');
        let mut name = None;
        if self.is_object {
            let (text, behind) = rest.split_at_checked(value_length(rest))?;
            name = Some(text.strip_prefix('"')?.strip_suffix('"')?);
            rest = behind.trim_start_matches(|c| is_blank(c) || c == ':');
        }
        let (value, behind) = rest.split_at_checked(value_length(rest))?;
        self.rest = behind;
        (!value.is_empty()).then_some(JsonPart { name, value })
    }
}

impl JsonPart<'_> {
    /// True if the part is the member of this name.
    pub fn is_member(&self, name: &str) -> bool {
        self.name.is_some_and(|written| unescaped(written) == name)
    }
}

/// The text that a string means, which is written so between its quotes.
pub fn unescaped(written: &str) -> Cow<'_, str> {
    if !written.contains('\\') {
        return Cow::Borrowed(written);
    }
    // A lone surrogate is no character; it stays as it is written.
    serde_json::from_str(&format!("\"{written}\"")).map_or(Cow::Borrowed(written), Cow::Owned)
}

/// True if `is` holds for an element of the list.
pub(crate) fn has_element(list: &str, is: impl Fn(Value<'_>) -> bool) -> bool {
    JsonParts::of(list).any(|part| match part.value {
        "true" => is(Value::Boolean(true)),
        "false" => is(Value::Boolean(false)),
        value => match value.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            Some(text) => is(Value::Bytes(unescaped(text).as_bytes())),
            None => is(Value::Json(value)),
        },
    })
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Bytes of the value that a text begins with.
fn value_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += string_length(&bytes[at..]);
                if depth == 0 {
                    return at.min(bytes.len());
                }
                continue;
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' if depth <= 1 => return if depth == 0 { at } else { at + 1 },
            b']' | b'}' => depth -= 1,
            b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Bytes of the string that a text begins with, with its quotes.
fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = memchr::memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
        at += found;
        if text.get(at) == Some(&b'"') {
            return at + 1;
        }
        at += 2;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::{JsonParts, has_element, unescaped};
    use crate::value::Value;

    fn parts(json: &str) -> Vec<(Option<&str>, &str)> {
        JsonParts::of(json).map(|part| (part.name, part.value)).collect()
    }

    #[test]
    fn parts_are_handed_out_in_their_order() {
        assert_eq!(
            parts(r#" {"a" : 1, "b\"":{"c":[1,"]}"]} ,"d":"x\\","e":[ ], "f":null} "#),
            [
                (Some("a"), "1"),
                (Some("b\\\""), r#"{"c":[1,"]}"]}"#),
                (Some("d"), r#""x\\""#),
                (Some("e"), "[ ]"),
                (Some("f"), "null")
            ]
        );
        assert_eq!(parts("[1 , [2,[3]],{} ,-1.5e3, \"ü\"]").len(), 5);
        assert_eq!([parts("[]"), parts("{ }"), parts("12"), parts("\"[1]\"")], [const { Vec::new() }; 4]);
    }

    #[test]
    fn what_is_no_json_does_no_harm() {
        for text in
            ["[", "{", "[1", "{\"a", "{\"a\"", "{\"a\":", "{1:2}", "[\"\\", "]", "}{", "[,,,]", "{\"\\\"", "[}]", ""]
        {
            assert!(JsonParts::of(text).count() < 4, "{text}");
        }
    }

    #[test]
    fn elements_are_compared_by_what_they_mean() {
        let list = r#"["a", "\u0062", 1, true, null, ["c"]]"#;
        let holds = |value: Value<'_>| has_element(list, |element| element == value);
        assert!(holds(Value::Bytes(b"a")) && holds(Value::Bytes(b"b")) && holds(Value::Boolean(true)));
        assert!(!holds(Value::Bytes(b"c")) && !holds(Value::Bytes(b"1")) && !holds(Value::Boolean(false)));
        assert_eq!((unescaped("a\\n\\u00e4"), unescaped("\\ud800")), ("a\nä".into(), "\\ud800".into()));
    }
}
