//! `sls-logger`: entries about exchanges, to Alibaba Cloud's log service.

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Phases, View};
use weir_telemetry::reports::{Destination, Frame, Tcp, Tls};

use super::batch::BatchConf;
use super::entry::{Bodies, Entry};
use super::entry_conf::EntryConf;
use super::logging::{self, LoggerConf, LoggerMetadata, Render};
use super::syslog_message::{INFO, SYSLOG, push_head, push_parameter};

/// The definition.
#[derive(Debug)]
pub(crate) struct SlsLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Name or address of the service.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port.
    port: u16,
    /// The project.
    project: String,
    /// The store of logs within the project.
    logstore: String,
    /// Id of the access key.
    access_key_id: String,
    /// The access key.
    access_key_secret: String,
    /// Verifies the certificate of the service, by an authority of `tls.trusted_certificate` and for `host`.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// Milliseconds for connecting, and for each write.
    #[serde(default = "five_thousand")]
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

fn yes() -> bool {
    true
}

fn five_thousand() -> u64 {
    5000
}

impl Define for SlsLogger {
    const NAME: &'static str = "sls-logger";
    const PRIORITY: i32 = 406;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends a message of syslog (RFC 5424) about every exchange to the log service of Alibaba Cloud, over TLS: project, store and \
access key as structured data `logservice`, and an entry in JSON as the text.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
host: 127.0.0.1
port: 10009
project: shop
logstore: requests
access_key_id: id
access_key_secret: secret
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;
    const ENCRYPTED: &'static [&'static str] = &["access_key_secret"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { host, port, ssl_verify, timeout, .. } = conf;
        let mut data = b" - [logservice".to_vec();
        let parameters = [
            ("project", &conf.project),
            ("logstore", &conf.logstore),
            ("access-key-id", &conf.access_key_id),
            ("access-key-secret", &conf.access_key_secret),
        ];
        parameters.iter().for_each(|(name, value)| push_parameter(name, value, &mut data));
        data.extend_from_slice(b"] ");
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            let tls = Some(Tls { server_name: None, verify: ssl_verify });
            let to = Tcp { host, port, tls, timeout: Duration::from_millis(timeout), is_kept: true };
            Ok((Destination::Tcp(to), Frame::LineEnds, Message { data }))
        })
    }
}

/// An entry as a message of syslog with structured data.
struct Message {
    /// Id of the message, and the structured data with the access key.
    data: Vec<u8>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").finish_non_exhaustive()
    }
}

impl Render for Message {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        push_head(SYSLOG, INFO, x, out);
        out.extend_from_slice(&self.data);
        entry.write(x, bodies, out);
    }
}
