//! Kong's `tcp-log` and `udp-log`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases};
use weir_telemetry::reports::{Destination, Frame, Tcp, Tls, Udp};

use super::log::Logger;
use super::log::queue::at_once;
use crate::observe;

/// The definition of `tcp-log`.
#[derive(Debug)]
pub(crate) struct TcpLog;

/// The definition of `udp-log`.
#[derive(Debug)]
pub(crate) struct UdpLog;

/// Kong's configuration of `tcp-log`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TcpConf {
    /// Name or address of the server.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port.
    #[schemars(range(min = 1))]
    port: u16,
    /// Milliseconds to connect, and for each write.
    #[serde(default = "ten_seconds")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// Milliseconds for which an unused connection is kept; one is kept until the server closes it.
    #[serde(default, rename = "keepalive")]
    _keepalive: Option<f64>,
    /// Speaks TLS. The certificate of the server is not verified, as in Kong.
    #[serde(default)]
    tls: bool,
    /// Name in the handshake; without it `host`.
    tls_sni: Option<String>,
    /// Fields made by Lua; not supported.
    custom_fields_by_lua: Option<serde_json::Value>,
}

/// Kong's configuration of `udp-log`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UdpConf {
    /// Name or address of the receiver.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port.
    #[schemars(range(min = 1))]
    port: u16,
    /// Milliseconds for a datagram, for which nobody waits.
    #[serde(default, rename = "timeout")]
    _timeout: Option<f64>,
    /// Fields made by Lua; not supported.
    custom_fields_by_lua: Option<serde_json::Value>,
}

fn ten_seconds() -> u64 {
    10_000
}

/// Fault of fields that Lua makes.
pub(super) fn no_lua(fields: Option<&serde_json::Value>) -> Option<Invalid> {
    let is_given = fields.is_some_and(|fields| fields.as_object().is_none_or(|fields| !fields.is_empty()));
    is_given.then(|| Invalid::new("custom_fields_by_lua", "Lua is not supported yet"))
}

impl Define for TcpLog {
    const NAME: &'static str = "tcp-log";
    const PRIORITY: i32 = 7;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Sends an entry about each exchange to a server over TCP.";
    const EXAMPLE: &'static str = "{host: 127.0.0.1, port: 9999}\n";

    type Conf = TcpConf;
    type ConsumerConf = ();

    fn compile(conf: TcpConf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(no_lua(conf.custom_fields_by_lua.as_ref()));
        let to = Destination::Tcp(Tcp {
            host: conf.host,
            port: conf.port,
            tls: conf.tls.then_some(Tls { server_name: conf.tls_sni, verify: false }),
            timeout: Duration::from_millis(conf.timeout),
            is_kept: true,
        });
        let options = at_once(Self::NAME, to, Frame::LineEnds);
        Some(Compiled::build(move |build| Ok(Logger(observe::channel(options, build)))))
    }
}

impl Define for UdpLog {
    const NAME: &'static str = "udp-log";
    const PRIORITY: i32 = 8;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Sends an entry about each exchange in a datagram.";
    const EXAMPLE: &'static str = "{host: 127.0.0.1, port: 9999}\n";

    type Conf = UdpConf;
    type ConsumerConf = ();

    fn compile(conf: UdpConf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(no_lua(conf.custom_fields_by_lua.as_ref()));
        let to = Destination::Udp(Udp { host: conf.host, port: conf.port });
        let options = at_once(Self::NAME, to, Frame::Lengths);
        Some(Compiled::build(move |build| Ok(Logger(observe::channel(options, build)))))
    }
}
