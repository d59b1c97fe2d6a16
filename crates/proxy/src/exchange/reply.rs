//! Answers that the gateway makes itself: by a plugin, for want of a route, or because something failed.

use std::future::poll_fn;
use std::task::Poll;

use weir_plugin::buffers::NO_ROOM;
use weir_plugin::{BUFFER, BodySource, Exchange, Failure, Origin};
use weir_telemetry::metrics::ClientError;
use weir_wire::head::Framing;
use weir_wire::method::Method;
use weir_wire::name::Known;
use weir_wire::status;

use crate::downstream::h1::{ClientStream, Connection, Next};
use crate::phases;
use crate::relay;
use crate::snapshot::{Local, Snapshot};

impl<S: ClientStream> Connection<S> {
    /// Prepares the answer for a failure: `{"error_msg":"502 Bad Gateway"}` and which side failed.
    pub(crate) fn begin_failure(&self, x: &mut Exchange, failure: Failure) {
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
    pub(crate) async fn fail(&mut self, x: &mut Exchange, local: &Local, failure: Failure) -> Next {
        let route = x.route().map(|r| &*r.id.text).unwrap_or_default();
        tracing::warn!(client = %x.client.addr_text, route, status = failure.status, side = failure.side.name(), reason = failure.reason, "exchange failed");
        self.begin_failure(x, failure);
        if !x.upstream.tries.is_empty() {
            add_upstream_status(x);
        }
        self.send_reply(x, local).await
    }

    /// Lets the response phases see an answer made here, and sends it.
    pub(crate) async fn send_reply(&mut self, x: &mut Exchange, local: &Local) -> Next {
        if let Err(failure) = self.finish_reply(x, &local.snapshot) {
            self.begin_failure(x, failure);
        }
        self.send_made(x).await
    }

    /// Runs the response phases over an answer made here.
    fn finish_reply(&self, x: &mut Exchange, snapshot: &Snapshot) -> Result<(), Failure> {
        phases::on_response(x, snapshot)?;
        if x.response.filtered {
            let mut body = std::mem::take(&mut x.response.body);
            let done = phases::on_body(x, snapshot, &mut body, true);
            x.response.body = body;
            done?;
        }
        Ok(())
    }

    /// Sends an answer whose body is here, and settles what is left of the request.
    pub(crate) async fn send_made(&mut self, x: &mut Exchange) -> Next {
        let has_body = x.request.head.framing != Framing::None;
        let mut keep = self.may_keep(x);
        // A long body is not waited for only to throw it away.
        keep &= !(has_body && x.request.head.expect_continue);
        keep &= !matches!(x.request.head.framing, Framing::Length(n) if n > x.request.buffer.len() as u64 + (64 << 10));
        if !self.write_reply(x, keep).await {
            return Next::Close;
        }
        if !keep {
            self.set_linger();
            return Next::Close;
        }
        if !has_body {
            return Next::Keep(x.request.head.len);
        }
        match self.discard_body(x).await {
            Some(end) => Next::Keep(end),
            None => {
                self.set_linger();
                Next::Close
            }
        }
    }

    /// Writes an answer whose body is here; false when the client is gone.
    pub(crate) async fn write_reply(&mut self, x: &mut Exchange, keep: bool) -> bool {
        let body = x.response.body.len();
        if body > BUFFER && !x.may_grow(body) {
            x.response.body = Vec::new();
            self.begin_failure(x, NO_ROOM);
        }
        self.encode_reply(x, keep);
        self.write_out(x).await
    }

    fn encode_reply(&self, x: &mut Exchange, keep: bool) {
        let Exchange { response, out, request, sent_head, .. } = &mut *x;
        let code = response.head.status;
        let bodyless = status::is_bodyless(code);
        out.clear();
        status::push_line(out, code);
        let fields = &mut response.head.fields;
        self.push_general(fields, out);
        // The length is ours to tell: whatever the upstream said was about another body.
        fields.remove_known(Known::ContentLength);
        fields.write(response.buffer.bytes(), out);
        if !bodyless {
            out.extend_from_slice(b"Content-Length: ");
            weir_wire::push_number(out, response.body.len() as u64);
            out.extend_from_slice(b"\r\n");
        }
        push_connection(out, keep, request.head.minor);
        out.extend_from_slice(b"\r\n");
        *sent_head = out.len() as u64;
        if !bodyless && request.head.method != Method::Head {
            out.extend_from_slice(&response.body);
        }
    }

    /// `Date` and `Server`, by the gateway's own rules, which come first as in APISIX.
    pub(crate) fn push_general(&self, fields: &mut weir_wire::fields::Fields, out: &mut Vec<u8>) {
        // RFC 9110 section 6.6.1: a response without a date gets one when it is passed on.
        if !fields.may_have(Known::Date) {
            out.extend_from_slice(self.worker.date.borrow_mut().at(self.worker.clock.unix_ms() / 1000));
        }
        let server = &self.worker.options.server_line;
        if !server.is_empty() {
            fields.hold_back(Known::Server);
            if !fields.has_added(Known::Server) {
                out.extend_from_slice(server);
            }
        }
    }

    /// Writes all of [`Exchange::out`]; false when the client is gone or does not read.
    pub(crate) async fn write_out(&mut self, x: &mut Exchange) -> bool {
        let mut written = 0;
        let mut armed = false;
        let send_ms = self.worker.options.send_ms;
        let (stream, timer, out) = (&mut self.stream, &self.timer, &x.out);
        let done = poll_fn(|cx| {
            while written < out.len() {
                match relay::poll_write(cx, stream, out.get(written..).unwrap_or_default()) {
                    Poll::Ready(Ok(n)) => {
                        written += n;
                        armed = false;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(ClientError::Aborted)),
                    Poll::Pending => {
                        if !armed {
                            armed = true;
                            timer.set(send_ms);
                        }
                        return timer.poll_expired(cx).map(|()| Err(ClientError::WriteTimeout));
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await;
        x.out.clear();
        x.sent += written as u64;
        if let Err(reason) = done {
            self.worker.recorder.client_error(reason);
        }
        done.is_ok()
    }

    /// Ends an exchange: gives back what it holds, and tells whoever observes.
    pub(crate) fn log(&self, x: &mut Exchange, local: &Local) {
        x.end();
        let snapshot = &*local.snapshot;
        if !x.timed && self.worker.access_log.is_none() && !phases::has_log(x, snapshot, phases::route(x, snapshot)) {
            return;
        }
        x.times.now = self.worker.clock.refresh();
        x.prepare_log();
        if !snapshot.credential_arguments.is_empty() {
            x.request.mask_arguments(&snapshot.credential_arguments);
        }
        phases::on_log(x, snapshot, &self.worker.recorder);
        if let Some(log) = &self.worker.access_log {
            log.write(x);
        }
    }
}

/// `Connection`, where it is not what the version implies.
pub(crate) fn push_connection(out: &mut Vec<u8>, keep: bool, minor: u8) {
    if !keep {
        out.extend_from_slice(b"Connection: close\r\n");
    } else if minor == 0 {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
    }
}

/// `X-APISIX-Upstream-Status`: the statuses of all tries.
pub(crate) fn add_upstream_status(x: &mut Exchange) {
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

/// Whether the body of a response comes from here although an upstream answered.
pub(crate) fn is_replaced(x: &Exchange) -> bool {
    x.response.source == BodySource::Here
}
