//! Kong's `http-log`.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, Service, ServiceOptions};
use weir_telemetry::reports::{ChannelOptions, Destination, Frame, Post};
use weir_wire::name::FieldName;

use super::log::Logger;
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

/// Queue of entries.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Queue {
    /// Most entries in a request.
    #[schemars(range(min = 1, max = 1000000))]
    max_batch_size: usize,
    /// Seconds after which entries are sent.
    #[schemars(range(min = 0, max = 3600))]
    max_coalescing_delay: f64,
    /// Most entries that wait.
    #[schemars(range(min = 1, max = 1000000))]
    max_entries: usize,
    /// Most bytes that wait; the setting `reports.memory` bounds them.
    #[serde(rename = "max_bytes")]
    _max_bytes: Option<f64>,
    /// Seconds before the first repetition, doubled for each further one.
    #[schemars(range(min = 0.001, max = 1000000))]
    initial_retry_delay: f64,
    /// The longest of these; the gateway's is a minute.
    #[serde(rename = "max_retry_delay")]
    _max_retry_delay: f64,
    /// Seconds after which a request is given up.
    #[schemars(range(min = 0))]
    max_retry_time: f64,
    /// Requests at one time.
    #[serde(rename = "concurrency_limit")]
    _concurrency_limit: f64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            max_batch_size: 1,
            max_coalescing_delay: 1.0,
            max_entries: 10_000,
            _max_bytes: None,
            initial_retry_delay: 0.01,
            _max_retry_delay: 60.0,
            max_retry_time: 60.0,
            _concurrency_limit: 1.0,
        }
    }
}

impl Queue {
    /// Number of repetitions within `max_retry_time`.
    fn retries(&self) -> u32 {
        let (mut delay, mut total, mut count) = (self.initial_retry_delay, 0.0, 0);
        while total + delay <= self.max_retry_time && count < 100 {
            total += delay;
            delay = (delay * 2.0).min(60.0);
            count += 1;
        }
        count
    }
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
        if conf.custom_fields_by_lua.is_some() {
            cx.say([Invalid::new("custom_fields_by_lua", "Lua is not supported yet")]);
        }
        let is_field = |(name, value): (&String, &String)| {
            FieldName::new(name).is_some() && value.bytes().all(weir_wire::is_field_byte)
        };
        if !conf.headers.iter().all(is_field) || !conf.content_type.bytes().all(weir_wire::is_field_byte) {
            cx.say([Invalid::new("headers", "expected names and values of headers")]);
            return None;
        }
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let batch = conf.queue_size.unwrap_or(conf.queue.max_batch_size).max(1);
        let age = seconds(conf.flush_timeout.unwrap_or(conf.queue.max_coalescing_delay));
        let mut fields = vec![("Content-Type".to_owned(), conf.content_type)];
        fields.extend(conf.headers);
        let timeout = Duration::from_millis(conf.timeout);
        let destination = Post { uri: conf.http_endpoint.clone(), fields, timeout, verify: false };
        let options = ChannelOptions {
            plugin: Self::NAME,
            name: conf.http_endpoint,
            destination: Destination::Http(destination),
            frame: if batch == 1 { Frame::Single } else { Frame::Array },
            batch_records: batch,
            batch_age: age,
            batch_idle: age,
            max_pending: Some(conf.queue.max_entries),
            retries: conf.queue.retries(),
            retry_delay: seconds(conf.queue.initial_retry_delay),
        };
        Some(Compiled::build(move |build| Ok(Logger(observe::channel(options, build)))))
    }
}
