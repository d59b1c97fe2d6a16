//! YAML 1.2 (core schema), with merge keys, from the events of saphyr-parser.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::tree::{Tree, count, not_a_key};
use super::{Kind, MAX_ALIASED_NODES, MAX_TEXT_BYTES, Mark, Node, Parsed, quoted};
use crate::Diagnostic;
use crate::code::Code;

/// Reads one YAML document.
pub fn parse_yaml(text: &str) -> Result<Parsed, Diagnostic> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(super::too_large(text.len()));
    }
    let mut reader = Reader { text, tree: Tree::default(), anchors: HashMap::new(), aliased: 0, documents: 0 };
    let mut second_document = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| reader.explain(&error))?;
        let mark = mark(&span.start);
        if matches!(event, Event::DocumentStart(_)) && reader.documents == 1 {
            second_document = Some(mark);
            break;
        }
        reader.take(event, mark)?;
    }
    let (root, repeated) = reader.tree.finish();
    Ok(Parsed { root, repeated, second_document })
}

struct Reader<'a> {
    text: &'a str,
    tree: Tree,
    anchors: HashMap<usize, Node>,
    aliased: usize,
    documents: usize,
}

impl Reader<'_> {
    fn take(&mut self, event: Event<'_>, mark: Mark) -> Result<(), Diagnostic> {
        match event {
            Event::DocumentStart(_) => self.documents += 1,
            Event::Scalar(text, style, anchor, tag) => {
                if self.tree.wants_key() {
                    if text == "<<" && style == ScalarStyle::Plain && tag.is_none() {
                        self.tree.merge_key(mark);
                    } else {
                        if anchor != 0 {
                            let kind = Kind::Str(text.clone().into_owned());
                            self.anchors.insert(anchor, Node { mark, kind });
                        }
                        self.tree.key(&text, mark);
                    }
                    return Ok(());
                }
                let kind = self.scalar(text.into_owned(), style, tag.as_deref(), mark)?;
                let node = Node { mark, kind };
                if anchor != 0 {
                    self.anchors.insert(anchor, node.clone());
                }
                self.tree.value(node);
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_key(mark, "a list")?;
                self.check_tag(tag.as_deref(), "seq", mark)?;
                self.tree.open_seq(mark, anchor)?;
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_key(mark, "a mapping")?;
                self.check_tag(tag.as_deref(), "map", mark)?;
                self.tree.open_map(mark, anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some((anchor, node)) = self.tree.close() {
                    self.anchors.insert(anchor, node);
                }
            }
            Event::Alias(anchor) => self.alias(anchor, mark)?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        self.tree.take_misfit()
    }

    fn alias(&mut self, anchor: usize, mark: Mark) -> Result<(), Diagnostic> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(Diagnostic::error(mark, self.tree.path(), Code::AliasInsideItself));
        };
        if self.tree.wants_key() {
            return match &node.kind {
                Kind::Str(text) => {
                    let text = text.clone();
                    self.tree.key(&text, mark);
                    Ok(())
                }
                _ => Err(not_a_key(mark, &self.tree.path(), quoted(&node.describe()))),
            };
        }
        self.aliased = self.aliased.saturating_add(count(node));
        if self.aliased > MAX_ALIASED_NODES {
            return Err(Diagnostic::error(mark, self.tree.path(), Code::TooManyAliased));
        }
        // Errors are reported where the value is written, not where it is used.
        let node = node.clone();
        self.check_depth(&node, mark)?;
        self.tree.value(node);
        Ok(())
    }

    /// An alias may stand deep inside and hold something deep in turn.
    fn check_depth(&self, node: &Node, mark: Mark) -> Result<(), Diagnostic> {
        fn depth(node: &Node) -> usize {
            1 + match &node.kind {
                Kind::Seq(items) => items.iter().map(depth).max().unwrap_or(0),
                Kind::Map(entries) => entries.iter().map(|(_, node)| depth(node)).max().unwrap_or(0),
                _ => 0,
            }
        }
        if self.tree.depth() + depth(node) > super::MAX_DEPTH {
            return Err(Diagnostic::error(mark, self.tree.path(), Code::NestedTooDeep));
        }
        Ok(())
    }

    fn refuse_key(&self, mark: Mark, found: &str) -> Result<(), Diagnostic> {
        if !self.tree.wants_key() {
            return Ok(());
        }
        let error = not_a_key(mark, &self.tree.path(), found.to_owned());
        Err(error.with_hint("a text that holds '{' or '[' must stand in quotes"))
    }

    fn scalar(&self, text: String, style: ScalarStyle, tag: Option<&Tag>, mark: Mark) -> Result<Kind, Diagnostic> {
        let Some(tag) = tag else {
            return Ok(if style == ScalarStyle::Plain { plain_scalar(text) } else { Kind::Str(text) });
        };
        let suffix = if tag.is_yaml_core_schema() { tag.suffix.as_str() } else { "" };
        let kind = match suffix {
            "str" => Some(Kind::Str(text.clone())),
            "int" => Some(plain_scalar(text.clone())).filter(|kind| matches!(kind, Kind::Int(_))),
            "float" => match plain_scalar(text.clone()) {
                Kind::Int(number) => Some(Kind::Float(number as f64)),
                kind => Some(kind).filter(|kind| matches!(kind, Kind::Float(_))),
            },
            "bool" => Some(plain_scalar(text.clone())).filter(|kind| matches!(kind, Kind::Bool(_))),
            "null" => Some(Kind::Null),
            _ if tag.handle.is_empty() && tag.suffix == "!" => Some(Kind::Str(text.clone())),
            _ => return Err(self.unknown_tag(tag, mark)),
        };
        kind.ok_or_else(|| {
            let code = Code::NotOfTag { text: quoted(&text), tag: suffix.to_owned() };
            Diagnostic::error(mark, self.tree.path(), code)
        })
    }

    fn check_tag(&self, tag: Option<&Tag>, allowed: &str, mark: Mark) -> Result<(), Diagnostic> {
        match tag {
            Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == allowed) => Err(self.unknown_tag(tag, mark)),
            _ => Ok(()),
        }
    }

    fn unknown_tag(&self, tag: &Tag, mark: Mark) -> Diagnostic {
        let code = Code::UnknownTag { tag: quoted(&format!("{}{}", tag.handle, tag.suffix)) };
        Diagnostic::error(mark, self.tree.path(), code)
            .with_hint("known are !!str, !!int, !!float, !!bool, !!null, !!seq and !!map; a text that begins with '!' must stand in quotes")
    }

    /// Explains an error of the YAML parser by its usual cause.
    fn explain(&self, error: &ScanError) -> Diagnostic {
        if let Some(at) = self.text.lines().position(|line| line.starts_with("<<<<<<< ")) {
            let mark = Mark { line: at as u32 + 1, column: 1 };
            return Diagnostic::error(mark, "", Code::MergeConflict);
        }
        let mark = mark(error.marker());
        let line = self.text.lines().nth(mark.line.saturating_sub(1) as usize).unwrap_or_default();
        let reason = error.info().to_string();
        let is_alias = reason.contains("anchor") || reason.contains("alias");
        let error = Diagnostic::error(mark, self.tree.path(), Code::NotYaml { reason });
        let value = line.split_once(": ").map_or(line, |(_, value)| value);
        let value = value.trim_start_matches(['-', ' ', '[', '"', '\'']);
        // The parser often stands behind the unknown alias.
        let list_item = line.split([' ', '[', ',']).any(|word| word.starts_with('*'));
        if is_alias || (list_item && line.contains('*')) {
            return error
                .with_hint("a value that begins with '*' is a YAML alias; write it in quotes: \"*.example.com\"");
        }
        if value.starts_with("|$") || value.starts_with(">$") {
            return error.with_hint("a block text begins on the line after '|' or '>'");
        }
        if line.trim_start_matches(' ').starts_with('\t') {
            return error.with_hint("YAML is indented with spaces, not with tabs");
        }
        if let Some(at) = line.find("{{")
            && !line[..at].ends_with('$')
        {
            return error.with_hint("a text that begins with '{' must stand in quotes");
        }
        error
    }
}

fn mark(marker: &Marker) -> Mark {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Mark { line: number(marker.line()), column: number(marker.col() + 1) }
}

/// The value of a scalar without quotes and tag (YAML 1.2.2 section 10.3.2).
pub(crate) fn plain_scalar(text: String) -> Kind {
    match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" => return Kind::Null,
        "true" | "True" | "TRUE" => return Kind::Bool(true),
        "false" | "False" | "FALSE" => return Kind::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Kind::Float(f64::NAN),
        _ => {}
    }
    let first = text.as_bytes()[0];
    if !(first.is_ascii_digit() || matches!(first, b'-' | b'+' | b'.')) {
        return Kind::Str(text);
    }
    number(&text).unwrap_or(Kind::Str(text))
}

fn number(text: &str) -> Option<Kind> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some((radix, digits)) = [(8, "0o"), (16, "0x")].iter().find_map(|(r, p)| Some((*r, text.strip_prefix(p)?))) {
        let all = !digits.is_empty() && digits.bytes().all(|b| char::from(b).is_digit(radix));
        return all.then(|| i64::from_str_radix(digits, radix).ok()).flatten().map(Kind::Int);
    }
    if matches!(digits, ".inf" | ".Inf" | ".INF") {
        return Some(Kind::Float(if negative { f64::NEG_INFINITY } else { f64::INFINITY }));
    }
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        // Too many digits for 64 bits become a float, as everywhere in the peers.
        return Some(text.parse().map_or_else(|_| Kind::Float(text.parse().unwrap_or(f64::MAX)), Kind::Int));
    }
    let has_digit = digits.bytes().next().is_some_and(|b| b.is_ascii_digit())
        || digits.strip_prefix('.').is_some_and(|rest| rest.bytes().next().is_some_and(|b| b.is_ascii_digit()));
    let only = digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    (has_digit && only).then(|| text.parse().ok()).flatten().map(Kind::Float)
}
