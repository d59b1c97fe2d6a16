//! The workers of a process: started, handed snapshots, drained.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, mem};

use tokio::sync::{Notify, mpsc, watch};
use weir_config::Settings;
use weir_config::settings::Workers;
use weir_telemetry::access_log::AccessLogs;
use weir_telemetry::metrics::Metrics;
use weir_usage::Usage;

use crate::acceptor::{self, Start};
use crate::clock::now_us;
use crate::listener::{Bound, HTTP, HTTPS, ListenRequest, ListenSocket, Listeners, SocketFile, TCP, UDP};
use crate::options::Options;
use crate::snapshot::Snapshot;
use crate::spread::Spread;
use crate::upstream::services::Services;
use crate::worker::{Context, Drain, Shared};

/// The running workers.
#[derive(Debug)]
pub struct DataPlane {
    addresses: Arc<[Bound]>,
    files: Vec<SocketFile>,
    workers: Vec<Running>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    drain: watch::Sender<Drain>,
    /// Closed when no worker accepts any more.
    accepting: mpsc::Receiver<Infallible>,
    shared: Arc<Shared>,
    /// Notified by each worker that has taken a snapshot.
    taken: Arc<Notify>,
    /// The listening sockets, for a process that takes them over.
    sockets: Vec<ListenSocket>,
    /// Snapshots that workers may still use; freed here and never by a worker.
    retired: Vec<Arc<Snapshot>>,
    /// The configuration in force as it was compiled; what workers serve with has the nodes that registries know now.
    base: Option<Arc<Snapshot>>,
    /// The nodes of services.
    services: Option<Arc<Services>>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<io::Result<()>>,
    /// The revision it serves with; 0: none yet.
    revision: Arc<AtomicU64>,
    /// Time of the last sign of life, in microseconds of [`now_us`].
    beat: Arc<AtomicU64>,
}

impl DataPlane {
    /// Binds the listeners and starts the workers. Nothing is accepted before the first snapshot. Inherited sockets are
    /// used for the addresses that they were opened for; those of addresses no longer configured are closed.
    ///
    /// # Errors
    /// An address cannot be bound, or a thread not be started.
    pub fn start(
        settings: &Settings,
        inherited: Vec<ListenSocket>,
        metrics: &Arc<Metrics>,
        access_logs: &AccessLogs,
        usage: Option<&Arc<Usage>>,
    ) -> io::Result<Self> {
        let count = Self::worker_count(settings);
        let listen = &settings.listen;
        let plain = listen.http.iter().map(|listener| ListenRequest {
            setting: HTTP,
            listener,
            tls: false,
            streams: false,
            http2: false,
        });
        let http2 = settings.http2.enabled;
        let secure = listen.https.iter().map(|listener| ListenRequest {
            setting: HTTPS,
            listener,
            tls: true,
            streams: false,
            http2,
        });
        let streams = listen.tcp.iter().map(|listener| ListenRequest {
            setting: TCP,
            listener,
            tls: listener.tls,
            streams: true,
            http2: false,
        });
        let datagrams = listen.udp.iter().map(|listener| ListenRequest {
            setting: UDP,
            listener,
            tls: false,
            streams: true,
            http2: false,
        });
        let wanted = plain.chain(secure).chain(streams).chain(datagrams);
        let listeners = Listeners::bind(wanted, count, inherited)?;
        let Listeners { addresses, by_worker, sockets, files, .. } = listeners;
        let addresses: Arc<[Bound]> = addresses.into();
        let options = Arc::new(Options::new(settings));
        weir_plugin::host::buffers::set_limit(settings.limits.buffers.as_usize());
        let (snapshots, _) = watch::channel(None);
        let (drain, _) = watch::channel(Drain::No);
        let (accepts, accepting) = mpsc::channel(1);
        let (spread, arrivals) = Spread::new(count);
        let shared = Arc::new(Shared::new(spread));
        let taken = Arc::<Notify>::default();
        let mut workers = Vec::with_capacity(count);
        for (number, (listeners, arrivals)) in by_worker.into_iter().zip(arrivals).enumerate() {
            let (revision, beat) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(now_us())));
            let context = Context {
                number,
                options: Arc::clone(&options),
                entrances: Arc::clone(&addresses),
                recorder: metrics.recorder(),
                access_log: access_logs.requests.as_ref().map(|log| log.writer()),
                stream_log: access_logs.streams.as_ref().map(|log| log.writer()),
                usage: usage.map(|usage| usage.writer()),
                shared: Arc::clone(&shared),
            };
            let start = Start {
                context,
                listeners,
                arrivals,
                snapshots: snapshots.subscribe(),
                drain: drain.subscribe(),
                accepts: accepts.clone(),
                revision: Arc::clone(&revision),
                taken: Arc::clone(&taken),
                beat: Arc::clone(&beat),
            };
            let thread = std::thread::Builder::new()
                .name(format!("weir-worker-{number}"))
                .spawn(move || acceptor::run(start).inspect_err(|error| tracing::error!(%error, "worker ended")))?;
            workers.push(Running { thread, revision, beat });
        }
        Ok(Self {
            addresses,
            files,
            workers,
            snapshots,
            drain,
            accepting,
            shared,
            taken,
            sockets,
            retired: Vec::new(),
            base: None,
            services: None,
        })
    }

    /// Number of workers with these settings.
    #[must_use]
    pub fn worker_count(settings: &Settings) -> usize {
        match settings.workers {
            Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            Workers::Count(n) => usize::from(n.get()),
        }
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
        if let Some(services) = &self.services {
            services.want(snapshot.services());
        }
        self.retired.push(Arc::clone(&snapshot));
        self.base = Some(snapshot);
        self.renew_nodes();
    }

    /// Takes nodes from here that registries know.
    pub fn discover_from(&mut self, services: &Arc<Services>) {
        self.services = Some(Arc::clone(services));
    }

    /// The configuration in force, with the nodes that registries know now.
    #[must_use]
    pub fn with_nodes(&self) -> Option<Arc<Snapshot>> {
        let (base, services) = self.base.as_ref().zip(self.services.as_ref())?;
        Some(base.with_nodes(services))
    }

    /// Lets all workers serve the requests to come with the nodes that registries know now.
    pub fn renew_nodes(&mut self) {
        let Some(base) = &self.base else { return };
        let snapshot = match &self.services {
            Some(services) => base.with_nodes(services),
            None => Arc::clone(base),
        };
        let is_new = !self.snapshots.borrow().as_ref().is_some_and(|current| Arc::ptr_eq(current, &snapshot));
        if is_new {
            if !Arc::ptr_eq(base, &snapshot) {
                self.retired.push(Arc::clone(&snapshot));
            }
            self.snapshots.send_replace(Some(snapshot));
        }
    }

    /// Follows the snapshots that are applied.
    #[must_use]
    pub fn snapshots(&self) -> watch::Receiver<Option<Arc<Snapshot>>> {
        self.snapshots.subscribe()
    }

    /// Checks that all workers serve with a configuration.
    ///
    /// # Errors
    /// The number of a worker that does not.
    pub fn ready(&self) -> Result<(), usize> {
        let idle = |w: &Running| w.revision.load(Ordering::Acquire) == 0 || w.thread.is_finished();
        self.workers.iter().position(idle).map_or(Ok(()), Err)
    }

    /// True if the current configuration answers every request with 503.
    #[must_use]
    pub fn refuses_all(&self) -> bool {
        self.snapshots.borrow().as_ref().is_some_and(|snapshot| snapshot.refuses_all())
    }

    /// Checks that all workers have shown a sign of life within this time; a worker that has ended after a drain counts
    /// as well. A worker shows one every 50 ms unless something blocks it.
    ///
    /// # Errors
    /// The number of a worker that has not.
    pub fn moves(&self, within: Duration) -> Result<(), usize> {
        let since = now_us().saturating_sub(within.as_micros() as u64);
        let drains = *self.drain.borrow() != Drain::No;
        let stuck = |w: &Running| match w.thread.is_finished() {
            true => !drains,
            false => w.beat.load(Ordering::Relaxed) < since,
        };
        self.workers.iter().position(stuck).map_or(Ok(()), Err)
    }

    /// True if all workers serve with this revision or a later one; those that have ended after a drain count as well.
    #[must_use]
    pub fn serves(&self, revision: u64) -> bool {
        let draining = *self.drain.borrow() > Drain::No;
        let serves = |w: &Running| w.revision.load(Ordering::Acquire) >= revision;
        self.workers.iter().all(|w| serves(w) || (draining && w.thread.is_finished()))
    }

    /// Notified whenever a worker has begun to serve with another snapshot: the moment to call [`DataPlane::serves`].
    #[must_use]
    pub fn taken(&self) -> Arc<Notify> {
        Arc::clone(&self.taken)
    }

    /// The snapshots that no worker uses any more. Dropping the last reference frees a snapshot, which takes a while.
    pub fn retire(&mut self) -> Vec<Arc<Snapshot>> {
        let current = self.snapshots.borrow().clone();
        let mut unused = Vec::new();
        let mut at = 0;
        while let Some(snapshot) = self.retired.get(at) {
            let others = self.retired.iter().chain(&current).filter(|other| !Arc::ptr_eq(other, snapshot));
            // The tables of a configuration are freed with its last snapshot.
            let is_last = !others.into_iter().any(|other| other.shares_tables(snapshot));
            let is_current = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, snapshot));
            let is_free = if is_last { !snapshot.is_used_elsewhere() } else { Arc::strong_count(snapshot) == 1 };
            if is_free && !is_current {
                unused.push(self.retired.swap_remove(at));
            } else {
                at += 1;
            }
        }
        unused
    }

    /// The listening sockets, for another process.
    ///
    /// # Errors
    /// There are too many open files.
    pub fn sockets(&self) -> io::Result<Vec<ListenSocket>> {
        self.sockets.iter().map(ListenSocket::try_clone).collect()
    }

    /// Open client connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Accepts what waits in the queues and nothing after that. Every request from now on is its connection's last.
    /// Files of Unix sockets are removed, unless another process has taken the sockets over. The future waits until no
    /// worker accepts; the workers stop without it.
    pub fn stop_accepting(&mut self, handed_over: bool) -> impl Future<Output = ()> + use<> {
        if !handed_over {
            // Later clients are refused at once, rather than left in a queue that nothing accepts from.
            self.files.drain(..).for_each(|file| file.remove());
        }
        self.sockets.clear();
        self.drain.send_replace(Drain::KeepIdle);
        let mut accepting = mem::replace(&mut self.accepting, mpsc::channel(1).1);
        async move {
            accepting.recv().await;
        }
    }

    /// Closes connections without a request, which [`DataPlane::drain`] does after some time.
    pub fn close_idle(&self) {
        self.drain.send_replace(Drain::CloseIdle);
    }

    /// Waits until the requests in flight are done, at most for `limit`; gives the number of connections that were
    /// cut. Comes after [`DataPlane::stop_accepting`].
    ///
    /// For the time `idle` a connection without a request stays open for one more: a client may be sending it just now.
    pub async fn drain(&self, limit: Duration, idle: Duration) -> usize {
        const LOOK: Duration = Duration::from_millis(5);
        let began = now_us();
        let (idle, limit) = (idle.min(limit).as_micros() as u64, limit.as_micros() as u64);
        while !self.has_ended() && now_us().saturating_sub(began) < idle {
            tokio::time::sleep(LOOK).await;
        }
        self.close_idle();
        while !self.has_ended() && now_us().saturating_sub(began) < limit {
            tokio::time::sleep(LOOK).await;
        }
        let cut = self.connections();
        self.shared.stop.store(true, Ordering::Relaxed);
        while !self.has_ended() {
            tokio::time::sleep(LOOK).await;
        }
        // Socket files that the other process had no use for.
        self.files.iter().for_each(SocketFile::remove_if_dead);
        cut
    }

    /// True if all workers have ended.
    fn has_ended(&self) -> bool {
        self.workers.iter().all(|w| w.thread.is_finished())
    }
}
