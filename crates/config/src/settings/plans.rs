use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counts of [plans](plans.md).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Plans {
    /// Whether counts that are kept in the process are written to the file plans.db of the data directory
    /// (`store.data_dir`), so that they outlive it. The file is made with the first of them.
    pub keep_counts: bool,
}

impl Default for Plans {
    fn default() -> Self {
        Self { keep_counts: true }
    }
}
