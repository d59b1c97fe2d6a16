//! A worker: everything that the connections of one thread share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;
use weir_net::tls::HandshakeQueue;
use weir_plugin::Exchange;
use weir_telemetry::access_log::LogWriter;
use weir_telemetry::metrics::Recorder;
use weir_wire::date::DateLine;

use crate::clock::Clock;
use crate::listener::Bound;
use crate::options::Options;
use crate::snapshot::{Local, Snapshot};
use crate::spread::Spread;
use crate::timer::Timers;
use crate::upstream::pool::Pools;

/// Exchanges kept for reuse; each has some 35 KiB of buffers.
const KEPT_EXCHANGES: usize = 256;

/// What the connections of one worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) options: Arc<Options>,
    pub(crate) clock: Clock,
    pub(crate) timers: Rc<Timers>,
    /// Whose handshake is next.
    pub(crate) handshakes: HandshakeQueue,
    pub(crate) pools: Pools,
    pub(crate) recorder: Recorder,
    pub(crate) access_log: Option<LogWriter>,
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
    pub(crate) drain: Cell<Drain>,
    /// What holds at the listeners, by the numbers that those have.
    pub(crate) entrances: Arc<[Bound]>,
    pub(crate) number: usize,
    /// Connections accepted since the last tick.
    pub(crate) fresh: Cell<usize>,
    pub(crate) shared: Arc<Shared>,
}

/// What all workers share; none of it is written to by a request.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Open client connections.
    pub(crate) connections: AtomicUsize,
    /// Serial number of the last accepted connection.
    pub(crate) accepted: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// A worker that has no idle connection needs the place of one that another worker has.
    pub(crate) place_wanted: AtomicBool,
    /// When the log was last told that there are as many connections as there may be, in seconds.
    pub(crate) told_full: AtomicU64,
    /// Which worker a connection goes to.
    pub(crate) spread: Spread,
}

impl Shared {
    pub(crate) fn new(spread: Spread) -> Self {
        Self {
            connections: AtomicUsize::default(),
            accepted: AtomicU64::default(),
            stop: AtomicBool::default(),
            place_wanted: AtomicBool::default(),
            told_full: AtomicU64::default(),
            spread,
        }
    }
}

/// How far a worker is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Drain {
    /// It serves.
    No,
    /// Nothing is accepted any more, and each connection gets one more request.
    KeepIdle,
    /// Connections that wait for a request are closed.
    CloseIdle,
}

/// What a worker gets of the process.
pub(crate) struct Context {
    /// The number of the worker.
    pub(crate) number: usize,
    pub(crate) options: Arc<Options>,
    /// What holds at the listeners, by the numbers that those have.
    pub(crate) entrances: Arc<[Bound]>,
    pub(crate) recorder: Recorder,
    pub(crate) access_log: Option<LogWriter>,
    pub(crate) shared: Arc<Shared>,
}

impl Worker {
    pub(crate) fn new(context: Context) -> Rc<Self> {
        let Context { number, options, entrances, recorder, access_log, shared } = context;
        let clock = Clock::default();
        clock.adjust();
        Rc::new(Self {
            timers: Timers::new(clock.now() / 1000),
            handshakes: HandshakeQueue::default(),
            pools: Pools::new(options.upstream_idle),
            options,
            clock,
            recorder,
            access_log,
            date: RefCell::default(),
            bare: Local::new(Arc::default()),
            copies: Cell::new(0),
            callouts: Cell::new(0),
            current: RefCell::default(),
            exchanges: RefCell::default(),
            drain: Cell::new(Drain::No),
            entrances,
            number,
            fresh: Cell::new(0),
            shared,
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

    /// The configuration to serve the next request with.
    pub(crate) fn current(&self) -> Option<Rc<Local>> {
        self.current.borrow().clone()
    }

    /// Whether connections are to be closed after the request that they serve, or that comes next.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.get() != Drain::No
    }

    /// Whether connections that wait for a request are to be closed.
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
