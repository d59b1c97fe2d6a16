//! A client of HTTP/2 on a raw socket: single frames as a test wants them, and whole requests.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use weir_wire::http2::frame::{self, ACK, END_HEADERS, END_STREAM, Header, HeaderBlock, Kind, Setting};
use weir_wire::http2::hpack::{DEFAULT_TABLE_SIZE, Decoder, Encoder};
use weir_wire::http2::{DEFAULT_FRAME_SIZE, ErrorCode, PREFACE};

use super::message::{Fault, Fields, Framing, READ_LIMIT, Response};

/// A connection to the gateway.
pub(crate) struct H2Client {
    stream: TcpStream,
    input: Vec<u8>,
    decoder: Decoder,
    encoder: Encoder,
    /// The header block that has begun, with its flags.
    block: Vec<u8>,
    block_ends: bool,
    next: u32,
    streams: BTreeMap<u32, Partial>,
    /// Answers SETTINGS and PING, and opens windows, when true.
    answers: bool,
    /// Window of a stream that is opened, those of the streams, and that of the connection, which is stream 0.
    initial_window: i64,
    windows: BTreeMap<u32, i64>,
    /// The GOAWAY that was received.
    pub(crate) gone: Option<(u32, ErrorCode)>,
}

/// A response so far.
#[derive(Debug, Default)]
struct Partial {
    interim: Vec<(u16, Fields)>,
    /// Interim and final heads that were read one by one.
    heads_read: usize,
    head: Option<(u16, Fields)>,
    body: Vec<u8>,
    trailers: Fields,
    ended: bool,
    reset: Option<ErrorCode>,
}

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Headers {
        stream: u32,
        fields: Vec<(String, String)>,
        ends: bool,
    },
    Data {
        stream: u32,
        content: Vec<u8>,
        ends: bool,
    },
    Reset {
        stream: u32,
        code: ErrorCode,
    },
    Settings(Vec<Setting>),
    SettingsAck,
    Pong([u8; 8]),
    GoAway {
        last: u32,
        code: ErrorCode,
    },
    WindowUpdate {
        stream: u32,
        increment: u32,
    },
    /// The gateway has closed the connection.
    End,
}

impl H2Client {
    /// A connection with its preface and settings sent, whose windows are as large as they may be.
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let mut client = Self::bare(addr);
        client.greet(&[Setting::EnablePush(false), Setting::InitialWindowSize(1 << 30)]);
        let mut out = Vec::new();
        frame::push_window_update(&mut out, 0, 1 << 30);
        client.send(&out);
        client
    }

    /// A connection on which nothing was sent.
    pub(crate) fn bare(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap_or_else(|error| panic!("connect to {addr}: {error}"));
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        stream.set_read_timeout(Some(READ_LIMIT)).expect("set the read timeout");
        stream.set_write_timeout(Some(READ_LIMIT)).expect("set the write timeout");
        Self {
            stream,
            input: Vec::new(),
            decoder: Decoder::new(DEFAULT_TABLE_SIZE),
            encoder: Encoder::new(),
            block: Vec::new(),
            block_ends: false,
            next: 1,
            streams: BTreeMap::new(),
            answers: true,
            initial_window: 65_535,
            windows: BTreeMap::from([(0, 65_535)]),
            gone: None,
        }
    }

    /// Sends the preface and settings.
    pub(crate) fn greet(&mut self, settings: &[Setting]) {
        let mut out = PREFACE.to_vec();
        frame::push_settings(&mut out, settings);
        self.send(&out);
    }

    /// Neither answers SETTINGS and PING nor opens windows from now on.
    pub(crate) fn stay_silent(&mut self) {
        self.answers = false;
    }

    /// Sends all bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send to the gateway");
    }

    /// Sends as many bytes as the gateway accepts; true if that was all of them.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Opens a stream with these fields; its identifier.
    pub(crate) fn open(&mut self, fields: &[(&str, &str)], ends: bool) -> u32 {
        let id = self.next;
        self.next += 2;
        let mut out = Vec::new();
        self.push_head(&mut out, id, fields, ends);
        self.send(&out);
        id
    }

    /// Appends a header section.
    pub(crate) fn push_head(&mut self, out: &mut Vec<u8>, id: u32, fields: &[(&str, &str)], ends: bool) {
        let block = HeaderBlock::begin(out, id);
        self.encoder.begin(out);
        for (name, value) in fields {
            // The codec writes names in lower case, which is not what every test wants.
            push_literal(out, name, value);
        }
        block.finish(out, DEFAULT_FRAME_SIZE, ends);
    }

    /// Sends content in frames of at most the default size.
    pub(crate) fn data(&mut self, id: u32, content: &[u8], ends: bool) {
        let mut out = Vec::new();
        let mut pieces = content.chunks(DEFAULT_FRAME_SIZE as usize).peekable();
        if pieces.peek().is_none() {
            frame::push_data_header(&mut out, id, 0, ends);
        }
        for window in [0, id] {
            *self.windows.entry(window).or_insert(self.initial_window) -= content.len() as i64;
        }
        while let Some(piece) = pieces.next() {
            frame::push_data_header(&mut out, id, piece.len() as u32, ends && pieces.peek().is_none());
            out.extend_from_slice(piece);
        }
        self.send(&out);
    }

    /// Sends content as the windows of both allow; false when the stream is over before it was sent whole.
    pub(crate) fn offer_data(&mut self, id: u32, content: &[u8], ends: bool) -> bool {
        let mut rest = content;
        loop {
            let window = [0, id].map(|window| *self.windows.entry(window).or_insert(self.initial_window));
            let most = window[0].min(window[1]).clamp(0, 1 << 20) as usize;
            let (now, later) = rest.split_at(rest.len().min(most));
            if !now.is_empty() || rest.is_empty() {
                if self.is_over(id) {
                    return false;
                }
                self.data(id, now, ends && later.is_empty());
                rest = later;
            }
            if rest.is_empty() {
                return true;
            }
            if self.is_over(id) || matches!(self.try_frame(), Ok(Frame::End) | Err(_)) {
                return false;
            }
        }
    }

    /// True when the response on a stream is whole, or the stream was reset.
    pub(crate) fn is_over(&self, id: u32) -> bool {
        self.streams.get(&id).is_some_and(|partial| partial.ended || partial.reset.is_some())
    }

    /// Sends the trailer section of a request.
    pub(crate) fn trailers(&mut self, id: u32, fields: &[(String, &str)]) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let mut out = Vec::new();
        self.push_head(&mut out, id, &fields, true);
        self.send(&out);
    }

    /// Sends a PING and reads until it is answered.
    pub(crate) fn ping(&mut self) {
        let mut out = Vec::new();
        frame::push_ping(&mut out, false, *b"question");
        self.send(&out);
        assert_eq!(self.until(|frame| matches!(frame, Frame::Pong(_))), Frame::Pong(*b"question"));
    }

    /// Time limit of each read from now on.
    pub(crate) fn set_read_timeout(&mut self, limit: Duration) {
        self.stream.set_read_timeout(Some(limit)).expect("set the read timeout");
    }

    /// Reads until a response has begun on a stream, or the stream has ended without; false when that takes longer than
    /// a read may.
    pub(crate) fn has_head(&mut self, id: u32) -> bool {
        loop {
            let partial = self.streams.get(&id);
            if partial.is_some_and(|partial| partial.head.is_some() || partial.reset.is_some()) {
                return true;
            }
            match self.try_frame() {
                Ok(Frame::End) => return true,
                Ok(_) => {}
                Err(Fault::Timeout) => return false,
                Err(fault) => panic!("no frame: {fault:?}"),
            }
        }
    }

    /// Reads the next head on a stream, an interim one too.
    pub(crate) fn head(&mut self, id: u32) -> (u16, Fields) {
        loop {
            let partial = self.streams.entry(id).or_default();
            let mut heads = partial.interim.iter().chain(&partial.head);
            if let Some(head) = heads.nth(partial.heads_read).cloned() {
                partial.heads_read += 1;
                return head;
            }
            assert_eq!(partial.reset, None, "no response head");
            assert_ne!(self.frame(), Frame::End, "no response head");
        }
    }

    /// Reads the content that comes next on a stream; `None` for its end.
    pub(crate) fn piece(&mut self, id: u32) -> Option<Vec<u8>> {
        loop {
            let partial = self.streams.entry(id).or_default();
            if !partial.body.is_empty() {
                return Some(std::mem::take(&mut partial.body));
            }
            assert_eq!(partial.reset, None, "no content");
            if partial.ended {
                return None;
            }
            assert_ne!(self.frame(), Frame::End, "no content");
        }
    }

    /// Resets a stream.
    pub(crate) fn reset(&mut self, id: u32, code: ErrorCode) {
        let mut out = Vec::new();
        frame::push_reset_stream(&mut out, id, code);
        self.send(&out);
    }

    /// Reads the next frame.
    pub(crate) fn frame(&mut self) -> Frame {
        self.try_frame().unwrap_or_else(|fault| panic!("no frame: {fault:?}"))
    }

    /// Reads frames until one is like this.
    pub(crate) fn until(&mut self, is_it: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            let frame = self.frame();
            if is_it(&frame) || frame == Frame::End {
                return frame;
            }
        }
    }

    /// Reads up to the end of the connection; the code of GOAWAY, if one was received.
    pub(crate) fn until_end(&mut self) -> Option<ErrorCode> {
        loop {
            match self.try_frame() {
                Ok(Frame::End) | Err(Fault::Reset) => return self.gone.map(|(_, code)| code),
                Ok(_) => {}
                Err(fault) => panic!("the connection was not closed: {fault:?}"),
            }
        }
    }

    /// Reads frames for this long, and returns those that have come.
    pub(crate) fn frames_within(&mut self, time: Duration) -> Vec<Frame> {
        let end = Instant::now() + time;
        let mut frames = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.stream.set_read_timeout(Some(left)).expect("set the read timeout");
            match self.try_frame() {
                Ok(Frame::End) | Err(_) => break,
                Ok(frame) => frames.push(frame),
            }
        }
        self.stream.set_read_timeout(Some(READ_LIMIT)).expect("set the read timeout");
        frames
    }

    fn try_frame(&mut self) -> Result<Frame, Fault> {
        loop {
            let Some((header, payload)) = self.take_frame()? else { return Ok(Frame::End) };
            if let Some(frame) = self.understand(header, &payload)? {
                return Ok(frame);
            }
        }
    }

    /// A frame, or `None` for the end.
    fn take_frame(&mut self) -> Result<Option<(Header, Vec<u8>)>, Fault> {
        loop {
            if let Some(header) = Header::read(&self.input) {
                let end = Header::LEN + header.length as usize;
                if self.input.len() >= end {
                    let payload = self.input[Header::LEN..end].to_vec();
                    self.input.drain(..end);
                    header.check(DEFAULT_FRAME_SIZE).map_err(|error| Fault::Malformed(error.to_string()))?;
                    return Ok(Some((header, payload)));
                }
            }
            let mut room = [0; 16 << 10];
            match self.stream.read(&mut room) {
                Ok(0) if self.input.is_empty() => return Ok(None),
                Ok(0) => return Err(Fault::Closed),
                Ok(count) => self.input.extend(&room[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(Fault::Timeout);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Fault::Reset),
            }
        }
    }

    fn understand(&mut self, header: Header, payload: &[u8]) -> Result<Option<Frame>, Fault> {
        let malformed = |error: weir_wire::http2::Error| Fault::Malformed(error.to_string());
        let stream = header.stream;
        let mut answer = Vec::new();
        let frame = match header.kind {
            Kind::Data => {
                let content = frame::payload(header, payload).map_err(malformed)?.to_vec();
                if !payload.is_empty() {
                    for id in [0, stream] {
                        frame::push_window_update(&mut answer, id, payload.len() as u32);
                    }
                }
                Frame::Data { stream, content, ends: header.has(END_STREAM) }
            }
            Kind::Headers | Kind::Continuation => {
                if header.kind == Kind::Headers {
                    self.block.clear();
                    self.block_ends = header.has(END_STREAM);
                }
                self.block.extend(frame::payload(header, payload).map_err(malformed)?);
                if !header.has(END_HEADERS) {
                    return Ok(None);
                }
                let mut fields = Vec::new();
                let text = |bytes: &[u8]| bytes.iter().map(|b| char::from(*b)).collect::<String>();
                let push = |field: weir_wire::http2::hpack::Field<'_>| {
                    fields.push((text(field.name), text(field.value)));
                };
                let _ = self.decoder.decode(&self.block, usize::MAX, &mut Vec::new(), push).map_err(malformed)?;
                Frame::Headers { stream, fields, ends: self.block_ends }
            }
            Kind::ResetStream => Frame::Reset { stream, code: frame::reset_stream(payload) },
            Kind::Settings if header.has(ACK) => Frame::SettingsAck,
            Kind::Settings => {
                frame::push_settings_ack(&mut answer);
                let settings: Vec<_> = frame::settings(payload).collect::<Result<_, _>>().map_err(malformed)?;
                for setting in &settings {
                    if let Setting::InitialWindowSize(size) = setting {
                        let change = i64::from(*size) - self.initial_window;
                        self.initial_window += change;
                        self.windows.iter_mut().filter(|(id, _)| **id != 0).for_each(|(_, window)| *window += change);
                    }
                }
                Frame::Settings(settings)
            }
            Kind::Ping if header.has(ACK) => Frame::Pong(frame::ping(payload)),
            Kind::Ping => {
                frame::push_ping(&mut answer, true, frame::ping(payload));
                return Ok(None);
            }
            Kind::GoAway => {
                let going = frame::go_away(payload);
                self.gone = Some((going.last_stream, going.code));
                Frame::GoAway { last: going.last_stream, code: going.code }
            }
            Kind::WindowUpdate => {
                let increment = frame::window_update(header, payload).map_err(malformed)?;
                *self.windows.entry(stream).or_insert(self.initial_window) += i64::from(increment);
                Frame::WindowUpdate { stream, increment }
            }
            kind => return Err(Fault::Malformed(format!("{kind:?} of a server"))),
        };
        if self.answers && !answer.is_empty() {
            // A gateway that is about to close takes none.
            let _ = self.stream.write_all(&answer);
        }
        self.keep(&frame)?;
        Ok(Some(frame))
    }

    /// Adds a frame to the response of its stream.
    fn keep(&mut self, frame: &Frame) -> Result<(), Fault> {
        match frame {
            Frame::Headers { stream, fields, ends } => {
                let partial = self.streams.entry(*stream).or_default();
                let upper = |text: &str| text.bytes().any(|byte| byte.is_ascii_uppercase());
                if fields.iter().any(|(name, _)| upper(name)) {
                    return Err(Fault::Malformed(format!("upper case in {fields:?}")));
                }
                let mut fields = fields.clone();
                if partial.head.is_none() {
                    if fields.is_empty() || fields[0].0 != ":status" {
                        return Err(Fault::Malformed(format!("no :status first in {fields:?}")));
                    }
                    let status = fields.remove(0).1.parse().map_err(|_| Fault::Malformed("status".into()))?;
                    if (100..200).contains(&status) {
                        partial.interim.push((status, Fields(fields)));
                        return Ok(());
                    }
                    partial.head = Some((status, Fields(fields)));
                } else {
                    partial.trailers = Fields(fields);
                }
                partial.ended |= ends;
            }
            Frame::Data { stream, content, ends } => {
                let partial = self.streams.entry(*stream).or_default();
                if partial.head.is_none() || partial.ended {
                    return Err(Fault::Malformed("DATA outside of a response".into()));
                }
                partial.body.extend(content);
                partial.ended |= ends;
            }
            Frame::Reset { stream, code } => self.streams.entry(*stream).or_default().reset = Some(*code),
            _ => {}
        }
        Ok(())
    }

    /// Reads until the response on a stream is whole.
    pub(crate) fn response(&mut self, id: u32) -> Response {
        self.try_response(id).unwrap_or_else(|fault| panic!("no answer on stream {id}: {fault:?}"))
    }

    /// Reads until the response on a stream is whole, or returns the fault that prevents that: a reset stream is
    /// [`Fault::Malformed`] with the name of its code.
    pub(crate) fn try_response(&mut self, id: u32) -> Result<Response, Fault> {
        loop {
            if let Some(partial) = self.streams.get_mut(&id) {
                if partial.ended
                    && let Some((status, fields)) = partial.head.take()
                {
                    let partial = self.streams.remove(&id).expect("it is there");
                    let length = fields.get("content-length").and_then(|length| length.parse().ok());
                    if length.is_some_and(|length: usize| length != partial.body.len() && !partial.body.is_empty()) {
                        return Err(Fault::Malformed(format!("{} bytes in {fields:?}", partial.body.len())));
                    }
                    let framing = length.map_or(Framing::Chunked, Framing::Length);
                    let (body, trailers) = (partial.body, partial.trailers);
                    return Ok(Response { status, reason: String::new(), minor: 1, fields, framing, body, trailers });
                }
                if let Some(code) = partial.reset {
                    return Err(Fault::Malformed(code.name().to_owned()));
                }
            }
            if self.try_frame()? == Frame::End {
                return Err(Fault::Closed);
            }
        }
    }

    /// Statuses of the interim responses on a stream so far.
    pub(crate) fn interim(&self, id: u32) -> Vec<u16> {
        self.streams
            .get(&id)
            .map(|partial| partial.interim.iter().map(|(status, _)| *status).collect())
            .unwrap_or_default()
    }

    /// Sends `GET path` for `a.test` and reads the response.
    pub(crate) fn get(&mut self, path: &str) -> Response {
        let id = self.open(&get(path), true);
        self.response(id)
    }

    /// Sends a request that is written as one of HTTP/1.1, and reads the response.
    pub(crate) fn request(&mut self, text: impl AsRef<[u8]>) -> Response {
        self.try_request(text).unwrap_or_else(|fault| panic!("no answer: {fault:?}"))
    }

    /// As [`H2Client::request`], or returns the fault that prevents that.
    pub(crate) fn try_request(&mut self, text: impl AsRef<[u8]>) -> Result<Response, Fault> {
        let id = self.send_request(text.as_ref());
        self.try_response(id)
    }
}

/// The fields of `GET path` for `a.test`.
pub(crate) fn get(path: &str) -> [(&str, &str); 4] {
    [(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", path)]
}

/// A literal field that enters no table.
fn push_literal(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0x00);
    for text in [name, value] {
        let bytes: Vec<u8> = text.chars().map(|c| u8::try_from(u32::from(c)).expect("ISO 8859-1")).collect();
        let mut rest = bytes.len();
        if rest < 127 {
            out.push(rest as u8);
        } else {
            out.push(127);
            rest -= 127;
            while rest >= 128 {
                out.push((rest % 128 + 128) as u8);
                rest /= 128;
            }
            out.push(rest as u8);
        }
        out.extend(bytes);
    }
}
