//! A worker: everything that the connections of one thread share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;
use weir_net::tls::HandshakeQueue;
use weir_plugin::host::Exchange;
use weir_plugin::{Client, Duplex};
use weir_telemetry::access_log::LogWriter;
use weir_telemetry::metrics::Recorder;
use weir_usage::Writer as UsageWriter;
use weir_wire::date::DateLine;

use crate::clock::Clock;
use crate::http2::{Rooms, Seats};
use crate::listener::Bound;
use crate::options::Options;
use crate::snapshot::{Local, Snapshot};
use crate::spread::Spread;
use crate::timer::Timers;
use crate::upstream::pool::Pools;

/// Exchanges kept for reuse; each has some 35 KiB of buffers.
const KEPT_EXCHANGES: usize = 256;

/// State that the connections of one worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) options: Arc<Options>,
    pub(crate) clock: Clock,
    pub(crate) timers: Rc<Timers>,
    /// Queue of the handshakes on this worker.
    pub(crate) handshakes: HandshakeQueue,
    pub(crate) pools: Pools,
    pub(crate) recorder: Recorder,
    pub(crate) access_log: Option<LogWriter>,
    /// The access log of streams.
    pub(crate) stream_log: Option<LogWriter>,
    pub(crate) usage: Option<UsageWriter>,
    /// True if the end of every exchange is looked at, for the access log or the usage.
    observes_all: bool,
    pub(crate) date: RefCell<DateLine>,
    /// A configuration without plugins, for copies of requests.
    pub(crate) bare: Rc<Local>,
    /// Copies of requests under way.
    pub(crate) copies: Cell<u32>,
    /// Callouts of plugins under way.
    pub(crate) callouts: Cell<u32>,
    current: RefCell<Option<Rc<Local>>>,
    #[allow(clippy::vec_box, reason = "an exchange is large and changes hands with every request")]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    /// Memory for connections over HTTP/2 that have work to do.
    pub(crate) rooms: Rooms,
    /// Tasks that wait for a stream to serve.
    pub(crate) seats: Seats,
    pub(crate) drain: Cell<Drain>,
    /// Properties of the listeners, by listener number.
    pub(crate) entrances: Arc<[Bound]>,
    pub(crate) number: usize,
    /// Connections accepted since the last tick.
    pub(crate) fresh: Cell<usize>,
    pub(crate) shared: Arc<Shared>,
    /// Opens connections of the gateway to itself, which this worker serves.
    pub(crate) connect: Connect,
}

/// Opens a connection of the gateway to itself, which a worker serves for a client.
pub(crate) type Connect = fn(&Client, &Rc<Worker>) -> Box<dyn Duplex>;

/// State that all workers share; no request writes to it.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Open client connections.
    pub(crate) connections: AtomicUsize,
    /// Open sessions of UDP.
    pub(crate) sessions: AtomicUsize,
    /// Serial number of the last accepted connection.
    pub(crate) accepted: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// A worker that has no idle connection needs the place of one that another worker has.
    pub(crate) place_wanted: AtomicBool,
    /// Time of the last log line about the connection limit being reached, in seconds.
    pub(crate) last_full_log: AtomicU64,
    /// Choice of a worker for each new connection.
    pub(crate) spread: Spread,
}

impl Shared {
    pub(crate) fn new(spread: Spread) -> Self {
        Self {
            connections: AtomicUsize::default(),
            sessions: AtomicUsize::default(),
            accepted: AtomicU64::default(),
            stop: AtomicBool::default(),
            place_wanted: AtomicBool::default(),
            last_full_log: AtomicU64::default(),
            spread,
        }
    }
}

/// Progress of a worker's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Drain {
    /// Serving.
    No,
    /// Nothing is accepted any more, and each connection gets one more request.
    KeepIdle,
    /// Connections that wait for a request are closed.
    CloseIdle,
}

/// Parts that the process gives each worker.
pub(crate) struct Context {
    /// The number of the worker.
    pub(crate) number: usize,
    pub(crate) options: Arc<Options>,
    /// Properties of the listeners, by listener number.
    pub(crate) entrances: Arc<[Bound]>,
    pub(crate) recorder: Recorder,
    pub(crate) access_log: Option<LogWriter>,
    /// The access log of streams.
    pub(crate) stream_log: Option<LogWriter>,
    pub(crate) usage: Option<UsageWriter>,
    pub(crate) shared: Arc<Shared>,
}

impl Worker {
    pub(crate) fn new(context: Context, connect: Connect) -> Rc<Self> {
        let Context { number, options, entrances, recorder, access_log, stream_log, usage, shared } = context;
        let clock = Clock::default();
        clock.adjust();
        Rc::new(Self {
            timers: Timers::new(clock.now() / 1000),
            handshakes: HandshakeQueue::default(),
            pools: Pools::new(options.upstream_idle),
            options,
            clock,
            recorder,
            observes_all: access_log.is_some() || usage.is_some(),
            access_log,
            stream_log,
            usage,
            date: RefCell::default(),
            bare: Local::new(Arc::default()),
            copies: Cell::new(0),
            callouts: Cell::new(0),
            current: RefCell::default(),
            exchanges: RefCell::default(),
            rooms: Rooms::default(),
            seats: Seats::default(),
            drain: Cell::new(Drain::No),
            entrances,
            number,
            fresh: Cell::new(0),
            shared,
            connect,
        })
    }

    pub(crate) fn take_snapshot(&self, snapshot: Option<Arc<Snapshot>>, revision: &AtomicU64, taken: &Notify) {
        if let Some(snapshot) = snapshot {
            let number = snapshot.revision;
            *self.current.borrow_mut() = Some(Local::new(snapshot));
            revision.store(number, Ordering::Release);
            taken.notify_waiters();
        }
    }

    /// True if the end of every exchange is looked at: for the access log, the usage, or somebody who watches.
    pub(crate) fn observes_all(&self) -> bool {
        self.observes_all || self.recorder.is_watched()
    }

    /// The configuration to serve the next request with.
    pub(crate) fn current(&self) -> Option<Rc<Local>> {
        self.current.borrow().clone()
    }

    /// True if connections are to be closed after the current request, or the next one on an idle connection.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.get() != Drain::No
    }

    /// True if idle connections are to be closed.
    pub(crate) fn closes_idle(&self) -> bool {
        self.drain.get() == Drain::CloseIdle
    }

    /// An exchange to work with; [`Worker::put_exchange`] takes it back.
    pub(crate) fn take_exchange(&self) -> Box<Exchange> {
        let mut exchange = self.exchanges.borrow_mut().pop().unwrap_or_default();
        exchange.make_room();
        exchange.request.values_limit = self.options.body_variables;
        exchange
    }

    /// Keeps an exchange for the next connection that needs one.
    pub(crate) fn put_exchange(&self, mut exchange: Box<Exchange>) {
        let mut kept = self.exchanges.borrow_mut();
        if kept.len() < KEPT_EXCHANGES {
            // A pooled exchange must not keep an old configuration alive.
            exchange.tables = None;
            exchange.shrink();
            kept.push(exchange);
        }
    }
}
