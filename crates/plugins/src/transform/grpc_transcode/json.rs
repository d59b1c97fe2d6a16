//! Messages as JSON.

use std::io::Write;

use base64::Engine;
use weir_config::prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Syntax, Value};

use crate::transform::BASE64;

/// Form of values: `pb_option`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) enums: Enums,
    pub(super) integers: Integers,
    pub(super) defaults: Defaults,
}

/// Values of enumerations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Enums {
    #[default]
    Names,
    Numbers,
}

/// Integers of 64 bits that do not fit into 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Integers {
    #[default]
    Numbers,
    /// `"#123"`.
    Texts,
    /// `"#0x7b"`.
    Hexadecimal,
}

/// Fields that are not in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Defaults {
    /// Written with their defaults in messages of proto3, but for those that know whether they are set.
    #[default]
    Proto3,
    /// Written with their defaults in all messages, but for messages in them and fields of a `oneof`.
    All,
    /// Left out.
    None,
}

/// The text is longer than it may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Writes a message.
pub(super) fn write(message: &DynamicMessage, form: Form, most: usize, out: &mut Vec<u8>) -> Result<(), TooLong> {
    Writer { form, most, out }.message(message)
}

/// Writes a field of a message; `null` where the message has no such field.
pub(super) fn write_field(
    message: &DynamicMessage,
    name: &str,
    form: Form,
    most: usize,
    out: &mut Vec<u8>,
) -> Result<(), TooLong> {
    let field = message.descriptor().get_field_by_name(name);
    let is_value = |field: &FieldDescriptor| message.has_field(field) || !field.supports_presence();
    match field.filter(is_value) {
        Some(field) => Writer { form, most, out }.field(&field, &message.get_field(&field)),
        None => {
            out.extend_from_slice(b"null");
            Ok(())
        }
    }
}

/// Writes a text with its quotes.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    // A text is always JSON, and memory takes all of it.
    let _ = serde_json::to_writer(out, text);
}

struct Writer<'a> {
    form: Form,
    most: usize,
    out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn message(&mut self, message: &DynamicMessage) -> Result<(), TooLong> {
        self.out.push(b'{');
        let is_proto3 = message.descriptor().parent_file().syntax() == Syntax::Proto3;
        let mut begun = false;
        for field in message.descriptor().fields() {
            let is_set = message.has_field(&field);
            if !is_set && !self.shows_default(&field, is_proto3) {
                continue;
            }
            if begun {
                self.out.push(b',');
            }
            begun = true;
            write_text(field.name(), self.out);
            self.out.push(b':');
            self.field(&field, &message.get_field(&field))?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn shows_default(&self, field: &FieldDescriptor, is_proto3: bool) -> bool {
        match self.form.defaults {
            Defaults::None => false,
            Defaults::Proto3 => is_proto3 && !field.supports_presence(),
            Defaults::All => {
                let is_single_message = matches!(field.kind(), Kind::Message(_)) && !field.is_list() && !field.is_map();
                !is_single_message && field.containing_oneof().is_none()
            }
        }
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Value) -> Result<(), TooLong> {
        let kind = field.kind();
        match value {
            Value::List(list) => {
                self.out.push(b'[');
                for (at, value) in list.iter().enumerate() {
                    if at > 0 {
                        self.out.push(b',');
                    }
                    self.value(&kind, value)?;
                }
                self.out.push(b']');
                Ok(())
            }
            Value::Map(map) => {
                let kind = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
                let mut members: Vec<_> = map.iter().collect();
                members.sort_unstable_by_key(|(key, _)| *key);
                self.out.push(b'{');
                for (at, (key, value)) in members.into_iter().enumerate() {
                    if at > 0 {
                        self.out.push(b',');
                    }
                    match key {
                        MapKey::String(text) => write_text(text, self.out),
                        MapKey::Bool(value) => self.print(format_args!("\"{value}\"")),
                        MapKey::I32(value) => self.print(format_args!("\"{value}\"")),
                        MapKey::I64(value) => self.print(format_args!("\"{value}\"")),
                        MapKey::U32(value) => self.print(format_args!("\"{value}\"")),
                        MapKey::U64(value) => self.print(format_args!("\"{value}\"")),
                    }
                    self.out.push(b':');
                    if let Some(kind) = &kind {
                        self.value(kind, value)?;
                    }
                }
                self.out.push(b'}');
                Ok(())
            }
            value => self.value(&kind, value),
        }
    }

    fn value(&mut self, kind: &Kind, value: &Value) -> Result<(), TooLong> {
        match value {
            Value::Bool(value) => self.print(format_args!("{value}")),
            Value::I32(value) => self.print(format_args!("{value}")),
            Value::U32(value) => self.print(format_args!("{value}")),
            Value::I64(value) => self.integer((*value).into()),
            Value::U64(value) => self.integer((*value).into()),
            // With as many digits as the type needs.
            Value::F32(value) if value.is_finite() => drop(serde_json::to_writer(&mut *self.out, value)),
            Value::F64(value) if value.is_finite() => drop(serde_json::to_writer(&mut *self.out, value)),
            Value::F32(value) => self.no_number((*value).into()),
            Value::F64(value) => self.no_number(*value),
            Value::String(text) => write_text(text, self.out),
            Value::Bytes(bytes) => {
                self.out.push(b'"');
                self.out.extend_from_slice(BASE64.encode(bytes).as_bytes());
                self.out.push(b'"');
            }
            Value::EnumNumber(number) => {
                let named = kind.as_enum().and_then(|of| of.get_value(*number));
                match named.filter(|_| self.form.enums == Enums::Names) {
                    Some(value) => write_text(value.name(), self.out),
                    None => self.print(format_args!("{number}")),
                }
            }
            Value::Message(message) => return self.message(message),
            // A list and a map are no elements of one.
            Value::List(_) | Value::Map(_) => self.out.extend_from_slice(b"null"),
        }
        if self.out.len() > self.most { Err(TooLong) } else { Ok(()) }
    }

    fn integer(&mut self, value: i128) {
        let fits = i128::from(i32::MIN) <= value && value <= i128::from(u32::MAX);
        match self.form.integers {
            Integers::Texts if !fits => self.print(format_args!("\"#{value}\"")),
            Integers::Hexadecimal if !fits => {
                let sign = if value < 0 { "-" } else { "" };
                self.print(format_args!("\"#{sign}{:#x}\"", value.unsigned_abs()));
            }
            _ => self.print(format_args!("{value}")),
        }
    }

    /// JSON has no numbers that are infinite or none.
    fn no_number(&mut self, value: f64) {
        self.out.extend_from_slice(match value {
            value if value.is_nan() => b"\"NaN\"",
            value if value > 0.0 => b"\"Infinity\"",
            _ => b"\"-Infinity\"",
        });
    }

    fn print(&mut self, text: std::fmt::Arguments<'_>) {
        // Memory takes all of it.
        let _ = self.out.write_fmt(text);
    }
}
