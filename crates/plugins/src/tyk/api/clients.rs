//! Certificates that the clients of an API have to show in TLS.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_net::tls::authorities::{Authorities, is_authority, not_after};
use weir_net::tls::pem;
use weir_plugin::{Flow, Invalid, RequestCx};

use crate::hex;
use crate::security::verified_chains::VerifiedChains;
use crate::tyk::body;

/// Certificates that are accepted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// SHA-256 of certificates, in hexadecimal digits.
    sha256: Vec<String>,
    /// Certificates in PEM; one of an authority stands for all that it has issued.
    pem: Vec<String>,
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Clients {
    hashes: Vec<String>,
    authorities: Authorities,
    verified: VerifiedChains<()>,
}

/// Milliseconds for which a chain is not verified again.
const VERIFIED: u64 = 60_000;

impl Clients {
    pub(super) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let (mut hashes, mut authorities) = (conf.sha256, Vec::new());
        for (at, text) in conf.pem.iter().enumerate() {
            let fault = |reason: String| Invalid::new(format!("client_certificates.pem[{at}]"), reason);
            let all = pem::certificates(text).map_err(fault)?;
            if all.first().is_some_and(|own| is_authority(own)) {
                authorities.push(text.as_str());
            }
            // Those behind the first are its chain.
            hashes.extend(all.first().map(|own| sha256(own)));
        }
        let authorities = Authorities::new(authorities.into_iter(), true);
        let authorities = authorities.map_err(|(_, reason)| Invalid::new("client_certificates.pem", reason))?;
        Ok(Self { hashes, authorities, verified: VerifiedChains::new(usize::MAX) })
    }

    /// Refuses a client that shows none of them. The client has proved to have the key of the first certificate that it
    /// shows; the others may be anybody's.
    pub(super) fn check(&self, cx: &mut RequestCx<'_>) -> Result<(), Flow> {
        let chain = cx.client_certificate();
        let Some((chain, own)) = chain.as_ref().and_then(|chain| Some((chain, chain.first()?))) else {
            return Err(body::error(cx, 403, "Client TLS certificate is required", &[]));
        };
        let now = Duration::from_millis(cx.unix_ms());
        let hash = sha256(own);
        if self.hashes.contains(&hash) {
            return match not_after(own).is_some_and(|end| now < end) {
                true => Ok(()),
                false => Err(body::error(cx, 403, "Certificate has expired", &[])),
            };
        }
        let known = self.verified.find(chain, cx.now_ms());
        let is_issued = known.map_or_else(
            || {
                let good = self.authorities.verify(chain, now).map(drop);
                self.verified.remember(chain, good, cx.now_ms() + VERIFIED);
                good.is_some()
            },
            |good| good.is_some(),
        );
        if is_issued {
            return Ok(());
        }
        Err(body::error(cx, 403, &format!("Certificate with SHA256 {hash} not allowed"), &[]))
    }
}

fn sha256(der: &[u8]) -> String {
    hex::encode(digest(&SHA256, der).as_ref())
}
