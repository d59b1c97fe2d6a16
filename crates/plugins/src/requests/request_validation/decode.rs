//! Bodies as trees.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::query;

/// Reads JSON (RFC 8259) in which no object has a name twice: readers differ in which of the two they take.
pub(crate) fn json(body: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<Unambiguous>(body).map(|tree| tree.0)
}

/// Reads a form: a text for each argument, `true` for one without `=`, a list where a name is repeated.
pub(crate) fn form(body: &[u8]) -> Value {
    let mut arguments = Map::new();
    for argument in body.split(|b| *b == b'&').filter(|argument| !argument.is_empty()) {
        let value = match argument.contains(&b'=') {
            true => Value::String(text(query::value(argument))),
            false => Value::Bool(true),
        };
        match arguments.get_mut(&text(query::name(argument))) {
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
            None => {
                arguments.insert(text(query::name(argument)), value);
            }
        }
    }
    Value::Object(arguments)
}

/// The text of a part of a path, in which `+` stands for itself.
pub(crate) fn part_of_path(encoded: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(encoded.len());
    for (at, part) in encoded.split(|byte| *byte == b'+').enumerate() {
        if at > 0 {
            out.push(b'+');
        }
        query::decode(part, &mut out);
    }
    out
}

fn text(encoded: &[u8]) -> String {
    let mut decoded = Vec::new();
    query::decode(encoded, &mut decoded);
    String::from_utf8_lossy(&decoded).into_owned()
}

/// A tree without repeated names.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Tree).map(Self)
    }
}

struct Tree;

impl<'de> Visitor<'de> for Tree {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unambiguous(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some((name, Unambiguous(value))) = members.next_entry::<String, _>()? {
            if values.insert(name, value).is_some() {
                return Err(A::Error::custom("an object has the same name twice"));
            }
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use super::{form, json};
    use serde_json::{Value, json};

    #[test]
    fn json_is_read_in_one_way_or_not_at_all() {
        for text in ["null", "true", "1", "-1", "1.5", r#""a""#, "[]", r#"[1,"b",{}]"#, r#"{"a":{"b":[null]},"c":1}"#] {
            let plain: Value = serde_json::from_str(text).unwrap();
            assert_eq!(json(text.as_bytes()).unwrap(), plain, "{text}");
        }
        for text in [
            "",
            "{",
            "{} x",
            "{'a': 1}",
            r#"{"a":1,"a":2}"#,
            r#"[{"b":{"a":1,"\u0061":2}}]"#,
            "1e999",
            r#""\ud800""#,
            "\"\u{1}\"",
            "// c\n1",
        ] {
            assert!(json(text.as_bytes()).is_err(), "{text}");
        }
        assert!(json(&b"[".repeat(1 << 20)).is_err(), "nesting is bounded");
        assert!(json(b"\"\xff\"").is_err(), "text is UTF-8");
    }

    #[test]
    fn forms_are_objects() {
        for (body, expected) in [
            ("a=1&b=x+y%21", json!({"a": "1", "b": "x y!"})),
            ("a=1&a=2&%61=3", json!({"a": ["1", "2", "3"]})),
            ("a&b=&=c", json!({"a": true, "b": "", "": "c"})),
            ("&&a=1&", json!({"a": "1"})),
            ("a=%zz&b=%ff", json!({"a": "%zz", "b": "\u{fffd}"})),
        ] {
            assert_eq!(form(body.as_bytes()), expected, "{body}");
        }
    }
}
