//! Certificates whose status is stapled to handshakes (RFC 6066 section 8): a client that asks for it learns from the
//! server that its certificate is not revoked.

#![allow(clippy::disallowed_types, reason = "taken in handshakes that staple, and by the thread that asks for answers")]

use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use rustls::sign::CertifiedKey;
use tokio::sync::Notify;

use super::ocsp::Question;

/// A certificate with its key, and the last answer of its responder.
#[derive(Debug)]
pub struct Staple {
    /// The question to the responder.
    pub question: Question,
    /// True if answers are stapled unchecked.
    pub skip_verify: bool,
    /// Time after which the responder is asked again.
    pub ttl: Duration,
    bare: Arc<CertifiedKey>,
    stapled: RwLock<Arc<CertifiedKey>>,
}

/// The certificates with answers of this process, and the wake-up for who asks for them.
#[derive(Debug, Default)]
pub struct Staples {
    followed: Mutex<Vec<Weak<Staple>>>,
    /// Told when there are new ones.
    pub came: Notify,
}

static STAPLES: LazyLock<Staples> = LazyLock::new(Staples::default);

/// Those of this process.
#[must_use]
pub fn staples() -> &'static Staples {
    &STAPLES
}

impl Staples {
    /// Takes those that came since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Weak<Staple>> {
        std::mem::take(&mut *self.followed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Staple {
    /// Prepares a certificate, whose responder is asked from now on.
    ///
    /// # Errors
    /// Reason why nobody can be asked.
    pub fn follow(key: &Arc<CertifiedKey>, skip_verify: bool, ttl: Duration) -> Result<Arc<Self>, String> {
        let question = Question::new(&key.cert)?;
        let (bare, stapled) = (Arc::clone(key), RwLock::new(Arc::clone(key)));
        let staple = Arc::new(Self { question, skip_verify, ttl, bare, stapled });
        STAPLES.followed.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&staple));
        STAPLES.came.notify_one();
        Ok(staple)
    }

    /// The certificate with the answer, where there is one.
    pub fn key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.stapled.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Staples an answer from now on; `None`: nothing.
    pub fn set(&self, answer: Option<Vec<u8>>) {
        let key = match answer {
            Some(answer) => {
                let mut key = CertifiedKey::clone(&self.bare);
                key.ocsp = Some(answer);
                Arc::new(key)
            }
            None => Arc::clone(&self.bare),
        };
        *self.stapled.write().unwrap_or_else(PoisonError::into_inner) = key;
    }
}
