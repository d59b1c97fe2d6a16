//! Responses that are kept to answer further requests with: an engine for the plugins that cache (RFC 9111).

pub(crate) mod directives;
pub(crate) mod disk;
pub(crate) mod freshness;
pub(crate) mod head;
pub(crate) mod zone;
