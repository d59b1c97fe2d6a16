//! The page: sums over all workers in Prometheus' text format 0.0.4.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;

use super::kong::{KongMetrics, KongPage};
use super::label::{Label, Labels};
use super::process::Process;
use super::recorder::{ClientError, Counters, GRPC_STATUSES, Mirrored, UpstreamState};
use super::series::{
    BUCKETS_MS, BandwidthTotals, Cell, HistogramTotals, HttpLabel, HttpMetric, HttpSeries, LatencyTotals, TrafficKey,
};
use super::text::{header, labelled, quoted, single, value};
use super::{MetricTypes, Metrics, UpstreamStatus, callouts, etcd, reports, store, streams, usage};

/// Metrics at one moment, ready to be written.
///
/// ```no_run
/// # let metrics = weir_telemetry::metrics::Metrics::new(Default::default());
/// let mut scrape = metrics.scrape();
/// let mut chunk = String::new();
/// while scrape.write_chunk(&mut chunk) {
///     // send the chunk
///     chunk.clear();
/// }
/// ```
#[derive(Debug)]
pub struct Scrape {
    metrics: Arc<Metrics>,
    latency: Vec<(TrafficKey, LatencyTotals)>,
    bandwidth: Vec<(TrafficKey, BandwidthTotals)>,
    statuses: Vec<(HttpSeries, u64)>,
    upstreams: Arc<[UpstreamStatus]>,
    next: Part,
}

/// Next part of the page; the number is an index into the series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Bandwidth(usize),
    Latency(usize),
    Status(usize),
    Upstream(usize),
    Rest,
    End,
}

/// Size in bytes at which [`Scrape::write_chunk`] stops; it may exceed it by one series.
const CHUNK_BYTES: usize = 64 * 1024;

/// Prefix of the names of metrics that APISIX has as well.
pub(super) const PREFIX: &str = "apisix_";

impl Scrape {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        let mut latency: HashMap<TrafficKey, LatencyTotals, foldhash::fast::RandomState> = HashMap::default();
        let mut bandwidth: HashMap<TrafficKey, BandwidthTotals, foldhash::fast::RandomState> = HashMap::default();
        let mut statuses: HashMap<HttpSeries, u64, foldhash::fast::RandomState> = HashMap::default();
        for (_, worker) in &metrics.workers {
            for (_, cells) in &worker.traffic {
                latency.entry(cells.key.of(HttpMetric::Latency)).or_default().add(cells);
                bandwidth.entry(cells.key.of(HttpMetric::Bandwidth)).or_default().add(cells);
            }
            for (_, cells) in &worker.statuses {
                let total = statuses.entry(cells.series.status()).or_default();
                *total = total.wrapping_add(cells.answers.value());
            }
        }
        let mut latency: Vec<_> = latency.into_iter().collect();
        latency.sort_unstable_by_key(|(key, _)| *key);
        let mut bandwidth: Vec<_> = bandwidth.into_iter().collect();
        bandwidth.sort_unstable_by_key(|(key, _)| *key);
        let mut statuses: Vec<_> = statuses.into_iter().collect();
        statuses.sort_unstable_by_key(|(series, _)| *series);
        let upstreams = metrics.upstream_status();
        Self { metrics, latency, bandwidth, statuses, upstreams, next: Part::Bandwidth(0) }
    }

    /// Appends up to about 64 KiB of the page to `out`. At the end of the page, returns false and appends nothing.
    pub fn write_chunk(&mut self, out: &mut String) -> bool {
        if self.metrics.prefix == PREFIX {
            return self.write_parts(out);
        }
        let mut chunk = String::new();
        let more = self.write_parts(&mut chunk);
        renamed(&chunk, &self.metrics.prefix, out);
        more
    }

    fn write_parts(&mut self, out: &mut String) -> bool {
        let start = out.len();
        while out.len() - start < CHUNK_BYTES && self.next != Part::End {
            self.next = self.write_part(out);
        }
        out.len() > start
    }

    fn write_part(&self, out: &mut String) -> Part {
        let page = Page { labels: &self.metrics.labels, linted: self.metrics.types == MetricTypes::Linted };
        match self.next {
            Part::Bandwidth(index) => match self.bandwidth.get(index) {
                Some((key, totals)) => {
                    if index == 0 {
                        page.bandwidth_header(out);
                    }
                    page.bandwidth(out, key, totals);
                    Part::Bandwidth(index + 1)
                }
                None => Part::Latency(0),
            },
            Part::Latency(index) => match self.latency.get(index) {
                Some((key, totals)) => {
                    if index == 0 {
                        header(
                            out,
                            "apisix_http_latency",
                            "histogram",
                            "HTTP request latency in milliseconds per service in APISIX",
                        );
                    }
                    page.latency(out, key, totals);
                    Part::Latency(index + 1)
                }
                None => Part::Status(0),
            },
            Part::Status(index) => match self.statuses.get(index) {
                Some((series, answers)) => {
                    if index == 0 {
                        page.status_header(out);
                    }
                    page.status(out, series, *answers);
                    Part::Status(index + 1)
                }
                None => Part::Upstream(0),
            },
            Part::Upstream(index) => match self.upstreams.get(index) {
                Some(series) => {
                    if index == 0 {
                        header(out, "apisix_upstream_status", "gauge", "Upstream status from health check");
                    }
                    series.write(out);
                    Part::Upstream(index + 1)
                }
                None => Part::Rest,
            },
            Part::Rest => {
                self.write_rest(&page, out);
                self.write_kong(out);
                Part::End
            }
            Part::End => Part::End,
        }
    }

    /// Writes what is told under Kong's names as well.
    fn write_kong(&self, out: &mut String) {
        let told = self.metrics.kong_metrics();
        let page = KongPage { metrics: &self.metrics };
        if told.contains(KongMetrics::STATUS) {
            page.statuses(&self.statuses, out);
        }
        if told.contains(KongMetrics::LATENCY) {
            let kong = ("kong_kong_latency_ms", "Latency added by Kong in ms for each service/route in Kong");
            page.latencies(kong, &self.latency, |totals| &totals.gateway, out);
            let upstream = "Latency added by upstream response for each service/route in Kong in ms";
            page.latencies(("kong_upstream_latency_ms", upstream), &self.latency, |totals| &totals.upstream, out);
            let request = "Total latency incurred during requests for each service/route in Kong in ms";
            page.latencies(("kong_request_latency_ms", request), &self.latency, |totals| &totals.request, out);
        }
        if told.contains(KongMetrics::BANDWIDTH) {
            page.bandwidth(&self.bandwidth, out);
        }
        if told.contains(KongMetrics::NODE) {
            page.node(told.contains(KongMetrics::HEALTH), out);
        }
    }

    /// Writes the metrics with few series.
    fn write_rest(&self, page: &Page<'_>, out: &mut String) {
        let metrics = &self.metrics;
        let workers: Vec<_> = metrics.workers.iter().map(|(_, worker)| &worker.counters).collect();
        let total = |cell: &dyn Fn(&Counters) -> &Cell| {
            workers.iter().fold(0u64, |sum, worker| sum.wrapping_add(cell(worker).value()))
        };
        // A gauge is the difference of counts from several workers; between two reads it may fall below zero.
        let gauge = |cell: &dyn Fn(&Counters) -> &Cell| total(cell).cast_signed().max(0);

        if let Some(status) = metrics.store.get() {
            store::write(&**status, out);
        }
        if let Some(failures) = metrics.plan_failures.get() {
            let help = "Attempts to write counts of plans to their database that failed";
            single(out, "weir_plan_write_failures_total", "counter", help, failures.load(Relaxed));
        }
        if let Some(status) = metrics.usage.get() {
            usage::write(&**status, &metrics.labels, out);
        }
        if let Some(status) = metrics.etcd.get() {
            etcd::write(&**status, out);
        }
        let requests_type = if page.linted { "counter" } else { "gauge" };
        let help = "The total number of client requests since APISIX started";
        single(out, "apisix_http_requests_total", requests_type, help, metrics.clients().requests);

        let name = "apisix_nginx_http_current_connections";
        header(out, name, "gauge", "Number of HTTP connections");
        let clients = metrics.clients();
        let states = [
            ("accepted", clients.accepted),
            ("active", clients.active),
            ("handled", clients.handled),
            ("reading", clients.reading),
            ("waiting", clients.waiting),
            ("writing", clients.writing),
        ];
        for (state, value) in states {
            labelled(out, name, "state", state, value);
        }

        let overflow = total(&|c| &c.series_overflow);
        let help = "Number of nginx-lua-prometheus errors";
        single(out, "apisix_nginx_metric_errors_total", "counter", help, overflow);

        let name = "apisix_node_info";
        header(out, name, "gauge", "Info of APISIX node");
        out.push_str(name);
        out.push_str("{hostname=");
        quoted(out, &metrics.hostname);
        out.push_str(",version=");
        quoted(out, &metrics.version);
        out.push_str("} 1\n");

        let help = "Access log lines that were not written";
        single(out, "weir_access_log_dropped_total", "counter", help, metrics.access_log_dropped());
        self.write_config(out);

        let name = "weir_client_errors_total";
        header(out, name, "counter", "Requests refused before routing and client connections cut, by reason");
        for reason in ClientError::ALL {
            let value = workers
                .iter()
                .filter_map(|worker| worker.client_errors.get(*reason as usize))
                .fold(0u64, |sum, cell| sum.wrapping_add(cell.value()));
            labelled(out, name, "reason", reason.text(), value);
        }

        let name = "weir_grpc_calls_total";
        header(out, name, "counter", "gRPC calls, by status");
        for (number, status) in GRPC_STATUSES.iter().enumerate() {
            let cells = workers.iter().filter_map(|worker| worker.grpc_calls.get(number));
            labelled(out, name, "status", status, cells.fold(0u64, |sum, cell| sum.wrapping_add(cell.value())));
        }

        let help = "Memory of limits.buffers in use";
        single(out, "weir_buffers_bytes", "gauge", help, metrics.buffers.load(Relaxed));
        let help = "How often limits.buffers had no room for what a request needs";
        single(out, "weir_buffers_refused_total", "counter", help, metrics.buffers_refused.load(Relaxed));
        let (name, limit) = ("weir_client_connections_limit", metrics.connections_limit.load(Relaxed));
        single(out, name, "gauge", "Most client connections at one time", limit);

        let name = "weir_upstream_connections";
        header(out, name, "gauge", "Connections to upstreams, by what they are doing");
        labelled(out, name, "state", "active", gauge(&|c| c.upstream(UpstreamState::Active)));
        labelled(out, name, "state", "idle", gauge(&|c| c.upstream(UpstreamState::Idle)));
        let help = "Upstream nodes that are set aside for not taking connections";
        single(out, "weir_upstream_nodes_set_aside", "gauge", help, gauge(&|c| &c.nodes_aside));
        let help = "How often an upstream node was set aside";
        single(out, "weir_upstream_set_aside_total", "counter", help, total(&|c| &c.set_aside));

        let help = "Connections and streams of clients that carry WebSocket";
        single(out, "weir_websocket_connections", "gauge", help, gauge(&|c| &c.websockets));
        let help = "Connections and streams of clients that have switched to WebSocket";
        single(out, "weir_websocket_connections_total", "counter", help, total(&|c| &c.websockets_total));
        let name = "weir_websocket_bytes_total";
        header(out, name, "counter", "Bytes of WebSocket, received from clients and sent to them");
        labelled(out, name, "direction", "received", total(&|c| &c.websocket_received));
        labelled(out, name, "direction", "sent", total(&|c| &c.websocket_sent));

        let name = "weir_mirror_requests_total";
        header(out, name, "counter", "Copies of requests for mirrors, by what became of them");
        for outcome in Mirrored::ALL {
            let cells = workers.iter().filter_map(|worker| worker.mirrored.get(outcome as usize));
            let value = cells.fold(0u64, |sum, cell| sum.wrapping_add(cell.value()));
            labelled(out, name, "outcome", outcome.text(), value);
        }

        callouts::write(
            metrics.workers.iter().flat_map(|(_, worker)| worker.callouts.iter().map(|(_, cells)| cells)),
            out,
        );

        let streams = metrics.workers.iter().flat_map(|(_, worker)| worker.streams.iter().map(|(_, cells)| cells));
        streams::write(streams, gauge(&|c| &c.streams), metrics.labels(), out);

        let help = "Datagrams of clients for whom limits.udp_sessions had no room";
        single(out, "weir_udp_sessions_refused_total", "counter", help, total(&|c| &c.udp_sessions_refused));
        let help = "Datagrams that a session of UDP could not pass on";
        single(out, "weir_udp_datagrams_lost_total", "counter", help, total(&|c| &c.datagrams_lost));

        let counts = metrics.workers.iter().flat_map(|(_, worker)| worker.stream_counts.iter().map(|(_, count)| count));
        streams::write_counts(counts, metrics.labels(), out);

        reports::write(out);

        let name = "weir_worker_connections";
        header(out, name, "gauge", "Client connections of each worker");
        for (number, worker) in workers.iter().enumerate() {
            labelled(out, name, "worker", &number.to_string(), worker.active.value().cast_signed().max(0));
        }
        let help = "Panics of request tasks, each of which ended one connection";
        single(out, "weir_worker_panics_total", "counter", help, total(&|c| &c.panics));
        single(out, "weir_limit_keys", "gauge", "Keys that the rate limiters hold", metrics.limit_keys.load(Relaxed));
        single(out, "weir_metric_series", "gauge", "Series of answered requests", metrics.registry.count());
        let help = "Answered requests that were counted under the label value other for want of room";
        single(out, "weir_metric_series_overflow_total", "counter", help, overflow);

        write_process(out, &Process::read());
    }

    fn write_config(&self, out: &mut String) {
        let config = &self.metrics.config;
        let help = "Revision of the configuration that serves";
        single(out, "weir_config_revision", "gauge", help, config.revision.load(Relaxed));
        let changed = config.changed_ms.load(Relaxed) as f64 / 1000.0;
        let help = "When the configuration last changed, in seconds since 1970";
        single(out, "weir_config_last_change_timestamp_seconds", "gauge", help, changed);
        let help = "Configurations that were refused";
        single(out, "weir_config_rejected_total", "counter", help, config.rejected.load(Relaxed));
        let help = "Configurations that became live";
        single(out, "weir_config_reload_total", "counter", help, config.applied.load(Relaxed));
        let help = "Resources that do not serve as they stand, because something is wrong with them";
        single(out, "weir_config_left_out", "gauge", help, config.left_out.load(Relaxed));
        let help = "Whether the store has lost what serves, which stays until that is accepted";
        single(out, "weir_config_withheld", "gauge", help, u8::from(config.withheld.load(Relaxed)));
    }
}

/// Writer of the series of traffic.
struct Page<'a> {
    labels: &'a Labels,
    linted: bool,
}

impl Page<'_> {
    /// Declared type of metrics that the page may lint as untyped; see [`MetricTypes`].
    fn counter_type(&self) -> &'static str {
        if self.linted { "untyped" } else { "counter" }
    }

    fn bandwidth_header(&self, out: &mut String) {
        let help = "Total bandwidth in bytes consumed per service in APISIX";
        header(out, "apisix_bandwidth", self.counter_type(), help);
    }

    fn bandwidth(&self, out: &mut String, key: &TrafficKey, totals: &BandwidthTotals) {
        for (direction, bytes) in [("ingress", totals.ingress), ("egress", totals.egress)] {
            out.push_str("apisix_bandwidth");
            self.traffic_labels(out, HttpMetric::Bandwidth, direction, key);
            value(out, bytes);
        }
    }

    fn latency(&self, out: &mut String, key: &TrafficKey, totals: &LatencyTotals) {
        let kinds = [("request", &totals.request), ("upstream", &totals.upstream), ("apisix", &totals.gateway)];
        for (kind, histogram) in kinds {
            let mut labels = String::new();
            self.traffic_labels(&mut labels, HttpMetric::Latency, kind, key);
            latency_histogram(out, &labels, histogram);
        }
    }

    fn status_header(&self, out: &mut String) {
        header(out, "apisix_http_status", self.counter_type(), "HTTP status codes per service in APISIX");
    }

    fn status(&self, out: &mut String, series: &HttpSeries, answers: u64) {
        let _ = write!(out, "apisix_http_status{{code=\"{}\"", series.code);
        self.label(out, "route", series.route);
        self.label(out, "matched_uri", series.matched_uri);
        self.label(out, "matched_host", series.matched_host);
        self.label(out, "service", series.service);
        self.label(out, "consumer", series.consumer);
        self.label(out, "node", series.node);
        let hides = |label| series.hidden.hides(HttpMetric::Status, label);
        model_labels(out, hides(HttpLabel::RequestType));
        let source = if hides(HttpLabel::ResponseSource) { "" } else { series.source.text() };
        let _ = write!(out, ",response_source=\"{source}\"}}");
        value(out, answers);
    }

    fn traffic_labels(&self, out: &mut String, metric: HttpMetric, kind: &str, key: &TrafficKey) {
        let _ = write!(out, "{{type=\"{kind}\"");
        self.label(out, "route", key.route);
        self.label(out, "service", key.service);
        self.label(out, "consumer", key.consumer);
        self.label(out, "node", key.node);
        model_labels(out, key.hidden.hides(metric, HttpLabel::RequestType));
        out.push('}');
    }

    fn label(&self, out: &mut String, name: &str, label: Label) {
        out.push(',');
        out.push_str(name);
        out.push('=');
        quoted(out, self.labels.text(label));
    }
}

/// Labels by which APISIX distinguishes traffic to language models; no traffic here is of that kind.
fn model_labels(out: &mut String, hides_type: bool) {
    out.push_str(if hides_type { ",request_type=\"\"" } else { ",request_type=\"traditional_http\"" });
    out.push_str(",request_llm_model=\"\",llm_model=\"\"");
}

/// Writes a histogram. `labels` is the complete set in braces; `le` goes last. Buckets below the smallest observed
/// value are left out, as in APISIX.
fn latency_histogram(out: &mut String, labels: &str, histogram: &HistogramTotals) {
    let count: u64 = histogram.buckets.iter().sum();
    if count == 0 {
        return;
    }
    let inner = labels.strip_suffix('}').unwrap_or(labels);
    let mut seen = 0;
    for (bucket, found) in histogram.buckets.iter().enumerate() {
        seen += found;
        if seen == 0 {
            continue;
        }
        out.push_str("apisix_http_latency_bucket");
        out.push_str(inner);
        match BUCKETS_MS.get(bucket) {
            Some(bound) => {
                let _ = write!(out, ",le=\"{bound}\"}}");
            }
            None => out.push_str(",le=\"+Inf\"}"),
        }
        value(out, seen);
    }
    for (suffix, number) in [("_sum", histogram.sum_us as f64 / 1000.0), ("_count", count as f64)] {
        out.push_str("apisix_http_latency");
        out.push_str(suffix);
        out.push_str(labels);
        value(out, number);
    }
}

fn write_process(out: &mut String, process: &Process) {
    if let Some(seconds) = process.cpu_seconds {
        single(out, "process_cpu_seconds_total", "counter", "Total user and system CPU time in seconds", seconds);
    }
    if let Some(limit) = process.max_fds {
        single(out, "process_max_fds", "gauge", "Maximum number of open file descriptors", limit);
    }
    if let Some(open) = process.open_fds {
        single(out, "process_open_fds", "gauge", "Number of open file descriptors", open);
    }
    if let Some(bytes) = process.resident_bytes {
        single(out, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes", bytes);
    }
    if let Some(seconds) = process.start_time {
        let help = "Start time of the process in seconds since 1970";
        single(out, "process_start_time_seconds", "gauge", help, seconds);
    }
    if let Some(bytes) = process.virtual_bytes {
        single(out, "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes", bytes);
    }
}

/// Copies complete lines with another prefix. A line begins with a name, or with a comment about a name.
fn renamed(lines: &str, prefix: &str, out: &mut String) {
    for line in lines.split_inclusive('\n') {
        let said = ["# HELP ", "# TYPE "].into_iter().find(|said| line.starts_with(said)).unwrap_or_default();
        match line[said.len()..].strip_prefix(PREFIX) {
            Some(rest) => out.extend([said, prefix, rest]),
            None => out.push_str(line),
        }
    }
}
