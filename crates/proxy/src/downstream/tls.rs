//! Clients with TLS, and their handshakes.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::server::{Acceptor, UnbufferedServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_net::sys::Socket;
use weir_net::tls::handshake;
use weir_net::tls::stream::TlsStream;
use weir_plugin::Request;
use weir_wire::Reject;

use super::h1::ClientStream;
use crate::tls::server::Hosts;
use crate::worker::Worker;

/// Most bytes of a ClientHello: with a post-quantum key share it has about 2 KiB.
const MOST_HELLO: usize = 32 << 10;
/// A fatal alert in a record: unrecognized_name (RFC 6066 section 3).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 1, 0, 2, 2, 112];

/// A client with TLS.
#[derive(Debug)]
pub(crate) struct TlsClient {
    stream: TlsStream<UnbufferedServerConnection>,
    /// The name it asked for.
    sni: Option<Box<str>>,
    /// Whether it showed a certificate, which was verified then.
    verified: bool,
}

/// The end of a handshake that came to no session.
pub(crate) enum NoSession {
    /// The client speaks plain HTTP, which begins with these bytes, and waits for an answer.
    PlainHttp(Socket, Vec<u8>),
    /// The client has been told where the protocol has words for it.
    Failed(io::Error),
}

impl From<io::Error> for NoSession {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Accepts a client's handshake within the time limit.
pub(crate) async fn accept(socket: Socket, worker: &Worker) -> Result<TlsClient, NoSession> {
    let timer = worker.timers.timer();
    timer.set_idle(worker.options.handshake_ms);
    let late = || {
        let reason =
            if timer.gives_way() { "not finished when another client came" } else { "handshake took too long" };
        Err(io::Error::new(io::ErrorKind::TimedOut, reason).into())
    };
    timer.within(accept_unlimited(socket, worker)).await.unwrap_or_else(late)
}

async fn accept_unlimited(mut socket: Socket, worker: &Worker) -> Result<TlsClient, NoSession> {
    let (sni, received) = match read_hello(&mut socket).await? {
        Hello::Tls(sni, received) => (sni, received),
        Hello::PlainHttp(received) => return Err(NoSession::PlainHttp(socket, received)),
    };
    let host = worker.current().and_then(|local| local.snapshot.tls.for_client(sni.as_deref()).cloned());
    let Some(config) = host.and_then(|host| host.config.clone()) else {
        // It does not matter whether the client still hears it.
        let _ = poll_fn(|cx| Pin::new(&mut socket).poll_write(cx, &UNRECOGNIZED_NAME)).await;
        let reason = match sni {
            Some(sni) => format!("no certificate for the name {sni}, or one that is not there yet"),
            None => "the client asked for no name, and tls.fallback_sni stands for none with a certificate".to_owned(),
        };
        return Err(io::Error::other(reason).into());
    };
    let session = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = TlsStream::new(socket, session, received);
    handshake(&mut stream, &worker.handshakes).await?;
    let verified = stream.session().peer_certificates().is_some();
    Ok(TlsClient { stream, sni, verified })
}

/// How a client begins.
enum Hello {
    /// With a ClientHello, for this name; all that was received.
    Tls(Option<Box<str>>, Vec<u8>),
    /// With a letter, as the methods of HTTP do and no record of TLS does.
    PlainHttp(Vec<u8>),
}

/// Reads the ClientHello: the name in it decides with which certificate the session begins.
async fn read_hello(socket: &mut Socket) -> io::Result<Hello> {
    let mut acceptor = Acceptor::default();
    let mut received = Vec::new();
    loop {
        let mut room = [0; 4096];
        let mut buf = ReadBuf::new(&mut room);
        poll_fn(|cx| Pin::new(&mut *socket).poll_read(cx, &mut buf)).await?;
        if buf.filled().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.is_empty() && buf.filled().first().is_some_and(u8::is_ascii_alphabetic) {
            return Ok(Hello::PlainHttp(buf.filled().to_vec()));
        }
        received.extend_from_slice(buf.filled());
        if received.len() > MOST_HELLO {
            return Err(io::Error::other("ClientHello too large"));
        }
        let mut fresh = buf.filled();
        while !fresh.is_empty() {
            acceptor.read_tls(&mut fresh)?;
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                return Ok(Hello::Tls(accepted.client_hello().server_name().map(Into::into), received));
            }
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                alert.write_all(&mut bytes)?;
                let _ = poll_fn(|cx| Pin::new(&mut *socket).poll_write(cx, &bytes)).await;
                return Err(io::Error::other(error));
            }
        }
    }
}

impl ClientStream for TlsClient {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_readable(cx)
    }

    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.socket().poll_reset(cx)
    }

    fn has_unsent(&self) -> bool {
        self.stream.socket().has_unsent()
    }

    fn has_pending_write(&self) -> bool {
        self.stream.socket().has_pending_write()
    }

    fn abort(&mut self) {
        self.stream.abort();
    }

    fn admit(&self, request: &Request, hosts: &Hosts) -> Result<(), Reject> {
        hosts.admit(request.host(), request.path(), self.sni.as_deref(), self.verified).map_err(Reject::from)
    }
}

impl AsyncRead for TlsClient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsClient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
