//! The data plane: workers that accept, match, run plugins and relay, each on its own core.
//!
//! One task per client connection owns the sockets of both sides of an exchange. There is no lock, no channel and no
//! counter shared between cores on the way of a request, and none of it allocates. The configuration is an immutable
//! [`Snapshot`], made by a [`Compiler`] away from the workers and handed to all of them whole.

mod chain;
mod clock;
mod compile;
mod conn;
mod explain;
mod listener;
mod options;
mod phases;
mod real_ip;
mod relay;
mod snapshot;
#[allow(unsafe_code, reason = "the one place: registering descriptors with the reactor")]
mod sys;
mod timer;
mod tls;
mod upstream;
mod worker;

pub use clock::now_us;
pub use compile::{Catalog, Compiled, Compiler, Definitions};
pub use explain::{Candidate, ExplainRequest, Explanation, PlannedPlugin, PlannedUpstream};
pub use snapshot::Snapshot;
pub use upstream::resolve::Resolver;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use weir_config::Settings;
use weir_config::settings::{ListenAddr, Workers};
use weir_telemetry::access_log::AccessLog;
use weir_telemetry::metrics::Metrics;

use options::Options;
use worker::{Shared, Start};

/// An address that traffic is accepted at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The address; port 0 of the settings has become a real one.
    pub address: ListenAddr,
    /// Whether it speaks TLS.
    pub tls: bool,
}

/// The running workers.
#[derive(Debug)]
pub struct DataPlane {
    addresses: Vec<Bound>,
    workers: Vec<Running>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    drain: watch::Sender<bool>,
    shared: Arc<Shared>,
    /// Snapshots that workers may still use; freed here and never by a worker.
    retired: Vec<Arc<Snapshot>>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<io::Result<()>>,
    /// The revision it serves with; 0: none yet.
    revision: Arc<AtomicU64>,
}

impl DataPlane {
    /// Binds the listeners and starts the workers. Nothing is accepted before the first snapshot.
    ///
    /// # Errors
    /// An address cannot be bound, or a thread not be started.
    pub fn start(settings: &Settings, metrics: &Arc<Metrics>, access_log: Option<&Arc<AccessLog>>) -> io::Result<Self> {
        let count = match settings.workers {
            Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            Workers::Count(n) => usize::from(n.get()),
        };
        let listen = &settings.listen;
        let wanted = listen
            .http
            .iter()
            .map(|listener| (listener, false))
            .chain(listen.https.iter().map(|listener| (listener, true)));
        let (addresses, by_worker) = listener::bind_all(wanted, count)?;
        let options = Arc::new(Options::new(settings));
        let (snapshots, _) = watch::channel(None);
        let (drain, _) = watch::channel(false);
        let shared = Arc::new(Shared::default());
        let mut workers = Vec::with_capacity(count);
        for (number, listeners) in by_worker.into_iter().enumerate() {
            let revision = Arc::new(AtomicU64::new(0));
            let start = Start {
                options: Arc::clone(&options),
                listeners,
                snapshots: snapshots.subscribe(),
                drain: drain.subscribe(),
                revision: Arc::clone(&revision),
                recorder: metrics.recorder(),
                access_log: access_log.map(|log| log.writer()),
                shared: Arc::clone(&shared),
            };
            let thread = std::thread::Builder::new()
                .name(format!("weir-worker-{number}"))
                .spawn(move || worker::run(start).inspect_err(|error| tracing::error!(%error, "worker ended")))?;
            workers.push(Running { thread, revision });
        }
        Ok(Self { addresses, workers, snapshots, drain, shared, retired: Vec::new() })
    }

    /// The bound addresses, in the order of the settings, those with TLS last.
    #[must_use]
    pub fn addresses(&self) -> &[Bound] {
        &self.addresses
    }

    /// Number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Lets all workers serve the requests to come with this snapshot. Requests in flight end with the one they began with.
    pub fn apply(&mut self, snapshot: Arc<Snapshot>) {
        self.retired.push(Arc::clone(&snapshot));
        self.snapshots.send_replace(Some(snapshot));
    }

    /// Whether all workers serve with a configuration.
    ///
    /// # Errors
    /// The number of a worker that does not.
    pub fn ready(&self) -> Result<(), usize> {
        let idle = |w: &Running| w.revision.load(Ordering::Acquire) == 0 || w.thread.is_finished();
        self.workers.iter().position(idle).map_or(Ok(()), Err)
    }

    /// Whether all workers serve with this revision or a later one.
    #[must_use]
    pub fn serves(&self, revision: u64) -> bool {
        self.workers.iter().all(|w| w.revision.load(Ordering::Acquire) >= revision)
    }

    /// Frees the snapshots that no worker uses any more; whether there were any.
    pub fn retire(&mut self) -> bool {
        let before = self.retired.len();
        let current = self.snapshots.borrow().as_ref().map(Arc::as_ptr);
        self.retired.retain(|s| current == Some(Arc::as_ptr(s)) || Arc::strong_count(s) > 1);
        self.retired.len() < before
    }

    /// Stops accepting and waits until the requests in flight are done, at most for `limit`; gives the number of
    /// connections that were cut.
    pub async fn drain(&self, limit: Duration) -> usize {
        self.drain.send_replace(true);
        let open = || self.shared.connections.load(Ordering::Relaxed);
        let deadline = now_us().saturating_add(limit.as_micros() as u64);
        while !self.workers.iter().all(|w| w.thread.is_finished()) && now_us() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let cut = open();
        self.shared.stop.store(true, Ordering::Relaxed);
        while !self.workers.iter().all(|w| w.thread.is_finished()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cut
    }
}
