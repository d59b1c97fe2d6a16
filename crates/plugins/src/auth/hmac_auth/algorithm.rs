//! Algorithms of signatures with a secret, by the names that requests have for them.

use aws_lc_rs::hmac;
use schemars::JsonSchema;
use serde::Deserialize;

/// An algorithm of signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub(crate) enum Algorithm {
    #[serde(rename = "hmac-sha1")]
    Sha1,
    #[serde(rename = "hmac-sha256")]
    Sha256,
    #[serde(rename = "hmac-sha384")]
    Sha384,
    #[serde(rename = "hmac-sha512")]
    Sha512,
}

impl Algorithm {
    pub(crate) const ALL: [(Self, &'static [u8]); 4] = [
        (Self::Sha1, b"hmac-sha1"),
        (Self::Sha256, b"hmac-sha256"),
        (Self::Sha384, b"hmac-sha384"),
        (Self::Sha512, b"hmac-sha512"),
    ];

    pub(crate) fn key(self, secret: &[u8]) -> hmac::Key {
        let algorithm = match self {
            // SHA-1 is broken by collisions, which an HMAC does not rest on (RFC 6194 section 3.3).
            Self::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::Key::new(algorithm, secret)
    }
}
