//! `cache`: answers of upstreams that are kept in memory (`cache_options`), shared by all workers.

mod kept;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use aws_lc_rs::digest;
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Flow, HookCx, Invalid, Origin, PerRequest, Phases, Plugin, RequestCx,
    ResponseCx,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::entries::{Entries, entries};
use super::patterns;
use super::shared::{self, Known, ListenPath};
use crate::cache::zone::{Collected, Stored};
pub use kept::Caches;

/// The definition.
#[derive(Debug)]
pub(crate) struct Cache;

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Id of the API.
    api_id: String,
    /// The listen path.
    listen_path: String,
    /// Seconds for which an answer is used; 0: until it makes room for others.
    cache_timeout: u64,
    /// Keeps the answers to all requests of the methods GET, HEAD and OPTIONS.
    cache_all_safe_requests: bool,
    /// Statuses of answers that are kept; none: all.
    cache_response_codes: Vec<u16>,
    /// Follows what the upstream says in `x-tyk-cache-action-set-ttl`.
    enable_upstream_cache_control: bool,
    /// Another name of that header.
    cache_control_ttl_header: String,
    /// Headers by which answers differ.
    cache_by_headers: Vec<String>,
    /// The versions, in the order of those of `api`.
    versions: Vec<VersionConf>,
}

/// A version.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct VersionConf {
    /// Paths whose answers to GET, HEAD and OPTIONS are kept.
    cache: Vec<String>,
    /// Paths whose answers are kept, with rules of their own.
    advance_cache_config: Vec<EntryConf>,
    /// Compares paths without regard to case.
    ignore_endpoint_case: bool,
}

/// A path whose answers are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct EntryConf {
    path: String,
    method: String,
    /// Part of the body that tells a request from others, as a regular expression; empty: the whole body.
    cache_key_regex: String,
    /// Statuses; none: those of the API.
    cache_response_codes: Vec<u16>,
    /// Seconds; 0: those of the API.
    timeout: u64,
}

/// The rules of a path, compiled.
#[derive(Debug)]
struct Entry {
    /// True for an entry of methods that change nothing.
    is_safe_only: bool,
    key: Option<Regex>,
    statuses: Box<[u16]>,
    timeout: u64,
}

impl Define for Cache {
    const NAME: &'static str = "cache";
    const PRIORITY: i32 = 800;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE).and(Phases::BODY);
    const DOC: &'static str = "Keeps answers in memory, and answers further requests with them.";
    const EXAMPLE: &'static str = "{api_id: a, listen_path: /a/, cache_timeout: 60, versions: [{cache: [/x]}]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let listen = ListenPath::compile(&conf.listen_path).map_err(|error| Invalid::new("listen_path", error));
        let listen = cx.ok(listen)?;
        let mut versions = Vec::with_capacity(conf.versions.len());
        for (at, version) in conf.versions.into_iter().enumerate() {
            versions.push(cx.ok(compile_version(version, &format!("versions[{at}]")))?);
        }
        let named = |name: &String| {
            FieldName::new(name)
                .ok_or_else(|| Invalid::new("cache_by_headers", format!("'{name}' is no name of a header")))
        };
        let headers = cx.ok(conf.cache_by_headers.iter().map(named).collect::<Result<Box<[_]>, _>>())?;
        let ttl_header = match conf.cache_control_ttl_header.as_str() {
            "" => "x-tyk-cache-action-set-ttl",
            own => own,
        };
        let ttl_header: Box<str> = ttl_header.to_ascii_lowercase().into();
        Some(Compiled::build(move |build| {
            Ok(Cached {
                place: shared::place(build, &conf.api_id),
                caches: Caches::of(build.states),
                epoch: Caches::of(build.states).epoch(&conf.api_id),
                api: conf.api_id.into(),
                listen,
                timeout: conf.cache_timeout,
                takes_all: conf.cache_all_safe_requests,
                statuses: conf.cache_response_codes.into(),
                ttl_header: conf.enable_upstream_cache_control.then_some(ttl_header),
                headers,
                versions: versions.into(),
                asked: PerRequest::new(),
                told: FieldName::constant("X-Tyk-Cached-Response"),
            })
        }))
    }
}

fn compile_version(conf: VersionConf, at: &str) -> Result<Entries<Entry>, Invalid> {
    let case = conf.ignore_endpoint_case;
    let own = entries(
        &format!("{at}.advance_cache_config"),
        conf.advance_cache_config,
        case,
        |entry| (entry.path.clone(), entry.method.clone()),
        |entry, field| {
            let key = Some(entry.cache_key_regex).filter(|key| !key.is_empty());
            let key = key.map(|key| patterns::compile(&key, false)).transpose();
            let key = key.map_err(|error| Invalid::new(format!("{field}.cache_key_regex"), error))?;
            let (statuses, timeout) = (entry.cache_response_codes.into(), entry.timeout);
            Ok(Entry { is_safe_only: entry.method.is_empty(), key, statuses, timeout })
        },
    )?;
    let plain = entries(
        &format!("{at}.cache"),
        conf.cache,
        case,
        |path| (path.clone(), String::new()),
        |_, _| Ok(Entry { is_safe_only: true, key: None, statuses: Box::default(), timeout: 0 }),
    )?;
    Ok(Entries(own.0.into_iter().chain(plain.0).collect()))
}

/// An instance.
#[derive(Debug)]
struct Cached {
    place: Arc<PerRequest<Known>>,
    caches: Arc<Caches>,
    /// Counts up when all answers of the API are to be forgotten.
    epoch: Arc<AtomicU64>,
    api: Box<str>,
    listen: ListenPath,
    /// Seconds.
    timeout: u64,
    takes_all: bool,
    statuses: Box<[u16]>,
    /// Name of the header with the seconds of the upstream.
    ttl_header: Option<Box<str>>,
    headers: Box<[FieldName]>,
    versions: Box<[Entries<Entry>]>,
    asked: PerRequest<Asked>,
    told: FieldName,
}

/// A request whose answer may be kept.
struct Asked {
    key: [u8; 32],
    /// Seconds for which it is used.
    timeout: u64,
    /// Number of the entry among those of its version.
    entry: Option<(usize, usize)>,
    /// The answer as far as it has come.
    answer: Option<(Stored, Collected)>,
}

/// Milliseconds for which an answer is used that has no end of its own: a year.
const FOR_EVER_MS: u64 = 365 * 86_400_000;
/// Longest body that is kept.
const MOST_BODY: usize = 1 << 20;

impl Plugin for Cached {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(known) = self.place.get(cx) else { return Flow::Continue };
        let (number, skipped) = (known.version, known.skipped);
        let method = cx.request().method();
        let is_safe = matches!(method, Method::Get | Method::Head | Method::Options);
        let Some(version) = self.versions.get(number) else { return Flow::Continue };
        let mut rest = cx.take_scratch();
        self.listen.write_rest(cx.request(), &mut rest);
        let path = rest.get(skipped..).unwrap_or_default();
        let found = version.find_numbered(cx.request().method_bytes(), path);
        let found = found.filter(|(_, entry)| is_safe || !entry.is_safe_only);
        cx.put_scratch(rest);
        if found.is_none() && !(self.takes_all && is_safe) {
            return Flow::Continue;
        }
        if !is_safe && cx.body().is_none() {
            return Flow::AwaitBody;
        }
        let entry = found.map(|(_, entry)| entry);
        let Some(key) = self.key(cx, entry.and_then(|entry| entry.key.as_ref())) else { return Flow::Continue };
        let now = cx.now_ms();
        let stored = self.caches.zone.find(&key, |_, _| {});
        if let Some(stored) = stored.filter(|stored| stored.age_ms(now) < stored.lifetime_ms) {
            if let Some(known) = self.place.get_mut(cx) {
                known.is_cached = true;
            }
            return self.answer(cx, &stored);
        }
        let timeout = entry.map_or(0, |entry| entry.timeout);
        let timeout = if timeout == 0 { self.timeout } else { timeout };
        let entry = found.map(|(at, _)| (number, at));
        self.asked.put(cx, Asked { key, timeout, entry, answer: None });
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let Some(asked) = self.asked.get(cx) else { return Flow::Continue };
        let own = asked.entry.and_then(|(version, at)| self.versions.get(version)?.0.get(at));
        let own = own.map(|(_, entry)| &entry.statuses).filter(|statuses| !statuses.is_empty());
        let statuses = own.unwrap_or(&self.statuses);
        let status = cx.status();
        let is_kept = statuses.is_empty() || statuses.contains(&status);
        if cx.response().origin != Origin::Upstream || !is_kept || status < 200 {
            return Flow::Continue;
        }
        let said = self.ttl_header.as_ref().and_then(|name| cx.response().field_str(name));
        let said = said.and_then(|text| std::str::from_utf8(text).ok()?.trim().parse::<u64>().ok());
        let seconds = said.unwrap_or(asked.timeout);
        let lifetime = if seconds == 0 { FOR_EVER_MS } else { seconds.saturating_mul(1000).min(FOR_EVER_MS) };
        let now = cx.view().now() / 1000;
        let mut stored = Stored::new(status, now, 0, lifetime);
        let response = cx.response();
        for (name, value) in response.head.fields.iter(response.buffer.bytes()) {
            if is_stored(name) {
                stored.fields.push((name.into(), value.into()));
            }
        }
        let collected = Collected::new(&self.caches.zone);
        if let Some(asked) = self.asked.get_mut(cx) {
            asked.answer = Some((stored, collected));
        }
        cx.filter_body(false);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        let Some(asked) = self.asked.get_mut(cx) else { return Flow::Continue };
        let Some((_, collected)) = &mut asked.answer else { return Flow::Continue };
        if !collected.add(piece, MOST_BODY) {
            asked.answer = None;
            return Flow::Continue;
        }
        if last && let Some((mut stored, mut collected)) = asked.answer.take() {
            stored.body = collected.take();
            self.caches.zone.store(&asked.key, &[], b"", stored);
        }
        Flow::Continue
    }
}

impl Cached {
    fn answer(&self, cx: &mut RequestCx<'_>, stored: &Stored) -> Flow {
        let mut answer = cx.reply(stored.status);
        for (name, value) in &stored.fields {
            answer = answer.named_bytes(name, value);
        }
        answer.named(&self.told, b"1").body(&stored.body).done()
    }

    /// The key of a request: the API, who asks, method, target, headers and body. `None`: its answer is not kept, because
    /// the body has not what tells it from others.
    fn key(&self, cx: &RequestCx<'_>, of_body: Option<&Regex>) -> Option<[u8; 32]> {
        let mut text = Vec::with_capacity(256);
        let mut part = |bytes: &[u8]| {
            // With its length in front, so that no two lists of parts make one text.
            text.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            text.extend_from_slice(bytes);
        };
        part(self.api.as_bytes());
        part(&self.epoch.load(Relaxed).to_le_bytes());
        let known = self.place.get(cx)?;
        match (&known.identity, &known.session) {
            (Some(name), _) => part(name.as_bytes()),
            (None, Some(session)) => part(session.name.as_bytes()),
            (None, None) => part(cx.client().addr_text.as_bytes()),
        }
        let request = cx.request();
        part(request.method_bytes());
        part(request.encoded_path());
        part(request.query().unwrap_or_default());
        // An answer in a coding is none for who does not take it.
        part(request.field_str("accept-encoding").unwrap_or_default());
        for name in &self.headers {
            part(request.field(name).unwrap_or_default());
        }
        if let Some(body) = cx.body() {
            match of_body {
                Some(regex) => part(regex.find(body)?.as_bytes()),
                None => part(body),
            }
        }
        let mut key = [0; 32];
        key.copy_from_slice(digest::digest(&digest::SHA256, &text).as_ref());
        Some(key)
    }
}

/// False for fields of one message, and for those that the gateway tells anew.
fn is_stored(name: &[u8]) -> bool {
    const OWN: [&str; 15] = [
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-connection",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-apisix-upstream-status",
        "x-weir-error",
    ];
    !OWN.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}
