//! Subrequests: requests that the gateway makes by itself, over the machinery that forwards those of clients. A copy for
//! a mirror is one, and a callout of a plugin.
//!
//! A subrequest is an exchange of its own in a task of its own. Its client is the gateway itself ([`Asker`]), which has sent
//! everything and reads nothing, and whose going away ends the subrequest where a client's reset would.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use weir_plugin::host::Exchange;
use weir_plugin::{Client, Failure, LocalFuture, Origin, Request, Side, Try};
use weir_wire::buffer::Buffer;
use weir_wire::head::Limits;
use weir_wire::{Reject, Span};

use super::Runner;
use super::body::client_gone;
use super::forward::{Attempt, PendingResponse, end_try};
use crate::downstream::{Downstream, Following, Presence};
use crate::relay::{Piece, Sink, Source};
use crate::timer::Timer;
use crate::tls::server::Hosts;
use crate::upstream::outgoing::Outgoing;
use crate::upstream::{PassHost, Timeouts, Upstream, aside};
use crate::worker::Worker;

/// The head of a subrequest was made here, from values that have kept their limits.
const NO_LIMITS: Limits = Limits { head: usize::MAX, fields: usize::MAX, target: usize::MAX };

/// Kind of a worker's subrequest, by which they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Mirror,
    Callout,
}

/// One of the subrequests of a kind that a worker may have under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) worker: Rc<Worker>,
    kind: Kind,
}

impl Slot {
    /// `None` when as many are under way as there may be.
    pub(super) fn take(worker: &Rc<Worker>, kind: Kind) -> Option<Self> {
        let (counter, most) = counter(worker, kind);
        let taken = counter.get();
        (taken < most).then(|| {
            counter.set(taken + 1);
            Self { worker: Rc::clone(worker), kind }
        })
    }
}

fn counter(worker: &Worker, kind: Kind) -> (&Cell<u32>, u32) {
    match kind {
        Kind::Mirror => (&worker.copies, worker.options.mirror_copies),
        Kind::Callout => (&worker.callouts, worker.options.callouts),
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let (counter, _) = counter(&self.worker, self.kind);
        counter.set(counter.get() - 1);
        if std::thread::panicking() {
            self.worker.recorder.worker_panicked();
        }
    }
}

/// Message of a subrequest.
pub(super) trait Message {
    /// Appends the whole message, for one attempt. `host` is the `Host` that the upstream names for the node, if it
    /// names one.
    fn write(&self, host: Option<&[u8]>, out: &mut Vec<u8>);
}

/// A subrequest on its way.
pub(super) struct Subrequest<'s> {
    pub(super) worker: &'s Rc<Worker>,
    pub(super) upstream: &'s Upstream,
    /// Most milliseconds for each step at a node; `u64::MAX`: the upstream's alone.
    pub(super) step_ms: u64,
    /// Most bytes of the answer's body, which is kept; `None`: the answer is dropped as it comes.
    pub(super) keep: Option<usize>,
}

impl Subrequest<'_> {
    /// Sends the message to a node, or to several in turn where that is safe, and takes in the answer, which is in
    /// [`Exchange::response`] then. It is given up when `gone` is ready.
    pub(super) async fn run(
        &self,
        x: &mut Exchange,
        message: &impl Message,
        gone: impl Future<Output = ()> + 'static,
    ) -> Result<(), Failure> {
        let Self { worker, upstream, .. } = self;
        let mut runner = Runner::new(Asker::new(gone), Rc::clone(worker));
        let timeouts = self.timeouts();
        let mut failure = Failure { side: Side::Gateway, ..Failure::upstream(503, "upstream has no node") };
        let mut pending = PendingResponse::default();
        begin(x, worker);
        let give_up = worker.timers.now().saturating_add(upstream.retry_ms);
        while let Some(turn) = upstream.pick(x, worker.timers.now()) {
            let Some(node) = upstream.nodes.get(usize::from(turn)) else { break };
            x.upstream.tried.push(turn);
            let host = match &upstream.host {
                PassHost::Pass => None,
                PassHost::Node => Some(&*node.host),
                PassHost::Rewrite(host) => Some(&**host),
            };
            put(x, message, host)?;
            runner.down.begin(&x.request);
            x.upstream.tries.push(Try { addr: None, status: 0, begin: x.times.now, connected: 0, head: 0, end: 0 });
            let _active = upstream.begin(node);
            // No plugin sees the answer.
            let attempt = Attempt { local: &worker.bare, upstream, node, timeouts, outgoing: Outgoing::Subrequest };
            match (runner.reach(x, &attempt, &mut pending).await, self.keep) {
                (Ok(()), None) => {
                    runner.relay_response(x, &attempt, &mut pending).await;
                    return match x.response.origin {
                        Origin::Failed(failure) => Err(failure),
                        _ if runner.down.is_gone() => Err(client_gone()),
                        _ => Ok(()),
                    };
                }
                (Ok(()), Some(most)) => return runner.keep_response(x, &attempt, &mut pending, most).await,
                (Err(error), _) => {
                    failure = error.failure;
                    end_try(x, worker, failure.status);
                    if error.unreachable && upstream.nodes.len() > 1 {
                        aside::watch::set(worker, &node.endpoint, failure.reason, timeouts.connect);
                    }
                    let spent = x.upstream.tried.len() > upstream.retries as usize || worker.timers.now() >= give_up;
                    if !error.retryable || spent {
                        break;
                    }
                }
            }
        }
        Err(failure)
    }

    fn timeouts(&self) -> Timeouts {
        let Timeouts { connect, send, read } = self.upstream.timeouts;
        let limit = |ms: u64| ms.min(self.step_ms);
        Timeouts { connect: limit(connect), send: limit(send), read: limit(read) }
    }
}

/// Forgets what the exchange was used for before.
pub(super) fn begin(x: &mut Exchange, worker: &Worker) {
    x.reset();
    x.timed = false;
    x.body_limit = u64::MAX;
    x.client = Client::default();
    x.times.now = worker.clock.refresh();
}

/// Puts the message into the exchange, where it is like a request that came with its body.
fn put(x: &mut Exchange, message: &impl Message, host: Option<&[u8]>) -> Result<(), Failure> {
    let request = &mut x.request;
    let mut text = std::mem::take(&mut x.scratch);
    text.clear();
    message.write(host, &mut text);
    request.buffer.clear();
    request.buffer.extend(&text);
    x.scratch = text;
    request.upstream.method = None;
    if !matches!(request.parse(&NO_LIMITS), Ok(Some(_))) {
        return Err(Failure::internal("a subrequest is no HTTP message"));
    }
    // With TLS it is the name that is asked for.
    let host = request.head.host.unwrap_or_default().of(request.buffer.bytes());
    request.upstream.host.clear();
    request.upstream.host_wins = false;
    request.upstream.host.extend_from_slice(host);
    Ok(())
}

/// The client of a subrequest: the gateway itself. It has sent everything, and drops whatever it gets.
pub(super) struct Asker {
    /// Ready when nobody waits for the answer any more; `None`: it has been.
    gone: RefCell<Option<LocalFuture<'static, ()>>>,
    /// The body, where it stands in the buffer.
    body: Span,
    /// The part that has not been taken.
    left: Span,
    sink: tokio::io::Empty,
}

impl Asker {
    pub(super) fn new(gone: impl Future<Output = ()> + 'static) -> Self {
        let none = Span::default();
        Self { gone: RefCell::new(Some(Box::pin(gone))), body: none, left: none, sink: tokio::io::empty() }
    }

    /// Begins with the body of this request.
    fn begin(&mut self, request: &Request) {
        self.body = Span::new(request.head_len, request.buffer.len());
        self.left = self.body;
    }

    fn is_gone(&self) -> bool {
        self.gone.borrow().is_none()
    }
}

impl Source for Asker {
    fn next(&mut self, _: &Buffer) -> Result<Piece, Reject> {
        let left = std::mem::replace(&mut self.left, Span { start: self.body.end, ..self.body });
        Ok(if left.is_empty() { Piece::End } else { Piece::Data(left) })
    }

    fn poll_receive(&mut self, _: &mut Context<'_>, _: &mut Buffer) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn make_room(&mut self, _: &mut Buffer) {}
}

impl Sink for Asker {
    fn poll_data(&mut self, _: &mut Context<'_>, _: &mut Vec<u8>, data: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(data.len()))
    }

    fn push_trailer(&mut self, _: &mut Vec<u8>, _: &[u8]) {}

    fn push_end(&mut self, _: &mut Vec<u8>) {}

    fn poll_flush(&mut self, _: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<()>> {
        out.clear();
        Poll::Ready(Ok(()))
    }
}

impl Presence for Asker {
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut gone = self.gone.borrow_mut();
        if let Some(waits) = &mut *gone {
            ready!(waits.as_mut().poll(cx));
            *gone = None;
        }
        Poll::Ready(())
    }
}

impl Downstream for Asker {
    type Bytes = tokio::io::Empty;

    fn admit(&self, _: &Request, _: &Hosts) -> Result<(), Reject> {
        Ok(())
    }

    fn push_continue(&mut self, _: &mut Exchange) {}

    fn push_interim(&mut self, _: &mut Exchange) {}

    fn push_head(&mut self, _: &mut Exchange, _: &Worker, _: Following, _: bool) -> bool {
        true
    }

    fn push_switch(&mut self, _: &mut Exchange) {}

    fn bytes(&mut self) -> &mut Self::Bytes {
        &mut self.sink
    }

    fn replace_body(&mut self, request: &mut Request, body: &[u8]) {
        request.put_body(body, self.body.end as usize);
        self.body.end = self.body.start + body.len() as u32;
        self.left = self.body;
    }

    fn rewind(&mut self) -> bool {
        self.left = self.body;
        true
    }

    fn abandon_request(&mut self) {}

    fn received(&self) -> u64 {
        0
    }

    fn sent(&self) -> u64 {
        0
    }

    async fn finish(&mut self, _: &mut Exchange, _: &Timer, _: &Worker) {}

    fn reset(&mut self) {}
}
