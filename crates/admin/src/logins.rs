//! Logins to the dashboard by an identity provider (OpenID Connect Core 1.0, authorization code flow with PKCE).
//!
//! ```text
//! GET /weir/v1/session/oidc          ──► the provider, with state, nonce and challenge; a cookie binds the browser
//! GET /weir/v1/session/oidc/callback ──► the provider's tokens, a session, and back to the dashboard
//! ```
//!
//! The browser comes back from another site, so the cookie of the login is SameSite=Lax. The session that follows is the same
//! as after a login with a key.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::header::{HeaderValue, LOCATION, SET_COOKIE};
use hyper::{HeaderMap, Method, StatusCode};

use crate::answer::{Answer, Outcome};
use crate::api::{Api, Peer};
use crate::keys::{Identity, KeyDigest, Role, key_digest, new_key};
use crate::request::{Query, cookie};
use crate::session::quiet;

/// Time that a login may take.
const LIFETIME: Duration = Duration::from_secs(600);
/// Logins under way; one more ends the oldest.
const MOST: usize = 256;

/// An identity provider. Methods may take their time, and are called on threads that may block.
pub trait LoginProvider: Send + Sync + fmt::Debug {
    /// The address that a browser is sent to.
    ///
    /// # Errors
    /// Why the provider cannot be asked.
    fn begin(&self, state: &str, nonce: &str, challenge: &str) -> Result<String, String>;

    /// The person for whom the provider has given this code.
    ///
    /// # Errors
    /// Why nobody is let in.
    fn finish(&self, code: &str, verifier: &str, nonce: &str) -> Result<Visitor, String>;
}

/// A person whom an identity provider knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visitor {
    /// The name, for the history.
    pub name: String,
    /// Rights.
    pub role: Role,
    /// The team whose resources alone may be changed.
    pub team: Option<String>,
}

/// The logins under way.
#[derive(Debug, Default)]
pub(crate) struct Logins(Mutex<HashMap<KeyDigest, Pending>>);

/// A login under way, found by the digest of its state.
#[derive(Debug)]
struct Pending {
    nonce: String,
    verifier: String,
    /// Digest of the browser's cookie.
    browser: KeyDigest,
    began: Instant,
}

impl Logins {
    fn lock(&self) -> MutexGuard<'_, HashMap<KeyDigest, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, state: &str, pending: Pending) {
        let mut all = self.lock();
        all.retain(|_, one| one.began.elapsed() < LIFETIME);
        while all.len() >= MOST {
            let Some(oldest) = all.iter().min_by_key(|(_, one)| one.began).map(|(digest, _)| *digest) else { break };
            all.remove(&oldest);
        }
        all.insert(key_digest(state), pending);
    }

    /// Takes out the login of a state, if this browser began it.
    fn take(&self, state: &str, browser: &str) -> Option<Pending> {
        let mut all = self.lock();
        let found = all.get(&key_digest(state)).filter(|one| one.began.elapsed() < LIFETIME)?;
        verify_slices_are_equal(&found.browser, &key_digest(browser)).ok()?;
        all.remove(&key_digest(state))
    }
}

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

/// The challenge for a verifier (RFC 7636 section 4.2).
fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Answer> {
    tokio::task::spawn_blocking(work).await.map_err(|panicked| {
        tracing::error!(%panicked, "a login to the dashboard could not go on");
        quiet(Answer::internal())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{Logins, MOST, Pending, challenge};
    use crate::keys::key_digest;

    fn pending(browser: &str) -> Pending {
        Pending { nonce: "n".into(), verifier: "v".into(), browser: key_digest(browser), began: Instant::now() }
    }

    #[test]
    fn a_login_goes_on_once_and_in_its_own_browser() {
        let logins = Logins::default();
        logins.begin("s1", pending("b1"));
        assert!(logins.take("s1", "b2").is_none() && logins.take("s2", "b1").is_none());
        assert!(logins.take("s1", "b1").is_some() && logins.take("s1", "b1").is_none());
        for at in 0..MOST + 5 {
            logins.begin(&at.to_string(), pending("b"));
        }
        assert!(logins.lock().len() == MOST && logins.take("0", "b").is_none());
    }

    /// RFC 7636 appendix B.
    #[test]
    fn a_challenge_is_that_of_the_specification() {
        assert_eq!(
            challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
        );
    }
}
