//! Bearer tokens (RFC 6750): access tokens that clients bring, verified by keys or by asking the provider (RFC 7662).

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use weir_plugin::{Io, Keep, Remembered, RequestCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::claims;
use super::client::{AuthMethod, Client, add_to_form};
use super::jose::{Claims, Jwt, KeySet};
use super::provider::{Fault, Provider};
use crate::auth::jwt_auth::key::Algorithm;

/// Longest time for which a verified signature is remembered.
const SIGNATURE_MS: u64 = 300_000;

/// Verification of access tokens.
#[derive(Debug)]
pub(super) struct Bearer {
    pub(super) check: Check,
    /// The one algorithm that signed tokens may have.
    pub(super) only: Option<Algorithm>,
    /// Issuers of tokens; `None`: that of the discovery document.
    pub(super) issuers: Option<Vec<String>>,
    /// Seconds by which clocks may differ.
    pub(super) slack: f64,
    /// True when every signature is verified anew.
    pub(super) forgets: bool,
    pub(super) remembered: Arc<Remembered<Result<Known, Refusal>>>,
}

/// Source of the decision about a token.
#[derive(Debug)]
pub(super) enum Check {
    /// This key.
    Key(KeySet),
    /// The keys that the provider publishes.
    ProviderKeys,
    /// The provider's answer to a question about each token.
    Introspection(Introspection),
}

#[derive(Debug)]
pub(super) struct Introspection {
    /// `None`: that of the discovery document.
    pub(super) endpoint: Option<String>,
    pub(super) method: AuthMethod,
    /// Fields of the request that go along.
    pub(super) fields: Box<[FieldName]>,
    /// The claim that says until when the answer holds.
    pub(super) expiry: String,
    /// Milliseconds for which an answer is remembered at most; 0: until the token expires.
    pub(super) interval_ms: u64,
}

/// A token that is good.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) claims: Claims,
}

/// Reasons for refusing a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The token is bad: why.
    Token(String),
    /// Nobody can say.
    Provider(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Provider(fault)
    }
}

/// The token of a request.
pub(super) fn token_of<'c>(cx: &'c RequestCx<'_>) -> Result<Option<&'c str>, &'static str> {
    const SCHEME: &[u8] = b"bearer ";
    let text = |token: &'c [u8]| std::str::from_utf8(token).map_err(|_| "Invalid Authorization header format.");
    match cx.request().field_str("authorization") {
        Some(value) if value.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME)) => {
            let token = value.get(SCHEME.len()..).unwrap_or_default().trim_ascii();
            if token.is_empty() || token.contains(&b' ') {
                return Err("Invalid Authorization header format.");
            }
            text(token).map(Some)
        }
        _ => cx.request().field_str("x-access-token").filter(|token| !token.is_empty()).map(text).transpose(),
    }
}

impl Bearer {
    /// Verifies a token. What is known of good ones is remembered, and their times are looked at again.
    pub(super) async fn verify(
        &self,
        token: &str,
        provider: &Provider,
        client: &Client,
        cx: &RequestCx<'_>,
        io: &dyn Io,
    ) -> Arc<Result<Known, Refusal>> {
        let ask = || async {
            let asked = self.ask(token, provider, client, cx, io).await;
            match asked {
                Ok((claims, ttl_ms)) => {
                    // Texts of claims have at most the length of what they were read from; the tree takes more.
                    let bytes = 256 + 4 * serde_json::to_vec(&claims).map_or(0, |json| json.len());
                    (Ok(Known { claims }), Keep { ttl_ms, bytes })
                }
                Err(refusal) => (Err(refusal), Keep { ttl_ms: 0, bytes: 0 }),
            }
        };
        // Answers about one token may differ with the fields that go along with the question.
        let mut key = digest(&SHA256, token.as_bytes()).as_ref().to_vec();
        if let Check::Introspection(introspection) = &self.check {
            for name in &introspection.fields {
                let value = cx.request().field(name).unwrap_or_default();
                key.extend_from_slice(digest(&SHA256, value).as_ref());
            }
        }
        let known = self.remembered.get(&key, cx.now_ms(), ask).await;
        if let Ok(Known { claims }) = &*known
            && let Err(reason) = claims::check_times(claims, now(cx), self.slack)
        {
            return Arc::new(Err(Refusal::Token(reason)));
        }
        known
    }

    /// Claims of a good token, and for how many milliseconds they may be remembered.
    async fn ask(
        &self,
        token: &str,
        provider: &Provider,
        client: &Client,
        cx: &RequestCx<'_>,
        io: &dyn Io,
    ) -> Result<(Claims, u64), Refusal> {
        let refuse = |reason: &str| Refusal::Token(reason.to_owned());
        let (claims, ttl_ms) = match &self.check {
            Check::Introspection(introspection) => introspection.ask(token, provider, client, cx, io).await?,
            check => {
                let token = Jwt::parse(token).ok_or_else(|| refuse("the token is no JWT of a known algorithm"))?;
                if self.only.is_some_and(|only| only != token.algorithm) {
                    return Err(refuse("the token has another algorithm than is expected"));
                }
                let good = if token.algorithm.has_secret() {
                    // Only where the configuration names the algorithm, and with the secret of the client: a public key is
                    // never taken for a secret (RFC 8725 section 2.1).
                    self.only.is_some() && token.is_signed_with(&client.secret)
                } else {
                    match check {
                        Check::Key(key) => key.verify(&token) == super::jose::Verdict::Good,
                        _ => provider.verifies(&token, cx.now_ms(), io).await?,
                    }
                };
                if !good {
                    return Err(refuse("the signature of the token is not valid"));
                }
                (token.claims, if self.forgets { 0 } else { SIGNATURE_MS })
            }
        };
        claims::check_times(&claims, now(cx), self.slack).map_err(Refusal::Token)?;
        let issuer = claims.get("iss").and_then(|issuer| issuer.as_str());
        let is_good = match (&self.issuers, &self.check) {
            (Some(issuers), _) => issuer.is_some_and(|issuer| issuers.iter().any(|good| good == issuer)),
            // Whoever answers the question is the issuer.
            (None, Check::Introspection(_)) => true,
            (None, _) => {
                let document = provider.document(cx.now_ms(), io).await;
                let document = document.as_ref().as_ref().map_err(|fault| *fault)?;
                issuer == Some(document.issuer.as_str())
            }
        };
        if is_good { Ok((claims, ttl_ms)) } else { Err(refuse("the token is of another issuer")) }
    }
}

/// Seconds since 1970.
pub(super) fn now(cx: &RequestCx<'_>) -> f64 {
    cx.unix_ms() as f64 / 1000.0
}

impl Introspection {
    async fn ask(
        &self,
        token: &str,
        provider: &Provider,
        client: &Client,
        cx: &RequestCx<'_>,
        io: &dyn Io,
    ) -> Result<(Claims, u64), Refusal> {
        let document;
        let endpoint = match &self.endpoint {
            Some(endpoint) => endpoint,
            None => {
                document = provider.document(cx.now_ms(), io).await;
                let document = document.as_ref().as_ref().map_err(|fault| *fault)?;
                document.introspection_endpoint.as_ref().ok_or(Fault::NoEndpoint)?
            }
        };
        let mut question = provider.request(Method::Post, endpoint)?;
        for name in &self.fields {
            cx.request().field(name).into_iter().for_each(|value| question.add_field(name, value));
        }
        let mut form = Vec::new();
        add_to_form(&mut form, "token", token);
        client.complete(self.method, endpoint, cx.unix_ms() / 1000, form, &mut question).ok_or(Fault::Unproven)?;
        let answer = io.callout(question).await.map_err(Fault::Callout)?;
        if answer.status() != 200 {
            return Err(Fault::Status.into());
        }
        let claims: Claims = serde_json::from_slice(answer.body()).map_err(|_| Fault::Broken)?;
        // RFC 7662 section 2.2: a boolean, and nothing else says that a token is good.
        if claims.get("active") != Some(&serde_json::Value::Bool(true)) {
            return Err(Refusal::Token("the token is not active".into()));
        }
        let left = claims.get(&self.expiry).and_then(serde_json::Value::as_f64).map_or(0.0, |exp| exp - now(cx));
        // A negative number of seconds becomes 0.
        let left_ms = (left * 1000.0) as u64;
        Ok((claims, if self.interval_ms > 0 { left_ms.min(self.interval_ms) } else { left_ms }))
    }
}
