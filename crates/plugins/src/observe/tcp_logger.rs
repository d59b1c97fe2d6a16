//! `tcp-logger`: entries about exchanges, in batches over a connection of TCP.

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Phases};
use weir_telemetry::reports::{Destination, Tcp, Tls};

use super::batch::BatchConf;
use super::entry_conf::EntryConf;
use super::logging::{self, LoggerConf, LoggerMetadata, Plain};

/// The definition.
#[derive(Debug)]
pub(crate) struct TcpLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Name or address of the server.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port.
    port: u16,
    /// Speaks TLS. The certificate of the server is not verified, as in APISIX.
    #[serde(default)]
    tls: bool,
    /// The server name for TLS. Unset: `host`.
    tls_options: Option<String>,
    /// Milliseconds for connecting, and for each write.
    #[serde(default = "thousand")]
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

fn thousand() -> u64 {
    1000
}

impl Define for TcpLogger {
    const NAME: &'static str = "tcp-logger";
    const PRIORITY: i32 = 405;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends an entry in JSON about every exchange to a server, over a connection of TCP for each batch: a list of the batch's \
entries, or the entry alone where `batch_max_size` is 1. The end of the connection is the end of the batch.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
host: 127.0.0.1
port: 5044
batch_max_size: 1
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
        let Conf { host, port, tls, tls_options, timeout, .. } = conf;
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |batch, _| {
            let tls = tls.then_some(Tls { server_name: tls_options, verify: false });
            let to = Tcp { host, port, tls, timeout: Duration::from_millis(timeout), is_kept: false };
            Ok((Destination::Tcp(to), batch.array_or_single(), Plain))
        })
    }
}
