//! Spans in the messages of OTLP (opentelemetry-proto 1.x), encoded as they are written.

use weir_expr::Value;
use weir_telemetry::reports::{Frame, Layer};

use super::{TraceContext, random_span};

/// Kind of a span: the server's side of a request.
pub(crate) const SERVER: u64 = 2;
/// Kind of a span: the client's side of a request.
pub(crate) const CLIENT: u64 = 3;
/// Kind of a span: work within the gateway.
pub(crate) const INTERNAL: u64 = 1;

/// Value of an attribute of a resource.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Attribute {
    Text(String),
    Number(f64),
    Boolean(bool),
}

/// The frame of batches: an `ExportTraceServiceRequest` with this resource, whose records are fields of a `ScopeSpans`.
pub(crate) fn frame(resource: &[(String, Attribute)], scope: &str, version: &str) -> Frame {
    let mut of_scope = Vec::new();
    nested(&mut of_scope, key(1, BYTES), |out| {
        push_bytes(out, 1, scope.as_bytes());
        push_bytes(out, 2, version.as_bytes());
    });
    let mut of_resource = Vec::new();
    nested(&mut of_resource, key(1, BYTES), |out| {
        for (name, value) in resource {
            push_attribute(out, 1, name, |out| match value {
                Attribute::Text(text) => push_bytes(out, 1, text.as_bytes()),
                Attribute::Boolean(value) => push_number(out, 2, u64::from(*value)),
                Attribute::Number(number) => push_fixed64(out, 4, number.to_bits()),
            });
        }
    });
    let layers = [Layer { before: of_scope, key: key(2, BYTES) }, Layer { before: of_resource, key: key(1, BYTES) }];
    Frame::Layers(layers.into())
}

/// A span being written.
#[derive(Debug)]
pub(crate) struct Span<'o> {
    out: &'o mut Vec<u8>,
}

/// The identity and the times of a span.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpanHead<'a> {
    pub(crate) trace: u128,
    pub(crate) id: u64,
    pub(crate) parent: Option<u64>,
    pub(crate) name: &'a [&'a [u8]],
    pub(crate) kind: u64,
    /// Microseconds since 1970.
    pub(crate) begin: u64,
    /// Microseconds since 1970.
    pub(crate) end: u64,
}

impl<'a> SpanHead<'a> {
    /// The gateway's own span of a request.
    pub(crate) fn server(context: &TraceContext, name: &'a [&'a [u8]], begin: u64, end: u64) -> Self {
        let (trace, id) = (context.trace.number, context.span);
        Self { trace, id, parent: context.parent, name, kind: SERVER, begin, end }
    }

    /// A span within that of the gateway.
    pub(crate) fn child(context: &TraceContext, name: &'a [&'a [u8]], kind: u64, begin: u64, end: u64) -> Self {
        let (trace, id, parent) = (context.trace.number, random_span(), Some(context.span));
        Self { trace, id, parent, name, kind, begin, end: end.max(begin) }
    }
}

/// Appends a span as a field of a `ScopeSpans`.
pub(crate) fn push_span(out: &mut Vec<u8>, head: &SpanHead<'_>, write: impl FnOnce(&mut Span<'_>)) {
    nested(out, key(2, BYTES), |out| {
        push_bytes(out, 1, &head.trace.to_be_bytes());
        push_bytes(out, 2, &head.id.to_be_bytes());
        if let Some(parent) = head.parent {
            push_bytes(out, 4, &parent.to_be_bytes());
        }
        nested(out, key(5, BYTES), |out| head.name.iter().for_each(|part| push_text(out, part)));
        push_number(out, 6, head.kind);
        push_fixed64(out, 7, head.begin.saturating_mul(1000));
        push_fixed64(out, 8, head.end.saturating_mul(1000));
        write(&mut Span { out });
    });
}

impl Span<'_> {
    /// Adds the state that vendors have given a trace.
    pub(crate) fn state(&mut self, state: &[u8]) {
        nested(self.out, key(3, BYTES), |out| push_text(out, state));
    }

    /// Adds an attribute with a text. What is not UTF-8 in it becomes U+FFFD: collectors refuse a batch otherwise.
    pub(crate) fn text(&mut self, name: &str, text: &[u8]) {
        push_attribute(self.out, 9, name, |out| nested(out, key(1, BYTES), |out| push_text(out, text)));
    }

    /// Adds an attribute with a text, whose name is that of a field in lower case.
    pub(crate) fn lowered(&mut self, name: &str, text: &[u8]) {
        nested(self.out, key(9, BYTES), |out| {
            out.push(key(1, BYTES));
            push_varint(out, name.len() as u64);
            out.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
            nested(out, key(2, BYTES), |out| nested(out, key(1, BYTES), |out| push_text(out, text)));
        });
    }

    /// Adds an attribute with the text of a variable.
    pub(crate) fn value(&mut self, name: &str, value: Value<'_>) {
        match value {
            Value::Bytes(text) => self.text(name, text),
            other => push_attribute(self.out, 9, name, |out| nested(out, key(1, BYTES), |out| other.write_to(out))),
        }
    }

    /// Adds an attribute with a number.
    pub(crate) fn number(&mut self, name: &str, number: u64) {
        push_attribute(self.out, 9, name, |out| push_number(out, 3, number));
    }

    /// Adds an event at a time in microseconds since 1970.
    pub(crate) fn event(&mut self, name: &str, at: u64) {
        nested(self.out, key(11, BYTES), |out| {
            push_fixed64(out, 1, at.saturating_mul(1000));
            push_bytes(out, 2, name.as_bytes());
        });
    }

    /// Says that the span has failed.
    pub(crate) fn error(&mut self, message: &[&[u8]]) {
        nested(self.out, key(15, BYTES), |out| {
            nested(out, key(2, BYTES), |out| message.iter().for_each(|part| push_text(out, part)));
            push_number(out, 3, 2);
        });
    }
}

/// Wire type of numbers.
const VARINT: u8 = 0;
/// Wire type of numbers of eight bytes.
const FIXED64: u8 = 1;
/// Wire type of texts, bytes and messages.
pub(crate) const BYTES: u8 = 2;

pub(crate) const fn key(number: u8, wire_type: u8) -> u8 {
    number << 3 | wire_type
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn push_number(out: &mut Vec<u8>, field: u8, number: u64) {
    out.push(key(field, VARINT));
    push_varint(out, number);
}

fn push_fixed64(out: &mut Vec<u8>, field: u8, number: u64) {
    out.push(key(field, FIXED64));
    out.extend_from_slice(&number.to_le_bytes());
}

pub(crate) fn push_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(key(field, BYTES));
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a text, which has to be UTF-8 in a message.
fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        out.extend_from_slice(chunk.valid().as_bytes());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

fn push_attribute(out: &mut Vec<u8>, field: u8, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    nested(out, key(field, BYTES), |out| {
        push_bytes(out, 1, name.as_bytes());
        nested(out, key(2, BYTES), value);
    });
}

/// Appends a field whose content is written before its length is known. Most have less than 128 bytes; a longer one is moved.
pub(crate) fn nested(out: &mut Vec<u8>, key: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(key);
    let at = out.len();
    out.push(0);
    write(out);
    let mut len = out.len() - at - 1;
    let mut bytes = [0u8; 10];
    let mut count = 0;
    for byte in &mut bytes {
        count += 1;
        *byte = len as u8 & 0x7f;
        len >>= 7;
        if len == 0 {
            break;
        }
        *byte |= 0x80;
    }
    let more = count - 1;
    if more > 0 {
        let end = out.len();
        out.resize(end + more, 0);
        out.copy_within(at + 1..end, at + 1 + more);
    }
    if let (Some(room), Some(bytes)) = (out.get_mut(at..at + count), bytes.get(..count)) {
        room.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::nested;

    #[test]
    fn lengths_of_any_size_stand_ahead_of_their_content() {
        for (len, head) in [(0, &[10, 0][..]), (127, &[10, 127]), (128, &[10, 0x80, 1]), (20_000, &[10, 0xa0, 0x9c, 1])]
        {
            let mut out = vec![1];
            nested(&mut out, 10, |out| out.extend((0..len).map(|at| at as u8)));
            assert_eq!(out.get(1..=head.len()), Some(head), "{len}");
            let content = &out[1 + head.len()..];
            assert!(content.len() == len && content.iter().enumerate().all(|(at, byte)| *byte == at as u8), "{len}");
        }
    }
}
