//! A client of either protocol, for tests of what does not depend on it. Tests write requests as HTTP/1.1 has them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use weir_wire::http2::ErrorCode;

use super::client::{RawClient, get};
use super::http2::H2Client;
use super::message::{Fault, Fields, Framing, Head, READ_LIMIT, Response};

/// The protocol that the clients of a test speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// By prior knowledge, without TLS.
    Http2,
}

/// Makes tests out of functions with a [`Protocol`]: one over each.
macro_rules! over_both {
    ($($test:ident),* $(,)?) => {
        mod http1 {
            $(#[test] fn $test() { super::$test($crate::harness::Protocol::Http1); })*
        }
        mod http2 {
            $(#[test] fn $test() { super::$test($crate::harness::Protocol::Http2); })*
        }
    };
}
pub(crate) use over_both;

/// A connection to the gateway.
pub(crate) enum AnyClient {
    Http1(RawClient),
    Http2(Box<Translator>),
}

impl AnyClient {
    pub(crate) fn connect(protocol: Protocol, addr: SocketAddr) -> Self {
        match protocol {
            Protocol::Http1 => Self::Http1(RawClient::connect(addr)),
            Protocol::Http2 => Self::Http2(Box::new(Translator::connect(addr))),
        }
    }

    /// Sends all bytes.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        match self {
            Self::Http1(client) => client.send(bytes),
            Self::Http2(client) => assert!(client.offer(bytes.as_ref()), "send to the gateway"),
        }
    }

    /// Sends as many bytes as the gateway accepts. Returns true if that was all of them.
    pub(crate) fn offer(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        match self {
            Self::Http1(client) => client.offer(bytes),
            Self::Http2(client) => client.offer(bytes.as_ref()),
        }
    }

    /// Sends a request and reads the response.
    pub(crate) fn request(&mut self, bytes: impl AsRef<[u8]>) -> Response {
        match self {
            Self::Http1(client) => client.request(bytes),
            Self::Http2(client) => {
                client.offer(bytes.as_ref());
                self.response()
            }
        }
    }

    /// Sends `GET path` for `Host: a.test` and reads the response.
    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.request(get(path))
    }

    /// Reads the response to a request with any method except HEAD.
    pub(crate) fn response(&mut self) -> Response {
        self.try_response().unwrap_or_else(|fault| panic!("no answer: {fault:?}"))
    }

    /// Reads a response, or returns the fault that prevents that.
    pub(crate) fn try_response(&mut self) -> Result<Response, Fault> {
        match self {
            Self::Http1(client) => client.try_response(),
            Self::Http2(client) => client.try_response(),
        }
    }

    /// Reads a response that begins within this time; `None` if none does.
    pub(crate) fn try_response_within(&mut self, time: Duration) -> Option<Result<Response, Fault>> {
        match self {
            Self::Http1(client) => client.try_response_within(time),
            Self::Http2(client) => client.responds_within(time).then(|| client.try_response()),
        }
    }

    /// Reads a response head alone, an interim one too.
    pub(crate) fn head(&mut self) -> Head {
        match self {
            Self::Http1(client) => client.head(),
            Self::Http2(client) => client.head(),
        }
    }

    /// Reads one piece of a body: a chunk, or the content of a DATA frame. `None` for the end.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Http1(client) => client.chunk(),
            Self::Http2(client) => client.chunk(),
        }
    }

    /// Reads a body that has this framing over HTTP/1.1, or returns the fault that cuts it off.
    pub(crate) fn body(&mut self, framing: Framing) -> Result<(Vec<u8>, Fields), Fault> {
        match self {
            Self::Http1(client) => client.body(framing),
            Self::Http2(client) => client.try_response().map(|response| (response.body, response.trailers)),
        }
    }

    /// Gives the request up: with a reset of the connection, or of the stream alone. The connection over HTTP/2 stays
    /// open with what is returned.
    pub(crate) fn reset(self) -> Option<Self> {
        match self {
            Self::Http1(client) => {
                client.reset();
                None
            }
            Self::Http2(mut client) => {
                let stream = client.front();
                client.client.reset(stream, ErrorCode::Cancel);
                Some(Self::Http2(client))
            }
        }
    }

    /// Checks that the gateway takes nothing more of a refused request: over HTTP/1.1 it closes the connection, over
    /// HTTP/2 other streams go on.
    pub(crate) fn expect_close(&mut self) {
        match self {
            Self::Http1(client) => client.expect_close(),
            Self::Http2(client) => {
                client.client.ping();
                assert_eq!(client.client.gone, None, "the connection goes on");
            }
        }
    }

    /// Checks that no response begins for this time.
    pub(crate) fn expect_quiet(&mut self, time: Duration) {
        match self {
            Self::Http1(client) => client.expect_quiet(time),
            Self::Http2(client) => assert!(!client.responds_within(time), "the gateway should have waited"),
        }
    }

    /// Waits longer for each read from now on.
    pub(crate) fn be_patient(&mut self, limit: Duration) {
        match self {
            Self::Http1(client) => client.sender().set_read_timeout(Some(limit)).expect("set a time limit"),
            Self::Http2(client) => client.client.set_read_timeout(limit),
        }
    }
}

/// A client of HTTP/2 whose requests are written as those of HTTP/1.1, in pieces of any size.
pub(crate) struct Translator {
    client: H2Client,
    /// Bytes that are not yet sent, such as a part of a head.
    input: Vec<u8>,
    state: State,
    /// Streams whose response was not read yet.
    waiting: VecDeque<u32>,
}

/// Kind of the next bytes.
#[derive(Debug, Clone, Copy)]
enum State {
    Head,
    Content {
        left: usize,
    },
    Size,
    Chunk {
        left: usize,
    },
    /// The end of a chunk's line.
    ChunkEnd,
    Trailers,
}

impl Translator {
    fn connect(addr: SocketAddr) -> Self {
        let client = H2Client::connect(addr);
        Self { client, input: Vec::new(), state: State::Head, waiting: VecDeque::new() }
    }

    /// The stream whose response comes next.
    fn front(&self) -> u32 {
        *self.waiting.front().expect("a request was sent")
    }

    /// Translates and sends bytes; false when the gateway takes no more of the request, whose rest is then dropped.
    fn offer(&mut self, bytes: &[u8]) -> bool {
        self.input.extend(bytes);
        while let Some(used) = self.step() {
            self.input.drain(..used);
            let Some(stream) = self.waiting.back() else { continue };
            if !matches!(self.state, State::Head) && self.client.is_over(*stream) {
                self.input.clear();
                return false;
            }
        }
        true
    }

    /// Sends what is there; the bytes that this has used, or `None` until there are more.
    fn step(&mut self) -> Option<usize> {
        let find = |what: &[u8]| self.input.windows(what.len()).position(|window| window == what);
        match self.state {
            State::Head => {
                let end = find(b"\r\n\r\n")? + 4;
                let head: String = self.input[..end].iter().map(|byte| char::from(*byte)).collect();
                let field = |wanted: &str| {
                    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
                    fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim().to_owned())
                };
                let length = field("content-length").map_or(0, |length| length.parse().expect("a length"));
                self.state = match field("transfer-encoding") {
                    Some(_) => State::Size,
                    None if length > 0 => State::Content { left: length },
                    None => State::Head,
                };
                let stream = self.client.open_head(&head, matches!(self.state, State::Head));
                self.waiting.push_back(stream);
                Some(end)
            }
            State::Content { left } => {
                let count = self.data(left)?;
                let ends = count == left;
                self.state = if ends { State::Head } else { State::Content { left: left - count } };
                Some(count)
            }
            State::Size => {
                let end = find(b"\r\n")?;
                let size = std::str::from_utf8(&self.input[..end]).expect("digits");
                let left = usize::from_str_radix(size, 16).expect("a size");
                self.state = if left == 0 { State::Trailers } else { State::Chunk { left } };
                Some(end + 2)
            }
            State::Chunk { left } => {
                let count = self.data(left)?;
                self.state = if count == left { State::ChunkEnd } else { State::Chunk { left: left - count } };
                Some(count)
            }
            State::ChunkEnd => (self.input.len() >= 2).then(|| {
                self.state = State::Size;
                2
            }),
            State::Trailers => {
                let end = if self.input.starts_with(b"\r\n") { 2 } else { find(b"\r\n\r\n")? + 4 };
                let lines = String::from_utf8_lossy(&self.input[..end]).into_owned();
                let fields: Vec<_> = lines.lines().filter_map(|line| line.split_once(':')).collect();
                let fields: Vec<_> =
                    fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.trim())).collect();
                let stream = *self.waiting.back().expect("a request has begun");
                match fields.is_empty() {
                    true => drop(self.client.offer_data(stream, b"", true)),
                    false => self.client.trailers(stream, &fields),
                }
                self.state = State::Head;
                Some(end)
            }
        }
    }

    /// Sends what is there of so many bytes of content; their number, or `None` if there are none.
    fn data(&mut self, left: usize) -> Option<usize> {
        let count = left.min(self.input.len());
        let ends = count == left && matches!(self.state, State::Content { .. });
        let stream = *self.waiting.back().expect("a request has begun");
        (count > 0).then(|| {
            self.client.offer_data(stream, &self.input[..count], ends);
            count
        })
    }

    fn try_response(&mut self) -> Result<Response, Fault> {
        let stream = self.waiting.pop_front().ok_or(Fault::Closed)?;
        let response = self.client.try_response(stream);
        if self.waiting.is_empty() && !matches!(self.state, State::Head) {
            // The rest of its request does not matter any more.
            self.state = State::Head;
            self.input.clear();
        }
        response
    }

    fn responds_within(&mut self, time: Duration) -> bool {
        let stream = self.front();
        self.client.set_read_timeout(time);
        let responds = self.client.has_head(stream);
        self.client.set_read_timeout(READ_LIMIT);
        responds
    }

    fn head(&mut self) -> Head {
        let stream = self.front();
        let (status, fields) = self.client.head(stream);
        Head { start: format!("HTTP/1.1 {status} {}", weir_wire::status::reason(status)), fields }
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let stream = self.front();
        self.client.piece(stream)
    }
}

impl H2Client {
    /// Sends a request that is written as one of HTTP/1.1; its stream.
    pub(crate) fn send_request(&mut self, text: &[u8]) -> u32 {
        let end = text.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
        let (head, body) = text.split_at(end);
        let head: String = head.iter().map(|b| char::from(*b)).collect();
        let is_chunked = head.to_ascii_lowercase().contains("\r\ntransfer-encoding:");
        let (body, trailers) = if is_chunked { unchunk(body) } else { (body.to_vec(), Vec::new()) };
        let id = self.open_head(&head, body.is_empty() && trailers.is_empty());
        if !body.is_empty() {
            self.data(id, &body, trailers.is_empty());
        }
        if !trailers.is_empty() {
            let trailers: Vec<_> = trailers.iter().map(|(name, value)| (name.clone(), value.as_str())).collect();
            self.trailers(id, &trailers);
        }
        id
    }

    /// Opens a stream with a head that is written as one of HTTP/1.1.
    pub(crate) fn open_head(&mut self, head: &str, ends: bool) -> u32 {
        let mut lines = head.split("\r\n");
        let start = lines.next().expect("a request line");
        let [method, target, _] = start.split(' ').collect::<Vec<_>>()[..] else { panic!("{start:?}") };
        let mut fields =
            vec![(":method".to_owned(), method), (":scheme".to_owned(), "http"), (":path".to_owned(), target)];
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').expect("a field");
            let value = value.trim_matches([' ', '\t']);
            match name.to_ascii_lowercase() {
                name if name == "host" => fields.insert(0, (":authority".to_owned(), value)),
                name if ["connection", "keep-alive", "transfer-encoding"].contains(&name.as_str()) => {}
                name => fields.push((name, value)),
            }
        }
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        self.open(&fields, ends)
    }
}

/// A body in chunks, decoded, and its trailers.
fn unchunk(mut body: &[u8]) -> (Vec<u8>, Vec<(String, String)>) {
    let mut content = Vec::new();
    let line = |body: &mut &[u8]| {
        let end = body.windows(2).position(|w| w == b"\r\n").expect("a line");
        let line = String::from_utf8_lossy(&body[..end]).into_owned();
        *body = &body[end + 2..];
        line
    };
    loop {
        let size = usize::from_str_radix(&line(&mut body), 16).expect("a size");
        if size == 0 {
            break;
        }
        content.extend(&body[..size]);
        body = &body[size + 2..];
    }
    let mut trailers = Vec::new();
    loop {
        let field = line(&mut body);
        let Some((name, value)) = field.split_once(':') else { return (content, trailers) };
        trailers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}
