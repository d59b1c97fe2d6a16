//! Where resources live when no file holds them: one trait, and what stands behind it.
//!
//! A store keeps resources as JSON text under a [`Key`] and counts every change with a revision. It knows nothing of what
//! a resource means: whether it may be stored is decided before, by whoever commits it.

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
mod key;
mod last_good;
mod memory;
mod seal;
mod watchers;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

pub use database::{Database, History, Lost};
pub use embedded::{Embedded, Health, Options};
pub use etcd::{Etcd, EtcdHealth, EtcdOptions, Keyring, NotAKeyring, Sealing};
pub use folder::{Folder, Lock, OpenError};
pub use frozen::Frozen;
pub use key::{Key, Kind};
pub use last_good::{LastGood, Served};
pub use memory::Memory;
pub use seal::{NoSecrets, Seal, SealError, Secrets};
use tokio::sync::mpsc;
pub use watchers::{Watchers, events};

/// What a store's methods give: a future that may be sent to another thread.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A place that keeps resources.
pub trait Store: Send + Sync + fmt::Debug {
    /// One resource.
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>>;

    /// All resources of a kind, in the order of their creation; of every kind for `None`.
    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing>;

    /// The revision of the last change.
    fn revision(&self) -> Answer<'_, u64> {
        Box::pin(async {
            // Of a kind with few resources, if any: the listing comes with the revision of everything.
            Ok(self.list(Some(Kind::Protos)).await?.revision)
        })
    }

    /// Makes changes as one: all of them or none. Gives their revision when they are kept, whatever happens next.
    fn commit(&self, commit: Commit) -> Answer<'_, u64>;

    /// Makes commits one after the other, each at a revision of its own, and writes to the disk once: all of them or
    /// none. It does so on this thread, which may block. `None`: not at the moment, or never; [`commit`](Self::commit)
    /// waits, or tells why.
    fn commit_here(&self, _commits: &[Commit]) -> Option<Result<Vec<u64>, StoreError>> {
        None
    }

    /// Whether others write to it too, so that a commit has to say what it is based on.
    fn is_shared(&self) -> bool {
        false
    }

    /// What is committed after a revision, by whomever, in order. After 0 it begins with [`Event::Reset`] where that is not
    /// the beginning. The receiver ends with the store. An event may bring
    /// what the reader has already; a reader that falls too far behind is given [`Event::Reset`].
    fn watch(&self, after: u64) -> mpsc::Receiver<Event>;

    /// The commits that are remembered, the latest first.
    fn history(&self, _query: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        Box::pin(async { Err(StoreError::Refused("this store remembers no history".to_owned())) })
    }

    /// What is different at revision `to` from revision `from`, in the order of keys. Either may be the earlier one.
    fn difference(&self, _from: u64, _to: u64) -> Answer<'_, Vec<Difference>> {
        Box::pin(async { Err(StoreError::Refused("this store remembers no history".to_owned())) })
    }
}

/// Which commits are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only those of earlier revisions.
    pub before: Option<u64>,
    /// Only those that changed this resource.
    pub key: Option<Key>,
    /// So many at most.
    pub limit: usize,
}

/// A commit that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The store's revision from then on.
    pub revision: u64,
    /// When it was made, where the store knows that.
    pub time: Option<SystemTime>,
    /// Who made it, where the store knows that.
    pub author: Option<String>,
    /// What it changed.
    pub changes: Vec<Difference>,
}

/// What became of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The resource.
    pub key: Key,
    /// Its JSON before; `None`: it was not there.
    pub old: Option<Arc<str>>,
    /// Its JSON after; `None`: it is not there.
    pub new: Option<Arc<str>>,
}

impl Default for HistoryQuery {
    /// The last hundred commits.
    fn default() -> Self {
        Self { before: None, key: None, limit: 100 }
    }
}

/// A resource as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its place.
    pub key: Key,
    /// Its JSON. What another program wrote may be anything.
    pub value: Arc<str>,
    /// The revision that created it.
    pub created: u64,
    /// The revision that changed it last.
    pub modified: u64,
}

/// Resources, all as they were at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The cluster that counts the revisions; 0 where the store is not shared, and where the cluster is not known.
    pub cluster: u64,
    /// The store's revision then.
    pub revision: u64,
    /// The resources.
    pub items: Vec<Item>,
}

/// What is to become of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its place.
    pub key: Key,
    /// Its JSON from then on; `None`: it is deleted.
    pub value: Option<Arc<str>>,
    /// When it goes away by itself.
    pub expires: Option<SystemTime>,
}

/// Changes that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// One for each key at most.
    pub changes: Vec<Change>,
    /// Who makes them, for the history: `admin`, `import`, `rollback`, a client certificate's name.
    pub author: String,
    /// What must hold; else [`StoreError::Conflict`].
    pub expect: Vec<Expectation>,
}

/// The state in which a resource has to be for a commit to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The resource.
    pub key: Key,
    /// The revision that changed it last; `None`: it must not exist.
    pub modified: Option<u64>,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Changes were committed at this revision.
    Committed {
        /// The store's revision from then on.
        revision: u64,
        /// What became of the resources, each with its new state.
        changes: Vec<(Key, Option<Item>)>,
    },
    /// Some changes cannot be told one by one any more: this is everything there is.
    Reset(Listing),
}

/// Why a store did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// An [`Expectation`] did not hold.
    #[error("{key} was changed by somebody else")]
    Conflict {
        /// The resource that is in another state.
        key: Key,
    },
    /// The store cannot be written to or read now: a full disk, a read-only file, etcd away. Trying later may help.
    #[error("{0}")]
    Unavailable(String),
    /// The store does not do such a thing at all.
    #[error("{0}")]
    Refused(String),
}
