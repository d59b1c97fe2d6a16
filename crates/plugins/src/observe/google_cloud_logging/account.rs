//! Service accounts of Google.

use std::path::Path;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_plugin::{Invalid, Service, ServiceOptions};
use weir_telemetry::reports::Grant;

use crate::auth::openid_connect::client::private_key;

/// Seconds for which an assertion is good.
const GOOD: u64 = 3600;

/// A service account.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct AuthConf {
    /// The account's address.
    client_email: String,
    /// Its private key: RSA, in PEM.
    private_key: String,
    /// The project.
    project_id: String,
    /// The service that gives tokens.
    #[serde(default = "token_uri")]
    token_uri: String,
    /// The scopes that a token is asked for.
    #[serde(default = "scope")]
    #[schemars(length(min = 1))]
    scope: Vec<String>,
    /// The same, which takes precedence.
    #[schemars(length(min = 1))]
    scopes: Option<Vec<String>>,
    /// The API that takes entries.
    #[serde(default = "entries_uri")]
    entries_uri: String,
}

fn token_uri() -> String {
    "https://oauth2.googleapis.com/token".into()
}

fn entries_uri() -> String {
    "https://logging.googleapis.com/v2/entries:write".into()
}

fn scope() -> Vec<String> {
    let scopes = ["logging.read", "logging.write", "logging.admin", "cloud-platform"];
    scopes.iter().map(|name| format!("https://www.googleapis.com/auth/{name}")).collect()
}

/// Place in which a service account stands.
#[derive(Debug)]
pub(super) enum Source {
    Conf(Account),
    File(String),
}

/// An account that is known to be usable.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) entries_uri: String,
    pub(super) project_id: String,
    pub(super) grant: Grant,
}

impl Source {
    pub(super) fn new(conf: Option<AuthConf>, file: Option<String>) -> Result<Self, Invalid> {
        match (conf, file) {
            (Some(conf), None) => Account::new(conf).map(Self::Conf),
            (None, Some(file)) => Ok(Self::File(file)),
            _ => Err(Invalid::new("", "expected either auth_config or auth_file")),
        }
    }

    /// The account. A file is read.
    pub(super) fn account(self) -> Result<Account, Invalid> {
        let file = match self {
            Self::Conf(account) => return Ok(account),
            Self::File(file) => file,
        };
        let wrong = |reason: String| Invalid::new("auth_file", format!("{file}: {reason}"));
        let text = weir_config::file::read_text(Path::new(&file)).map_err(|error| wrong(error.to_string()))?;
        let mut fields: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        for name in ["scope", "scopes"] {
            // A file may have one text with spaces in it.
            if let Some(one) = fields.get(name).and_then(Value::as_str) {
                fields[name] = one.split_ascii_whitespace().collect();
            }
        }
        let conf: AuthConf = serde_json::from_value(fields).map_err(|error| wrong(error.to_string()))?;
        Account::new(conf).map_err(|fault| {
            let field = fault.path.rsplit('.').next().unwrap_or_default();
            wrong(format!("{field}: {}", fault.code))
        })
    }
}

impl Account {
    fn new(conf: AuthConf) -> Result<Self, Invalid> {
        Service::parse("auth_config.token_uri", &conf.token_uri, ServiceOptions::default())?;
        Service::parse("auth_config.entries_uri", &conf.entries_uri, ServiceOptions::default())?;
        private_key(&conf.private_key).map_err(|reason| Invalid::new("auth_config.private_key", reason))?;
        let grant = Grant {
            token_uri: conf.token_uri,
            issuer: conf.client_email,
            scope: conf.scopes.unwrap_or(conf.scope).join(" "),
            private_key: conf.private_key,
            assert,
        };
        Ok(Self { entries_uri: conf.entries_uri, project_id: conf.project_id, grant })
    }
}

/// An assertion that the account's key signs, for a token (RFC 7523 section 3).
fn assert(grant: &Grant, now: u64) -> Result<String, String> {
    let header = json!({ "alg": "RS256", "typ": "JWT" });
    let claims = json!({
        "iss": grant.issuer, "aud": grant.token_uri, "scope": grant.scope, "iat": now, "exp": now.saturating_add(GOOD),
    });
    let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let key = private_key(&grant.private_key)?;
    let mut signature = vec![0; key.public_modulus_len()];
    let random = SystemRandom::new();
    key.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature)
        .map_err(|_| "the assertion cannot be signed")?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}
