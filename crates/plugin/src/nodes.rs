//! Changes of the health of nodes, as plugins are told.

#![allow(
    clippy::disallowed_types,
    reason = "the thread that checks nodes takes the lock, and compiling, never a worker"
)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::StateRegistry;

/// A node that gets no requests any more, or gets them again.
#[derive(Debug)]
pub struct NodeChange {
    /// The node's host as it is configured.
    pub host: String,
    /// Its address, at which requests arrive.
    pub addr: SocketAddr,
    /// True if it gets requests.
    pub is_up: bool,
    /// The status of the check that has brought the change about; `None`: no status has.
    pub status: Option<u16>,
}

/// Somebody who is told of the nodes of an upstream.
pub trait NodeListener: Send + Sync + std::fmt::Debug {
    /// Called on the thread that checks nodes, which must not be blocked.
    fn node_changed(&self, change: &NodeChange);
}

/// Listeners by the places of upstreams. There is one for a process.
#[derive(Default)]
pub struct NodeListeners(Mutex<Vec<(String, Weak<dyn NodeListener>)>>);

impl std::fmt::Debug for NodeListeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeListeners").finish_non_exhaustive()
    }
}

impl NodeListeners {
    /// Those of a process.
    #[must_use]
    pub fn of(states: &StateRegistry) -> Arc<Self> {
        states.get_or_create("listeners of nodes", Self::default)
    }

    /// Tells a listener of the upstream at a place such as `route/1` for as long as somebody else holds it, and while there is
    /// no newer one for the place.
    pub fn listen(&self, place: &str, listener: &Arc<dyn NodeListener>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, listener)| listener.strong_count() > 0);
        all.push((place.to_owned(), Arc::downgrade(listener)));
    }

    /// Tells the newest listener of a place.
    pub fn tell(&self, place: &str, change: &NodeChange) {
        let found = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().rev().filter(|(of, _)| of == place).find_map(|(_, listener)| listener.upgrade())
        };
        if let Some(listener) = found {
            listener.node_changed(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::{Arc, NodeChange, NodeListener, NodeListeners, StateRegistry};

    #[derive(Debug)]
    struct Counting(AtomicUsize);

    impl NodeListener for Counting {
        fn node_changed(&self, _: &NodeChange) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn the_newest_listener_of_a_place_is_told() {
        let registry = StateRegistry::default();
        let listeners = NodeListeners::of(&registry);
        let addr = ([127, 0, 0, 1], 80).into();
        let change = NodeChange { host: "a".to_owned(), addr, is_up: false, status: Some(500) };
        let [first, second, other] = [(); 3].map(|()| Arc::new(Counting(AtomicUsize::new(0))));
        let listen = |place: &str, listener: &Arc<Counting>| {
            let listener: Arc<dyn NodeListener> = listener.clone();
            listeners.listen(place, &listener);
        };
        listen("route/1", &first);
        listen("route/2", &other);
        listen("route/1", &second);
        NodeListeners::of(&registry).tell("route/1", &change);
        assert_eq!([&first, &second, &other].map(|one| one.0.load(SeqCst)), [0, 1, 0]);
        // A change of the configuration that was refused drops what it has built.
        drop(second);
        listeners.tell("route/1", &change);
        listeners.tell("route/3", &change);
        assert_eq!([&first, &other].map(|one| one.0.load(SeqCst)), [1, 0]);
    }
}
