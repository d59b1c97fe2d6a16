//! Keeps the names of upstream nodes resolved.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use weir_proxy::Resolver;

/// Asks the task that resolves names to look at once, because there may be new ones.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    requests: mpsc::Sender<oneshot::Sender<()>>,
}

/// Requests that may wait; one reload at a time asks.
const REQUESTS: usize = 4;

impl Names {
    /// The two ends: who asks, and the task that [`resolve`]s.
    pub(crate) fn channel() -> (Self, mpsc::Receiver<oneshot::Sender<()>>) {
        let (requests, receiver) = mpsc::channel(REQUESTS);
        (Self { requests }, receiver)
    }

    /// Waits until the names of the newest configuration were looked up, at most for `limit`. Those that take longer
    /// are still being looked up afterwards.
    pub(crate) async fn look_up(&self, limit: Duration) {
        let (done, finished) = oneshot::channel();
        if self.requests.try_send(done).is_ok() {
            // Both a name that takes longer and a task that is gone leave the names as they are.
            let _ = timeout(limit, finished).await;
        }
    }
}

/// Resolves names when they are due and when asked to, until nobody can ask any more.
pub(crate) async fn resolve(mut resolver: Resolver, mut requests: mpsc::Receiver<oneshot::Sender<()>>) {
    let mut asked = None;
    loop {
        let next = resolver.run_due().await;
        if let Some(done) = asked.take() {
            let done: oneshot::Sender<()> = done;
            // Whoever asked may have gone on.
            let _ = done.send(());
        }
        tokio::select! {
            request = requests.recv() => match request {
                Some(done) => asked = Some(done),
                None => return,
            },
            () = tokio::time::sleep(next) => {}
        }
    }
}
