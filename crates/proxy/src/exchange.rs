//! An exchange: a request through its plugins, to a node of its upstream, and the response back.
//!
//! The exchange is independent of the protocol: the client is a [`Downstream`](crate::downstream::Downstream), the node
//! a [`NodeConnection`](crate::upstream::connection::NodeConnection), and bodies go between them in pieces
//! ([`crate::relay`]).

mod body;
mod callout;
mod connect;
mod dial;
mod forward;
mod forward_proxy;
mod grpc;
mod mirror;
mod reply;
mod response;
mod run;
mod subrequest;
mod tunnel;
mod upload;
mod wait;

use std::rc::Rc;

pub(crate) use forward::{Attempt, AttemptError};
use mirror::RequestCopy;

use crate::timer::Timer;
use crate::worker::Worker;

/// Runs the exchanges of one client, one at a time.
pub(crate) struct Runner<D> {
    pub(crate) down: D,
    pub(crate) timer: Timer,
    pub(crate) worker: Rc<Worker>,
    /// A copy of the request, while it waits to be sent upstream.
    copy: Option<Box<RequestCopy>>,
}

/// The end of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The client was sent a whole response.
    Answered,
    /// The client has gone, or was sent a part.
    Cut,
    /// The connection was switched to another protocol, and has ended.
    Switched,
}

impl<D> Runner<D> {
    pub(crate) fn new(down: D, worker: Rc<Worker>) -> Self {
        let timer = worker.timers.timer();
        Self { down, timer, worker, copy: None }
    }
}
