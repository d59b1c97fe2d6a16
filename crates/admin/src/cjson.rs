//! JSON of requests, as lenient and as plain-spoken as the library that APISIX reads it with.
//!
//! Control characters may stand in texts as they are, except NUL. The same key twice in one object is refused, as it is in
//! a rules file: programs differ in which of the two they believe.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads a JSON text.
///
/// # Errors
/// Fault of a text, in the words that clients of APISIX know where there are any.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    match serde_json::from_str::<Unambiguous>(&escape_controls(text)) {
        Ok(Unambiguous(value)) => Ok(value),
        Err(error) => Err(fault(text, &error)),
    }
}

/// The text with escapes in the place of the control characters in its strings.
fn escape_controls(text: &str) -> Cow<'_, str> {
    let is_control = |byte: &u8| matches!(byte, 1..0x20);
    if !text.bytes().any(|byte| is_control(&byte)) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::new();
    let (mut is_string, mut is_escape, mut copied) = (false, false, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escape => is_escape = false,
            b'"' => is_string = !is_string,
            b'\\' => is_escape = is_string,
            _ if is_string && is_control(&byte) => {
                escaped.push_str(&text[copied..at]);
                escaped.push_str(&format!("\\u{byte:04x}"));
                copied = at + 1;
            }
            _ => {}
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    escaped.push_str(&text[copied..]);
    Cow::Owned(escaped)
}

/// A value in which no object has a key twice.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Self)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                let key = Value::String(key);
                return Err(A::Error::custom(format_args!("the key {key} stands twice in one object")));
            }
            let Unambiguous(value) = entries.next_value()?;
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

/// The first fault of a text that `error` says is no JSON.
///
/// The words are `Expected WHAT but found TOKEN at character N`; where the text keeps to that grammar and serde still
/// refuses it (a number too large, nesting too deep), they are serde's.
fn fault(text: &str, error: &serde_json::Error) -> String {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
    match reader.document() {
        Err((expected, found, at)) => format!("Expected {expected} but found {found} at character {}", at + 1),
        Ok(()) => error.to_string(),
    }
}

type Fault = (&'static str, &'static str, usize);

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Token at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text,
    Number,
    Boolean,
    Null,
    Colon,
    Comma,
    End,
    Invalid,
}

impl Token {
    fn name(self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ArrayBegin => "T_ARR_BEGIN",
            Self::ArrayEnd => "T_ARR_END",
            Self::Text => "T_STRING",
            Self::Number => "T_NUMBER",
            Self::Boolean => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Invalid => "invalid token",
        }
    }
}

impl Reader<'_> {
    fn document(&mut self) -> Result<(), Fault> {
        // The open values: true for an object.
        let mut open: Vec<bool> = Vec::new();
        let mut wants_value = true;
        loop {
            if wants_value {
                let (token, at) = self.token();
                match token {
                    Token::ObjectBegin => {
                        let (token, at) = self.token();
                        if token == Token::ObjectEnd {
                            wants_value = false;
                        } else {
                            self.key((token, at), "object key string")?;
                            open.push(true);
                        }
                    }
                    Token::ArrayBegin => {
                        let before = self.at;
                        if self.token().0 == Token::ArrayEnd {
                            wants_value = false;
                        } else {
                            self.at = before;
                            open.push(false);
                        }
                    }
                    Token::Text | Token::Number | Token::Boolean | Token::Null => wants_value = false,
                    other => return Err(("value", other.name(), at)),
                }
                continue;
            }
            let (token, at) = self.token();
            match (open.last(), token) {
                (None, Token::End) => return Ok(()),
                (None, other) => return Err(("the end", other.name(), at)),
                (Some(true), Token::ObjectEnd) | (Some(false), Token::ArrayEnd) => {
                    open.pop();
                }
                (Some(true), Token::Comma) => {
                    let next = self.token();
                    self.key(next, "object key string")?;
                    wants_value = true;
                }
                (Some(false), Token::Comma) => wants_value = true,
                (Some(true), other) => return Err(("comma or object end", other.name(), at)),
                (Some(false), other) => return Err(("comma or array end", other.name(), at)),
            }
        }
    }

    /// A key and the colon behind it.
    fn key(&mut self, (token, at): (Token, usize), expected: &'static str) -> Result<(), Fault> {
        if token != Token::Text {
            return Err((expected, token.name(), at));
        }
        match self.token() {
            (Token::Colon, _) => Ok(()),
            (other, at) => Err(("colon", other.name(), at)),
        }
    }

    /// The next token and where it begins.
    fn token(&mut self) -> (Token, usize) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        let at = self.at;
        let Some(&byte) = self.bytes.get(at) else { return (Token::End, at) };
        self.at += 1;
        let token = match byte {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b':' => Token::Colon,
            b',' => Token::Comma,
            b'"' => self.text(),
            b'-' | b'0'..=b'9' => {
                while matches!(self.bytes.get(self.at), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
                    self.at += 1;
                }
                Token::Number
            }
            _ => self.word(at),
        };
        (token, at)
    }

    fn text(&mut self) -> Token {
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => return Token::Text,
                b'\\' => self.at += 1,
                0 => return Token::Invalid,
                _ => {}
            }
        }
        Token::Invalid
    }

    fn word(&mut self, at: usize) -> Token {
        let rest = self.bytes.get(at..).unwrap_or_default();
        for (word, token) in [("true", Token::Boolean), ("false", Token::Boolean), ("null", Token::Null)] {
            if rest.starts_with(word.as_bytes()) {
                self.at = at + word.len();
                return token;
            }
        }
        Token::Invalid
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn faults_are_told_in_the_known_words() {
        let cases = [
            ("{bad", "Expected object key string but found invalid token at character 2"),
            ("bad", "Expected value but found invalid token at character 1"),
            (" ", "Expected value but found T_END at character 2"),
            ("{\"a\" 1}", "Expected colon but found T_NUMBER at character 6"),
            ("{\"a\":1", "Expected comma or object end but found T_END at character 7"),
            ("{\"a\":1,}", "Expected object key string but found T_OBJ_END at character 8"),
            ("[1 2]", "Expected comma or array end but found T_NUMBER at character 4"),
            ("[1,]", "Expected value but found T_ARR_END at character 4"),
            ("{} {}", "Expected the end but found T_OBJ_BEGIN at character 4"),
            ("{\"a\":tru}", "Expected value but found invalid token at character 6"),
            ("\"open", "Expected value but found invalid token at character 1"),
            ("{\"a\":[{},[],null,\"\\\"\"]", "Expected comma or object end but found T_END at character 23"),
        ];
        for (text, expected) in cases {
            assert_eq!(super::parse(text).expect_err(text), expected, "{text}");
        }
    }

    #[test]
    fn control_characters_are_taken_and_doubled_keys_are_not() {
        let cases = [
            ("{\"a\":\"x\ny\t\u{1f}\"}", Ok("{\"a\":\"x\\ny\\t\\u001f\"}")),
            ("{\n\t\"a\" :\r\n\"\\\"\n\\\\\"}", Ok("{\"a\":\"\\\"\\n\\\\\"}")),
            ("{\"a\nb\":[1,-2,1.5,true,null]}", Ok("{\"a\\nb\":[1,-2,1.5,true,null]}")),
            ("{\"a\":\"\\\n\"}", Err("invalid escape at line 2 column 0")),
            ("{\"a\":\"\0\"}", Err("Expected value but found invalid token at character 6")),
            ("{\"a\":1,\"a\":1}", Err("the key \"a\" stands twice in one object at line 1 column 10")),
            (
                "{\"a\":[{\"b\":{\"c\":1,\n\"\\u0063\":2}}]}",
                Err("the key \"c\" stands twice in one object at line 2 column 8"),
            ),
            ("{\"a\":{\"b\":1},\"c\":{\"b\":1}}", Ok("{\"a\":{\"b\":1},\"c\":{\"b\":1}}")),
        ];
        for (text, expected) in cases {
            let found = super::parse(text).map(|value| value.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text:?}");
        }
    }

    #[test]
    fn what_the_words_cannot_say_is_told_by_serde() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let error = super::parse(&deep).expect_err("too deep");
        assert!(error.contains("recursion limit"), "{error}");
    }
}
