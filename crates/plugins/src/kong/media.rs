//! Values in bodies: of JSON objects and of forms.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A media type whose values are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Form,
}

impl Media {
    /// The media type of a body, by what its `Content-Type` contains, as Kong looks for it.
    pub(super) fn of(content_type: &[u8]) -> Option<Self> {
        let contains = |part: &[u8]| content_type.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part));
        if contains(b"application/json") {
            return Some(Self::Json);
        }
        contains(b"application/x-www-form-urlencoded").then_some(Self::Form)
    }
}

/// True if there is a value of this name that Lua takes for one: not `false`.
pub(super) fn has(values: &Map<String, Value>, name: &str) -> bool {
    values.get(name).is_some_and(|value| *value != Value::Bool(false))
}

/// A value with another one behind it: a list. What is neither a text nor a list gives way, as in Kong.
pub(super) fn appended(held: Option<Value>, value: Value) -> Value {
    match held {
        Some(text @ Value::String(_)) => Value::Array(vec![text, value]),
        Some(Value::Array(mut list)) => {
            list.push(value);
            Value::Array(list)
        }
        _ => Value::Array(vec![value]),
    }
}

/// Type of a value that a configuration writes as a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum JsonType {
    String,
    Boolean,
    Number,
}

impl JsonType {
    /// The value of a text; `None`: it is not of the type.
    pub(super) fn value(self, text: String) -> Option<Value> {
        match self {
            Self::String => Some(Value::String(text)),
            Self::Boolean => Some(Value::Bool(text == "true")),
            Self::Number => text.trim().parse().ok().map(Value::Number),
        }
    }
}
