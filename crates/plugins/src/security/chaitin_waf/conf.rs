//! The configuration of `chaitin-waf`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Vars;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The treatment of requests. Unset: that of `plugin_metadata`, else `monitor`.
    pub(super) mode: Option<Mode>,
    /// Conditions, of which one has to hold for a request to be asked about. None: every request is.
    #[serde(rename = "match")]
    pub(super) conditions: Option<Vec<MatchConf>>,
    /// Adds fields to the response that tell what happened.
    pub(super) append_waf_resp_header: bool,
    /// Adds the server and the error to them.
    pub(super) append_waf_debug_header: bool,
    /// Settings in place of those of `plugin_metadata`, one by one.
    pub(super) config: ConfigConf,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            mode: None,
            conditions: None,
            append_waf_resp_header: true,
            append_waf_debug_header: false,
            config: ConfigConf::default(),
        }
    }
}

/// A condition.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatchConf {
    /// Conditions that all have to hold.
    pub(super) vars: Vars,
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metadata {
    /// The treatment of requests where a place says nothing.
    pub(super) mode: Option<Mode>,
    /// The servers of the firewall, which take turns.
    #[schemars(length(min = 1))]
    pub(super) nodes: Vec<NodeConf>,
    /// Settings for all places.
    #[serde(default)]
    pub(super) config: ConfigConf,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeConf {
    /// Its name or address, or `unix:` and the path of a socket.
    #[schemars(length(min = 1), regex(pattern = r"^\*?[0-9a-zA-Z\-._\[\]:/]+$"))]
    pub(super) host: String,
    /// Its port.
    #[serde(default = "port")]
    #[schemars(range(min = 1))]
    pub(super) port: u16,
}

fn port() -> u16 {
    80
}

/// Settings.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigConf {
    /// Milliseconds for connecting to a server. Unset: 1000.
    #[schemars(range(min = 1, max = 60000))]
    connect_timeout: Option<u64>,
    /// Milliseconds for sending a request. Unset: 1000.
    #[schemars(range(min = 1, max = 60000))]
    send_timeout: Option<u64>,
    /// Milliseconds for the answer. Unset: 1000.
    #[schemars(range(min = 1, max = 60000))]
    read_timeout: Option<u64>,
    /// KiB of the body that the firewall sees. Unset: 1024.
    req_body_size: Option<usize>,
    /// Idle connections that a worker keeps. Unset: 256.
    keepalive_size: Option<usize>,
    /// Milliseconds for which an idle connection is kept. Unset: 60000.
    keepalive_timeout: Option<u64>,
    /// Tells the address of the client as trusted proxies tell it (`real-ip`), and not that of the peer. Unset: true.
    real_client_ip: Option<bool>,
}

impl ConfigConf {
    /// These settings, and those of another where they say nothing.
    pub(super) fn over(self, other: Option<&Self>) -> Self {
        let other = other.cloned().unwrap_or_default();
        Self {
            connect_timeout: self.connect_timeout.or(other.connect_timeout),
            send_timeout: self.send_timeout.or(other.send_timeout),
            read_timeout: self.read_timeout.or(other.read_timeout),
            req_body_size: self.req_body_size.or(other.req_body_size),
            keepalive_size: self.keepalive_size.or(other.keepalive_size),
            keepalive_timeout: self.keepalive_timeout.or(other.keepalive_timeout),
            real_client_ip: self.real_client_ip.or(other.real_client_ip),
        }
    }

    pub(super) fn settings(&self) -> Settings {
        let time = |ms: Option<u64>| Duration::from_millis(ms.unwrap_or(1000));
        Settings {
            connect: time(self.connect_timeout),
            send: time(self.send_timeout),
            read: time(self.read_timeout),
            body: self.req_body_size.unwrap_or(1024).saturating_mul(1024),
            idle: self.keepalive_size.unwrap_or(256),
            kept: Duration::from_millis(self.keepalive_timeout.unwrap_or(60_000)),
            real_client_ip: self.real_client_ip.unwrap_or(true),
        }
    }
}

/// Settings with nothing left open.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) connect: Duration,
    pub(super) send: Duration,
    pub(super) read: Duration,
    /// Bytes of a body that are sent.
    pub(super) body: usize,
    /// Idle connections that are kept.
    pub(super) idle: usize,
    /// Time for which they are kept.
    pub(super) kept: Duration,
    pub(super) real_client_ip: bool,
}

/// The treatment of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained in the documentation of the plugin")]
pub(crate) enum Mode {
    Off,
    Monitor,
    Block,
}
