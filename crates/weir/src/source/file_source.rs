//! The rules file as a store for the Admin API, with resources that can be read but not changed.

use std::collections::HashMap;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;
use weir_admin::{Changed, Configuration, Refused};
use weir_store::{
    Answer, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store, StoreError, Watchers,
    events,
};

use crate::source::live_text::{Kept, LiveText};

/// The live rules file.
#[derive(Debug)]
pub(crate) struct FileSource {
    live: Arc<LiveText>,
    /// Name of the file in messages.
    name: String,
    published: Mutex<Published>,
    /// Notified of new watchers that wait for a full listing.
    wanted: Notify,
}

/// The version of the file that watchers have received.
#[derive(Debug)]
struct Published {
    kept: Kept,
    watchers: Watchers,
}

impl FileSource {
    pub(crate) fn new(live: Arc<LiveText>, name: String) -> Self {
        let published = Mutex::new(Published { kept: live.kept(), watchers: Watchers::default() });
        Self { live, name, published, wanted: Notify::new() }
    }

    /// Notifies watchers of every version of the file, for ever.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.live.changed() => {}
                () = self.wanted.notified() => {}
            }
            let source = Arc::clone(&self);
            if let Err(panicked) = spawn_blocking(move || source.notify_watchers()).await {
                tracing::error!(%panicked, "watchers could not be notified of changes of the rules file");
            }
        }
    }

    /// Notifies watchers of the changes. The file is read without the lock, because reading takes a while.
    fn notify_watchers(&self) {
        let now = self.live.kept();
        let (before, watched, behind) = {
            let published = self.published();
            (published.kept.clone(), !published.watchers.is_empty(), published.watchers.any_behind())
        };
        let is_new = before.revision() != now.revision();
        let changes = (is_new && watched).then(|| changes(&before, &now));
        let everything = behind.then(|| everything(&now));
        let mut published = self.published();
        let revision = now.revision();
        published.kept = now;
        match changes {
            Some(changes) => published.watchers.notify(&Event::Committed { revision, changes }),
            // A watcher may have been added meanwhile.
            None if is_new && !published.watchers.is_empty() => {
                published.watchers.mark_all_behind();
                self.wanted.notify_one();
            }
            None => {}
        }
        if let Some(everything) = everything {
            published.watchers.catch_up(|| Some(Event::Reset(everything.clone())));
        }
    }

    fn published(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusal(&self) -> String {
        format!(
            "resources come from the file {}, which is to be changed instead; `weir run` without a file has a store that \
             this API writes to",
            self.name
        )
    }

    fn refused<T: Send + 'static>(&self) -> Answer<'_, T> {
        Box::pin(ready(Err(StoreError::Refused(self.refusal()))))
    }
}

impl Store for FileSource {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>> {
        Box::pin(async {
            let listing = self.list(Some(key.kind())).await?;
            Ok(listing.items.into_iter().find(|item| item.key == *key))
        })
    }

    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        let kept = self.live.kept();
        // Decompressing the text takes a while.
        let work = spawn_blocking(move || match kind {
            Some(kind) => listing(&kept, kind),
            None => everything(&kept),
        });
        Box::pin(async { work.await.map_err(|panicked| StoreError::Unavailable(panicked.to_string())) })
    }

    fn commit(&self, _: Commit) -> Answer<'_, u64> {
        self.refused()
    }

    fn revision(&self) -> Answer<'_, u64> {
        Box::pin(ready(Ok(self.live.kept().revision())))
    }

    /// Earlier versions of a file are not kept, so a watcher that has missed changes gets [`Event::Reset`].
    fn watch(&self, after: u64) -> mpsc::Receiver<Event> {
        let (sender, receiver) = events();
        let mut published = self.published();
        let missed = (after == published.kept.revision()).then(Vec::new);
        published.watchers.add(sender, missed);
        self.wanted.notify_one();
        receiver
    }

    fn history(&self, _: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        self.refused()
    }

    fn difference(&self, _: u64, _: u64) -> Answer<'_, Vec<Difference>> {
        self.refused()
    }
}

impl Configuration for FileSource {
    fn store(&self) -> &dyn Store {
        self
    }

    fn read_only(&self) -> Option<String> {
        Some(self.refusal())
    }

    fn change(&self, _: Commit, _: bool) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        Box::pin(ready(Err(Refused::ReadOnly(self.refusal()))))
    }
}

/// All resources of a file.
fn everything(kept: &Kept) -> Listing {
    let items = Kind::ALL.into_iter().flat_map(|kind| listing(kept, kind).items).collect();
    Listing { cluster: 0, revision: kept.revision(), items }
}

/// The changes from one version of a file to another.
fn changes(before: &Kept, now: &Kept) -> Vec<(Key, Option<Item>)> {
    let mut old: HashMap<Key, Arc<str>> =
        everything(before).items.into_iter().map(|item| (item.key, item.value)).collect();
    let mut changes: Vec<(Key, Option<Item>)> = Vec::new();
    for item in everything(now).items {
        if old.remove(&item.key).is_none_or(|old| old != item.value) {
            changes.push((item.key.clone(), Some(item)));
        }
    }
    changes.extend(old.into_keys().map(|key| (key, None)));
    changes
}

/// The items of a kind as in a store. A file has no creation times, so all items count as created at its revision.
fn listing(kept: &Kept, kind: Kind) -> Listing {
    const CREDENTIALS: &str = "/credentials/";
    let (revision, written) = (kept.revision(), kept.items(kind));
    let mut items = Vec::with_capacity(written.len());
    let mut add = |id: &str, value: serde_json::Value| {
        let value = value.to_string().into();
        items.push(Item { key: Key::new(kind, id), value, created: revision, modified: revision });
    };
    for item in written {
        let mut value = item.node.to_json();
        match kind {
            // Credentials are items of the section `consumers`, or nested in consumers.
            Kind::Credentials => {
                let within = value.get("credentials").and_then(serde_json::Value::as_array).cloned();
                if item.id.contains(CREDENTIALS) {
                    add(&item.id, value);
                } else {
                    for (at, credential) in within.unwrap_or_default().into_iter().enumerate() {
                        let own = credential.get("id").and_then(serde_json::Value::as_str).map(str::to_owned);
                        let own = own.unwrap_or_else(|| format!("arr_{}", at + 1));
                        let own = own.rsplit('/').next().unwrap_or_default();
                        add(&format!("{}{CREDENTIALS}{own}", item.id), credential);
                    }
                }
            }
            // Items of the section `services`.
            Kind::GraphqlCostDecorations => {
                if kind.split_nested(&item.id).is_some() {
                    add(&item.id, value);
                }
            }
            kind if kind.nested().is_some_and(|nested| nested.split_nested(&item.id).is_some()) => {}
            _ => {
                if let (Kind::Consumers, Some(fields)) = (kind, value.as_object_mut()) {
                    fields.shift_remove("credentials");
                }
                add(&item.id, value);
            }
        }
    }
    Listing { cluster: 0, revision, items }
}

#[cfg(test)]
mod tests {
    use weir_store::Kind;

    use super::{changes, listing};
    use crate::source::live_text::Kept;

    #[test]
    fn a_file_is_read_like_a_store() {
        let text = "routes: [{id: a, uri: /a}, {uri: /b}]\n\
                    consumers:\n- {username: jack, credentials: [{id: jack/credentials/c, plugins: {}}, {plugins: {}}]}\n\
                    - {id: jack/credentials/d, plugins: {}}\n#END\n";
        let live = Kept::new(text.as_bytes(), 4);
        let keys = |kind| {
            let keys = listing(&live, kind).items.into_iter().map(|item| item.key.to_string());
            keys.collect::<Vec<_>>()
        };
        assert_eq!(keys(Kind::Routes), ["routes/a", "routes/arr_2"]);
        assert_eq!(keys(Kind::Consumers), ["consumers/jack"]);
        let credentials =
            ["consumers/jack/credentials/c", "consumers/jack/credentials/arr_2", "consumers/jack/credentials/d"];
        assert_eq!(keys(Kind::Credentials), credentials);
        assert_eq!(&*listing(&live, Kind::Consumers).items[0].value, r#"{"username":"jack"}"#);
        assert_eq!(listing(&live, Kind::Routes).items[0].modified, 4);
        let next = "routes: [{id: a, uri: /c}, {uri: /b}]\nconsumers: [{username: jack}]\nservices: [{id: s}]\n#END\n";
        let next = Kept::new(next.as_bytes(), 5);
        let mut listed: Vec<_> =
            changes(&live, &next).into_iter().map(|(key, item)| (key.to_string(), item.is_some())).collect();
        listed.sort();
        let expected = [
            ("consumers/jack/credentials/arr_2", false),
            ("consumers/jack/credentials/c", false),
            ("consumers/jack/credentials/d", false),
            ("routes/a", true),
            ("services/s", true),
        ];
        assert_eq!(listed.iter().map(|(key, there)| (key.as_str(), *there)).collect::<Vec<_>>(), expected);
    }
}
