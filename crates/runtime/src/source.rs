//! Sockets that do not block, and what their thread knows of them.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::reactor::AHEAD;
use crate::task::Core;

/// Bytes of one write that wait for the end of the round. What is longer is sent at once, from where it lies.
const SMALL: usize = 4 << 10;
/// How often a task that is polled may find one side of a source ready: then all other tasks have their turn.
const BUDGET: u32 = 32;

/// What is known of a source.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) fd: OwnedFd,
    pub(crate) read: Side,
    write: Side,
    /// Whether the task that waits to read takes whatever comes, and that is likely to be short.
    pub(crate) ahead: Cell<bool>,
    /// Whether what came last was longer than what is read ahead.
    pub(crate) long: Cell<bool>,
    /// Bytes of it in the inbox: where, and how many.
    pub(crate) arrived: Cell<(usize, usize)>,
    /// Whether bytes for it are in the outbox.
    pub(crate) queued: Cell<bool>,
    /// Whether the last write did not go through whole: until there is room there is no use in another one.
    clogged: Cell<bool>,
    pub(crate) rest: RefCell<Option<Box<Rest>>>,
}

/// What few sources have.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// Bytes that were read ahead and that nobody took in that round.
    pub(crate) unread: Vec<u8>,
    /// Bytes that were written and for which there was no room at the end of the round.
    unsent: Vec<u8>,
    /// Why the connection is of no use any more. The kernel tells it once; here it stays.
    broken: Option<io::ErrorKind>,
    /// Bytes that were written and can never be sent.
    lost: usize,
}

/// One direction of a source.
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// There may be something to do.
    ready: Cell<bool>,
    /// There will be nothing more: the other side has ended, or both have.
    closed: Cell<bool>,
    /// The poll of a task that found it ready last, and how often that may find it so again.
    budget: Cell<(u64, u32)>,
    /// Whether `waker` is to be woken. It is kept between waits: mostly the same task waits again.
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
            long: Cell::default(),
            arrived: Cell::default(),
            queued: Cell::default(),
            clogged: Cell::default(),
            rest: RefCell::default(),
        }
    }

    pub(crate) fn happened(&self, flags: EventFlags) {
        let both = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        if both || flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
            self.read.happened(both || flags.contains(EventFlags::RDHUP));
        }
        if both || flags.contains(EventFlags::OUT) {
            let unsent = self.rest.borrow_mut().as_mut().map(|rest| std::mem::take(&mut rest.unsent));
            if let Some(unsent) = unsent.filter(|unsent| !unsent.is_empty()) {
                self.send(&unsent);
                self.read.wake();
            }
            if both || !self.has_unsent() {
                self.write.happened(both);
            }
        }
    }

    fn has_unsent(&self) -> bool {
        self.rest.borrow().as_ref().is_some_and(|rest| !rest.unsent.is_empty())
    }

    fn has_unread(&self) -> bool {
        self.arrived.get().1 > 0 || self.rest.borrow().as_ref().is_some_and(|rest| !rest.unread.is_empty())
    }

    pub(crate) fn broke(&self, error: Errno) {
        self.rest.borrow_mut().get_or_insert_default().broken.get_or_insert(io::Error::from(error).kind());
    }

    /// Sends what was written before. What there is no room for waits until there is; the task is told of that, as of
    /// an error.
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
                self.broke(error);
                self.rest.borrow_mut().get_or_insert_default().lost += bytes.len();
            }
        }
        // Whichever side the task waits for.
        self.read.wake();
        self.write.wake();
    }
}

impl Side {
    fn happened(&self, closed: bool) {
        self.ready.set(true);
        if closed {
            self.closed.set(true);
        }
        if self.waits.replace(false) {
            self.wake();
        }
    }

    /// Wakes who waited last, whether or not it waits for this side now.
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Whether the task that is polled, for the time of that number, may still go on with it.
    fn may_go_on(&self, turn: u64) -> bool {
        let (last, left) = self.budget.get();
        let left = if last == turn { left } else { BUDGET };
        self.budget.set((turn, left.saturating_sub(1)));
        left > 0
    }

    pub(crate) fn clear(&self) {
        // What has ended stays ready: no event will tell again.
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

/// A socket that does not block, with what its thread knows of it.
///
/// Whoever reads from the descriptor by itself, and was told that it would block, clears its readiness and is woken when
/// it is ready again.
#[derive(Debug)]
pub struct Source {
    number: usize,
    state: Rc<State>,
    core: Rc<Core>,
}

impl Source {
    /// Begins to watch a descriptor. Nothing is ready before the first event.
    ///
    /// # Errors
    /// The kernel cannot watch it.
    ///
    /// # Panics
    /// Outside of [`block_on`](crate::block_on).
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let core = Core::here();
        let (number, state) = core.reactor.add(fd)?;
        Ok(Self { number, state, core })
    }

    /// Ready when there may be something to read, or the end; else the task is woken when there is. Nothing is read
    /// ahead for this: the bytes are still the kernel's.
    ///
    /// A task that finds it ready again and again is made to wait for all others in between.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_arrived(cx, false)
    }

    /// The same for a task that goes on with [`Source::poll_read`]: what comes is read for it before it runs.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_arrived(cx, true)
    }

    fn poll_arrived(&self, cx: &mut Context<'_>, ahead: bool) -> Poll<()> {
        if self.state.has_unread() {
            return Poll::Ready(());
        }
        self.state.ahead.set(ahead && !self.state.long.get());
        self.poll(&self.state.read, cx)
    }

    /// Reads some bytes; none at the end, or where there is no room.
    ///
    /// # Errors
    /// Those of the socket; one that was met elsewhere before stands in place of the end.
    pub fn poll_read(&self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let state = &*self.state;
        if state.has_unread() {
            return Poll::Ready(Ok(self.take_unread(room)));
        }
        loop {
            ready!(self.poll_read_ready(cx));
            match rustix::net::recv(&state.fd, &mut *room, RecvFlags::empty()) {
                Ok((0, _)) => {
                    // It may have been told to who wrote, or when it was read ahead.
                    let broken = state.rest.borrow().as_ref().and_then(|rest| rest.broken);
                    let broken = broken.filter(|_| !room.is_empty());
                    return Poll::Ready(broken.map_or(Ok(0), |kind| Err(kind.into())));
                }
                Ok((n, _)) => {
                    if n < room.len() {
                        state.read.clear();
                    }
                    state.long.set(n >= AHEAD);
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

    /// Writes some bytes; never none. What is short is taken whole and sent at the end of the round; if there is no room
    /// then, it waits for some and so does the next write, and the task is woken to see that it [`Source::has_unsent`].
    ///
    /// # Errors
    /// Those of the socket, also of what was written before. They last.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let state = &*self.state;
        self.settle();
        if let Some(rest) = &*state.rest.borrow() {
            if let Some(kind) = rest.broken {
                return Poll::Ready(Err(kind.into()));
            }
            if !rest.unsent.is_empty() {
                state.write.wait(cx);
                return Poll::Pending;
            }
        }
        loop {
            // A socket nearly always has room, so the reactor is asked only about one that had none.
            if state.clogged.get() {
                ready!(self.poll_writable(cx));
            } else if bytes.len() <= SMALL {
                self.core.reactor.put(&self.state, bytes);
                return Poll::Ready(Ok(bytes.len()));
            }
            let sent = match rustix::net::send(&state.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => Some(n),
                Err(Errno::WOULDBLOCK) => None,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    state.broke(error);
                    return Poll::Ready(Err(error.into()));
                }
            };
            let clogged = sent.is_none_or(|n| n < bytes.len());
            state.clogged.set(clogged);
            if clogged {
                state.write.clear();
            }
            if let Some(n) = sent {
                return Poll::Ready(Ok(n));
            }
        }
    }

    /// Sends what was written to it in this round, and with that everything that waits in the outbox.
    fn settle(&self) {
        if self.state.queued.get() {
            self.core.reactor.flush();
        }
    }

    /// Ends this side, once all that was written is sent.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.settle();
        if self.has_unsent() {
            self.state.write.wait(cx);
            return Poll::Pending;
        }
        Poll::Ready(rustix::net::shutdown(&self.state.fd, Shutdown::Write).map_err(io::Error::from))
    }

    /// Whether bytes that were written have waited for room since the end of a round.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.state.has_unsent()
    }

    /// Whether bytes that were written have not been sent: the round has not ended, or there was no room.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.state.queued.get() || self.has_unsent()
    }

    /// How many of the bytes that were written can never be sent.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.settle();
        self.state.rest.borrow().as_ref().map_or(0, |rest| rest.lost)
    }

    /// Ready when there may be room to write; else the task is woken when there is.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(&self.state.write, cx)
    }

    fn poll(&self, side: &Side, cx: &mut Context<'_>) -> Poll<()> {
        if !side.ready.get() {
            side.wait(cx);
            Poll::Pending
        } else if side.may_go_on(self.core.turn.get()) {
            Poll::Ready(())
        } else {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    /// Whether there may be something to read.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.has_unread() || self.state.read.ready.get()
    }

    /// Whether bytes were read ahead that nobody has taken yet.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.state.has_unread()
    }

    /// Nothing is left to read: it is readable again when the kernel says so.
    pub fn clear_readable(&self) {
        self.state.read.clear();
    }

    /// Whether the kernel has told that the other side sends no more.
    #[must_use]
    pub fn is_read_closed(&self) -> bool {
        self.state.read.closed.get()
    }

    /// Ready when the kernel has told that nothing can be written any more: the connection was reset, or both sides have
    /// ended. Another task than this one must not wait for room to write meanwhile.
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
