//! `skywalking-logger`: entries about exchanges, to Apache SkyWalking.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_expr::{Value, Variable};
use weir_plugin::{CompileCx, Compiled, Define, Phases, View};
use weir_telemetry::reports::{Check, Frame};
use weir_wire::name::FieldName;

use super::batch::BatchConf;
use super::collectors::{collector, endpoints};
use super::entry::{Bodies, Entry};
use super::entry_conf::EntryConf;
use super::json::{Object, end_nested, push_string, push_value};
use super::logging::{self, LoggerConf, LoggerMetadata, Render};

/// The definition.
#[derive(Debug)]
pub(crate) struct SkywalkingLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The OAP server, such as `http://127.0.0.1:12800`.
    endpoint_addr: String,
    /// Name of the service.
    #[serde(default = "service")]
    service_name: String,
    /// Name of the instance; `$hostname` is the name of the machine.
    #[serde(default = "instance")]
    service_instance_name: String,
    /// Seconds for a request.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

fn service() -> String {
    "APISIX".into()
}

fn instance() -> String {
    "APISIX Instance Name".into()
}

fn three() -> u64 {
    3
}

impl Define for SkywalkingLogger {
    const NAME: &'static str = "skywalking-logger";
    const PRIORITY: i32 = 408;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends an entry about every exchange to Apache SkyWalking (`/v3/logs`), within the trace that the request has told in its \
field `sw8`.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
endpoint_addr: http://127.0.0.1:12800
service_name: shop
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { endpoint_addr, service_name, service_instance_name, timeout, .. } = conf;
        let uris = vec![cx.ok(collector("endpoint_addr", &endpoint_addr, "/v3/logs"))?];
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            let fields = [("Content-Type".to_owned(), "application/json".to_owned())];
            let to = endpoints(uris, &fields, Duration::from_secs(timeout), false, Check::NoError);
            let instance = Some(service_instance_name).filter(|name| name != "$hostname");
            Ok((to, Frame::Array, Log { service: service_name, instance, trace: FieldName::constant("sw8") }))
        })
    }
}

/// An entry as a log of SkyWalking.
#[derive(Debug)]
struct Log {
    service: String,
    /// `None`: the name of the machine.
    instance: Option<String>,
    trace: FieldName,
}

impl Render for Log {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        let mut log = Object::begin(out);
        if let Some((trace, segment, span)) = x.request().field(&self.trace).and_then(ids) {
            log.nested("traceContext", |context| {
                push_string(context.key("traceId"), trace.text());
                push_string(context.key("traceSegmentId"), segment.text());
                push_value(context.key("spanId"), Value::Number(span));
            });
        }
        log.nested("body", |body| {
            body.nested("json", |json| {
                let out = json.key("json");
                out.push(b'"');
                let begin = out.len();
                entry.write(x, bodies, out);
                end_nested(out, begin);
            });
        });
        push_string(log.key("service"), self.service.as_bytes());
        match &self.instance {
            Some(name) => push_string(log.key("serviceInstance"), name.as_bytes()),
            None => {
                if let Some(name) = x.variable(&Variable::Hostname) {
                    push_value(log.key("serviceInstance"), name);
                }
            }
        }
        push_string(log.key("endpoint"), x.request().path());
        log.end();
    }
}

/// Most bytes of an id.
const LONGEST_ID: usize = 96;

/// An id of SkyWalking, decoded.
struct Id {
    bytes: [u8; LONGEST_ID],
    len: usize,
}

impl Id {
    fn decode(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; LONGEST_ID];
        let len = STANDARD.decode_slice(text, &mut bytes).ok()?;
        Some(Self { bytes, len })
    }

    fn text(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Ids of the trace and of the segment, and the number of the span, of a field with eight parts:
/// `1-TRACE-SEGMENT-SPAN-SERVICE-INSTANCE-ENDPOINT-ADDRESS`.
fn ids(value: &[u8]) -> Option<(Id, Id, u64)> {
    let mut parts = value.split(|byte| *byte == b'-');
    let (_, trace, segment, span) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if parts.count() != 4 {
        return None;
    }
    let span = std::str::from_utf8(span).ok()?.parse().ok()?;
    Some((Id::decode(trace)?, Id::decode(segment)?, span))
}
