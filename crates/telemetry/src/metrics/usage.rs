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

/// Source of the totals of exports of usage, queried at each scrape.
pub trait UsageExportStatus: Debug + Send + Sync {
    /// Hands over each export: its name, the rows that were sent, attempts that failed, and the time in seconds since 1970
    /// at which everything was sent.
    fn each(&self, tell: &mut dyn FnMut(&str, [u64; 3]));
}

/// Source of the totals of alerts, queried at each scrape.
pub trait AlertStatus: Debug + Send + Sync {
    /// Messages that were sent, attempts that failed, and messages that were given up.
    fn counts(&self) -> [u64; 3];
}

/// Writes the metrics of alerts.
pub(super) fn write_alerts(status: &dyn AlertStatus, out: &mut String) {
    let [sent, failed, dropped] = status.counts();
    single(out, "weir_alerts_sent_total", "counter", "Messages of alerts that were sent", sent);
    single(out, "weir_alert_failures_total", "counter", "Attempts to send a message of an alert that failed", failed);
    single(out, "weir_alerts_dropped_total", "counter", "Messages of alerts that were given up", dropped);
}

/// Writes the metrics of exports.
pub(super) fn write_exports(status: &dyn UsageExportStatus, out: &mut String) {
    let families = [
        ("weir_usage_exported_rows_total", "counter", "Rows of usage that were sent, by export"),
        ("weir_usage_export_failures_total", "counter", "Attempts to send usage that failed, by export"),
        ("weir_usage_export_complete_seconds", "gauge", "Time at which all usage had been sent, in seconds since 1970"),
    ];
    for (at, (name, kind, help)) in families.into_iter().enumerate() {
        header(out, name, kind, help);
        status.each(&mut |export, numbers| {
            let _ = write!(out, "{name}{{export=");
            quoted(out, export);
            out.push('}');
            value(out, numbers.get(at).copied().unwrap_or_default());
        });
    }
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
