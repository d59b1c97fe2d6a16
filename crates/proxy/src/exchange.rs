//! An exchange: a request through its plugins, to a node of its upstream, and the response back.

pub(crate) mod body;
pub(crate) mod forward;
pub(crate) mod mirror;
pub(crate) mod reply;
pub(crate) mod tunnel;
