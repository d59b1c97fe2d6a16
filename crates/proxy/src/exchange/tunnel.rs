//! A connection that has switched to WebSocket: bytes both ways until both sides have ended.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite};
use weir_plugin::Exchange;
use weir_wire::buffer::Buffer;

use super::{Outcome, Runner};
use crate::downstream::Downstream;
use crate::relay;
use crate::snapshot::Local;
use crate::upstream::Timeouts;
use crate::upstream::connection::NodeConnection;

/// Bytes held of each direction: a tunnel may be open for days, and there may be many.
const ROOM: usize = 4 << 10;

impl<D: Downstream> Runner<D> {
    /// Sends the 101 and relays until both sides have ended, or neither has sent anything for the read timeout.
    pub(super) async fn tunnel<N: NodeConnection>(
        &mut self,
        x: &mut Exchange,
        local: &Local,
        mut node: Box<N>,
        timeouts: Timeouts,
    ) -> Outcome {
        if self.response_phases(x, local).await.is_err() {
            node.discard(&self.worker.recorder);
            return Outcome::Cut;
        }
        self.down.push_switch(x);
        let mut down = Way::new(x.response.buffer.bytes().get(x.response.head_len..).unwrap_or_default());
        let mut up = Way::new(x.request.buffer.bytes().get(x.request.head_len..).unwrap_or_default());
        // What the log phase reads stays; the room for more goes back.
        let (request, response) = (x.request.head_len, x.response.head_len);
        x.request.buffer.truncate(request);
        x.response.buffer.truncate(response);
        x.request.buffer.shrink(request);
        x.response.buffer.shrink(response);
        x.settle();
        if self.send_out(x).await == Outcome::Answered {
            let idle_ms = timeouts.read.max(timeouts.send);
            self.timer.set(idle_ms);
            let (client, timer) = (self.down.bytes(), &self.timer);
            poll_fn(|cx| {
                let before = up.moved + down.moved;
                let ended = up.poll(cx, client, node.bytes()).is_ready();
                let both = down.poll(cx, node.bytes(), client).is_ready() && ended;
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
        node.discard(&self.worker.recorder);
        Outcome::Switched
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
