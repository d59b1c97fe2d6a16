use crate::value::{Scratch, Source, Value};
use crate::variable::{Variable, VariableError};

/// A text with variables, such as `$remote_addr/${arg_id}`.
///
/// A name is made of letters, digits and `_` and does not begin with a digit; between braces everything up to `}` is
/// the name, blanks around it left aside, so `${arg_page-size}` can be written too. The names behind `$post_arg.` may be
/// several with points between them, as in `$post_arg.user.id`. `${http_count ?? 10}` has a default,
/// which stands for a variable that is not set. A `$` that no name follows is a plain `$`, and so is one behind a
/// backslash, which stays: `\$host` is itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Box<[Part]>,
}

/// A part of a rendered text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Literal text of the template.
    Literal(&'a [u8]),
    /// Text matched by a group of a regular expression.
    Capture(&'a [u8]),
    /// Variable and its value.
    Value(&'a Variable, &'a [u8]),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(Box<[u8]>),
    /// Variable and its default.
    Variable(Variable, Option<Box<[u8]>>),
    Capture(u8),
}

impl Template {
    /// Compiles a text in which `$1` is plain text.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        parse(text, Syntax::Apisix, "", &mut refuse)
    }

    /// Compiles the replacement for a match of a regular expression, in which `$0`, `$1` or `${10}` are its groups
    /// and `$$` is a plain `$`; any other `$` without a name, as in ``$` ``, is an error, as in APISIX. An unknown
    /// variable is empty, as in [`Template::parse_lenient`]. The result is rendered with
    /// [`Template::render_with_captures`].
    pub fn parse_replacement(text: &str) -> Result<Template, TemplateError> {
        parse(text, Syntax::Replacement, "", &mut refuse_unsupported)
    }

    /// Compiles a text by nginx's rules: there are no defaults, and a backslash has no effect on a `$` after it.
    pub fn parse_as_nginx(text: &str) -> Result<Template, TemplateError> {
        parse(text, Syntax::Nginx, "", &mut refuse)
    }

    /// Compiles a text in which an unknown variable is empty, or has its default, as in APISIX. [`Template::unknown`]
    /// returns warnings about such variables. With `captures`, the text may refer to groups of a regular expression,
    /// as in [`Template::parse_replacement`].
    pub fn parse_lenient(text: &str, captures: bool) -> Result<Template, TemplateError> {
        let syntax = if captures { Syntax::Captures } else { Syntax::Apisix };
        parse(text, syntax, "", &mut refuse_unsupported)
    }

    /// Compiles the line of a log by nginx's rules, in which `none` replaces unknown variables; returns the errors
    /// about them as well.
    pub fn parse_log(text: &str, none: &str) -> (Template, Vec<TemplateError>) {
        let mut missing = Vec::new();
        let parsed = parse(text, Syntax::Nginx, none, &mut |error| {
            missing.extend((!error.reason.is_doubtful()).then_some(error));
            Ok(())
        });
        // Such a text has no other errors.
        (parsed.unwrap_or_else(|_| Template { parts: Box::default() }), missing)
    }

    /// Variables that [`Template::parse_lenient`] treats as empty in a text, and those that are probably mistakes.
    pub fn unknown(text: &str) -> Vec<TemplateError> {
        let mut unknown = Vec::new();
        // Syntax errors are reported elsewhere.
        let _ = parse(text, Syntax::Captures, "", &mut |error| {
            unknown.extend((!error.reason.is_unsupported()).then_some(error));
            Ok(())
        });
        unknown
    }

    /// Compiles a text as [`Template::parse_lenient`], but removes the backslash before an escaped `$`.
    pub fn parse_unescaped(text: &str) -> Result<Template, TemplateError> {
        parse(text, Syntax::Unescaped, "", &mut refuse_unsupported)
    }

    /// Appends the text with every variable replaced by its value; unset variables and captures are empty.
    pub fn render(&self, source: &dyn Source, out: &mut Vec<u8>) {
        self.render_with_captures(source, &[], out);
    }

    /// As [`Template::render`], with `captures[n]` for `$n`; 0 is the whole match. A missing capture is empty.
    pub fn render_with_captures(&self, source: &dyn Source, captures: &[&[u8]], out: &mut Vec<u8>) {
        self.pieces(source, captures, |piece| {
            let (Piece::Literal(text) | Piece::Capture(text) | Piece::Value(_, text)) = piece;
            out.extend_from_slice(text);
        });
    }

    /// Passes the text to `take` piece by piece, for callers that treat text from a request differently from text of
    /// the configuration. An unset variable is an empty piece.
    pub fn pieces(&self, source: &dyn Source, captures: &[&[u8]], mut take: impl FnMut(Piece<'_>)) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => take(Piece::Literal(text)),
                Part::Capture(index) => {
                    take(Piece::Capture(captures.get(usize::from(*index)).copied().unwrap_or_default()));
                }
                Part::Variable(variable, default) => {
                    let default = || Value::Bytes(default.as_deref().unwrap_or_default());
                    let value = source.variable(variable).unwrap_or_else(default);
                    take(Piece::Value(variable, value.print(&mut Scratch::new())));
                }
            }
        }
    }

    /// The whole text, if it has nothing to replace.
    pub fn literal(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(b""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Variables in the order of the text, with repetitions.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.parts.iter().filter_map(|part| match part {
            Part::Variable(variable, _) => Some(variable),
            _ => None,
        })
    }

    /// True if any of the variables has a value. A variable with a default always has one.
    pub fn has_any(&self, source: &dyn Source) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Variable(variable, default) => default.is_some() || source.variable(variable).is_some(),
            _ => false,
        })
    }

    /// Position in a text of the first of these ASCII characters outside of `${…}`.
    pub fn find_outside(text: &str, characters: &[u8]) -> Option<usize> {
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let braces = text.get(at..).filter(|rest| rest.starts_with("${")).and_then(|rest| rest.find('}'));
            match braces {
                Some(length) => at += length,
                None if characters.contains(byte) => return Some(at),
                None => {}
            }
            at += 1;
        }
        None
    }
}

/// Error for a text that is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {}: {reason}", position + 1)]
pub struct TemplateError {
    /// Offset in bytes of the invalid `$`.
    pub position: usize,
    /// Error of the name.
    pub reason: VariableError,
}

fn refuse(error: TemplateError) -> Result<(), TemplateError> {
    if error.reason.is_doubtful() { Ok(()) } else { Err(error) }
}

fn refuse_unsupported(error: TemplateError) -> Result<(), TemplateError> {
    if error.reason.is_unsupported() { Err(error) } else { Ok(()) }
}

/// Parses a text. `unknown` decides about names that are no variable or probably mistakes; `none` replaces a name
/// that is no variable and has no default.
fn parse(
    text: &str,
    syntax: Syntax,
    none: &str,
    unknown: &mut dyn FnMut(TemplateError) -> Result<(), TemplateError>,
) -> Result<Template, TemplateError> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut position = 0;
    while let Some(dollar) = memchr::memchr(b'$', &text.as_bytes()[position..]).map(|offset| position + offset) {
        literal.push_str(&text[position..dollar]);
        let (length, reference) = Reference::read(&text[dollar + 1..], syntax, text[..dollar].ends_with('\\'));
        position = dollar + 1 + length;
        match reference {
            Reference::Bare if syntax == Syntax::Replacement => {
                return Err(TemplateError { position: dollar, reason: VariableError::Bare });
            }
            Reference::Escaped if syntax == Syntax::Unescaped => {
                literal.pop();
                literal.push('$');
            }
            Reference::Bare | Reference::Escaped | Reference::Plain => literal.push('$'),
            Reference::Capture(index) => {
                flush(&mut literal, &mut parts);
                parts.push(Part::Capture(index));
            }
            Reference::Name(name, default) => match Variable::parse(name) {
                Ok(variable) => {
                    if let Some(reason) = VariableError::doubt(name) {
                        unknown(TemplateError { position: dollar, reason })?;
                    }
                    flush(&mut literal, &mut parts);
                    parts.push(Part::Variable(variable, default.map(|text| text.as_bytes().into())));
                }
                Err(reason) => {
                    unknown(TemplateError { position: dollar, reason })?;
                    literal.push_str(default.unwrap_or(none));
                }
            },
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

fn name_length(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
}

/// Length of the names, each behind a point, that a text begins with.
fn path_length(text: &str) -> usize {
    let mut length = 0;
    while let Some(rest) = text[length..].strip_prefix('.') {
        match name_length(rest) {
            0 => break,
            name => length += 1 + name,
        }
    }
    length
}

/// Whose rules a text is read by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Apisix,
    /// As `Apisix`, but without the backslash of an escaped character.
    Unescaped,
    /// APISIX's syntax with captures of a regular expression.
    Captures,
    /// As `Captures`, but every `$` must have a meaning.
    Replacement,
    Nginx,
}

/// Meaning of a `$`.
enum Reference<'a> {
    /// A plain `$`, written `$$`.
    Plain,
    /// A plain `$` after a backslash.
    Escaped,
    /// A plain `$` without a name after it.
    Bare,
    Capture(u8),
    /// Variable and its default.
    Name(&'a str, Option<&'a str>),
}

impl<'a> Reference<'a> {
    /// Parses the text after a `$`: its length and its meaning. `escaped` is true if a backslash precedes the `$`.
    fn read(rest: &'a str, syntax: Syntax, escaped: bool) -> (usize, Self) {
        let captures = matches!(syntax, Syntax::Captures | Syntax::Replacement);
        let first = rest.as_bytes().first().copied().unwrap_or_default();
        if captures && first.is_ascii_digit() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            // No expression has so many groups; a group beyond the last one is empty.
            return (digits, Self::Capture(rest[..digits].parse().unwrap_or(u8::MAX)));
        }
        let braced = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map(|(name, _)| name);
        if captures && let Some(index) = braced.and_then(|name| name.parse().ok()) {
            return (braced.map_or(0, str::len) + 2, Self::Capture(index));
        }
        if escaped && syntax != Syntax::Nginx {
            return (0, Self::Escaped);
        }
        if captures && first == b'$' {
            return (1, Self::Plain);
        }
        if let Some(text) = braced.filter(|text| !text.is_empty()) {
            if syntax == Syntax::Nginx {
                return (text.len() + 2, Self::Name(text, None));
            }
            let mut parts = text.split("??").map(str::trim);
            let name = parts.next().unwrap_or_default();
            return (text.len() + 2, Self::Name(name, parts.next().filter(|default| !default.is_empty())));
        }
        let mut length = name_length(rest);
        if syntax != Syntax::Nginx && rest[..length] == *"post_arg" {
            length += path_length(&rest[length..]);
        }
        if length == 0 || first.is_ascii_digit() {
            return (0, Self::Bare);
        }
        (length, Self::Name(&rest[..length], None))
    }
}
