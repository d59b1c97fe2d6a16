//! The way of a request: checks, route, plugins, and then the answer or the upstream.

use std::rc::Rc;

use weir_plugin::host::buffers::NO_ROOM;
use weir_plugin::host::{self, Exchange};
use weir_plugin::{AddrText, Failure, Request, Side};
use weir_telemetry::metrics::ClientError;
use weir_wire::Reject;
use weir_wire::head::{Content, TOO_MANY_FIELDS};
use weir_wire::method::Method;
use weir_wire::name::Known;
use weir_wire::target::Form;

use super::{Outcome, Runner};
use crate::downstream::{Downstream, NO_ROOM_FOR_HEAD};
use crate::phases::{self, Requests, Verdict};
use crate::readings::{self, AMBIGUOUS};
use crate::snapshot::Local;

impl<D: Downstream> Runner<D> {
    /// Serves a request whose head is in the exchange, with its client.
    pub(crate) async fn serve(&mut self, x: &mut Exchange) {
        self.worker.recorder.request_started();
        let now = self.worker.clock.refresh();
        x.times.start = now;
        x.times.now = now;
        x.times.unix_ms = self.worker.clock.unix_ms();
        x.received = x.request.head_len as u64;
        x.body_limit = self.worker.options.body_size;
        if let Err(reject) = self.accept_head(x) {
            return self.refuse(x, reject).await;
        }
        let Some(local) = self.worker.current() else {
            return self.refuse(x, Reject::new(503, "no configuration")).await;
        };
        let mut admitted = self.admit(x, &local);
        if wants_body(x) {
            // A condition of a route decides what another reading of the path leads to.
            if let Err(failure) = self.collect_body(x).await {
                let outcome = self.fail_body(x, &local, failure).await;
                self.end(x, outcome).await;
                return self.log(x, &local);
            }
            admitted = self.admit(x, &local);
        }
        if let Err(reject) = admitted {
            return self.refuse(x, reject).await;
        }
        let outcome = if self.is_for_the_gateway(x) {
            let _ = host::request(x).reply(200).field("Allow", b"GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS").done();
            self.send_reply(x, &local).await
        } else {
            self.run(x, &local).await
        };
        self.end(x, outcome).await;
        self.log(x, &local);
    }

    /// Lets the client's side end the exchange, and takes note of what went over it.
    pub(super) async fn end(&mut self, x: &mut Exchange, outcome: Outcome) {
        match outcome {
            Outcome::Answered => self.down.finish(x, &self.timer, &self.worker).await,
            Outcome::Cut => self.down.reset(),
            Outcome::Switched => {}
        }
        x.received = x.received.max(x.request.head_len as u64 + self.down.received());
        x.sent += self.down.sent();
    }

    /// Checks a head before anything is done with it.
    fn accept_head(&self, x: &mut Exchange) -> Result<(), Reject> {
        let options = &self.worker.options;
        x.request.accept_head(options.paths)?;
        match x.request.method() {
            Method::Connect => return Err(Reject::bad("CONNECT is not for a gateway")),
            Method::Trace => return Err(Reject::new(405, "TRACE is not served")),
            _ => {}
        }
        if x.request.form() == Form::Asterisk && x.request.method() != Method::Options {
            return Err(Reject::bad("asterisk target without OPTIONS"));
        }
        if let Some(real_ip) = &options.real_ip {
            let fields = &x.request.head.fields;
            let base = x.request.buffer.bytes();
            if let Some(addr) = real_ip.client(x.client.sender, fields.all(base, &real_ip.field)) {
                x.client.addr = addr;
                x.client.addr_text = AddrText::new(addr);
            }
        }
        if x.request.head.fields.may_have_forwarding() {
            options.distrust(x);
        }
        Ok(())
    }

    /// Checks that the configuration lets the request be served on this connection, by this path.
    fn admit(&self, x: &mut Exchange, local: &Local) -> Result<(), Reject> {
        let snapshot = &*local.snapshot;
        self.down.admit(&x.request, &snapshot.tls)?;
        x.server_name.clear();
        x.server_name.extend_from_slice(self.down.server_name().unwrap_or_default().as_bytes());
        let options = &self.worker.options;
        if x.request.has_other_readings() && !options.ambiguous_paths {
            x.tables = Some(Rc::clone(&local.tables));
            let admits = |request: &Request| self.down.admit(request, &snapshot.tls).is_ok();
            if readings::other_way(x, snapshot, options.paths, admits).is_some() {
                return Err(AMBIGUOUS);
            }
        }
        Ok(())
    }

    /// True for `OPTIONS *`, and OPTIONS that may go no further (RFC 9110 section 7.6.2); else its hop count goes down.
    fn is_for_the_gateway(&self, x: &mut Exchange) -> bool {
        if x.request.method() != Method::Options {
            return false;
        }
        let request = &mut x.request;
        let base = request.buffer.bytes();
        let hops = request.head.fields.get_known(base, Known::MaxForwards).map(std::str::from_utf8);
        match hops.map(|text| text.ok().and_then(|t| t.parse::<u64>().ok())) {
            _ if request.form() == Form::Asterisk => true,
            Some(Some(0)) => true,
            Some(Some(n)) => {
                request.head.fields.set_str(base, b"Max-Forwards", (n - 1).to_string().as_bytes());
                false
            }
            _ => false,
        }
    }

    /// Route, plugins, and then the answer or the upstream.
    async fn run(&mut self, x: &mut Exchange, local: &Rc<Local>) -> Outcome {
        let snapshot = &*local.snapshot;
        x.tables = Some(Rc::clone(&local.tables));
        let mut found = phases::find_route(x, snapshot);
        if wants_body(x) {
            if let Err(failure) = self.collect_body(x).await {
                // Nobody knows which route would have been the one.
                x.matched = None;
                return self.fail_body(x, local, failure).await;
            }
            x.times.now = self.worker.clock.refresh();
            found = phases::find_route(x, snapshot);
        }
        if let Err(failure) = found {
            return self.fail(x, local, failure).await;
        }
        if x.request.lacks_room_for_values() {
            x.matched = None;
            return self.fail_body(x, local, NO_ROOM).await;
        }
        let mut route = phases::route(x, snapshot);
        x.timed = self.worker.observes_all() || phases::has_log(x, snapshot, route);
        let mut requests = Requests::default();
        let mut verdict = requests.run(x, snapshot, route);
        loop {
            let next = match verdict {
                Verdict::Suspended(step) => match self.wait_for_request(x, step, local).await {
                    Ok(flow) => requests.resumed(flow, step, x),
                    Err(failure) if failure.side == Side::Client => return self.fail_body(x, local, failure).await,
                    Err(failure) => return self.fail(x, local, failure).await,
                },
                Verdict::AwaitsBody(step) => {
                    if let Err(failure) = self.collect_body(x).await {
                        return self.fail_body(x, local, failure).await;
                    }
                    x.times.now = self.worker.clock.refresh();
                    requests.collected(step, x)
                }
                Verdict::Rerouted => {
                    route = phases::route(x, snapshot);
                    x.timed |= phases::has_log(x, snapshot, route);
                    requests = Requests::rerouted();
                    None
                }
                _ => break,
            };
            verdict = next.unwrap_or_else(|| requests.run(x, snapshot, route));
        }
        match verdict {
            Verdict::Forward(_) if is_too_long(x) => self.fail_body(x, local, Failure::BODY_TOO_LARGE).await,
            Verdict::Forward(route) => {
                match x.upstream.chosen.or(route.upstream).and_then(|u| snapshot.upstreams.get(u)) {
                    Some(upstream) => {
                        if x.request.may_have_values()
                            && phases::reads_body(x, snapshot, upstream)
                            && let Err(failure) = self.collect_body(x).await
                        {
                            return self.fail_body(x, local, failure).await;
                        }
                        if (x.request.is_replaced() || x.request.is_filtered())
                            && let Err(failure) = self.change_body(x, local).await
                        {
                            return match failure.side {
                                Side::Client => self.fail_body(x, local, failure).await,
                                _ => self.fail(x, local, failure).await,
                            };
                        }
                        self.forward(x, local, route, upstream).await
                    }
                    None => {
                        let failure =
                            Failure { side: Side::Gateway, ..Failure::upstream(503, "route has no upstream") };
                        self.fail(x, local, failure).await
                    }
                }
            }
            Verdict::Answered => self.send_reply(x, local).await,
            Verdict::Failed(Failure::BODY_TOO_LARGE) => self.fail_body(x, local, Failure::BODY_TOO_LARGE).await,
            Verdict::Failed(failure) => self.fail(x, local, failure).await,
            // The loop above ends only otherwise.
            Verdict::Suspended(_) | Verdict::AwaitsBody(_) | Verdict::Rerouted => Outcome::Cut,
        }
    }

    /// Refuses what is no request to be served: no plugin sees it.
    pub(crate) async fn refuse(&mut self, x: &mut Exchange, reject: Reject) {
        self.begin_refusal(x, reject);
        self.send_refusal(x).await;
    }

    /// Prepares the answer to what is refused.
    pub(crate) fn begin_refusal(&mut self, x: &mut Exchange, reject: Reject) {
        let failure = match reject {
            NO_ROOM_FOR_HEAD => NO_ROOM,
            _ => {
                self.worker.recorder.client_error(client_error(reject));
                reject.into()
            }
        };
        if x.times.start == 0 {
            x.times.start = self.worker.clock.refresh();
            x.times.unix_ms = self.worker.clock.unix_ms();
        }
        x.times.now = x.times.start;
        self.down.abandon_request();
        tracing::info!(client = %x.client.addr_text, status = reject.status, reason = reject.reason, "request refused");
        self.begin_failure(x, failure);
    }

    /// Sends the answer to what is refused.
    pub(crate) async fn send_refusal(&mut self, x: &mut Exchange) {
        let outcome = self.write_reply(x, false).await;
        self.end(x, outcome).await;
        x.times.now = self.worker.clock.refresh();
        if let Some(log) = &self.worker.access_log {
            x.prepare_log();
            if let Some(local) = self.worker.current() {
                x.request.mask_arguments(&local.snapshot.credential_arguments);
            }
            log.write(x);
        }
    }
}

/// True when a condition of a route has asked for a variable that stands in the body, which is to be collected then. One
/// that is too long stays where it is: whether it is refused is decided later.
fn wants_body(x: &Exchange) -> bool {
    x.request.take_wish_for_body() && !is_too_long(x)
}

/// True when more is announced than the body may have, now that every plugin has had its say about that.
fn is_too_long(x: &Exchange) -> bool {
    matches!(x.request.head.content, Content::Length(n) if n > x.body_limit)
}

fn client_error(reject: Reject) -> ClientError {
    match reject.status {
        405 => ClientError::MethodNotAllowed,
        408 => ClientError::HeadTimeout,
        413 => ClientError::BodyTooLarge,
        414 => ClientError::TargetTooLong,
        417 => ClientError::ExpectationFailed,
        431 if reject == TOO_MANY_FIELDS => ClientError::TooManyHeaders,
        431 => ClientError::HeadTooLarge,
        501 => ClientError::UnknownCoding,
        505 => ClientError::UnsupportedVersion,
        _ => ClientError::BadRequest,
    }
}
