//! How much may be asked, and where it goes.

pub(crate) mod limit_count;
pub(crate) mod proxy_mirror;
pub(crate) mod traffic_split;

pub use limit_count::limit_keys;
