//! The connections over HTTP/2 of one worker, and which of them a request goes over: the first with a place for another
//! stream, so that there are as few as hold the load.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::opening::{Opened, Opening};
use super::session::STREAMS;
use super::{Session, Stream};
use crate::upstream::endpoint::Endpoint;

/// Milliseconds for which a node that has chosen HTTP/1.1 is taken to do so again: its connections are opened one for each
/// request that needs one.
const HTTP1_MS: u64 = 60_000;

/// Most streams whose memory is kept.
const SPARE: usize = 64;

/// The connections of one worker, by endpoint number.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    groups: RefCell<Vec<Group>>,
    /// Memory for streams, of those that have ended since the last sweep.
    #[allow(clippy::vec_box, reason = "a stream changes hands in its box")]
    spare: RefCell<Vec<Box<Stream>>>,
}

#[derive(Debug, Default)]
struct Group {
    /// Whose connections these are. While this weak reference stands, no other endpoint has the same address.
    owner: Weak<Endpoint>,
    /// Those that were opened first come first.
    sessions: Vec<Rc<Session>>,
    openings: Vec<Rc<Opening>>,
    /// Most idle connections over a sweep.
    size: usize,
    /// Time up to which the node is taken to speak HTTP/1.1.
    http1_until: u64,
}

/// A way to send a request.
#[derive(Debug)]
pub(crate) enum Taken<'s> {
    /// A stream on a connection that stands.
    Stream(Box<Stream>),
    /// A connection that is being opened.
    Opening(Rc<Opening>),
    /// None yet: the caller opens one.
    Open(Opened<'s>),
    /// None: the caller opens a connection that will be over HTTP/1.1.
    Http1,
}

impl Sessions {
    /// Takes a stream on a connection to an address of a node, if there is one with a place. With TLS it has to be one that
    /// asked for the same `host`.
    pub(crate) fn take(&self, endpoint: &Arc<Endpoint>, addr: SocketAddr, host: Option<&[u8]>) -> Option<Box<Stream>> {
        let groups = self.groups.borrow();
        let group = groups.get(endpoint.id as usize)?;
        if !group.is_of(endpoint) {
            return None;
        }
        let session = group.sessions.iter().find(|session| session.is_for(addr, host) && session.has_place())?;
        Some(self.stream(session))
    }

    fn stream(&self, session: &Rc<Session>) -> Box<Stream> {
        match self.spare.borrow_mut().pop() {
            Some(mut stream) => {
                stream.renew(session);
                stream
            }
            None => Box::new(Stream::new(Rc::clone(session))),
        }
    }

    /// Ends a stream, and keeps its memory for the next one.
    pub(crate) fn end(&self, mut stream: Box<Stream>) {
        stream.close();
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.push(stream);
        }
    }

    /// Takes a stream, or joins those who wait for a connection, or begins to open one.
    pub(crate) fn take_or_open<'s>(
        &'s self,
        endpoint: &'s Arc<Endpoint>,
        addr: SocketAddr,
        host: Option<&[u8]>,
        now: u64,
    ) -> Taken<'s> {
        if let Some(stream) = self.take(endpoint, addr, host) {
            return Taken::Stream(stream);
        }
        let mut groups = self.groups.borrow_mut();
        let slot = endpoint.id as usize;
        if slot >= groups.len() {
            groups.resize_with(slot + 1, Group::default);
        }
        let Some(group) = groups.get_mut(slot) else { return Taken::Http1 };
        if !group.is_of(endpoint) {
            group.close();
            *group = Group { owner: Arc::downgrade(endpoint), ..Group::default() };
        }
        if group.http1_until > now {
            return Taken::Http1;
        }
        let fits = |opening: &&Rc<Opening>| {
            opening.addr == addr && opening.host.as_deref() == host && opening.requests.get() < STREAMS
        };
        if let Some(opening) = group.openings.iter().find(fits) {
            opening.requests.set(opening.requests.get() + 1);
            return Taken::Opening(Rc::clone(opening));
        }
        let opening = Opening::new(addr, host);
        group.openings.push(Rc::clone(&opening));
        Taken::Open(Opened { sessions: self, endpoint, opening, failure: None })
    }

    /// Takes in a connection that was opened; a stream on it. `size`: most idle ones over a sweep.
    pub(crate) fn put(&self, endpoint: &Endpoint, session: Rc<Session>, size: u32) -> Box<Stream> {
        let stream = self.stream(&session);
        match self.groups.borrow_mut().get_mut(endpoint.id as usize) {
            Some(group) if group.is_of(endpoint) => {
                group.size = size as usize;
                group.http1_until = 0;
                group.sessions.push(session);
            }
            // Of a node that is gone: for one request.
            _ => session.close(),
        }
        stream
    }

    /// Takes note that a node has chosen HTTP/1.1.
    pub(crate) fn note_http1(&self, endpoint: &Endpoint, now: u64) {
        if let Some(group) = self.groups.borrow_mut().get_mut(endpoint.id as usize).filter(|g| g.is_of(endpoint)) {
            group.http1_until = now.saturating_add(HTTP1_MS);
        }
    }

    pub(super) fn forget_opening(&self, endpoint: &Endpoint, opening: &Rc<Opening>) {
        if let Some(group) = self.groups.borrow_mut().get_mut(endpoint.id as usize) {
            group.openings.retain(|other| !Rc::ptr_eq(other, opening));
        }
    }

    /// Closes what has been idle for too long or does not answer, belongs to a node that is gone or has moved, or is more
    /// than is kept.
    pub(crate) fn sweep(&self, now: u64) {
        self.spare.borrow_mut().clear();
        for group in self.groups.borrow_mut().iter_mut() {
            let owner = group.owner.upgrade();
            let mut idle = 0;
            for session in &group.sessions {
                session.look_after(now);
                idle += usize::from(session.is_idle());
                let is_of_use = owner.as_ref().is_some_and(|owner| owner.is_at(session.addr));
                if !is_of_use || session.is_idle() && idle > group.size {
                    session.close();
                }
            }
            group.sessions.retain(|session| !session.is_used_up());
        }
    }

    /// Closes everything, streams under way first coming to their end.
    pub(crate) fn clear(&self) {
        self.spare.borrow_mut().clear();
        self.groups.borrow_mut().iter_mut().for_each(Group::close);
    }
}

impl Group {
    fn is_of(&self, endpoint: &Endpoint) -> bool {
        std::ptr::eq(self.owner.as_ptr(), endpoint)
    }

    fn close(&mut self) {
        for session in self.sessions.drain(..) {
            session.close();
        }
    }
}
