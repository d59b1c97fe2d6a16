//! The control thread, from binding addresses to the end of the drain.
//!
//! What it prints on standard output is an interface: one line for each bound address, then `ready`.
//!
//! ```text
//! listening on http://0.0.0.0:9080
//! metrics on http://127.0.0.1:9091/apisix/prometheus/metrics
//! status on http://127.0.0.1:7085/status
//! ready
//! ```

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use weir_config::Settings;
use weir_proxy::{DataPlane, Snapshot};
use weir_telemetry::access_log::AccessLog;
use weir_telemetry::metrics::Metrics;

use crate::changes::Digest;
use crate::error_log::ErrorLog;
use crate::names::Names;
use crate::reload::Reloader;
use crate::rules::Rules;
use crate::status_server::Draining;
use crate::watch::Watch;
use crate::{metrics_server, server, status_server};

/// Workers that do not serve after so long never will.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long names may take before the gateway is up without their addresses.
const NAMES_LIMIT: Duration = Duration::from_secs(5);

/// How often old configurations are freed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// How long the error log may take to be opened again.
const REOPEN_LIMIT: Duration = Duration::from_secs(5);

/// Everything that was made before something listens.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) settings: Settings,
    pub(crate) rules: Arc<Rules>,
    /// The first configuration, with the digest of its resources and the fingerprint of its text.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) digest: Digest,
    pub(crate) fingerprint: u64,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    pub(crate) error_log: Arc<ErrorLog>,
    pub(crate) watch: Watch,
}

/// Serves until SIGTERM or SIGINT, then drains.
pub(crate) async fn serve(gateway: Gateway) -> anyhow::Result<()> {
    let Gateway { settings, rules, snapshot, digest, fingerprint, metrics, access_log, error_log, watch } = gateway;
    let mut signals = Signals::catch()?;
    let mut reopen = signal(SignalKind::user_defined1()).context("cannot catch SIGUSR1")?;
    let hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
    let mut tasks = JoinSet::new();

    let metrics_listener = match settings.listen.metrics.addr() {
        Some(addr) => Some(server::bind("listen.metrics", addr).await?),
        None => None,
    };
    let status_listener = match settings.listen.status.addr() {
        Some(addr) => Some(server::bind("listen.status", addr).await?),
        None => None,
    };
    let data_plane = DataPlane::start(&settings, &metrics, access_log.as_ref()).context("listen.http")?;
    let workers = data_plane.workers();
    let draining = Draining::default();

    let mut addresses = String::new();
    for addr in data_plane.addresses() {
        let (scheme, remark) = match addr.tls {
            true if snapshot.is_self_signed() => ("https", " (self-signed: there are no ssls)"),
            true => ("https", ""),
            false => ("http", ""),
        };
        addresses.push_str(&format!("listening on {scheme}://{}{remark}\n", addr.address));
    }
    // Only `apply` and freeing write; nothing does once the drain has begun.
    let data_plane = Arc::new(RwLock::new(data_plane));
    if let Some(listener) = metrics_listener {
        let path = settings.metrics.path.clone();
        addresses.push_str(&format!("metrics on http://{}{path}\n", listener.local_addr()?));
        tasks.spawn(metrics_server::run(listener, Arc::clone(&metrics), path));
    }
    if let Some(listener) = status_listener {
        addresses.push_str(&format!("status on http://{}/status\n", listener.local_addr()?));
        tasks.spawn(status_server::run(listener, Arc::clone(&data_plane), Arc::clone(&draining)));
    }
    announce(&addresses);

    let (names, requests) = Names::channel();
    match rules.compiler.resolver(&settings.dns) {
        Ok(resolver) => {
            tasks.spawn(resolver.run(requests));
            names.look_up(settings.dns.timeout.duration().min(NAMES_LIMIT)).await;
        }
        Err(error) => {
            drop(requests);
            tracing::error!("names of upstream nodes cannot be resolved, only addresses work: {error}");
        }
    }
    let (revision, routes) = (snapshot.revision(), snapshot.route_count());
    data_plane.write().await.apply(snapshot);
    metrics.config_applied(revision, SystemTime::now());
    workers_ready(&data_plane).await?;
    announce("ready\n");
    tracing::info!(version = env!("CARGO_PKG_VERSION"), workers, routes, "the gateway is up");

    let reloader = Reloader {
        rules: Arc::clone(&rules),
        data_plane: Arc::clone(&data_plane),
        metrics: Arc::clone(&metrics),
        names,
        fingerprint,
        digest,
        revision,
    };
    let reloading = tasks.spawn(reloader.run(watch, hangup));

    let mut housekeeping = interval(HOUSEKEEPING);
    housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            name = signals.stop() => {
                tracing::info!(signal = name, "stopping: what is in flight is finished, nothing new is accepted");
                break;
            }
            _ = reopen.recv() => reopen_logs(access_log.as_ref(), &error_log).await,
            _ = housekeeping.tick() => clean_up(&data_plane, &rules, &metrics).await,
            Some(ended) = tasks.join_next() => {
                let reason = ended.err().map(|error| error.to_string()).unwrap_or_default();
                tracing::error!(reason, "a task of the control thread has ended; the workers go on");
            }
        }
    }
    draining.store(true, Ordering::Relaxed);
    reloading.abort();
    drain(&data_plane, settings.timeouts.drain.duration(), &mut signals).await;
    Ok(())
}

/// The signals that end the gateway.
#[derive(Debug)]
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot catch SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot catch SIGINT")?,
        })
    }

    /// Waits for one.
    async fn stop(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Prints for whoever started the gateway. That nobody listens there is no reason not to serve.
fn announce(lines: &str) {
    let mut out = io::stdout();
    if let Err(error) = out.write_all(lines.as_bytes()).and_then(|()| out.flush()) {
        tracing::warn!(%error, "cannot write to standard output");
    }
}

async fn workers_ready(data_plane: &RwLock<DataPlane>) -> anyhow::Result<()> {
    const LOOK: Duration = Duration::from_millis(1);
    let until = Instant::now() + START_LIMIT;
    while let Err(worker) = data_plane.read().await.ready() {
        if Instant::now() > until {
            bail!("worker {worker} did not take the configuration within {} s", START_LIMIT.as_secs());
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Frees old configurations and what only they used. On a thread that may block: a large one takes a while.
async fn clean_up(data_plane: &Arc<RwLock<DataPlane>>, rules: &Arc<Rules>, metrics: &Metrics) {
    metrics.set_limit_keys(weir_plugins::limit_keys());
    let (data_plane, rules) = (Arc::clone(data_plane), Arc::clone(rules));
    let work = tokio::task::spawn_blocking(move || {
        if data_plane.blocking_write().retire() {
            rules.compiler.sweep();
        }
    });
    if let Err(panicked) = work.await {
        tracing::error!(%panicked, "old configurations were not freed");
    }
}

/// On a thread that may block: a write to the old file may be under way.
async fn reopen_logs(access_log: Option<&Arc<AccessLog>>, error_log: &Arc<ErrorLog>) {
    let (access_log, error_log) = (access_log.cloned(), Arc::clone(error_log));
    let work = tokio::task::spawn_blocking(move || {
        let access = access_log.map_or(Ok(()), |log| log.reopen());
        (access, error_log.reopen(REOPEN_LIMIT))
    });
    match work.await {
        Ok((access, error)) => {
            for (log, outcome) in [("access_log", access), ("error_log", error)] {
                if let Err(error) = outcome {
                    tracing::error!(log, %error, "cannot open the log again; it stays where it is");
                }
            }
            tracing::info!("log files were opened again");
        }
        Err(panicked) => tracing::error!(%panicked, "log files were not opened again"),
    }
}

async fn drain(data_plane: &RwLock<DataPlane>, limit: Duration, signals: &mut Signals) {
    let began = Instant::now();
    let drained = async { data_plane.read().await.drain(limit).await };
    tokio::select! {
        cut = drained => {
            let took_ms = began.elapsed().as_millis() as u64;
            if cut == 0 {
                tracing::info!(took_ms, "stopped; everything in flight was finished");
            } else {
                tracing::warn!(took_ms, connections = cut, "stopped; connections were cut at the limit (timeouts.drain)");
            }
        }
        name = signals.stop() => tracing::warn!(signal = name, "stopped at once by a second signal"),
    }
}
