//! The identity provider of the dashboard, and the logins by it that are under way.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::keys::{KeyDigest, Role, key_digest};

/// Time that a login may take.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
/// Logins under way; one more ends the oldest.
const MOST: usize = 256;

/// An identity provider. Methods may take their time, and are called on threads that may block.
pub trait LoginProvider: Send + Sync + fmt::Debug {
    /// The address that a browser is sent to.
    ///
    /// # Errors
    /// Reason that the provider cannot be asked.
    fn begin(&self, state: &str, nonce: &str, challenge: &str) -> Result<String, String>;

    /// The person for whom the provider has given this code.
    ///
    /// # Errors
    /// Reason that nobody is let in.
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
pub(crate) struct Pending {
    pub(crate) nonce: String,
    pub(crate) verifier: String,
    /// Digest of the browser's cookie.
    pub(crate) browser: KeyDigest,
    pub(crate) began: Instant,
}

impl Logins {
    fn lock(&self) -> MutexGuard<'_, HashMap<KeyDigest, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, state: &str, pending: Pending) {
        let mut all = self.lock();
        all.retain(|_, one| one.began.elapsed() < LIFETIME);
        while all.len() >= MOST {
            let Some(oldest) = all.iter().min_by_key(|(_, one)| one.began).map(|(digest, _)| *digest) else { break };
            all.remove(&oldest);
        }
        all.insert(key_digest(state), pending);
    }

    /// Takes out the login of a state, if this browser began it.
    pub(crate) fn take(&self, state: &str, browser: &str) -> Option<Pending> {
        let mut all = self.lock();
        let found = all.get(&key_digest(state)).filter(|one| one.began.elapsed() < LIFETIME)?;
        verify_slices_are_equal(&found.browser, &key_digest(browser)).ok()?;
        all.remove(&key_digest(state))
    }
}

/// The challenge for a verifier (RFC 7636 section 4.2).
pub(crate) fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()))
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
