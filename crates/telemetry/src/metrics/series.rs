//! The series of HTTP traffic: what identifies them, their cells, and the bound on their number.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::label::Label;

/// Who gave the answer: the label `response_source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResponseSource {
    /// The upstream.
    Upstream,
    /// A plugin or the router: 401, 404, 429, 503 without nodes, a mocked answer.
    Apisix,
    /// The proxy itself, for want of an answer from the upstream: 502, 504.
    Nginx,
}

impl ResponseSource {
    /// The text of the label.
    pub(super) fn text(self) -> &'static str {
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

/// A label of these metrics that may be left empty.
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

/// Labels that are left empty, for each of the metrics: a bit for each pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HiddenLabels(u32);

impl HiddenLabels {
    /// All labels are shown.
    pub const NONE: Self = Self(0);

    const fn bit(metric: HttpMetric, label: HttpLabel) -> u32 {
        1 << (8 * metric as u32 + label as u32)
    }

    /// Leaves a label of a metric empty.
    pub fn hide(&mut self, metric: HttpMetric, label: HttpLabel) {
        self.0 |= Self::bit(metric, label);
    }

    /// Whether a label of a metric is left empty.
    pub(super) fn hides(self, metric: HttpMetric, label: HttpLabel) -> bool {
        self.0 & Self::bit(metric, label) != 0
    }

    /// Whether every metric that has the label leaves it empty.
    fn hides_everywhere(self, label: HttpLabel) -> bool {
        let of_traffic = !matches!(label, HttpLabel::MatchedUri | HttpLabel::MatchedHost | HttpLabel::ResponseSource);
        self.hides(HttpMetric::Status, label)
            && (!of_traffic || self.hides(HttpMetric::Latency, label) && self.hides(HttpMetric::Bandwidth, label))
    }

    /// What is left to tell of a series whose labels this metric leaves empty are empty: the labels with fixed texts.
    fn shown(self, metric: HttpMetric) -> Self {
        let fixed = [HttpLabel::RequestType, HttpLabel::ResponseSource].map(|label| Self::bit(metric, label));
        Self(self.0 & (fixed[0] | fixed[1]))
    }
}

/// What an answered request is counted under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpSeries {
    /// Id (or name) of the route.
    pub route: Label,
    /// The route's path pattern, not the path of the request.
    pub matched_uri: Label,
    /// The route's host pattern.
    pub matched_host: Label,
    /// Id (or name) of the service.
    pub service: Label,
    /// Name of the consumer.
    pub consumer: Label,
    /// Address of the upstream node that was asked last; empty when none was.
    pub node: Label,
    /// Status code of the answer.
    pub code: u16,
    /// Who gave the answer.
    pub source: ResponseSource,
    /// Labels that are empty on the page. Set by [`HttpSeries::without`].
    pub hidden: HiddenLabels,
}

impl HttpSeries {
    /// A request that matched no route: every label but code and source is empty.
    pub fn unmatched(code: u16, source: ResponseSource) -> Self {
        Self::uniform(Label::EMPTY, code, source)
    }

    /// The series without the labels that are hidden, as far as no metric shows them.
    #[must_use]
    pub fn without(self, hidden: HiddenLabels) -> Self {
        if hidden == HiddenLabels::NONE {
            return self;
        }
        self.masked(hidden, |label| hidden.hides_everywhere(label))
    }

    /// What `apisix_http_status` counts under.
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
            // One series for all of them, whose text is not printed.
            source: if hides(HttpLabel::ResponseSource) { ResponseSource::Apisix } else { self.source },
            hidden,
        }
    }

    /// Where a request is counted whose own series had no room.
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
    /// Four words instead of nine fields: this hash is part of every request. Which labels are hidden tells apart what is
    /// otherwise alike only where that has been changed.
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

/// What time and bytes are counted under: the series without its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrafficKey {
    pub(super) route: Label,
    pub(super) service: Label,
    pub(super) consumer: Label,
    pub(super) node: Label,
    pub(super) hidden: HiddenLabels,
}

impl TrafficKey {
    /// What this metric counts under.
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

/// The figures of one answered request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds from the first byte of the request to the end of the answer.
    pub request_us: u64,
    /// Microseconds spent on upstreams; `None` when none was asked.
    pub upstream_us: Option<u64>,
    /// Microseconds spent by the gateway itself.
    pub gateway_us: u64,
    /// Bytes received from the client: head and body.
    pub ingress_bytes: u64,
    /// Bytes sent to the client: head and body.
    pub egress_bytes: u64,
}

/// One number that a single worker writes and anyone reads.
///
/// A plain load and store, not a read-modify-write: with one writer nothing can be lost, and the store costs what an
/// ordinary one costs.
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

/// Upper bounds of the latency buckets in milliseconds; one more bucket takes the rest.
pub(super) const BUCKETS_MS: [u64; 15] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// A latency histogram of one worker. Buckets are not cumulative here; a scrape adds them up.
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

/// The sum of one histogram over workers.
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

/// Answers of one series, as one worker counts them. Aligned so that no two workers write to one cache line.
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

/// Time and bytes of one series, as one worker counts them.
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

/// The times of [`TrafficCells`], added up over workers.
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

/// The bytes of [`TrafficCells`], added up over workers.
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

/// The set of all series of all workers, which holds their number under a bound.
///
/// A worker comes here when it meets a series for the first time. Once the set is full it never changes again, so it
/// is published for good and read without the lock: a flood of new series does not make the workers queue.
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

    /// Whether there is room for `series`, or it is in already.
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

    /// How many series there are.
    pub(super) fn count(&self) -> usize {
        match self.full.get() {
            Some(all) => all.len(),
            None => self.growing.lock().unwrap_or_else(PoisonError::into_inner).len(),
        }
    }
}
