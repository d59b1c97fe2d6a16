//! A connection to a server: TCP or a Unix socket, with TLS or without.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::UnbufferedClientConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::names::Names;
use crate::sys::Socket;
use crate::tls::client::Setup;
use crate::tls::stream::TlsStream;
use crate::tls::{self, HandshakeQueue};

/// Time that an address of a name has before the next one is tried, while there are others.
const TIME_BEFORE_NEXT: Duration = Duration::from_millis(250);

/// Prefix of the path of a Unix socket, in place of a host.
const UNIX: &str = "unix:";

/// A connected stream.
#[derive(Debug)]
pub enum Stream {
    /// A stream without TLS.
    Plain(Socket),
    /// A stream with TLS.
    Tls(Box<TlsStream<UnbufferedClientConnection>>),
}

thread_local! {
    /// Queue of the handshakes of this thread's streams.
    static TURNS: Rc<HandshakeQueue> = Rc::default();
}

impl Stream {
    /// Connects to `host`, which is a name, an address, or `unix:` and a path, and sets TLS up where there is a setup.
    /// `server_name` is sent (SNI), and the server's certificate verified for it. The caller sets the time limit.
    ///
    /// # Errors
    /// The name has no address, no address takes the connection, or TLS fails.
    pub async fn connect(
        host: &str,
        port: u16,
        tls: Option<&Setup>,
        server_name: &str,
        names: &Names,
    ) -> io::Result<Self> {
        let socket = match host.strip_prefix(UNIX) {
            Some(path) => Socket::connect_unix(path)?,
            None => {
                let addresses = names.resolve(host).await.map_err(io::Error::other)?;
                let addresses: Vec<_> = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
                connect_to_first(&addresses).await?
            }
        };
        match tls {
            None => Ok(Self::Plain(socket)),
            Some(setup) => secure(socket, setup, server_name).await,
        }
    }

    /// Sets TLS up on a stream without it, once both sides have agreed on that. The caller sets the time limit.
    ///
    /// # Errors
    /// The stream has TLS already, or TLS fails.
    pub async fn secured(self, setup: &Setup, server_name: &str) -> io::Result<Self> {
        match self {
            Self::Plain(socket) => secure(socket, setup, server_name).await,
            Self::Tls(_) => Err(io::Error::other("the stream has TLS already")),
        }
    }
}

async fn secure(socket: Socket, setup: &Setup, server_name: &str) -> io::Result<Stream> {
    let session = setup.session(server_name.as_bytes()).map_err(io::Error::other)?;
    let mut stream = Box::new(TlsStream::new(socket, session, Vec::new()));
    let turns = TURNS.with(Rc::clone);
    tls::handshake(&mut stream, &turns).await?;
    Ok(Stream::Tls(stream))
}

/// A socket connected to the first address that takes it.
async fn connect_to_first(addresses: &[SocketAddr]) -> io::Result<Socket> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (at, address) in addresses.iter().enumerate() {
        let connected = match at + 1 < addresses.len() {
            true => weir_runtime::timeout(TIME_BEFORE_NEXT, connect_to(*address)).await,
            false => Some(connect_to(*address).await),
        };
        match connected {
            Some(Ok(socket)) => return Ok(socket),
            Some(Err(error)) => failure = error,
            None => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failure)
}

async fn connect_to(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::begin_connect(address)?;
    poll_fn(|cx| socket.poll_connected(cx)).await?;
    Ok(socket)
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
