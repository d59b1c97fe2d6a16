//! Copies of requests for a mirror: sent beside the request, which never waits for them, and whose answers are dropped.

use std::rc::Rc;
use std::time::Duration;

use weir_plugin::host::Exchange;
use weir_plugin::host::buffers::Held;
use weir_telemetry::metrics::Mirrored;
use weir_wire::head::Content;
use weir_wire::name::Known;

use super::Runner;
use super::forward::Attempt;
use super::subrequest::{Kind, Message, Slot, Subrequest};
use super::upload::BodyCopy;
use crate::downstream::Downstream;
use crate::relay;
use crate::snapshot::Local;
use crate::upstream::h1;
use crate::upstream::outgoing::Outgoing;
use crate::worker::Worker;

/// Time that a mirror has for a copy, whatever it does meanwhile.
const COPY_TIME: Duration = Duration::from_secs(60);

/// A copy in the making: it is held until the whole request is here, since a mirror must never take a part for it.
#[derive(Debug)]
pub(super) struct RequestCopy {
    slot: Slot,
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

impl<D: Downstream> Runner<D> {
    /// Begins a copy of the request for a mirror, unless there are enough, or it is too long.
    pub(super) fn copy_request(&mut self, x: &mut Exchange, mirror: u32, attempt: &Attempt<'_>) {
        let Some(mut copy) = RequestCopy::begin(x, mirror, attempt, &self.worker) else { return };
        if x.request.is_filtered() {
            // The mirror gets what the node gets.
            self.copy = Some(copy);
            return;
        }
        // A body that is here already needs no wait: the copy is sent whatever becomes of the request.
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
        let Some(slot) = Slot::take(worker, Kind::Mirror).filter(|_| fits) else {
            worker.recorder.mirrored(Mirrored::Dropped);
            return None;
        };
        let websocket = matches!(attempt.outgoing, Outgoing::Request { websocket: true });
        h1::push_request(x, attempt.upstream, attempt.node, websocket);
        Some(Box::new(Self {
            slot,
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
        if !has_room || self.body.len() as u64 > self.slot.worker.options.mirror_body {
            self.slot.worker.recorder.mirrored(Mirrored::Dropped);
            return None;
        }
        Some(self)
    }

    /// Sends the copy and reads the answer; whether there was one.
    async fn send(self: Box<Self>) -> bool {
        let worker = Rc::clone(&self.slot.worker);
        let mut x = worker.take_exchange();
        let answered = self.exchange(&mut x).await;
        worker.put_exchange(x);
        answered
    }

    async fn exchange(&self, x: &mut Exchange) -> bool {
        let worker = &self.slot.worker;
        let Some(upstream) = self.local.snapshot.upstreams.get(self.mirror) else { return false };
        let subrequest = Subrequest { worker, upstream, step_ms: u64::MAX, keep: None };
        match subrequest.run(x, self, weir_runtime::sleep(COPY_TIME)).await {
            Ok(()) => true,
            Err(failure) => {
                let node = upstream.nodes.first().map(|node| tracing::field::display(&node.endpoint.host));
                tracing::info!(node, reason = failure.reason, "a mirror does not answer");
                false
            }
        }
    }
}

impl Message for RequestCopy {
    fn write(&self, _: Option<&[u8]>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        if self.content != Content::None {
            out.extend_from_slice(b"Content-Length: ");
            weir_wire::push_number(out, self.body.len() as u64);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
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
            let worker = Rc::clone(&self.slot.worker);
            let answered = self.send().await;
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
