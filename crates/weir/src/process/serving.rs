//! Making a compiled configuration live.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use tokio::sync::RwLock;
use tokio::time::timeout;
use weir_proxy::{DataPlane, Snapshot};
use weir_telemetry::metrics::Metrics;

use crate::process::names::Names;
use crate::process::systemd::{self, NotifyState};

/// How long a change may wait for the names of its upstream nodes to be resolved before it is live without them.
const NAMES_LIMIT: Duration = Duration::from_millis(100);

/// How long it is waited for all workers to serve with a change.
const TAKEN_LIMIT: Duration = Duration::from_secs(10);

/// What serves, for whoever changes its configuration.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    pub(crate) data_plane: Arc<RwLock<DataPlane>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) names: Names,
    /// Nothing serves and nothing has served before, so the gateway is not ready.
    pub(crate) vacant: Arc<AtomicBool>,
}

impl Serving {
    /// Hands a configuration to the workers, and waits until all of them serve with it.
    pub(crate) async fn take(&self, snapshot: Arc<Snapshot>) {
        // Requests for a new name fail until it has an address, so it gets a moment before it is live.
        self.names.look_up(NAMES_LIMIT).await;
        let (revision, routes) = (snapshot.revision(), snapshot.route_count());
        let taken = self.data_plane.read().await.taken();
        let all = async {
            loop {
                // From here on nothing is missed.
                let another = taken.notified();
                if self.data_plane.read().await.serves(revision) {
                    return;
                }
                another.await;
            }
        };
        self.data_plane.write().await.apply(snapshot);
        // A worker takes it between two requests, so this is a matter of microseconds.
        if timeout(TAKEN_LIMIT, all).await.is_err() {
            tracing::error!(revision, "a worker does not take the change; it may hang");
        }
        self.metrics.config_applied(revision, SystemTime::now());
        systemd::notify(&[NotifyState::Status(&format!("serving {routes} routes"))]);
    }
}
