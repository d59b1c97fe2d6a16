//! Non-blocking sockets, with their readiness as known to their thread.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::pipe::SpliceFlags;

use crate::reactor::READ_AHEAD;
use crate::task::Core;

/// Maximum size in bytes of a write queued for the end of the round. A longer write is sent at once, from the
/// caller's buffer.
const MAX_QUEUED: usize = 4 << 10;
/// Number of times that one poll of a task may find one side of a source ready; then all other tasks run first.
const BUDGET: u32 = 32;

/// State of a source.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) fd: OwnedFd,
    pub(crate) read: Side,
    write: Side,
    /// True if the waiting task reads any arriving bytes, and those are likely to be few.
    pub(crate) ahead: Cell<bool>,
    /// True if the last message was longer than a read-ahead.
    pub(crate) was_long: Cell<bool>,
    /// Offset and length of the source's bytes in the inbox.
    pub(crate) arrived: Cell<(usize, usize)>,
    /// True if the outbox has bytes for the source.
    pub(crate) queued: Cell<bool>,
    /// True after an incomplete write: another write is useless until there is room.
    is_full: Cell<bool>,
    pub(crate) rest: RefCell<Option<Box<Pending>>>,
}

/// State that few sources need.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Bytes read ahead but not taken in their round.
    pub(crate) unread: Vec<u8>,
    /// Written bytes that did not fit into the socket at the end of the round.
    unsent: Vec<u8>,
    /// Error that broke the connection, kept because the kernel reports it only once.
    error: Option<io::ErrorKind>,
    /// Number of written bytes that can never be sent.
    lost: usize,
}

/// One direction of a source.
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// True if the next operation may succeed.
    ready: Cell<bool>,
    /// True if this direction has ended, so no further event will come: the peer has ended its side, or both sides
    /// have.
    closed: Cell<bool>,
    /// Number of the last poll of a task that found this side ready, and the number of times that poll may still find
    /// it ready.
    budget: Cell<(u64, u32)>,
    /// True if `waker` is to be woken. The waker is kept between waits, since mostly the same task waits again.
    pub(crate) waits: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl State {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            read: Side::default(),
            write: Side::default(),
            ahead: Cell::default(),
            was_long: Cell::default(),
            arrived: Cell::default(),
            queued: Cell::default(),
            is_full: Cell::default(),
            rest: RefCell::default(),
        }
    }

    pub(crate) fn on_events(&self, flags: EventFlags) {
        let both = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        if both || flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
            self.read.on_events(both || flags.contains(EventFlags::RDHUP));
        }
        if both || flags.contains(EventFlags::OUT) {
            let unsent = self.rest.borrow_mut().as_mut().map(|rest| std::mem::take(&mut rest.unsent));
            if let Some(unsent) = unsent.filter(|unsent| !unsent.is_empty()) {
                self.send(&unsent);
                self.read.wake();
            }
            if both || !self.has_unsent() {
                self.write.on_events(both);
            }
        }
    }

    fn has_unsent(&self) -> bool {
        self.rest.borrow().as_ref().is_some_and(|rest| !rest.unsent.is_empty())
    }

    fn has_unread(&self) -> bool {
        self.arrived.get().1 > 0 || self.rest.borrow().as_ref().is_some_and(|rest| !rest.unread.is_empty())
    }

    pub(crate) fn set_error(&self, error: Errno) {
        self.rest.borrow_mut().get_or_insert_default().error.get_or_insert(io::Error::from(error).kind());
    }

    /// Sends queued bytes. Bytes that do not fit are kept until there is room; the task is woken for that, as for an
    /// error.
    pub(crate) fn send(&self, bytes: &[u8]) {
        let sent = loop {
            match rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(n) if n == bytes.len() => return,
                Ok(n) => break Ok(n),
                Err(Errno::WOULDBLOCK) => break Ok(0),
                Err(Errno::INTR) => {}
                Err(error) => break Err(error),
            }
        };
        match sent {
            Ok(n) => {
                let unsent = bytes.get(n..).unwrap_or_default();
                self.rest.borrow_mut().get_or_insert_default().unsent.extend_from_slice(unsent);
                self.write.clear();
            }
            Err(error) => {
                self.set_error(error);
                self.rest.borrow_mut().get_or_insert_default().lost += bytes.len();
            }
        }
        // The task may wait for either side.
        self.read.wake();
        self.write.wake();
    }
}

impl Side {
    fn on_events(&self, closed: bool) {
        self.ready.set(true);
        if closed {
            self.closed.set(true);
        }
        if self.waits.replace(false) {
            self.wake();
        }
    }

    /// Wakes the last waiter, even if it does not wait for this side at present.
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// True if the task in poll number `turn` may continue with this side.
    fn has_budget(&self, turn: u64) -> bool {
        let (last, left) = self.budget.get();
        let left = if last == turn { left } else { BUDGET };
        self.budget.set((turn, left.saturating_sub(1)));
        left > 0
    }

    pub(crate) fn clear(&self) {
        // A side that has ended stays ready, because no further event will come.
        self.ready.set(self.closed.get());
    }

    fn wait(&self, cx: &mut Context<'_>) {
        self.waits.set(true);
        let mut kept = self.waker.borrow_mut();
        match &mut *kept {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *kept = Some(cx.waker().clone()),
        }
    }
}

/// A non-blocking socket, with its readiness as known to its thread.
///
/// A caller that reads from the descriptor itself clears the readiness when the kernel returns `WouldBlock`, and is
/// woken when the socket is ready again.
#[derive(Debug)]
pub struct Source {
    number: usize,
    state: Rc<State>,
    core: Rc<Core>,
}

impl Source {
    /// Registers a descriptor, which is not ready before its first event.
    ///
    /// # Errors
    /// The kernel cannot watch the descriptor.
    ///
    /// # Panics
    /// Panics outside of [`block_on`](crate::block_on).
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let core = Core::current();
        let (number, state) = core.reactor.add(fd)?;
        Ok(Self { number, state, core })
    }

    /// Ready if there may be bytes or the end to read; otherwise the task is woken when there are. Nothing is read
    /// ahead: the bytes stay in the kernel.
    ///
    /// A task that finds the source ready again and again must wait for all other tasks in between.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_arrived(cx, false)
    }

    /// As [`Source::poll_readable`], for a task that continues with [`Source::poll_read`]: arriving bytes are read
    /// before the task runs.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_arrived(cx, true)
    }

    fn poll_arrived(&self, cx: &mut Context<'_>, ahead: bool) -> Poll<()> {
        if self.state.has_unread() {
            return Poll::Ready(());
        }
        self.state.ahead.set(ahead && !self.state.was_long.get());
        self.poll(&self.state.read, cx)
    }

    /// Reads some bytes; 0 at the end, or if `room` is empty.
    ///
    /// # Errors
    /// Errors of the socket. An error met earlier, by a write or a read-ahead, is returned in place of the end.
    pub fn poll_read(&self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let state = &*self.state;
        if state.has_unread() {
            return Poll::Ready(Ok(self.take_unread(room)));
        }
        loop {
            ready!(self.poll_read_ready(cx));
            match rustix::net::recv(&state.fd, &mut *room, RecvFlags::empty()) {
                Ok((0, _)) => {
                    // A write or a read-ahead may have received the error.
                    let error = state.rest.borrow().as_ref().and_then(|rest| rest.error);
                    let error = error.filter(|_| !room.is_empty());
                    return Poll::Ready(error.map_or(Ok(0), |kind| Err(kind.into())));
                }
                Ok((n, _)) => {
                    if n < room.len() {
                        state.read.clear();
                    }
                    state.was_long.set(n >= READ_AHEAD);
                    return Poll::Ready(Ok(n));
                }
                Err(Errno::WOULDBLOCK) => state.read.clear(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn take_unread(&self, room: &mut [u8]) -> usize {
        let state = &*self.state;
        if state.arrived.get().1 > 0 {
            return self.core.reactor.take_ahead(state, room);
        }
        let mut rest = state.rest.borrow_mut();
        let Some(rest) = rest.as_mut() else { return 0 };
        let n = rest.unread.len().min(room.len());
        if let Some(room) = room.get_mut(..n) {
            room.copy_from_slice(rest.unread.get(..n).unwrap_or_default());
        }
        rest.unread.drain(..n);
        n
    }

    /// Writes some bytes, at least one. A short write is accepted as a whole and sent at the end of the round. If
    /// there is no room then, its rest waits for room, and so does the next write; the task is woken and can query
    /// [`Source::has_unsent`].
    ///
    /// # Errors
    /// Errors of the socket, including those of earlier writes. An error persists.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let state = &*self.state;
        ready!(self.poll_sent(cx))?;
        loop {
            // A socket nearly always has room, so readiness is only checked after an incomplete write.
            if state.is_full.get() {
                ready!(self.poll_writable(cx));
            } else if bytes.len() <= MAX_QUEUED {
                self.core.reactor.put(&self.state, bytes);
                return Poll::Ready(Ok(bytes.len()));
            }
            let sent = match rustix::net::send(&state.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => Some(n),
                Err(Errno::WOULDBLOCK) => None,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    state.set_error(error);
                    return Poll::Ready(Err(error.into()));
                }
            };
            let is_full = sent.is_none_or(|n| n < bytes.len());
            state.is_full.set(is_full);
            if is_full {
                state.write.clear();
            }
            if let Some(n) = sent {
                return Poll::Ready(Ok(n));
            }
        }
    }

    /// Moves up to `most` bytes from the socket into a pipe without copying them; 0 at the end.
    ///
    /// The pipe has to be non-blocking and empty: a full one cannot be told from a socket without bytes. Bytes that were
    /// read ahead ([`Source::has_unread`]) have to be taken before.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn poll_splice_into(&self, cx: &mut Context<'_>, pipe: BorrowedFd<'_>, most: usize) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_readable(cx));
            match rustix::pipe::splice(&self.state.fd, None, pipe, None, most, SpliceFlags::NONBLOCK) {
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(Errno::WOULDBLOCK) => self.state.read.clear(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Moves up to `most` bytes from a pipe into the socket without copying them, after everything that was written.
    /// The pipe has to hold some.
    ///
    /// # Errors
    /// Errors of the socket, including those of earlier writes.
    pub fn poll_splice_from(&self, cx: &mut Context<'_>, pipe: BorrowedFd<'_>, most: usize) -> Poll<io::Result<usize>> {
        let state = &*self.state;
        ready!(self.poll_sent(cx))?;
        loop {
            if state.is_full.get() {
                ready!(self.poll_writable(cx));
            }
            let moved = rustix::pipe::splice(pipe, None, &state.fd, None, most, SpliceFlags::NONBLOCK);
            let is_full = moved == Err(Errno::WOULDBLOCK);
            state.is_full.set(is_full);
            match moved {
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(Errno::WOULDBLOCK) => state.write.clear(),
                Err(Errno::INTR) => {}
                Err(error) => {
                    state.set_error(error);
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
    }

    /// Ready when nothing that was written waits for room.
    fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.settle();
        if let Some(rest) = &*self.state.rest.borrow() {
            if let Some(kind) = rest.error {
                return Poll::Ready(Err(kind.into()));
            }
            if !rest.unsent.is_empty() {
                self.state.write.wait(cx);
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the source's queued bytes, and everything else in the outbox with them.
    fn settle(&self) {
        if self.state.queued.get() {
            self.core.reactor.flush();
        }
    }

    /// Ends the sending side once all written bytes are sent.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.settle();
        if self.has_unsent() {
            self.state.write.wait(cx);
            return Poll::Pending;
        }
        Poll::Ready(rustix::net::shutdown(&self.state.fd, Shutdown::Write).map_err(io::Error::from))
    }

    /// True if written bytes have been waiting for room since the end of a round.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.state.has_unsent()
    }

    /// True while written bytes are unsent: the round is not over, or the socket is full.
    #[must_use]
    pub fn has_pending_write(&self) -> bool {
        self.state.queued.get() || self.has_unsent()
    }

    /// Number of written bytes that can never be sent.
    #[must_use]
    pub fn lost_bytes(&self) -> usize {
        self.settle();
        self.state.rest.borrow().as_ref().map_or(0, |rest| rest.lost)
    }

    /// Ready if there may be room to write; otherwise the task is woken when there is.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(&self.state.write, cx)
    }

    fn poll(&self, side: &Side, cx: &mut Context<'_>) -> Poll<()> {
        if !side.ready.get() {
            side.wait(cx);
            Poll::Pending
        } else if side.has_budget(self.core.turn.get()) {
            Poll::Ready(())
        } else {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    /// True if there may be something to read.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.has_unread() || self.state.read.ready.get()
    }

    /// True if bytes were read ahead that no read has taken yet.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.state.has_unread()
    }

    /// Records that nothing is left to read; the source is readable again after the kernel's next event.
    pub fn clear_readable(&self) {
        self.state.read.clear();
    }

    /// True if the kernel has reported that the peer sends no more.
    #[must_use]
    pub fn is_read_closed(&self) -> bool {
        self.state.read.closed.get()
    }

    /// Ready once the kernel has reported that nothing can be written any more: the connection was reset, or both
    /// sides have ended. No other task may wait for room to write at the same time.
    pub fn poll_write_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let side = &self.state.write;
        if side.closed.get() {
            return Poll::Ready(());
        }
        side.wait(cx);
        Poll::Pending
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.state.fd.as_fd()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.core.reactor.remove(self.number, &self.state);
    }
}
