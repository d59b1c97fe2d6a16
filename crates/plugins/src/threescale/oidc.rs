//! Tokens of an OpenID Connect provider: their verification, and the application that they stand for.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use aws_lc_rs::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{BuildCx, Invalid, Io, RequestCx, ServiceOptions, Slot};

use super::backend::TIMEOUT;
use super::text::{Text, TextType};
use super::values::Members;
use crate::auth::jwt_auth::key::{Algorithm, public_der};
use crate::auth::openid_connect::claims::check_times;
use crate::auth::openid_connect::jose::{Claims, Jwt, KeySet, Verdict};
use crate::auth::openid_connect::provider::{Provider, ProviderConf};

/// Facts about a provider: an element of `oidc`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// The issuer of tokens.
    issuer: String,
    config: DiscoveryConf,
    /// Keys by their ids, with `pem` or as JWK.
    #[schemars(with = "BTreeMap<String, Value>")]
    keys: BTreeMap<String, Map<String, Value>>,
}

/// Members of a discovery document.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct DiscoveryConf {
    id_token_signing_alg_values_supported: Vec<String>,
}

/// The claim with the id of the application.
#[derive(Debug)]
enum ClientId {
    Claim(Box<str>),
    Template(Text),
}

/// Keys that verify tokens.
#[derive(Debug)]
enum Keys {
    /// Of the configuration: the id and the one algorithm of each, where it has one.
    Own { issuer: Box<str>, algorithms: Vec<Algorithm>, keys: Vec<(Box<str>, Option<Box<str>>, KeySet)> },
    /// Of the provider, which is asked.
    Provider(Box<Provider>),
}

/// The provider, before its upstream is built.
#[derive(Debug)]
pub(super) struct Draft {
    keys: DraftKeys,
    client_id: ClientId,
}

#[derive(Debug)]
enum DraftKeys {
    Own(Keys),
    Provider(Box<ProviderConf>),
}

/// Verification of tokens.
#[derive(Debug)]
pub(super) struct Oidc {
    keys: Keys,
    client_id: ClientId,
    known: Slot<Tokens>,
}

/// Tokens that a worker has verified, by their hashes.
#[derive(Debug, Default)]
struct Tokens(RefCell<HashMap<[u8; 32], Rc<Claims>>>);

/// Most tokens that a worker remembers; with one more it begins anew.
const MOST: usize = 4096;
/// Longest token that is remembered, in bytes.
const LONGEST: usize = 8192;
/// Milliseconds for which keys of a provider are used.
const KEYS_MS: u64 = 300_000;

/// Fault of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is not good.
    Bad,
    /// The provider has to be asked first.
    NeedsProvider,
    /// The provider does not answer as it should: why.
    Provider(&'static str),
}

impl Draft {
    /// Compiles the provider of a service: keys of the configuration go before those of the endpoint.
    pub(super) fn compile(
        conf: Option<Conf>,
        endpoint: Option<&str>,
        claim: (Option<&str>, TextType),
        verifies: bool,
    ) -> Result<Self, Invalid> {
        let own = conf.filter(|conf| !conf.issuer.is_empty() && !conf.keys.is_empty());
        let keys = match (own, endpoint) {
            (Some(conf), _) => DraftKeys::Own(conf.keys()?),
            (None, Some(endpoint)) => {
                let discovery =
                    format!("{}/.well-known/openid-configuration", without_user(endpoint).trim_end_matches('/'));
                let options = ServiceOptions { verify: verifies, timeout: TIMEOUT, ..ServiceOptions::default() };
                let provider = ProviderConf::new(&discovery, &[], &[], options)
                    .map_err(|fault| Invalid { path: "proxy.oidc_issuer_endpoint".into(), ..fault })?;
                DraftKeys::Provider(Box::new(provider))
            }
            (None, None) => {
                let text =
                    "required field missing: tokens are verified by the keys of this provider, or by those in oidc";
                return Err(Invalid::new("proxy.oidc_issuer_endpoint", text));
            }
        };
        let client_id = match claim {
            (Some(template), TextType::Liquid) => {
                ClientId::Template(Text::compile(template, TextType::Liquid, "proxy.jwt_claim_with_client_id")?)
            }
            (Some(name), TextType::Plain) if !name.is_empty() => ClientId::Claim(name.into()),
            _ => ClientId::Claim("azp".into()),
        };
        Ok(Self { keys, client_id })
    }

    pub(super) fn build(self, build: &BuildCx<'_>) -> Result<Oidc, Invalid> {
        let keys = match self.keys {
            DraftKeys::Own(keys) => keys,
            DraftKeys::Provider(provider) => Keys::Provider(Box::new(provider.build(KEYS_MS, build)?)),
        };
        Ok(Oidc { keys, client_id: self.client_id, known: Slot::default() })
    }
}

impl Conf {
    fn keys(self) -> Result<Keys, Invalid> {
        let names = &self.config.id_token_signing_alg_values_supported;
        let algorithms = names.iter().filter_map(|name| Algorithm::named(name)).filter(|known| !known.has_secret());
        let algorithms: Vec<Algorithm> = algorithms.collect();
        if algorithms.is_empty() {
            let text = "expected an algorithm with a public key, such as RS256: no token would pass";
            return Err(Invalid::new("oidc.config.id_token_signing_alg_values_supported", text));
        }
        let read = |(id, mut jwk): (String, Map<String, Value>)| {
            let field = format!("oidc.keys.{id}");
            let algorithm = jwk.get("alg").and_then(Value::as_str).map(Into::into);
            let set = match jwk.remove("pem").as_ref().and_then(Value::as_str) {
                Some(pem) => public_der(pem).and_then(|der| KeySet::of_der(der, None)),
                None => {
                    jwk.remove("kid");
                    let set = KeySet::parse(json!({ "keys": [jwk] }).to_string().as_bytes());
                    set.ok_or_else(|| "expected a public key as pem or as JWK".to_owned())
                }
            };
            Ok((id.into(), algorithm, set.map_err(|text| Invalid::new(field, text))?))
        };
        let keys = self.keys.into_iter().map(read).collect::<Result<_, Invalid>>()?;
        Ok(Keys::Own { issuer: self.issuer.into(), algorithms, keys })
    }
}

/// A URL without user and password, which APIcast needs for the client of the portal alone.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

impl Oidc {
    /// The claims of a token that is known to be good, or that keys of the configuration verify.
    pub(super) fn verify_here(&self, token: &[u8], cx: &RequestCx<'_>) -> Result<Rc<Claims>, Fault> {
        let hash = hash_of(token).ok_or(Fault::Bad)?;
        let tokens = self.known.get_or_start(Tokens::default);
        let known = tokens.0.borrow().get(&hash).cloned();
        if let Some(claims) = known {
            let is_good = check_times(&claims, seconds(cx), 0.0).is_ok();
            return if is_good { Ok(claims) } else { Err(Fault::Bad) };
        }
        let Keys::Own { issuer, algorithms, keys } = &self.keys else { return Err(Fault::NeedsProvider) };
        let text = std::str::from_utf8(token).map_err(|_| Fault::Bad)?;
        let jwt = Jwt::parse(text).filter(|jwt| algorithms.contains(&jwt.algorithm)).ok_or(Fault::Bad)?;
        let key = keys.iter().find(|(id, _, _)| jwt.key_id.as_deref() == Some(&**id));
        let (_, only, set) = key.ok_or(Fault::Bad)?;
        if only.as_deref().is_some_and(|only| only != jwt.algorithm.name()) || set.verify(&jwt) != Verdict::Good {
            return Err(Fault::Bad);
        }
        self.keep(hash, jwt.claims, issuer, cx)
    }

    /// The claims of a token that keys of the provider verify.
    pub(super) async fn verify_there(
        &self,
        token: &[u8],
        cx: &RequestCx<'_>,
        io: &dyn Io,
    ) -> Result<Rc<Claims>, Fault> {
        let Keys::Provider(provider) = &self.keys else { return self.verify_here(token, cx) };
        let hash = hash_of(token).ok_or(Fault::Bad)?;
        let text = std::str::from_utf8(token).map_err(|_| Fault::Bad)?;
        let jwt = Jwt::parse(text).filter(|jwt| !jwt.algorithm.has_secret()).ok_or(Fault::Bad)?;
        let is_good = provider.verifies(&jwt, cx.now_ms(), io).await;
        if !is_good.map_err(|fault| Fault::Provider(fault.reason()))? {
            return Err(Fault::Bad);
        }
        let document = provider.document(cx.now_ms(), io).await;
        let document = document.as_ref().as_ref().map_err(|fault| Fault::Provider(fault.reason()))?;
        self.keep(hash, jwt.claims, &document.issuer, cx)
    }

    /// Checks claims as RFC 7523 section 3 says, and remembers them.
    fn keep(&self, hash: [u8; 32], claims: Claims, issuer: &str, cx: &RequestCx<'_>) -> Result<Rc<Claims>, Fault> {
        let has = |name: &str| claims.get(name).is_some_and(|claim| !claim.is_null());
        let is_bearer = claims.get("typ").is_none_or(|kind| kind == "Bearer");
        let is_issuer = claims.get("iss").and_then(Value::as_str) == Some(issuer);
        let is_whole = ["sub", "aud", "exp"].into_iter().all(has);
        if !is_bearer || !is_issuer || !is_whole || check_times(&claims, seconds(cx), 0.0).is_err() {
            return Err(Fault::Bad);
        }
        let claims = Rc::new(claims);
        let tokens = self.known.get_or_start(Tokens::default);
        let mut tokens = tokens.0.borrow_mut();
        if tokens.len() >= MOST {
            tokens.clear();
        }
        tokens.insert(hash, Rc::clone(&claims));
        Ok(claims)
    }

    /// The id of the application that a token stands for.
    pub(super) fn client_id(&self, claims: &Claims) -> Option<String> {
        let text = |claim: &Value| match claim {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let found = match &self.client_id {
            ClientId::Template(template) => Some(template.render_with(|| Members::of_json(claims)).into_owned()),
            ClientId::Claim(name) => match claims.get(&**name)? {
                Value::Array(list) => text(list.first()?),
                other => text(other),
            },
        };
        found.filter(|id| !id.is_empty())
    }
}

/// Seconds since 1970 at which a token ends.
pub(super) fn end(claims: &Claims) -> f64 {
    claims.get("exp").and_then(Value::as_f64).unwrap_or_default()
}

fn seconds(cx: &RequestCx<'_>) -> f64 {
    cx.unix_ms() as f64 / 1000.0
}

/// The hash of a token that is short enough to be remembered.
fn hash_of(token: &[u8]) -> Option<[u8; 32]> {
    if token.len() > LONGEST {
        return None;
    }
    digest(&SHA256, token).as_ref().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::without_user;

    #[test]
    fn users_are_taken_out_of_urls() {
        for (url, expected) in [
            ("https://id:secret@sso.test/auth/realms/a", "https://sso.test/auth/realms/a"),
            ("https://sso.test:8443", "https://sso.test:8443"),
            ("http://sso.test/a@b", "http://sso.test/a@b"),
        ] {
            assert_eq!(without_user(url), expected);
        }
    }
}
