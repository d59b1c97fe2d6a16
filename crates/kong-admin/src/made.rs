//! Values that are made where none is given: ids, keys and times.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;

/// A random UUID (RFC 9562 section 5.4).
pub(crate) fn id() -> Result<String, Unspecified> {
    let mut bytes = [0_u8; 16];
    rand::fill(&mut bytes)?;
    let mut id = String::with_capacity(36);
    for (at, byte) in bytes.into_iter().enumerate() {
        let byte = match at {
            6 => byte & 0x0f | 0x40,
            8 => byte & 0x3f | 0x80,
            _ => byte,
        };
        if matches!(at, 4 | 6 | 8 | 10) {
            id.push('-');
        }
        // Writing to a text does not fail.
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}

/// A random key of 32 letters and digits.
pub(crate) fn key() -> Result<String, Unspecified> {
    weir_plugins::kong::random_text().ok_or(Unspecified)
}

/// The password of a consumer as it is stored: SHA-1 in hexadecimal digits.
pub(crate) fn hashed(password: &str, consumer: &str) -> String {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{password}{consumer}").as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
