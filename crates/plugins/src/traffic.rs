//! How much may be asked.

pub(crate) mod limit_count;

pub use limit_count::limit_keys;
