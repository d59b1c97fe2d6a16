//! An origin that speaks HTTP/2 without TLS: the script of a test reads requests and sends single frames.

use std::collections::BTreeMap;

use weir_wire::http2::frame::{self, ACK, END_HEADERS, END_STREAM, Header, HeaderBlock, Kind, Setting};
use weir_wire::http2::hpack::{DEFAULT_TABLE_SIZE, Decoder, Encoder, Outcome};
use weir_wire::http2::{DEFAULT_FRAME_SIZE, ErrorCode, PREFACE};

use super::message::Fields;
use super::origin::{Connection, Origin};

/// A connection of the gateway.
pub(crate) struct H2Connection<'c> {
    connection: &'c mut Connection,
    input: Vec<u8>,
    decoder: Decoder,
    encoder: Encoder,
    block: Vec<u8>,
    streams: BTreeMap<u32, H2Request>,
    /// Opens windows again for content that was received, when true.
    pub(crate) gives_credit: bool,
    /// Bytes that may be sent on the connection.
    window: i64,
    /// SETTINGS_INITIAL_WINDOW_SIZE of the gateway.
    initial_window: i64,
    windows: BTreeMap<u32, i64>,
}

/// A request.
#[derive(Debug, Clone, Default)]
pub(crate) struct H2Request {
    pub(crate) stream: u32,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    pub(crate) ended: bool,
}

/// News from the gateway.
#[derive(Debug)]
pub(crate) enum News {
    /// The head of a request.
    Head,
    /// Content.
    Content,
    /// The request is complete.
    Complete(H2Request),
    Reset(ErrorCode),
    Ping,
    /// A window was opened.
    Window,
    GoAway,
    Other,
}

impl H2Request {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)
    }
}

/// An origin whose connections begin with these settings.
pub(crate) fn h2_origin(
    settings: impl Into<Vec<Setting>>,
    script: impl Fn(&mut H2Connection<'_>) + Send + Sync + 'static,
) -> Origin {
    let settings = settings.into();
    Origin::scripted(move |connection| {
        let Some(mut connection) = H2Connection::begin(connection, &settings) else { return };
        script(&mut connection);
    })
}

/// An origin that answers with the body it received, and fields that tell method, path, authority and scheme.
pub(crate) fn h2_echo() -> Origin {
    h2_origin([], |connection| {
        while let Some(request) = connection.request() {
            let told = |name: &str| request.field(name).unwrap_or("none").to_owned();
            let (method, path, authority, scheme) =
                (told(":method"), told(":path"), told(":authority"), told(":scheme"));
            let fields = [
                (":status", "200"),
                ("x-method", &method),
                ("x-path", &path),
                ("x-authority", &authority),
                ("x-scheme", &scheme),
            ];
            connection.head(request.stream, &fields, request.body.is_empty());
            if !request.body.is_empty() {
                connection.content(request.stream, &request.body, true);
            }
        }
    })
}

impl<'c> H2Connection<'c> {
    fn begin(connection: &'c mut Connection, settings: &[Setting]) -> Option<Self> {
        let preface = connection.exactly(PREFACE.len()).ok()?;
        assert_eq!(preface, PREFACE, "the preface of HTTP/2");
        let mut begun = Self {
            connection,
            input: Vec::new(),
            decoder: Decoder::new(DEFAULT_TABLE_SIZE),
            encoder: Encoder::new(),
            block: Vec::new(),
            streams: BTreeMap::new(),
            gives_credit: true,
            window: 65_535,
            initial_window: 65_535,
            windows: BTreeMap::new(),
        };
        let mut out = Vec::new();
        frame::push_settings(&mut out, settings);
        begun.send(&out);
        Some(begun)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.connection.send(bytes)
    }

    /// Reads up to the end of a request; `None` at the end of the connection.
    pub(crate) fn request(&mut self) -> Option<H2Request> {
        loop {
            if let News::Complete(request) = self.news()? {
                return Some(request);
            }
        }
    }

    /// Reads the next frame; `None` at the end of the connection.
    pub(crate) fn news(&mut self) -> Option<News> {
        let (header, payload) = self.frame()?;
        header.check(DEFAULT_FRAME_SIZE).unwrap_or_else(|error| panic!("{error} in {header:?}"));
        let mut out = Vec::new();
        let news = match header.kind {
            Kind::Settings if header.has(ACK) => News::Other,
            Kind::Settings => {
                for setting in frame::settings(&payload) {
                    if let Setting::InitialWindowSize(size) = setting.expect("a setting in its range") {
                        self.initial_window = size.into();
                    }
                }
                frame::push_settings_ack(&mut out);
                News::Other
            }
            Kind::Ping if header.has(ACK) => News::Other,
            Kind::Ping => {
                frame::push_ping(&mut out, true, frame::ping(&payload));
                News::Ping
            }
            Kind::WindowUpdate => {
                let increment = i64::from(frame::window_update(header, &payload).expect("an increment"));
                match header.stream {
                    0 => self.window += increment,
                    stream => *self.windows.entry(stream).or_insert(self.initial_window) += increment,
                }
                News::Window
            }
            Kind::ResetStream => {
                self.streams.remove(&header.stream);
                News::Reset(frame::reset_stream(&payload))
            }
            Kind::GoAway => News::GoAway,
            Kind::Headers | Kind::Continuation => {
                self.block.extend_from_slice(frame::payload(header, &payload).expect("a payload"));
                let request = self.streams.entry(header.stream).or_default();
                let is_trailer = request.stream != 0;
                request.stream = header.stream;
                request.ended |= header.kind == Kind::Headers && header.has(END_STREAM);
                if header.has(END_HEADERS) {
                    let block = std::mem::take(&mut self.block);
                    let mut fields = Fields::default();
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
                    let decoded = self.decoder.decode(&block, usize::MAX, &mut Vec::new(), |field| {
                        fields.0.push((text(field.name), text(field.value)));
                    });
                    assert_eq!(decoded.expect("a header block"), Outcome::Complete);
                    if is_trailer { request.trailers = fields } else { request.fields = fields }
                }
                self.of_request(header, News::Head)
            }
            Kind::Data => {
                let content = frame::payload(header, &payload).expect("a payload");
                if self.gives_credit && header.length > 0 {
                    frame::push_window_update(&mut out, 0, header.length);
                    frame::push_window_update(&mut out, header.stream, header.length);
                }
                let request = self.streams.get_mut(&header.stream).expect("DATA of an open stream");
                request.body.extend_from_slice(content);
                request.ended |= header.has(END_STREAM);
                self.of_request(header, News::Content)
            }
            kind => panic!("a client sends no {kind:?}"),
        };
        if !out.is_empty() {
            self.send(&out);
        }
        Some(news)
    }

    fn of_request(&mut self, header: Header, news: News) -> News {
        let ended = self.block.is_empty() && self.streams.get(&header.stream).is_some_and(|request| request.ended);
        match ended {
            true => News::Complete(self.streams.remove(&header.stream).expect("the request")),
            false => news,
        }
    }

    fn frame(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            if let Some(header) = Header::read(&self.input) {
                let end = Header::LEN + header.length as usize;
                if self.input.len() >= end {
                    let payload = self.input[Header::LEN..end].to_vec();
                    self.input.drain(..end);
                    return Some((header, payload));
                }
            }
            let bytes = self.connection.some().ok().filter(|bytes| !bytes.is_empty())?;
            self.input.extend(bytes);
        }
    }

    /// Sends a header section: the head of a response, or trailers.
    pub(crate) fn head(&mut self, stream: u32, fields: &[(&str, &str)], ends: bool) -> bool {
        let mut out = Vec::new();
        let block = HeaderBlock::begin(&mut out, stream);
        self.encoder.begin(&mut out);
        for (name, value) in fields {
            self.encoder.push(&mut out, name.as_bytes(), value.as_bytes());
        }
        block.finish(&mut out, DEFAULT_FRAME_SIZE, ends);
        self.send(&out)
    }

    /// Sends content, as far as the windows allow at once; how much.
    pub(crate) fn some_content(&mut self, stream: u32, content: &[u8], ends: bool) -> usize {
        let window = *self.windows.entry(stream).or_insert(self.initial_window);
        let n = (window.min(self.window).max(0) as usize).min(content.len()).min(DEFAULT_FRAME_SIZE as usize);
        if n == 0 && !content.is_empty() {
            return 0;
        }
        let mut out = Vec::new();
        frame::push_data_header(&mut out, stream, n as u32, ends && n == content.len());
        out.extend_from_slice(&content[..n]);
        self.window -= n as i64;
        self.windows.insert(stream, window - n as i64);
        self.send(&out);
        n
    }

    /// Sends content, and waits where the windows are closed. False if the gateway has gone.
    pub(crate) fn content(&mut self, stream: u32, mut content: &[u8], ends: bool) -> bool {
        loop {
            let n = self.some_content(stream, content, ends);
            content = &content[n..];
            if content.is_empty() {
                return true;
            }
            if n == 0 && self.news().is_none() {
                return false;
            }
        }
    }

    pub(crate) fn reset(&mut self, stream: u32, code: ErrorCode) {
        let mut out = Vec::new();
        frame::push_reset_stream(&mut out, stream, code);
        self.send(&out);
    }

    pub(crate) fn go_away(&mut self, last_stream: u32, code: ErrorCode) {
        let mut out = Vec::new();
        frame::push_go_away(&mut out, last_stream, code, b"");
        self.send(&out);
    }

    /// Answers with 200 and a body.
    pub(crate) fn answer(&mut self, stream: u32, body: &str) {
        self.head(stream, &[(":status", "200")], false);
        self.content(stream, body.as_bytes(), true);
    }
}
