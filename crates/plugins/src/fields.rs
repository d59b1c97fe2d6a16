//! Header fields in configurations: names with values that may hold variables.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use weir_expr::{Source, Template};
use weir_plugin::{Answer, Invalid};
use weir_wire::name::{FieldName, Known};

/// Names with values, in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldsConf(pub(crate) Vec<(String, FieldText)>);

/// A value: a text or a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldText(pub(crate) String);

/// Names with one value or a list of values each, in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldListsConf(Vec<(String, FieldTexts)>);

/// The values of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldTexts(Vec<FieldText>);

/// A field, ready for requests.
#[derive(Debug)]
pub(crate) struct FieldTemplate {
    pub(crate) name: FieldName,
    pub(crate) value: Template,
}

impl FieldsConf {
    /// Compiles all of them; `captures` is whether `$1` means what a regular expression captured.
    pub(crate) fn compile(&self, path: &str, captures: bool) -> Result<Vec<FieldTemplate>, Invalid> {
        let fields = self.0.iter().map(|(name, value)| FieldTemplate::new(path, name, &value.0, captures));
        fields.collect()
    }
}

impl FieldListsConf {
    /// As [`FieldsConf::compile`]: the values of each field.
    pub(crate) fn compile(&self, path: &str, captures: bool) -> Result<Vec<Vec<FieldTemplate>>, Invalid> {
        let field = |(name, values): &(String, FieldTexts)| {
            values.0.iter().map(|value| FieldTemplate::new(path, name, &value.0, captures)).collect()
        };
        self.0.iter().map(field).collect()
    }
}

impl FieldTemplate {
    pub(crate) fn new(path: &str, name: &str, value: &str, captures: bool) -> Result<Self, Invalid> {
        let at = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let parsed = Template::parse_lenient(value, captures);
        let name = editable(&at, name)?;
        let value = parsed.map_err(|error| Invalid::new(at.as_str(), error.to_string()))?;
        let literal = value.literal().unwrap_or_default();
        if !literal.iter().all(|b| weir_wire::is_field_byte(*b)) {
            return Err(Invalid::new(at, "a field's value may not hold line ends or other control characters"));
        }
        Ok(Self { name, value })
    }
}

/// The fields of an answer that a plugin makes.
#[derive(Debug, Default)]
pub(crate) struct AnswerFields(Box<[FieldTemplate]>);

/// Ends a value in scratch memory.
const END: u8 = b'\n';

impl FromIterator<FieldTemplate> for AnswerFields {
    fn from_iter<I: IntoIterator<Item = FieldTemplate>>(fields: I) -> Self {
        let mut kept: Vec<FieldTemplate> = Vec::new();
        for field in fields {
            // A field that a message has once (RFC 9110 section 5.3): the last value counts, as in nginx.
            if is_single(&field.name) {
                kept.retain(|other| !other.name.text().eq_ignore_ascii_case(field.name.text()));
            }
            kept.push(field);
        }
        Self(kept.into())
    }
}

/// True if an answer may have this field once only: its value is no list.
fn is_single(name: &FieldName) -> bool {
    const SINGLE: [&[u8]; 8] =
        [b"age", b"content-type", b"date", b"etag", b"expires", b"last-modified", b"location", b"server"];
    SINGLE.iter().any(|single| name.text().eq_ignore_ascii_case(single))
}

impl AnswerFields {
    pub(crate) fn compile(conf: Option<&FieldsConf>, path: &str) -> Result<Self, Invalid> {
        conf.map_or(Ok(Vec::new()), |fields| fields.compile(path, false)).map(Self::from_iter)
    }

    /// True if one of them has this name.
    pub(crate) fn has(&self, id: Known) -> bool {
        self.0.iter().any(|field| field.name.id() == id)
    }

    /// Appends all values to `room`; returns the offset behind them. To be done before the answer begins, so that no variable
    /// means the answer itself.
    pub(crate) fn render(&self, source: &dyn Source, room: &mut Vec<u8>) -> usize {
        for field in &self.0 {
            let start = room.len();
            field.value.render(source, room);
            // No value of a field holds a line end (RFC 9110 section 5.5); a decoded path may.
            for byte in room.iter_mut().skip(start).filter(|byte| **byte == END) {
                *byte = b' ';
            }
            room.push(END);
        }
        room.len()
    }

    /// Adds all fields, with the values that [`AnswerFields::render`] made.
    pub(crate) fn add_to<'a>(&self, mut answer: Answer<'a>, values: &[u8]) -> Answer<'a> {
        for (field, value) in self.0.iter().zip(values.split(|b| *b == END)) {
            answer = answer.named(&field.name, value);
        }
        answer
    }
}

/// A field name that a plugin may touch. What frames a message or belongs to one connection is the gateway's own
/// (RFC 9110 section 7.6.1): a configured value could only break it.
pub(crate) fn editable(path: &str, name: &str) -> Result<FieldName, Invalid> {
    let Some(name) = FieldName::new(name) else {
        return Err(Invalid::new(path, format!("expected the name of a field, found {name:?}")));
    };
    if name.is_framing() {
        let text = String::from_utf8_lossy(name.text());
        let reason = format!("{text} is decided by the gateway: it frames the message or its connection");
        return Err(Invalid::new(path, reason));
    }
    Ok(name)
}

impl<'de> Deserialize<'de> for FieldText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = FieldText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<FieldText, E> {
                Ok(FieldText(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, n: i64) -> Result<FieldText, E> {
                Ok(FieldText(n.to_string()))
            }

            fn visit_u64<E: Error>(self, n: u64) -> Result<FieldText, E> {
                Ok(FieldText(n.to_string()))
            }

            fn visit_f64<E: Error>(self, n: f64) -> Result<FieldText, E> {
                Ok(FieldText(n.to_string()))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

impl JsonSchema for FieldText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FieldText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number"] })
    }
}

impl<'de> Deserialize<'de> for FieldTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum OneOrMore {
            One(FieldText),
            More(Vec<FieldText>),
        }
        Ok(Self(match OneOrMore::deserialize(deserializer)? {
            OneOrMore::One(text) => vec![text],
            OneOrMore::More(texts) => texts,
        }))
    }
}

/// The entries of a mapping, in their order.
fn entries<'de, D: Deserializer<'de>, V: Deserialize<'de>>(deserializer: D) -> Result<Vec<(String, V)>, D::Error> {
    struct EntriesVisitor<V>(PhantomData<V>);
    impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
        type Value = Vec<(String, V)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mapping from names to texts or numbers")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut fields = Vec::new();
            while let Some(field) = map.next_entry()? {
                fields.push(field);
            }
            Ok(fields)
        }
    }
    deserializer.deserialize_map(EntriesVisitor(PhantomData))
}

impl<'de> Deserialize<'de> for FieldsConf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        entries(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for FieldListsConf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        entries(deserializer).map(Self)
    }
}

impl JsonSchema for FieldsConf {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Fields".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "additionalProperties": generator.subschema_for::<FieldText>() })
    }
}

impl JsonSchema for FieldListsConf {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FieldLists".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<FieldText>();
        let several = json_schema!({ "type": "array", "minItems": 1, "items": one });
        json_schema!({ "type": "object", "additionalProperties": { "anyOf": [one, several] } })
    }
}

#[cfg(test)]
mod tests {
    use super::{FieldText, FieldsConf};

    #[test]
    fn what_frames_a_message_is_not_for_plugins() {
        for (name, value, ok) in [
            ("X-A", "b", true),
            ("X-A", "$remote_addr", true),
            ("x_a", "", true),
            ("Cache-Control", "no-store", true),
            ("content-length", "0", false),
            ("Transfer-Encoding", "chunked", false),
            ("Connection", "close", false),
            ("Upgrade", "x", false),
            ("a b", "c", false),
            ("", "c", false),
            ("X-A", "b\r\nc: d", false),
            ("X-A", "$ssl_protocol", false),
        ] {
            let conf = FieldsConf(vec![(name.into(), FieldText(value.into()))]);
            assert_eq!(conf.compile("headers", false).is_ok(), ok, "{name}: {value}");
        }
    }
}
