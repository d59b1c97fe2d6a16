//! Starting the program anew, to take over from this process.
//!
//! The new process is the file that stands now where this one's program stood, with the same arguments. It gets all
//! listening sockets, so no connection is refused while there are two, and says when it serves. Until then this process
//! serves as if nothing were; should the new one fail, or take too long, it is killed and the reason is logged.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use tokio::time::{sleep, timeout};

use crate::handover::{self, Channel, Inheritance, Outcome};
use crate::systemd;

/// How this process was started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The way to the program, links and all: an upgrade may be the change of a link.
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// A new process that serves.
#[derive(Debug)]
pub(crate) struct Successor {
    pub(crate) process: Child,
    pub(crate) version: String,
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
        let path = match find(&name, &std::env::var_os("PATH").unwrap_or_default()) {
            Some(path) => std::path::absolute(path),
            None => std::env::current_exe(),
        };
        let path = path.context("cannot tell where the program's file is")?;
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
pub(crate) async fn start(program: Program, inheritance: Inheritance, limit: Duration) -> anyhow::Result<Successor> {
    let began = Instant::now();
    let (channel, stdin) = handover::channel()?;
    let mut starting = Starting(Some(spawn(&program, stdin)?));
    // On a thread that may block: the new process reads at its own pace.
    let talk = tokio::task::spawn_blocking(move || talk(&channel, inheritance));
    let Ok(talked) = timeout(limit, talk).await else {
        bail!("it did not serve within {} s (timeouts.upgrade) and was killed", limit.as_secs_f64());
    };
    match talked.context("the handover failed")? {
        Ok(Outcome::Ready { version }) => {
            let process = starting.0.take().context("it is gone")?;
            tracing::info!(process = process.id(), version, took_ms = began.elapsed().as_millis() as u64, "it serves");
            Ok(Successor { process, version })
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

fn talk(channel: &Channel, inheritance: Inheritance) -> anyhow::Result<Outcome> {
    let given = channel.give(&inheritance);
    // The sockets are in two processes now; a third handle would keep them open.
    drop(inheritance);
    match channel.outcome() {
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
            assert_eq!(
                find(Path::new(name), std::ffi::OsStr::new("/nowhere:/usr/bin:/bin")).is_some(),
                found,
                "{name}"
            );
        }
    }
}
