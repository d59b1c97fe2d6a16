//! Metrics in Prometheus' format, under the names of Apache APISIX's metrics.
//!
//! ```text
//! worker 0: Recorder ──► cells ─┐
//! worker 1: Recorder ──► cells ─┼── Metrics::scrape ──► Scrape ──► text, a chunk at a time
//! control:  Metrics  ──► cells ─┘
//! ```
//!
//! Each worker has its own [`Recorder`] and its own cells. [`Metrics::scrape`] sums up all cells from any thread,
//! without stopping a worker. A page is therefore no snapshot of one instant, but no counter on it ever decreases
//! from page to page.
//!
//! # Bounds
//! Labels and series are bounded ([`MetricsOptions`]). A request whose series does not fit is counted under the label
//! value `other`, and `weir_metric_series_overflow_total` counts such requests.
//!
//! # Differences from APISIX's page
//! `apisix_etcd_*` appear only while an etcd is followed. Metrics of absent features are left out:
//! `apisix_shared_dict_*` (memory is not divided into dictionaries in advance), `apisix_llm_*` and `apisix_ai_*` (no
//! AI plugins), `apisix_stream_*`, `apisix_batch_process_entries` (`weir_reports_pending` has its number) and
//! `apisix_redis_commands_total` (nothing reports to it yet). The labels `request_type="traditional_http"`, `request_llm_model=""` and `llm_model=""` are always
//! present. `apisix_nginx_metric_errors_total` counts the requests whose own series did not fit. [`MetricTypes`]
//! selects the declared types of a few metrics.

mod callouts;
mod clients;
mod etcd;
mod exposition;
mod kong;
mod label;
mod live;
mod process;
mod recorder;
mod reports;
mod series;
mod store;
mod streams;
mod text;
mod upstream;
mod usage;

pub use callouts::CalloutOutcome;
pub use clients::Clients;
pub use etcd::EtcdStatus;
pub use exposition::Scrape;
pub use kong::KongMetrics;
pub use label::{Label, Labels, LazyLabel, MAX_LABEL_BYTES};
pub use live::{Figures, Latencies, RING, Seen, ShortText, Tried, Watching};
pub use recorder::{ClientError, ConnectionState, Mirrored, Recorder, UpstreamState};
pub use series::{HiddenLabels, HttpLabel, HttpMetric, HttpSeries, ResponseSource, Sample};
pub use store::StoreStatus;
pub use streams::StreamSample;
pub use upstream::{NodeHealth, UpstreamStatus};
pub use usage::{AlertStatus, UsageExportStatus, UsageStatus};

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::access_log::AccessLog;
use live::Watched;
use recorder::WorkerCells;
use series::Registry;

/// Bounds of the metrics, and labels that describe this node.
#[derive(Debug, Clone)]
pub struct MetricsOptions {
    /// Maximum number of series of answered requests (one for each combination of route, consumer, node and status)
    /// over all workers. A series takes about 700 bytes in each worker that uses it.
    pub max_series: usize,
    /// Maximum number of label values in addition to the empty one and `other`.
    pub max_labels: usize,
    /// Label of `apisix_node_info`.
    pub hostname: String,
    /// Label of `apisix_node_info`.
    pub version: String,
    /// Declaration of metrics whose type in APISIX contradicts their name.
    pub types: MetricTypes,
    /// Prefix of the names of APISIX's metrics, in place of `apisix_`.
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

/// `# TYPE` of the metrics that violate Prometheus' naming rule ("counters, and only they, end in `_total`") in
/// APISIX: `apisix_http_status` and `apisix_bandwidth` (counters) and `apisix_http_requests_total` (a gauge).
///
/// Names and values are the same in both cases, and Prometheus itself treats them alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetricTypes {
    /// `untyped`, `untyped` and `counter`: the page passes the naming lint of `promtool check metrics`. Collectors
    /// that rely on the declared type take untyped metrics for gauges.
    Linted,
    /// Types as in APISIX.
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
    watched: Watched,
    limit_keys: AtomicU64,
    connections_limit: AtomicU64,
    buffers: AtomicU64,
    buffers_refused: AtomicU64,
    access_logs: Mutex<LogDrops>,
    upstreams: Mutex<Arc<[UpstreamStatus]>>,
    /// Metrics that are told under Kong's names as well, as bits.
    kong: AtomicU8,
    etcd: OnceLock<Arc<dyn EtcdStatus>>,
    store: OnceLock<Arc<dyn StoreStatus>>,
    usage: OnceLock<Arc<dyn UsageStatus>>,
    usage_exports: OnceLock<Arc<dyn UsageExportStatus>>,
    alerts: OnceLock<Arc<dyn AlertStatus>>,
    /// Attempts to write counts of plans that failed.
    plan_failures: OnceLock<Arc<AtomicU64>>,
    hostname: String,
    version: String,
    types: MetricTypes,
    prefix: String,
}

/// Cells of the configuration, which the control thread writes.
#[derive(Debug, Default)]
struct ConfigCells {
    revision: AtomicU64,
    /// Milliseconds since 1970; 0 before the first change.
    changed_ms: AtomicU64,
    applied: AtomicU64,
    rejected: AtomicU64,
    /// True if the last configuration was refused.
    last_rejected: AtomicBool,
    left_out: AtomicU64,
    withheld: AtomicBool,
}

/// Numbers of lines dropped by access logs.
#[derive(Debug, Default)]
struct LogDrops {
    open: Vec<Arc<AtomicU64>>,
    /// Lines dropped by logs that have since been closed and freed.
    gone: u64,
}

impl LogDrops {
    /// Adds a log, and sums up logs that no longer exist, so that the list does not grow.
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
    /// Creates metrics without workers.
    pub fn new(options: MetricsOptions) -> Arc<Self> {
        Arc::new(Self {
            labels: Labels::new(options.max_labels),
            registry: Registry::new(options.max_series),
            workers: boxcar::Vec::new(),
            config: ConfigCells::default(),
            watched: Watched::default(),
            limit_keys: AtomicU64::new(0),
            connections_limit: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
            buffers_refused: AtomicU64::new(0),
            access_logs: Mutex::default(),
            upstreams: Mutex::default(),
            kong: AtomicU8::new(0),
            etcd: OnceLock::new(),
            store: OnceLock::new(),
            usage: OnceLock::new(),
            usage_exports: OnceLock::new(),
            alerts: OnceLock::new(),
            plan_failures: OnceLock::new(),
            hostname: options.hostname,
            version: options.version,
            types: options.types,
            prefix: options.prefix,
        })
    }

    /// Creates the recorder of one worker. Its counts remain on the page after it is dropped, so there should be
    /// exactly one per worker.
    pub fn recorder(self: &Arc<Self>) -> Recorder {
        let cells = Arc::new(WorkerCells::default());
        self.workers.push(Arc::clone(&cells));
        Recorder::new(Arc::clone(self), cells)
    }

    /// Table of label values.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Records that a configuration has become live: `weir_config_revision`,
    /// `weir_config_last_change_timestamp_seconds`, `weir_config_reload_total`.
    pub fn config_applied(&self, revision: u64, at: SystemTime) {
        let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.config.revision.store(revision, Relaxed);
        self.config.changed_ms.store(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX), Relaxed);
        self.config.applied.fetch_add(1, Relaxed);
        self.config.last_rejected.store(false, Relaxed);
    }

    /// Records that a configuration was refused and the previous one remains in effect: `weir_config_rejected_total`.
    pub fn config_rejected(&self) {
        self.config.rejected.fetch_add(1, Relaxed);
        self.config.last_rejected.store(true, Relaxed);
    }

    /// Sets the number of resources that are left out because they are invalid: `weir_config_left_out`.
    pub fn set_config_left_out(&self, resources: u64) {
        self.config.left_out.store(resources, Relaxed);
    }

    /// Sets whether the store holds a change that takes effect only after somebody accepts it:
    /// `weir_config_withheld`.
    pub fn set_config_withheld(&self, withheld: bool) {
        self.config.withheld.store(withheld, Relaxed);
    }

    /// Sets the etcd that the configuration comes from: `apisix_etcd_reachable`, `apisix_etcd_modify_indexes`. Only
    /// the first call has an effect.
    pub fn watch_etcd(&self, etcd: Arc<dyn EtcdStatus>) {
        let _ = self.etcd.set(etcd);
    }

    /// Sets the embedded store that the configuration comes from: `weir_store_up`, `weir_store_revision`. Only the
    /// first call has an effect.
    pub fn watch_store(&self, store: Arc<dyn StoreStatus>) {
        let _ = self.store.set(store);
    }

    /// Sets the alerts whose totals are on the page. Only the first call has an effect.
    pub fn watch_alerts(&self, alerts: Arc<dyn AlertStatus>) {
        let _ = self.alerts.set(alerts);
    }

    /// Sets the exports of usage whose totals are on the page. Only the first call has an effect.
    pub fn watch_usage_exports(&self, exports: Arc<dyn UsageExportStatus>) {
        let _ = self.usage_exports.set(exports);
    }

    /// Sets the usage whose totals are on the page: `weir_usage_*`. Only the first call has an effect.
    pub fn watch_usage(&self, usage: Arc<dyn UsageStatus>) {
        let _ = self.usage.set(usage);
    }

    /// Sets the number of attempts to write counts of plans that failed: `weir_plan_write_failures_total`. Only the first
    /// call has an effect.
    pub fn watch_plan_counts(&self, failures: Arc<AtomicU64>) {
        let _ = self.plan_failures.set(failures);
    }

    /// Sets the maximum number of concurrent client connections: `weir_client_connections_limit`.
    pub fn set_connections_limit(&self, connections: u64) {
        self.connections_limit.store(connections, Relaxed);
    }

    /// Sets the bytes in use of the buffer budget, and the number of requests refused for lack of room:
    /// `weir_buffers_bytes`, `weir_buffers_refused_total`.
    pub fn set_buffers(&self, bytes: u64, refused: u64) {
        self.buffers.store(bytes, Relaxed);
        self.buffers_refused.store(refused, Relaxed);
    }

    /// Sets the number of keys that the limiters hold: `weir_limit_keys`.
    pub fn set_limit_keys(&self, keys: u64) {
        self.limit_keys.store(keys, Relaxed);
    }

    /// Counts lines that `log` drops under `weir_access_log_dropped_total`, including those dropped before this call.
    pub fn watch_access_log(&self, log: &AccessLog) {
        self.access_logs.lock().unwrap_or_else(PoisonError::into_inner).add(log);
    }

    /// Tells these metrics under Kong's names as well, from now on.
    #[inline]
    pub fn tell_as_kong(&self, metrics: KongMetrics) {
        if !self.kong_metrics().contains(metrics) {
            self.kong.fetch_or(metrics.bits(), Relaxed);
        }
    }

    fn kong_metrics(&self) -> KongMetrics {
        KongMetrics::of_bits(self.kong.load(Relaxed))
    }

    /// Sets the nodes under health checks: `apisix_upstream_status`.
    pub fn set_upstream_status(&self, series: Vec<UpstreamStatus>) {
        *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = series.into();
    }

    fn upstream_status(&self) -> Arc<[UpstreamStatus]> {
        Arc::clone(&self.upstreams.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn access_log_dropped(&self) -> u64 {
        self.access_logs.lock().unwrap_or_else(PoisonError::into_inner).total()
    }

    /// Sums up the cells of all workers. The page is written from the result, at the pace of its reader.
    pub fn scrape(self: &Arc<Self>) -> Scrape {
        Scrape::new(Arc::clone(self))
    }

    /// Appends the whole page to `out`. With thousands of routes a page has tens of megabytes, which
    /// [`Metrics::scrape`] delivers in chunks.
    pub fn render(self: &Arc<Self>, out: &mut String) {
        let mut scrape = self.scrape();
        while scrape.write_chunk(out) {}
    }
}
