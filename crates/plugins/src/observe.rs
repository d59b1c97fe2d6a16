//! What happened.

pub(crate) mod prometheus;
