use crate::value::{Scratch, Source, Value};
use crate::variable::{Variable, VariableError};

/// A text with variables in it, such as `$remote_addr/${arg_id}`.
///
/// A name is made of letters, digits and `_` and does not begin with a digit; between braces everything up to `}` is
/// the name, so `${arg_page-size}` can be written too. A `$` that no name follows is a plain `$`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Box<[Part]>,
}

/// A part of a rendered text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// It stands in the template.
    Literal(&'a [u8]),
    /// What a group of a regular expression matched.
    Capture(&'a [u8]),
    /// The value of this variable.
    Value(&'a Variable, &'a [u8]),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(Box<[u8]>),
    Variable(Variable),
    Capture(u8),
}

impl Template {
    /// Compiles a text in which `$1` is plain text.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        parse(text, false)
    }

    /// Compiles a replacement text, in which `$0` to `$9` and `${10}` mean the captures of a regular expression and `$$`
    /// a plain `$`. To be rendered with [`Template::render_with_captures`].
    pub fn parse_with_captures(text: &str) -> Result<Template, TemplateError> {
        parse(text, true)
    }

    /// Appends the text with every variable replaced by its value; an unset variable is empty, and so is a capture.
    pub fn render(&self, source: &dyn Source, out: &mut Vec<u8>) {
        self.render_with_captures(source, &[], out);
    }

    /// Like [`Template::render`], with `captures[n]` for `$n`: the whole match stands at 0. A capture that is not
    /// there is empty.
    pub fn render_with_captures(&self, source: &dyn Source, captures: &[&[u8]], out: &mut Vec<u8>) {
        self.pieces(source, captures, |piece| {
            let (Piece::Literal(text) | Piece::Capture(text) | Piece::Value(_, text)) = piece;
            out.extend_from_slice(text);
        });
    }

    /// Hands out the text piece by piece, for whoever has to treat what comes from a request in another way than what
    /// comes from the configuration. An unset variable is an empty piece.
    pub fn pieces(&self, source: &dyn Source, captures: &[&[u8]], mut take: impl FnMut(Piece<'_>)) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => take(Piece::Literal(text)),
                Part::Capture(index) => {
                    take(Piece::Capture(captures.get(usize::from(*index)).copied().unwrap_or_default()));
                }
                Part::Variable(variable) => {
                    let value = source.variable(variable).unwrap_or(Value::Bytes(b""));
                    take(Piece::Value(variable, value.print(&mut Scratch::new())));
                }
            }
        }
    }

    /// The whole text, when there is nothing in it to replace.
    pub fn literal(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(b""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// The variables in the order of the text, repeated where the text repeats them.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.parts.iter().filter_map(|part| match part {
            Part::Variable(variable) => Some(variable),
            _ => None,
        })
    }
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {}: {reason}", position + 1)]
pub struct TemplateError {
    /// Offset in bytes of the `$` at fault.
    pub position: usize,
    /// What is wrong with the name.
    pub reason: VariableError,
}

fn parse(text: &str, captures: bool) -> Result<Template, TemplateError> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut position = 0;
    while let Some(dollar) = memchr::memchr(b'$', &text.as_bytes()[position..]).map(|offset| position + offset) {
        literal.push_str(&text[position..dollar]);
        let rest = &text[dollar + 1..];
        let (length, part) = reference(rest, captures).map_err(|reason| TemplateError { position: dollar, reason })?;
        position = dollar + 1 + length;
        match part {
            Some(part) => {
                flush(&mut literal, &mut parts);
                parts.push(part);
            }
            None => literal.push('$'),
        }
    }
    literal.push_str(&text[position..]);
    flush(&mut literal, &mut parts);
    Ok(Template { parts: parts.into() })
}

fn flush(literal: &mut String, parts: &mut Vec<Part>) {
    if !literal.is_empty() {
        parts.push(Part::Literal(std::mem::take(literal).into_bytes().into()));
    }
}

/// What stands behind a `$`: its length and its meaning, which is none for a plain `$`.
fn reference(rest: &str, captures: bool) -> Result<(usize, Option<Part>), VariableError> {
    let first = rest.as_bytes().first().copied().unwrap_or_default();
    if captures && first == b'$' {
        return Ok((1, None));
    }
    if captures && first.is_ascii_digit() {
        return Ok((1, Some(Part::Capture(first - b'0'))));
    }
    if first == b'{' {
        return match rest[1..].split_once('}') {
            None | Some(("", _)) => Ok((0, None)),
            Some((name, _)) => match name.parse::<u8>() {
                Ok(index) if captures => Ok((name.len() + 2, Some(Part::Capture(index)))),
                _ => Ok((name.len() + 2, Some(Part::Variable(Variable::parse(name)?)))),
            },
        };
    }
    let length = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    if length == 0 || first.is_ascii_digit() {
        return Ok((0, None));
    }
    Ok((length, Some(Part::Variable(Variable::parse(&rest[..length])?))))
}
