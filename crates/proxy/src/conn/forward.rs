//! Sending a request to a node and its response back: tries, timeouts, and both bodies at once.

mod head;
mod relay_response;

pub(super) use head::push_status;

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;

use weir_plugin::{Exchange, Failure, Side, Try};
use weir_telemetry::metrics::{ClientError, Label, UpstreamState};
use weir_wire::Reject;
use weir_wire::head::Framing;
use weir_wire::method::Method;

use super::h1::{ClientStream, Connection, Next};
use crate::phases;
use crate::relay::{self, Encode, Pump};
use crate::snapshot::{Local, Route};
use crate::sys::Socket;
use crate::timer::Timer;
use crate::upstream::aside;
use crate::upstream::pool::Connection as Node;
use crate::upstream::{Node as NodeConfig, Timeouts, Upstream};
use crate::worker::Worker;

/// Most interim (1xx) responses passed on for one request.
const MAX_INTERIM: u32 = 64;

/// How soon after connecting a reset means that the node takes no connections.
const AT_ONCE_US: u64 = 100_000;

/// The client has closed the connection before it had its answer; nginx's status for that.
const CLIENT_WENT_AWAY: Reject = Reject::new(499, "client went away");

/// A node that has sent the head of its response. It is lent and not handed on: each hand it went through would hold a
/// place for it in the memory of every connection.
struct Answering {
    /// `None` once it has gone elsewhere.
    node: Option<Node>,
    /// The rest of the request body, still on its way.
    upload: Upload,
}

/// Why a try ended without a response.
struct Ended {
    failure: Failure,
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

    /// The node failed before its response was there.
    fn node(status: u16, reason: &'static str) -> Self {
        Self { failure: Failure::upstream(status, reason), again: true, stale: false, unreachable: false }
    }
}

impl<S: ClientStream> Connection<S> {
    /// Sends the request to a node of `upstream` and its response to the client.
    pub(crate) async fn forward(
        &mut self,
        x: &mut Exchange,
        local: &Local,
        route: &Route,
        upstream: &Upstream,
    ) -> Next {
        let timeouts = route.timeouts.unwrap_or(upstream.timeouts);
        let give_up = self.timer.now().saturating_add(upstream.retry_ms);
        let mut failure = Failure { side: Side::Gateway, ..Failure::upstream(503, "upstream has no node") };
        x.times.upstream_start = x.times.now;
        while let Some(turn) = upstream.pick(&x.upstream.tried) {
            let Some(config) = upstream.nodes.get(usize::from(turn)) else { break };
            x.upstream.tried.push(turn);
            match self.try_node(x, local, route, config, upstream, timeouts).await {
                Ok(mut answering) => {
                    return self.relay_response(x, local, config, upstream, timeouts, &mut answering).await;
                }
                Err(ended) => {
                    failure = ended.failure;
                    end_try(x, &self.worker, failure.status);
                    // A name without an address costs no time, and has one again as soon as it resolves.
                    if ended.unreachable && upstream.nodes.len() > 1 && config.endpoint.is_resolved() {
                        aside::set(&self.worker, &config.endpoint, failure.reason, timeouts.connect);
                    }
                    let spent = x.upstream.tried.len() > upstream.retries as usize || self.timer.now() >= give_up;
                    if !ended.again || spent {
                        break;
                    }
                }
            }
        }
        x.times.upstream_end = x.times.now;
        if failure.side == Side::Client {
            // The request itself was broken; its connection cannot be used any more.
            x.request.head.keep_alive = false;
            self.worker.recorder.client_error(match failure.status {
                408 => ClientError::BodyTimeout,
                413 => ClientError::BodyTooLarge,
                499 => ClientError::Aborted,
                _ => ClientError::BadRequest,
            });
            if failure.status == 499 {
                x.response.begin(499, weir_plugin::Origin::Failed(failure));
                return Next::Close;
            }
        }
        self.fail(x, local, failure).await
    }

    /// One node: over a kept connection, and if that turns out to be closed, over a new one.
    async fn try_node(
        &mut self,
        x: &mut Exchange,
        local: &Local,
        route: &Route,
        config: &NodeConfig,
        upstream: &Upstream,
        timeouts: Timeouts,
    ) -> Result<Answering, Ended> {
        let begin = x.times.now;
        x.upstream.tries.push(Try { addr: None, status: 0, begin, connected: 0, head: 0, end: 0 });
        phases::before_upstream(x, &local.snapshot).map_err(Ended::final_)?;
        let mut kept = self.worker.pools.take(&config.endpoint, self.timer.now(), &self.worker.recorder);
        loop {
            let reused = kept.is_some();
            let node = match kept.take() {
                Some(node) => node,
                None => self.connect(x, config, timeouts.connect).await.map_err(Ended::unconnected)?,
            };
            if let Some(attempt) = x.upstream.tries.last_mut() {
                attempt.addr = Some(node.addr);
            }
            x.upstream.node = Some(node.node);
            if !reused {
                x.times.now = self.worker.clock.refresh();
                if let Some(attempt) = x.upstream.tries.last_mut() {
                    attempt.connected = x.times.now - attempt.begin;
                }
                aside::clear(&self.worker, &config.endpoint);
            }
            head::encode(x, &self.worker.options, upstream, config, route.websocket);
            match self.send(x, node, timeouts).await {
                Err(ended) if reused && ended.stale => {}
                done => return done,
            }
        }
    }

    /// Opens a connection to a node; of a name's addresses, to one that does not refuse at once.
    async fn connect(&mut self, x: &mut Exchange, config: &NodeConfig, timeout: u64) -> Result<Node, Failure> {
        let endpoint = &config.endpoint;
        let mut failure = Failure::upstream(502, "node name has no address");
        let (turn, mut tried) = (endpoint.turn(), 0);
        while let Some(addr) = endpoint.addr(turn, tried) {
            // Who refuses is told as well as who answers.
            let node = self.worker.recorder.labels().intern(&addr.ip().to_string());
            x.upstream.node = Some(node);
            if let Some(attempt) = x.upstream.tries.last_mut() {
                attempt.addr = Some(addr);
            }
            match self.connect_to(addr, node, timeout).await {
                Err(refused) if refused.status == 502 => failure = refused,
                done => return done,
            }
            tried += 1;
        }
        Err(failure)
    }

    async fn connect_to(&mut self, addr: SocketAddr, node: Label, timeout: u64) -> Result<Node, Failure> {
        self.timer.set(timeout);
        let timer = &self.timer;
        let mut connecting = pin!(Socket::connect(addr));
        let stream = poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => timer.poll_expired(cx).map(|()| None),
        });
        let stream = match stream.await {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => return Err(connect_failure(&error)),
            None => return Err(Failure::upstream(504, "connect timed out")),
        };
        self.worker.recorder.upstream_opened(UpstreamState::Active);
        Ok(Node { stream, addr, requests: 0, node })
    }

    /// Sends the head in [`Exchange::out`] and the body, until the head of the response is there.
    async fn send(&mut self, x: &mut Exchange, mut node: Node, timeouts: Timeouts) -> Result<Answering, Ended> {
        node.requests += 1;
        let to = x.request.upstream.method.unwrap_or(x.request.method());
        let mut upload = Upload::new(x, timeouts.send, &self.worker);
        let first = upload.pump.append(&x.request.buffer, &mut x.out).and_then(|()| upload.check_size());
        x.received = x.received.max(upload.pump.position() as u64);
        if let Err(reject) = first {
            self.worker.recorder.upstream_closed(UpstreamState::Active);
            return Err(Ended::final_(refused_body(reject)));
        }
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
                    Poll::Ready(Err(_)) => return Poll::Ready(Got::Reset),
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
                Got::Reset => {
                    // A service that is gone behind a proxy, as of a container: accepted, and reset unread. An orderly
                    // close does not count: that is what a node does that fails over this one request.
                    let at_once = node.requests == 1 && self.worker.clock.refresh() - x.times.now <= AT_ONCE_US;
                    let ended = Ended::node(502, "upstream reset the connection");
                    break Ended { stale: true, unreachable: at_once, ..ended };
                }
                Got::Late if upload.is_running() && upload.waits_for_client() => {
                    break Ended::final_(Reject::new(408, "request body not received in time"));
                }
                Got::Late if upload.is_running() => break Ended::node(504, "send timed out"),
                Got::Late => break Ended::node(504, "read timed out"),
                Got::Broken(reject) => break Ended::final_(refused_body(reject)),
            }
            waits = false;
            match self.take_head(x, to, &mut interim).await {
                Ok(true) => {
                    upload.give_back(x);
                    return Ok(Answering { node: Some(node), upload });
                }
                Ok(false) => {}
                Err(ended) => break ended,
            }
        };
        x.received += upload.received;
        self.worker.recorder.upstream_closed(UpstreamState::Active);
        let untouched = x.response.buffer.is_empty() && interim == 0;
        let unreachable = ended.unreachable && untouched;
        let resend = untouched && !upload.pump.dropped && (to.is_idempotent() || upload.sent == 0);
        upload.give_back(x);
        x.out.clear();
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
                        let room = (response.buffer.capacity() * 2).min(limits.head + 64);
                        response.buffer.grow(room);
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
    Reset,
    Late,
    Broken(Reject),
}

/// A request body on its way to the node.
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
    rate: u64,
    /// When the least rate begins to count, on the timer's clock; and when the body began.
    rate_from: u64,
    began: u64,
}

/// Whom an upload waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Nobody,
    Client,
    Node,
}

impl Upload {
    fn new(x: &mut Exchange, send_ms: u64, worker: &Worker) -> Self {
        let head = &x.request.head;
        let encode = if head.framing == Framing::Chunked { Encode::Chunked } else { Encode::Plain };
        let options = &worker.options;
        let began = worker.timers.now();
        x.scratch.clear();
        Self {
            pump: Pump::new(head.framing, encode, head.len),
            stage: std::mem::take(&mut x.scratch),
            written: 0,
            sent: 0,
            received: 0,
            running: true,
            waits: Waits::Nobody,
            send_ms,
            body_ms: options.body_ms,
            body_size: options.body_size,
            rate: options.body_rate,
            rate_from: began + options.body_rate_grace,
            began,
        }
    }

    fn is_running(&self) -> bool {
        self.running
    }

    fn check_size(&self) -> Result<(), Reject> {
        if self.pump.taken > self.body_size { Err(Reject::new(413, "request body too large")) } else { Ok(()) }
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
        node: &mut Socket,
        buffer: &mut weir_wire::buffer::Buffer,
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
                    self.pump.dropped |= self.sent > 0;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) if self.pump.is_complete() => {
                    self.running = false;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => {}
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
            let now = timer.now();
            if self.rate > 0 && now > self.rate_from && self.received * 1000 < (now - self.began) * self.rate {
                return Poll::Ready(Err(Reject::new(408, "request body too slow")));
            }
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

fn refused_body(reject: Reject) -> Failure {
    Failure { status: reject.status, side: Side::Client, reason: reject.reason }
}

fn connect_failure(error: &io::Error) -> Failure {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "node unreachable",
        io::ErrorKind::TimedOut => "connect timed out",
        // EMFILE, ENFILE, ENOBUFS, EADDRNOTAVAIL: this side has run out of something.
        _ => return Failure { side: Side::Gateway, ..Failure::upstream(502, "cannot open a connection") },
    };
    Failure::upstream(502, reason)
}
