//! A rules file as the Admin API sees it: resources that can be read and not be changed.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use weir_admin::{Changed, Configuration, Refused};
use weir_store::{
    Answer, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store, StoreError,
};

use crate::live_text::LiveText;

/// The rules file that is live.
#[derive(Debug)]
pub(crate) struct FileSource {
    pub(crate) live: Arc<LiveText>,
    /// Its name in messages.
    pub(crate) name: String,
}

impl FileSource {
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
        let live = Arc::clone(&self.live);
        // The text is kept compressed.
        let work = spawn_blocking(move || match kind {
            Some(kind) => listing(&live, kind),
            None => Kind::ALL.into_iter().fold(Listing::default(), |mut all, kind| {
                let more = listing(&live, kind);
                all.revision = all.revision.max(more.revision);
                all.items.extend(more.items);
                all
            }),
        });
        Box::pin(async { work.await.map_err(|panicked| StoreError::Unavailable(panicked.to_string())) })
    }

    fn commit(&self, _: Commit) -> Answer<'_, u64> {
        self.refused()
    }

    fn watch(&self, _: u64) -> mpsc::Receiver<Event> {
        // Nothing is told of changes of a file: it ends at once.
        mpsc::channel(1).1
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

    fn change(&self, _: Commit, _: bool) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        Box::pin(ready(Err(Refused::ReadOnly(self.refusal()))))
    }
}

/// The items of a kind, as they would be in a store. A file has no times of creation, so all came with its revision.
fn listing(live: &LiveText, kind: Kind) -> Listing {
    const CREDENTIALS: &str = "/credentials/";
    let (revision, written) = live.items(kind.directory());
    let mut items = Vec::with_capacity(written.len());
    let mut add = |id: &str, value: serde_json::Value| {
        let value = value.to_string().into();
        items.push(Item { key: Key::new(kind, id), value, created: revision, modified: revision });
    };
    for item in written {
        let mut value = item.node.to_json();
        match kind {
            // Credentials stand among the consumers, or inside them.
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
            Kind::Consumers if item.id.contains(CREDENTIALS) => {}
            _ => {
                if let (Kind::Consumers, Some(fields)) = (kind, value.as_object_mut()) {
                    fields.shift_remove("credentials");
                }
                add(&item.id, value);
            }
        }
    }
    Listing { revision, items }
}

#[cfg(test)]
mod tests {
    use weir_store::Kind;

    use super::listing;
    use crate::live_text::{Kept, LiveText};

    #[test]
    fn a_file_is_read_like_a_store() {
        let text = "routes: [{id: a, uri: /a}, {uri: /b}]\n\
                    consumers:\n- {username: jack, credentials: [{id: jack/credentials/c, plugins: {}}, {plugins: {}}]}\n\
                    - {id: jack/credentials/d, plugins: {}}\n#END\n";
        let live = LiveText::new(Kept::new(text.as_bytes(), 4));
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
    }
}
