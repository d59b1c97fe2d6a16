use super::head::resource;
use super::{HostPattern, Id, Plugins, Upstream};

resource! {
    /// Common part of several routes: an upstream, plugins, hosts.
    pub struct Service {
        /// Plugins by name, for every route of the service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub plugins: Option<Plugins>,
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
    }
}
