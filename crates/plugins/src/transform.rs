//! Changes to requests and responses.

pub(crate) mod body_transformer;
pub(crate) mod brotli;
mod coding;
pub(crate) mod degraphql;
pub(crate) mod echo;
mod edits;
pub(crate) mod error_page;
pub(crate) mod grpc_transcode;
pub(crate) mod grpc_web;
pub(crate) mod gzip;
pub(crate) mod proxy_rewrite;
pub(crate) mod response_rewrite;

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Base64 with padding, which may be missing in what is read.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
