//! Contexts of hooks: reads and changes that each hook may make.

use std::any::Any;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use weir_expr::{Source, Value, Variable};
use weir_router::Query;
use weir_telemetry::metrics::Recorder;
use weir_wire::fields::Fields;
use weir_wire::head::Content;
use weir_wire::name::FieldName;

use crate::captures::Captures;
use crate::consumer::{Consumer, ConsumerMatch};
use crate::encoder::Encoder;
use crate::exchange::{AddrText, Client, Exchange};
use crate::request::{DIGESTS, Request};
use crate::response::{BodySource, Origin, Response};
use crate::tables::Tables;
use crate::view::View;
use crate::{Failure, Flow, Reply, Rerouted};

/// Fields by which an upstream learns the consumer.
static CONSUMER_FIELDS: LazyLock<[FieldName; 3]> = LazyLock::new(|| {
    ["X-Consumer-Username", "X-Credential-Identifier", "X-Consumer-Custom-ID"].map(FieldName::constant)
});

/// Most times that a request is led to another route.
const MOST_REROUTES: u32 = 64;

/// A request before it goes upstream.
#[derive(Debug)]
pub struct RequestCx<'a>(pub(crate) &'a mut Exchange);

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

    /// The source of variables.
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

    /// Bytes that the client of a stream has sent so far: at first none, and more each time that a hook has returned
    /// [`Flow::AwaitBody`]. `None`: this is no stream.
    #[must_use]
    pub fn first_bytes(&self) -> Option<&[u8]> {
        self.0.stream.as_ref().map(|stream| stream.first.as_slice())
    }

    /// Sets the id of a client that speaks MQTT: the variable `mqtt_client_id`.
    pub fn set_mqtt_client_id(&mut self, id: Box<[u8]>) {
        if let Some(stream) = &mut self.0.stream {
            stream.mqtt_client_id = Some(id);
        }
    }

    /// The whole request body, decoded; `None` until it was collected because a hook returned [`Flow::AwaitBody`].
    #[must_use]
    pub fn body(&self) -> Option<&[u8]> {
        self.0.request.body()
    }

    /// Replaces the request body, with its length, for the plugins that follow and for the node. The client's own
    /// is dropped: as much of it as is not here yet is received first, up to `limits.buffered_body` (413 above). Attempts
    /// at other nodes send the new body as well.
    pub fn replace_body(&mut self, body: &[u8]) {
        self.0.request.replace_body(body);
    }

    /// Asks for [`Plugin::request_body`](crate::Plugin::request_body) to be called with each piece of the request body that
    /// goes to a node. A body that was collected or replaced is one piece and keeps a length; any other one has no length
    /// from here on, so that it goes on in chunks where the node speaks HTTP/1.1. A request without a body has no piece.
    /// Fields such as `Content-Digest` are not touched.
    pub fn filter_body(&mut self) {
        self.0.request.filter_body();
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
    /// limits, logs and the upstream see. The peer's own stays in [`Client::peer`].
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

    /// Gives the request an id of its own, which is `$request_id` from here on.
    pub fn set_request_id(&mut self, id: &[u8]) {
        self.0.own_id.clear();
        self.0.own_id.extend_from_slice(id);
    }

    /// Keeps the groups of the regular expression that took the path.
    pub fn set_captures(&mut self, captures: Captures) {
        self.0.captures = Some(captures);
    }

    /// Tells the `traceparent` that the upstream receives in the variables `opentelemetry_*`.
    pub fn set_traceparent(&mut self, text: &[u8]) {
        self.0.traceparent.clear();
        self.0.traceparent.extend_from_slice(text);
    }

    /// The certificate that the client has shown where it was asked for one without verification (`ask_client`): it has proved
    /// that it has the key, and nothing else is known.
    #[must_use]
    pub fn client_certificate(&self) -> Option<crate::Chain> {
        crate::certificates::of_connection(self.0.client.connection)
    }

    /// The tables of the configuration; a further reference, of this thread, so that the request can be changed meanwhile.
    #[must_use]
    pub fn tables(&self) -> Option<Rc<Arc<Tables>>> {
        self.0.tables.clone()
    }

    /// The table that [`Define::credentials`](crate::Define::credentials) made last of the consumers, for the plugin at this
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

    /// The consumer found so far, with what is known of it; of the tables of [`RequestCx::tables`].
    #[must_use]
    pub fn consumer_in<'t>(&self, tables: &'t Tables) -> Option<&'t Consumer> {
        tables.consumers.get(self.0.consumer?.consumer)
    }

    /// Says on which plan ([`Plans::find`](crate::Plans::find)) the request counts, for the usage.
    pub fn set_plan(&mut self, number: u32) {
        self.0.plan = Some(number);
    }

    /// Sets the consumer without fields for the upstream: for a plugin that has fields of its own for that.
    pub fn set_consumer_alone(&mut self, who: ConsumerMatch) {
        self.0.consumer = Some(who);
    }

    /// Forgets the consumer: the caller is known otherwise.
    pub fn forget_consumer(&mut self) {
        self.0.consumer = None;
    }

    /// Asks for the times of the exchange, for a plugin that shows them before the log phase: else the clock is read once
    /// a request.
    pub fn need_times(&mut self) {
        self.0.timed = true;
    }

    /// Sets the consumer. The upstream learns it by `X-Consumer-Username` and, where known, `X-Credential-Identifier` and
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
            if let Some(id) = consumer.custom_id() {
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

    /// Takes back a field that [`RequestCx::set_response_field`] has set. Returns true if there was one.
    pub fn unset_response_field(&mut self, name: &FieldName) -> bool {
        self.0.early_fields.remove(b"", name)
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

    /// Leads the request to the route at a place, with this path, encoded, and query; what is known of a consumer or an upstream
    /// is forgotten. A place is a path that begins with no slash, so that no client can ask for it. `None`: there is no such
    /// route, or the path is none. A request may be led on 64 times; then it is refused with 500.
    pub fn reroute(&mut self, place: &[u8], path: &[u8], query: &[u8]) -> Option<Flow> {
        let x = &mut *self.0;
        if x.reroutes >= MOST_REROUTES {
            return Some(Flow::Abort(Failure::internal("request led on too often")));
        }
        let tables = x.tables.clone()?;
        let mut params = std::mem::take(&mut x.params);
        let asked = Query {
            method: x.request.method_bytes(),
            host: x.request.host(),
            host_port: x.request.host_port(),
            path: place,
            remote: x.client.addr,
            source: &*x,
        };
        let found = tables.router.as_ref().and_then(|router| router.find(&asked, &mut params));
        x.params = params;
        let found = found?;
        x.request.set_path(path, query).ok()?;
        x.matched = Some(found);
        x.reroutes += 1;
        (x.consumer, x.plan, x.upstream.chosen) = (None, None, None);
        Some(Flow::Reroute(Rerouted(())))
    }

    /// Answers the request here. Fields and body may be added before [`Answer::done`].
    pub fn reply(&mut self, status: u16) -> Answer<'_> {
        self.0.response.begin(status, Origin::Gateway);
        Answer { response: &mut self.0.response }
    }

    /// Drops the answer that [`RequestCx::reply`] has prepared, for a plugin that goes on although another one has answered.
    pub fn withdraw_reply(&mut self) {
        self.0.response.reset();
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

    /// Adds a field of another message.
    #[must_use]
    pub fn named_bytes(self, name: &[u8], value: &[u8]) -> Self {
        self.response.head.fields.add(name, value);
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
pub struct UpstreamCx<'a>(pub(crate) &'a mut Exchange);

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

    /// Scratch memory, cleared; give it back with [`UpstreamCx::put_scratch`].
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

    /// Number of this try, from 0.
    #[must_use]
    pub fn attempt(&self) -> usize {
        self.0.upstream.tries.len().saturating_sub(1)
    }

    /// The source of variables.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &*self.0
    }
}

/// A response whose head is known and not yet sent.
#[derive(Debug)]
pub struct ResponseCx<'a>(pub(crate) &'a mut Exchange);

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

    /// The id of [`RequestCx::set_request_id`]; empty when nothing did.
    #[must_use]
    pub fn request_id(&self) -> &[u8] {
        &self.0.own_id
    }

    /// The source of variables.
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

    /// Removes a field. Returns true if there was one.
    pub fn remove_field(&mut self, name: &FieldName) -> bool {
        let response = &mut self.0.response;
        response.head.fields.remove(response.buffer.bytes(), name)
    }

    /// The response, to change it.
    pub fn response_mut(&mut self) -> &mut Response {
        &mut self.0.response
    }

    /// The request, and the response to change it by the request.
    pub fn messages(&mut self) -> (&Request, &mut Response) {
        (&self.0.request, &mut self.0.response)
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

    /// The whole body; `None` while it has not been asked for with [`Flow::AwaitBody`] and is not made here.
    #[must_use]
    pub fn body(&self) -> Option<&[u8]> {
        let response = &self.0.response;
        (response.source == BodySource::Here || response.is_bodyless).then_some(&*response.body)
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

    /// Sends the body in a content coding. The fields that spoke of the body as it was are changed with it: an entity
    /// tag becomes a weak one, since the text is the same and the bytes are not (RFC 9110 section 8.8.3.3), and digests
    /// and ranges go.
    pub fn encode_body(&mut self, coding: &[u8], encoder: Box<dyn Encoder>) {
        let Exchange { response, scratch, .. } = &mut *self.0;
        let fields = &mut response.head.fields;
        let base = response.buffer.bytes();
        fields.add(b"Content-Encoding", coding);
        for name in [&b"Accept-Ranges"[..]].into_iter().chain(DIGESTS) {
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

/// A request body on its way to a node.
#[derive(Debug)]
pub struct RequestBodyCx<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) begins: bool,
}

impl RequestBodyCx<'_> {
    /// True with the first piece of an attempt at a node: after an attempt that failed the body comes once more from its
    /// beginning.
    #[must_use]
    pub fn begins(&self) -> bool {
        self.begins
    }

    /// The source of variables.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &*self.exchange
    }
}

/// A response body on its way.
#[derive(Debug)]
pub struct BodyCx<'a>(pub(crate) &'a mut Exchange);

impl BodyCx<'_> {
    /// The response, with the trailer section once the body has ended. Of a body that was requested as a `whole` the head has
    /// not been sent yet.
    #[must_use]
    pub fn response(&self) -> &Response {
        &self.0.response
    }

    /// Replaces the status code of a response whose body was requested as a `whole`; of any other the head has been sent.
    pub fn set_status(&mut self, status: u16) {
        if self.0.response.collected {
            self.0.response.head.status = status;
            self.0.response.head.reason = weir_wire::Span::default();
        }
    }

    /// Replaces a field of a response whose body was requested as a `whole`; of any other the head has been sent.
    pub fn set_field(&mut self, name: &FieldName, value: &[u8]) {
        let response = &mut self.0.response;
        if response.collected {
            response.head.fields.set(response.buffer.bytes(), name, value);
        }
    }

    /// Keeps the trailer section from the client, for a plugin that puts its content into the body.
    pub fn drop_trailers(&mut self) {
        self.0.response.drops_trailers = true;
    }

    /// The source of variables.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &*self.0
    }
}

/// An exchange that is over.
#[derive(Debug)]
pub struct LogCx<'a> {
    pub(crate) exchange: &'a Exchange,
    pub(crate) recorder: &'a Recorder,
}

impl<'a> LogCx<'a> {
    /// The worker's metrics.
    #[must_use]
    pub fn recorder(&self) -> &'a Recorder {
        self.recorder
    }

    /// The source of variables.
    #[must_use]
    pub fn source(&self) -> &'a dyn Source {
        self.exchange
    }
}

mod sealed {
    use crate::exchange::Exchange;

    /// Access to the exchange that a hook is about.
    pub trait HasExchange {
        fn exchange(&self) -> &Exchange;
    }

    pub trait HasExchangeMut: HasExchange {
        fn exchange_mut(&mut self) -> &mut Exchange;
    }
}

/// A context in which state of an exchange is read: that of any hook.
pub trait HookCx: sealed::HasExchange {
    /// A read-only view of the exchange.
    fn view(&self) -> View<'_> {
        View(self.exchange())
    }
}

/// A context in which state of an exchange is changed: that of any hook but the log phase's.
pub trait HookCxMut: HookCx + sealed::HasExchangeMut {}

impl<C: sealed::HasExchange> HookCx for C {}
impl<C: sealed::HasExchangeMut> HookCxMut for C {}

macro_rules! contexts {
    ($($cx:ident $exchange:tt;)*) => {
        $(impl sealed::HasExchange for $cx<'_> {
            fn exchange(&self) -> &Exchange {
                self.$exchange
            }
        }

        impl sealed::HasExchangeMut for $cx<'_> {
            fn exchange_mut(&mut self) -> &mut Exchange {
                self.$exchange
            }
        })*
    };
}

contexts! {
    RequestCx 0;
    UpstreamCx 0;
    RequestBodyCx exchange;
    ResponseCx 0;
    BodyCx 0;
}

impl sealed::HasExchange for LogCx<'_> {
    fn exchange(&self) -> &Exchange {
        self.exchange
    }
}
