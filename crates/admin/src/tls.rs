//! TLS in front of the API: a certificate of its own and, if wanted, certificates of its clients.

use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

/// Configuration of TLS with this certificate (those that follow it behind it) and key, both PEM. With a `verifier`, clients
/// have to show a certificate that it finds good.
///
/// # Errors
/// A fault of the certificate or the key.
pub fn server_config(
    cert: &str,
    key: &str,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = certificates(cert).map_err(|reason| format!("admin.tls.cert: {reason}"))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| "admin.tls.key: not a private key in PEM: expected -----BEGIN PRIVATE KEY-----".to_owned())?;
    let certified = certified(chain, key, &provider)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    Ok(Arc::new(config))
}

/// The certificate with its key. rustls itself reads no certificates of X.509 version 1, which need no more here.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, String> {
    let key = provider.key_provider.load_private_key(key);
    let key = key.map_err(|_| "admin.tls.key: a kind of key that is not supported".to_owned())?;
    let shown = chain.first().and_then(|cert| Certificate::from_der(cert).ok());
    let shown = shown.and_then(|cert| cert.tbs_certificate().subject_public_key_info().to_der().ok());
    let shown = shown.ok_or_else(|| "admin.tls.cert: a certificate that cannot be read".to_owned())?;
    if key.public_key().is_some_and(|key| *key != *shown) {
        return Err("admin.tls.key: the key does not belong to the certificate".to_owned());
    }
    Ok(CertifiedKey::new(chain, key))
}

fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| "not a certificate in PEM: expected -----BEGIN CERTIFICATE-----".to_owned())?;
    if found.is_empty() { Err("has no certificate in PEM".to_owned()) } else { Ok(found) }
}

/// Subject of a client's verified certificate, as RFC 4514 writes it.
pub(crate) fn subject(certificate: &CertificateDer<'_>) -> String {
    // Names are short; a certificate may be long.
    const MOST: usize = 256;
    let subject = match Certificate::from_der(certificate) {
        Ok(certificate) => certificate.tbs_certificate().subject().to_string(),
        // The verifier of certificates is less strict.
        Err(_) => return "a certificate that cannot be read".to_owned(),
    };
    if subject.is_empty() {
        return "a certificate without a subject".to_owned();
    }
    subject.chars().map(|c| if c.is_control() { '?' } else { c }).take(MOST).collect()
}

/// The time since 1970 at which the first of some certificates ends, of which the text is PEM; `None` where one cannot be read.
pub(crate) fn end_of_certificates(pem: &str) -> Option<Duration> {
    let ends = |der: &CertificateDer<'_>| {
        let certificate = Certificate::from_der(der).ok()?;
        Some(certificate.tbs_certificate().validity().not_after.to_unix_duration())
    };
    certificates(pem).ok()?.iter().map(ends).try_fold(Duration::MAX, |first, ends| Some(first.min(ends?)))
}
