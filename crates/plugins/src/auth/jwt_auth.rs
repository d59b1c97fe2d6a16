//! `jwt-auth`: a consumer is known by a signed token (RFC 7519).

pub(crate) mod key;
pub(crate) mod token;
pub(crate) mod verified;

use std::num::NonZeroU64;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Phases, Plugin,
    RequestCx,
};
use weir_wire::name::FieldName;

use super::credentials::{self, CredentialTable};
use crate::{cookies, query};
use key::{Algorithm, Verifier};
use token::{Key, Token};
use verified::{Known, Verified};

/// The definition.
#[derive(Debug)]
pub(crate) struct JwtAuth;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Name of the request field that carries the token, with or without `Bearer` before it. Empty: no field does.
    header: String,
    /// Name of the query argument that carries the token, when the field is absent. Empty: no argument does.
    query: String,
    /// Name of the cookie that carries the token, when field and argument are absent. Empty: no cookie does.
    cookie: String,
    /// Takes the token out of the request before it goes upstream, wherever it stands: the field, every query argument
    /// and every cookie of that name, also those that were not looked at.
    hide_credentials: bool,
    /// Name of the claim that holds the consumer's key.
    #[schemars(length(min = 1))]
    key_claim_name: String,
    /// Claims that a token must have and that must hold now: `exp` and `nbf`. Without this list, or with an empty one,
    /// both must hold where a token has them.
    #[schemars(extend("uniqueItems" = true))]
    claims_to_verify: Option<Vec<Claim>>,
    /// For Lua plugins in APISIX, which find the claims in their context. There are none here: it has no effect.
    store_in_ctx: bool,
    /// Name of the consumer as whom requests without a valid token are let through; without it, and while it does not
    /// exist, they are refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The realm told in `WWW-Authenticate` when a request is refused (RFC 6750 section 3).
    #[schemars(length(min = 1))]
    realm: String,
}

/// A claim about time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Claim {
    Exp,
    Nbf,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            header: "authorization".into(),
            query: "jwt".into(),
            cookie: "jwt".into(),
            hide_credentials: false,
            key_claim_name: "key".into(),
            claims_to_verify: None,
            store_in_ctx: false,
            anonymous_consumer: None,
            realm: "jwt".into(),
        }
    }
}

/// On a consumer or a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// Value of the claim `key_claim_name` in the consumer's tokens. No two consumers or credentials may have the same.
    #[schemars(length(min = 1))]
    pub(crate) key: String,
    /// The secret that tokens are signed with, for HS256, HS384 and HS512.
    #[schemars(length(min = 1))]
    pub(crate) secret: Option<String>,
    /// The public key of the issuer in PEM, for the other algorithms: RSA of 2048 to 8192 bits for RS and PS, the
    /// curves P-256, P-384 and P-521 for ES256, ES384 and ES512, Ed25519 for EdDSA.
    #[schemars(length(min = 1))]
    pub(crate) public_key: Option<String>,
    /// The algorithm of the consumer's tokens. A token that names another is refused.
    #[serde(default)]
    #[schemars(extend("default" = "HS256"))]
    pub(crate) algorithm: Algorithm,
    /// Seconds for which APISIX made tokens valid while it issued them. Tokens are issued elsewhere, with an `exp` of
    /// their own: it has no effect.
    #[serde(default = "exp")]
    pub(crate) exp: NonZeroU64,
    /// True if `secret` is written in base64.
    #[serde(default)]
    pub(crate) base64_secret: bool,
    /// Seconds by which the clocks of issuer and gateway may differ: for so long is a token taken after its `exp` and
    /// before its `nbf`.
    #[serde(default)]
    pub(crate) lifetime_grace_period: u32,
}

/// The default lifetime that APISIX writes into stored configurations without one.
pub(crate) fn exp() -> NonZeroU64 {
    const { NonZeroU64::new(86400).unwrap() }
}

impl Define for JwtAuth {
    const NAME: &'static str = "jwt-auth";
    const PRIORITY: i32 = 2510;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through when it carries a JSON web token (RFC 7519) with the key of a consumer and the signature of that \
consumer's issuer. The token is looked for in a field, then in a query argument, then in a cookie; the first that is \
there counts. The upstream is told who called by `X-Consumer-Username` and, where they are known, \
`X-Credential-Identifier` and `X-Consumer-Custom-ID`.

Otherwise the answer is 401 with `WWW-Authenticate: Bearer realm=\"…\"`, unless `anonymous_consumer` names a consumer as \
whom such requests are let through. The body tells what was wrong:

| body | |
|---|---|
| `Missing JWT token in request` | there is none |
| `JWT token invalid` | it is not a JSON web token in compact form |
| `missing user key in JWT token` | it has no claim `key_claim_name` |
| `Invalid user key in JWT token` | no consumer has this key |
| `failed to verify jwt` | algorithm, signature, `exp` or `nbf` |

A consumer has one algorithm, and a token has to name it: `none`, and a public key taken for a secret, are refused. Keys \
are read when the configuration is: one that does not fit its algorithm is an error of the configuration. Tokens are \
read strictly: padding, claims that come twice, an `exp`, `nbf` or `iat` that is no number, `null` included, and \
extensions that would have to be understood (`crit`) are refused. \
`nbf` has come in the second it names (RFC 7519 section 4.1.5; APISIX waits for the next one).

The gateway remembers the last 8192 tokens that it found good, so that a signature is verified once and not for each \
request; `exp` and `nbf` are looked at each time, and a change of the configuration forgets all.";
    const EXAMPLE: &'static str = "\
key_claim_name: iss
claims_to_verify: [exp]
hide_credentials: true
";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["secret"];
    const PRIVATE_KEYS: &'static [&'static str] = &["private_key"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn check_consumer(conf: &ConsumerConf) -> Result<(), Vec<Invalid>> {
        let mut faults = Vec::from_iter(Verifier::new(conf).err());
        faults.extend(conf.unused());
        if conf.exp != exp() {
            let message = "tokens are issued elsewhere, with an exp of their own: it has no effect";
            faults.push(Invalid::warning("exp", message));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let header = cx.ok(super::source_field(&conf.header));
        cx.say(conf.check_names());
        cx.say(super::check_sources(&[&conf.header, &conf.query, &conf.cookie], "token"));
        cx.say(super::check_realm(&conf.realm).err());
        if conf.store_in_ctx {
            cx.warn("store_in_ctx", "no plugin here reads the claims that it would keep: it has no effect");
        }
        let header = header?;
        Some(Compiled::build(move |build| {
            Ok(Checked {
                header,
                checks: Checks::new(conf.claims_to_verify.as_deref().unwrap_or_default()),
                query: super::source(conf.query),
                cookie: super::source(conf.cookie),
                hide: conf.hide_credentials,
                claim: conf.key_claim_name,
                anonymous: super::anonymous(conf.anonymous_consumer.as_deref(), build),
                challenge: format!("Bearer realm=\"{}\"", conf.realm).into_bytes(),
                position: build.position,
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut CredentialTable<Arc<Verifier>>,
                   AuthEntry { who, conf, .. }: &AuthEntry<ConsumerConf>| {
            super::check_credential(&conf.key).map_err(|message| Invalid::new("key", message))?;
            let (verifier, secret) = Verifier::new(conf)?;
            Ok(table.insert(conf.key.as_bytes(), &secret, *who, Arc::new(verifier)))
        };
        let held = change.held::<Keys>().map(|keys| &keys.table);
        let table = credentials::changed(&change, held, |conf| &conf.key, put, ("key", "key"))?;
        Ok(Arc::new(Keys::new(table).map_err(|fault| (change.came.len(), fault))?))
    }
}

impl ConsumerConf {
    /// Findings for fields that belong to algorithms of the other kind.
    fn unused(&self) -> impl Iterator<Item = Invalid> {
        let algorithm = self.algorithm.name();
        let with_secret = self.algorithm.has_secret();
        let unused = [
            ("secret", self.secret.is_some() && !with_secret),
            ("base64_secret", self.base64_secret && !with_secret),
            ("public_key", self.public_key.is_some() && with_secret),
        ];
        let warn = move |field| Invalid::warning(field, format!("it has no effect with algorithm {algorithm}"));
        unused.into_iter().filter(|(_, unused)| *unused).map(move |(field, _)| warn(field))
    }
}

impl Conf {
    fn check_names(&self) -> impl Iterator<Item = Invalid> {
        let is_cookie = self.cookie.is_empty() || cookies::is_name(&self.cookie);
        let cookie = (!is_cookie).then(|| Invalid::new("cookie", "expected the name of a cookie"));
        let claim = matches!(self.key_claim_name.as_str(), "exp" | "nbf")
            .then(|| Invalid::new("key_claim_name", "expected a claim that holds a text, not a time"));
        cookie.into_iter().chain(claim)
    }
}

/// The state of consumers that all instances share.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Keys, with the secrets of those that have one.
    pub(crate) table: CredentialTable<Arc<Verifier>>,
    pub(crate) verified: Verified,
}

impl Keys {
    /// Keys of which no token has been verified yet.
    pub(crate) fn new(table: CredentialTable<Arc<Verifier>>) -> Result<Self, Invalid> {
        let verified = Verified::new().ok_or_else(|| Invalid::new("", "the system has no random bytes"))?;
        Ok(Self { table, verified })
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    /// `None`: no field carries a token. The same with `query` and `cookie`.
    header: Option<FieldName>,
    query: Option<Box<[u8]>>,
    cookie: Option<Box<[u8]>>,
    hide: bool,
    claim: String,
    checks: Checks,
    anonymous: Option<u32>,
    challenge: Vec<u8>,
    /// Position of the plugin's credentials in the registry.
    position: u8,
}

/// The part of a request that carried the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenSource {
    Field,
    Query,
    Cookie,
}

impl Plugin for Checked {
    fn credential_argument(&self) -> Option<&[u8]> {
        self.query.as_deref()
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut room = cx.take_scratch();
        let place = self.place(cx);
        let found = match place {
            Some(place) => self.find(cx, place, &mut room),
            None => Err("Missing JWT token in request"),
        };
        // A fault elsewhere could let the next plugin or request read scratch memory.
        room.fill(0);
        cx.put_scratch(room);
        if self.hide && (found.is_ok() || self.anonymous.is_some()) {
            self.hide(cx);
        }
        match found {
            Ok(who) => {
                cx.set_consumer(who);
                Flow::Continue
            }
            Err(message) => super::refuse(cx, self.anonymous, &self.challenge, message),
        }
    }
}

impl Checked {
    fn place(&self, cx: &RequestCx<'_>) -> Option<TokenSource> {
        [TokenSource::Field, TokenSource::Query, TokenSource::Cookie]
            .into_iter()
            .find(|place| self.token(cx, *place).is_some())
    }

    /// The token in this place, as it stands there.
    fn token<'c>(&self, cx: &'c RequestCx<'_>, place: TokenSource) -> Option<&'c [u8]> {
        let request = cx.request();
        match place {
            TokenSource::Field => request.field(self.header.as_ref()?).map(without_scheme),
            TokenSource::Query => query::argument(request.query()?, self.query.as_deref()?),
            TokenSource::Cookie => request.cookie(self.cookie.as_deref()?),
        }
    }

    fn find(&self, cx: &RequestCx<'_>, place: TokenSource, room: &mut Vec<u8>) -> Result<ConsumerMatch, &'static str> {
        let token = self.token(cx, place);
        let token = token.unwrap_or_default();
        if place == TokenSource::Query && !query::is_plain(token) {
            // No byte of a token has to be encoded, so that this is not the usual way.
            let mut decoded = Vec::new();
            query::decode(token, &mut decoded);
            return self.verify(cx, &decoded, room);
        }
        self.verify(cx, token, room)
    }

    fn verify(&self, cx: &RequestCx<'_>, token: &[u8], room: &mut Vec<u8>) -> Result<ConsumerMatch, &'static str> {
        const FAILED: &str = "failed to verify jwt";
        const UNKNOWN: &str = "Invalid user key in JWT token";
        let keys: &Keys = cx.credentials(self.position).ok_or(UNKNOWN)?;
        let tag = keys.verified.tag(&self.claim, token);
        let remembered = keys.verified.find(&tag);
        let known = match remembered {
            Some(known) => known,
            None => {
                let token = Token::parse(token, &self.claim, room).ok_or("JWT token invalid")?;
                let credential = match &token.claims.key {
                    Key::Absent => return Err("missing user key in JWT token"),
                    Key::Text(key) => keys.table.find(key.as_bytes()),
                    Key::Other => None,
                };
                let credential = credential.ok_or(UNKNOWN)?;
                let verifier = credential.more;
                if token.algorithm != verifier.algorithm.name()
                    || !verifier.verifies(credential.secret, token.signed, token.signature)
                {
                    return Err(FAILED);
                }
                Known { at: credential.at, exp: token.claims.exp, nbf: token.claims.nbf }
            }
        };
        let credential = keys.table.get(known.at).ok_or(FAILED)?;
        if !self.checks.hold(&known, cx.unix_ms() as f64 / 1000.0, f64::from(credential.more.grace)) {
            return Err(FAILED);
        }
        if remembered.is_none() {
            keys.verified.remember(tag, known);
        }
        Ok(credential.who)
    }

    fn hide(&self, cx: &mut RequestCx<'_>) {
        if let Some(header) = &self.header {
            cx.request_mut().remove_field(header);
        }
        if let Some(name) = &self.query {
            super::hide_argument(cx, name);
        }
        if let Some(name) = &self.cookie {
            cookies::remove(cx, name);
        }
    }
}

/// The token in a field. The scheme is compared without regard to case (RFC 9110 section 11.1), and may be absent.
fn without_scheme(field: &[u8]) -> &[u8] {
    match field.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => weir_wire::trim_ows(token),
        _ => field,
    }
}

/// Strictness about the claims of time.
#[derive(Debug, Clone, Copy)]
struct Checks {
    exp: Need,
    nbf: Need,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Whatever it says.
    None,
    /// The claim has to hold if the token has it.
    WhereThere,
    /// The token has to have the claim, and the claim has to hold.
    Always,
}

impl Checks {
    fn new(listed: &[Claim]) -> Self {
        let need = |claim| match listed {
            [] => Need::WhereThere,
            listed if listed.contains(&claim) => Need::Always,
            _ => Need::None,
        };
        Self { exp: need(Claim::Exp), nbf: need(Claim::Nbf) }
    }

    /// True if the claims hold at `now`, in seconds since 1970, with clocks that may differ by `grace`.
    fn hold(&self, claims: &Known, now: f64, grace: f64) -> bool {
        let holds = |need: Need, claim: Option<f64>, at_its_time: &dyn Fn(f64) -> bool| match (need, claim) {
            (Need::None, _) | (Need::WhereThere, None) => true,
            (_, Some(at)) => at_its_time(at),
            (Need::Always, None) => false,
        };
        // RFC 7519 sections 4.1.4 and 4.1.5.
        holds(self.exp, claims.exp, &|exp| now < exp + grace) && holds(self.nbf, claims.nbf, &|nbf| now + grace >= nbf)
    }
}

#[cfg(test)]
mod tests {
    use super::{Checks, Claim, Known, without_scheme};
    use crate::auth::credentials::CredentialAt;

    #[test]
    fn the_scheme_is_optional() {
        for (field, token) in
            [("Bearer a.b.c", "a.b.c"), ("bearer  a", "a"), ("BEARER a", "a"), ("a.b.c", "a.b.c"), ("Bearer", "Bearer")]
        {
            assert_eq!(without_scheme(field.as_bytes()), token.as_bytes(), "{field}");
        }
    }

    #[test]
    fn times_hold_as_far_as_they_are_asked_for() {
        use Claim::{Exp, Nbf};
        for (listed, exp, nbf, grace, holds) in [
            (&[][..], None, None, 0.0, true),
            (&[], Some(1000.5), Some(1000.0), 0.0, true),
            (&[], Some(1000.0), None, 0.0, false),
            (&[], Some(1000.0), None, 1.0, true),
            (&[], Some(999.0), None, 1.0, false),
            (&[], None, Some(1000.5), 0.0, false),
            (&[], None, Some(1000.5), 1.0, true),
            (&[Exp], None, None, 0.0, false),
            (&[Exp], Some(2000.0), Some(2000.0), 0.0, true),
            (&[Nbf], Some(1.0), Some(1.0), 0.0, true),
            (&[Nbf], Some(2000.0), None, 0.0, false),
            (&[Exp, Nbf], Some(2000.0), None, 0.0, false),
            (&[Exp, Nbf], Some(2000.0), Some(1.0), 0.0, true),
            (&[], Some(-1.0), None, 0.0, false),
        ] {
            let known = Known { at: CredentialAt::numbered(0), exp, nbf };
            assert_eq!(Checks::new(listed).hold(&known, 1000.0, grace), holds, "{listed:?} {exp:?} {nbf:?} {grace}");
        }
    }
}
