//! HTTP/2 client connections (RFC 9113): one task each, which owns the socket; streams have tasks of their own.

mod encode;
mod head;
mod stream;

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_net::sys::Socket;
use weir_plugin::Client;
use weir_telemetry::metrics::{ClientError, ConnectionState};
use weir_wire::http2::{Error, ErrorCode, PREFACE};

use super::h1::ClientStream;
use super::linger;
use crate::http2::{Abuse, Connection, Shared, TlsFacts};
use crate::relay;
use crate::timer::Timer;
use crate::worker::Worker;

/// Bytes that are read at once, beside a frame of the largest size.
const READ: usize = 16 << 10;

/// A client connection.
struct Task<S> {
    stream: S,
    shared: Rc<Shared>,
    worker: Rc<Worker>,
    timer: Timer,
    /// Bytes of the preface that have not come yet.
    preface: &'static [u8],
    /// Requests so far.
    requests: u64,
    /// Time from which on no further stream is served.
    aged_at: u64,
    /// Event that it waits for.
    waits: Waits,
    /// State in which it is counted.
    state: ConnectionState,
    /// The end of the client's side, or of the connection.
    has_ended: bool,
}

/// Event that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Its streams.
    Streams,
    /// The client, to send the next request.
    Request,
    /// The client, to send the rest of a frame or of a header block.
    Frame,
    /// The client, to take what was written.
    Room,
}

/// Serves a connection until it closes.
pub(crate) async fn serve<S: ClientStream>(stream: S, client: Client, tls: Option<TlsFacts>, worker: Rc<Worker>) {
    let mut connection = Connection::new(worker.options.http2);
    connection.begin_as_server();
    let shared = Shared::new(connection, client, tls);
    let timer = worker.timers.timer();
    timer.set_idle(worker.options.head_ms);
    let aged_at = timer.now().saturating_add(worker.options.connection_age_ms);
    let mut task = Task {
        stream,
        shared,
        worker,
        timer,
        preface: PREFACE,
        requests: 0,
        aged_at,
        waits: Waits::Frame,
        state: ConnectionState::Waiting,
        has_ended: false,
    };
    poll_fn(|cx| task.poll(cx)).await;
    task.close().await;
}

/// True if a client begins with the preface of HTTP/2; `None` if it does not tell within the time for a head.
pub(crate) async fn knows_http2(stream: &Socket, worker: &Worker) -> Option<bool> {
    let timer = worker.timers.timer();
    timer.set_idle(worker.options.head_ms);
    let looks = poll_fn(|cx| {
        stream.poll_peek(cx, &mut [0; PREFACE.len()], |bytes, has_ended| {
            // A method of HTTP/1 differs within three bytes.
            let is_like = PREFACE.starts_with(bytes) && !has_ended;
            (!is_like || bytes.len() == PREFACE.len()).then_some(is_like)
        })
    });
    timer.within(looks).await?.ok()
}

impl<S: ClientStream> Task<S> {
    /// Reads, hands streams to their tasks, and writes what these have put out. Ready when nothing more comes of the
    /// connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let shared = Rc::clone(&self.shared);
        let connection = &mut *shared.connection.borrow_mut();
        connection.begin_turn(self.timer.now(), cx);
        loop {
            self.read(cx, connection);
            self.end_service(connection);
            let was_congested = connection.is_congested();
            self.write(cx, connection);
            // Frames that were not read for want of room in the write buffer are there still.
            if !was_congested || connection.is_congested() || self.has_ended {
                break;
            }
        }
        let is_flushed = connection.pending() == 0 && !self.stream.has_unsent();
        let is_over = connection.is_dead() || connection.is_going_away();
        if self.has_ended || (is_over && is_flushed && connection.streams() == 0) {
            return Poll::Ready(());
        }
        self.count(connection);
        if self.poll_late(cx, connection).is_ready() {
            return Poll::Ready(());
        }
        if self.waits == Waits::Request && connection.streams() == 0 {
            self.worker.rooms.put(std::mem::take(&mut connection.room));
        }
        Poll::Pending
    }

    /// Reads and handles frames, as long as there are any.
    fn read(&mut self, cx: &mut Context<'_>, connection: &mut Connection) {
        while !self.has_ended && !connection.is_dead() && !connection.is_congested() {
            if connection.room.input.capacity() == 0 {
                // Asked before memory is taken: an idle connection has none.
                if self.stream.poll_readable(cx).is_pending() {
                    return;
                }
                self.worker.rooms.take(&mut connection.room);
                connection.room.input.grow(READ + self.worker.options.http2.frame_size as usize);
            }
            // Frames that were left, because there was no place for a stream or no room for answers.
            if !connection.room.input.is_empty() && !self.handle(connection) {
                return;
            }
            let input = &mut connection.room.input;
            if input.spare().is_empty() {
                return;
            }
            match relay::poll_read(cx, &mut self.stream, input) {
                Poll::Ready(Ok(1..)) => {
                    if !self.handle(connection) {
                        return;
                    }
                }
                Poll::Ready(Ok(_) | Err(_)) => {
                    self.has_ended = true;
                    connection.die();
                }
                Poll::Pending => return,
            }
        }
    }

    /// Handles the frames that have come; false when the connection has failed.
    fn handle(&mut self, connection: &mut Connection) -> bool {
        let mut input = std::mem::take(&mut connection.room.input);
        let handled = self.handle_input(input.bytes(), connection);
        input.consume(*handled.as_ref().unwrap_or(&usize::MAX));
        connection.room.input = input;
        if let Err(error) = handled {
            self.refuse(connection, error);
            return false;
        }
        true
    }

    fn handle_input(&mut self, input: &[u8], connection: &mut Connection) -> Result<usize, Error> {
        let mut at = 0;
        if !self.preface.is_empty() {
            at = self.preface.len().min(input.len());
            let (there, rest) = self.preface.split_at_checked(at).unwrap_or_default();
            if !input.starts_with(there) {
                return Err(Error::connection(ErrorCode::ProtocolError, "no preface of HTTP/2"));
            }
            self.preface = rest;
        }
        let mut client = stream::Requests { shared: &self.shared, worker: &self.worker, requests: &mut self.requests };
        let used = connection.receive(input.get(at..).unwrap_or_default(), &mut client)?;
        Ok(at + used)
    }

    /// Closes the connection for an error of the client, who is told.
    fn refuse(&self, connection: &mut Connection, error: Error) {
        let reason = match connection.abuse {
            Some(Abuse::Resets) => ClientError::Http2Resets,
            Some(Abuse::ControlFrames) => ClientError::Http2ControlFrames,
            Some(Abuse::EmptyFrames) => ClientError::Http2EmptyFrames,
            Some(Abuse::HeaderBlock) => ClientError::Http2HeaderBlock,
            None => ClientError::Http2Protocol,
        };
        self.worker.recorder.client_error(reason);
        tracing::info!(client = %self.shared.client.addr_text, code = error.code.name(), reason = error.reason, "HTTP/2 connection refused");
        connection.fail(error);
    }

    /// Writes what was put out, all of it at once.
    fn write(&mut self, cx: &mut Context<'_>, connection: &mut Connection) {
        loop {
            match connection.poll_write(cx, &mut self.stream) {
                Poll::Ready(Ok(0)) => return,
                Poll::Ready(Ok(_)) => {
                    connection.has_cut_stream = false;
                    if self.waits == Waits::Room {
                        self.timer.set(self.worker.options.send_ms);
                    }
                }
                Poll::Ready(Err(_)) => {
                    self.has_ended = true;
                    connection.die();
                    return;
                }
                Poll::Pending => return,
            }
        }
    }

    /// Tells the client to go elsewhere when the worker drains, or the connection has reached its age.
    fn end_service(&self, connection: &mut Connection) {
        let worker = &self.worker;
        let is_drained = worker.is_draining() && (connection.streams() > 0 || worker.closes_idle());
        if is_drained || self.timer.now() >= self.aged_at {
            connection.go_away();
        }
    }

    /// Counts the connection among those that answer, or that wait.
    fn count(&mut self, connection: &Connection) {
        let state = match connection.streams() {
            0 => ConnectionState::Waiting,
            _ => ConnectionState::Writing,
        };
        if state != self.state {
            self.worker.recorder.connection_moved(self.state, state);
            self.state = state;
        }
    }

    /// Ready when the client has let too much time pass, and the connection is to be closed at once.
    fn poll_late(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Poll<()> {
        let options = &self.worker.options;
        let waits = if connection.pending() > 0 || self.stream.has_unsent() {
            Waits::Room
        } else if connection.is_within_head() || !connection.has_settings() {
            Waits::Frame
        } else if connection.streams() > 0 {
            Waits::Streams
        } else if !connection.room.input.is_empty() {
            Waits::Frame
        } else {
            Waits::Request
        };
        if waits != self.waits {
            self.waits = waits;
            match waits {
                Waits::Streams => self.timer.set_at(u64::MAX),
                Waits::Request => self.timer.set_idle(options.idle_ms),
                Waits::Frame if connection.streams() == 0 => self.timer.set_idle(options.head_ms),
                Waits::Frame => self.timer.set(options.head_ms),
                Waits::Room => self.timer.set(options.send_ms),
            }
        }
        if self.timer.poll_expired(cx).is_pending() {
            return Poll::Pending;
        }
        match waits {
            // A client that does not read is counted once, with its stream if that was cut first.
            Waits::Room if !connection.has_cut_stream => {
                self.worker.recorder.client_error(ClientError::WriteTimeout);
            }
            Waits::Frame if !self.timer.gives_way() => self.worker.recorder.client_error(ClientError::HeadTimeout),
            _ => {}
        }
        connection.go_away();
        connection.die();
        // Frames that fit are sent at once.
        self.write(cx, connection);
        self.has_ended = waits == Waits::Room;
        Poll::Ready(())
    }

    /// Closes the socket, so that the client still reads what was sent.
    async fn close(&mut self) {
        let state = std::mem::replace(&mut self.state, ConnectionState::Waiting);
        if state != ConnectionState::Waiting {
            self.worker.recorder.connection_moved(state, ConnectionState::Waiting);
        }
        {
            let connection = &mut *self.shared.connection.borrow_mut();
            connection.die();
            if connection.streams() == 0 {
                self.worker.rooms.put(std::mem::take(&mut connection.room));
            }
        }
        if !self.has_ended {
            linger::close(&mut self.stream, &self.timer, self.worker.options.send_ms).await;
        }
    }
}

/// The error of a stream that is over.
fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
