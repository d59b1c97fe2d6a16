//! A compiled configuration: immutable, shared by all workers, swapped whole. Two of them may share most of what they
//! are made of.

use std::rc::{Rc, Weak};
use std::sync::Arc;

use weir_config::SharedSet;
use weir_plugin::{ArgumentNames, Tables};
use weir_router::Slots;

use crate::chain::Chain;
use crate::compile::{Kept, ListedDefinitions};
use crate::tls::server::Hosts;
use crate::upstream::{Timeouts, Upstream};

/// Everything a worker needs to serve requests.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counts changes, from 1.
    pub(crate) revision: u64,
    /// The matcher and all names.
    pub(crate) tables: Arc<Tables>,
    /// By route number.
    pub(crate) routes: Slots<Route>,
    pub(crate) upstreams: Slots<Arc<Upstream>>,
    /// Numbers of the upstreams with health checks.
    pub(crate) checked: SharedSet<u32>,
    /// Certificates.
    pub(crate) tls: Arc<Hosts>,
    /// Global rules.
    pub(crate) global: Arc<Chain>,
    /// By consumer number.
    pub(crate) consumers: Arc<Slots<Arc<Chain>>>,
    /// Query arguments whose values logs do not show.
    pub(crate) credential_arguments: Arc<ArgumentNames>,
    /// The registry that the positions in chains belong to.
    pub(crate) definitions: ListedDefinitions,
    /// What the next snapshot may be made from, where the configuration can be changed piece by piece.
    pub(crate) kept: Option<Kept>,
}

/// What is done with the requests of a route. It is small, since each of many routes that are asked for by turns is read
/// from memory: what most of them have not, or have in common, stands elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) chain: Arc<Chain>,
    /// Position of its upstream; `None`: a plugin has to answer.
    pub(crate) upstream: Option<u32>,
    /// Its own time limits, which go before the upstream's.
    pub(crate) timeouts: Option<Box<Timeouts>>,
    pub(crate) websocket: bool,
    /// Whether one of its plugins looks at an exchange after its end.
    pub(crate) logs: bool,
}

impl Route {
    /// The time limits of its exchanges with a node of this upstream.
    pub(crate) fn timeouts(&self, upstream: &Upstream) -> Timeouts {
        self.timeouts.as_deref().copied().unwrap_or(upstream.timeouts)
    }
}

impl Snapshot {
    /// Its revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether clients with TLS are shown a certificate made here, because the configuration has none.
    #[must_use]
    pub fn is_self_signed(&self) -> bool {
        self.tls.is_self_signed()
    }

    /// Whether somebody else has it, or its tables, which a worker's exchange may hold for a moment longer: whoever lets
    /// go of the last reference frees them, and no worker may have to.
    pub(crate) fn is_used_elsewhere(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || Arc::strong_count(&self.tables) > 1
    }

    /// How many routes it has.
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

    /// Another reference to it, for a task that outlives the caller.
    pub(crate) fn share(&self) -> Rc<Self> {
        // There is no other way to make one than `new`.
        self.this.upgrade().unwrap_or_else(|| Self::new(Arc::clone(&self.snapshot)))
    }
}
