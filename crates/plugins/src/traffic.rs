//! Plugins that limit traffic and choose upstreams.

mod amount;
pub(crate) mod api_breaker;
mod calendar;
pub(crate) mod graphql;
mod graphql_cost;
pub(crate) mod graphql_limit_count;
pub(crate) mod graphql_proxy_cache;
mod graphql_schema;
pub(crate) mod key;
pub(crate) mod limit_conn;
pub(crate) mod limit_count;
pub(crate) mod limit_req;
pub(crate) mod meter;
pub(crate) mod mqtt_proxy;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod proxy_cache;
pub(crate) mod proxy_mirror;
pub(crate) mod redis;
mod refusal;
pub(crate) mod table;
pub(crate) mod traffic_label;
pub(crate) mod traffic_split;
pub(crate) mod workflow;

pub use plan::{PlanCount, PlanCounts, QuotaUse, QuotaWatch};
pub use table::limit_keys;
