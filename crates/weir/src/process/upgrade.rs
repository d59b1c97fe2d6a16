//! Starting the program anew, to take over from this process.
//!
//! The new process is the file that stands now where this one's program stood, with the same arguments. It gets all
//! listening sockets, so no connection is refused while there are two, and says when it serves. Until then this process
//! serves as if nothing were; should the new one fail, or take too long, it is killed and the reason is logged. Should this
//! process be killed meanwhile, the new one ends with it: no socket stays open that nobody serves.

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

/// The upgrade under way, and what one needs.
pub(crate) struct Upgrades<'a> {
    program: Program,
    limit: Duration,
    listening: Listening,
    keeping: &'a Keeping,
    /// The right to write to the store, where there is one.
    right: Option<WriteRight>,
    files: SharedFiles,
    under_way: Option<UnderWay>,
    /// The end of changes here, when another process serves.
    lent: Option<Lent>,
}

/// A new process that is starting, and what is done when it serves.
struct UnderWay {
    starting: Pin<Box<dyn Future<Output = anyhow::Result<Successor>>>>,
    prepared: Prepared,
    /// Tells that the new process needs the store.
    wanted: watch::Receiver<bool>,
    /// From then on: nothing is changed here.
    lent: Option<Lent>,
}

/// Another process serves.
#[derive(Debug)]
pub(crate) struct HandedOver {
    /// The task of this process, if it stays.
    pub(crate) keeper: Option<Keeper>,
    /// The new process makes no change before this end of the channel is closed.
    pub(crate) channel: Channel,
}

impl<'a> Upgrades<'a> {
    /// `limit` is for a new process to serve.
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

    /// Starts a new process, if none is starting.
    pub(crate) fn begin(&mut self, data_plane: &DataPlane) {
        if let Some(under_way) = &mut self.under_way {
            under_way.prepared.forget(Signal::USR2);
            tracing::warn!("SIGUSR2: an upgrade is under way already; this one is refused");
            return;
        }
        let prepared = self.listening.pass_on(data_plane).map_err(anyhow::Error::from).and_then(|mut inheritance| {
            let prepared = self.keeping.prepare(&mut inheritance)?;
            inheritance.files = *self.files.lock().unwrap_or_else(PoisonError::into_inner);
            Ok((inheritance, prepared))
        });
        match prepared {
            Ok((inheritance, prepared)) => {
                tracing::info!(program = %self.program, "SIGUSR2: a new process is started to take over");
                systemd::notify(&[NotifyState::Status("starting a new process to take over")]);
                let (want, wanted) = watch::channel(false);
                let starting = Box::pin(start(self.program.clone(), inheritance, self.limit, want));
                self.under_way = Some(UnderWay { starting, prepared, wanted, lent: None });
            }
            Err(error) => refused(&error),
        }
    }

    /// Waits for a new process that serves; `None` when one has failed.
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
                // The end of a new process may be heard of while lending to it is not quite done.
                let asked = *wanted.borrow();
                match (lent, &self.right) {
                    (Some(lent), _) => lent.take_back(),
                    (None, Some(right)) if asked => right.lend().await.take_back(),
                    _ => {}
                }
                return None;
            }
        };
        // Changes that wait are told that another process has taken over, once the store is closed.
        self.lent = lent;
        let (process, took_ms) = (successor.process.id(), successor.took.as_millis() as u64);
        tracing::info!(
            process,
            version = successor.version,
            took_ms,
            "a new process serves; this one finishes what is in flight"
        );
        // It serves, whatever happens here.
        let keeper = prepared.hand_over(&successor.process, error_log);
        let keeper = keeper.unwrap_or_else(|error| {
            tracing::error!("whoever started the gateway cannot be told of its new process: {error:#}");
            None
        });
        Some(HandedOver { keeper, channel: successor.channel })
    }
}

fn refused(error: &anyhow::Error) {
    tracing::error!("the upgrade has failed, and this process serves on: {error:#}");
    systemd::notify(&[NotifyState::Status("serving on after an upgrade that failed; the log tells why")]);
}

/// How this process was started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The way to the program, links and all: an upgrade may be the change of a link.
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// A new process that serves.
#[derive(Debug)]
struct Successor {
    process: Child,
    version: String,
    channel: Channel,
    /// From its start until it served.
    took: Duration,
}

/// A new process that is killed unless it comes to serve.
#[derive(Debug)]
struct Starting(Option<Child>);

/// How long a process that has closed its channel may take to end.
const END: Duration = Duration::from_secs(2);

impl Program {
    /// The program of this process; to be asked before its file is replaced.
    pub(crate) fn of_this_process() -> anyhow::Result<Self> {
        let mut arguments = std::env::args_os();
        let name = PathBuf::from(arguments.next().unwrap_or_default());
        let running = std::env::current_exe().context("cannot tell where the program's file is")?;
        let path = match find(&name, &std::env::var_os("PATH").unwrap_or_default()) {
            // Whoever starts a program may call it what they like.
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

/// Where a shell finds a program.
fn find(name: &Path, folders: &OsStr) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return name.is_file().then(|| name.to_owned());
    }
    std::env::split_paths(folders).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Starts the program and waits until it serves with what it inherits. Dropping the future gives up.
async fn start(
    program: Program,
    inheritance: Inheritance,
    limit: Duration,
    want: watch::Sender<bool>,
) -> anyhow::Result<Successor> {
    let began = Instant::now();
    let (channel, stdin) = handover::channel()?;
    let mut starting = Starting(Some(spawn(&program, stdin)?));
    // On a thread that may block: the new process reads at its own pace.
    let talk = tokio::task::spawn_blocking(move || (talk(&channel, inheritance, &want), channel));
    let Ok(talked) = timeout(limit, talk).await else {
        bail!("it did not serve within {} s (timeouts.upgrade) and was killed", limit.as_secs_f64());
    };
    let (outcome, channel) = talked.context("the handover failed")?;
    match outcome {
        Ok(Outcome::Ready { version }) => {
            let process = starting.0.take().context("it is gone")?;
            Ok(Successor { process, version, channel, took: began.elapsed() })
        }
        Ok(Outcome::Failed { reason }) => Err(anyhow!("{reason}")),
        Ok(Outcome::Gone) => Err(starting.end().await),
        Err(error) => Err(starting.end().await.context(error)),
    }
}

fn spawn(program: &Program, stdin: std::os::fd::OwnedFd) -> anyhow::Result<Child> {
    let mut command = Command::new(&program.path);
    command.args(&program.arguments).env(handover::VARIABLE, handover::STDIN).stdin(Stdio::from(stdin));
    for variable in systemd::OF_ONE_PROCESS {
        command.env_remove(variable);
    }
    // A terminal sends its signals to all processes of a group, and this one passes them on.
    command.process_group(0);
    command.spawn().with_context(|| format!("cannot start {program}"))
}

fn talk(channel: &Channel, inheritance: Inheritance, want: &watch::Sender<bool>) -> anyhow::Result<Outcome> {
    if !channel.greeted()? {
        return Ok(Outcome::Gone);
    }
    let given = channel.give(&inheritance);
    // The sockets are in two processes now; a third handle would keep them open.
    drop(inheritance);
    let prepared = || {
        want.send_replace(true);
    };
    match channel.outcome(prepared) {
        // It may have said why it takes nothing.
        Ok(Outcome::Gone) => given.map(|()| Outcome::Gone),
        outcome => outcome,
    }
}

impl Starting {
    /// How it ended, for a process that is as good as gone.
    async fn end(&mut self) -> anyhow::Error {
        const LOOK: Duration = Duration::from_millis(5);
        let Some(process) = &mut self.0 else { return anyhow!("it is gone") };
        let until = Instant::now() + END;
        while Instant::now() < until {
            match process.try_wait() {
                Ok(Some(status)) => return anyhow!("it ended before it served: {status}"),
                Ok(None) => sleep(LOOK).await,
                Err(error) => return error.into(),
            }
        }
        anyhow!("it closed its standard input before it served, and was killed; is it this gateway's program?")
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            // It may have ended by itself.
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
