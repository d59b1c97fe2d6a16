//! Certificates that are issued while the gateway runs, for names that no certificate of the configuration has.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use rustls::sign::CertifiedKey;

/// A source of certificates that were issued.
pub trait Source: Debug + Send + Sync {
    /// The certificate for a name in lower case. One that is not there is got for the next time, if it may be.
    fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>>;
}

static SOURCE: OnceLock<&'static dyn Source> = OnceLock::new();

/// Sets the source of the process. A second call has no effect.
pub fn set_source(source: &'static dyn Source) {
    // The first one counts.
    let _ = SOURCE.set(source);
}

/// The source of the process; none while nothing is issued.
#[must_use]
pub fn source() -> Option<&'static dyn Source> {
    SOURCE.get().copied()
}
