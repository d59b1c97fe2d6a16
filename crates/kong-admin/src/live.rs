//! The entities in force, as a watch of the store tells them, and those that changes under way are about to make.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use weir_admin::{Configuration, Refused};
use weir_store::{Change, Commit, Event, StoreError};

use crate::entities::Entities;

/// Longest wait for the watch of the store to tell of a commit that was made.
const SEEN_LIMIT: Duration = Duration::from_secs(10);

/// Pause before a store that has ended a watch is watched again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// The entities.
#[derive(Debug)]
pub(crate) struct Live {
    configuration: Arc<dyn Configuration>,
    state: Mutex<State>,
    /// Revision up to which the watch has told of everything.
    seen: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    entities: Entities,
    /// Changes under way, which later ones build upon.
    flying: BTreeMap<u64, Arc<[Change]>>,
    next: u64,
}

/// A change that is to be made; it counts for later ones until it is dropped.
#[derive(Debug)]
pub(crate) struct Flight<'l> {
    live: &'l Live,
    number: u64,
    changes: Arc<[Change]>,
}

impl Live {
    pub(crate) fn new(configuration: Arc<dyn Configuration>) -> Self {
        Self { configuration, state: Mutex::default(), seen: watch::Sender::new(0) }
    }

    /// Follows the store, for ever.
    pub(crate) async fn follow(&self) {
        loop {
            match self.configuration.store().list(None).await {
                Ok(listing) => {
                    let mut events = self.configuration.store().watch(listing.revision);
                    self.take(Event::Reset(listing));
                    while let Some(event) = events.recv().await {
                        self.take(event);
                    }
                }
                Err(error) => tracing::error!("{error}; the Admin API knows no entities"),
            }
            sleep(WATCH_AGAIN).await;
        }
    }

    fn take(&self, event: Event) {
        let revision = match event {
            Event::Committed { revision, changes } => {
                let mut state = self.state();
                for (key, item) in &changes {
                    state.entities.set(key, item.as_ref().map(|item| &item.value));
                }
                revision
            }
            Event::Reset(listing) => {
                let entities = Entities::of(&listing.items);
                self.state().entities = entities;
                listing.revision
            }
        };
        self.seen.send_replace(revision);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entities in force.
    pub(crate) async fn entities(&self) -> Entities {
        // The first event of the watch is all there is.
        let _ = timeout(SEEN_LIMIT, self.seen.subscribe().wait_for(|_| self.state().entities.is_known())).await;
        self.state().entities.clone()
    }

    /// Prepares a change on top of those under way: `prepare` says what is to change.
    pub(crate) fn prepare<T, E>(
        &self,
        prepare: impl FnOnce(&Entities) -> Result<(Vec<Change>, T), E>,
    ) -> Result<(Flight<'_>, T), E> {
        let mut state = self.state();
        let mut entities = state.entities.clone();
        for changes in state.flying.values() {
            entities.change(changes);
        }
        let (changes, result) = prepare(&entities)?;
        let (number, changes) = (state.next, Arc::<[Change]>::from(changes));
        state.next += 1;
        state.flying.insert(number, Arc::clone(&changes));
        drop(state);
        Ok((Flight { live: self, number, changes }, result))
    }
}

impl Flight<'_> {
    /// Makes the change: when this answers `Ok`, every worker serves with it.
    pub(crate) async fn make(self, author: &str) -> Result<(), Refused> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let commit = Commit { changes: self.changes.to_vec(), author: author.to_owned(), expect: Vec::new() };
        let changed = self.live.configuration.change(commit, false).await?;
        let mut seen = self.live.seen.subscribe();
        let told = timeout(SEEN_LIMIT, seen.wait_for(|seen| *seen >= changed.revision)).await;
        match told {
            Ok(Ok(_)) => Ok(()),
            // It is made all the same.
            _ => Err(Refused::Store(StoreError::Unavailable("the change is live, but the store is slow".to_owned()))),
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.live.state().flying.remove(&self.number);
    }
}
