use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::head::resource;
use super::matching::{AddrRange, HostPattern, Methods, UriPattern, Vars};
use super::{Id, Plugins, Timeout, Upstream};

resource! {
    /// Rules for a set of requests: conditions, plugins and upstream.
    ///
    /// Needs `uri` or `uris`, and at least one of `plugins`, `upstream`, `upstream_id` and `service_id`.
    pub struct Route {
        /// The path to match: exact (`/a`), a prefix (`/a/*`, `/a*`) or, with the router `radixtree_uri_with_parameter`,
        /// with parameters (`/a/:id`). Not together with `uris`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uri: Option<UriPattern>,
        /// Several paths to match. Not together with `uri`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(min = 1), extend("uniqueItems" = true))]
        pub uris: Vec<UriPattern>,
        /// Order of routes with the same path: the one with the higher priority is tried first.
        #[serde(default)]
        pub priority: i64,
        /// The methods taken; none means every method.
        #[serde(default, skip_serializing_if = "Methods::is_empty")]
        pub methods: Methods,
        /// The host to match, exact or `*.example.com`. Not together with `hosts`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub host: Option<HostPattern>,
        /// Several hosts to match. Not together with `host`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(min = 1), extend("uniqueItems" = true))]
        pub hosts: Vec<HostPattern>,
        /// The client address to match: IPv4 or IPv6, alone or as a CIDR range. Not together with `remote_addrs`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub remote_addr: Option<AddrRange>,
        /// Several client addresses to match. Not together with `remote_addr`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(min = 1), extend("uniqueItems" = true))]
        pub remote_addrs: Vec<AddrRange>,
        /// Conditions on request variables, all of which must hold: `[["arg_name", "==", "json"]]`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub vars: Option<Vars>,
        /// A condition in Lua on top of the others: `function(vars) … end`, which returns true for the requests to take.
        /// One that fails has the request answered with 500. See [scripts](scripts.md).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 10), regex(pattern = "^function"))]
        pub filter_func: Option<String>,
        /// A text in Lua that returns a table of functions by phase (`access`, `before_proxy`, `header_filter`, `body_filter`,
        /// `log`), which run in the place of plugins, those of the service as well. Not together with `plugins` and
        /// `plugin_config_id`. See [scripts](scripts.md).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 10, max = 102_400))]
        pub script: Option<String>,
        /// The id under which a dashboard keeps what it has made the script from. Information only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub script_id: Option<Id>,
        /// Time limits towards the upstream, which take precedence over those of the upstream.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeout: Option<Timeout>,
        /// Plugins by name, which take precedence over those of the plugin config and of the service, plugin by plugin.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub plugins: Option<Plugins>,
        /// A plugin config whose plugins the route takes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub plugin_config_id: Option<Id>,
        /// The upstream, written in place. Without effect beside `upstream_id`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub upstream: Option<Box<Upstream>>,
        /// The upstream, by its id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub upstream_id: Option<Id>,
        /// A service whose upstream, plugins and hosts the route takes where it has none itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub service_id: Option<Id>,
        /// `Upgrade: websocket` is passed on if true. Unset: as the service sets it, else false.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub enable_websocket: Option<bool>,
        /// 1: in use, 0: as if it were not there.
        #[serde(default)]
        pub status: Status,
    }
}

impl Route {
    /// The paths, whichever field they stand in.
    pub fn paths(&self) -> impl Iterator<Item = &UriPattern> {
        self.uri.iter().chain(&self.uris)
    }

    /// The hosts, whichever field they stand in; none means every host.
    pub fn host_patterns(&self) -> impl Iterator<Item = &HostPattern> {
        self.host.iter().chain(&self.hosts)
    }

    /// The client addresses, whichever field they stand in; none means every client.
    pub fn client_ranges(&self) -> impl Iterator<Item = &AddrRange> {
        self.remote_addr.iter().chain(&self.remote_addrs)
    }
}

/// State of a resource: in use or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// As if it were not there (0).
    Disabled,
    /// In use (1).
    #[default]
    Enabled,
    /// Left out, because the item is invalid: its requests are refused. Never read from a file.
    LeftOut,
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match i64::deserialize(deserializer)? {
            0 => Ok(Self::Disabled),
            1 => Ok(Self::Enabled),
            other => Err(D::Error::invalid_value(Unexpected::Signed(other), &"0 or 1")),
        }
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(u8::from(*self == Self::Enabled))
    }
}

impl JsonSchema for Status {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Status".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "enum": [1, 0] })
    }
}
