//! The way of a record from a worker into storage.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rtrb::{Consumer, Producer, RingBuffer};
use weir_telemetry::metrics::{Label, Labels, Metrics, UsageStatus};

use crate::block::Slots;
use crate::database::{Database, Keep, UsageError};
use crate::histogram::bucket;
use crate::query::{Answer, Arguments, QueryError};
use crate::table::{OTHERS, Series, Table};
use crate::totals::Totals;

/// One request, as a worker records it. Names are labels of the metrics' table, so that a record has a fixed size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// The end of the exchange, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The service of the route; without one the route.
    pub api: Label,
    /// The route; empty if none matched.
    pub route: Label,
    /// The consumer; empty without authentication.
    pub consumer: Label,
    /// The credential or key of the consumer.
    pub key: Label,
    /// The plan that the key is on.
    pub plan: Label,
    /// The status sent; 499 if the client left before there was one.
    pub status: u16,
    /// Microseconds from the first byte of the request to the last one of the response.
    pub latency_us: u32,
    /// Microseconds of these that upstreams took.
    pub upstream_us: u32,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
}

/// Options of the usage.
pub struct Options {
    /// The database; created if missing.
    pub path: PathBuf,
    /// Records that the ring of each worker holds.
    pub ring: usize,
    /// Series of callers in one minute, hour or day; further ones are added up.
    pub series: usize,
    /// APIs with totals of their own among the metrics.
    pub metric_apis: usize,
    /// Time that sums are kept.
    pub keep: Keep,
    /// Called by the thread at its start, for its priority.
    pub at_start: Box<dyn FnOnce() + Send>,
}

/// The usage of this process.
#[derive(Debug)]
pub struct Usage {
    shared: Arc<Shared>,
}

/// A worker's end of its ring.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    ring: RefCell<Ring>,
}

#[derive(Debug)]
struct Ring {
    producer: Producer<Record>,
    /// True if the thread was woken for a half-full ring and has not emptied it since.
    woke: bool,
}

/// Interval at which the rings are emptied.
const POLL: Duration = Duration::from_millis(50);
/// Interval at which sums are written.
const FLUSH: Duration = Duration::from_millis(800);
/// Pause between two looks for pieces that are to be put together, and for sums that are no longer kept.
const TIDY: Duration = Duration::from_secs(20);
/// Minutes that wait at most while the database cannot be written to; the records of older ones are lost.
const WAITING: usize = 60;
/// Longest time that dropping a [`Usage`] waits for the last sums to be written.
const DROP_LIMIT: Duration = Duration::from_secs(5);

impl Usage {
    /// Opens the database and starts the thread that writes to it.
    ///
    /// # Errors
    /// The database cannot be opened, or the thread not be started.
    pub fn open(options: Options, metrics: Arc<Metrics>) -> Result<Arc<Self>, UsageError> {
        let Options { path, ring, series, metric_apis, keep, at_start } = options;
        let database = Database::open(&path)?;
        let shared = Arc::new(Shared {
            path,
            ring,
            keep,
            asking: Mutex::default(),
            arrivals: Mutex::default(),
            lost: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            totals: Mutex::new(Totals::new(metric_apis)),
            minutes: Mutex::default(),
            collected: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            thread: OnceLock::new(),
            finished: Mutex::new(false),
            finish: Condvar::new(),
        });
        metrics.watch_usage(Arc::clone(&shared) as Arc<dyn UsageStatus>);
        let keeper = Keeper { shared: Arc::clone(&shared), metrics, database, series, failing: false };
        let keeping = spawn("weir-usage-db", move || {
            at_start();
            keeper.run();
        })?;
        let collecting = Arc::clone(&shared);
        let thread = spawn("weir-usage", move || collecting.collect(series, &keeping))?;
        shared.thread.get_or_init(|| thread);
        Ok(Arc::new(Self { shared }))
    }

    /// Creates the writer of one worker.
    #[must_use]
    pub fn writer(&self) -> Writer {
        let (producer, consumer) = RingBuffer::new(self.shared.ring);
        lock(&self.shared.arrivals).push(consumer);
        Writer { shared: Arc::clone(&self.shared), ring: RefCell::new(Ring { producer, woke: false }) }
    }

    /// Answers a question. May take its time.
    ///
    /// # Errors
    /// The question is wrong, or the database cannot be read.
    pub fn ask(&self, arguments: &Arguments) -> Result<Answer, QueryError> {
        // One after the other: the sums of one may take a hundred megabytes.
        let _turn = lock(&self.shared.asking);
        crate::query::answer(&self.shared.path, &self.shared.keep, arguments, now_s())
    }

    /// Writes what was recorded before this call and ends the thread. Records after it are lost and counted. Returns false
    /// if that takes longer than `limit`.
    pub fn close(&self, limit: Duration) -> bool {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake();
        let finished = lock(&self.shared.finished);
        let wait = self.shared.finish.wait_timeout_while(finished, limit, |finished| !*finished);
        *wait.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        if !self.close(DROP_LIMIT) {
            tracing::error!("the last usage could not be written");
        }
    }
}

impl Writer {
    /// Records a request. A record that finds no room is lost and counted.
    pub fn record(&self, record: Record) {
        let mut ring = self.ring.borrow_mut();
        if self.shared.closing.load(Ordering::Relaxed) || ring.producer.push(record).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        // The other end's position is looked up only when half a ring was filled since the last time.
        let half = self.shared.ring / 2;
        if ring.producer.cached_slots() >= half || ring.producer.slots() >= half {
            ring.woke = false;
        } else if !ring.woke {
            ring.woke = true;
            self.shared.wake();
        }
    }
}

/// State shared by workers, the thread and the owner.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    ring: usize,
    keep: Keep,
    /// Held while a question is answered.
    asking: Mutex<()>,
    /// New rings that the thread has not taken over yet.
    arrivals: Mutex<Vec<Consumer<Record>>>,
    lost: AtomicU64,
    /// Attempts to write to the database that failed.
    failures: AtomicU64,
    totals: Mutex<Totals>,
    /// Sums that are not written yet.
    minutes: Mutex<Minutes>,
    closing: AtomicBool,
    /// True when the last records are in the sums.
    collected: AtomicBool,
    thread: OnceLock<Thread>,
    finished: Mutex<bool>,
    finish: Condvar,
}

impl Shared {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Body of the thread that empties the rings. It never waits for the disk.
    fn collect(&self, series: usize, keeping: &Thread) {
        let mut rings = Vec::new();
        loop {
            // Read before the rings: what was recorded before the close is in them by now.
            let closing = self.closing.load(Ordering::Acquire);
            rings.append(&mut lock(&self.arrivals));
            self.drain(&mut rings, series);
            if closing {
                break;
            }
            thread::park_timeout(POLL);
        }
        self.collected.store(true, Ordering::Release);
        keeping.unpark();
    }

    /// Adds up all that is in the rings.
    fn drain(&self, rings: &mut Vec<Consumer<Record>>, series: usize) {
        rings.retain_mut(|ring| {
            // Read before the ring: an abandoned one gets no more records.
            let abandoned = ring.is_abandoned();
            if let Ok(records) = ring.read_chunk(ring.slots())
                && !records.is_empty()
            {
                let (mut minutes, mut totals) = (lock(&self.minutes), lock(&self.totals));
                for record in records {
                    let folded = add(&mut minutes, series, &record);
                    totals.add(&record, folded);
                }
            }
            !abandoned
        });
        let mut minutes = lock(&self.minutes);
        while minutes.len() > WAITING {
            let Some((_, table)) = minutes.pop_first() else { break };
            let requests: u64 = table.cells.values().map(|cell| cell.requests).sum();
            self.lost.fetch_add(requests, Ordering::Relaxed);
        }
    }
}

/// Sums by minute since 1970.
type Minutes = BTreeMap<u64, Table<Label>>;

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Thread, UsageError> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(|handle| handle.thread().clone()).map_err(|error: io::Error| UsageError::Thread(error.to_string()))
}

impl UsageStatus for Shared {
    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn write_failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn folded(&self) -> u64 {
        lock(&self.totals).folded
    }

    fn each(&self, tell: &mut dyn FnMut(Label, u8, [u64; 3])) {
        lock(&self.totals).each(tell);
    }
}

/// State of the thread that writes.
struct Keeper {
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    database: Database,
    series: usize,
    /// True if the last attempt to write failed, which is logged once.
    failing: bool,
}

impl Keeper {
    fn run(mut self) {
        let mut tidied: Option<Instant> = None;
        loop {
            // Read before the sums: the last records are in them by now.
            let closing = self.shared.collected.load(Ordering::Acquire);
            self.flush();
            if closing {
                break;
            }
            if tidied.is_none_or(|last| last.elapsed() >= TIDY) {
                tidied = Some(Instant::now());
                self.tidy();
            }
            thread::park_timeout(FLUSH);
        }
        *lock(&self.shared.finished) = true;
        self.shared.finish.notify_all();
    }

    /// Writes the sums. What cannot be written stays for the next time.
    fn flush(&mut self) {
        let minutes = std::mem::take(&mut *lock(&self.shared.minutes));
        if minutes.is_empty() {
            return;
        }
        let labels = self.metrics.labels();
        let pieces: Vec<_> = minutes.iter().map(|(minute, table)| (*minute, named(table, labels))).collect();
        let written = self.database.add(&pieces);
        if !self.told("written", written) {
            let mut waiting = lock(&self.shared.minutes);
            for (minute, table) in minutes {
                let to = waiting.entry(minute).or_default();
                for (series, cell) in table.cells {
                    to.cell(series).merge(&cell);
                }
                let folded = to.fold(self.series, &Label::OTHER);
                lock(&self.shared.totals).folded += folded;
            }
        }
    }

    fn tidy(&mut self) {
        let tidied = self.database.tidy(now_s(), self.series, &self.shared.keep);
        self.told("put in order", tidied);
    }

    fn told(&mut self, done: &str, outcome: Result<(), UsageError>) -> bool {
        let failing = outcome.is_err();
        match outcome {
            Err(error) => {
                self.shared.failures.fetch_add(1, Ordering::Relaxed);
                if !self.failing {
                    tracing::error!(%error, "usage cannot be {done}; that is tried again");
                }
            }
            Ok(()) if self.failing => tracing::info!("usage can be {done} again"),
            Ok(()) => {}
        }
        self.failing = failing;
        !failing
    }
}

/// Adds a record to the sums of its minute. Returns the requests that lost their series by it.
fn add(minutes: &mut BTreeMap<u64, Table<Label>>, most: usize, record: &Record) -> u64 {
    let table = minutes.entry(record.unix_ms / 60_000).or_default();
    let class = (record.status / 100).clamp(1, 5) as u8;
    let values = [record.api, record.route, record.consumer, record.key, record.plan];
    let cell = table.cell(Series { values, class });
    cell.requests += 1;
    cell.received += record.received;
    cell.sent += record.sent;
    cell.latency += u64::from(record.latency_us);
    cell.upstream += u64::from(record.upstream_us);
    cell.latencies.add(bucket(record.latency_us), 1);
    // Twice as many as there may be, so that folding is rare.
    if table.cells.len() > most.saturating_mul(4) { table.fold(most, &Label::OTHER) } else { 0 }
}

/// The block of one minute.
fn named(table: &Table<Label>, labels: &Labels) -> Slots {
    let others: Arc<str> = OTHERS.into();
    let name = |label: Label| if label == Label::OTHER { Arc::clone(&others) } else { labels.text(label).into() };
    let mut slots = Slots::new();
    for (series, cell) in &table.cells {
        let series = Series { values: series.values.map(name), class: series.class };
        slots.entry(series).or_default().entry(0).or_default().merge(cell);
    }
    slots
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Locks a mutex and ignores poisoning: a panic leaves none of this state half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("path", &self.path).finish_non_exhaustive()
    }
}
