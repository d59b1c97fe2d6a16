//! The node's side of an exchange, in whatever protocol the node speaks.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use weir_plugin::{Exchange, Failure};
use weir_telemetry::metrics::{Label, Recorder};
use weir_wire::buffer::Buffer;
use weir_wire::head::Limits;

use super::pool::Pools;
use super::{Node, Upstream};
use crate::relay::{Sink, Source};

/// The message that a node is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outgoing {
    /// The client's request, as this node has to see it.
    Request { websocket: bool },
    /// A request that was made here, as it stands in the buffer.
    Subrequest,
}

/// A connection to a node, or one stream of it, for one request: the request's body goes into it, the response's comes
/// out of it.
pub(crate) trait NodeConnection: Source + Sink {
    /// The bytes below the protocol, once the node has switched to another.
    type Bytes: AsyncRead + AsyncWrite + Unpin;

    /// The node's address; without meaning for a Unix socket.
    fn addr(&self) -> SocketAddr;

    /// Metric label of the node's address.
    fn label(&self) -> Label;

    /// Begins a request: puts its head on [`Exchange::out`].
    fn push_head(&mut self, x: &mut Exchange, upstream: &Upstream, node: &Node, outgoing: Outgoing);

    /// Reads a response head out of what has been received; false when more has to be received for it.
    ///
    /// # Errors
    /// The response is malformed, or over its limits.
    fn take_head(&mut self, x: &mut Exchange, limits: &Limits) -> Result<bool, Failure>;

    /// Forgets an interim response that has been passed on.
    fn drop_interim(&mut self, x: &mut Exchange);

    /// Takes note that the node has ended its side, which is the end of some bodies. True when the body is complete.
    fn end_by_close(&mut self) -> bool;

    /// True when none of the bytes that were written can have reached the node.
    fn is_unsent(&self) -> bool;

    /// True when the connection carries its first request.
    fn is_first(&self) -> bool;

    /// True when the node goes on taking the request while and after it answers.
    fn reads_on(&self) -> bool;

    /// True when the response is complete and the connection may carry another request.
    fn is_reusable(&self, buffer: &Buffer) -> bool;

    /// Gives the connection back, for another request.
    fn release(self: Box<Self>, pools: &Pools, upstream: &Upstream, node: &Node, now: u64, recorder: &Recorder);

    /// Gives the connection up.
    fn discard(self: Box<Self>, recorder: &Recorder);

    /// The bytes that follow a switch of protocols.
    fn bytes(&mut self) -> &mut Self::Bytes;
}
