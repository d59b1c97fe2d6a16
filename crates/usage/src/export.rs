//! Usage on its way to other databases: sums by the minute, read from usage.db and handed to a [`Sink`].
//!
//! usage.db is the queue, so nothing is lost while a target is away, or with a process that is killed. A minute is handed
//! over whole, and anew when its sums have changed since: a sink replaces what it has of that minute and this gateway, so
//! nothing counts twice.

mod progress;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::progress::Progress;
use crate::block::Slots;
use crate::database::{Database, Level, UsageError};

/// Minutes for which sums may still change: those that wait in memory while usage.db cannot be written to.
const UNSETTLED: u64 = 65;
/// Minutes that are read at once.
const CHUNK: u64 = 60;
/// Rows that are handed over at once, unless one minute has more.
const MOST_ROWS: usize = 10_000;

/// Sums of one minute, in full.
#[derive(Debug, Clone, PartialEq)]
pub struct Minute {
    /// Its beginning, in seconds since 1970.
    pub start: u64,
    /// Its rows, each with other dimensions.
    pub rows: Vec<Row>,
}

/// Sums of requests that have the same dimensions.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// API, route, consumer, key and plan; see [`Row::DIMENSIONS`].
    pub dimensions: [Arc<str>; 5],
    /// The first digit of the status, 1 to 5.
    pub class: u8,
    /// Requests, bytes received and sent, microseconds of latency, and those of upstreams; see [`Row::SUMS`].
    pub sums: [u64; 5],
    /// Microseconds of latency that 50, 95 and 99 percent of the requests do not exceed; see [`Row::PERCENTILES`].
    pub percentiles: [u64; 3],
}

impl Row {
    /// Names of the dimensions.
    pub const DIMENSIONS: [&'static str; 5] = crate::table::DIMENSIONS;
    /// Names of the sums.
    pub const SUMS: [&'static str; 5] = ["requests", "bytes_received", "bytes_sent", "latency_us", "upstream_us"];
    /// Names of the percentiles.
    pub const PERCENTILES: [&'static str; 3] = ["p50_us", "p95_us", "p99_us"];
}

/// A place that sums are sent to.
pub trait Sink: Send {
    /// Puts minutes in the place of what is there of them from this gateway. Called by one thread, and may take its time.
    ///
    /// # Errors
    /// The reason why not all of it is there. The same minutes come again.
    fn put(&mut self, minutes: &[Minute]) -> Result<(), String>;
}

/// Options of an export.
pub struct ExportOptions {
    /// Name of the target. Progress is kept under it.
    pub name: String,
    /// The database of the usage, usage.db.
    pub usage: PathBuf,
    /// The database of what has been handed over, shared by all targets.
    pub progress: PathBuf,
    /// Pause between two looks.
    pub interval: Duration,
    /// Called by the thread at its start, for its priority.
    pub at_start: Box<dyn FnOnce() + Send>,
}

/// The thread that hands over to one target.
#[derive(Debug)]
pub struct Export {
    shared: Arc<Shared>,
    thread: Thread,
}

/// Totals of an export, for metrics.
#[derive(Debug, Default)]
pub struct ExportTotals {
    /// Attempts that failed.
    pub failures: AtomicU64,
    /// Rows that were handed over.
    pub rows: AtomicU64,
    /// Time of the last round in which everything was handed over, in seconds since 1970.
    pub complete: AtomicU64,
}

#[derive(Debug, Default)]
struct Shared {
    totals: Arc<ExportTotals>,
    closing: AtomicBool,
    finished: Mutex<bool>,
    finish: Condvar,
}

impl Export {
    /// Starts the thread.
    ///
    /// # Errors
    /// The progress cannot be read, or the thread not be started.
    pub fn start(options: ExportOptions, sink: Box<dyn Sink>) -> Result<Self, UsageError> {
        let ExportOptions { name, usage, progress, interval, at_start } = options;
        let progress = Progress::open(&progress, &name)?;
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let mut exporter = Exporter { name, usage, progress, sink, is_failing: false };
        let started = thread::Builder::new().name("weir-usage-exp".to_owned()).spawn(move || {
            at_start();
            exporter.run(&of_thread, interval);
        });
        let thread = started.map_err(|error| UsageError::Thread(error.to_string()))?.thread().clone();
        Ok(Self { shared, thread })
    }

    /// Sums of all that has been handed over.
    #[must_use]
    pub fn totals(&self) -> Arc<ExportTotals> {
        Arc::clone(&self.shared.totals)
    }

    /// Asks the thread for a last round and its end, without a wait.
    pub fn end(&self) {
        self.shared.closing.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Ends the thread after a last round. Returns false if that takes longer than `limit`: what is missing is handed over
    /// by the next process.
    pub fn close(&self, limit: Duration) -> bool {
        self.end();
        let finished = self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.shared.finish.wait_timeout_while(finished, limit, |finished| !*finished);
        *wait.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// State of the thread.
struct Exporter {
    name: String,
    usage: PathBuf,
    progress: Progress,
    sink: Box<dyn Sink>,
    /// True if the last round failed, which is logged once.
    is_failing: bool,
}

impl Exporter {
    fn run(&mut self, shared: &Shared, interval: Duration) {
        loop {
            let is_last = shared.closing.load(Ordering::Acquire);
            match self.round(now_s() / 60, &shared.totals) {
                Ok(()) => {
                    shared.totals.complete.store(now_s(), Ordering::Relaxed);
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(export = self.name, "usage can be exported again");
                    }
                }
                Err(error) => {
                    shared.totals.failures.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::error!(export = self.name, error, "usage cannot be exported; that is tried again");
                    }
                }
            }
            if is_last {
                break;
            }
            if !shared.closing.load(Ordering::Acquire) {
                thread::park_timeout(interval);
            }
        }
        *shared.finished.lock().unwrap_or_else(PoisonError::into_inner) = true;
        shared.finish.notify_all();
    }

    /// Hands over all minutes that have changed, the oldest first.
    fn round(&mut self, now: u64, totals: &ExportTotals) -> Result<(), String> {
        let database = Database::open_to_read(&self.usage).map_err(|error| error.to_string())?;
        let mut from = self.progress.settled();
        while let Some(start) = database.next_minute(from).map_err(|error| error.to_string())?
            && start <= now
        {
            let end = (start / CHUNK + 1) * CHUNK;
            let minutes = minutes_of(&database, start..end).map_err(|error| error.to_string())?;
            let changed = |minute: &Minute| self.progress.handed_over(minute.start / 60) != requests(minute);
            let mut batch: Vec<Minute> = Vec::new();
            let mut rows = 0;
            for minute in minutes.into_iter().filter(changed).collect::<Vec<_>>() {
                if rows > 0 && rows + minute.rows.len() > MOST_ROWS {
                    self.hand_over(&std::mem::take(&mut batch), totals)?;
                    rows = 0;
                }
                rows += minute.rows.len();
                batch.push(minute);
            }
            self.hand_over(&batch, totals)?;
            from = end;
            self.progress.settle(from.min(now.saturating_sub(UNSETTLED))).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn hand_over(&mut self, minutes: &[Minute], totals: &ExportTotals) -> Result<(), String> {
        if minutes.is_empty() {
            return Ok(());
        }
        self.sink.put(minutes)?;
        let rows: usize = minutes.iter().map(|minute| minute.rows.len()).sum();
        totals.rows.fetch_add(rows as u64, Ordering::Relaxed);
        let done = minutes.iter().map(|minute| (minute.start / 60, requests(minute)));
        self.progress.record(done).map_err(|error| error.to_string())
    }
}

/// Requests of a minute, by which a change of its sums is seen.
fn requests(minute: &Minute) -> u64 {
    minute.rows.iter().map(|row| row.sums[0]).sum()
}

/// The minutes of a range that have sums.
fn minutes_of(database: &Database, range: std::ops::Range<u64>) -> Result<Vec<Minute>, UsageError> {
    let mut minutes: BTreeMap<u64, Slots> = BTreeMap::new();
    database.read(Level::Minute, range.clone(), true, |start, block| {
        let mut slots = Slots::new();
        block.add_to(&mut slots, |slot| slot)?;
        for (series, cells) in slots {
            for (slot, cell) in cells {
                let minute = start + u64::from(slot);
                if range.contains(&minute) {
                    let to = minutes.entry(minute).or_default();
                    to.entry(series.clone()).or_default().entry(0).or_default().merge(&cell);
                }
            }
        }
        Ok(())
    })?;
    let row = |(series, cells): (crate::table::NamedSeries, BTreeMap<u8, crate::table::Cell>)| {
        let cell = cells.into_values().next().unwrap_or_default();
        let percentile = |percent: f64| cell.latencies.percentile(percent).round() as u64;
        Row {
            dimensions: series.values,
            class: series.class,
            sums: [cell.requests, cell.received, cell.sent, cell.latency, cell.upstream],
            percentiles: [percentile(50.0), percentile(95.0), percentile(99.0)],
        }
    };
    let minute =
        |(minute, slots): (u64, Slots)| Minute { start: minute * 60, rows: slots.into_iter().map(row).collect() };
    Ok(minutes.into_iter().map(minute).collect())
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl std::fmt::Debug for ExportOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportOptions").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
