//! The answers of all APIs that are kept.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use weir_plugin::StateRegistry;

use crate::cache::zone::Zone;

/// Bytes of all answers.
const MOST_BYTES: usize = 64 << 20;

/// The answers of all APIs.
#[derive(Debug)]
pub struct Caches {
    pub(super) zone: Arc<Zone>,
    /// For each API a number that is a part of the keys of its answers.
    epochs: papaya::HashMap<Box<str>, Arc<AtomicU64>>,
}

impl Caches {
    /// The answers of all configurations.
    #[must_use]
    pub fn of(states: &StateRegistry) -> Arc<Self> {
        states.get_or_create("tyk caches", || Self {
            zone: Arc::new(Zone::new(MOST_BYTES)),
            epochs: papaya::HashMap::new(),
        })
    }

    /// The number of an API.
    pub(super) fn epoch(&self, api: &str) -> Arc<AtomicU64> {
        Arc::clone(self.epochs.pin().get_or_insert_with(api.into(), Arc::default))
    }

    /// Forgets all answers of an API, of which none is found any more.
    pub fn invalidate(&self, api: &str) {
        if let Some(epoch) = self.epochs.pin().get(api) {
            epoch.fetch_add(1, Relaxed);
        }
    }
}
