//! `file-logger`: entries about exchanges, as lines of a file.

use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases};
use weir_telemetry::reports::{ChannelOptions, Destination, Frame};

use super::entry_conf::{EntryConf, FormatConf};
use super::logging::{self, Logging, Plain};

/// Entries after which they are written, if they have not been by their age.
const BATCH: usize = 10_000;
/// The mode of a file that is made: what clients send is nobody else's business.
const MODE: u32 = 0o600;

/// The definition.
#[derive(Debug)]
pub(crate) struct FileLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The file, from the folder that the gateway was started in unless it begins with `/`. It is made with mode 0600; its
    /// folder has to be there. Unset: the `path` of `plugin_metadata`.
    #[schemars(length(min = 1))]
    path: Option<String>,
    /// Only exchanges of which one of these holds in the end are reported.
    #[schemars(length(min = 1, max = 20))]
    r#match: Option<Vec<Vars>>,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    entry: EntryConf,
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// The file where the plugin's own configuration names none.
    #[schemars(length(min = 1))]
    path: Option<String>,
    #[serde(flatten)]
    formats: FormatConf,
}

impl Define for FileLogger {
    const NAME: &'static str = "file-logger";
    const PRIORITY: i32 = 399;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Appends an entry in JSON about every exchange to a file, one line each, when the exchange is over. No request waits for \
the disk: the worker copies its entry into a ring (`reports.buffer`), from which another thread takes it and writes it \
within some 0.3 seconds. A file that was moved away is made anew for the next line, so that logs can be rotated without a \
signal. Lines that cannot be written are dropped and counted (`weir_reports_total`).

`plugin_metadata` has a `path`, a `log_format` and a `log_format_extra` for all places without their own.";
    const EXAMPLE: &'static str = "\
path: /tmp/weir-requests.log
log_format:
  time: $time_iso8601
  request: $request_method $request_uri
  status: $status
match: [[[status, '>=', 400]]]
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;

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
        let formats = conf.entry.formats(cx)?;
        Some(Compiled::build(move |build| {
            let metadata = build.metadata::<Metadata>()?;
            let path = conf.path.or(metadata.path);
            let path = path.ok_or_else(|| Invalid::new("path", "expected a file here or in plugin_metadata"))?;
            let options = ChannelOptions {
                plugin: Self::NAME,
                name: path.clone(),
                destination: Destination::File { path: PathBuf::from(path), mode: MODE },
                frame: Frame::LineEnds,
                batch_records: BATCH,
                batch_age: Duration::ZERO,
                batch_idle: Duration::ZERO,
                max_pending: None,
                retries: 0,
                retry_delay: Duration::ZERO,
            };
            Ok(Logging {
                entry: formats.entry(&metadata.formats, build)?,
                capture: conf.entry.capture(conf.include_req_body_expr, conf.include_resp_body_expr),
                matches: conf.r#match.map(|all| all.iter().map(|one| one.expr().clone()).collect()),
                channel: super::channel(options, build),
                render: Plain,
            })
        }))
    }
}
