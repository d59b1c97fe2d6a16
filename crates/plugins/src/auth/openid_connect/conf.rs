//! Configuration of `openid-connect`: its fields, the rules between them, and the parts made of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{BuildCx, Invalid, Remembered};
use weir_wire::name::FieldName;

use super::bearer::{Check, Introspection};
use super::client::{self, AuthMethod, Client};
use super::flow::{CodeFlow, UnauthAction};
use super::jose::KeySet;
use super::provider::split_origin;
use super::session::{Cookies, SameSite};
use crate::auth::jwt_auth::key::{Algorithm, public_der};
use crate::auth::{check_credential, check_realm};

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The gateway's id at the provider.
    #[schemars(length(min = 1))]
    pub(super) client_id: String,
    /// The gateway's secret at the provider.
    #[schemars(length(min = 1))]
    pub(super) client_secret: String,
    /// The provider's discovery document: `https://HOST/.well-known/openid-configuration`, as a rule. It is fetched when it
    /// is needed, and remembered for an hour.
    #[schemars(length(min = 1))]
    pub(super) discovery: String,
    /// Further origins (`https://HOST:PORT`) at which endpoints of the discovery document may be asked, at most 4. The origins
    /// of `discovery` and `introspection_endpoint` always may, and the known ones of Google and Microsoft. An endpoint elsewhere
    /// is not asked, so that nobody but the configuration decides where the client's secret goes. An extension: APISIX asks
    /// everywhere.
    #[serde(default)]
    #[schemars(length(max = 4))]
    pub(super) endpoint_origins: Vec<String>,
    /// Verifies certificates of the provider, by an authority of `tls.trusted_certificate` and for the name in the URI.
    #[serde(default = "yes")]
    pub(super) ssl_verify: bool,
    /// Seconds until the provider has to have answered a question, connecting included.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1, max = 60))]
    pub(super) timeout: u64,
    /// Takes bearer tokens only: a request without one is refused. Else users log in at the provider, in their browsers, and a
    /// bearer token is looked at where `introspection_endpoint`, `use_jwks` or `public_key` says how.
    #[serde(default)]
    pub(super) bearer_only: bool,
    /// Treatment of requests without a session: `auth` sends the user to the provider, `deny` answers 401, and `pass` lets them
    /// through as nobody's.
    #[serde(default)]
    pub(super) unauth_action: UnauthAction,
    /// Path or URI of this gateway to which the provider sends users back; the provider has to know it. Without it the path of
    /// the request with `/.apisix/redirect` behind.
    #[schemars(length(min = 1))]
    pub(super) redirect_uri: Option<String>,
    /// Scopes that a login asks for, with blanks between them.
    #[serde(default = "scope")]
    #[schemars(length(min = 1))]
    pub(super) scope: String,
    /// Further parameters of logins, such as `prompt` or `acr_values`.
    #[serde(default)]
    pub(super) authorization_params: BTreeMap<String, String>,
    /// Binds the code to the login by a secret (RFC 7636).
    #[serde(default)]
    pub(super) use_pkce: bool,
    /// Logins always have a nonce, so that true is what happens anyway.
    #[serde(default = "yes")]
    pub(super) use_nonce: bool,
    /// Proof of the gateway's identity at the token endpoint; as `introspection_endpoint_auth_method`.
    #[serde(default)]
    pub(super) token_endpoint_auth_method: AuthMethod,
    /// The session of a user, which is kept in encrypted cookies.
    #[serde(default)]
    pub(super) session: SessionConf,
    /// Gets a new access token with the refresh token when the old one ends. Where that fails the user logs in again. False: the
    /// session goes on with the old one.
    #[serde(default = "yes")]
    pub(super) renew_access_token_on_expiry: bool,
    /// Seconds for which an access token holds of which the provider does not say it.
    #[serde(default = "hour")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub(super) access_token_expires_in: u64,
    /// Seconds before its end from which an access token is renewed.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86_400))]
    pub(super) access_token_expires_leeway: u64,
    /// The path at which a user logs out.
    #[serde(default = "logout_path")]
    #[schemars(length(min = 1))]
    pub(super) logout_path: String,
    /// Path or URI to which the user is sent after logging out, by the provider where it has an endpoint for that.
    #[schemars(length(min = 1))]
    pub(super) post_logout_redirect_uri: Option<String>,
    /// Tells the provider at logout that the tokens of the session are not to be used any more (RFC 7009).
    #[serde(default)]
    pub(super) revoke_tokens_on_logout: bool,
    /// The realm in `WWW-Authenticate` of refused requests.
    #[serde(default = "realm")]
    #[schemars(length(min = 1))]
    pub(super) realm: String,
    /// The endpoint that is asked about bearer tokens, in place of that of the discovery document.
    pub(super) introspection_endpoint: Option<String>,
    /// Proof of the gateway's identity when it asks about a token: its secret in `Authorization` (`client_secret_basic`) or in
    /// the form (`client_secret_post`), or a token signed with the secret (`client_secret_jwt`) or with
    /// `client_rsa_private_key` (`private_key_jwt`).
    #[serde(default)]
    pub(super) introspection_endpoint_auth_method: AuthMethod,
    /// Names of fields of the request that go along with a question about its token. Answers are remembered for each of their
    /// values.
    #[schemars(length(min = 1))]
    pub(super) introspection_addon_headers: Option<Vec<String>>,
    /// The claim of the provider's answer that says until when it holds, in seconds since 1970. An answer without it is not
    /// remembered.
    #[serde(default = "expiry_claim")]
    #[schemars(length(min = 1))]
    pub(super) introspection_expiry_claim: String,
    /// Seconds for which an answer about a token is remembered at most; 0: until the token expires.
    #[serde(default)]
    pub(super) introspection_interval: u32,
    /// Verifies bearer tokens with the keys that the provider publishes (`jwks_uri`), in place of asking about each.
    #[serde(default)]
    pub(super) use_jwks: bool,
    /// Seconds for which the provider's keys are remembered. A token of a key that is not among them has them fetched again, at
    /// most every 30 seconds.
    #[serde(default = "day")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub(super) jwk_expires_in: u32,
    /// Verifies bearer tokens with this public key, in PEM, in place of asking about each.
    pub(super) public_key: Option<String>,
    /// The algorithm that signed tokens have to name. Without it every one with a public key may; HS256, HS384 and HS512, which
    /// verify with `client_secret`, are taken only where they stand here.
    pub(super) token_signing_alg_values_expected: Option<Algorithm>,
    /// Must stay false: unsigned tokens (`alg` `none`) are never taken.
    #[serde(default)]
    pub(super) accept_none_alg: bool,
    /// Seconds by which the clocks of provider and gateway may differ: for `exp`, `nbf` and `iat`.
    #[serde(default = "slack")]
    #[schemars(range(min = 0, max = 3600))]
    pub(super) iat_slack: u32,
    /// Verifies the signature of a bearer token with each request. Else a good one is remembered for up to 5 minutes.
    #[serde(default)]
    pub(super) jwt_verification_cache_ignore: bool,
    /// Further conditions for claims of bearer tokens.
    #[serde(default)]
    pub(super) claim_validator: ClaimValidator,
    /// Scopes that a bearer token must have, by its claim `scope`. Otherwise the answer is 403.
    #[schemars(length(min = 1))]
    pub(super) required_scopes: Option<Vec<String>>,
    /// Seconds for which a proof by a signed token holds (`client_secret_jwt`, `private_key_jwt`).
    #[serde(default = "minute")]
    #[schemars(range(min = 1, max = 3600))]
    pub(super) client_jwt_assertion_expires_in: u64,
    /// The private key of `private_key_jwt`: RSA, in PEM.
    pub(super) client_rsa_private_key: Option<String>,
    /// The id of that key (`kid`).
    pub(super) client_rsa_private_key_id: Option<String>,
    /// Tells the upstream the access token.
    #[serde(default = "yes")]
    pub(super) set_access_token_header: bool,
    /// Tells it in `Authorization`, as a bearer token, in place of `X-Access-Token`.
    #[serde(default)]
    pub(super) access_token_in_authorization_header: bool,
    /// Tells the upstream the claims of the ID token: `X-ID-Token`, an object in JSON and base64.
    #[serde(default = "yes")]
    pub(super) set_id_token_header: bool,
    /// Tells the upstream the refresh token: `X-Refresh-Token`.
    #[serde(default)]
    pub(super) set_refresh_token_header: bool,
    /// Tells the upstream the user: `X-Userinfo`, an object in JSON and base64. For a session it is what the provider's userinfo
    /// endpoint says, for a bearer token its claims or the provider's answer about it.
    #[serde(default = "yes")]
    pub(super) set_userinfo_header: bool,
    /// Proxies to the provider: not supported. Let the gateway reach it directly.
    pub(super) proxy_opts: Option<Value>,
    /// A schema for claims: not supported.
    pub(super) claim_schema: Option<Value>,
    /// Logging in anew with each request: not supported.
    #[serde(default)]
    pub(super) force_reauthorize: bool,
    /// Asking the provider for the user again and again: not supported.
    pub(super) refresh_session_interval: Option<Value>,
}

/// The session of a user.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SessionConf {
    /// The secret that cookies are encrypted with. Gateways that share it know each other's sessions. Without it one is made up,
    /// and sessions end with the process.
    #[schemars(length(min = 16))]
    pub(super) secret: Option<String>,
    /// The first part of the names of its cookies.
    #[schemars(length(min = 1))]
    pub(super) name: String,
    /// Storage of sessions: the cookies themselves.
    pub(super) storage: Storage,
    /// Servers of another storage: not supported.
    pub(super) redis: Option<Value>,
    /// Attributes of the cookies.
    pub(super) cookie: CookieConf,
}

impl Default for SessionConf {
    fn default() -> Self {
        let name = "session".into();
        Self { secret: None, name, storage: Storage::Cookie, redis: None, cookie: CookieConf::default() }
    }
}

/// Place of sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(super) enum Storage {
    #[default]
    Cookie,
}

/// Attributes of the cookies of sessions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CookieConf {
    /// Seconds of a session. It is prolonged when less than half of it and less than 10 minutes are left.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub(super) lifetime: u64,
    /// Path under which browsers send them.
    pub(super) path: String,
    /// Domain to whose hosts browsers send them. Without it the host alone.
    pub(super) domain: Option<String>,
    /// Attribute `SameSite`: the requests of other sites with which browsers send the cookies.
    pub(super) samesite: SameSite,
    /// `true`: browsers send the cookies over HTTPS alone. Default: true for requests over HTTPS.
    pub(super) secure: Option<bool>,
}

impl Default for CookieConf {
    fn default() -> Self {
        Self { lifetime: hour(), path: "/".into(), domain: None, samesite: SameSite::Lax, secure: None }
    }
}

fn scope() -> String {
    "openid".into()
}

fn hour() -> u64 {
    3600
}

fn logout_path() -> String {
    "/logout".into()
}

/// Conditions for claims.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimValidator {
    /// The claim `iss`.
    #[serde(default)]
    pub(super) issuer: IssuerRule,
    /// The claim that says for whom a token is.
    #[serde(default)]
    pub(super) audience: AudienceRule,
}

/// Condition for the issuer.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct IssuerRule {
    /// Issuers whose tokens are taken. Without it the issuer of a signed token has to be that of the discovery document.
    #[schemars(length(min = 1))]
    pub(super) valid_issuers: Option<Vec<String>>,
}

/// Condition for the audience.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AudienceRule {
    /// The claim that holds the audience, a text or a list.
    #[serde(default = "aud")]
    #[schemars(length(min = 1))]
    pub(super) claim: String,
    /// Requires the claim.
    #[serde(default)]
    pub(super) required: bool,
    /// Requires that the claim holds `client_id`.
    #[serde(default)]
    pub(super) match_with_client_id: bool,
}

impl Default for AudienceRule {
    fn default() -> Self {
        Self { claim: aud(), required: false, match_with_client_id: false }
    }
}

fn aud() -> String {
    "aud".into()
}

fn yes() -> bool {
    true
}

fn timeout() -> u64 {
    3
}

fn realm() -> String {
    "apisix".into()
}

fn expiry_claim() -> String {
    "exp".into()
}

fn day() -> u32 {
    86_400
}

fn minute() -> u64 {
    60
}

fn slack() -> u32 {
    120
}

impl Conf {
    pub(super) fn check(&self) -> impl Iterator<Item = Invalid> {
        let fault = |wrong: bool, field: &str, text: &str| wrong.then(|| Invalid::new(field, text));
        let warning = |wrong: bool, field: &str, text: &str| wrong.then(|| Invalid::warning(field, text));
        let asks = !self.verifies_signatures();
        let uses_key = self.introspection_endpoint_auth_method == AuthMethod::PrivateKeyJwt && asks
            || self.token_endpoint_auth_method == AuthMethod::PrivateKeyJwt && !self.bearer_only;
        let no_effect = "it has no effect: tokens are verified by signature";
        let unsigned = "it has no effect: the provider is asked about tokens";
        [
            check_realm(&self.realm).err(),
            check_credential(&self.client_secret).err().map(|text| Invalid::new("client_secret", text)),
            fault(
                self.claim_schema.is_some(),
                "claim_schema",
                "a schema for claims is not supported: see claim_validator",
            ),
            fault(self.force_reauthorize, "force_reauthorize", "it is not supported: expected false"),
            fault(
                self.refresh_session_interval.is_some(),
                "refresh_session_interval",
                "it is not supported: session.cookie.lifetime says when a session ends",
            ),
            fault(self.session.redis.is_some(), "session.redis", "sessions are kept in cookies alone"),
            warning(!self.use_nonce, "use_nonce", "it has no effect: logins always have a nonce"),
            warning(
                !self.bearer_only && self.session.secret.is_none(),
                "session",
                "without session.secret sessions end with the process, and no other gateway knows them",
            ),
            fault(self.proxy_opts.is_some(), "proxy_opts", "proxies are not supported: the provider is asked directly"),
            fault(
                self.accept_none_alg,
                "accept_none_alg",
                "not supported: unsigned tokens are never taken; expected false",
            ),
            fault(
                uses_key && self.client_rsa_private_key.is_none(),
                "client_rsa_private_key",
                "private_key_jwt needs it",
            ),
            warning(!self.ssl_verify, "ssl_verify", "anybody on the way can answer in the place of the provider"),
            warning(
                self.public_key.is_some() && self.use_jwks,
                "use_jwks",
                "it has no effect: public_key takes precedence",
            ),
            warning(!asks && self.introspection_endpoint.is_some(), "introspection_endpoint", no_effect),
            warning(!asks && self.introspection_addon_headers.is_some(), "introspection_addon_headers", no_effect),
            warning(!asks && self.introspection_interval > 0, "introspection_interval", no_effect),
            warning(asks && self.jwt_verification_cache_ignore, "jwt_verification_cache_ignore", unsigned),
            warning(
                asks && self.bearer_only && self.token_signing_alg_values_expected.is_some(),
                "token_signing_alg_values_expected",
                unsigned,
            ),
        ]
        .into_iter()
        .flatten()
    }

    pub(super) fn verifies_signatures(&self) -> bool {
        self.public_key.is_some() || self.use_jwks
    }

    pub(super) fn check_flow(&self) -> impl Iterator<Item = Invalid> {
        let is_place = |uri: &str| {
            let is_path = uri.starts_with('/') && !uri.starts_with("//");
            (is_path || split_origin(uri).is_some()) && uri.bytes().all(|b| b.is_ascii_graphic() && b != b';')
        };
        let place = |field: &str, uri: Option<&String>| {
            let text = "expected a path, http://HOST:PORT/PATH or https://HOST:PORT/PATH";
            uri.filter(|uri| !is_place(uri)).map(|_| Invalid::new(field, text))
        };
        let cookie = &self.session.cookie;
        let attribute = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && b != b';' && b != b',');
        let own = ["response_type", "client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge"];
        let own =
            self.authorization_params.keys().find(|name| own.contains(&name.as_str()) || name.starts_with("code_"));
        let fault = |wrong: bool, field: &str, text: &str| wrong.then(|| Invalid::new(field, text));
        let secret = self.session.secret.as_deref().and_then(|secret| check_credential(secret).err());
        [
            place("redirect_uri", self.redirect_uri.as_ref()),
            place("post_logout_redirect_uri", self.post_logout_redirect_uri.as_ref()),
            fault(!self.logout_path.starts_with('/'), "logout_path", "expected a path"),
            own.map(|name| Invalid::new(format!("authorization_params.{name}"), "the gateway sets it itself")),
            secret.map(|text| Invalid::new("session.secret", text)),
            fault(!crate::cookies::is_name(&self.session.name), "session.name", "expected the name of a cookie"),
            fault(!attribute(&cookie.path) || !cookie.path.starts_with('/'), "session.cookie.path", "expected a path"),
            fault(
                cookie.domain.as_deref().is_some_and(|domain| domain.is_empty() || !attribute(domain)),
                "session.cookie.domain",
                "expected a domain",
            ),
        ]
        .into_iter()
        .flatten()
    }

    pub(super) fn flow(&self, build: &BuildCx<'_>) -> Result<CodeFlow, Invalid> {
        let cookie = &self.session.cookie;
        let domain = cookie.domain.as_ref().map(|domain| format!("; Domain={domain}")).unwrap_or_default();
        let attributes = format!("; Path={}{domain}; HttpOnly; SameSite={:?}", cookie.path, cookie.samesite);
        // As long as the process lives, whatever changes around it.
        let made_up =
            build.states.get_or_create(&format!("openid-connect secret {}", build.place), client::random_text);
        let secret = self.session.secret.clone().map_or(made_up, Arc::new);
        let of = serde_json::json!([self.client_id, self.discovery]).to_string();
        let cookies = Cookies::new(self.session.name.clone(), &secret, &of, attributes, cookie.secure);
        let key = format!("openid-connect refresh {} {}", build.place, build.conf.to_json());
        Ok(CodeFlow {
            cookies: cookies.ok_or_else(|| Invalid::new("session.secret", "no key can be made of it"))?,
            action: self.unauth_action,
            redirect_uri: self.redirect_uri.clone(),
            logout_path: self.logout_path.clone(),
            post_logout_redirect_uri: self.post_logout_redirect_uri.clone(),
            revokes: self.revoke_tokens_on_logout,
            scope: self.scope.clone(),
            parameters: self.authorization_params.clone().into_iter().collect(),
            pkce: self.use_pkce,
            method: self.token_endpoint_auth_method,
            only: self.token_signing_alg_values_expected,
            slack: f64::from(self.iat_slack),
            wants_user: self.set_userinfo_header,
            lifetime: cookie.lifetime,
            renews: self.renew_access_token_on_expiry,
            access_seconds: self.access_token_expires_in,
            leeway: self.access_token_expires_leeway,
            refreshed: build.states.get_or_create(&key, || Remembered::new(1000, 16 << 20)),
        })
    }

    pub(super) fn client(&self) -> Result<Client, Invalid> {
        let key = self.client_rsa_private_key.as_deref().map(client::private_key).transpose();
        Ok(Client {
            id: self.client_id.clone(),
            secret: self.client_secret.clone(),
            private_key: key.map_err(|text| Invalid::new("client_rsa_private_key", text))?,
            private_key_id: self.client_rsa_private_key_id.clone(),
            assertion_seconds: self.client_jwt_assertion_expires_in,
        })
    }

    pub(super) fn bearer_check(&self) -> Result<Check, Invalid> {
        if let Some(text) = &self.public_key {
            check_credential(text).map_err(|text| Invalid::new("public_key", text))?;
            let key = public_der(text).and_then(|der| KeySet::of_der(der, self.token_signing_alg_values_expected));
            return Ok(Check::Key(key.map_err(|text| Invalid::new("public_key", text))?));
        }
        if self.use_jwks {
            return Ok(Check::ProviderKeys);
        }
        let names = self.introspection_addon_headers.iter().flatten().enumerate();
        let field = |(at, name): (usize, &String)| {
            let place = format!("introspection_addon_headers[{at}]");
            let own = ["host", "authorization", "content-type", "accept", "expect", "te", "trailer"];
            let framing = ["content-length", "transfer-encoding", "connection", "keep-alive", "upgrade"];
            if own.iter().chain(&framing).any(|own| name.eq_ignore_ascii_case(own)) {
                return Err(Invalid::new(place, format!("the gateway sets {name} itself")));
            }
            FieldName::new(name).ok_or_else(|| Invalid::new(place, "expected the name of a field"))
        };
        Ok(Check::Introspection(Introspection {
            endpoint: self.introspection_endpoint.clone(),
            method: self.introspection_endpoint_auth_method,
            fields: names.map(field).collect::<Result<_, Invalid>>()?,
            expiry: self.introspection_expiry_claim.clone(),
            interval_ms: u64::from(self.introspection_interval) * 1000,
        }))
    }
}
