//! Shapes of the fields of entities: checks in Kong's words, defaults, and the description that clients read.
//!
//! A shape is read from the form in which Kong's `/schemas` describe fields, which is served as it is.

use serde_json::{Map, Number, Value, json};

/// Fields with their values.
pub(crate) type Object = Map<String, Value>;

/// Type of a field's value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) kind: Type,
    one_of: Vec<Value>,
    between: Option<(f64, f64)>,
    len_min: usize,
    starts_with: Option<String>,
    is_uuid: bool,
    elements: Option<Box<Self>>,
    values: Option<Box<Self>>,
    /// Fields of a record; `None` for one whose fields are not known here.
    pub(crate) fields: Option<Vec<Field>>,
    /// Kind of the entity that a foreign key names.
    pub(crate) reference: Option<String>,
    /// True if the entity goes with the one that it refers to.
    pub(crate) goes_along: bool,
}

/// A field.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    required: bool,
    default: Option<Value>,
    /// True if a value is made where none is given.
    pub(crate) is_made: bool,
    /// True if no two entities of the kind have the same value.
    pub(crate) is_unique: bool,
}

/// Kinds of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Type {
    #[default]
    Any,
    Text,
    Flag,
    Whole,
    Number,
    List,
    Map,
    Record,
    Foreign,
}

impl Field {
    /// Reads a list of fields: `[{"name": {"type": "string"}}]`.
    pub(crate) fn list(described: &Value) -> Vec<Self> {
        let entries = described.as_array().into_iter().flatten().filter_map(Value::as_object).flatten();
        entries.map(|(name, described)| Self::read(name, described)).collect()
    }

    fn read(name: &str, described: &Value) -> Self {
        let is = |flag: &str| described[flag] == Value::Bool(true);
        Self {
            name: name.to_owned(),
            shape: Shape::read(described),
            required: is("required"),
            default: described.get("default").filter(|default| !default.is_null()).cloned(),
            is_made: is("auto"),
            is_unique: is("unique"),
        }
    }
}

impl Shape {
    fn read(described: &Value) -> Self {
        let kind = match described["type"].as_str() {
            Some("string") => Type::Text,
            Some("boolean") => Type::Flag,
            Some("integer") => Type::Whole,
            Some("number") => Type::Number,
            Some("array" | "set") => Type::List,
            Some("map") => Type::Map,
            Some("record") => Type::Record,
            Some("foreign") => Type::Foreign,
            _ => Type::Any,
        };
        let within = |name: &str| described.get(name).map(|inner| Box::new(Self::read(inner)));
        let text = |name: &str| described[name].as_str().map(str::to_owned);
        let bound = |at: usize| described["between"][at].as_f64();
        Self {
            kind,
            one_of: described["one_of"].as_array().cloned().unwrap_or_default(),
            between: bound(0).zip(bound(1)),
            len_min: described["len_min"].as_u64().unwrap_or_default() as usize,
            starts_with: text("starts_with"),
            is_uuid: described["uuid"] == Value::Bool(true),
            elements: within("elements"),
            values: within("values"),
            fields: described.get("fields").map(Field::list),
            reference: text("reference"),
            goes_along: described["on_delete"] == "cascade",
        }
    }

    /// Checks a value. Returns what is wrong with it: a text, or texts in the places of a list or a record.
    fn check(&self, value: &Value) -> Option<Value> {
        let wrong = |text: String| Some(Value::String(text));
        let expected = match self.kind {
            Type::Text if !value.is_string() => "a string",
            Type::Flag if !value.is_boolean() => "a boolean",
            Type::Whole if !is_whole(value) => "an integer",
            Type::Number if !value.is_number() => "a number",
            Type::List if !value.is_array() => "an array",
            Type::Map if !value.is_object() => "a map",
            Type::Record if !value.is_object() => "a record",
            _ => "",
        };
        if !expected.is_empty() {
            return wrong(format!("expected {expected}"));
        }
        if self.kind == Type::Foreign {
            return match value.get("id").and_then(Value::as_str) {
                Some(_) => None,
                None if value.is_object() => Some(json!({ "id": "missing primary key" })),
                None => wrong("expected a record".to_owned()),
            };
        }
        if !self.one_of.is_empty() && !self.one_of.contains(value) {
            let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return wrong(format!("expected one of: {}", self.one_of.iter().map(shown).collect::<Vec<_>>().join(", ")));
        }
        if let Some((least, most)) = self.between
            && value.as_f64().is_some_and(|number| number < least || number > most)
        {
            return wrong(format!("value should be between {least} and {most}"));
        }
        let length = match value {
            Value::String(text) => Some(text.len()),
            Value::Array(items) => Some(items.len()),
            _ => None,
        };
        if length.is_some_and(|length| length < self.len_min) {
            return wrong(format!("length must be at least {}", self.len_min));
        }
        if let (Some(start), Some(text)) = (&self.starts_with, value.as_str())
            && !text.starts_with(start.as_str())
        {
            return wrong(format!("should start with: {start}"));
        }
        if self.is_uuid && !value.as_str().is_some_and(is_uuid) {
            return wrong("expected a valid UUID".to_owned());
        }
        match (self.kind, value) {
            (Type::List, Value::Array(items)) => {
                let elements = self.elements.as_deref()?;
                let faults: Vec<Option<Value>> = items.iter().map(|item| elements.check(item)).collect();
                let last = faults.iter().rposition(Option::is_some)?;
                let faults = faults.into_iter().take(last + 1).map(|fault| fault.unwrap_or(Value::Null));
                Some(faults.collect())
            }
            (Type::Map, Value::Object(entries)) => {
                let values = self.values.as_deref()?;
                let faults = entries.iter().filter_map(|(name, value)| Some((name.clone(), values.check(value)?)));
                let faults: Object = faults.collect();
                (!faults.is_empty()).then_some(Value::Object(faults))
            }
            (Type::Record, Value::Object(record)) => {
                let faults = check(self.fields.as_ref()?, record);
                (!faults.is_empty()).then_some(Value::Object(faults))
            }
            _ => None,
        }
    }

    /// Turns texts of a form into what the field holds, where they can be read so.
    fn convert(&self, value: &mut Value) {
        if let Value::String(text) = value {
            let read = match self.kind {
                _ if text.is_empty() && self.kind != Type::Text => Some(Value::Null),
                Type::Flag => text.parse().ok().map(Value::Bool),
                Type::Whole => text.parse::<i64>().ok().map(Value::from),
                Type::Number => text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number),
                Type::List => Some(Value::Array(vec![Value::String(std::mem::take(text))])),
                _ => None,
            };
            if let Some(read) = read {
                *value = read;
            }
        }
        match (self.kind, &mut *value) {
            (Type::List, Value::Array(items)) => {
                items.iter_mut().for_each(|item| self.elements.iter().for_each(|elements| elements.convert(item)));
            }
            (Type::Map, Value::Object(entries)) => {
                entries.values_mut().for_each(|value| self.values.iter().for_each(|values| values.convert(value)));
            }
            (Type::Record, Value::Object(record)) => self.fields.iter().for_each(|fields| convert(fields, record)),
            _ => {}
        }
    }
}

/// Turns texts of a form into what the fields hold.
pub(crate) fn convert(fields: &[Field], object: &mut Object) {
    for field in fields {
        if let Some(value) = object.get_mut(&field.name) {
            field.shape.convert(value);
        }
    }
}

/// Puts defaults in the places of absent fields, and null where there is none, in the order of the fields.
pub(crate) fn complete(fields: &[Field], object: &mut Object) {
    let mut given = std::mem::take(object);
    for field in fields {
        let mut value = given.shift_remove(&field.name).unwrap_or(Value::Null);
        if value.is_null() {
            value = match &field.default {
                Some(default) => default.clone(),
                None if field.shape.kind == Type::Record && field.required && field.shape.fields.is_some() => json!({}),
                None => Value::Null,
            };
        }
        complete_value(&field.shape, &mut value);
        object.insert(field.name.clone(), value);
    }
    object.extend(given);
}

fn complete_value(shape: &Shape, value: &mut Value) {
    match value {
        Value::Object(record) if shape.kind == Type::Record => {
            if let Some(fields) = &shape.fields {
                complete(fields, record);
            }
        }
        Value::Array(items) => {
            if let Some(elements) = shape.elements.as_deref().filter(|elements| elements.kind == Type::Record) {
                items.iter_mut().for_each(|item| complete_value(elements, item));
            }
        }
        // A number without a fraction is a whole one in JSON of many clients.
        Value::Number(number) if shape.kind == Type::Whole && !number.is_i64() && !number.is_u64() => {
            if let Some(whole) = number.as_f64() {
                *value = Value::from(whole as i64);
            }
        }
        _ => {}
    }
}

/// Errors of fields, by their names.
pub(crate) fn check(fields: &[Field], object: &Object) -> Object {
    let mut faults = Object::new();
    for field in fields {
        let fault = match object.get(&field.name).filter(|value| !value.is_null()) {
            Some(value) => field.shape.check(value),
            None if field.required && !field.is_made => Some("required field missing".into()),
            None => None,
        };
        if let Some(fault) = fault {
            faults.insert(field.name.clone(), fault);
        }
    }
    let unknown = object.keys().filter(|name| fields.iter().all(|field| field.name != **name));
    faults.extend(unknown.map(|name| (name.clone(), "unknown field".into())));
    faults
}

fn is_whole(value: &Value) -> bool {
    value.is_i64()
        || value.is_u64()
        || value.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() < 1e15)
}

/// True for the text of a UUID in lower case.
pub(crate) fn is_uuid(text: &str) -> bool {
    let fits = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || matches!(byte, b'a'..=b'f' | b'A'..=b'F'),
    };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}
