//! Certificates and keys from PEM.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::words;
use super::x509::Certificate;

/// Certificates in a text.
///
/// # Errors
/// The text is no PEM, or contains none.
pub fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certs: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| format!("not a certificate in PEM: {}", words::of_pem(&error)))?;
    if certs.is_empty() { Err("has no certificate in PEM".to_owned()) } else { Ok(certs) }
}

/// Private key in a text.
///
/// # Errors
/// The text is no PEM, or contains none.
pub fn private_key(text: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| format!("not a private key in PEM: {}", words::of_pem(&error)))
}

/// A certificate, its chain and its key.
///
/// # Errors
/// True if the key is at fault, false if the certificate is, and a description.
pub fn certified_key(cert: &str, key: &str, provider: &CryptoProvider) -> Result<CertifiedKey, (bool, String)> {
    let chain = certificates(cert).map_err(|reason| (false, reason))?;
    let key = private_key(key).map_err(|reason| (true, reason))?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| (true, format!("a key that cannot be used: {}", words::of(&error))))?;
    for (at, cert) in chain.iter().enumerate() {
        let cert = Certificate::read(cert).map_err(|error| (false, words::of(&error)))?;
        if at == 0 && key.public_key().is_some_and(|key| *key != *cert.public_key()) {
            return Err((true, "the key does not belong to the certificate".to_owned()));
        }
    }
    Ok(CertifiedKey::new(chain, key))
}
