//! Metrics as Prometheus reads them, under the names that Apache APISIX gave them.
//!
//! ```text
//! worker 0: Recorder ──► cells ─┐
//! worker 1: Recorder ──► cells ─┼── Metrics::scrape ──► Scrape ──► text, a chunk at a time
//! control:  Metrics  ──► cells ─┘
//! ```
//!
//! Each worker has its own [`Recorder`] and writes to cells of its own; [`Metrics::scrape`] adds up what it finds in all
//! of them, from any thread, without stopping a worker. A page is therefore not one instant, but every cell on it
//! only ever moves on from page to page.
//!
//! # Bounds
//! Labels and series are bounded ([`MetricsOptions`]). A request whose series has no room is counted under the label
//! value `other`, and `weir_metric_series_overflow_total` says how often that happened.
//!
//! # Differences from APISIX's page
//! `apisix_etcd_*` stand on it while an etcd is followed. Left out, because what they describe is not there: `apisix_shared_dict_*`
//! (memory is not cut into dictionaries ahead), `apisix_llm_*` and `apisix_ai_*` (no AI plugins), `apisix_stream_*`,
//! `apisix_batch_process_entries` and `apisix_redis_commands_total` (nothing reports to them yet). The labels `request_type="traditional_http"`, `request_llm_model=""` and `llm_model=""` are always present.
//! `apisix_nginx_metric_errors_total` counts the requests that had no room under their own series.
//! [`MetricTypes`] says how a few metrics are declared.

mod callouts;
mod clients;
mod etcd;
mod exposition;
mod label;
mod process;
mod recorder;
mod series;
mod store;
mod text;
mod upstream;

pub use callouts::CalloutOutcome;
pub use clients::Clients;
pub use etcd::EtcdStatus;
pub use exposition::Scrape;
pub use label::{Label, Labels, LazyLabel, MAX_LABEL_BYTES};
pub use recorder::{ClientError, ConnectionState, Mirrored, Recorder, UpstreamState};
pub use series::{HiddenLabels, HttpLabel, HttpMetric, HttpSeries, ResponseSource, Sample};
pub use store::StoreStatus;
pub use upstream::{NodeHealth, UpstreamStatus};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::access_log::AccessLog;
use recorder::WorkerCells;
use series::Registry;

/// Bounds of the metrics, and what they say about this node.
#[derive(Debug, Clone)]
pub struct MetricsOptions {
    /// Most series of answered requests (one for each combination of route, consumer, node and status) over all
    /// workers. A series takes about 700 bytes in each worker that sees it.
    pub max_series: usize,
    /// Most label values beside the empty one and `other`.
    pub max_labels: usize,
    /// Label of `apisix_node_info`.
    pub hostname: String,
    /// Label of `apisix_node_info`.
    pub version: String,
    /// How metrics are declared whose APISIX type is at odds with their name.
    pub types: MetricTypes,
    /// What the names of APISIX's metrics begin with, in the place of `apisix_`.
    pub prefix: String,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        Self {
            max_series: 50_000,
            max_labels: 200_000,
            hostname: String::new(),
            version: String::new(),
            types: MetricTypes::default(),
            prefix: exposition::PREFIX.to_owned(),
        }
    }
}

/// The `# TYPE` of the metrics that break Prometheus' naming rule ("counters, and only they, end in `_total`") in
/// APISIX: `apisix_http_status` and `apisix_bandwidth` (counters) and `apisix_http_requests_total` (a gauge).
///
/// Names and values are the same either way, and Prometheus itself treats them alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetricTypes {
    /// `untyped`, `untyped` and `counter`: the page passes the naming lint of `promtool check metrics`. Collectors that go
    /// by the declared type take what is untyped for gauges.
    Linted,
    /// As APISIX declares them.
    #[default]
    Apisix,
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    labels: Labels,
    registry: Registry,
    workers: boxcar::Vec<Arc<WorkerCells>>,
    config: ConfigCells,
    limit_keys: AtomicU64,
    connections_limit: AtomicU64,
    buffers: AtomicU64,
    buffers_refused: AtomicU64,
    access_logs: Mutex<LogDrops>,
    upstreams: Mutex<Arc<[UpstreamStatus]>>,
    etcd: OnceLock<Arc<dyn EtcdStatus>>,
    store: OnceLock<Arc<dyn StoreStatus>>,
    hostname: String,
    version: String,
    types: MetricTypes,
    prefix: String,
}

/// What the control thread says about the configuration.
#[derive(Debug, Default)]
struct ConfigCells {
    revision: AtomicU64,
    /// Milliseconds since 1970; zero before the first.
    changed_ms: AtomicU64,
    applied: AtomicU64,
    rejected: AtomicU64,
    left_out: AtomicU64,
    withheld: AtomicBool,
}

/// The lines that access logs dropped.
#[derive(Debug, Default)]
struct LogDrops {
    open: Vec<Arc<AtomicU64>>,
    /// What logs dropped that are closed and gone.
    gone: u64,
}

impl LogDrops {
    /// Takes up a log, and folds up those that nobody writes to any more, so that the list does not grow.
    fn add(&mut self, log: &AccessLog) {
        let gone = &mut self.gone;
        self.open.retain(|counter| {
            let in_use = Arc::strong_count(counter) > 1;
            if !in_use {
                *gone = gone.wrapping_add(counter.load(Relaxed));
            }
            in_use
        });
        if !self.open.iter().any(|counter| Arc::ptr_eq(counter, log.dropped_counter())) {
            self.open.push(Arc::clone(log.dropped_counter()));
        }
    }

    fn total(&self) -> u64 {
        self.open.iter().fold(self.gone, |sum, counter| sum.wrapping_add(counter.load(Relaxed)))
    }
}

impl Metrics {
    /// Metrics without a worker yet.
    pub fn new(options: MetricsOptions) -> Arc<Self> {
        Arc::new(Self {
            labels: Labels::new(options.max_labels),
            registry: Registry::new(options.max_series),
            workers: boxcar::Vec::new(),
            config: ConfigCells::default(),
            limit_keys: AtomicU64::new(0),
            connections_limit: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
            buffers_refused: AtomicU64::new(0),
            access_logs: Mutex::default(),
            upstreams: Mutex::default(),
            etcd: OnceLock::new(),
            store: OnceLock::new(),
            hostname: options.hostname,
            version: options.version,
            types: options.types,
            prefix: options.prefix,
        })
    }

    /// A recorder for one worker. What it counted stays on the page when it is gone, so make one a worker and not more.
    pub fn recorder(self: &Arc<Self>) -> Recorder {
        let cells = Arc::new(WorkerCells::default());
        self.workers.push(Arc::clone(&cells));
        Recorder::new(Arc::clone(self), cells)
    }

    /// The label table.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// A configuration has become live: `weir_config_revision`, `weir_config_last_change_timestamp_seconds`,
    /// `weir_config_reload_total`.
    pub fn config_applied(&self, revision: u64, at: SystemTime) {
        let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.config.revision.store(revision, Relaxed);
        self.config.changed_ms.store(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX), Relaxed);
        self.config.applied.fetch_add(1, Relaxed);
    }

    /// A configuration was refused and the one before it goes on: `weir_config_rejected_total`.
    pub fn config_rejected(&self) {
        self.config.rejected.fetch_add(1, Relaxed);
    }

    /// How many resources do not serve as they stand, because something is wrong with them: `weir_config_left_out`.
    pub fn set_config_left_out(&self, resources: u64) {
        self.config.left_out.store(resources, Relaxed);
    }

    /// Whether the store holds something that does not replace what serves before somebody accepts it:
    /// `weir_config_withheld`.
    pub fn set_config_withheld(&self, withheld: bool) {
        self.config.withheld.store(withheld, Relaxed);
    }

    /// The etcd that the configuration comes from: `apisix_etcd_reachable`, `apisix_etcd_modify_indexes`. The first one
    /// stays.
    pub fn watch_etcd(&self, etcd: Arc<dyn EtcdStatus>) {
        let _ = self.etcd.set(etcd);
    }

    /// The embedded store that the configuration comes from: `weir_store_up`, `weir_store_revision`. The first one stays.
    pub fn watch_store(&self, store: Arc<dyn StoreStatus>) {
        let _ = self.store.set(store);
    }

    /// Most client connections at one time: `weir_client_connections_limit`.
    pub fn set_connections_limit(&self, connections: u64) {
        self.connections_limit.store(connections, Relaxed);
    }

    /// Bytes of the budget for buffers in use, and how often it had no room for a request: `weir_buffers_bytes`,
    /// `weir_buffers_refused_total`.
    pub fn set_buffers(&self, bytes: u64, refused: u64) {
        self.buffers.store(bytes, Relaxed);
        self.buffers_refused.store(refused, Relaxed);
    }

    /// How many keys the limiters hold now: `weir_limit_keys`.
    pub fn set_limit_keys(&self, keys: u64) {
        self.limit_keys.store(keys, Relaxed);
    }

    /// Counts the lines that `log` drops under `weir_access_log_dropped_total`, from its first line on.
    pub fn watch_access_log(&self, log: &AccessLog) {
        self.access_logs.lock().unwrap_or_else(PoisonError::into_inner).add(log);
    }

    /// The nodes that are checked now: `apisix_upstream_status`.
    pub fn set_upstream_status(&self, series: Vec<UpstreamStatus>) {
        *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = series.into();
    }

    fn upstream_status(&self) -> Arc<[UpstreamStatus]> {
        Arc::clone(&self.upstreams.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn access_log_dropped(&self) -> u64 {
        self.access_logs.lock().unwrap_or_else(PoisonError::into_inner).total()
    }

    /// Adds up all workers. The page is then written from the result, as slowly as its reader likes.
    pub fn scrape(self: &Arc<Self>) -> Scrape {
        Scrape::new(Arc::clone(self))
    }

    /// Appends the whole page to `out`. With thousands of routes a page has tens of megabytes: [`Metrics::scrape`]
    /// hands it out in pieces.
    pub fn render(self: &Arc<Self>, out: &mut String) {
        let mut scrape = self.scrape();
        while scrape.write_chunk(out) {}
    }
}
