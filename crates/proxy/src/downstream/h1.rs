//! HTTP/1.1 client connections (RFC 9112): one task each, which serves a request after the other.

mod encode;

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use weir_net::sys::Socket;
use weir_plugin::host::{BUFFER, Exchange};
use weir_plugin::{Client, Request};
use weir_telemetry::metrics::{ClientError, ConnectionState};
use weir_wire::Reject;
use weir_wire::buffer::Buffer;
use weir_wire::head::{Content, Framing, Version};

use super::{Downstream, Following, NO_ROOM_FOR_HEAD, Presence, linger};
use crate::exchange::Runner;
use crate::http1::{self, Incoming, Outgoing};
use crate::relay::{self, Piece, Sink, Source};
use crate::timer::Timer;
use crate::tls::server::Hosts;
use crate::worker::Worker;

/// Most bytes of an unread request body that are thrown away to keep a connection.
const MAX_DISCARD: u64 = 64 << 10;

/// A client's byte stream.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Ready when there is something to read, without reading it: an idle connection holds no buffer.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Ready when the client has reset the connection; a client that waits for its response never does.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// True while written bytes wait for room in the socket.
    fn has_unsent(&self) -> bool {
        false
    }

    /// True while written bytes are unsent: the socket is full, or the round is not over.
    fn has_pending_write(&self) -> bool {
        false
    }

    /// The connection is about to be closed in the middle of an answer: the client must not take it for whole.
    fn abort(&mut self) {}

    /// Checks that this request may be served on this connection: its host may require a client certificate, which no
    /// client can show without TLS.
    fn admit(&self, request: &Request, hosts: &Hosts) -> Result<(), Reject> {
        Ok(hosts.admit_without_tls(request.host(), request.path())?)
    }

    /// The name that the client asked for by TLS (SNI).
    fn server_name(&self) -> Option<&str> {
        None
    }

    /// The socket, where the bytes of the stream are those of the socket.
    fn plain(&self) -> Option<&Socket> {
        None
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

    fn has_pending_write(&self) -> bool {
        Socket::has_pending_write(self)
    }

    fn plain(&self) -> Option<&Socket> {
        Some(self)
    }
}

/// A client connection.
struct Connection<S> {
    runner: Runner<H1<S>>,
    /// State that the metrics count the connection under: reading a request, or writing a response.
    state: ConnectionState,
}

/// The client of one exchange after the other on an HTTP/1 connection.
pub(crate) struct H1<S> {
    stream: S,
    client: Client,
    /// The body of the request.
    incoming: Incoming,
    /// The response.
    outgoing: Outgoing,
    /// Time from which on no further request is read, on the clock of the timers.
    aged_at: u64,
    /// True while the client may send another request after this one.
    keep_alive: bool,
    /// True when the head of the response has announced `keep_alive`.
    keeps: bool,
    after: After,
}

/// Fate of the connection after an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// Close the connection.
    Close,
    /// The connection is closed, but the client may not have read the answer yet, and bytes it sent may be unread:
    /// closing at once would reset the connection and could destroy the answer (RFC 9112 section 9.6).
    Linger,
    /// Read the next request, which begins so many bytes into the buffer.
    Keep(usize),
}

/// Reason why no request head was read.
enum NoHead {
    /// The client closed, or was idle for too long: nothing is owed to it.
    Gone,
    Refused(Reject),
}

/// Serves a connection until it closes.
pub(crate) async fn serve<S: ClientStream>(stream: S, client: Client, worker: Rc<Worker>) {
    let mut connection = Connection::new(stream, client, worker);
    let worker = Rc::clone(&connection.runner.worker);
    connection.runner.timer.set_idle(worker.options.head_ms);
    while connection.wait_readable().await {
        let mut exchange = worker.take_exchange();
        let stays = connection.requests(&mut exchange).await;
        worker.put_exchange(exchange);
        if !stays {
            break;
        }
        connection.runner.timer.set_idle(worker.options.idle_ms);
    }
    connection.close().await;
}

/// Answers a client that has begun to speak plain HTTP, with these bytes, where TLS is spoken.
pub(crate) async fn refuse_without_tls(stream: Socket, client: Client, worker: Rc<Worker>, received: &[u8]) {
    const REASON: &str = "The plain HTTP request was sent to HTTPS port";
    let mut connection = Connection::new(stream, client, worker);
    let runner = &mut connection.runner;
    runner.timer.set(runner.worker.options.send_ms);
    // Not one of the worker's: nothing of another exchange may stand in it, for the head need not be whole.
    let mut x = Box::<Exchange>::default();
    x.client = client;
    x.request.buffer.extend(received);
    let options = &runner.worker.options;
    if matches!(x.request.parse(&options.head), Ok(Some(_))) {
        // Faults of the target do not matter any more.
        let _ = x.request.accept_head(options.paths);
    }
    runner.begin_refusal(&mut x, Reject::bad(REASON));
    let body = &mut x.response.body;
    body.clear();
    body.extend_from_slice(b"{\"error_msg\":\"400 Bad Request: ");
    body.extend_from_slice(REASON.as_bytes());
    body.extend_from_slice(b"\"}\n");
    runner.send_refusal(&mut x).await;
    connection.close().await;
}

impl<S: ClientStream> Connection<S> {
    fn new(stream: S, client: Client, worker: Rc<Worker>) -> Self {
        let aged_at = worker.timers.now().saturating_add(worker.options.connection_age_ms);
        let down = H1 {
            aged_at,
            stream,
            client,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            keep_alive: false,
            keeps: false,
            after: After::Close,
        };
        Self { runner: Runner::new(down, worker), state: ConnectionState::Waiting }
    }

    /// Waits for the first byte of a request; false when none came in time, the connection has to give way to another, or
    /// the drain closes what is idle.
    async fn wait_readable(&self) -> bool {
        let Runner { down: H1 { stream, .. }, timer, worker, .. } = &self.runner;
        // Of the last answer; the client is not idle before it has taken that.
        let mut unsent = false;
        poll_fn(|cx| {
            if stream.poll_readable(cx).is_ready() {
                return Poll::Ready(true);
            }
            if stream.has_unsent() != unsent {
                unsent = !unsent;
                match unsent {
                    true => timer.set(worker.options.send_ms),
                    false => timer.set_idle(worker.options.idle_ms),
                }
            }
            if timer.poll_expired(cx).is_ready() {
                if unsent {
                    worker.recorder.client_error(ClientError::WriteTimeout);
                }
                return Poll::Ready(false);
            }
            if worker.closes_idle() && !unsent { Poll::Ready(false) } else { Poll::Pending }
        })
        .await
    }

    /// Serves requests as long as bytes of the next one are there; false when the connection is to be closed.
    async fn requests(&mut self, x: &mut Exchange) -> bool {
        loop {
            self.runner.timer.set(self.runner.worker.options.head_ms);
            self.runner.worker.recorder.connection_moved(ConnectionState::Waiting, ConnectionState::Reading);
            self.state = ConnectionState::Reading;
            let stays = self.exchange(x).await;
            self.runner.worker.recorder.connection_moved(self.state, ConnectionState::Waiting);
            if !stays || x.request.buffer.is_empty() {
                return stays;
            }
        }
    }

    /// One request and its response; false when the connection is to be closed.
    async fn exchange(&mut self, x: &mut Exchange) -> bool {
        x.reset();
        let read = self.read_head(x).await;
        let Self { runner, state } = self;
        match read {
            Ok(()) => {}
            Err(NoHead::Gone) => return false,
            Err(NoHead::Refused(reject)) => {
                x.client = runner.down.client;
                runner.refuse(x, reject).await;
                return false;
            }
        }
        runner.worker.recorder.connection_moved(ConnectionState::Reading, ConnectionState::Writing);
        *state = ConnectionState::Writing;
        runner.down.client.requests += 1;
        x.client = runner.down.client;
        runner.serve(x).await;
        runner.down.incoming.settle();
        // Only now: the log phase reads from the buffer.
        let After::Keep(end) = runner.down.after else { return false };
        x.request.buffer.consume(end);
        true
    }

    /// Reads until a whole head is there.
    async fn read_head(&mut self, x: &mut Exchange) -> Result<(), NoHead> {
        let Runner { down, timer, worker, .. } = &mut self.runner;
        let limits = worker.options.head;
        down.after = After::Close;
        down.incoming.begin(Framing::None, 0);
        down.outgoing.begin(false);
        x.request.head_len = 0;
        // Pipelined bytes may be a whole head already.
        let mut look = !x.request.buffer.is_empty();
        // True when the head comes in pieces; a client that lets its head wait gives way to others like an idle one.
        let mut pieces = false;
        loop {
            if look {
                match x.request.parse(&limits) {
                    Ok(Some(http1)) => {
                        if pieces {
                            timer.end_idle();
                        }
                        down.incoming.begin(http1.framing, http1.len);
                        down.keep_alive = http1.keep_alive;
                        return Ok(());
                    }
                    Ok(None) => {}
                    Err(reject) => return Err(NoHead::Refused(reject)),
                }
            }
            if x.request.buffer.spare().is_empty() {
                let room = (x.request.buffer.capacity() * 2).max(BUFFER).min(limits.head.max(BUFFER) + 64);
                if http1::may_hold_head(x, room).is_err() {
                    return Err(NoHead::Refused(NO_ROOM_FOR_HEAD));
                }
                x.request.buffer.grow(room);
            }
            let buffer = &mut x.request.buffer;
            let before = buffer.len();
            if before > 0 && !pieces {
                pieces = true;
                timer.begin_idle();
            }
            let stream = &mut down.stream;
            let read = poll_fn(|cx| {
                if let Poll::Ready(read) = relay::poll_read(cx, stream, buffer) {
                    return Poll::Ready(Some(read));
                }
                timer.poll_expired(cx).map(|()| None)
            });
            match read.await {
                Some(Ok(0)) if before == 0 => {
                    // The client may have ended its side only, before it has taken the last answer.
                    if down.stream.has_pending_write() {
                        down.after = After::Linger;
                    }
                    return Err(NoHead::Gone);
                }
                Some(Ok(0) | Err(_)) => return Err(NoHead::Gone),
                Some(Ok(_)) => {}
                None if before == 0 || timer.gives_way() => return Err(NoHead::Gone),
                None => return Err(NoHead::Refused(Reject::new(408, "request head not received in time"))),
            }
            // A head is only split again when a line has ended, or it may be over its limit: a client that drips bytes
            // costs no more than one that does not.
            let buffer = &x.request.buffer;
            let fresh = buffer.bytes().get(before..).unwrap_or_default();
            look = before == 0 || fresh.contains(&b'\n') || buffer.len() > limits.target.min(limits.head);
        }
    }

    async fn close(&mut self) {
        let Runner { down: H1 { stream, after, .. }, timer, worker, .. } = &mut self.runner;
        if *after != After::Linger {
            return;
        }
        linger::close(stream, timer, worker.options.send_ms).await;
    }
}

impl<S: ClientStream> Source for H1<S> {
    #[inline]
    fn next(&mut self, buffer: &Buffer) -> Result<Piece, Reject> {
        self.incoming.next(buffer)
    }

    #[inline]
    fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        relay::poll_read(cx, &mut self.stream, buffer)
    }

    fn make_room(&mut self, buffer: &mut Buffer) {
        self.incoming.make_room(buffer);
    }
}

impl<S: ClientStream> Sink for H1<S> {
    #[inline]
    fn poll_data(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.outgoing.poll_data(cx, &mut self.stream, out, data)
    }

    fn push_trailer(&mut self, out: &mut Vec<u8>, line: &[u8]) {
        self.outgoing.push_trailer(out, line);
    }

    fn push_end(&mut self, out: &mut Vec<u8>) {
        self.outgoing.push_end(out);
    }

    #[inline]
    fn poll_flush(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<()>> {
        self.outgoing.poll_flush(cx, &mut self.stream, out)
    }
}

impl<S: ClientStream> Presence for H1<S> {
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_reset(cx)
    }
}

impl<S: ClientStream> Downstream for H1<S> {
    type Bytes = S;

    fn admit(&self, request: &Request, hosts: &Hosts) -> Result<(), Reject> {
        self.stream.admit(request, hosts)
    }

    fn server_name(&self) -> Option<&str> {
        self.stream.server_name()
    }

    /// A client that has begun to send the body anyway need not be asked for it (RFC 9110 section 10.1.1).
    fn push_continue(&mut self, x: &mut Exchange) {
        x.out.clear();
        if x.request.head.expect_continue && x.request.buffer.len() <= x.request.head_len {
            x.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    /// HTTP/1.0 has no interim responses (RFC 9110 section 15.2).
    fn push_interim(&mut self, x: &mut Exchange) {
        x.out.clear();
        if x.request.head.version >= Version::Http11 {
            encode::push_interim(x);
        }
    }

    fn push_head(&mut self, x: &mut Exchange, worker: &Worker, following: Following, reads_on: bool) -> bool {
        let head = &x.request.head;
        let mut keeps = self.keep_alive
            && self.client.requests < worker.options.requests_per_connection
            && worker.timers.now() < self.aged_at
            && !worker.is_draining();
        if !reads_on && head.content != Content::None {
            // A client that waits for 100 (Continue) will not send its body after a final answer, or may; and a long
            // body is not waited for only to throw it away.
            keeps &= !head.expect_continue && self.incoming.left() <= x.request.buffer.len() as u64 + MAX_DISCARD;
        }
        // Without a length, an HTTP/1.0 client can only see the end by the connection's.
        let chunked = following == Following::Open && head.version >= Version::Http11;
        keeps &= following != Following::Open || chunked;
        self.outgoing.set_chunked(chunked);
        self.keeps = keeps;
        encode::push_head(x, worker, following, chunked, keeps);
        keeps
    }

    fn push_switch(&mut self, x: &mut Exchange) {
        encode::push_switch(x);
    }

    fn bytes(&mut self) -> &mut S {
        &mut self.stream
    }

    fn replace_body(&mut self, request: &mut Request, body: &[u8]) {
        request.put_body(body, self.incoming.position());
        self.incoming.replaced(body.len());
    }

    fn rewind(&mut self) -> bool {
        self.incoming.rewind()
    }

    fn abandon_request(&mut self) {
        self.keep_alive = false;
    }

    fn received(&self) -> u64 {
        self.incoming.taken()
    }

    fn sent(&self) -> u64 {
        self.outgoing.sent
    }

    async fn finish(&mut self, x: &mut Exchange, timer: &Timer, worker: &Worker) {
        self.after = After::Linger;
        if self.keeps && (self.incoming.is_complete() || self.discard_body(x, timer, worker).await) {
            self.after = After::Keep(self.incoming.position());
        }
    }

    fn reset(&mut self) {
        self.stream.abort();
    }
}

impl<S: ClientStream> H1<S> {
    /// Throws the rest of the request body away, so that the next request can be read; false when that is too much.
    async fn discard_body(&mut self, x: &mut Exchange, timer: &Timer, worker: &Worker) -> bool {
        let most = self.incoming.taken() + MAX_DISCARD;
        timer.set(worker.options.body_ms);
        loop {
            x.scratch.clear();
            match relay::take_all(self, &x.request.buffer, &mut x.scratch) {
                Ok(true) => return true,
                Ok(false) if !x.request.head.expect_continue && self.incoming.taken() <= most => {}
                _ => return false,
            }
            self.incoming.make_room(&mut x.request.buffer);
            let (stream, buffer) = (&mut self.stream, &mut x.request.buffer);
            let read = poll_fn(|cx| match relay::poll_read(cx, stream, buffer) {
                Poll::Ready(read) => Poll::Ready(read.unwrap_or(0)),
                Poll::Pending => timer.poll_expired(cx).map(|()| 0),
            });
            if read.await == 0 {
                return false;
            }
        }
    }
}
