//! Worker side of the metrics.

use std::cell::RefCell;
use std::sync::Arc;

use hashbrown::HashMap;
use rtrb::Producer;

use super::Metrics;
use super::callouts::{CalloutCells, CalloutOutcome};
use super::label::{Label, Labels};
use super::live::{LiveCells, Seen};
use super::series::{Cell, HttpSeries, Sample, StatusCells, TrafficCells, TrafficKey};
use super::streams::{StreamCells, StreamCount, StreamSample};

/// Recorder of one worker, created with [`Metrics::recorder`] and kept for the worker's lifetime. It may move to
/// another thread but not be shared.
#[derive(Debug)]
pub struct Recorder {
    metrics: Arc<Metrics>,
    cells: Arc<WorkerCells>,
    series: RefCell<HashMap<HttpSeries, Series, foldhash::fast::RandomState>>,
    traffic: RefCell<HashMap<TrafficKey, Arc<TrafficCells>, foldhash::fast::RandomState>>,
    callouts: RefCell<Vec<Arc<CalloutCells>>>,
    stream_counts: RefCell<HashMap<Label, Arc<StreamCount>, foldhash::fast::RandomState>>,
    streams: RefCell<HashMap<(Label, u16), Arc<StreamCells>, foldhash::fast::RandomState>>,
    ring: RefCell<Producer<Seen>>,
}

#[derive(Debug, Clone)]
struct Series {
    status: Arc<StatusCells>,
    traffic: Arc<TrafficCells>,
}

impl Series {
    fn record(&self, sample: &Sample) {
        self.status.answers.add(1);
        self.traffic.record(sample);
    }
}

impl Recorder {
    pub(super) fn new(metrics: Arc<Metrics>, cells: Arc<WorkerCells>) -> Self {
        let ring = metrics.watched.ring();
        Self {
            metrics,
            cells,
            series: RefCell::default(),
            traffic: RefCell::default(),
            callouts: RefCell::default(),
            streams: RefCell::default(),
            stream_counts: RefCell::default(),
            ring,
        }
    }

    /// Metrics that this recorder belongs to.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The cells of this worker.
    pub(super) fn cells(&self) -> &WorkerCells {
        &self.cells
    }

    /// The ring of samples.
    pub(super) fn ring(&self) -> &RefCell<Producer<Seen>> {
        &self.ring
    }

    /// Table of label values, for [`Labels::lazy`].
    pub fn labels(&self) -> &Labels {
        self.metrics.labels()
    }

    /// Records an answered request: `apisix_http_status`, `apisix_http_latency` and `apisix_bandwidth`.
    pub fn http(&self, series: &HttpSeries, sample: &Sample) {
        if let Some(known) = self.series.borrow().get(series) {
            return known.record(sample);
        }
        if self.metrics.registry.admit(series) {
            return self.add_series(*series).record(sample);
        }
        self.cells.counters.series_overflow.add(1);
        let overflow = series.overflow();
        let known = self.series.borrow().get(&overflow).cloned();
        known.unwrap_or_else(|| self.add_series(overflow)).record(sample);
    }

    /// Adds a series that is new to this worker; the only place where recording allocates.
    #[cold]
    fn add_series(&self, key: HttpSeries) -> Series {
        let traffic_key = key.traffic();
        let traffic = Arc::clone(self.traffic.borrow_mut().entry(traffic_key).or_insert_with(|| {
            let cells = Arc::new(TrafficCells::new(traffic_key));
            self.cells.traffic.push(Arc::clone(&cells));
            cells
        }));
        let status = Arc::new(StatusCells::new(key));
        self.cells.statuses.push(Arc::clone(&status));
        let series = Series { status, traffic };
        self.series.borrow_mut().insert(key, series.clone());
        series
    }

    /// Records the start of a request: `apisix_http_requests_total`.
    pub fn request_started(&self) {
        self.cells.counters.requests.add(1);
    }

    /// Records that the kernel handed over a connection, whether or not it is served.
    pub fn connection_accepted(&self) {
        self.cells.counters.accepted.add(1);
    }

    /// Records that a connection is served from now on, in `state`.
    pub fn connection_opened(&self, state: ConnectionState) {
        self.cells.counters.handled.add(1);
        self.cells.counters.active.add(1);
        self.cells.counters.connection(state).add(1);
    }

    /// Records that a served connection changes its state.
    pub fn connection_moved(&self, from: ConnectionState, to: ConnectionState) {
        self.cells.counters.connection(from).subtract(1);
        self.cells.counters.connection(to).add(1);
    }

    /// Records the end of a served connection; `state` is its last state. The worker may differ from the one that
    /// opened the connection, since only the sum over workers is reported.
    pub fn connection_closed(&self, state: ConnectionState) {
        self.cells.counters.active.subtract(1);
        self.cells.counters.connection(state).subtract(1);
    }

    /// Records a new connection to an upstream, in `state`.
    pub fn upstream_opened(&self, state: UpstreamState) {
        self.cells.counters.upstream(state).add(1);
    }

    /// Records that a connection to an upstream was taken from the pool or returned to it.
    pub fn upstream_moved(&self, from: UpstreamState, to: UpstreamState) {
        self.cells.counters.upstream(from).subtract(1);
        self.cells.counters.upstream(to).add(1);
    }

    /// Records the end of a connection to an upstream; `state` is its last state.
    pub fn upstream_closed(&self, state: UpstreamState) {
        self.cells.counters.upstream(state).subtract(1);
    }

    /// Records the ejection of a node that does not accept connections.
    pub fn node_set_aside(&self) {
        self.cells.counters.nodes_aside.add(1);
        self.cells.counters.set_aside.add(1);
    }

    /// Records that an ejected node is back, or gone. The worker may differ from the one that ejected it.
    pub fn node_back(&self) {
        self.cells.counters.nodes_aside.subtract(1);
    }

    /// Records an error of a client that ended its request or connection.
    pub fn client_error(&self, reason: ClientError) {
        if let Some(cell) = self.cells.counters.client_errors.get(reason as usize) {
            cell.add(1);
        }
    }

    /// Records the end of a gRPC call with its status; `None` and numbers that gRPC does not have count as `none`.
    pub fn grpc_call(&self, status: Option<usize>) {
        let cells = &self.cells.counters.grpc_calls;
        let [.., none] = cells;
        status.and_then(|status| cells.get(status)).unwrap_or(none).add(1);
    }

    /// Records the outcome of a request's copy for a mirror.
    pub fn mirrored(&self, outcome: Mirrored) {
        if let Some(cell) = self.cells.counters.mirrored.get(outcome as usize) {
            cell.add(1);
        }
    }

    /// Records the outcome of a plugin's callout and its duration in microseconds.
    pub fn callout(&self, plugin: &'static str, outcome: CalloutOutcome, took_us: u64) {
        let mut callouts = self.callouts.borrow_mut();
        if let Some(cells) = callouts.iter().find(|cells| cells.plugin == plugin) {
            return cells.record(outcome, took_us);
        }
        let cells = Arc::new(CalloutCells::new(plugin));
        cells.record(outcome, took_us);
        self.cells.callouts.push(Arc::clone(&cells));
        callouts.push(cells);
    }

    /// Records the start of a stream.
    pub fn stream_opened(&self) {
        self.cells.counters.streams.add(1);
    }

    /// Records a datagram of a client for whom there was no room among the sessions of UDP.
    pub fn udp_session_refused(&self) {
        self.cells.counters.udp_sessions_refused.add(1);
    }

    /// Records datagrams of UDP sessions that were not passed on.
    pub fn datagrams_lost(&self, count: usize) {
        self.cells.counters.datagrams_lost.add(count as u64);
    }

    /// Records a stream of a route with the plugin prometheus: `apisix_stream_connection_total`.
    pub fn stream_connection(&self, route: Label) {
        let mut counts = self.stream_counts.borrow_mut();
        let count = counts.entry(route).or_insert_with(|| {
            let count = Arc::new(StreamCount { route, streams: Cell::default() });
            self.cells.stream_counts.push(Arc::clone(&count));
            count
        });
        count.streams.add(1);
    }

    /// Records the end of a stream, of this route if any has taken it.
    pub fn stream_closed(&self, route: Option<Label>, sample: &StreamSample) {
        self.cells.counters.streams.subtract(1);
        let key = (route.unwrap_or(Label::EMPTY), sample.status);
        let mut streams = self.streams.borrow_mut();
        let cells = streams.entry(key).or_insert_with(|| {
            let cells = Arc::new(StreamCells::new(key.0, key.1));
            self.cells.streams.push(Arc::clone(&cells));
            cells
        });
        cells.record(sample);
    }

    /// Records that a client's connection, or stream, carries WebSocket from now on.
    pub fn websocket_opened(&self) {
        self.cells.counters.websockets.add(1);
        self.cells.counters.websockets_total.add(1);
    }

    /// Records bytes of WebSocket that went on: `received` from clients, `sent` to them.
    pub fn websocket_moved(&self, received: u64, sent: u64) {
        self.cells.counters.websocket_received.add(received);
        self.cells.counters.websocket_sent.add(sent);
    }

    /// Records the end of WebSocket on a connection or stream.
    pub fn websocket_closed(&self) {
        self.cells.counters.websockets.subtract(1);
    }

    /// Records that a task of this worker panicked and was ended; the worker continues.
    pub fn worker_panicked(&self) {
        self.cells.counters.panics.add(1);
    }
}

/// State of a served client connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// Receiving a request head.
    Reading,
    /// Answering a request, from the end of its head to the end of the answer.
    Writing,
    /// Idle between requests.
    Waiting,
}

/// State of a connection to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamState {
    /// In the pool.
    Idle,
    /// Carrying a request.
    Active,
}

/// Outcome of a request's copy for a mirror: the label `outcome` of `weir_mirror_requests_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mirrored {
    /// The mirror answered.
    Answered,
    /// The mirror could not be reached, or did not answer in time.
    Failed,
    /// The copy was not made: there were too many, or the body was too long.
    Dropped,
}

impl Mirrored {
    /// All outcomes, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Answered, Self::Failed, Self::Dropped];

    /// Text of the label.
    pub fn text(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

/// Statuses of gRPC calls in the order of their numbers, and calls that ended without one: the label `status` of
/// `weir_grpc_calls_total`.
pub(super) const GRPC_STATUSES: [&str; 18] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
    "none",
];

/// Declares [`ClientError`] with the label text of each reason.
macro_rules! client_errors {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// Reason for refusing a request before routing, or for closing a client's connection: the label `reason` of
        /// `weir_client_errors_total`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ClientError { $($(#[$doc])* $name,)+ }

        impl ClientError {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [ClientError] = &[$(ClientError::$name,)+];

            /// Text of the label.
            pub fn text(self) -> &'static str {
                match self { $(ClientError::$name => $text,)+ }
            }
        }
    };
}

client_errors! {
    /// Not HTTP, or ambiguous HTTP (400).
    BadRequest = "bad_request",
    /// The head is larger than allowed (431).
    HeadTooLarge = "head_too_large",
    /// More header fields than allowed (431).
    TooManyHeaders = "too_many_headers",
    /// The request target is longer than allowed (414).
    TargetTooLong = "target_too_long",
    /// The body is larger than allowed (413).
    BodyTooLarge = "body_too_large",
    /// The head did not arrive in time (408).
    HeadTimeout = "head_timeout",
    /// The body stopped arriving (408).
    BodyTimeout = "body_timeout",
    /// The client does not read the answer; the connection is closed.
    WriteTimeout = "write_timeout",
    /// The client disconnected before its answer was complete.
    Aborted = "aborted",
    /// A method that is never served, such as CONNECT or TRACE (405).
    MethodNotAllowed = "method_not_allowed",
    /// An unknown transfer coding (501).
    UnknownCoding = "unknown_coding",
    /// An unsupported version of HTTP (505).
    UnsupportedVersion = "unsupported_version",
    /// An expectation that cannot be met (417).
    ExpectationFailed = "expectation_failed",
    /// More connections than allowed: the connection that was idle longest was closed for a new one.
    TooManyConnections = "too_many_connections",
    /// The TLS handshake failed.
    TlsHandshake = "tls_handshake",
    /// A PROXY header was missing or broken, or came from a peer that is not trusted; the connection was closed.
    ProxyHeader = "proxy_header",
    /// The rules of HTTP/2 were broken; the connection was closed.
    Http2Protocol = "http2_protocol",
    /// More streams of HTTP/2 were reset than allowed; the connection was closed.
    Http2Resets = "http2_resets",
    /// More control frames of HTTP/2 than allowed; the connection was closed.
    Http2ControlFrames = "http2_control_frames",
    /// More DATA frames of HTTP/2 with little or no content than allowed; the connection was closed.
    Http2EmptyFrames = "http2_empty_frames",
    /// A header block of HTTP/2 that was too large, or in too many frames; the connection was closed.
    Http2HeaderBlock = "http2_header_block",
}

/// Cells that one worker writes.
#[derive(Debug, Default)]
pub(super) struct WorkerCells {
    pub(super) live: LiveCells,
    pub(super) counters: Counters,
    pub(super) statuses: boxcar::Vec<Arc<StatusCells>>,
    pub(super) traffic: boxcar::Vec<Arc<TrafficCells>>,
    pub(super) callouts: boxcar::Vec<Arc<CalloutCells>>,
    pub(super) streams: boxcar::Vec<Arc<StreamCells>>,
    pub(super) stream_counts: boxcar::Vec<Arc<StreamCount>>,
}

/// Counters without labels of their own. Aligned so that no two workers write to one cache line.
///
/// A counter that can decrease may wrap below zero in one worker if another worker counted the increase; the sum is
/// correct.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Counters {
    pub(super) requests: Cell,
    pub(super) accepted: Cell,
    pub(super) handled: Cell,
    pub(super) active: Cell,
    connections: [Cell; 3],
    upstreams: [Cell; 2],
    pub(super) nodes_aside: Cell,
    pub(super) set_aside: Cell,
    pub(super) panics: Cell,
    pub(super) streams: Cell,
    pub(super) udp_sessions_refused: Cell,
    pub(super) datagrams_lost: Cell,
    pub(super) websockets: Cell,
    pub(super) websockets_total: Cell,
    pub(super) websocket_received: Cell,
    pub(super) websocket_sent: Cell,
    pub(super) series_overflow: Cell,
    pub(super) mirrored: [Cell; Mirrored::ALL.len()],
    pub(super) grpc_calls: [Cell; GRPC_STATUSES.len()],
    pub(super) client_errors: [Cell; ClientError::ALL.len()],
}

impl Counters {
    pub(super) fn connection(&self, state: ConnectionState) -> &Cell {
        let [reading, writing, waiting] = &self.connections;
        match state {
            ConnectionState::Reading => reading,
            ConnectionState::Writing => writing,
            ConnectionState::Waiting => waiting,
        }
    }

    pub(super) fn upstream(&self, state: UpstreamState) -> &Cell {
        let [idle, active] = &self.upstreams;
        match state {
            UpstreamState::Idle => idle,
            UpstreamState::Active => active,
        }
    }
}
