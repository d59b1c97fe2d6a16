//! The sessions of keys where they are kept: in this process and its data directory, or in a Redis.

use serde_json::Value;
use weir_plugins::tyk::ApiRequest;
use weir_plugins::tyk::sessions::{RemoteSessions, Session, organisation_name};

use super::GatewayApi;

/// The sessions of keys.
pub(super) struct Held<'r> {
    api: &'r GatewayApi,
    /// `None`: in this process.
    remote: Option<&'r RemoteSessions>,
}

/// A fault: status and text.
type Fault = (u16, String);

fn failed(text: String) -> Fault {
    (500, text)
}

/// Seconds for which a session stays in Redis: the longest that the APIs of its rights say, unless the key itself says it
/// (`session_lifetime`, `post_expiry_action`) or `tyk.conf` does. 0: for ever.
fn lifetime(api: &GatewayApi, session: &Value, now: i64) -> u64 {
    if let Some(global) = api.conf.lifetimes.global {
        return global;
    }
    let number = |field: &str| session[field].as_i64().unwrap_or(0);
    let expires = number("expires");
    let left = |grace: i64| if expires > 0 { (expires - now + grace).max(1).unsigned_abs() } else { 0 };
    match (session["post_expiry_action"].as_str(), number("post_expiry_grace_period")) {
        (Some("delete"), _) => return left(0),
        (Some("retain"), -1) => return 0,
        (Some("retain"), grace) if grace != 0 => return left(grace),
        _ => {}
    }
    let loaded = api.loaded();
    let applied = api.sessions.applied(session).unwrap_or_default();
    let rights = applied["access_rights"].as_object();
    let own = number("session_lifetime");
    let mut longest = 0;
    for (fallback, waits) in rights.into_iter().flat_map(|rights| rights.keys()).filter_map(|id| loaded.lifetime(id)) {
        let seconds = if own > 0 { own } else { fallback };
        let waits = waits || api.conf.lifetimes.wait_for_expiry;
        let seconds = match seconds {
            ..=0 => 0,
            // A key that never expires stays.
            _ if waits && expires < 0 => return 0,
            _ if waits && expires == 0 => 0,
            _ if waits => seconds.max(expires - now),
            _ => seconds,
        };
        longest = longest.max(seconds);
    }
    longest.unsigned_abs()
}

impl<'r> Held<'r> {
    /// The sessions that a request is about.
    pub(super) fn of(api: &'r GatewayApi, request: &'r ApiRequest) -> Self {
        Self { api, remote: request.remote.as_ref() }
    }

    /// The fields of a session as they were written.
    pub(super) fn written(&self, name: &str) -> Result<Option<Value>, Fault> {
        match self.remote {
            Some(remote) => remote.get(name).map_err(failed),
            None => Ok(self.api.sessions.written(name)),
        }
    }

    /// True if a session has a right to an API.
    pub(super) fn has_right(&self, name: &str, api: &str) -> Result<bool, Fault> {
        let session = match self.remote {
            Some(_) => {
                let written = self.written(name)?;
                written.and_then(|written| self.api.sessions.compile_apart(&written).ok()).map(Into::into)
            }
            None => self.api.sessions.compiled(name),
        };
        Ok(session.is_some_and(|session| session.right(api).is_some()))
    }

    /// Names of all sessions, in their order.
    pub(super) fn names(&self) -> Result<Vec<String>, Fault> {
        match self.remote {
            Some(remote) => remote.names().map_err(failed),
            None => Ok(self.api.sessions.names()),
        }
    }

    /// Stores a session, and then serves it. With `keeps_counts` its quotas go on, else they begin anew.
    pub(super) fn put(&self, name: &str, session: &Value, keeps_counts: bool) -> Result<(), Fault> {
        let Some(remote) = self.remote else { return self.api.put(name, session, keeps_counts) };
        let lifetime = lifetime(self.api, session, super::keys::now());
        remote.put(name, session, lifetime).map_err(failed)?;
        if keeps_counts {
            return Ok(());
        }
        let compiled = self.api.sessions.compile_apart(session).map_err(failed)?;
        let scopes = compiled.rights.iter().filter_map(|right| right.limits.as_ref()).map(|(_, scope)| &**scope);
        let name = self.quota_name(name);
        std::iter::once("").chain(scopes).try_for_each(|scope| remote.reset_quota(scope, &name)).map_err(failed)
    }

    /// The name under which the quota of a session counts in Redis.
    fn quota_name(&self, name: &str) -> String {
        match name.strip_prefix(&organisation_name("")) {
            Some(org) => self.api.naming.name(org),
            None => name.to_owned(),
        }
    }

    /// Stores a session that ends by itself after so many seconds.
    pub(super) fn put_for(&self, name: &str, session: &Value, seconds: u64) -> Result<(), Fault> {
        match self.remote {
            Some(remote) => remote.put(name, session, seconds).map_err(failed),
            None => self.api.put(name, session, false),
        }
    }

    /// Removes a session.
    pub(super) fn remove(&self, name: &str) -> Result<(), Fault> {
        if let Some(remote) = self.remote {
            return remote.remove(name).map(drop).map_err(failed);
        }
        if let Some(storage) = &self.api.storage {
            storage.remove(name).map_err(|error| (500, format!("storage: {error}")))?;
        }
        self.api.sessions.remove(name);
        Ok(())
    }

    /// Requests that are left of the quota of a session, and the second since 1970 at which it begins anew.
    pub(super) fn quota(&self, name: &str, written: &Value, now_ms: u64) -> Result<Option<(u64, Option<u64>)>, Fault> {
        let Some(remote) = self.remote else {
            let Some(session) = self.api.sessions.compiled(name) else { return Ok(None) };
            let Some(quota) = session.limits.quota else { return Ok(None) };
            let (used, ends) = session.quota_used(&self.api.counts, now_ms);
            return Ok(Some((quota.saturating_sub(used), ends)));
        };
        let session: Result<Session, String> = self.api.sessions.compile_apart(written);
        let Some(quota) = session.ok().and_then(|session| session.limits.quota) else { return Ok(None) };
        let counted = remote.quota("", &self.quota_name(name)).map_err(failed)?;
        let ends = counted.left.map(|left| (now_ms + left).div_ceil(1000));
        Ok(Some((quota.saturating_sub(counted.used), ends)))
    }
}
