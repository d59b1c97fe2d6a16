//! The checker: a task on the control thread for each address of each node with active checks in the running
//! configuration. A task outlives a change of the configuration that leaves its node and its checks as they are.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use weir_config::{CheckType, NodeHost};
use weir_plugin::{NodeChange, NodeListeners, StateRegistry};
use weir_router::Slots;
use weir_telemetry::metrics::{Metrics, NodeHealth, UpstreamStatus};

use super::probe::{Finding, Probe};
use super::state::{Event, Status, Thresholds};
use super::{Address, Counters, Health};
use crate::clock;
use crate::snapshot::Snapshot;

/// Most checks under way at one time, over all upstreams; each takes a socket.
const MAX_AT_ONCE: usize = 256;

/// A node is checked for the first time within this time of becoming known, or within its interval where that is less.
const FIRST_CHECK: Duration = Duration::from_secs(1);

/// Interval at which the addresses of names are compared with the running tasks.
const LOOK: Duration = Duration::from_millis(500);

/// Changes of nodes that wait to be told to plugins; further ones are not told.
const MAX_UNTOLD: usize = 1024;

/// An interval is shortened by up to this part of it, by chance, so that checks which began together do not stay so.
const SPREAD: u64 = 10;

/// The checks of the running configuration.
#[derive(Debug)]
pub struct HealthChecks {
    upstreams: ArcSwap<Vec<CheckedUpstream>>,
    slots: Arc<Semaphore>,
    listeners: Arc<NodeListeners>,
}

/// An upstream whose nodes are checked.
#[derive(Debug, Clone)]
struct CheckedUpstream {
    kind: &'static str,
    id: Arc<str>,
    /// `/apisix/upstreams/ID`, as APISIX calls it.
    name: Arc<str>,
    /// Name of the upstream for people.
    title: Option<Arc<str>>,
    /// `concurrency` permits.
    slots: Arc<Semaphore>,
    concurrency: u32,
    check: CheckType,
    nodes: Vec<Arc<Health>>,
}

/// Health of the nodes of an upstream.
#[derive(Debug, Clone)]
pub struct UpstreamHealth {
    /// Collection of the item that the upstream is part of: `upstreams`, `routes` or `services`.
    pub kind: &'static str,
    /// The id of that item.
    pub id: Arc<str>,
    /// Type of the active checks: `http`, `https`, `tcp` or `grpc`.
    pub check: &'static str,
    /// Each address of each node.
    pub addresses: Vec<AddressHealth>,
}

/// Health of an address of a node.
#[derive(Debug, Clone)]
pub struct AddressHealth {
    /// The node's host as it is configured.
    pub host: String,
    /// Address that requests go to; checks may go to another port.
    pub addr: SocketAddr,
    /// `healthy`, `mostly_healthy`, `mostly_unhealthy` or `unhealthy`.
    pub status: &'static str,
    /// True if requests are sent to the address.
    pub is_up: bool,
    /// Successes and failures counted.
    pub counters: Counters,
}

impl HealthChecks {
    /// None yet. The listeners of nodes in this registry are told what comes of them.
    #[must_use]
    pub fn new(states: &StateRegistry) -> Self {
        let listeners = NodeListeners::of(states);
        Self { upstreams: ArcSwap::default(), slots: Arc::new(Semaphore::new(MAX_AT_ONCE)), listeners }
    }

    /// Health of all nodes with checks.
    #[must_use]
    pub fn report(&self) -> Vec<UpstreamHealth> {
        let upstreams = self.upstreams.load();
        upstreams.iter().map(CheckedUpstream::report).collect()
    }

    /// Sets the health of the addresses that `chosen` takes, until checks or requests find otherwise. Returns their number.
    pub fn set(&self, chosen: &dyn Fn(&UpstreamHealth, &AddressHealth) -> bool, is_healthy: bool) -> usize {
        let upstreams = self.upstreams.load();
        let mut count = 0;
        for upstream in upstreams.iter() {
            let described = UpstreamHealth { addresses: Vec::new(), ..upstream.report() };
            upstream.addresses(|health, address| {
                if chosen(&described, &described_address(health, address)) {
                    health.set(address, is_healthy);
                    count += 1;
                }
            });
        }
        count
    }

    /// Checks the nodes of the snapshot that is served, for ever; `metrics` shows what comes of it.
    pub async fn run(self: Arc<Self>, mut snapshots: watch::Receiver<Option<Arc<Snapshot>>>, metrics: Arc<Metrics>) {
        let (changes, mut changed_nodes) = mpsc::channel(MAX_UNTOLD);
        let mut tasks = Tasks { running: HashMap::new(), set: JoinSet::new(), changes };
        let mut known = Slots::default();
        snapshots.mark_changed();
        loop {
            let mut changed = false;
            tokio::select! {
                alive = snapshots.changed() => {
                    if alive.is_err() {
                        return;
                    }
                    let Some(snapshot) = snapshots.borrow_and_update().clone() else { continue };
                    // Most changes concern no upstream, however many of them are checked.
                    if snapshot.upstreams.shares_all_with(&known) {
                        continue;
                    }
                    known = snapshot.upstreams.clone();
                    self.upstreams.store(Arc::new(self.of_snapshot(&snapshot)));
                    changed = true;
                }
                Some(change) = changed_nodes.recv() => {
                    self.tell(&change);
                    continue;
                }
                () = sleep(LOOK) => tasks.reap(),
            }
            let upstreams = self.upstreams.load_full();
            changed |= tasks.follow(&upstreams, &self.slots);
            if changed {
                // One name may stand for several upstreams; a series stands once.
                let mut seen = HashSet::new();
                let mut series: Vec<_> = upstreams.iter().flat_map(CheckedUpstream::series).collect();
                series.retain(|series| seen.insert((Arc::clone(&series.name), series.addr)));
                metrics.set_upstream_status(series);
            }
        }
    }

    /// Tells the listeners of all upstreams that a node is one of.
    fn tell(&self, change: &Change) {
        let upstreams = self.upstreams.load();
        for upstream in upstreams.iter() {
            if !upstream.nodes.iter().any(|health| Arc::ptr_eq(health, &change.health)) {
                continue;
            }
            let (host, addr) = (host_of(&change.health), change.address.node);
            let node = NodeChange { host, addr, is_up: change.is_up, status: change.status };
            self.listeners.tell(&format!("{}/{}", upstream.kind.trim_end_matches('s'), upstream.id), &node);
        }
    }

    fn of_snapshot(&self, snapshot: &Snapshot) -> Vec<CheckedUpstream> {
        let before = self.upstreams.load();
        let before: HashMap<_, _> = before.iter().map(|u| ((u.kind, &*u.id, u.concurrency), &u.slots)).collect();
        let mut upstreams = Vec::new();
        for upstream in snapshot.checked.into_iter().filter_map(|number| snapshot.upstreams.get(*number)) {
            let Some(checked) = &upstream.checked else { continue };
            let concurrency = checked.checks.active.concurrency;
            let kept = before.get(&(checked.kind, &*checked.id, concurrency)).copied().cloned();
            upstreams.push(CheckedUpstream {
                kind: checked.kind,
                id: Arc::clone(&checked.id),
                name: format!("/apisix/{}/{}", checked.kind, checked.id).into(),
                title: checked.title.clone(),
                slots: kept.unwrap_or_else(|| Arc::new(Semaphore::new((concurrency as usize).min(MAX_AT_ONCE)))),
                concurrency,
                check: checked.checks.active.r#type,
                nodes: upstream.nodes.iter().filter_map(|node| node.health.clone()).collect(),
            });
        }
        upstreams
    }
}

impl CheckedUpstream {
    fn report(&self) -> UpstreamHealth {
        let addresses = self.addresses(|health, address| described_address(health, address));
        UpstreamHealth { kind: self.kind, id: Arc::clone(&self.id), check: self.check.as_str(), addresses }
    }

    fn series(&self) -> Vec<UpstreamStatus> {
        self.addresses(|_, address| UpstreamStatus {
            name: Arc::clone(&self.name),
            title: self.title.clone(),
            addr: address.node,
            health: Arc::clone(address) as Arc<dyn NodeHealth>,
        })
    }

    /// Something of each address, once for each even if the upstream names a node twice.
    fn addresses<T>(&self, mut of: impl FnMut(&Health, &Arc<Address>) -> T) -> Vec<T> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for health in &self.nodes {
            for address in health.addresses.load().iter().filter(|address| seen.insert(Arc::as_ptr(address))) {
                found.push(of(health, address));
            }
        }
        found
    }
}

fn described_address(health: &Health, address: &Address) -> AddressHealth {
    let (status, counters) = address.state.read();
    let host = host_of(health);
    AddressHealth { host, addr: address.node, status: status.as_str(), is_up: status.is_up(), counters }
}

/// The host of a node as it is configured.
fn host_of(health: &Health) -> String {
    match &health.endpoint.host {
        NodeHost::Ip(ip) => ip.to_string(),
        NodeHost::Name(name) => name.clone(),
        // Checks of Unix sockets are refused with the configuration.
        NodeHost::Unix(_) => health.endpoint.host.to_string(),
    }
}

/// The running tasks, by the place in memory of the [`Address`] that each holds.
#[derive(Debug)]
struct Tasks {
    running: HashMap<usize, AbortHandle>,
    set: JoinSet<()>,
    changes: mpsc::Sender<Change>,
}

/// A node that has come up or gone down.
#[derive(Debug)]
struct Change {
    address: Arc<Address>,
    health: Arc<Health>,
    is_up: bool,
    /// The status of the check that has brought it about.
    status: Option<u16>,
}

/// Checks one address.
struct Task {
    address: Arc<Address>,
    health: Arc<Health>,
    /// The upstream's, and those of all.
    slots: [Arc<Semaphore>; 2],
    /// An upstream that names the node, for the log.
    upstream: Arc<str>,
    changes: mpsc::Sender<Change>,
}

impl Tasks {
    /// Starts and ends tasks so that there is one for each address; whether there was anything to do.
    fn follow(&mut self, upstreams: &[CheckedUpstream], everywhere: &Arc<Semaphore>) -> bool {
        let mut wanted = HashSet::new();
        let mut changed = false;
        for upstream in upstreams {
            for health in &upstream.nodes {
                for address in health.refresh().iter() {
                    let key = Arc::as_ptr(address).addr();
                    wanted.insert(key);
                    if self.running.contains_key(&key) {
                        continue;
                    }
                    let task = Task {
                        address: Arc::clone(address),
                        health: Arc::clone(health),
                        slots: [Arc::clone(&upstream.slots), Arc::clone(everywhere)],
                        upstream: Arc::clone(&upstream.name),
                        changes: self.changes.clone(),
                    };
                    self.running.insert(key, self.set.spawn(task.run()));
                    changed = true;
                }
            }
        }
        self.running.retain(|key, task| {
            let keep = wanted.contains(key);
            if !keep {
                task.abort();
                changed = true;
            }
            keep
        });
        changed
    }

    /// Forgets tasks that have ended. One that ended by itself panicked, and is started anew.
    fn reap(&mut self) {
        while let Some(ended) = self.set.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                tracing::error!(%error, "a health check panicked and is started again");
            }
        }
        self.running.retain(|_, task| !task.is_finished());
    }
}

impl Task {
    async fn run(self) {
        if self.health.checks.only_passive {
            // Nothing is checked; changes of the state are reported.
            let mut told = self.address.state.status();
            loop {
                self.tell(&mut told, None);
                self.address.changed.notified().await;
            }
        }
        let checks = &self.health.checks.active;
        let probe = Probe::new(&self.health);
        let thresholds = Thresholds {
            successes: checks.healthy.successes,
            http_failures: checks.unhealthy.http_failures,
            tcp_failures: checks.unhealthy.tcp_failures,
            timeouts: checks.unhealthy.timeouts,
        };
        let mut told = self.address.state.status();
        let mut due = clock::now_us() + fastrand::u64(0..=micros(FIRST_CHECK.min(self.interval())));
        let (mut cause, mut unable) = (None, false);
        loop {
            self.tell(&mut told, cause.take());
            tokio::select! {
                () = sleep(Duration::from_micros(due.saturating_sub(clock::now_us()))) => {}
                // The other interval may hold now. However often requests change the state, the check is not put off.
                () = self.address.changed.notified() => {
                    due = due.min(self.next(clock::now_us()));
                    continue;
                }
            }
            let [own, all] = &self.slots;
            // The semaphores are never closed.
            let (Ok(_own), Ok(_all)) = (own.acquire().await, all.acquire().await) else { return };
            let began = clock::now_us();
            let finding = probe.run(self.address.checked).await;
            if let Finding::Unable(error) = &finding {
                if !unable {
                    let node = self.address.node;
                    tracing::warn!(%node, %error, "a node cannot be checked; it stays as it is until that is possible");
                }
                unable = true;
            } else {
                unable = false;
            }
            if let Some(event) = self.judge(&finding) {
                self.health.count(&self.address, event, &thresholds);
                cause = Some(finding);
            }
            due = self.next(began);
        }
    }

    /// The event that a finding counts as.
    fn judge(&self, finding: &Finding) -> Option<Event> {
        let checks = &self.health.checks.active;
        match finding {
            Finding::Connected => Some(Event::Success),
            Finding::Status(status) if checks.healthy.http_statuses.contains(status) => Some(Event::Success),
            Finding::Status(status) if checks.unhealthy.http_statuses.contains(status) => Some(Event::HttpFailure),
            Finding::Status(_) | Finding::Unable(_) => None,
            Finding::NotHttp(_) => Some(Event::HttpFailure),
            Finding::Failed(_) => Some(Event::TcpFailure),
            Finding::TimedOut => Some(Event::Timeout),
        }
    }

    fn interval(&self) -> Duration {
        let checks = &self.health.checks.active;
        let up = self.address.state.status().is_up();
        Duration::from_secs(u64::from(if up { checks.healthy.interval } else { checks.unhealthy.interval }))
    }

    /// Due time of the check after the one that began at `began`.
    fn next(&self, began: u64) -> u64 {
        let interval = micros(self.interval());
        began + interval - fastrand::u64(0..=interval / SPREAD)
    }

    /// A line for a change of state: whether requests go there, or that it may soon come to another one. `cause` is
    /// what a check has found, if one has brought the change about.
    fn tell(&self, told: &mut Status, cause: Option<Finding>) {
        let (status, counters) = self.address.state.read();
        if status == *told {
            return;
        }
        let (node, upstream, state) = (self.address.node, &*self.upstream, status.as_str());
        let found = match cause {
            Some(Finding::Status(status)) => Some(status),
            _ => None,
        };
        let cause = cause.map_or_else(|| "requests".to_owned(), |finding| finding.to_string());
        let Counters { success, http_failure, tcp_failure, timeout_failure } = counters;
        match (told.is_up(), status.is_up()) {
            (true, false) => tracing::warn!(
                %node, upstream, state, cause, http_failure, tcp_failure, timeout_failure,
                "a node is unhealthy"
            ),
            (false, true) => tracing::info!(%node, upstream, state, cause, success, "a node is healthy again"),
            _ => tracing::debug!(
                %node, upstream, state, cause, success, http_failure, tcp_failure, timeout_failure,
                "the health of a node changes"
            ),
        }
        if told.is_up() != status.is_up() {
            let (address, health) = (Arc::clone(&self.address), Arc::clone(&self.health));
            let change = Change { address, health, is_up: status.is_up(), status: found };
            if self.changes.try_send(change).is_err() {
                tracing::warn!(%node, upstream, "a change of a node is not told to plugins: there are too many");
            }
        }
        *told = status;
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
