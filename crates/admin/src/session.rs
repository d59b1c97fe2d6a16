//! `/weir/v1/session`: logging in and out, for browsers.

use hyper::header::{CACHE_CONTROL, HeaderValue, SET_COOKIE};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::answer::{Answer, Outcome};
use crate::api::{Api, Peer};
use crate::keys::Identity;
use crate::sessions::{LIFETIME, Shown, cookie_name, is_confirmed};

impl Api {
    /// Answers a request about the session itself. It has come from a page of this origin, or from a program.
    pub(crate) async fn session(&self, method: &Method, body: &[u8], shown: &Shown<'_>, peer: &Peer) -> Outcome {
        let find = |token: &str| {
            let of_developer = || self.sessions.find_developer(token).map(|(identity, csrf, _)| (identity, csrf));
            self.sessions.find(token).or_else(of_developer)
        };
        let found = shown.token().and_then(|token| Some((token, find(token)?)));
        match *method {
            Method::GET | Method::HEAD => Ok(match found {
                Some((_, (identity, csrf))) => self.told(Some((&identity, &csrf))),
                None if self.options.keys.is_open() => self.told(None),
                None => quiet(Answer::json(StatusCode::OK, &self.nobody())),
            }),
            Method::POST => self.log_in(body, peer).await,
            Method::DELETE => {
                if let Some((token, (identity, csrf))) = found {
                    if !is_confirmed(&csrf, shown.csrf()) {
                        let message = "the end of a session needs its token in X-CSRF-Token";
                        return Err(quiet(Answer::error(StatusCode::FORBIDDEN, message)));
                    }
                    self.sessions.end(token);
                    tracing::info!(by = identity.name, address = %peer.address, "logged out of the dashboard");
                }
                let answer = quiet(Answer::json(StatusCode::OK, &self.nobody()));
                Ok(answer.with(SET_COOKIE, self.cookie(peer.port, "", 0)))
            }
            _ => Err(quiet(Answer::error(StatusCode::METHOD_NOT_ALLOWED, "only GET, POST and DELETE are known here"))),
        }
    }

    async fn log_in(&self, body: &[u8], peer: &Peer) -> Outcome {
        let body: Option<Value> = serde_json::from_slice(body).ok();
        if let Some(token) = body.as_ref().and_then(|body| body.get("token")?.as_str()) {
            return self.log_in_developer(token.trim(), peer).await;
        }
        if self.options.keys.is_open() {
            return Ok(self.told(None));
        }
        let key = body.as_ref().and_then(|body| body.get("key")?.as_str());
        let key = key
            .ok_or_else(|| quiet(Answer::bad("expected a JSON object with the field key, or token for a developer")))?;
        let identity = self.options.keys.check(Some(key.trim()), peer.certificate.as_deref(), &Method::GET);
        let identity = identity.map_err(|_| {
            tracing::warn!(address = %peer.address, "a login to the dashboard was refused: wrong key");
            quiet(Answer::error(StatusCode::UNAUTHORIZED, "the key opens nothing here"))
        })?;
        let begun = self.sessions.begin(identity.clone()).map_err(|_| {
            tracing::error!("the system gives no random bytes");
            quiet(Answer::internal())
        })?;
        tracing::info!(by = identity.name, role = identity.role.name(), address = %peer.address, "logged in to the dashboard");
        let answer = self.told(Some((&identity, &begun.csrf)));
        Ok(answer.with(SET_COOKIE, self.session_cookie(peer.port, &begun.token)))
    }

    /// Begins a session of a developer, which opens the developer's own page alone.
    async fn log_in_developer(&self, token: &str, peer: &Peer) -> Outcome {
        let (identity, digest) = self.developer_by_token(token).await.map_err(|refusal| {
            tracing::warn!(address = %peer.address, "a login of a developer was refused");
            quiet(refusal)
        })?;
        let begun = self.sessions.begin_with(identity.clone(), Some(digest)).map_err(|_| quiet(Answer::internal()))?;
        tracing::info!(by = identity.name, address = %peer.address, "logged in to the dashboard");
        let answer = self.told(Some((&identity, &begun.csrf)));
        Ok(answer.with(SET_COOKIE, self.session_cookie(peer.port, &begun.token)))
    }

    /// The answer to a browser without a session, which tells whether there is an identity provider.
    fn nobody(&self) -> Value {
        json!({ "authenticated": false, "oidc": self.options.login.is_some() })
    }

    /// The cookie of a session that has begun.
    pub(crate) fn session_cookie(&self, port: u16, token: &str) -> HeaderValue {
        self.cookie(port, token, LIFETIME.as_secs())
    }

    /// The owner of a session; `None` where no key is asked for.
    fn told(&self, session: Option<(&Identity, &str)>) -> Answer {
        let body = match session {
            Some((by, csrf)) => json!({
                "authenticated": true, "name": by.name, "role": by.role.name(), "csrf": csrf, "key_required": true,
            }),
            None => {
                json!({ "authenticated": true, "name": "admin", "role": "admin", "csrf": "", "key_required": false })
            }
        };
        quiet(Answer::json(StatusCode::OK, &body))
    }

    fn cookie(&self, port: u16, value: &str, seconds: u64) -> HeaderValue {
        let secure = if self.options.tls { "; Secure" } else { "" };
        let text =
            format!("{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}", cookie_name(port));
        // The value has hexadecimal digits alone.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

/// An answer that no cache keeps.
pub(crate) fn quiet(answer: Answer) -> Answer {
    answer.unversioned().with(CACHE_CONTROL, HeaderValue::from_static("no-store"))
}
