//! A client that sends raw bytes and accepts only correct responses.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::message::{Fault, Fields, Framing, Head, Response, Wire};

/// A connection to the gateway.
pub(crate) struct RawClient {
    wire: Wire,
}

impl RawClient {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap_or_else(|error| panic!("connect to {addr}: {error}"));
        Self::over(stream)
    }

    /// A client over an open connection.
    pub(crate) fn over(stream: TcpStream) -> Self {
        Self { wire: Wire::new(stream) }
    }

    /// Sends all bytes.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.wire.send(bytes.as_ref()).expect("send to the gateway");
    }

    /// A second handle for sending, while this one reads.
    pub(crate) fn sender(&self) -> TcpStream {
        self.wire.stream().try_clone().expect("clone a stream")
    }

    /// Sends as many bytes as the gateway accepts. Returns true if that was all of them.
    pub(crate) fn offer(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.send(bytes.as_ref()).is_ok()
    }

    /// Sends a request and reads the response.
    pub(crate) fn request(&mut self, bytes: impl AsRef<[u8]>) -> Response {
        let bytes = bytes.as_ref();
        self.send(bytes);
        let method = bytes.split(|b| *b == b' ').next().unwrap_or_default();
        self.response_to(&String::from_utf8_lossy(method))
    }

    /// Sends `GET path` for `Host: a.test` and reads the response.
    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.request(get(path))
    }

    /// Reads the response to a request with any method except HEAD.
    pub(crate) fn response(&mut self) -> Response {
        self.response_to("GET")
    }

    /// Reads the response to a request with this method.
    pub(crate) fn response_to(&mut self, method: &str) -> Response {
        self.try_response_to(method).unwrap_or_else(|fault| panic!("no answer to {method}: {fault:?}"))
    }

    /// Reads a response, or returns the fault that prevents that.
    pub(crate) fn try_response(&mut self) -> Result<Response, Fault> {
        self.try_response_to("GET")
    }

    /// Reads a response whose first byte arrives within this time; `None` if no byte arrives.
    pub(crate) fn try_response_within(&mut self, time: Duration) -> Option<Result<Response, Fault>> {
        self.wire.arrives_within(time).then(|| self.try_response())
    }

    /// Reads the response to a request with this method, or returns the fault that prevents that.
    pub(crate) fn try_response_to(&mut self, method: &str) -> Result<Response, Fault> {
        let head = self.wire.head()?.ok_or(Fault::Closed)?;
        let framing = head.response_framing(method)?;
        let (body, trailers) = self.wire.body(framing)?;
        let (status, reason, minor) = head.status()?;
        Ok(Response { status, reason: reason.to_owned(), minor, framing, body, trailers, fields: head.fields.clone() })
    }

    /// Sends a request and reads the response, whose first byte arrives within this time; `None` if no byte arrives.
    pub(crate) fn try_request(&mut self, bytes: impl AsRef<[u8]>, time: Duration) -> Option<Result<Response, Fault>> {
        let bytes = bytes.as_ref();
        self.send(bytes);
        let method = String::from_utf8_lossy(bytes.split(|b| *b == b' ').next().unwrap_or_default()).into_owned();
        self.wire.arrives_within(time).then(|| self.try_response_to(&method))
    }

    /// Reads a response head alone, an interim one too.
    pub(crate) fn head(&mut self) -> Head {
        match self.wire.head() {
            Ok(Some(head)) => head,
            other => panic!("no response head: {other:?}"),
        }
    }

    /// Reads one chunk of a body; `None` for the last one.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        self.wire.chunk().unwrap_or_else(|fault| panic!("no chunk: {fault:?}"))
    }

    /// Reads a body, or returns the fault that cuts it off.
    pub(crate) fn body(&mut self, framing: Framing) -> Result<(Vec<u8>, Fields), Fault> {
        self.wire.body(framing)
    }

    /// Reads exactly `count` bytes.
    pub(crate) fn exactly(&mut self, count: usize) -> Vec<u8> {
        self.wire.exactly(count).unwrap_or_else(|fault| panic!("{count} bytes did not come: {fault:?}"))
    }

    /// Waits for the first byte, and reads all available bytes; empty at the end of the connection.
    pub(crate) fn some(&mut self) -> Result<Vec<u8>, Fault> {
        self.wire.some()
    }

    /// Closes the sending side; reading stays possible.
    pub(crate) fn finish_sending(&mut self) {
        self.wire.shutdown(Shutdown::Write);
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(self.wire.stream(), Some(Duration::ZERO)).expect("set SO_LINGER");
    }

    /// Checks that the gateway closes the connection without another byte.
    pub(crate) fn expect_close(&mut self) {
        match self.wire.some() {
            Ok(bytes) if bytes.is_empty() => {}
            Err(Fault::Reset) => {}
            other => {
                panic!("the connection was not closed: {:?}", other.map(|b| String::from_utf8_lossy(&b).into_owned()))
            }
        }
    }

    /// Checks that the gateway neither sends a byte nor closes the connection for this time.
    pub(crate) fn expect_quiet(&mut self, time: Duration) {
        assert!(!self.wire.arrives_within(time), "the gateway should have waited: {:?}", self.wire.some());
    }
}

/// A request without a body.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n")
}

/// A request with a body of known length.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A body in chunks of at most `size` bytes, with its end.
pub(crate) fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 32);
    for chunk in body.chunks(size) {
        out.extend(format!("{:x}\r\n", chunk.len()).bytes());
        out.extend(chunk);
        out.extend(b"\r\n");
    }
    out.extend(b"0\r\n\r\n");
    out
}
