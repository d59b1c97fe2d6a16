//! A store that many gateways share: etcd, with keys and values as APISIX has them.
//!
//! etcd is spoken to over its HTTP gateway, as APISIX does: whatever lets APISIX reach a cluster lets this reach it too.

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
pub use self::keyring::{Keyring, NotAKeyring, Sealing};
use self::layout::Layout;
use self::messages::{LeaseAnswer, Pair, RangeAnswer, StatusAnswer, TxnAnswer, encoded, under, with};
use crate::{
    Answer, Change, Commit, Difference, Event, Expectation, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store,
    StoreError,
};

const RANGE: &str = "/v3/kv/range";
const TXN: &str = "/v3/kv/txn";
const LEASE: &str = "/v3/lease/grant";
const STATUS: &str = "/v3/maintenance/status";

/// Keys that are asked for at once.
const PAGE: u64 = 1000;

/// Events that may wait for the reader of a watch; etcd holds back the rest.
const WAITING: usize = 64;

/// How often a listing is begun anew because its revision was compacted away meanwhile.
const LISTINGS: usize = 3;

/// How etcd is reached, and what is kept there.
#[derive(Clone)]
pub struct EtcdOptions {
    /// The members, as `http://HOST:PORT` or `https://HOST:PORT`.
    pub hosts: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// User and password, where etcd asks for them.
    pub user: Option<(String, String)>,
    /// How long an answer is waited for, over all members.
    pub timeout: Duration,
    /// How long one watch lasts before it is set up again.
    pub watch_timeout: Duration,
    /// How often it is checked that the watch has told everything.
    pub health_check_interval: Duration,
    /// How long to wait at first after all members failed.
    pub resync_delay: Duration,
    /// TLS towards members with `https`.
    pub tls: Arc<ClientConfig>,
    /// Tells people of an error of TLS.
    pub tls_words: fn(&rustls::Error) -> String,
    /// The name that members are verified for, where it is not their host.
    pub server_name: Option<String>,
    /// How many revisions the history looks back at most.
    pub history: u64,
    /// What encrypts secrets in etcd.
    pub sealing: Sealing,
}

/// A store in etcd.
#[derive(Debug)]
pub struct Etcd {
    shared: Arc<Inner>,
}

/// What a store and its watches share.
#[derive(Debug)]
struct Inner {
    client: Shared,
    layout: Layout,
    options: EtcdOptions,
    health: Arc<EtcdHealth>,
}

/// How it stands with etcd.
#[derive(Debug, Default)]
pub struct EtcdHealth {
    reachable: AtomicBool,
    index: AtomicU64,
    told: AtomicU64,
    modified: [AtomicU64; Kind::ALL.len()],
}

impl EtcdHealth {
    /// Whether etcd answered when it was asked last.
    #[must_use]
    pub fn reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    /// The latest revision of etcd that is known; changes of others than gateways count too.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index.load(Ordering::Relaxed)
    }

    /// The revision up to which a watch has told everything.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// The revision that changed a resource of a kind last, as far as it was told.
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
    /// A store that is not asked for anything yet.
    #[must_use]
    pub fn new(options: EtcdOptions) -> Self {
        let client = Arc::new(Client::new(&options));
        let layout = Layout::new(&options.prefix);
        Self { shared: Arc::new(Inner { client, layout, options, health: Arc::default() }) }
    }

    /// The version of etcd that a member tells; `None` when none answers.
    pub async fn version(&self) -> Option<String> {
        let status: StatusAnswer = self.shared.client.ask(STATUS, &json!({})).await.ok()?;
        Some(status.version).filter(|version| !version.is_empty())
    }

    /// How it stands with etcd, for metrics.
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

/// Resources with what is needed to follow them from there on.
struct Listed {
    listing: Listing,
    /// Keys under the prefix, those that are no resources included.
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

    /// All keys under a prefix as they are at one revision: that one, or the present.
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
            // The keys of all pages.
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
            // What is missing would be taken for deleted.
            return Err(CallError::NotSent(format!("{} of {expected} keys were listed", listed.count)));
        }
        self.health.answered(listed.listing.revision);
        Ok(listed)
    }

    /// The resource that a pair is, readable.
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
        // With expectations a second time does nothing but conflict with the first.
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

    /// A lease that ends at that time, to the second above.
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

    /// For what should have been written.
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
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("hosts", &self.hosts)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish_non_exhaustive()
    }
}
