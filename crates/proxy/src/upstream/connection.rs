//! The node's side of an exchange, independent of the node's protocol.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use weir_plugin::Failure;
use weir_plugin::host::Exchange;
use weir_telemetry::metrics::{Label, Recorder, UpstreamState};
use weir_wire::Reject;
use weir_wire::buffer::Buffer;
use weir_wire::head::Limits;

use super::outgoing::Outgoing;
use super::pool::Pools;
use super::stream::NodeStream;
use super::{Node, Upstream, h1, h2};
use crate::relay::{Piece, Sink, Source};

/// A connection to a node, or one stream of it, for one request: the request's body goes into it, the response's comes
/// out of it.
#[derive(Debug)]
pub(crate) enum NodeConnection {
    Http1(Box<h1::Connection>),
    Http2(Box<h2::Stream>),
}

/// Evaluates the same expression for either protocol.
macro_rules! of_either {
    ($self:expr, $node:ident => $value:expr) => {
        match $self {
            NodeConnection::Http1($node) => $value,
            NodeConnection::Http2($node) => $value,
        }
    };
}

impl NodeConnection {
    /// The node's address; without meaning for a Unix socket.
    pub(crate) fn addr(&self) -> SocketAddr {
        of_either!(self, node => node.addr())
    }

    /// Metric label of the node's address.
    pub(crate) fn label(&self) -> Label {
        of_either!(self, node => node.label())
    }

    /// Begins a request: puts its head on [`Exchange::out`], or on a connection that carries several.
    pub(crate) fn push_head(&mut self, x: &mut Exchange, upstream: &Upstream, node: &Node, outgoing: Outgoing) {
        of_either!(self, to => to.push_head(x, upstream, node, outgoing));
    }

    /// Reads a response head out of what has been received; false when more has to be received for it.
    ///
    /// # Errors
    /// The response is malformed, or over its limits.
    pub(crate) fn take_head(&mut self, x: &mut Exchange, limits: &Limits) -> Result<bool, Failure> {
        of_either!(self, node => node.take_head(x, limits))
    }

    /// Forgets an interim response that has been passed on.
    pub(crate) fn drop_interim(&mut self, x: &mut Exchange) {
        let len = x.response.head_len;
        x.response.buffer.consume(len);
    }

    /// Takes note that the node has ended its side, which is the end of some bodies. True when the body is complete.
    pub(crate) fn end_by_close(&mut self) -> bool {
        match self {
            Self::Http1(node) => node.end_by_close(),
            Self::Http2(stream) => stream.is_complete(),
        }
    }

    /// True when the node cannot have seen the request.
    pub(crate) fn is_unsent(&self) -> bool {
        match self {
            Self::Http1(node) => node.is_unsent(),
            Self::Http2(stream) => stream.is_refused(),
        }
    }

    /// True when the node has refused the request unseen, so that it may be sent to the same node again.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Http2(stream) if stream.is_refused())
    }

    /// True when the connection carries its first request.
    pub(crate) fn is_first(&self) -> bool {
        of_either!(self, node => node.is_first())
    }

    /// True when the node goes on taking the request while and after it answers.
    pub(crate) fn reads_on(&self) -> bool {
        match self {
            Self::Http1(node) => node.reads_on(),
            Self::Http2(_) => true,
        }
    }

    /// True when the response is complete and the connection may carry another request.
    pub(crate) fn is_reusable(&self, buffer: &Buffer) -> bool {
        match self {
            Self::Http1(node) => node.is_reusable(buffer),
            Self::Http2(stream) => stream.is_complete(),
        }
    }

    /// Gives the connection back, for another request.
    pub(crate) fn release(self, pools: &Pools, upstream: &Upstream, node: &Node, now: u64, recorder: &Recorder) {
        match self {
            Self::Http1(connection) => connection.release(pools, upstream, node, now, recorder),
            Self::Http2(stream) => pools.sessions.end(stream),
        }
    }

    /// Gives the connection up.
    pub(crate) fn discard(self, recorder: &Recorder) {
        match self {
            Self::Http1(_) => recorder.upstream_closed(UpstreamState::Active),
            Self::Http2(mut stream) => stream.close(),
        }
    }

    /// The bytes that follow a switch of protocols; `None` where there can be none.
    pub(crate) fn bytes(&mut self) -> Option<&mut NodeStream> {
        match self {
            Self::Http1(node) => Some(&mut node.stream),
            Self::Http2(_) => None,
        }
    }
}

impl Source for NodeConnection {
    #[inline]
    fn next(&mut self, buffer: &Buffer) -> Result<Piece, Reject> {
        of_either!(self, node => node.next(buffer))
    }

    #[inline]
    fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        of_either!(self, node => node.poll_receive(cx, buffer))
    }

    fn make_room(&mut self, buffer: &mut Buffer) {
        of_either!(self, node => node.make_room(buffer));
    }
}

impl Sink for NodeConnection {
    #[inline]
    fn poll_data(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>, data: &[u8]) -> Poll<io::Result<usize>> {
        of_either!(self, node => node.poll_data(cx, out, data))
    }

    fn push_trailer(&mut self, out: &mut Vec<u8>, line: &[u8]) {
        of_either!(self, node => node.push_trailer(out, line));
    }

    fn push_end(&mut self, out: &mut Vec<u8>) {
        of_either!(self, node => node.push_end(out));
    }

    #[inline]
    fn poll_flush(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<()>> {
        of_either!(self, node => node.poll_flush(cx, out))
    }
}
