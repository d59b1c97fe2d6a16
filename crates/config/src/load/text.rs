//! From bytes to a tree.

use super::{Ending, Loader};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::env::{shell_placeholders, substitute};
use crate::node::{Kind, MAX_TEXT_BYTES, Mark, Node};

impl Loader<'_> {
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
        // What follows would only repeat that the values are wrong.
        let unset = placeholders.iter().any(Diagnostic::is_error);
        self.refused |= unset;
        self.found.extend(placeholders);
        if self.foreign(&parsed.root) {
            return None;
        }
        if parsed.root.is_null() {
            let error = Diagnostic::error(Mark::NONE, "", Code::FileEmpty);
            self.refuse(error.with_hint("a rules file without any route says so: routes: []"));
            return None;
        }
        self.check_end(text);
        if unset {
            return None;
        }
        if text.contains("${") {
            shell_placeholders(&parsed.root, &mut String::new(), &mut self.found);
        }
        for repeated in &parsed.repeated {
            let code = Code::RepeatedKey { first: repeated.first };
            let error = Diagnostic::error(repeated.second, repeated.path.clone(), code);
            match item_of(&repeated.path) {
                Some(item) => self.text_errors.entry(item.to_owned()).or_default().push(error),
                None => self.refuse(error),
            }
        }
        if let Some(mark) = parsed.second_document {
            self.refuse(Diagnostic::error(mark, "", Code::SecondDocument { file: "rules" }));
            return None;
        }
        Some(parsed.root)
    }

    /// Says that a YAML file does not show where it ends: it may still be written.
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

    /// Whether the document is that of another tool; says so.
    fn foreign(&mut self, root: &Node) -> bool {
        let Some(other) = super::foreign::identify(root) else { return false };
        let error = Diagnostic::error(other.mark, other.path, Code::OtherTool { what: other.what });
        self.refuse(match other.hint {
            "" => error,
            hint => error.with_hint(hint),
        });
        true
    }

    /// Whether the tree is empty; says so.
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
