//! Sessions of people in a browser: a key is shown once, and a cookie stands for it.
//!
//! The cookie is HttpOnly and SameSite=Strict, so no script reads it and no other site's page makes the browser send it. A
//! change needs the session's second token as well, in `X-CSRF-Token`, which only a page of this origin has read.
//! Sessions live in the memory of the process, as digests of their tokens, and end with it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::HeaderMap;
use hyper::header::HeaderName;

use crate::keys::{Identity, KeyDigest, key_digest, new_key};
use crate::request::cookie;

/// The field with a developer's token.
pub(crate) const DEVELOPER_TOKEN: &str = "x-developer-token";
const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");

/// Time without a request after which a session ends.
pub(crate) const IDLE: Duration = Duration::from_secs(8 * 3600);
/// Time after which a session ends in any case.
pub(crate) const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Sessions at one time; a further one ends the session that was idle longest.
const MOST: usize = 1024;

/// The sessions of this process.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<KeyDigest, Session>>);

#[derive(Debug)]
struct Session {
    identity: Identity,
    csrf: String,
    began: Instant,
    used: Instant,
    /// Digest of a developer's token, as it was when the session began.
    token_sha256: Option<String>,
}

/// A session that has begun: the value of the cookie, and the token that changes need.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) token: String,
    pub(crate) csrf: String,
}

/// Cookie and token that a request shows of a session.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    token: Option<Cow<'a, str>>,
    csrf: Option<&'a str>,
}

impl<'a> Shown<'a> {
    /// Browsers keep one set of cookies for all ports of a host, so the name of the cookie has the port.
    pub(crate) fn of(fields: &'a HeaderMap, port: u16) -> Self {
        let token = cookie(fields, &cookie_name(port));
        Self { token, csrf: fields.get(CSRF).and_then(|value| value.to_str().ok()) }
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub(crate) fn csrf(&self) -> Option<&str> {
        self.csrf
    }
}

/// Name of the cookie of a session.
pub(crate) fn cookie_name(port: u16) -> String {
    format!("weir_session_{port}")
}

impl Sessions {
    /// Begins a session.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub(crate) fn begin(&self, identity: Identity) -> Result<Begun, aws_lc_rs::error::Unspecified> {
        self.begin_with(identity, None)
    }

    /// Begins a session of a developer, with the digest of the token.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub(crate) fn begin_with(
        &self,
        identity: Identity,
        token_sha256: Option<String>,
    ) -> Result<Begun, aws_lc_rs::error::Unspecified> {
        let (token, csrf, now) = (new_key()?, new_key()?, Instant::now());
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.is_alive(now));
        while sessions.len() >= MOST {
            let Some(oldest) = sessions.iter().min_by_key(|(_, session)| session.used).map(|(digest, _)| *digest)
            else {
                break;
            };
            sessions.remove(&oldest);
        }
        sessions
            .insert(key_digest(&token), Session { identity, csrf: csrf.clone(), began: now, used: now, token_sha256 });
        Ok(Begun { token, csrf })
    }

    /// The owner of the session with this token, and the token that changes need. Sessions of developers are not among them.
    pub(crate) fn find(&self, token: &str) -> Option<(Identity, String)> {
        let found = self.known(token, |session| session.identity.developer.is_none())?;
        Some((found.0, found.1))
    }

    /// The same for a session of a developer, with the digest of the developer's token.
    pub(crate) fn find_developer(&self, token: &str) -> Option<(Identity, String, String)> {
        let (identity, csrf, digest) = self.known(token, |session| session.identity.developer.is_some())?;
        Some((identity, csrf, digest?))
    }

    fn known(&self, token: &str, fits: impl Fn(&Session) -> bool) -> Option<(Identity, String, Option<String>)> {
        let now = Instant::now();
        let mut sessions = self.lock();
        let session = sessions.get_mut(&key_digest(token)).filter(|session| session.is_alive(now) && fits(session))?;
        session.used = now;
        Some((session.identity.clone(), session.csrf.clone(), session.token_sha256.clone()))
    }

    /// Ends a session.
    pub(crate) fn end(&self, token: &str) {
        self.lock().remove(&key_digest(token));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyDigest, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.used) < IDLE && now.duration_since(self.began) < LIFETIME
    }
}

/// True if a request shows the token that changes of a session need.
pub(crate) fn is_confirmed(csrf: &str, shown: Option<&str>) -> bool {
    shown.is_some_and(|shown| verify_slices_are_equal(csrf.as_bytes(), shown.as_bytes()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::{Identity, MOST, Sessions, is_confirmed};
    use crate::Role;

    fn viewer() -> Identity {
        Identity { name: "v".to_owned(), role: Role::Viewer, team: None, developer: None }
    }

    #[test]
    fn a_session_is_found_until_it_ends() {
        let sessions = Sessions::default();
        let begun = sessions.begin(viewer()).expect("random bytes");
        let (found, csrf) = sessions.find(&begun.token).expect("the session");
        assert_eq!((found, &csrf), (viewer(), &begun.csrf));
        assert!(sessions.find(&begun.csrf).is_none(), "one token is not the other");
        assert!(is_confirmed(&csrf, Some(&begun.csrf)));
        for wrong in [None, Some(""), Some("x"), Some(begun.token.as_str())] {
            assert!(!is_confirmed(&csrf, wrong), "{wrong:?}");
        }
        sessions.end(&begun.token);
        assert!(sessions.find(&begun.token).is_none());
    }

    #[test]
    fn a_session_of_a_developer_opens_nothing_else() {
        let sessions = Sessions::default();
        let identity = Identity { role: Role::Developer, developer: Some("dora".to_owned()), ..viewer() };
        let begun = sessions.begin_with(identity.clone(), Some("digest".to_owned())).expect("random bytes");
        assert!(sessions.find(&begun.token).is_none());
        let found = sessions.find_developer(&begun.token).expect("the session");
        assert_eq!(found, (identity, begun.csrf, "digest".to_owned()));
        let other = sessions.begin(viewer()).expect("random bytes");
        assert!(sessions.find_developer(&other.token).is_none());
    }

    #[test]
    fn there_are_no_more_sessions_than_the_limit() {
        let sessions = Sessions::default();
        let first = sessions.begin(viewer()).expect("random bytes");
        let second = sessions.begin(viewer()).expect("random bytes");
        assert!(sessions.find(&first.token).is_some(), "used later than the second");
        for _ in 0..MOST - 1 {
            sessions.begin(viewer()).expect("random bytes");
        }
        assert!(sessions.find(&second.token).is_none() && sessions.find(&first.token).is_some());
        assert_eq!(sessions.lock().len(), MOST);
    }
}
