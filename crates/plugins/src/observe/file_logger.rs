//! `file-logger`: entries about exchanges, as lines of a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{BuildCx, Define, Invalid, Mark, Phases, Plugin};
use weir_telemetry::reports::{ChannelOptions, Destination, Frame};

use super::body::{Capture, Wanted};
use super::entry::{Fields, Format};
use super::http_logger::Logging;

/// Entries after which they are written, if they have not been by their age.
const BATCH: usize = 10_000;
/// The mode of a file that is made: what clients send is nobody else's business.
const MODE: u32 = 0o600;

/// The definition.
#[derive(Debug)]
pub(crate) struct FileLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The file, from the folder that the gateway was started in unless it begins with `/`. It is made with mode 0600; its
    /// folder has to be there. Unset: the `path` of `plugin_metadata`.
    #[schemars(length(min = 1))]
    path: Option<String>,
    /// The entry: names with texts in which variables such as `$host` are replaced, or objects of such names. A name whose
    /// variable is not set is left out; `route_id` and `service_id` are added. Without it, and without one in
    /// `plugin_metadata`, the entry is APISIX's.
    log_format: Option<Format>,
    /// Names that are laid over APISIX's entry.
    log_format_extra: Option<Format>,
    /// Puts the body of the request into the entry, where its length is announced and at most `max_req_body_bytes`. It is
    /// held whole for that.
    #[serde(default)]
    include_req_body: bool,
    /// Only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// Puts the body of the response into the entry, up to `max_resp_body_bytes`.
    #[serde(default)]
    include_resp_body: bool,
    /// Only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    /// Bytes of a request's body.
    #[serde(default = "half_a_mebibyte")]
    #[schemars(range(min = 1))]
    max_req_body_bytes: usize,
    /// Bytes of a response's body.
    #[serde(default = "half_a_mebibyte")]
    #[schemars(range(min = 1))]
    max_resp_body_bytes: usize,
    /// Only exchanges of which one of these holds in the end are reported.
    #[schemars(length(min = 1, max = 20))]
    r#match: Option<Vec<Vars>>,
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// The file where the plugin's own configuration names none.
    #[schemars(length(min = 1))]
    path: Option<String>,
    /// The entry where the plugin's own configuration has none.
    log_format: Format,
    /// Names that are laid over APISIX's entry where the plugin's own configuration has none.
    log_format_extra: Format,
}

fn half_a_mebibyte() -> usize {
    512 << 10
}

impl Define for FileLogger {
    const NAME: &'static str = "file-logger";
    const PRIORITY: i32 = 399;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);
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
    const TEMPLATES: &'static [&'static str] = &["log_format.*", "log_format_extra.*"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn check(conf: &Conf) -> Result<(), Vec<Invalid>> {
        let mut faults = Vec::new();
        for (place, format) in [("log_format", &conf.log_format), ("log_format_extra", &conf.log_format_extra)] {
            faults.extend(format.as_ref().and_then(|format| Fields::new(place, format).err()));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        super::check_formats(metadata, &typed.log_format, &typed.log_format_extra)
    }

    fn build(conf: Conf, cx: &BuildCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> {
        let metadata = cx.metadata.map(|node| node.parse_into::<Metadata>()).transpose();
        let metadata = metadata.map_err(|d| Invalid::new("", format!("plugin_metadata: {d}")))?.unwrap_or_default();
        let path = conf.path.or(metadata.path);
        let path = path.ok_or_else(|| Invalid::new("path", "expected a file here or in plugin_metadata"))?;
        let entry = super::entry_of(
            conf.log_format,
            conf.log_format_extra,
            metadata.log_format,
            metadata.log_format_extra,
            cx,
        )?;
        let wanted = |include: bool, most, when: Option<Vars>| {
            include.then(|| Wanted { most, when: when.map(|when| when.expr().clone()) })
        };
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
        Ok(Arc::new(Logging {
            entry,
            capture: Capture {
                request: wanted(conf.include_req_body, conf.max_req_body_bytes, conf.include_req_body_expr),
                response: wanted(conf.include_resp_body, conf.max_resp_body_bytes, conf.include_resp_body_expr),
                mark: Mark::unique(),
            },
            matches: conf.r#match.map(|all| all.iter().map(|one| one.expr().clone()).collect()),
            channel: super::channel(options, cx),
        }))
    }
}
