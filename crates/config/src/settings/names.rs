use std::ops::Deref;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names of plugins. `*` stands for every plugin that the gateway has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct PluginNames(#[schemars(inner(length(min = 1, max = 128)))] Vec<String>);

impl PluginNames {
    /// The name that stands for every plugin.
    pub const ALL: &str = "*";
}

impl Default for PluginNames {
    fn default() -> Self {
        Self(vec![Self::ALL.to_owned()])
    }
}

impl Deref for PluginNames {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}
