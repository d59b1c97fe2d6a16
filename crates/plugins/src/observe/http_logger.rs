//! `http-logger`: entries about exchanges, in batches to a collector.

use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Flow, HookCx, Invalid, LogCx, Phases, Plugin, RequestBodyCx, RequestCx,
    ResponseCx, Service, ServiceOptions,
};
use weir_telemetry::reports::{Channel, ChannelOptions, Destination, Frame, Post};

use super::body::Capture;
use super::entry::Entry;
use super::entry_conf::{EntryConf, FormatConf};

/// The definition.
#[derive(Debug)]
pub(crate) struct HttpLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The collector: `http://HOST:PORT/PATH` or `https://HOST:PORT/PATH`.
    uri: String,
    /// The `Authorization` of requests to the collector. Empty: none.
    #[serde(default)]
    auth_header: String,
    /// Seconds for a request to the collector.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// Verifies the certificate of the collector, by an authority of `tls.trusted_certificate` and for the name in
    /// `uri`.
    #[serde(default)]
    ssl_verify: bool,
    /// The form of a batch. `json`: a list of its entries. `new_line`: its entries with a line feed between them. A
    /// batch of one (`batch_max_size: 1`) is the entry alone.
    #[serde(default)]
    concat_method: ConcatMethod,
    /// A name for the log.
    #[serde(default = "name")]
    name: String,
    /// Entries after which a batch is sent.
    #[serde(default = "thousand")]
    #[schemars(range(min = 1))]
    batch_max_size: usize,
    /// Seconds without a further entry after which a batch is sent.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    inactive_timeout: u64,
    /// Seconds after its first entry at which a batch is sent.
    #[serde(default = "minute")]
    #[schemars(range(min = 1))]
    buffer_duration: u64,
    /// Further attempts to send a batch, after which it is spilled (`reports.spill`) or dropped.
    #[serde(default)]
    max_retry_count: u32,
    /// Seconds before the first of them, and twice as long before each further one, up to a minute.
    #[serde(default = "one")]
    retry_delay: u64,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    entry: EntryConf,
}

/// The form of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum ConcatMethod {
    #[default]
    Json,
    NewLine,
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    #[serde(flatten)]
    formats: FormatConf,
    /// Most entries of one collector that wait to be sent; one more is dropped.
    #[schemars(range(min = 1))]
    max_pending_entries: Option<usize>,
}

fn one() -> u64 {
    1
}

fn three() -> u64 {
    3
}

fn five() -> u64 {
    5
}

fn minute() -> u64 {
    60
}

fn thousand() -> usize {
    1000
}

fn name() -> String {
    "http logger".into()
}

impl Define for HttpLogger {
    const NAME: &'static str = "http-logger";
    const PRIORITY: i32 = 410;
    const PHASES: Phases =
        Phases::ACCESS.and(Phases::REQUEST_BODY).and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);
    const DOC: &'static str = "\
Sends an entry in JSON about every exchange to a collector, with POST, when the exchange is over. Entries are sent in \
batches, and no request waits for that: the worker copies its entry into a ring (`reports.buffer`), from which another \
thread takes it. An answer of 400 or more, or none, is a failure; the batch is tried again by `max_retry_count` and \
`retry_delay`.

Batches that wait share `reports.memory`. What has no room is dropped and counted (`weir_reports_total`), or goes to a \
file where `reports.spill` names a folder for that, from which it is sent when the collector takes batches again, also \
after a restart. At the end of the process, and when nothing is configured for a collector any more, what waits is sent \
at once.

Routes with the same collector and batches share them.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
uri: http://127.0.0.1:9000/logs
auth_header: Basic d2Vpcjp3ZWly
batch_max_size: 200
max_retry_count: 3
log_format:
  host: $host
  status: $status
  client: {ip: $remote_addr, agent: $http_user_agent}
";
    const ENCRYPTED: &'static [&'static str] = &["auth_header"];
    const TEMPLATES: &'static [&'static str] = &["log_format.*", "log_format_extra.*"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        typed.formats.check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(Service::parse("uri", &conf.uri, ServiceOptions::default()).err());
        let formats = conf.entry.formats(cx);
        cx.say(check_auth_header(&conf.auth_header).err());
        let formats = formats?;
        Some(Compiled::build(move |build| {
            let metadata = build.metadata::<Metadata>()?;
            let seconds = Duration::from_secs;
            let frame = match conf.concat_method {
                _ if conf.batch_max_size == 1 => Frame::Single,
                ConcatMethod::Json => Frame::Array,
                ConcatMethod::NewLine => Frame::Lines,
            };
            let content_type = if conf.concat_method == ConcatMethod::Json { "application/json" } else { "text/plain" };
            let mut fields = vec![("Content-Type".to_owned(), content_type.to_owned())];
            if !conf.auth_header.is_empty() {
                fields.push(("Authorization".to_owned(), conf.auth_header));
            }
            let post = Post { uri: conf.uri, fields, timeout: seconds(conf.timeout), verify: conf.ssl_verify };
            let options = ChannelOptions {
                plugin: Self::NAME,
                name: conf.name,
                destination: Destination::Http(post),
                frame,
                batch_records: conf.batch_max_size,
                batch_age: seconds(conf.buffer_duration),
                batch_idle: seconds(conf.inactive_timeout),
                max_pending: metadata.max_pending_entries,
                retries: conf.max_retry_count,
                retry_delay: seconds(conf.retry_delay),
            };
            Ok(Logging {
                entry: formats.entry(&metadata.formats, build)?,
                capture: conf.entry.capture(conf.include_req_body_expr, conf.include_resp_body_expr),
                matches: None,
                channel: super::channel(options, build),
            })
        }))
    }
}

fn check_auth_header(text: &str) -> Result<(), Invalid> {
    let is_field = text.bytes().all(weir_wire::is_field_byte);
    is_field.then_some(()).ok_or_else(|| Invalid::new("auth_header", "expected a text without control characters"))
}

/// An instance of a logger.
#[derive(Debug)]
pub(super) struct Logging {
    pub(super) entry: Entry,
    pub(super) capture: Capture,
    /// Only exchanges of which one of these holds are reported.
    pub(super) matches: Option<Box<[weir_expr::Expr]>>,
    pub(super) channel: Arc<Channel>,
}

impl Plugin for Logging {
    fn phases(&self, _: Phases) -> Phases {
        let of_request = Phases::ACCESS.and(Phases::REQUEST_BODY);
        let request = if self.capture.request.is_some() { of_request } else { Phases::NONE };
        let response = if self.capture.response.is_some() { Phases::RESPONSE.and(Phases::BODY) } else { Phases::NONE };
        Phases::LOG.and(request).and(response)
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.capture.on_request(cx)
    }

    fn request_body(&self, cx: &mut RequestBodyCx<'_>, piece: &mut Vec<u8>, _: bool) -> Flow {
        self.capture.on_request_body(cx, piece);
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        self.capture.on_response(cx);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, _: bool) -> Flow {
        self.capture.on_body(cx, piece);
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        if self.matches.as_ref().is_some_and(|all| !all.iter().any(|one| one.eval(cx.source()))) {
            return;
        }
        self.channel.report(|out| self.entry.write(cx.view(), self.capture.bodies(cx), out));
    }
}
