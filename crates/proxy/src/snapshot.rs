//! A compiled configuration: immutable, shared by all workers, swapped whole. Two of them may share most of what they
//! are made of.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use weir_config::SharedSet;
use weir_plugin::{ArgumentNames, Shared, Tables};
use weir_router::Slots;

use crate::chain::{Brought, Chain};
use crate::compile::{Kept, ListedDefinitions, left_out};
use crate::stream::table::StreamTable;
use crate::tls::server::Hosts;
use crate::upstream::services::{Service, Services};
use crate::upstream::{Timeouts, Upstream};

/// Everything a worker needs to serve requests.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counts changes, from 1.
    pub(crate) revision: u64,
    /// The matcher and all names.
    pub(crate) tables: Arc<Tables>,
    /// Routes by number.
    pub(crate) routes: Slots<Route>,
    pub(crate) upstreams: Slots<Arc<Upstream>>,
    /// Numbers of the upstreams with health checks.
    pub(crate) checked: SharedSet<u32>,
    /// Numbers of the upstreams whose nodes come from a registry.
    pub(crate) discovered: SharedSet<u32>,
    /// Certificates.
    pub(crate) tls: Arc<Hosts>,
    pub(crate) streams: Arc<StreamTable>,
    /// Global rules.
    pub(crate) global: Arc<Chain>,
    /// Plugins that consumers bring along, by number.
    pub(crate) consumers: Arc<Slots<Arc<Brought>>>,
    /// Query arguments whose values logs do not show.
    pub(crate) credential_arguments: Arc<ArgumentNames>,
    /// Work that plugins do by their metadata alone, for as long as it is held here.
    pub(crate) background: Arc<[Shared]>,
    /// The registry that the positions in chains belong to.
    pub(crate) definitions: ListedDefinitions,
    /// State from which the next snapshot is made, if the configuration can be changed piece by piece.
    pub(crate) kept: Option<Kept>,
    /// True if every request is answered 503.
    pub(crate) refuses_all: bool,
    /// Name of the family that the configuration is of.
    pub(crate) family: &'static str,
}

/// A route as a request needs it. Small, because each of many routes requested in turn is read from memory: parts that
/// are rare, or common to several routes, are kept elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) chain: Arc<Chain>,
    /// Position of its upstream; `None`: a plugin has to answer.
    pub(crate) upstream: Option<u32>,
    /// The route's own time limits, which take precedence over the upstream's.
    pub(crate) timeouts: Option<Box<Timeouts>>,
    pub(crate) websocket: bool,
    /// True if one of the route's plugins sees the exchange after its end.
    pub(crate) logs: bool,
}

impl Route {
    /// The time limits of its exchanges with a node of this upstream.
    pub(crate) fn timeouts(&self, upstream: &Upstream) -> Timeouts {
        self.timeouts.as_deref().copied().unwrap_or(upstream.timeouts)
    }
}

impl Snapshot {
    /// Revision of the configuration.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Name of the family that the configuration is of: `apisix`, `kong`, `tyk`, `3scale`; empty before there is one.
    #[must_use]
    pub fn family(&self) -> &'static str {
        self.family
    }

    /// True if clients with TLS are shown a certificate made here, because the configuration has none.
    #[must_use]
    pub fn is_self_signed(&self) -> bool {
        self.tls.is_self_signed()
    }

    /// True if the snapshot or its tables have another owner, such as a worker's exchange for a moment longer. Dropping
    /// the last reference frees them, which must not happen on a worker.
    pub(crate) fn is_used_elsewhere(self: &Arc<Self>) -> bool {
        let tables = [&self.tables, &self.streams.tables];
        Arc::strong_count(self) > 1 || tables.into_iter().any(|tables| Arc::strong_count(tables) > 1)
    }

    /// True if another snapshot has the same tables, so that dropping this one frees none.
    pub(crate) fn shares_tables(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables) && Arc::ptr_eq(&self.streams.tables, &other.streams.tables)
    }

    /// The same configuration with 503 for every request, because of an invalid item that may guard any of them.
    #[must_use]
    pub fn refusing_all(&self) -> Arc<Self> {
        Arc::new(Self { global: left_out::before(&self.global), refuses_all: true, ..self.copy() })
    }

    /// The services that the nodes of upstreams come from.
    pub(crate) fn services(&self) -> BTreeSet<Service> {
        let upstreams = self.discovered.into_iter().filter_map(|number| self.upstreams.get(*number));
        upstreams.filter_map(|upstream| Some(upstream.discovered.as_ref()?.service.clone())).collect()
    }

    /// Waits until registries have answered for the services of this configuration, at most for `limit`.
    pub async fn await_nodes(&self, services: &Services, limit: Duration) {
        let mut wanted = self.services();
        if wanted.is_empty() {
            return;
        }
        let mine = wanted.clone();
        wanted.extend(services.wanted().borrow().iter().cloned());
        services.want(wanted);
        services.settled(&mine, limit).await;
    }

    /// The same configuration with the nodes that registries know now.
    #[must_use]
    pub fn with_nodes(self: &Arc<Self>, services: &Services) -> Arc<Self> {
        let mut upstreams = self.upstreams.clone();
        let mut differs = false;
        for number in &self.discovered {
            let Some(upstream) = self.upstreams.get(*number) else { continue };
            let current = upstream.discovered.as_ref().and_then(|discovered| discovered.current(services));
            if let Some(current) = current.filter(|current| !Arc::ptr_eq(current, upstream)) {
                upstreams.set(*number, Some(current));
                differs = true;
            }
        }
        if differs { Arc::new(Self { upstreams, ..self.copy() }) } else { Arc::clone(self) }
    }

    /// A copy that shares everything, and that no change is made from.
    fn copy(&self) -> Self {
        Self {
            revision: self.revision,
            tables: Arc::clone(&self.tables),
            routes: self.routes.clone(),
            upstreams: self.upstreams.clone(),
            checked: self.checked.clone(),
            discovered: self.discovered.clone(),
            tls: Arc::clone(&self.tls),
            streams: Arc::clone(&self.streams),
            global: Arc::clone(&self.global),
            consumers: Arc::clone(&self.consumers),
            credential_arguments: Arc::clone(&self.credential_arguments),
            background: Arc::clone(&self.background),
            definitions: self.definitions,
            kept: None,
            refuses_all: self.refuses_all,
            family: self.family,
        }
    }

    /// True if every request is answered 503, because an item is invalid that may guard any of them.
    #[must_use]
    pub fn refuses_all(&self) -> bool {
        self.refuses_all
    }

    /// Number of routes.
    #[must_use]
    pub fn route_count(&self) -> usize {
        self.routes.count()
    }
}

/// A worker's own handle of the current snapshot: requests in flight count their references here, and not on a counter
/// that other cores write to.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) snapshot: Arc<Snapshot>,
    #[allow(clippy::redundant_allocation, reason = "counted once a request on this core's own counter")]
    pub(crate) tables: Rc<Arc<Tables>>,
    this: Weak<Self>,
}

impl Local {
    pub(crate) fn new(snapshot: Arc<Snapshot>) -> Rc<Self> {
        let tables = Rc::new(Arc::clone(&snapshot.tables));
        Rc::new_cyclic(|this| Self { snapshot, tables, this: Weak::clone(this) })
    }

    /// Another reference to the worker's configuration, for a task that outlives the caller.
    pub(crate) fn share(&self) -> Rc<Self> {
        // There is no other way to make one than `new`.
        self.this.upgrade().unwrap_or_else(|| Self::new(Arc::clone(&self.snapshot)))
    }
}
