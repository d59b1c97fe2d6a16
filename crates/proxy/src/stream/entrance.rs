//! A socket of UDP that clients send to, and their sessions: all datagrams between an address of a client and one of the
//! gateway.
//!
//! Datagrams are received and answered many a system call: answers of one round of the worker wait for its end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_net::datagrams::{Arrived, BATCH, Datagrams, Inbox, Outbox};
use weir_plugin::{AddrText, Client};

use super::datagrams::{self, Flow};
use crate::listener::Bound;
use crate::worker::Worker;

/// Pause of receiving after an error of the socket.
const PAUSE: Duration = Duration::from_millis(20);
/// Most bytes of answers that wait for the end of a round.
const MOST_WAITING: usize = 256 << 10;

/// Addresses of a client and of the gateway.
type Key = (SocketAddr, SocketAddr);

/// A socket that clients send to.
pub(crate) struct Entrance {
    socket: Datagrams,
    /// True when it is bound to all addresses, so that each answer needs the right one.
    everywhere: bool,
    pub(super) worker: Rc<Worker>,
    sessions: RefCell<HashMap<Key, Rc<Flow>>>,
    /// Answers to clients.
    answers: RefCell<Outbox>,
    answered: Cell<usize>,
    /// Room for what one session receives from its node.
    pub(super) inbox: RefCell<Inbox>,
    waker: RefCell<Option<Waker>>,
}

impl Entrance {
    pub(crate) fn new(socket: OwnedFd, bound: &Bound, worker: &Rc<Worker>) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            socket: Datagrams::bound(socket)?,
            everywhere: bound.address.tcp().is_some_and(|address| address.ip().is_unspecified()),
            worker: Rc::clone(worker),
            sessions: RefCell::default(),
            answers: RefCell::default(),
            answered: Cell::default(),
            inbox: RefCell::default(),
            waker: RefCell::default(),
        }))
    }

    /// Receives until the drain begins.
    pub(crate) async fn receive(self: &Rc<Self>, drained: impl Future<Output = ()>) {
        let mut drained = pin!(drained);
        let mut inbox = Inbox::default();
        loop {
            let failed = poll_fn(|cx| {
                if drained.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                self.flush_when_woken(cx);
                loop {
                    match self.socket.poll_receive(cx, &mut inbox) {
                        Poll::Ready(Ok(())) => self.take(&inbox),
                        Poll::Ready(Err(error)) => return Poll::Ready(Some(error)),
                        Poll::Pending => return Poll::Pending,
                    }
                }
            });
            let Some(error) = failed.await else { return };
            tracing::error!(%error, "cannot receive datagrams");
            weir_runtime::sleep(PAUSE).await;
        }
    }

    /// Sends the answers of sessions until the last one has ended.
    pub(crate) async fn end(&self) {
        poll_fn(|cx| {
            self.flush_when_woken(cx);
            if self.sessions.borrow().is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn flush_when_woken(&self, cx: &mut Context<'_>) {
        self.flush();
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }

    /// Hands what was received to the sessions.
    fn take(self: &Rc<Self>, inbox: &Inbox) {
        let arrived: Vec<(Arrived, &[u8])> = inbox.datagrams().collect();
        for run in arrived.chunk_by(|(a, _), (b, _)| a.peer == b.peer && a.local == b.local) {
            let Some((Arrived { peer: Some(peer), local, .. }, _)) = run.first() else { continue };
            let known = self.sessions.borrow().get(&(*peer, *local)).cloned();
            let datagrams = run.iter().map(|(_, datagram)| *datagram);
            match known.or_else(|| self.open(*peer, *local)) {
                Some(flow) => flow.forward(datagrams),
                None => datagrams.for_each(|_| self.worker.recorder.udp_session_refused()),
            }
        }
    }

    /// A session for a new client, if there is room for it.
    fn open(self: &Rc<Self>, peer: SocketAddr, local: SocketAddr) -> Option<Rc<Flow>> {
        let worker = &self.worker;
        if worker.shared.sessions.fetch_add(1, Ordering::Relaxed) >= worker.options.udp_sessions {
            worker.shared.sessions.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let from = (self.everywhere && !local.ip().is_unspecified()).then_some(local.ip());
        let flow = Rc::new(Flow::new(Rc::clone(self), peer, from));
        self.sessions.borrow_mut().insert((peer, local), Rc::clone(&flow));
        let seat = Seat { entrance: Rc::clone(self), key: (peer, local) };
        let addr = peer.ip().to_canonical();
        let client = Client {
            addr,
            addr_text: AddrText::new(addr),
            port: peer.port(),
            peer: addr,
            sender: addr,
            local,
            https: false,
            connection: worker.shared.accepted.fetch_add(1, Ordering::Relaxed) + 1,
            requests: 0,
            inner: false,
        };
        let session = Rc::clone(&flow);
        weir_runtime::spawn(async move {
            let _seat = seat;
            datagrams::serve(session, client).await;
        });
        Some(flow)
    }

    /// Adds an answer to those of this round.
    pub(super) fn answer(&self, peer: SocketAddr, from: Option<IpAddr>, datagram: &[u8]) {
        let mut answers = self.answers.borrow_mut();
        let is_first = answers.is_empty();
        answers.put(peer, from, datagram);
        let bytes = self.answered.get() + datagram.len();
        self.answered.set(bytes);
        let is_full = answers.len() >= BATCH || bytes >= MOST_WAITING;
        drop(answers);
        if is_full {
            self.flush();
        } else if is_first && let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn flush(&self) {
        if self.answered.replace(0) == 0 && self.answers.borrow().is_empty() {
            return;
        }
        let sent = self.socket.flush(&mut self.answers.borrow_mut());
        if let Some(error) = sent.error {
            self.worker.recorder.datagrams_lost(sent.lost);
            tracing::debug!(%error, lost = sent.lost, "datagrams to clients are lost");
        }
    }

    /// Sends datagrams of a client to its node.
    pub(super) fn send<'a>(&self, node: &Datagrams, datagrams: impl Iterator<Item = &'a [u8]>) -> Option<io::Error> {
        // Shared with the answers, of which it needs only the room for system calls.
        let sent = node.send(&mut self.answers.borrow_mut(), datagrams);
        if sent.lost > 0 {
            self.worker.recorder.datagrams_lost(sent.lost);
        }
        sent.error
    }
}

/// The place of a session, until its task has ended, also by a panic.
struct Seat {
    entrance: Rc<Entrance>,
    key: Key,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Self { entrance, key } = self;
        entrance.sessions.borrow_mut().remove(key);
        let worker = &entrance.worker;
        worker.shared.sessions.fetch_sub(1, Ordering::Relaxed);
        if std::thread::panicking() {
            worker.recorder.worker_panicked();
        }
        if let Some(waker) = entrance.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}
