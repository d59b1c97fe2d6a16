//! Publication of a compiled configuration to the workers.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock as Lock};
use std::time::{Duration, SystemTime};

use tokio::sync::RwLock;
use tokio::time::{sleep, timeout};
use weir_proxy::{DataPlane, Services, Snapshot};
use weir_telemetry::metrics::Metrics;

use crate::process::names::Names;
use crate::process::systemd::{self, NotifyState};

/// Time limit of a change for resolving the names of its upstream nodes. After that it is live without their addresses.
const NAMES_LIMIT: Duration = Duration::from_millis(100);

/// Time in which reports of registries are gathered before workers take them over.
const GATHERED: Duration = Duration::from_millis(20);

/// Time limit for all workers to serve with a change.
const TAKEN_LIMIT: Duration = Duration::from_secs(10);

/// The data plane as seen by the tasks that change its configuration.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    pub(crate) data_plane: Arc<RwLock<DataPlane>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) names: Names,
    /// The nodes of services.
    pub(crate) services: Arc<Services>,
    /// True while no configuration has been in force yet, so that the gateway is not ready.
    pub(crate) vacant: Arc<AtomicBool>,
    pub(crate) invalid: InvalidItems,
}

/// The invalid items of the configuration in force, which do not serve as they are written: the last valid version serves
/// instead, or what they are for is refused. Counted by `weir_config_left_out`, and named at `/status`.
#[derive(Clone, Debug)]
pub(crate) struct InvalidItems {
    names: Arc<Lock<Vec<String>>>,
    metrics: Arc<Metrics>,
}

impl InvalidItems {
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        Self { names: Arc::default(), metrics: Arc::clone(metrics) }
    }

    /// Records the items of a configuration that becomes live.
    pub(crate) fn set(&self, names: impl Iterator<Item = String>) {
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        let number = names.len();
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
        self.metrics.set_config_left_out(number as u64);
    }

    /// The first items by name, `most` of them at most.
    pub(crate) fn first(&self, most: usize) -> Vec<String> {
        self.names.read().unwrap_or_else(PoisonError::into_inner).iter().take(most).cloned().collect()
    }
}

impl Serving {
    /// Lets the workers serve with the nodes of services as registries report them.
    pub(crate) async fn follow_nodes(self) {
        let mut changes = self.services.changes();
        // A report may have come since the first configuration was taken.
        changes.mark_changed();
        while changes.changed().await.is_ok() {
            // Reports that come together are taken together.
            sleep(GATHERED).await;
            changes.mark_unchanged();
            let _with_endpoints = self.data_plane.read().await.with_nodes();
            self.names.look_up(NAMES_LIMIT).await;
            self.data_plane.write().await.renew_nodes();
        }
    }

    /// Hands a configuration to the workers, and waits until all of them serve with it.
    pub(crate) async fn take(&self, snapshot: Arc<Snapshot>) {
        // The same for services that registries are asked for, and the names of their nodes.
        snapshot.await_nodes(&self.services, NAMES_LIMIT).await;
        let _with_endpoints = snapshot.with_nodes(&self.services);
        // Requests to a new name fail until it is resolved, so the lookup gets a moment before the change is live.
        self.names.look_up(NAMES_LIMIT).await;
        let (revision, routes) = (snapshot.revision(), snapshot.route_count());
        let taken = self.data_plane.read().await.taken();
        let all = async {
            loop {
                // Notifications are not missed from here on.
                let another = taken.notified();
                if self.data_plane.read().await.serves(revision) {
                    return;
                }
                another.await;
            }
        };
        self.data_plane.write().await.apply(snapshot);
        // A worker takes the change between two requests, so this takes microseconds.
        if timeout(TAKEN_LIMIT, all).await.is_err() {
            tracing::error!(revision, "a worker does not apply the change; the worker may hang");
        }
        self.metrics.config_applied(revision, SystemTime::now());
        systemd::notify(&[NotifyState::Status(&format!("serving {routes} routes"))]);
    }
}
