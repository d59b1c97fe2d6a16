//! Access log: one line for each answered request, to a file or to standard output.
//!
//! ```text
//! worker 0: LogWriter ──► ring ─┐
//! worker 1: LogWriter ──► ring ─┴── thread of the AccessLog ──► file
//! ```
//!
//! A worker renders its line and copies it into its own ring, without waiting, locks or system calls. The log's
//! thread polls the rings every few hundredths of a second while there is traffic and a few times a second while
//! there is none, is woken when a ring is half full, and writes all pending lines in one batch. If the disk or the
//! reader of standard output is too slow, the rings fill up; a line that does not fit is dropped as a whole and
//! counted ([`AccessLog::dropped`]).
//!
//! Lines of one worker are in order; lines of different workers are only roughly in order of time.

mod format;
mod sink;

pub use format::Format;

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use rtrb::{Consumer, Producer, RingBuffer};
use weir_expr::Source;

use format::Line;
pub(crate) use sink::Sink;

/// Options of an access log.
#[derive(Debug, Clone)]
pub struct AccessLogOptions {
    /// Destination of the lines.
    pub target: Target,
    /// Format of a line.
    pub format: Format,
    /// Capacity of each worker's ring in bytes, at least 4 KiB. One MiB holds some 2,500 lines.
    pub ring_bytes: usize,
    /// Permissions of a created file, reduced by the process's umask.
    pub mode: u32,
}

/// Destination of the lines of an access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file; it is created if missing and appended to.
    File(PathBuf),
}

/// An open access log.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
}

/// The access logs of a process, as far as they are not off.
#[derive(Debug, Clone, Default)]
pub struct AccessLogs {
    /// A line for each request.
    pub requests: Option<Arc<AccessLog>>,
    /// A line for each stream of a stream route.
    pub streams: Option<Arc<AccessLog>>,
}

impl AccessLogs {
    /// Those that are open, with the names of their settings.
    pub fn open(&self) -> impl Iterator<Item = (&'static str, &Arc<AccessLog>)> {
        let named = [("access_log", &self.requests), ("stream_access_log", &self.streams)];
        named.into_iter().filter_map(|(name, log)| Some((name, log.as_ref()?)))
    }
}

/// Log writer of one worker, created with [`AccessLog::writer`].
#[derive(Debug)]
pub struct LogWriter {
    shared: Arc<Shared>,
    ring: RefCell<Ring>,
}

const MIN_RING_BYTES: usize = 4096;

/// Capacity in bytes above which the line buffer is freed; only an absurdly long line exceeds it.
const KEPT_LINE_BYTES: usize = 64 * 1024;

/// Intervals at which the thread polls: the first after it found lines; the interval doubles up to the second.
const POLL: Duration = Duration::from_millis(20);
const IDLE_POLL: Duration = Duration::from_millis(320);

/// Longest time that dropping an [`AccessLog`] waits for the remaining lines to be written.
const DROP_LIMIT: Duration = Duration::from_secs(5);

impl AccessLog {
    /// Opens the target and starts the thread that writes to it.
    pub fn open(options: AccessLogOptions) -> io::Result<Arc<AccessLog>> {
        let shared = Arc::new(Shared {
            line: Line::compile(&options.format),
            ring_bytes: options.ring_bytes.max(MIN_RING_BYTES),
            arrivals: Mutex::default(),
            sink: Mutex::new(Sink::open("the access log", options.target, options.mode)?),
            dropped: Arc::default(),
            closing: AtomicBool::new(false),
            thread: OnceLock::new(),
            finished: Mutex::new(false),
            finish: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("weir-access-log".to_owned()).spawn(move || of_thread.run())?;
        shared.thread.get_or_init(|| thread.thread().clone());
        Ok(Arc::new(AccessLog { shared }))
    }

    /// Creates the writer of one worker.
    pub fn writer(&self) -> LogWriter {
        let (producer, consumer) = RingBuffer::new(self.shared.ring_bytes);
        lock(&self.shared.arrivals).push(consumer);
        let ring = Ring { producer, line: Vec::with_capacity(1024), woke: false };
        LogWriter { shared: Arc::clone(&self.shared), ring: RefCell::new(ring) }
    }

    /// Reopens the file's path after the file was moved away, and writes to the new file from then on. Lines under
    /// way go to either file; none is lost. If the path cannot be opened, the log keeps its present file. Does
    /// nothing for standard output.
    ///
    /// May wait for a write under way, so it should be called from the control thread.
    pub fn reopen(&self) -> io::Result<()> {
        lock(&self.shared.sink).reopen()
    }

    /// Number of lines that were not written because the ring was full, the target failed, or the log was closed.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Counter behind [`AccessLog::dropped`].
    pub(crate) fn dropped_counter(&self) -> &Arc<AtomicU64> {
        &self.shared.dropped
    }

    /// Writes every line logged before this call and ends the thread. Later lines are dropped and counted. Returns
    /// true if everything was written within `limit`; a blocked target (a pipe whose reader sleeps) can delay the
    /// writing indefinitely.
    pub fn close(&self, limit: Duration) -> bool {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake();
        let finished = lock(&self.shared.finished);
        let wait = self.shared.finish.wait_timeout_while(finished, limit, |finished| !*finished);
        *wait.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        if !self.close(DROP_LIMIT) {
            tracing::error!("the access log could not be written to its end");
        }
    }
}

impl LogWriter {
    /// Logs one line. If the ring has no room, the line is dropped and counted.
    pub fn write(&self, source: &dyn Source) {
        // Only a source that logs while it is being read could find the ring borrowed.
        let kept = self.ring.try_borrow_mut().is_ok_and(|mut ring| ring.write(&self.shared, source));
        if !kept {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A worker's end of its ring.
#[derive(Debug)]
struct Ring {
    producer: Producer<u8>,
    /// Line being rendered; reused for its capacity.
    line: Vec<u8>,
    /// True if the thread was woken for a half-full ring and has not emptied it since.
    woke: bool,
}

impl Ring {
    fn write(&mut self, shared: &Shared, source: &dyn Source) -> bool {
        if shared.closing.load(Ordering::Relaxed) {
            return false;
        }
        self.line.clear();
        shared.line.render(source, &mut self.line);
        let kept = self.producer.push_entire_slice(&self.line).is_ok();
        if self.line.capacity() > KEPT_LINE_BYTES {
            self.line = Vec::with_capacity(1024);
        }
        self.wake_when_half_full(shared);
        kept
    }

    fn wake_when_half_full(&mut self, shared: &Shared) {
        let half = shared.ring_bytes / 2;
        // Reading the consumer's position touches a cache line of the other core, so it is only read after half a
        // ring was written since the last time.
        if self.producer.cached_slots() >= half || self.producer.slots() >= half {
            self.woke = false;
        } else if !self.woke {
            self.woke = true;
            shared.wake();
        }
    }
}

/// State shared by workers, the log's thread and its owner.
#[derive(Debug)]
struct Shared {
    line: Line,
    ring_bytes: usize,
    /// New rings that the thread has not taken over yet. The thread owns all others, so a new worker need not wait
    /// for a write.
    arrivals: Mutex<Vec<Consumer<u8>>>,
    sink: Mutex<Sink>,
    dropped: Arc<AtomicU64>,
    closing: AtomicBool,
    thread: OnceLock<Thread>,
    finished: Mutex<bool>,
    finish: Condvar,
}

impl Shared {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Body of the log's thread.
    fn run(&self) {
        let mut rings = Vec::new();
        let mut batch = Vec::with_capacity(self.ring_bytes);
        let mut sleep = POLL;
        loop {
            // Read before the rings: lines logged before the log was closed are in the rings by now.
            let closing = self.closing.load(Ordering::Acquire);
            rings.append(&mut lock(&self.arrivals));
            let found = self.drain(&mut rings, &mut batch);
            if closing {
                break;
            }
            sleep = if found { POLL } else { (sleep * 2).min(IDLE_POLL) };
            thread::park_timeout(sleep);
        }
        *lock(&self.finished) = true;
        self.finish.notify_all();
    }

    /// Writes everything in the rings, and removes those whose worker is gone. Returns true if there were any lines.
    fn drain(&self, rings: &mut Vec<Consumer<u8>>, batch: &mut Vec<u8>) -> bool {
        let mut found = false;
        rings.retain_mut(|ring| {
            // Read before the ring: an abandoned ring receives no more lines.
            let abandoned = ring.is_abandoned();
            if let Ok(lines) = ring.read_chunk(ring.slots()) {
                let (first, second) = lines.as_slices();
                batch.extend_from_slice(first);
                batch.extend_from_slice(second);
                lines.commit_all();
            }
            found |= !batch.is_empty();
            // A ring holds complete lines, so a batch does too, and a batch never exceeds two rings.
            if batch.len() >= self.ring_bytes {
                self.write(batch);
            }
            !abandoned
        });
        self.write(batch);
        found
    }

    fn write(&self, batch: &mut Vec<u8>) {
        let lost = lock(&self.sink).write(batch);
        if lost > 0 {
            self.dropped.fetch_add(lost, Ordering::Relaxed);
        }
        batch.clear();
    }
}

/// Locks a mutex and ignores poisoning: a panic leaves none of this state half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Source for Nothing {
        fn variable(&self, _: &weir_expr::Variable) -> Option<weir_expr::Value<'_>> {
            None
        }
    }

    #[test]
    fn a_target_that_hangs_never_holds_up_a_worker() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("access.log");
        let log = AccessLog::open(AccessLogOptions {
            target: Target::File(path.clone()),
            format: Format::parse(&"x".repeat(99), false).0,
            ring_bytes: MIN_RING_BYTES,
            mode: 0o600,
        })
        .expect("a log");
        let writer = log.writer();
        let mut offered = 0;
        {
            let _hanging = lock(&log.shared.sink);
            // The thread takes at most one ring of lines before its write blocks; the ring holds as many again.
            let room = (2 * MIN_RING_BYTES / 100) as u64;
            while log.dropped() < 1000 {
                assert!(offered <= room + 1000, "{offered} lines offered, {} dropped", log.dropped());
                writer.write(&Nothing);
                offered += 1;
            }
            assert!(!log.close(Duration::from_millis(1)), "nothing can be written yet");
        }
        assert!(log.close(DROP_LIMIT));
        let text = std::fs::read_to_string(path).expect("a log");
        assert!(text.lines().all(|line| line.len() == 99), "a line is written whole or not at all");
        assert_eq!(text.lines().count() as u64 + log.dropped(), offered);
    }
}
