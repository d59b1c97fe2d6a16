//! An HTTP/1.1 client connection: one task that owns the sockets of both sides of an exchange.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use weir_plugin::buffers::NO_ROOM;
use weir_plugin::{AddrText, BUFFER, Client, Exchange, Failure, Request, RequestCx, Side};
use weir_telemetry::metrics::{ClientError, ConnectionState};
use weir_wire::Reject;
use weir_wire::head::{Framing, TOO_MANY_FIELDS};
use weir_wire::method::Method;
use weir_wire::name::Known;
use weir_wire::target::Form;

use crate::exchange::mirror::RequestCopy;
use crate::phases::{self, Requests, Verdict};
use crate::readings::{self, AMBIGUOUS};
use crate::relay;
use crate::snapshot::Local;
use crate::sys::Socket;
use crate::timer::Timer;
use crate::tls::server::Hosts;
use crate::worker::Worker;

/// Most bytes of an unread request body that are thrown away to keep a connection.
const MAX_DISCARD: u64 = 64 << 10;
/// There is no room for a large head.
const NO_ROOM_FOR_HEAD: Reject = Reject::new(NO_ROOM.status, NO_ROOM.reason);
/// How long a client may go on sending after a final answer, in milliseconds, and how much.
const LINGER_MS: u64 = 1000;
const LINGER_BYTES: usize = 256 << 10;

/// A client's byte stream.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Ready when there is something to read, without reading it: an idle connection holds no buffer.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Ready when the client has reset the connection, which nobody who waits for an answer does.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Whether bytes that were written wait for the client to make room.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Whether bytes that were written have not been sent yet, for that or because the round has not ended.
    fn owes(&self) -> bool {
        false
    }

    /// The connection is about to be closed in the middle of an answer: the client must not take it for whole.
    fn abort(&mut self) {}

    /// Whether this request may be served on this connection: its host may ask for a client certificate, which nobody
    /// can show without TLS.
    fn admit(&self, request: &Request, hosts: &Hosts) -> Result<(), Reject> {
        Ok(hosts.admit_without_tls(request.host(), request.path())?)
    }
}

impl ClientStream for Socket {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        Socket::poll_readable(self, cx)
    }

    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        Socket::poll_reset(self, cx)
    }

    fn has_unsent(&self) -> bool {
        Socket::has_unsent(self)
    }

    fn owes(&self) -> bool {
        Socket::owes(self)
    }
}

/// A client connection.
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    pub(crate) timer: Timer,
    pub(crate) worker: Rc<Worker>,
    /// A copy of the request, while it waits to be sent upstream.
    pub(crate) copy: Option<Box<RequestCopy>>,
    client: Client,
    /// Bytes of the next request may still be in the kernel after a final answer.
    linger: bool,
    /// What it is counted as while it serves: reading a request, or writing an answer.
    state: ConnectionState,
}

/// What follows an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The next request, which begins so many bytes into the buffer.
    Keep(usize),
    /// The connection is closed.
    Close,
}

/// Why no request head was read.
enum NoHead {
    /// The client closed, or was idle for too long: nothing is owed to it.
    Gone,
    Refused(Reject),
}

/// Serves a connection until it closes.
pub(crate) async fn serve<S: ClientStream>(stream: S, client: Client, worker: Rc<Worker>) {
    let mut connection = Connection::new(stream, client, worker);
    connection.timer.set_idle(connection.worker.options.head_ms);
    while connection.wait_readable().await {
        let mut exchange = connection.worker.take_exchange();
        let next = connection.requests(&mut exchange).await;
        connection.worker.put_exchange(exchange);
        if next == Next::Close {
            break;
        }
        connection.timer.set_idle(connection.worker.options.idle_ms);
    }
    connection.close().await;
}

/// Answers a client that has begun to speak plain HTTP, with these bytes, where TLS is spoken.
pub(crate) async fn refuse_without_tls(stream: Socket, client: Client, worker: Rc<Worker>, received: &[u8]) {
    const REASON: &str = "The plain HTTP request was sent to HTTPS port";
    let mut connection = Connection::new(stream, client, worker);
    connection.timer.set(connection.worker.options.send_ms);
    // Not one of the worker's: nothing of another exchange may stand in it, for the head need not be whole.
    let mut x = Box::<Exchange>::default();
    x.request.buffer.extend(received);
    let options = &connection.worker.options;
    if x.request.head.parse(x.request.buffer.bytes(), &options.head) == Ok(true) {
        // What is wrong with its target does not matter any more.
        let _ = x.request.accept_head(options.paths);
    }
    connection.begin_refusal(&mut x, Reject::bad(REASON));
    let body = &mut x.response.body;
    body.clear();
    body.extend_from_slice(b"{\"error_msg\":\"400 Bad Request: ");
    body.extend_from_slice(REASON.as_bytes());
    body.extend_from_slice(b"\"}\n");
    connection.send_refusal(&mut x).await;
    connection.close().await;
}

impl<S: ClientStream> Connection<S> {
    pub(crate) fn new(stream: S, client: Client, worker: Rc<Worker>) -> Self {
        let timer = worker.timers.timer();
        Self { stream, timer, worker, copy: None, client, linger: false, state: ConnectionState::Waiting }
    }

    /// Waits for the first byte of a request; false when none came in time, the connection has to give way to another, or
    /// the drain closes what is idle.
    async fn wait_readable(&self) -> bool {
        // Of the last answer; the client is not idle before it has taken that.
        let mut unsent = false;
        poll_fn(|cx| {
            if self.stream.poll_readable(cx).is_ready() {
                return Poll::Ready(true);
            }
            if self.stream.has_unsent() != unsent {
                unsent = !unsent;
                let options = &self.worker.options;
                match unsent {
                    true => self.timer.set(options.send_ms),
                    false => self.timer.set_idle(options.idle_ms),
                }
            }
            if self.timer.poll_expired(cx).is_ready() {
                if unsent {
                    self.worker.recorder.client_error(ClientError::WriteTimeout);
                }
                return Poll::Ready(false);
            }
            if self.worker.closes_idle() && !unsent { Poll::Ready(false) } else { Poll::Pending }
        })
        .await
    }

    /// Serves requests as long as bytes of the next one are there.
    async fn requests(&mut self, x: &mut Exchange) -> Next {
        self.timer.set(self.worker.options.head_ms);
        loop {
            self.worker.recorder.connection_moved(ConnectionState::Waiting, ConnectionState::Reading);
            self.state = ConnectionState::Reading;
            let next = self.exchange(x).await;
            self.worker.recorder.connection_moved(self.state, ConnectionState::Waiting);
            if next == Next::Close || x.request.buffer.is_empty() {
                return next;
            }
            self.timer.set(self.worker.options.head_ms);
        }
    }

    /// One request and its response.
    async fn exchange(&mut self, x: &mut Exchange) -> Next {
        x.reset();
        match self.read_head(x).await {
            Ok(()) => {}
            Err(NoHead::Gone) => return Next::Close,
            Err(NoHead::Refused(reject)) => return self.refuse(x, reject).await,
        }
        self.worker.recorder.request_started();
        self.worker.recorder.connection_moved(ConnectionState::Reading, ConnectionState::Writing);
        self.state = ConnectionState::Writing;
        let now = self.worker.clock.refresh();
        x.times.start = now;
        x.times.now = now;
        x.times.unix_ms = self.worker.clock.unix_ms();
        self.client.requests += 1;
        x.client = self.client;
        x.received = x.request.head.len as u64;
        x.body_limit = self.worker.options.body_size;
        if let Err(reject) = self.accept_head(x) {
            return self.refuse(x, reject).await;
        }
        let Some(local) = self.worker.current() else {
            return self.refuse(x, Reject::new(503, "no configuration")).await;
        };
        if let Err(reject) = self.admit(x, &local) {
            return self.refuse(x, reject).await;
        }
        let next = if self.is_for_the_gateway(x) {
            let _ = RequestCx(x).reply(200).field("Allow", b"GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS").done();
            self.send_reply(x, &local).await
        } else {
            self.run(x, &local).await
        };
        self.log(x, &local);
        // Only now: the log phase reads from the buffer.
        if let Next::Keep(len) = next {
            x.request.buffer.consume(len);
        }
        next
    }

    /// Reads until a whole head is there.
    async fn read_head(&mut self, x: &mut Exchange) -> Result<(), NoHead> {
        let limits = self.worker.options.head;
        // Pipelined bytes may be a whole head already.
        let mut look = !x.request.buffer.is_empty();
        // Whether the head comes in pieces; a client that lets it wait gives way to others as one that sends nothing.
        let mut pieces = false;
        loop {
            if look {
                let request = &mut x.request;
                match request.head.parse(request.buffer.bytes(), &limits) {
                    Ok(true) => {
                        if pieces {
                            self.timer.end_idle();
                        }
                        return Ok(());
                    }
                    Ok(false) => {}
                    Err(reject) => return Err(NoHead::Refused(reject)),
                }
            }
            if x.request.buffer.spare().is_empty() {
                let room = (x.request.buffer.capacity() * 2).max(BUFFER).min(limits.head.max(BUFFER) + 64);
                if !make_head_room(x, room) {
                    return Err(NoHead::Refused(NO_ROOM_FOR_HEAD));
                }
                x.request.buffer.grow(room);
            }
            let buffer = &mut x.request.buffer;
            let before = buffer.len();
            let (stream, timer) = (&mut self.stream, &self.timer);
            if before > 0 && !pieces {
                pieces = true;
                timer.begin_idle();
            }
            let read = poll_fn(|cx| {
                if let Poll::Ready(read) = relay::poll_read(cx, stream, buffer) {
                    return Poll::Ready(Some(read));
                }
                timer.poll_expired(cx).map(|()| None)
            });
            match read.await {
                Some(Ok(0)) if before == 0 => {
                    // It may have ended its side only, before it has taken the last answer.
                    self.linger = self.stream.owes();
                    return Err(NoHead::Gone);
                }
                Some(Ok(0) | Err(_)) => {
                    self.linger = false;
                    return Err(NoHead::Gone);
                }
                Some(Ok(_)) => {}
                None if before == 0 || self.timer.gives_way() => return Err(NoHead::Gone),
                None => return Err(NoHead::Refused(Reject::new(408, "request head not received in time"))),
            }
            // A head is only split again when a line has ended, or it may be over its limit: a client that drips bytes
            // costs no more than one that does not.
            let buffer = &x.request.buffer;
            let fresh = buffer.bytes().get(before..).unwrap_or_default();
            look = before == 0 || fresh.contains(&b'\n') || buffer.len() > limits.target.min(limits.head);
        }
    }

    /// What is checked of a head before anything is done with it.
    fn accept_head(&self, x: &mut Exchange) -> Result<(), Reject> {
        let options = &self.worker.options;
        x.request.accept_head(options.paths)?;
        match x.request.method() {
            Method::Connect => return Err(Reject::bad("CONNECT is not for a gateway")),
            Method::Trace => return Err(Reject::new(405, "TRACE is not served")),
            _ => {}
        }
        if x.request.form() == Form::Asterisk && x.request.method() != Method::Options {
            return Err(Reject::bad("asterisk target without OPTIONS"));
        }
        if let Some(real_ip) = &options.real_ip {
            let fields = &x.request.head.fields;
            let base = x.request.buffer.bytes();
            if let Some(addr) = real_ip.client(self.client.sender, fields.all(base, &real_ip.field)) {
                x.client.addr = addr;
                x.client.addr_text = AddrText::new(addr);
            }
        }
        if x.request.head.fields.may_have_forwarding() {
            options.distrust(x);
        }
        Ok(())
    }

    /// Whether the configuration lets the request be served on this connection, by this path.
    fn admit(&self, x: &mut Exchange, local: &Local) -> Result<(), Reject> {
        let snapshot = &*local.snapshot;
        self.stream.admit(&x.request, &snapshot.tls)?;
        let options = &self.worker.options;
        if x.request.has_other_readings() && !options.ambiguous_paths {
            x.tables = Some(Rc::clone(&local.tables));
            let admits = |request: &Request| self.stream.admit(request, &snapshot.tls).is_ok();
            if readings::other_way(x, snapshot, options.paths, admits).is_some() {
                return Err(AMBIGUOUS);
            }
        }
        Ok(())
    }

    /// `OPTIONS *`, or OPTIONS that may go no further (RFC 9110 section 7.6.2); otherwise its hop count goes down.
    fn is_for_the_gateway(&self, x: &mut Exchange) -> bool {
        if x.request.method() != Method::Options {
            return false;
        }
        let request = &mut x.request;
        let base = request.buffer.bytes();
        let hops = request.head.fields.get_known(base, Known::MaxForwards).map(std::str::from_utf8);
        match hops.map(|text| text.ok().and_then(|t| t.parse::<u64>().ok())) {
            _ if request.form() == Form::Asterisk => true,
            Some(Some(0)) => true,
            Some(Some(n)) => {
                request.head.fields.set_str(base, b"Max-Forwards", (n - 1).to_string().as_bytes());
                false
            }
            _ => false,
        }
    }

    /// Route, plugins, and then the answer or the upstream.
    async fn run(&mut self, x: &mut Exchange, local: &Rc<Local>) -> Next {
        let snapshot = &*local.snapshot;
        x.tables = Some(Rc::clone(&local.tables));
        phases::find_route(x, snapshot);
        let route = phases::route(x, snapshot);
        x.timed = self.worker.access_log.is_some() || phases::has_log(x, snapshot, route);
        let mut requests = Requests::default();
        let mut verdict = requests.run(x, snapshot, route);
        loop {
            let next = match verdict {
                Verdict::Suspended(step) => {
                    let flow = step.plugin.request_io(&mut RequestCx(x)).await;
                    x.times.now = self.worker.clock.refresh();
                    requests.resumed(flow, step, x)
                }
                Verdict::AwaitsBody(step) => {
                    if let Err(failure) = self.collect_body(x).await {
                        return self.fail_body(x, local, failure).await;
                    }
                    x.times.now = self.worker.clock.refresh();
                    requests.collected(step, x)
                }
                _ => break,
            };
            verdict = next.unwrap_or_else(|| requests.run(x, snapshot, route));
        }
        match verdict {
            Verdict::Forward(_) if is_too_long(x) => self.fail_body(x, local, Failure::BODY_TOO_LARGE).await,
            Verdict::Forward(route) => {
                match x.upstream.chosen.or(route.upstream).and_then(|u| snapshot.upstreams.get(u)) {
                    Some(upstream) => self.forward(x, local, route, upstream).await,
                    None => {
                        let failure =
                            Failure { side: Side::Gateway, ..Failure::upstream(503, "route has no upstream") };
                        self.fail(x, local, failure).await
                    }
                }
            }
            Verdict::Answered => self.send_reply(x, local).await,
            Verdict::Failed(Failure::BODY_TOO_LARGE) => self.fail_body(x, local, Failure::BODY_TOO_LARGE).await,
            Verdict::Failed(failure) => self.fail(x, local, failure).await,
            // The loop above ends only otherwise.
            Verdict::Suspended(_) | Verdict::AwaitsBody(_) => Next::Close,
        }
    }

    /// Whether the client may send another request on this connection.
    pub(crate) fn may_keep(&self, x: &Exchange) -> bool {
        x.request.head.keep_alive
            && self.client.requests < self.worker.options.requests_per_connection
            && !self.worker.is_draining()
    }

    /// Refuses what is no request to be served: no plugin sees it.
    async fn refuse(&mut self, x: &mut Exchange, reject: Reject) -> Next {
        self.begin_refusal(x, reject);
        self.send_refusal(x).await
    }

    fn begin_refusal(&mut self, x: &mut Exchange, reject: Reject) {
        let failure = match reject {
            NO_ROOM_FOR_HEAD => NO_ROOM,
            _ => {
                self.worker.recorder.client_error(client_error(reject));
                reject.into()
            }
        };
        if x.times.start == 0 {
            x.times.start = self.worker.clock.refresh();
            x.times.unix_ms = self.worker.clock.unix_ms();
            x.client = self.client;
        }
        x.times.now = x.times.start;
        x.request.head.keep_alive = false;
        tracing::info!(client = %self.client.addr_text, status = reject.status, reason = reject.reason, "request refused");
        self.begin_failure(x, failure);
    }

    async fn send_refusal(&mut self, x: &mut Exchange) -> Next {
        self.linger = true;
        self.write_reply(x, false).await;
        x.times.now = self.worker.clock.refresh();
        if let Some(log) = &self.worker.access_log {
            x.prepare_log();
            if let Some(local) = self.worker.current() {
                x.request.mask_arguments(&local.snapshot.credential_arguments);
            }
            log.write(x);
        }
        Next::Close
    }

    /// Throws the rest of the request body away, so that the next request can be read, and gives where that begins;
    /// `None` when that is too much.
    pub(crate) async fn discard_body(&mut self, x: &mut Exchange) -> Option<usize> {
        if let Some(end) = x.request.body_end() {
            return Some(end);
        }
        let head = &x.request.head;
        let mut pump = relay::Pump::new(head.framing, relay::Encode::Plain, head.len);
        let expected = head.expect_continue;
        self.timer.set(self.worker.options.body_ms);
        loop {
            x.scratch.clear();
            let from = pump.position();
            if pump.decode(&x.request.buffer, &mut x.scratch).is_err() {
                return None;
            }
            x.received += (pump.position() - from) as u64;
            if pump.is_complete() {
                return Some(pump.position());
            }
            // A client that waits for 100 (Continue) will not send its body after a final answer, or may.
            if expected || pump.taken > MAX_DISCARD {
                return None;
            }
            pump.make_room(&mut x.request.buffer);
            let (stream, timer, buffer) = (&mut self.stream, &self.timer, &mut x.request.buffer);
            let read = poll_fn(|cx| match relay::poll_read(cx, stream, buffer) {
                Poll::Ready(read) => Poll::Ready(read.unwrap_or(0)),
                Poll::Pending => timer.poll_expired(cx).map(|()| 0),
            });
            if read.await == 0 {
                return None;
            }
        }
    }

    /// The client may not have read the answer yet, and bytes it sent may be unread: closing now would reset the
    /// connection and could destroy the answer (RFC 9112 section 9.6).
    pub(crate) fn set_linger(&mut self) {
        self.linger = true;
    }

    async fn close(&mut self) {
        if !self.linger {
            return;
        }
        self.timer.set(self.worker.options.send_ms);
        let (stream, timer) = (&mut self.stream, &self.timer);
        if !matches!(timer.within(stream.shutdown()).await, Some(Ok(()))) {
            return;
        }
        timer.set(LINGER_MS);
        let mut sink = vec![0u8; 4096];
        let mut left = LINGER_BYTES;
        poll_fn(|cx| {
            loop {
                // Enough was thrown away, but the answer may still be on its way: what is unread now waits with it.
                if left == 0 {
                    return timer.poll_expired(cx);
                }
                let mut room = tokio::io::ReadBuf::new(&mut sink);
                match std::pin::Pin::new(&mut *stream).poll_read(cx, &mut room) {
                    Poll::Ready(Ok(())) if !room.filled().is_empty() => {
                        left = left.saturating_sub(room.filled().len());
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return timer.poll_expired(cx),
                }
            }
        })
        .await;
    }
}

/// Whether a head may have so much room. It is copied and decoded on its way, so a large one takes four times its size.
pub(crate) fn make_head_room(x: &mut Exchange, room: usize) -> bool {
    room <= BUFFER || x.may_grow(4 * room)
}

/// Whether more is announced than the body may have, now that every plugin has had its say about that.
fn is_too_long(x: &Exchange) -> bool {
    matches!(x.request.head.framing, Framing::Length(n) if n > x.body_limit)
}

fn client_error(reject: Reject) -> ClientError {
    match reject.status {
        405 => ClientError::MethodNotAllowed,
        408 => ClientError::HeadTimeout,
        413 => ClientError::BodyTooLarge,
        414 => ClientError::TargetTooLong,
        417 => ClientError::ExpectationFailed,
        431 if reject == TOO_MANY_FIELDS => ClientError::TooManyHeaders,
        431 => ClientError::HeadTooLarge,
        501 => ClientError::UnknownCoding,
        505 => ClientError::UnsupportedVersion,
        _ => ClientError::BadRequest,
    }
}
