//! Storage of resources that no file holds: the trait [`Store`] and its implementations.
//!
//! A store keeps resources as JSON text under a [`Key`] and counts every commit with a revision. It does not
//! interpret resources: the committer validates them first.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the path of a request; nothing here is on it"
)]

mod database;
mod embedded;
mod etcd;
mod folder;
mod frozen;
mod last_good;
mod memory;
mod seal;
mod watchers;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

pub use database::{Database, DatabaseError, History};
pub use embedded::{Embedded, Health, Options};
pub use etcd::{Etcd, EtcdHealth, EtcdOptions, KeyLengthError, Keyring, Sealing};
pub use folder::{Folder, Lock, OpenError};
pub use frozen::Frozen;
pub use last_good::{LastGood, Served};
pub use memory::Memory;
pub use seal::{NoSecrets, Seal, SealError, Secrets};
use tokio::sync::mpsc;
pub use watchers::{Watchers, events};
pub use weir_config::{ResourceKey as Key, ResourceKind as Kind};

/// Future returned by a store's methods; it may be sent to another thread.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Storage of resources.
pub trait Store: Send + Sync + fmt::Debug {
    /// Reads one resource.
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>>;

    /// Lists the resources of a kind, or of all kinds for `None`, in the order of their creation.
    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing>;

    /// Revision of the last commit.
    fn revision(&self) -> Answer<'_, u64> {
        Box::pin(async {
            // A kind with few resources or none: its listing carries the revision of the whole store.
            Ok(self.list(Some(Kind::Protos)).await?.revision)
        })
    }

    /// Makes changes as one commit: all of them or none. Returns its revision once the commit is durable.
    fn commit(&self, commit: Commit) -> Answer<'_, u64>;

    /// Makes several commits, each with its own revision, with one write to the disk: all of them or none. Runs on
    /// the calling thread, which may block. `None` if the store cannot do so now or at all; then
    /// [`commit`](Self::commit) waits, or returns the reason.
    fn commit_here(&self, _commits: &[Commit]) -> Option<Result<Vec<u64>, StoreError>> {
        None
    }

    /// True if others write to the store too, so that a commit must state its expectations.
    fn is_shared(&self) -> bool {
        false
    }

    /// Subscribes to the commits after a revision, by any writer, in order. After 0, the first event is
    /// [`Event::Reset`] unless 0 is the beginning of the history. The receiver ends with the store. An event may
    /// repeat what the reader has already; a reader that falls too far behind receives [`Event::Reset`].
    fn watch(&self, after: u64) -> mpsc::Receiver<Event>;

    /// Lists the recorded commits, latest first.
    fn history(&self, _query: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        Box::pin(async { Err(StoreError::Refused("this store remembers no history".to_owned())) })
    }

    /// Lists the differences from revision `from` to revision `to`, ordered by key. Either may be the earlier one.
    fn difference(&self, _from: u64, _to: u64) -> Answer<'_, Vec<Difference>> {
        Box::pin(async { Err(StoreError::Refused("this store remembers no history".to_owned())) })
    }
}

/// Selection of commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only commits before this revision.
    pub before: Option<u64>,
    /// Only commits that changed this resource.
    pub key: Option<Key>,
    /// Maximum number of commits.
    pub limit: usize,
}

/// A commit in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Revision that the commit made.
    pub revision: u64,
    /// Time of the commit, if the store knows it.
    pub time: Option<SystemTime>,
    /// Author of the commit, if the store knows it.
    pub author: Option<String>,
    /// Changes that the commit made.
    pub changes: Vec<Difference>,
}

/// Change of a resource between two states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The resource.
    pub key: Key,
    /// JSON before; `None` if the resource did not exist.
    pub old: Option<Arc<str>>,
    /// JSON after; `None` if the resource does not exist.
    pub new: Option<Arc<str>>,
}

impl Default for HistoryQuery {
    /// The last hundred commits.
    fn default() -> Self {
        Self { before: None, key: None, limit: 100 }
    }
}

/// A stored resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Key of the resource.
    pub key: Key,
    /// JSON of the resource. A value written by another program may be any text.
    pub value: Arc<str>,
    /// Revision that created the resource.
    pub created: u64,
    /// Revision that changed it last.
    pub modified: u64,
}

/// Resources at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Cluster that counts the revisions; 0 if the store is not shared or the cluster is unknown.
    pub cluster: u64,
    /// Revision of the store.
    pub revision: u64,
    /// The resources.
    pub items: Vec<Item>,
}

/// Change to one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Key of the resource.
    pub key: Key,
    /// New JSON; `None` deletes the resource.
    pub value: Option<Arc<str>>,
    /// Time at which the resource expires.
    pub expires: Option<SystemTime>,
}

/// Changes that are made as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// The changes, at most one per key.
    pub changes: Vec<Change>,
    /// Author for the history: `admin`, `import`, `rollback`, the name of a client certificate.
    pub author: String,
    /// Conditions of the commit; if one does not hold, it fails with [`StoreError::Conflict`].
    pub expect: Vec<Expectation>,
}

/// State that a resource must have for a commit to succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The resource.
    pub key: Key,
    /// Revision that changed it last; `None` if it must not exist.
    pub modified: Option<u64>,
}

/// Event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Changes were committed at this revision.
    Committed {
        /// Revision that the commit made.
        revision: u64,
        /// Changed resources with their new state; `None` for a deleted one.
        changes: Vec<(Key, Option<Item>)>,
    },
    /// Replaces everything known so far, because some commits cannot be delivered one by one any more.
    Reset(Listing),
}

/// Error of a store's operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// An [`Expectation`] did not hold.
    #[error("{key} was changed by somebody else")]
    Conflict {
        /// Resource that is in another state.
        key: Key,
    },
    /// The store cannot be read or written now: a full disk, a read-only file, etcd unreachable. A later retry may
    /// succeed.
    #[error("{0}")]
    Unavailable(String),
    /// The store does not support the operation.
    #[error("{0}")]
    Refused(String),
}
