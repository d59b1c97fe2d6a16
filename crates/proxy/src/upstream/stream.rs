//! The byte stream to a node, with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::client::UnbufferedClientConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use weir_net::sys::Socket;
use weir_net::tls::stream::TlsStream;

/// A connected stream.
#[derive(Debug)]
pub(crate) enum NodeStream {
    Plain(Socket),
    Tls(Box<NodeTls>),
}

/// A TLS session with a node, and its SNI host: another request may use the session only for the same host.
#[derive(Debug)]
pub(crate) struct NodeTls {
    pub(crate) stream: TlsStream<UnbufferedClientConnection>,
    pub(crate) host: Box<[u8]>,
}

impl NodeStream {
    /// True if nothing has arrived.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_quiet(),
            Self::Tls(tls) => tls.stream.is_quiet(),
        }
    }

    /// Number of written bytes that can never be sent. With TLS these are bytes of records: more than their content, by
    /// less than the length of a request's head.
    pub(crate) fn lost_bytes(&self) -> usize {
        match self {
            Self::Plain(socket) => socket.lost_bytes(),
            Self::Tls(tls) => tls.stream.socket().lost_bytes(),
        }
    }

    /// The socket, without TLS.
    pub(crate) fn plain(&self) -> Option<&Socket> {
        match self {
            Self::Plain(socket) => Some(socket),
            Self::Tls(_) => None,
        }
    }

    /// The SNI host, with TLS.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => Some(&tls.host),
        }
    }

    /// True when the node has chosen HTTP/2 by ALPN.
    pub(crate) fn has_chosen_http2(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.stream.session().alpn_protocol() == Some(b"h2"))
    }

    /// Ready when there may be bytes to read.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(socket) => socket.poll_readable(cx),
            Self::Tls(tls) => tls.stream.poll_readable(cx),
        }
    }

    /// True if the session was set up for this host.
    pub(crate) fn is_for(&self, host: &[u8]) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(tls) => *tls.host == *host,
        }
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_shutdown(cx),
        }
    }
}
