//! The request body on its way to the node.

use std::task::{Context, Poll};

use weir_plugin::Exchange;
use weir_wire::Reject;
use weir_wire::buffer::Buffer;

use super::body::{BODY_TOO_LARGE, CLIENT_WENT_AWAY, Pace};
use crate::downstream::Downstream;
use crate::relay::{Broken, Relay};
use crate::timer::Timer;
use crate::upstream::connection::NodeConnection;
use crate::worker::Worker;

/// A request on its way to a node: its head, which lies on the stage, and its body.
#[derive(Default)]
pub(super) struct Upload {
    relay: Relay,
    /// Bytes that the node's connection is to take.
    stage: Vec<u8>,
    running: bool,
    /// True when the node stopped taking the request within the body.
    cut: bool,
    waits: Waits,
    send_ms: u64,
    body_ms: u64,
    body_size: u64,
    received: u64,
    pace: Pace,
}

/// A copy that is made of a request body as it goes up.
pub(super) trait BodyCopy {
    /// Takes a piece of the body; gives itself back unless it has become too long.
    fn take(self: Box<Self>, data: &[u8]) -> Option<Box<Self>>;

    /// Takes note that all of the body has come.
    fn complete(self: Box<Self>);
}

/// The side that an upload waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Waits {
    #[default]
    Nobody,
    Client,
    Node,
}

impl Upload {
    /// Begins with the head in [`Exchange::out`], and the body of the request.
    pub(super) fn begin(&mut self, x: &mut Exchange, send_ms: u64, worker: &Worker) {
        x.scratch.clear();
        self.relay = Relay::default();
        self.stage = std::mem::replace(&mut x.out, std::mem::take(&mut x.scratch));
        self.running = true;
        self.cut = false;
        self.waits = Waits::Nobody;
        self.send_ms = send_ms;
        self.body_ms = worker.options.body_ms;
        self.body_size = x.body_limit;
        self.received = 0;
        self.pace = Pace::new(worker);
    }

    /// True while there is something to send that the node may take.
    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    /// True when the node has taken the whole request.
    pub(super) fn is_complete(&self) -> bool {
        !self.running && self.relay.has_ended() && !self.cut
    }

    /// True when the node stopped taking the request within the body.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    pub(super) fn waits_for_client(&self) -> bool {
        self.waits == Waits::Client
    }

    /// Gives the request up: the node gets no more of it.
    pub(super) fn stop(&mut self) {
        self.running = false;
    }

    /// Gives the memory of the stage back, when nothing in it is needed any more.
    pub(super) fn give_back(&mut self, x: &mut Exchange) {
        if !self.running && self.stage.capacity() > 0 {
            self.stage.clear();
            x.scratch = std::mem::take(&mut self.stage);
        }
    }

    /// Moves on as far as possible. Ready when nothing is left to send, or the node does not take any more.
    pub(super) fn poll<D: Downstream, N: NodeConnection>(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut D,
        node: &mut N,
        buffer: &mut Buffer,
        timer: &Timer,
        copy: &mut Option<Box<impl BodyCopy>>,
    ) -> Poll<Result<(), Reject>> {
        loop {
            match self.poll_sent(cx, down, node, buffer, copy) {
                Poll::Pending => {
                    self.wait_for(Waits::Node, timer);
                    return Poll::Pending;
                }
                Poll::Ready(Err(Broken::Source(reject))) => return Poll::Ready(Err(reject)),
                // The node may have answered before it closed: the answer is looked for.
                Poll::Ready(Err(Broken::Sink)) => {
                    self.running = false;
                    self.cut = true;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) if self.relay.has_ended() => {
                    self.running = false;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => {}
            }
            down.make_room(buffer);
            match down.poll_receive(cx, buffer) {
                Poll::Pending => {
                    self.wait_for(Waits::Client, timer);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(CLIENT_WENT_AWAY)),
                Poll::Ready(Ok(n)) => self.received += n as u64,
            }
            self.waits = Waits::Nobody;
            self.pace.check(self.received, timer.now())?;
        }
    }

    /// Sends what has arrived, and shows it to the copy.
    #[inline]
    fn poll_sent<D: Downstream, N: NodeConnection>(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut D,
        node: &mut N,
        buffer: &Buffer,
        copy: &mut Option<Box<impl BodyCopy>>,
    ) -> Poll<Result<(), Broken>> {
        let Self { relay, stage, body_size, .. } = self;
        let mut left = body_size.saturating_sub(relay.moved);
        let taken = relay.poll_take(cx, (down, buffer), (&mut *node, &mut *stage), |data| {
            left = left.checked_sub(data.len() as u64).ok_or(BODY_TOO_LARGE)?;
            if let Some(taker) = copy.take() {
                *copy = taker.take(data);
            }
            Ok(())
        });
        match taken {
            Poll::Ready(Ok(())) => {}
            broken => return broken,
        }
        if relay.has_ended()
            && let Some(copy) = copy.take()
        {
            copy.complete();
        }
        node.poll_flush(cx, stage).map_err(|_| Broken::Sink)
    }

    fn wait_for(&mut self, whom: Waits, timer: &Timer) {
        if self.waits != whom {
            self.waits = whom;
            timer.set(if whom == Waits::Client { self.body_ms } else { self.send_ms });
        }
    }
}
