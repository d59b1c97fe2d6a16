//! Values of templates: those of Lua, as far as bodies have them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value as Json;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Nil,
    /// `null` of JSON, which is not `nil` and prints nothing.
    Null,
    Boolean(bool),
    Number(f64),
    Text(Rc<[u8]>),
    Table(Rc<Table>),
}

/// A list, counted from 1, and values by name.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) list: Vec<Value>,
    pub(super) map: BTreeMap<Rc<[u8]>, Value>,
    /// True for a list of JSON, which stays a list where it is empty.
    pub(super) is_list: bool,
}

impl Value {
    pub(super) fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Text(text.as_ref().into())
    }

    pub(super) fn from_json(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(flag) => Self::Boolean(*flag),
            Json::Number(number) => Self::Number(number.as_f64().unwrap_or(f64::NAN)),
            Json::String(text) => Self::text(text),
            Json::Array(items) => {
                let list = items.iter().map(Self::from_json).collect();
                Self::Table(Rc::new(Table { list, is_list: true, ..Table::default() }))
            }
            Json::Object(fields) => {
                let map = fields.iter().map(|(name, value)| (name.as_bytes().into(), Self::from_json(value)));
                Self::Table(Rc::new(Table { map: map.collect(), ..Table::default() }))
            }
        }
    }

    /// The value as JSON; text that is no UTF-8 loses what is none.
    pub(super) fn to_json(&self) -> Json {
        match self {
            Self::Nil | Self::Null => Json::Null,
            Self::Boolean(flag) => Json::Bool(*flag),
            Self::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => Json::from(*number as i64),
            Self::Number(number) => Json::from(*number),
            Self::Text(text) => Json::String(String::from_utf8_lossy(text).into_owned()),
            Self::Table(table) if table.map.is_empty() && (table.is_list || !table.list.is_empty()) => {
                table.list.iter().map(Self::to_json).collect()
            }
            Self::Table(table) => {
                let numbered = (1..).zip(&table.list).map(|(at, value)| (at.to_string(), value.to_json()));
                let named = table.map.iter();
                let named = named.map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.to_json()));
                Json::Object(numbered.chain(named).collect())
            }
        }
    }

    /// True for everything but `nil` and `false`.
    pub(super) const fn is_true(&self) -> bool {
        !matches!(self, Self::Nil | Self::Boolean(false))
    }

    /// Name of the type, for messages and for `type()`.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Null => "userdata",
            Self::Boolean(_) => "boolean",
            Self::Number(_) => "number",
            Self::Text(_) => "string",
            Self::Table(_) => "table",
        }
    }

    /// The value behind a key; `None` where nothing can be looked up in this value.
    pub(super) fn get(&self, key: &Self) -> Option<Self> {
        let table = match self {
            Self::Table(table) => table,
            // Of a text Lua looks up functions, none of which is a value here.
            Self::Text(_) => return Some(Self::Nil),
            _ => return None,
        };
        Some(match key {
            Self::Number(number) if *number >= 1.0 && number.fract() == 0.0 => {
                table.list.get(*number as usize - 1).cloned().unwrap_or(Self::Nil)
            }
            Self::Text(name) => table.map.get(name).cloned().unwrap_or(Self::Nil),
            _ => Self::Nil,
        })
    }

    /// The number, also of a text that is one.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => parse_number(text),
            _ => None,
        }
    }

    /// The text of a text or a number, which Lua joins and changes.
    pub(super) fn as_text(&self) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Number(number) => Some(Cow::Owned(shown(*number).into_bytes())),
            _ => None,
        }
    }

    /// The text that a template prints: nothing for `nil` and `null`.
    pub(super) fn printed(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Nil | Self::Null => Cow::Borrowed(b""),
            Self::Boolean(flag) => Cow::Borrowed(if *flag { b"true" } else { b"false" }),
            Self::Table(_) => Cow::Borrowed(b"table"),
            other => other.as_text().unwrap_or_default(),
        }
    }

    pub(super) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nil, Self::Nil) | (Self::Null, Self::Null) => true,
            (Self::Boolean(a), Self::Boolean(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Table(a), Self::Table(b)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// A text as Lua reads numbers: decimal or hexadecimal, with blanks around it.
pub(super) fn parse_number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(digits, 16).ok().map(|number| number as f64);
    }
    // Texts that Rust reads as numbers and Lua does not: `inf`, `nan`.
    let is_number = text.bytes().any(|b| b.is_ascii_digit());
    let has_letters = text.bytes().any(|b| b.is_ascii_alphabetic() && !matches!(b, b'e' | b'E'));
    if is_number && !has_letters { text.parse().ok() } else { None }
}

/// A number as Lua prints it: 14 digits (`%.14g`).
pub(super) fn shown(number: f64) -> String {
    const DIGITS: usize = 14;
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{number:.*e}", DIGITS - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..DIGITS as i32).contains(&exponent) {
        let decimals = (DIGITS as i32 - 1 - exponent).max(0) as usize;
        return trimmed(&format!("{number:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Value, parse_number, shown};

    #[test]
    fn numbers_are_printed_as_lua_prints_them() {
        for (number, expected) in [
            (30.0, "30"),
            (-0.5, "-0.5"),
            (1.0 / 3.0, "0.33333333333333"),
            (46_704_314.0, "46704314"),
            (1e14, "1e+14"),
            (123_456_789_012_345.0, "1.2345678901234e+14"),
            (12_345_678_901_234.0, "12345678901234"),
            (0.000_01, "1e-05"),
            (0.1 + 0.2, "0.3"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(shown(number), expected);
        }
        for (text, expected) in
            [("20", Some(20.0)), (" 1e3 ", Some(1000.0)), ("0x10", Some(16.0)), ("inf", None), ("1a", None), ("", None)]
        {
            assert_eq!(parse_number(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn json_goes_both_ways() {
        let json = json!({ "a": [1, 2.5, "x", null, true, {}, []], "b": { "c": -3 } });
        assert_eq!(Value::from_json(&json).to_json(), json);
    }
}
