//! Bytes both ways, until both sides have ended.
//!
//! Bytes go through one buffer of the thread, which is taken for one read and the write after it. Only what a side does not
//! take at once is kept with the stream, so an idle stream holds no buffer, and one whose peer is slow at most
//! [`MOST`] each way. A stream of many bytes without TLS on either side goes through a pipe of the thread instead
//! ([`weir_net::pipe`]), which the kernel fills and empties without copying.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_net::pipe::{self, Pipe};
use weir_net::sys::Socket;
use weir_plugin::host::buffers::Held;

use crate::downstream::h1::ClientStream;
use crate::upstream::stream::NodeStream;

/// Most bytes that are read at once.
const MOST: usize = 64 << 10;
/// The same where the budget for buffers has no room.
const LEAST: usize = 4 << 10;
/// Bytes that one direction moves before other tasks of the worker have their turn.
const TURN: usize = 256 << 10;
/// Reads in a row that fill the buffer, after which a direction goes through a pipe.
const FULL_READS: u8 = 2;
/// Fewest bytes that are worth a pipe: a direction that finds fewer goes back to the buffer.
const WORTH_A_PIPE: usize = 16 << 10;

thread_local! {
    static ROOM: RefCell<Box<[u8]>> = RefCell::new(vec![0; MOST].into());
}

/// One side of a stream.
pub(super) trait Side: AsyncRead + AsyncWrite + Unpin {
    /// The socket, without TLS.
    fn plain(&self) -> Option<&Socket>;
}

impl<S: ClientStream> Side for S {
    fn plain(&self) -> Option<&Socket> {
        ClientStream::plain(self)
    }
}

impl Side for NodeStream {
    fn plain(&self) -> Option<&Socket> {
        Self::plain(self)
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// Bytes that the receiving side has not taken yet.
    rest: Vec<u8>,
    written: usize,
    held: Held,
    /// Reads in a row that have filled the buffer.
    full_reads: u8,
    /// The pipe with bytes on their way.
    pipe: Option<Pipe>,
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
    pub(super) fn poll<R: Side, W: Side>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> Poll<()> {
        let mut turn = TURN;
        loop {
            ready!(self.poll_rest(cx, to));
            ready!(self.poll_drain(cx, to));
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
            let moved = match self.has_pipe(from, to) {
                true => ready!(self.poll_fill(cx, from)),
                false => ready!(self.poll_through(cx, from, to)),
            };
            turn = turn.saturating_sub(moved);
        }
    }

    /// True if bytes are to go through a pipe, and there is one.
    fn has_pipe<R: Side, W: Side>(&mut self, from: &R, to: &W) -> bool {
        let is_long = self.full_reads >= FULL_READS && to.plain().is_some();
        if !is_long || from.plain().is_none_or(Socket::has_unread) {
            return false;
        }
        if self.pipe.is_none() && self.held.grow_if_plenty(pipe::MOST) {
            self.pipe = Pipe::take();
        }
        self.pipe.is_some()
    }

    /// Moves bytes into the pipe. A direction that waits for bytes gives its pipe back.
    fn poll_fill<R: Side>(&mut self, cx: &mut Context<'_>, from: &R) -> Poll<usize> {
        let (Some(socket), Some(pipe)) = (from.plain(), &mut self.pipe) else { return Poll::Ready(0) };
        let filled = pipe.poll_fill(cx, socket);
        match filled {
            Poll::Ready(Ok(n)) => {
                self.ended = n == 0;
                if n < WORTH_A_PIPE {
                    self.full_reads = 0;
                }
                return Poll::Ready(n);
            }
            Poll::Ready(Err(_)) => self.broken = true,
            Poll::Pending => {}
        }
        self.give_back();
        filled.map(|_| 0)
    }

    /// Moves bytes of the pipe on.
    fn poll_drain<W: Side>(&mut self, cx: &mut Context<'_>, to: &W) -> Poll<()> {
        while let (Some(socket), Some(pipe)) = (to.plain(), self.pipe.as_mut().filter(|pipe| pipe.filled() > 0)) {
            match ready!(pipe.poll_drain(cx, socket)) {
                Ok(n @ 1..) => self.moved += n as u64,
                Ok(0) | Err(_) => {
                    self.broken = true;
                    break;
                }
            }
        }
        if self.full_reads < FULL_READS || self.broken {
            self.give_back();
        }
        Poll::Ready(())
    }

    /// Gives the pipe back, to which bytes may be left only of a stream that is broken.
    fn give_back(&mut self) {
        if self.pipe.take().is_some() {
            self.held.shrink_to(0);
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
            if read.is_ready() {
                self.full_reads = if bytes.len() == MOST { self.full_reads.saturating_add(1) } else { 0 };
            }
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
