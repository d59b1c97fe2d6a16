//! Where limiters keep what they count.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::Invalid;

/// Where the counts are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "explained at the fields of this type")]
pub(crate) enum Policy {
    #[default]
    Local,
    Redis,
    RedisCluster,
    RedisSentinel,
}

impl Policy {
    /// Refuses what is not supported yet.
    pub(crate) fn check(self) -> Result<(), Invalid> {
        if self == Self::Local {
            return Ok(());
        }
        let name = serde_json::to_string(&self).unwrap_or_default();
        Err(Invalid::new("policy", format!("policy {name} is not supported yet: only local is")))
    }
}
