//! A stream as the client's side of an exchange, and the tasks that serve streams.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_plugin::Request;
use weir_plugin::host::Exchange;
use weir_telemetry::metrics::ClientError;
use weir_wire::Reject;
use weir_wire::buffer::Buffer;
use weir_wire::head::Content;
use weir_wire::http2::{Error, ErrorCode};

use super::{encode, head, reset};
use crate::downstream::{Downstream, Following, Presence};
use crate::exchange::Runner;
use crate::http2::{Connection, Incoming, Job, Peer, Received, Seat, Shared};
use crate::relay::{Piece, Sink, Source};
use crate::timer::Timer;
use crate::tls::server::Hosts;
use crate::worker::Worker;

/// Requests of a connection, which go to tasks of the worker.
pub(super) struct Requests<'a> {
    pub(super) shared: &'a Rc<Shared>,
    pub(super) worker: &'a Rc<Worker>,
    pub(super) requests: &'a mut u64,
}

impl Peer for Requests<'_> {
    fn head(&mut self, connection: &mut Connection, stream: u32, ends: bool) -> Result<(), Error> {
        let mut exchange = self.worker.take_exchange();
        exchange.reset();
        exchange.client = self.shared.client;
        *self.requests += 1;
        if *self.requests >= self.worker.options.requests_per_connection {
            connection.go_away();
        }
        exchange.client.requests = *self.requests;
        let read = head::read(&mut exchange, connection.fields(), ends, &self.worker.options.head);
        let (refused, connects, priority) = match read {
            Ok(head) => (None, head.connects, head.priority),
            Err(head::Refusal::Rejected(reject)) => (Some(reject), false, None),
            Err(head::Refusal::Malformed(reason)) => {
                self.worker.recorder.client_error(ClientError::BadRequest);
                tracing::info!(client = %self.shared.client.addr_text, reason, "request refused");
                self.worker.put_exchange(exchange);
                return Err(Error::stream(ErrorCode::ProtocolError, reason));
            }
        };
        let expected = match exchange.request.head.content {
            Content::Length(length) if refused.is_none() => Some(length),
            _ => None,
        };
        let key = connection.open(stream, ends, expected);
        if let Some(priority) = priority {
            connection.set_initial_priority(key, priority);
        }
        let job = Job { shared: Rc::clone(self.shared), key, exchange, refused, connects };
        let seat = self.worker.seats.take().unwrap_or_else(|| {
            let seat = Rc::<Seat>::default();
            weir_runtime::spawn(serve(Rc::clone(&seat), Rc::clone(self.worker)));
            seat
        });
        seat.give(job);
        Ok(())
    }
}

/// Serves streams, one after the other, as long as the worker keeps the seat.
async fn serve(seat: Rc<Seat>, worker: Rc<Worker>) {
    let mut runner = Runner::new(H2Stream::new(&worker), Rc::clone(&worker));
    loop {
        let Job { shared, key, mut exchange, refused, connects } = poll_fn(|cx| seat.poll_next(cx)).await;
        let x = &mut *exchange;
        runner.down.begin(Handle { shared: Some(shared), key, worker: Rc::clone(&worker) }, x, connects);
        match refused {
            None => runner.serve(x).await,
            Some(reject) => runner.refuse(x, reject).await,
        }
        runner.down.end();
        runner.timer.set_at(u64::MAX);
        worker.put_exchange(exchange);
        if !worker.seats.put(&seat) {
            return;
        }
    }
}

/// The client of one exchange after the other, each on a stream of some connection.
pub(super) struct H2Stream {
    handle: Handle,
    /// The body of the request.
    incoming: Incoming,
    /// Trailer lines of the response.
    trailers: Vec<u8>,
    /// True for an extended CONNECT, whose success is the switch of protocols.
    connects: bool,
    /// True when nobody reads the rest of the request.
    abandoned: bool,
    sent: u64,
    received: u64,
}

/// A stream of a connection; it is closed when it is dropped.
pub(super) struct Handle {
    /// `None` between two streams.
    shared: Option<Rc<Shared>>,
    key: usize,
    worker: Rc<Worker>,
}

impl Handle {
    fn with<T>(&self, use_it: impl FnOnce(&mut Connection, usize) -> T) -> Option<T> {
        self.shared.as_ref().map(|shared| use_it(&mut shared.connection.borrow_mut(), self.key))
    }

    fn close(&mut self, code: ErrorCode) {
        self.with(|connection, key| connection.close(key, code));
        self.shared = None;
    }
}

impl Drop for Handle {
    /// The task of the stream has panicked, or the worker ends.
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        if std::thread::panicking() {
            self.worker.recorder.worker_panicked();
        }
        if let Ok(mut connection) = shared.connection.try_borrow_mut() {
            connection.close(self.key, ErrorCode::InternalError);
        }
    }
}

impl H2Stream {
    fn new(worker: &Rc<Worker>) -> Self {
        Self {
            handle: Handle { shared: None, key: 0, worker: Rc::clone(worker) },
            incoming: Incoming::default(),
            trailers: Vec::new(),
            connects: false,
            abandoned: false,
            sent: 0,
            received: 0,
        }
    }

    fn begin(&mut self, handle: Handle, x: &Exchange, connects: bool) {
        self.handle = handle;
        self.incoming.begin(x.request.head_len);
        if self.handle.with(|connection, key| connection.has_taken_all(key)) == Some(true) && !connects {
            self.incoming.end(&x.request.buffer);
        }
        self.trailers.clear();
        self.connects = connects;
        self.abandoned = false;
        self.sent = 0;
        self.received = 0;
    }

    fn end(&mut self) {
        self.incoming.settle();
        self.handle.close(ErrorCode::InternalError);
    }
}

impl Source for H2Stream {
    #[inline]
    fn next(&mut self, buffer: &Buffer) -> Result<Piece, Reject> {
        Ok(self.incoming.next(buffer))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        let Some(shared) = &self.handle.shared else { return Poll::Ready(Err(reset())) };
        let connection = &mut *shared.connection.borrow_mut();
        let key = self.handle.key;
        let mut n = 0;
        if !self.incoming.has_ended() {
            match connection.take_received(cx, key, buffer.spare()) {
                Received::Bytes(bytes) => {
                    buffer.advance(bytes);
                    n = bytes;
                }
                Received::End => {}
                Received::Nothing => return Poll::Pending,
                Received::Reset => return Poll::Ready(Err(reset())),
            }
            if connection.has_taken_all(key) {
                self.incoming.end(buffer);
                connection.take_trailers(key, buffer);
                // The end is something, too.
                n = n.max(1);
            }
        }
        self.received += n as u64 + connection.take_framing(key);
        Poll::Ready(Ok(n))
    }

    fn make_room(&mut self, buffer: &mut Buffer) {
        self.incoming.make_room(buffer);
    }
}

impl Sink for H2Stream {
    fn poll_data(&mut self, cx: &mut Context<'_>, _: &mut Vec<u8>, data: &[u8]) -> Poll<io::Result<usize>> {
        let taken = self.handle.with(|connection, key| connection.poll_data(cx, key, data));
        let n = ready!(taken.unwrap_or(Poll::Ready(Err(ErrorCode::Cancel)))).map_err(|_| reset())?;
        self.sent += n as u64;
        Poll::Ready(Ok(n))
    }

    fn push_trailer(&mut self, _: &mut Vec<u8>, line: &[u8]) {
        self.trailers.extend_from_slice(line);
    }

    fn push_end(&mut self, _: &mut Vec<u8>) {
        let trailers = &self.trailers;
        self.handle.with(|connection, key| {
            if trailers.is_empty() {
                connection.end_stream(key);
            } else {
                connection.push_fields(key, true, |encoder, out| encode::push_trailers(trailers, encoder, out));
            }
        });
        self.trailers.clear();
    }

    fn poll_flush(&mut self, _: &mut Context<'_>, _: &mut Vec<u8>) -> Poll<io::Result<()>> {
        let flushed = self.handle.with(Connection::flush).unwrap_or(Err(ErrorCode::Cancel));
        Poll::Ready(flushed.map_err(|_| reset()))
    }
}

impl Presence for H2Stream {
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.handle.with(|connection, key| connection.poll_reset(cx, key)).unwrap_or(Poll::Ready(()))
    }
}

impl Downstream for H2Stream {
    type Bytes = Handle;

    fn admit(&self, request: &Request, hosts: &Hosts) -> Result<(), Reject> {
        let (host, path) = (request.host(), request.path());
        let tls = self.handle.shared.as_ref().and_then(|shared| shared.tls.as_ref());
        Ok(match tls {
            Some(tls) => hosts.admit(host, path, tls.sni.as_deref(), tls.verified),
            None => hosts.admit_without_tls(host, path),
        }?)
    }

    fn server_name(&self) -> Option<&str> {
        self.handle.shared.as_ref()?.tls.as_ref()?.sni.as_deref()
    }

    /// A client that has begun to send the body anyway need not be asked for it (RFC 9110 section 10.1.1).
    fn push_continue(&mut self, x: &mut Exchange) {
        x.out.clear();
        let waits = self.handle.with(|connection, key| connection.has_received_nothing(key)) == Some(true);
        if x.request.head.expect_continue && waits && x.request.buffer.len() <= x.request.head_len {
            let sent = self.handle.with(|connection, key| {
                connection.push_fields(key, false, |encoder, out| encoder.push_status(out, 100))
            });
            self.sent += sent.unwrap_or(0) as u64;
        }
    }

    fn push_interim(&mut self, x: &mut Exchange) {
        x.out.clear();
        let sent = self.handle.with(|connection, key| {
            connection.push_fields(key, false, |encoder, out| encode::push_response(&x.response, encoder, out))
        });
        self.sent += sent.unwrap_or(0) as u64;
    }

    fn push_head(&mut self, x: &mut Exchange, worker: &Worker, following: Following, _: bool) -> bool {
        x.out.clear();
        if self.connects && (200..300).contains(&x.response.head.status) {
            // RFC 8441 section 5: success would be the switch that did not come.
            x.response.head.status = 501;
        }
        let ends = following == Following::Nothing;
        let sent = self.handle.with(|connection, key| {
            connection.push_fields(key, ends, |encoder, out| {
                encode::push_head(&mut x.response, worker, following, encoder, out);
            })
        });
        x.sent_head = sent.unwrap_or(0) as u64;
        self.sent += x.sent_head;
        !self.abandoned
    }

    fn push_switch(&mut self, x: &mut Exchange) {
        x.out.clear();
        x.response.head.status = 200;
        let sent = self.handle.with(|connection, key| {
            connection.push_fields(key, false, |encoder, out| encode::push_switch(&x.response, encoder, out))
        });
        x.sent_head = sent.unwrap_or(0) as u64;
        self.sent += x.sent_head;
    }

    fn bytes(&mut self) -> &mut Handle {
        &mut self.handle
    }

    fn replace_body(&mut self, request: &mut Request, body: &[u8]) {
        request.put_body(body, self.incoming.position());
        self.incoming.replaced(body.len());
    }

    fn rewind(&mut self) -> bool {
        self.incoming.rewind()
    }

    fn abandon_request(&mut self) {
        if !self.abandoned {
            self.abandoned = true;
            self.handle.with(Connection::abandon);
        }
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    async fn finish(&mut self, _: &mut Exchange, _: &Timer, _: &Worker) {}

    fn reset(&mut self) {
        self.handle.with(|connection, key| {
            connection.has_cut_stream = true;
            connection.close(key, ErrorCode::InternalError);
        });
    }
}

impl AsyncRead for Handle {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let received = self.with(|connection, key| connection.take_received(cx, key, room.initialize_unfilled()));
        match received.unwrap_or(Received::Reset) {
            Received::Bytes(n) => room.advance(n),
            Received::End => {}
            Received::Nothing => return Poll::Pending,
            Received::Reset => return Poll::Ready(Err(reset())),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Handle {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = self.with(|connection, key| connection.poll_data(cx, key, bytes));
        taken.unwrap_or(Poll::Ready(Err(ErrorCode::Cancel))).map_err(|_| reset())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.with(Connection::flush).unwrap_or(Err(ErrorCode::Cancel)).map_err(|_| reset()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(Connection::end_stream);
        Poll::Ready(Ok(()))
    }
}
