//! Asks the resolver of upstream nodes to look up the names of a new configuration.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Asks the task that resolves names to look at once, because there may be new ones.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    requests: mpsc::Sender<oneshot::Sender<()>>,
}

/// Requests that may wait; one reload at a time asks.
const REQUESTS: usize = 4;

impl Names {
    /// The two ends: who asks, and what [`weir_proxy::Resolver::run`] takes.
    pub(crate) fn channel() -> (Self, mpsc::Receiver<oneshot::Sender<()>>) {
        let (requests, receiver) = mpsc::channel(REQUESTS);
        (Self { requests }, receiver)
    }

    /// Waits until the names of the newest configuration were looked up, at most for `limit`. Those that take longer
    /// are still being looked up afterwards.
    pub(crate) async fn look_up(&self, limit: Duration) {
        let (done, finished) = oneshot::channel();
        if self.requests.send(done).await.is_ok() {
            // Both a name that takes longer and a task that is gone leave the names as they are.
            let _ = timeout(limit, finished).await;
        }
    }
}
