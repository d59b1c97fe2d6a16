//! Copies of requests for a mirror: sent beside the request, which never waits for them, and whose answers are dropped.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_plugin::buffers::Held;
use weir_plugin::{Client, Exchange, Origin, Try};
use weir_telemetry::metrics::Mirrored;
use weir_wire::buffer::Buffer;
use weir_wire::head::{Framing, Limits};
use weir_wire::name::Known;

use super::forward::{Answering, Outgoing};
use crate::downstream::h1::{ClientStream, Connection};
use crate::relay::{Encode, Pump};
use crate::snapshot::Local;
use crate::worker::Worker;

/// How long a mirror has for a copy, whatever it does meanwhile.
const COPY_TIME: Duration = Duration::from_secs(60);
/// The head of a copy was made here, from one that has kept its limits.
const NO_LIMITS: Limits = Limits { head: usize::MAX, fields: usize::MAX, target: usize::MAX };

/// A copy in the making: it is held until the whole request is here, since a mirror must never take a part for it.
#[derive(Debug)]
pub(crate) struct RequestCopy {
    place: Place,
    local: Rc<Local>,
    /// Number of the mirror among the upstreams.
    mirror: u32,
    /// The head, but for the length of the body and the end.
    head: Vec<u8>,
    body: Vec<u8>,
    /// The part of the budget for buffers that the two have, once here and once where they are sent from.
    held: Held,
    /// How far the request's body has been copied.
    pump: Pump,
    framing: Framing,
    /// Where the body begins in its buffer.
    base: usize,
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

impl RequestCopy {
    /// Begins a copy of the request whose head for the upstream is in [`Exchange::out`]. `None` where there are enough,
    /// or it is too long.
    pub(crate) fn begin(x: &Exchange, mirror: u32, local: &Rc<Local>, worker: &Rc<Worker>) -> Option<Box<Self>> {
        let head = &x.request.head;
        let fits = !matches!(head.framing, Framing::Length(n) if n > worker.options.mirror_body);
        let Some(place) = Place::take(worker).filter(|_| fits) else {
            worker.recorder.mirrored(Mirrored::Dropped);
            return None;
        };
        Some(Box::new(Self {
            place,
            local: Rc::clone(local),
            mirror,
            head: copied_head(&x.out, &x.upstream.mirror_target),
            body: Vec::new(),
            held: Held::default(),
            pump: Pump::new(head.framing, Encode::Plain, head.len),
            framing: head.framing,
            base: head.len,
        }))
    }

    /// Begins anew: the request's body is going to be sent again.
    pub(crate) fn restart(&mut self) {
        self.body.clear();
        self.pump = Pump::new(self.framing, Encode::Plain, self.base);
    }

    /// Takes what the buffer holds of the body; once that is all of it, the copy is sent on its way. Gives the copy back
    /// while there is more to come.
    pub(crate) fn take(mut self: Box<Self>, buffer: &Buffer) -> Option<Box<Self>> {
        // A malformed body ends the request as well.
        self.pump.decode(buffer, &mut self.body).ok()?;
        let has_room = self.held.grow_if_plenty(2 * (self.head.capacity() + self.body.capacity()));
        if !has_room || self.body.len() as u64 > self.place.0.options.mirror_body {
            self.place.0.recorder.mirrored(Mirrored::Dropped);
            return None;
        }
        if !self.pump.is_complete() {
            return Some(self);
        }
        weir_runtime::spawn(async move {
            let worker = Rc::clone(&self.place.0);
            let answered = weir_runtime::timeout(COPY_TIME, self.send()).await.unwrap_or(false);
            worker.recorder.mirrored(if answered { Mirrored::Answered } else { Mirrored::Failed });
        });
        None
    }

    /// The body bytes before `at` have left the buffer.
    pub(crate) fn moved(&mut self, at: usize) {
        self.pump.skip(at);
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
        let timeouts = upstream.timeouts;
        let mut connection = Connection::new(Nobody, Client::default(), Rc::clone(worker));
        let mut answering = Answering::default();
        match connection.reach(x, upstream, node, timeouts, Outgoing::Copy, &mut answering).await {
            Ok(()) => {
                // No plugin sees the answer.
                connection.relay_response(x, &worker.bare, node, upstream, timeouts, &mut answering).await;
                !matches!(x.response.origin, Origin::Failed(_))
            }
            Err(ended) => {
                tracing::info!(node = %node.endpoint.host, reason = ended.failure.reason, "a mirror does not answer");
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
        if self.framing != Framing::None {
            request.buffer.extend(b"Content-Length: ");
            let mut length = Vec::new();
            weir_wire::push_number(&mut length, self.body.len() as u64);
            request.buffer.extend(&length);
            request.buffer.extend(b"\r\n");
        }
        request.buffer.extend(b"\r\n");
        request.buffer.extend(&self.body);
        if request.head.parse(request.buffer.bytes(), &NO_LIMITS) != Ok(true) {
            return false;
        }
        // With TLS it is the name that is asked for.
        let host = request.head.host.unwrap_or_default().of(request.buffer.bytes());
        request.upstream.host.clear();
        request.upstream.host.extend_from_slice(host);
        true
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

/// The client of a copy: it has sent everything, and drops whatever it gets.
struct Nobody;

impl ClientStream for Nobody {
    fn poll_readable(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_reset(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl AsyncRead for Nobody {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Nobody {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
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
