//! Sending a request to a node of its upstream: attempts, and the request and interim responses of each.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use weir_plugin::{Exchange, Failure, Side, Try};
use weir_wire::Reject;

use super::body::{BODY_LATE, CLIENT_WENT_AWAY, refused_body};
use super::upload::Upload;
use super::{Outcome, Runner};
use crate::downstream::Downstream;
use crate::phases;
use crate::snapshot::{Local, Route};
use crate::upstream::aside::watch as aside;
use crate::upstream::connection::{NodeConnection, Outgoing};
use crate::upstream::{Node, Timeouts, Upstream, h1};
use crate::worker::Worker;

/// Most interim (1xx) responses passed on for one request.
const MAX_INTERIM: u32 = 64;

/// Time after connecting within which a reset means that the node takes no connections, in microseconds.
const AT_ONCE_US: u64 = 100_000;

/// One attempt: a request, and the node that is to answer it.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) local: &'a Rc<Local>,
    pub(super) upstream: &'a Upstream,
    pub(super) node: &'a Node,
    pub(super) timeouts: Timeouts,
    pub(super) outgoing: Outgoing,
}

/// A response whose head is there. It is lent and not handed on: each hand it went through would hold a place for it in
/// the memory of every connection, and cost a copy.
pub(super) struct PendingResponse<N> {
    /// `None` before the head is there, and once the connection has gone elsewhere.
    pub(super) node: Option<Box<N>>,
    /// The request, of which a rest may still be on its way.
    pub(super) upload: Upload,
}

impl<N> Default for PendingResponse<N> {
    fn default() -> Self {
        Self { node: None, upload: Upload::default() }
    }
}

/// The end of an attempt without a response.
pub(super) struct AttemptError {
    pub(super) failure: Failure,
    /// True when another node may be tried.
    pub(super) retryable: bool,
    /// True when the connection was kept from before and had been closed by then, so that it says nothing of the node.
    stale: bool,
    /// True when the node takes no connections: those that are opened fail, or are reset at once.
    pub(super) unreachable: bool,
}

impl AttemptError {
    fn final_(failure: impl Into<Failure>) -> Self {
        Self { failure: failure.into(), retryable: false, stale: false, unreachable: false }
    }

    /// A connection could not be opened.
    pub(super) fn unconnected(failure: Failure) -> Self {
        // What this side has run out of says nothing of the node.
        let retryable = failure.side != Side::Client;
        Self { failure, retryable, stale: false, unreachable: failure.side == Side::Upstream }
    }

    /// Something failed before a response was there, and may do better at another node.
    pub(super) fn failed(failure: Failure) -> Self {
        Self { failure, retryable: failure.side != Side::Client, stale: false, unreachable: false }
    }

    /// The same of the node itself.
    fn node(status: u16, reason: &'static str) -> Self {
        Self::failed(Failure::upstream(status, reason))
    }
}

impl<D: Downstream> Runner<D> {
    /// Sends the request to a node of `upstream` and its response to the client.
    pub(super) async fn forward(
        &mut self,
        x: &mut Exchange,
        local: &Rc<Local>,
        route: &Route,
        upstream: &Upstream,
    ) -> Outcome {
        let timeouts = route.timeouts(upstream);
        let outgoing = Outgoing::Request { websocket: route.websocket };
        let give_up = self.timer.now().saturating_add(upstream.retry_ms);
        let mut failure = Failure { side: Side::Gateway, ..Failure::upstream(503, "upstream has no node") };
        x.times.upstream_start = x.times.now;
        x.timed |= upstream.balancer.is_timed();
        let mut pending = PendingResponse::default();
        while let Some(turn) = upstream.pick(x, self.timer.now()) {
            let Some(node) = upstream.nodes.get(usize::from(turn)) else { break };
            x.upstream.tried.push(turn);
            let _active = upstream.begin(node);
            let attempt = Attempt { local, upstream, node, timeouts, outgoing };
            match self.attempt(x, &attempt, &mut pending).await {
                Ok(()) => return self.relay_response(x, &attempt, &mut pending).await,
                Err(error) => {
                    failure = error.failure;
                    end_try(x, &self.worker, failure.status);
                    if failure.side == Side::Upstream {
                        upstream.observe_latency(node, x, true);
                    }
                    if error.unreachable && upstream.nodes.len() > 1 {
                        aside::set(&self.worker, &node.endpoint, failure.reason, timeouts.connect);
                    }
                    let spent = x.upstream.tried.len() > upstream.retries as usize || self.timer.now() >= give_up;
                    if !error.retryable || spent {
                        break;
                    }
                }
            }
        }
        self.copy = None;
        x.times.upstream_end = x.times.now;
        match failure.side {
            Side::Client => self.fail_body(x, local, failure).await,
            _ => self.fail(x, local, failure).await,
        }
    }

    /// One node.
    async fn attempt(
        &mut self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        pending: &mut PendingResponse<h1::Connection>,
    ) -> Result<(), AttemptError> {
        let begin = x.times.now;
        x.upstream.tries.push(Try { addr: None, status: 0, begin, connected: 0, head: 0, end: 0 });
        phases::before_upstream(x, &attempt.local.snapshot).map_err(AttemptError::final_)?;
        if let Some(mirror) = x.upstream.mirror.take() {
            self.copy_request(x, mirror, attempt);
        }
        self.reach(x, attempt, pending).await
    }

    /// Over a kept connection, and if that turns out to be closed, over a new one.
    pub(super) async fn reach(
        &mut self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        pending: &mut PendingResponse<h1::Connection>,
    ) -> Result<(), AttemptError> {
        let Attempt { upstream, node: config, timeouts, outgoing, .. } = *attempt;
        let now = self.timer.now();
        let choice = config.choose(now);
        // One with a PROXY header is its client's alone.
        let pooled = choice.filter(|_| upstream.proxy_protocol.is_none());
        let host = || upstream.host_for(x, config);
        let (pools, recorder) = (&self.worker.pools, &self.worker.recorder);
        let mut kept = pooled.and_then(|c| pools.take(&config.endpoint, c.addr, host, now, recorder));
        loop {
            let reused = kept.is_some();
            let mut node = match kept.take() {
                Some(node) => node,
                None => Box::new(self.connect(x, attempt, choice).await?),
            };
            let addr = node.addr();
            if let Some(attempt) = x.upstream.tries.last_mut() {
                attempt.addr = Some(config.endpoint.address(addr));
            }
            x.upstream.node = Some(node.label());
            if !reused {
                x.times.now = self.worker.clock.refresh();
                if let Some(attempt) = x.upstream.tries.last_mut() {
                    attempt.connected = x.times.now - attempt.begin;
                }
                aside::clear(&self.worker, &config.endpoint);
            }
            node.push_head(x, upstream, config, outgoing);
            match self.exchange_heads(x, node, timeouts, pending).await {
                Err(error) if reused && error.stale => {}
                Err(error) => {
                    config.observe_failure(addr, &error.failure);
                    return Err(error);
                }
                done => return done,
            }
        }
    }

    /// Sends the head in [`Exchange::out`] and the body, until the head of the response is there.
    async fn exchange_heads<N: NodeConnection>(
        &mut self,
        x: &mut Exchange,
        mut node: Box<N>,
        timeouts: Timeouts,
        pending: &mut PendingResponse<N>,
    ) -> Result<(), AttemptError> {
        let upload = &mut pending.upload;
        upload.begin(x, timeouts.send, &self.worker);
        x.response.reset();
        let mut interim = 0;
        let mut waits = false;
        let error = loop {
            let (down, timer, copy) = (&mut self.down, &self.timer, &mut self.copy);
            let got = poll_fn(|cx| {
                if upload.is_running() {
                    match upload.poll(cx, down, &mut *node, &mut x.request.buffer, timer, copy) {
                        Poll::Ready(Ok(())) | Poll::Pending => {}
                        Poll::Ready(Err(reject)) => return Poll::Ready(Got::Broken(reject)),
                    }
                }
                if !upload.is_running() && !waits {
                    waits = true;
                    timer.set(timeouts.read);
                }
                match node.poll_receive(cx, &mut x.response.buffer) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Got::Closed("upstream closed the connection")),
                    Poll::Ready(Ok(_)) => return Poll::Ready(Got::Bytes),
                    Poll::Ready(Err(error)) => return Poll::Ready(Got::Reset(error.kind())),
                    Poll::Pending => {}
                }
                if !upload.waits_for_client() && down.poll_reset(cx).is_ready() {
                    return Poll::Ready(Got::Broken(CLIENT_WENT_AWAY));
                }
                timer.poll_expired(cx).map(|()| Got::Late)
            })
            .await;
            match got {
                Got::Bytes => {}
                Got::Closed(reason) => {
                    break AttemptError { stale: true, ..AttemptError::node(502, reason) };
                }
                Got::Reset(kind) => {
                    // A service that is gone behind a proxy, as of a container: accepted, and reset unread. An orderly
                    // close does not count: that is what a node does that fails over this one request.
                    let unreachable = kind == io::ErrorKind::ConnectionReset
                        && node.is_first()
                        && self.worker.clock.refresh().saturating_sub(x.times.now) <= AT_ONCE_US;
                    let error = AttemptError::node(502, "upstream reset the connection");
                    break AttemptError { stale: true, unreachable, ..error };
                }
                Got::Late if upload.is_running() && upload.waits_for_client() => {
                    break AttemptError::final_(BODY_LATE);
                }
                Got::Late if upload.is_running() => break AttemptError::node(504, "send timed out"),
                Got::Late => break AttemptError::node(504, "read timed out"),
                Got::Broken(reject) => break AttemptError::final_(refused_body(reject)),
            }
            waits = false;
            match self.take_head(x, &mut *node, &mut interim).await {
                Ok(true) => {
                    upload.give_back(x);
                    pending.node = Some(node);
                    return Ok(());
                }
                Ok(false) => {}
                Err(failure) => break AttemptError::final_(failure),
            }
        };
        let untouched = x.response.buffer.is_empty() && interim == 0;
        let unreachable = error.unreachable && untouched;
        let to = x.request.upstream.method.unwrap_or(x.request.method());
        let may_resend = untouched && !upload.is_cut() && (to.is_idempotent() || node.is_unsent());
        let resend = may_resend && self.down.rewind();
        node.discard(&self.worker.recorder);
        upload.stop();
        upload.give_back(x);
        x.out.clear();
        if let Some(copy) = &mut self.copy {
            copy.restart();
        }
        Err(AttemptError { retryable: error.retryable && resend, stale: error.stale && resend, unreachable, ..error })
    }

    /// Reads response heads and passes interim responses on; true when the final one is there.
    async fn take_head<N: NodeConnection>(
        &mut self,
        x: &mut Exchange,
        node: &mut N,
        interim: &mut u32,
    ) -> Result<bool, Failure> {
        while node.take_head(x, &self.worker.options.response_head)? {
            match x.response.head.status {
                101 if x.request.head.websocket => return Ok(true),
                101 => return Err(Failure::upstream(502, "upstream switched protocols unasked")),
                100..=199 => {
                    *interim += 1;
                    if *interim > MAX_INTERIM {
                        return Err(Failure::upstream(502, "too many interim responses"));
                    }
                    self.down.push_interim(x);
                    if !x.out.is_empty() && self.send_out(x).await == Outcome::Cut {
                        return Err(refused_body(CLIENT_WENT_AWAY));
                    }
                    node.drop_interim(x);
                }
                _ => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// What a node's side of the exchange came to.
enum Got {
    Bytes,
    Closed(&'static str),
    Reset(io::ErrorKind),
    Late,
    Broken(Reject),
}

/// Closes the books on the last try.
pub(super) fn end_try(x: &mut Exchange, worker: &Worker, status: u16) {
    if x.timed {
        x.times.now = worker.clock.refresh();
    }
    if let Some(attempt) = x.upstream.tries.last_mut() {
        attempt.status = status;
        attempt.end = x.times.now - attempt.begin;
    }
}
