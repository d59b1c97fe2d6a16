//! Certificates of clients that are verified after the handshake, and the names in them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};

use super::{pem, words};

/// Authorities that certificates of clients are verified with.
#[derive(Debug)]
pub struct Authorities {
    /// The verifiers, each with the number of its authority.
    each: Vec<(usize, Arc<dyn ClientCertVerifier>)>,
    /// Authorities that no one ends at: certificates between a client's and another authority.
    between: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// Reads authorities in PEM. Without `partial` those that another one has issued are intermediate certificates alone.
    ///
    /// # Errors
    /// The number of an authority, and the fault in it.
    pub fn new<'p>(all: impl Iterator<Item = &'p str>, partial: bool) -> Result<Self, (usize, String)> {
        let (mut each, mut between) = (Vec::new(), Vec::new());
        for (number, text) in all.enumerate() {
            let fault = |reason: String| (number, reason);
            for cert in pem::certificates(text).map_err(fault)? {
                let read = Certificate::from_der(&cert).map_err(|_| fault("not a certificate".to_owned()))?;
                let parts = read.tbs_certificate();
                if !partial && parts.issuer() != parts.subject() {
                    between.push(cert);
                    continue;
                }
                let mut roots = RootCertStore::empty();
                roots.add(cert).map_err(|error| fault(words::of(&error)))?;
                let provider = Arc::clone(super::provider());
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                each.push((number, verifier.map_err(|error| fault(error.to_string()))?));
            }
        }
        Ok(Self { each, between })
    }

    /// The number of the authority that a chain ends at: a certificate with the intermediate ones after it, which are valid
    /// so long after the beginning of 1970. `None`: there is none, or the chain is not valid.
    #[must_use]
    pub fn verify(&self, chain: &[Box<[u8]>], now: Duration) -> Option<usize> {
        let (own, shown) = chain.split_first()?;
        let own = CertificateDer::from(&**own);
        let shown = shown.iter().map(|cert| CertificateDer::from(&**cert));
        let between: Vec<_> = shown.chain(self.between.iter().map(|cert| CertificateDer::from(&**cert))).collect();
        let now = UnixTime::since_unix_epoch(now);
        let good = |verifier: &Arc<dyn ClientCertVerifier>| verifier.verify_client_cert(&own, &between, now).is_ok();
        self.each.iter().find(|(_, verifier)| good(verifier)).map(|(number, _)| *number)
    }
}

/// True for the certificate of an authority, which may issue others (RFC 5280 section 4.2.1.9).
#[must_use]
pub fn is_authority(der: &[u8]) -> bool {
    let read = Certificate::from_der(der).ok();
    let constraints = read.and_then(|read| read.tbs_certificate().get_extension::<BasicConstraints>().ok().flatten());
    constraints.is_some_and(|(_, constraints)| constraints.ca)
}

/// The end of a certificate, since 1970; `None` for one that cannot be read.
#[must_use]
pub fn not_after(der: &[u8]) -> Option<Duration> {
    let der = CertificateDer::from(der);
    let (_, end) = super::x509::Certificate::read(&der).ok()?.validity().ok()?;
    Some(end)
}

/// Facts that people look at in a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The common name of its issuer; empty: it has none.
    pub issuer: String,
    /// Its own common name; empty: it has none.
    pub subject: String,
    /// Alternative names.
    pub names: Vec<String>,
    /// Its beginning, since 1970.
    pub not_before: Duration,
    /// Its end, since 1970.
    pub not_after: Duration,
    /// True for an authority, which may issue others.
    pub is_authority: bool,
}

impl Facts {
    /// Reads a certificate in DER.
    #[must_use]
    pub fn read(der: &[u8]) -> Option<Self> {
        let certificate = Certificate::from_der(der).ok()?;
        let issuer = certificate.tbs_certificate().issuer().common_name().ok()?;
        let subject = Subject::read(der)?;
        let held = CertificateDer::from(der);
        let (not_before, not_after) = super::x509::Certificate::read(&held).ok()?.validity().ok()?;
        Some(Self {
            issuer: issuer.map(|name| name.value().into_owned()).unwrap_or_default(),
            subject: subject.common_name.unwrap_or_default(),
            names: subject.alternative_names,
            not_before,
            not_after,
            is_authority: is_authority(der),
        })
    }
}

/// Names in a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// Alternative names (RFC 5280 section 4.2.1.6): hosts, addresses of mail, URIs and IP addresses.
    pub alternative_names: Vec<String>,
    /// The common name.
    pub common_name: Option<String>,
    /// The distinguished name, as RFC 4514 writes it.
    pub distinguished_name: String,
}

impl Subject {
    /// Reads a certificate in DER.
    #[must_use]
    pub fn read(der: &[u8]) -> Option<Self> {
        let certificate = Certificate::from_der(der).ok()?;
        let parts = certificate.tbs_certificate();
        let names = parts.get_extension::<SubjectAltName>().ok()?;
        let names = names.map(|(_, names)| names.0).unwrap_or_default();
        let common_name = parts.subject().common_name().ok()?;
        Some(Self {
            alternative_names: names.iter().filter_map(text).collect(),
            common_name: common_name.map(|name| name.value().into_owned()),
            distinguished_name: parts.subject().to_string(),
        })
    }
}

fn text(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) | GeneralName::Rfc822Name(name) | GeneralName::UniformResourceIdentifier(name) => {
            Some(name.to_string())
        }
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};

    use super::{Authorities, Subject};

    fn params(name: &str, is_ca: bool) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = if is_ca { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::NoCa };
        params
    }

    #[test]
    fn chains_end_at_authorities() {
        let keys: Vec<KeyPair> = (0..4).map(|_| KeyPair::generate().expect("a key")).collect();
        let [root_key, other_key, middle_key, own_key] = &keys[..] else { unreachable!() };
        let root = params("root", true).self_signed(root_key).expect("a certificate");
        let other = params("other", true).self_signed(other_key).expect("a certificate");
        let by_root = Issuer::new(params("root", true), root_key);
        let middle = params("middle", true).signed_by(middle_key, &by_root).expect("a certificate");
        let by_middle = Issuer::new(params("middle", true), middle_key);
        let mut own = params("jack", false);
        own.subject_alt_names = vec![
            SanType::DnsName("jack.test".try_into().expect("a name")),
            SanType::Rfc822Name("jack@a.test".try_into().expect("a name")),
            SanType::IpAddress([192, 0, 2, 7].into()),
        ];
        let own = own.signed_by(own_key, &by_middle).expect("a certificate");
        let subject = Subject::read(own.der()).expect("a subject");
        assert_eq!(subject.common_name.as_deref(), Some("jack"));
        assert_eq!(subject.distinguished_name, "CN=jack");
        assert_eq!(subject.alternative_names, ["jack.test", "jack@a.test", "192.0.2.7"]);
        let chain = |certs: &[&rcgen::Certificate]| -> Vec<Box<[u8]>> {
            certs.iter().map(|cert| cert.der().to_vec().into()).collect()
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time");
        let found = |all: &[&rcgen::Certificate], partial: bool, shown: &[&rcgen::Certificate], now: Duration| {
            let all: Vec<String> = all.iter().map(|cert| cert.pem()).collect();
            Authorities::new(all.iter().map(String::as_str), partial).expect("authorities").verify(&chain(shown), now)
        };
        assert_eq!(found(&[&other, &root], false, &[&own, &middle], now), Some(1));
        assert_eq!(found(&[&other, &root], false, &[&own], now), None, "the one between is missing");
        assert_eq!(found(&[&root, &middle], false, &[&own], now), Some(0), "the one between is an authority");
        assert_eq!(found(&[&middle], false, &[&own], now), None, "no end");
        assert_eq!(found(&[&middle], true, &[&own], now), Some(0), "an end is not needed");
        assert_eq!(found(&[&other], true, &[&own, &middle], now), None);
        assert_eq!(found(&[&root], false, &[&own, &middle], Duration::ZERO), None, "not valid yet");
        assert_eq!(found(&[&root], false, &[], now), None);
        assert!(Authorities::new(["x"].into_iter(), false).is_err() && Subject::read(b"x").is_none());
    }
}
