//! Evidence in a text that it is whole.

use serde::{Deserialize, Serialize};

use crate::code::Code;

/// Evidence in a text that nothing of it is missing, the least first.
///
/// A file may be read while it is written, or after its writer has died. A text that takes the place of another must show
/// as much as that one did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// No content: nothing but white space and comments.
    Empty,
    /// Content that may be cut off anywhere between two lines: YAML without the line `#END`.
    Open,
    /// A whole text: YAML that ends with the line `#END`, or JSON, which cannot be read unless its brackets are closed.
    Shown,
}

impl Ending {
    /// The evidence in this text.
    pub fn of(text: &[u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii();
        let has_content = |line: &[u8]| !matches!(line.trim_ascii(), b"" | b"---" | b"..." | [b'#', ..]);
        if !text.split(|byte| *byte == b'\n').any(has_content) {
            Self::Empty
        } else if text.starts_with(b"{") || text.starts_with(b"[") || text.ends_with(b"#END") {
            Self::Shown
        } else {
            Self::Open
        }
    }

    /// The code of a text that shows no more than this; `None` where nothing is missing.
    pub fn code(self) -> Option<Code> {
        match self {
            Self::Empty => Some(Code::FileEmpty),
            Self::Open => Some(Code::FileOpenEnded),
            Self::Shown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ending;

    #[test]
    fn the_evidence_is_at_the_end_or_in_the_brackets() {
        let cases = [
            ("", Ending::Empty),
            (" \n\t\r\n", Ending::Empty),
            ("\u{feff}", Ending::Empty),
            ("# nothing yet\n  # here\n", Ending::Empty),
            ("---\n...\n", Ending::Empty),
            ("#END\n", Ending::Empty),
            ("routes: []", Ending::Open),
            ("routes: []\n#END\n# the end\n", Ending::Open),
            ("#END\nroutes: []\n", Ending::Open),
            ("routes: []\n#EN", Ending::Open),
            ("routes: []\n#END", Ending::Shown),
            ("routes: []\r\n#END\r\n\r\n", Ending::Shown),
            ("\u{feff}{\"routes\": []}", Ending::Shown),
            // A text that cannot be parsed: the parser's error has more detail.
            ("  {\"routes\": [", Ending::Shown),
        ];
        for (text, expected) in cases {
            assert_eq!(Ending::of(text.as_bytes()), expected, "{text:?}");
        }
        assert!(Ending::Empty < Ending::Open && Ending::Open < Ending::Shown);
    }
}
