//! `openid-connect`: an identity provider says who calls (OpenID Connect Core, RFC 6749, RFC 6750, RFC 7662).

mod bearer;
pub(crate) mod claims;
pub(crate) mod client;
pub(crate) mod conf;
mod flow;
pub(crate) mod jose;
pub(crate) mod provider;
pub(crate) mod session;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, Io, LocalFuture, PerRequest, Phases, Plugin, Remembered, RequestCx, ResponseCx,
    ServiceOptions,
};
use weir_wire::name::FieldName;

use bearer::{Bearer, Known, Refusal};
use client::Client;
use conf::{AudienceRule, Conf};
use flow::{CodeFlow, Found, UnauthAction};
use jose::{Claims, Jwt};
use provider::{Provider, ProviderConf};
use session::Session;

/// The definition.
#[derive(Debug)]
pub(crate) struct OpenidConnect;

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

/// Fields that tell the upstream who calls.
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

    /// Scope or audience that a valid token lacks.
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
    /// Sets the fields for the upstream, and drops those of the client.
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

    /// Sets the fields of a session that no bearer token has.
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
