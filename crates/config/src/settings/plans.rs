use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counts of [plans](plans.md).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Plans {
    /// `true` writes counts that are kept in the process to the file plans.db of the data directory (`store.data_dir`), so
    /// that they outlive the process. The first count creates the file.
    pub keep_counts: bool,
}

impl Default for Plans {
    fn default() -> Self {
        Self { keep_counts: true }
    }
}
