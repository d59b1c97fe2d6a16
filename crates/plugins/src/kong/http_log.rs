//! Kong's `http-log`.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, Service, ServiceOptions};
use weir_telemetry::reports::{Destination, Frame, Post};
use weir_wire::name::FieldName;

use super::log::Logger;
use super::log::queue::Queue;
use super::tcp_log::no_lua;
use crate::observe;

/// The definition.
#[derive(Debug)]
pub(crate) struct HttpLog;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// URL of the collector.
    http_endpoint: String,
    /// Method; only `POST` is supported.
    #[serde(default = "post")]
    method: String,
    /// Media type of what is sent.
    #[serde(default = "json")]
    content_type: String,
    /// Milliseconds for sending and the answer.
    #[serde(default = "ten_thousand")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// Milliseconds for which idle connections are kept; the gateway keeps them by its own rules.
    #[serde(default, rename = "keepalive")]
    _keepalive: Option<f64>,
    /// Further fields of requests to the collector.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Queue of entries.
    #[serde(default)]
    queue: Queue,
    /// Tries of older versions, without effect beside `queue`.
    #[serde(default, rename = "retry_count")]
    _retry_count: Option<u64>,
    /// Entries of older versions in a request.
    queue_size: Option<usize>,
    /// Seconds of older versions after which entries are sent.
    flush_timeout: Option<f64>,
    /// Fields made by Lua; not supported.
    custom_fields_by_lua: Option<serde_json::Value>,
}

fn post() -> String {
    "POST".into()
}

fn json() -> String {
    "application/json".into()
}

fn ten_thousand() -> u64 {
    10_000
}

impl Define for HttpLog {
    const NAME: &'static str = "http-log";
    const PRIORITY: i32 = 12;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Sends an entry about each exchange to a collector.";
    const EXAMPLE: &'static str = "http_endpoint: http://127.0.0.1:9000/logs\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(Service::parse("http_endpoint", &conf.http_endpoint, ServiceOptions::default()).err());
        if conf.method != "POST" {
            cx.say([Invalid::new("method", "only POST is supported yet")]);
        }
        cx.say(no_lua(conf.custom_fields_by_lua.as_ref()));
        let is_field = |(name, value): (&String, &String)| {
            FieldName::new(name).is_some() && value.bytes().all(weir_wire::is_field_byte)
        };
        if !conf.headers.iter().all(is_field) || !conf.content_type.bytes().all(weir_wire::is_field_byte) {
            cx.say([Invalid::new("headers", "expected names and values of headers")]);
            return None;
        }
        let is_single = conf.queue_size.unwrap_or(conf.queue.max_batch_size) <= 1;
        let mut fields = vec![("Content-Type".to_owned(), conf.content_type)];
        fields.extend(conf.headers);
        let timeout = Duration::from_millis(conf.timeout);
        let to = Destination::Http(Post { uri: conf.http_endpoint.clone(), fields, timeout, verify: false });
        let frame = if is_single { Frame::Single } else { Frame::Array };
        let older = (conf.queue_size, conf.flush_timeout);
        let options = conf.queue.channel((Self::NAME, conf.http_endpoint), to, frame, older);
        Some(Compiled::build(move |build| Ok(Logger(observe::channel(options, build)))))
    }
}
