//! Metrics of the reports of plugins: `weir_reports_total` and `weir_reports_pending`.

use std::sync::atomic::Ordering::Relaxed;

use super::text::{header, labelled, labelled_by};
use crate::reports;

pub(super) fn write(out: &mut String) {
    let plugins = reports::counts();
    if plugins.is_empty() {
        return;
    }
    let name = "weir_reports_total";
    header(out, name, "counter", "Records that plugins have reported, by what became of them");
    for (plugin, counts) in &plugins {
        let outcomes = [("sent", &counts.sent), ("dropped", &counts.dropped), ("spilled", &counts.spilled)];
        for (outcome, count) in outcomes {
            labelled_by(out, name, &[("plugin", plugin), ("outcome", outcome)], count.load(Relaxed));
        }
    }
    let name = "weir_reports_retries_total";
    header(out, name, "counter", "Batches of records that were tried again");
    for (plugin, counts) in &plugins {
        labelled(out, name, "plugin", plugin, counts.retries.load(Relaxed));
    }
    let name = "weir_reports_pending";
    header(out, name, "gauge", "Records that wait to be sent");
    for (plugin, counts) in &plugins {
        labelled(out, name, "plugin", plugin, counts.pending.load(Relaxed));
    }
}
