//! Parsing of bytes into a tree.

use super::foreign::{Foreign, identify};
use super::{Ending, Loader};
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Severity};
use crate::env::{shell_placeholders, substitute};
use crate::front_end::{APISIX, FrontEnd, Lowered, reading};
use crate::node::{Kind, MAX_TEXT_BYTES, Mark, Node};

impl<'a> Loader<'a> {
    /// Reads the text; `None` when the file is refused.
    pub(super) fn text(&mut self, bytes: &[u8]) -> Option<Node> {
        if bytes.len() > MAX_TEXT_BYTES {
            self.refuse(Diagnostic::error(Mark::NONE, "", Code::FileTooLong { bytes: bytes.len() }));
            return None;
        }
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let (good, _) = bytes.split_at(error.valid_up_to());
                let line = 1 + good.iter().filter(|b| **b == b'\n').count() as u32;
                let good = good.rsplit(|b| *b == b'\n').next().unwrap_or_default();
                let column = 1 + String::from_utf8_lossy(good).chars().count() as u32;
                let error = Diagnostic::error(Mark { line, column }, "", Code::NotUtf8);
                self.refuse(match bytes {
                    [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => error.with_hint("save the file as UTF-8, not as UTF-16"),
                    _ => error,
                });
                return None;
            }
        };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let substituted = substitute(text, self.options.variables);
        let mut parsed = match Node::parse(&substituted.text) {
            Ok(parsed) => parsed,
            Err(mut error) => {
                error.mark = substituted.original(error.mark);
                self.refuse(error);
                self.check_end(text);
                return None;
            }
        };
        let placeholders = substituted.settle(&mut parsed);
        // Later findings would only repeat that the values are wrong.
        let unset = placeholders.iter().any(Diagnostic::is_error);
        self.refused |= unset;
        self.found.extend(placeholders);
        let Some(front_end) = reading(self.options.front_ends, &parsed.root) else {
            self.foreign(&parsed.root);
            return None;
        };
        if parsed.root.is_null() {
            let error = Diagnostic::error(Mark::NONE, "", Code::FileEmpty);
            self.refuse(error.with_hint("a rules file without any route says so: routes: []"));
            return None;
        }
        if front_end.has_end_marker() {
            self.check_end(text);
        }
        if unset {
            return None;
        }
        if front_end.family() == &APISIX && text.contains("${") {
            shell_placeholders(&parsed.root, &mut String::new(), &mut self.found);
        }
        for repeated in &parsed.repeated {
            let code = Code::RepeatedKey { first: repeated.first };
            let error = Diagnostic::error(repeated.second, repeated.path.clone(), code);
            if front_end.takes_repeated_keys() {
                self.found.push(Diagnostic { severity: Severity::Warning, ..error });
                continue;
            }
            match item_of(&repeated.path) {
                Some(item) => self.text_errors.entry(item.to_owned()).or_default().push(error),
                None => self.refuse(error),
            }
        }
        if let Some(mark) = parsed.second_document {
            self.refuse(Diagnostic::error(mark, "", Code::SecondDocument { file: "rules" }));
            return None;
        }
        let root = self.lower(parsed.root, front_end);
        if !self.origins.is_empty() {
            // A key that stands twice belongs to an entity, not to an item.
            std::mem::take(&mut self.text_errors).into_values().flatten().for_each(|error| self.refuse(error));
            self.written = self.found.len();
        }
        Some(root)
    }

    /// Lowers a document of a family.
    pub(super) fn lower<'f: 'a>(&mut self, root: Node, front_end: &'f dyn FrontEnd) -> Node {
        if let Some(plugins) = front_end.plugins() {
            self.use_plugins(plugins, &[]);
        }
        self.family = front_end.family();
        let before = self.found.len();
        let Lowered { root, origins } = front_end.lower(root, self.options.variables, &mut self.found);
        self.refused |= self.failed_since(before);
        (self.written, self.origins) = (self.found.len(), origins);
        root
    }

    /// Reports a YAML file without a visible end: it may still be under way.
    fn check_end(&mut self, text: &str) {
        if Ending::of(text.as_bytes()) != Ending::Open {
            return;
        }
        let line = 1 + text.matches('\n').count() as u32;
        let mark = Mark { line, column: 1 };
        if self.options.strict {
            self.refuse(Diagnostic::error(mark, "", Code::FileOpenEnded));
        } else {
            self.found.push(Diagnostic::warning(mark, "", Code::FileOpenEnded).with_hint("APISIX refuses it"));
        }
    }

    /// Reports a document that no front end reads, by the tool it belongs to.
    fn foreign(&mut self, root: &Node) {
        let other = identify(root).unwrap_or_else(|| Foreign::unknown(root));
        let error = Diagnostic::error(other.mark, other.path, Code::OtherTool { what: other.what });
        self.refuse(match other.hint {
            "" => error,
            hint => error.with_hint(hint),
        });
    }

    /// True for an empty tree, which is reported.
    pub(super) fn is_empty(&mut self, root: &Node) -> bool {
        match &root.kind {
            Kind::Null => {
                self.warn(root.mark, "", Code::NoRoutes);
                true
            }
            Kind::Seq(items) if items.is_empty() => {
                let code = Code::NotSections { found: "an empty list".to_owned() };
                if self.options.strict {
                    self.refuse(Diagnostic::error(root.mark, "", code));
                } else {
                    self.warn(root.mark, "", code);
                }
                true
            }
            _ => false,
        }
    }
}

/// The path of the item something belongs to: `routes[3]` of `routes[3].plugins.cors`.
fn item_of(path: &str) -> Option<&str> {
    let end = path.find(']')?;
    let (section, index) = path[..end].split_once('[')?;
    let is_item = !section.contains('.') && index.bytes().all(|b| b.is_ascii_digit());
    is_item.then(|| &path[..=end])
}
