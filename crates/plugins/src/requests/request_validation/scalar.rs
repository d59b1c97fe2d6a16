//! Texts of requests as values of a type.

use serde_json::Value;

/// A type that a text is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Text,
    Integer,
    Number,
    Boolean,
}

impl Scalar {
    /// The type of this name in JSON Schema.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "string" => Self::Text,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    /// A text as a value of the type; `None` for a text that is none.
    pub(crate) fn read(self, text: &str) -> Option<Value> {
        match self {
            Self::Text => Some(Value::from(text)),
            Self::Integer => text.parse::<i64>().ok().map(Value::from),
            Self::Number => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from),
            Self::Boolean => text.parse::<bool>().ok().map(Value::from),
        }
    }
}
