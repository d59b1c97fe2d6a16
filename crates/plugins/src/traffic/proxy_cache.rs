//! `proxy-cache`: answers of upstreams are kept, and given to further requests.

mod content;
mod keeping;
mod loading;
mod refresh;
mod stale;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use tokio::sync::Semaphore;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_expr::{Template, Value, Variable};
use weir_plugin::{
    BodyCx, BuildCx, CompileCx, Compiled, Define, Flow, HookCx, Invalid, Io, LocalFuture, LogCx, Origin, PerRequest,
    Phases, Plugin, Request, RequestCx, ResponseCx,
};
use weir_wire::name::FieldName;

use crate::cache::directives::{Directives, Parts};
use crate::cache::disk::Disk;
use crate::cache::zone::{Fetching, Stored, Zone};
use keeping::{Asked, Came, Keeping, PendingAnswer};
use loading::{Loading, Whole};
use refresh::Refresh;

/// Room of a zone for which `plugin_metadata` has no size: that of APISIX's `memory_cache`.
const ZONE_BYTES: usize = 50 << 20;

/// The beginning of keys of answers to `POST`.
const OF_POST: &[u8] = b"POST\x01";

/// The definition.
#[derive(Debug)]
pub(crate) struct ProxyCache;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The place of answers. `memory`: the memory of this process. `disk`: the folder of the zone in the settings
    /// (`cache_zones`); answers outlive the process. A zone without a folder is in memory, of which a warning is made.
    pub(super) cache_strategy: Strategy,
    /// The zone: all places that name the same zone share its room, and answers under the same key.
    #[schemars(length(min = 1, max = 100))]
    pub(super) cache_zone: String,
    /// The texts and variables that the key of an answer is made of: requests in which all of it is the same get the same
    /// answer. `$request_method` cannot be one of them.
    #[schemars(length(min = 1))]
    cache_key: Vec<String>,
    /// Statuses of answers that are kept.
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)))]
    pub(super) cache_http_status: Vec<u16>,
    /// Methods of requests that are answered with what is kept. Answers to `HEAD` are not kept; such requests are answered with
    /// what was kept for `GET`.
    #[schemars(length(min = 1))]
    cache_method: Vec<CacheMethod>,
    /// Takes `Expires` and `Cache-Control` out of answers.
    hide_cache_headers: bool,
    /// Goes by `Cache-Control` of requests (`no-store`, `no-cache`, `max-age`, `max-stale`, `min-fresh`, `only-if-cached`), and by
    /// the lifetime that an answer tells: `s-maxage`, `max-age`, `Expires`; one that tells none is not kept.
    cache_control: bool,
    /// Texts and variables: where they come to anything but an empty text and `0`, a request is not answered with what is kept.
    #[schemars(length(min = 1))]
    cache_bypass: Option<Vec<String>>,
    /// The same: the answer is not kept.
    #[schemars(length(min = 1))]
    no_cache: Option<Vec<String>>,
    /// Seconds for which answers are kept without `cache_control`.
    #[schemars(range(min = 1))]
    pub(super) cache_ttl: u64,
    /// Seconds for which an answer that is too old stands in for one that fails: the upstream cannot be reached, does not
    /// answer in time, or answers with 500, 502, 503 or 504. With `cache_control` a `stale-if-error` of the answer counts in its
    /// place, and `must-revalidate` forbids it. An extension.
    #[schemars(range(max = 31536000))]
    stale_if_error: u64,
    /// Seconds for which an answer that is too old is given while a newer one is fetched beside it: no client waits for that. With
    /// `cache_control` a `stale-while-revalidate` of the answer counts in its place, and `must-revalidate` forbids it. Answers
    /// beyond `limits.callout_body` cannot be fetched so. An extension.
    #[schemars(range(max = 31536000))]
    stale_while_revalidate: u64,
    /// Name of the field of answers with their tags, such as `Cache-Tag`: texts with commas or blanks between them, 64 for each
    /// answer. A request with the method `PURGE` and this field makes the zone forget all answers with one of its tags. An
    /// extension.
    #[schemars(length(min = 1))]
    cache_tags: Option<String>,
    /// Lets one request fetch an answer that is not kept, and others with the same key wait for it. An extension, as nginx's
    /// `proxy_cache_lock`.
    cache_lock: bool,
    /// Seconds that a request waits for the answer of another; then it goes to the upstream itself.
    #[schemars(range(min = 1, max = 60))]
    cache_lock_timeout: u64,
    /// Keeps the answers of consumers apart, unless the key has one's name, group or credential in it.
    pub(super) consumer_isolation: bool,
    /// Keeps answers with `Set-Cookie` as well.
    pub(super) cache_set_cookie: bool,
    /// Bytes of the longest body that is kept.
    #[schemars(range(min = 1))]
    max_resp_body_size: usize,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            cache_strategy: Strategy::default(),
            cache_zone: "disk_cache_one".to_owned(),
            cache_key: vec!["$host".to_owned(), "$request_uri".to_owned()],
            cache_http_status: vec![200, 301, 404],
            cache_method: vec![CacheMethod::Get, CacheMethod::Head],
            hide_cache_headers: false,
            cache_control: false,
            cache_bypass: None,
            no_cache: None,
            cache_ttl: 300,
            stale_if_error: 0,
            stale_while_revalidate: 0,
            cache_tags: None,
            cache_lock: false,
            cache_lock_timeout: 5,
            consumer_isolation: true,
            cache_set_cookie: false,
            max_resp_body_size: 64 << 20,
        }
    }
}

/// The place of answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum Strategy {
    #[default]
    Disk,
    Memory,
}

/// A method whose answers may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
#[allow(missing_docs, reason = "methods of HTTP")]
pub(crate) enum CacheMethod {
    Get,
    Head,
    Post,
}

impl CacheMethod {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Get => b"GET",
            Self::Head => b"HEAD",
            Self::Post => b"POST",
        }
    }
}

/// `plugin_metadata` of the plugin. An extension: APISIX has sizes of zones in its `config.yaml`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Metadata {
    /// Bytes of zones by their names; a zone that is not here has 50 MiB.
    zones: BTreeMap<String, usize>,
}

impl Define for ProxyCache {
    const NAME: &'static str = "proxy-cache";
    const PRIORITY: i32 = 1085;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);
    const DOC: &'static str = "\
Keeps answers of the upstream and gives them to further requests with the same key. The field `Apisix-Cache-Status` tells \
what happened: `HIT`, `MISS`, `EXPIRED`, `STALE` (kept, and too old for this request, or given all the same by \
`stale_if_error` or `stale_while_revalidate`) or `BYPASS`. An answer out of the cache \
has an `Age`, and is a 304 where the client's `If-None-Match` names its `ETag`.

Answers with `Cache-Control: private`, `no-store` or `no-cache`, with `Vary: *` or with `Set-Cookie` are not kept, and neither \
are those to requests with `Authorization` unless a consumer or the key tells callers apart, or the answer says that it may be \
shared (`public`, `s-maxage`, `must-revalidate`; RFC 9111 section 3.5). `Vary` keeps answers apart by the fields that it names, \
64 for each key. Longer bodies than `max_resp_body_size` pass without being kept.

A request with the method `PURGE` makes the cache forget its key, or with the field `cache_tags` what has one of its tags: 200, \
or 404 where there was nothing. So does a request with a \
method that changes something (`POST`, `PUT`, `PATCH`, `DELETE`) once the upstream has answered it below 400.

With `stale_while_revalidate` the newer answer is asked for once for each key, by a request of the gateway's own: `GET` with the \
fields of the client's request, to the upstream of the route or the one that a plugin before this has chosen. No other plugin \
sees it, so that it is counted by no limit and written to no access log. One that fails is tried again after a second.

A zone holds so many bytes (`plugin_metadata`, or `memory_size` of the zone in the settings); answers that nobody has asked \
for lately make room for others.

```yaml
plugin_metadata:
  - id: proxy-cache
    zones: {memory_cache: 268435456}
```

With `cache_strategy: disk` bodies are in files, up to `disk_size`, and keys and fields in memory. So are bodies on their way: one for \
which there is no memory is not kept, or comes from the upstream. Threads of their own read and write, so that no request waits for \
those of others; the first of several that ask for the same body reads it. The first request after a restart finds what is there. A zone whose folder cannot be \
used refuses the configuration.

```yaml
# The settings
cache_zones:
  - {name: disk_cache_one, disk_path: /var/cache/weir, disk_size: 10GiB, memory_size: 100MiB}
```";
    const EXAMPLE: &'static str = "\
cache_strategy: memory
cache_zone: memory_cache
cache_ttl: 60
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        weir_config::schema::read::<Metadata>(metadata).map(|_| ())
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let caching = caching(conf, cx)?;
        Some(Compiled::build(move |build| caching(build)))
    }
}

/// The building of the cache of a configuration.
pub(super) fn caching(
    conf: Conf,
    cx: &CompileCx<'_>,
) -> Option<impl FnOnce(&BuildCx<'_>) -> Result<Caching, Invalid> + Send + 'static> {
    if let Some(at) = conf.cache_key.iter().position(|part| part == "$request_method") {
        cx.say([Invalid::new(
            format!("cache_key[{at}]"),
            "answers of different methods cannot be told apart by a key",
        )]);
        return None;
    }
    let names_caller = |part: &String| {
        let identity = ["$consumer_name", "$consumer_group_id", "$remote_user", "$http_authorization"];
        identity.contains(&part.as_str())
    };
    let names_caller = conf.cache_key.iter().any(names_caller);
    let key = cx.ok(compile_all("cache_key", &conf.cache_key))?;
    let bypass = cx.ok(conf.cache_bypass.as_ref().map(|texts| compile_all("cache_bypass", texts)).transpose())?;
    let no_cache = cx.ok(conf.no_cache.as_ref().map(|texts| compile_all("no_cache", texts)).transpose())?;
    let tags = match &conf.cache_tags {
        Some(name) => {
            let name = FieldName::new(name).ok_or_else(|| Invalid::new("cache_tags", "expected the name of a field"));
            Some(cx.ok(name)?)
        }
        None => None,
    };
    Some(move |build: &BuildCx<'_>| {
        let metadata = build.metadata::<Metadata>()?;
        Ok(Caching {
            keeping: Arc::new(Keeping {
                zone: zone(&conf, metadata.zones.get(&conf.cache_zone).copied(), build)?,
                statuses: conf.cache_http_status.into(),
                obeys: conf.cache_control,
                unsaid_ms: None,
                ttl_ms: conf.cache_ttl * 1000,
                stale_if_error: conf.stale_if_error,
                stale_while_revalidate: conf.stale_while_revalidate,
                keeps_cookies: conf.cache_set_cookie,
                longest: conf.max_resp_body_size,
                tags,
            }),
            key,
            names_caller,
            isolates: conf.consumer_isolation && !names_caller,
            methods: conf.cache_method.into(),
            hides: conf.hide_cache_headers,
            bypass,
            no_cache,
            lock: conf.cache_lock.then(|| Duration::from_secs(conf.cache_lock_timeout)),
            waiting: PerRequest::new(),
            refreshing: PerRequest::new(),
            loading: PerRequest::new(),
            names: Names::default(),
            pending: PerRequest::new(),
        })
    })
}

/// The zone of a configuration.
fn zone(conf: &Conf, bytes: Option<usize>, build: &BuildCx<'_>) -> Result<Arc<Zone>, Invalid> {
    let name = &conf.cache_zone;
    let set = build.cache_zones.iter().find(|zone| zone.name == *name);
    let bytes = bytes.or(set.map(|zone| zone.memory_size.as_usize())).unwrap_or(ZONE_BYTES);
    let is_disk = conf.cache_strategy == Strategy::Disk;
    let Some(set) = set.filter(|zone| is_disk && !zone.disk_path.is_empty()) else {
        if is_disk {
            build
                .warn("cache_zone", format!("the zone {name} has no folder (cache_zones): answers are kept in memory"));
        }
        return Ok(build.states.get_or_create(&format!("cache zone {name} {bytes}"), || Zone::new(bytes)));
    };
    let most = set.disk_size.as_usize();
    let mut failed = None;
    let place = format!("cache zone {name} {bytes} {most} {}", set.disk_path);
    let zone = build.states.get_or_create(&place, || match Disk::open(Path::new(&set.disk_path), bytes) {
        Ok(disk) => Zone::on_disk(bytes, most, disk),
        Err(error) => {
            failed = Some(error);
            Zone::new(bytes)
        }
    });
    match failed {
        None => Ok(zone),
        Some(error) => {
            let text = format!("the folder {} of the zone {name} (cache_zones) cannot be used: {error}", set.disk_path);
            Err(Invalid::new("cache_zone", text))
        }
    }
}

fn compile_all(place: &str, texts: &[String]) -> Result<Box<[Template]>, Invalid> {
    let compile = |(at, text): (usize, &String)| {
        let template = Template::parse_lenient(text, false);
        template.map_err(|error| Invalid::new(format!("{place}[{at}]"), error.to_string()))
    };
    texts.iter().enumerate().map(compile).collect()
}

/// Names of fields.
#[derive(Debug)]
struct Names {
    status: FieldName,
    age: FieldName,
    cache_control: FieldName,
    expires: FieldName,
    authorization: FieldName,
    if_none_match: FieldName,
    /// Those that speak of one answer's content.
    of_content: [FieldName; stale::OF_CONTENT.len()],
}

impl Default for Names {
    fn default() -> Self {
        let name = FieldName::constant;
        Self {
            status: name("Apisix-Cache-Status"),
            age: name("Age"),
            cache_control: name("Cache-Control"),
            expires: name("Expires"),
            authorization: name("Authorization"),
            if_none_match: name("If-None-Match"),
            of_content: stale::OF_CONTENT.map(name),
        }
    }
}

/// An instance.
#[derive(Debug)]
pub(crate) struct Caching {
    keeping: Arc<Keeping>,
    key: Box<[Template]>,
    /// True if the key has something of the caller in it.
    names_caller: bool,
    /// True if the consumer's name is put ahead of the key.
    isolates: bool,
    methods: Box<[CacheMethod]>,
    hides: bool,
    bypass: Option<Box<[Template]>>,
    no_cache: Option<Box<[Template]>>,
    /// Longest time that a request waits for the answer of another; `None`: each fetches its own.
    lock: Option<Duration>,
    /// The end of a fetch that a request waits for.
    waiting: PerRequest<Arc<Semaphore>>,
    /// A newer answer that is to be fetched.
    refreshing: PerRequest<Refresh>,
    /// A body that is to be read from the disk.
    loading: PerRequest<Loading>,
    names: Names,
    pending: PerRequest<Pending>,
}

/// A request whose answer may be kept, or makes the cache forget.
#[derive(Debug)]
struct Pending {
    key: Vec<u8>,
    /// True if the request changes something at the upstream.
    changes: bool,
    /// The answer that stands in for one that fails.
    stale: Option<Whole>,
    /// Keeps others waiting.
    fetching: Option<Fetching>,
    answer: Option<PendingAnswer>,
}

impl Plugin for Caching {
    fn phases(&self, declared: Phases) -> Phases {
        if self.lock.is_some() { declared } else { declared.without(Phases::LOG) }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.look(cx, self.lock.is_some())
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            if let Some(refresh) = self.refreshing.take(cx) {
                let flow = self.refresh(cx, io, refresh);
                return self.load_all(cx, flow).await;
            }
            if self.loading.get(cx).is_some() {
                return self.load_all(cx, Flow::Suspend).await;
            }
            if let (Some(waiting), Some(limit)) = (self.waiting.take(cx), self.lock) {
                // A permit is never given: the semaphore is closed when the other has its answer, or has none.
                let _ = weir_runtime::timeout(limit, waiting.acquire()).await;
            }
            let flow = self.look(cx, false);
            self.load_all(cx, flow).await
        })
    }

    fn log(&self, cx: &LogCx<'_>) {
        // An exchange that was cut off leaves nobody waiting.
        self.pending.get(cx).and_then(|pending| pending.fetching.as_ref()).iter().for_each(|fetching| fetching.end());
    }

    fn wait_limit(&self) -> Option<Duration> {
        Some(self.lock? + Duration::from_secs(1))
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let status = cx.status();
        let is_upstreams = cx.response().origin == Origin::Upstream;
        let Some(pending) = self.pending.get(cx) else {
            self.hide(cx);
            return Flow::Continue;
        };
        if pending.changes {
            if is_upstreams && status < 400 {
                self.keeping.zone.purge(&pending.key);
            }
            return Flow::Continue;
        }
        if stale::has_failed(cx) && pending.stale.is_some() {
            if let Some(stale) = self.pending.take(cx).and_then(|pending| pending.stale) {
                self.stand_in(cx, &stale);
            }
            self.hide(cx);
            return Flow::Continue;
        }
        let answer = if is_upstreams { self.answer_to_keep(cx) } else { None };
        let keeps = answer.is_some();
        if let Some(pending) = self.pending.get_mut(cx) {
            pending.answer = answer;
            if !keeps {
                pending.fetching = None;
            }
        }
        if keeps {
            cx.filter_body(false);
        }
        self.hide(cx);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        let Some(pending) = self.pending.get_mut(cx) else { return Flow::Continue };
        let Some(answer) = &mut pending.answer else { return Flow::Continue };
        if !answer.body.add(piece, self.keeping.longest) {
            (pending.answer, pending.fetching) = (None, None);
            return Flow::Continue;
        }
        if last && let Some(PendingAnswer { mut stored, vary, values, mut body }) = pending.answer.take() {
            stored.body = body.take();
            self.keeping.zone.store(&pending.key, &vary, &values, stored);
            pending.fetching = None;
        }
        Flow::Continue
    }
}

impl Caching {
    /// Answers a request with what is kept, or lets it pass to the upstream; `may_wait` for another that fetches the answer.
    fn look(&self, cx: &mut RequestCx<'_>, may_wait: bool) -> Flow {
        let method = cx.request().method_bytes();
        if method == b"PURGE" {
            let request = cx.request();
            let tagged = self.keeping.tags.as_ref().filter(|name| request.field(name).is_some());
            let has_purged = match tagged {
                Some(name) => self.keeping.zone.purge_tags(tags(request.head.fields.all(request.buffer.bytes(), name))),
                None => [false, true].map(|posts| self.purge(&self.key_of(cx, posts))).contains(&true),
            };
            return cx.reply(if has_purged { 200 } else { 404 }).done();
        }
        if !self.methods.iter().any(|one| one.name() == method) {
            let changes = matches!(method, b"POST" | b"PUT" | b"PATCH" | b"DELETE");
            if changes {
                let key = self.key_of(cx, false);
                self.pending.put(cx, Pending { key, changes, stale: None, fetching: None, answer: None });
            }
            return self.pass(cx, b"MISS");
        }
        let posts = method == b"POST";
        let request = cx.request();
        let asked = Directives::read(request.head.fields.all(request.buffer.bytes(), &self.names.cache_control));
        if self.says_so(self.bypass.as_deref(), cx) || self.keeping.obeys && (asked.no_store || asked.no_cache) {
            return self.pass(cx, b"BYPASS");
        }
        let key = self.key_of(cx, posts);
        self.find(cx, key, &asked, may_wait)
    }

    /// Makes the cache forget a key; false where there was nothing.
    pub(super) fn purge(&self, key: &[u8]) -> bool {
        self.keeping.zone.purge(key)
    }

    /// Answers a request with what is kept under a key, or lets it pass to the upstream.
    pub(super) fn find(&self, cx: &mut RequestCx<'_>, key: Vec<u8>, asked: &Directives, may_wait: bool) -> Flow {
        if let Some(disk) = &self.keeping.zone.disk {
            disk.start(&self.keeping.zone);
        }
        let request = cx.request();
        let is_head = request.method_bytes() == b"HEAD";
        let found = self.keeping.zone.find(&key, |names, out| values_of(request, names, out));
        let state = match &found {
            Some(stored) => match self.state(stored, asked, cx.now_ms()) {
                None => return self.answer(cx, &key, stored, b"HIT"),
                Some(b"EXPIRED") if refresh::may_be_given(stored, cx.now_ms()) && !key.starts_with(OF_POST) => {
                    let stored = Arc::clone(stored);
                    return self.give_and_refresh(cx, key, stored);
                }
                Some(state) => state,
            },
            None if self.keeping.obeys && asked.only_if_cached => {
                cx.set_response_field(&self.names.status, |out| out.extend_from_slice(b"MISS"));
                return cx.reply(504).done();
            }
            None => b"MISS",
        };
        if !is_head {
            let now_ms = cx.now_ms();
            let stale = found.filter(|stored| stale::may_stand_in(stored, now_ms));
            let unread = stale.clone().filter(|stored| Whole::now(stored).is_none());
            let fetching = match self.lock.map(|_| self.keeping.zone.fetch(&key)) {
                Some(Err(waiting)) if may_wait => {
                    self.waiting.put(cx, waiting);
                    return Flow::Suspend;
                }
                Some(Ok(fetching)) => Some(fetching),
                _ => None,
            };
            let loading = unread.map(|stored| Loading::to_stand_in(key.clone(), stored, state));
            let stale = stale.as_ref().and_then(Whole::now);
            self.pending.put(cx, Pending { key, changes: false, stale, fetching, answer: None });
            if let Some(loading) = loading {
                self.loading.put(cx, loading);
                return Flow::Suspend;
            }
        }
        self.pass(cx, state)
    }

    /// The key of a request; those of `POST` are kept apart from the others.
    fn key_of(&self, cx: &RequestCx<'_>, posts: bool) -> Vec<u8> {
        let mut key = Vec::with_capacity(128);
        if posts {
            key.extend_from_slice(OF_POST);
        }
        if self.isolates
            && let Some(Value::Bytes(name)) = cx.variable(&Variable::ConsumerName)
        {
            key.extend_from_slice(name);
            key.push(1);
        }
        for part in &self.key {
            part.render(cx.source(), &mut key);
            // Lengths keep neighbouring parts apart.
            key.push(0);
        }
        key
    }

    /// True if texts come to anything but nothing and `0`.
    fn says_so(&self, texts: Option<&[Template]>, cx: &impl HookCx) -> bool {
        let Some(texts) = texts else { return false };
        let mut value = Vec::new();
        texts.iter().for_each(|text| text.render(cx.view().source(), &mut value));
        !value.is_empty() && value != b"0"
    }

    pub(super) fn pass(&self, cx: &mut RequestCx<'_>, status: &'static [u8]) -> Flow {
        cx.set_response_field(&self.names.status, |out| out.extend_from_slice(status));
        Flow::Continue
    }

    /// Reason not to use a stored answer; `None`: it is used.
    fn state(&self, stored: &Stored, asked: &Directives, now_ms: u64) -> Option<&'static [u8]> {
        let (age, lifetime) = (stored.age_ms(now_ms), stored.lifetime_ms);
        let is_fresh = age < lifetime;
        if !self.keeping.obeys {
            return (!is_fresh).then_some(b"EXPIRED");
        }
        let ms = |seconds: u64| seconds.saturating_mul(1000);
        let is_too_old = asked.max_age.is_some_and(|most| age > ms(most));
        let is_soon_stale = asked.min_fresh.is_some_and(|least| lifetime.saturating_sub(age) < ms(least));
        if is_too_old || is_soon_stale {
            return Some(b"STALE");
        }
        // A client may take what is stale for so long (RFC 9111 section 5.2.1.2).
        let may_be_stale = asked.max_stale.is_some_and(|most| age.saturating_sub(lifetime) <= ms(most));
        (!is_fresh && !may_be_stale).then_some(b"EXPIRED")
    }

    /// Answers with what is kept under a key, which waits where its body has to be read from the disk.
    fn answer(&self, cx: &mut RequestCx<'_>, key: &[u8], stored: &Arc<Stored>, status: &'static [u8]) -> Flow {
        let is_known = cx.request().field(&self.names.if_none_match).is_some_and(|wanted| has_tag(wanted, stored));
        match Whole::now(stored) {
            Some(whole) => self.answer_whole(cx, &whole, is_known, status),
            None if is_known => self.answer_whole(cx, &Whole::without_body(stored), true, status),
            None => {
                self.loading.put(cx, Loading::to_answer(key.to_vec(), Arc::clone(stored), status));
                Flow::Suspend
            }
        }
    }

    fn answer_whole(&self, cx: &mut RequestCx<'_>, whole: &Whole, is_known: bool, status: &'static [u8]) -> Flow {
        let stored = &whole.stored;
        let age = stored.age_ms(cx.now_ms()) / 1000;
        cx.set_response_field(&self.names.status, |out| out.extend_from_slice(status));
        let mut reply = cx.reply(if is_known { 304 } else { stored.status });
        for (name, value) in &stored.fields {
            let name = String::from_utf8_lossy(name);
            if is_known && name.eq_ignore_ascii_case("content-type") {
                continue;
            }
            reply = reply.field(&name, value);
        }
        let mut text = Vec::new();
        weir_wire::push_number(&mut text, age);
        reply = reply.named(&self.names.age, &text);
        if is_known { reply.done() } else { reply.body(whole.body()).done() }
    }

    /// True if the answer to a request is its caller's alone, unless it says that it may be shared.
    fn is_callers(&self, cx: &impl HookCx) -> bool {
        let is_apart = self.isolates && cx.view().consumer().is_some();
        cx.view().request().field(&self.names.authorization).is_some() && !self.names_caller && !is_apart
    }

    /// An answer of the upstream, without its body, where it may be kept.
    fn answer_to_keep(&self, cx: &ResponseCx<'_>) -> Option<PendingAnswer> {
        let response = cx.response();
        let came = Came {
            status: cx.status(),
            fields: response.head.fields.iter(response.buffer.bytes()).collect(),
            length: response.content_length(),
        };
        let asked = Asked {
            is_callers: self.is_callers(cx),
            values: &|names, out| values_of(cx.request(), names, out),
            now_ms: cx.view().now() / 1000,
            unix_ms: cx.unix_ms(),
        };
        if self.says_so(self.no_cache.as_deref(), cx) {
            return None;
        }
        self.keeping.keep(&came, &asked)
    }

    fn hide(&self, cx: &mut ResponseCx<'_>) {
        if self.hides {
            cx.remove_field(&self.names.cache_control);
            cx.remove_field(&self.names.expires);
        }
    }
}

/// True for a field of an answer that belongs neither to its connection nor to this one answer.
fn is_kept(name: &[u8]) -> bool {
    let own = [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "age",
        "apisix-cache-status",
    ];
    let is_limit = name.windows(19).any(|part| part.eq_ignore_ascii_case(b"ratelimit-remaining"));
    !is_limit && !own.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// The names in `Vary`, in lower case and in order. `None`: nobody can tell which request fits (`*`).
fn vary<'v>(values: impl Iterator<Item = &'v [u8]>) -> Option<Vec<Box<str>>> {
    let mut names = Vec::new();
    for name in values.flat_map(Parts) {
        let name = std::str::from_utf8(name).ok().filter(|name| *name != "*")?;
        names.push(name.to_ascii_lowercase().into_boxed_str());
    }
    names.sort_unstable();
    names.dedup();
    Some(names)
}

/// Tags in the values of a field, with commas or blanks between them.
fn tags<'v>(values: impl Iterator<Item = &'v [u8]>) -> impl Iterator<Item = &'v [u8]> {
    let is_between = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    values.flat_map(move |value| value.split(is_between)).filter(|tag| !tag.is_empty())
}

/// Appends the values of fields of a request, each with its length behind it.
fn values_of(request: &Request, names: &[Box<str>], out: &mut Vec<u8>) {
    values_among(|| request.head.fields.iter(request.buffer.bytes()), names, out);
}

/// The same among these fields.
fn values_among<'f, I: Iterator<Item = (&'f [u8], &'f [u8])>>(
    fields: impl Fn() -> I,
    names: &[Box<str>],
    out: &mut Vec<u8>,
) {
    for name in names {
        let begin = out.len();
        for (found, value) in fields() {
            if found.eq_ignore_ascii_case(name.as_bytes()) {
                out.extend_from_slice(value);
                out.push(b'\n');
            }
        }
        let len = out.len() - begin;
        out.extend_from_slice(&len.to_le_bytes());
    }
}

/// True if `If-None-Match` names the tag of a stored answer, by the weak comparison (RFC 9110 section 8.8.3.2).
fn has_tag(wanted: &[u8], stored: &Stored) -> bool {
    let strong = |tag: &'_ [u8]| tag.strip_prefix(b"W/").map_or_else(|| tag.to_vec(), <[u8]>::to_vec);
    let own = stored.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(b"etag"));
    let Some(own) = own.map(|(_, tag)| strong(tag)) else { return false };
    Parts(wanted).any(|tag| tag == b"*" || strong(tag) == own)
}
