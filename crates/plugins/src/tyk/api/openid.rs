//! Tokens of identity providers (`use_openid`): issuer and audience say which policy holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{BuildCx, Invalid, Io, ServiceOptions};

use super::Refusal;
use super::jwt::Stop;
use crate::auth::openid_connect::jose::Jwt;
use crate::auth::openid_connect::provider::{Provider, ProviderConf};
use crate::tyk::sessions::{Session, Sessions, SessionsOfPolicies};
use crate::tyk::shared::Wait;

/// The providers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// The providers.
    providers: Vec<IssuerConf>,
    /// Counts the requests of a user apart for each client.
    segregate_by_client: bool,
    /// Claim with scopes; empty: `scope`.
    scope_claim_name: String,
    /// Policies by scopes, in the place of those of clients.
    scope_to_policy: BTreeMap<String, String>,
}

/// A provider.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct IssuerConf {
    /// Its URL, under which it publishes its discovery document.
    issuer: String,
    /// Policies by the ids of clients in base64.
    client_ids: BTreeMap<String, String>,
}

/// Milliseconds for which the keys of a provider are used.
const KEYS_MS: u64 = 3_600_000;
/// The answer to any fault of a token.
const FAULT: Refusal = (401, "Key not authorised");
/// Most policies of one token.
const MOST_POLICIES: usize = 32;

/// A provider, compiled.
#[derive(Debug)]
struct Issuer {
    url: String,
    clients: BTreeMap<String, String>,
    conf: Option<ProviderConf>,
    provider: Option<Provider>,
}

/// The providers, compiled.
#[derive(Debug)]
pub(super) struct OpenId {
    issuers: Vec<Issuer>,
    segregates: bool,
    scope_claim: String,
    scopes: BTreeMap<String, String>,
    sessions: SessionsOfPolicies,
}

impl OpenId {
    pub(super) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let mut issuers = Vec::new();
        for (at, issuer) in conf.providers.into_iter().enumerate() {
            let field = format!("providers[{at}]");
            let mut clients = BTreeMap::new();
            for (id, policy) in issuer.client_ids {
                let decoded = STANDARD.decode(&id).ok().and_then(|id| String::from_utf8(id).ok());
                let fault = || Invalid::new(format!("{field}.client_ids"), format!("'{id}' is no id in base64"));
                clients.insert(decoded.ok_or_else(fault)?, policy);
            }
            let discovery = format!("{}/.well-known/openid-configuration", issuer.issuer.trim_end_matches('/'));
            let conf = ProviderConf::new(&discovery, &[], &[], ServiceOptions::default());
            let conf = conf.map_err(|error| Invalid { path: format!("{field}.issuer"), ..error })?;
            issuers.push(Issuer { url: issuer.issuer, clients, conf: Some(conf), provider: None });
        }
        if issuers.is_empty() {
            return Err(Invalid::new("providers", "expected a provider with an issuer and client_ids"));
        }
        let scope_claim = if conf.scope_claim_name.is_empty() { "scope".to_owned() } else { conf.scope_claim_name };
        Ok(Self {
            issuers,
            segregates: conf.segregate_by_client,
            scope_claim,
            scopes: conf.scope_to_policy,
            sessions: SessionsOfPolicies::default(),
        })
    }

    pub(super) fn build(&mut self, build: &BuildCx<'_>) -> Result<(), Invalid> {
        for issuer in &mut self.issuers {
            if let Some(conf) = issuer.conf.take() {
                issuer.provider = Some(conf.build(KEYS_MS, build)?);
            }
        }
        Ok(())
    }

    /// True if the provider that a token names has signed it. A provider that does not answer has not.
    pub(super) async fn verifies(&self, token: &str, now_ms: u64, io: &dyn Io) -> bool {
        let Some(jwt) = Jwt::parse(token) else { return false };
        let Some(provider) = self.issuer(&jwt).and_then(|issuer| issuer.provider.as_ref()) else { return false };
        match provider.verifies(&jwt, now_ms, io).await {
            Ok(is_good) => is_good,
            Err(fault) => {
                tracing::warn!(reason = fault.reason(), "a provider of OpenID cannot be asked: its tokens are refused");
                false
            }
        }
    }

    fn issuer(&self, jwt: &Jwt<'_>) -> Option<&Issuer> {
        let named = jwt.claims.get("iss").and_then(Value::as_str)?;
        self.issuers.iter().find(|issuer| issuer.url.trim_end_matches('/') == named.trim_end_matches('/'))
    }

    /// The session of a token, and the identity under which its requests count. `is_good` is the verdict of its provider.
    pub(super) fn session(
        &self,
        token: &[u8],
        org: &str,
        (unix_ms, is_good): (u64, Option<bool>),
        sessions: &Sessions,
    ) -> Result<(Arc<Session>, String), Stop> {
        let text = std::str::from_utf8(token).map_err(|_| FAULT)?;
        let jwt = Jwt::parse(text).ok_or(FAULT)?;
        let issuer = self.issuer(&jwt).ok_or(FAULT)?;
        let claim = |name: &str| jwt.claims.get(name);
        let user = claim("sub").and_then(Value::as_str).filter(|user| !user.is_empty()).ok_or(FAULT)?;
        let audience = match claim("aud") {
            Some(Value::Array(all)) => all.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        let mut audience = audience.iter().filter_map(Value::as_str);
        // A token of somebody else's client is none of this API.
        let client = audience.find_map(|client| issuer.clients.get_key_value(client)).ok_or(FAULT)?;
        let now = unix_ms as f64 / 1000.0;
        let time = |name: &str| claim(name).and_then(Value::as_f64);
        if time("exp").is_none_or(|exp| now >= exp) || time("nbf").is_some_and(|nbf| now < nbf) {
            return Err(FAULT.into());
        }
        match is_good {
            None => return Err(Stop::Waits(Wait::Verify(text.into()))),
            Some(false) => return Err(FAULT.into()),
            Some(true) => {}
        }
        let policies = match self.scopes.is_empty() {
            true => vec![client.1.clone()],
            false => self.of_scopes(claim(&self.scope_claim)),
        };
        let unknown = (403, "Key not authorized: no matching policy");
        let session = self.sessions.find(&policies, org, sessions).map_err(|_| unknown)?;
        let identity = if self.segregates { format!("{} {user}", client.0) } else { user.to_owned() };
        Ok((session, identity))
    }

    fn of_scopes(&self, scopes: Option<&Value>) -> Vec<String> {
        let listed = scopes.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let written = scopes.and_then(Value::as_str).unwrap_or_default().split(' ');
        let policies = listed.chain(written).filter_map(|scope| self.scopes.get(scope)).cloned();
        policies.take(MOST_POLICIES).collect()
    }
}
