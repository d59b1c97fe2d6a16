//! The head of a resource: the fields that most kinds begin with.

/// Defines the type of a kind: the head, then the fields that are written out, then the origin.
///
/// A macro and not a flattened type: serde reads flattened fields by way of a buffer, 100,000 times in a large file, and
/// a flattened schema cannot forbid unknown fields.
macro_rules! resource {
    ($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// Identifier, unique within the kind; `arr_<n>` (the place in the list, from 1) when there is none.
            #[serde(default = "super::Id::unset", skip_serializing_if = "super::Id::is_unset")]
            pub id: super::Id,
            /// Name for people, logs and metrics.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(length(min = 1, max = 256))]
            pub name: Option<String>,
            /// Description for people.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(length(max = 256))]
            pub desc: Option<String>,
            /// Labels for people and tools.
            #[serde(default, skip_serializing_if = "super::Labels::is_empty")]
            #[schemars(schema_with = "super::document::labels_schema")]
            pub labels: super::Labels,
            /// Time of creation, in seconds since 1970. Information only.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub create_time: Option<i64>,
            /// Time of the last change, in seconds since 1970. Information only.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub update_time: Option<i64>,
            $($fields)*
            /// Position of the item.
            #[serde(skip)]
            pub origin: super::Origin,
        }
    };
}
pub(super) use resource;
