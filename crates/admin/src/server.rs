//! Sockets and connections of the API, with bounds so that no client keeps others out.
//!
//! [`CONNECTIONS`] are open at one time. When one more comes, the one that waits longest for a request is closed;
//! with a request under way in each, it waits. A head has to come within [`HEAD_TIME`], be that the first or the next
//! on a connection, a handshake within [`HANDSHAKE_TIME`], and a client that does not read its answer is cut after
//! [`SEND_TIME`].
//!
//! A gateway that leaves answers what is under way. For a time each connection gets one more request; after that
//! those without one are closed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::api::{Api, Peer};
use crate::tls::subject;

const CONNECTIONS: usize = 256;
const HEAD_TIME: Duration = Duration::from_secs(30);
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
const SEND_TIME: Duration = Duration::from_secs(30);
const HEAD_BYTES: usize = 64 * 1024;

/// Whether the gateway leaves, and then for how long a connection without a request stays open for one more.
pub type Leaving = watch::Receiver<Option<Duration>>;

/// Serves the API on a listener, over TLS if there is a setup for it. When the gateway leaves nothing more is accepted;
/// it ends when everything that was under way is answered, which whoever waits for it has to set a limit to.
pub async fn serve(listener: TcpListener, tls: Option<Arc<ServerConfig>>, mut leaving: Leaving, api: Arc<Api>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let accepting = accept(listener, tls.map(TlsAcceptor::from), leaving.clone(), Arc::clone(&api), Arc::clone(&free));
    tokio::select! {
        () = accepting => {}
        // The socket is closed here, and connections go on.
        () = async { leaving.wait_for(Option::is_some).await.map_or((), drop) } => {}
    }
    // They would go on for ever.
    api.streams.end();
    drop(free.acquire_many(CONNECTIONS as u32).await);
}

/// Waits until connections without a request are not wanted any more.
async fn last_requests(mut leaving: Leaving) {
    let idle = leaving.wait_for(Option::is_some).await.map(|idle| *idle);
    match idle {
        Ok(idle) => sleep(idle.unwrap_or_default()).await,
        // Nobody is there to say so.
        Err(_) => pending().await,
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    leaving: Leaving,
    api: Arc<Api>,
    free: Arc<Semaphore>,
) {
    const PAUSE: Duration = Duration::from_millis(100);
    let seats = Arc::new(Seats::default());
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors most likely: trying at once again would only burn the processor.
                tracing::debug!(%error, "cannot accept a connection to the admin API");
                sleep(PAUSE).await;
                continue;
            }
        };
        if free.available_permits() == 0 {
            seats.vacate();
        }
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let (seat, seats) = (seats.take(), Arc::clone(&seats));
        let (tls, leaving, api) = (tls.clone(), leaving.clone(), Arc::clone(&api));
        tokio::spawn(async move {
            let place = Taken { seats: &seats, seat: &seat };
            tokio::select! {
                () = connection(stream, peer, tls, leaving, &api, place) => {}
                () = seat.wanted.notified() => {}
            }
            seats.leave(&seat);
            drop(permit);
        });
    }
}

/// Connections in the order in which they came to wait for a request.
#[derive(Debug, Default)]
struct Seats(Mutex<VecDeque<Arc<Seat>>>);

/// A connection.
#[derive(Debug, Default)]
struct Seat {
    /// Requests under way on it.
    requests: AtomicUsize,
    /// Whether there has been one.
    asked: AtomicBool,
    /// Tells it that another needs its place.
    wanted: Notify,
}

/// A connection, among the others.
#[derive(Clone, Copy)]
struct Taken<'a> {
    seats: &'a Seats,
    seat: &'a Arc<Seat>,
}

impl Seats {
    fn take(&self) -> Arc<Seat> {
        let seat = Arc::<Seat>::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(Arc::clone(&seat));
        seat
    }

    fn leave(&self, seat: &Arc<Seat>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, seat));
    }

    /// It waits for a request again, so others have waited longer.
    fn waits(&self, seat: &Arc<Seat>) {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(moved) = seats.iter().position(|other| Arc::ptr_eq(other, seat)).and_then(|at| seats.remove(at)) {
            seats.push_back(moved);
        }
    }

    /// Closes the oldest connection on which nothing is under way.
    fn vacate(&self) {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = seats.iter().position(|seat| seat.requests.load(Ordering::Relaxed) == 0);
        if let Some(seat) = idle.and_then(|at| seats.remove(at)) {
            seat.wanted.notify_one();
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    leaving: Leaving,
    api: &Arc<Api>,
    place: Taken<'_>,
) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(SEND_TIME));
    let stream = Box::pin(stream);
    let mut peer = Peer { address: peer.ip(), certificate: None };
    let Some(tls) = tls else { return requests(stream, peer, leaving, api, place).await };
    let handshake = tokio::select! {
        done = timeout(HANDSHAKE_TIME, tls.accept(stream)) => done,
        () = last_requests(leaving.clone()) => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            peer.certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(subject);
            requests(stream, peer, leaving, api, place).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a handshake with the admin API failed"),
        Err(_) => tracing::debug!("a handshake with the admin API took too long"),
    }
}

async fn requests<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    peer: Peer,
    leaving: Leaving,
    api: &Arc<Api>,
    place: Taken<'_>,
) {
    let left = last_requests(leaving.clone());
    let answer = |request: hyper::Request<Incoming>| {
        let (leaving, peer) = (leaving.clone(), &peer);
        async move {
            place.seat.requests.fetch_add(1, Ordering::Relaxed);
            place.seat.asked.store(true, Ordering::Relaxed);
            let mut response = api.respond(request, peer).await;
            place.seats.waits(place.seat);
            place.seat.requests.fetch_sub(1, Ordering::Relaxed);
            if leaving.borrow().is_some() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = left => {
            // Hyper takes the time before the first request for one.
            if !place.seat.asked.load(Ordering::Relaxed) {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the admin API failed");
    }
}
