//! Rules of a JSON Schema that a value breaks, and their texts.
//!
//! The texts are those of the JSON Schema library that APISIX uses: answers of the Admin API and of plugins that check
//! requests are compared with APISIX's. Messages for people are rendered from [`Code`](crate::Code).

use std::fmt;

use serde_json::Value;

use crate::code::Texts;
use crate::node::Step;

/// A rule of a schema that a value breaks.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The type is another one than the only possible one.
    WrongType {
        /// Name of the type in a schema: `string`, `integer`, `object`, …
        expected: String,
        /// Type of the value: `string`, `number`, `boolean`, `null`, `array`, `object`.
        found: &'static str,
    },
    /// The type is none of several.
    NoneOfTypes {
        /// Names of the types in a schema.
        expected: Vec<String>,
        /// Type of the value.
        found: &'static str,
    },
    /// A value that is none of those there are.
    NotInEnum,
    /// A value other than the only possible one.
    NotConstant,
    /// A value that fits none of the forms there are. The path may lead to the place inside it that is wrong with the form
    /// that was meant.
    NoAlternative {
        /// Number of steps of the path that lead from the value to that place.
        inside: usize,
    },
    /// A value that follows none of the schemas of which one is enough.
    NoneOfAny,
    /// A value that follows none of the schemas of which it has to follow one.
    NoneOfOne,
    /// A value that follows several of the schemas of which it has to follow one.
    SeveralOfOne {
        /// Number of the first, from 1.
        first: usize,
        /// Number of the second.
        second: usize,
    },
    /// A value that follows a schema it must not follow.
    Forbidden,
    /// A value where none may be.
    NothingAllowed,
    /// A number below the least one.
    TooSmall {
        /// The number.
        found: Amount,
        /// The least one.
        least: Amount,
        /// True when the least one is too small itself.
        exclusive: bool,
    },
    /// A number above the largest one.
    TooLarge {
        /// The number.
        found: Amount,
        /// The largest one.
        most: Amount,
        /// True when the largest one is too large itself.
        exclusive: bool,
    },
    /// A number that is no multiple of another.
    NotMultiple {
        /// The number.
        found: Amount,
        /// Number of which the value should be a multiple.
        of: Amount,
    },
    /// A text with fewer characters than the least number, or more than the largest.
    Length {
        /// Number of its characters.
        found: u64,
        /// The bound that it breaks.
        bound: u64,
    },
    /// A text that does not match a regular expression.
    Pattern {
        /// The expression.
        pattern: String,
        /// The text.
        found: String,
    },
    /// A text that is not of a known form, such as an address.
    Format {
        /// Name of the form.
        format: String,
        /// The text.
        found: String,
    },
    /// A list with fewer elements than the least number.
    TooFewItems {
        /// The least number.
        least: u64,
    },
    /// A list with more elements than the largest number.
    TooManyItems {
        /// The largest number.
        most: u64,
    },
    /// A list with elements beyond those that its schema lists.
    ItemsBeyond,
    /// A list without an element that follows a schema.
    NotContained,
    /// An element of a list that stands in it before. The path is that of the later one.
    Repeated {
        /// Place of the earlier one, from 0.
        first: usize,
    },
    /// A list with two equal elements. The path is that of the list.
    NotUnique {
        /// Numbers of the elements, from 1; `None` where unknown.
        places: Option<(usize, usize)>,
    },
    /// A mapping with fewer fields than the least number.
    TooFewFields {
        /// The least number.
        least: u64,
    },
    /// A mapping with more fields than the largest number.
    TooManyFields {
        /// The largest number.
        most: u64,
    },
    /// A field that is not known. The path is its own.
    UnknownField,
    /// A mapping with a field that is not known. The path is that of the mapping.
    FieldBeyond {
        /// Name of the field.
        name: String,
    },
    /// A mapping without a field that it needs.
    MissingField {
        /// Name of the field.
        name: String,
    },
}

/// A number in a text about a schema.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A whole number.
    Int(i128),
    /// Any other.
    Float(f64),
}

/// Text for a value that follows none of the schemas of which one is enough.
pub const NONE_OF_ANY: &str = "object matches none of the required";
/// Text for a value that follows none of the schemas of which it has to follow one.
const NONE_OF_ONE: &str = "value should match only one schema, but matches none";

impl Fault {
    /// Text of the fault of the value at `path`, with the way to its place.
    #[must_use]
    pub fn text(&self, path: &[Step]) -> String {
        let (way, text) = self.placed(path);
        way_to(way) + &text
    }

    /// The text for a resource, whose schema APISIX has written in its own way: labels follow a pattern, and some
    /// fields have alternatives.
    #[must_use]
    pub fn text_in_resource(&self, path: &[Step]) -> String {
        let (way, text) = match self {
            Self::NoAlternative { inside } => {
                let way = path.get(..path.len().saturating_sub(*inside)).unwrap_or_default();
                // The forms do not show which keyword is `anyOf` and which is `oneOf`.
                let text = match way.last().and_then(name) {
                    Some(field) if field == "nodes" || field == "id" || field.ends_with("_id") => NONE_OF_ANY,
                    _ => NONE_OF_ONE,
                };
                (way, text.to_owned())
            }
            // Nodes are either written or discovered.
            Self::MissingField { name } if name == "nodes" => (path, NONE_OF_ONE.to_owned()),
            _ => self.placed(path),
        };
        way_in_resource(way) + &text
    }

    /// The place of the fault of the value at `path`, and the text.
    fn placed<'p>(&self, path: &'p [Step]) -> (&'p [Step], String) {
        let parent = || path.split_last().map_or((None, path), |(last, way)| (Some(last), way));
        match self {
            Self::Repeated { first } => {
                let (last, way) = parent();
                let later = if let Some(Step::Index(index)) = last { *index } else { 0 };
                (way, equal_items(first + 1, later + 1))
            }
            Self::UnknownField => {
                let (last, way) = parent();
                (way, field_beyond(last.and_then(name).unwrap_or_default()))
            }
            _ => (path, self.to_string()),
        }
    }
}

/// The text without the place.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongType { expected, found } => {
                write!(f, "wrong type: expected {expected}, got {}", lua_type(found))
            }
            Self::NoneOfTypes { expected, found } => {
                write!(f, "wrong type: expected one of {}, got {}", expected.join(", "), lua_type(found))
            }
            Self::NotInEnum => f.write_str("matches none of the enum values"),
            Self::NotConstant => f.write_str("failed to check const value"),
            Self::NoneOfAny => f.write_str(NONE_OF_ANY),
            Self::NoAlternative { .. } | Self::NoneOfOne => f.write_str(NONE_OF_ONE),
            Self::SeveralOfOne { first, second } => {
                write!(f, "value should match only one schema, but matches both schemas {first} and {second}")
            }
            Self::Forbidden => f.write_str("value wasn't supposed to match schema"),
            Self::NothingAllowed => f.write_str("expect false always"),
            Self::TooSmall { found, least, exclusive: false } => write!(f, "expected {found} to be at least {least}"),
            Self::TooSmall { found, least, exclusive: true } => {
                write!(f, "expected {found} to be greater than {least}")
            }
            Self::TooLarge { found, most, exclusive: false } => write!(f, "expected {found} to be at most {most}"),
            Self::TooLarge { found, most, exclusive: true } => {
                write!(f, "expected {found} to be smaller than {most}")
            }
            Self::NotMultiple { found, of } => write!(f, "expected {found} to be a multiple of {of}"),
            Self::Length { found, bound } if found < bound => {
                write!(f, "string too short, expected at least {bound}, got {found}")
            }
            Self::Length { found, bound } => write!(f, "string too long, expected at most {bound}, got {found}"),
            Self::Pattern { pattern, found } => {
                let quoted = |text: &str| Value::from(text);
                write!(f, "failed to match pattern {} with {}", quoted(pattern), quoted(found))
            }
            Self::Format { format, found } => {
                let kind = if format == "hostname" { "" } else { " address" };
                write!(f, "expect valid {format}{kind} but got: {found}")
            }
            Self::TooFewItems { least } => write!(f, "expect array to have at least {least} items"),
            Self::TooManyItems { most } => write!(f, "expect array to have at most {most} items"),
            Self::ItemsBeyond => f.write_str("found unexpected extra items in array"),
            Self::NotContained => f.write_str("failed to check contains"),
            Self::Repeated { .. } | Self::NotUnique { places: None } => f.write_str("expected unique items"),
            Self::NotUnique { places: Some((first, second)) } => f.write_str(&equal_items(*first, *second)),
            Self::TooFewFields { least } => write!(f, "expect object to have at least {least} properties"),
            Self::TooManyFields { most } => write!(f, "expect object to have at most {most} properties"),
            Self::UnknownField => f.write_str("additional properties forbidden"),
            Self::FieldBeyond { name } => f.write_str(&field_beyond(name)),
            Self::MissingField { name } => write!(f, "property \"{name}\" is required"),
        }
    }
}

fn equal_items(first: usize, second: usize) -> String {
    format!("expected unique items but items {first} and {second} are equal")
}

fn field_beyond(name: &str) -> String {
    format!("additional properties forbidden, found {name}")
}

/// The way to a place, as it stands before what is wrong there.
#[must_use]
pub fn way_to(path: &[Step]) -> String {
    path.iter().map(step_to).collect()
}

/// The path of a fault in a resource.
#[must_use]
pub fn way_in_resource(path: &[Step]) -> String {
    let parents = std::iter::once(None).chain(path.iter().map(name));
    let steps = path.iter().zip(parents).map(|(step, parent)| match step {
        Step::Name(label) if parent == Some("labels") => format!("failed to validate {label} (matching \".*\"): "),
        step => step_to(step),
    });
    steps.collect()
}

fn step_to(step: &Step) -> String {
    match step {
        Step::Name(field) => format!("property \"{field}\" validation failed: "),
        Step::Index(index) => format!("failed to validate item {}: ", index + 1),
    }
}

fn name(step: &Step) -> Option<&str> {
    match step {
        Step::Name(name) => Some(name),
        Step::Index(_) => None,
    }
}

/// The library is written in Lua, which has one type for lists and mappings, and one for null that is none of them.
fn lua_type(schema_type: &'static str) -> &'static str {
    match schema_type {
        "array" | "object" => "table",
        "null" => "userdata",
        other => other,
    }
}

/// Type of a JSON value in texts of the library.
#[must_use]
pub fn lua_type_of(value: &Value) -> &'static str {
    lua_type(type_of(value))
}

/// Type of a JSON value, as in a schema.
#[must_use]
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
        }
    }
}

impl From<f64> for Amount {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<&serde_json::Number> for Amount {
    fn from(number: &serde_json::Number) -> Self {
        match number.as_i128() {
            Some(whole) => Self::Int(whole),
            None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
        }
    }
}

impl Texts for Fault {
    fn visit(&mut self, _: &'static str, each: &mut dyn FnMut(&'static str, &mut String)) {
        match self {
            Self::Pattern { found, .. } | Self::Format { found, .. } => each("found", found),
            Self::FieldBeyond { name } => each("name", name),
            _ => {}
        }
    }
}
