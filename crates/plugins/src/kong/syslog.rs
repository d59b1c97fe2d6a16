//! Kong's `syslog`: entries as messages to the syslog daemon of the machine.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, HookCx, LogCx, Phases, Plugin};
use weir_telemetry::reports::{Channel, Destination, Frame};

use super::log::queue::at_once;
use super::log::severity::{Level, Levels};
use super::log::write;
use super::tcp_log::no_lua;
use crate::observe;

/// The definition.
#[derive(Debug)]
pub(crate) struct Syslog;

/// A facility of syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Facility {
    Kern = 0,
    User = 1,
    Mail = 2,
    Daemon = 3,
    Auth = 4,
    Syslog = 5,
    Lpr = 6,
    News = 7,
    Uucp = 8,
    Cron = 9,
    Authpriv = 10,
    Ftp = 11,
    Local0 = 16,
    Local1 = 17,
    Local2 = 18,
    Local3 = 19,
    Local4 = 20,
    Local5 = 21,
    Local6 = 22,
    Local7 = 23,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The least grave level of messages that are sent.
    log_level: Level,
    /// Level of answers below 400.
    successful_severity: Level,
    /// Level of answers from 400 to 499.
    client_errors_severity: Level,
    /// Level of answers from 500.
    server_errors_severity: Level,
    /// The facility of the messages.
    facility: Facility,
    /// Fields made by Lua; not supported.
    custom_fields_by_lua: Option<serde_json::Value>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            log_level: Level::Info,
            successful_severity: Level::Info,
            client_errors_severity: Level::Info,
            server_errors_severity: Level::Info,
            facility: Facility::User,
            custom_fields_by_lua: None,
        }
    }
}

impl Define for Syslog {
    const NAME: &'static str = "syslog";
    const PRIORITY: i32 = 4;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Sends an entry about each exchange to the syslog daemon of the machine.";
    const EXAMPLE: &'static str = "{facility: local0, server_errors_severity: err}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(no_lua(conf.custom_fields_by_lua.as_ref()));
        let options = at_once(Self::NAME, Destination::Syslog, Frame::Lengths);
        let levels = Levels {
            least: conf.log_level,
            classes: [conf.successful_severity, conf.client_errors_severity, conf.server_errors_severity],
        };
        Some(Compiled::build(move |build| {
            Ok(Messages { channel: observe::channel(options, build), facility: conf.facility, levels })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Messages {
    channel: Arc<Channel>,
    facility: Facility,
    levels: Levels,
}

impl Plugin for Messages {
    fn log(&self, cx: &LogCx<'_>) {
        let x = cx.view();
        let Some(level) = self.levels.of(x.response().status()) else { return };
        self.channel.report(|out| {
            out.push(b'<');
            weir_wire::push_number(out, self.facility as u64 * 8 + level as u64);
            out.push(b'>');
            push_time(x.unix_ms() + x.duration() / 1000, out);
            out.extend_from_slice(b" kong: ");
            write(x, out);
        });
    }
}

/// Appends milliseconds since 1970 in the form that daemons read on their local socket, in the time zone of the machine.
fn push_time(ms: u64, out: &mut Vec<u8>) {
    let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()).unwrap_or_default();
    let local = time.to_zoned(jiff::tz::TimeZone::system());
    out.extend_from_slice(local.strftime("%b %e %H:%M:%S").to_string().as_bytes());
}
