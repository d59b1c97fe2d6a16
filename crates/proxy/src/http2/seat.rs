//! Tasks that serve streams, one after the other.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weir_plugin::host::Exchange;
use weir_wire::Reject;

use super::Shared;

/// Tasks that are kept while they have no stream.
const KEPT: usize = 256;

/// A request for a task to serve.
#[derive(Debug)]
pub(crate) struct Job {
    /// The connection.
    pub(crate) shared: Rc<Shared>,
    /// Key of the stream.
    pub(crate) key: usize,
    /// The exchange with the head of the request.
    pub(crate) exchange: Box<Exchange>,
    /// Reason for refusing the request; `None`: it is served.
    pub(crate) refused: Option<Reject>,
    /// True for an extended CONNECT (RFC 8441).
    pub(crate) connects: bool,
}

/// Place where a task without a stream waits for one: a worker's tasks serve the streams of all its connections.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    job: RefCell<Option<Job>>,
    waker: RefCell<Option<Waker>>,
}

impl Seat {
    /// Gives the waiting task a stream to serve.
    pub(crate) fn give(&self, job: Job) {
        *self.job.borrow_mut() = Some(job);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Ready when there is a stream to serve.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Job> {
        if let Some(job) = self.job.borrow_mut().take() {
            return Poll::Ready(job);
        }
        let mut kept = self.waker.borrow_mut();
        match &mut *kept {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => *kept = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// Tasks of a worker that wait for a stream.
#[derive(Debug, Default)]
pub(crate) struct Seats(RefCell<Vec<Rc<Seat>>>);

impl Seats {
    /// A waiting task.
    pub(crate) fn take(&self) -> Option<Rc<Seat>> {
        self.0.borrow_mut().pop()
    }

    /// Keeps a task for the next stream; false if there are enough.
    pub(crate) fn put(&self, seat: &Rc<Seat>) -> bool {
        let mut seats = self.0.borrow_mut();
        let keeps = seats.len() < KEPT;
        if keeps {
            seats.push(Rc::clone(seat));
        }
        keeps
    }
}
