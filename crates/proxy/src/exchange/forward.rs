//! Sending a request to a node of its upstream: attempts, and the request and interim responses of each.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use weir_plugin::host::Exchange;
use weir_plugin::{Failure, Side, Try};

use super::body::{BODY_LATE, client_gone};
use super::upload::Upload;
use super::{Outcome, Runner, grpc, tunnel};
use crate::downstream::Downstream;
use crate::phases;
use crate::relay::Source;
use crate::snapshot::{Local, Route};
use crate::upstream::aside::watch as aside;
use crate::upstream::connection::NodeConnection;
use crate::upstream::endpoint::Choice;
use crate::upstream::outgoing::Outgoing;
use crate::upstream::{Node, Protocol, Timeouts, Upstream};
use crate::worker::Worker;

/// Most interim (1xx) responses passed on for one request.
const MAX_INTERIM: u32 = 64;

/// Most times that a request is sent to one node again because it was refused there unseen.
const MAX_REFUSALS: u32 = 3;

/// Time after connecting within which a reset means that the node takes no connections, in microseconds.
const AT_ONCE_US: u64 = 100_000;

/// One attempt: a request, and the node that is to answer it.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) local: &'a Rc<Local>,
    pub(crate) upstream: &'a Upstream,
    pub(crate) node: &'a Node,
    pub(crate) timeouts: Timeouts,
    pub(crate) outgoing: Outgoing,
}

impl Attempt<'_> {
    /// Protocol that this request speaks with the node: a switch to WebSocket is offered over HTTP/1.1 to a node that may
    /// choose it.
    pub(super) fn protocol(&self, x: &Exchange) -> Protocol {
        match (self.upstream.protocol, self.outgoing) {
            (Protocol::Negotiated, Outgoing::Request { websocket: true }) if x.request.head.websocket => {
                Protocol::Http1
            }
            (protocol, _) => protocol,
        }
    }
}

/// A response whose head is there. It is lent and not handed on: each hand it went through would hold a place for it in
/// the memory of every connection, and cost a copy.
#[derive(Default)]
pub(super) struct PendingResponse {
    /// `None` before the head is there, and once the connection has gone elsewhere.
    pub(super) node: Option<NodeConnection>,
    /// The request, of which a rest may still be on its way.
    pub(super) upload: Upload,
}

/// The end of an attempt without a response.
pub(crate) struct AttemptError {
    pub(crate) failure: Failure,
    /// True when another node may be tried.
    pub(crate) retryable: bool,
    /// True when the connection was kept from before and had been closed by then, so that it says nothing of the node.
    stale: bool,
    /// True when the node has refused the request unseen, so that it may be sent to the same node again.
    refused: bool,
    /// True when the node takes no connections: those that are opened fail, or are reset at once.
    pub(crate) unreachable: bool,
}

impl AttemptError {
    fn final_(failure: impl Into<Failure>) -> Self {
        Self { failure: failure.into(), retryable: false, stale: false, refused: false, unreachable: false }
    }

    /// A connection could not be opened.
    pub(super) fn unconnected(failure: Failure) -> Self {
        // A lack of resources on this side says nothing about the node.
        let retryable = failure.side != Side::Client;
        Self { failure, retryable, stale: false, refused: false, unreachable: failure.side == Side::Upstream }
    }

    /// Something failed before a response was there, and may do better at another node.
    pub(crate) fn failed(failure: Failure) -> Self {
        Self { failure, retryable: failure.side != Side::Client, stale: false, refused: false, unreachable: false }
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
        let deadline = if upstream.is_grpc { self.timer.now().saturating_add(grpc::time_limit(x)) } else { u64::MAX };
        self.timer.cap(deadline);
        let give_up = self.timer.now().saturating_add(upstream.retry_ms).min(deadline);
        let reason = match upstream.discovered {
            Some(_) => "service discovery knows no node of the service",
            None => "upstream has no node",
        };
        let mut failure = Failure { side: Side::Gateway, ..Failure::upstream(503, reason) };
        x.times.upstream_start = x.times.now;
        x.timed |= upstream.balancer.is_timed();
        let mut pending = PendingResponse::default();
        if x.request.is_filtered() {
            pending.upload.filter_with(local);
        }
        while let Some(turn) = upstream.pick(x, self.timer.now()) {
            let Some(node) = upstream.nodes.get(usize::from(turn)) else { break };
            x.upstream.tried.push(turn);
            let _active = upstream.begin(node);
            let attempt = Attempt { local, upstream, node, timeouts, outgoing };
            match self.attempt(x, &attempt, &mut pending).await {
                Ok(()) => {
                    let outcome = self.relay_response(x, &attempt, &mut pending).await;
                    self.timer.cap(u64::MAX);
                    return outcome;
                }
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
        self.timer.cap(u64::MAX);
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
        pending: &mut PendingResponse,
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
        pending: &mut PendingResponse,
    ) -> Result<(), AttemptError> {
        let Attempt { upstream, node: config, outgoing, .. } = *attempt;
        let choice = config.choose(self.timer.now());
        let mut kept = self.take_kept(x, attempt, choice);
        let mut refusals = 0;
        loop {
            let reused = kept.is_some();
            let mut node = match kept.take() {
                Some(node) => node,
                None => self.open(x, attempt, choice).await?,
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
            match self.exchange_heads(x, node, attempt, pending).await {
                Err(error) if error.refused && error.retryable && refusals < MAX_REFUSALS => refusals += 1,
                Err(error) if reused && error.stale => {}
                Err(error) => {
                    config.observe_failure(addr, &error.failure);
                    return Err(error);
                }
                done => return done,
            }
        }
    }

    /// A connection that was kept from before, or a place on one that carries several requests.
    fn take_kept(&self, x: &Exchange, attempt: &Attempt<'_>, choice: Option<Choice>) -> Option<NodeConnection> {
        let Attempt { upstream, node, .. } = *attempt;
        // One with a PROXY header is its client's alone.
        let choice = choice.filter(|_| upstream.proxy_protocol.is_none())?;
        let host = || upstream.host_for(x, node);
        let (pools, recorder) = (&self.worker.pools, &self.worker.recorder);
        let protocol = attempt.protocol(x);
        if protocol != Protocol::Http1 {
            let asked = node.endpoint.tls.is_some().then(host);
            if let Some(stream) = pools.sessions.take(&node.endpoint, choice.addr, asked) {
                return Some(NodeConnection::Http2(stream));
            }
            if protocol == Protocol::Http2 {
                return None;
            }
        }
        pools.take(&node.endpoint, choice.addr, host, self.timer.now(), recorder).map(NodeConnection::Http1)
    }

    /// Sends the head in [`Exchange::out`] and the body, until the head of the response is there.
    async fn exchange_heads(
        &mut self,
        x: &mut Exchange,
        mut node: NodeConnection,
        attempt: &Attempt<'_>,
        pending: &mut PendingResponse,
    ) -> Result<(), AttemptError> {
        let upload = &mut pending.upload;
        let timeouts = attempt.timeouts;
        upload.begin(x, timeouts.send, attempt.upstream.is_grpc, &self.worker);
        x.response.reset();
        let mut interim = 0;
        let mut waits = false;
        let error = loop {
            let (down, timer, copy) = (&mut self.down, &self.timer, &mut self.copy);
            let got = poll_fn(|cx| {
                if upload.is_running() {
                    match upload.poll(cx, down, &mut node, x, timer, copy) {
                        Poll::Ready(Ok(())) | Poll::Pending => {}
                        Poll::Ready(Err(failure)) => return Poll::Ready(Got::Broken(failure)),
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
                    return Poll::Ready(Got::Broken(client_gone()));
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
                    let error = AttemptError::node(502, reason_of_reset(kind));
                    // An answer of the node is no sign of a connection that had been closed.
                    let stale = !matches!(kind, io::ErrorKind::ConnectionAborted | io::ErrorKind::InvalidData);
                    break AttemptError { stale, unreachable, ..error };
                }
                Got::Late if upload.is_running() && upload.waits_for_client() => {
                    break AttemptError::final_(BODY_LATE);
                }
                Got::Late if upload.is_running() => break AttemptError::node(504, "send timed out"),
                Got::Late => break AttemptError::node(504, "read timed out"),
                Got::Broken(failure) => break AttemptError::final_(failure),
            }
            waits = false;
            match self.take_head(x, &mut node, &mut interim).await {
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
        let refused = node.is_refused();
        let may_resend = refused || untouched && !upload.is_cut() && (to.is_idempotent() || node.is_unsent());
        let resend = may_resend && self.down.rewind();
        node.discard(&self.worker.recorder);
        upload.stop();
        upload.give_back(x);
        x.out.clear();
        if let Some(copy) = &mut self.copy {
            copy.restart();
        }
        Err(AttemptError {
            retryable: error.retryable && resend,
            stale: error.stale && resend,
            refused,
            unreachable,
            ..error
        })
    }

    /// Reads response heads and passes interim responses on; true when the final one is there.
    async fn take_head(
        &mut self,
        x: &mut Exchange,
        node: &mut NodeConnection,
        interim: &mut u32,
    ) -> Result<bool, Failure> {
        while node.take_head(x, &self.worker.options.response_head)? {
            match x.response.head.status {
                101 if x.request.head.websocket => {
                    tunnel::check_accept(x)?;
                    return Ok(true);
                }
                101 => return Err(Failure::upstream(502, "upstream switched protocols unasked")),
                100..=199 => {
                    *interim += 1;
                    if *interim > MAX_INTERIM {
                        return Err(Failure::upstream(502, "too many interim responses"));
                    }
                    self.down.push_interim(x);
                    if !x.out.is_empty() && self.send_out(x).await == Outcome::Cut {
                        return Err(client_gone());
                    }
                    node.drop_interim(x);
                }
                _ => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// Words for a connection or stream that has ended unasked, for any protocol.
pub(super) fn reason_of_reset(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionAborted => "upstream reset the stream",
        io::ErrorKind::UnexpectedEof => "upstream closed the connection",
        io::ErrorKind::TimedOut => "upstream does not answer a PING",
        io::ErrorKind::InvalidData => "upstream broke the rules of HTTP/2",
        _ => "upstream reset the connection",
    }
}

/// Result of a node's side of the exchange.
enum Got {
    Bytes,
    Closed(&'static str),
    Reset(io::ErrorKind),
    Late,
    Broken(Failure),
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
