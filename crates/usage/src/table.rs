//! Sums by series, with a bound on the number of series.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::histogram::Histogram;

/// Name that stands for whatever found no series of its own.
pub(crate) const OTHERS: &str = "(others)";

/// Dimensions of a series that have names, in the order in which blocks hold them.
pub(crate) const DIMENSIONS: [&str; 5] = ["api", "route", "consumer", "key", "plan"];
/// The dimensions of callers, which are the first to be given up: anybody may make as many of them as there are keys.
pub(crate) const CALLER: std::ops::Range<usize> = 2..5;

/// One value of each dimension, and a class of status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Series<T> {
    /// By position in [`DIMENSIONS`].
    pub(crate) values: [T; DIMENSIONS.len()],
    /// The first digit of the status, 1 to 5.
    pub(crate) class: u8,
}

/// A series with its names.
pub(crate) type NamedSeries = Series<Arc<str>>;

/// Sums of the requests of one series in one interval.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) requests: u64,
    /// Bytes from clients.
    pub(crate) received: u64,
    /// Bytes to clients.
    pub(crate) sent: u64,
    /// Microseconds.
    pub(crate) latency: u64,
    /// Microseconds.
    pub(crate) upstream: u64,
    pub(crate) latencies: Histogram,
}

impl Cell {
    pub(crate) fn merge(&mut self, other: &Self) {
        let Self { requests, received, sent, latency, upstream, ref latencies } = *other;
        self.add(&Numbers { requests, received, sent, latency, upstream, counts: latencies.counts() });
    }

    pub(crate) fn add(&mut self, numbers: &Numbers<'_>) {
        self.requests = self.requests.saturating_add(numbers.requests);
        self.received = self.received.saturating_add(numbers.received);
        self.sent = self.sent.saturating_add(numbers.sent);
        self.latency = self.latency.saturating_add(numbers.latency);
        self.upstream = self.upstream.saturating_add(numbers.upstream);
        self.latencies.merge(numbers.counts);
    }
}

/// The content of a cell, with a histogram that lies elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers<'a> {
    pub(crate) requests: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) latency: u64,
    pub(crate) upstream: u64,
    pub(crate) counts: &'a [(u16, u64)],
}

/// Cells by series.
#[derive(Debug, Clone)]
pub(crate) struct Table<T> {
    pub(crate) cells: HashMap<Series<T>, Cell>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { cells: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash + Ord> Table<T> {
    /// The cell of a series.
    pub(crate) fn cell(&mut self, series: Series<T>) -> &mut Cell {
        self.cells.entry(series).or_default()
    }

    /// Leaves `most` series at most with callers of their own: those with the most requests. The others are added up by
    /// API and route; where those are more than `most` as well, into one series for each class of status. Returns the
    /// requests that lost their series.
    pub(crate) fn fold(&mut self, most: usize, others: &T) -> u64 {
        let callers = |series: &Series<T>| series.values.get(CALLER).is_some_and(|of| of.iter().any(|v| v != others));
        let folded = self.fold_those(most, callers, |series| {
            series.values.get_mut(CALLER).unwrap_or_default().fill(others.clone());
        });
        self.fold_those(
            most.saturating_mul(2),
            |series| series.values.iter().any(|value| value != others),
            |series| {
                series.values.fill(others.clone());
            },
        );
        folded
    }

    fn fold_those(&mut self, most: usize, may: impl Fn(&Series<T>) -> bool, change: impl Fn(&mut Series<T>)) -> u64 {
        let mut candidates: Vec<_> =
            self.cells.iter().filter(|(series, _)| may(series)).map(|(s, cell)| (cell.requests, s.clone())).collect();
        if candidates.len() <= most {
            return 0;
        }
        // The series itself decides between equals, so that the outcome does not depend on the order of a hash table.
        candidates.sort_unstable_by(|(one, of_one), (two, of_two)| two.cmp(one).then_with(|| of_one.cmp(of_two)));
        let mut requests = 0;
        for (_, mut series) in candidates.drain(most..) {
            let Some(cell) = self.cells.remove(&series) else { continue };
            requests += cell.requests;
            change(&mut series);
            self.cell(series).merge(&cell);
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(api: &str, consumer: &str) -> NamedSeries {
        Series { values: [api, api, consumer, "", ""].map(Arc::from), class: 2 }
    }

    #[test]
    fn the_busiest_callers_keep_their_series_and_no_request_is_lost() {
        let mut table = Table::default();
        for number in 0..100u64 {
            let cell = table.cell(series(if number % 2 == 0 { "a" } else { "b" }, &format!("c{number}")));
            cell.requests = number + 1;
            cell.latencies.add(1, number + 1);
        }
        let folded = table.fold(10, &OTHERS.into());
        assert_eq!(folded, (1..=90).sum::<u64>());
        assert_eq!(table.cells.len(), 12);
        for number in 90..100u64 {
            let api = if number % 2 == 0 { "a" } else { "b" };
            assert_eq!(table.cells[&series(api, &format!("c{number}"))].requests, number + 1);
        }
        let total = |api: &str| -> u64 {
            table.cells.iter().filter(|(series, _)| &*series.values[0] == api).map(|(_, cell)| cell.requests).sum()
        };
        assert_eq!((total("a"), total("b")), (2500, 2550), "APIs keep their sums");
    }

    #[test]
    fn more_routes_than_series_end_in_one_of_others() {
        let mut table = Table::default();
        for number in 0..100 {
            table.cell(series(&format!("api{number}"), "jack")).requests = 1;
        }
        table.fold(10, &OTHERS.into());
        // Ten with their caller, ten without, and all others.
        assert_eq!(table.cells.len(), 21);
        assert_eq!(table.cells.values().map(|cell| cell.requests).sum::<u64>(), 100);
    }
}
