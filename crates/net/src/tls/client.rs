//! TLS as a client, towards nodes above all: verified or not, with a certificate or without.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, IpAddr, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{pem, words, x509};

/// How TLS is set up with nodes. Connections are shared only among upstreams with the very same.
#[derive(Debug)]
pub struct Setup {
    config: Arc<ClientConfig>,
}

/// What makes two setups the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetupKey {
    /// True when the peer's certificate is verified.
    pub verify: bool,
    /// Certificate and key to show, in PEM.
    pub certificate: Option<(String, String)>,
}

impl Setup {
    /// Makes a setup; `trusted` are the authorities, where nodes are to be verified.
    ///
    /// # Errors
    /// Whether it is the key that is wrong, and what is wrong with it.
    pub fn new(key: &SetupKey, trusted: Option<Arc<RootCertStore>>) -> Result<Self, (bool, String)> {
        let mut config = config(trusted, key.certificate.as_ref())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }

    /// The same for a protocol that no name is agreed on for (ALPN).
    ///
    /// # Errors
    /// As [`Setup::new`].
    pub fn without_protocols(key: &SetupKey, trusted: Option<Arc<RootCertStore>>) -> Result<Self, (bool, String)> {
        Ok(Self { config: Arc::new(config(trusted, key.certificate.as_ref())?) })
    }

    /// A session with the node of this name, which may have a port: an address is not asked for by name.
    ///
    /// # Errors
    /// It is neither a host name nor an address.
    pub fn session(&self, host: &[u8]) -> Result<UnbufferedClientConnection, &'static str> {
        UnbufferedClientConnection::new(Arc::clone(&self.config), server_name(host)?)
            .map_err(|_| "TLS cannot be set up")
    }

    /// The same on a socket of tokio.
    ///
    /// # Errors
    /// `host` is neither a host name nor an address, or there is no session.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = server_name(host.as_bytes()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await
    }
}

fn server_name(host: &[u8]) -> Result<ServerName<'static>, &'static str> {
    let text = std::str::from_utf8(without_port(host)).map_err(|_| "host is no server name")?;
    match text.parse::<std::net::IpAddr>() {
        Ok(address) => Ok(ServerName::IpAddress(IpAddr::from(address))),
        Err(_) => Ok(ServerName::try_from(text).map_err(|_| "host is no server name")?.to_owned()),
    }
}

/// TLS as a client of something else than a node: a store, say.
///
/// `authorities` is `system` or the path of a file in PEM; `None` takes every certificate. `certificate` and its key, in
/// PEM, are shown where they are asked for.
///
/// # Errors
/// What is wrong with the one or the other.
pub fn client_config(
    authorities: Option<&str>,
    certificate: Option<&(String, String)>,
) -> Result<ClientConfig, String> {
    let trusted = authorities.map(trusted).transpose()?.map(Arc::new);
    config(trusted, certificate)
        .map_err(|(of_key, reason)| format!("{}: {reason}", if of_key { "the key" } else { "the certificate" }))
}

fn config(
    trusted: Option<Arc<RootCertStore>>,
    certificate: Option<&(String, String)>,
) -> Result<ClientConfig, (bool, String)> {
    let provider = super::provider();
    let other = |error: String| (false, error);
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| other(error.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> = match trusted {
        Some(roots) => WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
            .build()
            .map_err(|error| other(error.to_string()))?,
        None => Arc::new(Unverified(provider.signature_verification_algorithms)),
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    match certificate {
        None => Ok(builder.with_no_client_auth()),
        Some((cert, private)) => {
            let certified = pem::certified_key(cert, private, provider)?;
            Ok(builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified))))
        }
    }
}

/// The host of an authority, an IPv6 address without its brackets.
pub fn without_port(authority: &[u8]) -> &[u8] {
    if let Some(inner) = authority.strip_prefix(b"[") {
        let end = inner.iter().position(|b| *b == b']').unwrap_or(inner.len());
        return inner.get(..end).unwrap_or_default();
    }
    let end = authority.iter().position(|b| *b == b':').unwrap_or(authority.len());
    authority.get(..end).unwrap_or_default()
}

/// The authorities of the system, or of a file in PEM.
///
/// # Errors
/// They cannot be read, or there are none.
pub fn trusted(path: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let certificates = trusted_certificates(path)?;
    if path == "system" {
        roots.add_parsable_certificates(certificates);
        return Ok(roots);
    }
    for cert in certificates {
        roots.add(cert).map_err(|error| format!("{path}: {}", words::of(&error)))?;
    }
    Ok(roots)
}

/// The certificates of the authorities of the system (`system`), or of those of a file in PEM.
///
/// # Errors
/// They cannot be read, or there are none.
pub fn trusted_certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    if path == "system" {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            let reason = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
            return Err(format!("the system has no certificates of authorities{reason}"));
        }
        return Ok(found.certs);
    }
    let text = weir_config::file::read_text(path.as_ref()).map_err(|error| format!("{path}: {error}"))?;
    pem::certificates(&text).map_err(|reason| format!("{path}: {reason}"))
}

/// Takes every certificate, of whatever version, as APISIX and nginx do unless they are told to verify. That the node has the certificate's
/// key is checked all the same.
#[derive(Debug)]
struct Unverified(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        x509::verify_tls12_signature(message, cert, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        x509::verify_tls13_signature(message, cert, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
