//! The first process of a gateway, which keeps running after upgrades.
//!
//! A shell, a container or a supervisor knows the gateway by its first process id, and takes the end of that process for
//! the gateway's. So the first process keeps running after others have taken over: it forwards signals to the process
//! that serves, and ends with the exit status of the last one. If the first process is killed, the others stop. Under
//! systemd, which can be notified of a new main process, it does not keep running.
//!
//! ```text
//!  first process ◄── pipe: "ID of the process that serves", its end when all have ended ──┐
//!     │ signals                                                                           │
//!     └──────────────────────────────────────────────► second, third, … process, each with the pipe
//! ```

use std::future::pending;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::Context as _;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal as Number, WaitOptions, WaitStatus, kill_process, set_child_subreaper, wait};
use tokio::io::{AsyncBufReadExt, BufReader, Interest, Lines};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use weir_telemetry::access_log::AccessLogs;

use crate::process::error_log::ErrorLog;
use crate::process::handover::Inheritance;
use crate::process::log_file;
use crate::process::systemd;

/// The process that keeps running for the parent of the gateway.
#[derive(Debug)]
pub(crate) enum Keeping {
    /// No process: systemd is notified of the new one.
    Nobody,
    /// This process.
    Here,
    /// The process that reads this pipe.
    Elsewhere(Sender),
}

/// Resources held while a new process starts.
#[derive(Debug)]
pub(crate) enum Prepared {
    Nobody,
    /// The writing end of the pipe, and the signals, which are caught from here on so that none is lost during the
    /// handover.
    Here(OwnedFd, ForwardedSignals),
    Elsewhere(OwnedFd),
}

/// The task of a process that keeps running after the handover.
#[derive(Debug)]
pub(crate) struct Keeper {
    task: JoinHandle<anyhow::Result<()>>,
}

/// Time limit for the exit status of a process that has closed its pipe.
const LAST_STATUS: Duration = Duration::from_secs(5);

impl Keeping {
    /// Makes the value for this process. `pipe` is inherited from the old process.
    pub(crate) fn new(pipe: Option<OwnedFd>) -> anyhow::Result<Self> {
        match pipe {
            Some(pipe) => {
                Ok(Self::Elsewhere(Sender::from_owned_fd(pipe).context("cannot use the pipe to the first process")?))
            }
            // A container ends with its first process, whatever main process systemd is notified of.
            None if systemd::listens() && std::process::id() != 1 => Ok(Self::Nobody),
            None => Ok(Self::Here),
        }
    }

    /// Waits for the end of the first process, if that is another one.
    pub(crate) async fn lost(&self) {
        let Self::Elsewhere(pipe) = self else { return pending().await };
        // A pipe whose reader is gone reports an error.
        if let Err(error) = pipe.ready(Interest::ERROR).await {
            tracing::warn!(%error, "the first process cannot be watched");
            pending().await
        }
    }

    /// Adds the pipe to the inheritance of a new process.
    pub(crate) fn prepare(&self, inheritance: &mut Inheritance) -> anyhow::Result<Prepared> {
        match self {
            Self::Nobody => Ok(Prepared::Nobody),
            Self::Here => {
                // A descendant whose parent ends becomes a child of this process.
                set_child_subreaper(Some(rustix::process::getpid())).context("cannot adopt processes")?;
                let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
                inheritance.keeper = Some(writer);
                Ok(Prepared::Here(reader, ForwardedSignals::catch()?))
            }
            Self::Elsewhere(pipe) => {
                inheritance.keeper = Some(pipe.as_fd().try_clone_to_owned()?);
                Ok(Prepared::Elsewhere(pipe.as_fd().try_clone_to_owned()?))
            }
        }
    }
}

impl Prepared {
    /// Drops a signal that this process has handled itself.
    pub(crate) fn forget(&mut self, number: Number) {
        if let Self::Here(_, signals) = self {
            signals.forget(number);
        }
    }

    /// Completes the handover to a process that serves. Returns the task of this process if it keeps running.
    pub(crate) fn hand_over(self, successor: &Child, error_log: &Arc<ErrorLog>) -> anyhow::Result<Option<Keeper>> {
        let main = Pid::from_child(successor);
        match self {
            Self::Nobody => {
                systemd::notify(&[systemd::NotifyState::MainPid(successor.id())]);
                Ok(None)
            }
            Self::Elsewhere(pipe) => {
                let line = format!("{main}\n");
                rustix::io::write(&pipe, line.as_bytes()).context("the first process is gone")?;
                Ok(None)
            }
            Self::Here(pipe, signals) => {
                let lines = BufReader::new(Receiver::from_owned_fd(pipe)?).lines();
                let task = tokio::spawn(keep(lines, main, signals, Arc::clone(error_log)));
                Ok(Some(Keeper { task }))
            }
        }
    }
}

impl Keeper {
    /// Waits for the end of the last process.
    ///
    /// # Errors
    /// The last process has failed.
    pub(crate) async fn wait(self) -> anyhow::Result<()> {
        self.task.await.context("the first process has lost its successors")?
    }
}

/// The signals that are forwarded to the serving process.
#[derive(Debug)]
pub(crate) struct ForwardedSignals {
    streams: [Signal; 5],
}

impl ForwardedSignals {
    const NUMBERS: [Number; 5] = [Number::TERM, Number::INT, Number::HUP, Number::USR1, Number::USR2];

    fn catch() -> anyhow::Result<Self> {
        let catch = |number: Number| signal(SignalKind::from_raw(number.as_raw())).context("cannot catch a signal");
        let [a, b, c, d, e] = Self::NUMBERS.map(catch);
        Ok(Self { streams: [a?, b?, c?, d?, e?] })
    }

    fn forget(&mut self, forgotten: Number) {
        let mut cx = Context::from_waker(Waker::noop());
        for (stream, number) in self.streams.iter_mut().zip(Self::NUMBERS) {
            if number == forgotten {
                let _ = stream.poll_recv(&mut cx);
            }
        }
    }

    async fn next(&mut self) -> Number {
        std::future::poll_fn(|cx| {
            for (stream, number) in self.streams.iter_mut().zip(Self::NUMBERS) {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

async fn keep(
    mut lines: Lines<BufReader<Receiver>>,
    mut main: Pid,
    mut signals: ForwardedSignals,
    error_log: Arc<ErrorLog>,
) -> anyhow::Result<()> {
    let mut children = signal(SignalKind::child()).context("cannot catch SIGCHLD")?;
    let mut ended = reap(main);
    loop {
        tokio::select! {
            // A process writes the id of its successor before it ends, so the pipe is read first.
            biased;
            line = lines.next_line() => match line? {
                Some(line) => {
                    main = line.parse().ok().and_then(Pid::from_raw).context("the pipe holds no process id")?;
                    ended = None;
                }
                None => break,
            },
            _ = children.recv() => ended = reap(main).or(ended),
            number = signals.next() => {
                // The process may have ended just now, which is no error.
                let _ = kill_process(main, number);
                if number == Number::USR1 {
                    log_file::reopen(&AccessLogs::default(), &error_log).await;
                }
            }
        }
    }
    let last = async {
        while ended.is_none() {
            children.recv().await;
            ended = reap(main);
        }
    };
    // The missing exit status is reported below.
    let _ = timeout(LAST_STATUS, last).await;
    match ended.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        Some(code) => anyhow::bail!("the process that served (id {main}) has failed with exit code {code}"),
        None => match ended.and_then(|status| status.terminating_signal()) {
            Some(signal) => anyhow::bail!("the process that served (id {main}) was ended by signal {signal}"),
            None => anyhow::bail!("the process that served (id {main}) has not ended in time"),
        },
    }
}

/// Reaps all children that have ended. Returns the exit status of `main` if it is among them.
fn reap(main: Pid) -> Option<WaitStatus> {
    let mut found = None;
    while let Ok(Some((id, status))) = wait(WaitOptions::NOHANG) {
        if id == main {
            found = Some(status);
        }
    }
    found
}
