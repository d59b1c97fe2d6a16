//! The authorization code flow (OpenID Connect Core section 3.1): login, the answer of the provider, refresh and logout.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CalloutResponse, Flow, Io, Keep, Remembered, RequestCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;
use weir_wire::query;

use super::bearer::now;
use super::claims;
use super::client::{AuthMethod, Client, add_to_form, random_text};
use super::jose::{Claims, Jwt};
use super::provider::{Document, Fault, Provider, split_origin};
use super::session::{Cookies, Login, Session};
use crate::auth::jwt_auth::key::Algorithm;

/// Seconds in which a user has to log in at the provider.
const LOGIN_SECONDS: u64 = 600;
/// Milliseconds for which further requests of a session take part in one refresh.
const REFRESH_MS: u64 = 30_000;
/// The path to which the provider sends users back, behind that of the request.
const SUFFIX: &str = "/.apisix/redirect";
/// Longest target to which a user comes back; with a longer one it is `/`.
const TARGET: usize = 2000;

/// Treatment of requests of nobody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum UnauthAction {
    #[default]
    Auth,
    Deny,
    Pass,
}

/// The flow of one place.
#[derive(Debug)]
pub(super) struct CodeFlow {
    pub(super) cookies: Cookies,
    pub(super) action: UnauthAction,
    /// Path or URI to which the provider sends users back; `None`: it follows from the request.
    pub(super) redirect_uri: Option<String>,
    pub(super) logout_path: String,
    pub(super) post_logout_redirect_uri: Option<String>,
    pub(super) revokes: bool,
    pub(super) scope: String,
    /// Further parameters of logins.
    pub(super) parameters: Vec<(String, String)>,
    pub(super) pkce: bool,
    pub(super) method: AuthMethod,
    pub(super) only: Option<Algorithm>,
    pub(super) slack: f64,
    pub(super) wants_user: bool,
    /// Seconds of a session.
    pub(super) lifetime: u64,
    pub(super) renews: bool,
    pub(super) access_seconds: u64,
    pub(super) leeway: u64,
    pub(super) refreshed: Arc<Remembered<Result<Tokens, Failed>>>,
}

/// The answer of a token endpoint (RFC 6749 section 5.1).
#[derive(Debug, Deserialize)]
pub(super) struct Tokens {
    access_token: String,
    id_token: Option<String>,
    refresh_token: Option<String>,
    expires_in: Option<f64>,
}

/// Reasons for the failure of a step of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    Provider(Fault),
    /// The login is not good: why.
    Login(&'static str),
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Provider(fault)
    }
}

/// The request that a step of the flow answers.
pub(super) enum Found {
    /// A session; perhaps with cookies that renew it.
    Session(Box<Session>, Vec<String>),
    /// Nobody.
    Nobody,
    /// The answer is here.
    Answered(Flow),
}

/// An argument of the query, decoded.
fn argument(cx: &RequestCx<'_>, name: &str) -> Option<String> {
    let value = query::argument(cx.request().query()?, name.as_bytes())?;
    let mut decoded = Vec::new();
    query::decode(value, &mut decoded);
    String::from_utf8(decoded).ok()
}

/// Adds parameters to a URI that may have a query of its own.
fn with_query(uri: &str, query: &[u8]) -> Vec<u8> {
    let mut out = uri.as_bytes().to_vec();
    out.push(if uri.contains('?') { b'&' } else { b'?' });
    out.extend_from_slice(query);
    out
}

/// The body of an answer with 200.
fn good(answer: &CalloutResponse) -> Option<&[u8]> {
    (answer.status() == 200).then_some(answer.body())
}

impl CodeFlow {
    fn seconds(cx: &RequestCx<'_>) -> u64 {
        cx.unix_ms() / 1000
    }

    /// The path to which the provider sends the user back, in a login that this request begins.
    fn redirect_path(&self, cx: &RequestCx<'_>) -> String {
        match &self.redirect_uri {
            Some(uri) => {
                let path = split_origin(uri).map_or(uri.as_str(), |(_, path)| path);
                let path = path.split(['?', '#']).next().unwrap_or_default();
                if path.is_empty() { "/".into() } else { path.to_owned() }
            }
            None => {
                let path = String::from_utf8_lossy(cx.request().encoded_path()).into_owned();
                if path.ends_with(SUFFIX) { path } else { format!("{}{SUFFIX}", path.trim_end_matches('/')) }
            }
        }
    }

    /// The same as a URI, for the provider.
    fn redirect_uri(&self, cx: &RequestCx<'_>) -> String {
        match &self.redirect_uri {
            Some(uri) if split_origin(uri).is_some() => uri.clone(),
            _ => self.absolute(cx, &self.redirect_path(cx)),
        }
    }

    fn absolute(&self, cx: &RequestCx<'_>, path: &str) -> String {
        let scheme = if cx.client().https { "https" } else { "http" };
        format!("{scheme}://{}{path}", String::from_utf8_lossy(cx.request().host_port()))
    }

    fn is_answer(&self, cx: &RequestCx<'_>) -> bool {
        cx.request().encoded_path() == self.redirect_path(cx).as_bytes()
    }

    fn is_logout(&self, cx: &RequestCx<'_>) -> bool {
        cx.request().path() == self.logout_path.as_bytes()
    }

    /// Result without a request to the provider; `None` if the provider has to be asked.
    pub(super) fn look(&self, cx: &RequestCx<'_>) -> Option<Found> {
        if self.is_answer(cx) || self.is_logout(cx) {
            return None;
        }
        match self.cookies.session(cx, Self::seconds(cx)) {
            Some(session) if self.is_due(cx, &session) => None,
            Some(session) => Some(self.kept(cx, session)),
            None if self.action == UnauthAction::Auth => None,
            None => Some(Found::Nobody),
        }
    }

    /// True when the access token of a session has to be renewed.
    fn is_due(&self, cx: &RequestCx<'_>, session: &Session) -> bool {
        self.renews && session.access_end <= Self::seconds(cx).saturating_add(self.leeway)
    }

    /// A session that goes on; it is prolonged when little of it is left.
    fn kept(&self, cx: &RequestCx<'_>, mut session: Session) -> Found {
        let now = Self::seconds(cx);
        let mut cookies = Vec::new();
        if session.end.saturating_sub(now) < (self.lifetime / 2).min(600) {
            session.end = now.saturating_add(self.lifetime);
            cookies = self.cookies.of_session(cx, &session).unwrap_or_default();
        }
        Found::Session(Box::new(session), cookies)
    }

    /// Continues where [`CodeFlow::look`] has no result.
    pub(super) async fn go_on(
        &self,
        cx: &mut RequestCx<'_>,
        provider: &Provider,
        client: &Client,
        io: &dyn Io,
    ) -> Found {
        let step = if self.is_answer(cx) {
            self.finish(cx, provider, client, io).await.map(Found::Answered)
        } else if self.is_logout(cx) {
            self.log_out(cx, provider, client, io).await.map(Found::Answered)
        } else {
            self.renew_or_begin(cx, provider, client, io).await
        };
        step.unwrap_or_else(|failed| {
            Found::Answered(match failed {
                Failed::Provider(fault) => cx.fail(503, fault.reason()),
                Failed::Login(reason) => cx.refuse(400, reason),
            })
        })
    }

    async fn renew_or_begin(
        &self,
        cx: &mut RequestCx<'_>,
        provider: &Provider,
        client: &Client,
        io: &dyn Io,
    ) -> Result<Found, Failed> {
        let mut ends = Vec::new();
        if let Some(session) = self.cookies.session(cx, Self::seconds(cx)) {
            if !self.is_due(cx, &session) {
                return Ok(self.kept(cx, session));
            }
            match self.renew(cx, &session, provider, client, io).await {
                Ok(session) => {
                    let cookies = self.cookies.of_session(cx, &session);
                    let cookies = cookies.ok_or(Failed::Login("the session is too large for cookies"))?;
                    return Ok(Found::Session(Box::new(session), cookies));
                }
                // The provider is away: the session may still be good, so it stays.
                Err(Failed::Provider(fault)) if fault != Fault::Status => return Err(fault.into()),
                Err(_) => ends = self.cookies.ending(cx),
            }
        }
        if self.action != UnauthAction::Auth {
            return Ok(Found::Nobody);
        }
        self.begin(cx, provider, client, io, ends).await.map(Found::Answered)
    }

    /// Sends the user to the provider.
    async fn begin(
        &self,
        cx: &mut RequestCx<'_>,
        provider: &Provider,
        client: &Client,
        io: &dyn Io,
        ends: Vec<String>,
    ) -> Result<Flow, Failed> {
        let document = provider.document(cx.now_ms(), io).await;
        let document = document.as_ref().as_ref().map_err(|fault| *fault)?;
        let endpoint = front_endpoint(document.authorization_endpoint.as_ref())?;
        let mut target = Vec::new();
        cx.request().write_request_uri(&mut target);
        let target = String::from_utf8(target).ok().filter(|target| target.len() <= TARGET);
        let login = Login {
            state: random_text(),
            nonce: random_text(),
            verifier: self.pkce.then(random_text),
            target: target.unwrap_or_else(|| "/".into()),
            end: Self::seconds(cx).saturating_add(LOGIN_SECONDS),
        };
        let mut query = Vec::new();
        let redirect_uri = self.redirect_uri(cx);
        for (name, value) in [
            ("response_type", "code"),
            ("client_id", &client.id),
            ("redirect_uri", &redirect_uri),
            ("scope", &self.scope),
            ("state", &login.state),
            ("nonce", &login.nonce),
        ] {
            add_to_form(&mut query, name, value);
        }
        if let Some(verifier) = &login.verifier {
            let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
            add_to_form(&mut query, "code_challenge", &challenge);
            add_to_form(&mut query, "code_challenge_method", "S256");
        }
        self.parameters.iter().for_each(|(name, value)| add_to_form(&mut query, name, value));
        let path = self.redirect_path(cx);
        let cookie = self.cookies.of_login(cx, &login, &path, LOGIN_SECONDS).ok_or(Fault::Unproven)?;
        Ok(moved(cx, &with_query(endpoint, &query), ends.into_iter().chain([cookie])))
    }

    /// Takes the answer of the provider.
    async fn finish(
        &self,
        cx: &mut RequestCx<'_>,
        provider: &Provider,
        client: &Client,
        io: &dyn Io,
    ) -> Result<Flow, Failed> {
        // A login that this browser has not begun is somebody else's (RFC 6749 section 10.12).
        let state = argument(cx, "state").ok_or(Failed::Login("unhandled request to the redirect_uri: no state"))?;
        let login = self.cookies.login(cx, &state, Self::seconds(cx));
        let login = login.ok_or(Failed::Login("the state is not that of a login of this browser"))?;
        let document = provider.document(cx.now_ms(), io).await;
        let document = document.as_ref().as_ref().map_err(|fault| *fault)?;
        // The answer of another provider (RFC 9207 section 2.4).
        let issuer = argument(cx, "iss");
        let told = document.authorization_response_iss_parameter_supported == Some(true);
        if issuer.as_ref().is_some_and(|issuer| *issuer != document.issuer) || (told && issuer.is_none()) {
            return Err(Failed::Login("the answer is of another provider"));
        }
        if argument(cx, "error").is_some() {
            return Err(Failed::Login("the provider has refused the login"));
        }
        let code = argument(cx, "code").ok_or(Failed::Login("unhandled request to the redirect_uri: no code"))?;
        let mut form = Vec::new();
        add_to_form(&mut form, "grant_type", "authorization_code");
        add_to_form(&mut form, "code", &code);
        add_to_form(&mut form, "redirect_uri", &self.redirect_uri(cx));
        if let Some(verifier) = &login.verifier {
            add_to_form(&mut form, "code_verifier", verifier);
        }
        let tokens = self.tokens(cx, form, document, provider, client, io).await.map_err(refused)?;
        let id_token = tokens.id_token.clone().ok_or(Failed::Login("the provider gave no ID token"))?;
        let claims = self.verified(cx, &id_token, document, provider, client, io).await?;
        if claims.get("nonce").and_then(|nonce| nonce.as_str()) != Some(login.nonce.as_str()) {
            return Err(Failed::Login("the ID token is of another login"));
        }
        let user = match &document.userinfo_endpoint {
            Some(endpoint) if self.wants_user => {
                Some(self.user(endpoint, &tokens.access_token, &claims, provider, io).await?)
            }
            _ => None,
        };
        let session = Session {
            end: Self::seconds(cx).saturating_add(self.lifetime),
            access_end: self.access_end(cx, &tokens),
            access_token: tokens.access_token,
            refresh_token: tokens.refresh_token,
            id_token,
            user,
        };
        let cookies = self.cookies.of_session(cx, &session);
        let cookies = cookies.ok_or(Failed::Login("the session is too large for cookies"))?;
        let ends = self.cookies.ending_login(cx, &state, &self.redirect_path(cx));
        // Two slashes would be a host for browsers.
        let dot = if login.target.starts_with("//") { "/." } else { "" };
        Ok(moved(cx, format!("{dot}{}", login.target).as_bytes(), cookies.into_iter().chain([ends])))
    }

    fn access_end(&self, cx: &RequestCx<'_>, tokens: &Tokens) -> u64 {
        // A negative or endless number becomes one that fits.
        let seconds = tokens.expires_in.map_or(self.access_seconds, |seconds| seconds as u64);
        Self::seconds(cx).saturating_add(seconds)
    }

    /// Asks the token endpoint.
    async fn tokens(
        &self,
        cx: &RequestCx<'_>,
        form: Vec<u8>,
        document: &Document,
        provider: &Provider,
        client: &Client,
        io: &dyn Io,
    ) -> Result<Tokens, Failed> {
        let endpoint = document.token_endpoint.as_ref().ok_or(Fault::NoEndpoint)?;
        let mut question = provider.request(Method::Post, endpoint)?;
        client.complete(self.method, endpoint, Self::seconds(cx), form, &mut question).ok_or(Fault::Unproven)?;
        let answer = io.callout(question).await.map_err(Fault::Callout)?;
        let tokens = serde_json::from_slice::<Tokens>(good(&answer).ok_or(Fault::Status)?);
        let tokens = tokens.map_err(|_| Fault::Broken)?;
        // The token goes into a field for the upstream.
        let is_token = |token: &str| !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
        if is_token(&tokens.access_token) { Ok(tokens) } else { Err(Fault::Broken.into()) }
    }

    /// Claims of an ID token (OpenID Connect Core section 3.1.3.7).
    async fn verified(
        &self,
        cx: &RequestCx<'_>,
        token: &str,
        document: &Document,
        provider: &Provider,
        client: &Client,
        io: &dyn Io,
    ) -> Result<Claims, Failed> {
        let token = Jwt::parse(token).ok_or(Failed::Login("the ID token is no JWT of a known algorithm"))?;
        if self.only.is_some_and(|only| only != token.algorithm) {
            return Err(Failed::Login("the ID token has another algorithm than is expected"));
        }
        let good = if token.algorithm.has_secret() {
            self.only.is_some() && token.is_signed_with(&client.secret)
        } else {
            provider.verifies(&token, cx.now_ms(), io).await?
        };
        if !good {
            return Err(Failed::Login("the signature of the ID token is not valid"));
        }
        let claims = token.claims;
        let text = |name: &str| claims.get(name).and_then(|value| value.as_str());
        if text("iss") != Some(document.issuer.as_str()) {
            return Err(Failed::Login("the ID token is of another issuer"));
        }
        let is_party = claims.get("azp").is_none_or(|party| party.as_str() == Some(client.id.as_str()));
        if !claims::holds(claims.get("aud"), &client.id) || !is_party {
            return Err(Failed::Login("the ID token is for another client"));
        }
        if text("sub").is_none_or(str::is_empty) || !claims.contains_key("exp") {
            return Err(Failed::Login("the ID token lacks a claim"));
        }
        claims::check_times(&claims, now(cx), self.slack)
            .map_err(|_| Failed::Login("the ID token is not valid at this time"))?;
        Ok(claims)
    }

    /// Claims of the provider about the user (OpenID Connect Core section 5.3).
    async fn user(
        &self,
        endpoint: &str,
        access_token: &str,
        claims: &Claims,
        provider: &Provider,
        io: &dyn Io,
    ) -> Result<Claims, Failed> {
        let mut question = provider.request(Method::Get, endpoint)?;
        question.set_field(&FieldName::constant("Authorization"), format!("Bearer {access_token}").as_bytes());
        question.set_field(&FieldName::constant("Accept"), b"application/json");
        let answer = io.callout(question).await.map_err(Fault::Callout)?;
        let user = serde_json::from_slice::<Claims>(good(&answer).ok_or(Fault::Status)?);
        let user = user.map_err(|_| Fault::Broken)?;
        if user.get("sub") == claims.get("sub") { Ok(user) } else { Err(Failed::Login("the user is another one")) }
    }

    /// A new access token for a session. Requests that come together share one question: a refresh token may be good once.
    async fn renew(
        &self,
        cx: &RequestCx<'_>,
        session: &Session,
        provider: &Provider,
        client: &Client,
        io: &dyn Io,
    ) -> Result<Session, Failed> {
        let token = session.refresh_token.as_ref().ok_or(Failed::Login("there is no refresh token"))?;
        let document = provider.document(cx.now_ms(), io).await;
        let document = document.as_ref().as_ref().map_err(|fault| *fault)?;
        let ask = || async {
            let mut form = Vec::new();
            add_to_form(&mut form, "grant_type", "refresh_token");
            add_to_form(&mut form, "refresh_token", token);
            let tokens = self.tokens(cx, form, document, provider, client, io).await;
            let ttl_ms = if tokens.is_ok() { REFRESH_MS } else { 0 };
            (tokens, Keep { ttl_ms, bytes: 16 << 10 })
        };
        let key = digest(&SHA256, token.as_bytes());
        let tokens = self.refreshed.get(key.as_ref(), cx.now_ms(), ask).await;
        let tokens = tokens.as_ref().as_ref().map_err(|failed| *failed)?;
        let mut renewed = session.clone();
        if let Some(id_token) = &tokens.id_token {
            let claims = self.verified(cx, id_token, document, provider, client, io).await?;
            // The user stays the same (OpenID Connect Core section 12.2).
            if Jwt::parse(&session.id_token).is_none_or(|old| old.claims.get("sub") != claims.get("sub")) {
                return Err(Failed::Login("the ID token is of another user"));
            }
            renewed.id_token.clone_from(id_token);
        }
        renewed.access_token.clone_from(&tokens.access_token);
        renewed.access_end = self.access_end(cx, tokens);
        if let Some(token) = &tokens.refresh_token {
            renewed.refresh_token = Some(token.clone());
        }
        renewed.end = Self::seconds(cx).saturating_add(self.lifetime);
        Ok(renewed)
    }

    /// Ends the session, here and at the provider.
    async fn log_out(
        &self,
        cx: &mut RequestCx<'_>,
        provider: &Provider,
        client: &Client,
        io: &dyn Io,
    ) -> Result<Flow, Failed> {
        let session = self.cookies.session(cx, Self::seconds(cx));
        let ends = self.cookies.ending(cx);
        let document = provider.document(cx.now_ms(), io).await;
        let document = document.as_ref().as_ref().ok();
        if let (true, Some(session), Some(endpoint)) =
            (self.revokes, &session, document.and_then(|document| document.revocation_endpoint.as_ref()))
        {
            let access = Some(("access_token", &session.access_token));
            let refresh = session.refresh_token.as_ref().map(|token| ("refresh_token", token));
            for (kind, token) in refresh.into_iter().chain(access) {
                let mut form = Vec::new();
                add_to_form(&mut form, "token", token);
                add_to_form(&mut form, "token_type_hint", kind);
                let mut question = provider.request(Method::Post, endpoint)?;
                client
                    .complete(self.method, endpoint, Self::seconds(cx), form, &mut question)
                    .ok_or(Fault::Unproven)?;
                // The session ends in any case.
                let _ = io.callout(question).await;
            }
        }
        let end = document.and_then(|document| document.end_session_endpoint.as_ref());
        let location = match (end, &self.post_logout_redirect_uri) {
            (Some(end), after) => {
                let mut query = Vec::new();
                if let Some(session) = &session {
                    add_to_form(&mut query, "id_token_hint", &session.id_token);
                }
                add_to_form(&mut query, "client_id", &client.id);
                if let Some(after) = after {
                    let after = if after.starts_with('/') { self.absolute(cx, after) } else { after.clone() };
                    add_to_form(&mut query, "post_logout_redirect_uri", &after);
                }
                Some(with_query(front_endpoint(Some(end))?, &query))
            }
            (None, Some(after)) => Some(after.as_bytes().to_vec()),
            (None, None) => None,
        };
        Ok(match location {
            Some(location) => moved(cx, &location, ends.into_iter()),
            None => {
                let mut reply = cx.reply(200).field("Content-Type", b"text/plain; charset=utf-8").body(b"Logged Out\n");
                for cookie in ends {
                    reply = reply.field("Set-Cookie", cookie.as_bytes());
                }
                reply.done()
            }
        })
    }
}

/// A code that the provider does not take is a fault of the login.
fn refused(failed: Failed) -> Failed {
    match failed {
        Failed::Provider(Fault::Status) => Failed::Login("the provider does not take the code"),
        other => other,
    }
}

/// An endpoint to which users are sent: any origin, and nothing but a URI.
fn front_endpoint(uri: Option<&String>) -> Result<&str, Fault> {
    let uri = uri.ok_or(Fault::NoEndpoint)?;
    let is_good = split_origin(uri).is_some() && uri.bytes().all(|b| b.is_ascii_graphic()) && !uri.contains('#');
    if is_good { Ok(uri) } else { Err(Fault::Broken) }
}

/// Sends the user to another place. Nobody may keep the answer.
fn moved(cx: &mut RequestCx<'_>, location: &[u8], cookies: impl Iterator<Item = String>) -> Flow {
    let mut reply = cx.reply(302).field("Location", location).field("Cache-Control", b"no-store");
    for cookie in cookies {
        reply = reply.field("Set-Cookie", cookie.as_bytes());
    }
    reply.done()
}
