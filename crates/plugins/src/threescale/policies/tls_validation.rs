//! `tls_validation`: certificates that clients have to show in TLS.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, Invalid, RequestCx};

use super::{DraftLink, read};
use crate::security::listed_certificates::{ListedCertificates, Shown};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;

#[derive(Debug, Deserialize, JsonSchema)]
struct Conf {
    #[serde(default)]
    whitelist: Vec<Certificate>,
    #[serde(default = "yes")]
    allow_partial_chain: bool,
    #[serde(default)]
    revocation_check_type: Revocation,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Certificate {
    pem_certificate: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Revocation {
    #[default]
    None,
    Crl,
    Ocsp,
}

fn yes() -> bool {
    true
}

/// The policy.
#[derive(Debug)]
struct TlsValidation(ListedCertificates);

pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<Conf>(conf, field, cx)?;
    if conf.revocation_check_type != Revocation::None {
        let text = "not supported: certificates are not checked for revocation; expected none";
        cx.say([Invalid::new(format!("{field}.revocation_check_type"), text)]);
        return None;
    }
    let texts = conf.whitelist.iter().map(|entry| entry.pem_certificate.as_str());
    let listed = ListedCertificates::new(Vec::new(), texts, conf.allow_partial_chain);
    let listed =
        listed.map_err(|(at, reason)| Invalid::new(format!("{field}.whitelist[{at}].pem_certificate"), reason));
    Some(DraftLink::of(TlsValidation(cx.ok(listed)?)))
}

impl Policy for TlsValidation {
    fn access(&self, _: &Parts, cx: &mut RequestCx<'_>, _: &mut State) -> Step {
        let body: &[u8] = match self.0.judge(cx) {
            Shown::Good => return Step::Next,
            Shown::Nothing => b"No required TLS certificate was sent\n",
            Shown::Expired | Shown::Unlisted(_) => b"TLS certificate validation failed\n",
        };
        Step::Done(cx.reply(400).field("Content-Type", b"text/plain; charset=utf-8").body(body).done())
    }
}
