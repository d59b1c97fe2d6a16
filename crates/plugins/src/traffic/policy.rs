//! The place of limiters' counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The place of the counts.
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
    /// The policy as it is written.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::RedisSentinel => "redis-sentinel",
        }
    }
}
