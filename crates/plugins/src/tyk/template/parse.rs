//! Texts as templates.

use serde_json::Value;

use super::functions::Function;
use super::{Base, Command, Node, Operand, Pipe};

/// A word of an action.
#[derive(Clone, Debug, PartialEq)]
enum Word {
    /// `.` and `.a.b`, without the dots.
    Fields(Vec<String>),
    /// `$x` and `$x.a`: the name without its sign, and the fields.
    Variable(String, Vec<String>),
    Name(String),
    Literal(Value),
    /// One of `( ) | , = :=`.
    Sign(&'static str),
    /// `)` that fields follow.
    Closed(Vec<String>),
}

/// Most actions within each other.
const MOST_DEPTH: usize = 64;

/// Reads a template.
pub(super) fn template(text: &str) -> Result<Box<[Node]>, String> {
    let pieces = pieces(text)?;
    let mut reader = Reader { pieces: &pieces, position: 0, variables: vec![String::new()], depth: 0 };
    let (nodes, end) = reader.nodes()?;
    match end {
        Some((line, word)) => Err(format!("{line}: {{{{{word}}}}} without a beginning")),
        None => Ok(nodes),
    }
}

/// A text, or an action, with its line.
enum Piece {
    Text(String),
    Action(usize, Vec<Word>),
}

/// Takes a template apart into texts and actions.
fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let (mut rest, mut line, mut trims) = (text, 1, false);
    while let Some(at) = rest.find("{{") {
        let (before, from) = rest.split_at(at);
        line += before.matches('\n').count();
        let inside = from.get(2..).unwrap_or_default();
        let is_comment = inside.trim_start_matches("- ").trim_start().starts_with("/*");
        let end = match is_comment {
            true => inside.find("*/").and_then(|close| Some(close + inside.get(close..)?.find("}}")?)),
            false => end_of_action(inside),
        };
        let end = end.ok_or_else(|| format!("{line}: an action has no end"))?;
        let (action, after) = inside.split_at(end);
        let mut literal = if trims { before.trim_start() } else { before };
        let mut inner = action;
        if let Some(trimmed) = inner.strip_prefix("- ") {
            literal = literal.trim_end();
            inner = trimmed;
        }
        trims = inner.ends_with(" -");
        inner = inner.strip_suffix(" -").unwrap_or(inner);
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal.to_owned()));
        }
        if !is_comment {
            let words = words(inner).map_err(|error| format!("{line}: {error}"))?;
            pieces.push(Piece::Action(line, words));
        }
        line += action.matches('\n').count();
        rest = after.get(2..).unwrap_or_default();
    }
    let literal = if trims { rest.trim_start() } else { rest };
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal.to_owned()));
    }
    Ok(pieces)
}

/// The end of an action, which is not within a text.
fn end_of_action(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, letter) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some('"') if letter == '\\' => escaped = true,
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if matches!(letter, '"' | '`') => quote = Some(letter),
            None if text.get(at..)?.starts_with("}}") => return Some(at),
            None => {}
        }
    }
    None
}

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Fields at the beginning of a text: `.a.b`; the text behind them.
fn fields(mut text: &str) -> (Vec<String>, &str) {
    let mut fields = Vec::new();
    while let Some(after) = text.strip_prefix('.') {
        let end = after.find(|letter| !is_name(letter)).unwrap_or(after.len());
        if end == 0 {
            break;
        }
        let (name, rest) = after.split_at(end);
        fields.push(name.to_owned());
        text = rest;
    }
    (fields, text)
}

/// The words of an action.
fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let after = rest.get(first.len_utf8()..).unwrap_or_default();
        let (word, next) = match first {
            '.' => {
                let (fields, next) = fields(rest);
                (Word::Fields(fields), if next.len() == rest.len() { after } else { next })
            }
            '$' => {
                let end = after.find(|letter| !is_name(letter)).unwrap_or(after.len());
                let (name, behind) = after.split_at(end);
                let (fields, next) = fields(behind);
                (Word::Variable(name.to_owned(), fields), next)
            }
            '"' => quoted(rest)?,
            '`' => {
                let end = after.find('`').ok_or("a text has no end")?;
                let (text, next) = after.split_at(end);
                (Word::Literal(text.into()), next.get(1..).unwrap_or_default())
            }
            '(' => (Word::Sign("("), after),
            ')' => {
                let (fields, next) = fields(after);
                (if fields.is_empty() { Word::Sign(")") } else { Word::Closed(fields) }, next)
            }
            '|' => (Word::Sign("|"), after),
            ',' => (Word::Sign(","), after),
            ':' if after.starts_with('=') => (Word::Sign(":="), after.get(1..).unwrap_or_default()),
            '=' => (Word::Sign("="), after),
            '-' | '+' | '0'..='9' => {
                let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '+');
                let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
                let (number, next) = rest.split_at(end);
                let value = serde_json::from_str::<Value>(number.trim_start_matches('+'));
                (Word::Literal(value.map_err(|_| format!("'{number}' is no number"))?), next)
            }
            letter if is_name(letter) => {
                let end = rest.find(|letter| !is_name(letter)).unwrap_or(rest.len());
                let (name, next) = rest.split_at(end);
                let word = match name {
                    "true" => Word::Literal(true.into()),
                    "false" => Word::Literal(false.into()),
                    "nil" => Word::Literal(Value::Null),
                    name => Word::Name(name.to_owned()),
                };
                (word, next)
            }
            other => return Err(format!("'{other}' is not expected")),
        };
        words.push(word);
        rest = next.trim_start();
    }
    Ok(words)
}

/// A text in quotes at the beginning, whose escapes are those of JSON.
fn quoted(text: &str) -> Result<(Word, &str), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    match values.next() {
        Some(Ok(value)) => {
            let end = values.byte_offset();
            Ok((Word::Literal(value.into()), text.get(end..).unwrap_or_default()))
        }
        _ => Err("a text has no end, or an escape that is not supported".to_owned()),
    }
}

struct Reader<'p> {
    pieces: &'p [Piece],
    position: usize,
    /// Variables in scope, without their signs.
    variables: Vec<String>,
    depth: usize,
}

/// `end` or `else` with its line and the words behind it.
type End = Option<(usize, String)>;

impl Reader<'_> {
    /// Reads up to an `end` or `else` of an outer action, which is left in place.
    fn nodes(&mut self) -> Result<(Box<[Node]>, End), String> {
        let mut nodes = Vec::new();
        let scope = self.variables.len();
        let pieces = self.pieces;
        while let Some(piece) = pieces.get(self.position) {
            let (line, words) = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text.as_str().into()));
                    self.position += 1;
                    continue;
                }
                Piece::Action(line, words) => (*line, words.as_slice()),
            };
            if let Some(Word::Name(name)) = words.first()
                && matches!(name.as_str(), "end" | "else")
            {
                self.variables.truncate(scope);
                return Ok((nodes.into(), Some((line, name.clone()))));
            }
            self.position += 1;
            nodes.push(self.action(line, words).map_err(
                |error| match error.starts_with(|c: char| c.is_ascii_digit()) {
                    true => error,
                    false => format!("{line}: {error}"),
                },
            )?);
        }
        self.variables.truncate(scope);
        Ok((nodes.into(), None))
    }

    fn action(&mut self, line: usize, words: &[Word]) -> Result<Node, String> {
        if let Some((Word::Name(name), rest)) = words.split_first() {
            match name.as_str() {
                "if" | "with" | "range" => return self.block(line, name, rest),
                "template" | "define" | "block" | "break" | "continue" => {
                    return Err(format!("{name} is not supported"));
                }
                _ => {}
            }
        }
        if let [Word::Variable(name, fields), Word::Sign(sign @ (":=" | "=")), rest @ ..] = words
            && fields.is_empty()
        {
            let is_new = *sign == ":=";
            let pipe = self.pipe(rest)?;
            if is_new {
                self.variables.push(name.clone());
            } else {
                self.known(name)?;
            }
            return Ok(Node::Set { name: name.as_str().into(), is_new, pipe });
        }
        Ok(Node::Print(self.pipe(words)?))
    }

    /// Reads `if`, `with` and `range` up to their end.
    fn block(&mut self, line: usize, name: &str, words: &[Word]) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(format!("more than {MOST_DEPTH} actions within each other"));
        }
        let scope = self.variables.len();
        let (key, value, words) = match words {
            [Word::Variable(key, _), Word::Sign(","), Word::Variable(value, _), Word::Sign(":="), rest @ ..] => {
                (Some(key), Some(value), rest)
            }
            [Word::Variable(value, _), Word::Sign(":="), rest @ ..] => (None, Some(value), rest),
            rest => (None, None, rest),
        };
        let pipe = self.pipe(words)?;
        self.variables.extend(key.into_iter().chain(value).cloned());
        let (body, end) = self.nodes()?;
        let has_no_end = || format!("{line}: {name} has no {{{{end}}}}");
        let (_, word) = end.ok_or_else(has_no_end)?;
        let mut other: Box<[Node]> = Box::default();
        if word == "else" {
            other = self.otherwise()?.ok_or_else(has_no_end)?;
        } else {
            self.position += 1;
        }
        self.variables.truncate(scope);
        self.depth -= 1;
        let boxed = |name: Option<&String>| name.map(|name| name.as_str().into());
        Ok(match name {
            "range" => Node::Range { key: boxed(key), value: boxed(value), pipe, body, other },
            // `if $x := …` is as `with`, whose dot is another.
            "with" => Node::With { pipe, body, other },
            _ if value.is_some() => return Err("a variable of if is not supported: declare it in front".to_owned()),
            _ => Node::If { pipe, body, other },
        })
    }

    /// Reads what stands behind `else`, up to the end; `None` without one.
    fn otherwise(&mut self) -> Result<Option<Box<[Node]>>, String> {
        let Some(Piece::Action(line, words)) = self.pieces.get(self.position) else { return Ok(None) };
        self.position += 1;
        if let [_, Word::Name(name), rest @ ..] = words.as_slice() {
            // The end of `else if` is the end of the whole.
            return Ok(Some([self.block(*line, name, rest)?].into()));
        }
        let (other, end) = self.nodes()?;
        self.position += 1;
        Ok(end.filter(|(_, word)| word == "end").map(|_| other))
    }

    fn known(&self, name: &str) -> Result<(), String> {
        match self.variables.iter().any(|known| known == name) {
            true => Ok(()),
            false => Err(format!("the variable ${name} is not declared")),
        }
    }

    fn pipe(&mut self, words: &[Word]) -> Result<Pipe, String> {
        let mut rest = words;
        let pipe = self.pipe_until(&mut rest, false)?.0;
        match rest.first() {
            None => Ok(pipe),
            Some(_) => Err("a parenthesis is closed that was not opened".to_owned()),
        }
    }

    /// Reads a pipeline up to the end of the words, or up to a parenthesis that closes it; the fields behind that.
    fn pipe_until(&mut self, rest: &mut &[Word], is_inner: bool) -> Result<(Pipe, Vec<String>), String> {
        let mut commands = Vec::new();
        let mut operands: Vec<Result<Operand, Function>> = Vec::new();
        let mut behind = Vec::new();
        let mut is_closed = false;
        while let Some((word, after)) = rest.split_first() {
            *rest = after;
            match word {
                Word::Sign("|") => commands.push(command(std::mem::take(&mut operands))?),
                Word::Sign("(") => {
                    let (pipe, fields) = self.pipe_until(rest, true)?;
                    operands.push(Ok(operand(Base::Pipe(pipe), &fields)));
                }
                Word::Sign(")") | Word::Closed(_) => {
                    if let Word::Closed(fields) = word {
                        behind.clone_from(fields);
                    }
                    is_closed = true;
                    break;
                }
                Word::Sign(sign) => return Err(format!("'{sign}' is not expected here")),
                Word::Fields(fields) => operands.push(Ok(operand(Base::Dot, fields))),
                Word::Variable(name, fields) => {
                    self.known(name)?;
                    operands.push(Ok(operand(Base::Variable(name.as_str().into()), fields)));
                }
                Word::Literal(value) => operands.push(Ok(operand(Base::Literal(value.clone()), &[]))),
                Word::Name(name) => {
                    operands.push(Err(Function::named(name).ok_or_else(|| format!("there is no function {name}"))?));
                }
            }
        }
        if is_inner != is_closed {
            return Err("a parenthesis has no partner".to_owned());
        }
        commands.push(command(operands)?);
        Ok((Pipe(commands.into()), behind))
    }
}

fn operand(base: Base, fields: &[String]) -> Operand {
    Operand { base, fields: fields.iter().map(|field| field.as_str().into()).collect() }
}

/// A command of its words: a function with arguments, or one value.
fn command(words: Vec<Result<Operand, Function>>) -> Result<Command, String> {
    let mut words = words.into_iter();
    let value = |word| match word {
        Ok(operand) => operand,
        Err(function) => operand(Base::Call(function), &[]),
    };
    match words.next() {
        None => Err("a pipeline has an empty part".to_owned()),
        Some(Err(function)) => Ok(Command::Call(function, words.map(value).collect())),
        Some(Ok(first)) => match words.next() {
            None => Ok(Command::Value(first)),
            Some(_) => Err("a value takes no arguments".to_owned()),
        },
    }
}
