//! The decision whether an answer is kept, and for how long.

use std::sync::Arc;

use weir_wire::name::FieldName;

use super::remote::Remote;
use super::{is_kept, tags, vary};
use crate::cache::directives::{self, Directives, Parts};
use crate::cache::freshness::Lifetime;
use crate::cache::zone::{Collected, Stored, Zone};

/// The part of a configuration by which answers are kept.
#[derive(Debug)]
pub(super) struct Keeping {
    /// The zone; with a Redis only what is on its way is there.
    pub(super) zone: Arc<Zone>,
    /// The Redis that answers are in.
    pub(super) remote: Option<Remote>,
    pub(super) statuses: Box<[u16]>,
    /// True if `Cache-Control` and `Expires` count.
    pub(super) obeys: bool,
    /// Milliseconds for which an answer is kept where they count and say nothing; `None`: it is not kept.
    pub(super) unsaid_ms: Option<u64>,
    pub(super) ttl_ms: u64,
    /// Seconds.
    pub(super) stale_if_error: u64,
    /// Seconds.
    pub(super) stale_while_revalidate: u64,
    pub(super) keeps_cookies: bool,
    pub(super) longest: usize,
    /// The field of answers with their tags.
    pub(super) tags: Option<FieldName>,
}

/// An answer of an upstream, without its body.
pub(super) struct Came<'a> {
    pub(super) status: u16,
    /// Names and values.
    pub(super) fields: Vec<(&'a [u8], &'a [u8])>,
    /// Bytes of the body, where the answer tells them.
    pub(super) length: Option<u64>,
}

/// Appends the values of fields of a request, as [`super::values_of`] does.
pub(super) type Values<'a> = dyn Fn(&[Box<str>], &mut Vec<u8>) + 'a;

/// The request of an answer.
pub(super) struct Asked<'a> {
    /// True if the answer is its caller's alone, unless it says that it may be shared.
    pub(super) is_callers: bool,
    pub(super) values: &'a Values<'a>,
    /// Milliseconds of a clock that never goes back.
    pub(super) now_ms: u64,
    /// Milliseconds since 1970.
    pub(super) unix_ms: u64,
}

/// An answer on its way.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    pub(super) stored: Stored,
    pub(super) vary: Vec<Box<str>>,
    pub(super) values: Vec<u8>,
    pub(super) body: Collected,
}

impl<'a> Came<'a> {
    fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a [u8]> + 's {
        let named = |(known, _): &&(&'a [u8], &'a [u8])| known.eq_ignore_ascii_case(name.as_bytes());
        self.fields.iter().filter(named).map(|(_, value)| *value)
    }

    fn first(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }
}

impl Keeping {
    /// Stores an answer.
    pub(super) fn store(&self, key: &[u8], vary: &[Box<str>], values: &[u8], stored: Stored) {
        match &self.remote {
            Some(remote) => remote.store(key, vary, values, &stored),
            None => self.zone.store(key, vary, values, stored),
        }
    }

    /// Forgets all answers of a key. Nobody waits for a Redis.
    pub(super) fn forget(&self, key: &[u8]) {
        match &self.remote {
            Some(remote) => remote.purge_beside(key),
            None => drop(self.zone.purge(key)),
        }
    }

    /// The answer, where it may be kept.
    pub(super) fn keep(&self, came: &Came<'_>, asked: &Asked<'_>) -> Option<PendingAnswer> {
        // A part, or a word about what somebody else has, is no answer for others.
        if matches!(came.status, 206 | 304) {
            return None;
        }
        if !self.statuses.contains(&came.status) || came.length.is_some_and(|length| length > self.longest as u64) {
            return None;
        }
        let directives = Directives::read(came.all("cache-control"));
        let has_cookie = came.first("set-cookie").is_some_and(|value| !value.is_empty());
        if directives.private || directives.no_store || directives.no_cache || has_cookie && !self.keeps_cookies {
            return None;
        }
        let may_be_shared = directives.public || directives.s_maxage.is_some() || directives.must_revalidate;
        if asked.is_callers && !may_be_shared {
            return None;
        }
        let lifetime_ms = if self.obeys {
            let lifetime = Lifetime { directives, expires: came.first("expires"), date: came.first("date") };
            match lifetime.seconds(asked.unix_ms / 1000) {
                Some(0) => return None,
                Some(seconds) => seconds * 1000,
                None => self.unsaid_ms?,
            }
        } else {
            self.ttl_ms
        };
        let vary = vary(came.all("vary"))?;
        let mut values = Vec::new();
        (asked.values)(&vary, &mut values);
        // The first of several counts, and one that is no number does not (RFC 9111 section 5.1).
        let age = came.first("age").and_then(|age| directives::seconds(Parts(age).next()?));
        // The age counts against the lifetime that the answer tells, and not against one of the configuration.
        let age_ms = age.filter(|_| self.obeys).unwrap_or(0).saturating_mul(1000);
        let mut stored = Stored::new(came.status, asked.now_ms, age_ms, lifetime_ms);
        stored.stale_if_error_ms = self.stale_ms(&directives, directives.stale_if_error, self.stale_if_error);
        stored.revalidate_ms =
            self.stale_ms(&directives, directives.stale_while_revalidate, self.stale_while_revalidate);
        if let Some(name) = &self.tags {
            let name = String::from_utf8_lossy(name.text());
            stored.tags = tags(came.all(&name)).take(MOST_TAGS).map(Into::into).collect();
        }
        for (name, value) in &came.fields {
            if is_kept(name) {
                stored.fields.push(((*name).into(), (*value).into()));
            }
        }
        Some(PendingAnswer { stored, vary, values, body: Collected::new(&self.zone) })
    }

    /// Milliseconds behind its lifetime for which an answer with these directives may be given: those that it tells, or those
    /// of the configuration.
    fn stale_ms(&self, directives: &Directives, told: Option<u64>, configured: u64) -> u64 {
        let seconds = match self.obeys {
            true if directives.must_revalidate => 0,
            true => told.unwrap_or(configured),
            false => configured,
        };
        seconds.saturating_mul(1000)
    }
}

/// Most tags of an answer.
const MOST_TAGS: usize = 64;
