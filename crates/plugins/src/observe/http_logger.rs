//! `http-logger`: entries about exchanges, in batches to a collector.

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, Service, ServiceOptions};
use weir_telemetry::reports::{Destination, Frame, Post};

use super::batch::BatchConf;
use super::entry_conf::EntryConf;
use super::logging::{self, LoggerConf, LoggerMetadata, Plain};

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
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
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

fn three() -> u64 {
    3
}

impl Define for HttpLogger {
    const NAME: &'static str = "http-logger";
    const PRIORITY: i32 = 410;
    const PHASES: Phases = logging::PHASES;
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
        let Conf { uri, auth_header, timeout, ssl_verify, concat_method, .. } = conf;
        cx.say(Service::parse("uri", &uri, ServiceOptions::default()).err());
        cx.say(check_auth_header(&auth_header).err());
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |batch, _| {
            let frame = match concat_method {
                _ if batch.is_single() => Frame::Single,
                ConcatMethod::Json => Frame::Array,
                ConcatMethod::NewLine => Frame::Lines,
            };
            let content_type = if concat_method == ConcatMethod::Json { "application/json" } else { "text/plain" };
            let mut fields = vec![("Content-Type".to_owned(), content_type.to_owned())];
            if !auth_header.is_empty() {
                fields.push(("Authorization".to_owned(), auth_header));
            }
            let post = Post { uri, fields, timeout: Duration::from_secs(timeout), verify: ssl_verify };
            Ok((Destination::Http(post), frame, Plain))
        })
    }
}

fn check_auth_header(text: &str) -> Result<(), Invalid> {
    let is_field = text.bytes().all(weir_wire::is_field_byte);
    is_field.then_some(()).ok_or_else(|| Invalid::new("auth_header", "expected a text without control characters"))
}
