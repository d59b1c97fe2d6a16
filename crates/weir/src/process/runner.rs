//! The runner of external plugins: a program that the gateway starts, starts again when it has ended, and ends at its own end.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

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
    /// Signalled by a change of either.
    changed: Condvar,
}

impl Runner {
    /// Starts the runner of the settings; `None` without one that this gateway starts.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn start(settings: &Settings) -> anyhow::Result<Option<Self>> {
        let runner = &settings.ext_plugin;
        let (Some(socket), "", Some((program, arguments))) =
            (socket(settings), runner.socket.as_str(), runner.command.split_first())
        else {
            return Ok(None);
        };
        let (program, arguments) = (program.clone(), arguments.to_vec());
        std::fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(folder())
            .context("cannot make a folder for the runner's socket")?;
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
        state.running().0 = pid(&first);
        let kept = Arc::clone(&state);
        let thread = thread::Builder::new().name("weir-runner".to_owned()).spawn(move || kept.keep(first, start))?;
        Ok(Some(Self { state, thread: Some(thread) }))
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

impl State {
    fn running(&self) -> MutexGuard<'_, (Option<Pid>, bool)> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the runner to end and starts it again, until it is to end for good.
    fn keep(&self, mut child: Child, start: impl Fn() -> anyhow::Result<Child>) {
        loop {
            // These threads end with the output.
            let _outputs = [child.stdout.take().map(log_lines), child.stderr.take().map(log_lines)];
            let status = child.wait();
            let mut running = self.running();
            running.0 = None;
            self.changed.notify_all();
            loop {
                let waited = self.changed.wait_timeout_while(running, PAUSE, |(_, ends)| !*ends);
                running = waited.unwrap_or_else(PoisonError::into_inner).0;
                if running.1 {
                    return;
                }
                match start() {
                    Ok(next) => {
                        tracing::warn!(ended = ?status.as_ref().ok(), "the runner of external plugins has ended: another one is started");
                        running.0 = pid(&next);
                        child = next;
                        break;
                    }
                    Err(error) => tracing::error!("the runner of external plugins has ended, and {error:#}"),
                }
            }
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let mut running = self.state.running();
        running.1 = true;
        self.state.changed.notify_all();
        let signal = |pid: Option<Pid>, signal| pid.map(|pid| kill_process(pid, signal));
        let _ = signal(running.0, Signal::TERM);
        let waited = self.state.changed.wait_timeout_while(running, PATIENCE, |(pid, _)| pid.is_some());
        let running = waited.unwrap_or_else(PoisonError::into_inner).0;
        let _ = signal(running.0, Signal::KILL);
        drop(running);
        if let Some(thread) = self.thread.take() {
            // The process that it waits for has ended.
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
