//! Streams of stream routes: `weir_streams_total`, `weir_stream_bytes_total` and `weir_stream_connections`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::label::{Label, Labels};
use super::series::Cell;
use super::text::{header, quoted, single, value};

/// The facts about a stream at its end.
#[derive(Debug, Clone, Copy)]
pub struct StreamSample {
    /// Its status, as in its log.
    pub status: u16,
    /// Bytes of the client that a node has taken.
    pub received: u64,
    /// Bytes of a node that the client has taken.
    pub sent: u64,
}

/// Ended streams of one route with one status, in one worker.
#[derive(Debug)]
pub(super) struct StreamCells {
    pub(super) route: Label,
    pub(super) status: u16,
    ended: Cell,
    received: Cell,
    sent: Cell,
}

impl StreamCells {
    pub(super) fn new(route: Label, status: u16) -> Self {
        Self { route, status, ended: Cell::default(), received: Cell::default(), sent: Cell::default() }
    }

    pub(super) fn record(&self, sample: &StreamSample) {
        self.ended.add(1);
        self.received.add(sample.received);
        self.sent.add(sample.sent);
    }
}

/// Streams of one route with the plugin prometheus, in one worker.
#[derive(Debug)]
pub(super) struct StreamCount {
    pub(super) route: Label,
    pub(super) streams: Cell,
}

/// Writes what the plugin prometheus has counted, over all workers.
pub(super) fn write_counts<'a>(counts: impl Iterator<Item = &'a Arc<StreamCount>>, labels: &Labels, out: &mut String) {
    let mut routes: BTreeMap<&str, u64> = BTreeMap::new();
    for count in counts {
        *routes.entry(labels.text(count.route)).or_default() += count.streams.value();
    }
    if routes.is_empty() {
        return;
    }
    let name = "apisix_stream_connection_total";
    header(out, name, "counter", "Total number of connections handled per stream route in APISIX");
    for (route, count) in routes {
        let _ = write!(out, "{name}{{route=");
        quoted(out, route);
        out.push('}');
        value(out, count);
    }
}

/// Writes the sums over all workers; `open` are the streams under way.
pub(super) fn write<'a>(
    cells: impl Iterator<Item = &'a Arc<StreamCells>>,
    open: i64,
    labels: &Labels,
    out: &mut String,
) {
    let mut ended: BTreeMap<(&str, u16), u64> = BTreeMap::new();
    let mut bytes: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for cells in cells {
        let route = labels.text(cells.route);
        *ended.entry((route, cells.status)).or_default() += cells.ended.value();
        let [received, sent] = bytes.entry(route).or_default();
        *received += cells.received.value();
        *sent += cells.sent.value();
    }
    if ended.is_empty() && open == 0 {
        return;
    }
    single(out, "weir_stream_connections", "gauge", "Streams that are open", open);
    let name = "weir_streams_total";
    header(out, name, "counter", "Streams that have ended, by stream route and status");
    for ((route, status), count) in ended {
        let _ = write!(out, "{name}{{route=");
        quoted(out, route);
        let _ = write!(out, ",status=\"{status}\"}}");
        value(out, count);
    }
    let name = "weir_stream_bytes_total";
    header(
        out,
        name,
        "counter",
        "Bytes of streams that have ended, by stream route: from clients (ingress), to them (egress)",
    );
    for (route, counts) in bytes {
        for (kind, count) in ["ingress", "egress"].into_iter().zip(counts) {
            let _ = write!(out, "{name}{{route=");
            quoted(out, route);
            let _ = write!(out, ",type=\"{kind}\"}}");
            value(out, count);
        }
    }
}
