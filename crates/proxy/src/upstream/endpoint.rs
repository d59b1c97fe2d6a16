//! Endpoints: the nodes of all upstreams, each with one stable number however often it is named, so that pools and
//! addresses outlive a change of the configuration.

#![allow(clippy::disallowed_types, reason = "compiling and the resolver take the lock, never a worker")]

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwapOption;
use weir_config::{NodeAddr, NodeHost};

use super::aside::Aside;

/// Most addresses of one name that are connected to in one try of its node.
const MAX_TRIED: usize = 4;

/// A node's host and port, and what its name resolves to.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Its number, below the highest number of endpoints that were ever live at once.
    pub(crate) id: u32,
    /// Its host as configured.
    pub(crate) host: NodeHost,
    /// Its port.
    pub(crate) port: u16,
    /// `None` until a name was resolved for the first time.
    addrs: ArcSwapOption<Vec<SocketAddr>>,
    /// Which of several addresses is next.
    next: AtomicU32,
    /// Whether it is set aside, for all upstreams and workers.
    pub(crate) aside: Arc<Aside>,
}

impl fmt::Display for Endpoint {
    /// `host:port`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Endpoint {
    /// Whose turn it is among several addresses, for [`Endpoint::addr`].
    pub(crate) fn turn(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) as usize
    }

    /// The address to connect to when `tried` others, from the one whose turn it is, have failed; `None` when there is
    /// none, or enough have been tried.
    pub(crate) fn addr(&self, turn: usize, tried: usize) -> Option<SocketAddr> {
        if let NodeHost::Ip(ip) = self.host {
            return (tried == 0).then(|| SocketAddr::new(ip, self.port));
        }
        let addrs = self.addrs.load();
        let addrs = addrs.as_ref()?;
        if tried >= addrs.len().min(MAX_TRIED) {
            return None;
        }
        addrs.get(turn.wrapping_add(tried) % addrs.len()).copied()
    }

    /// Takes over what a name has been resolved to.
    pub(crate) fn set_addrs(&self, addrs: Vec<SocketAddr>) {
        self.addrs.store(Some(Arc::new(addrs)));
    }

    /// Whether a name has addresses.
    pub(crate) fn is_resolved(&self) -> bool {
        matches!(self.host, NodeHost::Ip(_)) || self.addrs.load().is_some()
    }
}

/// All endpoints of the running configuration.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_node: HashMap<(NodeHost, u16), Weak<Endpoint>>,
    /// Numbers of endpoints that are gone.
    free: Vec<u32>,
    count: u32,
}

impl Endpoints {
    /// The endpoint of a node.
    pub(crate) fn get(&self, node: &NodeAddr) -> Arc<Endpoint> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (node.host.clone(), node.port);
        if let Some(found) = inner.by_node.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        let id = inner.free.pop().unwrap_or_else(|| {
            inner.count += 1;
            inner.count - 1
        });
        let made = Arc::new(Endpoint {
            id,
            host: node.host.clone(),
            port: node.port,
            addrs: ArcSwapOption::empty(),
            next: AtomicU32::new(0),
            aside: Arc::default(),
        });
        inner.by_node.insert(key, Arc::downgrade(&made));
        made
    }

    /// The endpoints with a name to resolve.
    pub(crate) fn named(&self) -> Vec<Arc<Endpoint>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let is_name = |(host, _): &&(NodeHost, u16)| matches!(host, NodeHost::Name(_));
        inner.by_node.iter().filter(|(k, _)| is_name(k)).filter_map(|(_, e)| e.upgrade()).collect()
    }

    /// Forgets endpoints that no snapshot uses and gives their numbers free. A worker's pool knows whose it is, so a
    /// new owner of a number never gets an old connection.
    pub(crate) fn sweep(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { by_node, .. } = &mut *inner;
        by_node.retain(|_, e| e.strong_count() > 0);
        let mut used = vec![false; inner.count as usize];
        for endpoint in inner.by_node.values().filter_map(Weak::upgrade) {
            if let Some(slot) = used.get_mut(endpoint.id as usize) {
                *slot = true;
            }
        }
        inner.free = (0..inner.count).rev().filter(|id| used.get(*id as usize) == Some(&false)).collect();
    }
}
