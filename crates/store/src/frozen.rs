//! A read-only store, which stands in for a damaged one.

use std::future::ready;
use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::watchers::{Watchers, events};
use crate::{Answer, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store, StoreError};

/// Resources that never change.
#[derive(Debug)]
pub struct Frozen {
    listing: Listing,
    refusal: StoreError,
    /// Watchers, which never receive an event.
    watchers: Mutex<Watchers>,
}

impl Frozen {
    /// Creates the store with these resources; every commit fails with `refusal`.
    #[must_use]
    pub fn new(listing: Listing, refusal: StoreError) -> Self {
        Self { listing, refusal, watchers: Mutex::default() }
    }
}

impl Store for Frozen {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>> {
        let found = self.listing.items.iter().find(|item| item.key == *key).cloned();
        Box::pin(ready(Ok(found)))
    }

    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        let wanted = |item: &&Item| kind.is_none_or(|kind| item.key.kind() == kind);
        let items = self.listing.items.iter().filter(wanted).cloned().collect();
        Box::pin(ready(Ok(Listing { cluster: self.listing.cluster, revision: self.listing.revision, items })))
    }

    fn revision(&self) -> Answer<'_, u64> {
        Box::pin(ready(Ok(self.listing.revision)))
    }

    fn commit(&self, _: Commit) -> Answer<'_, u64> {
        Box::pin(ready(Err(self.refusal.clone())))
    }

    fn watch(&self, _: u64) -> mpsc::Receiver<Event> {
        let (sender, receiver) = events();
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).add(sender, Some(Vec::new()));
        receiver
    }

    fn history(&self, _: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        Box::pin(ready(Err(self.refusal.clone())))
    }

    fn difference(&self, _: u64, _: u64) -> Answer<'_, Vec<Difference>> {
        Box::pin(ready(Err(self.refusal.clone())))
    }
}
