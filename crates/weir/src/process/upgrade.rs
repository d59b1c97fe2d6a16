//! Upgrade: a new process of the program takes over from this one.
//!
//! The new process runs the file that is now at the path of this process's program, with the same arguments. The new
//! process inherits all listening sockets, so that no connection is refused, and reports when it serves. Until then this
//! process serves as before. A new process that fails or takes too long is killed, and the reason is logged. If this
//! process is killed meanwhile, the new one ends with it, so that no socket stays open without a server.

use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use weir_proxy::DataPlane;

use crate::process::error_log::ErrorLog;
use crate::process::handover::{self, Channel, Inheritance, Outcome, SharedFiles};
use crate::process::inherited::Listening;
use crate::process::keeper::{Keeper, Keeping, Prepared};
use crate::process::systemd::{self, NotifyState};
use crate::stored::data_dir::{Lent, WriteRight};

/// The upgrade in progress, and the resources that an upgrade needs.
pub(crate) struct Upgrades<'a> {
    program: Program,
    limit: Duration,
    listening: Listening,
    keeping: &'a Keeping,
    /// The right to write to the store, if there is a store.
    right: Option<WriteRight>,
    files: SharedFiles,
    under_way: Option<UnderWay>,
    /// Evidence that the store is lent to a new process that serves, so that this one makes no more changes.
    lent: Option<Lent>,
}

/// A new process that is starting.
struct UnderWay {
    starting: Pin<Box<dyn Future<Output = anyhow::Result<Successor>>>>,
    prepared: Prepared,
    /// True once the new process needs the store.
    wanted: watch::Receiver<bool>,
    /// Evidence that the store is lent to the new process. This process makes no changes meanwhile.
    lent: Option<Lent>,
}

/// A completed handover: another process serves.
#[derive(Debug)]
pub(crate) struct HandedOver {
    /// The task of this process, if it keeps running.
    pub(crate) keeper: Option<Keeper>,
    /// The channel to the new process, which makes no change before this end is closed.
    pub(crate) channel: Channel,
}

impl<'a> Upgrades<'a> {
    /// Prepares for upgrades. `limit` is the time limit for a new process to serve.
    pub(crate) fn new(
        program: Program,
        limit: Duration,
        listening: Listening,
        keeping: &'a Keeping,
        right: Option<WriteRight>,
        files: SharedFiles,
    ) -> Self {
        Self { program, limit, listening, keeping, right, files, under_way: None, lent: None }
    }

    /// Starts a new process, unless one is starting already.
    pub(crate) fn begin(&mut self, data_plane: &DataPlane) {
        if let Some(under_way) = &mut self.under_way {
            under_way.prepared.forget(Signal::USR2);
            tracing::warn!("SIGUSR2 ignored: an upgrade is in progress");
            return;
        }
        let prepared = self.listening.pass_on(data_plane).map_err(anyhow::Error::from).and_then(|mut inheritance| {
            let prepared = self.keeping.prepare(&mut inheritance)?;
            inheritance.files = *self.files.lock().unwrap_or_else(PoisonError::into_inner);
            Ok((inheritance, prepared))
        });
        match prepared {
            Ok((inheritance, prepared)) => {
                tracing::info!(program = %self.program, "SIGUSR2: starting a new process to take over");
                systemd::notify(&[NotifyState::Status("starting a new process to take over")]);
                let (want, wanted) = watch::channel(false);
                let starting = Box::pin(start(self.program.clone(), inheritance, self.limit, want));
                self.under_way = Some(UnderWay { starting, prepared, wanted, lent: None });
            }
            Err(error) => refused(&error),
        }
    }

    /// Waits for a new process that serves; `None` if it has failed.
    pub(crate) async fn handed_over(&mut self, error_log: &Arc<ErrorLog>) -> Option<HandedOver> {
        let Some(under_way) = &mut self.under_way else { return pending().await };
        let outcome = loop {
            let UnderWay { starting, wanted, lent, .. } = &mut *under_way;
            let lend = async {
                match &self.right {
                    Some(right) if lent.is_none() && wanted.wait_for(|wanted| *wanted).await.is_ok() => {
                        right.lend().await
                    }
                    _ => pending().await,
                }
            };
            tokio::select! {
                outcome = starting.as_mut() => break outcome,
                now = lend => *lent = Some(now),
            }
        };
        let UnderWay { prepared, lent, wanted, .. } = self.under_way.take()?;
        let successor = match outcome {
            Ok(successor) => successor,
            Err(error) => {
                refused(&error);
                // A new process may end while the store is still being lent to it.
                let asked = *wanted.borrow();
                match (lent, &self.right) {
                    (Some(lent), _) => lent.take_back(),
                    (None, Some(right)) if asked => right.lend().await.take_back(),
                    _ => {}
                }
                return None;
            }
        };
        // Waiting changes are refused once the store is closed, because another process has taken over.
        self.lent = lent;
        let (process, took_ms) = (successor.process.id(), successor.took.as_millis() as u64);
        tracing::info!(
            process,
            version = successor.version,
            took_ms,
            "a new process serves; this one finishes its requests in flight"
        );
        // The new process serves, even if this step fails.
        let keeper = prepared.hand_over(&successor.process, error_log);
        let keeper = keeper.unwrap_or_else(|error| {
            tracing::error!("cannot report the new process to the parent of the gateway: {error:#}");
            None
        });
        Some(HandedOver { keeper, channel: successor.channel })
    }
}

fn refused(error: &anyhow::Error) {
    tracing::error!("the upgrade has failed; this process continues to serve: {error:#}");
    systemd::notify(&[NotifyState::Status("serving; the last upgrade has failed, see the error log")]);
}

/// The program and arguments of this process.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Path of the program with its symbolic links unresolved, because an upgrade may change a link.
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// A new process that serves.
#[derive(Debug)]
struct Successor {
    process: Child,
    version: String,
    channel: Channel,
    /// Time from the start of the process until it served.
    took: Duration,
}

/// A new process, killed on drop unless it serves.
#[derive(Debug)]
struct Starting(Option<Child>);

/// Time limit for a process that has closed its channel to end.
const END: Duration = Duration::from_secs(2);

impl Program {
    /// The program of this process. Must be called before its file is replaced.
    pub(crate) fn of_this_process() -> anyhow::Result<Self> {
        let mut arguments = std::env::args_os();
        let name = PathBuf::from(arguments.next().unwrap_or_default());
        let running = std::env::current_exe().context("cannot find the file of the running program")?;
        let path = match find(&name, &std::env::var_os("PATH").unwrap_or_default()) {
            // The first argument may be any text, so it counts only if it leads to the running file.
            Some(path) if path.canonicalize().is_ok_and(|file| file == running) => std::path::absolute(path)?,
            _ => running,
        };
        Ok(Self { path, arguments: arguments.collect() })
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.display().fmt(f)
    }
}

/// Searches for a program as a shell does.
fn find(name: &Path, folders: &OsStr) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return name.is_file().then(|| name.to_owned());
    }
    std::env::split_paths(folders).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Starts the program and waits until it serves with its inheritance. Dropping the future gives up.
async fn start(
    program: Program,
    inheritance: Inheritance,
    limit: Duration,
    want: watch::Sender<bool>,
) -> anyhow::Result<Successor> {
    let began = Instant::now();
    let (channel, stdin) = handover::channel()?;
    let mut starting = Starting(Some(spawn(&program, stdin)?));
    // The new process reads at its own pace, so the channel is served on a thread that may block.
    let talk = tokio::task::spawn_blocking(move || (talk(&channel, inheritance, &want), channel));
    let Ok(talked) = timeout(limit, talk).await else {
        bail!("the new process did not serve within {} s (timeouts.upgrade) and was killed", limit.as_secs_f64());
    };
    let (outcome, channel) = talked.context("the handover failed")?;
    match outcome {
        Ok(Outcome::Serving { version }) => {
            let process = starting.0.take().context("the new process has ended")?;
            Ok(Successor { process, version, channel, took: began.elapsed() })
        }
        Ok(Outcome::Failed { reason }) => Err(anyhow!("{reason}")),
        Ok(Outcome::Ended) => Err(starting.end().await),
        Err(error) => Err(starting.end().await.context(error)),
    }
}

fn spawn(program: &Program, stdin: std::os::fd::OwnedFd) -> anyhow::Result<Child> {
    let mut command = Command::new(&program.path);
    command.args(&program.arguments).env(handover::VARIABLE, handover::STDIN).stdin(Stdio::from(stdin));
    for variable in systemd::OF_ONE_PROCESS {
        command.env_remove(variable);
    }
    // A terminal sends its signals to all processes of a group, and the first process forwards them.
    command.process_group(0);
    command.spawn().with_context(|| format!("cannot start {program}"))
}

fn talk(channel: &Channel, inheritance: Inheritance, want: &watch::Sender<bool>) -> anyhow::Result<Outcome> {
    if !channel.greeted()? {
        return Ok(Outcome::Ended);
    }
    let given = channel.give(&inheritance);
    // Both processes hold the sockets now; a third handle would keep them open.
    drop(inheritance);
    let prepared = || {
        want.send_replace(true);
    };
    match channel.outcome(prepared) {
        // The error of sending is the better reason if the new process gave none.
        Ok(Outcome::Ended) => given.map(|()| Outcome::Ended),
        outcome => outcome,
    }
}

impl Starting {
    /// Waits for the end of a process that has closed its channel. Returns the reason for the error log.
    async fn end(&mut self) -> anyhow::Error {
        const LOOK: Duration = Duration::from_millis(5);
        let Some(process) = &mut self.0 else { return anyhow!("it is gone") };
        let until = Instant::now() + END;
        while Instant::now() < until {
            match process.try_wait() {
                Ok(Some(status)) => return anyhow!("the new process ended before it served: {status}"),
                Ok(None) => sleep(LOOK).await,
                Err(error) => return error.into(),
            }
        }
        anyhow!(
            "the new process closed its standard input before it served, and was killed; is the file a weir program?"
        )
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            // The process may have ended by itself.
            let _ = process.kill();
            tokio::task::spawn_blocking(move || process.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::find;

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        let cases = [("sh", true), ("/bin/sh", true), ("./Cargo.toml", true), ("Cargo.toml", false), ("./none", false)];
        for (name, found) in cases {
            assert_eq!(find(Path::new(name), "/nowhere:/usr/bin:/bin".as_ref()).is_some(), found, "{name}");
        }
    }
}
