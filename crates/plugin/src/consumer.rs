//! Consumers: who calls, as authentication plugins find out.

use std::fmt::Debug;
use std::sync::Arc;

use weir_config::SharedMap;
use weir_router::{Numbers, Slots};

use crate::named::Named;

/// A consumer as the path of a request needs it. There may be a million: texts are those of the model, and what few of
/// them have lies elsewhere.
#[derive(Debug)]
pub struct Consumer {
    /// Its user name.
    pub name: Named,
    /// Its consumer group.
    pub group_id: Option<Arc<str>>,
    /// Its labels and credentials, if it has any.
    more: Option<Box<Rest>>,
}

#[derive(Debug)]
struct Rest {
    labels: Box<[(Box<str>, Box<str>)]>,
    credentials: Box<[Named]>,
}

impl Consumer {
    /// The consumer with this name. `labels` are sorted by their names.
    #[must_use]
    pub fn new(
        name: Named,
        group_id: Option<Arc<str>>,
        labels: Box<[(Box<str>, Box<str>)]>,
        credentials: Box<[Named]>,
    ) -> Self {
        let rest = (!labels.is_empty() || !credentials.is_empty()).then_some(Rest { labels, credentials });
        Self { name, group_id, more: rest.map(Box::new) }
    }

    /// Its label `custom_id`, sent as `X-Consumer-Custom-ID`.
    #[must_use]
    pub fn custom_id(&self) -> Option<&str> {
        self.label("custom_id")
    }

    /// Its labels, by name in the order of names.
    #[must_use]
    pub fn labels(&self) -> &[(Box<str>, Box<str>)] {
        self.more.as_ref().map_or(&[], |more| &more.labels)
    }

    /// Ids of its credentials, sent as `X-Credential-Identifier`.
    #[must_use]
    pub fn credentials(&self) -> &[Named] {
        self.more.as_ref().map_or(&[], |more| &more.credentials)
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let labels = self.labels();
        let found = labels.binary_search_by(|(label, _)| (**label).cmp(name)).ok()?;
        labels.get(found).map(|(_, value)| &**value)
    }
}

/// All consumers, by dense id. A copy shares with the original what neither of them changes afterwards.
#[derive(Debug, Default, Clone)]
pub struct Consumers {
    list: Slots<Arc<Consumer>>,
    by_name: SharedMap<Arc<str>, u32>,
    numbers: Numbers,
}

/// Finds consumers by their names, while plugins are built.
pub trait ConsumerSet: Debug {
    /// The dense id of the consumer with this name. It stays the same as long as there is that consumer.
    fn find(&self, name: &str) -> Option<u32>;

    /// Notes that `field` of a plugin's configuration names a consumer that is not there: when it comes, the plugin is
    /// built anew.
    fn wait_for(&self, field: &str, name: &str);
}

/// Whom an authentication plugin found, and by which credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerMatch {
    /// Dense id of the consumer.
    pub consumer: u32,
    /// The consumer's credential that was used; `None`: the consumer's own configuration.
    pub credential: Option<u32>,
}

impl Consumers {
    /// Adds a consumer, or puts it in the place of the one with its name, and gives its dense id.
    pub fn put(&mut self, consumer: Consumer) -> u32 {
        let known = self.find(&consumer.name.text);
        let id = known.unwrap_or_else(|| self.numbers.take());
        if known.is_none() {
            self.by_name.insert_cow(Arc::clone(&consumer.name.text), id);
        }
        self.list.set(id, Some(Arc::new(consumer)));
        id
    }

    /// Takes a consumer away. Its dense id may be that of another one from now on.
    pub fn remove(&mut self, name: &Arc<str>) -> Option<u32> {
        let id = self.by_name.remove_cow(name)?;
        self.list.set(id, None);
        self.numbers.give_back(id);
        Some(id)
    }

    /// The consumer with this dense id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Consumer> {
        self.list.get(id).map(AsRef::as_ref)
    }

    /// The id of the credential by which a consumer was found.
    #[must_use]
    pub fn credential(&self, who: ConsumerMatch) -> Option<&str> {
        self.get(who.consumer)?.credentials().get(who.credential? as usize).map(|credential| &*credential.text)
    }

    /// Number of consumers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.count()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ConsumerSet for Consumers {
    fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    fn wait_for(&self, _: &str, _: &str) {}
}
