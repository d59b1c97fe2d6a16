//! A store in memory, for configurations that are kept elsewhere.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::watchers::{Watchers, events};
use crate::{Answer, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store, StoreError};

/// Resources in memory, without history and without expiry.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    revision: u64,
    items: HashMap<Key, Stored>,
    /// Number of resources ever created.
    made: u64,
    watchers: Watchers,
}

#[derive(Clone, Debug)]
struct Stored {
    item: Item,
    /// Position in the order of creation, needed because one commit may create several resources.
    number: u64,
}

impl Content {
    fn listing(&self, kind: Option<Kind>) -> Listing {
        let wanted = |stored: &&Stored| kind.is_none_or(|kind| stored.item.key.kind() == kind);
        let mut found: Vec<&Stored> = self.items.values().filter(wanted).collect();
        found.sort_unstable_by_key(|stored| stored.number);
        Listing {
            cluster: 0,
            revision: self.revision,
            items: found.into_iter().map(|stored| stored.item.clone()).collect(),
        }
    }

    fn commit(&mut self, commit: Commit) -> Result<u64, StoreError> {
        for expectation in commit.expect {
            let modified = self.items.get(&expectation.key).map(|stored| stored.item.modified);
            if modified != expectation.modified {
                return Err(StoreError::Conflict { key: expectation.key });
            }
        }
        if commit.changes.iter().any(|change| change.expires.is_some()) {
            let reason = "resources that are kept in memory do not go away by themselves";
            return Err(StoreError::Refused(reason.to_owned()));
        }
        self.revision += 1;
        let revision = self.revision;
        let mut changed = Vec::with_capacity(commit.changes.len());
        for change in commit.changes {
            let Some(value) = change.value else {
                self.items.remove(&change.key);
                changed.push((change.key, None));
                continue;
            };
            let before = self.items.get(&change.key);
            let created = before.map_or(revision, |stored| stored.item.created);
            let number = before.map_or(self.made, |stored| stored.number);
            self.made += u64::from(before.is_none());
            let item = Item { key: change.key.clone(), value, created, modified: revision };
            self.items.insert(change.key.clone(), Stored { item: item.clone(), number });
            changed.push((change.key, Some(item)));
        }
        self.watchers.notify(&Event::Committed { revision, changes: changed });
        if self.watchers.any_behind() {
            let all = Event::Reset(self.listing(None));
            self.watchers.catch_up(|| Some(all.clone()));
        }
        Ok(revision)
    }
}

impl Memory {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>> {
        let found = self.content().items.get(key).map(|stored| stored.item.clone());
        Box::pin(ready(Ok(found)))
    }

    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        let listing = self.content().listing(kind);
        Box::pin(ready(Ok(listing)))
    }

    fn revision(&self) -> Answer<'_, u64> {
        let revision = self.content().revision;
        Box::pin(ready(Ok(revision)))
    }

    fn commit(&self, commit: Commit) -> Answer<'_, u64> {
        let done = self.content().commit(commit);
        Box::pin(ready(done))
    }

    fn watch(&self, after: u64) -> mpsc::Receiver<Event> {
        let (sender, receiver) = events();
        let mut content = self.content();
        let missed = (after < content.revision).then(|| Event::Reset(content.listing(None)));
        content.watchers.add(sender, Some(missed.into_iter().collect()));
        receiver
    }

    fn history(&self, _: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        Box::pin(ready(Err(forgets())))
    }

    fn difference(&self, _: u64, _: u64) -> Answer<'_, Vec<Difference>> {
        Box::pin(ready(Err(forgets())))
    }
}

fn forgets() -> StoreError {
    StoreError::Refused("there is no history: the configuration is kept in memory only".to_owned())
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::Memory;
    use crate::{Change, Commit, Event, Expectation, Key, Store, StoreError};

    /// Result of a future that is ready at once, as all futures of the memory store are.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn commit(changes: &[(&str, Option<&str>)], expect: &[(&str, Option<u64>)]) -> Commit {
        let key = |text: &str| text.parse::<Key>().unwrap();
        let change =
            |(at, value): &(&str, Option<&str>)| Change { key: key(at), value: value.map(Into::into), expires: None };
        let expected = |(at, modified): &(&str, Option<u64>)| Expectation { key: key(at), modified: *modified };
        Commit {
            changes: changes.iter().map(change).collect(),
            author: "test".into(),
            expect: expect.iter().map(expected).collect(),
        }
    }

    #[test]
    fn it_keeps_what_is_committed() {
        let store = Memory::default();
        let mut events = store.watch(0);
        assert_eq!(now(store.commit(commit(&[("routes/b", Some("1")), ("routes/a", Some("2"))], &[]))), Ok(1));
        assert_eq!(now(store.commit(commit(&[("routes/b", Some("3"))], &[("routes/b", Some(1))]))), Ok(2));
        let refused = now(store.commit(commit(&[("routes/c", Some("4"))], &[("routes/b", Some(1))])));
        assert_eq!(refused, Err(StoreError::Conflict { key: "routes/b".parse().unwrap() }));
        let refused = now(store.commit(commit(&[("routes/c", Some("4"))], &[("routes/b", None)])));
        assert!(matches!(refused, Err(StoreError::Conflict { .. })));
        assert_eq!(now(store.commit(commit(&[("services/s", Some("5"))], &[("services/s", None)]))), Ok(3));

        let listing = now(store.list(None)).unwrap();
        let found: Vec<_> =
            listing.items.iter().map(|item| (item.key.to_string(), item.created, item.modified)).collect();
        assert_eq!(found, [("routes/b".into(), 1, 2), ("routes/a".into(), 1, 1), ("services/s".into(), 3, 3)]);
        assert_eq!((listing.revision, now(store.revision())), (3, Ok(3)));
        assert_eq!(now(store.list(Some(crate::Kind::Services))).unwrap().items.len(), 1);
        assert_eq!(&*now(store.get(&"routes/b".parse().unwrap())).unwrap().unwrap().value, "3");

        assert_eq!(now(store.commit(commit(&[("routes/b", None)], &[]))), Ok(4));
        assert_eq!(now(store.get(&"routes/b".parse().unwrap())), Ok(None));
        let mut revisions = Vec::new();
        while let Ok(Event::Committed { revision, .. }) = events.try_recv() {
            revisions.push(revision);
        }
        assert_eq!(revisions, [1, 2, 3, 4]);
        assert!(matches!(store.watch(2).try_recv(), Ok(Event::Reset(listing)) if listing.revision == 4));
        assert!(store.watch(4).try_recv().is_err());
        assert!(now(store.difference(1, 2)).is_err());
    }
}
