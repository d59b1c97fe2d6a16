//! Templates in values: texts with `$(…)`, of which look-ups and what connects them are read without Lua, and everything else
//! by it.
//!
//! | in `$(…)` | meaning |
//! |---|---|
//! | `headers.x`, `headers["x"]` | the first field of this name; `_` stands for `-` |
//! | `query_params.x` | the first query argument of this name, decoded |
//! | `uri_captures.x`, `uri_captures[1]` | a group of the regular expression of the route's path |
//! | `"text"`, `nil` | constants |
//! | `or`, `and`, `not`, `==`, `~=`, `(…)` | as in Lua |
//! | `x:sub(1, 7)` | a part of a text, counted from 1, from the end where negative |

mod parse;

use std::cell::Cell;

use weir_expr::Value;
use weir_plugin::{Flow, Invalid, RequestCx};
use weir_script::{EvalError, Expression};
use weir_wire::name::FieldName;

use super::captures;

/// A text with look-ups.
#[derive(Debug)]
pub(super) struct Template(Box<[Part]>);

#[derive(Debug)]
enum Part {
    Text(Box<[u8]>),
    Lookup(Lookup),
    /// An expression that only Lua reads.
    Lua(Expression),
}

thread_local! {
    /// True once an expression in Lua has failed, for the request whose templates are read.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
}

/// The end of a hook that has read templates: a request is refused whose templates have failed.
pub(super) fn outcome(cx: &RequestCx<'_>) -> Flow {
    if HAS_FAILED.take() { cx.fail(500, "template failed") } else { Flow::Continue }
}

/// Bytes up to the parenthesis that closes the one before `text`.
fn closed(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.bytes().position(|byte| {
        depth += i32::from(byte == b'(') - i32::from(byte == b')');
        depth == 0
    })
}

/// Reads an expression in Lua: the expression, and its length with the parenthesis that closes it.
fn in_lua(text: &str) -> Result<(Expression, usize), String> {
    let end = closed(text).ok_or("expected )")?;
    Expression::check(text.get(..end).unwrap_or_default()).map(|expression| (expression, end + 1))
}

/// An expression between `$(` and `)`.
#[derive(Debug, PartialEq)]
pub(super) enum Lookup {
    Header(FieldName),
    Argument(Box<[u8]>),
    /// A named group of a path.
    Group(Box<str>),
    /// A numbered group of a path; 0 is the whole match.
    NumberedGroup(usize),
    Text(Box<[u8]>),
    Nil,
    Or(Box<[Lookup; 2]>),
    And(Box<[Lookup; 2]>),
    Not(Box<Lookup>),
    /// Compared; `true` for equal.
    Compare(Box<[Lookup; 2]>, bool),
    /// A part of a text, from and to positions as Lua counts them.
    Sub(Box<Lookup>, i64, i64),
}

/// A value of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found<'a> {
    Nil,
    Boolean(bool),
    Text(&'a [u8]),
}

impl Found<'_> {
    const fn is_true(self) -> bool {
        !matches!(self, Self::Nil | Self::Boolean(false))
    }
}

impl Template {
    /// Reads a text that stands at `path`.
    pub(super) fn parse(path: &str, text: &str) -> Result<Self, Invalid> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find("$(") {
            let (before, from) = rest.split_at(at);
            if !before.is_empty() {
                parts.push(Part::Text(before.as_bytes().into()));
            }
            let inner = from.get(2..).unwrap_or_default();
            let (part, length) = match parse::expression(inner) {
                Ok((lookup, length)) => (Part::Lookup(lookup), length),
                Err(_) => {
                    let fault = |reason: String| Invalid::new(path, format!("{reason} in {text:?}"));
                    let (expression, length) = in_lua(inner).map_err(fault)?;
                    (Part::Lua(expression), length)
                }
            };
            parts.push(part);
            rest = inner.get(length..).unwrap_or_default();
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.as_bytes().into()));
        }
        Ok(Self(parts.into()))
    }

    /// The text, where there is nothing to look up.
    pub(super) fn literal(&self) -> Option<&[u8]> {
        match &*self.0 {
            [] => Some(b""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text for a request. A value that is not there is empty.
    pub(super) fn render(&self, cx: &RequestCx<'_>, out: &mut Vec<u8>) {
        self.render_with(cx, out, |value, out| out.extend_from_slice(value));
    }

    /// The same, with `put` for values.
    pub(super) fn render_with(&self, cx: &RequestCx<'_>, out: &mut Vec<u8>, put: impl Fn(&[u8], &mut Vec<u8>)) {
        for part in &self.0 {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Lookup(lookup) => match lookup.find(cx) {
                    Found::Nil => {}
                    Found::Boolean(flag) => out.extend_from_slice(if flag { b"true" } else { b"false" }),
                    Found::Text(text) => put(text, out),
                },
                Part::Lua(expression) => match expression.eval(cx, |table, name| look(cx, table, name)) {
                    Ok(value) => value.iter().for_each(|value| put(value, out)),
                    Err(EvalError) => HAS_FAILED.set(true),
                },
            }
        }
    }
}

/// A value of a table that expressions in Lua look into.
fn look(cx: &RequestCx<'_>, table: weir_script::Lookup, name: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(name).ok()?;
    let found = match table {
        weir_script::Lookup::Headers => return Some(cx.request().field_str(&text.replace('_', "-"))?.to_vec()),
        weir_script::Lookup::QueryParams => Lookup::Argument(name.into()),
        weir_script::Lookup::UriCaptures => match text.parse() {
            Ok(number) => Lookup::NumberedGroup(number),
            Err(_) => Lookup::Group(text.into()),
        },
    };
    match found.find(cx) {
        Found::Nil => None,
        Found::Boolean(flag) => Some(if flag { b"true".to_vec() } else { b"false".to_vec() }),
        Found::Text(text) => Some(text.to_vec()),
    }
}

impl Lookup {
    fn find<'a>(&'a self, cx: &'a RequestCx<'_>) -> Found<'a> {
        match self {
            Self::Header(name) => cx.request().field(name).map_or(Found::Nil, Found::Text),
            Self::Argument(name) => match cx.request().argument(name) {
                Some(Value::Bytes(text)) => Found::Text(text),
                Some(_) => Found::Boolean(true),
                None => Found::Nil,
            },
            Self::Group(name) => captures::named(cx, name).map_or(Found::Nil, Found::Text),
            Self::NumberedGroup(number) => captures::numbered(cx, *number).map_or(Found::Nil, Found::Text),
            Self::Text(text) => Found::Text(text),
            Self::Nil => Found::Nil,
            Self::Or(pair) => match pair[0].find(cx) {
                found if found.is_true() => found,
                _ => pair[1].find(cx),
            },
            Self::And(pair) => match pair[0].find(cx) {
                found if found.is_true() => pair[1].find(cx),
                found => found,
            },
            Self::Not(inner) => Found::Boolean(!inner.find(cx).is_true()),
            Self::Compare(pair, equal) => Found::Boolean((pair[0].find(cx) == pair[1].find(cx)) == *equal),
            Self::Sub(inner, from, to) => match inner.find(cx) {
                Found::Text(text) => Found::Text(part(text, *from, *to)),
                _ => Found::Nil,
            },
        }
    }
}

/// The part of a text between two positions of Lua's `string.sub`.
fn part(text: &[u8], from: i64, to: i64) -> &[u8] {
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { length.saturating_add(at).saturating_add(1) } else { at };
    let (from, to) = (place(from).max(1), place(to).min(length));
    match (usize::try_from(from - 1), usize::try_from(to)) {
        (Ok(from), Ok(to)) if from <= to => text.get(from..to).unwrap_or_default(),
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::{Template, part};

    #[test]
    fn parts_are_those_of_lua() {
        for (from, to, expected) in
            [(1, 3, "abc"), (2, -1, "bcdef"), (-2, -1, "ef"), (0, 2, "ab"), (4, 2, ""), (3, 99, "cdef")]
        {
            assert_eq!(part(b"abcdef", from, to), expected.as_bytes(), "{from} {to}");
        }
        assert_eq!(part(b"", 1, 5), b"");
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for text in ["$(headers.x", "$(headers.x ..)", "$()", "$(a b)", "$(return)"] {
            let fault = Template::parse("add.headers[0]", text).expect_err(text);
            assert_eq!(fault.path, "add.headers[0]", "{text}");
        }
        for text in [
            "plain",
            "a $ b",
            "$(headers.x)/$(query_params['y z'])",
            "$((headers.authorization ~= nil and headers.authorization:sub(1, 10) ~= 'Bearer sb_' and headers.authorization) or headers.apikey)",
            "$(uri_captures[1] or uri_captures.name or \"none\")",
            "$(shared.x)",
            "$(headers.x .. ('y'):upper())",
        ] {
            assert!(Template::parse("x", text).is_ok(), "{text}");
        }
    }
}
