//! Consumers and protos that plugins name in their configuration.

use std::cell::RefCell;
use std::sync::Arc;

use weir_config::{Items, Proto, SharedSet};
use weir_plugin::{ConsumerSet, Consumers, ProtoSet};

/// Consumers as plugins find them, who are noted down for it.
#[derive(Debug)]
pub(super) struct NamedConsumers<'a> {
    pub(super) consumers: &'a Consumers,
    pub(super) asked: RefCell<Vec<u32>>,
    pub(super) missing: RefCell<Vec<Missing>>,
    pub(super) awaited: RefCell<SharedSet<Arc<str>>>,
}

/// A consumer that a plugin refers to and that is not there.
#[derive(Debug)]
pub(super) struct Missing {
    /// The field of the plugin's configuration.
    pub(super) field: String,
    pub(super) name: String,
}

impl NamedConsumers<'_> {
    /// The consumers that were missed since this was called before.
    pub(super) fn take_missing(&self) -> Vec<Missing> {
        self.missing.take()
    }
}

impl ConsumerSet for NamedConsumers<'_> {
    fn find(&self, name: &str) -> Option<u32> {
        let found = self.consumers.find(name);
        self.asked.borrow_mut().extend(found);
        found
    }

    fn wait_for(&self, field: &str, name: &str) {
        self.awaited.borrow_mut().insert_cow(name.into());
        self.missing.borrow_mut().push(Missing { field: field.to_owned(), name: name.to_owned() });
    }
}

/// Protos as plugins find them, which are noted down for it.
#[derive(Debug)]
pub(super) struct UsedProtos<'a> {
    pub(super) protos: &'a Items<Proto>,
    pub(super) used: RefCell<SharedSet<Arc<str>>>,
}

impl ProtoSet for UsedProtos<'_> {
    fn find(&self, id: &str) -> Option<Arc<Proto>> {
        let found = self.protos.get(id)?;
        self.used.borrow_mut().insert_cow(id.into());
        Some(Arc::clone(found))
    }
}
