//! Live figures: sums of all answered requests, and a sample of requests while somebody watches.
//!
//! ```text
//! worker: Recorder::answered ──► cells: answers by class, latencies ──► Metrics::figures
//!         Recorder::seen     ──► a ring of samples, while watched   ──► Metrics::take_seen
//! ```
//!
//! Sums are always kept. Times are known where something reads the clock at the end of a request: the access log, the
//! usage, a plugin with a log phase, or a watcher. A ring holds [`RING`] samples; a worker that finds the ring full leaves
//! the request out before any text is copied, so watching costs a busy worker no more than an idle one.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use rtrb::{Consumer, Producer, RingBuffer};

use super::label::Label;
use super::process::usage_of_process;
use super::recorder::{Recorder, UpstreamState, WorkerCells};
use super::series::Cell;
use super::{Clients, Metrics};

/// Samples of requests that wait for a reader, for each worker: with a reader every 250 ms, 4,096 a second.
pub const RING: usize = 1024;

/// Bits of a latency below its highest one that choose a bucket: eight buckets in each power of two.
const FINE_BITS: u32 = 3;
const FINE: u32 = 1 << FINE_BITS;
/// Buckets of all values of 32 bits.
const BUCKETS: usize = ((32 - FINE_BITS + 1) * FINE) as usize;

/// A request that has ended, as a watcher sees it: texts are cut to a fixed length, and the query is left out because it
/// may hold credentials.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// The end of the exchange, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Status sent; 499 if the client left before there was one.
    pub status: u16,
    /// Microseconds from the first byte of the request to the last one of the response.
    pub latency_us: u32,
    /// Microseconds of these that upstreams took; `None` if none was asked.
    pub upstream_us: Option<u32>,
    /// The last try at a node; `None` if there was none.
    pub tried: Option<Tried>,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    /// The route; empty if none matched.
    pub route: Label,
    /// The service of the route; empty without one.
    pub service: Label,
    /// The consumer; empty without authentication.
    pub consumer: Label,
    /// The address of the last node that was tried.
    pub node: Label,
    /// Method.
    pub method: ShortText<16>,
    /// Host without its port.
    pub host: ShortText<64>,
    /// Path without the query.
    pub path: ShortText<128>,
    /// The address of the client.
    pub client: ShortText<46>,
}

/// The parts of a request's time around the last try at a node, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tried {
    /// Up to the begin of the try, earlier tries included.
    pub ahead_us: u32,
    /// Until the connection stood; about none for one from the pool.
    pub connect_us: u32,
    /// From then until the head of the response.
    pub wait_us: u32,
    /// From then until the end of the response.
    pub read_us: u32,
}

/// A text of at most `N` bytes in place; longer ones are cut.
#[derive(Clone, Copy)]
pub struct ShortText<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> ShortText<N> {
    /// The first bytes of a text.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        let len = text.len().min(N).min(usize::from(u8::MAX));
        let mut bytes = [0; N];
        if let (Some(to), Some(from)) = (bytes.get_mut(..len), text.get(..len)) {
            to.copy_from_slice(from);
        }
        Self { len: len as u8, bytes }
    }

    /// The bytes of the text.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl<const N: usize> Default for ShortText<N> {
    fn default() -> Self {
        Self { len: 0, bytes: [0; N] }
    }
}

impl<const N: usize> fmt::Debug for ShortText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(self.bytes()).fmt(f)
    }
}

/// Figures of the process at one moment. Counts only grow.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Clients and their requests.
    pub clients: Clients,
    /// Answers by class of status: 1xx to 5xx.
    pub answers: [u64; 5],
    /// Times of requests.
    pub total: Latencies,
    /// Time of these that upstreams took.
    pub upstream: Latencies,
    /// Time of these that the gateway took.
    pub gateway: Latencies,
    /// Connections to upstreams that carry a request.
    pub upstream_active: u64,
    /// Connections to upstreams in the pool.
    pub upstream_idle: u64,
    /// Nodes that are set aside for not taking connections.
    pub nodes_set_aside: u64,
    /// Processor time in seconds; `None` if the kernel does not tell.
    pub cpu_seconds: Option<f64>,
    /// Resident memory in bytes; `None` if the kernel does not tell.
    pub resident_bytes: Option<u64>,
    /// Revision of the configuration that serves.
    pub revision: u64,
    /// Time of the last change in milliseconds since 1970; 0 before the first one.
    pub changed_ms: u64,
    /// True if the last configuration that came was refused.
    pub last_rejected: bool,
    /// Resources that do not serve as they stand.
    pub left_out: u64,
    /// True if the store has lost what serves.
    pub withheld: bool,
    /// Maximum number of concurrent client connections.
    pub connections_limit: u64,
}

/// Counts of latencies by bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latencies(Vec<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

impl Latencies {
    /// The latencies since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(self.0.iter().zip(&earlier.0).map(|(now, then)| now.wrapping_sub(*then)).collect())
    }

    /// The latency in milliseconds, within 6 %, that so many percent of the values do not exceed; `None` without values.
    #[must_use]
    pub fn percentile_ms(&self, percent: f64) -> Option<f64> {
        let total: u64 = self.0.iter().sum();
        if total == 0 {
            return None;
        }
        let rank = (percent / 100.0 * total as f64).ceil().max(1.0) as u64;
        let mut seen = 0u64;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(middle(bucket as u32) / 1000.0);
            }
        }
        None
    }
}

fn bucket(us: u32) -> usize {
    if us < FINE {
        return us as usize;
    }
    let power = us.ilog2();
    let within = (us >> (power - FINE_BITS)) & (FINE - 1);
    ((power - FINE_BITS + 1) * FINE + within) as usize
}

/// The middle of a bucket in microseconds.
fn middle(bucket: u32) -> f64 {
    if bucket < FINE {
        return f64::from(bucket);
    }
    let (power, within) = (bucket / FINE - 1, bucket % FINE);
    let width = f64::from(1u32 << power.min(31));
    f64::from(FINE + within) * width + (width - 1.0) / 2.0
}

/// Cells of one worker.
#[derive(Debug)]
pub(super) struct LiveCells {
    answers: [Cell; 5],
    total: [Cell; BUCKETS],
    upstream: [Cell; BUCKETS],
    gateway: [Cell; BUCKETS],
}

impl Default for LiveCells {
    fn default() -> Self {
        let cells = || std::array::from_fn(|_| Cell::default());
        Self { answers: Default::default(), total: cells(), upstream: cells(), gateway: cells() }
    }
}

/// Watchers, and the readers' ends of the rings.
#[derive(Debug, Default)]
pub(super) struct Watched {
    watchers: AtomicUsize,
    rings: Mutex<Vec<Consumer<Seen>>>,
}

impl Watched {
    /// A ring for a worker.
    pub(super) fn ring(&self) -> RefCell<Producer<Seen>> {
        let (producer, consumer) = RingBuffer::new(RING);
        self.rings.lock().unwrap_or_else(PoisonError::into_inner).push(consumer);
        RefCell::new(producer)
    }
}

/// A watcher: while one exists, workers take the times of all requests and samples of some.
#[derive(Debug)]
pub struct Watching(Arc<Metrics>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watched.watchers.fetch_sub(1, Relaxed);
    }
}

impl Recorder {
    /// Records the status of an answer.
    pub fn answered(&self, status: u16) {
        if let Some(cell) = self.cells().live.answers.get((status / 100).wrapping_sub(1) as usize) {
            cell.add(1);
        }
    }

    /// Records the times of an answered request in microseconds: all of it, and the part of upstreams.
    pub fn took(&self, total_us: u32, upstream_us: Option<u32>) {
        let live = &self.cells().live;
        let add = |cells: &[Cell; BUCKETS], us: u32| {
            if let Some(cell) = cells.get(bucket(us)) {
                cell.add(1);
            }
        };
        add(&live.total, total_us);
        if let Some(us) = upstream_us {
            add(&live.upstream, us);
        }
        add(&live.gateway, total_us.saturating_sub(upstream_us.unwrap_or(0)));
    }

    /// True while somebody watches requests.
    pub fn is_watched(&self) -> bool {
        self.metrics().watched.watchers.load(Relaxed) > 0
    }

    /// Shows a request to whoever watches, if there is room for it; only then is the sample made.
    pub fn seen(&self, sample: impl FnOnce() -> Seen) {
        let mut ring = self.ring().borrow_mut();
        if !ring.is_full() {
            // There is room: nobody else writes to this ring.
            let _ = ring.push(sample());
        }
    }
}

impl Metrics {
    /// Begins to watch requests. Samples from before are dropped with the first call of several.
    pub fn watch(self: &Arc<Self>) -> Watching {
        if self.watched.watchers.fetch_add(1, Relaxed) == 0 {
            self.take_seen(&mut Vec::new());
        }
        Watching(Arc::clone(self))
    }

    /// Takes the samples of all workers.
    pub fn take_seen(&self, into: &mut Vec<Seen>) {
        let mut rings = self.watched.rings.lock().unwrap_or_else(PoisonError::into_inner);
        for ring in rings.iter_mut() {
            if let Ok(samples) = ring.read_chunk(ring.slots()) {
                into.extend(samples);
            }
        }
    }

    /// The figures of this moment.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let (cpu_seconds, resident_bytes) = usage_of_process();
        let config = &self.config;
        let mut figures = Figures {
            clients: self.clients(),
            cpu_seconds,
            resident_bytes,
            revision: config.revision.load(Relaxed),
            changed_ms: config.changed_ms.load(Relaxed),
            last_rejected: config.last_rejected.load(Relaxed),
            left_out: config.left_out.load(Relaxed),
            withheld: config.withheld.load(Relaxed),
            connections_limit: self.connections_limit.load(Relaxed),
            ..Figures::default()
        };
        let (mut active, mut idle, mut aside) = (0u64, 0u64, 0u64);
        for (_, worker) in &self.workers {
            figures.add(worker);
            active = active.wrapping_add(worker.counters.upstream(UpstreamState::Active).value());
            idle = idle.wrapping_add(worker.counters.upstream(UpstreamState::Idle).value());
            aside = aside.wrapping_add(worker.counters.nodes_aside.value());
        }
        // A gauge is the difference of counts from several workers; between two reads it may fall below zero.
        let gauge = |sum: u64| sum.cast_signed().max(0).cast_unsigned();
        (figures.upstream_active, figures.upstream_idle) = (gauge(active), gauge(idle));
        figures.nodes_set_aside = gauge(aside);
        figures
    }
}

impl Figures {
    fn add(&mut self, worker: &WorkerCells) {
        let add = |sums: &mut [u64], cells: &[Cell]| {
            for (sum, cell) in sums.iter_mut().zip(cells) {
                *sum = sum.wrapping_add(cell.value());
            }
        };
        add(&mut self.answers, &worker.live.answers);
        add(&mut self.total.0, &worker.live.total);
        add(&mut self.upstream.0, &worker.live.upstream);
        add(&mut self.gateway.0, &worker.live.gateway);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsOptions;

    #[test]
    fn buckets_are_in_order_and_near_their_values() {
        let mut last = 0;
        for us in (0..100_000u32).chain((17..32).map(|power| 1 << power)) {
            let found = bucket(us);
            assert!(found >= last && found < BUCKETS, "{us}");
            last = found;
            if us > 0 {
                let error = (middle(found as u32) - f64::from(us)).abs() / f64::from(us);
                assert!(error <= 1.0 / 15.0, "{us} is {error} away");
            }
        }
        assert!(bucket(u32::MAX) < BUCKETS);
    }

    #[test]
    fn figures_are_sums_over_workers_and_percentiles_of_an_interval() {
        let metrics = Metrics::new(MetricsOptions::default());
        let (one, two) = (metrics.recorder(), metrics.recorder());
        one.answered(200);
        one.took(1_000_000, None);
        let before = metrics.figures();
        for _ in 0..99 {
            two.answered(204);
            two.took(2_000, Some(1_500));
        }
        one.answered(502);
        one.took(80_000, Some(79_000));
        one.answered(999);
        let after = metrics.figures();
        assert_eq!(after.answers, [0, 100, 0, 0, 1]);
        let interval = after.total.since(&before.total);
        let near = |found: Option<f64>, wanted: f64| found.is_some_and(|found| (found - wanted).abs() <= wanted / 12.0);
        assert!(near(interval.percentile_ms(50.0), 2.0), "{:?}", interval.percentile_ms(50.0));
        assert!(near(interval.percentile_ms(100.0), 80.0), "{:?}", interval.percentile_ms(100.0));
        assert!(near(after.gateway.since(&before.gateway).percentile_ms(50.0), 0.5));
        assert_eq!(before.total.since(&before.total).percentile_ms(50.0), None);
        assert!(after.resident_bytes.is_some_and(|bytes| bytes > 100_000) && after.cpu_seconds.is_some());
    }

    #[test]
    fn samples_are_taken_while_somebody_watches_and_never_beyond_the_ring() {
        let metrics = Metrics::new(MetricsOptions::default());
        let recorder = metrics.recorder();
        recorder.seen(Seen::default);
        assert!(!recorder.is_watched());
        let watching = metrics.watch();
        assert!(recorder.is_watched());
        for number in 0..2 * RING {
            recorder.seen(|| Seen {
                status: 200,
                path: ShortText::new(format!("/{number}").as_bytes()),
                ..Seen::default()
            });
        }
        let mut seen = Vec::new();
        metrics.take_seen(&mut seen);
        assert_eq!((seen.len(), seen[0].path.bytes()), (RING, &b"/0"[..]));
        assert_eq!(ShortText::<4>::new(b"abcdef").bytes(), b"abcd");
        drop(watching);
        assert!(!recorder.is_watched());
    }
}
