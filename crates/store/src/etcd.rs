//! A store in etcd, shared by many gateways, with the keys and values of APISIX.
//!
//! Requests go through etcd's HTTP gateway, as APISIX's do: a network that lets APISIX reach the cluster also lets
//! this gateway reach it.

mod client;
mod follow;
mod history;
mod keyring;
mod layout;
mod messages;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::client::{CallError, Client, Shared};
use self::follow::Follower;
pub use self::keyring::{KeyLengthError, Keyring, Sealing};
use self::layout::Layout;
use self::messages::{KeepAnswer, LeaseAnswer, Pair, RangeAnswer, StatusAnswer, TxnAnswer, encoded, under, with};
use crate::{
    Answer, Change, Commit, Difference, Event, Expectation, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store,
    StoreError,
};

const RANGE: &str = "/v3/kv/range";
const TXN: &str = "/v3/kv/txn";
const LEASE: &str = "/v3/lease/grant";
const STATUS: &str = "/v3/maintenance/status";
const PUT: &str = "/v3/kv/put";
const KEEP: &str = "/v3/lease/keepalive";
const REVOKE: &str = "/v3/lease/revoke";

/// Directory of the gateways, as APISIX's server-info has it.
const GATEWAYS: &str = "data_plane/server_info";
/// Most gateways that are read.
const MOST_GATEWAYS: u64 = 1000;

/// Keys per page of a listing.
const PAGE: u64 = 1000;

/// Capacity of a watch's event queue; etcd keeps the events that do not fit.
const WAITING: usize = 64;

/// Number of attempts at a listing, which is restarted if its revision is compacted meanwhile.
const LISTINGS: usize = 3;

/// Options for reaching etcd, and for the data kept there.
#[derive(Clone)]
pub struct EtcdOptions {
    /// Members, as `http://HOST:PORT` or `https://HOST:PORT`.
    pub hosts: Vec<String>,
    /// Prefix of all keys.
    pub prefix: String,
    /// User and password, if etcd requires them.
    pub user: Option<(String, String)>,
    /// Deadline of a call over all members.
    pub timeout: Duration,
    /// Duration of a watch before it is set up again.
    pub watch_timeout: Duration,
    /// Interval between checks that the watch has delivered all events.
    pub health_check_interval: Duration,
    /// First delay after all members have failed.
    pub resync_delay: Duration,
    /// TLS configuration for members with `https`.
    pub tls: Arc<ClientConfig>,
    /// Text of a TLS error, for people.
    pub tls_words: fn(&rustls::Error) -> String,
    /// Server name that members' certificates are verified for, if it differs from their host.
    pub server_name: Option<String>,
    /// Number of revisions that the history looks back at most.
    pub history: u64,
    /// Encryption of secrets in etcd.
    pub sealing: Sealing,
}

/// A store in etcd.
#[derive(Debug)]
pub struct Etcd {
    shared: Arc<Inner>,
}

/// State shared by a store and its watches.
#[derive(Debug)]
struct Inner {
    client: Shared,
    layout: Layout,
    options: EtcdOptions,
    health: Arc<EtcdHealth>,
}

/// Health of the connection to etcd.
#[derive(Debug, Default)]
pub struct EtcdHealth {
    reachable: AtomicBool,
    index: AtomicU64,
    delivered: AtomicU64,
    modified: [AtomicU64; Kind::ALL.len()],
}

impl EtcdHealth {
    /// True if etcd answered the last call.
    #[must_use]
    pub fn reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    /// Latest known revision of etcd; it also counts changes by other programs than gateways.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index.load(Ordering::Relaxed)
    }

    /// Revision up to which a watch has delivered all events.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Revision of the last delivered change to a resource of this kind.
    #[must_use]
    pub fn modified(&self, kind: Kind) -> u64 {
        self.modified.get(kind as usize).map_or(0, |revision| revision.load(Ordering::Relaxed))
    }

    fn changed(&self, kind: Kind, revision: u64) {
        if let Some(latest) = self.modified.get(kind as usize) {
            latest.fetch_max(revision, Ordering::Relaxed);
        }
    }

    fn answered(&self, revision: u64) {
        self.reachable.store(true, Ordering::Relaxed);
        self.index.fetch_max(revision, Ordering::Relaxed);
    }

    fn failed(&self) {
        self.reachable.store(false, Ordering::Relaxed);
    }
}

impl Etcd {
    /// Creates the store without sending any request.
    #[must_use]
    pub fn new(options: EtcdOptions) -> Self {
        let client = Arc::new(Client::new(&options));
        let layout = Layout::new(&options.prefix);
        Self { shared: Arc::new(Inner { client, layout, options, health: Arc::default() }) }
    }

    /// Version of etcd that a member reports; `None` if no member answers.
    pub async fn version(&self) -> Option<String> {
        let status: StatusAnswer = self.shared.client.ask(STATUS, &json!({})).await.ok()?;
        Some(status.version).filter(|version| !version.is_empty())
    }

    /// Tells others of a gateway: a value under its id, which is gone so many seconds after the last [`Etcd::keep`] of the lease
    /// that this gives.
    ///
    /// # Errors
    /// The text of what went wrong.
    pub async fn announce(&self, id: &str, value: &str, ttl: u64) -> Result<String, String> {
        let text = |error: CallError| error.to_string();
        let client = &self.shared.client;
        let lease: LeaseAnswer = client.ask(LEASE, &json!({ "TTL": ttl.to_string() })).await.map_err(text)?;
        let key = encoded(format!("{}{id}", self.shared.layout.directory(GATEWAYS)));
        let put = json!({ "key": key, "value": encoded(value), "lease": lease.id });
        client.ask::<Value>(PUT, &put).await.map_err(text)?;
        Ok(lease.id)
    }

    /// Keeps what a lease holds; false where the lease has ended.
    ///
    /// # Errors
    /// The text of what went wrong.
    pub async fn keep(&self, lease: &str) -> Result<bool, String> {
        let answer = self.shared.client.ask::<KeepAnswer>(KEEP, &json!({ "ID": lease })).await;
        Ok(answer.map_err(|error| error.to_string())?.result.ttl > 0)
    }

    /// Takes back what a lease holds.
    ///
    /// # Errors
    /// The text of what went wrong.
    pub async fn withdraw(&self, lease: &str) -> Result<(), String> {
        let answer = self.shared.client.ask::<Value>(REVOKE, &json!({ "ID": lease })).await;
        answer.map(drop).map_err(|error| error.to_string())
    }

    /// The values that gateways have told.
    ///
    /// # Errors
    /// The text of what went wrong.
    pub async fn announced(&self) -> Result<Vec<String>, String> {
        let range = under(&self.shared.layout.directory(GATEWAYS));
        let range = with(range, json!({ "limit": MOST_GATEWAYS.to_string() }));
        let answer: RangeAnswer = self.shared.client.ask(RANGE, &range).await.map_err(|error| error.to_string())?;
        Ok(answer.kvs.into_iter().map(|pair| String::from_utf8_lossy(&pair.value).into_owned()).collect())
    }

    /// Health of the connection, for metrics.
    #[must_use]
    pub fn health(&self) -> Arc<EtcdHealth> {
        Arc::clone(&self.shared.health)
    }
}

impl Store for Etcd {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>> {
        Box::pin(self.shared.get(key))
    }

    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        Box::pin(async move {
            let listed = self.shared.list(kind).await;
            listed.map(|listed| listed.listing).map_err(|error| self.shared.unavailable(&error))
        })
    }

    fn commit(&self, commit: Commit) -> Answer<'_, u64> {
        Box::pin(self.shared.commit(commit))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn watch(&self, after: u64) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(Follower::new(Arc::clone(&self.shared), after, sender).run());
        receiver
    }

    fn history(&self, query: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        Box::pin(self.shared.history(query))
    }

    fn difference(&self, from: u64, to: u64) -> Answer<'_, Vec<Difference>> {
        Box::pin(self.shared.difference(from, to))
    }
}

/// Resources, with the data needed to follow changes from there on.
struct Listed {
    listing: Listing,
    /// Number of keys under the prefix, including those that are no resources.
    count: u64,
}

impl Inner {
    async fn get(&self, key: &Key) -> Result<Option<Item>, StoreError> {
        let message = json!({ "key": encoded(self.layout.key(key)) });
        let answer: RangeAnswer = self.client.ask(RANGE, &message).await.map_err(|error| self.unavailable(&error))?;
        self.health.answered(answer.header.revision);
        Ok(answer.kvs.into_iter().next().and_then(|pair| self.item(pair)))
    }

    async fn list(&self, kind: Option<Kind>) -> Result<Listed, CallError> {
        let prefix = match kind {
            Some(kind) => self.layout.directory(kind.directory()),
            None => self.layout.root().to_owned(),
        };
        let mut tries = 0;
        let mut listed = loop {
            tries += 1;
            match self.pages(&prefix, None).await {
                Err(CallError::Refused(words)) if words.contains("compacted") && tries < LISTINGS => {}
                outcome => break outcome?,
            }
        };
        let items = &mut listed.listing.items;
        for item in items.iter() {
            self.health.changed(item.key.kind(), item.modified);
        }
        if let Some(kind) = kind {
            items.retain(|item| item.key.kind() == kind);
        }
        items.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
        Ok(listed)
    }

    /// Reads all keys under a prefix at one revision: the given one, or the present one.
    async fn pages(&self, prefix: &str, at: Option<u64>) -> Result<Listed, CallError> {
        let mut listed = Listed { listing: Listing::default(), count: 0 };
        let mut expected = None;
        let mut range = under(prefix);
        if let Some(revision) = at {
            listed.listing.revision = revision;
            range = with(range, json!({ "revision": revision.to_string() }));
        }
        let mut page = PAGE;
        let mut more = true;
        while more {
            let asked = with(range.clone(), json!({ "limit": page.to_string() }));
            let answer: RangeAnswer = match self.client.ask(RANGE, &asked).await {
                Err(CallError::TooLong) if page > 1 => {
                    page = (page / 8).max(1);
                    continue;
                }
                answer => answer?,
            };
            // The count of the first page covers all pages.
            expected.get_or_insert(answer.count);
            if listed.listing.revision == 0 {
                listed.listing.revision = answer.header.revision;
                listed.listing.cluster = answer.header.cluster_id;
                range = with(range, json!({ "revision": answer.header.revision.to_string() }));
            }
            let Some(last) = answer.kvs.last() else { break };
            let mut next = last.key.clone();
            next.push(0);
            range = with(range, json!({ "key": encoded(next) }));
            more = answer.more;
            listed.count += answer.kvs.len() as u64;
            listed.listing.items.extend(answer.kvs.into_iter().filter_map(|pair| self.item(pair)));
        }
        let expected = expected.unwrap_or_default();
        if listed.count != expected {
            // A key missing from the listing would be taken for a deleted one.
            return Err(CallError::NotSent(format!("{} of {expected} keys were listed", listed.count)));
        }
        self.health.answered(listed.listing.revision);
        Ok(listed)
    }

    /// Resource stored in a pair, with its secrets decrypted.
    fn item(&self, pair: Pair) -> Option<Item> {
        let mut item = self.layout.item(pair)?;
        item.value = self.options.sealing.open(item.key.kind(), item.value);
        Some(item)
    }

    async fn commit(&self, commit: Commit) -> Result<u64, StoreError> {
        let compare: Vec<Value> = commit.expect.iter().map(|expected| self.compare(expected)).collect();
        let failure: Vec<Value> = commit.expect.iter().map(|expected| self.look(&expected.key)).collect();
        let mut success = Vec::with_capacity(commit.changes.len());
        for change in &commit.changes {
            success.push(self.operation(change).await?);
        }
        let message = json!({ "compare": compare, "success": success, "failure": failure });
        // With expectations, a repeated transaction can only conflict with the first.
        let answer: TxnAnswer = match self.client.once(TXN, &message).await {
            Ok(answer) => answer,
            Err(CallError::Refused(words)) if words.contains("too many operations") => {
                let count = commit.changes.len();
                return Err(StoreError::Refused(format!(
                    "etcd does not make {count} changes as one: {words} (its flag --max-txn-ops)"
                )));
            }
            Err(CallError::Refused(words)) if words.contains("too large") || words.contains("larger than max") => {
                return Err(StoreError::Refused(format!("etcd does not take so much: {words} (--max-request-bytes)")));
            }
            Err(error) => return Err(self.uncertain(&error)),
        };
        self.health.answered(answer.header.revision);
        if answer.succeeded {
            return Ok(answer.header.revision);
        }
        let found =
            answer.responses.iter().map(|part| part.response_range.as_ref().and_then(|range| range.kvs.first()));
        let conflict = commit
            .expect
            .iter()
            .zip(found)
            .find(|(expected, found)| expected.modified != found.map(|pair| pair.mod_revision));
        match conflict.or_else(|| commit.expect.first().map(|expected| (expected, None))) {
            Some((expected, _)) => Err(StoreError::Conflict { key: expected.key.clone() }),
            None => Err(StoreError::Unavailable("etcd did not do what nothing spoke against".to_owned())),
        }
    }

    fn compare(&self, expected: &Expectation) -> Value {
        let key = encoded(self.layout.key(&expected.key));
        match expected.modified {
            Some(revision) => {
                json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
            }
            None => json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }),
        }
    }

    fn look(&self, key: &Key) -> Value {
        json!({ "request_range": { "key": encoded(self.layout.key(key)), "keys_only": true } })
    }

    async fn operation(&self, change: &Change) -> Result<Value, StoreError> {
        let key = encoded(self.layout.key(&change.key));
        let Some(value) = &change.value else {
            return Ok(json!({ "request_delete_range": { "key": key } }));
        };
        let sealed = self
            .options
            .sealing
            .seal(change.key.kind(), value)
            .ok_or_else(|| StoreError::Unavailable(format!("the secrets of {} cannot be encrypted", change.key)))?;
        let mut put = json!({ "key": key, "value": encoded(sealed.as_bytes()) });
        if let Some(expires) = change.expires {
            put = with(put, json!({ "lease": self.lease(expires).await? }));
        }
        Ok(json!({ "request_put": put }))
    }

    /// Creates a lease that ends at the given time, rounded up to the next second.
    async fn lease(&self, expires: SystemTime) -> Result<String, StoreError> {
        let left = expires.duration_since(SystemTime::now()).unwrap_or_default();
        let seconds = (left.as_secs() + u64::from(left.subsec_nanos() > 0)).max(1);
        let message = json!({ "TTL": seconds.to_string() });
        let answer: LeaseAnswer = self.client.ask(LEASE, &message).await.map_err(|error| self.unavailable(&error))?;
        Ok(answer.id)
    }

    fn unavailable(&self, error: &CallError) -> StoreError {
        self.health.failed();
        StoreError::Unavailable(format!("etcd: {error}"))
    }

    /// Error for a write whose outcome may be unknown.
    fn uncertain(&self, error: &CallError) -> StoreError {
        match error {
            CallError::NoAnswer(_) | CallError::TooLong => {
                self.health.failed();
                StoreError::Unavailable(format!("etcd: {error}; whether the change was made is not known"))
            }
            CallError::NotSent(_) => self.unavailable(error),
            CallError::Refused(words) if words.contains("timed out") => {
                StoreError::Unavailable(format!("etcd: {words}; whether the change was made is not known"))
            }
            CallError::Refused(_) => StoreError::Unavailable(format!("etcd: {error}")),
        }
    }
}

impl fmt::Debug for EtcdOptions {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("hosts", &self.hosts)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish_non_exhaustive()
    }
}
