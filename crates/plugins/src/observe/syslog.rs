//! `syslog`: entries about exchanges, as messages of syslog.

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, View};
use weir_telemetry::reports::{Destination, Frame, Tcp, Tls, Udp};

use super::batch::BatchConf;
use super::entry::{Bodies, Entry};
use super::entry_conf::EntryConf;
use super::logging::{self, LoggerConf, LoggerMetadata, Render};
use super::syslog_message::{INFO, SYSLOG, push_head};

/// The definition.
#[derive(Debug)]
pub(crate) struct Syslog;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Name or address of the server.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port.
    port: u16,
    /// `tcp`: messages end with a line feed (RFC 6587 section 3.4.2), over a connection that is kept. `udp`: a datagram for each
    /// message (RFC 5426).
    #[serde(default)]
    sock_type: SocketType,
    /// Speaks TLS over TCP. The certificate of the server is not verified, as in APISIX.
    #[serde(default)]
    tls: bool,
    /// Milliseconds for connecting, and for each write.
    #[serde(default = "three_thousand")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// No effect: `batch_max_size` and `inactive_timeout` say when messages are sent.
    #[schemars(range(min = 1))]
    flush_limit: Option<u64>,
    /// No effect: `max_pending_entries` and the setting `reports.memory` bound what waits.
    drop_limit: Option<u64>,
    /// No effect: one connection carries all messages.
    #[schemars(range(min = 5))]
    pool_size: Option<u64>,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

/// The protocol below syslog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum SocketType {
    #[default]
    Tcp,
    Udp,
}

fn three_thousand() -> u64 {
    3000
}

impl Define for Syslog {
    const NAME: &'static str = "syslog";
    const PRIORITY: i32 = 401;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends a message of syslog (RFC 5424) about every exchange: facility `syslog`, severity `info`, the host of the request \
as the name of the host, `apisix` as the application, and an entry in JSON as the text.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
host: 127.0.0.1
port: 5140
sock_type: udp
log_format: {host: $host, status: $status}
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
        let Conf { host, port, sock_type, tls, timeout, .. } = conf;
        for (field, value) in
            [("flush_limit", conf.flush_limit), ("drop_limit", conf.drop_limit), ("pool_size", conf.pool_size)]
        {
            if value.is_some() {
                cx.warn(field, "it has no effect: batches are made by batch_max_size and inactive_timeout");
            }
        }
        if tls && sock_type == SocketType::Udp {
            cx.say([Invalid::new("tls", "TLS needs the sock_type tcp")]);
            return None;
        }
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            Ok(match sock_type {
                SocketType::Tcp => {
                    let tls = tls.then_some(Tls { server_name: None, verify: false });
                    let to = Tcp { host, port, tls, timeout: Duration::from_millis(timeout), is_kept: true };
                    (Destination::Tcp(to), Frame::LineEnds, Message)
                }
                SocketType::Udp => (Destination::Udp(Udp { host, port }), Frame::Lengths, Message),
            })
        })
    }
}

/// An entry as a message of syslog.
#[derive(Debug)]
struct Message;

impl Render for Message {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        push_head(SYSLOG, INFO, x, out);
        out.extend_from_slice(b" - - ");
        entry.write(x, bodies, out);
    }
}
