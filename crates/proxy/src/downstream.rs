//! The client's side of an exchange, and client connections by protocol.

pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod inner;
mod linger;
pub(crate) mod proxy_protocol;
pub(crate) mod tls;

use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use weir_plugin::Request;
use weir_plugin::host::Exchange;
use weir_plugin::host::buffers::NO_ROOM;
use weir_wire::Reject;

use crate::relay::{Sink, Source};
use crate::timer::Timer;
use crate::tls::server::Hosts;
use crate::worker::Worker;

/// There is no room for a large head.
pub(crate) const NO_ROOM_FOR_HEAD: Reject = Reject::new(NO_ROOM.status, NO_ROOM.reason);

/// The content that follows the head of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Following {
    /// No body, whatever the fields announce: the response to HEAD, or a status without a body.
    Nothing,
    /// As many bytes as the fields announce.
    Announced,
    /// A body of this length, which the fields do not announce yet.
    Length(u64),
    /// As many bytes as the body turns out to have.
    Open,
}

/// A client that may go while something is done for it.
pub(crate) trait Presence {
    /// Ready when the client has given the exchange up, which nobody does who waits for an answer.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()>;
}

/// A client that waits for an answer: an HTTP/1 connection between the head of a request and the end of its response, a
/// stream of a connection that carries many, or the gateway itself. The request's body comes out of it, the response's
/// goes into it.
pub(crate) trait Downstream: Presence + Source + Sink {
    /// The bytes below the protocol, once it has switched to another.
    type Bytes: AsyncRead + AsyncWrite + Unpin;

    /// Checks that the configuration lets a request be served on the client's connection.
    ///
    /// # Errors
    /// The host requires a certificate that the client has not shown.
    fn admit(&self, request: &Request, hosts: &Hosts) -> Result<(), Reject>;

    /// The name that the client asked for by TLS (SNI).
    fn server_name(&self) -> Option<&str> {
        None
    }

    /// Puts 100 (Continue) on [`Exchange::out`], where the client waits for it before it sends the body.
    fn push_continue(&mut self, x: &mut Exchange);

    /// Puts the head of an interim response on [`Exchange::out`].
    fn push_interim(&mut self, x: &mut Exchange);

    /// Puts the head of the final response on [`Exchange::out`]. `reads_on` is true when the exchange goes on reading
    /// the request; otherwise the rest of the request is not needed. Returns true when the client's side goes on after
    /// the response, so that the rest has to be read at all.
    fn push_head(&mut self, x: &mut Exchange, worker: &Worker, following: Following, reads_on: bool) -> bool;

    /// Puts the head of a switch to WebSocket on [`Exchange::out`].
    fn push_switch(&mut self, x: &mut Exchange);

    /// The bytes that follow a switch of protocols.
    fn bytes(&mut self) -> &mut Self::Bytes;

    /// Puts the decoded body behind the head in place of what was received of it, to be taken from its beginning.
    fn replace_body(&mut self, request: &mut Request, body: &[u8]);

    /// Begins again with the request's body; false when bytes of it are gone.
    fn rewind(&mut self) -> bool;

    /// Marks the rest of the request as unread for good: its body is malformed, too long, or of no use.
    fn abandon_request(&mut self);

    /// Bytes received of the request's body so far, framing included.
    fn received(&self) -> u64;

    /// Bytes sent of the response so far, framing and interim responses included.
    fn sent(&self) -> u64;

    /// Ends an exchange whose response was sent whole: takes the rest of the request out of the way, if there is little.
    async fn finish(&mut self, x: &mut Exchange, timer: &Timer, worker: &Worker);

    /// Ends an exchange whose response was not sent whole: the client must not take it for complete.
    fn reset(&mut self);
}
