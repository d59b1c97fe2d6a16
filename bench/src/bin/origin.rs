//! Demo origin behind the gateway in `make run` and in tests. Not part of the product.
//!
//! | path | answer |
//! |---|---|
//! | `/size/N` | N bytes, up to 1 GiB |
//! | `/json/valid` | a small JSON document |
//! | `/json/hello` | `{"hello":"world"}` |
//! | `/text/hello` | `hello world` and a line end |
//! | `/delay/MS` | the echo, after MS milliseconds |
//! | `/status/N` | an empty answer with status N |
//! | `/stream/N/MS` | N chunks, MS milliseconds apart |
//! | `/sse/N/MS` (or `/sse`) | N server-sent events, MS milliseconds apart (10, 1000) |
//! | anything else | the echo: method, target, headers and body length as JSON |
//!
//! Counts are limited to 10,000 and pauses to one minute, so that every answer ends. With `--cert` and `--key` it
//! serves TLS.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use lexopt::ValueExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;

const MAX_SIZE: u64 = 1 << 30;
const MAX_CHUNKS: u64 = 10_000;
const MAX_PAUSE_MS: u64 = 60_000;

/// Documents with fixed paths, as used by published benchmarks.
const DOCUMENTS: [(&str, &str, &str); 3] = [
    ("/json/valid", "application/json", "{\"valid\":true,\"items\":[1,2,3],\"text\":\"a small document\"}\n"),
    ("/json/hello", "application/json", "{\"hello\":\"world\"}"),
    ("/text/hello", "text/plain", "hello world\n"),
];

/// Content of `/size/N`.
static FILL: [u8; 16 * 1024] = [b'x'; 16 * 1024];

fn main() -> Result<(), Box<dyn Error>> {
    let mut listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut keep_alive = true;
    let (mut cert, mut key) = (None::<PathBuf>, None::<PathBuf>);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            lexopt::Arg::Long("listen") => listen = arguments.value()?.parse()?,
            lexopt::Arg::Long("no-keep-alive") => keep_alive = false,
            lexopt::Arg::Long("cert") => cert = Some(arguments.value()?.into()),
            lexopt::Arg::Long("key") => key = Some(arguments.value()?.into()),
            lexopt::Arg::Long("help") => {
                println!("usage: origin [--listen ADDRESS] [--no-keep-alive] [--cert FILE --key FILE]");
                return Ok(());
            }
            _ => return Err(argument.unexpected().into()),
        }
    }
    let tls = match (cert, key) {
        (Some(cert), Some(key)) => Some(acceptor(cert, key)?),
        (None, None) => None,
        _ => return Err("--cert and --key belong together".into()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(listen, keep_alive, tls))?;
    Ok(())
}

fn acceptor(cert: PathBuf, key: PathBuf) -> Result<TlsAcceptor, Box<dyn Error>> {
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(listen: SocketAddr, keep_alive: bool, tls: Option<TlsAcceptor>) -> io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                tokio::task::spawn_local(accepted(client, keep_alive, tls.clone()));
            }
            Err(error) => {
                eprintln!("origin: accept: {error}");
                sleep(Duration::from_millis(100)).await; // out of descriptors: wait for some to come back
            }
        }
    }
}

async fn accepted(client: TcpStream, keep_alive: bool, tls: Option<TlsAcceptor>) {
    // Sends small answers in one segment each; without `TCP_NODELAY`, those over TLS wait for an acknowledgement.
    if let Err(error) = client.set_nodelay(true) {
        eprintln!("origin: connection: {error}");
    }
    match tls {
        None => connection(client, keep_alive).await,
        Some(tls) => match tls.accept(client).await {
            Ok(client) => connection(client, keep_alive).await,
            Err(error) => eprintln!("origin: handshake: {error}"),
        },
    }
}

async fn connection(client: impl AsyncRead + AsyncWrite + Unpin, keep_alive: bool) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(keep_alive)
        .half_close(true)
        .serve_connection(TokioIo::new(client), service_fn(answer))
        .await;
    if let Err(error) = served {
        eprintln!("origin: connection: {error}");
    }
}

/// Error that ends the connection and is printed.
type Failure = Box<dyn Error + Send + Sync>;

async fn answer(request: Request<Incoming>) -> Result<Response<Content>, Failure> {
    let path = request.uri().path().to_owned();
    if let Some((_, kind, text)) = DOCUMENTS.iter().find(|(document, ..)| *document == path) {
        let answer = Response::builder().header(CONTENT_TYPE, *kind);
        return Ok(answer.body(Content::Whole(Bytes::from_static(text.as_bytes())))?);
    }
    let mut segments = path.split('/').skip(1);
    let kind = segments.next();
    let mut number = || segments.next()?.parse::<u64>().ok();
    match (kind, number(), number()) {
        (Some("size"), Some(size), None) => Ok(Response::new(Content::Fill(size.min(MAX_SIZE)))),
        (Some("delay"), Some(pause), None) => {
            sleep(milliseconds(pause)).await;
            echo(request).await
        }
        (Some("status"), Some(status), None) => {
            let status = u16::try_from(status).ok().and_then(|code| StatusCode::from_u16(code).ok());
            let answer = Response::builder().status(status.unwrap_or(StatusCode::BAD_REQUEST));
            Ok(answer.body(Content::Fill(0))?)
        }
        (Some("stream"), Some(count), Some(pause)) => Ok(Response::builder()
            .header(CONTENT_TYPE, "text/plain")
            .body(Content::Drip(Drip::new(count, pause, |n| format!("chunk {n}\n"))))?),
        (Some("sse"), count, pause) => Ok(Response::builder()
            .header(CONTENT_TYPE, "text/event-stream")
            .header(CACHE_CONTROL, "no-store")
            .body(Content::Drip(Drip::new(count.unwrap_or(10), pause.unwrap_or(1000), |n| {
                format!("id: {n}\ndata: event {n}\n\n")
            })))?),
        _ => echo(request).await,
    }
}

/// Describes the received request. Invalid UTF-8 in header values is shown with replacement characters.
async fn echo(request: Request<Incoming>) -> Result<Response<Content>, Failure> {
    let (head, mut body) = request.into_parts();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame?.data_ref().map_or(0, Bytes::len);
    }
    let headers: Vec<String> = head
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let told = serde_json::json!({
        "method": head.method.as_str(),
        "target": head.uri.to_string(),
        "headers": headers,
        "body_length": length,
    });
    let text = format!("{told:#}\n");
    Ok(Response::builder().header(CONTENT_TYPE, "application/json").body(Content::Whole(Bytes::from(text)))?)
}

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number.min(MAX_PAUSE_MS))
}

/// A response body.
enum Content {
    Whole(Bytes),
    Fill(u64),
    Drip(Drip),
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Content::Whole(bytes) if bytes.is_empty() => None,
            Content::Whole(bytes) => Some(std::mem::take(bytes)),
            Content::Fill(0) => None,
            Content::Fill(left) => {
                let size = (*left).min(FILL.len() as u64);
                *left -= size;
                Some(Bytes::from_static(&FILL).slice(..size as usize))
            }
            Content::Drip(drip) => std::task::ready!(drip.poll_next(cx)),
        };
        Poll::Ready(data.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Fill(left) => SizeHint::with_exact(*left),
            Content::Drip(_) => SizeHint::default(),
        }
    }
}

/// Pieces of text with a pause before each but the first.
struct Drip {
    sent: u64,
    count: u64,
    pause: Duration,
    sleep: Pin<Box<Sleep>>,
    piece: fn(u64) -> String,
}

impl Drip {
    fn new(count: u64, pause_ms: u64, piece: fn(u64) -> String) -> Drip {
        let sleep = Box::pin(sleep(Duration::ZERO));
        Drip { sent: 0, count: count.min(MAX_CHUNKS), pause: milliseconds(pause_ms), sleep, piece }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.sent == self.count {
            return Poll::Ready(None);
        }
        std::task::ready!(self.sleep.as_mut().poll(cx));
        self.sleep = Box::pin(sleep(self.pause));
        self.sent += 1;
        Poll::Ready(Some(Bytes::from((self.piece)(self.sent))))
    }
}
