use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Id, Labels, Origin, Plugins, Username};

/// A caller that authentication plugins recognise.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// The name, which is also the identifier; an `id` may be written beside it if it is the same.
    pub username: Username,
    /// A description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desc: Option<String>,
    /// Labels for people, tools and plugins (`custom_id` goes to the upstream as X-Consumer-Custom-ID).
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "super::document::labels_schema")]
    pub labels: Labels,
    /// When the consumer was made, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// When the consumer was last changed, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// The consumer group whose plugins the consumer takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_id: Option<Id>,
    /// Authentication plugins with this consumer's own data (its key, its password), and any other plugins for its
    /// requests, which go before those of the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Plugins>,
    /// Further authentication data. In a list of consumers a credential may also be an item of its own with the id
    /// `<username>/credentials/<id>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
    /// Where it stood.
    #[serde(skip)]
    pub origin: Origin,
}

/// One way for a consumer to authenticate.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// Identifier, unique among the credentials of the consumer; `arr_<n>` when there is none.
    #[serde(default = "Id::unset", skip_serializing_if = "Id::is_unset")]
    pub id: Id,
    /// A name for people.
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
    /// When the credential was made, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// When the credential was last changed, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// At most one plugin, an authentication plugin.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 1))]
    pub plugins: Plugins,
    /// Where it stood.
    #[serde(skip)]
    pub origin: Origin,
}

/// Plugins that several consumers have in common.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsumerGroup {
    /// Identifier, unique among consumer groups; `arr_<n>` when there is none.
    #[serde(default = "Id::unset", skip_serializing_if = "Id::is_unset")]
    pub id: Id,
    /// A name for people.
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
    /// When the group was made, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// When the group was last changed, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// Plugins by name.
    pub plugins: Plugins,
    /// Where it stood.
    #[serde(skip)]
    pub origin: Origin,
}
