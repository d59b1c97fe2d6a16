//! Random values of a shape that a JSON schema describes.

use std::io::Write;

use serde_json::{Map, Value};
use weir_plugin::Invalid;

/// A kind of example value.
#[derive(Debug)]
pub(super) enum Shape {
    /// An example, as JSON and as text for XML.
    Fixed {
        json: Box<[u8]>,
        text: Box<[u8]>,
    },
    Text,
    Number,
    Integer,
    Boolean,
    Array(Box<Shape>),
    Object(Box<[Member]>),
}

/// A member of an object.
#[derive(Debug)]
pub(super) struct Member {
    name: Box<str>,
    /// The name as JSON.
    quoted: Box<[u8]>,
    shape: Shape,
}

/// Deeper schemas are refused: making a value recurses.
const DEEPEST: usize = 32;
/// A body of this size grows only by the least that completes it: nested arrays multiply.
const ENOUGH: usize = 1 << 20;

impl Shape {
    /// Compiles a schema that is taken for an object's, as the outermost is.
    ///
    /// Parts that are left out, or taken otherwise than they are written, are reported by `warnings`.
    pub(super) fn of_object(
        schema: &Map<String, Value>,
        path: &str,
        warnings: &mut Vec<Invalid>,
    ) -> Result<Self, Invalid> {
        Self::object(schema, path, 0, warnings)
    }

    /// `None`: nothing is made by the schema.
    fn of(schema: &Value, path: &str, depth: usize, warnings: &mut Vec<Invalid>) -> Result<Option<Self>, Invalid> {
        let fault = |field: &str, message: &'static str| Err(Invalid::new(format!("{path}{field}"), message));
        let warning = |field: &str, message: &'static str| Invalid::warning(format!("{path}{field}"), message);
        if depth > DEEPEST {
            return fault("", "the schema is nested deeper than 32 levels");
        }
        let Some(schema) = schema.as_object() else { return fault("", "expected a JSON schema, which is a mapping") };
        let Some(kind) = schema.get("type").and_then(Value::as_str) else {
            return fault(".type", "expected string, number, integer, boolean, object or array");
        };
        let kind = kind.to_ascii_lowercase();
        let fits = |example: &&Value| match kind.as_str() {
            "string" => example.is_string(),
            "number" | "integer" => example.is_number(),
            "boolean" => example.is_boolean(),
            _ => true,
        };
        let example = schema.get("example").filter(|example| !example.is_null());
        if example.is_some_and(|example| !fits(&example)) {
            warnings.push(warning(".example", "it is not of the schema's type, and not used"));
        }
        Ok(Some(match (kind.as_str(), example.filter(fits)) {
            ("string", Some(Value::String(text))) => Self::fixed(&Value::from(text.as_str()), text),
            ("number", Some(number @ Value::Number(_))) => Self::fixed(number, &number.to_string()),
            ("integer", Some(Value::Number(number))) => {
                let whole = number.as_i64().unwrap_or_else(|| number.as_f64().unwrap_or_default().floor() as i64);
                Self::fixed(&whole.into(), &whole.to_string())
            }
            ("boolean", Some(value @ Value::Bool(_))) => Self::fixed(value, &value.to_string()),
            ("string", _) => Self::Text,
            ("number", _) => Self::Number,
            ("integer", _) => Self::Integer,
            ("boolean", _) => Self::Boolean,
            ("object", _) => Self::object(schema, path, depth, warnings)?,
            ("array", _) => {
                let Some(items) = schema.get("items") else {
                    warnings.push(warning("", "the items of the array are missing: it is left out"));
                    return Ok(None);
                };
                match Self::of(items, &format!("{path}.items"), depth + 1, warnings)? {
                    Some(items) => Self::Array(Box::new(items)),
                    None => return Ok(None),
                }
            }
            _ => {
                let message = "expected string, number, integer, boolean, object or array: the value is left out";
                warnings.push(warning(".type", message));
                return Ok(None);
            }
        }))
    }

    fn object(
        schema: &Map<String, Value>,
        path: &str,
        depth: usize,
        warnings: &mut Vec<Invalid>,
    ) -> Result<Self, Invalid> {
        let none = Map::new();
        let properties = match schema.get("properties") {
            None => &none,
            Some(Value::Object(properties)) => properties,
            Some(_) => return Err(Invalid::new(format!("{path}.properties"), "expected a mapping")),
        };
        let member = |(name, schema): (&String, &Value)| {
            let shape = Self::of(schema, &format!("{path}.properties.{name}"), depth + 1, warnings)?;
            let quoted = Value::from(name.as_str()).to_string().into_bytes().into();
            Ok(shape.map(|shape| Member { name: name.as_str().into(), quoted, shape }))
        };
        properties.iter().map(member).filter_map(Result::transpose).collect::<Result<_, _>>().map(Self::Object)
    }

    fn fixed(json: &Value, text: &str) -> Self {
        Self::Fixed { json: json.to_string().into_bytes().into(), text: text.as_bytes().into() }
    }

    /// Appends a value as JSON.
    pub(super) fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Fixed { json, .. } => out.extend_from_slice(json),
            Self::Text => {
                out.push(b'"');
                self.write_random(out);
                out.push(b'"');
            }
            Self::Number | Self::Integer | Self::Boolean => self.write_random(out),
            Self::Array(items) => {
                out.push(b'[');
                for n in 0..length(out) {
                    if n > 0 {
                        out.push(b',');
                    }
                    items.write_json(out);
                }
                out.push(b']');
            }
            Self::Object(members) => {
                out.push(b'{');
                for (n, member) in members.iter().enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(&member.quoted);
                    out.push(b':');
                    member.shape.write_json(out);
                }
                out.push(b'}');
            }
        }
    }

    /// Appends a value as XML, in an element `data`.
    pub(super) fn write_xml(&self, out: &mut Vec<u8>) {
        self.write_element("data", out);
    }

    /// An array is its elements, one after the other.
    fn write_element(&self, name: &str, out: &mut Vec<u8>) {
        if let Self::Array(items) = self {
            for _ in 0..length(out) {
                items.write_element(name, out);
            }
            return;
        }
        // Writing into a vector does not fail.
        let _ = write!(out, "<{name}>");
        match self {
            Self::Object(members) => {
                for member in members {
                    member.shape.write_element(&member.name, out);
                }
            }
            Self::Fixed { text, .. } => escape(text, out),
            _ => self.write_random(out),
        }
        let _ = write!(out, "</{name}>");
    }

    fn write_random(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text => out.extend((0..fastrand::usize(1..=10)).map(|_| fastrand::lowercase() as u8)),
            // Writing into a vector does not fail.
            Self::Number => drop(write!(out, "{:.4}", fastrand::f64() * 10_000.0)),
            Self::Integer => weir_wire::push_number(out, fastrand::u64(1..=10_000)),
            Self::Boolean => out.extend_from_slice(if fastrand::bool() { b"true" } else { b"false" }),
            Self::Fixed { .. } | Self::Array(_) | Self::Object(_) => {}
        }
    }
}

/// The random number of elements of an array.
fn length(out: &[u8]) -> usize {
    if out.len() < ENOUGH { fastrand::usize(1..=3) } else { 1 }
}

fn escape(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            other => out.push(*other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ENOUGH, Shape};
    use serde_json::{Value, json};

    fn shape(schema: &Value) -> Result<Shape, String> {
        let schema = schema.as_object().unwrap();
        Shape::of_object(schema, "s", &mut Vec::new()).map_err(|fault| format!("{}: {}", fault.path, fault.code))
    }

    #[test]
    fn values_have_the_shape_of_the_schema() {
        let schema = json!({"properties": {
            "text": {"type": "string"}, "number": {"type": "number"}, "whole": {"type": "Integer"},
            "yes": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "inner": {"type": "object", "properties": {"\"q\"": {"type": "string", "example": "a\"<b>"}}},
            "empty": {"type": "object"},
            "example": {"type": "integer", "example": 155.55},
        }});
        let shape = shape(&schema).unwrap();
        for _ in 0..200 {
            let mut out = Vec::new();
            shape.write_json(&mut out);
            let value: Value = serde_json::from_slice(&out).expect("JSON");
            let text = value["text"].as_str().unwrap();
            assert!((1..=10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase()));
            assert!((0.0..=10_000.0).contains(&value["number"].as_f64().unwrap()));
            assert!((1..=10_000).contains(&value["whole"].as_i64().unwrap()));
            assert!(value["yes"].is_boolean());
            let list = value["list"].as_array().unwrap();
            assert!((1..=3).contains(&list.len()) && (1..=3).contains(&list[0].as_array().unwrap().len()));
            assert_eq!(value["inner"], json!({"\"q\"": "a\"<b>"}));
            assert_eq!((&value["empty"], &value["example"]), (&json!({}), &json!(155)));
        }
    }

    #[test]
    fn xml_is_nested_elements() {
        let schema = json!({"properties": {
            "a": {"type": "string", "example": "x<y"},
            "b": {"type": "object", "properties": {"c": {"type": "boolean", "example": true}}},
        }});
        let mut out = Vec::new();
        shape(&schema).unwrap().write_xml(&mut out);
        assert_eq!(out, b"<data><a>x&lt;y</a><b><c>true</c></b></data>");
        let mut out = Vec::new();
        shape(&json!({"properties": {"n": {"type": "array", "items": {"type": "integer", "example": 1}}}}))
            .unwrap()
            .write_xml(&mut out);
        let text = String::from_utf8(out).unwrap();
        let inner = text.strip_prefix("<data>").unwrap().strip_suffix("</data>").unwrap();
        assert!((1..=3).contains(&inner.matches("<n>1</n>").count()), "{text}");
    }

    #[test]
    fn nested_arrays_stay_in_bounds() {
        let mut schema = json!({"type": "integer"});
        for _ in 0..30 {
            schema = json!({"type": "array", "items": schema});
        }
        let mut out = Vec::new();
        shape(&json!({"properties": {"a": schema}})).unwrap().write_json(&mut out);
        assert!(out.len() < ENOUGH + (64 << 10), "{}", out.len());
        serde_json::from_slice::<serde::de::IgnoredAny>(&out).expect("JSON");
    }

    #[test]
    fn faults_are_named() {
        let mut deep = json!({"type": "integer"});
        for _ in 0..40 {
            deep = json!({"type": "array", "items": deep});
        }
        for (schema, fault) in [
            (json!({"properties": 1}), "s.properties: expected a mapping"),
            (json!({"properties": {"a": 1}}), "s.properties.a: expected a JSON schema"),
            (json!({"properties": {"a": {}}}), "s.properties.a.type: expected string"),
            (json!({"properties": {"a": deep}}), "deeper than 32"),
        ] {
            let found = shape(&schema).unwrap_err();
            assert!(found.contains(fault), "{found}");
        }
    }
}
