//! One active check: a connection, and on it a request whose answer's status is what counts.

use std::fmt::{self, Write as _};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_config::{ActiveChecks, CheckType};
use weir_net::tls::client::Setup;
use weir_net::tls::words;
use weir_wire::head::{Content, Limits, ResponseHead};
use weir_wire::method::Method;

use super::Health;
use super::h2;
use crate::upstream::Protocol;

/// Limits of a response's head. The head is parsed as strictly as any response to a request: a node that fails here
/// would cause a 502.
const HEAD: Limits = Limits { head: 64 << 10, fields: 128, target: 0 };

/// Most interim (1xx) answers before the one that counts.
pub(super) const MAX_INTERIM: usize = 8;

/// So much of an answer's body is read, for so long, that the node sees an orderly end; what is longer is cut.
const MAX_BODY: u64 = 64 << 10;
const END_LIMIT: Duration = Duration::from_millis(100);

/// Bytes of one read.
const READ: usize = 4096;

/// `User-Agent` of checks.
pub(super) const AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"), " (health check)");

/// Fields that are written here, or not at all.
const OWN_FIELDS: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

/// Result of a check.
#[derive(Debug)]
pub(super) enum Finding {
    /// A connection, for a check without a request.
    Connected,
    Status(u16),
    /// An answer that is no HTTP, or not such as would be forwarded.
    NotHttp(&'static str),
    /// The connection was refused or cut, or TLS could not be set up on it.
    Failed(io::Error),
    TimedOut,
    /// An attempt that failed on this side, which gives no information about the node.
    Unable(io::Error),
}

/// Check of a node.
#[derive(Debug)]
pub(super) struct Probe {
    /// Request made on the connection.
    question: Question,
    tls: Option<Arc<Setup>>,
    host: Box<str>,
    limit: Duration,
}

/// Kinds of requests to a node.
#[derive(Debug)]
enum Question {
    /// Nothing: a connection is enough.
    Nothing,
    /// A request over HTTP/1.1.
    Http1(Request),
    /// A request over HTTP/2.
    Http2(h2::Request),
    /// One of both, as the node chooses by ALPN.
    Negotiated(Request, h2::Request),
}

#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    method: Method,
}

impl Probe {
    pub(super) fn new(health: &Health) -> Self {
        let (checks, host) = (&health.checks.active, &*health.host);
        let question = match checks.r#type {
            CheckType::Tcp => Question::Nothing,
            CheckType::Grpc => Question::Http2(h2::Request::call(host, health.tls.is_some())),
            CheckType::Http | CheckType::Https => {
                let http1 = || Request::new(checks, host);
                let http2 = || h2::Request::new(checks, host, health.tls.is_some());
                match health.protocol {
                    Protocol::Http1 => Question::Http1(http1()),
                    Protocol::Http2 => Question::Http2(http2()),
                    Protocol::Negotiated => Question::Negotiated(http1(), http2()),
                }
            }
        };
        Self { question, tls: health.tls.clone(), host: host.into(), limit: checks.timeout }
    }

    /// Checks once.
    pub(super) async fn run(&self, addr: SocketAddr) -> Finding {
        let mut status = None;
        let found = timeout(self.limit, self.attempt(addr, &mut status)).await;
        match (status, found) {
            // The status counts, even if the body failed.
            (Some(status), _) => Finding::Status(status),
            (None, Ok(finding)) => finding,
            (None, Err(_)) => Finding::TimedOut,
        }
    }

    async fn attempt(&self, addr: SocketAddr, status: &mut Option<u16>) -> Finding {
        let mut socket = match TcpStream::connect(addr).await {
            Ok(socket) => socket,
            Err(error) => return unconnected(error),
        };
        // Without it a small message may wait for an acknowledgement; failing to set it costs only that.
        let _ = socket.set_nodelay(true);
        if matches!(self.question, Question::Nothing) {
            return Finding::Connected;
        }
        let asked = match &self.tls {
            None => self.question.ask(&mut socket, false, status).await,
            Some(tls) => self.ask_over_tls(tls, socket, status).await,
        };
        match asked {
            Ok(finding) => finding,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Finding::TimedOut,
            Err(error) => Finding::Failed(error),
        }
    }

    async fn ask_over_tls(&self, tls: &Setup, socket: TcpStream, status: &mut Option<u16>) -> io::Result<Finding> {
        let mut stream = tls.connect(&self.host, socket).await?;
        let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let finding = self.question.ask(&mut stream, speaks_http2, status).await;
        // Sends close_notify: some servers log an end without it as an error.
        let _ = timeout(END_LIMIT, stream.shutdown()).await;
        finding
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::NotHttp(reason) => write!(f, "not HTTP: {reason}"),
            Self::Failed(error) | Self::Unable(error) => f.write_str(&words::of_io(error)),
            Self::TimedOut => f.write_str("timed out"),
        }
    }
}

fn unconnected(error: io::Error) -> Finding {
    match error.kind() {
        io::ErrorKind::TimedOut => Finding::TimedOut,
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => Finding::Failed(error),
        // EMFILE, ENFILE, ENOBUFS, EADDRNOTAVAIL: this side has run out of something.
        _ => Finding::Unable(error),
    }
}

impl Question {
    async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        speaks_http2: bool,
        status: &mut Option<u16>,
    ) -> io::Result<Finding> {
        match self {
            Self::Nothing => Ok(Finding::Connected),
            Self::Negotiated(_, request) if speaks_http2 => request.ask(stream, status).await,
            Self::Http1(request) | Self::Negotiated(request, _) => request.ask(stream, status).await,
            Self::Http2(request) => request.ask(stream, status).await,
        }
    }
}

impl Request {
    fn new(checks: &ActiveChecks, host: &str) -> Self {
        let named = |header: &str, name: &str| header.split(':').next().is_some_and(|n| n.eq_ignore_ascii_case(name));
        let given = |name: &str| checks.req_headers.iter().any(|header| named(header, name));
        let mut text = format!("{} {} HTTP/1.1\r\n", checks.http_method, checks.http_path);
        if !given("host") {
            let _ = write!(text, "Host: {host}\r\n");
        }
        if !given("user-agent") {
            let _ = write!(text, "User-Agent: {AGENT}\r\n");
        }
        for header in &checks.req_headers {
            if !OWN_FIELDS.iter().any(|name| named(header, name)) {
                let _ = write!(text, "{header}\r\n");
            }
        }
        let body = &checks.http_req_body;
        if !body.is_empty() {
            let _ = write!(text, "Content-Length: {}\r\n", body.len());
        }
        let _ = write!(text, "Connection: close\r\n\r\n{body}");
        Self { method: Method::parse(checks.http_method.as_bytes()), bytes: text.into_bytes() }
    }

    /// Sends the request and puts the answer's status down as soon as it is there. An `Err` is a broken connection.
    async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        status: &mut Option<u16>,
    ) -> io::Result<Finding> {
        stream.write_all(&self.bytes).await?;
        stream.flush().await?;
        let mut head = ResponseHead::default();
        let mut buffer = Vec::with_capacity(READ);
        let mut interim = 0;
        let http1 = loop {
            match head.parse(&buffer, &HEAD, self.method) {
                Ok(Some(http1)) if (100..200).contains(&head.status) && head.status != 101 => {
                    interim += 1;
                    if interim > MAX_INTERIM {
                        return Ok(Finding::NotHttp("too many interim responses"));
                    }
                    buffer.drain(..http1.len);
                }
                Ok(Some(http1)) => break http1,
                // The parser refuses a head that is longer than its limit.
                Ok(None) => {
                    if read_some(stream, &mut buffer).await? == 0 {
                        return Err(io::Error::other("closed before an answer"));
                    }
                }
                Err(reject) => return Ok(Finding::NotHttp(reject.reason)),
            }
        };
        *status = Some(head.status);
        let rest = match head.content {
            Content::None => 0,
            Content::Length(length) => length.min(MAX_BODY),
            Content::Unknown => MAX_BODY,
        };
        let rest = rest.saturating_sub(buffer.len().saturating_sub(http1.len) as u64);
        // Too slow or cut off: the status has been received all the same.
        let _ = timeout(END_LIMIT, tokio::io::copy(&mut stream.take(rest), &mut tokio::io::sink())).await;
        Ok(Finding::Status(head.status))
    }
}

async fn read_some<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut Vec<u8>) -> io::Result<usize> {
    buffer.reserve(READ);
    let before = buffer.len();
    stream.take(READ as u64).read_buf(buffer).await?;
    Ok(buffer.len() - before)
}
