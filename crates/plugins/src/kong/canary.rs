//! `canary` of Kong Enterprise: a share of the requests goes to another upstream.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use weir_config::{Node, Upstream};
use weir_plugin::{BuildCx, CompileCx, Compiled, Define, Flow, HookCx, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::consumer::id_of_consumer;

/// The definition.
#[derive(Debug)]
pub(crate) struct Canary;

/// Identity by which requests are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Hash {
    None,
    Consumer,
    Ip,
    Header,
    Allow,
    Deny,
}

/// Configuration of Kong Enterprise.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Share of the requests, from 0 to 100.
    #[schemars(range(min = 0, max = 100))]
    percentage: Option<f64>,
    /// Begin of a share that grows to all requests, in seconds since 1970; without it and `percentage` as soon as the
    /// configuration is in force.
    start: Option<f64>,
    /// Seconds in which such a share grows.
    #[schemars(range(min = 1))]
    duration: f64,
    /// Number of steps of a share.
    #[schemars(range(min = 2, max = 1000000))]
    steps: f64,
    /// Host of the other upstream, perhaps with a scheme before it; without it that of the service.
    upstream_host: Option<String>,
    /// Port of the other upstream; without it that of the service.
    #[schemars(range(min = 1))]
    upstream_port: Option<u16>,
    /// Path at the other upstream; without it that of the request.
    upstream_uri: Option<String>,
    /// Goes back to the service where the other upstream is unhealthy; not supported.
    upstream_fallback: bool,
    /// Identity by which requests are spread; those without it go by the client's address.
    hash: Hash,
    /// The header of `hash: header`.
    hash_header: Option<String>,
    /// Groups of consumers; not supported.
    groups: Option<Vec<String>>,
    /// Header that sends a request to the other upstream (`always`) or not (`never`).
    canary_by_header_name: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            percentage: None,
            start: None,
            duration: 3600.0,
            steps: 1000.0,
            upstream_host: None,
            upstream_port: None,
            upstream_uri: None,
            upstream_fallback: false,
            hash: Hash::Consumer,
            hash_header: None,
            groups: None,
            canary_by_header_name: None,
        }
    }
}

impl Conf {
    fn faults(&self) -> Vec<Invalid> {
        let is_empty = self.upstream_host.is_none() && self.upstream_uri.is_none();
        let is_path = |uri: &String| uri.starts_with('/') && uri.bytes().all(|byte| byte.is_ascii_graphic());
        [
            (is_empty, "upstream_host", "one of upstream_host and upstream_uri is needed"),
            (self.upstream_uri.as_ref().is_some_and(|uri| !is_path(uri)), "upstream_uri", "expected a path"),
            (self.upstream_fallback, "upstream_fallback", "not supported: expected false"),
            (
                matches!(self.hash, Hash::Allow | Hash::Deny) || self.groups.is_some(),
                "hash",
                "groups are not supported",
            ),
            (self.hash == Hash::Header && self.hash_header.is_none(), "hash_header", "required field missing"),
        ]
        .into_iter()
        .filter(|(is_wrong, ..)| *is_wrong)
        .map(|(_, field, text)| Invalid::new(field, text))
        .collect()
    }

    /// The other upstream; `None`: that of the service.
    fn upstream(&self, build: &BuildCx<'_>) -> Result<Option<u32>, Invalid> {
        let Some(host) = &self.upstream_host else { return Ok(None) };
        let (scheme, authority) = host.split_once("://").unwrap_or(("http", host));
        let port = self.upstream_port.map(|port| format!(":{port}")).unwrap_or_default();
        let bare = if port.is_empty() { authority } else { without_port(authority) };
        let nodes = format!("{bare}{port}");
        let text = json!({ "scheme": scheme, "nodes": { nodes: 1 }, "pass_host": "node" }).to_string();
        let parsed = Node::parse(&text).map_err(|_| Invalid::new("upstream_host", "expected a host"))?;
        match Upstream::from_node(&parsed.root).0 {
            Some(upstream) => build.inline_upstream("upstream_host", &upstream).map(Some),
            None => Err(Invalid::new("upstream_host", "expected a host")),
        }
    }
}

/// A host without its port; brackets belong to an IPv6 address.
fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => authority,
    }
}

impl Define for Canary {
    const NAME: &'static str = "canary";
    const PRIORITY: i32 = 20;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Sends a share of the requests to another upstream.";
    const EXAMPLE: &'static str = "{percentage: 10, upstream_host: next.test, upstream_port: 80}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(conf.faults());
        let named = |field: &str, name: Option<&String>| {
            let name = name
                .map(|name| FieldName::new(name).ok_or_else(|| Invalid::new(field, "expected the name of a header")));
            cx.ok(name.transpose())
        };
        let header = named("hash_header", conf.hash_header.as_ref().filter(|_| conf.hash == Hash::Header))?;
        let forced = named("canary_by_header_name", conf.canary_by_header_name.as_ref())?;
        Some(Compiled::build(move |build| {
            Ok(Shared {
                upstream: conf.upstream(build)?,
                path: conf.upstream_uri.map(String::into_bytes),
                percentage: conf.percentage,
                start: conf.start.map(|seconds| seconds * 1000.0),
                duration: conf.duration * 1000.0,
                steps: conf.steps.max(2.0) as u64,
                hash: conf.hash,
                header,
                forced,
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Shared {
    upstream: Option<u32>,
    path: Option<Vec<u8>>,
    percentage: Option<f64>,
    /// Milliseconds since 1970.
    start: Option<f64>,
    /// Milliseconds.
    duration: f64,
    steps: u64,
    hash: Hash,
    header: Option<FieldName>,
    /// Header that decides alone.
    forced: Option<FieldName>,
}

impl Plugin for Shared {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let forced = self.forced.as_ref().and_then(|name| cx.request().field(name));
        let is_chosen = match forced {
            Some(b"always") => true,
            Some(b"never") => false,
            _ => self.step(cx) < self.share(cx.unix_ms()),
        };
        if !is_chosen {
            return Flow::Continue;
        }
        if let Some(number) = self.upstream {
            cx.choose_upstream(Some(number));
        }
        if let Some(path) = &self.path {
            let request = cx.request_mut();
            let mut target = std::mem::take(&mut request.upstream.target);
            target.clear();
            target.extend_from_slice(path);
            if let Some(query) = request.query() {
                target.push(b'?');
                weir_wire::target::encode_query(query, &mut target);
            }
            request.upstream.target = target;
        }
        Flow::Continue
    }
}

impl Shared {
    /// Steps of the share of the other upstream.
    fn share(&self, now: u64) -> u64 {
        let part = match (self.percentage, self.start) {
            (Some(percentage), _) => percentage / 100.0,
            (None, Some(start)) => (now as f64 - start) / self.duration,
            (None, None) => 1.0,
        };
        (part.clamp(0.0, 1.0) * self.steps as f64).round() as u64
    }

    /// Step of a request: the same for the same identity.
    fn step(&self, cx: &RequestCx<'_>) -> u64 {
        let identity = match self.hash {
            Hash::None => return fastrand::u64(0..self.steps),
            Hash::Header => self.header.as_ref().and_then(|name| cx.request().field(name)),
            Hash::Consumer => id_of_consumer(cx),
            Hash::Ip | Hash::Allow | Hash::Deny => None,
        };
        let mut sum = flate2::Crc::new();
        sum.update(identity.unwrap_or_else(|| cx.view().client().addr_text.as_bytes()));
        u64::from(sum.sum()) % self.steps
    }
}
