//! Sockets and connections of the backend, on a thread of its own: nothing here waits for a worker, and no worker for this.
//!
//! The number of connections is given. When one more comes, the one that waits longest for a request is closed; with a
//! request under way in each, it waits. A head has to come within [`HEAD_TIME`], a body within [`BODY_TIME`], and bodies
//! take no more memory together than [`BODIES`] of the longest.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};
use weir_admin::{Seats, Taken};

use crate::backend::Backend;
use crate::extensions;
use crate::fault::Fault;
use crate::listener::{Answer, Call};

const HEAD_TIME: Duration = Duration::from_secs(30);
const BODY_TIME: Duration = Duration::from_secs(30);
/// Time for which the rest of a refused body is read.
const LINGER: Duration = Duration::from_secs(1);
/// Time that a body waits for memory.
const WAIT: Duration = Duration::from_secs(5);
const HEAD_BYTES: usize = 64 * 1024;
/// Bodies of the longest kind that are received at one time.
const BODIES: usize = 8;
/// Bytes of memory that are given at one time.
const PIECE: usize = 1024;
/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// State of leaving: once the gateway leaves, the time that a connection without a request stays open for one more.
pub type Leaving = watch::Receiver<Option<Duration>>;

/// Limits of the server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at one time.
    pub connections: usize,
    /// Bytes of a body.
    pub body: usize,
}

/// Serves the backend on a thread of its own. The receiver hears when everything under way at the end is answered.
///
/// # Errors
/// The thread cannot be started, or the socket not be used.
pub fn serve(
    backend: Arc<Backend>,
    listener: TcpListener,
    limits: Limits,
    leaving: Leaving,
) -> io::Result<oneshot::Receiver<()>> {
    let (ended, end) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("weir-3scale".to_owned()).spawn(move || {
        let local = LocalSet::new();
        local.block_on(&runtime, run(backend, listener, limits, leaving));
        let _ = ended.send(());
    })?;
    Ok(end)
}

/// Everything that connections share.
struct Shared {
    backend: Arc<Backend>,
    limits: Limits,
    /// Memory for bodies, in pieces.
    memory: Arc<Semaphore>,
    leaving: Leaving,
}

async fn run(backend: Arc<Backend>, listener: TcpListener, limits: Limits, mut leaving: Leaving) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the 3scale backend cannot use its socket"),
    };
    let seats = Seats::new(limits.connections);
    let memory = Arc::new(Semaphore::new(pieces(limits.body) * BODIES));
    let shared = Rc::new(Shared { backend, limits, memory, leaving: leaving.clone() });
    tokio::select! {
        () = accept(&listener, &seats, &shared) => {}
        // The socket is closed below, and connections go on.
        () = async { leaving.wait_for(Option::is_some).await.map_or((), drop) } => {}
    }
    drop(listener);
    seats.all_free(limits.connections).await;
}

async fn accept(listener: &tokio::net::TcpListener, seats: &Arc<Seats>, shared: &Rc<Shared>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most likely out of descriptors: an immediate retry would only use up CPU time.
                tracing::debug!(%error, "cannot accept a connection to the 3scale backend");
                sleep(PAUSE).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let place = seats.take().await;
        let shared = Rc::clone(shared);
        spawn_local(async move {
            tokio::select! {
                () = connection(stream, &shared, &place) => {}
                () = place.wanted() => {}
            }
        });
    }
}

/// Waits until connections without a request are not wanted any more.
async fn last_requests(mut leaving: Leaving) {
    let idle = leaving.wait_for(Option::is_some).await.map(|idle| *idle);
    match idle {
        Ok(idle) => sleep(idle.unwrap_or_default()).await,
        // Nobody is there to say so.
        Err(_) => std::future::pending().await,
    }
}

async fn connection(stream: TcpStream, shared: &Shared, place: &Taken) {
    let answer = |request: Request<Incoming>| async move {
        place.begin();
        let mut answer = answer(request, shared).await;
        place.end();
        if shared.leaving.borrow().is_some() {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(answer)
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = last_requests(shared.leaving.clone()) => {
            // Hyper takes the time before the first request for one.
            if !place.was_asked() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the 3scale backend failed");
    }
}

async fn answer(request: Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let text = |name: &HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let is_internal = head.uri.path() == "/internal" || head.uri.path().starts_with("/internal/");
    let is_head = head.method == Method::HEAD;
    let mut call = Call {
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        options: head.headers.get(extensions::FIELD).map(|value| value.as_bytes().to_vec()),
        content_type: text(&CONTENT_TYPE),
        authorization: text(&AUTHORIZATION),
        body: Bytes::new(),
        method: head.method,
    };
    // Only these have a body that is read; any other one is left unread.
    let has_body = !matches!(call.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let (must_close, mut permit) = (!has_body && !body.is_end_stream(), None);
    if has_body {
        match receive(body, shared).await {
            Ok((body, held)) => (call.body, permit) = (body, held),
            // The rest of the body is not waited for.
            Err(fault) => return finish(Answer::error(&fault, false), is_head, true),
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = u64::try_from(now).unwrap_or(u64::MAX);
    let answered = match is_internal {
        true => shared.backend.answer_internal(&call, now).await,
        false => shared.backend.answer(&call, now),
    };
    drop(permit);
    finish(answered, is_head, must_close)
}

/// A body, with the memory that it holds.
async fn receive(mut body: Incoming, shared: &Shared) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Fault> {
    let most = shared.limits.body;
    if body.size_hint().lower() > most as u64 {
        discard(&mut body).await;
        return Err(Fault::BodyTooLong(most));
    }
    let bytes = body.size_hint().upper().map_or(most, |upper| usize::try_from(upper).unwrap_or(most).min(most));
    let wanted = u32::try_from(pieces(bytes)).unwrap_or(u32::MAX);
    let held = timeout(WAIT, Arc::clone(&shared.memory).acquire_many_owned(wanted)).await;
    let Ok(Ok(held)) = held else { return Err(Fault::Busy) };
    let collected = timeout(BODY_TIME, collect(&mut body, most)).await;
    match collected.unwrap_or(Err(Fault::BadRequest("the body did not come within 30 seconds"))) {
        Ok(collected) => Ok((collected, Some(held))),
        Err(fault) => {
            discard(&mut body).await;
            Err(fault)
        }
    }
}

async fn collect(body: &mut Incoming, most: usize) -> Result<Bytes, Fault> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Fault::BadRequest("the body cannot be read"))?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > most {
            return Err(Fault::BodyTooLong(most));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.into())
}

/// Reads the rest of a refused body for a moment: a client that is still sending would lose the answer otherwise.
async fn discard(body: &mut Incoming) {
    let rest = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    let _ = timeout(LINGER, rest).await;
}

fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(PIECE).max(1)
}

fn finish(answer: Answer, is_head: bool, must_close: bool) -> Response<Full<Bytes>> {
    let Answer { status, fields, body } = answer;
    let length = body.len();
    let mut response = Response::new(Full::new(if is_head { Bytes::new() } else { Bytes::from(body) }));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    for (name, value) in fields {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.append(HeaderName::from_static(name), value);
        }
    }
    if is_head {
        headers.insert(hyper::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if must_close {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
