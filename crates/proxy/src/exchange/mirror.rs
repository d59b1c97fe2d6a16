//! Copies of requests for a mirror: sent beside the request, which never waits for them, and whose answers are dropped.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_plugin::buffers::Held;
use weir_plugin::{Client, Exchange, Origin, Request, Try};
use weir_telemetry::metrics::Mirrored;
use weir_wire::buffer::Buffer;
use weir_wire::head::{Content, Limits};
use weir_wire::name::Known;
use weir_wire::{Reject, Span};

use super::Runner;
use super::forward::{Attempt, PendingResponse};
use super::upload::BodyCopy;
use crate::downstream::{Downstream, Following};
use crate::relay::{self, Piece, Sink, Source};
use crate::snapshot::Local;
use crate::timer::Timer;
use crate::tls::server::Hosts;
use crate::upstream::connection::Outgoing;
use crate::upstream::h1;
use crate::worker::Worker;

/// How long a mirror has for a copy, whatever it does meanwhile.
const COPY_TIME: Duration = Duration::from_secs(60);
/// The head of a copy was made here, from one that has kept its limits.
const NO_LIMITS: Limits = Limits { head: usize::MAX, fields: usize::MAX, target: usize::MAX };

/// A copy in the making: it is held until the whole request is here, since a mirror must never take a part for it.
#[derive(Debug)]
pub(super) struct RequestCopy {
    place: Place,
    local: Rc<Local>,
    /// Number of the mirror among the upstreams.
    mirror: u32,
    /// The head, but for the length of the body and the end.
    head: Vec<u8>,
    body: Vec<u8>,
    /// The part of the budget for buffers that the two have, once here and once where they are sent from.
    held: Held,
    content: Content,
}

/// One of the copies that a worker may have under way.
#[derive(Debug)]
struct Place(Rc<Worker>);

impl Place {
    fn take(worker: &Rc<Worker>) -> Option<Self> {
        let taken = worker.copies.get();
        (taken < worker.options.mirror_copies).then(|| {
            worker.copies.set(taken + 1);
            Self(Rc::clone(worker))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.copies.set(self.0.copies.get() - 1);
        if std::thread::panicking() {
            self.0.recorder.worker_panicked();
        }
    }
}

impl<D: Downstream> Runner<D> {
    /// Begins a copy of the request for a mirror, unless there are enough, or it is too long.
    pub(super) fn copy_request(&mut self, x: &mut Exchange, mirror: u32, attempt: &Attempt<'_>) {
        let Some(mut copy) = RequestCopy::begin(x, mirror, attempt, &self.worker) else { return };
        // What is here already is not waited for: whatever becomes of the request, its copy goes.
        let whole = relay::take_all(&mut self.down, &x.request.buffer, &mut copy.body);
        self.down.rewind();
        if whole != Ok(true) {
            // A malformed body ends the request as well.
            copy.restart();
            self.copy = Some(copy);
        } else if let Some(copy) = copy.keep_within_bounds() {
            copy.complete();
        }
    }
}

impl RequestCopy {
    fn begin(x: &mut Exchange, mirror: u32, attempt: &Attempt<'_>, worker: &Rc<Worker>) -> Option<Box<Self>> {
        let content = x.request.head.content;
        let fits = !matches!(content, Content::Length(n) if n > worker.options.mirror_body);
        let Some(place) = Place::take(worker).filter(|_| fits) else {
            worker.recorder.mirrored(Mirrored::Dropped);
            return None;
        };
        let websocket = matches!(attempt.outgoing, Outgoing::Request { websocket: true });
        h1::push_request(x, attempt.upstream, attempt.node, websocket);
        Some(Box::new(Self {
            place,
            local: Rc::clone(attempt.local),
            mirror,
            head: copied_head(&x.out, &x.upstream.mirror_target),
            body: Vec::new(),
            held: Held::default(),
            content,
        }))
    }

    /// Begins anew: the request's body is going to be sent again.
    pub(super) fn restart(&mut self) {
        self.body.clear();
    }

    fn keep_within_bounds(mut self: Box<Self>) -> Option<Box<Self>> {
        let has_room = self.held.grow_if_plenty(2 * (self.head.capacity() + self.body.capacity()));
        if !has_room || self.body.len() as u64 > self.place.0.options.mirror_body {
            self.place.0.recorder.mirrored(Mirrored::Dropped);
            return None;
        }
        Some(self)
    }

    /// Sends the copy and reads the answer; whether there was one.
    async fn send(self: Box<Self>) -> bool {
        let worker = Rc::clone(&self.place.0);
        let mut x = worker.take_exchange();
        let answered = self.exchange(&mut x).await;
        worker.put_exchange(x);
        answered
    }

    async fn exchange(&self, x: &mut Exchange) -> bool {
        let worker = &self.place.0;
        let Some(upstream) = self.local.snapshot.upstreams.get(self.mirror) else { return false };
        // A mirror is one node.
        let Some(node) = upstream.nodes.first() else { return false };
        if !self.write(x) {
            return false;
        }
        let begin = worker.clock.refresh();
        x.times.now = begin;
        x.upstream.tries.push(Try { addr: None, status: 0, begin, connected: 0, head: 0, end: 0 });
        let (timeouts, outgoing) = (upstream.timeouts, Outgoing::Subrequest);
        // No plugin sees the answer.
        let attempt = Attempt { local: &worker.bare, upstream, node, timeouts, outgoing };
        let body = Span::new(x.request.head_len, x.request.buffer.len());
        let mut runner = Runner::new(Nobody { body, left: body, sink: tokio::io::empty() }, Rc::clone(worker));
        let mut pending = PendingResponse::default();
        match runner.reach(x, &attempt, &mut pending).await {
            Ok(()) => {
                runner.relay_response(x, &attempt, &mut pending).await;
                !matches!(x.response.origin, Origin::Failed(_))
            }
            Err(error) => {
                tracing::info!(node = %node.endpoint.host, reason = error.failure.reason, "a mirror does not answer");
                false
            }
        }
    }

    /// Puts the copy into an exchange of its own, where it is like a request that came with its body.
    fn write(&self, x: &mut Exchange) -> bool {
        x.reset();
        x.timed = false;
        x.body_limit = u64::MAX;
        x.client = Client::default();
        let request = &mut x.request;
        request.upstream.method = None;
        request.buffer.extend(&self.head);
        if self.content != Content::None {
            request.buffer.extend(b"Content-Length: ");
            let mut length = Vec::new();
            weir_wire::push_number(&mut length, self.body.len() as u64);
            request.buffer.extend(&length);
            request.buffer.extend(b"\r\n");
        }
        request.buffer.extend(b"\r\n");
        request.buffer.extend(&self.body);
        if !matches!(request.parse(&NO_LIMITS), Ok(Some(_))) {
            return false;
        }
        // With TLS it is the name that is asked for.
        let host = request.head.host.unwrap_or_default().of(request.buffer.bytes());
        request.upstream.host.clear();
        request.upstream.host.extend_from_slice(host);
        true
    }
}

impl BodyCopy for RequestCopy {
    fn take(mut self: Box<Self>, data: &[u8]) -> Option<Box<Self>> {
        self.body.extend_from_slice(data);
        self.keep_within_bounds()
    }

    /// Sends the copy on its way.
    fn complete(self: Box<Self>) {
        weir_runtime::spawn(async move {
            let worker = Rc::clone(&self.place.0);
            let answered = weir_runtime::timeout(COPY_TIME, self.send()).await.unwrap_or(false);
            worker.recorder.mirrored(if answered { Mirrored::Answered } else { Mirrored::Failed });
        });
    }
}

/// A head for another target, without what frames the body or belongs to the connection.
fn copied_head(head: &[u8], target: &[u8]) -> Vec<u8> {
    let mut lines = head.split_inclusive(|b| *b == b'\n');
    let method = lines.next().and_then(|line| line.split(|b| *b == b' ').next()).unwrap_or_default();
    let mut copy = Vec::with_capacity(head.len() + target.len() + 64);
    copy.extend_from_slice(method);
    copy.push(b' ');
    copy.extend_from_slice(target);
    copy.extend_from_slice(b" HTTP/1.1\r\n");
    for line in lines.take_while(|line| *line != b"\r\n") {
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        match Known::classify(name) {
            Known::ContentLength
            | Known::TransferEncoding
            | Known::Trailer
            | Known::Expect
            | Known::Connection
            | Known::Upgrade => {}
            _ => copy.extend_from_slice(line),
        }
    }
    copy
}

/// The client of a copy: the gateway itself. It has sent everything, and drops whatever it gets.
struct Nobody {
    /// The body, where it stands in the buffer.
    body: Span,
    /// The part that has not been taken.
    left: Span,
    sink: tokio::io::Empty,
}

impl Source for Nobody {
    fn next(&mut self, _: &Buffer) -> Result<Piece, Reject> {
        let left = std::mem::replace(&mut self.left, Span { start: self.body.end, ..self.body });
        Ok(if left.is_empty() { Piece::End } else { Piece::Data(left) })
    }

    fn poll_receive(&mut self, _: &mut Context<'_>, _: &mut Buffer) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn make_room(&mut self, _: &mut Buffer) {}
}

impl Sink for Nobody {
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

impl Downstream for Nobody {
    type Bytes = tokio::io::Empty;

    fn admit(&self, _: &Request, _: &Hosts) -> Result<(), Reject> {
        Ok(())
    }

    fn poll_reset(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
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

#[cfg(test)]
mod tests {
    use super::copied_head;

    #[test]
    fn a_copied_head_has_another_target_and_no_framing() {
        let head =
            b"PUT /a?b HTTP/1.1\r\nHost: a.test\r\ncontent-length: 3\r\nTransfer-Encoding: chunked\r\nX-A: b: c\r\n\
            expect: 100-continue\r\nTrailer: X-T\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(copied_head(head, b"/m/a?b"), b"PUT /m/a?b HTTP/1.1\r\nHost: a.test\r\nX-A: b: c\r\n");
    }
}
