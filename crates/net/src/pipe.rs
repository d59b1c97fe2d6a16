//! Pipes through which bytes go from one socket to another without being copied (splice).
//!
//! A pipe takes two descriptors, so a thread has a few, and lends one to a stream only while bytes are on their way.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};

use rustix::pipe::PipeFlags;

use crate::sys::Socket;

/// Most bytes that a pipe holds.
pub const MOST: usize = 256 << 10;
/// Most pipes of a thread.
const MOST_PIPES: usize = 64;

thread_local! {
    /// Pipes without a user.
    static SPARE: RefCell<Vec<(OwnedFd, OwnedFd)>> = const { RefCell::new(Vec::new()) };
    /// Number of pipes, used or not.
    static PIPES: Cell<usize> = const { Cell::new(0) };
}

/// A pipe.
#[derive(Debug)]
pub struct Pipe {
    /// The end to read from, and the one to write to. `None` only while it is dropped.
    ends: Option<(OwnedFd, OwnedFd)>,
    /// Bytes in it.
    filled: usize,
}

impl Pipe {
    /// An empty pipe; `None` if the thread has no more of them, or the process no more descriptors.
    #[must_use]
    pub fn take() -> Option<Self> {
        let ends = SPARE.with_borrow_mut(Vec::pop).or_else(|| {
            if PIPES.get() >= MOST_PIPES {
                return None;
            }
            let ends = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
            // A pipe that stays smaller moves fewer bytes at once.
            let _ = rustix::pipe::fcntl_setpipe_size(&ends.1, MOST);
            PIPES.set(PIPES.get() + 1);
            Some(ends)
        })?;
        Some(Self { ends: Some(ends), filled: 0 })
    }

    /// Bytes in it.
    #[must_use]
    pub const fn filled(&self) -> usize {
        self.filled
    }

    /// Moves bytes of a socket into the empty pipe; 0 at their end.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, from: &Socket) -> Poll<io::Result<usize>> {
        let Some((_, end)) = &self.ends else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        from.poll_splice_into(cx, end.as_fd(), MOST).map_ok(|n| {
            self.filled += n;
            n
        })
    }

    /// Moves bytes of the pipe, which has some, into a socket.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn poll_drain(&mut self, cx: &mut Context<'_>, to: &Socket) -> Poll<io::Result<usize>> {
        let Some((end, _)) = &self.ends else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        to.poll_splice_from(cx, end.as_fd(), self.filled).map_ok(|n| {
            self.filled = self.filled.saturating_sub(n);
            n
        })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        // At the end of a thread there is no later use. A pipe with bytes in it is of no use to others.
        let spare =
            if self.filled == 0 { SPARE.try_with(|spare| spare.borrow_mut().push(ends)).is_ok() } else { false };
        if !spare {
            let _ = PIPES.try_with(|pipes| pipes.set(pipes.get().saturating_sub(1)));
        }
    }
}
