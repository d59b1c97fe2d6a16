//! Bytes both ways, until both sides have ended.
//!
//! Bytes go through one buffer of the thread, which is taken for one read and the write after it. Only what a side does not
//! take at once is kept with the stream, so an idle stream holds no buffer, and one whose peer is slow at most
//! [`MOST`] each way.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_plugin::host::buffers::Held;

/// Most bytes that are read at once.
const MOST: usize = 64 << 10;
/// The same where the budget for buffers has no room.
const LEAST: usize = 4 << 10;
/// Bytes that one direction moves before other tasks of the worker have their turn.
const TURN: usize = 256 << 10;

thread_local! {
    static ROOM: RefCell<Box<[u8]>> = RefCell::new(vec![0; MOST].into());
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// Bytes that the receiving side has not taken yet.
    rest: Vec<u8>,
    written: usize,
    held: Held,
    /// Bytes that the receiving side has taken.
    pub(super) moved: u64,
    ended: bool,
    shut: bool,
    /// True when one of the sides has failed.
    pub(super) broken: bool,
}

impl Way {
    /// A direction of which some bytes were read before.
    pub(super) fn beginning_with(rest: Vec<u8>) -> Self {
        Self { rest, ..Self::default() }
    }

    /// Moves on; ready when this direction has ended, and the receiving side was told.
    pub(super) fn poll<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<()> {
        let mut turn = TURN;
        loop {
            ready!(self.poll_rest(cx, to));
            if self.broken {
                return Poll::Ready(());
            }
            if self.ended {
                if !self.shut {
                    self.shut = ready!(Pin::new(&mut *to).poll_shutdown(cx)).is_ok();
                    self.broken |= !self.shut;
                }
                return Poll::Ready(());
            }
            if turn == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let moved = ready!(self.poll_through(cx, from, to));
            turn = turn.saturating_sub(moved);
        }
    }

    /// Writes what is kept.
    fn poll_rest<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<()> {
        while let Some(bytes) = self.rest.get(self.written..).filter(|bytes| !bytes.is_empty()) {
            match ready!(Pin::new(&mut *to).poll_write(cx, bytes)) {
                Ok(n @ 1..) => {
                    self.written += n;
                    self.moved += n as u64;
                }
                Ok(0) | Err(_) => {
                    self.broken = true;
                    return Poll::Ready(());
                }
            }
        }
        if self.written > 0 {
            (self.rest, self.written) = (Vec::new(), 0);
            self.held.shrink_to(0);
        }
        Poll::Ready(())
    }

    /// Reads once and writes what was read; what does not go is kept.
    fn poll_through<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<usize> {
        ROOM.with_borrow_mut(|room| {
            let most = if self.held.grow_if_plenty(MOST) { MOST } else { LEAST };
            let mut buf = ReadBuf::new(room.get_mut(..most).unwrap_or_default());
            let read = Pin::new(from).poll_read(cx, &mut buf);
            let bytes = buf.filled();
            let mut written = 0;
            match read {
                Poll::Ready(Ok(())) if bytes.is_empty() => self.ended = true,
                Poll::Ready(Ok(())) => {
                    if let Poll::Ready(done) = Pin::new(to).poll_write(cx, bytes) {
                        match done {
                            Ok(n @ 1..) => written = n,
                            Ok(0) | Err(_) => self.broken = true,
                        }
                    }
                    self.moved += written as u64;
                    self.rest.extend_from_slice(bytes.get(written..).unwrap_or_default());
                }
                Poll::Ready(Err(_)) => self.broken = true,
                Poll::Pending => {}
            }
            if self.rest.is_empty() {
                self.held.shrink_to(0);
            }
            read.map(|_| bytes.len())
        })
    }
}
