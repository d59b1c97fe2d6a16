//! Records that plugins report when an exchange is over, sent in batches to collectors and files.
//!
//! ```text
//! worker 0: Channel::report ──► ring ─┐                        ┌─► weir-report-0 ──► collector, file
//! worker 1: Channel::report ──► ring ─┴─► weir-reports: queues ┴─► weir-report-1 ──► collector, file
//! ```
//!
//! A worker renders a record and copies it into a ring of its own, as with the access log: it never waits, takes no
//! lock and makes no system call. One thread takes the records out of all rings and adds each to the batch of its
//! channel; a batch is sent when it has enough records, or is old enough, by one of a few threads that may block. What
//! has no room is dropped and counted, or goes to a spill file where there is a folder for them.

mod combine;
mod deliver;
mod queue;
mod spill;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};

pub use combine::Combine;
pub use deliver::{
    Broker, Carrier, Check, Documents, Endpoints, Files, Grant, List, Login, Mechanism, MessageTopic, Post, Signature,
    Tcp, Tls, Topic, Udp,
};
use deliver::{Deliverers, Outcome};
use queue::Queue;
use spill::Spill;

/// Batching and destination of the records of one configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelOptions {
    /// The plugin, for metrics.
    pub plugin: &'static str,
    /// The name of the channel in the log.
    pub name: String,
    /// The destination of batches.
    pub destination: Destination,
    /// Text between the records of a batch, and around it.
    pub frame: Frame,
    /// Records after which a batch is sent.
    pub batch_records: usize,
    /// Time after its first record at which a batch is sent.
    pub batch_age: Duration,
    /// Time without a further record after which a batch is sent.
    pub batch_idle: Duration,
    /// Most records that wait to be sent; `None`: as many as there is memory for.
    pub max_pending: Option<usize>,
    /// Attempts after the first to send a batch.
    pub retries: u32,
    /// Pause before the first of them, which doubles for each further one, up to a minute.
    pub retry_delay: Duration,
}

/// The destination of a channel's batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A collector, with POST. Every answer below 400 takes the batch.
    Http(Post),
    /// Collectors of which each takes some of the batches, with POST.
    Endpoints(Endpoints),
    /// A service of gRPC, of which a call takes each batch as its message: the path of the URI is that of the method.
    Grpc(Post),
    /// A collector that wants a token, which is asked for first.
    Granted(Post, Grant),
    /// A collector whose requests are signed. Every answer of 2xx takes the batch.
    Signed(Post, Signature),
    /// A file that is appended to.
    File {
        /// Its path.
        path: PathBuf,
        /// The permissions of a file that is made, less the umask of the process.
        mode: u32,
    },
    /// Files of a folder, of which the time says which one is appended to.
    Files(Files),
    /// A server at the other end of a byte stream.
    Tcp(Tcp),
    /// A topic of Kafka, in which a batch is a message.
    Kafka(Topic),
    /// A topic of RocketMQ, in which a batch is a message.
    RocketMq(MessageTopic),
    /// A receiver of datagrams: one for each record with [`Frame::Lengths`], else one for each batch.
    Udp(Udp),
    /// A list of Redis, of which each record becomes an element, with [`Frame::Lengths`].
    List(List),
    /// A collection of MongoDB, of which each record becomes a document, with [`Frame::Lengths`].
    Documents(Documents),
    /// The syslog daemon of this machine, which takes each record in a datagram. For [`Frame::Lengths`].
    Syslog,
}

/// Text between the records of a batch, and around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// `[a,b]`
    Array,
    /// Each record alone, in a batch of one.
    Single,
    /// A line feed between two records.
    Lines,
    /// A line feed after each record.
    LineEnds,
    /// Texts of a protocol.
    Texts {
        /// Text ahead of the first record.
        begin: Arc<str>,
        /// Text between two records.
        between: &'static str,
        /// Text behind the last record.
        end: &'static str,
    },
    /// Records in messages of Protocol Buffers: records are fields of the innermost message, and each layer is a field of
    /// the next one.
    Layers(Arc<[Layer]>),
    /// Each record behind its length, for destinations that send one at a time.
    Lengths,
    /// One text that is made of all records.
    Combined(Combine),
}

/// A message of Protocol Buffers around a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Fields of the message ahead of the records, encoded.
    pub before: Vec<u8>,
    /// Key of the field of the outer message that holds this one: number and wire type 2, in one byte.
    pub key: u8,
}

impl Frame {
    /// The records one after the other, with nothing between them.
    #[must_use]
    pub fn joined() -> Self {
        Self::Texts { begin: "".into(), between: "", end: "" }
    }
}

/// Bounds of all channels together.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Bytes of records that wait in the ring of each worker.
    pub ring: usize,
    /// Bytes of batches that wait to be sent, over all channels.
    pub memory: usize,
    /// The folder of spill files, and most bytes of one.
    pub spill: Option<(PathBuf, u64)>,
}

/// The sending side of a channel, for records of one configuration. The last one that is dropped has what waits sent at
/// once.
#[derive(Debug)]
pub struct Channel(Arc<Shared>);

/// The part of a channel that the workers and the thread share.
#[derive(Debug)]
struct Shared {
    id: u32,
    options: ChannelOptions,
    counts: Arc<Counts>,
    /// True while there is no room for further records.
    full: AtomicBool,
}

/// The records of one plugin, by what became of them.
#[derive(Debug, Default)]
pub struct Counts {
    pub(crate) sent: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) spilled: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) pending: AtomicU64,
}

const DEFAULT_RING: usize = 1 << 20;
const MIN_RING: usize = 4096;
/// Bytes ahead of each record in a ring: the channel's id and the record's length.
const HEADER: usize = 8;
/// A buffer for a record that grew beyond this is given back.
const KEPT_RECORD: usize = 256 << 10;
/// The thread's sleep between two looks: the first after it found something, then twice as long each time.
const POLL: Duration = Duration::from_millis(20);
const IDLE_POLL: Duration = Duration::from_millis(320);

static HUB: LazyLock<Hub> = LazyLock::new(Hub::default);

/// The state that a process has once.
struct Hub {
    next: AtomicU32,
    ring_bytes: AtomicUsize,
    /// Rings that the thread has not taken over yet.
    arrivals: Mutex<Vec<Consumer<u8>>>,
    /// Channels that the thread does not know yet.
    fresh: Mutex<Vec<Arc<Shared>>>,
    counts: Mutex<HashMap<&'static str, Arc<Counts>>>,
    thread: OnceLock<Thread>,
    reopens: AtomicBool,
    closing: AtomicBool,
    finished: Mutex<bool>,
    finish: Condvar,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            next: AtomicU32::new(0),
            ring_bytes: AtomicUsize::new(DEFAULT_RING),
            arrivals: Mutex::default(),
            fresh: Mutex::default(),
            counts: Mutex::default(),
            thread: OnceLock::new(),
            reopens: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            finished: Mutex::new(false),
            finish: Condvar::new(),
        }
    }
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// A worker's end of its ring.
struct Ring {
    producer: Producer<u8>,
    /// The record being rendered; kept for its capacity.
    record: Vec<u8>,
    bytes: usize,
    /// The thread was woken because the ring is half full, and has not emptied it since.
    woke: bool,
}

impl Channel {
    /// Opens a channel. Its batches are sent once [`start`] was called.
    #[must_use]
    pub fn open(options: ChannelOptions) -> Self {
        let counts = Arc::clone(lock(&HUB.counts).entry(options.plugin).or_default());
        let id = HUB.next.fetch_add(1, Relaxed);
        let shared = Arc::new(Shared { id, options, counts, full: AtomicBool::new(false) });
        lock(&HUB.fresh).push(Arc::clone(&shared));
        Self(shared)
    }

    /// Reports what `render` appends. A record that finds no room is dropped and counted.
    pub fn report(&self, render: impl FnOnce(&mut Vec<u8>)) {
        let reported = !self.0.full.load(Relaxed)
            && RING.try_with(|ring| {
                // Only a record that reports while it is rendered could find the ring borrowed.
                ring.try_borrow_mut().is_ok_and(|mut ring| ring.get_or_insert_with(Ring::new).push(self.0.id, render))
            }) == Ok(true);
        if !reported {
            self.0.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // The thread finds that nobody else has it.
        HUB.wake();
    }
}

impl Ring {
    fn new() -> Self {
        let bytes = HUB.ring_bytes.load(Relaxed).max(MIN_RING);
        let (producer, consumer) = RingBuffer::new(bytes);
        lock(&HUB.arrivals).push(consumer);
        Self { producer, record: Vec::with_capacity(1024), bytes, woke: false }
    }

    fn push(&mut self, id: u32, render: impl FnOnce(&mut Vec<u8>)) -> bool {
        if HUB.closing.load(Relaxed) {
            return false;
        }
        self.record.clear();
        self.record.extend_from_slice(&id.to_le_bytes());
        self.record.extend_from_slice(&[0; HEADER - 4]);
        render(&mut self.record);
        let len = self.record.len().saturating_sub(HEADER) as u32;
        if let Some(room) = self.record.get_mut(4..HEADER) {
            room.copy_from_slice(&len.to_le_bytes());
        }
        let kept = self.producer.push_entire_slice(&self.record).is_ok();
        if self.record.capacity() > KEPT_RECORD {
            self.record = Vec::with_capacity(1024);
        }
        // The reader's position is looked up only once half a ring went by since the last time.
        let half = self.bytes / 2;
        if self.producer.cached_slots() >= half || self.producer.slots() >= half {
            self.woke = false;
        } else if !self.woke {
            self.woke = true;
            HUB.wake();
        }
        kept
    }
}

impl Hub {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Starts the thread that sends what is reported. `carrier` sends to collectors.
///
/// # Errors
/// The thread cannot be started.
pub fn start(bounds: Bounds, carrier: Arc<dyn Carrier>) -> std::io::Result<()> {
    HUB.ring_bytes.store(bounds.ring, Relaxed);
    let thread =
        thread::Builder::new().name("weir-reports".to_owned()).spawn(move || Sender::new(bounds, carrier).run())?;
    HUB.thread.get_or_init(|| thread.thread().clone());
    Ok(())
}

/// Opens the files of all channels anew, for files that were moved away.
pub fn reopen() {
    HUB.reopens.store(true, Relaxed);
    HUB.wake();
}

/// Sends what was reported before this call. What is reported from now on is dropped and counted. False when not all
/// was sent or spilled within `limit`.
pub fn close(limit: Duration) -> bool {
    if HUB.thread.get().is_none() {
        return true;
    }
    HUB.closing.store(true, SeqCst);
    HUB.wake();
    let finished = lock(&HUB.finished);
    let wait = HUB.finish.wait_timeout_while(finished, limit, |finished| !*finished);
    *wait.unwrap_or_else(PoisonError::into_inner).0
}

/// The plugins that report, and what became of their records.
pub(crate) fn counts() -> Vec<(&'static str, Arc<Counts>)> {
    let mut all: Vec<_> = lock(&HUB.counts).iter().map(|(plugin, counts)| (*plugin, Arc::clone(counts))).collect();
    all.sort_unstable_by_key(|(plugin, _)| *plugin);
    all
}

/// The thread's own state.
struct Sender {
    bounds: Bounds,
    deliverers: Deliverers,
    rings: Vec<Consumer<u8>>,
    queues: HashMap<u32, Queue, foldhash::fast::RandomState>,
    /// Bytes that wait in all queues.
    held: usize,
    /// Room for records that go over the end of a ring.
    piece: Vec<u8>,
}

impl Sender {
    fn new(bounds: Bounds, carrier: Arc<dyn Carrier>) -> Self {
        Self {
            bounds,
            deliverers: Deliverers::new(carrier),
            rings: Vec::new(),
            queues: HashMap::default(),
            held: 0,
            piece: Vec::new(),
        }
    }

    #[allow(clippy::disallowed_methods, reason = "a thread of its own, which no request waits for")]
    fn run(mut self) {
        let mut sleep = POLL;
        loop {
            // Read before the rings: what was reported before the close is in them by now.
            let closing = HUB.closing.load(SeqCst);
            let now = Instant::now();
            if HUB.reopens.swap(false, Relaxed) {
                self.deliverers.reopen();
            }
            let mut found = self.drain(now);
            found |= self.take_outcomes(now);
            self.send_due(now, closing);
            if closing && self.is_done() {
                break;
            }
            sleep = if found || closing { POLL } else { (sleep * 2).min(IDLE_POLL) };
            thread::park_timeout(sleep);
        }
        *lock(&HUB.finished) = true;
        HUB.finish.notify_all();
    }

    /// Adds all that is in the rings to the batches. True when there was anything.
    fn drain(&mut self, now: Instant) -> bool {
        self.rings.append(&mut lock(&HUB.arrivals));
        let mut rings = std::mem::take(&mut self.rings);
        let mut found = false;
        rings.retain_mut(|ring| {
            // Read before the ring: an abandoned ring gets no more records.
            let abandoned = ring.is_abandoned();
            let records = ring.read_chunk(ring.slots());
            // A channel is known before its first record is in a ring.
            self.take_fresh();
            if let Ok(records) = records {
                found |= !records.is_empty();
                self.add_slices(records.as_slices(), now);
                records.commit_all();
            }
            !abandoned
        });
        self.rings = rings;
        // Those that nobody reports to may have something in their spill files.
        self.take_fresh();
        found
    }

    /// Makes queues for the channels that have none yet.
    fn take_fresh(&mut self) {
        for shared in lock(&HUB.fresh).drain(..) {
            let spill = self.bounds.spill.as_ref().map(|(folder, most)| Spill::new(folder, *most, &shared.options));
            self.queues.insert(shared.id, Queue::new(shared, spill));
        }
    }

    /// Adds the records of a ring, of which one may begin in the first slice and end in the second.
    fn add_slices(&mut self, (first, second): (&[u8], &[u8]), now: Instant) {
        let whole = self.add_all(first, now);
        let mut piece = std::mem::take(&mut self.piece);
        piece.clear();
        piece.extend_from_slice(first.get(whole..).unwrap_or_default());
        piece.extend_from_slice(second);
        self.add_all(&piece, now);
        self.piece = piece;
    }

    /// Adds the records that stand whole in a text; returns how many bytes they have.
    fn add_all(&mut self, text: &[u8], now: Instant) -> usize {
        let mut records = text;
        while let Some((header, rest)) = records.split_at_checked(HEADER) {
            let number =
                |bytes: Option<&[u8]>| bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
            let (id, len) = (number(header.get(..4)), number(header.get(4..)) as usize);
            let Some((record, after)) = rest.split_at_checked(len) else { break };
            records = after;
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            if self.held + len > self.bounds.memory && !queue.spill_waiting(&mut self.held) {
                queue.drop_one();
                continue;
            }
            self.held += queue.add(record, now);
        }
        text.len() - records.len()
    }

    /// Takes in what became of batches that were sent.
    fn take_outcomes(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(Outcome { id, batch, result }) = self.deliverers.take_outcome() {
            any = true;
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.end(batch, result, now, &mut self.held);
            }
        }
        any
    }

    /// Hands over the batches whose time has come; all of them when it closes.
    fn send_due(&mut self, now: Instant, closing: bool) {
        let deliverers = &self.deliverers;
        let held = &mut self.held;
        self.queues.retain(|id, queue| {
            // Nobody reports to it any more.
            let retired = queue.is_retired();
            if let Some(batch) = queue.take_due(now, closing || retired, closing, held) {
                deliverers.send(*id, queue.options(), batch);
            }
            !(retired && queue.is_empty())
        });
    }

    fn is_done(&self) -> bool {
        self.queues.values().all(Queue::is_empty)
    }
}

/// Nothing here is left half done by a panic, so a poisoned lock is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
