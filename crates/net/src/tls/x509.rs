//! Parsing of certificates as far as needed. rustls supports only X.509 version 3 (RFC 5280); `openssl x509 -req`
//! without extensions creates version 1, which nginx and APISIX accept.

use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved};
use x509_cert::der::Decode;
use x509_cert::time::Validity;

/// Tags of DER.
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Parts of a certificate (RFC 5280 section 4.1), as slices of it.
#[derive(Debug)]
pub struct Certificate<'a> {
    /// Bytes signed by the issuer.
    signed: &'a [u8],
    has_version: bool,
    issuer: &'a [u8],
    subject: &'a [u8],
    validity: &'a [u8],
    /// Complete SubjectPublicKeyInfo.
    key: &'a [u8],
    /// Signature algorithm, without its outer sequence.
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Parses a certificate.
    ///
    /// # Errors
    /// The bytes are no certificate.
    pub fn read(der: &'a CertificateDer<'_>) -> Result<Self, Error> {
        Self::parts(der).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
    }

    fn parts(der: &'a [u8]) -> Option<Self> {
        let mut outer = Elements(Elements(der).next_of(SEQUENCE)?.contents);
        let signed = outer.next_of(SEQUENCE)?;
        let algorithm = outer.next_of(SEQUENCE)?.contents;
        let signature = bits(outer.next_of(BIT_STRING)?)?;
        let mut inner = Elements(signed.contents);
        let mut element = inner.next()?;
        // An absent version is version 1 (section 4.1.2.1).
        let has_version = element.tag == VERSION;
        if has_version {
            element = inner.next()?;
        }
        // The element was the serial number; the algorithm follows a second time.
        let _ = (element, inner.next_of(SEQUENCE)?);
        let issuer = inner.next_of(SEQUENCE)?.contents;
        let validity = inner.next_of(SEQUENCE)?.whole;
        let subject = inner.next_of(SEQUENCE)?.contents;
        let key = inner.next_of(SEQUENCE)?.whole;
        Some(Self { signed: signed.whole, has_version, issuer, subject, validity, key, algorithm, signature })
    }

    /// The times between which it holds, since 1970.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn validity(&self) -> Result<(Duration, Duration), Error> {
        let validity: Validity = Validity::from_der(self.validity).map_err(|_| CertificateError::BadEncoding)?;
        Ok((validity.not_before.to_unix_duration(), validity.not_after.to_unix_duration()))
    }

    /// True for X.509 version 1.
    #[must_use]
    pub fn is_version_one(&self) -> bool {
        !self.has_version
    }

    /// Complete SubjectPublicKeyInfo.
    #[must_use]
    pub fn public_key(&self) -> &'a [u8] {
        self.key
    }

    /// True if the issuer has signed this certificate.
    pub(super) fn is_signed_by(&self, issuer: &Certificate<'_>, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        self.issuer == issuer.subject && issuer.has_signed(self.signed, self.algorithm, self.signature, algorithms)
    }

    /// True if the key of this certificate has made the signature of `signed`.
    pub(super) fn has_signed(
        &self,
        signed: &[u8],
        algorithm: &[u8],
        signature: &[u8],
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> bool {
        let whole = Elements(self.key).next_of(SEQUENCE);
        whole.is_some_and(|key| verify(key.contents, signed, algorithm, signature, algorithms))
    }

    /// Verifies a certificate of version 1 as OpenSSL does: it was issued directly by one of the authorities, and is
    /// valid at the present time. Version 1 has no extensions to check.
    ///
    /// # Errors
    /// The check that failed.
    pub fn verify_version_one(
        &self,
        authorities: &[TrustAnchor<'_>],
        algorithms: &WebPkiSupportedAlgorithms,
        now: UnixTime,
    ) -> Result<(), Error> {
        let issued = |authority: &&TrustAnchor<'_>| {
            // An authority's name constraints cannot be applied to a certificate without names.
            authority.name_constraints.is_none() && authority.subject.as_ref() == self.issuer
        };
        let mut issuers = authorities.iter().filter(issued).peekable();
        if issuers.peek().is_none() {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let good = |authority: &TrustAnchor<'_>| {
            let key = authority.subject_public_key_info.as_ref();
            verify(key, self.signed, self.algorithm, self.signature, algorithms)
        };
        if !issuers.any(good) {
            return Err(CertificateError::BadSignature.into());
        }
        let (not_before, not_after) = self.validity()?;
        match now.as_secs() {
            now if now < not_before.as_secs() => Err(CertificateError::NotValidYet.into()),
            now if now > not_after.as_secs() => Err(CertificateError::Expired.into()),
            _ => Ok(()),
        }
    }
}

/// Verifies that a peer has the private key of its certificate, of any version, with TLS 1.2 (RFC 5246 section
/// 7.4.3).
///
/// # Errors
/// The peer does not have the key.
pub fn verify_tls12_signature(
    message: &[u8],
    cert: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let mapped = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let (_, candidates) = mapped.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    let cert = Certificate::read(cert)?;
    let whole = Elements(cert.key).next_of(SEQUENCE).ok_or(CertificateError::BadEncoding)?;
    let (key_algorithm, key) = key_of(whole.contents).ok_or(CertificateError::BadEncoding)?;
    let good = candidates.iter().any(|algorithm| {
        algorithm.public_key_alg_id().as_ref() == key_algorithm
            && algorithm.verify_signature(key, message, signed.signature()).is_ok()
    });
    if good { Ok(HandshakeSignatureValid::assertion()) } else { Err(CertificateError::BadSignature.into()) }
}

/// Verifies that a peer has the private key of its certificate, of any version, with TLS 1.3 (RFC 8446 section
/// 4.4.3).
///
/// # Errors
/// The peer does not have the key.
pub fn verify_tls13_signature(
    message: &[u8],
    cert: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(Certificate::read(cert)?.key);
    rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
}

/// True if the key, the contents of a SubjectPublicKeyInfo, has made this signature.
fn verify(
    key: &[u8],
    signed: &[u8],
    algorithm: &[u8],
    signature: &[u8],
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let Some((key_algorithm, key)) = key_of(key) else { return false };
    algorithms.all.iter().any(|known| {
        known.signature_alg_id().as_ref() == algorithm
            && known.public_key_alg_id().as_ref() == key_algorithm
            && known.verify_signature(key, signed, signature).is_ok()
    })
}

/// Algorithm and bits of a SubjectPublicKeyInfo, from its contents.
fn key_of(contents: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = Elements(contents);
    Some((parts.next_of(SEQUENCE)?.contents, bits(parts.next_of(BIT_STRING)?)?))
}

/// Bytes of a bit string; unused bits do not occur here.
pub(super) fn bits(element: Element<'_>) -> Option<&[u8]> {
    element.contents.strip_prefix(&[0])
}

/// An element of DER.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) whole: &'a [u8],
    pub(super) contents: &'a [u8],
}

/// Consecutive elements of DER.
pub(super) struct Elements<'a>(pub(super) &'a [u8]);

impl<'a> Elements<'a> {
    pub(super) fn next_of(&mut self, tag: u8) -> Option<Element<'a>> {
        self.next().filter(|element| element.tag == tag)
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            short @ 0..=0x7f => (usize::from(short), rest),
            // No certificate is larger than 16 MiB.
            long @ 0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (contents, following) = rest.split_at_checked(length)?;
        let whole = self.0.get(..self.0.len() - following.len())?;
        self.0 = following;
        Some(Element { tag, whole, contents })
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use super::{Certificate, Elements};

    #[test]
    fn what_is_no_certificate_is_refused() {
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).expect("a certificate");
        let good = made.cert.der().to_vec();
        let read = |bytes: &[u8]| Certificate::read(&CertificateDer::from(bytes.to_vec())).map(|c| c.is_version_one());
        assert_eq!(read(&good), Ok(false));
        for end in 0..good.len() {
            assert!(read(&good[..end]).is_err(), "cut at {end}");
        }
        // No modification of a valid certificate causes a panic.
        for at in 0..good.len() {
            for byte in [0, 0x7f, 0x80, 0x83, 0xff] {
                let mut changed = good.clone();
                changed[at] = byte;
                let _ = read(&changed);
            }
        }
        assert!(Elements(&[0x30, 0x84, 0, 0, 0, 1, 0]).next().is_none(), "a length of four bytes");
    }
}
