use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;
use super::quantity::{GIB, MIB, Seconds, Size};

/// Recording who has called what: see [usage](usage.md).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Usage {
    /// True if requests are recorded, in the file usage.db of the data directory (`store.data_dir`).
    pub enabled: bool,
    /// Records of 56 bytes that one worker holds back until they are added up. Records beyond are lost and counted:
    /// recording never slows a request.
    #[schemars(range(min = 1024, max = 4_194_304))]
    pub buffer: u32,
    /// Callers with sums of their own in a minute, an hour or a day. Those with fewer requests are added up by API and
    /// route, and shown as `(others)`.
    #[schemars(range(min = 10, max = 1_000_000))]
    pub series: u32,
    /// Days for which sums by the minute are kept.
    #[schemars(range(min = 1, max = 36_500))]
    pub keep_minutes: u32,
    /// Days for which sums by the hour are kept.
    #[schemars(range(min = 1, max = 36_500))]
    pub keep_hours: u32,
    /// Days for which sums by the day are kept.
    #[schemars(range(min = 1, max = 36_500))]
    pub keep_days: u32,
    /// Bytes of the database beyond which the oldest sums by the minute, and then by the hour, are deleted before their
    /// time.
    pub size: Size<MIB, { 1024 * GIB }>,
    /// APIs with totals of their own among the metrics; those of further ones are shown as `(others)`.
    #[schemars(range(min = 1, max = 100_000))]
    pub metric_apis: u32,
    /// Name of this gateway in databases that several gateways export to, each under a name of its own. Empty: the name of
    /// the host.
    #[schemars(length(max = 256))]
    pub gateway: String,
    /// Pause between two exports.
    pub export_interval: Seconds<1_000, 3_600_000>,
    /// Databases and folders that sums by the minute are sent to as well: a list of mappings with `name`, `to` (`csv`,
    /// `postgresql`, `clickhouse` or `mongodb`), and `url` or `directory`. See [exports](usage.md#exports).
    #[schemars(length(max = 16))]
    pub exports: Vec<UsageExport>,
    /// Messages by webhook about quotas, errors and latencies: a list of mappings with `name`, `on` (`quota`, `errors` or
    /// `latency`) and `url`. See [alerts](usage.md#alerts).
    #[schemars(length(max = 64))]
    pub alerts: Vec<UsageAlert>,
}

/// A place that sums are sent to.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageExport {
    /// Name of the export. Progress is kept under it: with another name everything is sent again.
    #[schemars(length(min = 1, max = 100))]
    pub name: String,
    /// The kind of place.
    pub to: UsageTarget,
    /// URL of a server, with user and password: `postgresql://USER:PASSWORD@HOST/DATABASE`.
    #[serde(default)]
    pub url: Option<Secret>,
    /// Folder of CSV files.
    #[serde(default)]
    #[schemars(length(min = 1, max = 4096))]
    pub directory: Option<String>,
    /// The table, or the collection: `weir_usage` unless told. Made if missing.
    #[serde(default)]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z_][a-z0-9_]*$"))]
    pub table: Option<String>,
}

/// A kind of place that sums are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UsageTarget {
    /// Files, one for each hour.
    Csv,
    /// A table in PostgreSQL.
    Postgresql,
    /// A table in ClickHouse, over HTTP.
    Clickhouse,
    /// A collection in MongoDB.
    Mongodb,
}

/// A rule by which messages are sent.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageAlert {
    /// Name of the alert, which its messages have.
    #[schemars(length(min = 1, max = 100))]
    pub name: String,
    /// The subject.
    pub on: AlertOn,
    /// Address that messages are sent to, by POST.
    pub url: Secret,
    /// With `on: quota`: percent of a limit of which a message is sent when a caller has used so much; 80 and 100 unless
    /// told.
    #[serde(default)]
    #[schemars(length(min = 1, max = 16), inner(range(min = 1, max = 100)))]
    pub shares: Option<Vec<u8>>,
    /// With `on: errors`: percent of answers with 5xx from which on a message is sent; 5 unless told.
    #[serde(default)]
    #[schemars(range(min = 0.001, max = 100.0))]
    pub percent: Option<f64>,
    /// With `on: latency`: milliseconds from which on a message is sent.
    #[serde(default)]
    #[schemars(range(min = 0.001, max = 86_400_000.0))]
    pub over_ms: Option<f64>,
    /// With `on: latency`: the percentile that is compared; 99 unless told.
    #[serde(default)]
    #[schemars(range(min = 1.0, max = 100.0))]
    pub percentile: Option<f64>,
    /// With `on: errors` and `latency`: minutes that are looked at; 5 unless told.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1440))]
    pub minutes: Option<u32>,
    /// With `on: errors` and `latency`: requests in these minutes below which nothing is said; 100 unless told.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub requests: Option<u32>,
    /// With `on: errors` and `latency`: the APIs that are looked at, each by itself; all unless told.
    #[serde(default)]
    #[schemars(length(min = 1, max = 256))]
    pub apis: Option<Vec<String>>,
    /// Time for which the same message is not sent again.
    #[serde(default = "an_hour")]
    #[schemars(extend("default" = 3600))]
    pub repeat: Seconds<1_000, { 366 * 86_400_000 }>,
    /// True if the certificate of the server is verified.
    #[serde(default = "yes")]
    #[schemars(extend("default" = true))]
    pub ssl_verify: bool,
}

fn an_hour() -> Seconds<1_000, { 366 * 86_400_000 }> {
    Seconds::constant(3_600_000)
}

fn yes() -> bool {
    true
}

/// The subject of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AlertOn {
    /// Shares of a limit of a plan that a caller has used.
    Quota,
    /// The share of answers with 5xx of an API.
    Errors,
    /// A percentile of the latency of an API.
    Latency,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            enabled: false,
            buffer: 16_384,
            series: 10_000,
            keep_minutes: 366,
            keep_hours: 1_100,
            keep_days: 3_660,
            size: Size::constant(2 * GIB),
            metric_apis: 200,
            gateway: String::new(),
            export_interval: Seconds::constant(10_000),
            exports: Vec::new(),
            alerts: Vec::new(),
        }
    }
}
