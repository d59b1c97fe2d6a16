//! What a request may be, and from whom it comes.

pub(crate) mod batch_requests;
pub(crate) mod client_control;
pub(crate) mod real_ip;
pub(crate) mod request_validation;
