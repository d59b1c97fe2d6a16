//! A connection to a node over HTTP/2: one task owns its socket, and sends what all of its streams have put out in a round
//! with one write.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_telemetry::metrics::{Label, UpstreamState};
use weir_wire::http2::{DEFAULT_FRAME_SIZE, Error, ErrorCode};

use crate::http2::{Connection, Limits, Peer};
use crate::relay;
use crate::upstream::Keepalive;
use crate::upstream::stream::NodeStream;
use crate::worker::Worker;

/// Most streams of one connection at one time, whatever the node allows.
pub(super) const STREAMS: u32 = 128;
/// Bytes of a response that a node may send ahead.
const STREAM_WINDOW: u32 = 64 << 10;
/// Bytes of requests that wait to be written, over all streams.
const WRITE_BUFFER: usize = 64 << 10;
/// Bytes that are read at once, beside a frame of the largest size.
const READ: usize = 16 << 10;
/// Milliseconds without a byte from the node after which a PING goes with the next request.
const QUIET_MS: u64 = 10_000;
/// Milliseconds without a byte from the node after a PING, after which the connection is taken for dead.
const PING_MS: u64 = 10_000;
/// Milliseconds without a stream after which a connection keeps no buffers.
const KEPT_MS: u64 = 1_000;

/// State that the requests on a connection share with its task.
#[derive(Debug)]
pub(crate) struct Session {
    /// State of the protocol. No task holds it while it waits.
    pub(super) connection: RefCell<Connection>,
    /// Address of the node; without meaning for a Unix socket.
    pub(super) addr: SocketAddr,
    /// Metric label of the address.
    pub(super) label: Label,
    /// Name that was asked for with TLS; `None` without TLS.
    pub(super) host: Option<Box<[u8]>>,
    /// Error that broke the connection.
    pub(super) broken: Cell<Option<io::ErrorKind>>,
    /// Requests so far.
    requests: Cell<u32>,
    keepalive: Keepalive,
    /// Time since when there is no stream; `None` while there is one.
    idle_since: Cell<Option<u64>>,
    /// Time of the last bytes from the node.
    heard_at: Cell<u64>,
    /// Time of a PING since which nothing came.
    asked_at: Cell<Option<u64>>,
    /// True when no further stream is opened.
    is_closing: Cell<bool>,
}

impl Session {
    /// Begins a connection on a socket, with a task of its own.
    pub(crate) fn begin(
        stream: NodeStream,
        (addr, label): (SocketAddr, Label),
        keepalive: Keepalive,
        worker: &Rc<Worker>,
    ) -> Rc<Self> {
        let head = worker.options.response_head;
        let mut connection = Connection::new(Limits {
            streams: 0,
            stream_window: STREAM_WINDOW,
            // Streams whose clients do not read never hold others up.
            connection_window: 2 * STREAMS * STREAM_WINDOW,
            frame_size: DEFAULT_FRAME_SIZE,
            write_buffer: WRITE_BUFFER,
            head: head.head,
            fields: head.fields,
            continuations: 64,
            // Resetting streams is the node's right.
            resets: u32::MAX,
            control_frames: 10_000,
            empty_frames: 10_000,
        });
        connection.begin_as_client();
        let now = worker.timers.now();
        let session = Rc::new(Self {
            connection: RefCell::new(connection),
            addr,
            label,
            host: stream.host().map(Into::into),
            broken: Cell::new(None),
            requests: Cell::new(0),
            keepalive,
            idle_since: Cell::new(None),
            heard_at: Cell::new(now),
            asked_at: Cell::new(None),
            is_closing: Cell::new(false),
        });
        let mut task = Task {
            stream,
            session: Rc::clone(&session),
            worker: Rc::clone(worker),
            state: UpstreamState::Active,
            requests: 0,
            has_ended: false,
        };
        weir_runtime::spawn(async move {
            poll_fn(|cx| task.poll(cx)).await;
            task.end();
        });
        session
    }

    /// True for a connection to this address, with TLS for this host.
    pub(super) fn is_for(&self, addr: SocketAddr, host: Option<&[u8]>) -> bool {
        self.addr == addr && self.host.as_deref() == host
    }

    /// True if another stream may be opened now.
    pub(super) fn has_place(&self) -> bool {
        !self.is_closing.get()
            && self.requests.get() < self.keepalive.requests
            && self.connection.borrow().has_place(STREAMS)
    }

    /// True if no further stream can ever be opened.
    pub(super) fn is_used_up(&self) -> bool {
        self.is_closing.get() || self.requests.get() >= self.keepalive.requests || self.connection.borrow().is_used_up()
    }

    fn is_done(&self, connection: &Connection) -> bool {
        let is_closing = self.is_closing.get() || self.requests.get() >= self.keepalive.requests;
        (is_closing || connection.is_used_up()) && connection.streams() == 0
    }

    /// True while there is no stream.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_since.get().is_some()
    }

    /// Counts a request; its number.
    pub(super) fn begin_request(&self) -> u32 {
        let number = self.requests.get() + 1;
        self.requests.set(number);
        number
    }

    /// Closes the connection once its streams have ended.
    pub(super) fn close(&self) {
        self.is_closing.set(true);
        self.connection.borrow_mut().wake();
    }

    /// Closes the connection if it has been idle for too long or does not answer a PING.
    pub(super) fn look_after(&self, now: u64) {
        let is_over = |since: Option<u64>, ms: u64| since.is_some_and(|since| now.saturating_sub(since) >= ms);
        if is_over(self.idle_since.get(), self.keepalive.idle_ms) {
            self.close();
        }
        if is_over(self.idle_since.get(), KEPT_MS) {
            self.connection.borrow_mut().release_memory();
        }
        if is_over(self.asked_at.get(), PING_MS) {
            self.fail(io::ErrorKind::TimedOut, &mut self.connection.borrow_mut());
        }
    }

    /// Ends all streams: the connection is of no use any more.
    fn fail(&self, kind: io::ErrorKind, connection: &mut Connection) {
        if self.broken.get().is_none() {
            self.broken.set(Some(kind));
        }
        connection.die();
        connection.wake();
    }
}

/// The task of a connection.
struct Task {
    stream: NodeStream,
    session: Rc<Session>,
    worker: Rc<Worker>,
    /// State in which the connection is counted.
    state: UpstreamState,
    /// Requests so far.
    requests: u32,
    /// The end of the node's side, or of the connection.
    has_ended: bool,
}

/// A server opens no streams.
struct NoRequests;

impl Peer for NoRequests {
    fn head(&mut self, _: &mut Connection, _: u32, _: bool) -> Result<(), Error> {
        Err(Error::connection(ErrorCode::ProtocolError, "stream that a server opens"))
    }
}

impl Task {
    /// Reads and handles frames, and writes what streams have put out. Ready when nothing more comes of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let session = Rc::clone(&self.session);
        let connection = &mut *session.connection.borrow_mut();
        let now = self.worker.timers.now();
        connection.begin_turn(now, cx);
        self.read(cx, connection, now);
        self.ask(connection, now);
        self.count(connection, now);
        let is_done = session.is_done(connection);
        if is_done {
            connection.go_away();
        }
        self.write(cx, connection);
        // At the end, bytes that cannot be sent at once are not waited for.
        if self.has_ended || is_done || connection.is_dead() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn read(&mut self, cx: &mut Context<'_>, connection: &mut Connection, now: u64) {
        while !self.has_ended && !connection.is_dead() && !connection.is_congested() {
            let input = &mut connection.room.input;
            if input.capacity() == 0 {
                if self.stream.poll_readable(cx).is_pending() {
                    return;
                }
                input.grow(READ + DEFAULT_FRAME_SIZE as usize);
            }
            match relay::poll_read(cx, &mut self.stream, input) {
                Poll::Ready(Ok(1..)) => {
                    self.session.heard_at.set(now);
                    self.session.asked_at.set(None);
                    self.handle(connection);
                }
                Poll::Ready(result) => {
                    self.has_ended = true;
                    let kind = result.err().map_or(io::ErrorKind::UnexpectedEof, |error| error.kind());
                    self.session.fail(kind, connection);
                }
                Poll::Pending => return,
            }
        }
    }

    /// Handles the frames that have come.
    fn handle(&mut self, connection: &mut Connection) {
        let mut input = std::mem::take(&mut connection.room.input);
        let handled = connection.receive(input.bytes(), &mut NoRequests);
        input.consume(*handled.as_ref().unwrap_or(&input.len()));
        connection.room.input = input;
        if let Err(error) = handled {
            tracing::warn!(node = %self.session.addr, code = error.code.name(), reason = error.reason, "HTTP/2 connection to a node failed");
            self.session.broken.set(Some(io::ErrorKind::InvalidData));
            connection.fail(error);
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, connection: &mut Connection) {
        while !self.has_ended {
            match connection.poll_write(cx, &mut self.stream) {
                Poll::Ready(Ok(0)) => return,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    // Bytes that the node has sent before may still be there to be read.
                    self.has_ended = true;
                    self.session.fail(error.kind(), connection);
                }
                Poll::Pending => return,
            }
        }
    }

    /// Sends a PING with the first request behind a silence, so that a connection that is dead is found out soon.
    fn ask(&mut self, connection: &mut Connection, now: u64) {
        let session = &self.session;
        let has_news = std::mem::replace(&mut self.requests, session.requests.get()) != session.requests.get();
        let is_quiet = now.saturating_sub(session.heard_at.get()) >= QUIET_MS;
        if has_news && is_quiet && session.asked_at.get().is_none() {
            session.asked_at.set(Some(now));
            connection.push_ping();
        }
    }

    /// Counts the connection as idle or not.
    fn count(&mut self, connection: &Connection, now: u64) {
        let state = if connection.streams() == 0 { UpstreamState::Idle } else { UpstreamState::Active };
        if state == self.state {
            return;
        }
        self.worker.recorder.upstream_moved(self.state, state);
        self.state = state;
        self.session.idle_since.set((state == UpstreamState::Idle).then_some(now));
    }

    fn end(&mut self) {
        self.session.is_closing.set(true);
        self.session.fail(io::ErrorKind::ConnectionReset, &mut self.session.connection.borrow_mut());
        self.worker.recorder.upstream_closed(self.state);
    }
}
