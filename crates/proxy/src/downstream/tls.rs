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

use weir_plugin::host::ShownCertificate;

use super::h1::ClientStream;
use crate::http2::TlsFacts;
use crate::tls::server::{Hosts, Offer};
use crate::worker::Worker;

/// Most bytes of a ClientHello: with a post-quantum key share it has about 2 KiB.
const MOST_HELLO: usize = 32 << 10;
/// Time that a client has to go on sending after its handshake was refused, in milliseconds.
const REFUSED_MS: u64 = 1000;
/// A fatal alert in a record: unrecognized_name (RFC 6066 section 3).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 1, 0, 2, 2, 112];

/// A client with TLS.
#[derive(Debug)]
pub(crate) struct TlsClient {
    stream: TlsStream<UnbufferedServerConnection>,
    /// Server name that the client sent (SNI).
    sni: Option<Box<str>>,
    /// True if the client showed a certificate; it was verified then.
    verified: bool,
    /// True if it was asked for a certificate that nobody has verified yet.
    asked: bool,
}

/// The end of a handshake that came to no session.
pub(crate) enum NoSession {
    /// The client speaks plain HTTP, which begins with these bytes, and waits for an answer.
    PlainHttp(Socket, Vec<u8>),
    /// The client has received an alert where the protocol has one.
    Failed(io::Error),
}

impl From<io::Error> for NoSession {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Accepts a client's handshake within the time limit.
pub(crate) async fn accept(socket: Socket, worker: &Worker, offer: Offer) -> Result<TlsClient, NoSession> {
    let timer = worker.timers.timer();
    timer.set_idle(worker.options.handshake_ms);
    let late = || {
        let reason =
            if timer.gives_way() { "not finished when another client came" } else { "handshake took too long" };
        Err(io::Error::new(io::ErrorKind::TimedOut, reason).into())
    };
    timer.within(accept_unlimited(socket, worker, offer)).await.unwrap_or_else(late)
}

async fn accept_unlimited(mut socket: Socket, worker: &Worker, offer: Offer) -> Result<TlsClient, NoSession> {
    let (sni, received) = match read_hello(&mut socket).await? {
        Hello::Tls(sni, received) => (sni, received),
        Hello::PlainHttp(received) => return Err(NoSession::PlainHttp(socket, received)),
    };
    let shown = worker.current().and_then(|local| local.snapshot.tls.shown(sni.as_deref(), offer));
    let asked = shown.as_ref().is_some_and(|shown| shown.asks);
    let Some(config) = shown.and_then(|shown| shown.config) else {
        // The client may be gone already.
        let _ = poll_fn(|cx| Pin::new(&mut socket).poll_write(cx, &UNRECOGNIZED_NAME)).await;
        let reason = match sni {
            Some(sni) => format!("no certificate for the name {sni}, or one that is not there yet"),
            None => "the client asked for no name, and tls.fallback_sni stands for none with a certificate".to_owned(),
        };
        return Err(io::Error::other(reason).into());
    };
    let session = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = TlsStream::new(socket, session, received);
    if let Err(error) = handshake(&mut stream, &worker.handshakes).await {
        let timer = worker.timers.timer();
        timer.set(REFUSED_MS);
        let _ = timer.within(stream.refuse()).await;
        return Err(error.into());
    }
    let verified = !asked && stream.session().peer_certificates().is_some();
    Ok(TlsClient { stream, sni, verified, asked })
}

/// First bytes of a client.
enum Hello {
    /// A ClientHello for this name, and all bytes received.
    Tls(Option<Box<str>>, Vec<u8>),
    /// A letter, which the methods of HTTP begin with and no record of TLS does, and all bytes received.
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

impl TlsClient {
    /// True if HTTP/2 was agreed upon.
    pub(crate) fn is_http2(&self) -> bool {
        self.stream.session().alpn_protocol() == Some(b"h2")
    }

    /// Shows plugins the certificate that the client was asked for, while the guard lives. `connection` is the number of the
    /// connection.
    pub(crate) fn show_certificate(&self, connection: u64) -> Option<ShownCertificate> {
        let chain = self.stream.session().peer_certificates().filter(|_| self.asked)?;
        Some(ShownCertificate::new(connection, chain.iter().map(|cert| cert.to_vec().into_boxed_slice()).collect()))
    }

    /// Facts about the client from the TLS session.
    pub(crate) fn facts(&self) -> TlsFacts {
        TlsFacts { sni: self.sni.clone(), verified: self.verified }
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

    fn server_name(&self) -> Option<&str> {
        self.sni.as_deref()
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
