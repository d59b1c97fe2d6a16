//! Readiness of sockets: one edge-triggered epoll instance per thread, so that a source is registered once and needs
//! no further system call for it.
//!
//! A thread works in rounds: it reads the bytes that have arrived for all tasks waiting to read, runs the tasks, and
//! sends the bytes that they have written. The kernel's network path and a task's code each fill the processor's
//! instruction cache; batched for many requests, each is loaded once per round instead of once per request.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use slab::Slab;

use crate::source::State;

/// Maximum number of events per wait, which bounds a round.
const MAX_EVENTS: usize = 64;
/// Bytes read ahead per source. A task reads longer messages itself, into its own buffer.
pub(crate) const READ_AHEAD: usize = 4 << 10;
/// Bytes read ahead per round.
const INBOX: usize = 64 << 10;
/// Number of writes queued for the end of the round; one more ends it early.
const OUTBOX: usize = 64;
/// Event data of the eventfd through which other threads wake this one, in place of a source's number.
const REMOTE_WAKE: u64 = u64::MAX;

/// Sources of a thread.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    /// Events of the last wait.
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

/// Bytes read in this round for tasks that have not run yet.
#[derive(Debug)]
struct Inbox {
    bytes: Box<[u8]>,
    filled: usize,
    /// Numbers of the sources that the bytes come from.
    from: Vec<usize>,
}

/// Bytes written in this round: one write per source, concatenated.
#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// Destination and end offset of each write.
    to: Vec<(Rc<State>, usize)>,
}

impl Reactor {
    /// Creates a reactor; other threads signal through `event` that they have woken tasks.
    pub(crate) fn new(event: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, event, EventData::new_u64(REMOTE_WAKE), EventFlags::IN | EventFlags::ET)?;
        let inbox = Inbox { bytes: vec![0; INBOX].into(), filled: 0, from: Vec::with_capacity(MAX_EVENTS) };
        Ok(Self {
            epoll,
            events: RefCell::new(Vec::with_capacity(MAX_EVENTS)),
            sources: RefCell::default(),
            inbox: RefCell::new(inbox),
            outbox: RefCell::default(),
        })
    }

    /// Registers a descriptor and returns the number of the source.
    pub(crate) fn add(&self, fd: OwnedFd) -> io::Result<(usize, Rc<State>)> {
        let mut sources = self.sources.borrow_mut();
        let place = sources.vacant_entry();
        let number = place.key();
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &fd, EventData::new_u64(number as u64), flags)?;
        let state = Rc::new(State::new(fd));
        place.insert(Rc::clone(&state));
        Ok((number, state))
    }

    pub(crate) fn remove(&self, number: usize, state: &State) {
        // The same socket may also be open elsewhere, and would go on reporting events here.
        let _ = epoll::delete(&self.epoll, &state.fd);
        self.sources.borrow_mut().remove(number);
    }

    /// Waits for events, at most `limit` microseconds, rounded up to milliseconds.
    pub(crate) fn wait(&self, limit: Option<u64>) -> io::Result<()> {
        let events = &mut *self.events.borrow_mut();
        events.clear();
        // Limited to the range of the kernel's integer; a longer wait returns early, which is harmless.
        let limit = limit.map(|us| us.div_ceil(1000).min(1 << 30));
        let limit = limit.map(|ms| Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 });
        match epoll::wait(&self.epoll, spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads ahead for the events' sources, and wakes their tasks. Returns true if other threads have woken tasks.
    pub(crate) fn take_events(&self) -> bool {
        // No source is added or removed meanwhile, since tasks run afterwards.
        let sources = self.sources.borrow();
        let mut inbox = self.inbox.borrow_mut();
        let mut others = false;
        for event in self.events.borrow().iter() {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == REMOTE_WAKE {
                others = true;
                continue;
            }
            let number = data as usize;
            if let Some(state) = sources.get(number) {
                let ahead = state.read.waits.get() && state.ahead.get() && flags.contains(EventFlags::IN);
                state.on_events(flags);
                if ahead {
                    inbox.read(number, state);
                }
            }
        }
        others
    }

    /// Ends a round after all woken tasks have run.
    pub(crate) fn end_round(&self) {
        self.inbox.borrow_mut().clear(&self.sources.borrow());
        self.flush();
    }

    /// Copies bytes that were read ahead from a source.
    pub(crate) fn take_ahead(&self, state: &State, room: &mut [u8]) -> usize {
        self.inbox.borrow().take(state, room)
    }

    /// Sends the queued writes.
    pub(crate) fn flush(&self) {
        let Outbox { bytes, to } = &mut *self.outbox.borrow_mut();
        let mut from = 0;
        for (state, end) in to.drain(..) {
            state.queued.set(false);
            state.send(bytes.get(from..end).unwrap_or_default());
            from = end;
        }
        bytes.clear();
    }

    /// Queues a write for the end of the round.
    pub(crate) fn put(&self, state: &Rc<State>, bytes: &[u8]) {
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
    /// Reads arrived bytes if there is room.
    fn read(&mut self, number: usize, state: &State) {
        let Some(room) = self.bytes.get_mut(self.filled..self.filled + READ_AHEAD) else { return };
        match rustix::net::recv(&state.fd, room, RecvFlags::empty()) {
            Ok((n @ 1.., _)) => {
                state.arrived.set((self.filled, n));
                self.filled += n;
                self.from.push(number);
                if n < READ_AHEAD {
                    state.read.clear();
                } else {
                    state.was_long.set(true);
                }
            }
            // The task finds these results, and the end, when it reads.
            Ok(_) | Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => state.set_error(error),
        }
    }

    fn take(&self, state: &State, room: &mut [u8]) -> usize {
        let (from, there) = state.arrived.get();
        let n = there.min(room.len());
        if let (Some(room), Some(bytes)) = (room.get_mut(..n), self.bytes.get(from..from + n)) {
            room.copy_from_slice(bytes);
        }
        state.arrived.set((from + n, there - n));
        n
    }

    /// Empties the inbox; untaken bytes are moved to their source.
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
