//! The gateway's own messages: `TIME LEVEL SOURCE: MESSAGE field=value …`, one a line.
//!
//! Logging puts a line into a bounded queue, which a thread of its own writes out, so that a stopped terminal or a full
//! disk blocks no worker. Lines that do not fit into the queue are dropped and counted, and the count is logged.

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
use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use weir_config::settings::{ErrorLog as Options, ErrorLogPath, LogLevel};

/// Maximum number of queued lines.
const QUEUE: usize = 4096;

/// Maximum length of a line in bytes. Longer lines are cut, because their text may come from a peer.
const MAX_LINE: usize = 8 * 1024;

/// The open log. Dropping the log waits up to 2 s for queued lines to be written.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    queue: Queue,
}

/// The queue to the writing thread.
#[derive(Clone, Debug)]
struct Queue {
    sender: SyncSender<Entry>,
    /// Level of the lines that this copy is for.
    level: Level,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Entry {
    Line(Level, Box<[u8]>),
    /// Request to write all entries before this one, to open the path again if `reopen` is set, and to send back the
    /// outcome.
    Barrier {
        reopen: bool,
        done: SyncSender<io::Result<()>>,
    },
}

impl ErrorLog {
    /// Opens the log and directs all messages of the process to it, panics included.
    pub(crate) fn start(options: &Options) -> io::Result<Self> {
        let log = Self::open(&options.path, options.mode.bits().into())?;
        let level = match options.level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        // Debug messages of libraries would bury the gateway's own.
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
        Ok(Self { queue: Queue { sender, level: Level::ERROR, dropped } })
    }

    /// Opens the log's path again, after its file was moved away. Lines logged before go to the old file. Waits at most
    /// `limit` for the writing thread.
    pub(crate) fn reopen(&self, limit: Duration) -> io::Result<()> {
        self.pass_barrier(true, limit)
    }

    /// Waits until all lines logged before are written, at most for `limit`.
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
        // No channel is left to report a log that cannot be written.
        let _ = self.flush(LIMIT);
    }
}

/// Writes one line per call, as `tracing-subscriber` does.
impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let entry = Entry::Line(self.level, cut(line).into());
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

    fn make_writer_for(&self, message: &Metadata<'_>) -> Self {
        Self { level: *message.level(), ..self.clone() }
    }
}

fn cut(line: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b" ...\n";
    match line.get(..MAX_LINE - MARK.len()) {
        Some(start) if line.len() > MAX_LINE => [start, MARK].concat(),
        _ => line.to_vec(),
    }
}

/// Destination of the lines.
#[derive(Debug)]
enum Sink {
    Stderr,
    /// A file, with the permissions for creating it.
    File(PathBuf, File, u32),
}

impl Sink {
    fn open(path: &ErrorLogPath, mode: u32) -> io::Result<Self> {
        match path {
            ErrorLogPath::Stderr => Ok(Self::Stderr),
            ErrorLogPath::File(path) => Ok(Self::File(path.clone(), append(path, mode)?, mode)),
        }
    }

    /// Opens the path again. On failure the file that is open stays in use.
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

/// Body of the writing thread. Ends when the log and all its queues are dropped.
fn write_lines(mut sink: Sink, entries: &Receiver<Entry>, dropped: &AtomicU64) {
    while let Ok(entry) = entries.recv() {
        match entry {
            Entry::Line(level, line) => {
                weir_telemetry::messages::publish(level, &line);
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
                // The requester may have given up.
                let _ = done.try_send(outcome);
            }
        }
    }
}

/// Logs a panic, which ends one task or one connection and would otherwise leave no trace in the log.
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
        // More than the pipe and the queue hold together; a blocking writer would never finish.
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
