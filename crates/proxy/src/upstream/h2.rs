//! Streams of connections to nodes over HTTP/2 (RFC 9113), which the requests of many clients share.

mod head;
mod opening;
mod session;
mod sessions;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use weir_plugin::Failure;
use weir_plugin::host::Exchange;
use weir_telemetry::metrics::Label;
use weir_wire::Reject;
use weir_wire::buffer::Buffer;
use weir_wire::head::Limits;
use weir_wire::http2::ErrorCode;
use weir_wire::method::Method;

use super::outgoing::Outgoing;
use super::{Node, Upstream, h1};
use crate::http1;
use crate::http2::{Incoming, Received};
use crate::relay::{Piece, Sink, Source};

pub(crate) use opening::{OpenFailure, Opening};
pub(crate) use session::Session;
pub(crate) use sessions::{Sessions, Taken};

/// A stream, which carries one request.
#[derive(Debug)]
pub(crate) struct Stream {
    session: Rc<Session>,
    /// Key of the stream, once the head of the request was put out.
    key: Option<usize>,
    /// Number of the request among those of the connection, from 1 on.
    number: u32,
    /// The body of the response.
    incoming: Incoming,
    /// Trailer lines of the request.
    trailers: Vec<u8>,
}

impl Stream {
    /// A stream that is to be opened on a connection.
    fn new(session: Rc<Session>) -> Self {
        Self { session, key: None, number: 0, incoming: Incoming::default(), trailers: Vec::new() }
    }

    /// Prepares the memory of a stream that has ended for another one.
    fn renew(&mut self, session: &Rc<Session>) {
        self.session = Rc::clone(session);
        self.incoming.begin(0);
        self.trailers.clear();
    }

    /// Address of the node; without meaning for a Unix socket.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.session.addr
    }

    /// Metric label of the address.
    pub(crate) fn label(&self) -> Label {
        self.session.label
    }

    /// Opens the stream, and puts the head of the request out on the connection.
    pub(crate) fn push_head(&mut self, x: &mut Exchange, upstream: &Upstream, node: &Node, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Request { .. } => h1::push_request(x, upstream, node, false),
            Outgoing::Subrequest => h1::push_subrequest(x),
        }
        let has_no_content = x.request.upstream.method.unwrap_or(x.request.method()) == Method::Head;
        let takes_trailers = upstream.is_grpc || head::takes_trailers(x);
        self.number = self.session.begin_request();
        let connection = &mut *self.session.connection.borrow_mut();
        let key = connection.open_request(has_no_content);
        let scheme: &[u8] = if self.session.host.is_some() { b"https" } else { b"http" };
        connection.push_fields(key, false, |encoder, out| {
            head::push_request(&x.out, scheme, takes_trailers, encoder, out);
        });
        if upstream.is_grpc {
            // A call without messages ends with an empty frame of DATA, not with its head (gRPC over HTTP/2, requests).
            connection.seal(key);
        }
        self.key = Some(key);
        x.out.clear();
    }

    /// Reads a response head out of what has been received; false when more has to be received for it.
    ///
    /// # Errors
    /// The response is malformed, or over its limits.
    pub(crate) fn take_head(&mut self, x: &mut Exchange, limits: &Limits) -> Result<bool, Failure> {
        let to = x.request.upstream.method.unwrap_or(x.request.method());
        if let Some(http1) = x.response.parse(limits, to)? {
            // Another head follows an interim response.
            if x.response.head.status >= 200 {
                self.incoming.begin(http1.len);
                self.take_end(&mut x.response.buffer);
            }
            return Ok(true);
        }
        http1::make_room_for_response_head(x, limits)?;
        Ok(false)
    }

    /// Takes note of the end of the response, if all of it has been received.
    fn take_end(&mut self, buffer: &mut Buffer) {
        let Some(key) = self.key.filter(|_| !self.incoming.has_ended()) else { return };
        let connection = &mut *self.session.connection.borrow_mut();
        if connection.has_taken_all(key) {
            self.incoming.end(buffer);
            connection.take_trailers(key, buffer);
        }
    }

    /// True when the response is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.incoming.has_ended()
    }

    /// True when the node has refused the stream unseen, so that the request may be sent again whatever it is (RFC 9113
    /// section 8.7).
    pub(crate) fn is_refused(&self) -> bool {
        self.reset_code() == Some(ErrorCode::RefusedStream)
    }

    /// True when the connection carries its first request.
    pub(crate) fn is_first(&self) -> bool {
        self.number == 1
    }

    /// Ends the stream; its node is told if it is not complete.
    pub(crate) fn close(&mut self) {
        self.incoming.settle();
        if let Some(key) = self.key.take() {
            self.session.connection.borrow_mut().close(key, ErrorCode::Cancel);
        }
    }

    fn reset_code(&self) -> Option<ErrorCode> {
        self.key.and_then(|key| self.session.connection.borrow().reset_code(key))
    }

    /// Error of a stream that is over: that of its connection, or of the stream alone.
    fn error(&self) -> io::Error {
        self.session.broken.get().unwrap_or(io::ErrorKind::ConnectionAborted).into()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The task of the exchange was ended.
        self.close();
    }
}

impl Source for Stream {
    #[inline]
    fn next(&mut self, buffer: &Buffer) -> Result<Piece, Reject> {
        Ok(self.incoming.next(buffer))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        let Some(key) = self.key else { return Poll::Ready(Err(self.error())) };
        let received = self.session.connection.borrow_mut().take_received(cx, key, buffer.spare());
        match received {
            Received::Bytes(n) => {
                buffer.advance(n);
                // Of a head nobody has begun yet, the end is looked for behind it.
                if self.incoming.has_begun() {
                    self.take_end(buffer);
                }
                Poll::Ready(Ok(n))
            }
            Received::End => {
                self.take_end(buffer);
                Poll::Ready(Ok(0))
            }
            Received::Nothing => Poll::Pending,
            Received::Reset => Poll::Ready(Err(self.error())),
        }
    }

    fn make_room(&mut self, buffer: &mut Buffer) {
        self.incoming.make_room(buffer);
    }
}

impl Sink for Stream {
    fn poll_data(&mut self, cx: &mut Context<'_>, _: &mut Vec<u8>, data: &[u8]) -> Poll<io::Result<usize>> {
        let Some(key) = self.key else { return Poll::Ready(Err(self.error())) };
        let taken = ready!(self.session.connection.borrow_mut().poll_data(cx, key, data));
        Poll::Ready(taken.map_err(|_| self.error()))
    }

    fn push_trailer(&mut self, _: &mut Vec<u8>, line: &[u8]) {
        self.trailers.extend_from_slice(line);
    }

    fn push_end(&mut self, _: &mut Vec<u8>) {
        let Some(key) = self.key else { return };
        let connection = &mut *self.session.connection.borrow_mut();
        if self.trailers.is_empty() {
            return connection.end_stream(key);
        }
        let lines = std::mem::take(&mut self.trailers);
        connection.push_fields(key, true, |encoder, out| head::push_lines(&lines, encoder, out));
    }

    fn poll_flush(&mut self, _: &mut Context<'_>, _: &mut Vec<u8>) -> Poll<io::Result<()>> {
        let Some(key) = self.key else { return Poll::Ready(Err(self.error())) };
        // Bytes that were taken belong to the connection.
        let flushed = self.session.connection.borrow_mut().flush(key);
        Poll::Ready(flushed.map_err(|_| self.error()))
    }
}
