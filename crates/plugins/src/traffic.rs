//! How much may be asked, and where it goes.

mod amount;
pub(crate) mod api_breaker;
mod key;
pub(crate) mod limit_conn;
pub(crate) mod limit_count;
pub(crate) mod limit_req;
mod policy;
pub(crate) mod proxy_mirror;
mod redis;
mod table;
pub(crate) mod traffic_split;

pub use table::limit_keys;
