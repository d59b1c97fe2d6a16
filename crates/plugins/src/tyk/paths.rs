//! `paths`: what is done with requests and responses of an API, by paths, and the target that its upstream receives.

mod checks;
mod headers;
mod rewrite;
mod target;
mod values;

use std::sync::Arc;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Flow, Invalid, PerRequest, Phases, Plugin, RequestCx, ResponseCx,
};
use weir_wire::method::Method;

use super::patterns;
use super::shared::{self, Known, ListenPath};
use checks::{Mock, Validation};
use headers::Edits;
use rewrite::Rewrite;
use target::Base;

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
    /// True if `$tyk_context` has values.
    enable_context_vars: bool,
    /// The versions, in the order of those of `api`.
    versions: Vec<VersionConf>,
    /// The upstream, for those with other targets and time limits.
    #[schemars(with = "std::collections::BTreeMap<String, Value>")]
    upstream: serde_json::Map<String, Value>,
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

/// Requests that an entry is about.
#[derive(Debug)]
struct Which {
    pattern: Regex,
    /// Empty: every method.
    method: Box<[u8]>,
}

impl Which {
    /// `field` is the place of the entry in the configuration.
    fn compile(path: &str, method: &str, ignores_case: bool, field: &str) -> Result<Self, Invalid> {
        let pattern = patterns::compile(&patterns::pattern_of(path), ignores_case);
        let pattern = pattern.map_err(|error| Invalid::new(format!("{field}.path"), error))?;
        Ok(Self { pattern, method: method.as_bytes().into() })
    }

    fn takes(&self, method: &[u8], rest: &[u8]) -> bool {
        (self.method.is_empty() || *self.method == *method) && self.pattern.is_match(rest)
    }
}

/// Entries of one list, of which the first that takes a request counts.
#[derive(Debug)]
struct Entries<T>(Box<[(Which, T)]>);

impl<T> Entries<T> {
    fn find(&self, method: &[u8], rest: &[u8]) -> Option<&T> {
        self.0.iter().find(|(which, _)| which.takes(method, rest)).map(|(_, entry)| entry)
    }
}

/// Compiles the entries of a list at a place of the configuration.
fn entries<C, T>(
    field: &str,
    list: Vec<C>,
    ignores_case: bool,
    which: impl Fn(&C) -> (String, String),
    compile: impl Fn(C, &str) -> Result<T, Invalid>,
) -> Result<Entries<T>, Invalid> {
    let compiled = list.into_iter().enumerate().map(|(at, entry)| {
        let field = format!("{field}[{at}]");
        let (path, method) = which(&entry);
        Ok((Which::compile(&path, &method, ignores_case, &field)?, compile(entry, &field)?))
    });
    Ok(Entries(compiled.collect::<Result<_, Invalid>>()?))
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
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE);
    const DOC: &'static str = "What is done with requests by paths, and the target that the upstream receives.";
    const EXAMPLE: &'static str = "{api_id: a, listen_path: /a/, strip_listen_path: true, target: /, versions: [{}]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let listen = ListenPath::compile(&conf.listen_path).map_err(|error| Invalid::new("listen_path", error));
        let listen = cx.ok(listen)?;
        let mut versions = Vec::with_capacity(conf.versions.len());
        for (at, version) in conf.versions.into_iter().enumerate() {
            versions.push(cx.ok(Version::compile(version, &format!("versions[{at}]")))?);
        }
        let (base, upstream, api) = (Base::of(&conf.target), conf.upstream, conf.api_id);
        let (strip, has_context) = (conf.strip_listen_path, conf.enable_context_vars);
        Some(Compiled::build(move |build| {
            for version in &mut versions {
                version.build(&upstream, build)?;
            }
            let place = shared::place(build, &api);
            Ok(Chain { place, listen, strip, base, has_context, versions: versions.into() })
        }))
    }
}

impl Version {
    fn compile(conf: VersionConf, at: &str) -> Result<Self, Invalid> {
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
            rewrites: entries(&of("url_rewrites"), conf.url_rewrites, case, rewrite::Conf::which, Rewrite::compile)?,
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
    place: Arc<PerRequest<Known>>,
    listen: ListenPath,
    strip: bool,
    base: Base,
    has_context: bool,
    versions: Box<[Version]>,
}

impl Plugin for Chain {
    fn phases(&self, declared: Phases) -> Phases {
        let has_edits = |version: &Version| !version.responses.is_empty() || !version.response_edits.0.is_empty();
        if self.versions.iter().any(has_edits) { declared } else { declared.without(Phases::RESPONSE) }
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
        let (number, skipped, session) = (known.version, known.skipped, known.session.clone());
        let Some(version) = self.versions.get(number) else { return Flow::Continue };
        let mut rest = cx.take_scratch();
        self.listen.write_rest(cx.request(), &mut rest);
        let path = rest.get(skipped..).unwrap_or_default();
        version.responses.change_response(cx, session.as_deref(), self.has_context);
        if let Some(edits) = version.response_edits.find(cx.request().method_bytes(), path) {
            edits.change_response(cx, session.as_deref(), self.has_context);
        }
        cx.put_scratch(rest);
        Flow::Continue
    }
}

impl Chain {
    fn handle(&self, cx: &mut RequestCx<'_>, version: &Version, rest: &[u8], skipped: usize) -> Flow {
        let validation = version.validations.find(cx.request().method_bytes(), rest);
        if let Some(validation) = validation {
            match validation.check(cx) {
                Flow::Continue => {}
                other => return other,
            }
        }
        let session = self.place.get(cx).and_then(|known| known.session.clone());
        let session = session.as_deref();
        version.requests.change_request(cx, session, self.has_context);
        if let Some(edits) = version.request_edits.find(cx.request().method_bytes(), rest) {
            edits.change_request(cx, session, self.has_context);
        }
        let method = cx.request().method_bytes();
        let (timeout, mock) = (version.timeouts.find(method, rest), version.mocks.find(method, rest));
        let rewrite = version.rewrites.find(method, rest);
        let to = version.methods.find(method, rest).copied();
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
        let rewritten = rewrite.is_some_and(|rewrite| rewrite.apply(cx, &whole, base, session));
        if !rewritten {
            target::write(cx, &whole, base);
        }
        if let Some(timeout) = timeout.filter(|_| version.other.is_none()) {
            cx.choose_upstream(timeout.upstream);
        }
        if let Some(to) = to {
            cx.request_mut().upstream.method = Some(to);
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
