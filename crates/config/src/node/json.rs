//! JSON with positions. Brackets and places are ours; strings and numbers are decoded by serde_json.

use super::tree::Tree;
use super::{Kind, MAX_TEXT_BYTES, Mark, Node, Parsed, quoted};
use crate::Diagnostic;
use crate::code::Code;

/// Reads one JSON value.
pub fn parse_json(text: &str) -> Result<Parsed, Diagnostic> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(super::too_large(text.len()));
    }
    let mut reader = Reader { text, at: 0, mark: Mark { line: 1, column: 1 }, marked: 0, tree: Tree::default() };
    reader.document()?;
    let (root, repeated) = reader.tree.finish();
    Ok(Parsed { root, repeated, second_document: None })
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// The position of the byte `marked`; it only moves on, so that all positions together cost one pass.
    mark: Mark,
    marked: usize,
    tree: Tree,
}

impl Reader<'_> {
    fn document(&mut self) -> Result<(), Diagnostic> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            // At the place of a value.
            self.skip_space();
            let mark = self.mark();
            match self.peek() {
                Some(b'{') => {
                    self.tree.open_map(mark, 0)?;
                    self.at += 1;
                    if !self.closes(b'}') {
                        open.push(b'}');
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.tree.open_seq(mark, 0)?;
                    self.at += 1;
                    if !self.closes(b']') {
                        open.push(b']');
                        continue;
                    }
                }
                _ => {
                    let kind = self.scalar()?;
                    self.tree.value(Node { mark, kind });
                }
            }
            // Behind a value.
            loop {
                self.skip_space();
                let Some(&end) = open.last() else {
                    return match self.peek() {
                        None => Ok(()),
                        Some(_) => Err(self.error("text after the end of the JSON value".to_owned())),
                    };
                };
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        if end == b'}' {
                            self.key()?;
                        }
                        break;
                    }
                    Some(found) if found == end => {
                        self.at += 1;
                        open.pop();
                        self.tree.close();
                    }
                    _ => return Err(self.expected(&format!("',' or '{}'", char::from(end)))),
                }
            }
        }
    }

    /// Ends an empty list or mapping at once.
    fn closes(&mut self, end: u8) -> bool {
        self.skip_space();
        let closes = self.peek() == Some(end);
        if closes {
            self.at += 1;
            self.tree.close();
        }
        closes
    }

    fn key(&mut self) -> Result<(), Diagnostic> {
        self.skip_space();
        let mark = self.mark();
        if self.peek() != Some(b'"') {
            return Err(self.expected("a key in double quotes"));
        }
        let text = self.string()?;
        self.tree.key(&text, mark);
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.expected("':'"));
        }
        self.at += 1;
        Ok(())
    }

    fn scalar(&mut self) -> Result<Kind, Diagnostic> {
        match self.peek() {
            Some(b'"') => self.string().map(Kind::Str),
            Some(b'-' | b'0'..=b'9') => {
                let rest = &self.text.as_bytes()[self.at..];
                let length = rest
                    .iter()
                    .position(|b| !matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
                    .unwrap_or(rest.len());
                let token = &self.text[self.at..self.at + length];
                let kind = match serde_json::from_str::<i64>(token) {
                    Ok(number) => Kind::Int(number),
                    Err(_) => match serde_json::from_str::<f64>(token) {
                        Ok(number) => Kind::Float(number),
                        Err(_) => return Err(self.error(format!("{} is not a number", quoted(token)))),
                    },
                };
                self.at += length;
                Ok(kind)
            }
            _ => {
                for (word, kind) in [("true", Kind::Bool(true)), ("false", Kind::Bool(false)), ("null", Kind::Null)] {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(kind);
                    }
                }
                Err(self.expected("a value"))
            }
        }
    }

    /// A string, at its opening quote.
    fn string(&mut self) -> Result<String, Diagnostic> {
        let bytes = self.text.as_bytes();
        let mut end = self.at + 1;
        loop {
            match bytes.get(end) {
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(_) => end += 1,
                None => return Err(self.error("a text without its closing quote".to_owned())),
            }
        }
        let token = &self.text[self.at..=end];
        let text = serde_json::from_str(token)
            .map_err(|error| self.error(format!("{} is not a JSON text: {error}", quoted(token))))?;
        self.at = end + 1;
        Ok(text)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn mark(&mut self) -> Mark {
        for byte in &self.text.as_bytes()[self.marked..self.at] {
            match byte {
                b'\n' => self.mark = Mark { line: self.mark.line + 1, column: 1 },
                // Bytes inside a UTF-8 character are no columns.
                0x80..=0xbf => {}
                _ => self.mark.column += 1,
            }
        }
        self.marked = self.at;
        self.mark
    }

    fn expected(&mut self, what: &str) -> Diagnostic {
        let found = match self.text[self.at..].chars().next() {
            Some(found) => format!("{found:?}"),
            None => "the end of the text".into(),
        };
        let mark = self.mark();
        Diagnostic::error(mark, self.tree.path(), Code::Unlike { expected: what.to_owned().into(), found })
    }

    fn error(&mut self, reason: String) -> Diagnostic {
        let mark = self.mark();
        Diagnostic::error(mark, self.tree.path(), Code::NotJson { reason })
    }
}
