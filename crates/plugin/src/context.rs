//! What each hook may see and do.

use std::any::Any;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use weir_expr::{Source, Value, Variable};
use weir_telemetry::metrics::Recorder;
use weir_wire::fields::Fields;
use weir_wire::head::Content;
use weir_wire::name::FieldName;

use crate::consumer::ConsumerMatch;
use crate::encoder::Encoder;
use crate::exchange::{AddrText, Client, Exchange};
use crate::mark::{Hold, Mark, Note};
use crate::request::Request;
use crate::response::{BodySource, Origin, Response};
use crate::{Failure, Flow, Reply};

/// What an upstream is told of a consumer.
static CONSUMER_FIELDS: LazyLock<[FieldName; 3]> = LazyLock::new(|| {
    ["X-Consumer-Username", "X-Credential-Identifier", "X-Consumer-Custom-ID"].map(FieldName::constant)
});

/// A request before it goes upstream.
#[derive(Debug)]
pub struct RequestCx<'a>(pub &'a mut Exchange);

impl RequestCx<'_> {
    /// The request.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.0.request
    }

    /// The request, to change it.
    pub fn request_mut(&mut self) -> &mut Request {
        &mut self.0.request
    }

    /// The client and its connection.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Where variables are read from.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &*self.0
    }

    /// The value of a variable.
    #[must_use]
    pub fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        self.0.variable(variable)
    }

    /// Milliseconds on a clock that never goes back, of no fixed origin.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.0.times.now / 1000
    }

    /// Milliseconds since 1970 at the start of the request.
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        self.0.times.unix_ms
    }

    /// The whole request body, decoded; `None` until it was collected because a hook returned [`Flow::AwaitBody`].
    #[must_use]
    pub fn body(&self) -> Option<&[u8]> {
        self.0.request.body()
    }

    /// Sets how many bytes the request body may have, in place of `limits.body_size`; 0: any number. What is longer is
    /// refused with 413, at once when its length is announced, else on its way.
    pub fn limit_body(&mut self, bytes: u64) -> Flow {
        let limit = if bytes == 0 { u64::MAX } else { bytes };
        self.0.body_limit = limit;
        match self.0.request.head.content {
            Content::Length(length) if length > limit => Flow::Abort(Failure::BODY_TOO_LARGE),
            _ => Flow::Continue,
        }
    }

    /// Takes another address for the client's, and another port where one is known: from here on it is what variables,
    /// limits, logs and the upstream are told. The peer's own stays in [`Client::peer`].
    pub fn set_client_addr(&mut self, addr: IpAddr, port: Option<u16>) {
        let client = &mut self.0.client;
        client.addr = addr;
        client.addr_text = AddrText::new(addr);
        client.port = port.unwrap_or(client.port);
    }

    /// Sends the request to this upstream, of [`BuildCx::upstream`](crate::BuildCx::upstream) or
    /// [`BuildCx::inline_upstream`](crate::BuildCx::inline_upstream), instead of the route's own; `None`: to the route's.
    pub fn choose_upstream(&mut self, number: Option<u32>) {
        self.0.upstream.chosen = number;
    }

    /// Leaves two numbers for the later phases of this exchange, which find them with `noted`; a later note under the
    /// same mark takes the place of an earlier one.
    pub fn note(&mut self, mark: Mark, note: Note) {
        self.0.notes.set(mark, note);
    }

    /// What [`RequestCx::note`] left.
    #[must_use]
    pub fn noted(&self, mark: Mark) -> Option<Note> {
        self.0.notes.get(mark)
    }

    /// Holds a part of `what` until this exchange is over, however it ends; then [`Hold::release`] is called with `note`.
    /// For what has to be given back: the log phase may be left out, by a panic or by a filter that no longer holds.
    pub fn hold(&mut self, what: Arc<dyn Hold>, note: Note) {
        self.0.holds.add(what, note);
    }

    /// Gives the request an id of its own, which is `$request_id` from here on.
    pub fn set_request_id(&mut self, id: &[u8]) {
        self.0.own_id.clear();
        self.0.own_id.extend_from_slice(id);
    }

    /// What [`Define::credentials`](crate::Define::credentials) made last of the consumers, for the plugin at this
    /// position of the registry ([`BuildCx::position`](crate::BuildCx::position)); `None` when there never were any.
    #[must_use]
    pub fn credentials<T: Any>(&self, position: u8) -> Option<&T> {
        self.0.tables.as_ref()?.credentials.get(usize::from(position))?.as_ref()?.downcast_ref()
    }

    /// The consumer found so far.
    #[must_use]
    pub fn consumer(&self) -> Option<ConsumerMatch> {
        self.0.consumer
    }

    /// Says who calls. The upstream is told by `X-Consumer-Username` and, where known, `X-Credential-Identifier` and
    /// `X-Consumer-Custom-ID`; what the client sent under these names is dropped.
    pub fn set_consumer(&mut self, who: ConsumerMatch) {
        self.0.consumer = Some(who);
        let Exchange { tables, request, .. } = &mut *self.0;
        let Some(tables) = tables else { return };
        let base = request.buffer.bytes();
        let fields = &mut request.head.fields;
        for name in &*CONSUMER_FIELDS {
            fields.remove(base, name);
        }
        let [username, credential, custom_id] = &*CONSUMER_FIELDS;
        let mut add = |name, value: &str| fields.add_named(name, |out| out.extend_from_slice(value.as_bytes()));
        if let Some(consumer) = tables.consumers.get(who.consumer) {
            add(username, &consumer.name.text);
            if let Some(id) = &consumer.custom_id {
                add(custom_id, id);
            }
        }
        if let Some(id) = tables.consumers.credential(who) {
            add(credential, id);
        }
    }

    /// Sets a field of the response, whoever will give it; it replaces one of the same name.
    pub fn set_response_field(&mut self, name: &FieldName, write: impl FnOnce(&mut Vec<u8>)) {
        self.0.early_fields.remove(b"", name);
        self.0.early_fields.add_named(name, write);
    }

    /// Scratch memory, cleared, to build a value in; give it back with [`RequestCx::put_scratch`].
    #[must_use]
    pub fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.0.scratch);
        scratch.clear();
        scratch
    }

    /// Gives scratch memory back, so that the next request need not allocate it.
    pub fn put_scratch(&mut self, scratch: Vec<u8>) {
        self.0.scratch = scratch;
    }

    /// Answers the request here. Fields and body may be added before [`Answer::done`].
    pub fn reply(&mut self, status: u16) -> Answer<'_> {
        self.0.response.begin(status, Origin::Gateway);
        Answer { response: &mut self.0.response }
    }

    /// Refuses the request with `{"message":"…"}`, as APISIX's plugins do.
    pub fn refuse(&mut self, status: u16, message: &str) -> Flow {
        self.reply(status).message(message).done()
    }

    /// Gives up: the request is refused with this status and the reason is logged.
    pub fn fail(&self, status: u16, reason: &'static str) -> Flow {
        Flow::Abort(Failure { status, ..Failure::internal(reason) })
    }
}

/// An answer being made.
#[derive(Debug)]
pub struct Answer<'a> {
    response: &'a mut Response,
}

impl Answer<'_> {
    /// Adds a field.
    #[must_use]
    pub fn field(self, name: &str, value: &[u8]) -> Self {
        self.response.head.fields.add(name.as_bytes(), value);
        self
    }

    /// Adds a field whose name was compiled before.
    #[must_use]
    pub fn named(self, name: &FieldName, value: &[u8]) -> Self {
        self.response.head.fields.add_named(name, |out| out.extend_from_slice(value));
        self
    }

    /// Adds fields that were made before.
    #[must_use]
    pub fn fields(self, fields: &Fields) -> Self {
        self.response.head.fields.take_over(b"", fields);
        self
    }

    /// Appends to the body.
    #[must_use]
    pub fn body(self, body: &[u8]) -> Self {
        self.response.body.extend_from_slice(body);
        self
    }

    /// Takes this for the whole body.
    #[must_use]
    pub fn whole_body(self, body: Vec<u8>) -> Self {
        self.response.body = body;
        self
    }

    /// `{"message":"…"}` and a line end, with APISIX's content type for it.
    #[must_use]
    pub fn message(self, message: &str) -> Self {
        let body = &mut self.response.body;
        body.extend_from_slice(b"{\"message\":");
        // Writing into a vector does not fail.
        let _ = serde_json::to_writer(&mut *body, message);
        body.extend_from_slice(b"}\n");
        self.field("Content-Type", b"text/plain; charset=utf-8")
    }

    /// The answer is complete.
    pub fn done(self) -> Flow {
        Flow::Respond(Reply(()))
    }
}

/// A request about to be sent to a node.
#[derive(Debug)]
pub struct UpstreamCx<'a>(pub &'a mut Exchange);

impl UpstreamCx<'_> {
    /// The request, to change it.
    pub fn request_mut(&mut self) -> &mut Request {
        &mut self.0.request
    }

    /// Sends a copy of the request to an upstream beside, with the target that `write` makes of the request. It is sent
    /// once the whole request is here, at most one for a request, and its answer is dropped.
    pub fn mirror(&mut self, number: u32, write: impl FnOnce(&Request, &mut Vec<u8>)) {
        let Exchange { request, upstream, .. } = &mut *self.0;
        upstream.mirror = Some(number);
        upstream.mirror_target.clear();
        write(request, &mut upstream.mirror_target);
    }

    /// Which try this is, from 0.
    #[must_use]
    pub fn attempt(&self) -> usize {
        self.0.upstream.tries.len().saturating_sub(1)
    }

    /// Where variables are read from.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &*self.0
    }
}

/// A response whose head is known and not yet sent.
#[derive(Debug)]
pub struct ResponseCx<'a>(pub &'a mut Exchange);

impl ResponseCx<'_> {
    /// Milliseconds since 1970 at the start of the request.
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        self.0.times.unix_ms
    }

    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.response.status()
    }

    /// Replaces the status code.
    pub fn set_status(&mut self, status: u16) {
        self.0.response.head.status = status;
        self.0.response.head.reason = weir_wire::Span::default();
    }

    /// The response.
    #[must_use]
    pub fn response(&self) -> &Response {
        &self.0.response
    }

    /// The request.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.0.request
    }

    /// What [`RequestCx::set_request_id`] set; empty when nothing did.
    #[must_use]
    pub fn request_id(&self) -> &[u8] {
        &self.0.own_id
    }

    /// Where variables are read from.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &*self.0
    }

    /// Replaces a field.
    pub fn set_field(&mut self, name: &FieldName, value: &[u8]) {
        let response = &mut self.0.response;
        response.head.fields.set(response.buffer.bytes(), name, value);
    }

    /// Adds a field.
    pub fn add_field(&mut self, name: &FieldName, value: &[u8]) {
        self.0.response.head.fields.add(name.text(), value);
    }

    /// Removes a field; tells whether there was one.
    pub fn remove_field(&mut self, name: &FieldName) -> bool {
        let response = &mut self.0.response;
        response.head.fields.remove(response.buffer.bytes(), name)
    }

    /// Scratch memory, cleared; give it back with [`ResponseCx::put_scratch`].
    #[must_use]
    pub fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.0.scratch);
        scratch.clear();
        scratch
    }

    /// Gives scratch memory back.
    pub fn put_scratch(&mut self, scratch: Vec<u8>) {
        self.0.scratch = scratch;
    }

    /// Sends this body instead of the upstream's.
    pub fn replace_body(&mut self, body: &[u8]) {
        let response = &mut self.0.response;
        response.source = BodySource::Here;
        response.body.clear();
        response.body.extend_from_slice(body);
    }

    /// Asks for [`Plugin::body`](crate::Plugin::body) to be called: with every piece, or `whole` with the body in one
    /// piece, which is then collected up to `limits.buffered_body` (502 above).
    pub fn filter_body(&mut self, whole: bool) {
        self.0.response.filtered = true;
        self.0.response.collected |= whole;
    }

    /// Leaves a mark that the plugin finds again with [`BodyCx::is_marked`]. As soon as one plugin asks for the body all
    /// that have a body phase are called, so one that asks on some conditions alone has to remember.
    pub fn mark(&mut self, mark: Mark) {
        self.0.response.marks.push(mark);
    }

    /// Leaves state for the body phase, such as a compressor, which finds it with [`BodyCx::state`]. It allocates: for
    /// plugins whose work is large beside that.
    pub fn put_state<T: Any>(&mut self, mark: Mark, state: T) {
        self.0.response.states.put(mark, Box::new(state));
    }

    /// What [`RequestCx::note`] left.
    #[must_use]
    pub fn noted(&self, mark: Mark) -> Option<Note> {
        self.0.notes.get(mark)
    }

    /// Sends the body in a content coding. The fields that spoke of the body as it was are changed with it: an entity
    /// tag becomes a weak one, since the text is the same and the bytes are not (RFC 9110 section 8.8.3.3), and digests
    /// and ranges go.
    pub fn encode_body(&mut self, coding: &[u8], encoder: Box<dyn Encoder>) {
        let Exchange { response, scratch, .. } = &mut *self.0;
        let fields = &mut response.head.fields;
        let base = response.buffer.bytes();
        fields.add(b"Content-Encoding", coding);
        for name in [&b"Accept-Ranges"[..], b"Content-MD5", b"Content-Digest", b"Repr-Digest", b"Digest"] {
            fields.remove_str(base, name);
        }
        if let Some(tag) = fields.get_str(base, b"ETag").filter(|tag| tag.starts_with(b"\"")) {
            scratch.clear();
            scratch.extend_from_slice(b"W/");
            scratch.extend_from_slice(tag);
            fields.set_str(base, b"ETag", scratch);
        }
        response.encoder = Some(encoder);
        response.filtered = true;
    }
}

/// A response body on its way.
#[derive(Debug)]
pub struct BodyCx<'a>(pub &'a mut Exchange);

impl BodyCx<'_> {
    /// Whether [`ResponseCx::mark`] was called with this mark for this response.
    #[must_use]
    pub fn is_marked(&self, mark: Mark) -> bool {
        self.0.response.marks.contains(&mark)
    }

    /// The same, and forgets it: for what is to be done with one piece alone.
    pub fn take_mark(&mut self, mark: Mark) -> bool {
        let marks = &mut self.0.response.marks;
        let found = marks.iter().position(|other| *other == mark);
        found.map(|at| marks.swap_remove(at)).is_some()
    }

    /// What [`ResponseCx::put_state`] left for this response.
    pub fn state<T: Any>(&mut self, mark: Mark) -> Option<&mut T> {
        self.0.response.states.get(mark)
    }

    /// What [`RequestCx::note`] left.
    #[must_use]
    pub fn noted(&self, mark: Mark) -> Option<Note> {
        self.0.notes.get(mark)
    }

    /// Where variables are read from.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &*self.0
    }
}

/// An exchange that is over.
#[derive(Debug)]
pub struct LogCx<'a> {
    /// The exchange.
    pub exchange: &'a Exchange,
    /// The worker's metrics.
    pub recorder: &'a Recorder,
}

impl<'x> LogCx<'x> {
    /// What [`RequestCx::note`] left.
    #[must_use]
    pub fn noted(&self, mark: Mark) -> Option<Note> {
        self.exchange.notes.get(mark)
    }

    /// What [`ResponseCx::put_state`] left for the body of the response.
    #[must_use]
    pub fn state<T: Any>(&self, mark: Mark) -> Option<&'x T> {
        self.exchange.response.states.peek(mark)
    }
}
