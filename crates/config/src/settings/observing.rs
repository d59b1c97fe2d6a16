//! Settings of logs, metrics and reports.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AccessLogEscape, AccessLogFormat, AccessLogPath, ErrorLogPath, FileMode, GIB, KIB, LogLevel, MIB, MetricTypes,
    Seconds, Size,
};

/// The access log: a line for each request.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLog {
    /// `off`, `stdout` or the path of a file, which is reopened on SIGUSR1.
    pub path: AccessLogPath,
    /// `json`, or a text with nginx's variables: `$remote_addr "$request" $status`. For a variable that is not here `-`
    /// is written, or nothing where `access_log.escape` is `json`, with a warning at start.
    pub format: AccessLogFormat,
    /// Escaping of values in a line whose form is a text; nginx's `escape`. The form `json` needs none.
    pub escape: AccessLogEscape,
    /// Masks credentials in query arguments with `***` if true: the values of the arguments that any key-auth or
    /// jwt-auth is configured with, whether the plugin has read them or not. In the request's target, its arguments and
    /// `Referer`.
    pub hide_credentials: bool,
    /// Bytes that one worker holds back until the log is written. Lines beyond are dropped and counted: the log never
    /// slows a request.
    pub buffer: Size<{ 4 * KIB }, { 64 * MIB }>,
    /// The permissions of a file that is made, less the umask of the process; a file that is there keeps its own.
    /// `0640` lets a collector read it that is of the gateway's group.
    pub mode: FileMode,
}

/// The access log of streams: a line for each connection of TCP, or session of UDP, when it has ended.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StreamAccessLog {
    /// `off`, `stdout` or the path of a file, which is reopened on SIGUSR1.
    pub path: AccessLogPath,
    /// `json`, or a text with variables of nginx's streams:
    /// `$remote_addr [$time_local] $protocol $status $bytes_sent $bytes_received $session_time`, which is APISIX's. For a
    /// variable that is not here `-` is written, or nothing where `stream_access_log.escape` is `json`, with a warning at
    /// start.
    pub format: AccessLogFormat,
    /// Escaping of values, as `access_log.escape`.
    pub escape: AccessLogEscape,
    /// Bytes that one worker holds back until the log is written, as `access_log.buffer`.
    pub buffer: Size<{ 4 * KIB }, { 64 * MIB }>,
    /// The permissions of a file that is made, as `access_log.mode`.
    pub mode: FileMode,
}

/// Delivery of reports of plugins such as `http-logger`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Reports {
    /// Bytes of records that one worker holds back until they are taken. Records beyond are dropped and counted:
    /// reporting never slows a request.
    pub buffer: Size<{ 4 * KIB }, { 64 * MIB }>,
    /// Bytes of batches that wait to be sent, over all plugins. Records beyond are spilled, or dropped and counted.
    pub memory: Size<{ MIB }, { 64 * GIB }>,
    /// The folder for batches that cannot be sent: a file for each collector, with mode 0600, which is sent when the
    /// collector takes batches again, also after a restart. Empty: such batches are dropped.
    pub spill: String,
    /// Most bytes of one such file.
    pub spill_size: Size<{ MIB }, { 1024 * GIB }>,
    /// The socket of the machine's syslog daemon, which the plugin `syslog` of Kong's family writes to.
    pub syslog: String,
    /// Time for sending queued reports when the process ends.
    pub flush: Seconds<0, 3_600_000>,
}

/// The gateway's own messages.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ErrorLog {
    /// `stderr` or the path of a file, which is reopened on SIGUSR1.
    pub path: ErrorLogPath,
    /// The least important messages that are logged.
    pub level: LogLevel,
    /// The permissions of a file that is made, as `access_log.mode`.
    pub mode: FileMode,
}

/// Prometheus metrics.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Path at `listen.metrics`.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^/[^?#\\s]*$"), extend("x-expected" = "a path that begins with '/'"))]
    pub path: String,
    /// Prefix of the names of metrics that APISIX has as well; those of this gateway alone begin with `weir_`.
    #[schemars(length(max = 64), regex(pattern = "^([a-zA-Z_:][a-zA-Z0-9_:]*)?$"), extend("x-expected" = "the beginning of a metric's name, such as apisix_"))]
    pub prefix: String,
    /// The declared types of `apisix_http_status`, `apisix_bandwidth` and `apisix_http_requests_total`: those of
    /// APISIX, or `linted`, which `promtool check metrics` takes. Prometheus itself treats both alike.
    pub types: MetricTypes,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            buffer: Size::constant(MIB),
            memory: Size::constant(64 * MIB),
            spill: String::new(),
            spill_size: Size::constant(256 * MIB),
            syslog: "/dev/log".to_owned(),
            flush: Seconds::constant(5_000),
        }
    }
}

impl Default for AccessLog {
    fn default() -> Self {
        Self {
            path: AccessLogPath::Off,
            format: AccessLogFormat::Json,
            escape: AccessLogEscape::Default,
            hide_credentials: true,
            buffer: Size::constant(256 * KIB),
            mode: FileMode::OWNER,
        }
    }
}

impl Default for StreamAccessLog {
    fn default() -> Self {
        let AccessLog { path, format, escape, buffer, mode, .. } = AccessLog::default();
        Self { path, format, escape, buffer, mode }
    }
}

impl Default for ErrorLog {
    fn default() -> Self {
        Self { path: ErrorLogPath::default(), level: LogLevel::default(), mode: FileMode::OWNER }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { path: "/apisix/prometheus/metrics".into(), prefix: "apisix_".into(), types: MetricTypes::default() }
    }
}
