//! Totals of the usage.

use std::fmt::Debug;
use std::fmt::Write as _;

use super::label::{Label, Labels};
use super::text::{header, quoted, single, value};

/// Source of the usage's totals, queried at each scrape.
pub trait UsageStatus: Debug + Send + Sync {
    /// Records that found no room.
    fn lost(&self) -> u64;

    /// Attempts to write to the database that failed.
    fn write_failures(&self) -> u64;

    /// Requests whose caller found no series of its own.
    fn folded(&self) -> u64;

    /// Hands over each API, class of status, and the sums of requests, bytes received and bytes sent.
    fn each(&self, tell: &mut dyn FnMut(Label, u8, [u64; 3]));
}

/// Writes the metrics.
pub(super) fn write(status: &dyn UsageStatus, labels: &Labels, out: &mut String) {
    let mut apis = Vec::new();
    status.each(&mut |api, class, sums| apis.push((api, class, sums)));
    let families = [
        ("weir_usage_requests_total", "Requests by API and class of status, as usage counts them"),
        ("weir_usage_received_bytes_total", "Bytes from clients, as usage counts them"),
        ("weir_usage_sent_bytes_total", "Bytes to clients, as usage counts them"),
    ];
    for (at, (name, help)) in families.into_iter().enumerate() {
        header(out, name, "counter", help);
        for (api, class, sums) in &apis {
            let _ = write!(out, "{name}{{api=");
            quoted(out, if *api == Label::OTHER { "(others)" } else { labels.text(*api) });
            let _ = write!(out, ",status=\"{class}xx\"}}");
            value(out, sums.get(at).copied().unwrap_or_default());
        }
    }
    single(
        out,
        "weir_usage_lost_total",
        "counter",
        "Requests that usage has no record of for lack of room",
        status.lost(),
    );
    let help = "Requests whose caller usage counts among others (usage.series)";
    single(out, "weir_usage_folded_total", "counter", help, status.folded());
    let help = "Attempts to write usage to its database that failed";
    single(out, "weir_usage_write_failures_total", "counter", help, status.write_failures());
}
