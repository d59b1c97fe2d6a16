//! Sessions of keys, shared by all workers: found by the hash of a key, without a lock.

#![allow(clippy::disallowed_types, reason = "no worker takes this lock: only changes of policies do")]

mod hash;
mod of_policies;
mod policies;
pub mod records;
mod remembered;
pub(in crate::tyk) mod remote;
mod session;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde_json::{Value, json};
use weir_plugin::StateRegistry;

pub use hash::HashFunction;
pub(crate) use of_policies::SessionsOfPolicies;
pub use policies::Policies;
pub use records::Records;
pub use remote::{Counted, RemoteSessions};
pub(crate) use session::write_quota_name;
pub use session::{Allowed, Bound, FieldDepth, GraphqlRights, Limits, Password, Right, Rights, Session, TypeFields};

/// Name of the session of an organisation, which is also its key in Redis.
#[must_use]
pub fn organisation_name(org: &str) -> String {
    format!("{ORGANISATION}{org}")
}

/// Beginning of the names of sessions of organisations.
const ORGANISATION: &str = "orgkey.";

/// Rules by which keys become names of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// True if sessions are stored under hashes of their keys (`hash_keys`).
    pub hashes: bool,
    /// The function of keys that are made (`hash_key_function`); none: keys are not self-describing.
    pub function: Option<HashFunction>,
}

/// A session as it is stored, and as a request needs it.
#[derive(Debug)]
struct Held {
    /// The fields as they were written.
    written: Value,
    /// `None`: its policies cannot be applied, and it is refused.
    compiled: Option<Arc<Session>>,
}

/// All sessions of the process.
#[derive(Debug)]
pub struct Sessions {
    held: papaya::HashMap<Box<[u8]>, Held>,
    /// Values beside sessions.
    pub records: Records,
    /// Sessions that were read from Redis.
    remembered: remembered::Remembered<Arc<Session>>,
    /// Names of values beside sessions, and whether they are in Redis.
    seen: remembered::Remembered<bool>,
    /// The policies under which sessions were compiled.
    policies: std::sync::RwLock<Arc<Policies>>,
    epochs: AtomicU64,
}

impl Sessions {
    /// The sessions of all configurations.
    #[must_use]
    pub fn of(states: &StateRegistry) -> Arc<Self> {
        states.get_or_create("tyk sessions", Self::default)
    }

    /// The session with a name.
    #[must_use]
    pub(crate) fn find(&self, name: &[u8]) -> Option<Arc<Session>> {
        self.held.pin().get(name)?.compiled.clone()
    }

    /// The session of a key.
    pub(crate) fn find_key(&self, naming: Naming, key: &[u8]) -> Option<Arc<Session>> {
        match naming.hashes {
            true => self.find(HashFunction::of_key(key).hash(key).as_bytes()),
            false => self.find(key),
        }
    }

    /// The fields of a session as they were written.
    #[must_use]
    pub fn written(&self, name: &str) -> Option<Value> {
        self.held.pin().get(name.as_bytes()).map(|held| held.written.clone())
    }

    /// The fields of a session with its policies applied.
    ///
    /// # Errors
    /// The policies cannot be applied.
    pub fn applied(&self, session: &Value) -> Result<Value, String> {
        policies::apply(session, &self.policies())
    }

    /// The session as requests see it.
    #[must_use]
    pub fn compiled(&self, name: &str) -> Option<Arc<Session>> {
        self.find(name.as_bytes())
    }

    /// Names of the sessions of all keys, in their order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let held = self.held.pin();
        let of_keys = held.keys().filter(|name| !name.starts_with(ORGANISATION.as_bytes()));
        let mut names: Vec<String> = of_keys.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Puts a session in, or in the place of the one with its name. With `keeps_counts` its quota goes on, else it begins
    /// anew.
    ///
    /// # Errors
    /// Its policies cannot be applied, or a pattern is none; nothing has changed.
    pub fn put(&self, name: &str, written: Value, keeps_counts: bool) -> Result<(), String> {
        let before = self.find(name.as_bytes()).filter(|_| keeps_counts);
        let epoch = before.map_or_else(|| self.epochs.fetch_add(1, Relaxed), |before| before.quota_epoch);
        let compiled = self.compile(name, &written, epoch)?;
        self.held.pin().insert(name.as_bytes().into(), Held { written, compiled: Some(Arc::new(compiled)) });
        Ok(())
    }

    /// Puts a session in that was stored. One whose policies are gone stays, and is refused. Its counts go on.
    pub fn restore(&self, name: &str, written: Value, epoch: u64) {
        self.epochs.fetch_max(epoch.saturating_add(1), Relaxed);
        let compiled = self.compile(name, &written, epoch).ok().map(Arc::new);
        self.held.pin().insert(name.as_bytes().into(), Held { written, compiled });
    }

    /// Takes a session out; false if there was none.
    pub fn remove(&self, name: &str) -> bool {
        self.held.pin().remove(name.as_bytes()).is_some()
    }

    /// Takes new policies, and compiles every session that names one anew.
    pub fn set_policies(&self, policies: Policies) {
        let policies = Arc::new(policies);
        {
            let mut place = self.policies.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            if **place == *policies {
                return;
            }
            *place = policies;
        }
        self.remembered.clear();
        let held = self.held.pin();
        for (name, session) in &held {
            let has_policies = ["apply_policies", "apply_policy_id"].iter().any(|field| {
                session.written.get(*field).is_some_and(|value| !value.is_null() && value != "" && value != &json!([]))
            });
            if has_policies {
                let name = String::from_utf8_lossy(name);
                let epoch = session.compiled.as_ref().map_or(0, |compiled| compiled.quota_epoch);
                let compiled = self.compile(&name, &session.written, epoch).ok().map(Arc::new);
                held.insert(name.as_bytes().into(), Held { written: session.written.clone(), compiled });
            }
        }
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<Policies> {
        Arc::clone(&self.policies.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// A session that was read from Redis and is fresh.
    pub(in crate::tyk) fn recall(&self, name: &[u8], now_ms: u64) -> Option<Arc<Session>> {
        self.remembered.find(name, now_ms)
    }

    /// True if there is a value beside sessions with this name in Redis, as it was seen a moment ago.
    pub(in crate::tyk) fn seen(&self, name: &str, now_ms: u64) -> Option<bool> {
        self.seen.find(name.as_bytes(), now_ms)
    }

    /// Remembers a session of Redis from now on for so many milliseconds, if there are not `most` others.
    fn remember(&self, name: &[u8], session: &Arc<Session>, now_and_fresh: (u64, u64), most: usize) {
        self.remembered.put(name, Arc::clone(session), now_and_fresh, most);
    }

    /// Forgets what was read from Redis of a session.
    fn forget(&self, name: &[u8]) {
        self.remembered.remove(name);
    }

    /// A session that is not stored here.
    ///
    /// # Errors
    /// Its policies cannot be applied, or a pattern is none.
    pub fn compile_apart(&self, written: &Value) -> Result<Session, String> {
        self.compile("", written, 0)
    }

    fn compile(&self, name: &str, written: &Value, epoch: u64) -> Result<Session, String> {
        Session::compile(name, &policies::apply(written, &self.policies())?, epoch)
    }
}

impl Default for Sessions {
    fn default() -> Self {
        let policies = std::sync::RwLock::default();
        Self {
            held: papaya::HashMap::new(),
            records: Records::default(),
            remembered: remembered::Remembered::default(),
            seen: remembered::Remembered::default(),
            policies,
            epochs: AtomicU64::new(1),
        }
    }
}

impl Naming {
    /// The naming of a configuration.
    #[must_use]
    pub fn new(hashes: bool, function: &str) -> Self {
        Self { hashes, function: HashFunction::named(function).filter(|_| !function.is_empty()) }
    }

    /// The name of the session of a key.
    #[must_use]
    pub fn name(&self, key: &str) -> String {
        match self.hashes {
            true => {
                String::from_utf8_lossy(HashFunction::of_key(key.as_bytes()).hash(key.as_bytes()).as_bytes()).into()
            }
            false => key.to_owned(),
        }
    }

    /// A key of an organisation with this id.
    #[must_use]
    pub fn key(&self, org: &str, id: &str) -> String {
        match self.function {
            Some(function) => {
                let function = function.name();
                STANDARD.encode(format!("{{\"org\":{},\"id\":{},\"h\":\"{function}\"}}", json!(org), json!(id)))
            }
            None => format!("{org}{id}"),
        }
    }

    /// True for a key that says its organisation itself.
    #[must_use]
    pub fn is_self_describing(key: &str) -> bool {
        let decoded = STANDARD_NO_PAD.decode(hash::trim_padding(key.as_bytes()));
        decoded.is_ok_and(|text| serde_json::from_slice::<Value>(&text).is_ok_and(|key| key["id"].is_string()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Naming, Sessions};

    #[test]
    fn policies_change_sessions_that_are_there() {
        let sessions = Sessions::default();
        let policy = |rate: u64| {
            let policy = json!({"rate": rate, "per": 1, "access_rights": {"a": {}}});
            [("p".to_owned(), policy)].into_iter().collect()
        };
        assert!(sessions.put("k", json!({"apply_policies": ["p"]}), false).is_err());
        sessions.set_policies(policy(5));
        sessions.put("k", json!({"apply_policies": ["p"]}), false).expect("a policy");
        let rate = || sessions.compiled("k").map(|session| session.limits.rate);
        assert_eq!(rate(), Some(Some(5)));
        sessions.set_policies(policy(7));
        assert_eq!(rate(), Some(Some(7)));
        sessions.set_policies(super::Policies::new());
        assert_eq!((rate(), sessions.written("k").is_some()), (None, true), "refused, and kept");
        sessions.set_policies(policy(8));
        assert_eq!(rate(), Some(Some(8)));
    }

    #[test]
    fn keys_have_the_forms_of_tyk() {
        let plain = Naming::new(true, "");
        assert_eq!((plain.key("o1", "abc"), plain.name("o1abc").len()), ("o1abc".to_owned(), 8));
        let described = Naming::new(true, "murmur64");
        let key = described.key("o1", "abc");
        assert!(Naming::is_self_describing(&key) && !Naming::is_self_describing("o1abc"));
        assert_eq!(described.name(&key).len(), 16);
        assert_eq!(Naming::new(false, "murmur64").name("x"), "x");
    }
}
