//! A worker's thread: its runtime, its clocks, its listeners, and the connections that come in at them.

use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use weir_net::sys::{Accepted, Listener, Socket};
use weir_plugin::{AddrText, Client};
use weir_runtime::sleep;
use weir_telemetry::metrics::{ClientError, ConnectionState};

use crate::clock::now_us;
use crate::downstream;
use crate::downstream::proxy_protocol::{self, Refused};
use crate::downstream::tls::NoSession;
use crate::listener::{Bound, Listening};
use crate::schedule;
use crate::snapshot::Snapshot;
use crate::spread::{Arrivals, Handed};
use crate::stream::Entrance;
use crate::timer::TICK_MS;
use crate::tls::server::Offer;
use crate::worker::{Context, Drain, Shared, Worker};

/// Pause of accepting while there is no room for another connection.
const PAUSE: Duration = Duration::from_millis(20);
/// Most connections that a worker accepts from the queue of a listener it is about to close.
const LAST_ACCEPTS: usize = 4096;

/// Everything a worker is started with.
pub(crate) struct Start {
    pub(crate) context: Context,
    pub(crate) listeners: Vec<Listening>,
    /// Connections that other workers hand over.
    pub(crate) arrivals: Arrivals,
    pub(crate) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub(crate) drain: watch::Receiver<Drain>,
    /// Dropped when nothing is accepted any more.
    pub(crate) accepts: mpsc::Sender<Infallible>,
    /// Set to the revision that the worker serves with.
    pub(crate) revision: Arc<AtomicU64>,
    /// Notified after that.
    pub(crate) taken: Arc<Notify>,
    /// Set to the time, over and over.
    pub(crate) beat: Arc<AtomicU64>,
}

/// Runs a worker until it has drained.
pub(crate) fn run(start: Start) -> std::io::Result<()> {
    if let Err(error) = schedule::serve_requests() {
        tracing::debug!(%error, "a worker cannot have a short time slice: other work may hold it up");
    }
    weir_runtime::block_on(serve(start))?
}

async fn serve(start: Start) -> std::io::Result<()> {
    let worker = Worker::new(start.context, downstream::inner::connect);
    weir_runtime::spawn(tick(Rc::clone(&worker), start.beat));

    // Nothing is accepted before there is a configuration to serve with.
    let mut snapshots = start.snapshots;
    let first = snapshots.wait_for(Option::is_some).await.map_err(std::io::Error::other)?.clone();
    worker.take_snapshot(first, &start.revision, &start.taken);
    let (accepting, mut accepted) = mpsc::channel::<Infallible>(1);
    for Listening { socket, entrance } in start.listeners {
        if let Some(bound) = worker.entrances.get(entrance).filter(|bound| bound.udp) {
            let entrance = Entrance::new(socket, bound, &worker)?;
            let (mut drain, accepting) = (start.drain.clone(), accepting.clone());
            weir_runtime::spawn(async move {
                entrance.receive(async { drop(drain.wait_for(|drain| *drain != Drain::No).await) }).await;
                drop(accepting);
                entrance.end().await;
            });
            continue;
        }
        let listener = Listener::new(socket)?;
        let (worker, drain, accepting) = (Rc::clone(&worker), start.drain.clone(), accepting.clone());
        weir_runtime::spawn(async move {
            accept(listener, entrance, worker, drain).await;
            drop(accepting);
        });
    }
    drop(accepting);

    let (mut drain, mut arrivals) = (start.drain, start.arrivals);
    loop {
        tokio::select! {
            changed = snapshots.changed() => match changed {
                Ok(()) => {
                    let next = snapshots.borrow_and_update().clone();
                    worker.take_snapshot(next, &start.revision, &start.taken);
                }
                Err(_) => break,
            },
            Some(handed) = arrivals.recv() => take_over(handed, &worker),
            _ = drain.wait_for(|drain| *drain != Drain::No) => break,
        }
    }
    worker.drain.set(Drain::KeepIdle);
    // The acceptors end by themselves, once the connections in the queues have been accepted.
    accepted.recv().await;
    drop(start.accepts);
    let mut kept_idle = true;
    // Copies for mirrors are not waited for: a mirror that hangs must not hold up the end.
    //
    // Another worker that has not learnt of the drain yet may still hand a connection over; it is counted by then, or
    // else finds this end closed and keeps it.
    while worker.has_connections() || close(&mut arrivals, &worker).await {
        if worker.shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let closes = *drain.borrow() == Drain::CloseIdle || drain.has_changed().is_err();
        if kept_idle && closes {
            kept_idle = false;
            worker.drain.set(Drain::CloseIdle);
            worker.timers.wake_all();
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            Some(handed) = arrivals.recv() => take_over(handed, &worker),
        }
    }
    worker.pools.clear(&worker.recorder);
    weir_plugin::host::end_worker().await;
    Ok(())
}

/// Lets nothing more be handed over, and takes what was; whether there was anything.
async fn close(arrivals: &mut Arrivals, worker: &Rc<Worker>) -> bool {
    arrivals.close();
    let mut any = false;
    while let Some(handed) = arrivals.recv().await {
        any = true;
        take_over(handed, worker);
    }
    any
}

/// Moves the worker's slow clocks on.
async fn tick(worker: Rc<Worker>, beat: Arc<AtomicU64>) {
    let mut ticks = 0u64;
    loop {
        worker.clock.adjust();
        beat.store(now_us(), Ordering::Relaxed);
        let now = worker.clock.now() / 1000;
        worker.timers.advance(now);
        worker.fresh.set(0);
        if worker.shared.place_wanted.load(Ordering::Relaxed) && worker.close_longest_idle() {
            worker.shared.place_wanted.store(false, Ordering::Relaxed);
        }
        ticks += 1;
        if ticks.is_multiple_of(1000 / TICK_MS) {
            worker.pools.sweep(now, &worker.recorder);
        }
        sleep(Duration::from_millis(TICK_MS)).await;
    }
}

/// Accepts connections until the drain begins, and then those that are in the queue: closing the listener would reset
/// them.
async fn accept(listener: Listener, entrance: usize, worker: Rc<Worker>, mut drain: watch::Receiver<Drain>) {
    let mut warned = false;
    let mut drained = pin!(drain.wait_for(|drain| *drain != Drain::No));
    // Under a load of new connections the first branch is always ready.
    while !worker.is_draining() {
        if worker.is_full() {
            tokio::select! {
                biased;
                () = listener.has_next() => worker.make_place().await,
                _ = &mut drained => break,
            }
            continue;
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            _ = &mut drained => break,
        };
        match accepted.and_then(|accepted| place(Handed { accepted, entrance }, &worker)) {
            Ok(()) => warned = false,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // The system is out of descriptors or memory: trying at once again would only burn the processor.
                if !warned {
                    warned = true;
                    tracing::error!(%error, "cannot accept connections; the longest idle ones give way");
                }
                worker.close_longest_idle();
                sleep(PAUSE).await;
            }
        }
    }
    for _ in 0..LAST_ACCEPTS {
        if worker.is_full() {
            break;
        }
        match listener.accept_now().and_then(|accepted| place(Handed { accepted, entrance }, &worker)) {
            Ok(()) => {}
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => break,
        }
    }
}

/// The client of a connection that was accepted.
fn client(accepted: &Accepted, entrance: &Bound, number: u64) -> Client {
    let (Some(peer), Some(local)) = (accepted.peer, entrance.address.tcp()) else {
        return Client { https: entrance.tls, ..Client::unix(number) };
    };
    let addr = peer.ip().to_canonical();
    Client {
        addr,
        addr_text: AddrText::new(addr),
        port: peer.port(),
        peer: addr,
        sender: addr,
        // A listener bound to all addresses: the local address of the connection is looked up when needed.
        local: if local.ip().is_unspecified() { accepted.local_addr().unwrap_or(local) } else { local },
        https: entrance.tls,
        connection: number,
        requests: 0,
        inner: false,
    }
}

/// The peer went away between the kernel's accept and ours.
fn is_of_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Counts a connection while it is open, also when its task panics.
struct Open(Rc<Worker>);

impl Open {
    /// Guard of a connection that [`place`] has counted.
    fn new(worker: &Rc<Worker>) -> Self {
        worker.recorder.connection_opened(ConnectionState::Waiting);
        Self(Rc::clone(worker))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.shared.spread.closed(self.0.number);
        self.0.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.recorder.connection_closed(ConnectionState::Waiting);
        if std::thread::panicking() {
            self.0.recorder.worker_panicked();
        }
    }
}

/// Counts a connection that was accepted, and opens it here or leaves it to a worker that has fewer.
fn place(handed: Handed, worker: &Rc<Worker>) -> std::io::Result<()> {
    worker.shared.connections.fetch_add(1, Ordering::Relaxed);
    worker.recorder.connection_accepted();
    let fresh = worker.fresh.get() + 1;
    worker.fresh.set(fresh);
    let spread = &worker.shared.spread;
    let own = if worker.is_draining() {
        spread.keep(worker.number);
        Some(handed)
    } else {
        spread.place(worker.number, fresh, handed)
    };
    own.map_or(Ok(()), |handed| open(handed, worker))
}

/// Opens what another worker has accepted.
fn take_over(handed: Handed, worker: &Rc<Worker>) {
    if let Err(error) = open(handed, worker) {
        tracing::error!(%error, "cannot take a connection over; it is closed");
    }
}

fn open(Handed { accepted, entrance }: Handed, worker: &Rc<Worker>) -> std::io::Result<()> {
    let guard = Open::new(worker);
    let Some(entrance) = worker.entrances.get(entrance) else { return Ok(()) };
    let number = worker.shared.accepted.fetch_add(1, Ordering::Relaxed) + 1;
    let client = client(&accepted, entrance, number);
    let stream = Socket::accepted(accepted)?;
    let worker = Rc::clone(worker);
    let (http2, streams) = (entrance.http2, entrance.streams);
    // Kinds of tasks, so that an idle connection has no room for a handshake, or for a header that it does not begin
    // with.
    if entrance.proxy_protocol {
        weir_runtime::spawn(async move {
            let _open = guard;
            match Box::pin(proxy_protocol::receive(&stream, client, &worker)).await {
                Ok(client) if streams => Box::pin(crate::stream::serve(stream, client, worker)).await,
                Ok(client) if client.https => Box::pin(serve_tls(stream, client, worker, http2)).await,
                Ok(client) if http2 => Box::pin(serve_either(stream, client, worker)).await,
                Ok(client) => downstream::h1::serve(stream, client, worker).await,
                Err(Refused::Nothing) => {}
                Err(refused) => {
                    worker.recorder.client_error(ClientError::ProxyHeader);
                    tracing::info!(client = %client.addr_text, reason = %refused, "connection refused");
                }
            }
        });
    } else if streams {
        weir_runtime::spawn(async move {
            let _open = guard;
            crate::stream::serve(stream, client, worker).await;
        });
    } else if client.https {
        weir_runtime::spawn(async move {
            let _open = guard;
            serve_tls(stream, client, worker, http2).await;
        });
    } else if http2 {
        weir_runtime::spawn(async move {
            let _open = guard;
            serve_either(stream, client, worker).await;
        });
    } else {
        weir_runtime::spawn(async move {
            let _open = guard;
            downstream::h1::serve(stream, client, worker).await;
        });
    }
    Ok(())
}

async fn serve_tls(stream: Socket, client: Client, worker: Rc<Worker>, http2: bool) {
    // In a box that is gone once the connection stands: a handshake needs more room than an idle connection.
    match Box::pin(downstream::tls::accept(stream, &worker, if http2 { Offer::Http2 } else { Offer::Http1 })).await {
        Ok(stream) if stream.is_http2() => {
            let tls = stream.facts();
            let _shown = stream.show_certificate(client.connection);
            Box::pin(downstream::h2::serve(stream, client, Some(tls), worker)).await;
        }
        Ok(stream) => {
            let _shown = stream.show_certificate(client.connection);
            downstream::h1::serve(stream, client, worker).await;
        }
        Err(NoSession::PlainHttp(stream, received)) => {
            Box::pin(downstream::h1::refuse_without_tls(stream, client, worker, &received)).await;
        }
        Err(NoSession::Failed(error)) => {
            worker.recorder.client_error(ClientError::TlsHandshake);
            tracing::info!(client = %client.addr_text, error = weir_net::tls::words::of_io(&error), "TLS handshake failed");
        }
    }
}

/// Serves a client without TLS that may use HTTP/2 by prior knowledge (RFC 9113 section 3.3).
async fn serve_either(stream: Socket, client: Client, worker: Rc<Worker>) {
    match Box::pin(downstream::h2::knows_http2(&stream, &worker)).await {
        Some(true) => Box::pin(downstream::h2::serve(stream, client, None, worker)).await,
        Some(false) => downstream::h1::serve(stream, client, worker).await,
        None => {}
    }
}

impl Worker {
    /// True if this worker or another has connections.
    fn has_connections(&self) -> bool {
        let Shared { connections, sessions, .. } = &*self.shared;
        connections.load(Ordering::Relaxed) + sessions.load(Ordering::Relaxed) > 0
    }

    /// True if there is no room for another connection.
    fn is_full(&self) -> bool {
        self.shared.connections.load(Ordering::Relaxed) >= self.options.connections
    }

    /// Closes the connection that has waited longest for a request, of this worker, or soon of another.
    async fn make_place(&self) {
        self.tell_full();
        if self.close_longest_idle() {
            weir_runtime::yield_now().await;
        } else {
            self.shared.place_wanted.store(true, Ordering::Relaxed);
            // With requests under way on all connections the new one waits in the listen queue.
            sleep(PAUSE).await;
        }
    }

    /// Closes the connection of this worker that has waited longest for a request; false when none waits.
    fn close_longest_idle(&self) -> bool {
        let closes = self.timers.end_longest_idle();
        if closes {
            self.recorder.client_error(ClientError::TooManyConnections);
        }
        closes
    }

    /// Warns, at most once a minute, that there are as many connections as there may be.
    fn tell_full(&self) {
        const QUIET: u64 = 60;
        let (now, last) = (now_us() / 1_000_000 + QUIET, self.shared.last_full_log.load(Ordering::Relaxed));
        let due = now >= last + QUIET;
        if due && self.shared.last_full_log.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(
                connections = self.options.connections,
                "as many clients are connected as limits.connections and the limit of file descriptors (ulimit -n) \
                 allow: for each new one the longest idle is closed"
            );
        }
    }
}
