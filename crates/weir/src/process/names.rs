//! Requests to the resolver of upstream nodes for the names of a new configuration.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Handle that makes the resolver task look up names at once, because a new configuration may have new ones.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    requests: mpsc::Sender<oneshot::Sender<()>>,
}

/// Maximum number of queued requests; one reload at a time sends one.
const REQUESTS: usize = 4;

impl Names {
    /// Makes the handle, and the receiver for [`weir_proxy::Resolver::run`].
    pub(crate) fn channel() -> (Self, mpsc::Receiver<oneshot::Sender<()>>) {
        let (requests, receiver) = mpsc::channel(REQUESTS);
        (Self { requests }, receiver)
    }

    /// Waits until the names of the newest configuration are resolved, at most for `limit`. The lookup of names that take
    /// longer continues.
    pub(crate) async fn look_up(&self, limit: Duration) {
        let (done, finished) = oneshot::channel();
        if self.requests.send(done).await.is_ok() {
            // A slow name and an ended task both leave the addresses as they are.
            let _ = timeout(limit, finished).await;
        }
    }
}
