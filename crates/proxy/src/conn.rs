//! Client connections, by protocol.

mod body;
pub(crate) mod forward;
pub(crate) mod h1;
mod mirror;
pub(crate) mod proxy_protocol;
pub(crate) mod reply;
pub(crate) mod tunnel;
