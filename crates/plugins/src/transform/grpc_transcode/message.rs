//! Messages made of trees: JSON bodies, arguments, and parts of a path.

use std::fmt;

use base64::Engine;
use serde_json::{Map, Value as Tree};
use weir_config::prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use crate::transform::BASE64;

/// A value that does not fit its field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misfit {
    /// The field, with those that it is in; empty for the message itself.
    path: String,
    expected: String,
}

impl Misfit {
    fn new(expected: impl Into<String>) -> Self {
        Self { path: String::new(), expected: expected.into() }
    }

    /// The same, seen from the message around.
    fn under(mut self, name: &str) -> Self {
        if !self.path.is_empty() {
            self.path.insert(0, '.');
        }
        self.path.insert_str(0, name);
        self
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "the message" } else { &self.path };
        write!(f, "{path}: expected {}", self.expected)
    }
}

/// Makes a message of a tree. A field is found by its name in the description or by its JSON name; what has no field is
/// left out, and `null` is no value.
pub(super) fn read(of: &MessageDescriptor, tree: &Tree) -> Result<DynamicMessage, Misfit> {
    let Tree::Object(members) = tree else { return Err(Misfit::new("an object")) };
    let mut message = DynamicMessage::new(of.clone());
    if members.is_empty() {
        return Ok(message);
    }
    for field in of.fields() {
        let Some(value) = members.get(field.name()).or_else(|| members.get(field.json_name())) else { continue };
        if value.is_null() {
            continue;
        }
        if let Some(oneof) = field.containing_oneof()
            && oneof.fields().any(|other| message.has_field(&other))
        {
            return Err(Misfit::new(format!("one field of {}", oneof.name())).under(field.name()));
        }
        let value = read_field(&field, value).map_err(|misfit| misfit.under(field.name()))?;
        message.set_field(&field, value);
    }
    Ok(message)
}

fn read_field(field: &FieldDescriptor, tree: &Tree) -> Result<Value, Misfit> {
    let kind = field.kind();
    if field.is_map() {
        return read_map(&kind, tree);
    }
    if !field.is_list() {
        return read_value(&kind, tree);
    }
    let element = |(at, tree): (usize, &Tree)| read_value(&kind, tree).map_err(|misfit| misfit.under(&at.to_string()));
    match tree {
        Tree::Array(list) => Ok(Value::List(list.iter().enumerate().map(element).collect::<Result<_, _>>()?)),
        // An argument that stands once.
        one => Ok(Value::List(vec![read_value(&kind, one)?])),
    }
}

fn read_map(entry: &Kind, tree: &Tree) -> Result<Value, Misfit> {
    let (Tree::Object(members), Some(entry)) = (tree, entry.as_message()) else {
        return Err(Misfit::new("an object"));
    };
    let (key_kind, value_kind) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
    let member = |(name, tree): (&String, &Tree)| {
        let key = read_key(&key_kind, name).ok_or_else(|| Misfit::new(expected(&key_kind)).under(name))?;
        Ok((key, read_value(&value_kind, tree).map_err(|misfit| misfit.under(name))?))
    };
    Ok(Value::Map(members.iter().map(member).collect::<Result<_, _>>()?))
}

fn read_key(kind: &Kind, name: &str) -> Option<MapKey> {
    Some(match read_value(kind, &Tree::String(name.to_owned())).ok()? {
        Value::Bool(value) => MapKey::Bool(value),
        Value::I32(value) => MapKey::I32(value),
        Value::I64(value) => MapKey::I64(value),
        Value::U32(value) => MapKey::U32(value),
        Value::U64(value) => MapKey::U64(value),
        Value::String(value) => MapKey::String(value),
        _ => return None,
    })
}

fn read_value(kind: &Kind, tree: &Tree) -> Result<Value, Misfit> {
    let integer = || integer(tree);
    let value = match kind {
        Kind::Message(of) => return Ok(Value::Message(read(of, tree)?)),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => integer().and_then(|n| n.try_into().ok()).map(Value::I32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => integer().and_then(|n| n.try_into().ok()).map(Value::I64),
        Kind::Uint32 | Kind::Fixed32 => integer().and_then(|n| n.try_into().ok()).map(Value::U32),
        Kind::Uint64 | Kind::Fixed64 => integer().and_then(|n| n.try_into().ok()).map(Value::U64),
        Kind::Double => number(tree).map(Value::F64),
        // A value beyond the range would become infinite.
        Kind::Float => {
            number(tree).filter(|n| !n.is_finite() || n.abs() <= f64::from(f32::MAX)).map(|n| Value::F32(n as f32))
        }
        Kind::Bool => match tree {
            Tree::Bool(value) => Some(Value::Bool(*value)),
            Tree::String(text) => match text.as_str() {
                "true" | "1" => Some(Value::Bool(true)),
                "false" | "0" => Some(Value::Bool(false)),
                _ => None,
            },
            _ => None,
        },
        Kind::String => match tree {
            Tree::String(text) => Some(Value::String(text.clone())),
            Tree::Number(number) => Some(Value::String(number.to_string())),
            Tree::Bool(value) => Some(Value::String(value.to_string())),
            _ => None,
        },
        Kind::Bytes => tree.as_str().and_then(decode).map(|bytes| Value::Bytes(bytes.into())),
        Kind::Enum(of) => {
            let named = tree.as_str().and_then(|name| of.get_value_by_name(name)).map(|value| value.number());
            named.or_else(|| integer().and_then(|n| n.try_into().ok())).map(Value::EnumNumber)
        }
    };
    value.ok_or_else(|| Misfit::new(expected(kind)))
}

/// An integer, as a number or as a text in the forms of `pb_option`.
fn integer(tree: &Tree) -> Option<i128> {
    match tree {
        Tree::Number(number) => {
            let whole = || number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 1e19).map(|n| n as i128);
            number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)).or_else(whole)
        }
        Tree::String(text) => {
            let text = text.strip_prefix('#').unwrap_or(text);
            let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
            if digits.starts_with(['+', '-']) {
                return None;
            }
            match digits.strip_prefix("0x") {
                Some(digits) if !digits.starts_with(['+', '-']) => {
                    u64::from_str_radix(digits, 16).ok().map(|n| sign * i128::from(n))
                }
                Some(_) => None,
                None => digits.parse::<u64>().ok().map(|n| sign * i128::from(n)),
            }
        }
        _ => None,
    }
}

fn number(tree: &Tree) -> Option<f64> {
    match tree {
        Tree::Number(number) => number.as_f64(),
        Tree::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            text => text.parse::<f64>().ok().filter(|n| n.is_finite()),
        },
        _ => None,
    }
}

/// Reads base64 with either alphabet.
fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text.replace('-', "+").replace('_', "/")).ok()
}

/// Words for the values of a kind.
fn expected(kind: &Kind) -> String {
    match kind {
        Kind::Message(_) => "an object".to_owned(),
        Kind::Enum(of) => format!("a name or number of {}", of.full_name()),
        Kind::Bool => "true or false".to_owned(),
        Kind::String => "a text".to_owned(),
        Kind::Bytes => "a text in base64".to_owned(),
        Kind::Double | Kind::Float => "a number".to_owned(),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "an integer of 32 bits".to_owned(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "an integer of 64 bits".to_owned(),
        Kind::Uint32 | Kind::Fixed32 => "an integer of 32 bits, 0 or more".to_owned(),
        Kind::Uint64 | Kind::Fixed64 => "an integer of 64 bits, 0 or more".to_owned(),
    }
}

/// Steps that a path of fields may have.
const DEEPEST: usize = 32;

/// Puts a value at a path of fields, such as `book.author`, over what is there. A longer path than any field has is left
/// out.
pub(super) fn put(tree: &mut Tree, path: &str, value: Tree) {
    if path.split('.').count() > DEEPEST {
        return;
    }
    let mut place = tree;
    for step in path.split('.') {
        if !place.is_object() {
            *place = Tree::Object(Map::new());
        }
        let Tree::Object(members) = place else { return };
        place = members.entry(step.to_owned()).or_insert(Tree::Null);
    }
    *place = value;
}

/// Puts the arguments of a query or a form into a tree: a text each, a list of texts for one that is repeated.
pub(super) fn put_arguments(tree: &mut Tree, text: &[u8]) {
    let mut names = Vec::new();
    let mut arguments: Map<String, Tree> = Map::new();
    for argument in text.split(|byte| *byte == b'&').filter(|argument| !argument.is_empty()) {
        let name = decoded(crate::query::name(argument));
        let value = Tree::String(decoded(crate::query::value(argument)));
        match arguments.get_mut(&name) {
            Some(Tree::Array(values)) => values.push(value),
            Some(first) => *first = Tree::Array(vec![first.take(), value]),
            None => {
                names.push(name.clone());
                arguments.insert(name, value);
            }
        }
    }
    for name in names {
        if let Some(value) = arguments.remove(&name) {
            put(tree, &name, value);
        }
    }
}

fn decoded(encoded: &[u8]) -> String {
    let mut decoded = Vec::new();
    crate::query::decode(encoded, &mut decoded);
    String::from_utf8_lossy(&decoded).into_owned()
}
