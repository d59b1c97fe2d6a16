//! Kong's `loggly`: entries as texts of messages of syslog, to Loggly.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, HookCx, Invalid, LogCx, Phases, Plugin};
use weir_telemetry::reports::{Channel, Destination, Frame, Udp};

use super::log::queue::at_once;
use super::log::severity::{Level, Levels};
use super::log::write;
use super::tcp_log::no_lua;
use crate::observe;

/// The definition.
#[derive(Debug)]
pub(crate) struct Loggly;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Name or address of the service.
    #[serde(default = "host")]
    host: String,
    /// Its port.
    #[serde(default = "port")]
    #[schemars(range(min = 1))]
    port: u16,
    /// The customer token.
    #[schemars(length(min = 1))]
    key: String,
    /// Tags of the messages.
    #[serde(default = "tags")]
    tags: Vec<String>,
    /// The least grave level of messages that are sent.
    #[serde(default = "info")]
    log_level: Level,
    /// Level of answers below 400.
    #[serde(default = "info")]
    successful_severity: Level,
    /// Level of answers from 400 to 499.
    #[serde(default = "info")]
    client_errors_severity: Level,
    /// Level of answers from 500.
    #[serde(default = "info")]
    server_errors_severity: Level,
    /// Milliseconds for a datagram, for which nobody waits.
    #[serde(default, rename = "timeout")]
    _timeout: Option<f64>,
    /// Fields made by Lua; not supported.
    custom_fields_by_lua: Option<serde_json::Value>,
}

fn host() -> String {
    "logs-01.loggly.com".into()
}

fn port() -> u16 {
    514
}

fn tags() -> Vec<String> {
    vec!["kong".into()]
}

fn info() -> Level {
    Level::Info
}

impl Define for Loggly {
    const NAME: &'static str = "loggly";
    const PRIORITY: i32 = 6;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Sends an entry about each exchange to Loggly.";
    const EXAMPLE: &'static str = "key: 0e6fe4bf-376e-40f4-b25f-1d55cb29f5a2\n";
    const ENCRYPTED: &'static [&'static str] = &["key"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(no_lua(conf.custom_fields_by_lua.as_ref()));
        if !conf.key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            cx.say([Invalid::new("key", "expected letters, digits and '-'")]);
        }
        let mut data = format!(" kong - - [{}@41058", conf.key).into_bytes();
        for (at, tag) in conf.tags.iter().enumerate() {
            if tag.is_empty() || !tag.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                cx.say([Invalid::new(format!("tags[{at}]"), "expected a text of printable ASCII")]);
            }
            push_tag(tag, &mut data);
        }
        data.extend_from_slice(b"] ");
        let to = Destination::Udp(Udp { host: conf.host, port: conf.port });
        let options = at_once(Self::NAME, to, Frame::Lengths);
        let levels = Levels {
            least: conf.log_level,
            classes: [conf.successful_severity, conf.client_errors_severity, conf.server_errors_severity],
        };
        Some(Compiled::build(move |build| Ok(Messages { channel: observe::channel(options, build), data, levels })))
    }
}

/// The facility of messages of users (RFC 5424 section 6.2.1).
const USER: u8 = 1;

/// Appends a parameter of structured data (RFC 5424 section 6.3.3).
fn push_tag(tag: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b" tag=\"");
    for byte in tag.bytes() {
        if matches!(byte, b'"' | b'\\' | b']') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// Appends milliseconds since 1970 in the form of RFC 3339.
fn push_time(ms: u64, out: &mut Vec<u8>) {
    let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()).unwrap_or_default();
    out.extend_from_slice(time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string().as_bytes());
}

/// An instance.
#[derive(Debug)]
struct Messages {
    channel: Arc<Channel>,
    /// Application, id of the message, and structured data.
    data: Vec<u8>,
    levels: Levels,
}

impl Plugin for Messages {
    fn log(&self, cx: &LogCx<'_>) {
        let x = cx.view();
        let Some(level) = self.levels.of(x.response().status()) else { return };
        self.channel.report(|out| {
            out.push(b'<');
            weir_wire::push_number(out, u64::from(USER) * 8 + level as u64);
            out.extend_from_slice(b">1 ");
            push_time(x.unix_ms() + x.duration() / 1000, out);
            out.push(b' ');
            let host = x.request().host();
            let is_name = (1..=255).contains(&host.len()) && host.iter().all(u8::is_ascii_graphic);
            out.extend_from_slice(if is_name { host } else { b"-" });
            out.extend_from_slice(&self.data);
            write(x, out);
        });
    }
}
