//! Changes to requests and responses.

pub(crate) mod brotli;
mod coding;
pub(crate) mod echo;
mod edits;
pub(crate) mod gzip;
pub(crate) mod proxy_rewrite;
pub(crate) mod response_rewrite;
