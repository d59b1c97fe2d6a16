//! A connection that has switched to WebSocket: bytes both ways until both sides have ended.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite};
use weir_plugin::Exchange;
use weir_telemetry::metrics::UpstreamState;
use weir_wire::buffer::Buffer;

use super::forward::push_status;
use crate::downstream::h1::{ClientStream, Connection, Next};
use crate::phases;
use crate::relay;
use crate::snapshot::Local;
use crate::upstream::Timeouts;
use crate::upstream::pool::Connection as Node;

/// Bytes held of each direction: a tunnel may be open for days, and there may be many.
const ROOM: usize = 4 << 10;

impl<S: ClientStream> Connection<S> {
    /// Sends the 101 and relays until both sides have ended, or neither has sent anything for the read timeout.
    pub(crate) async fn tunnel(&mut self, x: &mut Exchange, local: &Local, mut node: Node, timeouts: Timeouts) -> Next {
        if phases::on_response(x, &local.snapshot).is_err() {
            self.worker.recorder.upstream_closed(UpstreamState::Active);
            return Next::Close;
        }
        let mut out = std::mem::take(&mut x.out);
        out.clear();
        push_status(x, &mut out);
        x.response.head.fields.write(x.response.buffer.bytes(), &mut out);
        out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        x.sent_head = out.len() as u64;
        x.out = out;
        let mut down = Way::new(x.response.buffer.bytes().get(x.response.head.len..).unwrap_or_default());
        let mut up = Way::new(x.request.buffer.bytes().get(x.request.head.len..).unwrap_or_default());
        // What the log phase reads stays; the room for more goes back.
        x.request.buffer.truncate(x.request.head.len);
        x.response.buffer.truncate(x.response.head.len);
        let (request, response) = (x.request.head.len, x.response.head.len);
        x.request.buffer.shrink(request);
        x.response.buffer.shrink(response);
        x.settle();
        if self.write_out(x).await {
            let idle_ms = timeouts.read.max(timeouts.send);
            self.timer.set(idle_ms);
            let (client, timer) = (&mut self.stream, &self.timer);
            poll_fn(|cx| {
                let before = up.moved + down.moved;
                let ended = up.poll(cx, client, &mut node.stream).is_ready();
                let both = down.poll(cx, &mut node.stream, client).is_ready() && ended;
                if both || up.broken || down.broken {
                    return Poll::Ready(());
                }
                if up.moved + down.moved > before {
                    timer.set(idle_ms);
                }
                timer.poll_expired(cx)
            })
            .await;
        }
        x.received += up.moved;
        x.sent += down.moved;
        x.times.now = self.worker.clock.refresh();
        x.times.upstream_end = x.times.now;
        self.worker.recorder.upstream_closed(UpstreamState::Active);
        Next::Close
    }
}

/// One direction.
struct Way {
    buffer: Buffer,
    written: usize,
    moved: u64,
    ended: bool,
    shut: bool,
    broken: bool,
}

impl Way {
    fn new(first: &[u8]) -> Self {
        let mut buffer = Buffer::new(ROOM);
        buffer.extend(first);
        Self { buffer, written: 0, moved: 0, ended: false, shut: false, broken: false }
    }

    /// Moves on; ready when this direction has ended and the other side was told.
    fn poll<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<()> {
        loop {
            while self.written < self.buffer.len() {
                let bytes = self.buffer.bytes().get(self.written..).unwrap_or_default();
                match ready!(relay::poll_write(cx, to, bytes)) {
                    Ok(n) => {
                        self.written += n;
                        self.moved += n as u64;
                    }
                    Err(_) => {
                        self.broken = true;
                        return Poll::Ready(());
                    }
                }
            }
            if self.ended {
                if !self.shut {
                    self.shut = ready!(Pin::new(&mut *to).poll_shutdown(cx)).is_ok();
                    self.broken |= !self.shut;
                }
                return Poll::Ready(());
            }
            self.buffer.clear();
            self.written = 0;
            match ready!(relay::poll_read(cx, from, &mut self.buffer)) {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(_) => {
                    self.broken = true;
                    return Poll::Ready(());
                }
            }
        }
    }
}
