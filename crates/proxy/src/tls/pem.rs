//! Certificates and keys from PEM.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// The certificates of a text.
///
/// # Errors
/// It is no PEM, or has none.
pub(crate) fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certs: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| format!("not a certificate in PEM: {error}"))?;
    if certs.is_empty() { Err("has no certificate in PEM".to_owned()) } else { Ok(certs) }
}

/// The private key of a text.
///
/// # Errors
/// It is no PEM, or has none.
pub(crate) fn private_key(text: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| format!("not a private key in PEM: {error}"))
}

/// A certificate, with those that follow it, and its key.
///
/// # Errors
/// Whether it is the key that is wrong, and what is wrong with it.
pub(crate) fn certified_key(cert: &str, key: &str, provider: &CryptoProvider) -> Result<CertifiedKey, (bool, String)> {
    let chain = certificates(cert).map_err(|reason| (false, reason))?;
    let key = private_key(key).map_err(|reason| (true, reason))?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| (true, format!("a key that cannot be used: {error}")))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => Err((true, "the key does not belong to the certificate".to_owned())),
        Err(error) => Err((false, format!("a certificate that cannot be used: {error}"))),
    }
}
