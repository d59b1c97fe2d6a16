//! Message heads: split, checked and framed in one pass (RFC 9112 sections 2 to 7).

mod split;

use crate::buffer::Buffer;
use crate::fields::{Field, Fields, State};
use crate::method::Method;
use crate::name::{Known, mark};
use crate::{Reject, Span, authority, first_below, is_field_byte, is_tchar, list, status};

/// Maximum number of connection options (RFC 9110 section 7.6.1) in a head; each costs a pass over the fields.
const MAX_CONNECTION_OPTIONS: usize = 64;
/// Maximum number of empty lines skipped before a request line (RFC 9112 section 2.2 asks for at least one).
const MAX_EMPTY_LINES: usize = 16;

/// Error for a head with more fields than [`Limits::fields`] allows.
pub const TOO_MANY_FIELDS: Reject = Reject::new(431, "too many fields");

/// Bounds of a head.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a whole head; 431 above.
    pub head: usize,
    /// Number of fields; 431 above.
    pub fields: usize,
    /// Bytes of a request target; 414 above.
    pub target: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head: 64 << 10, fields: 128, target: 32 << 10 }
    }
}

/// Framing of an HTTP/1 message's body (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// No body.
    #[default]
    None,
    /// Body of this many bytes.
    Length(u64),
    /// Body in chunked transfer coding.
    Chunked,
    /// Body that ends when the connection closes; responses only.
    UntilClose,
}

/// Content of a message as announced by its head (RFC 9110 section 6.4), in any protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// No content.
    #[default]
    None,
    /// Content of this many bytes.
    Length(u64),
    /// Content of unknown length.
    Unknown,
}

impl From<Framing> for Content {
    fn from(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::None,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked | Framing::UntilClose => Self::Unknown,
        }
    }
}

/// Protocol version of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
}

impl Version {
    /// Name of the version, as in a request line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2.0",
        }
    }
}

/// Properties of a head that only concern an HTTP/1 connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http1 {
    /// Length of the head in bytes, including skipped empty lines; the body begins after it.
    pub len: usize,
    /// Framing of the body.
    pub framing: Framing,
    /// True if the connection may be reused after this message (RFC 9112 section 9.3).
    pub keep_alive: bool,
}

/// A request head, as spans of the buffer that holds its text.
#[derive(Debug, Default)]
pub struct RequestHead {
    /// Method.
    pub method: Method,
    /// Bytes of the method.
    pub method_span: Span,
    /// Request target as received.
    pub target: Span,
    /// Protocol version of the request.
    pub version: Version,
    /// Fields.
    pub fields: Fields,
    /// Content of the request.
    pub content: Content,
    /// True if the client waits for 100 (Continue) before it sends the body.
    pub expect_continue: bool,
    /// True if the request asks for a WebSocket (RFC 6455 section 4.1); other upgrades are never forwarded.
    pub websocket: bool,
    /// Checked `Host` field, if there was one.
    pub host: Option<Span>,
    /// Length of the host without its port, in bytes.
    pub host_len: usize,
}

/// A response head, as spans of the buffer that holds its text.
#[derive(Debug, Default)]
pub struct ResponseHead {
    /// Status code, 100 to 999.
    pub status: u16,
    /// Reason phrase as received.
    pub reason: Span,
    /// Fields.
    pub fields: Fields,
    /// Content of the response.
    pub content: Content,
}

/// Results of the header pass that requests and responses have in common.
#[derive(Default)]
struct Facts {
    length: Option<u64>,
    transfer: Transfer,
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    /// True if `Connection` lists field names.
    names_fields: bool,
}

#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum Transfer {
    #[default]
    Absent,
    Chunked,
    /// Well formed with chunked as the last coding, but with an unsupported coding before it.
    Unknown,
}

impl RequestHead {
    /// Parses an HTTP/1 head at the front of `buf`; `None` if more bytes are needed.
    ///
    /// # Errors
    /// 400 for a malformed or ambiguous head, 414, 417, 431, 501 for an unknown transfer coding, 505.
    pub fn parse(&mut self, buf: &[u8], limits: &Limits) -> Result<Option<Http1>, Reject> {
        let skip = skip_empty_lines(buf)?;
        let partial = |line| check_partial(buf.get(skip..).unwrap_or_default(), line, limits).map(|()| None);
        if buf.get(skip..) == Some(b"\r") {
            // Half of an empty line.
            return Ok(None);
        }
        let Some(line) = split::request_line(buf, skip)? else { return partial(0) };
        if line.target.len() > limits.target {
            return Err(Reject::new(414, "request target too long"));
        }
        let version = if line.minor == 1 { Version::Http11 } else { Version::Http10 };
        self.begin(buf, line.method, line.target, version);
        let Some(len) = split::fields(buf, line.end, limits.fields, &mut self.fields)? else {
            return partial(line.end);
        };
        if len - skip > limits.head {
            return Err(Reject::new(431, "head too large"));
        }
        let (framing, keep_alive) = self.decide(buf)?;
        Ok(Some(Http1 { len, framing, keep_alive }))
    }

    /// Makes a head of parts that came in another protocol than HTTP/1, such as the fields of an HTTP/2 stream. Their text
    /// is appended to `text`, over which the spans are; the body is to follow it there. `is_open` tells that a body
    /// follows whose length no field has to say. Checks are those of [`RequestHead::parse`].
    ///
    /// # Errors
    /// 400 for what HTTP/1 could not say, what is ambiguous, and fields that concern an HTTP/1 connection (RFC 9113
    /// section 8.2.2); 414, 417, 431.
    pub fn build<'f>(
        &mut self,
        text: &mut Buffer,
        (method, target): (&[u8], &[u8]),
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        is_open: bool,
        limits: &Limits,
    ) -> Result<(), Reject> {
        let is_token = |text: &[u8]| !text.is_empty() && text.iter().all(|b| is_tchar(*b));
        if !is_token(method) || target.is_empty() || first_below(target, 0, 0x21) < target.len() {
            return Err(Reject::bad("malformed request line"));
        }
        if target.len() > limits.target {
            return Err(Reject::new(414, "request target too long"));
        }
        let start = text.len();
        let append = |text: &mut Buffer, bytes: &[u8], end: &[u8]| {
            if text.len() - start + bytes.len() > limits.head {
                return Err(Reject::new(431, "head too large"));
            }
            let at = text.len();
            text.extend(bytes);
            text.extend(end);
            Ok(Span::new(at, at + bytes.len()))
        };
        let method = append(text, method, b" ")?;
        let target = append(text, target, b"\r\n")?;
        self.begin(text.bytes(), method, target, Version::Http11);
        for (name, value) in fields {
            let id = Known::classify(name);
            let of_connection = matches!(
                id,
                Known::Connection
                    | Known::KeepAlive
                    | Known::ProxyConnection
                    | Known::TransferEncoding
                    | Known::Upgrade
                    | Known::Http2Settings
            );
            // Names that are known have no other bytes; a tab is below the first byte that is looked for.
            let is_plain =
                id != Known::Other || name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-') && !name.is_empty();
            let tail = value.get(first_below(value, 0, 0x20)..).unwrap_or_default();
            let is_padded = matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t']);
            if of_connection || is_padded || !(is_plain || is_token(name)) || !tail.iter().all(|b| is_field_byte(*b)) {
                return Err(Reject::bad("malformed field"));
            }
            if self.fields.list.len() >= limits.fields {
                return Err(TOO_MANY_FIELDS);
            }
            if !is_plain {
                self.fields.note_lookalike();
            }
            let mark = mark(id, name);
            let (name, value) = (append(text, name, b": ")?, append(text, value, b"\r\n")?);
            self.fields.push(Field { name, value, end: value.end + 2, id, mark, state: State::Kept });
        }
        let (framing, _) = self.decide(text.bytes())?;
        if framing == Framing::None && is_open {
            self.content = Content::Unknown;
        }
        Ok(())
    }

    fn begin(&mut self, base: &[u8], method: Span, target: Span, version: Version) {
        self.method = Method::parse(method.of(base));
        self.method_span = method;
        self.target = target;
        self.version = version;
        self.host = None;
        self.expect_continue = false;
        self.websocket = false;
        self.fields.clear();
    }

    /// Evaluates the fields: framing, connection options, Host, Expect. Returns the framing of an HTTP/1 body, and
    /// true if its connection may be reused.
    fn decide(&mut self, buf: &[u8]) -> Result<(Framing, bool), Reject> {
        let mut facts = Facts::default();
        let mut upgrade_websocket = false;
        let mut expects = 0;
        for field in &mut self.fields.list {
            let value = field.value.of(buf);
            match field.id {
                Known::Host => {
                    if self.host.is_some() {
                        return Err(Reject::bad("repeated Host"));
                    }
                    self.host_len = authority::parse(value)?.host.len();
                    self.host = Some(field.value);
                }
                Known::Expect => {
                    expects += 1;
                    if self.version == Version::Http10 {
                        field.state = State::Hop;
                    } else if !value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(Reject::new(417, "unknown expectation"));
                    } else if expects > 1 {
                        return Err(Reject::bad("repeated Expect"));
                    } else {
                        self.expect_continue = true;
                    }
                }
                Known::Upgrade => {
                    field.state = State::Hop;
                    upgrade_websocket = value.eq_ignore_ascii_case(b"websocket");
                }
                _ => facts.field(field, buf)?,
            }
        }
        let is_first = self.version == Version::Http10;
        if !is_first && self.host.is_none() {
            return Err(Reject::bad("missing Host"));
        }
        if self.fields.has_lookalikes() {
            self.fields.refuse_framing_lookalikes(buf)?;
            self.fields.remove_lookalikes_of_ours(buf);
        }
        facts.hold_back_listed(&mut self.fields, buf)?;
        let framing = match (facts.transfer, facts.length) {
            (Transfer::Absent, None) => Framing::None,
            (Transfer::Absent, Some(n)) => Framing::Length(n),
            (_, Some(_)) => return Err(Reject::bad("Content-Length together with Transfer-Encoding")),
            (_, None) if is_first => return Err(Reject::bad("Transfer-Encoding in HTTP/1.0")),
            (Transfer::Chunked, None) => Framing::Chunked,
            (Transfer::Unknown, None) => return Err(Reject::new(501, "unknown transfer coding")),
        };
        self.content = framing.into();
        self.websocket =
            upgrade_websocket && facts.upgrade && !is_first && self.method == Method::Get && framing == Framing::None;
        Ok((framing, !facts.close && (!is_first || facts.keep_alive)))
    }
}

impl ResponseHead {
    /// Parses an HTTP/1 head at the front of `buf`; `None` if more bytes are needed.
    ///
    /// `to` is the method of the answered request: a response to HEAD has no body.
    ///
    /// # Errors
    /// 502 for any response that a strict recipient has to refuse (RFC 9112 section 6.3), or that exceeds the limits.
    pub fn parse(&mut self, buf: &[u8], limits: &Limits, to: Method) -> Result<Option<Http1>, Reject> {
        self.parse_inner(buf, limits, to).map_err(|reject| Reject { status: 502, ..reject })
    }

    fn parse_inner(&mut self, buf: &[u8], limits: &Limits, to: Method) -> Result<Option<Http1>, Reject> {
        let partial = || if buf.len() >= limits.head { Err(Reject::bad("response head too large")) } else { Ok(None) };
        let Some(line) = split::status_line(buf)? else { return partial() };
        if line.status < 100 {
            return Err(Reject::bad("status code out of range"));
        }
        self.fields.clear();
        let Some(len) = split::fields(buf, line.end, limits.fields, &mut self.fields)? else { return partial() };
        if len > limits.head {
            return Err(Reject::bad("response head too large"));
        }
        let (code, minor) = (line.status, line.minor);
        self.status = code;
        self.reason = line.reason;
        let mut facts = Facts::default();
        for field in &mut self.fields.list {
            match field.id {
                Known::Upgrade => field.state = State::Hop,
                _ => facts.field(field, buf)?,
            }
        }
        if self.fields.has_lookalikes() {
            self.fields.refuse_framing_lookalikes(buf)?;
        }
        facts.hold_back_listed(&mut self.fields, buf)?;
        let keep_alive = !facts.close && (minor == 1 || facts.keep_alive);
        let framing = match (facts.transfer, facts.length) {
            (Transfer::Absent, None) => Framing::UntilClose,
            (Transfer::Absent, Some(n)) => Framing::Length(n),
            (_, Some(_)) => return Err(Reject::bad("Content-Length together with Transfer-Encoding")),
            (_, None) if minor == 0 => return Err(Reject::bad("Transfer-Encoding in HTTP/1.0")),
            (Transfer::Chunked, None) => Framing::Chunked,
            (Transfer::Unknown, None) => return Err(Reject::bad("unknown transfer coding")),
        };
        let framing = if to == Method::Head || status::is_bodyless(code) {
            if code != 304 && status::is_bodyless(code) {
                // RFC 9110 section 8.6: no Content-Length in a 1xx or 204.
                self.fields.remove_known(Known::ContentLength);
            }
            Framing::None
        } else {
            framing
        };
        self.content = framing.into();
        Ok(Some(Http1 { len, framing, keep_alive: keep_alive && framing != Framing::UntilClose }))
    }
}

impl Facts {
    /// Records one field's effect on framing and connection.
    fn field(&mut self, field: &mut Field, buf: &[u8]) -> Result<(), Reject> {
        let value = field.value.of(buf);
        match field.id {
            Known::Other => {}
            Known::ContentLength => {
                if self.length.is_some() {
                    return Err(Reject::bad("repeated Content-Length"));
                }
                self.length = Some(parse_length(value).ok_or(Reject::bad("invalid Content-Length"))?);
            }
            Known::TransferEncoding => {
                field.state = State::Hop;
                if self.transfer != Transfer::Absent {
                    return Err(Reject::bad("repeated Transfer-Encoding"));
                }
                self.transfer = parse_transfer(value)?;
            }
            Known::Connection => {
                field.state = State::Hop;
                if value == b"keep-alive" {
                    self.keep_alive = true;
                    return Ok(());
                }
                for option in list(value) {
                    if option.eq_ignore_ascii_case(b"close") {
                        self.close = true;
                    } else if option.eq_ignore_ascii_case(b"keep-alive") {
                        self.keep_alive = true;
                    } else if option.eq_ignore_ascii_case(b"upgrade") {
                        self.upgrade = true;
                    } else {
                        self.names_fields = true;
                    }
                }
            }
            Known::KeepAlive | Known::ProxyConnection | Known::Te | Known::Http2Settings => field.state = State::Hop,
            _ => {}
        }
        Ok(())
    }

    /// Marks the fields listed in `Connection` as hop-by-hop (RFC 9110 section 7.6.1), except those that frame or
    /// route the message: a client must not be able to withhold these from the upstream.
    fn hold_back_listed(&self, fields: &mut Fields, buf: &[u8]) -> Result<(), Reject> {
        if !self.names_fields {
            return Ok(());
        }
        let mut count = 0;
        for i in 0..fields.list.len() {
            let Some(value) = fields.list.get(i).filter(|f| f.id == Known::Connection).map(|f| f.value) else {
                continue;
            };
            for option in list(value.of(buf)) {
                count += 1;
                if count > MAX_CONNECTION_OPTIONS {
                    return Err(Reject::bad("too many connection options"));
                }
                let kept = matches!(Known::classify(option), Known::Host | Known::ContentLength);
                if !option.is_empty() && !kept {
                    fields.hold_back_text(buf, option);
                }
            }
        }
        Ok(())
    }
}

/// Number of bytes of empty lines before the request line.
fn skip_empty_lines(buf: &[u8]) -> Result<usize, Reject> {
    let mut skip = 0;
    while let Some([b'\r', b'\n']) = buf.get(skip..skip + 2) {
        skip += 2;
        if skip > 2 * MAX_EMPTY_LINES {
            return Err(Reject::bad("too many empty lines"));
        }
    }
    match buf.get(skip..) {
        Some([b'\n', ..]) => Err(Reject::bad("bare LF before the request line")),
        _ => Ok(skip),
    }
}

/// Refuses an incomplete head that is too large already; `line` is 0 until its first line is complete.
fn check_partial(bytes: &[u8], line: usize, limits: &Limits) -> Result<(), Reject> {
    // The constant leaves room for the method, two spaces and the version beside the target.
    if line == 0 && bytes.len() > limits.target + 64 {
        return Err(Reject::new(414, "request line too long"));
    }
    if bytes.len() >= limits.head {
        return Err(Reject::new(431, "head too large"));
    }
    Ok(())
}

/// Parses a length: digits only, at most 2^63 - 1 (RFC 9110 section 8.6).
fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    value
        .iter()
        .try_fold(0u64, |n, b| {
            b.is_ascii_digit().then(|| n.checked_mul(10)?.checked_add(u64::from(b - b'0'))).flatten()
        })
        .filter(|n| *n <= i64::MAX as u64)
}

/// Parses transfer codings: chunked exactly once, and last (RFC 9112 section 6.1).
fn parse_transfer(value: &[u8]) -> Result<Transfer, Reject> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(Transfer::Chunked);
    }
    let mut chunked = 0;
    let mut last_chunked = false;
    for coding in list(value) {
        if coding.is_empty() || !coding.iter().all(|b| is_tchar(*b)) {
            return Err(Reject::bad("malformed Transfer-Encoding"));
        }
        last_chunked = coding.eq_ignore_ascii_case(b"chunked");
        chunked += usize::from(last_chunked);
    }
    match (last_chunked, chunked) {
        (true, 1) => Ok(Transfer::Unknown),
        _ => Err(Reject::bad("chunked is not the final transfer coding")),
    }
}

#[cfg(test)]
mod tests;
