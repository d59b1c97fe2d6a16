//! The request body on its way to the node.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use weir_plugin::Failure;
use weir_plugin::host::buffers::NO_ROOM;
use weir_plugin::host::{BUFFER, Exchange};
use weir_wire::Reject;

use super::body::{BODY_TOO_LARGE, Pace, client_gone, refused_body};
use crate::downstream::Downstream;
use crate::phases;
use crate::relay::{Broken, Piece, Relay, Sink};
use crate::snapshot::Local;
use crate::timer::Timer;
use crate::upstream::connection::NodeConnection;
use crate::worker::Worker;

/// A request on its way to a node: its head, which lies on the stage, and its body.
#[derive(Default)]
pub(super) struct Upload {
    relay: Relay,
    /// Plugins that change the body; `None`: it goes up as it comes.
    filter: Option<Box<Filter>>,
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

/// Plugins between the client and the node.
struct Filter {
    local: Rc<Local>,
    /// Bytes that the node's side has taken of the piece in [`Request::changed`](weir_plugin::Request::changed); `None`:
    /// there is no piece.
    passed: Option<usize>,
    /// Field lines of the client's trailer section, which go up behind the content.
    trailers: Vec<u8>,
    /// True when plugins have seen a piece in this attempt.
    begun: bool,
    /// True when the client's body has ended with this piece.
    last: bool,
}

/// The end of an upload before its time.
enum Stop {
    Failed(Failure),
    /// The node takes no more.
    Node,
}

impl From<Broken> for Stop {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Source(reject) => Self::Failed(refused_body(reject)),
            Broken::Sink => Self::Node,
        }
    }
}

impl From<Reject> for Stop {
    fn from(reject: Reject) -> Self {
        Self::Failed(refused_body(reject))
    }
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
    /// Lets the plugins of this exchange change the body in each attempt.
    pub(super) fn filter_with(&mut self, local: &Rc<Local>) {
        let local = Rc::clone(local);
        self.filter = Some(Box::new(Filter { local, passed: None, trailers: Vec::new(), begun: false, last: false }));
    }

    /// Begins with the head in [`Exchange::out`], and the body of the request. `may_pause`: a stream of messages, which come
    /// when there are any.
    pub(super) fn begin(&mut self, x: &mut Exchange, send_ms: u64, may_pause: bool, worker: &Worker) {
        x.scratch.clear();
        self.relay = Relay::default();
        if let Some(filter) = &mut self.filter {
            filter.passed = None;
            filter.trailers.clear();
            filter.begun = false;
            filter.last = false;
        }
        self.stage = std::mem::replace(&mut x.out, std::mem::take(&mut x.scratch));
        self.running = true;
        self.cut = false;
        self.waits = Waits::Nobody;
        self.send_ms = send_ms;
        self.body_ms = worker.options.body_ms;
        self.body_size = x.body_limit;
        self.received = 0;
        self.pace = if may_pause { Pace::default() } else { Pace::new(worker) };
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
    pub(super) fn poll<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut D,
        node: &mut NodeConnection,
        x: &mut Exchange,
        timer: &Timer,
        copy: &mut Option<Box<impl BodyCopy>>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            let sent = match self.filter {
                None => self.poll_sent(cx, down, node, x, copy),
                Some(_) => self.poll_changed(cx, down, node, x, copy),
            };
            match sent {
                Poll::Pending => {
                    self.wait_for(Waits::Node, timer);
                    return Poll::Pending;
                }
                Poll::Ready(Err(Stop::Failed(failure))) => return Poll::Ready(Err(failure)),
                // The node may have answered before it closed: the answer is looked for.
                Poll::Ready(Err(Stop::Node)) => {
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
            down.make_room(&mut x.request.buffer);
            match down.poll_receive(cx, &mut x.request.buffer) {
                Poll::Pending => {
                    self.wait_for(Waits::Client, timer);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(client_gone())),
                Poll::Ready(Ok(n)) => self.received += n as u64,
            }
            self.waits = Waits::Nobody;
            self.pace.check(self.received, timer.now()).map_err(refused_body)?;
        }
    }

    /// Sends what has arrived, and shows it to the copy.
    #[inline]
    fn poll_sent<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut D,
        node: &mut NodeConnection,
        x: &mut Exchange,
        copy: &mut Option<Box<impl BodyCopy>>,
    ) -> Poll<Result<(), Stop>> {
        let Self { relay, stage, body_size, .. } = self;
        let mut left = body_size.saturating_sub(relay.moved);
        let from = (down, &x.request.buffer);
        ready!(relay.poll_take(cx, from, (&mut *node, &mut *stage), |piece, data| {
            if !matches!(piece, Piece::Data(_)) {
                return Ok(());
            }
            left = left.checked_sub(data.len() as u64).ok_or(BODY_TOO_LARGE)?;
            if let Some(taker) = copy.take() {
                *copy = taker.take(data);
            }
            Ok(())
        }))?;
        if relay.has_ended()
            && let Some(copy) = copy.take()
        {
            copy.complete();
        }
        node.poll_flush(cx, stage).map_err(|_| Stop::Node)
    }

    /// Lets plugins change what has arrived, sends what they have made of it, and shows that to the copy.
    fn poll_changed<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut D,
        node: &mut NodeConnection,
        x: &mut Exchange,
        copy: &mut Option<Box<impl BodyCopy>>,
    ) -> Poll<Result<(), Stop>> {
        let Self { relay, stage, body_size, filter: Some(filter), .. } = self else { return Poll::Ready(Ok(())) };
        let mut passed = match filter.passed {
            Some(passed) => passed,
            None => {
                relay.moved += filter.take(down, x, body_size.saturating_sub(relay.moved))?;
                if let Some(taker) = copy.take() {
                    *copy = taker.take(&x.request.changed);
                }
                *filter.passed.insert(0)
            }
        };
        while let Some(rest) = x.request.changed.get(passed..).filter(|rest| !rest.is_empty()) {
            passed += ready!(node.poll_data(cx, stage, rest)).map_err(|_| Stop::Node)?;
            filter.passed = Some(passed);
        }
        if filter.last && !relay.has_ended() {
            filter.trailers.split_inclusive(|byte| *byte == b'\n').for_each(|line| node.push_trailer(stage, line));
            relay.end(node, stage);
            if let Some(copy) = copy.take() {
                copy.complete();
            }
        }
        ready!(node.poll_flush(cx, stage)).map_err(|_| Stop::Node)?;
        filter.passed = None;
        Poll::Ready(Ok(()))
    }

    fn wait_for(&mut self, whom: Waits, timer: &Timer) {
        if self.waits != whom {
            self.waits = whom;
            timer.set(if whom == Waits::Client { self.body_ms } else { self.send_ms });
        }
    }
}

impl Filter {
    /// Lets the plugins change what has arrived of the body, at most so many bytes, and leaves what they make of it in
    /// [`Request::changed`](weir_plugin::Request::changed). Gives the number of bytes that have arrived.
    fn take<D: Downstream>(&mut self, down: &mut D, x: &mut Exchange, most: u64) -> Result<u64, Stop> {
        let mut piece = std::mem::take(&mut x.request.changed);
        piece.clear();
        let taken = self.take_into(&mut piece, down, x, most);
        x.request.changed = piece;
        // A part of the budget, in place of what earlier pieces took.
        if x.request.changed.capacity() > BUFFER && !x.may_grow(0) {
            return Err(Stop::Failed(NO_ROOM));
        }
        taken
    }

    fn take_into<D: Downstream>(
        &mut self,
        piece: &mut Vec<u8>,
        down: &mut D,
        x: &mut Exchange,
        most: u64,
    ) -> Result<u64, Stop> {
        self.last = loop {
            match down.next(&x.request.buffer)? {
                Piece::Data(span) => piece.extend_from_slice(span.of(x.request.buffer.bytes())),
                Piece::Trailer(line) => self.trailers.extend_from_slice(line.of(x.request.buffer.bytes())),
                Piece::More => break false,
                Piece::End => break true,
            }
        };
        let arrived = piece.len() as u64;
        if arrived > most {
            return Err(BODY_TOO_LARGE.into());
        }
        if !piece.is_empty() || self.last {
            let begins = !std::mem::replace(&mut self.begun, true);
            phases::on_request_body(x, &self.local.snapshot, piece, begins, self.last).map_err(Stop::Failed)?;
        }
        Ok(arrived)
    }
}
