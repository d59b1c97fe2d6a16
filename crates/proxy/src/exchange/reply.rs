//! Answers that the gateway makes itself: by a plugin, for want of a route, or because something failed.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use weir_plugin::host::buffers::NO_ROOM;
use weir_plugin::host::{BUFFER, Exchange};
use weir_plugin::{BodySource, Failure, Named, Origin, Try};
use weir_telemetry::metrics::{ClientError, Label, Labels, Seen, ShortText, Tried};
use weir_usage::Record;
use weir_wire::method::Method;
use weir_wire::name::Known;
use weir_wire::{Span, status};

use super::{Outcome, Runner, grpc};
use crate::downstream::{Downstream, Following};
use crate::phases;
use crate::snapshot::Local;

impl<D: Downstream> Runner<D> {
    /// Prepares the answer for a failure: `{"error_msg":"502 Bad Gateway"}` and which side failed.
    pub(super) fn begin_failure(&self, x: &mut Exchange, failure: Failure) {
        let response = &mut x.response;
        response.begin(failure.status, Origin::Failed(failure));
        let fields = &mut response.head.fields;
        fields.add(b"Content-Type", b"application/json");
        fields.add_with(b"X-Weir-Error", |out| {
            out.extend_from_slice(failure.side.name().as_bytes());
            out.extend_from_slice(b"; ");
            out.extend_from_slice(failure.reason.as_bytes());
        });
        let body = &mut response.body;
        body.extend_from_slice(b"{\"error_msg\":\"");
        weir_wire::push_number(body, u64::from(failure.status));
        body.push(b' ');
        body.extend_from_slice(status::reason(failure.status).as_bytes());
        body.extend_from_slice(b"\"}\n");
    }

    /// Answers with a failure.
    pub(super) async fn fail(&mut self, x: &mut Exchange, local: &Local, failure: Failure) -> Outcome {
        let route = x.route().map(|r| &*r.id.text).unwrap_or_default();
        tracing::warn!(client = %x.client.addr_text, route, status = failure.status, side = failure.side.name(), reason = failure.reason, "exchange failed");
        self.begin_failure(x, failure);
        if !x.upstream.tries.is_empty() {
            add_upstream_status(x);
        }
        self.send_reply(x, local).await
    }

    /// Lets the response phases see an answer made here, and sends it.
    pub(super) async fn send_reply(&mut self, x: &mut Exchange, local: &Local) -> Outcome {
        if let Err(failure) = self.finish_reply(x, local).await {
            self.begin_failure(x, failure);
        }
        if grpc::convert(x) {
            grpc::count(x, &self.worker.recorder);
        }
        self.write_reply(x, false).await
    }

    /// Runs the response phases over an answer made here.
    async fn finish_reply(&mut self, x: &mut Exchange, local: &Local) -> Result<(), Failure> {
        self.response_phases(x, local, None).await?;
        if x.response.filtered {
            let mut body = std::mem::take(&mut x.response.body);
            let done = phases::on_body(x, &local.snapshot, &mut body, true);
            x.response.body = body;
            done?;
        }
        Ok(())
    }

    /// Writes an answer whose body is here. `reads_on` as for [`Downstream::push_head`].
    pub(super) async fn write_reply(&mut self, x: &mut Exchange, reads_on: bool) -> Outcome {
        let len = x.response.body.len();
        if len > BUFFER && !x.may_grow(len) {
            x.response.body = Vec::new();
            self.begin_failure(x, NO_ROOM);
        }
        let response = &mut x.response;
        // Phrase and length are those of this answer: the upstream's belong to another one.
        response.head.reason = Span::default();
        response.head.fields.remove_known(Known::ContentLength);
        let bodyless = status::is_bodyless(response.head.status);
        let following = if bodyless { Following::Nothing } else { Following::Length(response.body.len() as u64) };
        self.down.push_head(x, &self.worker, following, reads_on);
        let has_body = !bodyless && x.request.method() != Method::Head;
        let body = std::mem::take(&mut x.response.body);
        let content = if has_body { body.as_slice() } else { &[] };
        let trailers = std::mem::take(&mut x.response.trailers);
        let lines = if has_body && !x.response.drops_trailers { trailers.as_slice() } else { &[] };
        let outcome = self.send(x, Sending { content, trailers: lines, ends: true }).await;
        x.response.body = body;
        x.response.trailers = trailers;
        outcome
    }

    /// Sends what lies in [`Exchange::out`].
    pub(super) async fn send_out(&mut self, x: &mut Exchange) -> Outcome {
        self.send(x, Sending { content: &[], trailers: &[], ends: false }).await
    }

    /// Sends what lies in [`Exchange::out`], and content behind it, unless the client is gone or does not read.
    async fn send(&mut self, x: &mut Exchange, mut sending: Sending<'_>) -> Outcome {
        let send_ms = self.worker.options.send_ms;
        let (down, timer, out) = (&mut self.down, &self.timer, &mut x.out);
        let mut waited_at = None;
        let done = poll_fn(|cx| match sending.poll(cx, down, out) {
            Poll::Ready(sent) => Poll::Ready(sent.map_err(|_| ClientError::Aborted)),
            Poll::Pending => {
                let sent = down.sent();
                if waited_at != Some(sent) {
                    waited_at = Some(sent);
                    timer.set(send_ms);
                }
                timer.poll_expired(cx).map(|()| Err(ClientError::WriteTimeout))
            }
        })
        .await;
        x.out.clear();
        match done {
            Ok(()) => Outcome::Answered,
            Err(reason) => {
                self.worker.recorder.client_error(reason);
                Outcome::Cut
            }
        }
    }

    /// Logs an exchange that has ended, and drops what plugins hold for it.
    pub(super) fn log(&self, x: &mut Exchange, local: &Local) {
        self.observe(x, local);
        x.end();
    }

    /// Shows an exchange that has ended to the log phase and to the access log.
    fn observe(&self, x: &mut Exchange, local: &Local) {
        let snapshot = &*local.snapshot;
        let worker = &*self.worker;
        let status = status_of(x);
        worker.recorder.answered(status);
        let (watched, has_log) =
            (worker.recorder.is_watched(), phases::has_log(x, snapshot, phases::route(x, snapshot)));
        if !x.timed && !worker.observes_all() && !has_log {
            return;
        }
        x.times.now = worker.clock.refresh();
        worker.recorder.took(latency_us(x), x.upstream_us().map(micros));
        if watched {
            worker.recorder.seen(|| seen(x, status, worker.recorder.labels()));
        }
        if let Some(usage) = &worker.usage {
            usage.record(usage_of(x, worker.recorder.labels()));
        }
        // The texts below are for logs alone.
        if worker.access_log.is_none() && !has_log {
            return;
        }
        x.prepare_log();
        if !snapshot.credential_arguments.is_empty() {
            x.request.mask_arguments(&snapshot.credential_arguments);
        }
        phases::on_log(x, snapshot, &worker.recorder);
        if let Some(log) = &worker.access_log {
            log.write(x);
        }
    }
}

/// Status that nginx logs for a client that left before there was an answer.
const CLIENT_CLOSED_REQUEST: u16 = 499;

fn status_of(x: &Exchange) -> u16 {
    match x.response.status() {
        0 => CLIENT_CLOSED_REQUEST,
        status => status,
    }
}

fn micros(us: u64) -> u32 {
    u32::try_from(us).unwrap_or(u32::MAX)
}

fn latency_us(x: &Exchange) -> u32 {
    micros(x.times.now.saturating_sub(x.times.start))
}

fn label_of(named: Option<&Named>, labels: &Labels) -> Label {
    named.map_or(Label::EMPTY, |named| labels.lazy(&named.label, || &named.text))
}

/// The sample of an exchange that has ended, for somebody who watches.
#[cold]
fn seen(x: &Exchange, status: u16, labels: &Labels) -> Seen {
    let route = x.route();
    Seen {
        unix_ms: x.times.unix_ms + u64::from(latency_us(x)) / 1000,
        status,
        latency_us: latency_us(x),
        upstream_us: x.upstream_us().map(micros),
        tried: x.upstream.tries.last().map(|last| tried(x, last)),
        received: x.received,
        sent: x.sent,
        route: label_of(route.map(|route| &route.id), labels),
        service: label_of(route.and_then(|route| route.service_id.as_ref()), labels),
        consumer: label_of(x.consumer().map(|consumer| &consumer.name), labels),
        node: x.upstream.node.unwrap_or(Label::EMPTY),
        method: ShortText::new(x.request.method_bytes()),
        host: ShortText::new(x.request.host()),
        path: ShortText::new(x.request.path()),
        client: ShortText::new(x.client.addr_text.as_bytes()),
    }
}

/// The parts of an exchange's time around a try at a node.
fn tried(x: &Exchange, last: &Try) -> Tried {
    Tried {
        ahead_us: micros(last.begin.saturating_sub(x.times.start)),
        connect_us: micros(last.connected),
        wait_us: micros(last.head.saturating_sub(last.connected)),
        read_us: micros(last.end.saturating_sub(last.head)),
    }
}

/// The record of an exchange that has ended.
fn usage_of(x: &Exchange, labels: &Labels) -> Record {
    let label = |named: Option<&Named>| label_of(named, labels);
    let (route, consumer) = (x.route(), x.consumer());
    let credential = x.consumer.and_then(|who| consumer?.credentials().get(who.credential? as usize));
    let plan = x.plan.and_then(|number| x.tables.as_ref()?.plans.get(number));
    let latency = latency_us(x);
    Record {
        unix_ms: x.times.unix_ms + u64::from(latency) / 1000,
        api: label(route.map(|route| route.service_id.as_ref().unwrap_or(&route.id))),
        route: label(route.map(|route| &route.id)),
        consumer: label(consumer.map(|consumer| &consumer.name)),
        key: label(credential),
        plan: label(plan.map(|plan| &plan.id)),
        status: status_of(x),
        latency_us: latency,
        upstream_us: micros(x.upstream_us().unwrap_or(0)),
        received: x.received,
        sent: x.sent,
    }
}

/// Content made here on its way out.
struct Sending<'a> {
    content: &'a [u8],
    /// Lines of the trailer section.
    trailers: &'a [u8],
    /// True when the message ends with it.
    ends: bool,
}

impl Sending<'_> {
    fn poll<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut D,
        out: &mut Vec<u8>,
    ) -> Poll<std::io::Result<()>> {
        while !self.content.is_empty() {
            let taken = ready!(down.poll_data(cx, out, self.content))?;
            self.content = self.content.get(taken..).unwrap_or_default();
        }
        if std::mem::take(&mut self.ends) {
            self.trailers.split_inclusive(|byte| *byte == b'\n').for_each(|line| down.push_trailer(out, line));
            down.push_end(out);
        }
        down.poll_flush(cx, out)
    }
}

/// Adds `X-APISIX-Upstream-Status`: the statuses of all tries.
pub(super) fn add_upstream_status(x: &mut Exchange) {
    let Exchange { upstream, response, .. } = &mut *x;
    response.head.fields.add_with(b"X-APISIX-Upstream-Status", |out| {
        for (i, attempt) in upstream.tries.iter().enumerate() {
            if i > 0 {
                out.extend_from_slice(b", ");
            }
            weir_wire::push_number(out, u64::from(attempt.status));
        }
    });
}

/// True when the body of a response comes from here although an upstream answered.
pub(super) fn is_replaced(x: &Exchange) -> bool {
    x.response.source == BodySource::Here
}
