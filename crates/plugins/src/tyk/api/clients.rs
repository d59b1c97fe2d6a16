//! Certificates that the clients of an API have to show in TLS.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Flow, Invalid, RequestCx};

use crate::security::listed_certificates::{ListedCertificates, Shown};
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
pub(super) struct Clients(ListedCertificates);

impl Clients {
    pub(super) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let listed = ListedCertificates::new(conf.sha256, conf.pem.iter().map(String::as_str), true);
        let listed = listed.map_err(|(at, reason)| Invalid::new(format!("client_certificates.pem[{at}]"), reason))?;
        Ok(Self(listed))
    }

    /// Refuses a client that shows none of them.
    pub(super) fn check(&self, cx: &mut RequestCx<'_>) -> Result<(), Flow> {
        let text = match self.0.judge(cx) {
            Shown::Good => return Ok(()),
            Shown::Expired => "Certificate has expired".to_owned(),
            Shown::Unlisted(hash) => format!("Certificate with SHA256 {hash} not allowed"),
            Shown::Nothing => "Client TLS certificate is required".to_owned(),
        };
        Err(body::error(cx, 403, &text, &[]))
    }
}
