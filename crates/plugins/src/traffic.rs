//! How much may be asked.

mod amount;
pub(crate) mod api_breaker;
mod key;
pub(crate) mod limit_conn;
pub(crate) mod limit_count;
pub(crate) mod limit_req;
mod policy;
mod table;

pub use table::limit_keys;
