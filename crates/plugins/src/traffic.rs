//! Plugins that limit traffic and choose upstreams.

mod amount;
pub(crate) mod api_breaker;
pub(crate) mod key;
pub(crate) mod limit_conn;
pub(crate) mod limit_count;
pub(crate) mod limit_req;
pub(crate) mod mqtt_proxy;
pub(crate) mod plan;
mod policy;
pub(crate) mod proxy_cache;
pub(crate) mod proxy_mirror;
mod redis;
mod refusal;
pub(crate) mod table;
pub(crate) mod traffic_label;
pub(crate) mod traffic_split;
pub(crate) mod workflow;

pub use plan::{PlanCount, PlanCounts};
pub use table::limit_keys;
