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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
const LAST_ANSWERS: Duration = Duration::from_secs(2);
const SEND_TIME: Duration = Duration::from_secs(30);
const HEAD_BYTES: usize = 64 * 1024;

/// A rest of the server, for as long as it is not known whether another process takes over: connections wait in the queue
/// of the listener, for whichever process accepts them.
#[derive(Debug, Default)]
pub struct Rest {
    asked: watch::Sender<bool>,
    rests: watch::Sender<bool>,
}

impl Rest {
    /// From now on nothing is accepted, and connections on which nothing is under way are closed. Waits until what is
    /// under way is answered, two seconds at most; what has come to no request until then is closed too. May be given up
    /// and called again.
    pub async fn begin(&self) {
        self.asked.send_replace(true);
        let _ = self.rests.subscribe().wait_for(|rests| *rests).await;
    }

    /// Everything is as before.
    pub fn end(&self) {
        self.asked.send_replace(false);
    }
}

/// Whether the gateway leaves, and then for how long a connection without a request stays open for one more.
pub type Leaving = watch::Receiver<Option<Duration>>;

/// Serves the API on a listener, over TLS if there is a setup for it. When the gateway leaves nothing more is accepted;
/// it ends when everything that was under way is answered, which whoever waits for it has to set a limit to.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    mut leaving: Leaving,
    rest: Arc<Rest>,
    api: Arc<Api>,
) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let (tls, busy) = (tls.map(TlsAcceptor::from), Arc::clone(&free));
    let accepting = accept(listener, tls, leaving.clone(), &rest, Arc::clone(&api), busy);
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
    rest: &Rest,
    api: Arc<Api>,
    free: Arc<Semaphore>,
) {
    const PAUSE: Duration = Duration::from_millis(100);
    let seats = Arc::new(Seats::default());
    let mut resting = rest.asked.subscribe();
    loop {
        let accepted = tokio::select! {
            biased;
            () = becomes(&mut resting, true) => {
                seats.rest(rest, &mut resting).await;
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
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
        let permit = loop {
            tokio::select! {
                permit = Arc::clone(&free).acquire_owned() => break permit,
                () = becomes(&mut resting, true) => seats.rest(rest, &mut resting).await,
            }
        };
        let Ok(permit) = permit else { return };
        let (seat, seats) = (seats.take(), Arc::clone(&seats));
        let (tls, leaving, api) = (tls.clone(), leaving.clone(), Arc::clone(&api));
        let resting = resting.clone();
        tokio::spawn(async move {
            let place = Taken { seats: &seats, seat: &seat };
            tokio::select! {
                () = connection(stream, peer, tls, (leaving, resting), &api, place) => {}
                () = seat.wanted.notified() => {}
            }
            seats.leave(&seat);
            drop(permit);
        });
    }
}

async fn becomes(state: &mut watch::Receiver<bool>, wanted: bool) {
    if state.wait_for(|now| *now == wanted).await.is_err() {
        // Nobody is left to change it.
        pending().await
    }
}

/// Connections in the order in which they came to wait for a request.
#[derive(Debug, Default)]
struct Seats {
    order: Mutex<VecDeque<Arc<Seat>>>,
    /// Told when a request is answered, or a connection has ended.
    calmer: Notify,
}

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
        self.lock().push_back(Arc::clone(&seat));
        seat
    }

    fn leave(&self, seat: &Arc<Seat>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, seat));
        self.calmer.notify_waiters();
    }

    /// It waits for a request again, so others have waited longer.
    fn waits(&self, seat: &Arc<Seat>) {
        let mut seats = self.lock();
        if let Some(moved) = seats.iter().position(|other| Arc::ptr_eq(other, seat)).and_then(|at| seats.remove(at)) {
            seats.push_back(moved);
        }
    }

    /// Rests until it is not asked for any more. Connections have seen by themselves that they are to end.
    async fn rest(&self, rest: &Rest, asked: &mut watch::Receiver<bool>) {
        let answered = timeout(LAST_ANSWERS, async {
            loop {
                let calmer = self.calmer.notified();
                if self.lock().iter().all(|seat| seat.is_calm()) {
                    return;
                }
                calmer.await;
            }
        });
        if answered.await.is_err() {
            let unused = |seat: &&Arc<Seat>| !seat.asked.load(Ordering::Relaxed);
            self.lock().iter().filter(unused).for_each(|seat| seat.wanted.notify_one());
        }
        rest.rests.send_replace(true);
        becomes(asked, false).await;
        rest.rests.send_replace(false);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Seat>>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the oldest connection on which nothing is under way.
    fn vacate(&self) {
        let mut seats = self.lock();
        let idle = seats.iter().position(|seat| seat.requests.load(Ordering::Relaxed) == 0);
        if let Some(seat) = idle.and_then(|at| seats.remove(at)) {
            seat.wanted.notify_one();
        }
    }
}

impl Seat {
    /// Whether a request was answered, and none is under way.
    fn is_calm(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && self.requests.load(Ordering::Relaxed) == 0
    }
}

/// Whether this process gives up its sockets, and whether it rests.
type Stages = (Leaving, watch::Receiver<bool>);

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    stages: Stages,
    api: &Arc<Api>,
    place: Taken<'_>,
) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(SEND_TIME));
    let stream = Box::pin(stream);
    let mut peer = Peer { address: peer.ip(), certificate: None };
    let Some(tls) = tls else { return requests(stream, peer, stages, api, place).await };
    let handshake = tokio::select! {
        done = timeout(HANDSHAKE_TIME, tls.accept(stream)) => done,
        () = last_requests(stages.0.clone()) => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            peer.certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(subject);
            requests(stream, peer, stages, api, place).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a handshake with the admin API failed"),
        Err(_) => tracing::debug!("a handshake with the admin API took too long"),
    }
}

async fn requests<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    peer: Peer,
    (leaving, resting): Stages,
    api: &Arc<Api>,
    place: Taken<'_>,
) {
    let (left, mut rests) = (last_requests(leaving.clone()), resting.clone());
    let answer = |request: hyper::Request<Incoming>| {
        let (leaving, resting, peer) = (&leaving, &resting, &peer);
        async move {
            place.seat.requests.fetch_add(1, Ordering::Relaxed);
            place.seat.asked.store(true, Ordering::Relaxed);
            let mut response = api.respond(request, peer).await;
            place.seats.waits(place.seat);
            place.seat.requests.fetch_sub(1, Ordering::Relaxed);
            place.seats.calmer.notify_waiters();
            if leaving.borrow().is_some() || *resting.borrow() {
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
    let (mut left, mut is_awake) = (pin!(left), true);
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = becomes(&mut rests, true), if is_awake => {
                is_awake = false;
                // At once where nothing is under way; a client that sends just now may send it again, which it might not
                // do on a connection that it has not used before.
                if place.seat.asked.load(Ordering::Relaxed) {
                    connection.as_mut().graceful_shutdown();
                }
            }
            () = left.as_mut() => {
                // Hyper takes the time before the first request for one.
                if !place.seat.asked.load(Ordering::Relaxed) {
                    return;
                }
                connection.as_mut().graceful_shutdown();
                break connection.await;
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the admin API failed");
    }
}
