//! Certificates shown to clients, by name, and client certificates required in return.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use regex::bytes::Regex;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureAlgorithm, SignatureScheme,
    SupportedProtocolVersion, client::danger::HandshakeSignatureValid, version,
};
use weir_config::{ClientVerification, OcspStapling, Ssl, SslProtocol};
use weir_expr::{RegexOptions, compile_regex};
use weir_net::tls::staple::Staple;
use weir_net::tls::x509::{self, Certificate};
use weir_net::tls::{self, pem, words};
use weir_wire::Reject;

/// The certificates of a configuration by server name (SNI).
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    exact: HashMap<Box<str>, Arc<Host>>,
    /// Certificates of wildcards, by the part after the first label.
    wildcard: HashMap<Box<str>, Arc<Host>>,
    any: Option<Arc<Host>>,
    /// Name that is used for clients without SNI.
    fallback: Option<Box<str>>,
    /// Stands for all names while there is no certificate at all.
    unconfigured: Option<Arc<Host>>,
    /// True if any of them requires a client certificate.
    asks_clients: bool,
    /// True when such hosts are served without TLS as well.
    open_on_http: bool,
    /// Versions and tickets of sessions with certificates that are issued while the gateway runs.
    issued: Sessions,
}

/// Versions and tickets of sessions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sessions {
    pub(crate) protocols: Vec<SslProtocol>,
    pub(crate) tickets: Option<Arc<dyn ProducesTickets>>,
}

/// The certificate that is shown to a client.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Configuration of the handshake; `None` while a certificate is not there: then none for its names is accepted.
    pub(crate) config: Option<Arc<ServerConfig>>,
    /// True if the client is asked for a certificate that nobody has verified yet.
    pub(crate) asks: bool,
}

/// The certificates of one item, ready for handshakes.
#[derive(Debug)]
pub(crate) struct Host {
    config: Option<Arc<ServerConfig>>,
    /// The configuration with HTTP/2 among the protocols.
    config_with_http2: Option<Arc<ServerConfig>>,
    client: Option<Verified>,
    /// True if clients are asked for certificates that nobody has verified yet.
    asks: bool,
    /// Certificates whose status cannot be stapled: fields relative to the item, and reasons.
    unstapled: Vec<(String, String)>,
}

/// Client verification, and the paths exempt from it.
#[derive(Debug)]
struct Verified {
    skipped: Box<[Regex]>,
}

impl Verified {
    fn new(client: &ClientVerification) -> Result<Self, (String, String)> {
        let compile = |pattern: &String| compile_regex(pattern, RegexOptions::default()).map(|(regex, _)| regex);
        let skipped = client.skip_mtls_uri_regex.iter().map(compile).collect::<Result<_, _>>();
        Ok(Self { skipped: skipped.map_err(|reason| ("client.skip_mtls_uri_regex".to_owned(), reason))? })
    }

    fn skips(&self, path: &[u8]) -> bool {
        self.skipped.iter().any(|pattern| pattern.is_match(path))
    }
}

/// Protocols that a handshake offers by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// HTTP/1.1 and 1.0.
    Http1,
    /// HTTP/2 as well.
    Http2,
    /// None: whatever the client speaks above TLS is between it and a node.
    Nothing,
}

/// Reasons for not serving a request on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The name of the connection (SNI) requires a client certificate, and the client showed none.
    NoCertificate,
    /// The host of the request is not the name that the connection was made for, and one of them asks for a certificate:
    /// a connection for that host may do.
    OtherHost,
}

impl From<Denied> for Reject {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::NoCertificate => Self::bad("client certificate required"),
            // RFC 9110 section 15.5.20: the client may ask again on a connection of its own.
            Denied::OtherHost => Self::new(421, "client certificate verified for another host"),
        }
    }
}

impl Hosts {
    pub(crate) fn new(fallback: &str, open_on_http: bool, unconfigured: Option<Arc<Host>>, issued: Sessions) -> Self {
        let fallback = Some(fallback).filter(|name| !name.is_empty()).map(|name| name.to_ascii_lowercase().into());
        Self { fallback, open_on_http, unconfigured, issued, ..Self::default() }
    }

    /// Adds a name of `host`; false when another item has it already.
    pub(crate) fn insert(&mut self, name: &str, host: &Arc<Host>) -> bool {
        self.unconfigured = None;
        self.asks_clients |= host.client.is_some();
        let taken = match name.strip_prefix("*.") {
            _ if name == "*" => self.any.replace(Arc::clone(host)).is_some(),
            Some(suffix) => self.wildcard.insert(suffix.into(), Arc::clone(host)).is_some(),
            None => self.exact.insert(name.into(), Arc::clone(host)).is_some(),
        };
        !taken
    }

    /// True if the certificate made here is the only one.
    pub(crate) fn is_self_signed(&self) -> bool {
        self.unconfigured.is_some()
    }

    /// The certificate that a client is shown: that of the configuration for its SNI, one that was issued for it since, or
    /// what stands for all names.
    pub(crate) fn shown(&self, sni: Option<&str>, offer: Offer) -> Option<Shown> {
        if let Some(name) = sni
            && let Some(config) = self.issued_for(name, offer)
        {
            return Some(Shown { config: Some(config), asks: false });
        }
        let host = self.for_client(sni)?;
        Some(Shown { config: host.config(offer), asks: host.asks })
    }

    fn issued_for(&self, name: &str, offer: Offer) -> Option<Arc<ServerConfig>> {
        let source = tls::issued::source()?;
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if self.named(&name).is_some() {
            return None;
        }
        let key = source.certificate(&name)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(tls::provider()))
            .with_protocol_versions(versions(&self.issued.protocols))
            .ok()?;
        let config = builder.with_no_client_auth().with_cert_resolver(Arc::new(Keys(vec![Certified::Bare(key)])));
        Host::ready(config, self.issued.tickets.clone(), None).config(offer)
    }

    /// The certificates for a client's SNI.
    fn for_client(&self, sni: Option<&str>) -> Option<&Arc<Host>> {
        if let Some(host) = &self.unconfigured {
            return Some(host);
        }
        match sni {
            Some(name) if name.bytes().any(|b| b.is_ascii_uppercase()) => self.find(&name.to_ascii_lowercase()),
            Some(name) => self.find(name),
            None => self.find(self.fallback.as_deref()?),
        }
    }

    /// The certificates for a name in lower case: its own, those for all names beside it, those for all names.
    fn find(&self, name: &str) -> Option<&Arc<Host>> {
        self.named(name.trim_end_matches('.')).or(self.any.as_ref())
    }

    /// The certificates for a name in lower case: its own, or those for all names beside it.
    fn named(&self, name: &str) -> Option<&Arc<Host>> {
        self.exact.get(name).or_else(|| self.wildcard.get(name.split_once('.')?.1))
    }

    /// Checks that a request for `host` (in lower case) and `path` may be served on a connection with the server name
    /// `sni` and a client certificate that was or was not `verified`. Both the SNI's and the host's requirements apply,
    /// as in APISIX, so that neither is a way around the other.
    pub(crate) fn admit(&self, host: &[u8], path: &[u8], sni: Option<&str>, verified: bool) -> Result<(), Denied> {
        if !self.asks_clients {
            return Ok(());
        }
        let name = std::str::from_utf8(host).unwrap_or_default();
        let is_own = sni.or(self.fallback.as_deref()).is_some_and(|sni| sni.eq_ignore_ascii_case(name));
        let of_connection = self.for_client(sni).and_then(|host| host.client.as_ref());
        if of_connection.is_some_and(|asked| !verified && !asked.skips(path)) {
            return Err(if is_own || name.is_empty() { Denied::NoCertificate } else { Denied::OtherHost });
        }
        let asks = has_escapes(name) || self.find(name).is_some_and(|host| host.client.is_some());
        if asks && !is_own { Err(Denied::OtherHost) } else { Ok(()) }
    }

    /// True if a connection that asked for `sni` may carry a stream: where its name asks clients for a certificate, one has
    /// to be `verified`, since a stream has no path by which it could be skipped.
    pub(crate) fn admits_stream(&self, sni: Option<&str>, verified: bool) -> bool {
        verified || self.for_client(sni).is_none_or(|host| host.client.is_none())
    }

    /// Checks that a request for `host` (in lower case) and `path` may be served without TLS, where no client can show
    /// a certificate.
    #[inline]
    pub(crate) fn admit_without_tls(&self, host: &[u8], path: &[u8]) -> Result<(), Denied> {
        if self.asks_clients && !self.open_on_http { self.admit_unverified(host, path) } else { Ok(()) }
    }

    #[cold]
    fn admit_unverified(&self, host: &[u8], path: &[u8]) -> Result<(), Denied> {
        let name = std::str::from_utf8(host).unwrap_or_default();
        let asked = self.find(name).and_then(|host| host.client.as_ref());
        let denied = has_escapes(name) || asked.is_some_and(|asked| !asked.skips(path));
        if denied { Err(Denied::NoCertificate) } else { Ok(()) }
    }
}

/// True when a Host has percent-encoded bytes (RFC 3986 section 3.2.2): whoever decodes them sees another name than
/// certificates are looked up for.
fn has_escapes(name: &str) -> bool {
    name.contains('%')
}

impl Host {
    /// Prepares an item, which speaks these versions.
    ///
    /// # Errors
    /// The field, relative to the item, and what is wrong with it.
    pub(crate) fn new(
        ssl: &Ssl,
        protocols: &[SslProtocol],
        tickets: Option<Arc<dyn ProducesTickets>>,
    ) -> Result<Self, (String, String)> {
        let provider = tls::provider();
        let (mut keys, mut unstapled) = (Vec::new(), Vec::new());
        let stapling = ssl.ocsp_stapling.filter(|stapling| stapling.enabled);
        for (at, (cert, key)) in ssl.pairs().enumerate() {
            let (certs, keys_field) = match at {
                0 => ("cert".to_owned(), "key".to_owned()),
                _ => (format!("certs[{}]", at - 1), format!("keys[{}]", at - 1)),
            };
            let key = match pem::certified_key(cert, key.reveal(), provider) {
                Ok(key) => Arc::new(key),
                Err((is_key, reason)) => return Err((if is_key { keys_field } else { certs }, reason)),
            };
            let stapled = stapling.map(|OcspStapling { skip_verify, cache_ttl, .. }| {
                Staple::follow(&key, skip_verify, Duration::from_secs(cache_ttl))
            });
            keys.push(match stapled {
                Some(Ok(staple)) => Certified::Stapled(staple),
                Some(Err(reason)) => {
                    unstapled.push((certs, reason));
                    Certified::Bare(key)
                }
                None => Certified::Bare(key),
            });
        }
        // Signing with these takes a small part of the time that RSA takes.
        keys.sort_by_key(|key| key.key().key.algorithm() == SignatureAlgorithm::RSA);
        let versions = versions(protocols);
        let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(versions)
            .map_err(|error| ("ssl_protocols".to_owned(), error.to_string()))?;
        let asks = ssl.ask_client && ssl.client.is_none();
        let (builder, client) = match &ssl.client {
            None if asks => {
                let asking = Asking(provider.signature_verification_algorithms);
                (builder.with_client_cert_verifier(Arc::new(asking)), None)
            }
            None => (builder.with_no_client_auth(), None),
            Some(client) => {
                let verified = Verified::new(client)?;
                let verifier = Verifier::new(client, provider).map_err(|reason| ("client.ca".to_owned(), reason))?;
                (builder.with_client_cert_verifier(Arc::new(verifier)), Some(verified))
            }
        };
        let made = Self::ready(builder.with_cert_resolver(Arc::new(Keys(keys))), tickets, client);
        Ok(Self { asks, unstapled, ..made })
    }

    /// Stands for an item whose certificate is missing: its names go to no other item, and its requirements on clients
    /// apply still.
    ///
    /// # Errors
    /// The field, relative to the item, and what is wrong with it.
    pub(crate) fn withheld(ssl: &Ssl) -> Result<Self, (String, String)> {
        let client = ssl.client.as_ref().map(Verified::new).transpose()?;
        Ok(Self { config: None, config_with_http2: None, client, asks: false, unstapled: Vec::new() })
    }

    /// Stands for an invalid item that verifies clients: no handshake for its names is accepted, and no request without TLS.
    pub(crate) fn left_out() -> Self {
        let client = Some(Verified { skipped: Box::default() });
        Self { config: None, config_with_http2: None, client, asks: false, unstapled: Vec::new() }
    }

    /// A certificate made here, which no client trusts, for trying out TLS without one.
    pub(crate) fn self_signed(
        protocols: &[SslProtocol],
        tickets: Option<Arc<dyn ProducesTickets>>,
    ) -> Result<Self, String> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).map_err(|e| e.to_string())?;
        let provider = tls::provider();
        let key = pem::certified_key(&made.cert.pem(), &made.signing_key.serialize_pem(), provider)
            .map_err(|(_, reason)| reason)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(versions(protocols))
            .map_err(|error| error.to_string())?;
        let config =
            builder.with_no_client_auth().with_cert_resolver(Arc::new(Keys(vec![Certified::Bare(Arc::new(key))])));
        Ok(Self::ready(config, tickets, None))
    }

    fn ready(config: ServerConfig, tickets: Option<Arc<dyn ProducesTickets>>, client: Option<Verified>) -> Self {
        let config = finish(config, tickets);
        let mut with_http2 = config.clone();
        with_http2.alpn_protocols.insert(0, b"h2".to_vec());
        let (config, config_with_http2) = (Some(Arc::new(config)), Some(Arc::new(with_http2)));
        Self { config, config_with_http2, client, asks: false, unstapled: Vec::new() }
    }

    /// Certificates whose status cannot be stapled: fields relative to the item, and reasons.
    pub(crate) fn unstapled(&self) -> &[(String, String)] {
        &self.unstapled
    }

    /// Configuration of a handshake; `None` while a certificate is not there: then none for its names is accepted.
    fn config(&self, offer: Offer) -> Option<Arc<ServerConfig>> {
        match offer {
            Offer::Http1 => self.config.clone(),
            Offer::Http2 => self.config_with_http2.clone(),
            // Next to a handshake a copy is nothing, and most certificates are for HTTP alone.
            Offer::Nothing => self.config.as_ref().map(|config| {
                let mut config = ServerConfig::clone(config);
                config.alpn_protocols.clear();
                Arc::new(config)
            }),
        }
    }
}

fn finish(mut config: ServerConfig, tickets: Option<Arc<dyn ProducesTickets>>) -> ServerConfig {
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    // A session is kept in its ticket and nowhere else: a cache would be shared by all workers.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match tickets {
        Some(ticketer) => config.ticketer = ticketer,
        None => config.send_tls13_tickets = 0,
    }
    config
}

fn versions(asked: &[SslProtocol]) -> &'static [&'static SupportedProtocolVersion] {
    static TLS12: &[&SupportedProtocolVersion] = &[&version::TLS12];
    static TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13];
    let has = |version| asked.is_empty() || asked.contains(&version);
    match (has(SslProtocol::Tls12), has(SslProtocol::Tls13)) {
        (true, false) => TLS12,
        (false, true) => TLS13,
        _ => rustls::ALL_VERSIONS,
    }
}

/// Certificates with their keys, the preferred ones first.
#[derive(Debug)]
struct Keys(Vec<Certified>);

/// A certificate with its key.
#[derive(Debug)]
enum Certified {
    Bare(Arc<CertifiedKey>),
    /// With the last answer about its status.
    Stapled(Arc<Staple>),
}

impl Certified {
    fn key(&self) -> Arc<CertifiedKey> {
        match self {
            Self::Bare(key) => Arc::clone(key),
            Self::Stapled(staple) => staple.key(),
        }
    }
}

impl ResolvesServerCert for Keys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let fits = |key: &Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let keys = || self.0.iter().map(Certified::key);
        keys().find(fits).or_else(|| keys().next())
    }
}

/// Takes every certificate of a client, or none: a plugin verifies it. The client has to prove that it has the key.
#[derive(Debug)]
struct Asking(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for Asking {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
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

/// Verifies the certificates of clients, with at most so many between theirs and an authority.
#[derive(Debug)]
struct Verifier {
    inner: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    depth: usize,
    /// True if a client may come without a certificate; each request is checked then.
    optional: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(client: &ClientVerification, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for cert in pem::certificates(&client.ca)? {
            roots.add(cert).map_err(|error| words::of(&error))?;
        }
        let roots = Arc::new(roots);
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            inner,
            roots,
            depth: client.depth as usize,
            optional: !client.skip_mtls_uri_regex.is_empty(),
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

/// Verifier of the clients of servers other than the data plane's: each client has to show a certificate that one of
/// these authorities, a text in PEM, has signed, over any number of intermediate ones.
///
/// # Errors
/// Description of a fault in the text.
pub fn client_verifier(authorities: &str) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let (ca, skip_mtls_uri_regex) = (authorities.to_owned(), Vec::new());
    let verifier = Verifier::new(&ClientVerification { ca, depth: u32::MAX, skip_mtls_uri_regex }, tls::provider())?;
    Ok(Arc::new(verifier))
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.optional
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let cert = Certificate::read(end_entity)?;
        if cert.is_version_one() {
            cert.verify_version_one(&self.roots.roots, &self.algorithms, now)?;
            return Ok(ClientCertVerified::assertion());
        }
        // The certificates are in the order of the chain, so that those beyond the depth are not looked at.
        let near = intermediates.get(..self.depth).unwrap_or(intermediates);
        self.inner.verify_client_cert(end_entity, near, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        x509::verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        x509::verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
