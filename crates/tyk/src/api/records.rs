//! Values beside sessions where they are kept, as sessions are: in this process and its data directory, or in a Redis.

use std::sync::atomic::Ordering::Relaxed;

use weir_plugins::tyk::ApiRequest;
use weir_plugins::tyk::sessions::{RemoteSessions, records};

use super::{GatewayApi, now};

/// Seconds after which what has ended is taken out, where there is room.
const SWEEP: u64 = 60;

/// The values beside sessions.
pub(super) struct Records<'r> {
    api: &'r GatewayApi,
    /// `None`: in this process.
    remote: Option<&'r RemoteSessions>,
}

/// A fault: status and text.
pub(super) type Fault = (u16, String);

fn failed(text: String) -> Fault {
    (500, text)
}

impl<'r> Records<'r> {
    /// The values that a request is about.
    pub(super) fn of(api: &'r GatewayApi, request: &'r ApiRequest) -> Self {
        Self { api, remote: request.remote.as_ref() }
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<String>, Fault> {
        match self.remote {
            Some(remote) => remote.record(name).map_err(failed),
            None => Ok(self.api.sessions.records.get(name, now()).map(|value| value.to_string())),
        }
    }

    /// Puts a value for so many seconds; 0: for ever.
    pub(super) fn put(&self, name: &str, value: &str, seconds: u64) -> Result<(), Fault> {
        if let Some(remote) = self.remote {
            return remote.put_record(name, value, seconds).map_err(failed);
        }
        let held = &self.api.sessions.records;
        let second = now();
        let is_due = second >= self.api.swept.load(Relaxed).saturating_add(SWEEP);
        if is_due || held.len() >= self.api.most_records {
            self.api.swept.store(second, Relaxed);
            self.sweep();
        }
        if held.len() >= self.api.most_records {
            return Err((503, format!("more than {} values are not kept (limits.limit_keys)", self.api.most_records)));
        }
        let ends = if seconds == 0 { 0 } else { now() + seconds };
        if let Some(storage) = &self.api.storage {
            storage.put_record(name, value, ends).map_err(|error| (500, format!("storage: {error}")))?;
        }
        held.put(name, value, ends);
        Ok(())
    }

    /// Removes a value; of several callers one gets true.
    pub(super) fn remove(&self, name: &str) -> Result<bool, Fault> {
        if let Some(remote) = self.remote {
            return remote.remove_record(name).map_err(failed);
        }
        if let Some(storage) = &self.api.storage {
            storage.remove_record(name).map_err(|error| (500, format!("storage: {error}")))?;
        }
        Ok(self.api.sessions.records.remove(name))
    }

    /// Takes out what has ended, with the sessions of tokens.
    fn sweep(&self) {
        for name in self.api.sessions.records.sweep(now()) {
            let Some((_, token)) = name.split_once(".oauth-access.") else { continue };
            self.api.sessions.remove(token);
            if let Some(storage) = &self.api.storage {
                // One that stays is refused by its end, and goes with the next sweep after a start.
                let _ = storage.remove(token);
            }
        }
    }

    /// Writes a name, which begins with a prefix, into a list beside it, or takes it out. The list is Redis's own need: those
    /// of this process are found by the beginnings of their names.
    pub(super) fn enlist(&self, prefix: &str, list: &str, name: &str, is_in: bool) -> Result<(), Fault> {
        let Some(remote) = self.remote else { return Ok(()) };
        let element = name.strip_prefix(prefix).unwrap_or(name);
        remote.enlist(&format!("{prefix}{list}"), element, is_in).map_err(failed)
    }

    /// Names and values of a list, in the order of their names: those that begin with the prefix and `kind`.
    pub(super) fn listed(&self, prefix: &str, list: &str, kind: &str) -> Result<Vec<(String, String)>, Fault> {
        let begins = format!("{prefix}{kind}");
        let Some(remote) = self.remote else {
            let found = self.api.sessions.records.beginning_with(&begins, now());
            return Ok(found.into_iter().map(|(name, value, _)| (name, value.to_string())).collect());
        };
        let mut found = Vec::new();
        for element in remote.list(&format!("{prefix}{list}")).map_err(failed)? {
            let name = format!("{prefix}{element}");
            if let Some(value) = remote.record(&name).map_err(failed)?.filter(|_| name.starts_with(&begins)) {
                found.push((name, value));
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Writes down that a client has a token, by the name of its session, until a second since 1970; `None`: no more.
    pub(super) fn rank_token(&self, api: &str, client: &str, token: &str, ends: Option<u64>) -> Result<(), Fault> {
        let Some(remote) = self.remote else { return Ok(()) };
        let set = format!("{}oauth-client-tokens.{client}", records::oauth_of(api));
        remote.rank(&set, token, ends).map_err(failed)
    }

    /// Tokens of a client that have not ended, by the names of their sessions, and the seconds since 1970 at which they end.
    pub(super) fn tokens(&self, api: &str, client: &str) -> Result<Vec<(String, u64)>, Fault> {
        let prefix = records::oauth_of(api);
        if let Some(remote) = self.remote {
            return remote.ranked(&format!("{prefix}oauth-client-tokens.{client}"), now()).map_err(failed);
        }
        let begins = format!("{prefix}oauth-access.");
        let mut found = Vec::new();
        for (name, value, ends) in self.api.sessions.records.beginning_with(&begins, now()) {
            let access: serde_json::Value = serde_json::from_str(&value).unwrap_or_default();
            if access["Client"]["id"] == client {
                found.push((name.get(begins.len()..).unwrap_or_default().to_owned(), ends));
            }
        }
        found.sort_by_key(|(_, ends)| *ends);
        Ok(found)
    }
}
