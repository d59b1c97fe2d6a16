//! State that outlives a configuration: counters, buckets, and whatever else a change must not reset.

#![allow(clippy::disallowed_types, reason = "no worker takes this lock: only compiling does")]

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// State shared by the plugin instances that were built with the same key.
pub type Shared = Arc<dyn Any + Send + Sync>;

/// Keeps plugin state by a key that stands for the part of the configuration it depends on.
///
/// State lives as long as some snapshot uses it. Only compiling looks here, never a request.
#[derive(Default)]
pub struct StateRegistry {
    states: Mutex<HashMap<String, Weak<dyn Any + Send + Sync>>>,
}

impl std::fmt::Debug for StateRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StateRegistry").finish_non_exhaustive()
    }
}

impl StateRegistry {
    /// The state under `key`, made by `create` when there is none or one of another type.
    pub fn get_or_create<T: Any + Send + Sync>(&self, key: &str, create: impl FnOnce() -> T) -> Arc<T> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = states.get(key).and_then(Weak::upgrade).and_then(|s| s.downcast::<T>().ok()) {
            return found;
        }
        let made = Arc::new(create());
        let shared: Shared = made.clone();
        states.insert(key.to_owned(), Arc::downgrade(&shared));
        made
    }

    /// Forgets the keys whose state nobody uses any more.
    pub fn sweep(&self) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.retain(|_, state| state.strong_count() > 0);
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// True if no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::StateRegistry;
    use std::sync::Arc;

    #[test]
    fn state_lives_as_long_as_it_is_used() {
        let registry = StateRegistry::default();
        let first = registry.get_or_create("a", || 1u64);
        assert!(Arc::ptr_eq(&first, &registry.get_or_create("a", || 2u64)));
        assert_eq!(*registry.get_or_create("b", || 3u64), 3);
        registry.sweep();
        assert_eq!(registry.len(), 1);
        drop(first);
        assert_eq!(*registry.get_or_create("a", || 4u64), 4);
    }
}
