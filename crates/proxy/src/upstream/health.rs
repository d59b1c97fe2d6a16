//! Health of nodes: what active and passive checks have found, kept outside of the snapshots so that it outlives a
//! change of the configuration.
//!
//! ```text
//! checker (control thread) ── active checks ──► State of an address ◄── passive checks ── workers
//!                                                      │
//!                                      Health::is_up, for the balancer
//! ```
//!
//! There is one [`Health`] for a node with the same checks, whatever the number of routes and upstreams that name it.
//! A node whose name has several addresses has a state for each: it is up while one of them is, and those that are not
//! are passed over when a connection is chosen or opened.

#![allow(clippy::disallowed_types, reason = "compiling takes the lock, never a worker")]

pub(crate) mod checker;
mod h2;
mod probe;
mod state;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use weir_config::{CheckType, Checks, NodeHost};
use weir_net::tls::client::Setup;
use weir_telemetry::metrics::NodeHealth;

use super::Protocol;
use super::endpoint::Endpoint;
pub use state::Counters;
use state::{Event, State, Thresholds};

/// Most addresses of one name that are checked; further ones are used unchecked.
const MAX_ADDRESSES: usize = 64;

/// The health of a node under one configuration of checks.
#[derive(Debug)]
pub(crate) struct Health {
    endpoint: Arc<Endpoint>,
    checks: Arc<Checks>,
    /// Protocol of active checks of the types `http` and `https`.
    protocol: Protocol,
    /// TLS setup of active checks.
    tls: Option<Arc<Setup>>,
    /// The Host of active checks.
    host: Box<str>,
    passive: Option<Passive>,
    addresses: ArcSwap<Vec<Arc<Address>>>,
    /// True if none of the addresses is up.
    down: AtomicBool,
}

/// Means of active checks.
#[derive(Debug)]
pub(crate) struct Means<'a> {
    /// Protocol of checks of the types `http` and `https`.
    pub(crate) protocol: Protocol,
    /// TLS setup.
    pub(crate) tls: Option<&'a Arc<Setup>>,
    /// Host of requests.
    pub(crate) host: &'a str,
}

/// An address of a node.
#[derive(Debug)]
pub(crate) struct Address {
    /// Address that requests go to.
    node: SocketAddr,
    /// Address that checks go to: `node`, or a port of the checks' own.
    checked: SocketAddr,
    state: State,
    /// Wakes the checker after a change of state.
    changed: Notify,
}

/// Outcome of a forwarded request at an address.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seen {
    /// A response with this status.
    Status(u16),
    /// A refused or broken connection.
    Failed,
    TimedOut,
}

/// Rules by which outcomes of requests are judged.
#[derive(Debug)]
struct Passive {
    healthy: StatusSet,
    unhealthy: StatusSet,
    thresholds: Thresholds,
}

/// Statuses from 200 to 599.
#[derive(Debug, Default)]
struct StatusSet([u64; 7]);

impl Health {
    fn new(endpoint: &Arc<Endpoint>, checks: &Arc<Checks>, means: &Means<'_>) -> Self {
        let health = Self {
            endpoint: Arc::clone(endpoint),
            checks: Arc::clone(checks),
            protocol: means.protocol,
            tls: means.tls.cloned(),
            host: means.host.into(),
            passive: checks.passive.as_ref().map(Passive::new),
            addresses: ArcSwap::default(),
            down: AtomicBool::new(false),
        };
        health.refresh();
        health
    }

    /// True if one of the addresses is up, or none is known.
    pub(crate) fn is_up(&self) -> bool {
        !self.down.load(Ordering::Relaxed)
    }

    /// True if a connection to this address is worth a try. With no address up, every address is.
    pub(crate) fn takes(&self, addr: SocketAddr) -> bool {
        !self.is_up() || self.find(addr, |address| address.state.status().is_up()).unwrap_or(true)
    }

    /// Takes note of what became of a request, where there are passive checks.
    pub(crate) fn observe(&self, addr: SocketAddr, seen: Seen) {
        let Some(passive) = &self.passive else { return };
        let Some(event) = passive.judge(seen) else { return };
        self.find(addr, |address| self.count(address, event, &passive.thresholds));
    }

    fn find<T>(&self, addr: SocketAddr, look: impl FnOnce(&Address) -> T) -> Option<T> {
        let addresses = self.addresses.load();
        addresses.iter().find(|address| address.node == addr).map(|address| look(address))
    }

    fn count(&self, address: &Address, event: Event, thresholds: &Thresholds) {
        if address.state.count(event, thresholds) {
            self.settle();
            address.changed.notify_one();
        }
    }

    /// Sets the health of an address until the next event that changes it.
    pub(crate) fn set(&self, address: &Address, is_up: bool) {
        if address.state.set(is_up) {
            self.settle();
            address.changed.notify_one();
        }
    }

    /// Draws the sum of the addresses' states.
    fn settle(&self) {
        let all_down = || {
            let addresses = self.addresses.load();
            !addresses.is_empty() && addresses.iter().all(|address| !address.state.status().is_up())
        };
        // The last thread to store looks again afterwards, and sees every change that others stored for: all in one
        // order.
        let mut down = all_down();
        loop {
            self.down.store(down, Ordering::SeqCst);
            match all_down() {
                now if now == down => return,
                now => down = now,
            }
        }
    }

    /// Takes over what the node's name resolves to now; an address that stays keeps its state, a new one is healthy.
    fn refresh(&self) -> Arc<Vec<Arc<Address>>> {
        let known = self.addresses.load_full();
        if matches!(self.endpoint.host, NodeHost::Ip(_)) && !known.is_empty() {
            return known;
        }
        let mut seen = HashSet::new();
        let mut now = self.endpoint.all_addrs();
        now.retain(|addr| seen.len() < MAX_ADDRESSES && seen.insert(*addr));
        if known.iter().map(|address| address.node).eq(now.iter().copied()) {
            return known;
        }
        let port = self.checks.active.port;
        let address = |node: SocketAddr| {
            let kept = known.iter().find(|address| address.node == node).cloned();
            kept.unwrap_or_else(|| {
                let checked = SocketAddr::new(node.ip(), port.unwrap_or(node.port()));
                Arc::new(Address { node, checked, state: State::default(), changed: Notify::new() })
            })
        };
        let next = Arc::new(now.into_iter().map(address).collect::<Vec<_>>());
        self.addresses.store(Arc::clone(&next));
        self.settle();
        next
    }
}

impl NodeHealth for Address {
    fn is_healthy(&self) -> bool {
        self.state.status().is_up()
    }
}

impl Passive {
    fn new(checks: &weir_config::PassiveChecks) -> Self {
        // A TCP check has no status.
        let of = |statuses: &[u16]| match checks.r#type {
            CheckType::Tcp => StatusSet::default(),
            CheckType::Http | CheckType::Https | CheckType::Grpc => StatusSet::new(statuses),
        };
        Self {
            healthy: of(&checks.healthy.http_statuses),
            unhealthy: of(&checks.unhealthy.http_statuses),
            thresholds: Thresholds {
                successes: checks.healthy.successes,
                http_failures: checks.unhealthy.http_failures,
                tcp_failures: checks.unhealthy.tcp_failures,
                timeouts: checks.unhealthy.timeouts,
            },
        }
    }

    fn judge(&self, seen: Seen) -> Option<Event> {
        match seen {
            Seen::Status(status) if self.healthy.has(status) => Some(Event::Success),
            Seen::Status(status) if self.unhealthy.has(status) => Some(Event::HttpFailure),
            Seen::Status(_) => None,
            Seen::Failed => Some(Event::TcpFailure),
            Seen::TimedOut => Some(Event::Timeout),
        }
    }
}

impl StatusSet {
    fn new(statuses: &[u16]) -> Self {
        let mut set = Self::default();
        for (word, bit) in statuses.iter().filter_map(|status| Self::place(*status)) {
            if let Some(word) = set.0.get_mut(word) {
                *word |= bit;
            }
        }
        set
    }

    fn has(&self, status: u16) -> bool {
        Self::place(status).is_some_and(|(word, bit)| self.0.get(word).is_some_and(|word| word & bit != 0))
    }

    fn place(status: u16) -> Option<(usize, u64)> {
        let index = status.checked_sub(200)?;
        Some((usize::from(index / 64), 1 << (index % 64)))
    }
}

/// The health of all nodes that are checked.
#[derive(Debug, Default)]
pub(crate) struct HealthTable {
    nodes: Mutex<HashMap<Key, Weak<Health>>>,
}

/// Identity of a node's health.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Number of the endpoint, which is unique while the endpoint lives; the health of a node keeps its endpoint alive.
    /// The TLS setup belongs to the endpoint.
    endpoint: u32,
    checks: Arc<Checks>,
    protocol: Protocol,
    host: Box<str>,
}

impl HealthTable {
    /// The health of a node under these checks.
    pub(crate) fn get(&self, endpoint: &Arc<Endpoint>, checks: &Arc<Checks>, means: &Means<'_>) -> Arc<Health> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (protocol, host) = (means.protocol, means.host.into());
        let key = Key { endpoint: endpoint.id, checks: Arc::clone(checks), protocol, host };
        if let Some(found) = nodes.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        let made = Arc::new(Health::new(endpoint, checks, means));
        nodes.insert(key, Arc::downgrade(&made));
        made
    }

    /// Forgets the nodes that are in no snapshot and not checked any more.
    pub(crate) fn sweep(&self) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|_, health| health.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::StatusSet;

    #[test]
    fn a_set_has_what_was_put_in() {
        let set = StatusSet::new(&[200, 263, 264, 404, 599]);
        let found: Vec<u16> = (0..=u16::MAX).filter(|status| set.has(*status)).collect();
        assert_eq!(found, [200, 263, 264, 404, 599]);
    }
}
