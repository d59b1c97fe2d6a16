//! Changes to requests and responses.

pub(crate) mod proxy_rewrite;
pub(crate) mod response_rewrite;
