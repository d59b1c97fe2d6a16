//! Streams of events that are open at one time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Maximum number of streams.
pub(crate) const STREAMS: usize = 64;

/// The streams that are open, and those that may still be opened.
#[derive(Debug)]
pub(crate) struct Streams {
    free: Arc<Semaphore>,
    /// True once all streams end.
    ended: watch::Sender<bool>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(STREAMS)), ended: watch::Sender::new(false) }
    }
}

impl Streams {
    /// Opens a stream, which is closed when the permit is dropped; `None` if there are too many.
    pub(crate) fn open(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// Ends all streams, and those to come.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until all streams end.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.subscribe();
        async move { drop(ended.wait_for(|ended| *ended).await) }
    }
}
