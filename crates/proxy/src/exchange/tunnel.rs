//! A connection that has switched to WebSocket: bytes both ways until both sides have ended, or a drain ends them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncWrite};
use weir_plugin::Failure;
use weir_plugin::host::Exchange;
use weir_telemetry::metrics::Recorder;
use weir_wire::buffer::Buffer;
use weir_wire::websocket::{self, Frames};

use super::{Outcome, Runner};
use crate::downstream::Downstream;
use crate::relay;
use crate::snapshot::Local;
use crate::timer::Timer;
use crate::upstream::Timeouts;
use crate::upstream::connection::NodeConnection;
use crate::worker::Worker;

/// Bytes held of each direction: a tunnel may be open for days, and there may be many.
const ROOM: usize = 4 << 10;
/// Most reads of a direction before it is the other one's turn, and that of other connections: a client may send faster
/// than its bytes can be dropped.
const TURN: usize = 16;
/// Time for both sides to answer a Close frame, in milliseconds.
const CLOSE_MS: u64 = 5000;

impl<D: Downstream> Runner<D> {
    /// Sends the 101 and relays until both sides have ended, or neither has sent anything for the idle time.
    pub(super) async fn tunnel(
        &mut self,
        x: &mut Exchange,
        local: &Local,
        mut node: NodeConnection,
        timeouts: Timeouts,
    ) -> Outcome {
        if node.bytes().is_none() || self.response_phases(x, local, None).await.is_err() {
            node.discard(&self.worker.recorder);
            return Outcome::Cut;
        }
        self.down.push_switch(x);
        let mut down = Way::new(x.response.buffer.bytes().get(x.response.head_len..).unwrap_or_default());
        let mut up = Way::new(x.request.buffer.bytes().get(x.request.head_len..).unwrap_or_default());
        // The heads stay for the log phase; the rest of the buffers goes back.
        let (request, response) = (x.request.head_len, x.response.head_len);
        x.request.buffer.truncate(request);
        x.response.buffer.truncate(response);
        x.request.buffer.shrink(request);
        x.response.buffer.shrink(response);
        x.settle();
        if self.send_out(x).await == Outcome::Answered
            && let Some(stream) = node.bytes()
        {
            let idle_ms = match self.worker.options.websocket_ms {
                0 => timeouts.read.max(timeouts.send),
                ms => ms,
            };
            let _counted = Counted::new(&self.worker.recorder);
            carry(
                Limits { timer: &self.timer, worker: &self.worker, idle_ms },
                (self.down.bytes(), &mut up),
                (stream, &mut down),
            )
            .await;
        }
        x.received += up.moved;
        x.sent += down.moved;
        x.times.now = self.worker.clock.refresh();
        x.times.upstream_end = x.times.now;
        node.discard(&self.worker.recorder);
        Outcome::Switched
    }
}

/// Checks that a node has switched to WebSocket by the key that it was sent (RFC 6455 section 4.1). A client that sent
/// none has to see for itself.
///
/// # Errors
/// `Sec-WebSocket-Accept` is missing, or belongs to another key.
pub(super) fn check_accept(x: &Exchange) -> Result<(), Failure> {
    let request = &x.request;
    let Some(key) = request.head.fields.get_str(request.buffer.bytes(), b"sec-websocket-key") else { return Ok(()) };
    let told = x.response.head.fields.get_str(x.response.buffer.bytes(), b"sec-websocket-accept");
    if told.is_some_and(|told| told == accept(key).as_bytes()) {
        return Ok(());
    }
    Err(Failure::upstream(502, "Sec-WebSocket-Accept of the upstream does not belong to the key"))
}

/// The answer to a key (RFC 6455 section 4.2.2).
fn accept(key: &[u8]) -> String {
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finish())
}

/// Counts a tunnel while it is open.
struct Counted<'a>(&'a Recorder);

impl<'a> Counted<'a> {
    fn new(recorder: &'a Recorder) -> Self {
        recorder.websocket_opened();
        Self(recorder)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.websocket_closed();
    }
}

/// Ends of a tunnel from outside.
struct Limits<'a> {
    timer: &'a Timer,
    worker: &'a Worker,
    idle_ms: u64,
}

/// Relays both ways: what the client sends goes `up`, what the node sends goes `down`.
async fn carry<C, N>(limits: Limits<'_>, (client, up): (&mut C, &mut Way), (node, down): (&mut N, &mut Way))
where
    C: AsyncRead + AsyncWrite + Unpin,
    N: AsyncRead + AsyncWrite + Unpin,
{
    let Limits { timer, worker, idle_ms } = limits;
    let mut idle_at = timer.now().saturating_add(idle_ms);
    // When a drain goes on: to the Close frames, and then to the end.
    let mut drain_at = None;
    let mut closes = false;
    poll_fn(|cx| {
        loop {
            let before = (up.moved, down.moved);
            let ended = [up.poll(cx, client, node).is_ready(), down.poll(cx, node, client).is_ready()];
            let (received, sent) = (up.moved - before.0, down.moved - before.1);
            if received + sent > 0 {
                worker.recorder.websocket_moved(received, sent);
                idle_at = timer.now().saturating_add(idle_ms);
            }
            if ended == [true; 2] || up.broken || down.broken {
                return Poll::Ready(());
            }
            // Behind their Close frames neither side has anything to say (RFC 6455 section 7.1.1). The one that has not
            // ended is told the end all the same: a stream of HTTP/2 would be reset otherwise.
            if ended != [false; 2] && up.has_closed() && down.has_closed() && !(up.ended && down.ended) {
                (up.ended, down.ended) = (true, true);
                continue;
            }
            if drain_at.is_none() && worker.closes_idle() {
                drain_at = Some(timer.now().saturating_add(worker.options.drain_websocket_ms));
            }
            timer.set_at(idle_at.min(drain_at.unwrap_or(u64::MAX)));
            ready!(timer.poll_expired(cx));
            if closes || drain_at.is_none_or(|at| timer.now() < at) {
                return Poll::Ready(());
            }
            closes = true;
            drain_at = Some(timer.now().saturating_add(CLOSE_MS));
            idle_at = u64::MAX;
            up.close(&websocket::close_of_client(fastrand::u32(..).to_ne_bytes()));
            down.close(&websocket::close_of_server());
        }
    })
    .await;
}

/// One direction.
struct Way {
    buffer: Buffer,
    written: usize,
    moved: u64,
    /// Frames that were written.
    frames: Frames,
    /// Close frame of the gateway's own, and its bytes that were written. It goes between two frames; what the sender sends
    /// behind it is dropped up to the sender's own Close frame.
    close: Option<(Box<[u8]>, usize)>,
    ended: bool,
    shut: bool,
    /// True when the sender was cut off before its end.
    broken: bool,
}

impl Way {
    fn new(first: &[u8]) -> Self {
        let mut buffer = Buffer::new(ROOM);
        buffer.extend(first);
        Self {
            buffer,
            written: 0,
            moved: 0,
            frames: Frames::default(),
            close: None,
            ended: false,
            shut: false,
            broken: false,
        }
    }

    /// Lets the direction end with this frame.
    fn close(&mut self, frame: &[u8]) {
        // Behind the sender's own Close frame there may be none.
        let written = if self.frames.has_closed() { frame.len() } else { 0 };
        self.close = Some((frame.into(), written));
    }

    /// Moves on; ready when this direction has ended and the other side is shut down.
    fn poll<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<()> {
        for _ in 0..TURN {
            if ready!(self.poll_write(cx, to)).is_err() {
                match &mut self.close {
                    // The receiver is gone; the sender still answers its Close frame.
                    Some((frame, written)) => *written = frame.len(),
                    // Bytes that the receiver has sent before go on their way in the other direction.
                    None => {
                        (self.ended, self.shut) = (true, true);
                        return Poll::Ready(());
                    }
                }
                continue;
            }
            if self.ended {
                if !self.shut {
                    // Fails where the receiver is gone, which reading from it tells as well.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.shut = true;
                }
                return Poll::Ready(());
            }
            if self.close.is_some() && self.frames.has_closed() {
                self.ended = true;
                continue;
            }
            self.buffer.clear();
            self.written = 0;
            match ready!(relay::poll_read(cx, from, &mut self.buffer)) {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                // Nothing was to come.
                Err(_) if self.close.is_some() || self.has_closed() => self.ended = true,
                Err(_) => {
                    self.broken = true;
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// True when the sender's Close frame has passed.
    fn has_closed(&self) -> bool {
        self.frames.has_closed()
    }

    /// Writes what was received, and a Close frame at the next boundary when there is one to write.
    fn poll_write<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<std::io::Result<()>> {
        loop {
            let bytes = self.buffer.bytes().get(self.written..).unwrap_or_default();
            let boundary = usize::try_from(self.frames.to_boundary()).unwrap_or(usize::MAX);
            match &mut self.close {
                Some((frame, written)) if boundary == 0 && *written < frame.len() => {
                    *written += ready!(relay::poll_write(cx, to, frame.get(*written..).unwrap_or_default()))?;
                }
                Some((frame, written)) if *written == frame.len() => {
                    self.frames.advance(bytes);
                    self.written = self.buffer.len();
                    return Poll::Ready(Ok(()));
                }
                _ if bytes.is_empty() => return Poll::Ready(Ok(())),
                close => {
                    let most = if close.is_some() { boundary.min(bytes.len()) } else { bytes.len() };
                    let bytes = bytes.get(..most).unwrap_or_default();
                    let n = ready!(relay::poll_write(cx, to, bytes))?;
                    self.frames.advance(bytes.get(..n).unwrap_or_default());
                    self.written += n;
                    self.moved += n as u64;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::accept;

    /// The example of RFC 6455 section 1.3.
    #[test]
    fn a_key_has_its_answer() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
