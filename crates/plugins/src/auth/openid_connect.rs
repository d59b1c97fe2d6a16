//! `openid-connect`: an identity provider says who calls (OpenID Connect Core, RFC 6749, RFC 6750, RFC 7662).

mod bearer;
mod claims;
pub(crate) mod client;
mod flow;
mod jose;
pub(crate) mod provider;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, PerRequest, Phases, Plugin, Remembered,
    RequestCx, ResponseCx, ServiceOptions,
};
use weir_wire::name::FieldName;

use crate::auth::jwt_auth::key::{Algorithm, public_der};
use bearer::{Bearer, Check, Introspection, Known, Refusal};
use client::{AuthMethod, Client};
use flow::{CodeFlow, Found, UnauthAction};
use jose::{Claims, Jwt, KeySet};
use provider::{Provider, ProviderConf, split_origin};
use session::{Cookies, SameSite, Session};

/// The definition.
#[derive(Debug)]
pub(crate) struct OpenidConnect;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The gateway's id at the provider.
    #[schemars(length(min = 1))]
    client_id: String,
    /// The gateway's secret at the provider.
    #[schemars(length(min = 1))]
    client_secret: String,
    /// The provider's discovery document: `https://HOST/.well-known/openid-configuration`, as a rule. It is fetched when it
    /// is needed, and remembered for an hour.
    #[schemars(length(min = 1))]
    discovery: String,
    /// Further origins (`https://HOST:PORT`) at which endpoints of the discovery document may be asked, at most 4. The origins
    /// of `discovery` and `introspection_endpoint` always may, and the known ones of Google and Microsoft. An endpoint elsewhere
    /// is not asked, so that nobody but the configuration decides where the client's secret goes. An extension: APISIX asks
    /// everywhere.
    #[serde(default)]
    #[schemars(length(max = 4))]
    endpoint_origins: Vec<String>,
    /// Verifies certificates of the provider, by an authority of `tls.trusted_certificate` and for the name in the URI.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// Seconds until the provider has to have answered a question, connecting included.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1, max = 60))]
    timeout: u64,
    /// Takes bearer tokens only: a request without one is refused. Else users log in at the provider, in their browsers, and a
    /// bearer token is looked at where `introspection_endpoint`, `use_jwks` or `public_key` says how.
    #[serde(default)]
    bearer_only: bool,
    /// Treatment of requests without a session: `auth` sends the user to the provider, `deny` answers 401, and `pass` lets them
    /// through as nobody's.
    #[serde(default)]
    unauth_action: UnauthAction,
    /// Path or URI of this gateway to which the provider sends users back; the provider has to know it. Without it the path of
    /// the request with `/.apisix/redirect` behind.
    #[schemars(length(min = 1))]
    redirect_uri: Option<String>,
    /// Scopes that a login asks for, with blanks between them.
    #[serde(default = "scope")]
    #[schemars(length(min = 1))]
    scope: String,
    /// Further parameters of logins, such as `prompt` or `acr_values`.
    #[serde(default)]
    authorization_params: BTreeMap<String, String>,
    /// Binds the code to the login by a secret (RFC 7636).
    #[serde(default)]
    use_pkce: bool,
    /// Logins always have a nonce, so that true is what happens anyway.
    #[serde(default = "yes")]
    use_nonce: bool,
    /// How the gateway proves who it is at the token endpoint; as `introspection_endpoint_auth_method`.
    #[serde(default)]
    token_endpoint_auth_method: AuthMethod,
    /// The session of a user, which is kept in encrypted cookies.
    #[serde(default)]
    session: SessionConf,
    /// Gets a new access token with the refresh token when the old one ends. Where that fails the user logs in again. False: the
    /// session goes on with the old one.
    #[serde(default = "yes")]
    renew_access_token_on_expiry: bool,
    /// Seconds for which an access token holds of which the provider does not say it.
    #[serde(default = "hour")]
    #[schemars(range(min = 1, max = 31_536_000))]
    access_token_expires_in: u64,
    /// Seconds before its end from which an access token is renewed.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86_400))]
    access_token_expires_leeway: u64,
    /// The path at which a user logs out.
    #[serde(default = "logout_path")]
    #[schemars(length(min = 1))]
    logout_path: String,
    /// Path or URI to which the user is sent after logging out, by the provider where it has an endpoint for that.
    #[schemars(length(min = 1))]
    post_logout_redirect_uri: Option<String>,
    /// Tells the provider at logout that the tokens of the session are not to be used any more (RFC 7009).
    #[serde(default)]
    revoke_tokens_on_logout: bool,
    /// The realm in `WWW-Authenticate` of refused requests.
    #[serde(default = "realm")]
    #[schemars(length(min = 1))]
    realm: String,
    /// The endpoint that is asked about bearer tokens, in place of that of the discovery document.
    introspection_endpoint: Option<String>,
    /// How the gateway proves who it is when it asks about a token: its secret in `Authorization` (`client_secret_basic`) or in
    /// the form (`client_secret_post`), or a token signed with the secret (`client_secret_jwt`) or with
    /// `client_rsa_private_key` (`private_key_jwt`).
    #[serde(default)]
    introspection_endpoint_auth_method: AuthMethod,
    /// Names of fields of the request that go along with a question about its token. Answers are remembered for each of their
    /// values.
    #[schemars(length(min = 1))]
    introspection_addon_headers: Option<Vec<String>>,
    /// The claim of the provider's answer that says until when it holds, in seconds since 1970. An answer without it is not
    /// remembered.
    #[serde(default = "expiry_claim")]
    #[schemars(length(min = 1))]
    introspection_expiry_claim: String,
    /// Seconds for which an answer about a token is remembered at most; 0: until the token expires.
    #[serde(default)]
    introspection_interval: u32,
    /// Verifies bearer tokens with the keys that the provider publishes (`jwks_uri`), in place of asking about each.
    #[serde(default)]
    use_jwks: bool,
    /// Seconds for which the provider's keys are remembered. A token of a key that is not among them has them fetched again, at
    /// most every 30 seconds.
    #[serde(default = "day")]
    #[schemars(range(min = 1, max = 31_536_000))]
    jwk_expires_in: u32,
    /// Verifies bearer tokens with this public key, in PEM, in place of asking about each.
    public_key: Option<String>,
    /// The algorithm that signed tokens have to name. Without it every one with a public key may; HS256, HS384 and HS512, which
    /// verify with `client_secret`, are taken only where they stand here.
    token_signing_alg_values_expected: Option<Algorithm>,
    /// Must stay false: unsigned tokens (`alg` `none`) are never taken.
    #[serde(default)]
    accept_none_alg: bool,
    /// Seconds by which the clocks of provider and gateway may differ: for `exp`, `nbf` and `iat`.
    #[serde(default = "slack")]
    #[schemars(range(min = 0, max = 3600))]
    iat_slack: u32,
    /// Verifies the signature of a bearer token with each request. Else a good one is remembered for up to 5 minutes.
    #[serde(default)]
    jwt_verification_cache_ignore: bool,
    /// Further conditions for claims of bearer tokens.
    #[serde(default)]
    claim_validator: ClaimValidator,
    /// Scopes that a bearer token must have, by its claim `scope`. Otherwise the answer is 403.
    #[schemars(length(min = 1))]
    required_scopes: Option<Vec<String>>,
    /// Seconds for which a proof by a signed token holds (`client_secret_jwt`, `private_key_jwt`).
    #[serde(default = "minute")]
    #[schemars(range(min = 1, max = 3600))]
    client_jwt_assertion_expires_in: u64,
    /// The private key of `private_key_jwt`: RSA, in PEM.
    client_rsa_private_key: Option<String>,
    /// The id of that key (`kid`).
    client_rsa_private_key_id: Option<String>,
    /// Tells the upstream the access token.
    #[serde(default = "yes")]
    set_access_token_header: bool,
    /// Tells it in `Authorization`, as a bearer token, in place of `X-Access-Token`.
    #[serde(default)]
    access_token_in_authorization_header: bool,
    /// Tells the upstream the claims of the ID token: `X-ID-Token`, an object in JSON and base64.
    #[serde(default = "yes")]
    set_id_token_header: bool,
    /// Tells the upstream the refresh token: `X-Refresh-Token`.
    #[serde(default)]
    set_refresh_token_header: bool,
    /// Tells the upstream the user: `X-Userinfo`, an object in JSON and base64. For a session it is what the provider's userinfo
    /// endpoint says, for a bearer token its claims or the provider's answer about it.
    #[serde(default = "yes")]
    set_userinfo_header: bool,
    /// Proxies to the provider: not supported. Let the gateway reach it directly.
    proxy_opts: Option<Value>,
    /// A schema for claims: not supported.
    claim_schema: Option<Value>,
    /// Logging in anew with each request: not supported.
    #[serde(default)]
    force_reauthorize: bool,
    /// Asking the provider for the user again and again: not supported.
    refresh_session_interval: Option<Value>,
}

/// The session of a user.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SessionConf {
    /// The secret that cookies are encrypted with. Gateways that share it know each other's sessions. Without it one is made up,
    /// and sessions end with the process.
    #[schemars(length(min = 16))]
    secret: Option<String>,
    /// The first part of the names of its cookies.
    #[schemars(length(min = 1))]
    name: String,
    /// Where sessions are kept: in the cookies themselves.
    storage: Storage,
    /// Servers of another storage: not supported.
    redis: Option<Value>,
    /// Attributes of the cookies.
    cookie: CookieConf,
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
enum Storage {
    #[default]
    Cookie,
}

/// Attributes of the cookies of sessions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CookieConf {
    /// Seconds of a session. It is prolonged when less than half of it and less than 10 minutes are left.
    #[schemars(range(min = 1, max = 31_536_000))]
    lifetime: u64,
    /// Path under which browsers send them.
    path: String,
    /// Domain to whose hosts browsers send them. Without it the host alone.
    domain: Option<String>,
    /// Whether browsers send them with requests that other sites make.
    samesite: SameSite,
    /// Whether browsers send them over HTTPS alone. Without it those of requests over HTTPS.
    secure: Option<bool>,
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
    issuer: IssuerRule,
    /// The claim that says for whom a token is.
    #[serde(default)]
    audience: AudienceRule,
}

/// Condition for the issuer.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct IssuerRule {
    /// Issuers whose tokens are taken. Without it the issuer of a signed token has to be that of the discovery document.
    #[schemars(length(min = 1))]
    valid_issuers: Option<Vec<String>>,
}

/// Condition for the audience.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AudienceRule {
    /// The claim that holds the audience, a text or a list.
    #[serde(default = "aud")]
    #[schemars(length(min = 1))]
    claim: String,
    /// Requires the claim.
    #[serde(default)]
    required: bool,
    /// Requires that the claim holds `client_id`.
    #[serde(default)]
    match_with_client_id: bool,
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

impl Define for OpenidConnect {
    const NAME: &'static str = "openid-connect";
    const PRIORITY: i32 = 2599;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "\
Lets a request through of a user who has logged in at an identity provider (OpenID Connect), or with an access token of it \
(OAuth 2.0).

**Users.** Without `bearer_only` a request without a session is sent to the provider, which sends the user back with a code to \
`redirect_uri`. The gateway changes the code for tokens, verifies the ID token (signature, `iss`, `aud`, `azp`, `nonce`, times), \
asks for the user where the upstream is told of it, and sends the user on to where the login began. The session is kept in \
cookies that are encrypted (AES-256-GCM, with a key of `session.secret` for the client and the provider), up to 6 of them; \
an answer that fits no login of the same browser is refused with 400. An access token that has ended is renewed with the \
refresh token. At `logout_path` the session ends, at the provider too where it has an endpoint for that.

**Tokens.** With `bearer_only`, or where `introspection_endpoint`, `use_jwks` or `public_key` is given, the token is in \
`Authorization: Bearer …` or in `X-Access-Token`. It is verified

- with `public_key`, where that is given,
- with the keys that the provider publishes, with `use_jwks`,
- or by asking the provider (RFC 7662) at `introspection_endpoint`, or at the endpoint of the discovery document.

A signed token must name an algorithm with a public key, or the one in `token_signing_alg_values_expected`; `none` is never \
taken, and a public key is never taken for a secret. Its `exp`, `nbf` and `iat` must hold, and its issuer be that of \
the discovery document or one of `claim_validator.issuer.valid_issuers`.

The upstream is told the token and the claims; what a client sent as `X-Access-Token`, `X-Userinfo`, `X-ID-Token` or \
`X-Refresh-Token` is dropped. No consumer is set.

| answer | |
|---|---|
| 302 | the user has to log in, or has |
| 400 | a malformed `Authorization`, or a login that is not good |
| 401 | there is no session, with `unauth_action: deny` |
| 401, `WWW-Authenticate: Bearer realm=\"…\"` | there is no token |
| 401, with `error=\"invalid_token\"` | the token is not good |
| 403, `{\"error\":\"…\"}` | the token lacks a scope or the audience |
| 503 | the provider gives no answer that can be used: nobody passes meanwhile |

Good tokens are remembered, up to 10,000 of each place in a configuration and 16 MiB: a signature for up to 5 minutes, an \
answer of the provider until the token expires or as long as `introspection_interval` says. Their times are looked at with each \
request.";
    const EXAMPLE: &'static str = "\
client_id: gateway
client_secret: V63T88kXbe5Lm2nP
discovery: http://127.0.0.1:9000/.well-known/openid-configuration
bearer_only: true
use_jwks: true
required_scopes: [orders]
";
    const ENCRYPTED: &'static [&'static str] = &["client_secret", "session.secret"];
    const PRIVATE_KEYS: &'static [&'static str] = &["client_rsa_private_key"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(conf.check());
        if !conf.bearer_only {
            cx.say(conf.check_flow());
        }
        let options = ServiceOptions {
            verify: conf.ssl_verify,
            timeout: Duration::from_secs(conf.timeout),
            ..ServiceOptions::default()
        };
        let endpoints = conf.introspection_endpoint.iter().map(|uri| ("introspection_endpoint", uri.as_str()));
        let endpoints: Vec<_> = endpoints.collect();
        let provider = cx.ok(ProviderConf::new(&conf.discovery, &conf.endpoint_origins, &endpoints, options));
        let client = cx.ok(conf.client());
        let check = cx.ok(conf.bearer_check());
        let keys_ms = u64::from(conf.jwk_expires_in) * 1000;
        let (provider, client, check) = (provider?, client?, check?);
        Some(Compiled::build(move |build| {
            let key = format!("openid-connect tokens {} {}", build.place, build.conf.to_json());
            let tokens = build.states.get_or_create(&key, || Remembered::new(10_000, 16 << 20));
            let flow = if conf.bearer_only { None } else { Some(conf.flow(build)?) };
            Ok(Authenticating {
                takes_tokens: conf.bearer_only || conf.introspection_endpoint.is_some() || conf.verifies_signatures(),
                flow,
                cookies: PerRequest::new(),
                provider: provider.build(keys_ms, build)?,
                client,
                bearer: Bearer {
                    check,
                    only: conf.token_signing_alg_values_expected,
                    issuers: conf.claim_validator.issuer.valid_issuers,
                    slack: f64::from(conf.iat_slack),
                    forgets: conf.jwt_verification_cache_ignore,
                    remembered: tokens,
                },
                scopes: conf.required_scopes.unwrap_or_default(),
                audience: conf.claim_validator.audience,
                headers: Headers {
                    access_token: conf.set_access_token_header,
                    in_authorization: conf.access_token_in_authorization_header,
                    userinfo: conf.set_userinfo_header,
                    id_token: conf.set_id_token_header,
                    refresh_token: conf.set_refresh_token_header,
                },
                challenge: format!("Bearer realm=\"{}\"", conf.realm),
                // A login asks for the document, tokens, keys twice and the user, and may wait for the questions of others.
                wait: Duration::from_secs(5 + 10 * conf.timeout),
            })
        }))
    }
}

impl Conf {
    fn check(&self) -> impl Iterator<Item = Invalid> {
        let fault = |wrong: bool, field: &str, text: &str| wrong.then(|| Invalid::new(field, text));
        let warning = |wrong: bool, field: &str, text: &str| wrong.then(|| Invalid::warning(field, text));
        let asks = !self.verifies_signatures();
        let uses_key = self.introspection_endpoint_auth_method == AuthMethod::PrivateKeyJwt && asks
            || self.token_endpoint_auth_method == AuthMethod::PrivateKeyJwt && !self.bearer_only;
        let no_effect = "it has no effect: tokens are verified by signature";
        let unsigned = "it has no effect: the provider is asked about tokens";
        [
            super::check_realm(&self.realm).err(),
            super::check_credential(&self.client_secret).err().map(|text| Invalid::new("client_secret", text)),
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

    fn verifies_signatures(&self) -> bool {
        self.public_key.is_some() || self.use_jwks
    }

    fn check_flow(&self) -> impl Iterator<Item = Invalid> {
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
        let secret = self.session.secret.as_deref().and_then(|secret| super::check_credential(secret).err());
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

    fn flow(&self, build: &BuildCx<'_>) -> Result<CodeFlow, Invalid> {
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

    fn client(&self) -> Result<Client, Invalid> {
        let key = self.client_rsa_private_key.as_deref().map(client::private_key).transpose();
        Ok(Client {
            id: self.client_id.clone(),
            secret: self.client_secret.clone(),
            private_key: key.map_err(|text| Invalid::new("client_rsa_private_key", text))?,
            private_key_id: self.client_rsa_private_key_id.clone(),
            assertion_seconds: self.client_jwt_assertion_expires_in,
        })
    }

    fn bearer_check(&self) -> Result<Check, Invalid> {
        if let Some(text) = &self.public_key {
            super::check_credential(text).map_err(|text| Invalid::new("public_key", text))?;
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

/// What the upstream is told.
#[derive(Debug)]
struct Headers {
    access_token: bool,
    in_authorization: bool,
    userinfo: bool,
    id_token: bool,
    refresh_token: bool,
}

/// An instance.
#[derive(Debug)]
struct Authenticating {
    /// True where bearer tokens are looked at.
    takes_tokens: bool,
    /// `None`: bearer tokens only.
    flow: Option<CodeFlow>,
    /// Cookies for the answer to a request that passes.
    cookies: PerRequest<Vec<String>>,
    provider: Provider,
    client: Client,
    bearer: Bearer,
    scopes: Vec<String>,
    audience: AudienceRule,
    headers: Headers,
    challenge: String,
    wait: Duration,
}

impl Plugin for Authenticating {
    fn phases(&self, declared: Phases) -> Phases {
        if self.flow.is_some() { declared } else { declared.without(Phases::RESPONSE) }
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.takes_tokens {
            match bearer::token_of(cx) {
                Ok(Some(_)) => return Flow::Suspend,
                Ok(None) => {}
                Err(message) => return cx.refuse(400, message),
            }
        }
        let Some(flow) = &self.flow else { return self.refuse(cx, None, "No bearer token found in request.") };
        match flow.look(cx) {
            Some(found) => self.admit(cx, flow, found),
            None => Flow::Suspend,
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let token = bearer::token_of(cx).ok().flatten().filter(|_| self.takes_tokens).map(str::to_owned);
            match (token, &self.flow) {
                (None, Some(flow)) => {
                    let found = flow.go_on(cx, &self.provider, &self.client, io).await;
                    self.admit(cx, flow, found)
                }
                (token, _) => self.bearer(cx, &token.unwrap_or_default(), io).await,
            }
        })
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        if let Some(cookies) = self.cookies.take(cx) {
            let name = FieldName::constant("Set-Cookie");
            cookies.iter().for_each(|cookie| cx.add_field(&name, cookie.as_bytes()));
        }
        Flow::Continue
    }

    fn wait_limit(&self) -> Option<Duration> {
        Some(self.wait)
    }
}

impl Authenticating {
    async fn bearer(&self, cx: &mut RequestCx<'_>, token: &str, io: &dyn Io) -> Flow {
        let known = self.bearer.verify(token, &self.provider, &self.client, cx, io).await;
        match &*known {
            Ok(Known { claims }) => match self.forbid(claims) {
                Some(error) => self.forbidden(cx, &error),
                None => {
                    self.headers.tell(cx, Some(token), Some(claims));
                    Flow::Continue
                }
            },
            Err(Refusal::Token(reason)) => self.refuse(cx, Some(reason), reason),
            Err(Refusal::Provider(fault)) => cx.fail(503, fault.reason()),
        }
    }

    /// Lets a user pass, or says what becomes of a request of nobody.
    fn admit(&self, cx: &mut RequestCx<'_>, flow: &CodeFlow, found: Found) -> Flow {
        match found {
            Found::Answered(answer) => answer,
            Found::Session(session, cookies) => {
                self.headers.tell(cx, Some(&session.access_token), session.user.as_ref());
                self.headers.tell_session(cx, &session);
                if !cookies.is_empty() {
                    self.cookies.put(cx, cookies);
                }
                Flow::Continue
            }
            Found::Nobody if flow.action == UnauthAction::Pass => {
                self.headers.tell(cx, None, None);
                Flow::Continue
            }
            Found::Nobody => cx.refuse(401, "unauthorized request"),
        }
    }

    /// What a good token lacks.
    fn forbid(&self, claims: &Claims) -> Option<String> {
        let audience = claims.get(&self.audience.claim);
        if self.audience.required && audience.is_none() {
            return Some("required audience claim not present".into());
        }
        if self.audience.match_with_client_id && !claims::holds(audience, &self.client.id) {
            return Some("mismatched audience".into());
        }
        let has_scopes = claims::has_scopes(claims.get("scope"), &self.scopes);
        (!has_scopes).then(|| format!("required scopes {} not present", self.scopes.join(", ")))
    }

    fn forbidden(&self, cx: &mut RequestCx<'_>, error: &str) -> Flow {
        let body = serde_json::json!({ "error": error }).to_string();
        cx.reply(403).field("Content-Type", b"application/json").body(body.as_bytes()).done()
    }

    fn refuse(&self, cx: &mut RequestCx<'_>, reason: Option<&str>, message: &str) -> Flow {
        let mut challenge = self.challenge.clone();
        if let Some(reason) = reason {
            // Reasons are this plugin's own words: nothing in them ends the text.
            challenge.push_str(&format!(", error=\"invalid_token\", error_description=\"{reason}\""));
        }
        cx.reply(401).field("WWW-Authenticate", challenge.as_bytes()).message(message).done()
    }
}

impl Headers {
    /// Tells the upstream who calls, and drops what the client said of that.
    fn tell(&self, cx: &mut RequestCx<'_>, token: Option<&str>, user: Option<&Claims>) {
        for name in ["X-Access-Token", "X-Userinfo", "X-ID-Token", "X-Refresh-Token"] {
            cx.request_mut().remove_field(&FieldName::constant(name));
        }
        if let Some(token) = token.filter(|_| self.access_token) {
            if self.in_authorization {
                let value = format!("Bearer {token}");
                cx.request_mut().set_field(&FieldName::constant("Authorization"), value.as_bytes());
            } else {
                cx.request_mut().set_field(&FieldName::constant("X-Access-Token"), token.as_bytes());
            }
        }
        if let Some(user) = user.filter(|_| self.userinfo) {
            let json = serde_json::to_vec(user).unwrap_or_default();
            cx.request_mut().set_field(&FieldName::constant("X-Userinfo"), STANDARD.encode(json).as_bytes());
        }
    }

    /// Tells it of a session what is in no other token.
    fn tell_session(&self, cx: &mut RequestCx<'_>, session: &Session) {
        if let Some(token) = Jwt::parse(&session.id_token).filter(|_| self.id_token) {
            let json = serde_json::to_vec(&token.claims).unwrap_or_default();
            cx.request_mut().set_field(&FieldName::constant("X-ID-Token"), STANDARD.encode(json).as_bytes());
        }
        if let Some(token) = session.refresh_token.as_ref().filter(|_| self.refresh_token) {
            cx.request_mut().set_field(&FieldName::constant("X-Refresh-Token"), token.as_bytes());
        }
    }
}
