//! Signals to the process.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals to the control thread; the one to reload is not among them.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reopen: Signal,
    upgrade: Signal,
}

impl Signals {
    pub(crate) fn catch() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot catch SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot catch SIGINT")?,
            reopen: signal(SignalKind::user_defined1()).context("cannot catch SIGUSR1")?,
            upgrade: signal(SignalKind::user_defined2()).context("cannot catch SIGUSR2")?,
        })
    }

    /// Waits for one.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Asked::Stop("SIGINT"),
            _ = self.reopen.recv() => Asked::Reopen,
            _ = self.upgrade.recv() => Asked::Upgrade,
        }
    }
}

/// What a signal asks for.
pub(crate) enum Asked {
    Stop(&'static str),
    Reopen,
    Upgrade,
}
