//! BSON, as far as the messages to MongoDB and the fields of its answers need it (bsonspec.org, version 1.1).

/// A document that is being written.
#[derive(Debug, Default, Clone)]
pub(super) struct Document(Vec<u8>);

/// A field of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Field {
    /// Any kind of number, and true and false.
    Number(f64),
    Text(String),
    Binary(Vec<u8>),
    /// A document or a list, of which only the length counts here: an empty one has 5 bytes.
    Nested(usize),
    Other,
}

impl Document {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// A document that was written elsewhere, with its length and its end.
    pub(super) fn written(bytes: &[u8]) -> Self {
        Self(bytes.get(4..bytes.len().saturating_sub(1)).unwrap_or_default().to_vec())
    }

    fn name(&mut self, kind: u8, name: &str) {
        self.0.push(kind);
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
    }

    pub(super) fn int(mut self, name: &str, number: i64) -> Self {
        self.name(0x12, name);
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn text(mut self, name: &str, text: &str) -> Self {
        self.name(0x02, name);
        self.0.extend_from_slice(&(text.len() as u32 + 1).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
        self
    }

    /// A time in milliseconds since 1970.
    pub(super) fn time(mut self, name: &str, millis: i64) -> Self {
        self.name(0x09, name);
        self.0.extend_from_slice(&millis.to_le_bytes());
        self
    }

    pub(super) fn binary(mut self, name: &str, bytes: &[u8]) -> Self {
        self.name(0x05, name);
        self.0.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.0.push(0);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn document(mut self, name: &str, document: Self) -> Self {
        self.name(0x03, name);
        self.0.extend_from_slice(&document.bytes());
        self
    }

    pub(super) fn list(mut self, name: &str, documents: impl Iterator<Item = Self>) -> Self {
        self.name(0x04, name);
        let list = { documents.enumerate() }.fold(Self::new(), |list, (at, one)| list.document(&at.to_string(), one));
        self.0.extend_from_slice(&list.bytes());
        self
    }

    pub(super) fn times(mut self, name: &str, millis: impl Iterator<Item = i64>) -> Self {
        self.name(0x04, name);
        let list = { millis.enumerate() }.fold(Self::new(), |list, (at, one)| list.time(&at.to_string(), one));
        self.0.extend_from_slice(&list.bytes());
        self
    }

    /// The whole document.
    pub(super) fn bytes(self) -> Vec<u8> {
        let mut out = (self.0.len() as u32 + 5).to_le_bytes().to_vec();
        out.extend_from_slice(&self.0);
        out.push(0);
        out
    }
}

/// Reads the fields of a document, without those of nested ones; `None` where it is damaged.
pub(super) fn fields(bytes: &[u8]) -> Option<Vec<(String, Field)>> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let mut rest = rest.get(..(u32::from_le_bytes(*length) as usize).checked_sub(4)?)?;
    let mut found = Vec::new();
    loop {
        let (kind, after) = rest.split_first()?;
        if *kind == 0 {
            return after.is_empty().then_some(found);
        }
        let end = after.iter().position(|byte| *byte == 0)?;
        let name = String::from_utf8_lossy(after.get(..end)?).into_owned();
        let mut value = after.get(end + 1..)?;
        let mut take = |bytes: usize| {
            let (taken, after) = value.split_at_checked(bytes)?;
            value = after;
            Some(taken)
        };
        let four = |bytes: &[u8]| bytes.try_into().ok().map(i32::from_le_bytes);
        let eight = |bytes: &[u8]| bytes.try_into().ok().map(i64::from_le_bytes);
        let field = match *kind {
            0x01 => Field::Number(f64::from_le_bytes(take(8)?.try_into().ok()?)),
            0x10 => Field::Number(f64::from(four(take(4)?)?)),
            0x12 => Field::Number(eight(take(8)?)? as f64),
            0x08 => Field::Number(f64::from(*take(1)?.first()?)),
            0x02 => {
                let length = usize::try_from(four(take(4)?)?).ok()?;
                let text = take(length)?.strip_suffix(b"\0")?;
                Field::Text(String::from_utf8_lossy(text).into_owned())
            }
            0x05 => {
                let length = usize::try_from(four(take(4)?)?).ok()?;
                take(1)?;
                Field::Binary(take(length)?.to_vec())
            }
            0x03 | 0x04 => {
                let length = usize::try_from(four(take(4)?)?).ok()?;
                take(length.checked_sub(4)?)?;
                Field::Nested(length)
            }
            0x07 => {
                take(12)?;
                Field::Other
            }
            0x09 | 0x11 => {
                take(8)?;
                Field::Other
            }
            0x0a => Field::Other,
            _ => return None,
        };
        found.push((name, field));
        rest = value;
    }
}

#[cfg(test)]
mod tests {
    use super::{Document, Field, fields};

    #[test]
    fn documents_are_written_as_the_specification_says() {
        // The example of bsonspec.org, and a list of one document.
        let hello = Document::new().text("hello", "world").bytes();
        assert_eq!(hello, b"\x16\0\0\0\x02hello\0\x06\0\0\0world\0\0");
        let nested = Document::new().list("a", [Document::new().int("b", 1)].into_iter());
        let expected = b"\x20\0\0\0\x04a\0\x18\0\0\0\x030\0\x10\0\0\0\x12b\0\x01\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(nested.bytes(), expected);
    }

    #[test]
    fn what_is_written_is_read() {
        let document = Document::new()
            .int("i", -5)
            .text("t", "té")
            .time("d", 7)
            .binary("x", b"\0\x01")
            .document("n", Document::new().int("deep", 1))
            .times("l", [1, 2].into_iter());
        let bytes = document.bytes();
        let found = fields(&bytes).expect("a document");
        let expected = [
            ("i", Field::Number(-5.0)),
            ("t", Field::Text("té".to_owned())),
            ("d", Field::Other),
            ("x", Field::Binary(vec![0, 1])),
            ("n", Field::Nested(19)),
            ("l", Field::Nested(27)),
        ];
        assert_eq!(found, expected.map(|(name, field)| (name.to_owned(), field)));
        for length in 0..bytes.len() {
            assert_eq!(fields(&bytes[..length]), None, "{length} bytes");
        }
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..2000 {
            let mut changed = bytes.clone();
            let at = random.usize(..changed.len());
            changed[at] = random.u8(..);
            // Any outcome but a panic.
            let _ = fields(&changed);
        }
    }
}
