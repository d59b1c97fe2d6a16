//! `datadog`: metrics of exchanges for an agent of Datadog, as DogStatsD takes them.

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_expr::{Value, Variable};
use weir_plugin::{CompileCx, Compiled, Define, HookCx, Invalid, LogCx, Named, Phases, Plugin, View};
use weir_telemetry::reports::{Channel, Destination, Frame, Udp};

use std::sync::Arc;

use super::batch::BatchConf;
use super::json::push_seconds_as_millis;

/// The definition.
#[derive(Debug)]
pub(crate) struct Datadog;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Tells routes and services by their names, where they have one, instead of their ids.
    #[serde(default = "yes")]
    prefer_name: bool,
    /// Adds the path pattern of the route as the tag `path`.
    #[serde(default)]
    include_path: bool,
    /// Adds the method as the tag `method`.
    #[serde(default)]
    include_method: bool,
    /// Further tags of this place.
    #[serde(default)]
    constant_tags: Vec<String>,
    #[serde(flatten)]
    batch: BatchConf,
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Name or address of the agent.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port.
    port: u16,
    /// Prefix of the names of metrics; empty: none.
    namespace: String,
    /// Tags of all metrics.
    constant_tags: Vec<String>,
    /// Most exchanges that wait to be sent; one more is dropped.
    #[schemars(range(min = 1))]
    max_pending_entries: Option<usize>,
}

impl Default for Metadata {
    fn default() -> Self {
        let (host, namespace, tags) = ("127.0.0.1".to_owned(), "apisix".to_owned(), vec!["source:apisix".to_owned()]);
        Self { host, port: 8125, namespace, constant_tags: tags, max_pending_entries: None }
    }
}

fn yes() -> bool {
    true
}

impl Define for Datadog {
    const NAME: &'static str = "datadog";
    const PRIORITY: i32 = 495;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "\
Sends metrics of every exchange to an agent of Datadog, with the protocol of DogStatsD: a datagram for each exchange, with \
\"request.counter\", \"request.latency\", \"upstream.latency\", \"apisix.latency\" (histograms in milliseconds), \"ingress.size\" and \
\"egress.size\" (in bytes), tagged with route, service, consumer, node, status and scheme.

Nobody confirms a datagram: what gets lost on the way counts as sent.

`plugin_metadata` says where the agent is (`host`, `port`), and has the `namespace` and the `constant_tags` of all metrics.";
    const EXAMPLE: &'static str = "\
prefer_name: true
include_path: true
constant_tags: [\"team:shop\"]
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        check_tags(&typed.constant_tags)
            .map_err(|fault| vec![Diagnostic::error(metadata.mark_of("constant_tags"), fault.path, *fault.code)])
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.ok(check_tags(&conf.constant_tags))?;
        Some(Compiled::build(move |build| {
            let Metadata { host, port, namespace, constant_tags, max_pending_entries } = build.metadata()?;
            let prefix = if namespace.is_empty() { namespace } else { namespace + "." };
            let tags = constant_tags.iter().chain(&conf.constant_tags).flat_map(|tag| [tag.as_str(), ","]).collect();
            let to = Destination::Udp(Udp { host, port });
            let options = conf.batch.channel(Self::NAME, to, Frame::Lengths, max_pending_entries);
            Ok(Reporting {
                prefix,
                tags,
                prefer_name: conf.prefer_name,
                include_path: conf.include_path,
                include_method: conf.include_method,
                channel: super::channel(options, build),
            })
        }))
    }
}

/// Checks tags by Datadog's rules: a letter first, and no colon at the end.
fn check_tags(tags: &[String]) -> Result<(), Invalid> {
    let is_tag = |tag: &String| {
        (1..=200).contains(&tag.chars().count())
            && tag.starts_with(char::is_alphabetic)
            && !tag.ends_with(':')
            && tag.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '/' | '-'))
    };
    match tags.iter().position(|tag| !is_tag(tag)) {
        Some(at) => Err(Invalid::new(
            format!("constant_tags[{at}]"),
            "expected 1 to 200 letters, digits and any of '_.:/-', a letter first and no ':' last",
        )),
        None => Ok(()),
    }
}

/// An instance.
#[derive(Debug)]
struct Reporting {
    prefix: String,
    /// Tags of the configuration, with a comma behind each.
    tags: String,
    prefer_name: bool,
    include_path: bool,
    include_method: bool,
    channel: Arc<Channel>,
}

impl Plugin for Reporting {
    fn log(&self, cx: &LogCx<'_>) {
        self.channel.report(|out| self.write(cx.view(), out));
    }
}

impl Reporting {
    /// Appends the metrics of an exchange, one a line.
    fn write(&self, x: View<'_>, out: &mut Vec<u8>) {
        let begin = out.len();
        let (whole, upstream) = (x.duration(), x.upstream_us());
        self.line(x, b"request.counter", b"c", out, |out| out.push(b'1'));
        self.line(x, b"request.latency", b"h", out, |out| push_seconds_as_millis(out, whole));
        if let Some(upstream) = upstream {
            self.line(x, b"upstream.latency", b"h", out, |out| push_seconds_as_millis(out, upstream));
        }
        let own = whole.saturating_sub(upstream.unwrap_or(0));
        self.line(x, b"apisix.latency", b"h", out, |out| push_seconds_as_millis(out, own));
        self.line(x, b"ingress.size", b"ms", out, |out| weir_wire::push_number(out, x.received()));
        self.line(x, b"egress.size", b"ms", out, |out| weir_wire::push_number(out, x.sent()));
        if out.len() > begin {
            out.pop();
        }
    }

    fn line(&self, x: View<'_>, name: &[u8], kind: &[u8], out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
        out.extend_from_slice(self.prefix.as_bytes());
        out.extend_from_slice(name);
        out.push(b':');
        value(out);
        out.push(b'|');
        out.extend_from_slice(kind);
        out.extend_from_slice(b"|#");
        self.push_tags(x, out);
        out.push(b'\n');
    }

    fn push_tags(&self, x: View<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(self.tags.as_bytes());
        let named = |name: Option<&Named>, id: Option<&Named>, key: &[u8], out: &mut Vec<u8>| {
            let name = name.filter(|name| self.prefer_name && !name.text.is_empty());
            if let Some(text) = name.or(id).map(|named| named.text.as_bytes()) {
                push_tag(key, text, out);
            }
        };
        if let Some(route) = x.route() {
            named(route.name.as_ref(), Some(&route.id), b"route_name", out);
            if let (true, Some(Value::Bytes(path))) = (self.include_path, x.variable(&Variable::MatchedUri)) {
                push_tag(b"path", path, out);
            }
        }
        if self.include_method {
            push_tag(b"method", x.request().method_bytes(), out);
        }
        if let Some(route) = x.route() {
            named(route.service_name.as_ref(), route.service_id.as_ref(), b"service_name", out);
        }
        if let Some(consumer) = x.consumer() {
            push_tag(b"consumer", consumer.name.text.as_bytes(), out);
        }
        if let Some(address) = x.variable(&Variable::BalancerIp) {
            out.extend_from_slice(b"balancer_ip:");
            address.write_to(out);
            out.push(b',');
        }
        let status = x.response().status();
        out.extend_from_slice(b"response_status:");
        weir_wire::push_number(out, u64::from(status));
        out.extend_from_slice(b",response_status_class:");
        weir_wire::push_number(out, u64::from(status / 100));
        out.extend_from_slice(b"xx,");
        push_tag(b"scheme", if x.client().https { b"https" } else { b"http" }, out);
        out.pop();
    }
}

/// Appends a tag with a comma behind it. Bytes with a meaning in the protocol become `_`: a client chooses its method.
fn push_tag(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if value.is_empty() {
        return;
    }
    out.extend_from_slice(key);
    out.push(b':');
    out.extend(value.iter().map(|byte| if matches!(byte, b',' | b'|' | b'#' | 0..b' ') { b'_' } else { *byte }));
    out.push(b',');
}
