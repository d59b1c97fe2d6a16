//! `loki-logger`: entries about exchanges, to Grafana Loki.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_expr::Template;
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, View};
use weir_telemetry::reports::{Check, Frame};

use super::batch::BatchConf;
use super::collectors::{check_headers, collectors, endpoints};
use super::entry::{Bodies, Entry};
use super::entry_conf::EntryConf;
use super::json::{end_nested, end_string, push_string};
use super::logging::{self, LoggerConf, LoggerMetadata, Render};

/// The definition.
#[derive(Debug)]
pub(crate) struct LokiLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Servers, such as `http://127.0.0.1:3100`: each batch goes to one of them.
    #[schemars(length(min = 1))]
    endpoint_addrs: Vec<String>,
    /// Path of the API for pushes.
    #[serde(default = "push_path")]
    #[schemars(length(min = 1))]
    endpoint_uri: String,
    /// The tenant, sent as `X-Scope-OrgID`.
    #[serde(default = "tenant")]
    tenant_id: String,
    /// Further fields of requests.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Labels of the stream that an entry belongs to; variables such as `$service_name` are replaced.
    #[serde(default = "labels")]
    log_labels: BTreeMap<String, String>,
    /// Verifies the certificates of the servers, by an authority of `tls.trusted_certificate`.
    #[serde(default)]
    ssl_verify: bool,
    /// Milliseconds for a request.
    #[serde(default = "three_thousand")]
    #[schemars(range(min = 1, max = 60000))]
    timeout: u64,
    /// No effect: connections are kept.
    keepalive: Option<bool>,
    /// No effect: connections are kept for 15 seconds.
    #[schemars(range(min = 1000))]
    keepalive_timeout: Option<u64>,
    /// No effect: batches are sent one after the other.
    #[schemars(range(min = 1))]
    keepalive_pool: Option<u64>,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

fn push_path() -> String {
    "/loki/api/v1/push".into()
}

fn tenant() -> String {
    "fake".into()
}

fn labels() -> BTreeMap<String, String> {
    [("job".to_owned(), "apisix".to_owned())].into()
}

fn three_thousand() -> u64 {
    3000
}

impl Define for LokiLogger {
    const NAME: &'static str = "loki-logger";
    const PRIORITY: i32 = 414;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Pushes an entry in JSON about every exchange to Grafana Loki, as a line of the stream with the labels of `log_labels`, at \
the time at which the request began.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
endpoint_addrs: [\"http://127.0.0.1:3100\"]
tenant_id: shop
log_labels: {job: apisix, service: $service_name}
";
    const TEMPLATES: &'static [&'static str] = &["log_format.*", "log_format_extra.*", "log_labels.*"];
    const ENCRYPTED: &'static [&'static str] = &["headers"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { endpoint_addrs, endpoint_uri, tenant_id, headers, ssl_verify, timeout, .. } = conf;
        let unused = [
            ("keepalive", conf.keepalive.is_some()),
            ("keepalive_timeout", conf.keepalive_timeout.is_some()),
            ("keepalive_pool", conf.keepalive_pool.is_some()),
        ];
        for (field, _) in unused.into_iter().filter(|(_, is_set)| *is_set) {
            cx.warn(field, "it has no effect: connections are kept by the gateway's own rules");
        }
        cx.ok(check_headers("headers", &headers))?;
        let uris = cx.ok(collectors("endpoint_addrs", &endpoint_addrs, &endpoint_uri))?;
        let labels = cx.ok(Labels::new(&conf.log_labels))?;
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            let mut fields: Vec<_> = headers.into_iter().collect();
            fields.push(("X-Scope-OrgID".to_owned(), tenant_id));
            fields.push(("Content-Type".to_owned(), "application/json".to_owned()));
            let to = endpoints(uris, &fields, Duration::from_millis(timeout), ssl_verify, Check::Success);
            let frame = Frame::Texts { begin: "{\"streams\":[".into(), between: ",", end: "]}" };
            Ok((to, frame, Stream { labels }))
        })
    }
}

/// An entry as a stream with one value.
#[derive(Debug)]
struct Stream {
    labels: Labels,
}

/// The labels of a stream.
#[derive(Debug)]
struct Labels(Box<[Label]>);

#[derive(Debug)]
struct Label {
    /// The name in JSON, with its colon.
    name: Vec<u8>,
    value: Template,
}

impl Labels {
    fn new(labels: &BTreeMap<String, String>) -> Result<Self, Invalid> {
        let compiled = labels.iter().map(|(name, value)| {
            let place = format!("log_labels.{name}");
            if value.is_empty() {
                return Err(Invalid::new(place, "expected a text that is not empty"));
            }
            let value = Template::parse_lenient(value, false);
            let value = value.map_err(|error| Invalid::new(place, error.to_string()))?;
            let mut json = Vec::new();
            push_string(&mut json, name.as_bytes());
            json.push(b':');
            Ok(Label { name: json, value })
        });
        compiled.collect::<Result<_, _>>().map(Self)
    }
}

impl Render for Stream {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"stream\":{");
        for (at, Label { name, value }) in self.labels.0.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(name);
            out.push(b'"');
            let begin = out.len();
            value.render(x.source(), out);
            end_string(out, begin);
        }
        out.extend_from_slice(b"},\"values\":[[\"");
        weir_wire::push_number(out, x.unix_ms());
        // Nanoseconds.
        out.extend_from_slice(b"000000\",\"");
        let begin = out.len();
        entry.write(x, bodies, out);
        end_nested(out, begin);
        out.extend_from_slice(b"]]}");
    }
}
