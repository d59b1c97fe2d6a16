//! What waits for sockets: one epoll instance a thread, edge-triggered, so that a source is registered once and costs no
//! system call after that.
//!
//! A thread goes round: it reads what has come for all tasks that wait for bytes, runs them, and sends what they have
//! written. The kernel's way of a message and a task's work each fill the processor's cache of instructions; one after
//! the other for many requests, each of them is brought there once a round and not for every request.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use slab::Slab;

use crate::task::Core;

/// Events taken at once, which bounds a round.
const EVENTS: usize = 64;
/// Bytes that are read ahead from one source. What is longer its task reads by itself, into its own memory.
const AHEAD: usize = 4 << 10;
/// Bytes read ahead in one round.
const INBOX: usize = 64 << 10;
/// Bytes of one write that wait for the end of the round. What is longer is sent at once, from where it lies.
const SMALL: usize = 4 << 10;
/// Writes that wait for the end of the round, which comes early for more.
const OUTBOX: usize = 64;
/// How often a task that is polled may find one side of a source ready: then all other tasks have their turn.
const BUDGET: u32 = 32;
/// Stands for the other threads in place of a source.
const OTHERS: u64 = u64::MAX;

/// The sources of a thread.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    /// What the last wait has brought.
    events: RefCell<Vec<Event>>,
    sources: RefCell<Slab<Rc<State>>>,
    inbox: RefCell<Inbox>,
    outbox: RefCell<Outbox>,
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// What was read in this round before the tasks that wait for it run.
#[derive(Debug)]
struct Inbox {
    bytes: Box<[u8]>,
    filled: usize,
    /// Numbers of the sources that it was read from.
    from: Vec<usize>,
}

/// What is written in this round: one write a source, one behind the other.
#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// Where it goes, and where it ends.
    to: Vec<(Rc<State>, usize)>,
}

/// What is known of a source.
#[derive(Debug)]
struct State {
    fd: OwnedFd,
    read: Side,
    write: Side,
    /// Whether the task that waits to read takes whatever comes, and that is likely to be short.
    ahead: Cell<bool>,
    /// Whether what came last was longer than what is read ahead.
    long: Cell<bool>,
    /// Bytes of it in the inbox: where, and how many.
    arrived: Cell<(usize, usize)>,
    /// Whether bytes for it are in the outbox.
    queued: Cell<bool>,
    /// Whether the last write did not go through whole: until there is room there is no use in another one.
    clogged: Cell<bool>,
    rest: RefCell<Option<Box<Rest>>>,
}

/// What few sources have.
#[derive(Debug, Default)]
struct Rest {
    /// Bytes that were read ahead and that nobody took in that round.
    unread: Vec<u8>,
    /// Bytes that were written and for which there was no room at the end of the round.
    unsent: Vec<u8>,
    /// Why the connection is of no use any more. The kernel tells it once; here it stays.
    broken: Option<io::ErrorKind>,
    /// Bytes that were written and can never be sent.
    lost: usize,
}

/// One direction of a source.
#[derive(Debug, Default)]
struct Side {
    /// There may be something to do.
    ready: Cell<bool>,
    /// There will be nothing more: the other side has ended, or both have.
    closed: Cell<bool>,
    /// The poll of a task that found it ready last, and how often that may find it so again.
    budget: Cell<(u64, u32)>,
    /// Whether `waker` is to be woken. It is kept between waits: mostly the same task waits again.
    waits: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Reactor {
    /// With `event` by which other threads tell that they have woken tasks.
    pub(crate) fn new(event: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, event, EventData::new_u64(OTHERS), EventFlags::IN | EventFlags::ET)?;
        let inbox = Inbox { bytes: vec![0; INBOX].into(), filled: 0, from: Vec::with_capacity(EVENTS) };
        Ok(Self {
            epoll,
            events: RefCell::new(Vec::with_capacity(EVENTS)),
            sources: RefCell::default(),
            inbox: RefCell::new(inbox),
            outbox: RefCell::default(),
        })
    }

    /// Waits for events, at most `limit` microseconds, rounded up to milliseconds.
    pub(crate) fn wait(&self, limit: Option<u64>) -> io::Result<()> {
        let events = &mut *self.events.borrow_mut();
        events.clear();
        // More would not fit into the kernel's number; whoever waits so long can be woken in between.
        let limit = limit.map(|us| us.div_ceil(1000).min(1 << 30));
        let limit = limit.map(|ms| Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 });
        match epoll::wait(&self.epoll, spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads ahead what the events tell of, and wakes whom they concern. Whether other threads have woken tasks.
    pub(crate) fn take_events(&self) -> bool {
        // No source goes or comes while these are handled: tasks run after that.
        let sources = self.sources.borrow();
        let mut inbox = self.inbox.borrow_mut();
        let mut others = false;
        for event in self.events.borrow().iter() {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == OTHERS {
                others = true;
                continue;
            }
            let number = data as usize;
            if let Some(state) = sources.get(number) {
                let ahead = state.read.waits.get() && state.ahead.get() && flags.contains(EventFlags::IN);
                state.happened(flags);
                if ahead {
                    inbox.read(number, state);
                }
            }
        }
        others
    }

    /// Ends a round, when all tasks that were woken have run.
    pub(crate) fn end_round(&self) {
        self.inbox.borrow_mut().clear(&self.sources.borrow());
        self.flush();
    }

    /// Sends what was written.
    fn flush(&self) {
        let Outbox { bytes, to } = &mut *self.outbox.borrow_mut();
        let mut from = 0;
        for (state, end) in to.drain(..) {
            state.queued.set(false);
            state.send(bytes.get(from..end).unwrap_or_default());
            from = end;
        }
        bytes.clear();
    }

    /// Takes what is to be sent at the end of the round.
    fn put(&self, state: &Rc<State>, bytes: &[u8]) {
        if self.outbox.borrow().to.len() >= OUTBOX {
            self.flush();
        }
        let outbox = &mut *self.outbox.borrow_mut();
        outbox.bytes.extend_from_slice(bytes);
        outbox.to.push((Rc::clone(state), outbox.bytes.len()));
        state.queued.set(true);
    }
}

impl Inbox {
    /// Reads what has come, if there is room.
    fn read(&mut self, number: usize, state: &State) {
        let Some(room) = self.bytes.get_mut(self.filled..self.filled + AHEAD) else { return };
        match rustix::net::recv(&state.fd, room, RecvFlags::empty()) {
            Ok((n @ 1.., _)) => {
                state.arrived.set((self.filled, n));
                self.filled += n;
                self.from.push(number);
                if n < AHEAD {
                    state.read.clear();
                } else {
                    state.long.set(true);
                }
            }
            // These, and the end, the task finds when it reads.
            Ok(_) | Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => state.broke(error),
        }
    }

    /// Hands over what was read ahead of a source.
    fn take(&self, state: &State, room: &mut [u8]) -> usize {
        let (from, there) = state.arrived.get();
        let n = there.min(room.len());
        if let (Some(room), Some(bytes)) = (room.get_mut(..n), self.bytes.get(from..from + n)) {
            room.copy_from_slice(bytes);
        }
        state.arrived.set((from + n, there - n));
        n
    }

    /// Begins anew; what nobody took stays with its source.
    fn clear(&mut self, sources: &Slab<Rc<State>>) {
        for number in self.from.drain(..) {
            let Some(state) = sources.get(number) else { continue };
            let (from, there) = state.arrived.replace((0, 0));
            if there > 0 {
                let left = self.bytes.get(from..from + there).unwrap_or_default();
                state.rest.borrow_mut().get_or_insert_default().unread.extend_from_slice(left);
            }
        }
        self.filled = 0;
    }
}

impl State {
    fn new(fd: OwnedFd) -> Self {
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

    fn happened(&self, flags: EventFlags) {
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

    fn broke(&self, error: Errno) {
        self.rest.borrow_mut().get_or_insert_default().broken.get_or_insert(io::Error::from(error).kind());
    }

    /// Sends what was written before. What there is no room for waits until there is; the task is told of that, as of
    /// an error.
    fn send(&self, bytes: &[u8]) {
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

    fn clear(&self) {
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
        let mut sources = core.reactor.sources.borrow_mut();
        let place = sources.vacant_entry();
        let number = place.key();
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&core.reactor.epoll, &fd, EventData::new_u64(number as u64), flags)?;
        let state = Rc::new(State::new(fd));
        place.insert(Rc::clone(&state));
        drop(sources);
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
            return self.core.reactor.inbox.borrow().take(state, room);
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
        // The same socket may be open elsewhere as well, and would go on telling events here.
        let _ = epoll::delete(&self.core.reactor.epoll, &self.state.fd);
        self.core.reactor.sources.borrow_mut().remove(self.number);
    }
}
