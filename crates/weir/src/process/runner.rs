//! The runner of external plugins: a program that the gateway starts, starts again when it has ended, and ends at its own end.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use weir_config::Settings;

/// Pause before the runner is started again.
const PAUSE: Duration = Duration::from_secs(3);
/// Time that the runner has to end by itself.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most bytes of a line of its output in the log.
const MOST_LINE: u64 = 4096;

/// The socket of the runner: the one of the settings, or one of this process for the runner that it starts.
pub(crate) fn socket(settings: &Settings) -> Option<PathBuf> {
    let runner = &settings.ext_plugin;
    match (runner.socket.as_str(), runner.command.is_empty()) {
        ("", true) => None,
        ("", false) => Some(folder().join("runner.sock")),
        (path, _) => Some(path.into()),
    }
}

/// A folder of this process.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("weir-{}", std::process::id()))
}

/// A runner that is kept running until this is dropped.
#[derive(Debug)]
pub(crate) struct Runner {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// The process, and true once it is to end.
    running: Mutex<(Option<Pid>, bool)>,
    ends: Condvar,
}

impl Runner {
    /// Starts the runner of the settings; `None` without one that this gateway starts.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn start(settings: &Settings) -> anyhow::Result<Option<Self>> {
        let runner = &settings.ext_plugin;
        let Some(program) = runner.command.first().filter(|_| runner.socket.is_empty()).cloned() else {
            return Ok(None);
        };
        std::fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(folder())
            .context("cannot make a folder for the runner's socket")?;
        let arguments: Vec<String> = runner.command.iter().skip(1).cloned().collect();
        let socket = folder().join("runner.sock");
        let start = move || {
            // The socket of one that has ended.
            let _ = std::fs::remove_file(&socket);
            Command::new(&program)
                .args(&arguments)
                .env("APISIX_LISTEN_ADDRESS", format!("unix:{}", socket.display()))
                .env("APISIX_CONF_EXPIRE_TIME", weir_plugins::CONF_EXPIRE.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("ext_plugin.command: cannot start {program}"))
        };
        let first = start()?;
        let state = Arc::new(State::default());
        state.set(Some(&first));
        let kept = Arc::clone(&state);
        let thread = thread::Builder::new().name("weir-runner".to_owned()).spawn(move || kept.keep(first, start))?;
        Ok(Some(Self { state, thread: Some(thread) }))
    }
}

impl State {
    fn set(&self, child: Option<&Child>) {
        let pid = child.and_then(|child| i32::try_from(child.id()).ok()).and_then(Pid::from_raw);
        self.running.lock().unwrap_or_else(PoisonError::into_inner).0 = pid;
    }

    /// Waits for the runner to end and starts it again, until it is to end for good.
    fn keep(&self, mut child: Child, start: impl Fn() -> anyhow::Result<Child>) {
        loop {
            let outputs = [child.stdout.take().map(log_lines), child.stderr.take().map(log_lines)];
            let status = child.wait();
            self.set(None);
            // Output ends with the process, or goes on in one that it has started.
            drop(outputs);
            loop {
                let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = self.ends.wait_timeout_while(running, PAUSE, |(_, ends)| !*ends);
                if waited.is_ok_and(|(running, _)| running.1) {
                    return;
                }
                match start() {
                    Ok(next) => {
                        tracing::warn!(ended = ?status.as_ref().ok(), "the runner of external plugins has ended: another one is started");
                        self.set(Some(&next));
                        child = next;
                        break;
                    }
                    Err(error) => tracing::error!("the runner of external plugins has ended, and {error:#}"),
                }
            }
        }
    }

    /// Asks the runner to end; true if there is one.
    fn signal(&self, signal: Signal) -> bool {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.1 = true;
        self.ends.notify_all();
        running.0.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        self.state.signal(Signal::TERM);
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Instant::now() >= until {
                self.state.signal(Signal::KILL);
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        if let Some(thread) = self.thread.take() {
            // It ends with the process that it waits for.
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(folder());
    }
}

/// Puts the lines of an output into the log, on a thread of its own.
fn log_lines(output: impl Read + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("weir-runner-log".to_owned()).spawn(move || {
        let mut lines = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match lines.by_ref().take(MOST_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => tracing::info!("runner: {}", String::from_utf8_lossy(&line).trim_end()),
            }
        }
    })
}
