//! `route`: a route's protocols, and the path and the Host that its upstream receives.

pub(crate) mod target;

use std::sync::Arc;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, HookCx, Invalid, Phases, Plugin, RequestCx, UpstreamCx};
use weir_wire::head::Version;
use weir_wire::name::FieldName;

use super::body;
use super::captures::Groups;
pub(super) use target::encoded_length;

/// The definition.
#[derive(Debug)]
pub(crate) struct Route;

/// On a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The paths of the route, in the order of its ranks; an empty one takes every path.
    paths: Vec<String>,
    /// Takes the matched path off.
    strip_path: bool,
    /// Serves requests without TLS.
    plain: bool,
    /// True for gRPC.
    grpc: bool,
    /// Status for requests without TLS where they are not served; 426 asks for TLS, others redirect.
    https_redirect_status_code: u16,
    /// The path of the service.
    base: Option<String>,
    /// Keeps groups of regular expressions, for templates of plugins.
    #[serde(default)]
    captures: bool,
}

impl Define for Route {
    const NAME: &'static str = "route";
    const PRIORITY: i32 = i32::MAX;
    const PHASES: Phases = Phases::REWRITE.and(Phases::UPSTREAM);
    const DOC: &'static str = "What a route does with protocol, path and Host.";
    const EXAMPLE: &'static str = "\
{paths: [/], strip_path: true, plain: true, grpc: false, https_redirect_status_code: 426}
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut matched = Vec::with_capacity(conf.paths.len());
        let mut groups = Vec::new();
        for path in conf.paths {
            let regex = path.strip_prefix('~').filter(|_| conf.strip_path || conf.captures);
            let regex = regex.map(|regex| {
                let regex = format!("^{regex}");
                let spent = weir_expr::spend_for_regex(&regex).map_err(|error| error.to_string());
                let built = spent.and_then(|()| Regex::new(&regex).map_err(|error| error.to_string()));
                built.map_err(|error| Invalid::new("paths", error))
            });
            let regex = cx.ok(regex.transpose())?;
            groups.push(regex.clone().filter(|_| conf.captures).map(|regex| Arc::new(Groups::new(regex))));
            matched.push(match regex {
                Some(regex) if conf.strip_path => Matched::Regex(regex),
                Some(_) => Matched::Nothing,
                None if path.is_empty() || path.starts_with('~') || !conf.strip_path => Matched::Nothing,
                None => Matched::Prefix(path.len()),
            });
        }
        Some(Compiled::ready(Behaviour {
            matched,
            groups: if groups.iter().any(Option::is_some) { groups } else { Vec::new() },
            plain: conf.plain,
            grpc: conf.grpc,
            redirect: conf.https_redirect_status_code,
            base: conf.base.unwrap_or_else(|| "/".to_owned()).into_bytes(),
            forwarded_proto: FieldName::constant("X-Forwarded-Proto"),
            prefix: FieldName::constant("X-Forwarded-Prefix"),
        }))
    }
}

/// Part that is taken off a path.
#[derive(Debug)]
enum Matched {
    Nothing,
    Prefix(usize),
    Regex(Regex),
}

/// An instance.
#[derive(Debug)]
struct Behaviour {
    matched: Vec<Matched>,
    /// The groups of each path that are kept; empty: none are.
    groups: Vec<Option<Arc<Groups>>>,
    plain: bool,
    grpc: bool,
    redirect: u16,
    base: Vec<u8>,
    forwarded_proto: FieldName,
    prefix: FieldName,
}

impl Plugin for Behaviour {
    fn phases(&self, declared: Phases) -> Phases {
        // The target that the client sent goes on where nothing is taken off it or put before it.
        let is_same = self.base == b"/" && self.matched.iter().all(|matched| matches!(matched, Matched::Nothing));
        let declared = if is_same { declared.without(Phases::UPSTREAM) } else { declared };
        let checks = !self.plain || self.grpc || !self.groups.is_empty();
        if checks { declared } else { declared.without(Phases::REWRITE) }
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if !self.groups.is_empty() {
            let place = cx.view().matched().map_or(0, |matched| usize::from(matched.path));
            if let Some(groups) = self.groups.get(place).and_then(Option::as_ref) {
                groups.keep(cx);
            }
        }
        if !self.plain && !self.is_https(cx) {
            return self.refuse_plain(cx);
        }
        if self.grpc {
            let content_type = cx.request().field_str("content-type").unwrap_or_default();
            let is_grpc = content_type.starts_with(b"application/grpc");
            if !is_grpc {
                return body::error(cx, 415, "Non-gRPC request matched gRPC route", &[]);
            }
            if cx.request().head.version != Version::Http2 {
                let fields: &[(&str, &[u8])] = &[("Upgrade", b"HTTP/2")];
                return body::error(cx, 426, "Please use HTTP2 protocol", fields);
            }
        }
        Flow::Continue
    }

    fn upstream_request(&self, cx: &mut UpstreamCx<'_>) -> Flow {
        let place = cx.view().matched().map_or(0, |matched| usize::from(matched.path));
        let mut to = cx.take_scratch();
        let request = cx.request_mut();
        if !request.upstream.target.is_empty() {
            // A plugin, or the try before, has settled it.
            cx.put_scratch(to);
            return Flow::Continue;
        }
        let length = match self.matched.get(place) {
            None | Some(Matched::Nothing) => None,
            Some(Matched::Prefix(length)) => Some(*length),
            Some(Matched::Regex(regex)) => regex.find(request.path()).map(|found| found.end()),
        };
        let path = request.encoded_path();
        let length = length.map(|length| encoded_length(request.path(), path, length));
        target::join(&self.base, path, length, &mut to);
        if let Some(query) = request.query() {
            to.push(b'?');
            weir_wire::target::encode_query(query, &mut to);
        }
        let stripped = length.and_then(|length| path.get(..length)).filter(|stripped| *stripped != b"/");
        let end = to.len();
        to.extend_from_slice(stripped.unwrap_or_default());
        let (target, prefix) = to.split_at(end);
        if !prefix.is_empty() {
            request.set_field(&self.prefix, prefix);
        }
        request.upstream.target.extend_from_slice(target);
        cx.put_scratch(to);
        Flow::Continue
    }
}

impl Behaviour {
    /// True for a request over TLS, to the gateway or to a trusted proxy before it.
    fn is_https(&self, cx: &RequestCx<'_>) -> bool {
        let told = cx.request().field(&self.forwarded_proto);
        told.map_or(cx.client().https, |proto| proto.eq_ignore_ascii_case(b"https"))
    }

    fn refuse_plain(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.redirect == 426 {
            // RFC 9110 section 7.8: Upgrade belongs to HTTP/1.1 alone.
            let fields: &[(&str, &[u8])] = match cx.request().head.version {
                Version::Http11 => &[("Upgrade", b"TLS/1.2, HTTP/1.1")],
                _ => &[],
            };
            return body::error(cx, 426, "Please use HTTPS protocol", fields);
        }
        let mut location = cx.take_scratch();
        location.extend_from_slice(b"https://");
        location.extend_from_slice(cx.request().host());
        cx.request().write_real_request_uri(&mut location);
        let reason = if self.redirect == 302 { "Found" } else { weir_wire::status::reason(self.redirect) };
        let status = self.redirect;
        let page = format!(
            "<html>\r\n<head><title>{status} {reason}</title></head>\r\n<body>\r\n<center><h1>{status} {reason}</h1></center>\r\n</body>\r\n</html>\r\n"
        );
        let answer = cx.reply(status).field("Location", &location).field("Content-Type", b"text/html");
        let flow = answer.body(page.as_bytes()).done();
        cx.put_scratch(location);
        flow
    }
}
