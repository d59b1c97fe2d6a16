use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{Id, Labels, Plugins};
use crate::catalog::CompiledConfs;
use crate::front_end::{Entity, Family, Origins};
use crate::kind::{ResourceKind, listed};
use crate::node::{Mark, Node};

macro_rules! document {
    ($($(#[$doc:meta])* $type:ident $items:ident;)*) => {
        /// A whole rules file. Ids are unique in each list and every reference leads to an item of the document.
        #[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
        pub struct Document {
            $($(#[$doc])* pub $items: Vec<Arc<super::$type>>,)*
            /// Plugins that were compiled to check their configurations.
            #[schemars(skip)]
            pub compiled: CompiledConfs,
            /// Family whose document it was read from.
            #[schemars(skip)]
            pub family: &'static Family,
        }
    };
}
listed!(document);

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
    /// Time of creation, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// Time of the last change, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// Plugins by name.
    pub plugins: Plugins,
    /// Position in the document.
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
    /// Time of creation, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// Time of the last change, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// Plugins by name.
    pub plugins: Plugins,
    /// Position in the document.
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
    /// Fields of the plugin; its own documentation describes them.
    #[serde(flatten)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub conf: Node,
    /// True while a reference in it has no value: then the plugin cannot run anywhere.
    #[serde(skip)]
    pub is_unresolved: bool,
    /// Position in the document.
    #[serde(skip)]
    pub origin: Origin,
}

/// Position of a resource, for errors that are found later. All origins are equal, so that a resource that has only
/// moved counts as unchanged.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Path in the document as written: `routes[3]`.
    pub path: ItemPath,
    /// Position of the item.
    pub mark: Mark,
    /// Positions of its references to other items, by field.
    pub(crate) references: Box<[(&'static str, Mark)]>,
    /// Entity that the item was made from, in a document of a family other than APISIX's.
    pub entity: Option<Arc<Entity>>,
}

impl Origin {
    /// Replaces the path in the form of the model by that in the document as written.
    pub(crate) fn relocate(&mut self, origins: &Origins) {
        if let Some((entity, path)) = origins.find(&self.path.to_string()) {
            (self.entity, self.path) = (Some(Arc::clone(entity)), path.into());
        }
    }
}

/// Path of an item in a document. There may be a million items: that of an item of a section takes no memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemPath {
    /// An item of a section, by its index: `routes[3]`.
    Listed(ResourceKind, u32),
    /// Any other place.
    Other(Box<str>),
}

impl ItemPath {
    /// The path of an item of this kind.
    pub(crate) fn of(kind: ResourceKind, path: &str) -> Self {
        let index = || path.strip_prefix(kind.directory())?.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
        let index = index().filter(|index: &u32| Self::Listed(kind, *index).to_string() == path);
        index.map_or_else(|| Self::Other(path.into()), |index| Self::Listed(kind, index))
    }

    /// The index of an item of a section.
    pub(crate) fn index(&self) -> Option<u32> {
        match self {
            Self::Listed(_, index) => Some(*index),
            Self::Other(_) => None,
        }
    }
}

impl fmt::Display for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(kind, index) => write!(f, "{}[{index}]", kind.directory()),
            Self::Other(path) => f.write_str(path),
        }
    }
}

impl Default for ItemPath {
    fn default() -> Self {
        Self::Other(Box::default())
    }
}

impl From<String> for ItemPath {
    fn from(path: String) -> Self {
        Self::Other(path.into())
    }
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
