//! Signatures of requests with a token (`validate_signature`): a digest of the key, a secret and the second of the request.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Invalid, Request};
use weir_wire::name::FieldName;

use crate::auth::credentials::same_secret;
use crate::hex;
use crate::query;
use crate::tyk::sessions::Session;

/// Most seconds by which clocks may differ: each of them is a digest.
const MOST_SKEW: i64 = 900;
/// Beginning of a secret that stands in the `meta_data` of a key.
const META: &str = "$tyk_meta.";

/// A signature.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// `MasherySHA256` or `MasheryMD5`.
    algorithm: String,
    /// Name of the header.
    header: String,
    /// Looks at an argument of the query first.
    use_param: bool,
    /// Its name; empty: that of the header.
    param_name: String,
    /// The secret, or `$tyk_meta.NAME` for one in the key's `meta_data`.
    secret: String,
    /// Seconds by which clocks may differ.
    allowed_clock_skew: i64,
    /// Status of a refusal; 0: 401.
    error_code: u16,
    /// Text of a refusal; empty: Tyk's own.
    error_message: String,
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Signature {
    is_sha256: bool,
    header: FieldName,
    argument: Option<Box<[u8]>>,
    secret: Box<str>,
    skew: i64,
    status: u16,
    text: Box<str>,
}

impl Signature {
    pub(super) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let is_sha256 = match conf.algorithm.as_str() {
            "MasherySHA256" => true,
            "MasheryMD5" => false,
            other => {
                let text = format!("expected one of: MasherySHA256, MasheryMD5; found '{other}'");
                return Err(Invalid::new("algorithm", text));
            }
        };
        let header =
            FieldName::new(&conf.header).ok_or_else(|| Invalid::new("header", "expected the name of a header"))?;
        if conf.secret.starts_with("$tyk_") && !conf.secret.starts_with(META) {
            return Err(Invalid::new("secret", "expected a secret, or $tyk_meta.NAME"));
        }
        if !(0..=MOST_SKEW).contains(&conf.allowed_clock_skew) {
            return Err(Invalid::new("allowed_clock_skew", format!("expected seconds from 0 to {MOST_SKEW}")));
        }
        if conf.error_code != 0 && !(400..600).contains(&conf.error_code) {
            return Err(Invalid::new("error_code", "expected a status from 400 to 599"));
        }
        let name = if conf.param_name.is_empty() { &conf.header } else { &conf.param_name };
        Ok(Self {
            is_sha256,
            argument: (conf.use_param || !conf.param_name.is_empty()).then(|| name.as_bytes().into()),
            header,
            secret: conf.secret.into(),
            skew: conf.allowed_clock_skew,
            status: if conf.error_code == 0 { 401 } else { conf.error_code },
            text: match conf.error_message.is_empty() {
                true => "Request signature verification failed".into(),
                false => conf.error_message.into(),
            },
        })
    }

    /// Status and text of a refusal.
    pub(super) fn refusal(&self) -> (u16, &str) {
        (self.status, &self.text)
    }

    /// True for a request whose signature is that of its key at this second.
    pub(super) fn is_good(&self, request: &Request, key: &[u8], session: &Session, now: i64) -> bool {
        let secret = match self.secret.strip_prefix(META) {
            None => &*self.secret,
            Some(name) => session.meta.get(name).and_then(serde_json::Value::as_str).unwrap_or_default(),
        };
        let Some(given) = self.given(request).filter(|given| !given.is_empty() && !secret.is_empty()) else {
            return false;
        };
        let Some(given) = std::str::from_utf8(&given).ok().and_then(hex::decode) else { return false };
        let ids = [key.strip_prefix(session.org.as_bytes()).map(<[u8]>::to_vec), id_of(key), Some(key.to_vec())];
        // The time tells nothing of the secret: each second of each form is looked at.
        let mut is_good = false;
        for id in ids.into_iter().flatten() {
            for second in now - self.skew..=now + self.skew {
                let text = [&id[..], secret.as_bytes(), second.to_string().as_bytes()].concat();
                is_good |= match self.is_sha256 {
                    true => same_secret(digest(&SHA256, &text).as_ref(), &given),
                    false => same_secret(&md5::compute(&text).0, &given),
                };
            }
        }
        is_good
    }

    fn given(&self, request: &Request) -> Option<Vec<u8>> {
        let argument = self.argument.as_ref().and_then(|name| query::argument(request.query()?, name));
        if let Some(value) = argument.filter(|value| !value.is_empty()) {
            let mut decoded = Vec::new();
            query::decode(value, &mut decoded);
            return Some(decoded);
        }
        request.field(&self.header).map(<[u8]>::to_vec)
    }
}

/// The id within a key that says its organisation itself.
fn id_of(key: &[u8]) -> Option<Vec<u8>> {
    let decoded = STANDARD.decode(key).ok()?;
    let fields: serde_json::Value = serde_json::from_slice(&decoded).ok()?;
    fields["id"].as_str().map(|id| id.as_bytes().to_vec())
}
