//! Series of HTTP traffic: their identity, their cells, and the bound on their number.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::label::Label;

/// Origin of an answer: the label `response_source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResponseSource {
    /// The upstream.
    Upstream,
    /// A plugin or the router: 401, 404, 429, 503 without nodes, a mocked answer.
    Apisix,
    /// The proxy itself, because the upstream gave no answer: 502, 504.
    Nginx,
}

impl ResponseSource {
    /// Text of the label.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Apisix => "apisix",
            Self::Nginx => "nginx",
        }
    }
}

/// A metric of answered requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMetric {
    /// `apisix_http_status`
    Status,
    /// `apisix_http_latency`
    Latency,
    /// `apisix_bandwidth`
    Bandwidth,
}

/// A label of these metrics that can be hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the labels")]
pub enum HttpLabel {
    Route,
    MatchedUri,
    MatchedHost,
    Service,
    Consumer,
    Node,
    RequestType,
    ResponseSource,
}

/// Hidden labels of each metric, which are left empty: one bit for each pair of metric and label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HiddenLabels(u32);

impl HiddenLabels {
    /// No hidden labels.
    pub const NONE: Self = Self(0);

    const fn bit(metric: HttpMetric, label: HttpLabel) -> u32 {
        1 << (8 * metric as u32 + label as u32)
    }

    /// Hides a label of a metric.
    pub fn hide(&mut self, metric: HttpMetric, label: HttpLabel) {
        self.0 |= Self::bit(metric, label);
    }

    /// True if a label of a metric is hidden.
    pub(super) fn hides(self, metric: HttpMetric, label: HttpLabel) -> bool {
        self.0 & Self::bit(metric, label) != 0
    }

    /// True if every metric with this label hides it.
    fn hides_everywhere(self, label: HttpLabel) -> bool {
        let of_traffic = !matches!(label, HttpLabel::MatchedUri | HttpLabel::MatchedHost | HttpLabel::ResponseSource);
        self.hides(HttpMetric::Status, label)
            && (!of_traffic || self.hides(HttpMetric::Latency, label) && self.hides(HttpMetric::Bandwidth, label))
    }

    /// Hidden labels that still distinguish series of this metric after masking: those with fixed texts.
    fn shown(self, metric: HttpMetric) -> Self {
        let fixed = [HttpLabel::RequestType, HttpLabel::ResponseSource].map(|label| Self::bit(metric, label));
        Self(self.0 & (fixed[0] | fixed[1]))
    }
}

/// Labels of an answered request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpSeries {
    /// Id (or name) of the route.
    pub route: Label,
    /// Path pattern of the route, not the path of the request.
    pub matched_uri: Label,
    /// Host pattern of the route.
    pub matched_host: Label,
    /// Id (or name) of the service.
    pub service: Label,
    /// Name of the consumer.
    pub consumer: Label,
    /// Address of the last upstream node that was tried; empty if none was.
    pub node: Label,
    /// Status code of the answer.
    pub code: u16,
    /// Origin of the answer.
    pub source: ResponseSource,
    /// Labels that are empty on the page. Set by [`HttpSeries::without`].
    pub hidden: HiddenLabels,
}

impl HttpSeries {
    /// Series of a request that matched no route: every label but code and source is empty.
    pub fn unmatched(code: u16, source: ResponseSource) -> Self {
        Self::uniform(Label::EMPTY, code, source)
    }

    /// Series without hidden labels, except those that some metric still shows.
    #[must_use]
    pub fn without(self, hidden: HiddenLabels) -> Self {
        if hidden == HiddenLabels::NONE {
            return self;
        }
        self.masked(hidden, |label| hidden.hides_everywhere(label))
    }

    /// Series under which `apisix_http_status` counts.
    pub(super) fn status(self) -> Self {
        if self.hidden == HiddenLabels::NONE {
            return self;
        }
        let hides = |label| self.hidden.hides(HttpMetric::Status, label);
        self.masked(self.hidden.shown(HttpMetric::Status), hides)
    }

    fn masked(self, hidden: HiddenLabels, hides: impl Fn(HttpLabel) -> bool) -> Self {
        let label = |name, label| if hides(name) { Label::EMPTY } else { label };
        Self {
            route: label(HttpLabel::Route, self.route),
            matched_uri: label(HttpLabel::MatchedUri, self.matched_uri),
            matched_host: label(HttpLabel::MatchedHost, self.matched_host),
            service: label(HttpLabel::Service, self.service),
            consumer: label(HttpLabel::Consumer, self.consumer),
            node: label(HttpLabel::Node, self.node),
            code: self.code,
            // A single series for all sources, whose text is not printed.
            source: if hides(HttpLabel::ResponseSource) { ResponseSource::Apisix } else { self.source },
            hidden,
        }
    }

    /// Series for requests whose own series did not fit.
    pub(super) fn overflow(&self) -> Self {
        Self { hidden: self.hidden, ..Self::uniform(Label::OTHER, self.code, self.source) }
    }

    fn uniform(label: Label, code: u16, source: ResponseSource) -> Self {
        Self {
            route: label,
            matched_uri: label,
            matched_host: label,
            service: label,
            consumer: label,
            node: label,
            code,
            source,
            hidden: HiddenLabels::NONE,
        }
    }

    pub(super) fn traffic(&self) -> TrafficKey {
        let Self { route, service, consumer, node, hidden, .. } = *self;
        TrafficKey { route, service, consumer, node, hidden }
    }

    fn order(&self) -> impl Ord {
        (self.traffic(), self.matched_uri, self.matched_host, self.code, self.source)
    }
}

impl Hash for HttpSeries {
    /// Hashes four words instead of nine fields, because every request needs this hash. Hidden labels distinguish
    /// otherwise equal series only after they were changed.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.traffic().hash(state);
        state.write_u64(pair(self.matched_uri, self.matched_host));
        state.write_u32(u32::from(self.code) << 8 | self.source as u32);
    }
}

impl PartialOrd for HttpSeries {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HttpSeries {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// Labels for time and bytes: the series without its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrafficKey {
    pub(super) route: Label,
    pub(super) service: Label,
    pub(super) consumer: Label,
    pub(super) node: Label,
    pub(super) hidden: HiddenLabels,
}

impl TrafficKey {
    /// Key under which this metric counts.
    pub(super) fn of(self, metric: HttpMetric) -> Self {
        if self.hidden == HiddenLabels::NONE {
            return self;
        }
        let label = |name, label| if self.hidden.hides(metric, name) { Label::EMPTY } else { label };
        Self {
            route: label(HttpLabel::Route, self.route),
            service: label(HttpLabel::Service, self.service),
            consumer: label(HttpLabel::Consumer, self.consumer),
            node: label(HttpLabel::Node, self.node),
            hidden: self.hidden.shown(metric),
        }
    }
}

impl Hash for TrafficKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(pair(self.route, self.service));
        state.write_u64(pair(self.consumer, self.node));
    }
}

fn pair(a: Label, b: Label) -> u64 {
    u64::from(a.0) << 32 | u64::from(b.0)
}

/// Figures of one answered request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds from the first byte of the request to the end of the answer.
    pub request_us: u64,
    /// Microseconds spent on upstreams; `None` if none was tried.
    pub upstream_us: Option<u64>,
    /// Microseconds spent by the gateway itself.
    pub gateway_us: u64,
    /// Bytes received from the client: head and body.
    pub ingress_bytes: u64,
    /// Bytes sent to the client: head and body.
    pub egress_bytes: u64,
}

/// Counter with one writer and any number of readers.
///
/// Updated by a plain load and store instead of a read-modify-write: with one writer no update can be lost, and the
/// store is as cheap as an ordinary one.
#[derive(Debug, Default)]
pub(super) struct Cell(AtomicU64);

impl Cell {
    pub(super) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    pub(super) fn subtract(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(amount), Relaxed);
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Upper bounds of the latency buckets in milliseconds; one more bucket holds larger values.
pub(super) const BUCKETS_MS: [u64; 15] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// Latency histogram of one worker. Its buckets are not cumulative; a scrape sums them up.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [Cell; BUCKETS_MS.len() + 1],
    sum_us: Cell,
}

impl Histogram {
    pub(super) fn record(&self, us: u64) {
        let bucket = BUCKETS_MS.iter().map(|bound| usize::from(us > bound * 1000)).sum::<usize>();
        if let Some(cell) = self.buckets.get(bucket) {
            cell.add(1);
        }
        self.sum_us.add(us);
    }
}

/// Sum of a histogram over all workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HistogramTotals {
    pub(super) buckets: [u64; BUCKETS_MS.len() + 1],
    pub(super) sum_us: u64,
}

impl HistogramTotals {
    pub(super) fn add(&mut self, histogram: &Histogram) {
        for (total, cell) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *total = total.wrapping_add(cell.value());
        }
        self.sum_us = self.sum_us.wrapping_add(histogram.sum_us.value());
    }
}

/// Answers of one series, counted by one worker. Aligned so that no two workers write to one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct StatusCells {
    pub(super) series: HttpSeries,
    pub(super) answers: Cell,
}

impl StatusCells {
    pub(super) fn new(series: HttpSeries) -> Self {
        Self { series, answers: Cell::default() }
    }
}

/// Time and bytes of one series, counted by one worker.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct TrafficCells {
    pub(super) key: TrafficKey,
    request: Histogram,
    upstream: Histogram,
    gateway: Histogram,
    ingress: Cell,
    egress: Cell,
}

impl TrafficCells {
    pub(super) fn new(key: TrafficKey) -> Self {
        Self {
            key,
            request: Histogram::default(),
            upstream: Histogram::default(),
            gateway: Histogram::default(),
            ingress: Cell::default(),
            egress: Cell::default(),
        }
    }

    pub(super) fn record(&self, sample: &Sample) {
        self.request.record(sample.request_us);
        if let Some(us) = sample.upstream_us {
            self.upstream.record(us);
        }
        self.gateway.record(sample.gateway_us);
        self.ingress.add(sample.ingress_bytes);
        self.egress.add(sample.egress_bytes);
    }
}

/// Times of [`TrafficCells`], summed over workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LatencyTotals {
    pub(super) request: HistogramTotals,
    pub(super) upstream: HistogramTotals,
    pub(super) gateway: HistogramTotals,
}

impl LatencyTotals {
    pub(super) fn add(&mut self, cells: &TrafficCells) {
        self.request.add(&cells.request);
        self.upstream.add(&cells.upstream);
        self.gateway.add(&cells.gateway);
    }
}

/// Bytes of [`TrafficCells`], summed over workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BandwidthTotals {
    pub(super) ingress: u64,
    pub(super) egress: u64,
}

impl BandwidthTotals {
    pub(super) fn add(&mut self, cells: &TrafficCells) {
        self.ingress = self.ingress.wrapping_add(cells.ingress.value());
        self.egress = self.egress.wrapping_add(cells.egress.value());
    }
}

/// Set of all series of all workers, which bounds their number.
///
/// A worker queries the set when it first uses a series. A full set never changes again, so it is then published and
/// read without the lock: a flood of new series does not make workers wait for each other.
#[derive(Debug)]
pub(super) struct Registry {
    max: usize,
    growing: Mutex<HashSet<HttpSeries, foldhash::fast::RandomState>>,
    full: OnceLock<HashSet<HttpSeries, foldhash::fast::RandomState>>,
}

impl Registry {
    pub(super) fn new(max: usize) -> Self {
        let registry = Self { max, growing: Mutex::default(), full: OnceLock::new() };
        if max == 0 {
            registry.full.get_or_init(HashSet::default);
        }
        registry
    }

    /// True if `series` fits or is already in the set.
    pub(super) fn admit(&self, series: &HttpSeries) -> bool {
        if let Some(all) = self.full.get() {
            return all.contains(series);
        }
        let mut growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = self.full.get() {
            return all.contains(series);
        }
        growing.insert(*series);
        if growing.len() >= self.max {
            let all = std::mem::take(&mut *growing);
            self.full.get_or_init(|| all);
        }
        true
    }

    /// Number of series.
    pub(super) fn count(&self) -> usize {
        match self.full.get() {
            Some(all) => all.len(),
            None => self.growing.lock().unwrap_or_else(PoisonError::into_inner).len(),
        }
    }
}
