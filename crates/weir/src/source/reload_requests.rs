//! Requests to read the rules again, from an API at the port of the traffic.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Time for which a request waits until the rules have been read.
const LIMIT: Duration = Duration::from_secs(45);

/// Requests, and how far they have been met.
#[derive(Debug)]
pub(crate) struct ReloadRequests {
    asked: Notify,
    count: AtomicU64,
    /// Number of the last request that was met, and true if what was read is in force.
    met: watch::Sender<(u64, bool)>,
}

impl Default for ReloadRequests {
    fn default() -> Self {
        Self { asked: Notify::new(), count: AtomicU64::new(0), met: watch::Sender::new((0, true)) }
    }
}

impl ReloadRequests {
    /// Waits for a request; its number. Cancel-safe.
    pub(crate) async fn asked(&self) -> u64 {
        self.asked.notified().await;
        self.count.load(SeqCst)
    }

    /// Takes note that all requests up to a number are met.
    pub(crate) fn meet(&self, number: u64, is_live: bool) {
        self.met.send_replace((number, is_live));
    }

    /// Takes note of a reload that a signal has asked for: true if what was read is in force.
    pub(crate) fn note(&self, is_live: bool) {
        self.met.send_modify(|(_, last)| *last = is_live);
    }

    /// Requests that are met, one after the other.
    pub(crate) fn met(&self) -> watch::Receiver<(u64, bool)> {
        self.met.subscribe()
    }

    /// Asks for the rules to be read again. With `waits` returns when that is done, with true if they are in force. Blocks the
    /// calling thread.
    pub(crate) fn ask(&self, waits: bool, runtime: &Handle) -> bool {
        let mut met = self.met();
        let own = self.count.fetch_add(1, SeqCst) + 1;
        self.asked.notify_one();
        if !waits {
            return true;
        }
        let done = async {
            timeout(LIMIT, met.wait_for(|(number, _)| *number >= own)).await.map(|met| met.is_ok_and(|met| met.1))
        };
        runtime.block_on(done).unwrap_or(false)
    }
}
