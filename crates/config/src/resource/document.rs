use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{Consumer, ConsumerGroup, Id, Labels, Plugins, Proto, Route, SecretManager, Service, Ssl, Upstream};
use crate::node::{Mark, Node};

/// A whole rules file. Ids are unique in each list and every reference leads to an item of the document.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct Document {
    /// Which requests are taken and what is done with them.
    pub routes: Vec<Arc<Route>>,
    /// What several routes have in common.
    pub services: Vec<Arc<Service>>,
    /// Where requests go.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Who calls.
    pub consumers: Vec<Arc<Consumer>>,
    /// Plugins that several consumers have in common.
    pub consumer_groups: Vec<Arc<ConsumerGroup>>,
    /// Plugins that several routes have in common.
    pub plugin_configs: Vec<Arc<PluginConfig>>,
    /// Plugins for every request.
    pub global_rules: Vec<Arc<GlobalRule>>,
    /// Certificates.
    pub ssls: Vec<Arc<Ssl>>,
    /// What gRPC services look like.
    pub protos: Vec<Arc<Proto>>,
    /// Where secrets are kept. Their values stand in the places of references already.
    pub secrets: Vec<Arc<SecretManager>>,
    /// Settings of a plugin that hold wherever it is used.
    pub plugin_metadata: Vec<Arc<PluginMetadata>>,
}

/// Plugins that several routes have in common.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginConfig {
    /// Identifier, unique among plugin configs; `arr_<n>` when there is none.
    #[serde(default = "Id::unset", skip_serializing_if = "Id::is_unset")]
    pub id: Id,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desc: Option<String>,
    /// Labels for people and tools.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub labels: Labels,
    /// When it was made, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// When it was last changed, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// Plugins by name.
    pub plugins: Plugins,
    /// Where it stood.
    #[serde(skip)]
    pub origin: Origin,
}

/// Plugins for every request, before those of its route. A plugin may stand in one global rule only.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GlobalRule {
    /// Identifier, unique among global rules; `arr_<n>` when there is none.
    #[serde(default = "Id::unset", skip_serializing_if = "Id::is_unset")]
    pub id: Id,
    /// When it was made, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// When it was last changed, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// Plugins by name.
    pub plugins: Plugins,
    /// Where it stood.
    #[serde(skip)]
    pub origin: Origin,
}

/// Settings of a plugin that hold wherever it is used: a list of mappings whose `id` is the plugin's name, or a
/// mapping from plugin names.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PluginMetadata {
    /// Name of the plugin.
    #[serde(rename = "id")]
    pub plugin: String,
    /// What the plugin is told; its own documentation says which fields it knows.
    #[serde(flatten)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub conf: Node,
    /// True while a reference in it has no value: then the plugin cannot run anywhere.
    #[serde(skip)]
    pub is_unresolved: bool,
    /// Where it stood.
    #[serde(skip)]
    pub origin: Origin,
}

/// Where a resource stood, for errors that are found later. All origins are equal, so that a resource that only
/// moved is no changed resource.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Path in the document: `routes[3]`.
    pub path: String,
    /// Position of the item.
    pub mark: Mark,
    /// Positions of its references to other items, by field.
    pub(crate) references: Vec<(&'static str, Mark)>,
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The schema of labels.
pub(super) fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^\S+$",
            "x-expected": "a text of 1 to 256 characters without white space"
        }
    })
}
