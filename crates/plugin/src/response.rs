//! The response as plugins see it, whoever gave it.

use weir_wire::Reject;
use weir_wire::buffer::Buffer;
use weir_wire::head::{Content, Http1, Limits, ResponseHead};
use weir_wire::method::Method;

use crate::Failure;
use crate::encoder::Encoder;

/// A response on its way to the client.
#[derive(Debug)]
pub struct Response {
    /// The upstream's bytes: its head, then what has been received of the body.
    pub buffer: Buffer,
    /// The head; of an answer made here it holds only added fields.
    pub head: ResponseHead,
    /// Bytes of the buffer that the head takes.
    pub head_len: usize,
    /// Source of the response.
    pub origin: Origin,
    /// Source of the body.
    pub source: BodySource,
    /// The body, when it is made here or was replaced.
    pub body: Vec<u8>,
    /// Lines of the body's trailer section, as far as they have arrived: `Name: value` and a line end each.
    pub trailers: Vec<u8>,
    /// True when the trailer section is not passed on to the client.
    pub drops_trailers: bool,
    /// True once it is known, to a plugin that asked for the body, that the answer has none.
    pub is_bodyless: bool,
    /// True if plugins change the body on its way.
    pub filtered: bool,
    /// True if the body is collected whole before plugins see it.
    pub collected: bool,
    /// Encoder of the body's content coding.
    pub(crate) encoder: Option<Box<dyn Encoder>>,
}

/// Source of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// There is none yet.
    #[default]
    Nobody,
    /// The upstream.
    Upstream,
    /// The router or a plugin.
    Gateway,
    /// The gateway, because of a failure.
    Failed(Failure),
}

/// Source of a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodySource {
    /// From the upstream's connection, framed as its head says.
    #[default]
    Upstream,
    /// From [`Response::body`].
    Here,
}

impl Response {
    pub(crate) fn new(buffer: usize) -> Self {
        Self {
            buffer: Buffer::new(buffer),
            head: ResponseHead::default(),
            head_len: 0,
            origin: Origin::Nobody,
            source: BodySource::Upstream,
            body: Vec::new(),
            trailers: Vec::new(),
            drops_trailers: false,
            is_bodyless: false,
            filtered: false,
            collected: false,
            encoder: None,
        }
    }

    /// Reads an HTTP/1 head from the front of the buffer; `None` when more bytes are needed. `to` is the method of the
    /// request that it answers.
    ///
    /// # Errors
    /// As [`ResponseHead::parse`].
    pub fn parse(&mut self, limits: &Limits, to: Method) -> Result<Option<Http1>, Reject> {
        let found = self.head.parse(self.buffer.bytes(), limits, to)?;
        self.head_len = found.map_or(0, |http1| http1.len);
        Ok(found)
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.buffer.clear();
        self.head.fields.clear();
        self.head.status = 0;
        self.head_len = 0;
        self.head.reason = weir_wire::Span::default();
        self.head.content = Content::None;
        self.origin = Origin::Nobody;
        self.source = BodySource::Upstream;
        self.body.clear();
        self.trailers.clear();
        self.drops_trailers = false;
        self.is_bodyless = false;
        self.filtered = false;
        self.collected = false;
        self.forget_encoder();
    }

    #[inline]
    pub(crate) fn forget_encoder(&mut self) {
        if self.encoder.is_some() {
            self.encoder = None;
        }
    }

    /// Makes the content coding of a piece of the body, where a plugin has chosen one.
    ///
    /// # Errors
    /// The body cannot be encoded.
    pub fn encode(&mut self, piece: &mut Vec<u8>, last: bool) -> Result<(), Failure> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        encoder.encode(piece, last)?;
        if last {
            self.encoder = None;
        }
        Ok(())
    }

    /// Begins an answer made here: no fields, no body.
    pub fn begin(&mut self, status: u16, origin: Origin) {
        self.reset();
        self.head.status = status;
        self.origin = origin;
        self.source = BodySource::Here;
    }

    /// Bytes of the body, where that is known before it has come.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        match (self.source, self.head.content) {
            (BodySource::Here, _) => Some(self.body.len() as u64),
            (BodySource::Upstream, Content::Length(length)) => Some(length),
            (BodySource::Upstream, Content::None) => Some(0),
            (BodySource::Upstream, Content::Unknown) => None,
        }
    }

    /// The fields of the trailer section, as far as they have arrived.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let lines = self.trailers.split(|byte| *byte == b'\n');
        lines.filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at_checked(colon)?;
            Some((name, weir_wire::trim_ows(value.get(1..)?.trim_ascii_end())))
        })
    }

    /// The value of the first trailer field with this name.
    #[must_use]
    pub fn trailer(&self, name: &[u8]) -> Option<&[u8]> {
        self.trailers().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Status of the gRPC call that this answers: from the trailer section, or from the head where the answer is one
    /// without a body. `None` while there is no status, and for answers of other kinds.
    #[must_use]
    pub fn grpc_status(&self) -> Option<&[u8]> {
        self.trailer(b"grpc-status").or_else(|| self.field_str("grpc-status"))
    }

    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// The value of the first field with this name.
    #[must_use]
    pub fn field_str(&self, name: &str) -> Option<&[u8]> {
        self.head.fields.get_str(self.buffer.bytes(), name.as_bytes())
    }
}
