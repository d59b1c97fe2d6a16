//! Signals to the process.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals to the control thread, except SIGHUP for reloads.
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

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop("SIGTERM"),
            _ = self.interrupt.recv() => SignalAction::Stop("SIGINT"),
            _ = self.reopen.recv() => SignalAction::Reopen,
            _ = self.upgrade.recv() => SignalAction::Upgrade,
        }
    }
}

/// The action that a signal requests.
pub(crate) enum SignalAction {
    Stop(&'static str),
    Reopen,
    Upgrade,
}
