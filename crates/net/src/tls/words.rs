//! Texts of TLS errors for people; rustls prints many of them as names from its source code.

use std::fmt::Debug;
use std::io;

use rustls::pki_types::pem;
use rustls::{AlertDescription, CertificateError, Error, InconsistentKeys, PeerIncompatible};

/// Message for a certificate of version 1 that has to be verified for a name.
const VERSION_ONE: &str = "the certificate is of X.509 version 1, without the names that are verified; openssl makes one of \
    version 3 with `openssl x509 -req -in NAME.csr -CA CA.pem -CAkey CA.key -out NAME.pem -extfile NAME.ext`, where NAME.ext \
    has the line `subjectAltName=DNS:NAME`, or with `openssl req -x509 -addext subjectAltName=DNS:NAME`";

/// Text of an error of a connection, which may wrap a TLS error.
pub fn of_io(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => of(error),
        None => error.to_string(),
    }
}

/// Text of a TLS error.
pub fn of(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error),
        Error::AlertReceived(AlertDescription::Unknown(number)) => {
            format!("the other side ended it with the alert {number}, which is not known")
        }
        Error::AlertReceived(alert) => format!("the other side ended it with the alert \"{}\"", spelt_out(alert)),
        Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
            "the server speaks neither TLS 1.2 nor TLS 1.3".to_owned()
        }
        Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered | PeerIncompatible::Tls12NotOfferedOrEnabled) => {
            "the client offers no version of TLS that is spoken here".to_owned()
        }
        Error::PeerIncompatible(why) => format!("the other side is set up for other things: {}", spelt_out(why)),
        Error::PeerMisbehaved(why) => format!("the other side breaks the protocol: {}", spelt_out(why)),
        Error::InvalidMessage(what) => format!("a message that is no TLS: {}", spelt_out(what)),
        Error::InappropriateMessage { got_type, .. } => {
            format!("a message out of its order: {}", spelt_out(got_type))
        }
        Error::InappropriateHandshakeMessage { got_type, .. } => {
            format!("a message out of its order: {}", spelt_out(got_type))
        }
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the key does not belong to the certificate".to_owned()
        }
        Error::General(words) => words.clone(),
        Error::Other(other) => other.to_string(),
        other => other.to_string(),
    }
}

fn of_certificate(error: &CertificateError) -> String {
    let words = match error {
        CertificateError::BadEncoding => "the certificate cannot be read",
        CertificateError::Expired => "the certificate has expired",
        CertificateError::ExpiredContext { time, not_after } => {
            let days = time.as_secs().saturating_sub(not_after.as_secs()) / 86_400;
            return format!("the certificate expired {days} days ago");
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet"
        }
        CertificateError::Revoked => "the certificate was revoked",
        CertificateError::UnhandledCriticalExtension => "the certificate has a critical extension that is not known",
        CertificateError::UnknownIssuer => "the certificate was not issued by an authority that is trusted",
        CertificateError::BadSignature => "the certificate's signature, or one made with its key, is wrong",
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "the certificate was signed with an algorithm that is not supported"
        }
        CertificateError::NotValidForName => "the certificate is for another name",
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| inside(name)).collect();
            let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            return format!("the certificate is for {names}, and not for {}", expected.to_str());
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is not made for this use (extended key usage)"
        }
        CertificateError::Other(other) => match format!("{:?}", other.0).as_str() {
            "UnsupportedCertVersion" => VERSION_ONE,
            name => return format!("a certificate that is not taken: {}", spelt_out(&Name(name))),
        },
        other => return format!("a certificate that is not taken: {}", spelt_out(other)),
    };
    words.to_owned()
}

/// Text of an error in PEM.
pub fn of_pem(error: &pem::Error) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match error {
        pem::Error::MissingSectionEnd { end_marker } => format!("no line \"-----END {}-----\"", text(end_marker)),
        pem::Error::IllegalSectionStart { .. } => "a line with -----BEGIN that does not end with -----".to_owned(),
        pem::Error::Base64Decode(_) => "a line that is not base64".to_owned(),
        pem::Error::NoItemsFound => "no section -----BEGIN …-----".to_owned(),
        other => other.to_string(),
    }
}

/// Identifier from source code, printed as it is.
struct Name<'a>(&'a str);

impl Debug for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Words of an identifier such as `NoCipherSuitesInCommon`, without its payload.
fn spelt_out(name: &impl Debug) -> String {
    let name = format!("{name:?}");
    let name: Vec<char> = name.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
    let mut words = String::new();
    for (at, c) in name.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| name.get(at)).copied().unwrap_or('A');
        let after = name.get(at + 1).copied().unwrap_or('A');
        let begins = c.is_ascii_uppercase() && (!before.is_ascii_uppercase() || after.is_ascii_lowercase());
        if begins && at > 0 {
            words.push(' ');
        }
        // Abbreviations keep their capitals.
        words.push(if after.is_ascii_lowercase() || !begins && before.is_ascii_lowercase() {
            c.to_ascii_lowercase()
        } else {
            *c
        });
    }
    words
}

/// Name inside `DnsName("a.test")`.
fn inside(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, rest)| rest);
    inner.trim_matches(['(', ')', '"'])
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, CertificateError, Error, OtherError, PeerIncompatible, PeerMisbehaved};

    use super::{inside, of, spelt_out};

    #[test]
    fn names_are_spelt_out() {
        for (said, words) in [
            (spelt_out(&AlertDescription::UnknownCA), "unknown CA"),
            (spelt_out(&AlertDescription::UnknownPSKIdentity), "unknown PSK identity"),
            (spelt_out(&AlertDescription::HandshakeFailure), "handshake failure"),
            (spelt_out(&PeerIncompatible::NoCipherSuitesInCommon), "no cipher suites in common"),
            (spelt_out(&PeerMisbehaved::UnsolicitedServerHelloExtension), "unsolicited server hello extension"),
            (inside("DnsName(\"a.test\")").to_owned(), "a.test"),
            (inside("IpAddress(::1)").to_owned(), "::1"),
            (inside("a.test").to_owned(), "a.test"),
        ] {
            assert_eq!(said, words);
        }
    }

    #[test]
    fn errors_are_reported_without_names_of_a_source() {
        #[derive(Debug)]
        struct UnsupportedCertVersion;
        impl std::fmt::Display for UnsupportedCertVersion {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("debug text")
            }
        }
        impl std::error::Error for UnsupportedCertVersion {}
        let old = CertificateError::Other(OtherError(std::sync::Arc::new(UnsupportedCertVersion)));
        for (error, words) in [
            (Error::from(old), "version 1"),
            (CertificateError::UnknownIssuer.into(), "not issued by an authority that is trusted"),
            (CertificateError::ApplicationVerificationFailure.into(), "application verification failure"),
            (Error::AlertReceived(AlertDescription::CertificateRequired), "alert \"certificate required\""),
            (Error::AlertReceived(AlertDescription::Unknown(7)), "the alert 7, which is not known"),
            (PeerIncompatible::NoKxGroupsInCommon.into(), "no kx groups in common"),
        ] {
            let said = of(&error);
            assert!(said.contains(words), "{said}");
        }
    }
}
