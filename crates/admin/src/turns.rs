//! Bounds on the memory that requests and answers of all clients take together.
//!
//! A body of more than [`SMALL`] bytes holds its share of `limits.admin_memory` until its last byte is written. An answer
//! that is made of all resources, or of all that is remembered, takes one of `limits.admin_lists` turns as well, and goes
//! out in pieces. A reader that takes less than [`LEAST_RATE`] is cut off, so that nobody else waits for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::answer::Answer;

/// Bytes of a body that take no share: with the connections that there may be, 16 MiB.
pub(crate) const SMALL: usize = 64 * 1024;

/// Time that a request waits for its turn, or for its share.
const WAIT: Duration = Duration::from_secs(10);

/// Bytes a second that a reader of a large answer takes at least, and the time that it has beyond that.
const LEAST_RATE: usize = 64 * 1024;
const GRACE: Duration = Duration::from_secs(30);

const UNIT: usize = 1024;

/// Memory that requests and answers take together.
#[derive(Debug)]
pub(crate) struct Turns {
    lists: Arc<Semaphore>,
    /// Units of memory.
    memory: Arc<Semaphore>,
    units: u32,
}

/// A share, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    _permit: OwnedSemaphorePermit,
    /// Dropped when nothing is written any more, which notifies the receiver.
    written: Option<oneshot::Sender<()>>,
}

impl Turns {
    pub(crate) fn new(lists: usize, memory: usize) -> Self {
        let units = u32::try_from(memory / UNIT).unwrap_or(u32::MAX).max(1);
        Self { lists: Arc::new(Semaphore::new(lists)), memory: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// A turn to read what may be everything.
    pub(crate) async fn list(&self) -> Result<Held, Answer> {
        let turn = timeout(WAIT, Arc::clone(&self.lists).acquire_owned()).await;
        match turn {
            Ok(Ok(permit)) => Ok(Held { _permit: permit, written: None }),
            _ => Err(busy("too many lists are being read: try again (limits.admin_lists)")),
        }
    }

    /// The share of so many bytes. What is more than all there is has to have all of it.
    pub(crate) async fn share(&self, bytes: usize) -> Result<Held, Answer> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units);
        let share = timeout(WAIT, Arc::clone(&self.memory).acquire_many_owned(units)).await;
        match share {
            Ok(Ok(permit)) => Ok(Held { _permit: permit, written: None }),
            _ => Err(busy("too much is being sent and answered: try again (limits.admin_memory)")),
        }
    }
}

fn busy(message: &str) -> Answer {
    Answer::error(StatusCode::SERVICE_UNAVAILABLE, message).unversioned()
}

impl Held {
    /// Cuts the connection off when so many bytes are not written in the time that they may take.
    pub(crate) fn watch(&mut self, bytes: usize, cut: &Arc<Notify>) {
        let (written, done) = oneshot::channel();
        self.written = Some(written);
        let (cut, time) = (Arc::clone(cut), GRACE + Duration::from_secs((bytes / LEAST_RATE) as u64));
        tokio::spawn(async move {
            tokio::select! {
                () = sleep(time) => {
                    tracing::debug!("a reader of the admin API was too slow");
                    cut.notify_one();
                }
                _ = done => {}
            }
        });
    }

    /// Bytes that hold this share until the last of them is written.
    pub(crate) fn with(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Holding { bytes, _held: self })
    }
}

struct Holding {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Holding {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
