//! Connections that are being opened, and the requests that wait for them.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weir_plugin::Failure;

use super::sessions::Sessions;
use crate::upstream::endpoint::Endpoint;

/// A connection that some request opens, for others as well.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(super) addr: SocketAddr,
    pub(super) host: Option<Box<[u8]>>,
    /// Requests that wait for it, with the one that opens it.
    pub(super) requests: Cell<u32>,
    outcome: Cell<Option<Outcome>>,
    wakers: RefCell<Vec<Waker>>,
}

/// The end of an opening.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    /// The opening is over: another look for a connection is due.
    Over,
    /// There will be none.
    Failed(OpenFailure),
}

/// Failure to open a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenFailure {
    pub(crate) failure: Failure,
    /// True when the node takes no connections.
    pub(crate) unreachable: bool,
}

impl Opening {
    pub(super) fn new(addr: SocketAddr, host: Option<&[u8]>) -> Rc<Self> {
        Rc::new(Self {
            addr,
            host: host.map(Into::into),
            requests: Cell::new(1),
            outcome: Cell::new(None),
            wakers: RefCell::default(),
        })
    }

    /// Ready when the opening is over.
    ///
    /// # Errors
    /// The connection could not be opened.
    pub(crate) fn poll_over(&self, cx: &mut Context<'_>) -> Poll<Result<(), OpenFailure>> {
        match self.outcome.get() {
            Some(Outcome::Over) => return Poll::Ready(Ok(())),
            Some(Outcome::Failed(failure)) => return Poll::Ready(Err(failure)),
            None => {}
        }
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn end(&self, outcome: Outcome) {
        self.outcome.set(Some(outcome));
        for waker in self.wakers.borrow_mut().drain(..) {
            waker.wake();
        }
    }
}

/// The right, and the duty, to open a connection. Those who wait look again when it is dropped.
#[derive(Debug)]
pub(crate) struct Opened<'s> {
    pub(super) sessions: &'s Sessions,
    pub(super) endpoint: &'s Endpoint,
    pub(super) opening: Rc<Opening>,
    pub(super) failure: Option<OpenFailure>,
}

impl Opened<'_> {
    /// Ends the opening without a connection.
    pub(crate) fn fail(mut self, failure: OpenFailure) {
        self.failure = Some(failure);
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.sessions.forget_opening(self.endpoint, &self.opening);
        self.opening.end(self.failure.map_or(Outcome::Over, Outcome::Failed));
    }
}
