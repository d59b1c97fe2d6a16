//! JSON web tokens: their signature, their times, and the policies that they stand for.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_plugin::{BuildCx, Invalid, Io, Keep, Remembered, Service, ServiceOptions, ServiceUri};
use weir_wire::method::Method;

use super::Refusal;
use crate::auth::jwt_auth;
use crate::auth::jwt_auth::key::{Algorithm, Verifier};
use crate::auth::jwt_auth::token::Token;
use crate::auth::openid_connect::jose::{Jwt, KeySet, Verdict};
use crate::tyk::sessions::{Session, Sessions};

/// Verification and reading of tokens.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// `hmac`, `rsa` or `ecdsa`.
    jwt_signing_method: String,
    /// The secret or the public key in PEM, in base64; or the URL of a set of keys (JWKS), also in base64.
    jwt_source: String,
    /// Further URLs of sets of keys.
    jwt_jwks_uris: Vec<SetConf>,
    /// Claim with the identity; empty: `sub`.
    jwt_identity_base_field: String,
    /// Does not take `kid` of the header for the identity.
    jwt_skip_kid: bool,
    /// Claim with the policy; empty: `pol`.
    jwt_policy_field_name: String,
    /// Policies of tokens that name none.
    jwt_default_policies: Vec<String>,
    /// Claim with scopes; empty: `scope`.
    scope_claim_name: String,
    /// Policies by scopes.
    scope_to_policy: BTreeMap<String, String>,
    /// Seconds by which `iat` may lie ahead.
    jwt_issued_at_validation_skew: u64,
    /// Seconds by which `exp` may be over.
    jwt_expires_at_validation_skew: u64,
    /// Seconds by which `nbf` may lie ahead.
    jwt_not_before_validation_skew: u64,
    jwt_disable_issued_at_validation: bool,
    jwt_disable_expires_at_validation: bool,
    jwt_disable_not_before_validation: bool,
}

/// A set of keys.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct SetConf {
    url: String,
}

/// Keys that verify tokens.
#[derive(Debug)]
enum Keys {
    /// One key of the configuration, in a verifier for each algorithm that it fits, and a secret.
    Own(Box<[Verifier]>, Vec<u8>),
    /// Sets of keys that are fetched.
    Sets(Box<Sets>),
}

/// Sets of keys at URLs.
#[derive(Debug)]
struct Sets {
    uris: Vec<ServiceUri>,
    services: Vec<Service>,
    /// The sets that were fetched last, and when.
    held: papaya::HashMap<(), (Arc<Fetched>, u64)>,
    /// Holds one question at a time, and its answer for a moment.
    asked: Arc<Remembered<Fetched>>,
}

type Fetched = Option<Vec<KeySet>>;

/// Milliseconds for which a set of keys is used.
const SET_MS: u64 = 240_000;
/// Milliseconds between two questions because a token names a key that is not known.
const AGAIN_MS: u64 = 30_000;
/// Milliseconds between two questions after one without an answer.
const FAILED_MS: u64 = 1000;

/// Reasons for a token without a caller.
#[derive(Debug)]
pub(super) enum Stop {
    Refused(Refusal),
    /// The sets of keys have to be fetched first.
    NeedsKeys,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Tokens {
    keys: Keys,
    /// Names of the algorithms that tokens may have.
    algorithms: &'static [Algorithm],
    conf: Conf,
    /// Sessions by the policies that they are made of.
    sessions: papaya::HashMap<Box<str>, (Arc<crate::tyk::sessions::Policies>, Arc<Session>)>,
}

/// Most sessions that are kept for combinations of policies.
const MOST_SESSIONS: usize = 1024;
/// Most policies of one token.
const MOST_POLICIES: usize = 32;

static HMAC: LazyLock<Vec<Algorithm>> = LazyLock::new(|| named(&["HS256", "HS384", "HS512"]));
static RSA: LazyLock<Vec<Algorithm>> = LazyLock::new(|| named(&["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]));
static ECDSA: LazyLock<Vec<Algorithm>> = LazyLock::new(|| named(&["ES256", "ES384", "ES512"]));

fn named(names: &[&str]) -> Vec<Algorithm> {
    names.iter().filter_map(|name| Algorithm::named(name)).collect()
}

/// Whom a token means.
pub(super) struct Caller {
    pub(super) session: Arc<Session>,
    /// Identity, under which the requests of the caller count.
    pub(super) identity: String,
}

impl Tokens {
    pub(super) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let algorithms = match conf.jwt_signing_method.as_str() {
            "hmac" => &*HMAC,
            "rsa" => &*RSA,
            "ecdsa" => &*ECDSA,
            other => {
                let text = format!("expected one of: hmac, rsa, ecdsa; found '{other}'");
                return Err(Invalid::new("jwt_signing_method", text));
            }
        };
        let expected = || Invalid::new("jwt_source", "expected a secret or a public key in PEM, in base64");
        let source = conf.jwt_source.trim();
        let is_url = |text: &str| text.starts_with("http://") || text.starts_with("https://");
        let decoded = STANDARD.decode(source).ok().and_then(|text| String::from_utf8(text).ok());
        let url = [Some(source), decoded.as_deref()].into_iter().flatten().map(str::trim).find(|text| is_url(text));
        let uris = url.into_iter().chain(conf.jwt_jwks_uris.iter().map(|set| set.url.trim()));
        let mut sets = Vec::new();
        for uri in uris.filter(|uri| !uri.is_empty()) {
            sets.push(Service::parse("jwt_source", uri, ServiceOptions::default())?);
        }
        if !sets.is_empty() {
            let asked = Arc::new(Remembered::new(1, 1 << 20));
            let sets = Sets { uris: sets, services: Vec::new(), held: papaya::HashMap::new(), asked };
            let keys = Keys::Sets(Box::new(sets));
            return Ok(Self { keys, algorithms, conf, sessions: papaya::HashMap::new() });
        }
        if source.is_empty() {
            return Err(Invalid::new("jwt_source", "keys of single sessions are not supported: set jwt_source"));
        }
        let key = decoded.ok_or_else(expected)?;
        let key = key.trim_end_matches('\n');
        let has_secret = conf.jwt_signing_method == "hmac";
        let (mut verifiers, mut secret, mut fault) = (Vec::new(), Vec::new(), None);
        for algorithm in algorithms {
            let consumer = jwt_auth::ConsumerConf {
                key: "tyk".to_owned(),
                secret: has_secret.then(|| key.to_owned()),
                public_key: (!has_secret).then(|| key.to_owned()),
                algorithm: *algorithm,
                exp: jwt_auth::exp(),
                base64_secret: false,
                lifetime_grace_period: 0,
            };
            match Verifier::new(&consumer) {
                Ok((verifier, bytes)) => {
                    verifiers.push(verifier);
                    secret = bytes;
                }
                Err(error) => fault = Some(error),
            }
        }
        match fault {
            Some(fault) if verifiers.is_empty() => Err(Invalid { path: "jwt_source".to_owned(), ..fault }),
            _ => {
                let keys = Keys::Own(verifiers.into(), secret);
                Ok(Self { keys, algorithms, conf, sessions: papaya::HashMap::new() })
            }
        }
    }

    /// Makes the connections to sets of keys.
    pub(super) fn build(&mut self, build: &BuildCx<'_>) -> Result<(), Invalid> {
        if let Keys::Sets(sets) = &mut self.keys {
            let built = std::mem::take(&mut sets.uris).into_iter().map(|uri| uri.build(build));
            sets.services = built.collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// Fetches the sets of keys.
    pub(super) async fn fetch(&self, now_ms: u64, io: &dyn Io) {
        let Keys::Sets(sets) = &self.keys else { return };
        let ask = || async {
            let mut fetched = Vec::with_capacity(sets.services.len());
            for service in &sets.services {
                let answer = io.callout(service.callout(Method::Get)).await.ok();
                let set =
                    answer.filter(|answer| answer.status() == 200).and_then(|answer| KeySet::parse(answer.body()));
                fetched.extend(set);
            }
            let fetched = Some(fetched).filter(|fetched| !fetched.is_empty());
            (fetched, Keep { ttl_ms: FAILED_MS, bytes: 1 << 16 })
        };
        let fetched = sets.asked.get(b"keys", now_ms, ask).await;
        if fetched.is_some() {
            sets.held.pin().insert((), (fetched, now_ms));
        }
    }

    /// The caller whom a token means, at a time in milliseconds since 1970, and of a clock that never goes back.
    pub(super) fn caller(
        &self,
        text: &[u8],
        org: &str,
        (unix_ms, now_ms): (u64, u64),
        sessions: &Sessions,
    ) -> Result<Caller, Stop> {
        const INVALID: Refusal = (403, "Key not authorized");
        let mut room = Vec::new();
        let token = Token::parse(text, "sub", &mut room).ok_or(INVALID)?;
        if !self.algorithms.iter().any(|algorithm| algorithm.name() == token.algorithm) {
            return Err((403, "Key not authorized: Unexpected signing method").into());
        }
        let is_good = match &self.keys {
            Keys::Own(verifiers, secret) => {
                let verifier = verifiers.iter().find(|verifier| verifier.algorithm.name() == token.algorithm);
                verifier.is_some_and(|verifier| verifier.verifies(secret, token.signed, token.signature))
            }
            Keys::Sets(sets) => sets.verify(std::str::from_utf8(text).map_err(|_| INVALID)?, now_ms)?,
        };
        if !is_good {
            return Err(INVALID.into());
        }
        let mut parts = text.split(|byte| *byte == b'.');
        let mut part = || {
            let decoded = URL_SAFE_NO_PAD.decode(parts.next()?).ok()?;
            serde_json::from_slice::<Value>(&decoded).ok()
        };
        let (header, claims) = (part().ok_or(INVALID)?, part().ok_or(INVALID)?);
        self.check_times(&claims, unix_ms / 1000)?;
        let identity = self.identity(&header, &claims).ok_or((403, "no suitable claims for user ID were found"))?;
        let policies = self.policies(&claims)?;
        Ok(Caller { session: self.session(&policies, org, sessions)?, identity })
    }

    fn check_times(&self, claims: &Value, now: u64) -> Result<(), Refusal> {
        let conf = &self.conf;
        let at = |name: &str| claims.get(name).and_then(Value::as_f64);
        let (now, skew) = (now as f64, |seconds: u64| seconds as f64);
        if let Some(exp) = at("exp").filter(|_| !conf.jwt_disable_expires_at_validation)
            && now - skew(conf.jwt_expires_at_validation_skew) >= exp
        {
            return Err((401, "Key not authorized: token has expired"));
        }
        if let Some(iat) = at("iat").filter(|_| !conf.jwt_disable_issued_at_validation)
            && now + skew(conf.jwt_issued_at_validation_skew) < iat
        {
            return Err((401, "Key not authorized: token used before issued"));
        }
        if let Some(nbf) = at("nbf").filter(|_| !conf.jwt_disable_not_before_validation)
            && now + skew(conf.jwt_not_before_validation_skew) < nbf
        {
            return Err((401, "Key not authorized: token is not valid yet"));
        }
        Ok(())
    }

    fn identity(&self, header: &Value, claims: &Value) -> Option<String> {
        let text = |value: Option<&Value>| value?.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        match self.conf.jwt_identity_base_field.as_str() {
            "" => text(header.get("kid")).filter(|_| !self.conf.jwt_skip_kid).or_else(|| text(claims.get("sub"))),
            field => text(claim(claims, field)).or_else(|| text(claims.get("sub"))),
        }
    }

    /// The policies of a token: the one that it names, those of its scopes, or the default ones.
    fn policies(&self, claims: &Value) -> Result<Vec<String>, Refusal> {
        let conf = &self.conf;
        let named =
            |name: &str, default: &'static str| if name.is_empty() { default.to_owned() } else { name.to_owned() };
        let mut found = Vec::new();
        if let Some(policy) = claim(claims, &named(&conf.jwt_policy_field_name, "pol")).and_then(Value::as_str) {
            found.push(policy.to_owned());
        }
        if !conf.scope_to_policy.is_empty() {
            let scopes = claim(claims, &named(&conf.scope_claim_name, "scope"));
            let listed = scopes.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            let written = scopes.and_then(Value::as_str).unwrap_or_default().split([' ', ',']);
            let of_scopes = listed.chain(written).filter_map(|scope| conf.scope_to_policy.get(scope)).cloned();
            found.extend(of_scopes.take(MOST_POLICIES));
        }
        if found.is_empty() {
            found.clone_from(&conf.jwt_default_policies);
        }
        if found.is_empty() { Err((403, "key not authorized: no matching policy found")) } else { Ok(found) }
    }

    /// The session of policies, which is kept until they change.
    fn session(&self, ids: &[String], org: &str, sessions: &Sessions) -> Result<Arc<Session>, Refusal> {
        const UNKNOWN: Refusal = (403, "key not authorized: no matching policy");
        let name = ids.join("\n");
        let policies = sessions.policies();
        let kept = self.sessions.pin();
        if let Some((of, session)) = kept.get(name.as_str())
            && Arc::ptr_eq(of, &policies)
        {
            return Ok(Arc::clone(session));
        }
        let written = json!({ "org_id": org, "apply_policies": ids });
        let session = Arc::new(sessions.compile_apart(&written).map_err(|_| UNKNOWN)?);
        if kept.len() >= MOST_SESSIONS {
            kept.clear();
        }
        kept.insert(name.into(), (policies, Arc::clone(&session)));
        Ok(session)
    }
}

impl Sets {
    /// True if one of the keys verifies a token.
    fn verify(&self, text: &str, now_ms: u64) -> Result<bool, Stop> {
        let held = self.held.pin();
        let Some((sets, fetched)) = held.get(&()) else { return Err(Stop::NeedsKeys) };
        let age = now_ms.saturating_sub(*fetched);
        if age > SET_MS {
            return Err(Stop::NeedsKeys);
        }
        let Some(token) = Jwt::parse(text) else { return Ok(false) };
        let mut verdicts = sets.iter().flatten().map(|set| set.verify(&token));
        let mut is_known = false;
        let is_good = verdicts.any(|verdict| {
            is_known |= verdict == Verdict::Bad;
            verdict == Verdict::Good
        });
        if !is_good && !is_known && age > AGAIN_MS {
            return Err(Stop::NeedsKeys);
        }
        Ok(is_good)
    }
}

/// A claim at a path with dots; a claim whose name has them goes first.
fn claim<'c>(claims: &'c Value, path: &str) -> Option<&'c Value> {
    claims.get(path).or_else(|| path.split('.').try_fold(claims, |value, name| value.get(name)))
}
