//! Whatever belongs to no other group.

pub(crate) mod fault_injection;
pub(crate) mod mocking;
pub(crate) mod public_api;
pub(crate) mod redirect;
pub(crate) mod request_id;
