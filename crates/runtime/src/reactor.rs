//! What waits for sockets: one epoll instance a thread, edge-triggered, so that a source is registered once and costs no
//! system call after that.
//!
//! A thread goes round: it reads what has come for all tasks that wait for bytes, runs them, and sends what they have
//! written. The kernel's way of a message and a task's work each fill the processor's cache of instructions; one after
//! the other for many requests, each of them is brought there once a round and not for every request.

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

/// Events taken at once, which bounds a round.
const EVENTS: usize = 64;
/// Bytes that are read ahead from one source. What is longer its task reads by itself, into its own memory.
pub(crate) const AHEAD: usize = 4 << 10;
/// Bytes read ahead in one round.
const INBOX: usize = 64 << 10;
/// Writes that wait for the end of the round, which comes early for more.
const OUTBOX: usize = 64;
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

    /// Begins to watch a descriptor, and gives the number of the source.
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
        // The same socket may be open elsewhere as well, and would go on telling events here.
        let _ = epoll::delete(&self.epoll, &state.fd);
        self.sources.borrow_mut().remove(number);
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

    /// Hands over what was read ahead of a source.
    pub(crate) fn take_ahead(&self, state: &State, room: &mut [u8]) -> usize {
        self.inbox.borrow().take(state, room)
    }

    /// Sends what was written.
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

    /// Takes what is to be sent at the end of the round.
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
