//! The response of a node on its way to the client.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use weir_plugin::host::buffers::NO_ROOM;
use weir_plugin::host::{BUFFER, Exchange};
use weir_plugin::{Failure, Origin, Response};
use weir_telemetry::metrics::ClientError;
use weir_wire::Reject;
use weir_wire::head::Content;
use weir_wire::method::Method;
use weir_wire::name::Known;
use weir_wire::status;

use super::body::client_gone;
use super::forward::{Attempt, PendingResponse, end_try, reason_of_reset};
use super::upload::BodyCopy;
use super::{Outcome, Runner, grpc, reply};
use crate::downstream::{Downstream, Following, Presence};
use crate::phases;
use crate::relay::{self, Broken, Piece, Relay, Source};
use crate::snapshot::Snapshot;
use crate::timer::Timer;
use crate::upstream::connection::NodeConnection;
use crate::upstream::health::Seen;
use crate::worker::Worker;

/// A body that has to be whole is longer than it may be.
pub(super) const RESPONSE_TOO_LARGE: Failure =
    Failure::upstream(502, "response body too large for a plugin that needs all of it");

/// Cause of a relay's end before its time.
enum Broke {
    /// The client does not read, or is gone.
    Client(ClientError),
    /// The node's body is cut or malformed; the client does not see an end of its body.
    Node(&'static str),
    /// A plugin gave up.
    Plugin(Failure),
    /// The time of a gRPC call is over.
    Deadline,
}

/// The time of a gRPC call is over.
const OVER: Failure = Failure::upstream(504, "deadline exceeded");

/// The rest of an upstream's answer, which is still to come.
pub(super) struct Rest<'a> {
    pub(super) node: &'a mut NodeConnection,
    /// Longest time between two reads, in milliseconds.
    pub(super) read_ms: u64,
}

impl<D: Presence> Runner<D> {
    /// Collects the whole body for a plugin that asked for it. An answer without one keeps what its head says of it.
    pub(super) async fn collect_for_plugin(
        &self,
        x: &mut Exchange,
        rest: Option<&mut Rest<'_>>,
    ) -> Result<(), Failure> {
        match rest {
            Some(Rest { node, read_ms }) if !is_bodyless(x) => {
                self.collect(x, node, *read_ms, self.worker.options.buffered_body).await
            }
            _ => {
                x.response.is_bodyless = true;
                Ok(())
            }
        }
    }

    /// Reads the whole body of the node into [`Response::body`](weir_plugin::Response::body).
    async fn collect(
        &self,
        x: &mut Exchange,
        node: &mut NodeConnection,
        read_ms: u64,
        limit: usize,
    ) -> Result<(), Failure> {
        self.timer.set(read_ms);
        loop {
            let (more, len) = (x.response.buffer.len(), x.response.body.len());
            if x.response.body.capacity() - len < more {
                let room = (2 * x.response.body.capacity()).max(len + more);
                // Twice, for it is copied behind the head that the client gets.
                if room > BUFFER && !x.may_grow(2 * room) {
                    return Err(NO_ROOM);
                }
                x.response.body.reserve_exact(room - len);
            }
            let response = &mut x.response;
            let (content, trailers) = (&mut response.body, &mut response.trailers);
            let ended = relay::take_parts(node, &response.buffer, content, trailers).map_err(bad_body)?;
            if response.body.len() > limit {
                return Err(RESPONSE_TOO_LARGE);
            }
            if ended {
                break;
            }
            node.make_room(&mut response.buffer);
            let (down, timer) = (&self.down, &self.timer);
            let read = poll_fn(|cx| match node.poll_receive(cx, &mut response.buffer) {
                Poll::Ready(read) => Poll::Ready(Ok(read.ok())),
                Poll::Pending if down.poll_reset(cx).is_ready() => Poll::Ready(Err(client_gone())),
                Poll::Pending => timer.poll_expired(cx).map(|()| Ok(None)),
            });
            match read.await? {
                // Trailers that came with the end are taken.
                Some(0) if node.end_by_close() => {}
                Some(n) if n > 0 => timer.set(read_ms),
                _ if self.timer.is_over() => return Err(OVER),
                _ => return Err(Failure::upstream(502, "response body cut short")),
            }
        }
        x.response.source = weir_plugin::BodySource::Here;
        Ok(())
    }
}

impl<D: Downstream> Runner<D> {
    /// Lets the plugins see the response and relays it; the rest of the request body goes on meanwhile.
    pub(super) async fn relay_response(
        &mut self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        pending: &mut PendingResponse,
    ) -> Outcome {
        let code = x.response.head.status;
        if let Some(node) = &pending.node {
            attempt.node.observe(node.addr(), Seen::Status(code));
        }
        x.response.origin = Origin::Upstream;
        end_try(x, &self.worker, code);
        attempt.upstream.observe_latency(attempt.node, x, false);
        if let Some(attempt) = x.upstream.tries.last_mut() {
            attempt.head = attempt.end;
        }
        x.times.upstream_end = x.times.now;
        if code == 101 {
            let Some(node) = pending.node.take() else { return Outcome::Cut };
            return self.tunnel(x, attempt.local, node, attempt.timeouts).await;
        }
        let outcome = match self.prepare(x, attempt, pending, code).await {
            Ok(()) if reply::is_replaced(x) => self.send_replaced(x, attempt, pending).await,
            Ok(()) => self.stream_response(x, attempt, pending).await,
            Err(failure) => {
                self.end_node(x, attempt, pending, false);
                self.end_upload(x, pending);
                return self.fail(x, attempt.local, failure).await;
            }
        };
        if attempt.upstream.is_grpc {
            grpc::count(x, &self.worker.recorder);
        }
        outcome
    }

    /// Runs the response phases, and collects the body where a plugin needs all of it.
    async fn prepare(
        &mut self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        pending: &mut PendingResponse,
        code: u16,
    ) -> Result<(), Failure> {
        let snapshot = &attempt.local.snapshot;
        if code >= 500 || self.worker.options.show_upstream_status {
            reply::add_upstream_status(x);
        }
        let rest = pending.node.as_mut().map(|node| Rest { node, read_ms: attempt.timeouts.read });
        self.response_phases(x, attempt.local, rest).await?;
        if x.response.collected && x.response.filtered && !reply::is_replaced(x) {
            let Some(node) = &mut pending.node else { return Err(Failure::internal("node given away early")) };
            self.collect(x, node, attempt.timeouts.read, self.worker.options.buffered_body).await?;
        }
        if x.response.filtered && reply::is_replaced(x) {
            let mut body = std::mem::take(&mut x.response.body);
            let done = phases::on_body(x, snapshot, &mut body, true);
            x.response.body = body;
            done?;
        }
        Ok(())
    }

    /// Takes in the whole answer to a subrequest, of which no plugin hears: head and body are in
    /// [`Exchange::response`] then.
    pub(super) async fn keep_response(
        &mut self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        pending: &mut PendingResponse,
        limit: usize,
    ) -> Result<(), Failure> {
        let code = x.response.head.status;
        end_try(x, &self.worker, code);
        attempt.upstream.observe_latency(attempt.node, x, false);
        let done = match (&mut pending.node, x.response.head.content) {
            (_, Content::Length(length)) if length > limit as u64 => Err(RESPONSE_TOO_LARGE),
            (Some(node), _) => {
                attempt.node.observe(node.addr(), Seen::Status(code));
                self.collect(x, node, attempt.timeouts.read, limit).await
            }
            (None, _) => Err(Failure::internal("node given away early")),
        };
        let uploaded = pending.upload.is_complete();
        self.end_node(x, attempt, pending, done.is_ok() && uploaded);
        self.end_upload(x, pending);
        done
    }

    /// Sends a body that was made or changed here in place of the node's.
    async fn send_replaced(
        &mut self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        pending: &mut PendingResponse,
    ) -> Outcome {
        // The node's body is of no use; if all of it is here, the connection is.
        if let Some(node) = &mut pending.node {
            x.scratch.clear();
            let _ = relay::take_all(node, &x.response.buffer, &mut x.scratch);
        }
        let uploaded = pending.upload.is_complete();
        self.end_node(x, attempt, pending, uploaded);
        self.end_upload(x, pending);
        self.write_reply(x, true).await
    }

    /// Keeps the node's connection for other requests, where that is possible and `may_keep`.
    fn end_node(&self, x: &Exchange, attempt: &Attempt<'_>, pending: &mut PendingResponse, may_keep: bool) {
        let Some(node) = pending.node.take() else { return };
        let Worker { pools, recorder, .. } = &*self.worker;
        if may_keep && node.is_reusable(&x.response.buffer) {
            node.release(pools, attempt.upstream, attempt.node, self.timer.now(), recorder);
        } else {
            node.discard(recorder);
        }
    }

    /// Gives up the rest of a request that the node is not to have any more.
    fn end_upload(&mut self, x: &mut Exchange, pending: &mut PendingResponse) {
        if pending.upload.is_running() {
            self.down.abandon_request();
            pending.upload.stop();
        }
        pending.upload.give_back(x);
    }

    /// Relays the node's body as it comes.
    async fn stream_response(
        &mut self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        pending: &mut PendingResponse,
    ) -> Outcome {
        let bodyless = is_bodyless(x);
        let content = x.response.head.content;
        let filtered = x.response.filtered && !bodyless;
        if filtered {
            x.response.head.fields.remove_known(Known::ContentLength);
        }
        let following = match content {
            _ if bodyless => Following::Nothing,
            Content::None => Following::Nothing,
            Content::Length(_) if !filtered => Following::Announced,
            _ => Following::Open,
        };
        // An answer may come before the request has ended; then the rest of the request follows, if the node takes it.
        if pending.upload.is_running() && !pending.node.as_ref().is_some_and(|node| node.reads_on()) {
            self.down.abandon_request();
        }
        let reads_on = self.down.push_head(x, &self.worker, following, true);
        let mut stream = ResponseStream {
            snapshot: &attempt.local.snapshot,
            timer: &self.timer,
            relay: Relay::default(),
            state: State::Taking,
            filtered,
            // A client that asked with HEAD gets no body even when a plugin made it a GET for the node.
            discards: bodyless && content != Content::None,
            waits: Waits::Nobody,
            read_ms: attempt.timeouts.read,
            send_ms: self.worker.options.send_ms,
        };
        let broke = loop {
            let (down, copy) = (&mut self.down, &mut self.copy);
            match poll_fn(|cx| stream.poll(cx, x, down, pending, copy)).await {
                // The usual case: all of it is here, and the connection is free before the client has read anything.
                Ok(Turn::Taken) if pending.upload.is_complete() => {
                    if pending.node.as_ref().is_some_and(|node| node.is_reusable(&x.response.buffer)) {
                        self.end_node(x, attempt, pending, true);
                    }
                }
                Ok(Turn::Taken) => {}
                Ok(Turn::Sent) => break None,
                Err(Broke::Deadline) if following == Following::Open => {
                    self.timer.cap(u64::MAX);
                    self.end_node(x, attempt, pending, false);
                    if pending.upload.is_running() {
                        self.down.abandon_request();
                        pending.upload.stop();
                    }
                    if let Err(broke) = stream.end_at_deadline(x) {
                        break Some(broke);
                    }
                }
                Err(broke) => break Some(broke),
            }
        };
        if broke.is_none()
            && reads_on
            && pending.upload.is_running()
            && let Some(node) = pending.node.as_mut()
        {
            self.finish_upload(x, &mut pending.upload, node).await;
        }
        if x.timed {
            x.times.now = self.worker.clock.refresh();
        }
        x.times.upstream_end = x.times.now;
        if let Some(attempt) = x.upstream.tries.last_mut() {
            attempt.end = x.times.now - attempt.begin;
        }
        let uploaded = pending.upload.is_complete();
        self.end_node(x, attempt, pending, broke.is_none() && uploaded);
        pending.upload.stop();
        pending.upload.give_back(x);
        match broke {
            None => return Outcome::Answered,
            Some(Broke::Client(reason)) => self.worker.recorder.client_error(reason),
            Some(Broke::Deadline) => {
                x.response.origin = Origin::Failed(Failure::upstream(x.response.status(), OVER.reason));
            }
            Some(Broke::Node(reason) | Broke::Plugin(Failure { reason, .. })) => {
                let node = x.upstream.tries.last().and_then(|t| t.addr.as_ref()).map(tracing::field::display);
                tracing::warn!(node, reason, "response cut off");
                x.response.origin = Origin::Failed(Failure::upstream(x.response.status(), reason));
            }
        }
        Outcome::Cut
    }

    /// Sends the rest of a request whose answer is complete, as far as the node takes it.
    async fn finish_upload(&mut self, x: &mut Exchange, upload: &mut super::upload::Upload, node: &mut NodeConnection) {
        let (down, timer, copy) = (&mut self.down, &self.timer, &mut self.copy);
        timer.set(self.worker.options.body_ms);
        poll_fn(|cx| match upload.poll(cx, down, node, x, timer, copy) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => timer.poll_expired(cx),
        })
        .await;
    }
}

/// A response body on its way to the client.
struct ResponseStream<'a> {
    snapshot: &'a Snapshot,
    timer: &'a Timer,
    relay: Relay,
    state: State,
    /// True when plugins change the body.
    filtered: bool,
    /// True when the node's body is not passed on.
    discards: bool,
    waits: Waits,
    read_ms: u64,
    send_ms: u64,
}

/// A step of a response body, which may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The client's side takes what has arrived.
    Taking,
    /// The client's side takes what plugins have made of it, which is in [`Exchange::scratch`], from this byte on.
    /// `last`: nothing comes after it.
    Passing { from: usize, last: bool },
    /// The bytes taken are written. `last`: that is all.
    Flushing { last: bool },
    /// More has to be received.
    Receiving,
}

/// The end of a turn of a [`ResponseStream`].
enum Turn {
    /// The client's side has taken everything, but may not have sent it.
    Taken,
    /// The client was sent everything.
    Sent,
}

/// The side that a response waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Nobody,
    Client,
    Node,
}

impl ResponseStream<'_> {
    /// Moves on until the client's side has taken everything, and then until all of it has left; the rest of the request
    /// goes on meanwhile.
    fn poll<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        x: &mut Exchange,
        down: &mut D,
        pending: &mut PendingResponse,
        copy: &mut Option<Box<impl BodyCopy>>,
    ) -> Poll<Result<Turn, Broke>> {
        let timer = self.timer;
        if let Poll::Ready(turn) = self.poll_body(cx, x, down, pending) {
            return Poll::Ready(turn);
        }
        // Each state waits for one side alone.
        let (waits, ms) = match self.state {
            State::Receiving => (Waits::Node, self.read_ms),
            _ => (Waits::Client, self.send_ms),
        };
        if self.waits != waits {
            self.waits = waits;
            timer.set(ms);
        }
        if pending.upload.is_running()
            && let Some(node) = pending.node.as_mut()
        {
            // Whatever comes of it, the response goes on.
            match pending.upload.poll(cx, down, node, x, timer, copy) {
                Poll::Ready(Err(failure)) if failure == client_gone() => {
                    return Poll::Ready(Err(Broke::Client(ClientError::Aborted)));
                }
                Poll::Ready(Err(_)) => pending.upload.stop(),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        if waits == Waits::Node && down.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(Broke::Client(ClientError::Aborted)));
        }
        ready!(timer.poll_expired(cx));
        Poll::Ready(Err(match waits {
            _ if timer.is_over() => Broke::Deadline,
            Waits::Node => Broke::Node("read timed out"),
            _ => Broke::Client(ClientError::WriteTimeout),
        }))
    }

    /// Ends the answer to a gRPC call with a status of its own in place of what the node would have sent.
    fn end_at_deadline(&mut self, x: &mut Exchange) -> Result<(), Broke> {
        x.response.trailers.clear();
        x.response.trailers.extend_from_slice(grpc::DEADLINE_EXCEEDED);
        let mut chunk = std::mem::take(&mut x.scratch);
        chunk.clear();
        let done = if self.filtered { phases::on_body(x, self.snapshot, &mut chunk, true) } else { Ok(()) };
        x.scratch = chunk;
        self.waits = Waits::Nobody;
        self.state = State::Passing { from: 0, last: true };
        done.map_err(Broke::Plugin)
    }

    #[inline]
    fn poll_body<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        x: &mut Exchange,
        down: &mut D,
        pending: &mut PendingResponse,
    ) -> Poll<Result<Turn, Broke>> {
        loop {
            match self.state {
                State::Taking if self.discards => self.state = State::Flushing { last: true },
                State::Taking => {
                    let Some(node) = pending.node.as_mut() else {
                        return Poll::Ready(Err(Broke::Node("node given away early")));
                    };
                    if self.filtered {
                        let last = filter(x, node, self.snapshot)?;
                        self.state = State::Passing { from: 0, last };
                        continue;
                    }
                    let Response { buffer, trailers, .. } = &mut x.response;
                    ready!(self.relay.poll_take(cx, (node, buffer), (&mut *down, &mut x.out), |piece, line| {
                        if let Piece::Trailer(_) = piece {
                            trailers.extend_from_slice(line);
                        }
                        Ok(())
                    }))?;
                    self.state = State::Flushing { last: self.relay.has_ended() };
                    if self.relay.has_ended() {
                        return Poll::Ready(Ok(Turn::Taken));
                    }
                }
                State::Passing { mut from, last } => {
                    while let Some(rest) = x.scratch.get(from..).filter(|rest| !rest.is_empty()) {
                        let taken = ready!(down.poll_data(cx, &mut x.out, rest));
                        from += taken.map_err(|_| Broke::Client(ClientError::Aborted))?;
                        self.state = State::Passing { from, last };
                    }
                    self.state = State::Flushing { last };
                    if last {
                        if !x.response.drops_trailers {
                            let lines = x.response.trailers.split_inclusive(|byte| *byte == b'\n');
                            lines.for_each(|line| down.push_trailer(&mut x.out, line));
                        }
                        down.push_end(&mut x.out);
                        return Poll::Ready(Ok(Turn::Taken));
                    }
                }
                State::Flushing { last } => {
                    let sent = ready!(down.poll_flush(cx, &mut x.out));
                    sent.map_err(|_| Broke::Client(ClientError::Aborted))?;
                    if last {
                        return Poll::Ready(Ok(Turn::Sent));
                    }
                    if let Some(node) = pending.node.as_mut() {
                        node.make_room(&mut x.response.buffer);
                    }
                    self.state = State::Receiving;
                }
                State::Receiving => {
                    let Some(node) = pending.node.as_mut() else {
                        return Poll::Ready(Err(Broke::Node("node given away early")));
                    };
                    match ready!(node.poll_receive(cx, &mut x.response.buffer)) {
                        Ok(0) if !node.end_by_close() => {
                            return Poll::Ready(Err(Broke::Node("response body cut short")));
                        }
                        Ok(_) => {}
                        Err(error) => return Poll::Ready(Err(Broke::Node(reason_of_reset(error.kind())))),
                    }
                    self.waits = Waits::Nobody;
                    self.state = State::Taking;
                }
            }
        }
    }
}

/// True for an answer that has no body, whatever its head says.
fn is_bodyless(x: &Exchange) -> bool {
    status::is_bodyless(x.response.head.status) || x.request.method() == Method::Head
}

/// Lets the plugins see what has arrived, which is in [`Exchange::scratch`] then; true when that was the last of it.
fn filter(x: &mut Exchange, node: &mut NodeConnection, snapshot: &Snapshot) -> Result<bool, Broke> {
    let mut chunk = std::mem::take(&mut x.scratch);
    chunk.clear();
    let Response { buffer, trailers, .. } = &mut x.response;
    let seen = relay::take_parts(node, buffer, &mut chunk, trailers)
        .map_err(|reject| Broke::Node(reject.reason))
        .and_then(|last| phases::on_body(x, snapshot, &mut chunk, last).map(|()| last).map_err(Broke::Plugin));
    x.scratch = chunk;
    seen
}

impl From<Broken> for Broke {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Source(Reject { reason, .. }) => Self::Node(reason),
            Broken::Sink => Self::Client(ClientError::Aborted),
        }
    }
}

fn bad_body(reject: Reject) -> Failure {
    Failure::upstream(502, reject.reason)
}
