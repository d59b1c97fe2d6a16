//! Certificates of clients that are accepted: those of a list, and those that an authority in it has issued.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use weir_net::tls::authorities::{Authorities, is_authority, not_after};
use weir_net::tls::pem;
use weir_plugin::RequestCx;

use super::verified_chains::VerifiedChains;
use crate::hex;

/// Milliseconds for which a chain is not verified again.
const VERIFIED: u64 = 60_000;

/// The list, compiled.
#[derive(Debug)]
pub(crate) struct ListedCertificates {
    /// SHA-256 of certificates, in hexadecimal digits.
    hashes: Vec<String>,
    authorities: Authorities,
    verified: VerifiedChains<()>,
}

/// Outcome for the certificate that a client has shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// An accepted one.
    Good,
    /// One of the list that is over.
    Expired,
    /// The SHA-256 of one that is not accepted.
    Unlisted(String),
    /// None.
    Nothing,
}

impl ListedCertificates {
    /// Compiles hashes, and texts in PEM, of which the first certificate counts; the others are its chain. Without `partial` an
    /// authority that another one has issued does not stand for itself.
    ///
    /// # Errors
    /// The number of a text, and the fault in it.
    pub(crate) fn new<'p>(
        mut hashes: Vec<String>,
        texts: impl Iterator<Item = &'p str>,
        partial: bool,
    ) -> Result<Self, (usize, String)> {
        let (mut authorities, mut numbers) = (Vec::new(), Vec::new());
        for (number, text) in texts.enumerate() {
            let all = pem::certificates(text).map_err(|reason| (number, reason))?;
            let Some(own) = all.first() else { continue };
            if is_authority(own) {
                authorities.push(text);
                numbers.push(number);
            }
            if partial || !is_authority(own) {
                hashes.push(sha256(own));
            }
        }
        let authorities = Authorities::new(authorities.into_iter(), partial);
        let authorities = authorities.map_err(|(at, reason)| (numbers.get(at).copied().unwrap_or_default(), reason))?;
        Ok(Self { hashes, authorities, verified: VerifiedChains::new(usize::MAX) })
    }

    /// Judges what the client has shown. It has proved to have the key of the first certificate; the others may be anybody's.
    pub(crate) fn judge(&self, cx: &RequestCx<'_>) -> Shown {
        let chain = cx.client_certificate();
        let Some((chain, own)) = chain.as_ref().and_then(|chain| Some((chain, chain.first()?))) else {
            return Shown::Nothing;
        };
        let now = Duration::from_millis(cx.unix_ms());
        let hash = sha256(own);
        if self.hashes.contains(&hash) {
            return if not_after(own).is_some_and(|end| now < end) { Shown::Good } else { Shown::Expired };
        }
        let known = self.verified.find(chain, cx.now_ms()).unwrap_or_else(|| {
            let good = self.authorities.verify(chain, now).map(drop);
            self.verified.remember(chain, good, cx.now_ms() + VERIFIED);
            good
        });
        if known.is_some() { Shown::Good } else { Shown::Unlisted(hash) }
    }
}

fn sha256(der: &[u8]) -> String {
    hex::encode(digest(&SHA256, der).as_ref())
}
