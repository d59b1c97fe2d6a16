//! Endpoints: the nodes of all upstreams, each with one stable number however often it is named, so that pools and
//! addresses outlive a change of the configuration.

#![allow(clippy::disallowed_types, reason = "compiling and the resolver take the lock, never a worker")]

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwapOption;
use weir_config::{NodeAddr, NodeHost};
use weir_net::tls::client::{Setup, SetupKey};
use weir_plugin::NodeAddress;

use super::addresses::{Addresses, ResolvedAddr};
use super::aside::Ejection;
use super::load::Load;

/// Stands for the address of a Unix socket, which has a path.
const UNIX_ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A node's host and port, and what its name stands for.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Number of the endpoint, below the highest number of endpoints that were ever live at once.
    pub(crate) id: u32,
    /// Host as configured.
    pub(crate) host: NodeHost,
    /// Port; without meaning where the addresses bring their own.
    pub(crate) port: u16,
    /// TLS setup for connections to the endpoint.
    pub(crate) tls: Option<Arc<Setup>>,
    /// The question for a tunnel that each connection begins with, at a forward proxy.
    pub(crate) tunnel: Option<Arc<[u8]>>,
    /// `None` until a name was resolved for the first time.
    addresses: ArcSwapOption<Addresses>,
    /// Ejection of the endpoint, common to all upstreams and workers.
    pub(crate) aside: Arc<Ejection>,
    /// Load of the endpoint.
    pub(crate) load: Load,
}

impl fmt::Display for Endpoint {
    /// `host:port`, or `unix:` and a path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            NodeHost::Unix(_) => self.host.fmt(f),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A chosen address of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) addr: SocketAddr,
    /// Position among the addresses of a name that has several.
    pub(crate) position: Option<usize>,
}

impl Endpoint {
    /// The address whose turn it is, one that is `usable` where there is such; `None` when a name has none yet.
    pub(crate) fn choose(&self, now_ms: u64, usable: impl Fn(SocketAddr) -> bool) -> Option<Choice> {
        match self.host {
            NodeHost::Ip(ip) => return Some(Choice { addr: SocketAddr::new(ip, self.port), position: None }),
            NodeHost::Unix(_) => return Some(Choice { addr: UNIX_ADDR, position: None }),
            NodeHost::Name(_) => {}
        }
        let addresses = self.addresses.load();
        let addresses = addresses.as_ref()?;
        let turn = addresses.turn(now_ms, usable)?;
        Some(Choice { addr: addresses.at(turn)?, position: (addresses.len() > 1).then_some(turn) })
    }

    /// A chosen address in the form shown to people.
    pub(crate) fn address(&self, addr: SocketAddr) -> NodeAddress {
        match &self.host {
            NodeHost::Unix(path) => NodeAddress::Unix(Arc::clone(path)),
            NodeHost::Ip(_) | NodeHost::Name(_) => NodeAddress::Tcp(addr),
        }
    }

    /// All addresses there are now.
    pub(crate) fn all_addrs(&self) -> Vec<SocketAddr> {
        match self.host {
            NodeHost::Ip(ip) => vec![SocketAddr::new(ip, self.port)],
            NodeHost::Unix(_) => vec![UNIX_ADDR],
            NodeHost::Name(_) => self.addresses.load().as_ref().map(|all| all.iter().collect()).unwrap_or_default(),
        }
    }

    /// The addresses of a name.
    pub(crate) fn addresses(&self) -> Option<Arc<Addresses>> {
        self.addresses.load_full()
    }

    /// Takes over what a name has been resolved to. No addresses are none: the last ones stay.
    pub(crate) fn set_addresses(&self, places: Vec<ResolvedAddr>) {
        let before = self.addresses.load();
        let now = Addresses::new(places, before.as_deref());
        // The same answer as before, as most are, leaves turns as they are.
        if now.len() > 0 && !before.as_ref().is_some_and(|before| before.is_same(&now)) {
            self.addresses.store(Some(Arc::new(now)));
        }
    }

    /// True if a connection to this address is of use for the node: an address that its name no longer resolves to is
    /// not.
    pub(crate) fn is_at(&self, addr: SocketAddr) -> bool {
        !matches!(self.host, NodeHost::Name(_)) || self.addresses.load().as_ref().is_some_and(|a| a.contains(addr))
    }

    /// True if a name has addresses.
    pub(crate) fn is_resolved(&self) -> bool {
        !matches!(self.host, NodeHost::Name(_)) || self.addresses.load().is_some()
    }
}

/// Identity of an endpoint: host, port, TLS setup, and the server behind it.
type Key = (NodeHost, u16, Option<SetupKey>, Option<Arc<[u8]>>);

/// All endpoints of the running configuration.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_node: HashMap<Key, Weak<Endpoint>>,
    /// Numbers of endpoints that are gone.
    free: Vec<u32>,
    count: u32,
    /// Endpoints with a name that the resolver has not taken yet.
    fresh_names: Vec<Weak<Endpoint>>,
}

impl Endpoints {
    /// The endpoint of a node.
    pub(crate) fn get(
        &self,
        node: &NodeAddr,
        tls: Option<&(SetupKey, Arc<Setup>)>,
        tunnel: Option<Arc<[u8]>>,
    ) -> Arc<Endpoint> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (node.host.clone(), node.port, tls.map(|(key, _)| key.clone()), tunnel.clone());
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
            tls: tls.map(|(_, setup)| Arc::clone(setup)),
            tunnel,
            addresses: ArcSwapOption::empty(),
            aside: Arc::default(),
            load: Load::default(),
        });
        if matches!(made.host, NodeHost::Name(_)) {
            inner.fresh_names.push(Arc::downgrade(&made));
        }
        inner.by_node.insert(key, Arc::downgrade(&made));
        made
    }

    /// The endpoints with a name to resolve that were added since the last call.
    pub(crate) fn take_fresh_names(&self) -> Vec<Arc<Endpoint>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut inner.fresh_names).iter().filter_map(Weak::upgrade).collect()
    }

    /// Removes endpoints that no snapshot uses and frees their numbers. A worker's pool keeps the endpoint of its
    /// connections, so a new owner of a number never gets an old connection.
    pub(crate) fn sweep(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { by_node, fresh_names, .. } = &mut *inner;
        by_node.retain(|_, e| e.strong_count() > 0);
        fresh_names.retain(|e| e.strong_count() > 0);
        let mut used = vec![false; inner.count as usize];
        for endpoint in inner.by_node.values().filter_map(Weak::upgrade) {
            if let Some(slot) = used.get_mut(endpoint.id as usize) {
                *slot = true;
            }
        }
        inner.free = (0..inner.count).rev().filter(|id| used.get(*id as usize) == Some(&false)).collect();
    }
}
