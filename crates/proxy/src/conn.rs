//! Client connections, by protocol.

pub(crate) mod forward;
pub(crate) mod h1;
pub(crate) mod reply;
pub(crate) mod tunnel;
