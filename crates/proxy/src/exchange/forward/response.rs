//! The response of a node on its way to the client.

use std::future::poll_fn;
use std::task::Poll;

use weir_plugin::buffers::NO_ROOM;
use weir_plugin::{BUFFER, Exchange, Failure};
use weir_telemetry::metrics::{ClientError, UpstreamState};
use weir_wire::Reject;
use weir_wire::head::Framing;
use weir_wire::method::Method;
use weir_wire::name::Known;
use weir_wire::status;

use super::{Answering, end_try, head};
use crate::downstream::h1::{ClientStream, Connection, Next};
use crate::exchange::reply;
use crate::phases;
use crate::relay::{self, Encode, Pump};
use crate::snapshot::Local;
use crate::upstream::health::Seen;
use crate::upstream::{Node as NodeConfig, Timeouts, Upstream};

/// What ended a relay before its time.
enum Broke {
    /// The client does not read, or is gone.
    Client(ClientError),
    /// The node's body is cut or malformed; the client sees its connection close before the body's end.
    Node(&'static str),
    /// A plugin gave up.
    Plugin(Failure),
}

impl<S: ClientStream> Connection<S> {
    /// Lets the plugins see the response and relays it; the rest of the request body goes on meanwhile.
    pub(crate) async fn relay_response(
        &mut self,
        x: &mut Exchange,
        local: &Local,
        config: &NodeConfig,
        upstream: &Upstream,
        timeouts: Timeouts,
        answering: &mut Answering,
    ) -> Next {
        let code = x.response.head.status;
        if let Some(node) = &answering.node {
            config.observe(node.addr, Seen::Status(code));
        }
        x.response.origin = weir_plugin::Origin::Upstream;
        x.received += answering.upload.received;
        answering.upload.received = 0;
        end_try(x, &self.worker, code);
        upstream.observe_latency(config, x, false);
        if let Some(attempt) = x.upstream.tries.last_mut() {
            attempt.head = attempt.end;
        }
        x.times.upstream_end = x.times.now;
        if code == 101 {
            let Some(node) = answering.node.take() else { return Next::Close };
            return self.tunnel(x, local, *node, timeouts).await;
        }
        let framing = x.response.head.framing;
        if let Err(failure) = self.prepare(x, local, code) {
            self.worker.recorder.upstream_closed(UpstreamState::Active);
            return self.fail(x, local, failure).await;
        }
        if x.response.collected
            && x.response.filtered
            && !reply::is_replaced(x)
            && let Err(failure) = self.collect(x, answering, timeouts.read).await
        {
            self.worker.recorder.upstream_closed(UpstreamState::Active);
            return self.fail(x, local, failure).await;
        }
        if reply::is_replaced(x) {
            return self.send_replaced(x, local, config, upstream, answering, framing).await;
        }
        self.stream_response(x, local, config, upstream, timeouts, answering).await
    }

    /// The response phases.
    fn prepare(&self, x: &mut Exchange, local: &Local, code: u16) -> Result<(), Failure> {
        if code >= 500 || self.worker.options.show_upstream_status {
            reply::add_upstream_status(x);
        }
        phases::on_response(x, &local.snapshot)
    }

    /// Reads the whole body of the node into [`Response::body`](weir_plugin::Response::body).
    async fn collect(&mut self, x: &mut Exchange, answering: &mut Answering, read_ms: u64) -> Result<(), Failure> {
        let limit = self.worker.options.buffered_body;
        let mut pump = Pump::new(x.response.head.framing, Encode::Plain, x.response.head.len);
        self.timer.set(read_ms);
        loop {
            let (more, len) = (x.response.buffer.len(), x.response.body.len());
            if x.response.body.capacity() - len < more {
                let room = (2 * x.response.body.capacity()).max(len + more);
                // Twice, for it is copied behind the head that the client gets.
                if room > BUFFER && !x.may_grow(2 * room) {
                    return Err(NO_ROOM);
                }
                x.response.body.reserve_exact(room - len);
            }
            let response = &mut x.response;
            pump.decode(&response.buffer, &mut response.body).map_err(bad_body)?;
            if response.body.len() > limit {
                return Err(Failure::upstream(502, "response body too large for a plugin that needs all of it"));
            }
            if pump.is_complete() {
                break;
            }
            pump.make_room(&mut response.buffer);
            let Some(node) = &mut answering.node else { return Err(Failure::internal("node given away early")) };
            let timer = &self.timer;
            let read = poll_fn(|cx| match relay::poll_read(cx, &mut node.stream, &mut response.buffer) {
                Poll::Ready(read) => Poll::Ready(read.ok()),
                Poll::Pending => timer.poll_expired(cx).map(|()| None),
            });
            match read.await {
                Some(0) if pump.end_by_close(&mut Vec::new()) => break,
                Some(n) if n > 0 => timer.set(read_ms),
                _ => return Err(Failure::upstream(502, "response body cut short")),
            }
        }
        // The body's bytes are taken; the buffer holds the head alone, and perhaps what no response may be followed by.
        let (base, end) = (x.response.head.len, pump.position());
        x.response.buffer.cut(base, end);
        x.response.head.framing = Framing::None;
        x.response.source = weir_plugin::BodySource::Here;
        Ok(())
    }

    /// Sends a body that was made or changed here in place of the node's.
    async fn send_replaced(
        &mut self,
        x: &mut Exchange,
        local: &Local,
        config: &NodeConfig,
        upstream: &Upstream,
        answering: &mut Answering,
        framing: Framing,
    ) -> Next {
        if x.response.filtered {
            let mut body = std::mem::take(&mut x.response.body);
            let done = phases::on_body(x, &local.snapshot, &mut body, true);
            x.response.body = body;
            if let Err(failure) = done {
                self.worker.recorder.upstream_closed(UpstreamState::Active);
                return self.fail(x, local, failure).await;
            }
        }
        // The node's body is of no use; if it is here already the connection is.
        let mut rest = Pump::new(x.response.head.framing, Encode::Plain, x.response.head.len);
        x.scratch.clear();
        let whole = rest.decode(&x.response.buffer, &mut x.scratch).is_ok()
            && rest.is_complete()
            && rest.position() == x.response.buffer.len();
        let uploaded = !answering.upload.is_running();
        let usable = whole && uploaded && x.response.head.keep_alive && framing != Framing::UntilClose;
        match answering.node.take() {
            Some(node) if usable => self.keep_node(config, upstream, node),
            _ => self.worker.recorder.upstream_closed(UpstreamState::Active),
        }
        if !uploaded {
            x.request.head.keep_alive = false;
        }
        let end = answering.upload.pump.position();
        let keep = self.may_keep(x);
        if !self.write_reply(x, keep).await {
            return Next::Close;
        }
        self.after(keep, end)
    }

    fn keep_node(&self, config: &NodeConfig, upstream: &Upstream, node: Box<crate::upstream::pool::Connection>) {
        let (pools, recorder) = (&self.worker.pools, &self.worker.recorder);
        pools.put(&config.endpoint, node, upstream.keepalive, self.timer.now(), recorder);
    }

    fn after(&mut self, keep: bool, end: usize) -> Next {
        if keep {
            Next::Keep(end)
        } else {
            self.set_linger();
            Next::Close
        }
    }

    /// Relays the node's body as it comes.
    async fn stream_response(
        &mut self,
        x: &mut Exchange,
        local: &Local,
        config: &NodeConfig,
        upstream: &Upstream,
        timeouts: Timeouts,
        answering: &mut Answering,
    ) -> Next {
        let Answering { node, upload } = answering;
        let bodyless = status::is_bodyless(x.response.head.status) || x.request.method() == Method::Head;
        let framing = x.response.head.framing;
        // A client that asked with HEAD gets no body even when a plugin made it a GET for the node.
        let discard = bodyless && framing != Framing::None;
        let filtered = x.response.filtered && !bodyless;
        let encode = match framing {
            Framing::None => Encode::Plain,
            Framing::Length(_) if !filtered => Encode::Plain,
            _ if x.request.head.minor == 0 => Encode::Plain,
            _ => Encode::Chunked,
        };
        // An answer may come before the request has ended; then the rest of the request follows, if the node takes it.
        let mut keep = self.may_keep(x) && (!upload.is_running() || x.response.head.keep_alive);
        // Without a length, an HTTP/1.0 client can only see the end by the connection's.
        keep &= bodyless
            || encode == Encode::Chunked
            || (matches!(framing, Framing::Length(_) | Framing::None) && !filtered);
        self.encode_head(x, keep, encode == Encode::Chunked && !bodyless, filtered);

        let mut pump = Pump::new(framing, encode, x.response.head.len);
        let first = if discard { Ok(()) } else { self.take_body(x, local, &mut pump, filtered, encode) };
        let mut broke = first.err();
        if broke.is_none() && !discard && pump.is_complete() {
            // The usual case: all of it is here, and the connection is free before the client has read anything.
            let clean = pump.position() == x.response.buffer.len();
            if clean
                && x.response.head.keep_alive
                && !upload.is_running()
                && let Some(node) = node.take()
            {
                self.keep_node(config, upstream, node);
            }
        }
        let (mut written, mut progress) = (0, Waiting::Nothing);
        while broke.is_none() {
            let (client, timer) = (&mut self.stream, &self.timer);
            let send_ms = self.worker.options.send_ms;
            let got = poll_fn(|cx| {
                loop {
                    let buffer = &x.response.buffer;
                    match pump.poll_flush(cx, client, buffer, &mut x.out, &mut written, &mut x.sent) {
                        Poll::Ready(Err(_)) => return Poll::Ready(Got::ClientGone),
                        Poll::Pending => {
                            progress.wait(Waiting::Client, timer, send_ms);
                            break;
                        }
                        Poll::Ready(Ok(())) if discard || pump.is_complete() => return Poll::Ready(Got::Done),
                        Poll::Ready(Ok(())) => {}
                    }
                    let Some(node) = node.as_mut() else { return Poll::Ready(Got::Done) };
                    pump.make_room(&mut x.response.buffer);
                    match relay::poll_read(cx, &mut node.stream, &mut x.response.buffer) {
                        Poll::Pending => {
                            progress.wait(Waiting::Node, timer, timeouts.read);
                            break;
                        }
                        Poll::Ready(Ok(0)) => return Poll::Ready(Got::NodeEnd),
                        Poll::Ready(Err(_)) => return Poll::Ready(Got::NodeGone),
                        Poll::Ready(Ok(_)) => progress = Waiting::Nothing,
                    }
                    if filtered {
                        return Poll::Ready(Got::Bytes);
                    }
                    if let Err(reject) = pump.refill(&x.response.buffer, &mut x.out) {
                        return Poll::Ready(Got::Malformed(reject));
                    }
                }
                if upload.is_running()
                    && let Some(node) = node.as_mut()
                {
                    // Whatever comes of it, the response goes on.
                    match upload.poll(cx, client, &mut node.stream, &mut x.request.buffer, timer) {
                        Poll::Ready(Err(reject)) if reject.status == 499 => return Poll::Ready(Got::ClientGone),
                        Poll::Ready(Err(_)) => upload.running = false,
                        Poll::Ready(Ok(())) | Poll::Pending => {}
                    }
                }
                if progress == Waiting::Node && client.poll_reset(cx).is_ready() {
                    return Poll::Ready(Got::ClientGone);
                }
                timer.poll_expired(cx).map(|()| Got::Late)
            })
            .await;
            match got {
                Got::Done => break,
                Got::Bytes => broke = self.take_body(x, local, &mut pump, filtered, encode).err(),
                Got::NodeEnd => {
                    if !pump.end_by_close(&mut x.out) {
                        broke = Some(Broke::Node("response body cut short"));
                    } else if filtered {
                        x.out.clear();
                        broke = self.take_body(x, local, &mut pump, filtered, encode).err();
                    }
                }
                Got::NodeGone => broke = Some(Broke::Node("upstream reset the connection")),
                Got::Malformed(reject) => broke = Some(Broke::Node(reject.reason)),
                Got::ClientGone => broke = Some(Broke::Client(ClientError::Aborted)),
                Got::Late if progress == Waiting::Client => broke = Some(Broke::Client(ClientError::WriteTimeout)),
                Got::Late => broke = Some(Broke::Node("read timed out")),
            }
        }
        if let Some(node) = node.as_mut()
            && broke.is_none()
            && keep
            && upload.is_running()
        {
            keep = self.finish_upload(x, upload, node).await;
        }
        x.received += upload.received;
        if x.timed {
            x.times.now = self.worker.clock.refresh();
        }
        x.times.upstream_end = x.times.now;
        if let Some(attempt) = x.upstream.tries.last_mut() {
            attempt.end = x.times.now - attempt.begin;
        }
        let unfinished = broke.is_some() || discard || pump.position() != x.response.buffer.len();
        if let Some(node) = node.take() {
            if unfinished || !x.response.head.keep_alive || upload.is_running() {
                self.worker.recorder.upstream_closed(UpstreamState::Active);
            } else {
                self.keep_node(config, upstream, node);
            }
        }
        let end = upload.pump.position();
        upload.give_back(x);
        if broke.is_some() {
            self.stream.abort();
        }
        match broke {
            None => self.after(keep, end),
            Some(Broke::Client(reason)) => {
                self.worker.recorder.client_error(reason);
                Next::Close
            }
            Some(Broke::Node(reason) | Broke::Plugin(Failure { reason, .. })) => {
                let node = x.upstream.tries.last().and_then(|t| t.addr.as_ref()).map(tracing::field::display);
                tracing::warn!(node, reason, "response cut off");
                x.response.origin = weir_plugin::Origin::Failed(Failure::upstream(x.response.status(), reason));
                Next::Close
            }
        }
    }

    /// Sends the rest of a request whose answer is complete; whether all of it went.
    async fn finish_upload(
        &mut self,
        x: &mut Exchange,
        upload: &mut super::Upload,
        node: &mut crate::upstream::pool::Connection,
    ) -> bool {
        let (client, timer) = (&mut self.stream, &self.timer);
        timer.set(self.worker.options.body_ms);
        let done = poll_fn(|cx| match upload.poll(cx, client, &mut node.stream, &mut x.request.buffer, timer) {
            Poll::Ready(done) => Poll::Ready(done.is_ok()),
            Poll::Pending => timer.poll_expired(cx).map(|()| false),
        })
        .await;
        done && upload.pump.is_complete()
    }

    /// Takes what the buffer holds of the body, through the plugins when they want it.
    fn take_body(
        &self,
        x: &mut Exchange,
        local: &Local,
        pump: &mut Pump,
        filtered: bool,
        encode: Encode,
    ) -> Result<(), Broke> {
        if !filtered {
            return pump.append(&x.response.buffer, &mut x.out).map_err(|reject| Broke::Node(reject.reason));
        }
        let mut chunk = std::mem::take(&mut x.scratch);
        chunk.clear();
        let taken = pump.decode(&x.response.buffer, &mut chunk).map_err(|reject| Broke::Node(reject.reason));
        let last = pump.is_complete();
        let seen = taken.and_then(|()| phases::on_body(x, &local.snapshot, &mut chunk, last).map_err(Broke::Plugin));
        relay::push_piece(&mut x.out, &chunk, encode, last);
        x.scratch = chunk;
        seen
    }

    /// Writes the response head to [`Exchange::out`].
    fn encode_head(&self, x: &mut Exchange, keep: bool, chunked: bool, filtered: bool) {
        let mut out = std::mem::take(&mut x.out);
        out.clear();
        head::push_status(x, &mut out);
        let Exchange { response, request, .. } = &mut *x;
        let fields = &mut response.head.fields;
        self.push_general(fields, &mut out);
        if filtered {
            fields.remove_known(Known::ContentLength);
        }
        fields.write(response.buffer.bytes(), &mut out);
        if chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        reply::push_connection(&mut out, keep, request.head.minor);
        out.extend_from_slice(b"\r\n");
        x.sent_head = out.len() as u64;
        x.out = out;
    }
}

/// What a turn of the relay came to.
enum Got {
    /// The response is sent.
    Done,
    /// Body bytes for the plugins.
    Bytes,
    NodeEnd,
    NodeGone,
    ClientGone,
    Malformed(Reject),
    Late,
}

/// Whom a relay waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Nothing,
    Client,
    Node,
}

impl Waiting {
    fn wait(&mut self, whom: Self, timer: &crate::timer::Timer, ms: u64) {
        if *self != whom {
            *self = whom;
            timer.set(ms);
        }
    }
}

fn bad_body(reject: Reject) -> Failure {
    Failure::upstream(502, reject.reason)
}
