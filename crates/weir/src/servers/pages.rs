//! The servers beside the data plane, for metrics, status and control: small pages over HTTP/1.1, for a few known peers.
//!
//! Limits, so that a stuck or hostile peer costs little and locks nobody out: the number of concurrent connections (beyond
//! it, the connection idle for the longest time is closed), [`HEAD_TIMEOUT`] for a request head and between requests,
//! [`HEAD_BYTES`] for the size of a head, and [`LIFETIME`] for a connection, after which a response in progress gets
//! [`GRACE`].

use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{ACCEPT, ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};
use weir_admin::{Seats, Taken};
use weir_config::settings::Endpoint;

use crate::process::inherited::{Inherited, Listening};

const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const HEAD_BYTES: usize = 16 * 1024;
const LIFETIME: Duration = Duration::from_secs(300);
const GRACE: Duration = Duration::from_secs(30);

/// Becomes true when another process has taken over.
pub(crate) type Leaving = watch::Receiver<bool>;

/// A request to such a server.
#[derive(Debug)]
pub(crate) struct PageRequest {
    /// GET, HEAD or one of [`Server::serve`]'s commands.
    pub(crate) method: Method,
    pub(crate) path: String,
    /// True if `Accept` names HTML, as browsers do.
    pub(crate) html: bool,
    /// The target, the fields, and the local address of the connection.
    pub(crate) uri: Uri,
    pub(crate) fields: HeaderMap,
    pub(crate) local: IpAddr,
}

/// A method and a path that run an action rather than show a page.
pub(crate) type Command = (Method, &'static str);

/// Body of a page.
pub(crate) enum Page {
    /// The whole body.
    Whole(Option<Bytes>),
    /// A source of pieces, one per call until `None`; called as fast as the peer reads.
    Pieces(Box<dyn FnMut() -> Option<Bytes> + Send>),
}

/// A server that is bound but does not serve yet.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    /// Maximum number of concurrent connections.
    connections: usize,
}

/// Opens the socket of a server, inherited or new, if the server has an address. `setting` names the source of the
/// address.
pub(crate) fn open(
    setting: &str,
    endpoint: Endpoint,
    inherited: &mut Inherited,
    listening: &mut Listening,
) -> anyhow::Result<Option<TcpListener>> {
    let Some(addr) = endpoint.addr() else { return Ok(None) };
    let inherited = inherited.server(setting, addr);
    let open = || -> io::Result<_> {
        let (socket, activated) = match inherited {
            Some(passed) => (passed.socket.into(), passed.activated),
            None => (std::net::TcpListener::bind(addr)?, false),
        };
        socket.set_nonblocking(true)?;
        listening.add(setting, addr, activated, socket.try_clone()?.into());
        TcpListener::from_std(socket)
    };
    open().map(Some).with_context(|| format!("{setting}: cannot listen on {addr}"))
}

impl Server {
    pub(crate) fn new(listener: TcpListener, connections: usize) -> Self {
        Self { listener, connections }
    }

    /// Answers GET and HEAD requests, and `commands`, with the result of `page`; `None` is answered 404. When `leaving`
    /// becomes true, no more connections are accepted, and each connection gets one more response.
    pub(crate) async fn serve<P, F>(self, mut leaving: Leaving, commands: &'static [Command], page: P)
    where
        P: Fn(PageRequest) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Option<Response<Page>>> + Send + 'static,
    {
        let connections = leaving.clone();
        tokio::select! {
            () = self.accept(connections, commands, page) => {}
            // Closes the socket; open connections continue.
            () = async { leaving.wait_for(|leaving| *leaving).await.map_or((), drop) } => {}
        }
        pending().await
    }

    async fn accept<P, F>(self, leaving: Leaving, commands: &'static [Command], page: P)
    where
        P: Fn(PageRequest) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Option<Response<Page>>> + Send + 'static,
    {
        const PAUSE: Duration = Duration::from_millis(100);
        let seats = Seats::new(self.connections);
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely out of descriptors: an immediate retry would only use up CPU time.
                    tracing::debug!(%error, "cannot accept a connection to the metrics, status or control server");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let place = seats.take().await;
            let (page, leaving) = (page.clone(), leaving.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = connection(stream, leaving, commands, page, &place) => {}
                    () = place.wanted() => {}
                }
            });
        }
    }
}

async fn connection<P, F>(stream: TcpStream, leaving: Leaving, commands: &'static [Command], page: P, place: &Taken)
where
    P: Fn(PageRequest) -> F + Clone,
    F: Future<Output = Option<Response<Page>>>,
{
    let Ok(local) = stream.local_addr() else { return };
    let answer = |request: Request<Incoming>| {
        let (page, leaving) = (page.clone(), leaving.clone());
        async move {
            place.begin();
            let mut answer = answer(request, local.ip(), commands, page).await;
            place.end();
            if *leaving.borrow() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = sleep(LIFETIME) => {
            connection.as_mut().graceful_shutdown();
            match timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the metrics, status or control server failed");
    }
}

async fn answer<P, F>(request: Request<Incoming>, local: IpAddr, commands: &[Command], page: P) -> Response<Page>
where
    P: Fn(PageRequest) -> F,
    F: Future<Output = Option<Response<Page>>>,
{
    let (head, _) = request.into_parts();
    let (method, path) = (head.method, head.uri.path());
    let shows = method == Method::GET || method == Method::HEAD;
    if !shows && !commands.iter().any(|(known, at)| *known == method && *at == path) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "405 Method Not Allowed\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    let html = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("text/html"));
    let html = head.headers.get_all(ACCEPT).iter().any(html);
    let path = path.to_owned();
    let found = page(PageRequest { method, path, html, uri: head.uri, fields: head.headers, local }).await;
    found.unwrap_or_else(|| text(StatusCode::NOT_FOUND, "404 Not Found\n"))
}

/// A page of plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Page> {
    with_type(status, "text/plain", Page::Whole(Some(body.into())))
}

/// A page of the given media type.
pub(crate) fn with_type(status: StatusCode, media_type: &'static str, page: Page) -> Response<Page> {
    let mut response = Response::new(page);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

impl Page {
    /// Makes a long page hold its permit until its last byte is written.
    pub(crate) fn holding(self, turn: OwnedSemaphorePermit) -> Self {
        const LONG: usize = 64 * 1024;
        match self {
            Self::Whole(Some(bytes)) if bytes.len() > LONG => {
                Self::Whole(Some(Bytes::from_owner(Holding { bytes, _turn: turn })))
            }
            other => other,
        }
    }
}

struct Holding {
    bytes: Bytes,
    _turn: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Holding {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Body for Page {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.get_mut() {
            Self::Whole(body) => body.take(),
            Self::Pieces(next) => next(),
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, Inherited, Listening, Method, Page, Server, StatusCode, open, text, watch, with_type};
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn exchange(addr: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn pages_are_served_and_the_rest_refused() {
        let anywhere = Endpoint::On("127.0.0.1:0".parse().unwrap());
        let opened = open("tests", anywhere, &mut Inherited::default(), &mut Listening::default());
        let listener = opened.unwrap().unwrap();
        let addr = listener.local_addr().unwrap();
        let (leave, leaving) = watch::channel(false);
        tokio::spawn(Server::new(listener, 4).serve(leaving, &[(Method::POST, "/command")], |request| async move {
            match request.path.as_str() {
                "/command" if request.method == Method::POST => Some(text(StatusCode::OK, "done")),
                "/text" => Some(text(StatusCode::OK, "whole")),
                "/pieces" => {
                    let mut left = 3;
                    let next = move || {
                        left -= 1;
                        (left >= 0).then(|| Bytes::from_static(b"piece"))
                    };
                    Some(with_type(StatusCode::OK, "text/css", Page::Pieces(Box::new(next))))
                }
                _ => None,
            }
        }));
        let cases: &[(&str, &[&str], &str)] = &[
            (
                "GET /text?a=b",
                &["HTTP/1.1 200 OK\r\n", "content-length: 5\r\n", "content-type: text/plain\r\n"],
                "whole",
            ),
            ("HEAD /text", &["HTTP/1.1 200 OK\r\n", "content-length: 5\r\n"], ""),
            (
                "GET /pieces",
                &["HTTP/1.1 200 OK\r\n", "transfer-encoding: chunked\r\n", "text/css\r\n"],
                "5\r\npiece\r\n5\r\npiece\r\n5\r\npiece\r\n0\r\n\r\n",
            ),
            ("HEAD /pieces", &["HTTP/1.1 200 OK\r\n"], ""),
            ("POST /command", &["HTTP/1.1 200 OK\r\n"], "done"),
            ("GET /command", &["HTTP/1.1 404 Not Found\r\n"], "404 Not Found\n"),
            ("GET /other", &["HTTP/1.1 404 Not Found\r\n"], "404 Not Found\n"),
            (
                "POST /text",
                &["HTTP/1.1 405 Method Not Allowed\r\n", "allow: GET, HEAD\r\n"],
                "405 Method Not Allowed\n",
            ),
        ];
        for (line, head, body) in cases {
            let request = format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let answer = exchange(addr, &request).await;
            let (found_head, found_body) = answer.split_once("\r\n\r\n").unwrap();
            let found_head = format!("{found_head}\r\n");
            for part in *head {
                assert!(found_head.contains(part), "{line}: {found_head}");
            }
            assert_eq!(found_body, *body, "{line}");
        }
        let long = format!("GET /text HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(40_000));
        assert!(exchange(addr, &long).await.starts_with("HTTP/1.1 431"));

        let mut kept = TcpStream::connect(addr).await.unwrap();
        let request = b"GET /text HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut answer = [0; 512];
        kept.write_all(request).await.unwrap();
        assert!(kept.read(&mut answer).await.unwrap() > 0);
        leave.send_replace(true);
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
        kept.write_all(request).await.unwrap();
        let mut last = String::new();
        kept.read_to_string(&mut last).await.unwrap();
        assert!(last.starts_with("HTTP/1.1 200 OK\r\n") && last.contains("connection: close"), "{last}");
    }
}
