//! Kong's `ip-restriction`.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::AddrRange;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};

use super::body;
use crate::security::address_set::AddressSet;

/// The definition.
#[derive(Debug)]
pub(crate) struct IpRestriction;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Addresses and ranges that are let through.
    #[serde(alias = "whitelist")]
    allow: Vec<AddrRange>,
    /// Addresses and ranges that are not; they take precedence.
    #[serde(alias = "blacklist")]
    deny: Vec<AddrRange>,
    /// Status of a refusal.
    #[schemars(range(min = 200, max = 599))]
    status: u16,
    /// Message of a refusal.
    message: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self { allow: Vec::new(), deny: Vec::new(), status: 403, message: None }
    }
}

impl Define for IpRestriction {
    const NAME: &'static str = "ip-restriction";
    const PRIORITY: i32 = 990;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Lets clients through, or refuses them, by their addresses.";
    const EXAMPLE: &'static str = "allow: [127.0.0.1, 10.0.0.0/8]\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.allow.is_empty() && conf.deny.is_empty() {
            let text = "at least one of these fields must be non-empty: 'config.allow', 'config.deny'";
            cx.say([Invalid::new("", text)]);
            return None;
        }
        Some(Compiled::ready(Restricted {
            allow: (!conf.allow.is_empty()).then(|| AddressSet::new(&conf.allow)),
            deny: AddressSet::new(&conf.deny),
            status: conf.status,
            message: conf.message,
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Restricted {
    allow: Option<AddressSet>,
    deny: AddressSet,
    status: u16,
    message: Option<String>,
}

impl Plugin for Restricted {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let address = cx.client().addr;
        if !self.deny.contains(address) && self.allow.as_ref().is_none_or(|allow| allow.contains(address)) {
            return Flow::Continue;
        }
        match &self.message {
            Some(message) => body::error(cx, self.status, message, &[]),
            None => body::error(cx, self.status, &format!("IP address not allowed: {address}"), &[]),
        }
    }
}
