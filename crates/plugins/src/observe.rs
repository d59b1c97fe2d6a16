//! What happened.

pub(crate) mod node_status;
pub(crate) mod prometheus;
