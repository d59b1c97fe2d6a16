//! `lago`: events about exchanges, to Lago, which makes bills of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_expr::{Source, Template, Value};
use weir_plugin::{CompileCx, Compiled, Define, HookCx, Invalid, LogCx, Phases, Plugin};
use weir_telemetry::reports::{Channel, Check, Frame};

use super::batch::BatchConf;
use super::collectors::{collectors, endpoints};
use super::json::{Object, end_string, push_object, push_string, push_value};

/// The definition.
#[derive(Debug)]
pub(crate) struct Lago;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Servers, such as `https://api.getlago.com`: each batch goes to one of them.
    #[schemars(length(min = 1))]
    endpoint_addrs: Vec<String>,
    /// Path of the API for batches of events.
    #[serde(default = "batch_api")]
    #[schemars(length(min = 1), regex(pattern = "^/"))]
    endpoint_uri: String,
    /// Key of the API.
    token: String,
    /// The id of an event, by which Lago counts an event once, such as `req_${request_id}`. Variables are replaced in it and in
    /// the two that follow.
    event_transaction_id: String,
    /// The id of the subscription that an event belongs to, such as `cus_${consumer_name}`.
    event_subscription_id: String,
    /// The code of the billable metric.
    event_code: String,
    /// Properties of an event: names with texts in which variables such as `$status` are replaced.
    #[serde(default)]
    event_properties: BTreeMap<String, String>,
    /// Verifies the certificates of the servers, by an authority of `tls.trusted_certificate`.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// Milliseconds for a request.
    #[serde(default = "three_seconds")]
    #[schemars(range(min = 1, max = 60_000))]
    timeout: u64,
    /// No effect: connections are kept for 15 seconds.
    keepalive: Option<bool>,
    /// No effect, as above.
    #[schemars(range(min = 1000))]
    keepalive_timeout: Option<u64>,
    /// No effect, as above.
    #[schemars(range(min = 1))]
    keepalive_pool: Option<u64>,
    #[serde(flatten)]
    batch: BatchConf<100>,
}

/// The plugin's metadata.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Metadata {
    /// Most events of one destination that wait to be sent; one more is dropped.
    #[schemars(range(min = 1))]
    max_pending_entries: Option<usize>,
}

fn yes() -> bool {
    true
}

fn three_seconds() -> u64 {
    3000
}

fn batch_api() -> String {
    "/api/v1/events/batch".into()
}

impl Define for Lago {
    const NAME: &'static str = "lago";
    const PRIORITY: i32 = 415;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "\
Sends an event about every exchange to Lago, which meters and bills usage: with the ids and the code of the configuration, the \
time at which the request began, and `event_properties`.

Batches are made and sent as those of [http-logger](http-logger.md), of up to 100 events, which is the most that Lago takes: a \
batch that fails is tried again by `max_retry_count` and `retry_delay`, and no request waits for any of it. An event that could \
not be sent is lost unless `reports.spill` is set: set it where bills depend on it.

`plugin_metadata` has `max_pending_entries`.";
    const EXAMPLE: &'static str = "\
endpoint_addrs: [\"http://127.0.0.1:3000\"]
token: 1d2f3a4b
event_transaction_id: req_${request_id}
event_subscription_id: cus_${consumer_name}
event_code: requests
event_properties: {status: $status, uri: $uri}
";
    const TEMPLATES: &'static [&'static str] = &["event_transaction_id", "event_subscription_id", "event_properties.*"];
    const ENCRYPTED: &'static [&'static str] = &["token"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        weir_config::schema::read::<Metadata>(metadata).map(|_| ())
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        for (field, is_given) in [
            ("keepalive", conf.keepalive.is_some()),
            ("keepalive_timeout", conf.keepalive_timeout.is_some()),
            ("keepalive_pool", conf.keepalive_pool.is_some()),
        ] {
            if is_given {
                cx.warn(field, "it has no effect: connections are kept by the gateway's own rules");
            }
        }
        if !conf.token.bytes().all(weir_wire::is_field_byte) {
            cx.say([Invalid::new("token", "expected a text without control characters")]);
            return None;
        }
        let uris = cx.ok(collectors("endpoint_addrs", &conf.endpoint_addrs, &conf.endpoint_uri))?;
        let template = |place: &str, text: &str| {
            cx.ok(Template::parse_lenient(text, false).map_err(|error| Invalid::new(place, error.to_string())))
        };
        let transaction = template("event_transaction_id", &conf.event_transaction_id)?;
        let subscription = template("event_subscription_id", &conf.event_subscription_id)?;
        let property = |(name, text): (&String, &String)| {
            Some((name.as_str().into(), template(&format!("event_properties.{name}"), text)?))
        };
        let properties = conf.event_properties.iter().map(property).collect::<Option<_>>()?;
        Some(Compiled::build(move |build| {
            let Metadata { max_pending_entries } = build.metadata()?;
            let fields =
                [("Content-Type", "application/json".to_owned()), ("Authorization", format!("Bearer {}", conf.token))];
            let fields = fields.map(|(name, value)| (name.to_owned(), value));
            let to = endpoints(uris, &fields, Duration::from_millis(conf.timeout), conf.ssl_verify, Check::Success);
            let frame = Frame::Texts { begin: "{\"events\":[".into(), between: ",", end: "]}" };
            let options = conf.batch.channel(Self::NAME, to, frame, max_pending_entries);
            Ok(Metering {
                transaction,
                subscription,
                code: conf.event_code.into(),
                properties,
                channel: super::channel(options, build),
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Metering {
    transaction: Template,
    subscription: Template,
    code: Box<str>,
    properties: Box<[(Box<str>, Template)]>,
    channel: Arc<Channel>,
}

impl Plugin for Metering {
    fn log(&self, cx: &LogCx<'_>) {
        self.channel.report(|out| push_object(out, |event| self.write(cx, event)));
    }
}

impl Metering {
    fn write(&self, cx: &LogCx<'_>, event: &mut Object<'_>) {
        let source = cx.source();
        push_template(event.key("transaction_id"), &self.transaction, source);
        push_template(event.key("external_subscription_id"), &self.subscription, source);
        push_string(event.key("code"), self.code.as_bytes());
        push_value(event.key("timestamp"), Value::Millis(cx.view().unix_ms()));
        if !self.properties.is_empty() {
            event.nested("properties", |properties| {
                for (name, text) in &self.properties {
                    push_template(properties.escaped_key(name.as_bytes()), text, source);
                }
            });
        }
    }
}

/// Appends a text in JSON, with its variables replaced.
fn push_template(out: &mut Vec<u8>, text: &Template, source: &dyn Source) {
    out.push(b'"');
    let begin = out.len();
    text.render(source, out);
    end_string(out, begin);
}
