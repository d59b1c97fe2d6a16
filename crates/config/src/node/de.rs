//! serde over a positioned tree: errors carry the path, the line and the column of the value that does not fit.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::{self, Display};

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer,
    MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{Key, Kind, Mark, Node, Path, quoted};
use crate::Diagnostic;
use crate::code::Code;
use crate::diagnostic::{Hint, nearest};

/// Reads a tree into a type.
pub(super) fn read<T: DeserializeOwned>(node: &Node) -> Result<T, Diagnostic> {
    T::deserialize(At { node, path: Path::Root }).map_err(|error| *error.0)
}

/// Name by which a type requests the tree itself.
const NODE: &str = "$weir::Node";

/// Name by which a plugin configuration requests its tree and the contents of its `_meta`.
pub(crate) const PLUGIN_CONF: &str = "$weir::PluginConf";

thread_local! {
    /// Passes a tree from the deserializer to [`Node`]'s `Deserialize`: serde's data model has no place for positions.
    /// Filled and emptied within one call.
    static HANDOVER: Cell<Option<Node>> = const { Cell::new(None) };

    /// Passes a code, with its text, from a type that cannot be read to the [`Misfit`] of that error: serde's errors
    /// are made of texts. Filled and emptied within one call.
    static CODE: Cell<Option<(Code, String)>> = const { Cell::new(None) };
}

/// Error of a type that cannot be read for this reason: read from a [`Node`] it keeps its code, from anything else its
/// text.
pub(crate) fn coded<E: de::Error>(code: Code) -> E {
    let text = code.to_string();
    CODE.set(Some((code, text.clone())));
    let error = E::custom(text);
    CODE.set(None);
    error
}

/// A tree and how it was reached.
#[derive(Clone, Copy)]
struct At<'a> {
    node: &'a Node,
    path: Path<'a>,
}

/// A value that does not fit, without a position until the deserializer of the value adds it.
#[derive(Debug)]
struct Misfit(Box<Diagnostic>);

impl Misfit {
    fn new(code: Code) -> Self {
        Self(Box::new(Diagnostic::error(UNPLACED, "", code)))
    }

    fn unlike(expected: impl Into<Cow<'static, str>>, found: String) -> Self {
        Self::new(Code::Unlike { expected: expected.into(), found })
    }

    fn at(mut self, mark: Mark, path: &Path<'_>) -> Self {
        if self.0.mark == UNPLACED {
            self.0.mark = mark;
            self.0.path = path.text();
        }
        self
    }
}

/// A mark that is neither a position nor "unknown".
const UNPLACED: Mark = Mark { line: 0, column: u32::MAX };

impl Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: Display>(message: T) -> Self {
        let reason = message.to_string();
        match CODE.take() {
            Some((code, text)) if text == reason => Self::new(code),
            _ => Self::new(Code::Unreadable { reason }),
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected_text(expected);
        let hint = hint_for(found, &expected);
        let mut error = Self::unlike(expected, found_text(found));
        error.0.hint = hint;
        error
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::unlike(expected_text(expected), found_text(found))
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        let mut error = Self::unlike(format!("one of {}", expected.join(", ")), quoted(found));
        error.0.hint = Hint::nearest(nearest(found, expected.iter().copied()));
        error
    }

    fn unknown_field(found: &str, expected: &'static [&'static str]) -> Self {
        let mut error = Self::new(Code::UnknownField);
        error.0.hint = Some(field_hint(found, expected.iter().copied(), expected.iter().copied()));
        error
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Code::MissingField { field: field.to_owned() })
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new(Code::RepeatedField { field })
    }
}

/// Hint for an unknown field: the field of `absent` that was probably meant, else all `known` fields.
pub(crate) fn field_hint<'a>(
    found: &str,
    absent: impl IntoIterator<Item = &'a str> + Clone,
    known: impl IntoIterator<Item = &'a str>,
) -> Hint {
    /// Names that people write, with those that are meant.
    #[rustfmt::skip]
    const OTHER_NAMES: &[(&str, &str)] = &[
        ("health_checker", "checks"), ("health_check", "checks"), ("health_checks", "checks"),
        ("healthcheck", "checks"), ("healthchecks", "checks"), ("read", "timeout"), ("connect", "timeout"),
        ("path", "uri"), ("paths", "uris"), ("description", "desc"), ("targets", "nodes"), ("servers", "nodes"),
        ("algorithm", "type"), ("load_balancer", "type"), ("websocket", "enable_websocket"),
    ];
    let meant = OTHER_NAMES.iter().find(|(other, _)| *other == found).map(|(_, meant)| *meant);
    if let Some(name) = meant.and_then(|meant| absent.clone().into_iter().find(|absent| *absent == meant)) {
        return Hint::DidYouMean(name.to_owned());
    }
    if let Some(name) = nearest(found, absent) {
        return Hint::DidYouMean(name.to_owned());
    }
    let known: Vec<&str> = known.into_iter().collect();
    match known.len() {
        0 => "no fields are known here".into(),
        _ => format!("known fields: {}", known.join(", ")).into(),
    }
}

/// Hint for the usual reason why a value of one type stands where another is wanted.
pub(crate) fn hint_for(found: Unexpected<'_>, expected: &str) -> Option<Hint> {
    match found {
        Unexpected::Signed(_) | Unexpected::Unsigned(_) | Unexpected::Float(_) | Unexpected::Bool(_)
            if expected.contains("text") =>
        {
            Some("put it in quotes".into())
        }
        Unexpected::Str(text) if expected.contains("true or false") => {
            let word = text.to_ascii_lowercase();
            match word.as_str() {
                "yes" | "no" | "on" | "off" | "y" | "n" => Some("YAML 1.2 knows only true and false".into()),
                "true" | "false" => Some("write it without quotes".into()),
                _ => None,
            }
        }
        Unexpected::Str(text) if expected.contains("number") || expected.contains("integer") => {
            (text.parse::<f64>().is_ok()).then(|| "write it without quotes".into())
        }
        _ => None,
    }
}

/// serde's words for what was expected, in ours.
fn expected_text(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    let range = |min: i128, max: i128| format!("an integer from {min} to {max}");
    match text.as_str() {
        "u8" => range(0, u8::MAX.into()),
        "u16" => range(0, u16::MAX.into()),
        "u32" => range(0, u32::MAX.into()),
        "u64" | "usize" => "an integer of at least 0".into(),
        "i8" => range(i8::MIN.into(), i8::MAX.into()),
        "i16" => range(i16::MIN.into(), i16::MAX.into()),
        "i32" => range(i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => "an integer".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" | "str" => "a text".into(),
        "a sequence" => "a list".into(),
        "a map" => "a mapping".into(),
        _ if text.starts_with("struct ") => "a mapping".into(),
        _ if text.starts_with("enum ") => "the name of a choice".into(),
        _ => text,
    }
}

fn found_text(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(b) => b.to_string(),
        Unexpected::Unsigned(n) => n.to_string(),
        Unexpected::Signed(n) => n.to_string(),
        Unexpected::Float(n) => n.to_string(),
        Unexpected::Str(text) => quoted(text),
        Unexpected::Unit | Unexpected::Option => "nothing (null)".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a mapping".into(),
        other => other.to_string(),
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        /// A float without a fraction is as good as the integer: JSON writers make 1e6 of 1000000.
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
            match self.node.kind {
                Kind::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                    visitor.visit_i64(number as i64).map_err(|error: Misfit| error.at(self.node.mark, &self.path))
                }
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for At<'_> {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let result = match &self.node.kind {
            Kind::Null => visitor.visit_unit(),
            Kind::Bool(b) => visitor.visit_bool(*b),
            Kind::Int(i) => visitor.visit_i64(*i),
            Kind::Float(f) => visitor.visit_f64(*f),
            Kind::Str(s) => visitor.visit_str(s),
            Kind::Seq(items) => visitor.visit_seq(Items { at: self, items: items.iter().enumerate() }),
            Kind::Map(entries) => visitor.visit_map(Entries { at: self, entries: entries.iter(), value: None }),
        };
        result.map_err(|error: Misfit| error.at(self.node.mark, &self.path))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Misfit> {
        if name == NODE {
            HANDOVER.set(Some(self.node.clone()));
            return visitor.visit_unit();
        }
        visitor.visit_newtype_struct(self).map_err(|error: Misfit| error.at(self.node.mark, &self.path))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        if name == PLUGIN_CONF {
            return match &self.node.kind {
                Kind::Map(_) | Kind::Null => visitor.visit_seq(ConfAndMeta { at: self, step: 0 }),
                _ => Err(Misfit::unlike("a mapping", self.node.describe())),
            }
            .map_err(|error| error.at(self.node.mark, &self.path));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let result = match &self.node.kind {
            Kind::Str(text) => visitor.visit_enum(IntoDeserializer::<Misfit>::into_deserializer(text.as_str())),
            Kind::Map(entries) if entries.len() == 1 => {
                let (key, node) = &entries[0];
                visitor.visit_enum(Variant { key, at: At { node, path: Path::Name(&self.path, &key.text) } })
            }
            _ => Err(Misfit::unlike("the name of a choice", self.node.describe())),
        };
        result.map_err(|error| error.at(self.node.mark, &self.path))
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    forward_to_deserialize_any! {
        bool f32 f64 char str string bytes byte_buf unit unit_struct seq tuple map struct identifier ignored_any
    }
}

struct Items<'a> {
    at: At<'a>,
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let path = Path::Index(&self.at.path, index);
        seed.deserialize(At { node, path }).map(Some).map_err(|error| error.at(node.mark, &path))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Entries<'a> {
    at: At<'a>,
    entries: std::slice::Iter<'a, (Key, Node)>,
    value: Option<&'a (Key, Node)>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.value = Some(entry);
        let key = &entry.0;
        let text: StrDeserializer<'_, Misfit> = <&str>::into_deserializer(&key.text);
        seed.deserialize(text).map(Some).map_err(|error| error.at(key.mark, &Path::Name(&self.at.path, &key.text)))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Misfit> {
        let Some((key, node)) = self.value.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        let path = Path::Name(&self.at.path, &key.text);
        seed.deserialize(At { node, path }).map_err(|error| error.at(node.mark, &path))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

struct Variant<'a> {
    key: &'a Key,
    at: At<'a>,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Misfit;
    type Variant = At<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, At<'a>), Misfit> {
        let text: StrDeserializer<'_, Misfit> = <&str>::into_deserializer(&self.key.text);
        let variant = seed.deserialize(text).map_err(|error| error.at(self.key.mark, &self.at.path))?;
        Ok((variant, self.at))
    }
}

impl<'de> VariantAccess<'de> for At<'_> {
    type Error = Misfit;

    fn unit_variant(self) -> Result<(), Misfit> {
        if self.node.is_null() {
            return Ok(());
        }
        Err(Misfit::unlike("nothing", self.node.describe()).at(self.node.mark, &self.path))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Misfit> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_map(visitor)
    }
}

/// The two values that a plugin configuration requests.
struct ConfAndMeta<'a> {
    at: At<'a>,
    step: u8,
}

impl<'de> SeqAccess<'de> for ConfAndMeta<'_> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        self.step += 1;
        if self.step == 1 {
            return seed.deserialize(self.at).map(Some);
        }
        let path = Path::Name(&self.at.path, "_meta");
        let node = self.at.node.get("_meta").filter(|node| !node.is_null());
        node.map(|node| seed.deserialize(At { node, path })).transpose()
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;
        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
                Ok(HANDOVER.take().unwrap_or(Node::new(Kind::Null)))
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
                // Any other format: the value, without positions.
                serde_json::Value::deserialize(deserializer).map(|value| Node::from(&value))
            }
        }
        deserializer.deserialize_newtype_struct(NODE, NodeVisitor)
    }
}
