//! `paths`: what is done with requests and responses of an API, by paths, and the target that its upstream receives.

pub(super) mod breaker;
mod checks;
mod headers;
mod operation;
mod rewrite;
mod target;
mod transform;
mod values;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Failure, Flow, HookCx, Invalid, LogCx, NodeListener, Origin, PerRequest,
    Phases, Plugin, RequestCx, ResponseCx,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::body;
use super::entries::{Entries, entries};
use super::events::nodes::Nodes;
use super::events::{self, Event, Events};
use super::loops::{self, Loops};
use super::shared::{self, Known, ListenPath};
use breaker::{Breaker, Change};
use checks::{Mock, Validation};
use headers::Edits;
use operation::Operation;
use rewrite::{Rewrite, Rewritten};
use target::Base;
use transform::{Extra, Transform};

/// The definition.
#[derive(Debug)]
pub(crate) struct Paths;

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Id of the API.
    api_id: String,
    /// The listen path.
    listen_path: String,
    /// Takes the listen path off.
    strip_listen_path: bool,
    /// Path and query of the target URL.
    target: String,
    /// The API that the target URL leads to inside the gateway (`tyk://`); empty: an upstream.
    target_api: String,
    /// Ids of APIs by the names in the URLs of loops.
    loops: loops::Ids,
    /// True if `$tyk_context` has values.
    enable_context_vars: bool,
    /// The versions, in the order of those of `api`.
    versions: Vec<VersionConf>,
    /// The upstream, for those with other targets and time limits.
    #[schemars(with = "std::collections::BTreeMap<String, Value>")]
    upstream: serde_json::Map<String, Value>,
    /// Handlers of events of breakers.
    events: events::Conf,
}

/// A version.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct VersionConf {
    mock_response: Vec<checks::MockConf>,
    validate_json: Vec<checks::ValidationConf>,
    transform_headers: Vec<headers::Conf>,
    transform_response_headers: Vec<headers::Conf>,
    global_headers: std::collections::BTreeMap<String, String>,
    global_headers_remove: Vec<String>,
    global_response_headers: std::collections::BTreeMap<String, String>,
    global_response_headers_remove: Vec<String>,
    url_rewrites: Vec<rewrite::Conf>,
    method_transforms: Vec<MethodConf>,
    hard_timeouts: Vec<TimeoutConf>,
    circuit_breakers: Vec<breaker::Conf>,
    persist_graphql: Vec<operation::Conf>,
    transform: Vec<transform::Conf>,
    transform_response: Vec<transform::Conf>,
    /// Another target of the version.
    override_target: String,
    /// Compares paths without regard to case.
    ignore_endpoint_case: bool,
}

/// Another method.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct MethodConf {
    path: String,
    method: String,
    to_method: String,
}

/// A time limit.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct TimeoutConf {
    path: String,
    method: String,
    /// Seconds.
    #[serde(alias = "timeout")]
    time_out: f64,
}

/// A version, compiled. What waits for its upstreams is built later.
#[derive(Debug)]
struct Version {
    mocks: Entries<Mock>,
    validations: Entries<Validation>,
    requests: Edits,
    request_edits: Entries<Edits>,
    responses: Edits,
    response_edits: Entries<Edits>,
    rewrites: Entries<Rewrite>,
    methods: Entries<Method>,
    timeouts: Entries<Timeout>,
    breakers: Entries<Arc<Breaker>>,
    operations: Entries<Operation>,
    transforms: Entries<Arc<Transform>>,
    response_transforms: Entries<Arc<Transform>>,
    /// Another target.
    other: Option<Other>,
}

/// A time limit in seconds, and the upstream with it.
#[derive(Debug)]
struct Timeout {
    seconds: f64,
    upstream: Option<u32>,
}

/// A target of its own.
#[derive(Debug)]
struct Other {
    base: Base,
    url: String,
    upstream: Option<u32>,
}

impl Define for Paths {
    const NAME: &'static str = "paths";
    const PRIORITY: i32 = 900;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE).and(Phases::LOG);
    const DOC: &'static str = "What is done with requests by paths, and the target that the upstream receives.";
    const EXAMPLE: &'static str = "{api_id: a, listen_path: /a/, strip_listen_path: true, target: /, versions: [{}]}\n";

    const ENCRYPTED: &'static [&'static str] = &["upstream.tls.client_key"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let listen = ListenPath::compile(&conf.listen_path).map_err(|error| Invalid::new("listen_path", error));
        let listen = cx.ok(listen)?;
        let mut versions = Vec::with_capacity(conf.versions.len());
        for (at, version) in conf.versions.into_iter().enumerate() {
            versions.push(cx.ok(Version::compile(version, &format!("versions[{at}]"), &conf.loops))?);
        }
        let events = Events::compile(conf.events, cx)?;
        let (base, upstream, api) = (Base::of(&conf.target), conf.upstream, conf.api_id);
        let target = conf.target;
        let (strip, has_context) = (conf.strip_listen_path, conf.enable_context_vars);
        let target_api = Some(&conf.target_api).filter(|name| !name.is_empty());
        let target_api = target_api.map(|name| loops::Target::new(name, &conf.loops));
        Some(Compiled::build(move |build| {
            for (number, version) in versions.iter_mut().enumerate() {
                version.build(&upstream, build)?;
                for (at, (_, breaker)) in version.breakers.0.iter_mut().enumerate() {
                    let state = format!("tyk breaker {api} {number} {at} {breaker:?}");
                    // Counts outlive a change that leaves the breaker as it is.
                    *breaker = build.states.get_or_create(&state, || breaker.anew());
                }
            }
            let place = shared::place(build, &api);
            let (events, api) = (Arc::new(events.build(build)?), Arc::from(api));
            let nodes = Nodes::listen(&events, (&api, target), &upstream, build);
            let asked = PerRequest::new();
            let accepts = FieldName::constant("Accept-Encoding");
            Ok(Chain {
                api,
                events,
                _nodes: nodes,
                place,
                loops: loops::place(build),
                target_api,
                asked,
                accepts,
                listen,
                strip,
                base,
                has_context,
                versions: versions.into(),
            })
        }))
    }
}

impl Version {
    fn compile(conf: VersionConf, at: &str, apis: &loops::Ids) -> Result<Self, Invalid> {
        let case = conf.ignore_endpoint_case;
        let of = |name: &str| format!("{at}.{name}");
        let edits = |add, remove: &[String], field: &str| Edits::compile(add, remove, field);
        Ok(Self {
            mocks: entries(&of("mock_response"), conf.mock_response, case, checks::MockConf::which, Mock::compile)?,
            validations: entries(
                &of("validate_json"),
                conf.validate_json,
                case,
                checks::ValidationConf::which,
                Validation::compile,
            )?,
            requests: edits(conf.global_headers, &conf.global_headers_remove, &of("global_headers"))?,
            request_edits: entries(
                &of("transform_headers"),
                conf.transform_headers,
                case,
                headers::Conf::which,
                Edits::of,
            )?,
            responses: edits(
                conf.global_response_headers,
                &conf.global_response_headers_remove,
                &of("global_response_headers"),
            )?,
            response_edits: entries(
                &of("transform_response_headers"),
                conf.transform_response_headers,
                case,
                headers::Conf::which,
                Edits::of,
            )?,
            rewrites: entries(&of("url_rewrites"), conf.url_rewrites, case, rewrite::Conf::which, |conf, field| {
                Rewrite::compile(conf, field, apis)
            })?,
            methods: entries(
                &of("method_transforms"),
                conf.method_transforms,
                case,
                |entry| (entry.path.clone(), entry.method.clone()),
                |entry, field| {
                    let found = Method::parse(entry.to_method.as_bytes());
                    Some(found).filter(|method| *method != Method::Other).ok_or_else(|| {
                        Invalid::new(format!("{field}.to_method"), format!("'{}' is no known method", entry.to_method))
                    })
                },
            )?,
            timeouts: entries(
                &of("hard_timeouts"),
                conf.hard_timeouts,
                case,
                |entry| (entry.path.clone(), entry.method.clone()),
                |entry, _| Ok(Timeout { seconds: entry.time_out, upstream: None }),
            )?,
            breakers: entries(
                &of("circuit_breakers"),
                conf.circuit_breakers,
                case,
                breaker::Conf::which,
                |entry, field| Breaker::compile(&entry, field).map(Arc::new),
            )?,
            operations: entries(
                &of("persist_graphql"),
                conf.persist_graphql,
                case,
                operation::Conf::which,
                Operation::compile,
            )?,
            transforms: entries(&of("transform"), conf.transform, case, transform::Conf::which, Transform::compile)?,
            response_transforms: entries(
                &of("transform_response"),
                conf.transform_response,
                case,
                transform::Conf::which,
                Transform::compile,
            )?,
            other: (!conf.override_target.is_empty()).then(|| Other {
                base: Base::of_url(&conf.override_target),
                url: conf.override_target,
                upstream: None,
            }),
        })
    }

    /// Adds the upstreams with other targets and time limits.
    fn build(&mut self, upstream: &serde_json::Map<String, Value>, build: &BuildCx<'_>) -> Result<(), Invalid> {
        for (at, (_, timeout)) in self.timeouts.0.iter_mut().enumerate() {
            let mut changed = upstream.clone();
            let seconds = timeout.seconds.max(0.05);
            changed.insert(
                "timeout".to_owned(),
                serde_json::json!({ "connect": seconds, "send": seconds, "read": seconds }),
            );
            timeout.upstream = Some(target::add(changed, &format!("hard_timeouts{at}"), build)?);
        }
        if let Some(other) = &mut self.other {
            other.upstream = Some(target::add(target::at_url(upstream, &other.url)?, "override_target", build)?);
        }
        for (at, (_, rewrite)) in self.rewrites.0.iter_mut().enumerate() {
            rewrite.build(upstream, at, build)?;
        }
        Ok(())
    }
}

/// An instance.
#[derive(Debug)]
struct Chain {
    /// Id of the API.
    api: Arc<str>,
    events: Arc<Events>,
    /// Told of targets for as long as the instance is there.
    _nodes: Option<Arc<dyn NodeListener>>,
    place: Arc<PerRequest<Known>>,
    loops: Arc<PerRequest<Loops>>,
    /// The API that requests go on to, in the place of an upstream.
    target_api: Option<loops::Target>,
    /// The breaker that let a request through.
    asked: PerRequest<Arc<Breaker>>,
    /// `Accept-Encoding`.
    accepts: FieldName,
    listen: ListenPath,
    strip: bool,
    base: Base,
    has_context: bool,
    versions: Box<[Version]>,
}

impl Plugin for Chain {
    fn phases(&self, declared: Phases) -> Phases {
        let has_edits = |version: &Version| !version.responses.is_empty() || !version.response_edits.0.is_empty();
        let has_transforms = self.versions.iter().any(|version| !version.response_transforms.0.is_empty());
        let mut phases = declared;
        if !has_transforms && !self.versions.iter().any(has_edits) {
            phases = phases.without(Phases::RESPONSE);
        }
        if self.versions.iter().all(|version| version.breakers.0.is_empty()) {
            phases = phases.without(Phases::LOG);
        }
        phases
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let (number, skipped) = self.place.get(cx).map_or((0, 0), |known| (known.version, known.skipped));
        let Some(version) = self.versions.get(number) else { return Flow::Continue };
        let mut rest = cx.take_scratch();
        self.listen.write_rest(cx.request(), &mut rest);
        let path = rest.get(skipped..).unwrap_or_default();
        let flow = self.handle(cx, version, path, skipped);
        cx.put_scratch(rest);
        flow
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let Some(known) = self.place.get(cx) else { return Flow::Continue };
        let (number, skipped, meta, method) = (known.version, known.skipped, known.meta(), known.method);
        let Some(version) = self.versions.get(number) else { return Flow::Continue };
        let mut rest = cx.take_scratch();
        self.listen.write_rest(cx.request(), &mut rest);
        let path = rest.get(skipped..).unwrap_or_default();
        let transform = version.response_transforms.find(shared::name_of(method, cx.request()), path);
        let flow = match transform.filter(|_| cx.response().origin == Origin::Upstream) {
            Some(transform) => self.transform_answer(cx, transform, meta.clone()),
            None => Flow::Continue,
        };
        if flow == Flow::Continue {
            version.responses.change_response(cx, meta.as_deref(), self.has_context);
            if let Some(edits) = version.response_edits.find(shared::name_of(method, cx.request()), path) {
                edits.change_response(cx, meta.as_deref(), self.has_context);
            }
        }
        cx.put_scratch(rest);
        flow
    }

    fn log(&self, cx: &LogCx<'_>) {
        let (Some(breaker), Some(last)) = (self.asked.get(cx), cx.view().tries().last()) else { return };
        let now = cx.view().now() / 1000;
        if let Some(change) = breaker.note(now, last.status >= 500) {
            self.tell(breaker, change, now);
        }
    }
}

impl Chain {
    /// Tells a change of a breaker, and that it closes once its time is over.
    fn tell(&self, breaker: &Arc<Breaker>, change: Change, now: u64) {
        self.events.tell_breaker(change, (&self.api, breaker.path()), now);
        let hears = self.events.hears(Event::BreakerReset) || self.events.hears(Event::BreakerTriggered);
        if change == Change::Opened && hears {
            let (events, api, breaker) = (Arc::clone(&self.events), Arc::clone(&self.api), Arc::clone(breaker));
            weir_runtime::spawn(async move {
                let open = breaker.open_time();
                weir_runtime::sleep(open).await;
                let now = now + open.as_millis() as u64;
                if breaker.close(now) {
                    events.tell_breaker(Change::Closed, (&api, breaker.path()), now);
                }
            });
        }
    }

    /// Makes the new body of an answer, once the whole of the old one is there.
    fn transform_answer(
        &self,
        cx: &mut ResponseCx<'_>,
        transform: &Transform,
        meta: Option<Arc<values::Meta>>,
    ) -> Flow {
        if cx.response().field_str("content-encoding").is_some_and(|coding| coding != b"identity") {
            tracing::warn!("an upstream encodes its answers unasked: their bodies are not transformed");
            return Flow::Continue;
        }
        let Some(old) = cx.body() else { return Flow::AwaitBody };
        let extra = Extra::of(cx.request(), cx.source(), meta, self.has_context);
        match transform.apply(old, &extra) {
            Ok(Some(new)) => cx.replace_body(new.as_bytes()),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "the body of an answer cannot be transformed");
                return Flow::Abort(Failure::internal("a template failed"));
            }
        }
        Flow::Continue
    }

    /// Makes the new body of a request, once the whole of the old one is there.
    fn transform(&self, cx: &mut RequestCx<'_>, transform: &Transform) -> Flow {
        let Some(old) = cx.body() else { return Flow::AwaitBody };
        let meta = self.place.get(cx).and_then(Known::meta);
        let extra = Extra::of(cx.request(), cx.source(), meta, self.has_context);
        match transform.apply(old, &extra) {
            Ok(Some(new)) => cx.replace_body(new.as_bytes()),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "the body of a request cannot be transformed");
                return body::error(cx, 500, "Template error", &[]);
            }
        }
        Flow::Continue
    }

    fn handle(&self, cx: &mut RequestCx<'_>, version: &Version, rest: &[u8], skipped: usize) -> Flow {
        let own = shared::method(&self.place, cx);
        let validation = version.validations.find(shared::name_of(own, cx.request()), rest);
        if let Some(validation) = validation {
            match validation.check(cx) {
                Flow::Continue => {}
                other => return other,
            }
        }
        let operation = version.operations.find(shared::name_of(own, cx.request()), rest);
        if let Some(operation) = operation {
            let meta = self.place.get(cx).and_then(Known::meta);
            match operation.apply(cx, rest, meta.as_deref(), self.has_context) {
                Flow::Continue => {}
                other => return other,
            }
        }
        if let Some(transform) = version.transforms.find(shared::name_of(own, cx.request()), rest) {
            match self.transform(cx, transform) {
                Flow::Continue => {}
                other => return other,
            }
        }
        if version.response_transforms.find(shared::name_of(own, cx.request()), rest).is_some() {
            cx.request_mut().remove_field(&self.accepts);
        }
        let (meta, url) = match self.place.get_mut(cx) {
            Some(known) => (known.meta(), known.url.take()),
            None => (None, None),
        };
        let meta = meta.as_deref();
        version.requests.change_request(cx, meta, self.has_context);
        if let Some(edits) = version.request_edits.find(shared::name_of(own, cx.request()), rest) {
            edits.change_request(cx, meta, self.has_context);
        }
        let method = shared::name_of(own, cx.request());
        let (timeout, mock) = (version.timeouts.find(method, rest), version.mocks.find(method, rest));
        let rewrite = version.rewrites.find(method, rest);
        let to = version.methods.find(method, rest).copied();
        let breaker = version.breakers.find(method, rest);
        if let Some(mock) = mock {
            if let Some(known) = self.place.get_mut(cx) {
                known.is_mocked = true;
            }
            return mock.answer(cx);
        }
        let base = version.other.as_ref().map_or(&self.base, |other| &other.base);
        if let Some(other) = &version.other {
            cx.choose_upstream(other.upstream);
        }
        let whole = Whole { listen: &self.listen, strip: self.strip, skipped };
        let rewrite = rewrite.filter(|_| operation.is_none());
        let rewritten = rewrite.map_or(Rewritten::No, |rewrite| rewrite.apply(cx, &whole, base, meta));
        if let Some(to) = to {
            cx.request_mut().upstream.method = Some(to);
        }
        match (rewritten, url) {
            (Rewritten::Leads(target, made), _) => return target.follow(cx, &self.loops, &made),
            (Rewritten::Yes, _) => {}
            // Operations go to the target URL itself.
            (Rewritten::No, _) if operation.is_some() => target::write_url(cx, &whole, base, b"/"),
            (Rewritten::No, Some(url)) => target::write_url(cx, &whole, base, &url),
            (Rewritten::No, None) => target::write(cx, &whole, base),
        }
        if let Some(target) = self.target_api.as_ref().filter(|_| version.other.is_none()) {
            let made = std::mem::take(&mut cx.request_mut().upstream.target);
            return target.pass(cx, &made);
        }
        if let Some(breaker) = breaker {
            if !breaker.lets_through(cx.now_ms()) {
                return body::error(cx, 503, "Service temporarily unavailable.", &[]);
            }
            self.asked.put(cx, Arc::clone(breaker));
        }
        if let Some(timeout) = timeout.filter(|_| version.other.is_none()) {
            cx.choose_upstream(timeout.upstream);
        }
        Flow::Continue
    }
}

/// Conversion of a request's path into the upstream's.
struct Whole<'c> {
    listen: &'c ListenPath,
    strip: bool,
    /// Bytes behind the listen path that name the version.
    skipped: usize,
}
