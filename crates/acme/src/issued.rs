//! Certificates and challenges of this process, and the names that are asked for.

#![allow(
    clippy::disallowed_types,
    reason = "taken in handshakes for names without a certificate, and by the thread that orders"
)]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::sign::CertifiedKey;
use tokio::sync::Notify;
use weir_net::tls::issued::Source;
use weir_net::tls::{pem, provider, words, x509};

use crate::Progress;
use crate::authority::Authority;

/// Most names that wait for an order; others are asked for again by their next handshake.
const MOST_ASKED: usize = 100;
/// Most certificates, and names whose orders have failed, that are kept.
const MOST_KEPT: usize = 10_000;

/// The certificates of this process.
pub(crate) static ISSUED: LazyLock<Issued> = LazyLock::new(Issued::default);

/// Certificates and challenges, and the names that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Issued {
    followed: Mutex<Vec<Weak<Authority>>>,
    certificates: RwLock<HashMap<Box<str>, Certificate>>,
    /// Answers to challenges by their tokens.
    challenges: Mutex<HashMap<String, Arc<str>>>,
    waiting: Mutex<Waiting>,
    /// Wakes the thread that orders.
    pub(crate) asked: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    asked: Vec<Box<str>>,
    /// Names whose orders are under way.
    running: HashSet<Box<str>>,
    /// Names whose orders have failed.
    failed: HashMap<Box<str>, Failure>,
}

/// A failed order.
#[derive(Debug)]
struct Failure {
    reason: String,
    /// Time from which another one may be made, since 1970.
    until: Duration,
}

/// A certificate that is shown.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    key: Arc<CertifiedKey>,
    /// Since 1970.
    not_after: Duration,
    /// Time at which another one is ordered, since 1970.
    due: Duration,
}

impl Certificate {
    /// Reads a certificate and its key.
    pub(crate) fn read(authority: &Authority, cert: &str, key: &str) -> Result<Self, String> {
        let key = pem::certified_key(cert, key, provider()).map_err(|(_, reason)| reason)?;
        let first = key.cert.first().ok_or("no certificate")?;
        let validity = x509::Certificate::read(first).and_then(|first| first.validity());
        let (not_before, not_after) = validity.map_err(|error| words::of(&error))?;
        // One that holds for a shorter time than the one before its end is renewed in its last third.
        let life = not_after.saturating_sub(not_before);
        let due = not_after.saturating_sub(authority.renew_before.min(life / 3));
        Ok(Self { key: Arc::new(key), not_after, due })
    }

    /// True until another one is to be ordered.
    pub(crate) fn is_fresh(&self) -> bool {
        now() < self.due
    }
}

/// The time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Issued {
    pub(crate) fn follow(&'static self, authority: Authority) -> Arc<Authority> {
        let authority = Arc::new(authority);
        let mut followed = lock(&self.followed);
        followed.retain(|authority| authority.strong_count() > 0);
        followed.push(Arc::downgrade(&authority));
        weir_net::tls::issued::set_source(self);
        authority
    }

    pub(crate) fn has_authorities(&self) -> bool {
        lock(&self.followed).iter().any(|authority| authority.strong_count() > 0)
    }

    /// The authority for a name: the one that came last.
    pub(crate) fn authority(&self, name: &str) -> Option<Arc<Authority>> {
        lock(&self.followed).iter().rev().filter_map(Weak::upgrade).find(|authority| authority.names.has(name))
    }

    pub(crate) fn authorization(&self, token: &str) -> Option<Arc<str>> {
        lock(&self.challenges).get(token).cloned()
    }

    pub(crate) fn put_challenge(&self, token: String, answer: &str) {
        lock(&self.challenges).insert(token, answer.into());
    }

    pub(crate) fn end_challenge(&self, token: &str) {
        lock(&self.challenges).remove(token);
    }

    pub(crate) fn ask_for(&self, name: &str) -> bool {
        let is_issued = self.authority(name).is_some();
        if is_issued && self.held(name).is_none() {
            self.ask(name);
        }
        is_issued
    }

    pub(crate) fn progress(&self, name: &str) -> Progress {
        if self.held(name).is_some() {
            return Progress::Held;
        }
        let waiting = lock(&self.waiting);
        waiting.failed.get(name).map_or(Progress::Open, |failure| Progress::Failed(failure.reason.clone()))
    }

    /// The certificate of a name, while it holds.
    fn held(&self, name: &str) -> Option<Certificate> {
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        certificates.get(name).filter(|certificate| now() < certificate.not_after).cloned()
    }

    /// Asks for a name.
    fn ask(&self, name: &str) {
        let mut waiting = lock(&self.waiting);
        let Waiting { asked, running, failed } = &mut *waiting;
        let is_known = running.contains(name) || asked.iter().any(|other| **other == *name);
        if is_known || asked.len() >= MOST_ASKED || failed.get(name).is_some_and(|failure| now() < failure.until) {
            return;
        }
        asked.push(name.into());
        drop(waiting);
        self.asked.notify_one();
    }

    /// Names whose orders begin now: those that were asked for, and those whose certificates are to be renewed.
    pub(crate) fn begin(&self) -> Vec<Box<str>> {
        let now = now();
        let due: Vec<_> = self
            .certificates
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter(|(_, certificate)| certificate.due <= now)
            .map(|(name, _)| name.clone())
            .collect();
        let mut waiting = lock(&self.waiting);
        let Waiting { asked, running, failed } = &mut *waiting;
        failed.retain(|_, failure| now < failure.until);
        let mut begun = std::mem::take(asked);
        begun.extend(due);
        begun.retain(|name| !failed.contains_key(name) && running.insert(name.clone()));
        begun
    }

    /// Ends an order that has failed: none is made for the name for a while.
    pub(crate) fn failed(&self, name: &str, reason: String, pause: Duration) {
        let mut waiting = lock(&self.waiting);
        waiting.running.remove(name);
        if waiting.failed.len() < MOST_KEPT {
            waiting.failed.insert(name.into(), Failure { reason, until: now().saturating_add(pause) });
        }
    }

    /// Ends an order that has succeeded.
    pub(crate) fn put(&self, name: &str, certificate: Certificate) {
        let mut certificates = self.certificates.write().unwrap_or_else(PoisonError::into_inner);
        if certificates.len() >= MOST_KEPT && !certificates.contains_key(name) {
            let now = now();
            certificates.retain(|_, certificate| now < certificate.not_after);
        }
        if certificates.len() < MOST_KEPT || certificates.contains_key(name) {
            certificates.insert(name.into(), certificate);
        }
        drop(certificates);
        lock(&self.waiting).running.remove(name);
    }

    /// Forgets a certificate that nobody follows an authority for any more, and ends its order.
    pub(crate) fn forget(&self, name: &str) {
        self.certificates.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        lock(&self.waiting).running.remove(name);
    }

    /// Time until the next certificate is to be renewed.
    pub(crate) fn until_due(&self) -> Option<Duration> {
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        let waiting = lock(&self.waiting);
        let idle = certificates.iter().filter(|(name, _)| !waiting.running.contains(*name));
        let due = idle.map(|(name, certificate)| {
            waiting.failed.get(name).map_or(certificate.due, |failure| certificate.due.max(failure.until))
        });
        Some(due.min()?.saturating_sub(now()))
    }
}

impl Source for Issued {
    fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.authority(name)?;
        if let Some(certificate) = self.held(name) {
            return Some(certificate.key);
        }
        self.ask(name);
        None
    }
}
