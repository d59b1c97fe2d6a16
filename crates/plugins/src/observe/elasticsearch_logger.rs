//! `elasticsearch-logger`: entries about exchanges, to Elasticsearch or OpenSearch.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, View};
use weir_telemetry::reports::{Check, Frame};

use super::batch::BatchConf;
use super::collectors::{ServersConf, basic, check_headers};
use super::entry::{Bodies, Entry};
use super::entry_conf::EntryConf;
use super::json::end_string;
use super::logging::{self, LoggerConf, LoggerMetadata, Render};
use super::time_pattern::TimePattern;

/// The definition.
#[derive(Debug)]
pub(crate) struct ElasticsearchLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    #[serde(flatten)]
    servers: ServersConf<10>,
    /// The place of entries.
    field: Field,
    /// Credentials.
    auth: Option<Auth>,
    /// Further fields of requests.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

/// The place of entries.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Field {
    /// The index. Variables such as `$host` are replaced, and patterns of time in braces, such as `{%Y.%m.%d}`, by the local
    /// time at which the request began.
    #[schemars(length(min = 1))]
    index: String,
}

/// Credentials.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Auth {
    /// The user.
    #[schemars(length(min = 1))]
    username: String,
    /// The password.
    #[schemars(length(min = 1))]
    password: String,
}

impl Define for ElasticsearchLogger {
    const NAME: &'static str = "elasticsearch-logger";
    const PRIORITY: i32 = 413;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends an entry in JSON about every exchange to the bulk API of Elasticsearch (7 or later) or OpenSearch. Entries that the \
server refuses although it takes the batch, such as those that do not fit the mapping of the index, are counted as dropped, \
and the first of them is logged.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
endpoint_addrs: [\"http://127.0.0.1:9200\"]
field: {index: \"requests-{%Y.%m.%d}\"}
log_format: {host: $host, client_ip: $remote_addr, '@timestamp': $time_iso8601}
";
    const TEMPLATES: &'static [&'static str] = &["log_format.*", "log_format_extra.*", "field.index"];
    const ENCRYPTED: &'static [&'static str] = &["auth.password", "headers"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { field, auth, headers, .. } = conf;
        cx.ok(check_headers("headers", &headers))?;
        let older = cx.conf().get("endpoint_addr").and_then(Node::as_str);
        if older.is_some_and(|address| address.ends_with('/')) {
            cx.say([Invalid::new("endpoint_addr", "expected an address without a slash at its end")]);
        }
        let servers = conf.servers.servers("/_bulk", cx)?;
        let index = cx.ok(TimePattern::new("field.index", &field.index))?;
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        logging::compile(Self::NAME, logger, cx, move |_, _| {
            let mut fields = vec![
                ("Content-Type".to_owned(), "application/x-ndjson".to_owned()),
                ("Accept".to_owned(), "application/json".to_owned()),
            ];
            fields.extend(auth.map(|auth| ("Authorization".to_owned(), basic(&auth.username, &auth.password))));
            for (name, value) in headers {
                // One of the same name takes the place of the gateway's own.
                fields.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
                fields.push((name, value));
            }
            Ok((servers.destination(&fields, Check::Bulk), Frame::LineEnds, Document { index }))
        })
    }
}

/// An entry as a document of the bulk API, below the line with its place.
#[derive(Debug)]
struct Document {
    index: TimePattern,
}

impl Render for Document {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"index\":{\"_index\":\"");
        let begin = out.len();
        self.index.render(x, out);
        end_string(out, begin);
        out.extend_from_slice(b"}}\n");
        entry.write(x, bodies, out);
    }
}
