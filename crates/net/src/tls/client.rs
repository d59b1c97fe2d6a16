//! TLS as a client, mainly towards nodes: with or without verification, with or without a client certificate.

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

/// TLS settings for connections to nodes. Upstreams share connections only if their settings are equal.
#[derive(Debug)]
pub struct Setup {
    config: Arc<ClientConfig>,
}

/// Identity of a setup: setups with equal keys are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetupKey {
    /// True when the peer's certificate is verified.
    pub verify: bool,
    /// Certificates of the authorities that verify, in PEM; `None`: those of the settings.
    pub authorities: Option<String>,
    /// Certificate and key to present, in PEM.
    pub certificate: Option<(String, String)>,
    /// Protocols that are offered.
    pub alpn: Alpn,
}

/// Protocols that are offered by ALPN (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2, and HTTP/1.1 for servers without it.
    Http2OrHttp1,
    /// None is named.
    Nothing,
}

impl Setup {
    /// Creates a setup; `trusted` are the certificate authorities if nodes are verified.
    ///
    /// # Errors
    /// True if the key is at fault, false if the certificate is, and a description.
    pub fn new(key: &SetupKey, trusted: Option<Arc<RootCertStore>>) -> Result<Self, (bool, String)> {
        let mut config = config(trusted, key.certificate.as_ref())?;
        let protocols: &[&[u8]] = match key.alpn {
            Alpn::Http1 => &[b"http/1.1"],
            Alpn::Http2 => &[b"h2"],
            Alpn::Http2OrHttp1 => &[b"h2", b"http/1.1"],
            Alpn::Nothing => &[],
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Self { config: Arc::new(config) })
    }

    /// Creates a setup for a protocol without ALPN.
    ///
    /// # Errors
    /// As [`Setup::new`].
    pub fn without_protocols(key: &SetupKey, trusted: Option<Arc<RootCertStore>>) -> Result<Self, (bool, String)> {
        Ok(Self { config: Arc::new(config(trusted, key.certificate.as_ref())?) })
    }

    /// Creates a session with the node of this name, which may include a port. An IP address is not sent as server
    /// name.
    ///
    /// # Errors
    /// `host` is neither a host name nor an address.
    pub fn session(&self, host: &[u8]) -> Result<UnbufferedClientConnection, &'static str> {
        UnbufferedClientConnection::new(Arc::clone(&self.config), server_name(host)?)
            .map_err(|_| "TLS cannot be set up")
    }

    /// As [`Setup::session`], with HTTP/1.1 as the only protocol that is offered.
    ///
    /// # Errors
    /// As [`Setup::session`].
    pub fn session_over_http1(&self, host: &[u8]) -> Result<UnbufferedClientConnection, &'static str> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        UnbufferedClientConnection::new(Arc::new(config), server_name(host)?).map_err(|_| "TLS cannot be set up")
    }

    /// Connects over a Tokio socket.
    ///
    /// # Errors
    /// `host` is neither a host name nor an address, or the handshake fails.
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

/// Client configuration for peers other than nodes, such as a store.
///
/// `authorities` is `system` or the path of a PEM file; `None` accepts every certificate. `certificate` and its key, in
/// PEM, are presented if the peer requests them.
///
/// # Errors
/// Description of a fault in either of them.
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

/// Host of an authority; an IPv6 address without its brackets.
pub fn without_port(authority: &[u8]) -> &[u8] {
    if let Some(inner) = authority.strip_prefix(b"[") {
        let end = inner.iter().position(|b| *b == b']').unwrap_or(inner.len());
        return inner.get(..end).unwrap_or_default();
    }
    let end = authority.iter().position(|b| *b == b':').unwrap_or(authority.len());
    authority.get(..end).unwrap_or_default()
}

/// Certificate authorities of the system, or of a PEM file.
///
/// # Errors
/// The authorities cannot be read, or there are none.
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

/// Certificate authorities from PEM.
///
/// # Errors
/// There are none, or one cannot be read.
pub fn authorities(pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for cert in pem::certificates(pem)? {
        roots.add(cert).map_err(|error| words::of(&error))?;
    }
    Ok(roots)
}

/// Certificates of the system's authorities (`system`), or of those in a PEM file.
///
/// # Errors
/// The authorities cannot be read, or there are none.
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

/// Accepts every certificate of any version, as APISIX and nginx do unless verification is configured. The node must
/// still prove that it has the certificate's key.
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
