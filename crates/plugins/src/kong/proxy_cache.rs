//! Kong's `proxy-cache`: responses kept in memory, shared by all workers, or in Redis, shared by all gateways.

pub(super) mod entries;
mod remote;

use std::sync::Arc;

use aws_lc_rs::digest;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Flow, HookCx, Invalid, Io, LocalFuture, Origin, PerRequest, Phases, Plugin,
    RequestCx, Response, ResponseCx,
};
use weir_wire::name::FieldName;

use super::arguments::Arguments;
use super::body;
use super::consumer::id_of_consumer;
use super::redis::{self, RedisFields};
use crate::cache::directives::Directives;
use crate::cache::freshness::Lifetime;
use crate::cache::zone::{Collected, Stored, Zone};
use crate::hex;
use crate::traffic::redis::Redis;

/// The definition.
#[derive(Debug)]
pub(crate) struct ProxyCache;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Statuses of responses that are kept.
    #[schemars(length(min = 1))]
    response_code: Vec<u16>,
    /// Methods of requests that are answered from the cache.
    request_method: Vec<String>,
    /// Media types of responses that are kept, with their parameters.
    content_type: Vec<String>,
    /// Seconds for which a response is kept.
    #[schemars(range(min = 1))]
    cache_ttl: f64,
    /// Obeys `Cache-Control` of requests and responses.
    cache_control: bool,
    /// Seconds for which responses are stored, in Kong; they are stored as long as they may be used here.
    #[serde(rename = "storage_ttl")]
    _storage_ttl: Option<f64>,
    /// Compares paths without regard to case.
    ignore_uri_case: bool,
    /// Query arguments by which responses differ; without it all of them.
    vary_query_params: Option<Vec<String>>,
    /// Headers by which responses differ.
    vary_headers: Option<Vec<String>>,
    /// Place of responses: the memory of this process, or (beyond Kong's open plugin) a Redis for all gateways.
    strategy: Strategy,
    /// Headers that tell clients of the cache.
    response_headers: Shown,
    /// The memory.
    memory: Memory,
    #[serde(flatten)]
    redis: RedisFields,
}

/// Place of responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Strategy {
    Memory,
    Redis,
}

/// Headers that tell clients of the cache.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Shown {
    /// Seconds since a response was kept.
    age: bool,
    /// The outcome of the look-up.
    #[serde(rename = "X-Cache-Status")]
    status: bool,
    /// The key.
    #[serde(rename = "X-Cache-Key")]
    key: bool,
}

impl Default for Shown {
    fn default() -> Self {
        Self { age: true, status: true, key: true }
    }
}

/// The memory.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Memory {
    /// Name of the memory: plugins with the same name share one.
    dictionary_name: String,
}

impl Default for Memory {
    fn default() -> Self {
        Self { dictionary_name: "kong_db_cache".into() }
    }
}

impl Default for Conf {
    fn default() -> Self {
        let texts = |texts: [&str; 2]| texts.map(str::to_owned).to_vec();
        Self {
            response_code: vec![200, 301, 404],
            request_method: texts(["GET", "HEAD"]),
            content_type: texts(["text/plain", "application/json"]),
            cache_ttl: 300.0,
            cache_control: false,
            _storage_ttl: None,
            ignore_uri_case: false,
            vary_query_params: None,
            vary_headers: None,
            strategy: Strategy::Memory,
            response_headers: Shown::default(),
            memory: Memory::default(),
            redis: RedisFields::default(),
        }
    }
}

impl Define for ProxyCache {
    const NAME: &'static str = "proxy-cache";
    const PRIORITY: i32 = 100;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE).and(Phases::BODY);
    const DOC: &'static str = "Keeps responses, and answers further requests with them.";
    const EXAMPLE: &'static str = "{strategy: memory, content_type: [application/json]}\n";
    const ENCRYPTED: &'static [&'static str] = redis::ENCRYPTED;

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let remote = match conf.strategy {
            Strategy::Memory => None,
            Strategy::Redis => Some(cx.ok(conf.redis.clone().server("strategy redis"))?),
        };
        for (at, method) in conf.request_method.iter().enumerate() {
            if !["GET", "HEAD", "POST", "PATCH", "PUT"].contains(&method.as_str()) {
                cx.say([Invalid::new(format!("request_method[{at}]"), "expected GET, HEAD, POST, PATCH or PUT")]);
            }
            if !matches!(method.as_str(), "GET" | "HEAD") {
                let text =
                    "the body of a request is no part of the key: two requests with other bodies get one response";
                cx.warn(format!("request_method[{at}]"), text);
            }
        }
        let sorted = |names: Option<Vec<String>>| {
            let mut names = names.unwrap_or_default();
            names.sort_unstable();
            names
        };
        let names = sorted(conf.vary_headers)
            .into_iter()
            .map(|name| FieldName::new(&name).ok_or_else(|| Invalid::new("vary_headers", "expected names of headers")));
        let vary_headers = cx.ok(names.collect::<Result<Vec<_>, _>>())?;
        let vary_arguments = conf.vary_query_params.map(|names| sorted(Some(names)));
        let content_types = conf.content_type.iter().map(|kind| parts_of(kind.as_bytes())).collect();
        let name = FieldName::constant;
        Some(Compiled::build(move |build| {
            let state = format!("kong proxy-cache {}", conf.memory.dictionary_name);
            let zone = build.states.get_or_create(&state, || Zone::new(ROOM));
            // A request that waits for Redis goes on without it before long.
            let remote = remote.map(|server| server.connect(true, build)).transpose()?;
            match &remote {
                Some(redis) => entries::add_redis(redis.settings()),
                None => entries::add_zone(&zone),
            }
            Ok(Cached {
                zone,
                remote,
                statuses: conf.response_code,
                methods: conf.request_method,
                content_types,
                ttl: conf.cache_ttl as u64,
                obeys: conf.cache_control,
                ignores_case: conf.ignore_uri_case,
                vary_headers,
                vary_arguments,
                shown: conf.response_headers,
                fields: Fields {
                    status: name("X-Cache-Status"),
                    key: name("X-Cache-Key"),
                    age: name("age"),
                    control: name("Cache-Control"),
                },
                asked: PerRequest::new(),
            })
        }))
    }
}

/// The media type of a response without the charset that Kong adds behind all plugins.
fn told_type(response: &Response) -> Option<&[u8]> {
    let kind = response.field_str("content-type")?;
    let received = response.head.fields.received(response.buffer.bytes(), b"content-type");
    Some(received.filter(|received| kind.strip_suffix(b"; charset=UTF-8") == Some(*received)).unwrap_or(kind))
}

/// The parts of a media type: itself and its parameters in the order of names, all in lower case.
fn parts_of(kind: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = kind.split(|b| *b == b';').map(|part| weir_wire::trim_ows(part).to_ascii_lowercase());
    let mut all: Vec<Vec<u8>> = parts.next().into_iter().collect();
    let mut parameters: Vec<Vec<u8>> = parts.filter(|part| !part.is_empty()).collect();
    parameters.sort_unstable();
    all.extend(parameters);
    all
}

/// Names of fields.
#[derive(Debug)]
struct Fields {
    status: FieldName,
    key: FieldName,
    age: FieldName,
    control: FieldName,
}

/// An instance.
#[derive(Debug)]
struct Cached {
    /// Responses; of those in Redis, the ones that are being collected.
    zone: Arc<Zone>,
    remote: Option<Redis>,
    statuses: Vec<u16>,
    methods: Vec<String>,
    content_types: Vec<Vec<Vec<u8>>>,
    /// Seconds.
    ttl: u64,
    obeys: bool,
    ignores_case: bool,
    vary_headers: Vec<FieldName>,
    vary_arguments: Option<Vec<String>>,
    shown: Shown,
    fields: Fields,
    asked: PerRequest<Asked>,
}

/// A request whose response may be kept.
#[derive(Debug)]
struct Asked {
    key: [u8; 32],
    /// The response as far as it has come; `None`: it is not kept.
    kept: Option<(Stored, Collected)>,
}

/// Longest body that is kept.
const MOST_BODY: usize = 1 << 20;
/// Room of a memory.
const ROOM: usize = 64 << 20;

impl Plugin for Cached {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let control = self.control_of(cx);
        let method = cx.request().method_bytes();
        let is_cacheable = self.methods.iter().any(|known| known.as_bytes() == method);
        let refuses =
            control.no_store || control.no_cache || self.obeys && cx.request().field_str("authorization").is_some();
        if !is_cacheable || refuses {
            self.tell(cx, "Bypass");
            return Flow::Continue;
        }
        let key = self.key(cx);
        if self.shown.key {
            cx.set_response_field(&self.fields.key, |out| out.extend_from_slice(hex::encode(&key).as_bytes()));
        }
        if self.remote.is_some() {
            self.asked.put(cx, Asked { key, kept: None });
            return Flow::Suspend;
        }
        let found = self.zone.find(&key, |_, _| {});
        self.decide(cx, key, found.as_deref(), &control)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let (Some(remote), Some(Asked { key, .. })) = (&self.remote, self.asked.take(cx)) else {
                return Flow::Continue;
            };
            match remote::find(remote, &hex::encode(&key)).await {
                Ok(found) => {
                    let control = self.control_of(cx);
                    self.decide(cx, key, found.as_ref(), &control)
                }
                // The failure is logged already.
                Err(_) => {
                    self.tell(cx, "Bypass");
                    Flow::Continue
                }
            }
        })
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        if self.asked.get(cx).is_none() {
            return Flow::Continue;
        }
        let ttl = self.ttl_of(cx).filter(|_| cx.response().origin == Origin::Upstream);
        let Some(ttl) = ttl else {
            if self.shown.status {
                cx.set_field(&self.fields.status, b"Bypass");
            }
            return Flow::Continue;
        };
        let response = cx.response();
        let mut stored = Stored::new(response.status(), whole_seconds(cx.unix_ms()), 0, ttl.saturating_mul(1000));
        for (name, value) in response.head.fields.iter(response.buffer.bytes()) {
            if is_kept(name) {
                stored.fields.push((name.into(), value.into()));
            }
        }
        if let Some(asked) = self.asked.get_mut(cx) {
            asked.kept = Some((stored, Collected::new(&self.zone)));
        }
        cx.filter_body(false);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        let Some(asked) = self.asked.get_mut(cx) else { return Flow::Continue };
        let Some((_, body)) = &mut asked.kept else { return Flow::Continue };
        if !body.add(piece, MOST_BODY) {
            asked.kept = None;
            return Flow::Continue;
        }
        if last && let Some((mut stored, mut body)) = asked.kept.take() {
            stored.body = body.take();
            match &self.remote {
                Some(remote) => remote::store(remote, &hex::encode(&asked.key), &stored, stored.lifetime_ms / 1000),
                None => self.zone.store(&asked.key, &[], b"", stored),
            }
        }
        Flow::Continue
    }
}

impl Cached {
    /// Answers with what was found, or lets the request go on, whose response may be kept.
    fn decide(&self, cx: &mut RequestCx<'_>, key: [u8; 32], found: Option<&Stored>, control: &Directives) -> Flow {
        let now_ms = whole_seconds(cx.unix_ms());
        let status = match found {
            None if control.only_if_cached => {
                return body::error(cx, 504, "The upstream server is timing out", &[]);
            }
            None => "Miss",
            Some(stored) if self.is_fresh(stored, control, now_ms) => return self.answer(cx, stored, now_ms),
            Some(_) => "Refresh",
        };
        self.tell(cx, status);
        self.asked.put(cx, Asked { key, kept: None });
        Flow::Continue
    }

    fn tell(&self, cx: &mut RequestCx<'_>, status: &str) {
        if self.shown.status {
            cx.set_response_field(&self.fields.status, |out| out.extend_from_slice(status.as_bytes()));
        }
    }

    /// The directives of a request, where they are obeyed.
    fn control_of(&self, cx: &RequestCx<'_>) -> Directives {
        let request = cx.request();
        let values = request.head.fields.all(request.buffer.bytes(), &self.fields.control);
        if self.obeys { Directives::read(values) } else { Directives::default() }
    }

    /// True for a response that the request takes.
    fn is_fresh(&self, stored: &Stored, control: &Directives, now_ms: u64) -> bool {
        let (age, ttl) = (stored.age_ms(now_ms) / 1000, stored.lifetime_ms / 1000);
        if !self.obeys {
            return age <= self.ttl;
        }
        control.max_age.is_none_or(|most| age <= most)
            && control.min_fresh.is_none_or(|least| ttl.saturating_sub(age) >= least)
            && age <= ttl.saturating_add(control.max_stale.unwrap_or(0))
    }

    fn answer(&self, cx: &mut RequestCx<'_>, stored: &Stored, now_ms: u64) -> Flow {
        self.tell(cx, "Hit");
        let mut answer = cx.reply(stored.status);
        for (name, value) in &stored.fields {
            answer = answer.named_bytes(name, value);
        }
        if self.shown.age {
            let age = (stored.age_ms(now_ms) / 1000).to_string();
            answer = answer.named(&self.fields.age, age.as_bytes());
        }
        answer.body(&stored.body).done()
    }

    /// Seconds for which a response may be used; `None` for one that is not kept.
    fn ttl_of(&self, cx: &ResponseCx<'_>) -> Option<u64> {
        let response = cx.response();
        let kind = parts_of(told_type(response)?);
        if !self.statuses.contains(&response.status()) || !self.content_types.contains(&kind) {
            return None;
        }
        if !self.obeys {
            return Some(self.ttl);
        }
        response.field_str("cache-control")?;
        let directives = Directives::read(response.head.fields.all(response.buffer.bytes(), &self.fields.control));
        if directives.private || directives.no_store || directives.no_cache {
            return None;
        }
        // Kong counts the time of an `Expires` from now, and not from the `Date` of the response.
        let lifetime = Lifetime { directives, expires: response.field_str("expires"), date: None };
        lifetime.seconds(cx.unix_ms() / 1000).filter(|ttl| *ttl > 0)
    }

    /// The key of a request: who asks and where, method, path, query and headers.
    fn key(&self, cx: &RequestCx<'_>) -> [u8; 32] {
        let mut text = Vec::with_capacity(256);
        let route = cx.view().route().map(|route| route.id.text.as_bytes());
        match (id_of_consumer(cx), route) {
            (Some(consumer), Some(route)) => {
                text.extend_from_slice(consumer);
                text.push(b':');
                text.extend_from_slice(route);
            }
            (_, Some(route)) => text.extend_from_slice(route),
            _ => text.extend_from_slice(b"default"),
        }
        text.push(b'|');
        text.extend_from_slice(cx.request().method_bytes());
        text.push(b'|');
        let begin = text.len();
        text.extend_from_slice(cx.request().encoded_path());
        if self.ignores_case {
            text.get_mut(begin..).unwrap_or_default().make_ascii_lowercase();
        }
        text.push(b'|');
        let mut arguments = Arguments::parse(cx.request().query().unwrap_or_default());
        if let Some(names) = &self.vary_arguments {
            arguments.keep_only(|name| names.iter().any(|known| known.as_bytes() == name));
        }
        arguments.write(&mut text);
        text.push(b'|');
        let request = cx.request();
        for name in &self.vary_headers {
            text.extend_from_slice(name.text());
            for value in request.head.fields.all(request.buffer.bytes(), name) {
                // No value has a line end, so two lists of values never make one text.
                text.push(b'\n');
                text.extend_from_slice(value);
            }
            text.push(b'\n');
        }
        let mut key = [0; 32];
        key.copy_from_slice(digest::digest(&digest::SHA256, &text).as_ref());
        key
    }
}

/// Kong counts ages in seconds.
const fn whole_seconds(ms: u64) -> u64 {
    ms / 1000 * 1000
}

/// False for fields of one message, and for those that the gateway tells anew.
fn is_kept(name: &[u8]) -> bool {
    const OWN: [&str; 19] = [
        "age",
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "x-cache-key",
        "x-cache-status",
        "x-kong-proxy-latency",
        "x-kong-request-id",
        "x-kong-response-latency",
        "x-kong-upstream-latency",
    ];
    !OWN.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}
