//! Guard against a shared store that has lost its resources.
//!
//! etcd may be emptied by mistake, restored from an old backup, or replaced by another cluster. Such a state does not
//! replace the resources in force, nor their copy on disk, before an operator accepts it. The guard withholds:
//!
//! - a state of another cluster;
//! - a state of an earlier revision than the one in force, or of a diverged history;
//! - a state that has none of the resources in force: it is empty, or all its resources are new;
//! - a change that deletes all of several resources at one revision.
//!
//! A state with every resource in force, unchanged, loses nothing and is always applied. Until a state is accepted or
//! complete again, later changes in the store are withheld as well.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use weir_store::{Event, Item, Key, Listing, StoreError};

use super::State;
use crate::source::resources::Resources;

/// The state of a store that is not applied.
#[derive(Debug)]
pub(crate) struct Withheld {
    cluster: u64,
    revision: u64,
    items: HashMap<Key, Item>,
    /// Number of resources in force that the state holds unchanged.
    same: usize,
    /// Number of resources in force that the state holds, changed or not; a resource that was deleted and created again
    /// counts as another one.
    left: usize,
    /// Number of resources that a store that continues from the revision in force cannot hold.
    foreign: usize,
    /// The loss that has been logged.
    reported: Option<Loss>,
}

/// The reason for which a state is withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    OtherCluster,
    SetBack,
    Empty,
    Replaced,
}

/// Revision and number of the accepted resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) revision: u64,
    pub(crate) resources: usize,
}

/// The result of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Followed {
    /// The event was known.
    Nothing,
    /// The resources are those of the store.
    News,
    /// The resources are unchanged, because the store has lost them. Each kind of loss is reported once.
    Withheld(String),
}

impl Withheld {
    pub(crate) fn new(serving: &Resources, serving_revision: u64, state: Listing) -> Self {
        let Listing { cluster, revision, items } = state;
        let mut withheld =
            Self { cluster, revision, items: HashMap::new(), same: 0, left: 0, foreign: 0, reported: None };
        for item in items {
            withheld.set((serving, serving_revision), item.key.clone(), Some(item));
        }
        withheld
    }

    fn set(&mut self, (serving, revision): (&Resources, u64), key: Key, item: Option<Item>) {
        let served = serving.get(&key);
        let counts = |item: Option<&Item>| {
            let Some(item) = item else { return [0; 3] };
            let is_left = served.is_some_and(|served| served.created == item.created);
            let is_same = served.is_some_and(|served| is_same(served, item));
            // The resources in force are complete at their revision. An earlier version may serve for an invalid one.
            let is_known = is_left && served.is_some_and(|served| served.modified <= item.modified);
            [is_same, is_left, item.modified <= revision && !is_known].map(usize::from)
        };
        let now = counts(item.as_ref());
        let before = match item {
            Some(item) => self.items.insert(key, item),
            None => self.items.remove(&key),
        };
        let before = counts(before.as_ref());
        for ((count, now), before) in
            [&mut self.same, &mut self.left, &mut self.foreign].into_iter().zip(now).zip(before)
        {
            *count = *count + now - before;
        }
    }

    /// The loss if the state replaced the resources in force at a revision of a cluster.
    pub(crate) fn loss(&self, serving: &Resources, (cluster, revision): (u64, u64)) -> Option<Loss> {
        let known = |cluster: u64| cluster != 0;
        if self.same == serving.len() {
            None
        } else if known(cluster) && known(self.cluster) && cluster != self.cluster {
            Some(Loss::OtherCluster)
        } else if self.revision < revision || self.foreign > 0 {
            Some(Loss::SetBack)
        } else if self.items.is_empty() {
            Some(Loss::Empty)
        } else if self.left == 0 {
            Some(Loss::Replaced)
        } else {
            None
        }
    }

    /// The text of a loss, for the log.
    pub(crate) fn describe(&self, loss: Loss, serving: &Resources, (cluster, revision): (u64, u64)) -> String {
        let (count, here) = (serving.len(), self.items.len());
        let state = match loss {
            Loss::OtherCluster => format!("is another cluster, {:x} after {cluster:x}, with {here}", self.cluster),
            Loss::SetBack => format!("was set back from revision {revision}; it is at {}, with {here}", self.revision),
            Loss::Empty => "holds none".to_owned(),
            Loss::Replaced => format!("holds {here} others"),
        };
        format!("{count} resources serve, and etcd {state}")
    }

    /// The resources of the state, in the order of their creation.
    fn into_listing(self) -> Listing {
        let mut items: Vec<Item> = self.items.into_values().collect();
        items.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
        Listing { cluster: self.cluster, revision: self.revision, items }
    }
}

fn is_same(a: &Item, b: &Item) -> bool {
    let read = |item: &Item| serde_json::from_str::<Value>(&item.value);
    a.value == b.value || matches!((read(a), read(b)), (Ok(a), Ok(b)) if a == b)
}

impl State {
    /// Applies an event of a shared store, unless resources in force would be lost.
    pub(super) fn follow_shared(&mut self, event: Event) -> Followed {
        let mut withheld = match (event, self.withheld.take()) {
            (Event::Committed { revision, changes }, Some(mut withheld)) => {
                if revision > withheld.revision {
                    withheld.revision = revision;
                    for (key, item) in changes {
                        withheld.set((&self.resources, self.revision), key, item);
                    }
                }
                withheld
            }
            (Event::Committed { revision, changes }, None) => {
                if revision <= self.revision || !self.is_emptied_by(&changes) {
                    let is_news = self.follow(Event::Committed { revision, changes });
                    return if is_news { Followed::News } else { Followed::Nothing };
                }
                let items = changes.into_iter().filter_map(|(_, item)| item).collect();
                Withheld::new(&self.resources, self.revision, Listing { cluster: self.cluster, revision, items })
            }
            (Event::Reset(listing), before) => {
                let reported = before.and_then(|before| before.reported);
                Withheld { reported, ..Withheld::new(&self.resources, self.revision, listing) }
            }
        };
        let at = (self.cluster, self.revision);
        let is_lossless = withheld.same == self.resources.len();
        let before = withheld.reported.filter(|_| !is_lossless);
        let Some(loss) = withheld.loss(&self.resources, at).or(before) else {
            self.follow(Event::Reset(withheld.into_listing()));
            return Followed::News;
        };
        let is_known = withheld.reported.replace(loss) == Some(loss);
        let words = withheld.describe(loss, &self.resources, at);
        self.withheld = Some(withheld);
        if is_known { Followed::Nothing } else { Followed::Withheld(words) }
    }

    /// True if changes of one revision delete several resources and leave none. The deletion of a single last resource is
    /// normal.
    fn is_emptied_by(&self, changes: &[(Key, Option<Item>)]) -> bool {
        let count = self.resources.len();
        if count < 2 || changes.len() < count {
            return false;
        }
        let deleted: HashSet<&Key> = changes.iter().filter(|(_, item)| item.is_none()).map(|(key, _)| key).collect();
        self.resources.iter().all(|item| deleted.contains(&item.key))
    }

    /// Applies the withheld state. Returns `None` if no state was withheld.
    pub(super) fn accept(&mut self) -> Option<Accepted> {
        let state = self.withheld.take()?.into_listing();
        let accepted = Accepted { revision: state.revision, resources: state.items.len() };
        self.follow(Event::Reset(state));
        Some(accepted)
    }

    /// Checks that a shared store may be written to, which requires that its resources are those in force.
    ///
    /// # Errors
    /// The difference, and advice.
    pub(super) fn may_be_changed(&self) -> Result<(), StoreError> {
        if let Some(withheld) = &self.withheld {
            let at = (self.cluster, self.revision);
            let words = withheld.reported.map(|loss| withheld.describe(loss, &self.resources, at)).unwrap_or_default();
            return Err(StoreError::Unavailable(format!("{words}; {ADVICE}")));
        }
        match self.from_copy {
            true => Err(StoreError::Unavailable(
                "a copy serves, for etcd has not been read since the start; try again when it has been".to_owned(),
            )),
            false => Ok(()),
        }
    }
}

/// Advice for the operator.
pub(super) const ADVICE: &str =
    "what serves stays until that is accepted with POST /v1/store/accept at the control API, or is put back in etcd";
