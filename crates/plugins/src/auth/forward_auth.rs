//! `forward-auth`: another service decides whether a request may pass.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::Template;
use weir_plugin::{
    BuildCx, Callout, CalloutError, CalloutResponse, CompileCx, Compiled, ConsumerMatch, ConsumerSet, Define, Flow,
    Invalid, Io, Keep, LocalFuture, Phases, Plugin, Remembered, RequestCx, Service,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::service_conf::ServiceConf;

/// The definition.
#[derive(Debug)]
pub(crate) struct ForwardAuth;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The authorization service: `http://HOST:PORT/PATH` or `https://HOST:PORT/PATH`. The host may be a name or an
    /// address.
    uri: String,
    /// The method of requests to the service. `POST`: with the body of the client's request, which is held whole for
    /// that, up to `limits.buffered_body` (413 above).
    #[serde(default)]
    request_method: RequestMethod,
    /// Names of the fields of the client's request that the service receives as well.
    #[serde(default)]
    request_headers: Vec<String>,
    /// Names of the fields of the service's answer that the upstream receives when the request passes. They replace the
    /// client's; one that the answer lacks is taken out of the request.
    #[serde(default)]
    upstream_headers: Vec<String>,
    /// Names of the fields of the service's answer that the client receives when the request is refused.
    #[serde(default)]
    client_headers: Vec<String>,
    /// The field of the service's answer that names the consumer as whom the request passes. Without it in the answer,
    /// or with a name that no consumer has, the request is refused with 403.
    #[schemars(length(min = 1))]
    consumer_header: Option<String>,
    /// Further fields for the service. Variables such as `$remote_addr` are replaced.
    #[serde(default)]
    #[schemars(extend("minProperties" = 1))]
    extra_headers: Option<BTreeMap<String, String>>,
    /// Milliseconds until the service has to have answered, connecting included.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1, max = 60_000))]
    timeout: u64,
    #[serde(flatten)]
    service: ServiceConf,
    /// Lets requests pass unasked while the service does not answer.
    #[serde(default)]
    allow_degradation: bool,
    /// Remembers the service's answers, so that it is not asked about every request. An extension: APISIX has it not.
    remember: Option<Remember>,
    /// The status of requests that are refused because the service does not answer.
    #[serde(default = "status_on_error")]
    #[schemars(range(min = 200, max = 599))]
    status_on_error: u16,
}

/// Answers that are remembered.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Remember {
    /// The values that an answer depends on, such as `[$http_authorization, $host]`: requests in which all of it is the
    /// same get the same answer, so whatever the service decides by has to be in it.
    #[schemars(length(min = 1))]
    key: Vec<String>,
    /// Seconds for which an answer that lets pass is remembered.
    #[schemars(range(min = 0, max = 86_400))]
    ttl: u64,
    /// Seconds for which any other answer is remembered.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86_400))]
    refused_ttl: u64,
    /// Answers that are remembered at most; the oldest make room.
    #[serde(default = "entries")]
    #[schemars(range(min = 1, max = 10_000_000))]
    max_entries: usize,
    /// Bytes that they take at most, with their keys.
    #[serde(default = "bytes")]
    #[schemars(range(min = 1024))]
    max_bytes: usize,
}

fn entries() -> usize {
    10_000
}

fn bytes() -> usize {
    16 << 20
}

/// A method of requests to the service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum RequestMethod {
    #[default]
    Get,
    Post,
}

fn timeout() -> u64 {
    3000
}

fn status_on_error() -> u16 {
    403
}

impl Define for ForwardAuth {
    const NAME: &'static str = "forward-auth";
    const PRIORITY: i32 = 2002;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Asks another service whether a request may pass. The service is told of the request by `X-Forwarded-Proto`, \
`X-Forwarded-Method`, `X-Forwarded-Host`, `X-Forwarded-Uri` (path and query in normalised form) and `X-Forwarded-For` \
(the client's address), and by the fields that `request_headers` and `extra_headers` name.

An answer below 300 lets the request pass, with the fields that `upstream_headers` names. Any other answer is the \
client's: its status, its body, and the fields that `client_headers` names.

No answer within `timeout`, none at all, or one longer than `limits.callout_body`: the request is refused with \
`status_on_error`, unless `allow_degradation` lets it pass. With `limits.callouts` under way in the worker it is refused \
with 503 in any case. With `remember`, requests with the same key ask once, also when many come at a time, on whichever \
worker; an answer that did not come is never remembered. The metrics `weir_callouts_total` and `weir_callout_duration_seconds` count what was asked, and \
what came of it. When the client resets its connection meanwhile, the question is given up.";
    const EXAMPLE: &'static str = "\
uri: http://127.0.0.1:9000/auth
request_headers: [Authorization]
upstream_headers: [X-User-ID]
client_headers: [WWW-Authenticate, Location]
timeout: 2000
";
    const TEMPLATES: &'static [&'static str] = &["extra_headers.*", "remember.key.*"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let timeout = Duration::from_millis(conf.timeout);
        let options = conf.service.options(timeout);
        let service = cx.ok(Service::parse("uri", &conf.uri, options));
        let fields = cx.ok(Fields::new(&conf));
        let key = conf.remember.as_ref().map(|remember| cx.ok(remember.key()));
        if conf.uri.starts_with("https://") && !conf.service.ssl_verify {
            cx.warn("ssl_verify", "anybody on the way can answer in the place of the service");
        }
        let remember = match (conf.remember, key) {
            (Some(remember), Some(key)) => Some((remember, key?)),
            _ => None,
        };
        let (service, fields) = (service?, fields?);
        Some(Compiled::build(move |build| {
            Ok(Asking {
                remembered: remember.map(|(remember, key)| Memory::new(&remember, key, build)),
                service: service.build(build)?,
                fields,
                posts: conf.request_method == RequestMethod::Post,
                timeout,
                degrades: conf.allow_degradation,
                status_on_error: conf.status_on_error,
            })
        }))
    }
}

/// The fields that the configuration names.
#[derive(Debug)]
struct Fields {
    from_request: Box<[FieldName]>,
    to_upstream: Box<[FieldName]>,
    to_client: Box<[FieldName]>,
    consumer: Option<FieldName>,
    extra: Box<[(FieldName, Template)]>,
}

impl Fields {
    fn new(conf: &Conf) -> Result<Self, Invalid> {
        if conf.extra_headers.as_ref().is_some_and(BTreeMap::is_empty) {
            return Err(Invalid::new("extra_headers", "expected one field or more"));
        }
        let consumer = conf.consumer_header.as_deref().map(|name| field("consumer_header".into(), name)).transpose()?;
        let extra = conf.extra_headers.iter().flatten().map(|(name, value)| {
            let place = || format!("extra_headers.{name}");
            let template = Template::parse_lenient(value, false);
            Ok((own_field(place(), name)?, template.map_err(|error| Invalid::new(place(), error.to_string()))?))
        });
        let own = |(at, name): (usize, &String)| own_field(format!("request_headers[{at}]"), name);
        Ok(Self {
            from_request: conf.request_headers.iter().enumerate().map(own).collect::<Result<_, Invalid>>()?,
            to_upstream: names("upstream_headers", &conf.upstream_headers)?,
            to_client: names("client_headers", &conf.client_headers)?,
            consumer,
            extra: extra.collect::<Result<_, Invalid>>()?,
        })
    }
}

fn names(place: &str, names: &[String]) -> Result<Box<[FieldName]>, Invalid> {
    names.iter().enumerate().map(|(at, name)| framing_is_ours(format!("{place}[{at}]"), name)).collect()
}

fn field(place: String, name: &str) -> Result<FieldName, Invalid> {
    FieldName::new(name).ok_or_else(|| Invalid::new(place, "expected the name of a field"))
}

/// A field of a message that the gateway frames itself.
fn framing_is_ours(place: String, name: &str) -> Result<FieldName, Invalid> {
    let framing = ["content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer"];
    if framing.iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return Err(Invalid::new(place, format!("{name} belongs to a connection: the gateway sets it itself")));
    }
    field(place, name)
}

/// A field of a request to the service.
fn own_field(place: String, name: &str) -> Result<FieldName, Invalid> {
    if name.eq_ignore_ascii_case("host") {
        return Err(Invalid::new(place, "the Host is that of uri; the client's is in X-Forwarded-Host"));
    }
    if name.eq_ignore_ascii_case("expect") {
        return Err(Invalid::new(place, "Expect belongs to a connection: the gateway sets it itself"));
    }
    framing_is_ours(place, name)
}

impl Remember {
    fn key(&self) -> Result<Box<[Template]>, Invalid> {
        let part = |(at, text): (usize, &String)| {
            Template::parse_lenient(text, false)
                .map_err(|error| Invalid::new(format!("remember.key[{at}]"), error.to_string()))
        };
        self.key.iter().enumerate().map(part).collect()
    }
}

type Answer = Result<CalloutResponse, CalloutError>;

/// Answers of the service.
#[derive(Debug)]
struct Memory {
    answers: Arc<Remembered<Answer>>,
    key: Box<[Template]>,
    ttl_ms: u64,
    refused_ttl_ms: u64,
}

impl Memory {
    fn new(remember: &Remember, key: Box<[Template]>, cx: &BuildCx<'_>) -> Self {
        // The same before and after a change that leaves the plugin as it is.
        let place = format!("forward-auth {} {}", cx.place, cx.conf.to_json());
        let answers = cx.states.get_or_create(&place, || Remembered::new(remember.max_entries, remember.max_bytes));
        Self { answers, key, ttl_ms: remember.ttl * 1000, refused_ttl_ms: remember.refused_ttl * 1000 }
    }

    async fn answer(&self, asking: &Asking, cx: &RequestCx<'_>, io: &dyn Io) -> Arc<Answer> {
        let mut key = Vec::new();
        for part in &self.key {
            let begin = key.len();
            part.render(cx.source(), &mut key);
            // Lengths keep apart what stands side by side.
            let len = key.len() - begin;
            key.extend_from_slice(&len.to_le_bytes());
        }
        let ask = || async {
            let answer = io.callout(asking.question(cx)).await;
            let ttl_ms = match &answer {
                Ok(answer) if answer.status() < 300 => self.ttl_ms,
                Ok(_) => self.refused_ttl_ms,
                Err(_) => 0,
            };
            let bytes = answer.as_ref().map_or(0, CalloutResponse::size);
            (answer, Keep { ttl_ms, bytes })
        };
        self.answers.get(&key, cx.now_ms(), ask).await
    }
}

/// An instance.
#[derive(Debug)]
struct Asking {
    remembered: Option<Memory>,
    service: Service,
    fields: Fields,
    posts: bool,
    timeout: Duration,
    degrades: bool,
    status_on_error: u16,
}

static FORWARDED: LazyLock<[FieldName; 5]> = LazyLock::new(|| {
    ["X-Forwarded-Proto", "X-Forwarded-Method", "X-Forwarded-Host", "X-Forwarded-Uri", "X-Forwarded-For"]
        .map(FieldName::constant)
});
static CONTENT_ENCODING: LazyLock<FieldName> = LazyLock::new(|| FieldName::constant("Content-Encoding"));
static CONTENT_TYPE: LazyLock<FieldName> = LazyLock::new(|| FieldName::constant("Content-Type"));

impl Plugin for Asking {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.posts && cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let answer = match &self.remembered {
                Some(memory) => memory.answer(self, cx, io).await,
                None => Arc::new(io.callout(self.question(cx)).await),
            };
            match &*answer {
                Ok(answer) if answer.status() < 300 => self.pass(cx, answer),
                Ok(answer) => self.refuse(cx, answer),
                Err(CalloutError::Busy) => cx.fail(503, "forward-auth: too many callouts under way"),
                Err(_) if self.degrades => Flow::Continue,
                Err(_) if self.status_on_error < 400 => cx.reply(self.status_on_error).done(),
                Err(_) => cx.fail(self.status_on_error, "forward-auth: no answer from the service"),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A callout ends before, by its own timeout, and so does that of another that is waited for.
        Some(2 * self.timeout + Duration::from_secs(5))
    }
}

impl Asking {
    fn question(&self, cx: &RequestCx<'_>) -> Callout {
        let method = if self.posts { Method::Post } else { Method::Get };
        let mut callout = self.service.callout(method);
        callout.set_timeout(self.timeout);
        let mut value = Vec::new();
        let request = cx.request();
        request.write_request_uri(&mut value);
        let proto: &[u8] = if cx.client().https { b"https" } else { b"http" };
        let told = [proto, request.method_bytes(), request.host(), &value, cx.client().addr_text.as_bytes()];
        for (name, value) in FORWARDED.iter().zip(told) {
            callout.add_field(name, value);
        }
        for (name, template) in &self.fields.extra {
            value.clear();
            template.render(cx.source(), &mut value);
            callout.set_field(name, &value);
        }
        for name in &self.fields.from_request {
            if !callout.has_field(name) {
                let values = request.head.fields.all(request.buffer.bytes(), name);
                values.for_each(|value| callout.add_field(name, value));
            }
        }
        if self.posts {
            if let Some(coding) = request.field(&CONTENT_ENCODING).filter(|_| !callout.has_field(&CONTENT_ENCODING)) {
                callout.add_field(&CONTENT_ENCODING, coding);
            }
            callout.set_body(request.body().unwrap_or_default());
        }
        callout
    }

    /// The service lets the request pass.
    fn pass(&self, cx: &mut RequestCx<'_>, answer: &CalloutResponse) -> Flow {
        if let Some(name) = &self.fields.consumer {
            let Some(consumer) = answer.field(name).filter(|name| !name.is_empty()) else {
                return cx.reply(403).body(b"consumer header missing in auth response").done();
            };
            let tables = cx.tables();
            let found = std::str::from_utf8(consumer).ok().and_then(|name| tables?.consumers.find(name));
            let Some(consumer) = found else { return cx.reply(403).body(b"consumer not found").done() };
            cx.set_consumer(ConsumerMatch { consumer, credential: None });
        }
        for name in &self.fields.to_upstream {
            cx.request_mut().remove_field(name);
            answer.all(name).for_each(|value| cx.request_mut().add_field(name, value));
        }
        Flow::Continue
    }

    /// The service refuses the request: its answer is the client's.
    fn refuse(&self, cx: &mut RequestCx<'_>, answer: &CalloutResponse) -> Flow {
        let mut reply = cx.reply(answer.status()).body(answer.body());
        let mut has_type = answer.body().is_empty();
        for name in &self.fields.to_client {
            for value in answer.all(name) {
                has_type |= name.text().eq_ignore_ascii_case(CONTENT_TYPE.text());
                reply = reply.named(name, value);
            }
        }
        if !has_type {
            reply = reply.field("Content-Type", b"text/plain; charset=utf-8");
        }
        reply.done()
    }
}
