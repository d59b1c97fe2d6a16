//! Sending a request to a node and its response back: tries, timeouts, and both bodies at once.

mod connect;
mod head;
mod response;

pub(crate) use head::push_status;

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use weir_plugin::buffers::NO_ROOM;
use weir_plugin::{BUFFER, Exchange, Failure, Side, Try};
use weir_telemetry::metrics::UpstreamState;
use weir_wire::Reject;
use weir_wire::buffer::Buffer;
use weir_wire::head::Framing;
use weir_wire::method::Method;

use super::body::{BODY_LATE, BODY_TOO_LARGE, CLIENT_WENT_AWAY, Pace, refused_body};
use super::mirror::RequestCopy;
use crate::downstream::h1::{ClientStream, Connection, Next, make_head_room};
use crate::phases;
use crate::relay::{self, Encode, Pump};
use crate::snapshot::{Local, Route};
use crate::timer::Timer;
use crate::upstream::aside;
use crate::upstream::pool::Connection as Node;
use crate::upstream::stream::NodeStream;
use crate::upstream::{Node as NodeConfig, Timeouts, Upstream};
use crate::worker::Worker;

/// Most interim (1xx) responses passed on for one request.
const MAX_INTERIM: u32 = 64;

/// How soon after connecting a reset means that the node takes no connections.
const AT_ONCE_US: u64 = 100_000;

/// A node that sends its response. It is lent and not handed on: each hand it went through would hold a place for it in
/// the memory of every connection, and cost a copy.
#[derive(Default)]
pub(crate) struct Answering {
    /// `None` until it has sent the head, and once it has gone elsewhere.
    node: Option<Box<Node>>,
    /// The request body, of which a rest may still be on its way.
    upload: Upload,
}

/// What is sent to a node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outgoing {
    /// The request, as this node has to see it.
    Request { websocket: bool },
    /// A copy, as it stands in the buffer.
    Copy,
}

/// Why a try ended without a response.
pub(crate) struct Ended {
    pub(crate) failure: Failure,
    /// Whether another node may be tried.
    again: bool,
    /// Whether the connection was kept from before and had been closed by then, so that it says nothing of the node.
    stale: bool,
    /// Whether the node takes no connections: those that are opened fail, or are reset at once.
    unreachable: bool,
}

impl Ended {
    fn final_(failure: impl Into<Failure>) -> Self {
        Self { failure: failure.into(), again: false, stale: false, unreachable: false }
    }

    /// A connection could not be opened.
    fn unconnected(failure: Failure) -> Self {
        // What this side has run out of says nothing of the node.
        Self { failure, again: true, stale: false, unreachable: failure.side == Side::Upstream }
    }

    /// Something failed before a response was there, and may do better at another node.
    fn failed(failure: Failure) -> Self {
        Self { failure, again: true, stale: false, unreachable: false }
    }

    /// The same of the node itself.
    fn node(status: u16, reason: &'static str) -> Self {
        Self::failed(Failure::upstream(status, reason))
    }
}

impl<S: ClientStream> Connection<S> {
    /// Sends the request to a node of `upstream` and its response to the client.
    pub(crate) async fn forward(
        &mut self,
        x: &mut Exchange,
        local: &Rc<Local>,
        route: &Route,
        upstream: &Upstream,
    ) -> Next {
        let timeouts = route.timeouts(upstream);
        let give_up = self.timer.now().saturating_add(upstream.retry_ms);
        let mut failure = Failure { side: Side::Gateway, ..Failure::upstream(503, "upstream has no node") };
        x.times.upstream_start = x.times.now;
        x.timed |= upstream.balancer.is_timed();
        let mut answering = Answering::default();
        while let Some(turn) = upstream.pick(x, self.timer.now()) {
            let Some(config) = upstream.nodes.get(usize::from(turn)) else { break };
            x.upstream.tried.push(turn);
            let _active = upstream.begin(config);
            match self.try_node(x, local, route, config, upstream, &mut answering).await {
                Ok(()) => {
                    return self.relay_response(x, local, config, upstream, timeouts, &mut answering).await;
                }
                Err(ended) => {
                    failure = ended.failure;
                    end_try(x, &self.worker, failure.status);
                    if failure.side == Side::Upstream {
                        upstream.observe_latency(config, x, true);
                    }
                    if ended.unreachable && upstream.nodes.len() > 1 {
                        aside::set(&self.worker, &config.endpoint, failure.reason, timeouts.connect);
                    }
                    let spent = x.upstream.tried.len() > upstream.retries as usize || self.timer.now() >= give_up;
                    if !ended.again || spent {
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
    async fn try_node(
        &mut self,
        x: &mut Exchange,
        local: &Rc<Local>,
        route: &Route,
        config: &NodeConfig,
        upstream: &Upstream,
        answering: &mut Answering,
    ) -> Result<(), Ended> {
        let begin = x.times.now;
        x.upstream.tries.push(Try { addr: None, status: 0, begin, connected: 0, head: 0, end: 0 });
        phases::before_upstream(x, &local.snapshot).map_err(Ended::final_)?;
        if let Some(mirror) = x.upstream.mirror.take() {
            head::encode(x, upstream, config, route.websocket);
            let copy = RequestCopy::begin(x, mirror, local, &self.worker);
            self.copy = copy.and_then(|copy| copy.take(&x.request.buffer));
        }
        let timeouts = route.timeouts(upstream);
        let outgoing = Outgoing::Request { websocket: route.websocket };
        self.reach(x, upstream, config, timeouts, outgoing, answering).await
    }

    /// Over a kept connection, and if that turns out to be closed, over a new one.
    pub(crate) async fn reach(
        &mut self,
        x: &mut Exchange,
        upstream: &Upstream,
        config: &NodeConfig,
        timeouts: Timeouts,
        outgoing: Outgoing,
        answering: &mut Answering,
    ) -> Result<(), Ended> {
        let now = self.timer.now();
        let choice = config.choose(now);
        // One with a PROXY header is its client's alone.
        let pooled = choice.filter(|_| upstream.proxy_protocol.is_none());
        let host = || head::host_for(x, upstream, config);
        let (pools, recorder) = (&self.worker.pools, &self.worker.recorder);
        let mut kept = pooled.and_then(|c| pools.take(&config.endpoint, c.addr, host, now, recorder));
        loop {
            let reused = kept.is_some();
            let node = match kept.take() {
                Some(node) => node,
                None => Box::new(self.connect(x, upstream, config, choice, timeouts.connect).await?),
            };
            let addr = node.addr;
            if let Some(attempt) = x.upstream.tries.last_mut() {
                attempt.addr = Some(config.endpoint.address(addr));
            }
            x.upstream.node = Some(node.node);
            if !reused {
                x.times.now = self.worker.clock.refresh();
                if let Some(attempt) = x.upstream.tries.last_mut() {
                    attempt.connected = x.times.now - attempt.begin;
                }
                aside::clear(&self.worker, &config.endpoint);
            }
            match outgoing {
                Outgoing::Request { websocket } => head::encode(x, upstream, config, websocket),
                Outgoing::Copy => head::put_received(x),
            }
            match self.send(x, node, timeouts, answering).await {
                Err(ended) if reused && ended.stale => {}
                Err(ended) => {
                    config.observe_failure(addr, &ended.failure);
                    return Err(ended);
                }
                done => return done,
            }
        }
    }

    /// Sends the head in [`Exchange::out`] and the body, until the head of the response is there.
    async fn send(
        &mut self,
        x: &mut Exchange,
        mut node: Box<Node>,
        timeouts: Timeouts,
        answering: &mut Answering,
    ) -> Result<(), Ended> {
        node.requests += 1;
        let to = x.request.upstream.method.unwrap_or(x.request.method());
        let upload = &mut answering.upload;
        upload.begin(x, timeouts.send, &self.worker);
        upload.copy = self.copy.take();
        let first = upload.pump.append(&x.request.buffer, &mut x.out).and_then(|()| upload.check_size());
        x.received = x.received.max(upload.pump.position() as u64);
        if let Err(reject) = first {
            self.worker.recorder.upstream_closed(UpstreamState::Active);
            return Err(Ended::final_(refused_body(reject)));
        }
        upload.tee(&x.request.buffer);
        std::mem::swap(&mut upload.stage, &mut x.out);
        x.response.reset();
        let mut interim = 0;
        let mut waits = false;
        let ended = loop {
            let (client, timer) = (&mut self.stream, &self.timer);
            let got = poll_fn(|cx| {
                if upload.is_running() {
                    match upload.poll(cx, client, &mut node.stream, &mut x.request.buffer, timer) {
                        Poll::Ready(Ok(())) | Poll::Pending => {}
                        Poll::Ready(Err(reject)) => return Poll::Ready(Got::Broken(reject)),
                    }
                }
                if !upload.is_running() && !waits {
                    waits = true;
                    timer.set(timeouts.read);
                }
                match relay::poll_read(cx, &mut node.stream, &mut x.response.buffer) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Got::Closed("upstream closed the connection")),
                    Poll::Ready(Ok(_)) => return Poll::Ready(Got::Bytes),
                    Poll::Ready(Err(error)) => return Poll::Ready(Got::Reset(error.kind())),
                    Poll::Pending => {}
                }
                if !upload.is_running() && client.poll_reset(cx).is_ready() {
                    return Poll::Ready(Got::Broken(CLIENT_WENT_AWAY));
                }
                timer.poll_expired(cx).map(|()| Got::Late)
            })
            .await;
            match got {
                Got::Bytes => {}
                Got::Closed(reason) => {
                    break Ended { stale: true, ..Ended::node(502, reason) };
                }
                Got::Reset(kind) => {
                    // A service that is gone behind a proxy, as of a container: accepted, and reset unread. An orderly
                    // close does not count: that is what a node does that fails over this one request.
                    let unreachable = kind == io::ErrorKind::ConnectionReset
                        && node.requests == 1
                        && self.worker.clock.refresh().saturating_sub(x.times.now) <= AT_ONCE_US;
                    let ended = Ended::node(502, "upstream reset the connection");
                    break Ended { stale: true, unreachable, ..ended };
                }
                Got::Late if upload.is_running() && upload.waits_for_client() => {
                    break Ended::final_(BODY_LATE);
                }
                Got::Late if upload.is_running() => break Ended::node(504, "send timed out"),
                Got::Late => break Ended::node(504, "read timed out"),
                Got::Broken(reject) => break Ended::final_(refused_body(reject)),
            }
            waits = false;
            match self.take_head(x, to, &mut interim).await {
                Ok(true) => {
                    upload.give_back(x);
                    answering.node = Some(node);
                    return Ok(());
                }
                Ok(false) => {}
                Err(ended) => break ended,
            }
        };
        x.received += upload.received;
        self.worker.recorder.upstream_closed(UpstreamState::Active);
        let untouched = x.response.buffer.is_empty() && interim == 0;
        let unreachable = ended.unreachable && untouched;
        let unsent = upload.sent <= node.stream.lost() as u64;
        let resend = untouched && !upload.pump.dropped && (to.is_idempotent() || unsent);
        upload.give_back(x);
        x.out.clear();
        self.copy = upload.copy.take();
        if let Some(copy) = &mut self.copy {
            copy.restart();
        }
        Err(Ended { again: ended.again && resend, stale: ended.stale && resend, unreachable, ..ended })
    }

    /// Reads a response head from the buffer and passes interim responses on; true when the final one is there.
    async fn take_head(&mut self, x: &mut Exchange, to: Method, interim: &mut u32) -> Result<bool, Ended> {
        let limits = self.worker.options.response_head;
        loop {
            let response = &mut x.response;
            match response.head.parse(response.buffer.bytes(), &limits, to) {
                Ok(true) => {}
                Ok(false) => {
                    if response.buffer.spare().is_empty() {
                        let room = (response.buffer.capacity() * 2).max(BUFFER).min(limits.head + 64);
                        if !make_head_room(x, room) {
                            return Err(Ended::final_(NO_ROOM));
                        }
                        x.response.buffer.grow(room);
                    }
                    return Ok(false);
                }
                Err(reject) => return Err(Ended::final_(reject)),
            }
            match response.head.status {
                101 if x.request.head.websocket => return Ok(true),
                101 => return Err(Ended::final_(Failure::upstream(502, "upstream switched protocols unasked"))),
                100..=199 => {
                    *interim += 1;
                    if *interim > MAX_INTERIM {
                        return Err(Ended::final_(Failure::upstream(502, "too many interim responses")));
                    }
                    // HTTP/1.0 knows no interim responses (RFC 9110 section 15.2).
                    if x.request.head.minor == 1 {
                        let mut out = std::mem::take(&mut x.out);
                        head::push_status(x, &mut out);
                        x.response.head.fields.write(x.response.buffer.bytes(), &mut out);
                        out.extend_from_slice(b"\r\n");
                        x.out = out;
                        if !self.write_out(x).await {
                            return Err(Ended::final_(client_gone()));
                        }
                    }
                    let len = x.response.head.len;
                    x.response.buffer.consume(len);
                }
                _ => return Ok(true),
            }
        }
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

/// A request body on its way to the node.
#[derive(Default)]
struct Upload {
    pump: Pump,
    /// Bytes to be written before what is in the buffer: the head, and re-framed body.
    stage: Vec<u8>,
    written: usize,
    /// Bytes written to the node.
    sent: u64,
    /// Bytes received from the client since the head.
    received: u64,
    running: bool,
    waits: Waits,
    send_ms: u64,
    body_ms: u64,
    body_size: u64,
    pace: Pace,
    /// A copy that takes part of the body as it goes up.
    copy: Option<Box<RequestCopy>>,
}

/// Whom an upload waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Waits {
    #[default]
    Nobody,
    Client,
    Node,
}

impl Upload {
    /// Begins with the body of this request.
    fn begin(&mut self, x: &mut Exchange, send_ms: u64, worker: &Worker) {
        let head = &x.request.head;
        let encode = if head.framing == Framing::Chunked { Encode::Chunked } else { Encode::Plain };
        x.scratch.clear();
        self.pump = Pump::new(head.framing, encode, head.len);
        self.stage = std::mem::take(&mut x.scratch);
        self.written = 0;
        self.sent = 0;
        self.received = 0;
        self.running = true;
        self.waits = Waits::Nobody;
        self.send_ms = send_ms;
        self.body_ms = worker.options.body_ms;
        self.body_size = x.body_limit;
        self.pace = Pace::new(worker);
    }

    /// Gives the copy what has come of the body.
    fn tee(&mut self, buffer: &Buffer) {
        if let Some(copy) = self.copy.take() {
            self.copy = copy.take(buffer);
        }
    }

    fn is_running(&self) -> bool {
        self.running
    }

    fn check_size(&self) -> Result<(), Reject> {
        if self.pump.taken > self.body_size { Err(BODY_TOO_LARGE) } else { Ok(()) }
    }

    fn waits_for_client(&self) -> bool {
        self.waits == Waits::Client
    }

    /// Gives the memory of the stage back, when nothing in it is needed any more.
    fn give_back(&mut self, x: &mut Exchange) {
        if !self.running && self.stage.capacity() > 0 {
            self.stage.clear();
            x.scratch = std::mem::take(&mut self.stage);
        }
    }

    /// Moves on as far as possible. Ready when nothing is left to send, or the node does not take any more.
    fn poll<C: ClientStream>(
        &mut self,
        cx: &mut std::task::Context<'_>,
        client: &mut C,
        node: &mut NodeStream,
        buffer: &mut Buffer,
        timer: &Timer,
    ) -> Poll<Result<(), Reject>> {
        loop {
            match self.pump.poll_flush(cx, node, buffer, &mut self.stage, &mut self.written, &mut self.sent) {
                Poll::Pending => {
                    self.wait_for(Waits::Node, timer);
                    return Poll::Pending;
                }
                // The node may have answered before it closed: the answer is looked for.
                Poll::Ready(Err(_)) => {
                    self.running = false;
                    self.pump.dropped |= self.sent > 0 && !self.pump.is_complete();
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) if self.pump.is_complete() => {
                    self.running = false;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => {}
            }
            if let Some(copy) = &mut self.copy {
                copy.moved(self.pump.position());
            }
            self.pump.make_room(buffer);
            match relay::poll_read(cx, client, buffer) {
                Poll::Pending => {
                    self.wait_for(Waits::Client, timer);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(CLIENT_WENT_AWAY)),
                Poll::Ready(Ok(n)) => self.received += n as u64,
            }
            self.waits = Waits::Nobody;
            self.pump.refill(buffer, &mut self.stage)?;
            self.check_size()?;
            self.tee(buffer);
            self.pace.check(self.received, timer.now())?;
        }
    }

    fn wait_for(&mut self, whom: Waits, timer: &Timer) {
        if self.waits != whom {
            self.waits = whom;
            timer.set(if whom == Waits::Client { self.body_ms } else { self.send_ms });
        }
    }
}

/// Closes the books on the last try.
fn end_try(x: &mut Exchange, worker: &Worker, status: u16) {
    if x.timed {
        x.times.now = worker.clock.refresh();
    }
    if let Some(attempt) = x.upstream.tries.last_mut() {
        attempt.status = status;
        attempt.end = x.times.now - attempt.begin;
    }
}

fn client_gone() -> Failure {
    refused_body(CLIENT_WENT_AWAY)
}
