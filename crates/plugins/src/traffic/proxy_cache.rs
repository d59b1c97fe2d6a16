//! `proxy-cache`: answers of upstreams are kept, and given to further requests.

mod conditions;
mod conf;
mod content;
mod keeping;
mod loading;
mod place;
mod refresh;
mod remote;
mod revalidation;
mod stale;

use std::sync::Arc;
use std::time::Duration;

use schemars::Schema;
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
use crate::cache::zone::{Fetching, Stored};
use conditions::Part;
use conf::CacheMethod;
pub(crate) use conf::{Conf, Metadata, Strategy};
use keeping::{Asked, Came, Keeping, PendingAnswer};
use loading::{Loading, Whole};
use refresh::Refresh;
use remote::Remote;

/// The beginning of keys of answers to `POST`.
const OF_POST: &[u8] = b"POST\x01";

/// Milliseconds for which a Redis keeps answers beyond their time where upstreams are asked whether they have changed.
const KEPT_MS: u64 = 3_600_000;

/// The definition.
#[derive(Debug)]
pub(crate) struct ProxyCache;

impl Define for ProxyCache {
    const NAME: &'static str = "proxy-cache";
    const PRIORITY: i32 = 1085;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);
    const DOC: &'static str = "\
Keeps answers of the upstream and gives them to further requests with the same key. The field `Apisix-Cache-Status` tells \
what happened: `HIT`, `MISS`, `EXPIRED`, `STALE` (kept, and too old for this request, or given all the same by \
`stale_if_error` or `stale_while_revalidate`) or `BYPASS`. An answer out of the cache \
has an `Age`. Its conditions and ranges are answered here: 304 where `If-None-Match` names its `ETag` or nothing has changed since \
`If-Modified-Since`, and 206 or 416 for one range of bytes (`Range`, `If-Range`); several ranges are answered with the whole. With \
`cache_revalidate` the status `REVALIDATED` tells that the upstream has said that an answer has not changed.

Answers with `Cache-Control: private`, `no-store` or `no-cache`, with `Vary: *` or with `Set-Cookie` are not kept, and neither \
are those to requests with `Authorization` unless a consumer or the key tells callers apart, or the answer says that it may be \
shared (`public`, `s-maxage`, `must-revalidate`; RFC 9111 section 3.5). `Vary` keeps answers apart by the fields that it names, \
64 for each key. Longer bodies than `max_resp_body_size` pass without being kept.

A request with the method `PURGE` makes the cache forget its key, or with the field `cache_tags` what has one of its tags: 200, \
or 404 where there was nothing. So does a request with a \
method that may change something (any but `GET`, `HEAD`, `OPTIONS` and `TRACE`) once the upstream has answered it below 400.

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

With `cache_strategy: redis` answers are in a Redis, where gateways share them, and whose bound of memory (`maxmemory`) they \
are under. A Redis that does not answer within 50 ms has nothing: requests go to the upstream, and `PURGE` is answered with 503.

```yaml
cache_strategy: redis
redis: {host: 127.0.0.1, port: 6379, password: \"$env://REDIS_PASSWORD\"}
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

    const ENCRYPTED: &'static [&'static str] = &["redis.password"];

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
    let server = match (conf.cache_strategy, conf.redis.clone()) {
        (Strategy::Redis, server) => Some(cx.ok(server.unwrap_or_default().server("redis", "strategy redis"))?),
        (_, Some(_)) => {
            cx.warn("redis", "it has no effect without cache_strategy redis");
            None
        }
        (_, None) => None,
    };
    let tags = match &conf.cache_tags {
        Some(name) => {
            let name = FieldName::new(name).ok_or_else(|| Invalid::new("cache_tags", "expected the name of a field"));
            Some(cx.ok(name)?)
        }
        None => None,
    };
    Some(move |build: &BuildCx<'_>| {
        let metadata = build.metadata::<Metadata>()?;
        // A request that waits for Redis goes on without it before long.
        let redis = server.map(|server| server.connect(true, build)).transpose()?;
        Ok(Caching {
            keeping: Arc::new(Keeping {
                zone: place::zone(&conf, metadata.zones.get(&conf.cache_zone).copied(), build)?,
                remote: redis.map(|redis| Remote {
                    redis,
                    zone: conf.cache_zone.clone(),
                    kept_ms: if conf.cache_revalidate { KEPT_MS } else { 0 },
                }),
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
            revalidates: conf.cache_revalidate,
            bypass,
            no_cache,
            lock: conf.cache_lock.then(|| Duration::from_secs(conf.cache_lock_timeout)),
            waiting: PerRequest::new(),
            refreshing: PerRequest::new(),
            loading: PerRequest::new(),
            asking: PerRequest::new(),
            names: Names::default(),
            pending: PerRequest::new(),
        })
    })
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
    if_modified_since: FieldName,
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
            if_modified_since: name("If-Modified-Since"),
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
    /// True if the upstream is asked whether what is too old has changed.
    revalidates: bool,
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
    /// A question for the Redis.
    asking: PerRequest<Question>,
    names: Names,
    pending: PerRequest<Pending>,
}

/// A question for the Redis that answers are in.
#[derive(Debug)]
enum Question {
    /// An answer for a key, and what the request asks of a cache.
    Find(Vec<u8>, Directives),
    /// All keys that the request asks to forget.
    Purge,
}

/// A request whose answer may be kept, or makes the cache forget.
#[derive(Debug)]
struct Pending {
    key: Vec<u8>,
    /// True if the request changes something at the upstream.
    changes: bool,
    /// The answer that is too old.
    stale: Option<Whole>,
    /// True if it stands in for one that fails.
    stands_in: bool,
    /// True if the upstream is asked whether it has changed.
    asks: bool,
    /// Keeps others waiting.
    fetching: Option<Fetching>,
    answer: Option<PendingAnswer>,
}

impl Pending {
    fn of(key: Vec<u8>) -> Self {
        Self { key, changes: false, stale: None, stands_in: false, asks: false, fetching: None, answer: None }
    }
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
            if let Some(question) = self.asking.take(cx) {
                let flow = self.ask_remote(cx, question, true).await;
                // A newer answer may be due, or another request fetch the same.
                if !matches!(flow, Flow::Suspend) {
                    return flow;
                }
            }
            if let Some(refresh) = self.refreshing.take(cx) {
                let flow = self.refresh(cx, io, refresh).await;
                return self.load_all(cx, flow).await;
            }
            if self.loading.get(cx).is_some() {
                return self.load_all(cx, Flow::Suspend).await;
            }
            if let (Some(waiting), Some(limit)) = (self.waiting.take(cx), self.lock) {
                // A permit is never given: the semaphore is closed when the other has its answer, or has none.
                let _ = weir_runtime::timeout(limit, waiting.acquire()).await;
            }
            let mut flow = self.look(cx, false);
            if let Some(question) = self.asking.take(cx) {
                flow = self.ask_remote(cx, question, false).await;
                if let Some(refresh) = self.refreshing.take(cx) {
                    flow = self.refresh(cx, io, refresh).await;
                }
            }
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
                self.keeping.forget(&pending.key);
            }
            return Flow::Continue;
        }
        let is_unchanged = is_upstreams && status == 304 && pending.asks;
        let stands_in = stale::has_failed(cx) && pending.stands_in;
        if pending.stale.is_some() && (is_unchanged || stands_in) {
            if let Some(Pending { key, stale: Some(old), .. }) = self.pending.take(cx) {
                match is_unchanged {
                    true => self.take_unchanged(cx, &key, &old),
                    false => self.stand_in(cx, &old.stored, old.body(), b"STALE"),
                }
            }
            self.hide(cx);
            return Flow::Continue;
        }
        let answer = if is_upstreams { self.answer_to_keep(cx) } else { None };
        let is_whole = weir_wire::status::is_bodyless(status);
        let keeps = answer.is_some() && !is_whole;
        if let Some(pending) = self.pending.get_mut(cx) {
            pending.answer = answer;
            if is_whole {
                // No body follows.
                self.keep(pending);
            }
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
        if last {
            self.keep(pending);
        }
        Flow::Continue
    }
}

impl Caching {
    /// Answers a request with what is kept, or lets it pass to the upstream; `may_wait` for another that fetches the answer.
    fn look(&self, cx: &mut RequestCx<'_>, may_wait: bool) -> Flow {
        let method = cx.request().method_bytes();
        if method == b"PURGE" && self.keeping.remote.is_some() {
            self.asking.put(cx, Question::Purge);
            return Flow::Suspend;
        }
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
            // Any method that is not known to be safe (RFC 9111 section 4.4).
            let changes = !matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE");
            if changes {
                let key = self.key_of(cx, false);
                self.pending.put(cx, Pending { changes, ..Pending::of(key) });
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
        if self.keeping.remote.is_some() {
            self.asking.put(cx, Question::Find(key, asked));
            return Flow::Suspend;
        }
        self.find(cx, key, &asked, may_wait)
    }

    /// Asks the Redis. Without an answer from there nothing is kept, and nothing can be forgotten.
    async fn ask_remote(&self, cx: &mut RequestCx<'_>, question: Question, may_wait: bool) -> Flow {
        let Some(remote) = &self.keeping.remote else { return Flow::Continue };
        match question {
            Question::Find(key, asked) => {
                let request = cx.request();
                let found = remote.find(&key, |names, out| values_of(request, names, out)).await;
                let found = found.ok().flatten().map(Arc::new);
                self.decide(cx, key, &asked, found, may_wait)
            }
            Question::Purge => {
                let request = cx.request();
                let tagged = self.keeping.tags.as_ref().filter(|name| request.field(name).is_some());
                let has_purged = match tagged {
                    Some(name) => remote.purge_tags(tags(request.head.fields.all(request.buffer.bytes(), name))).await,
                    None => {
                        let [plain, posts] = [false, true].map(|posts| self.key_of(cx, posts));
                        match (remote.purge(&plain).await, remote.purge(&posts).await) {
                            (Ok(one), Ok(other)) => Ok(one || other),
                            (Err(error), _) | (_, Err(error)) => Err(error),
                        }
                    }
                };
                match has_purged {
                    Ok(has_purged) => cx.reply(if has_purged { 200 } else { 404 }).done(),
                    Err(_) => cx.fail(503, "proxy-cache: Redis cannot be asked"),
                }
            }
        }
    }

    /// Keeps an answer that has come as a whole.
    fn keep(&self, pending: &mut Pending) {
        if let Some(PendingAnswer { mut stored, vary, values, mut body }) = pending.answer.take() {
            stored.body = body.take();
            self.keeping.store(&pending.key, &vary, &values, stored);
            pending.fetching = None;
        }
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
        let found = self.keeping.zone.find(&key, |names, out| values_of(request, names, out));
        self.decide(cx, key, asked, found, may_wait)
    }

    /// Answers a request with what was found under a key, or lets it pass to the upstream.
    fn decide(
        &self,
        cx: &mut RequestCx<'_>,
        key: Vec<u8>,
        asked: &Directives,
        found: Option<Arc<Stored>>,
        may_wait: bool,
    ) -> Flow {
        let is_head = cx.request().method_bytes() == b"HEAD";
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
            let stands_in = found.as_ref().is_some_and(|stored| stale::may_stand_in(stored, now_ms));
            let asks = found.as_ref().is_some_and(|stored| self.can_be_asked_about(cx, stored));
            let stale = found.filter(|_| stands_in || asks);
            let fetching = match self.lock.map(|_| self.keeping.zone.fetch(&key)) {
                Some(Err(waiting)) if may_wait => {
                    self.waiting.put(cx, waiting);
                    return Flow::Suspend;
                }
                Some(Ok(fetching)) => Some(fetching),
                _ => None,
            };
            let whole = stale.as_ref().and_then(Whole::now);
            let unread = stale.filter(|_| whole.is_none());
            if let Some(whole) = whole.as_ref().filter(|_| asks) {
                self.ask_about(cx, &whole.stored);
            }
            let loading = unread.map(|stored| Loading::to_stand_in(key.clone(), stored, state));
            self.pending.put(cx, Pending { stale: whole, stands_in, asks, fetching, ..Pending::of(key) });
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
        let part = Part::of(cx.request(), stored);
        match Whole::now(stored) {
            Some(whole) => self.answer_part(cx, &whole, &part, status),
            None if !part.has_body() => self.answer_part(cx, &Whole::without_body(stored), &part, status),
            None => {
                self.loading.put(cx, Loading::to_answer(key.to_vec(), Arc::clone(stored), status));
                Flow::Suspend
            }
        }
    }

    fn answer_part(&self, cx: &mut RequestCx<'_>, whole: &Whole, part: &Part, status: &'static [u8]) -> Flow {
        let stored = &whole.stored;
        let age = stored.age_ms(cx.now_ms()) / 1000;
        cx.set_response_field(&self.names.status, |out| out.extend_from_slice(status));
        let len = stored.body_len();
        let (status, body, range) = match part {
            Part::Whole => (stored.status, whole.body(), None),
            Part::Unchanged => (304, &[][..], None),
            Part::OutOfRange => {
                return cx.reply(416).field("Content-Range", format!("bytes */{len}").as_bytes()).done();
            }
            Part::Range(range) => {
                let told = format!("bytes {}-{}/{len}", range.start, range.end - 1);
                (206, whole.body().get(range.clone()).unwrap_or_default(), Some(told))
            }
        };
        let mut reply = cx.reply(status);
        for (name, value) in &stored.fields {
            let name = String::from_utf8_lossy(name);
            if status == 304 && name.eq_ignore_ascii_case("content-type") {
                continue;
            }
            reply = reply.field(&name, value);
        }
        let mut text = Vec::new();
        weir_wire::push_number(&mut text, age);
        reply = reply.named(&self.names.age, &text);
        if let Some(range) = range {
            reply = reply.field("Content-Range", range.as_bytes());
        }
        if status == 304 { reply.done() } else { reply.body(body).done() }
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
            fields: response.head.fields.sent(response.buffer.bytes()).collect(),
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
