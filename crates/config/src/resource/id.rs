use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Identifier of a resource: 1 to 64 letters, digits, `-`, `_` and `.`, or a whole number of at least 1, which is
/// taken as its digits. Not `.` or `..`: no URL with such a segment reaches the resource, since clients remove it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(Arc<str>);

/// Name of a consumer: 1 to 256 letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Username(Arc<str>);

const ID_EXPECTED: &str =
    "an id: 1 to 64 letters, digits, '-', '_' and '.', other than . and .., or a whole number of at least 1";
const USERNAME_EXPECTED: &str = "a user name: 1 to 256 letters, digits, '-' and '_'";

impl Id {
    /// Takes a text that is an id; `None` for one that is not.
    pub fn new(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let names_a_place = !matches!(text, "." | "..");
        ((1..=64).contains(&text.len()) && text.bytes().all(allowed) && names_a_place).then(|| Self(text.into()))
    }

    /// The id of an item without one, by its place in the list, from 1.
    pub fn numbered(place: usize) -> Self {
        Self(format!("arr_{place}").into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, not copied.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// Stands for a missing id until the loader numbers it. Not a valid id, so it equals none.
    pub(crate) fn unset() -> Self {
        Self("".into())
    }

    pub(crate) fn is_unset(&self) -> bool {
        self.0.is_empty()
    }
}

impl Username {
    /// Takes a text that is a user name; `None` for one that is not.
    pub fn new(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        ((1..=256).contains(&text.len()) && text.bytes().all(allowed)).then(|| Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, not copied.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;
        impl Visitor<'_> for IdVisitor {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(ID_EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Id, E> {
                Id::new(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Id, E> {
                match number {
                    1.. => Ok(Id(number.to_string().into())),
                    _ => Err(E::invalid_value(Unexpected::Signed(number), &self)),
                }
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Id, E> {
                match number {
                    1.. => Ok(Id(number.to_string().into())),
                    0 => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
                }
            }
        }
        deserializer.deserialize_any(IdVisitor)
    }
}

impl<'de> Deserialize<'de> for Username {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &USERNAME_EXPECTED))
    }
}

impl JsonSchema for Id {
    fn schema_name() -> Cow<'static, str> {
        "Id".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "minLength": 1, "maxLength": 64, "pattern": r"^[a-zA-Z0-9._-]+$" },
                { "type": "integer", "minimum": 1 }
            ],
            "x-expected": ID_EXPECTED
        })
    }
}

impl JsonSchema for Username {
    fn schema_name() -> Cow<'static, str> {
        "Username".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[a-zA-Z0-9_-]+$",
            "x-expected": USERNAME_EXPECTED
        })
    }
}

macro_rules! text_newtype {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    )*};
}
text_newtype!(Id, Username);
