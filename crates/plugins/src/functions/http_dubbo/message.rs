//! Calls and answers of Dubbo's protocol: a head of 16 bytes, and JSON values as fastjson writes them, one a line.

use serde_json::Value as Json;

/// Bytes of the head of a message.
pub(super) const HEAD: usize = 16;

/// The first bytes of every message.
const MAGIC: [u8; 2] = [0xda, 0xbb];
/// Marks of the third byte: a request, one that is answered, an event such as a heartbeat. The lower five bits tell the
/// serialization.
const REQUEST: u8 = 0x80;
const ANSWERED: u8 = 0x40;
const EVENT: u8 = 0x20;
const FASTJSON: u8 = 6;
/// Status of an answer that has an outcome.
const OK: u8 = 20;
/// The version of the protocol that is told.
const VERSION: &str = "2.0.2";

/// The method that is called.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) service: String,
    pub(super) version: String,
    pub(super) method: String,
    /// Types of its parameters.
    pub(super) types: String,
}

impl Call {
    /// The message that calls the method with the parameters in a body.
    pub(super) fn write(&self, number: u64, body: &[u8], is_serialized: bool) -> Result<Vec<u8>, &'static str> {
        let mut out = Vec::with_capacity(256 + body.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[REQUEST | ANSWERED | FASTJSON, 0]);
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        for text in [VERSION, &self.service, &self.version, &self.method, &self.types] {
            // None of them has what JSON would escape.
            out.push(b'"');
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\"\n");
        }
        if is_serialized {
            out.extend_from_slice(body);
            if body.last().is_some_and(|last| *last != b'\n') {
                out.push(b'\n');
            }
        } else if !body.is_empty() {
            let parameters: Vec<Json> = match serde_json::from_slice(body) {
                Ok(Json::Array(values)) => values,
                Ok(Json::Object(values)) => values.into_iter().map(|(_, value)| value).collect(),
                _ => return Err("the body is no JSON list with a value for each parameter"),
            };
            for parameter in parameters {
                out.extend_from_slice(parameter.to_string().as_bytes());
                out.push(b'\n');
            }
        }
        // No attachments.
        out.extend_from_slice(b"{}\n");
        let length = u32::try_from(out.len() - HEAD).map_err(|_| "the body is too long for a call")?;
        out.splice(HEAD - 4..HEAD, length.to_be_bytes());
        Ok(out)
    }
}

/// The head of a message of a node.
#[derive(Debug)]
pub(super) struct Head {
    flags: u8,
    status: u8,
    number: u64,
    /// Bytes behind the head.
    pub(super) length: usize,
}

/// Outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The method has returned this JSON.
    Value(Vec<u8>),
    /// The method has returned nothing, or null.
    Nothing,
    /// The method has thrown, or was not called: what is told of it.
    Failed(Vec<u8>),
}

impl Head {
    /// Reads a head; `None` for what is none.
    pub(super) fn read(bytes: &[u8; HEAD]) -> Option<Self> {
        let [a, b, flags, status, rest @ ..] = *bytes;
        let (number, length) = rest.split_first_chunk()?;
        let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
        ([a, b] == MAGIC).then_some(Self { flags, status, number: u64::from_be_bytes(*number), length })
    }

    /// True for the answer to the call with this number.
    pub(super) fn is_answer_to(&self, number: u64) -> bool {
        self.flags & (REQUEST | EVENT) == 0 && self.number == number
    }

    /// The outcome in an answer; `None`: it cannot be read.
    pub(super) fn outcome(&self, body: &[u8]) -> Option<Outcome> {
        let mut lines = body.splitn(2, |byte| *byte == b'\n');
        if self.status != OK {
            return Some(Outcome::Failed(body.to_vec()));
        }
        let kind = lines.next()?.trim_ascii();
        let mut value = || {
            let rest = lines.next()?;
            // Attachments may follow in a line of their own.
            rest.split(|byte| *byte == b'\n').next().map(<[u8]>::to_vec)
        };
        match kind {
            // Each with attachments behind it or without.
            b"0" | b"3" => Some(Outcome::Failed(value().unwrap_or_default())),
            b"1" | b"4" => value().map(Outcome::Value),
            b"2" | b"5" => Some(Outcome::Nothing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, HEAD, Head, Outcome};

    fn call() -> Call {
        let text = str::to_owned;
        Call { service: text("a.B"), version: text("1.0.0"), method: text("m"), types: text("J") }
    }

    #[test]
    fn calls_have_their_parameters_line_by_line() {
        let begin = "\"2.0.2\"\n\"a.B\"\n\"1.0.0\"\n\"m\"\n\"J\"\n";
        for (body, is_serialized, lines) in [
            ("", false, ""),
            ("[]", false, ""),
            (r#"[1, "a\nb", null, {"c": [1.5]}]"#, false, "1\n\"a\\nb\"\nnull\n{\"c\":[1.5]}\n"),
            (r#"{"z": 1, "a": true}"#, false, "1\ntrue\n"),
            ("1\n2", true, "1\n2\n"),
            ("1\n", true, "1\n"),
            ("", true, ""),
        ] {
            let written = call().write(7, body.as_bytes(), is_serialized).unwrap();
            let (head, rest) = written.split_first_chunk::<HEAD>().unwrap();
            assert_eq!(String::from_utf8_lossy(rest), format!("{begin}{lines}{{}}\n"), "{body}");
            assert_eq!(head[..4], [0xda, 0xbb, 0xc6, 0]);
            let head = Head::read(head).unwrap();
            assert_eq!((head.number, head.length), (7, rest.len()));
            assert!(!head.is_answer_to(7), "a call is none");
        }
        for body in ["1", "\"a\"", "[1", "x"] {
            assert!(call().write(1, body.as_bytes(), false).is_err(), "{body}");
        }
    }

    #[test]
    fn answers_are_read() {
        let read = |flags: u8, status: u8, body: &[u8]| {
            let mut head = [0xda, 0xbb, flags, status, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0];
            head[HEAD - 4..].copy_from_slice(&(body.len() as u32).to_be_bytes());
            let head = Head::read(&head).unwrap();
            assert_eq!(head.is_answer_to(7), flags == 6);
            assert!(!head.is_answer_to(8));
            head.outcome(body)
        };
        let value = |text: &str| Some(Outcome::Value(text.as_bytes().to_vec()));
        for (body, outcome) in [
            (&b"1\n{\"a\":1}\n"[..], value("{\"a\":1}")),
            (b"4\n5\n{}\n", value("5")),
            (b"1\n\"x\"", value("\"x\"")),
            (b"2\n", Some(Outcome::Nothing)),
            (b"5\n{}\n", Some(Outcome::Nothing)),
            (b"0\n{\"m\":1}\n", Some(Outcome::Failed(b"{\"m\":1}".to_vec()))),
            (b"3\n\"e\"\n{}\n", Some(Outcome::Failed(b"\"e\"".to_vec()))),
            (b"7\n", None),
            (b"1", None),
            (b"", None),
        ] {
            assert_eq!(read(6, 20, body), outcome, "{body:?}");
        }
        assert_eq!(read(6, 40, b"\"no such service\"\n"), Some(Outcome::Failed(b"\"no such service\"\n".to_vec())));
        read(0x26, 20, b"null\n");
        assert!(Head::read(b"HTTP/1.1 400 Bad").is_none());
    }
}
