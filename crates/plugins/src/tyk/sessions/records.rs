//! Values beside sessions: clients, codes and tokens of OAuth, and certificates, under the names that Tyk has for them in
//! Redis. Those of a gateway without Redis are here.

use std::sync::Arc;

/// A value, and the second since 1970 at which it ends; 0: never.
type Record = (Arc<str>, u64);

/// The values of the process by their names, found without a lock.
#[derive(Debug, Default)]
pub struct Records {
    held: papaya::HashMap<Box<str>, Record>,
}

/// Name of a client of an API's OAuth server.
#[must_use]
pub fn oauth_client(api: &str, client: &str) -> String {
    format!("{}oauth-clientid.{client}", oauth_of(api))
}

/// Beginning of the names of what the OAuth server of an API keeps.
#[must_use]
pub fn oauth_of(api: &str) -> String {
    format!("oauth-data.{api}.")
}

/// Name of a certificate by its id: the organisation and its SHA-256.
#[must_use]
pub fn certificate(id: &str) -> String {
    format!("cert-raw-{id}")
}

impl Records {
    /// A value that has not ended at a second since 1970.
    #[must_use]
    pub fn get(&self, name: &str, now: u64) -> Option<Arc<str>> {
        let held = self.held.pin();
        let (value, ends) = held.get(name)?;
        (*ends == 0 || now < *ends).then(|| Arc::clone(value))
    }

    /// Puts a value under a name.
    pub fn put(&self, name: &str, value: &str, ends: u64) {
        self.held.pin().insert(name.into(), (value.into(), ends));
    }

    /// Removes a value; of several callers one gets true.
    pub fn remove(&self, name: &str) -> bool {
        self.held.pin().remove(name).is_some()
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True without any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names and values that begin so and have not ended, in the order of their names, with their ends.
    #[must_use]
    pub fn beginning_with(&self, prefix: &str, now: u64) -> Vec<(String, Arc<str>, u64)> {
        let held = self.held.pin();
        let fit = held.iter().filter(|(name, (_, ends))| name.starts_with(prefix) && (*ends == 0 || now < *ends));
        let mut all: Vec<_> = fit.map(|(name, (value, ends))| (name.to_string(), Arc::clone(value), *ends)).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Takes out what has ended; its names.
    pub fn sweep(&self, now: u64) -> Vec<String> {
        let held = self.held.pin();
        let over: Vec<_> =
            held.iter().filter(|(_, (_, ends))| *ends > 0 && now >= *ends).map(|(name, _)| name.clone()).collect();
        over.into_iter().filter(|name| held.remove(name).is_some()).map(String::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Records, oauth_client};

    #[test]
    fn values_end_and_are_swept() {
        let records = Records::default();
        records.put(&oauth_client("a", "x"), "1", 0);
        records.put(&oauth_client("a", "y"), "2", 100);
        records.put(&oauth_client("b", "z"), "3", 0);
        assert_eq!(records.get("oauth-data.a.oauth-clientid.y", 99).as_deref(), Some("2"));
        assert_eq!(records.get("oauth-data.a.oauth-clientid.y", 100), None);
        let names = |now| {
            let found = records.beginning_with("oauth-data.a.", now);
            found.into_iter().map(|(name, ..)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(99), ["oauth-data.a.oauth-clientid.x", "oauth-data.a.oauth-clientid.y"]);
        assert_eq!(names(100), ["oauth-data.a.oauth-clientid.x"]);
        assert_eq!(
            (records.sweep(99).len(), records.sweep(100), records.len()),
            (0, vec!["oauth-data.a.oauth-clientid.y".to_owned()], 2)
        );
        assert!(records.remove(&oauth_client("b", "z")) && !records.remove(&oauth_client("b", "z")));
    }
}
