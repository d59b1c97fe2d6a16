//! Logins to the dashboard by an identity provider (OpenID Connect Core 1.0, authorization code flow with PKCE).
//!
//! ```text
//! GET /weir/v1/session/oidc          ──► the provider, with state, nonce and challenge; a cookie binds the browser
//! GET /weir/v1/session/oidc/callback ──► the provider's tokens, a session, and back to the dashboard
//! ```
//!
//! The browser comes back from another site, so the cookie of the login is SameSite=Lax. The session that follows is the same
//! as after a login with a key.

use std::sync::Arc;
use std::time::Instant;

use hyper::header::{HeaderValue, LOCATION, SET_COOKIE};
use hyper::{HeaderMap, Method, StatusCode};

use crate::answer::{Answer, Outcome};
use crate::api::{Api, Peer};
use crate::keys::{Identity, key_digest, new_key};
use crate::logins::{LIFETIME, LoginProvider, Pending, Visitor, challenge};
use crate::request::{Query, cookie};
use crate::session::quiet;

impl Api {
    /// Sends a browser to the identity provider.
    pub(crate) async fn begin_login(&self, method: &Method, peer: &Peer) -> Outcome {
        let provider = self.login_provider(method)?;
        let random = || new_key().map_err(|_| quiet(Answer::internal()));
        let (state, nonce, verifier, browser) = (random()?, random()?, random()?, random()?);
        let challenge = challenge(&verifier);
        let pending = Pending { nonce: nonce.clone(), verifier, browser: key_digest(&browser), began: Instant::now() };
        let asked = state.clone();
        let location = blocking(move || provider.begin(&asked, &nonce, &challenge)).await?;
        let location = location.map_err(|reason| {
            tracing::error!(reason, "the identity provider of the dashboard cannot be asked");
            quiet(Answer::error(StatusCode::BAD_GATEWAY, "the identity provider cannot be asked: see the error log"))
        })?;
        self.logins.begin(&state, pending);
        let location = HeaderValue::try_from(location).map_err(|_| quiet(Answer::internal()))?;
        Ok(quiet(Answer::empty(StatusCode::FOUND))
            .with(LOCATION, location)
            .with(SET_COOKIE, self.login_cookie(peer.port, &browser, LIFETIME.as_secs())))
    }

    /// Ends a login: begins a session, and sends the browser back to the dashboard.
    pub(crate) async fn finish_login(
        &self,
        method: &Method,
        query: &Query,
        fields: &HeaderMap,
        peer: &Peer,
    ) -> Outcome {
        let provider = self.login_provider(method)?;
        let refused = |reason: &str| {
            tracing::warn!(address = %peer.address, reason, "a login to the dashboard was refused");
            quiet(Answer::error(StatusCode::FORBIDDEN, format!("the login failed: {reason}")))
        };
        let browser = cookie(fields, &login_cookie_name(peer.port));
        let state = query.get("state");
        let pending = state.zip(browser.as_deref()).and_then(|(state, browser)| self.logins.take(state, browser));
        // Whatever comes with a state that is not this browser's is somebody else's.
        let pending = pending.ok_or_else(|| refused("this browser has not begun it, or too long ago"))?;
        if let Some(error) = query.get("error") {
            let told: String = error.chars().filter(|c| c.is_ascii_graphic()).take(100).collect();
            return Err(refused(&format!("the provider says {told}")));
        }
        let code = query.get("code").ok_or_else(|| refused("the provider has given no code"))?.to_owned();
        let Pending { nonce, verifier, .. } = pending;
        let visitor = blocking(move || provider.finish(&code, &verifier, &nonce)).await?;
        let Visitor { name, role, team } = visitor.map_err(|reason| refused(&reason))?;
        let identity = Identity { name, role, team, developer: None };
        let begun = self.sessions.begin(identity.clone()).map_err(|_| quiet(Answer::internal()))?;
        tracing::info!(by = identity.name, role = identity.role.name(), address = %peer.address, "logged in to the dashboard by the identity provider");
        let answer = quiet(Answer::empty(StatusCode::FOUND)).with(LOCATION, HeaderValue::from_static("/"));
        let answer = answer.with(SET_COOKIE, self.session_cookie(peer.port, &begun.token));
        Ok(answer.with(SET_COOKIE, self.login_cookie(peer.port, "", 0)))
    }

    fn login_provider(&self, method: &Method) -> Result<Arc<dyn LoginProvider>, Answer> {
        if method != Method::GET {
            return Err(quiet(Answer::error(StatusCode::METHOD_NOT_ALLOWED, "only GET is known here")));
        }
        let provider = self.options.login.clone();
        provider.ok_or_else(|| quiet(Answer::error(StatusCode::NOT_FOUND, "no identity provider is set: admin.oidc")))
    }

    fn login_cookie(&self, port: u16, value: &str, seconds: u64) -> HeaderValue {
        let secure = if self.options.tls { "; Secure" } else { "" };
        let name = login_cookie_name(port);
        let path = "/weir/v1/session/oidc";
        let text = format!("{name}={value}; Path={path}; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}");
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

fn login_cookie_name(port: u16) -> String {
    format!("weir_login_{port}")
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Answer> {
    tokio::task::spawn_blocking(work).await.map_err(|panicked| {
        tracing::error!(%panicked, "a login to the dashboard could not go on");
        quiet(Answer::internal())
    })
}
