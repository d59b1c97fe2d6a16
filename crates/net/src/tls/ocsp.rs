//! Questions to OCSP responders about certificates, and the check of their answers (RFC 6960).

use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::CertificateDer;
use x509_cert::Certificate as Full;
use x509_cert::der::asn1::GeneralizedTime;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{AuthorityInfoAccessSyntax, ExtendedKeyUsage};

use super::x509::{BIT_STRING, Certificate, Elements, SEQUENCE, bits};

const ENUMERATED: u8 = 0x0a;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const GENERALIZED_TIME: u8 = 0x18;
/// Explicit tags 0 to 2 of a context.
const EXPLICIT: [u8; 3] = [0xa0, 0xa1, 0xa2];
/// A status: `good` and `unknown` are NULL, `revoked` is a sequence.
const GOOD: u8 = 0x80;
const REVOKED: u8 = 0xa1;
/// `id-ad-ocsp`, `id-kp-OCSPSigning` (RFC 5280 section 4.2) and `id-pkix-ocsp-basic` (RFC 6960 section 4.2.1).
const AD_OCSP: &str = "1.3.6.1.5.5.7.48.1";
const OCSP_SIGNING: &str = "1.3.6.1.5.5.7.3.9";
const OCSP_BASIC: [u8; 9] = [0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// The algorithm identifier of SHA-1, by which responders find certificates (RFC 5019 section 2.1.1).
const SHA1: [u8; 11] = [0x30, 0x09, 0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00];
/// Time by which clocks may differ.
const SKEW: Duration = Duration::from_secs(300);

/// A question about a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// URL of the responder, of `http` or `https`.
    pub url: String,
    /// The question in DER, the body of a POST with the type `application/ocsp-request`.
    pub der: Vec<u8>,
    issuer: CertificateDer<'static>,
    /// Identity of the certificate, without its outer sequence.
    id: Vec<u8>,
}

impl Question {
    /// The question about the first certificate of a chain, whose second one is its issuer's.
    ///
    /// # Errors
    /// Reason why nobody can be asked: there is no issuer, or no responder is named.
    pub fn new(chain: &[CertificateDer<'static>]) -> Result<Self, String> {
        let [own, issuer, ..] = chain else {
            return Err("the certificate of its issuer does not follow it".to_owned());
        };
        let unreadable = |_| "it cannot be read".to_owned();
        let (own, parsed) = (Full::from_der(own).map_err(unreadable)?, Full::from_der(issuer).map_err(unreadable)?);
        let access = own.tbs_certificate().get_extension::<AuthorityInfoAccessSyntax>();
        let url = access.ok().flatten().and_then(|(_, access)| {
            let mut places = access.0.into_iter().filter(|access| access.access_method.to_string() == AD_OCSP);
            places.find_map(|access| match access.access_location {
                GeneralName::UniformResourceIdentifier(url) => Some(url.to_string()),
                _ => None,
            })
        });
        let url = url.filter(|url| url.starts_with("http://") || url.starts_with("https://"));
        let url = url.ok_or("it names no OCSP responder at http or https")?;
        let name = own.tbs_certificate().issuer().to_der().map_err(unreadable)?;
        let key = parsed.tbs_certificate().subject_public_key_info().subject_public_key.raw_bytes();
        let serial = own.tbs_certificate().serial_number().to_der().map_err(unreadable)?;
        let id = [
            &SHA1[..],
            &element(OCTET_STRING, digest(&SHA1_FOR_LEGACY_USE_ONLY, &name).as_ref()),
            &element(OCTET_STRING, digest(&SHA1_FOR_LEGACY_USE_ONLY, key).as_ref()),
            &serial,
        ]
        .concat();
        let mut der = element(SEQUENCE, &id);
        // A request of a list of requests of the part that could be signed of a question.
        for _ in 0..4 {
            der = element(SEQUENCE, &der);
        }
        Ok(Self { url, der, issuer: issuer.clone(), id })
    }

    /// Checks an answer: the certificate is good, and the issuer has said so, or a responder that it has appointed. The time
    /// since 1970 at which there is a newer one, if that is known.
    ///
    /// # Errors
    /// Reason why the answer is of no use.
    pub fn check(
        &self,
        answer: &[u8],
        algorithms: &WebPkiSupportedAlgorithms,
        now: Duration,
    ) -> Result<Option<Duration>, String> {
        let basic = basic(answer)?;
        let issuer = Certificate::read(&self.issuer).map_err(|_| "the issuer's certificate cannot be read")?;
        let by_issuer = issuer.has_signed(basic.signed, basic.algorithm, basic.signature, algorithms);
        if !by_issuer && !basic.certificates.iter().any(|cert| self.is_appointed(cert, &basic, algorithms, now)) {
            return Err("neither the issuer has signed the answer nor a responder that it has appointed".to_owned());
        }
        let single = basic.singles.iter().find(|single| self.is_about(single.id));
        let single = single.ok_or("the answer is about another certificate")?;
        match single.status {
            GOOD => {}
            REVOKED => return Err("the certificate is revoked".to_owned()),
            _ => return Err("the responder does not know the certificate".to_owned()),
        }
        if single.this_update > now + SKEW {
            return Err("the answer is of a time that has not come".to_owned());
        }
        if single.next_update.is_some_and(|next| next + SKEW < now) {
            return Err("the answer is too old".to_owned());
        }
        Ok(single.next_update)
    }

    /// The time since 1970 at which there is an answer that is newer than this one, which nobody has checked.
    #[must_use]
    pub fn next_update(&self, answer: &[u8]) -> Option<Duration> {
        basic(answer).ok()?.singles.iter().find(|single| self.is_about(single.id))?.next_update
    }

    /// True for the identity of the certificate. A responder may write the parameters of the hash or leave them out.
    fn is_about(&self, id: &[u8]) -> bool {
        let rest = |id: &[u8]| {
            let mut parts = Elements(id);
            let hash = Elements(parts.next_of(SEQUENCE)?.contents).next_of(OBJECT_ID)?.contents.to_vec();
            Some((hash, parts.0.to_vec()))
        };
        rest(id).is_some_and(|other| rest(&self.id) == Some(other))
    }

    /// True if the certificate is of a responder that the issuer has appointed (RFC 6960 section 4.2.2.2), and has signed
    /// this answer.
    fn is_appointed(
        &self,
        cert: &CertificateDer<'_>,
        basic: &Basic<'_>,
        algorithms: &WebPkiSupportedAlgorithms,
        now: Duration,
    ) -> bool {
        let (Ok(issuer), Ok(own), Ok(full)) =
            (Certificate::read(&self.issuer), Certificate::read(cert), Full::from_der(cert))
        else {
            return false;
        };
        let usage = full.tbs_certificate().get_extension::<ExtendedKeyUsage>().ok().flatten();
        let may_sign = usage.is_some_and(|(_, usage)| usage.0.iter().any(|id| id.to_string() == OCSP_SIGNING));
        let holds = own.validity().is_ok_and(|(from, to)| from <= now + SKEW && now <= to + SKEW);
        may_sign
            && holds
            && own.is_signed_by(&issuer, algorithms)
            && own.has_signed(basic.signed, basic.algorithm, basic.signature, algorithms)
    }
}

/// A basic answer (RFC 6960 section 4.2.1), as slices of it.
struct Basic<'a> {
    signed: &'a [u8],
    /// Signature algorithm, without its outer sequence.
    algorithm: &'a [u8],
    signature: &'a [u8],
    certificates: Vec<CertificateDer<'a>>,
    singles: Vec<Single<'a>>,
}

/// The answer about one certificate. Times are since 1970.
struct Single<'a> {
    id: &'a [u8],
    /// Tag of the status.
    status: u8,
    this_update: Duration,
    next_update: Option<Duration>,
}

fn basic(answer: &[u8]) -> Result<Basic<'_>, String> {
    const NONE: &str = "the answer is none of OCSP's";
    let mut outer = Elements(Elements(answer).next_of(SEQUENCE).ok_or(NONE)?.contents);
    let status = outer.next_of(ENUMERATED).and_then(|status| status.contents.first()).copied();
    // RFC 6960 section 4.2.1.
    match status.ok_or(NONE)? {
        0 => {}
        1 => return Err("the responder cannot read the question".to_owned()),
        2 => return Err("the responder has an internal error".to_owned()),
        3 => return Err("the responder wants to be asked later".to_owned()),
        5 => return Err("the responder wants signed questions".to_owned()),
        6 => return Err("the responder does not answer such questions".to_owned()),
        other => return Err(format!("the responder answers with the status {other}")),
    }
    parts(outer).ok_or_else(|| NONE.to_owned())
}

/// The parts of what follows the status.
fn parts(mut outer: Elements<'_>) -> Option<Basic<'_>> {
    let mut bytes = Elements(Elements(outer.next_of(EXPLICIT[0])?.contents).next_of(SEQUENCE)?.contents);
    if bytes.next_of(OBJECT_ID)?.contents != OCSP_BASIC {
        return None;
    }
    let mut basic = Elements(Elements(bytes.next_of(OCTET_STRING)?.contents).next_of(SEQUENCE)?.contents);
    let signed = basic.next_of(SEQUENCE)?;
    let algorithm = basic.next_of(SEQUENCE)?.contents;
    let signature = bits(basic.next_of(BIT_STRING)?)?;
    let certificates = match basic.next_of(EXPLICIT[0]) {
        Some(list) => {
            Elements(Elements(list.contents).next_of(SEQUENCE)?.contents).map(|cert| cert.whole.into()).collect()
        }
        None => Vec::new(),
    };
    let mut data = Elements(signed.contents);
    let mut part = data.next()?;
    // A version, which is that of the first one, and the responder by name or by key.
    if part.tag == EXPLICIT[0] {
        part = data.next()?;
    }
    if !EXPLICIT.get(1..)?.contains(&part.tag) {
        return None;
    }
    let _produced = data.next_of(GENERALIZED_TIME)?;
    let singles = Elements(data.next_of(SEQUENCE)?.contents).map(|single| {
        let mut parts = Elements(single.contents);
        let id = parts.next_of(SEQUENCE)?.contents;
        let status = parts.next()?.tag;
        let this_update = time(parts.next()?.whole)?;
        let next_update = match parts.next() {
            Some(next) if next.tag == EXPLICIT[0] => Some(time(next.contents)?),
            _ => None,
        };
        Some(Single { id, status, this_update, next_update })
    });
    Some(Basic { signed: signed.whole, algorithm, signature, certificates, singles: singles.collect::<Option<_>>()? })
}

fn time(der: &[u8]) -> Option<Duration> {
    GeneralizedTime::from_der(der).ok().map(|time| time.to_unix_duration())
}

/// An element of DER of less than 64 KiB.
fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = contents.len();
    let [high, low] = (length as u16).to_be_bytes();
    let head = match length {
        0..=0x7f => vec![tag, low],
        0x80..=0xff => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [head, contents.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use super::{Question, basic, element};

    #[test]
    fn answers_that_are_broken_or_none_are_refused() {
        let body = element(0x30, &[element(0x0a, &[0]), element(0xa0, &element(0x30, &[0x06, 0x01, 0x2b]))].concat());
        assert!(basic(&body).is_err());
        for end in 0..body.len() {
            assert!(basic(&body[..end]).is_err(), "cut at {end}");
        }
        for (status, says) in [(1, "cannot read"), (3, "asked later"), (6, "does not answer"), (9, "the status 9")] {
            let body = element(0x30, &element(0x0a, &[status]));
            assert!(basic(&body).err().expect("no answer").contains(says), "{status}");
        }
    }

    #[test]
    fn nobody_can_be_asked_without_an_issuer_and_a_responder() {
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).expect("a certificate");
        let own = CertificateDer::from(made.cert.der().to_vec());
        let says = |chain: &[CertificateDer<'static>]| Question::new(chain).expect_err("nobody");
        assert!(says(std::slice::from_ref(&own)).contains("issuer"));
        assert!(says(&[own.clone(), own]).contains("no OCSP responder"));
    }
}
