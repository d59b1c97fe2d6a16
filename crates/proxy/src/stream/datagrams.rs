//! A session of UDP: the datagrams of one client, and those of the node that answers it.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weir_net::datagrams::Datagrams;
use weir_plugin::host::Exchange;
use weir_plugin::{Client, Failure, NodeAddress, Side};

use super::entrance::Entrance;
use super::session::{Carrier, Session};
use super::table::Transport;
use crate::downstream::Presence;
use crate::exchange::{Attempt, AttemptError, Runner};
use crate::upstream::Upstream;
use crate::upstream::aside::watch as aside;
use crate::upstream::endpoint::Choice;

/// Most bytes, and datagrams, that wait while a node is chosen.
const MOST_WAITING: usize = 64 << 10;
const MOST_DATAGRAMS: usize = 32;
/// Milliseconds for an answer after sessions were told to end.
const LAST_ANSWER_MS: u64 = 1000;

/// State that the session's task shares with the socket that its client sends to.
pub(super) struct Flow {
    entrance: Rc<Entrance>,
    peer: SocketAddr,
    /// The address to answer from, where the socket is bound to all of them.
    from: Option<IpAddr>,
    /// `None` until a node is chosen.
    node: OnceCell<Datagrams>,
    waiting: RefCell<Vec<Box<[u8]>>>,
    waiting_bytes: Cell<usize>,
    /// Time of the last datagram in either direction.
    last: Cell<u64>,
    /// True from a datagram of the client to the next one of the node.
    asked: Cell<bool>,
    /// Bytes from the client.
    received: Cell<u64>,
    /// Bytes to the client.
    sent: Cell<u64>,
    error: Cell<Option<io::ErrorKind>>,
    waker: RefCell<Option<Waker>>,
}

impl Flow {
    pub(super) fn new(entrance: Rc<Entrance>, peer: SocketAddr, from: Option<IpAddr>) -> Self {
        let last = Cell::new(entrance.worker.timers.now());
        Self {
            entrance,
            peer,
            from,
            node: OnceCell::new(),
            waiting: RefCell::default(),
            waiting_bytes: Cell::default(),
            last,
            asked: Cell::default(),
            received: Cell::default(),
            sent: Cell::default(),
            error: Cell::default(),
            waker: RefCell::default(),
        }
    }

    /// Sends datagrams of the client to the node, or keeps them until there is one.
    pub(super) fn forward<'a>(&self, datagrams: impl Iterator<Item = &'a [u8]>) {
        self.last.set(self.entrance.worker.timers.now());
        self.asked.set(true);
        let counted = datagrams.inspect(|datagram| self.received.set(self.received.get() + datagram.len() as u64));
        let Some(node) = self.node.get() else {
            return counted.for_each(|datagram| self.keep(datagram));
        };
        if let Some(error) = self.entrance.send(node, counted)
            && is_of_node(&error)
        {
            self.error.set(Some(error.kind()));
            if let Some(waker) = &*self.waker.borrow() {
                waker.wake_by_ref();
            }
        }
    }

    fn keep(&self, datagram: &[u8]) {
        let mut waiting = self.waiting.borrow_mut();
        let bytes = self.waiting_bytes.get() + datagram.len();
        if waiting.len() >= MOST_DATAGRAMS || bytes > MOST_WAITING {
            return self.entrance.worker.recorder.datagrams_lost(1);
        }
        self.waiting_bytes.set(bytes);
        waiting.push(datagram.into());
    }

    /// Sends what has waited for the node.
    fn begin(&self, node: Datagrams) {
        let waiting = self.waiting.take();
        let node = self.node.get_or_init(|| node);
        if let Some(error) = self.entrance.send(node, waiting.iter().map(|datagram| &**datagram))
            && is_of_node(&error)
        {
            self.error.set(Some(error.kind()));
        }
    }

    /// Takes what the node has sent; ready when the node cannot be reached.
    fn poll_answers(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(node) = self.node.get() else { return Poll::Pending };
        let inbox = &mut *self.entrance.inbox.borrow_mut();
        loop {
            match node.poll_receive(cx, inbox) {
                Poll::Ready(Ok(())) => {
                    for (_, datagram) in inbox.datagrams() {
                        self.sent.set(self.sent.get() + datagram.len() as u64);
                        self.entrance.answer(self.peer, self.from, datagram);
                    }
                    self.last.set(self.entrance.worker.timers.now());
                    self.asked.set(false);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => break,
            }
        }
        match self.error.take() {
            Some(error) => Poll::Ready(error.into()),
            None => Poll::Pending,
        }
    }
}

/// True for what an ICMP message has told of the node, and false for what this host has no room for, or for a datagram
/// that is too long.
fn is_of_node(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

/// A client of UDP, which is never known to have gone.
struct Caller(Rc<Flow>);

impl Presence for Caller {
    fn poll_reset(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Serves a session.
pub(super) async fn serve(flow: Rc<Flow>, client: Client) {
    let worker = Rc::clone(&flow.entrance.worker);
    let Some(local) = worker.current() else { return };
    Session::new(Caller(flow), client, None, local, worker).run().await;
}

impl Carrier for Caller {
    type Node = Datagrams;

    const TRANSPORT: Transport = Transport::Udp;

    async fn connect(
        runner: &Runner<Self>,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        choice: Choice,
    ) -> Result<Datagrams, AttemptError> {
        runner.connect_datagrams(x, attempt, choice)
    }

    async fn read_first(_: &mut Session<Self>) -> Result<(), Failure> {
        Err(Failure { status: 400, side: Side::Client, reason: "a plugin of the route needs a connection" })
    }

    /// Carries datagrams until none has gone either way for too long, or the node cannot be reached.
    async fn relay(session: &mut Session<Self>, upstream: &Upstream, node: Datagrams) -> Result<(), Failure> {
        let Session { runner, x, .. } = session;
        let (flow, timer, worker) = (&runner.down.0, &runner.timer, &runner.worker);
        let idle_ms = upstream.idle_ms(worker.options.udp_idle_ms);
        flow.begin(node);
        timer.set(idle_ms);
        let mut ending = false;
        let failed = poll_fn(|cx| {
            if let Poll::Ready(error) = flow.poll_answers(cx) {
                return Poll::Ready(Some(error));
            }
            flow.waker.replace(Some(cx.waker().clone()));
            if worker.closes_idle() {
                if !flow.asked.get() {
                    return Poll::Ready(None);
                }
                if !std::mem::replace(&mut ending, true) {
                    timer.set(LAST_ANSWER_MS.min(idle_ms));
                }
            }
            loop {
                if timer.poll_expired(cx).is_pending() {
                    return Poll::Pending;
                }
                let until = flow.last.get() + idle_ms;
                if ending || timer.now() >= until {
                    return Poll::Ready(None);
                }
                timer.set_at(until);
            }
        })
        .await;
        (x.received, x.sent) = (flow.received.get(), flow.sent.get());
        let turn = x.upstream.tried.last().and_then(|turn| upstream.nodes.get(usize::from(*turn)));
        let Some(node) = turn else { return Ok(()) };
        if flow.sent.get() > 0 {
            aside::clear(worker, &node.endpoint);
            return Ok(());
        }
        let Some(error) = failed else { return Ok(()) };
        let failure = Runner::<Self>::datagrams_failure(&error);
        if let Some(NodeAddress::Tcp(addr)) = x.upstream.tries.last().and_then(|attempt| attempt.addr.as_ref()) {
            node.observe_failure(*addr, &failure);
        }
        if failure.side == Side::Upstream && upstream.nodes.len() > 1 {
            aside::set(worker, &node.endpoint, failure.reason, upstream.timeouts.connect);
        }
        Err(failure)
    }
}
