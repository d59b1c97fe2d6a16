//! Services that connections of plugins are made with.

use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;

use crate::names::Names;
use crate::tls::client::{Alpn, Setup, SetupKey, trusted};

/// Services of the gateway for a plugin's connections: name resolution, and authorities for verification.
#[derive(Debug)]
pub struct Network {
    names: Names,
    /// `system`, or the path of a file in PEM.
    trusted_certificate: String,
    trusted: OnceLock<Result<Arc<RootCertStore>, String>>,
}

impl Default for Network {
    fn default() -> Self {
        Self::new("system")
    }
}

impl Network {
    /// Verifies with the authorities of `tls.trusted_certificate`.
    #[must_use]
    pub fn new(trusted_certificate: &str) -> Self {
        let trusted_certificate = trusted_certificate.to_owned();
        Self { names: Names::default(), trusted_certificate, trusted: OnceLock::new() }
    }

    /// Queries for the addresses of names.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// TLS setup for servers of other protocols than HTTP. The authorities are read once.
    ///
    /// # Errors
    /// The authorities cannot be read.
    pub fn tls(&self, verify: bool) -> Result<Setup, String> {
        let trusted = match verify {
            false => None,
            true => Some(self.trusted()?),
        };
        let key = SetupKey { verify, authorities: None, certificate: None, alpn: Alpn::Http1 };
        Setup::without_protocols(&key, trusted).map_err(|(_, reason)| reason)
    }

    fn trusted(&self) -> Result<Arc<RootCertStore>, String> {
        let path = &self.trusted_certificate;
        let read = || trusted(path).map(Arc::new);
        self.trusted
            .get_or_init(read)
            .clone()
            .map_err(|reason| format!("tls.trusted_certificate of the settings: {reason}"))
    }
}
