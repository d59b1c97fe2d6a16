//! `udp-logger`: entries about exchanges, in batches of a datagram each.

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Phases};
use weir_telemetry::reports::{Destination, Udp};

use super::batch::BatchConf;
use super::entry_conf::EntryConf;
use super::logging::{self, LoggerConf, LoggerMetadata, Plain};

/// The definition.
#[derive(Debug)]
pub(crate) struct UdpLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Name or address of the receiver.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port.
    port: u16,
    /// No effect: a datagram is sent without waiting for anybody.
    #[schemars(range(min = 1))]
    timeout: Option<u64>,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

impl Define for UdpLogger {
    const NAME: &'static str = "udp-logger";
    const PRIORITY: i32 = 400;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends an entry in JSON about every exchange to a receiver over UDP: a datagram for each batch, with a list of its \
entries, or with the entry alone where `batch_max_size` is 1. A batch ends early where it would not fit into a datagram \
(65,507 bytes), and a single entry that does not fit is dropped and counted. Nobody confirms a datagram: what gets lost on \
the way counts as sent.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
host: 127.0.0.1
port: 3000
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
        let Conf { host, port, timeout, .. } = conf;
        if timeout.is_some() {
            cx.warn("timeout", "it has no effect: a datagram is sent without waiting");
        }
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |batch, _| {
            Ok((Destination::Udp(Udp { host, port }), batch.array_or_single(), Plain))
        })
    }
}
