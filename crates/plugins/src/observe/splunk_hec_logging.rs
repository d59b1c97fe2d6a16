//! `splunk-hec-logging`: entries about exchanges, to Splunk's HTTP event collector.

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_expr::{Value, Variable};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, Service, ServiceOptions, View};
use weir_telemetry::reports::{Check, Frame};

use super::batch::BatchConf;
use super::collectors::endpoints;
use super::entry::{Bodies, Entry, push_url, write_arguments, write_fields};
use super::entry_conf::OwnFormats;
use super::json::{Object, push_seconds_as_millis, push_string, push_value};
use super::logging::{self, LoggerConf, LoggerMetadata, Render};

/// The definition.
#[derive(Debug)]
pub(crate) struct SplunkHecLogging;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The collector.
    endpoint: Endpoint,
    /// Verifies the certificate of the collector, by an authority of `tls.trusted_certificate`.
    #[serde(default = "yes")]
    ssl_verify: bool,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    formats: OwnFormats,
}

/// A collector of Splunk.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    /// Its URI, such as `https://splunk.test:8088/services/collector`.
    uri: String,
    /// Its token.
    token: String,
    /// The channel of the events.
    channel: Option<String>,
    /// Seconds for a request.
    #[serde(default = "ten")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// No effect: connections are kept for 15 seconds.
    #[schemars(range(min = 1000))]
    keepalive_timeout: Option<u64>,
}

fn yes() -> bool {
    true
}

fn ten() -> u64 {
    10
}

impl Define for SplunkHecLogging {
    const NAME: &'static str = "splunk-hec-logging";
    const PRIORITY: i32 = 409;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "\
Sends an event about every exchange to Splunk's HTTP event collector: with APISIX's fields (`request_url`, \
`response_status`, `latency` and so on), or with those of `log_format`.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
endpoint:
  uri: http://127.0.0.1:8088/services/collector
  token: BD274822-96AA-4DA6-90EC-18940FB2414C
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;
    const ENCRYPTED: &'static [&'static str] = &["endpoint.token"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { endpoint, ssl_verify, .. } = conf;
        cx.say(Service::parse("endpoint.uri", &endpoint.uri, ServiceOptions::default()).err());
        let is_field = |text: &str| text.bytes().all(weir_wire::is_field_byte);
        let channel = endpoint.channel.unwrap_or_default();
        if !is_field(&endpoint.token) || !is_field(&channel) {
            cx.say([Invalid::new("endpoint", "expected a token and a channel without control characters")]);
            return None;
        }
        if endpoint.keepalive_timeout.is_some() {
            cx.warn("endpoint.keepalive_timeout", "it has no effect: connections are kept by the gateway's own rules");
        }
        let logger = LoggerConf {
            entry: conf.formats.into(),
            include_req_body_expr: None,
            include_resp_body_expr: None,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            let mut fields = vec![
                ("Content-Type".to_owned(), "application/json".to_owned()),
                ("Authorization".to_owned(), format!("Splunk {}", endpoint.token)),
            ];
            if !channel.is_empty() {
                fields.push(("X-Splunk-Request-Channel".to_owned(), channel));
            }
            let timeout = Duration::from_secs(endpoint.timeout);
            let to = endpoints(vec![endpoint.uri], &fields, timeout, ssl_verify, Check::Success);
            Ok((to, Frame::joined(), Event))
        })
    }
}

/// An entry as an event of Splunk.
#[derive(Debug)]
struct Event;

impl Render for Event {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        let mut event = Object::begin(out);
        push_value(event.key("time"), Value::Millis(x.unix_ms() + x.duration() / 1000));
        push_string(event.key("source"), b"apache-apisix-splunk-hec-logging");
        push_string(event.key("sourcetype"), b"_json");
        if let Some(host) = x.variable(&Variable::Hostname) {
            push_value(event.key("host"), host);
        }
        match entry.format {
            Some(_) => entry.write(x, bodies, event.key("event")),
            None => event.nested("event", |object| write_event(entry, x, object)),
        }
        event.end();
    }
}

fn write_event(entry: &Entry, x: View<'_>, object: &mut Object<'_>) {
    let (request, response) = (x.request(), x.response());
    push_url(x, object.key("request_url"));
    push_string(object.key("request_method"), request.method_bytes());
    let base = request.buffer.bytes();
    object.nested("request_headers", |headers| write_fields(|| request.head.fields.iter(base), headers));
    object.nested("request_query", |arguments| write_arguments(request, arguments));
    push_value(object.key("request_size"), Value::Number(x.received()));
    let base = response.buffer.bytes();
    object.nested("response_headers", |headers| write_fields(|| response.head.fields.iter(base), headers));
    push_value(object.key("response_status"), Value::Number(u64::from(response.status())));
    push_value(object.key("response_size"), Value::Number(x.sent()));
    push_seconds_as_millis(object.key("latency"), x.duration());
    if let Some(address) = x.variable(&Variable::UpstreamAddr) {
        push_value(object.key("upstream"), address);
    }
    entry.extra.write(x.source(), object);
}
