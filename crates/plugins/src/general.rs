//! Whatever belongs to no other group.

pub(crate) mod mocking;
