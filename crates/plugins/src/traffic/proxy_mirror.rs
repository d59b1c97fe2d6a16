//! `proxy-mirror`: another service gets a copy of the requests.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use weir_config::{Diagnostic, Node, Upstream};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, Request, UpstreamCx};
use weir_wire::target;

/// The definition.
#[derive(Debug)]
pub(crate) struct ProxyMirror;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The target of the copies: `http://HOST` or `https://HOST`, and for gRPC calls `grpc://HOST` or `grpcs://HOST`, which
    /// speak HTTP/2; each with `:PORT` where the port is not 80 or 443. The host may be a name or an address.
    host: String,
    /// The path of the copies; unset: that of the request, as the upstream receives it.
    #[schemars(length(min = 1))]
    path: Option<String>,
    /// The effect of `path`. `replace`: it is the path of the copies, which keep the query. `prefix`: it goes before
    /// the path of the request.
    #[serde(default)]
    path_concat_mode: ConcatMode,
    /// The share of the requests that is copied, from 0.00001 to 1: all.
    #[serde(default = "all")]
    #[schemars(range(min = 0.00001, max = 1))]
    sample_ratio: f64,
}

/// The effect of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum ConcatMode {
    #[default]
    Replace,
    Prefix,
}

fn all() -> f64 {
    1.0
}

impl Define for ProxyMirror {
    const NAME: &'static str = "proxy-mirror";
    const PRIORITY: i32 = 1010;
    const PHASES: Phases = Phases::UPSTREAM;
    const DOC: &'static str = "\
Sends a copy of the requests to another service as well, and drops its answers: to try out a new version, or to see what \
comes in. The request itself never waits for the mirror, and does not fail with it.

A copy has the head that the upstream is sent, with the same `Host`, after all changes by plugins, and the whole body with \
a `Content-Length`; it is sent once all of the request has come, whatever becomes of the request. At most \
`limits.mirror_copies` are under way in a worker, with bodies of up to `limits.mirror_body`; what is over is not copied. A \
mirror has 60 seconds for a copy. The copy of a call that streams goes when its client has sent its last message. The metric `weir_mirror_requests_total` counts what was answered, failed and dropped.

With several of these plugins for a request, as on a route and in a global rule, the last one decides.";
    const EXAMPLE: &'static str = "\
host: http://127.0.0.1:1981
path: /shadow
path_concat_mode: prefix
sample_ratio: 0.1
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mirror = cx.ok(mirror(&conf.host));
        cx.say(check_path(&conf).err());
        let mirror = mirror?;
        Some(Compiled::build(move |build| {
            let number = build.inline_upstream("host", &mirror)?;
            let path = conf.path.map(String::into_bytes);
            Ok(Mirroring { number, path, mode: conf.path_concat_mode, ratio: conf.sample_ratio })
        }))
    }
}

/// The mirror as an upstream of one node.
fn mirror(host: &str) -> Result<Upstream, Invalid> {
    let fault = |message: String| Invalid::new("host", message);
    let (scheme, rest) = host.split_once("://").unwrap_or(("", host));
    match scheme {
        "http" | "https" | "grpc" | "grpcs" => {}
        _ => {
            return Err(fault(
                "expected http://HOST:PORT, https://HOST:PORT, grpc://HOST:PORT or grpcs://HOST:PORT".into(),
            ));
        }
    }
    if let Some(at) = rest.find(['/', '?', '#', '@']) {
        let more = rest.get(at..).unwrap_or_default();
        return Err(fault(format!("expected a host and perhaps a port, and not '{more}'; a path goes into path")));
    }
    let text = json!({ "scheme": scheme, "nodes": { rest: 1 } }).to_string();
    let (upstream, found) = match Node::parse(&text) {
        Ok(parsed) => Upstream::from_node(&parsed.root),
        Err(error) => (None, vec![error]),
    };
    let error = || found.into_iter().find(Diagnostic::is_error).map(|found| *found.code);
    upstream.ok_or_else(|| error().map_or_else(|| fault(String::new()), |code| Invalid::coded("host", code)))
}

fn check_path(conf: &Conf) -> Result<(), Invalid> {
    let Some(path) = &conf.path else { return Ok(()) };
    let good = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'?' | b'&' | b'#'));
    if good {
        Ok(())
    } else {
        Err(Invalid::new("path", "expected a path that begins with '/', encoded, without a query"))
    }
}

/// An instance.
#[derive(Debug)]
struct Mirroring {
    number: u32,
    path: Option<Vec<u8>>,
    mode: ConcatMode,
    ratio: f64,
}

impl Mirroring {
    fn write_target(&self, request: &Request, out: &mut Vec<u8>) {
        let Some(path) = &self.path else { return request.write_upstream_target(out) };
        out.extend_from_slice(path);
        match self.mode {
            ConcatMode::Prefix => request.write_upstream_target(out),
            ConcatMode::Replace => {
                if let Some(query) = request.query().filter(|query| !query.is_empty()) {
                    out.push(b'?');
                    target::encode_query(query, out);
                }
            }
        }
    }
}

impl Plugin for Mirroring {
    fn upstream_request(&self, cx: &mut UpstreamCx<'_>) -> Flow {
        // A request is copied once, however many nodes are tried.
        if cx.attempt() == 0 && (self.ratio >= 1.0 || fastrand::f64() < self.ratio) {
            cx.mirror(self.number, |request, out| self.write_target(request, out));
        }
        Flow::Continue
    }
}
