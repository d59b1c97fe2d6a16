//! What a request may be, and from whom it comes.

pub(crate) mod request_validation;
