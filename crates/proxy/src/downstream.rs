//! Client connections, by protocol.

pub(crate) mod h1;
pub(crate) mod proxy_protocol;
