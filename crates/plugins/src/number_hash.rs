//! Hashing keys that are hashes already: by the one number they hand over.

use std::hash::{BuildHasherDefault, Hasher};

/// Makes a [`SameNumber`] for each key.
pub(crate) type NumberHash = BuildHasherDefault<SameNumber>;

/// Hands on the one number it is given.
#[derive(Debug, Default)]
pub(crate) struct SameNumber(u64);

impl Hasher for SameNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}
