//! `ip-restriction`: by the client's address.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::AddrRange;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};

use super::Listed;
use super::address_set::AddressSet;

/// The definition.
#[derive(Debug)]
pub(crate) struct IpRestriction;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Addresses and ranges that are let through, and no others. Either this or `blacklist`.
    #[schemars(length(min = 1))]
    whitelist: Option<Vec<AddrRange>>,
    /// Addresses and ranges that are refused, and no others. Either this or `whitelist`.
    #[schemars(length(min = 1))]
    blacklist: Option<Vec<AddrRange>>,
    /// The message to a refused client.
    #[schemars(length(min = 1, max = 1024))]
    message: String,
    /// Status of a refusal.
    #[schemars(extend("enum" = [403, 404]))]
    response_code: u16,
}

impl Default for Conf {
    fn default() -> Self {
        Self { whitelist: None, blacklist: None, message: "Your IP address is not allowed".into(), response_code: 403 }
    }
}

impl Define for IpRestriction {
    const NAME: &'static str = "ip-restriction";
    const PRIORITY: i32 = 3000;
    const PHASES: Phases = Phases::ACCESS;
    const STREAMS: bool = true;
    const DOC: &'static str = "\
Lets clients through, or refuses them, by their address: `$remote_addr`, that is the client's own behind proxies that are \
trusted to report it (`real_ip`), else the peer's.

An IPv4 address that comes mapped into IPv6 (`::ffff:10.0.0.1`) counts as IPv4. Lists are searched in the logarithm of \
their length: thousands of ranges cost hardly more than one.";
    const EXAMPLE: &'static str = "\
whitelist: [127.0.0.1, 10.0.0.0/8, \"fd00::/8\"]
message: only from inside
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let list = cx.ok(conf.list())?;
        Some(Compiled::ready(Restricted { list, status: conf.response_code, message: conf.message }))
    }
}

impl Conf {
    fn list(&self) -> Result<Listed<AddressSet>, Invalid> {
        let (allowed, denied) = (self.whitelist.as_deref(), self.blacklist.as_deref());
        Listed::compile(("whitelist", allowed.as_ref()), ("blacklist", denied.as_ref()), |_, ranges| {
            Ok(AddressSet::new(ranges))
        })
    }
}

/// An instance.
#[derive(Debug)]
struct Restricted {
    list: Listed<AddressSet>,
    status: u16,
    message: String,
}

impl Plugin for Restricted {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let address = cx.client().addr;
        if self.list.lets_through(|set| set.contains(address)) {
            Flow::Continue
        } else {
            cx.refuse(self.status, &self.message)
        }
    }
}
