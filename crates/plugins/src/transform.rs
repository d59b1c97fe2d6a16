//! Changes to requests and responses.

mod edits;
pub(crate) mod proxy_rewrite;
pub(crate) mod response_rewrite;
