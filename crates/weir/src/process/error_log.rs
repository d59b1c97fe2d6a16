//! The gateway's own messages: `TIME LEVEL SOURCE: MESSAGE field=value …`, one a line.
//!
//! Whoever logs only puts a line into a bounded queue. A thread writes, so that a terminal that was stopped or a disk
//! that is full holds up no worker; lines that find the queue full are counted, and the count is logged.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use weir_config::settings::{ErrorLog as Options, ErrorLogPath, LogLevel};

/// Lines that may wait to be written.
const QUEUE: usize = 4096;

/// A longer line is cut: what is logged may come from a peer.
const MAX_LINE: usize = 8 * 1024;

/// The open log. Dropping it waits a moment for what is left to be written.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    queue: Queue,
}

/// The way to the thread that writes.
#[derive(Clone, Debug)]
struct Queue {
    sender: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Entry {
    Line(Box<[u8]>),
    /// Everything before this is written; then the path is opened again if asked for, and the outcome sent back.
    Barrier {
        reopen: bool,
        done: SyncSender<io::Result<()>>,
    },
}

impl ErrorLog {
    /// Opens the log and sends all messages of the process there from now on, panics too.
    pub(crate) fn start(options: &Options) -> io::Result<Self> {
        let log = Self::open(&options.path, options.mode.bits().into())?;
        let level = match options.level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        // What libraries find worth a debug message would bury the gateway's own.
        let levels = Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("weir", level);
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(log.queue.clone());
        let _ = tracing_subscriber::registry().with(lines).with(levels).try_init();
        std::panic::set_hook(Box::new(log_panic));
        Ok(log)
    }

    fn open(path: &ErrorLogPath, mode: u32) -> io::Result<Self> {
        let sink = Sink::open(path, mode)?;
        let (sender, receiver) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let of_thread = Arc::clone(&dropped);
        thread::Builder::new()
            .name("weir-error-log".to_owned())
            .spawn(move || write_lines(sink, &receiver, &of_thread))?;
        Ok(Self { queue: Queue { sender, dropped } })
    }

    /// Opens a file's path again, after its file was moved away. Lines logged before go to the old file. Waits for the
    /// thread that writes, at most for `limit`.
    pub(crate) fn reopen(&self, limit: Duration) -> io::Result<()> {
        self.pass_barrier(true, limit)
    }

    /// Waits until everything logged before is written, at most for `limit`.
    fn flush(&self, limit: Duration) -> io::Result<()> {
        self.pass_barrier(false, limit)
    }

    fn pass_barrier(&self, reopen: bool, limit: Duration) -> io::Result<()> {
        const RETRY: Duration = Duration::from_millis(5);
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the log cannot be written at the moment");
        let until = Instant::now() + limit;
        let (done, outcome) = sync_channel(1);
        let mut entry = Entry::Barrier { reopen, done };
        while let Err(refused) = self.queue.sender.try_send(entry) {
            match refused {
                TrySendError::Full(back) if Instant::now() < until => entry = back,
                _ => return Err(late()),
            }
            thread::sleep(RETRY);
        }
        outcome.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_else(|_| Err(late()))
    }
}

impl Drop for ErrorLog {
    fn drop(&mut self) {
        const LIMIT: Duration = Duration::from_secs(2);
        // There is nowhere left to tell that the log cannot be written.
        let _ = self.flush(LIMIT);
    }
}

/// One line on its way; `tracing-subscriber` writes each in a single call.
impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let entry = Entry::Line(cut(line).into());
        if self.sender.try_send(entry).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Queue {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

fn cut(line: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b" ...\n";
    match line.get(..MAX_LINE - MARK.len()) {
        Some(start) if line.len() > MAX_LINE => [start, MARK].concat(),
        _ => line.to_vec(),
    }
}

/// Where the lines go.
#[derive(Debug)]
enum Sink {
    Stderr,
    /// With the permissions of one that is made.
    File(PathBuf, File, u32),
}

impl Sink {
    fn open(path: &ErrorLogPath, mode: u32) -> io::Result<Self> {
        match path {
            ErrorLogPath::Stderr => Ok(Self::Stderr),
            ErrorLogPath::File(path) => Ok(Self::File(path.clone(), append(path, mode)?, mode)),
        }
    }

    /// A path that cannot be opened leaves the file that is open in use.
    fn reopen(&mut self) -> io::Result<()> {
        if let Self::File(path, file, mode) = self {
            *file = append(path, *mode)?;
        }
        Ok(())
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().write_all(text),
            Self::File(_, file, _) => file.write_all(text),
        }
    }
}

fn append(path: &PathBuf, mode: u32) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(mode).open(path)
}

/// The thread: ends when the log and all its queues are gone.
fn write_lines(mut sink: Sink, entries: &Receiver<Entry>, dropped: &AtomicU64) {
    while let Ok(entry) = entries.recv() {
        match entry {
            Entry::Line(line) => {
                if sink.write(&line).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let lost = dropped.swap(0, Ordering::Relaxed);
                let note = format!("{lost} messages before this line were lost: the log could not be written\n");
                if lost > 0 && sink.write(note.as_bytes()).is_err() {
                    dropped.fetch_add(lost, Ordering::Relaxed);
                }
            }
            Entry::Barrier { reopen, done } => {
                let outcome = if reopen { sink.reopen() } else { Ok(()) };
                // Whoever asked may have given up.
                let _ = done.try_send(outcome);
            }
        }
    }
}

/// A panic ends one task or one connection; its message has to be found in the log.
fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let thread = thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let message = panic.payload_as_str().unwrap_or("no message");
    let backtrace = std::backtrace::Backtrace::capture();
    if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
        tracing::error!(thread, place, %backtrace, "panic: {message}");
    } else {
        tracing::error!(thread, place, "panic: {message}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::time::Duration;

    use weir_config::settings::ErrorLogPath;

    use super::{ErrorLog, MAX_LINE, QUEUE, cut};

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_moved_file_keeps_what_was_logged_before_it_was_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("error.log"), dir.path().join("error.log.1"));
        let log = ErrorLog::open(&ErrorLogPath::File(path.clone()), 0o600).unwrap();
        let mut queue = log.queue.clone();
        queue.write_all(b"one\n").unwrap();
        log.flush(LIMIT).unwrap();
        fs::rename(&path, &old).unwrap();
        queue.write_all(b"two\n").unwrap();
        log.reopen(LIMIT).unwrap();
        queue.write_all(b"three\n").unwrap();
        drop(log);
        assert_eq!(fs::read_to_string(&old).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
    }

    #[test]
    fn a_log_that_nobody_reads_loses_lines_and_says_how_many() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        let log = ErrorLog::open(&ErrorLogPath::File(pipe), 0o600).unwrap();
        let mut queue = log.queue.clone();
        // More than the pipe and the queue hold together; a writer that waited would never get to the end.
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        for _ in 0..QUEUE + 1024 {
            queue.write_all(&line).unwrap();
        }
        assert!(queue.dropped.load(std::sync::atomic::Ordering::Relaxed) > 0);
        let lines = std::thread::spawn(move || {
            use std::io::{BufRead, BufReader};
            BufReader::new(reader).lines().map(Result::unwrap).find(|line| line.contains("were lost"))
        });
        queue.write_all(b"last\n").unwrap();
        assert!(lines.join().unwrap().unwrap().starts_with(|c: char| c.is_ascii_digit()));
    }

    #[test]
    fn a_long_line_is_cut() {
        assert_eq!(cut(b"short\n"), b"short\n");
        let long = cut(&[b'x'; 3 * MAX_LINE]);
        assert_eq!(long.len(), MAX_LINE);
        assert!(long.ends_with(b"x ...\n"));
    }
}
