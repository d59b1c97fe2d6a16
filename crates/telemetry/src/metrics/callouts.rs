//! Callouts of plugins: `weir_callouts_total` and `weir_callout_duration_seconds`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::series::{BUCKETS_MS, Cell, Histogram, HistogramTotals};
use super::text::{header, labelled_by, value};

/// Outcome of a callout: the label `outcome` of `weir_callouts_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CalloutOutcome {
    /// The service answered, with any status.
    Answered,
    /// The service cannot be reached, or its answer is broken or too long.
    Failed,
    /// The answer did not arrive in time.
    TimedOut,
    /// Too many callouts were in progress.
    Refused,
    /// The waiting request has ended.
    Cancelled,
}

impl CalloutOutcome {
    /// All outcomes, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Answered, Self::Failed, Self::TimedOut, Self::Refused, Self::Cancelled];

    /// Text of the label.
    pub fn text(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Callouts of one plugin in one worker.
#[derive(Debug)]
pub(super) struct CalloutCells {
    pub(super) plugin: &'static str,
    outcomes: [Cell; CalloutOutcome::ALL.len()],
    durations: Histogram,
}

impl CalloutCells {
    pub(super) fn new(plugin: &'static str) -> Self {
        Self { plugin, outcomes: Default::default(), durations: Histogram::default() }
    }

    /// Counts a callout and its duration in microseconds. A refused callout has no duration.
    pub(super) fn record(&self, outcome: CalloutOutcome, took_us: u64) {
        if let Some(cell) = self.outcomes.get(outcome as usize) {
            cell.add(1);
        }
        if outcome != CalloutOutcome::Refused {
            self.durations.record(took_us);
        }
    }
}

#[derive(Default)]
struct Totals {
    outcomes: [u64; CalloutOutcome::ALL.len()],
    durations: HistogramTotals,
}

/// Writes the sums over all workers.
pub(super) fn write<'a>(cells: impl Iterator<Item = &'a Arc<CalloutCells>>, out: &mut String) {
    let mut plugins: BTreeMap<&'static str, Totals> = BTreeMap::new();
    for cells in cells {
        let totals = plugins.entry(cells.plugin).or_default();
        for (total, cell) in totals.outcomes.iter_mut().zip(&cells.outcomes) {
            *total = total.wrapping_add(cell.value());
        }
        totals.durations.add(&cells.durations);
    }
    if plugins.is_empty() {
        return;
    }
    let name = "weir_callouts_total";
    header(out, name, "counter", "Requests of plugins to services beside the exchange, by what became of them");
    for (plugin, totals) in &plugins {
        for (outcome, count) in CalloutOutcome::ALL.into_iter().zip(totals.outcomes) {
            labelled_by(out, name, &[("plugin", plugin), ("outcome", outcome.text())], count);
        }
    }
    let name = "weir_callout_duration_seconds";
    header(out, name, "histogram", "How long callouts took that were not refused");
    for (plugin, totals) in &plugins {
        let mut seen = 0;
        for (bucket, found) in totals.durations.buckets.iter().enumerate() {
            seen += found;
            let _ = write!(out, "{name}_bucket{{plugin=\"{plugin}\",le=\"");
            match BUCKETS_MS.get(bucket) {
                Some(bound) => {
                    let _ = write!(out, "{}", *bound as f64 / 1000.0);
                }
                None => out.push_str("+Inf"),
            }
            out.push_str("\"}");
            value(out, seen);
        }
        for (suffix, number) in [("sum", totals.durations.sum_us as f64 / 1e6), ("count", seen as f64)] {
            let _ = write!(out, "{name}_{suffix}{{plugin=\"{plugin}\"}}");
            value(out, number);
        }
    }
}
