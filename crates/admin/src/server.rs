//! Sockets and connections of the API, with bounds so that no client keeps others out.
//!
//! The number of connections is given. When one more comes, the one that waits longest for a request is closed; with a
//! request under way in each, it waits. A head has to come within [`HEAD_TIME`], be that the first or the next
//! on a connection, a handshake within [`HANDSHAKE_TIME`], and a client that does not read its answer is cut after
//! [`SEND_TIME`].
//!
//! A gateway that leaves answers what is under way. For a time each connection gets one more request; after that
//! those without one are closed.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::answer::Body;
use crate::api::{Api, Peer};
use crate::family::FamilyDoor;
use crate::seats::{Seats, Taken};
use crate::tls::subject;

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

/// State of leaving: once the gateway leaves, the time that a connection without a request stays open for one more.
pub type Leaving = watch::Receiver<Option<Duration>>;

/// An API that is served.
pub(crate) trait Service: Send + Sync + fmt::Debug {
    /// Answers a request, whatever it is.
    fn respond<'a>(
        self: Arc<Self>,
        request: hyper::Request<Incoming>,
        peer: &'a Peer,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>>;

    /// Ends answers that would go on for ever.
    fn end(&self);
}

/// The served API: that of APISIX's family or of another one.
#[derive(Debug)]
pub struct Served(Arc<dyn Service>);

impl From<Api> for Served {
    fn from(api: Api) -> Self {
        Self(Arc::new(api))
    }
}

impl From<FamilyDoor> for Served {
    fn from(door: FamilyDoor) -> Self {
        Self(Arc::new(door))
    }
}

/// Serves the API on a listener, at most so many connections at one time, over TLS if there is a setup for it. When the
/// gateway leaves nothing more is accepted; this ends when everything that was under way is answered, which the caller
/// has to set a limit to.
pub async fn serve(
    listener: TcpListener,
    connections: usize,
    tls: Option<Arc<ServerConfig>>,
    mut leaving: Leaving,
    rest: Arc<Rest>,
    Served(api): Served,
) {
    let seats = Seats::new(connections);
    let tls = tls.map(TlsAcceptor::from);
    let accepting = accept(listener, tls, leaving.clone(), &rest, Arc::clone(&api), &seats);
    tokio::select! {
        () = accepting => {}
        // The socket is closed here, and connections go on.
        () = async { leaving.wait_for(Option::is_some).await.map_or((), drop) } => {}
    }
    // They would go on for ever.
    api.end();
    seats.all_free(connections).await;
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
    api: Arc<dyn Service>,
    seats: &Arc<Seats>,
) {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut resting = rest.asked.subscribe();
    loop {
        let accepted = tokio::select! {
            biased;
            () = becomes(&mut resting, true) => {
                rest_now(seats, rest, &mut resting).await;
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
        let place = loop {
            tokio::select! {
                place = seats.take() => break place,
                () = becomes(&mut resting, true) => rest_now(seats, rest, &mut resting).await,
            }
        };
        let (tls, leaving, api) = (tls.clone(), leaving.clone(), Arc::clone(&api));
        let resting = resting.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = connection(stream, peer, tls, (leaving, resting), &api, &place) => {}
                () = place.wanted() => {}
            }
        });
    }
}

async fn becomes(state: &mut watch::Receiver<bool>, wanted: bool) {
    if state.wait_for(|now| *now == wanted).await.is_err() {
        // Nobody is left to change it.
        pending().await
    }
}

/// Rests until that is not asked for any more. Connections have seen by themselves that they are to end.
async fn rest_now(seats: &Seats, rest: &Rest, asked: &mut watch::Receiver<bool>) {
    if timeout(LAST_ANSWERS, seats.calm()).await.is_err() {
        seats.close_unused();
    }
    rest.rests.send_replace(true);
    becomes(asked, false).await;
    rest.rests.send_replace(false);
}

/// State of a process that gives up its sockets, or rests.
type Stages = (Leaving, watch::Receiver<bool>);

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    stages: Stages,
    api: &Arc<dyn Service>,
    place: &Taken,
) {
    // A socket without an address is one that its peer has closed.
    let Ok(local) = stream.local_addr() else { return };
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(SEND_TIME));
    let stream = Box::pin(stream);
    let mut peer =
        Peer { address: peer.ip(), local: local.ip(), port: local.port(), cut: place.cut(), certificate: None };
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
    api: &Arc<dyn Service>,
    place: &Taken,
) {
    let (left, mut rests) = (last_requests(leaving.clone()), resting.clone());
    let answer = |request: hyper::Request<Incoming>| {
        let (leaving, resting, peer) = (&leaving, &resting, &peer);
        async move {
            place.begin();
            let mut response = Arc::clone(api).respond(request, peer).await;
            if let Body::Stream(_, streaming) = response.body_mut() {
                *streaming = Some(place.streaming());
            }
            place.end();
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
                if place.was_asked() {
                    connection.as_mut().graceful_shutdown();
                }
            }
            () = left.as_mut() => {
                // Hyper takes the time before the first request for one.
                if !place.was_asked() {
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
