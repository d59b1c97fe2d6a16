use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HostPattern, Id, Labels, Origin, Plugins, Upstream};

/// What several routes have in common: an upstream, plugins, hosts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Identifier, unique among services; `arr_<n>` when there is none.
    #[serde(default = "Id::unset", skip_serializing_if = "Id::is_unset")]
    pub id: Id,
    /// A name for people, logs and metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub name: Option<String>,
    /// A description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desc: Option<String>,
    /// Labels for people and tools.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "super::document::labels_schema")]
    pub labels: Labels,
    /// When the service was made, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// When the service was last changed, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
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
    /// Whether `Upgrade: websocket` is passed on by routes that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_websocket: Option<bool>,
    /// Where it stood.
    #[serde(skip)]
    pub origin: Origin,
}
