//! Values from the environment.
//!
//! `${{NAME}}` and `${{NAME:=default}}` are replaced in the text of a file before it is read, wherever they stand, as
//! APISIX does; so is `${{ env "NAME" }}`, as decK writes it. `$env://NAME` and `$env://NAME/key` (the value of `key` in a variable that holds JSON) stand for a
//! whole text inside a plugin's configuration. A value of several lines in the place of a whole text (`cert: ${{CERT}}`) stays
//! what it is, where APISIX would have its lines read as YAML.

use std::borrow::Cow;

use serde_json::Value;

use crate::Diagnostic;
use crate::code::Code;
use crate::node::{Kind, MAX_TEXT_BYTES, Mark, Node, Parsed, push_index, push_name, quoted};
use crate::secret::NoSecret;

/// Source of variables: `&|name| std::env::var(name).ok()` for those of the process.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Decides if a reference may read a variable of the environment; the error is the reason against it.
pub type MayRead<'a> = &'a dyn Fn(&str) -> Result<(), String>;

/// A text with its placeholders replaced.
#[derive(Debug)]
pub struct Substituted<'a> {
    /// The text to be read.
    pub text: Cow<'a, str>,
    pieces: Vec<Piece>,
    unset: Vec<(String, Mark)>,
    odd: Vec<Mark>,
    /// Values of several lines.
    lines: Vec<String>,
}

/// One replacement: bounds of the value in the new text, and of the placeholder in the file.
#[derive(Debug)]
struct Piece {
    now_end: Mark,
    now_start: Mark,
    was_start: Mark,
    was_end: Mark,
}

/// Delimiters of the number of an unset variable until the text has been read: only then is it known whether the
/// placeholder stood in a comment, where it does no harm. Characters of a private use area, which no file holds.
const UNSET_START: char = '\u{F8FA}';
const UNSET_END: char = '\u{F8FB}';

/// Delimiters of the number of a value of several lines, in the same way: the value replaces a whole text, whatever its
/// lines would mean in YAML.
const LINES_START: char = '\u{F8FC}';
const LINES_END: char = '\u{F8FD}';

/// Replaces the placeholders of a text.
pub fn substitute<'a>(text: &'a str, variables: Variables<'_>) -> Substituted<'a> {
    let mut done = Substituted {
        text: Cow::Borrowed(text),
        pieces: Vec::new(),
        unset: Vec::new(),
        odd: Vec::new(),
        lines: Vec::new(),
    };
    if !text.contains("${{") {
        return done;
    }
    let mut out = String::with_capacity(text.len());
    let (mut was, mut now) = (Mark { line: 1, column: 1 }, Mark { line: 1, column: 1 });
    let mut rest = text;
    while let Some(start) = rest.find("${{") {
        let before = &rest[..start];
        advance(&mut was, before);
        advance(&mut now, before);
        out.push_str(before);
        let Some((whole, name, default)) = placeholder(&rest[start..]) else {
            done.odd.push(was);
            let left = &rest[start..start + 3];
            advance(&mut was, left);
            advance(&mut now, left);
            out.push_str(left);
            rest = &rest[start + 3..];
            continue;
        };
        let value = variables(name).or_else(|| default.map(str::to_owned)).unwrap_or_else(|| {
            done.unset.push((name.to_owned(), was));
            format!("{UNSET_START}{}{UNSET_END}", done.unset.len() - 1)
        });
        let has_lines = value.trim_end_matches('\n').contains('\n');
        let value = if has_lines && is_whole_text(&out, &value, &rest[start + whole.len()..]) {
            done.lines.push(value);
            format!("{LINES_START}{}{LINES_END}", done.lines.len() - 1)
        } else {
            value
        };
        let (was_start, now_start) = (was, now);
        advance(&mut was, whole);
        advance(&mut now, &value);
        out.push_str(&value);
        done.pieces.push(Piece { now_start, now_end: now, was_start, was_end: was });
        rest = &rest[start + whole.len()..];
        if out.len() > MAX_TEXT_BYTES {
            break; // Nobody reads a text of this length.
        }
    }
    out.push_str(rest);
    done.text = Cow::Owned(out);
    done
}

impl Substituted<'_> {
    /// Restores the marks of a tree to positions in the file, and reports faults of the placeholders.
    pub fn settle(&self, parsed: &mut Parsed) -> Vec<Diagnostic> {
        let mut found: Vec<Diagnostic> = self
            .odd
            .iter()
            .map(|mark| {
                Diagnostic::warning(*mark, "", Code::NoPlaceholder)
                    .with_hint("a placeholder is ${{NAME}} or ${{NAME:=default}}")
            })
            .collect();
        if self.pieces.is_empty() {
            return found;
        }
        for repeated in &mut parsed.repeated {
            repeated.first = self.original(repeated.first);
            repeated.second = self.original(repeated.second);
        }
        parsed.second_document = parsed.second_document.map(|mark| self.original(mark));
        let mut used = vec![false; self.unset.len()];
        let mut path = String::new();
        self.settle_node(&mut parsed.root, &mut path, &mut used, &mut found);
        for ((name, mark), used) in self.unset.iter().zip(used) {
            if !used {
                let code = Code::UnsetVariable { name: name.clone() };
                found.push(Diagnostic::warning(*mark, "", code).with_hint("it does no harm in a comment"));
            }
        }
        found
    }

    /// Position in the file of a position in the text that was read.
    pub fn original(&self, mark: Mark) -> Mark {
        let after = self.pieces.partition_point(|piece| piece.now_start <= mark);
        let Some(piece) = after.checked_sub(1).and_then(|at| self.pieces.get(at)) else {
            return mark;
        };
        if mark < piece.now_end || !mark.is_known() {
            return piece.was_start;
        }
        let line = mark.line - piece.now_end.line + piece.was_end.line;
        if mark.line != piece.now_end.line {
            return Mark { line, column: mark.column };
        }
        Mark { line, column: mark.column - piece.now_end.column + piece.was_end.column }
    }

    fn settle_node(&self, node: &mut Node, path: &mut String, used: &mut [bool], found: &mut Vec<Diagnostic>) {
        node.mark = self.original(node.mark);
        let length = path.len();
        match &mut node.kind {
            Kind::Str(text) => {
                self.find_unset(text, path, used, found);
                self.put_lines(text);
            }
            Kind::Seq(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    push_index(path, index);
                    self.settle_node(item, path, used, found);
                    path.truncate(length);
                }
            }
            Kind::Map(entries) => {
                for (key, value) in entries {
                    key.mark = self.original(key.mark);
                    self.find_unset(&key.text, path, used, found);
                    if key.text.contains(LINES_START) {
                        let mut text = key.text.to_string();
                        self.put_lines(&mut text);
                        key.text = text.into();
                    }
                    push_name(path, &key.text);
                    self.settle_node(value, path, used, found);
                    path.truncate(length);
                }
            }
            _ => {}
        }
    }

    /// Puts values of several lines in their places.
    fn put_lines(&self, text: &mut String) {
        if self.lines.is_empty() || !text.contains(LINES_START) {
            return;
        }
        for (number, value) in self.lines.iter().enumerate() {
            *text = text.replace(&format!("{LINES_START}{number}{LINES_END}"), value);
        }
    }

    fn find_unset(&self, text: &str, path: &str, used: &mut [bool], found: &mut Vec<Diagnostic>) {
        if self.unset.is_empty() {
            return;
        }
        for number in text.split(UNSET_START).skip(1) {
            let number = number.split(UNSET_END).next().and_then(|number| number.parse::<usize>().ok());
            let Some((at, (name, mark))) = number.and_then(|at| Some((at, self.unset.get(at)?))) else { continue };
            if !std::mem::replace(&mut used[at], true) {
                let code = Code::UnsetVariable { name: name.clone() };
                let hint = format!("set it, or give a default: ${{{{{name}:=default}}}}");
                found.push(Diagnostic::error(*mark, path, code).with_hint(hint));
            }
        }
    }
}

/// True if a value of several lines between these is a whole text: behind `key:` or `-`, between quotes, or alone on a line
/// of a block of text. A list or a mapping behind a key is YAML as before.
fn is_whole_text(before: &str, value: &str, after: &str) -> bool {
    let (above, line) = before.rsplit_once('\n').unwrap_or(("", before));
    let rest = after.split('\n').next().unwrap_or_default();
    let quoted = |quote: char| line.ends_with(quote) && rest.starts_with(quote);
    if quoted('"') || quoted('\'') {
        return true;
    }
    let ends = matches!(rest.trim().chars().next(), None | Some('#' | ',' | ']' | '}'));
    let begins = match line.trim_end() {
        // Lines that are indented as the block is are in it anyway.
        "" => {
            let in_block = |inner: &str| inner.is_empty() || inner.starts_with(line);
            let above = above.trim_end();
            (above.ends_with(['|', '>']) || above.ends_with("|-")) && !value.lines().skip(1).all(in_block)
        }
        line => {
            line.ends_with([':', '-', '[', ','])
                && !["{", "[", "\n", "- ", "|", ">", " "].iter().any(|yaml| value.starts_with(yaml))
        }
    };
    begins && ends
}

/// A placeholder at the beginning of a text: all of it, the name and the default.
fn placeholder(text: &str) -> Option<(&str, &str, Option<&str>)> {
    let end = text.find("}}")?;
    let inner = text[3..end].trim();
    // decK's form, whose filters only say which type a value has.
    let inner = match inner.strip_prefix("env ").map(str::trim).and_then(|rest| rest.strip_prefix('"')?.split_once('"'))
    {
        Some((name, "")) => name,
        Some((name, filter)) if matches!(filter.replace(' ', "").as_str(), "|toInt" | "|toBool") => name,
        _ => inner,
    };
    let (name, default) = match inner.split_once(":=") {
        Some((name, default)) => (name.trim(), Some(default.trim())),
        None => (inner, None),
    };
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (is_name && !inner.contains('\n')).then_some((&text[..end + 2], name, default))
}

fn advance(mark: &mut Mark, over: &str) {
    match over.rsplit_once('\n') {
        Some((lines, last)) => {
            mark.line += 1 + lines.matches('\n').count() as u32;
            mark.column = 1 + last.chars().count() as u32;
        }
        None => mark.column += over.chars().count() as u32,
    }
}

/// Warns of texts that are `${NAME}` and nothing else: their author expects a substitution that does not happen.
pub fn shell_placeholders(node: &Node, path: &mut String, found: &mut Vec<Diagnostic>) {
    let length = path.len();
    match &node.kind {
        Kind::Str(text) => {
            // Lower-case names are variables of a request, which plugins resolve.
            let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
            if name.is_some_and(|name| {
                name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
                    && name.bytes().next().is_some_and(|b| !b.is_ascii_digit() && !b.is_ascii_lowercase())
            }) {
                let code = Code::ShellPlaceholder { text: quoted(text) };
                let hint = format!("a variable of the environment is written ${{{{{}}}}}", name.unwrap_or_default());
                found.push(Diagnostic::warning(node.mark, path.as_str(), code).with_hint(hint));
            }
        }
        Kind::Seq(items) => {
            for (index, item) in items.iter().enumerate() {
                push_index(path, index);
                shell_placeholders(item, path, found);
                path.truncate(length);
            }
        }
        Kind::Map(entries) => {
            for (key, value) in entries {
                push_name(path, &key.text);
                shell_placeholders(value, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

/// Rest of a text after a prefix, whatever the case of its letters.
pub(crate) fn reference_after<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

/// The value of `NAME` or `NAME/key`.
pub(crate) fn resolve(reference: &str, variables: Variables<'_>, may_read: MayRead<'_>) -> Result<String, NoSecret> {
    let (name, key) = match reference.split_once('/') {
        Some((name, key)) => (name, Some(key)),
        None => (reference, None),
    };
    may_read(name).map_err(NoSecret::Refused)?;
    let absent = |reason: String| NoSecret::Absent(reason);
    let unset = || absent(format!("the environment variable {} is not set", quoted(name)));
    let value = variables(name).ok_or_else(unset)?;
    let Some(key) = key.filter(|key| !key.is_empty()) else {
        return Ok(value);
    };
    let json: Value = serde_json::from_str(&value).map_err(|_| {
        absent(format!("the environment variable {name} is not JSON, so it has no key {}", quoted(key)))
    })?;
    match json.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Null) | None => Err(absent(format!("the environment variable {name} has no key {}", quoted(key)))),
        Some(other) => Ok(other.to_string()),
    }
}
