//! `clickhouse-logger`: entries about exchanges, as rows of ClickHouse.

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases};
use weir_telemetry::reports::{Check, Frame};

use super::batch::BatchConf;
use super::collectors::ServersConf;
use super::entry_conf::EntryConf;
use super::logging::{self, LoggerConf, LoggerMetadata, Plain};

/// The definition.
#[derive(Debug)]
pub(crate) struct ClickhouseLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    #[serde(flatten)]
    servers: ServersConf<3>,
    /// The user.
    user: String,
    /// The password.
    password: String,
    /// The database.
    database: String,
    /// The table, whose columns have the names of the fields of entries.
    #[schemars(length(min = 1))]
    logtable: String,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

impl Define for ClickhouseLogger {
    const NAME: &'static str = "clickhouse-logger";
    const PRIORITY: i32 = 398;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Inserts a row about every exchange into a table of ClickHouse, over its HTTP interface: a field of the entry is a column \
(`JSONEachRow`).

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
endpoint_addrs: [\"http://127.0.0.1:8123\"]
user: default
password: \"\"
database: default
logtable: requests
log_format: {host: $host, client_ip: $remote_addr, status: $status}
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;
    const ENCRYPTED: &'static [&'static str] = &["password"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { user, password, database, logtable, .. } = conf;
        let servers = conf.servers.servers("", cx)?;
        let fields = cx.ok(fields(&user, &password, &database))?;
        let begin = cx.ok(insert(&logtable))?;
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            let to = servers.destination(&fields, Check::Success);
            Ok((to, Frame::Texts { begin: begin.into(), between: " ", end: "" }, Plain))
        })
    }
}

/// Fields of requests to ClickHouse.
///
/// # Errors
/// A text that cannot be the value of a field.
pub(super) fn fields(user: &str, password: &str, database: &str) -> Result<[(String, String); 4], Invalid> {
    for (field, text) in [("user", user), ("password", password), ("database", database)] {
        if !text.bytes().all(weir_wire::is_field_byte) {
            return Err(Invalid::new(field, "expected a text without control characters"));
        }
    }
    let fields = [
        ("Content-Type", "application/json"),
        ("X-ClickHouse-User", user),
        ("X-ClickHouse-Key", password),
        ("X-ClickHouse-Database", database),
    ];
    Ok(fields.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

/// The statement ahead of the rows for a table.
///
/// # Errors
/// A name that no table has.
pub(super) fn insert(logtable: &str) -> Result<String, Invalid> {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '`' | '"' | '-' | ' ');
    if !logtable.chars().all(is_name) {
        return Err(Invalid::new("logtable", "expected the name of a table"));
    }
    Ok(format!("INSERT INTO {logtable} FORMAT JSONEachRow "))
}
