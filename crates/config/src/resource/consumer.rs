use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::head::resource;
use super::{Id, Labels, Origin, Plugins, Username};
use crate::node::Node;

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
    /// Time of creation, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// Time of the last change, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// The consumer group whose plugins the consumer takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_id: Option<Id>,
    /// Authentication plugins with this consumer's own data (its key, its password), and any other plugins for its
    /// requests, which take precedence over those of the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Plugins>,
    /// Further authentication data. In a list of consumers a credential may also be an item of its own with the id
    /// `<username>/credentials/<id>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
    /// Position in the document.
    #[serde(skip)]
    pub origin: Origin,
}

resource! {
    /// One way for a consumer to authenticate.
    pub struct Credential {
        /// At most one plugin, an authentication plugin.
        #[serde(default)]
        #[schemars(extend("maxProperties" = 1))]
        pub plugins: Plugins,
        /// The plans of this key alone, in the place of its consumer's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub plan: Option<KeyPlan>,
    }
}

/// The plans of a key: the configuration of the plugin `plan` on a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyPlan {
    /// Ids of plans. The first of them that lets a request through by its `access` is the one whose limits hold.
    #[schemars(length(min = 1, max = 16))]
    pub plans: Vec<Id>,
    /// Time in seconds since 1970 from which requests are answered with 401. Without it, or with 0, never.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expires: u64,
    /// Answers requests with 403 as long as it is true.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl KeyPlan {
    /// The configuration of the plugin `plan` that says the same.
    #[must_use]
    pub fn conf(&self) -> Node {
        let plans: Vec<&str> = self.plans.iter().map(Id::as_str).collect();
        Node::from(&serde_json::json!({ "plans": plans, "expires": self.expires, "suspended": self.suspended }))
    }
}

resource! {
    /// Plugins that several consumers have in common.
    pub struct ConsumerGroup {
        /// Plugins by name.
        pub plugins: Plugins,
    }
}
