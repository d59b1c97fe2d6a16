//! Plugins about the form of a request and the address of its client.

pub(crate) mod batch_requests;
pub(crate) mod client_control;
pub(crate) mod oas_validator;
pub(crate) mod proxy_buffering;
pub(crate) mod proxy_control;
pub(crate) mod real_ip;
pub(crate) mod request_validation;
