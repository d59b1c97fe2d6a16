//! A store that can only be read: what stands in for one that is damaged, and what a rules file looks like as one.

use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::watchers::{Watchers, events};
use crate::{Answer, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store, StoreError};

/// A store whose resources only its owner changes.
#[derive(Debug)]
pub struct Frozen {
    content: Mutex<Content>,
    refusal: StoreError,
}

#[derive(Debug)]
struct Content {
    listing: Listing,
    watchers: Watchers,
}

impl Frozen {
    /// With these resources; `refusal` is what whoever commits is told.
    #[must_use]
    pub fn new(listing: Listing, refusal: StoreError) -> Self {
        Self { content: Mutex::new(Content { listing, watchers: Watchers::default() }), refusal }
    }

    /// Other resources take the place of all.
    pub fn replace(&self, listing: Listing) {
        let mut content = self.content();
        content.watchers.tell(&Event::Reset(listing.clone()));
        content.listing = listing;
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Frozen {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>> {
        let found = self.content().listing.items.iter().find(|item| item.key == *key).cloned();
        Box::pin(ready(Ok(found)))
    }

    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        let mut listing = self.content().listing.clone();
        listing.items.retain(|item| kind.is_none_or(|kind| item.key.kind() == kind));
        Box::pin(ready(Ok(listing)))
    }

    fn revision(&self) -> Answer<'_, u64> {
        Box::pin(ready(Ok(self.content().listing.revision)))
    }

    fn commit(&self, _: Commit) -> Answer<'_, u64> {
        Box::pin(ready(Err(self.refusal.clone())))
    }

    fn watch(&self, after: u64) -> mpsc::Receiver<Event> {
        let mut content = self.content();
        let (sender, receiver) = events();
        let missed = (content.listing.revision > after).then(|| Event::Reset(content.listing.clone()));
        content.watchers.add(sender, Some(missed.into_iter().collect()));
        receiver
    }

    fn history(&self, _: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        Box::pin(ready(Err(self.refusal.clone())))
    }

    fn difference(&self, _: u64, _: u64) -> Answer<'_, Vec<Difference>> {
        Box::pin(ready(Err(self.refusal.clone())))
    }
}
