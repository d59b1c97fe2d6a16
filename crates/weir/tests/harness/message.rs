//! Strict parser of HTTP/1.1 messages (RFC 9112). Every deviation from the grammar is a fault.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Time limit of a read, after which the test fails.
pub(crate) const READ_LIMIT: Duration = Duration::from_secs(10);

/// One end of a connection, with the received bytes that are not read yet.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// The reason why a message could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The peer ended the connection, in an orderly way, before the end of a message.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// No byte arrived in time.
    Timeout,
    /// The received bytes are not HTTP/1.1.
    Malformed(String),
}

/// The fields of a head or a trailer section, in order, as ISO 8859-1.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Fields(pub(crate) Vec<(String, String)>);

/// A start line with its fields.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) start: String,
    pub(crate) fields: Fields,
}

/// The framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(usize),
    Chunked,
    UntilClose,
}

/// A whole response.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) minor: u8,
    pub(crate) fields: Fields,
    pub(crate) framing: Framing,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
}

/// A whole request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Serial number of the request's connection, from 1.
    pub(crate) connection: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) minor: u8,
    pub(crate) fields: Fields,
    pub(crate) framing: Framing,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    /// True if the whole body has been received.
    pub(crate) complete: bool,
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, value)| format!("{name}: {value}"))).finish()
    }
}

impl Fields {
    /// The value of the first field with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// The values of all fields with this name, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).collect()
    }

    fn has_option(&self, option: &str) -> bool {
        self.all("connection").iter().flat_map(|v| v.split(',')).any(|o| o.trim().eq_ignore_ascii_case(option))
    }
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        stream.set_read_timeout(Some(READ_LIMIT)).expect("set the read timeout");
        stream.set_write_timeout(Some(READ_LIMIT)).expect("set the write timeout");
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends all bytes. Fails if the peer is gone or does not read.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        // A peer that is gone already is not an error.
        let _ = self.stream.shutdown(how);
    }

    /// Takes the received bytes, and waits for some if there are none. Empty at the end of the connection.
    pub(crate) fn some(&mut self) -> Result<Vec<u8>, Fault> {
        if self.buffer.is_empty() {
            self.fill()?;
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    /// True if bytes, the end of the connection or a reset arrive within this time.
    pub(crate) fn arrives_within(&mut self, time: Duration) -> bool {
        !self.buffer.is_empty() || {
            self.stream.set_read_timeout(Some(time)).expect("set the read timeout");
            let mut outcome = self.stream.peek(&mut [0]);
            while outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
                outcome = self.stream.peek(&mut [0]);
            }
            self.stream.set_read_timeout(Some(READ_LIMIT)).expect("set the read timeout");
            !outcome.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
        }
    }

    /// Reads exactly `count` bytes.
    pub(crate) fn exactly(&mut self, count: usize) -> Result<Vec<u8>, Fault> {
        while self.buffer.len() < count {
            if self.fill()? == 0 {
                return Err(Fault::Closed);
            }
        }
        let rest = self.buffer.split_off(count);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Reads up to the orderly end of the connection.
    pub(crate) fn until_end(&mut self) -> Result<Vec<u8>, Fault> {
        while self.fill()? != 0 {}
        Ok(std::mem::take(&mut self.buffer))
    }

    /// A start line with its fields; `None` when the connection ends before its first byte.
    pub(crate) fn head(&mut self) -> Result<Option<Head>, Fault> {
        if self.buffer.is_empty() && self.fill()? == 0 {
            return Ok(None);
        }
        let start = self.line()?;
        Ok(Some(Head { start, fields: self.fields()? }))
    }

    /// The body that a head announces, and its trailers.
    pub(crate) fn body(&mut self, framing: Framing) -> Result<(Vec<u8>, Fields), Fault> {
        match framing {
            Framing::None => Ok((Vec::new(), Fields::default())),
            Framing::Length(count) => Ok((self.exactly(count)?, Fields::default())),
            Framing::UntilClose => Ok((self.until_end()?, Fields::default())),
            Framing::Chunked => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk()? {
                    body.extend(chunk);
                }
                Ok((body, self.fields()?))
            }
        }
    }

    /// The next chunk; `None` for the last one, after which [`Wire::fields`] reads the trailers.
    pub(crate) fn chunk(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        let line = self.line()?;
        // A gateway writes chunk sizes itself, and must not add extensions.
        if line.is_empty() || line.len() > 15 || !line.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Fault::Malformed(format!("chunk size line {line:?}")));
        }
        let size = usize::from_str_radix(&line, 16).expect("hexadecimal digits");
        if size == 0 {
            return Ok(None);
        }
        let chunk = self.exactly(size)?;
        match self.line()?.as_str() {
            "" => Ok(Some(chunk)),
            more => Err(Fault::Malformed(format!("{more:?} after a chunk"))),
        }
    }

    /// Field lines up to the empty line.
    pub(crate) fn fields(&mut self) -> Result<Fields, Fault> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Fields(fields));
            }
            let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            let good = |(name, value): &(&str, &str)| {
                !name.is_empty() && name.bytes().all(token) && value.chars().all(|c| c == '\t' || !c.is_ascii_control())
            };
            let Some((name, value)) = line.split_once(':').filter(good) else {
                return Err(Fault::Malformed(format!("field line {line:?}")));
            };
            fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
        }
    }

    fn line(&mut self) -> Result<String, Fault> {
        let mut searched = 0;
        let end = loop {
            if let Some(at) = self.buffer.iter().skip(searched).position(|b| *b == b'\n') {
                break searched + at;
            }
            searched = self.buffer.len();
            if self.fill()? == 0 {
                return Err(Fault::Closed);
            }
        };
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        match line.strip_suffix(b"\r\n") {
            Some(line) if !line.contains(&b'\r') => Ok(line.iter().map(|b| char::from(*b)).collect()),
            _ => Err(Fault::Malformed(format!("bare CR or LF in {:?}", String::from_utf8_lossy(&line)))),
        }
    }

    fn fill(&mut self) -> Result<usize, Fault> {
        let mut room = [0; 16 << 10];
        match self.stream.read(&mut room) {
            Ok(count) => {
                self.buffer.extend(&room[..count]);
                Ok(count)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Err(Fault::Timeout),
            Err(error) if error.kind() == ErrorKind::Interrupted => self.fill(),
            Err(_) => Err(Fault::Reset),
        }
    }
}

impl Head {
    /// Status, reason phrase and minor version of a status line.
    pub(crate) fn status(&self) -> Result<(u16, &str, u8), Fault> {
        let malformed = || Fault::Malformed(format!("status line {:?}", self.start));
        let (version, rest) = self.start.split_once(' ').ok_or_else(malformed)?;
        let (code, reason) = rest.split_once(' ').ok_or_else(malformed)?;
        match (minor(version), code.len(), code.parse()) {
            (Some(minor), 3, Ok(code)) => Ok((code, reason, minor)),
            _ => Err(malformed()),
        }
    }

    /// The framing of the body of a response (RFC 9112 section 6.3).
    pub(crate) fn response_framing(&self, method: &str) -> Result<Framing, Fault> {
        let (status, _, minor) = self.status()?;
        let framing = announced(&self.fields, minor)?;
        if method == "HEAD" || matches!(status, 100..200 | 204 | 304) {
            if matches!(status, 100..200 | 204) && framing.is_some() {
                return Err(Fault::Malformed(format!("{status} with {framing:?}")));
            }
            return Ok(Framing::None);
        }
        Ok(framing.unwrap_or(Framing::UntilClose))
    }

    /// Method, target, minor version and framing of a request.
    pub(crate) fn request(&self) -> Result<(&str, &str, u8, Framing), Fault> {
        let malformed = || Fault::Malformed(format!("request line {:?}", self.start));
        let [method, target, version] = self.start.split(' ').collect::<Vec<_>>()[..] else { return Err(malformed()) };
        let minor = minor(version).ok_or_else(malformed)?;
        if method.is_empty() || target.is_empty() || !target.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(malformed());
        }
        let hosts = self.fields.all("host").len();
        if minor == 1 && hosts != 1 {
            return Err(Fault::Malformed(format!("{hosts} Host fields in {self:?}")));
        }
        Ok((method, target, minor, announced(&self.fields, minor)?.unwrap_or(Framing::None)))
    }
}

fn minor(version: &str) -> Option<u8> {
    match version {
        "HTTP/1.1" => Some(1),
        "HTTP/1.0" => Some(0),
        _ => None,
    }
}

/// The framing given by Content-Length and Transfer-Encoding. Both fields, or either of them twice, are a fault.
fn announced(fields: &Fields, minor: u8) -> Result<Option<Framing>, Fault> {
    let malformed = || Fault::Malformed(format!("framing of {fields:?}"));
    match (&fields.all("content-length")[..], &fields.all("transfer-encoding")[..]) {
        ([], []) => Ok(None),
        ([length], []) if !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit()) => {
            Ok(Some(Framing::Length(length.parse().map_err(|_| malformed())?)))
        }
        ([], [coding]) if minor == 1 && coding.eq_ignore_ascii_case("chunked") => Ok(Some(Framing::Chunked)),
        _ => Err(malformed()),
    }
}

impl Response {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in the body of {self:?}"))
    }

    /// The value of the first field with this name.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)
    }

    /// True if the server keeps the connection open (RFC 9112 section 9.3).
    pub(crate) fn keeps_connection(&self) -> bool {
        let close = self.fields.has_option("close") || self.framing == Framing::UntilClose;
        !close && (self.minor == 1 || self.fields.has_option("keep-alive"))
    }
}

impl Request {
    /// The value of the first field with this name.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)
    }
}
