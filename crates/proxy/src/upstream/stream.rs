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

/// A session with a node, and the host that was asked for: another request may use it only for the same.
#[derive(Debug)]
pub(crate) struct NodeTls {
    pub(crate) stream: TlsStream<UnbufferedClientConnection>,
    pub(crate) host: Box<[u8]>,
}

impl NodeStream {
    /// Whether nothing has arrived.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_quiet(),
            Self::Tls(tls) => tls.stream.is_quiet(),
        }
    }

    /// How many of the bytes that were written can never be sent. With TLS they are those of its records: more than what
    /// these hold, by less than the head of a request is long.
    pub(crate) fn lost_bytes(&self) -> usize {
        match self {
            Self::Plain(socket) => socket.lost_bytes(),
            Self::Tls(tls) => tls.stream.socket().lost_bytes(),
        }
    }

    /// Whether it was set up for this host.
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
