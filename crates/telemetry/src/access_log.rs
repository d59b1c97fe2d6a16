//! One line for each answered request, to a file or to standard output.
//!
//! ```text
//! worker 0: LogWriter ──► ring ─┐
//! worker 1: LogWriter ──► ring ─┴── thread of the AccessLog ──► file
//! ```
//!
//! A worker renders its line and copies it into a ring of its own; it never waits, takes no lock and makes no system
//! call for it. The log's thread looks into the rings every few hundredths of a second while there is traffic, a few
//! times a second while there is none, and at once when a ring is half full, and writes what it finds in one go. When
//! the disk or the reader of standard output is too slow the rings fill up; a line that does not fit is dropped whole
//! and counted ([`AccessLog::dropped`]).
//!
//! Lines of one worker stand in order; those of different workers are only roughly in order of time.

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
use sink::Sink;

/// Where lines go, what they look like and how many may wait.
#[derive(Debug, Clone)]
pub struct AccessLogOptions {
    /// Where the lines go.
    pub target: Target,
    /// What a line looks like.
    pub format: Format,
    /// Bytes of lines that may wait to be written, for each worker; at least 4 KiB. One MiB holds some 2,500 lines.
    pub ring_bytes: usize,
    /// The permissions of a file that is made, less the process's umask.
    pub mode: u32,
}

/// Where the lines of an access log go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file, which is created if need be and appended to.
    File(PathBuf),
}

/// An open access log.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
}

/// Where one worker logs. Make one for each worker with [`AccessLog::writer`].
#[derive(Debug)]
pub struct LogWriter {
    shared: Arc<Shared>,
    ring: RefCell<Ring>,
}

const MIN_RING_BYTES: usize = 4096;

/// A line buffer that grew beyond this is given back; only an absurdly long line gets there.
const KEPT_LINE_BYTES: usize = 64 * 1024;

/// How long the thread sleeps between two looks: the first after it found something, then twice as long each time.
const POLL: Duration = Duration::from_millis(20);
const IDLE_POLL: Duration = Duration::from_millis(320);

/// How long dropping an [`AccessLog`] waits for what is left to be written.
const DROP_LIMIT: Duration = Duration::from_secs(5);

impl AccessLog {
    /// Opens the target and starts the thread that writes to it.
    pub fn open(options: AccessLogOptions) -> io::Result<Arc<AccessLog>> {
        let shared = Arc::new(Shared {
            line: Line::compile(&options.format),
            ring_bytes: options.ring_bytes.max(MIN_RING_BYTES),
            arrivals: Mutex::default(),
            sink: Mutex::new(Sink::open(options.target, options.mode)?),
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

    /// A writer for one worker.
    pub fn writer(&self) -> LogWriter {
        let (producer, consumer) = RingBuffer::new(self.shared.ring_bytes);
        lock(&self.shared.arrivals).push(consumer);
        let ring = Ring { producer, line: Vec::with_capacity(1024), woke: false };
        LogWriter { shared: Arc::clone(&self.shared), ring: RefCell::new(ring) }
    }

    /// Opens the file's path anew, for a file that was moved away, and writes there from now on; lines on their way
    /// go to the one or the other, none is lost. When it cannot be opened the log stays with the file it has. Does
    /// nothing for standard output.
    ///
    /// May wait for a write that is under way, so call it from the control thread.
    pub fn reopen(&self) -> io::Result<()> {
        lock(&self.shared.sink).reopen()
    }

    /// Lines that were not written: the ring was full, the target failed, or the log was closed.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// The counter behind [`AccessLog::dropped`].
    pub(crate) fn dropped_counter(&self) -> &Arc<AtomicU64> {
        &self.shared.dropped
    }

    /// Writes every line that was logged before this call and ends the thread. Lines that are logged from now on are
    /// dropped and counted. Returns whether all was written within `limit`; a target that takes nothing (a pipe whose
    /// reader sleeps) can hold it up for ever.
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
    /// Logs one line. When it finds no room in the ring it is dropped and counted.
    pub fn write(&self, source: &dyn Source) {
        // Only a source that logs while it is read could find the ring borrowed.
        let kept = self.ring.try_borrow_mut().is_ok_and(|mut ring| ring.write(&self.shared, source));
        if !kept {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The worker's end of a ring.
#[derive(Debug)]
struct Ring {
    producer: Producer<u8>,
    /// The line being rendered; kept for its capacity.
    line: Vec<u8>,
    /// The thread was woken because the ring is half full, and has not emptied it since.
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
        // The reader's position is looked up only once half a ring went by since the last time: that cache line
        // belongs to the other core.
        if self.producer.cached_slots() >= half || self.producer.slots() >= half {
            self.woke = false;
        } else if !self.woke {
            self.woke = true;
            shared.wake();
        }
    }
}

/// What the workers, the thread and the owner of a log have in common.
#[derive(Debug)]
struct Shared {
    line: Line,
    ring_bytes: usize,
    /// Rings that the thread has not taken over yet; it owns the others, so that a new worker need not wait for a write.
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

    /// The log's thread.
    fn run(&self) {
        let mut rings = Vec::new();
        let mut batch = Vec::with_capacity(self.ring_bytes);
        let mut sleep = POLL;
        loop {
            // Read before the rings: what was logged before the log was closed is in them by now.
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

    /// Writes all that is in the rings now, and forgets those whose worker is gone. Returns whether there was anything.
    fn drain(&self, rings: &mut Vec<Consumer<u8>>, batch: &mut Vec<u8>) -> bool {
        let mut found = false;
        rings.retain_mut(|ring| {
            // Read before the ring: an abandoned ring gets no more lines.
            let abandoned = ring.is_abandoned();
            if let Ok(lines) = ring.read_chunk(ring.slots()) {
                let (first, second) = lines.as_slices();
                batch.extend_from_slice(first);
                batch.extend_from_slice(second);
                lines.commit_all();
            }
            found |= !batch.is_empty();
            // A ring holds whole lines, so a batch does too, and it never exceeds two rings.
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

/// Nothing here is left half done by a panic, so a poisoned lock is as good as any.
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
            // The thread takes at most one ring of lines with it before it hangs in its write; the ring holds another.
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
