use super::head::resource;
use super::{CostDecorations, HostPattern, Id, Plugins, Upstream};

resource! {
    /// Common part of several routes: an upstream, plugins, hosts.
    pub struct Service {
        /// Plugins by name, for every route of the service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub plugins: Option<Plugins>,
        /// A text in Lua, as `script` of a route, for routes of the service without one. It runs in the place of all plugins of the
        /// service and of its routes, of which a warning is made. See [scripts](scripts.md).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 10, max = 102_400))]
        pub script: Option<String>,
        /// The upstream, written in place. Without effect beside `upstream_id`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub upstream: Option<Box<Upstream>>,
        /// The upstream, by its id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub upstream_id: Option<Id>,
        /// Hosts for the routes of the service that have none themselves.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(min = 1), extend("uniqueItems" = true))]
        pub hosts: Vec<HostPattern>,
        /// `Upgrade: websocket` is passed on if true, by routes that do not set it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub enable_websocket: Option<bool>,
        /// The weights that stand below the service.
        #[serde(skip_deserializing, skip_serializing_if = "CostDecorations::is_empty")]
        #[schemars(skip)]
        pub graphql_cost_decorations: CostDecorations,
    }
}
