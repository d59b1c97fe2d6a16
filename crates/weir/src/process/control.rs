//! The control thread, from binding addresses to the end of the drain.
//!
//! The lines on standard output are an interface for scripts: one line per bound address, then `ready`.
//!
//! ```text
//! listening on http://0.0.0.0:9080
//! metrics on http://127.0.0.1:9091/apisix/prometheus/metrics
//! status on http://127.0.0.1:7085/status
//! admin on http://127.0.0.1:9180/apisix/admin
//! dashboard on http://127.0.0.1:9180/
//! control on http://127.0.0.1:9090/v1
//! 3scale backend on http://127.0.0.1:3000/transactions
//! store in /var/lib/weir
//! ready
//! ```

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{RwLock, watch};
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use weir_admin::{Configuration, Hosts, Pulse, Rest};
use weir_config::Settings;
use weir_config::settings::{Endpoint, Role};
use weir_kong_admin::KongAdmin;
use weir_plugins::PlanCounts;
use weir_plugins::kong::Tokens;
use weir_proxy::{DataPlane, HealthChecks, Snapshot, buffers, give_memory_back};
use weir_store::Memory;
use weir_telemetry::access_log::AccessLogs;
use weir_telemetry::metrics::Metrics;
use weir_usage::Usage;

use crate::discovery;
use crate::process::drain::{self, Drain};
use crate::process::error_log::ErrorLog;
use crate::process::handover::{Files, Predecessor, SharedFiles};
use crate::process::inherited::{Inherited, Listening};
use crate::process::keeper::{Keeper, Keeping};
use crate::process::log_file;
use crate::process::names::Names;
use crate::process::peaks::{Peaks, resident};
use crate::process::runner::Runner;
use crate::process::serving::{InvalidItems, Serving};
use crate::process::signals::{SignalAction, Signals};
use crate::process::systemd::{self, NotifyState};
use crate::process::threescale::ThreescaleBackend;
use crate::process::tyk;
use crate::process::upgrade::{HandedOver, Program, Upgrades};
use crate::process::{acme, log_rotation, ocsp};
use crate::servers::admin::AdminSetup;
use crate::servers::control::{CONTROL, Control};
use crate::servers::insight::{self, Insight};
use crate::servers::kong_admin::KongNode;
use crate::servers::pages::{self, Server};
use crate::servers::server_info::{self, ServerInfo};
use crate::servers::status::{Draining, Status};
use crate::servers::{self, schemas};
use crate::source::changes::Digest;
use crate::source::file_source::FileSource;
use crate::source::live_text::{FileText, LiveText};
use crate::source::reload::Reloader;
use crate::source::rules::Rules;
use crate::source::secrets::Curtain;
use crate::source::watch::Watch;
use crate::stored::data_dir::DataDir;
use crate::stored::etcd;
use crate::stored::gateways::{FAREWELL, Gateways};
use crate::stored::live::{Live, State};

/// Time limit for the workers to start serving. Exceeding the limit ends the process.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for resolving the upstream names of the first configuration. The gateway starts without the addresses of
/// names that take longer.
const NAMES_LIMIT: Duration = Duration::from_secs(5);

/// Interval at which superseded configurations are freed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// The parts of a gateway that are built before any socket is opened.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) program: Program,
    pub(crate) settings: Settings,
    pub(crate) rules: Arc<Rules>,
    /// The first configuration, compiled from `source`.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) source: Source,
    pub(crate) admin: Option<AdminSetup>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access_logs: AccessLogs,
    pub(crate) usage: Option<Arc<Usage>>,
    /// Counts of plans.
    pub(crate) counts: Arc<PlanCounts>,
    pub(crate) threescale: Option<ThreescaleBackend>,
    pub(crate) error_log: Arc<ErrorLog>,
    pub(crate) inherited: Inherited,
    /// Maximum number of connections of each server for metrics, status and control.
    pub(crate) pages: usize,
    /// The pipe to the process that was started first, unless that is this process.
    pub(crate) keeper: Option<OwnedFd>,
    /// Evidence that the configuration files were read in full.
    pub(crate) files: Files,
}

/// The source of the configuration.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one in a process")]
pub(crate) enum Source {
    /// A rules file, with the digest of its resources and its text. `shown` serves the text to an API that exposes it.
    File { watch: Box<Watch>, digest: Box<Digest>, text: FileText, shown: Option<Arc<LiveText>> },
    /// A store on disk or in etcd, and the state read from the store.
    Store { data: DataDir, state: Box<State> },
    /// The Admin API alone, whose changes are kept in memory only.
    Memory { store: Arc<Memory>, state: Box<State> },
}

/// A store, and the configuration in force from it.
type Stored = (DataDir, Live);

impl Source {
    /// True for a data plane of etcd that has neither found a resource there nor has a local copy. A gateway with an Admin
    /// API is ready without a resource, because its resources may arrive over that API.
    fn is_vacant(&self, settings: &Settings) -> bool {
        match self {
            Self::Store { data, state } => {
                data.etcd.is_some() && settings.deployment.role == Role::DataPlane && state.is_empty()
            }
            Self::File { .. } | Self::Memory { .. } => false,
        }
    }

    /// Address of the control API. Without a rules file it is on unless a setting turns it off.
    fn control_endpoint(&self, settings: &Settings) -> Endpoint {
        settings.listen.control.unless_given(match self {
            Self::File { .. } => Endpoint::Off,
            Self::Store { .. } | Self::Memory { .. } => Endpoint::On(CONTROL),
        })
    }

    /// Starts the tasks that change the configuration. Returns the configuration for the APIs, if they expose one, and the
    /// store, if there is one on disk or in etcd.
    fn follow(
        self,
        rules: &Arc<Rules>,
        serving: Serving,
        revision: u64,
        hangup: Signal,
        files: &SharedFiles,
        changing: &mut JoinSet<()>,
    ) -> (Option<Arc<dyn Configuration>>, Option<Stored>) {
        match self {
            Self::File { watch, digest, text, shown } => {
                serving.invalid.set(text.kept.left_out());
                let configuration = shown.clone().map(|live| {
                    let source = Arc::new(FileSource::new(live, rules.name.clone()));
                    changing.spawn(Arc::clone(&source).follow());
                    source as Arc<dyn Configuration>
                });
                let (fingerprint, digest) = (text.fingerprint, *digest);
                let (rules, files) = (Arc::clone(rules), Arc::clone(files));
                let reloader = Reloader { rules, serving, fingerprint, digest, revision, text, live: shown, files };
                changing.spawn(reloader.run(*watch, hangup));
                (configuration, None)
            }
            Self::Store { data, state } => {
                serving.metrics.watch_store(data.status());
                if let Some(etcd) = &data.etcd {
                    serving.metrics.watch_etcd(Arc::new(etcd::Status(etcd.health())));
                }
                serving.invalid.set(state.invalid());
                let live = Live::new(Arc::clone(&data.store), Arc::clone(rules), serving, *state);
                changing.spawn(live.clone().follow());
                changing.spawn(live.clone().reload_on(hangup));
                changing.spawn(live.clone().refresh_secrets());
                if data.damage.is_none() {
                    changing.spawn(data.copy.clone().keep(live.clone()));
                }
                (Some(Arc::new(live.clone())), Some((data, live)))
            }
            Self::Memory { store, state } => {
                let live = Live::new(store, Arc::clone(rules), serving, *state);
                changing.spawn(live.clone().reload_on(hangup));
                changing.spawn(live.clone().refresh_secrets());
                (Some(Arc::new(live)), None)
            }
        }
    }
}

/// Serves until SIGTERM or SIGINT, or until a new process has taken over; then drains. `predecessor` is notified when this
/// process serves. Returns the task of a process that keeps running after the handover.
///
/// # Errors
/// A socket cannot be opened, the workers do not start, or the old process has ended.
pub(crate) async fn serve(
    mut gateway: Gateway,
    predecessor: &mut Option<Predecessor>,
) -> anyhow::Result<Option<Keeper>> {
    let keeping = Keeping::new(gateway.keeper.take())?;
    let _runner = Runner::start(&gateway.settings)?;
    acme::start(&gateway.settings);
    let bound = Bound::open(gateway)?;
    let mut running = Box::pin(bound.start(&keeping, predecessor)).await?;
    let end = running.until_end().await;
    Ok(running.leave(end).await)
}

/// The first step: sockets are open, and workers run without a configuration.
struct Bound {
    gateway: Gateway,
    signals: Signals,
    /// SIGHUP, the request to reload.
    hangup: Signal,
    listening: Listening,
    metrics_page: Option<TcpListener>,
    status_page: Option<TcpListener>,
    admin: Option<(AdminSetup, TcpListener)>,
    control: Option<TcpListener>,
    threescale: Option<(ThreescaleBackend, TcpListener)>,
    data_plane: DataPlane,
}

/// The second step: a configuration is in force, and every server answers.
struct Running<'a> {
    settings: Settings,
    rules: Arc<Rules>,
    /// Locked for writing only by `apply` and while old configurations are freed; never once the drain has begun.
    data_plane: Arc<RwLock<DataPlane>>,
    metrics: Arc<Metrics>,
    access_logs: AccessLogs,
    error_log: Arc<ErrorLog>,
    signals: Signals,
    keeping: &'a Keeping,
    upgrades: Upgrades<'a>,
    /// True when the configuration is kept in memory only.
    is_standalone: bool,
    /// The store on disk or in etcd, if there is one.
    stored: Option<Stored>,
    /// Pause of the Admin API, during which it changes nothing.
    rest: Option<Arc<Rest>>,
    tasks: JoinSet<()>,
    /// Tasks that change the configuration. They end before the others.
    changing: JoinSet<()>,
    /// The Admin API, which may finish its last responses.
    administering: JoinSet<()>,
    /// The task that tells other gateways of this one, and takes that back in the end.
    presence: JoinSet<()>,
    draining: Draining,
    /// Ends the servers for metrics, status and control.
    leaving: watch::Sender<bool>,
    /// Ends the Admin API, with the time that its idle connections stay open.
    admin_leaving: watch::Sender<Option<Duration>>,
}

impl Bound {
    fn open(mut gateway: Gateway) -> anyhow::Result<Self> {
        let signals = Signals::catch()?;
        let hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
        let (listen, mut listening) = (&gateway.settings.listen, Listening::default());
        let mut open = |setting, endpoint| pages::open(setting, endpoint, &mut gateway.inherited, &mut listening);
        let metrics_page = open("listen.metrics", listen.metrics)?;
        let status_page = open("listen.status", listen.status)?;
        let admin_endpoint = gateway.admin.as_ref().map_or(Endpoint::Off, |admin| admin.endpoint);
        let admin_listener = open("listen.admin", admin_endpoint)?;
        let control = open("listen.control", gateway.source.control_endpoint(&gateway.settings))?;
        let threescale = open("listen.threescale_backend", listen.threescale_backend)?;
        let admin = gateway.admin.take().zip(admin_listener);
        let threescale = gateway.threescale.take().zip(threescale);
        let sockets = gateway.inherited.traffic();
        // Inherited sockets that no setting names are closed.
        gateway.inherited = Inherited::default();
        let (logs, usage) = (&gateway.access_logs, gateway.usage.as_ref());
        let mut data_plane = DataPlane::start(&gateway.settings, sockets, &gateway.metrics, logs, usage)?;
        data_plane.discover_from(gateway.rules.compiler.services());
        Ok(Self {
            gateway,
            signals,
            hangup,
            listening,
            metrics_page,
            status_page,
            admin,
            control,
            threescale,
            data_plane,
        })
    }

    /// The lines for standard output, one per bound address.
    fn addresses(&self) -> anyhow::Result<String> {
        let Gateway { settings, snapshot, source, .. } = &self.gateway;
        let mut addresses = String::new();
        for addr in self.data_plane.addresses() {
            let scheme = addr.scheme();
            let self_signed = addr.tls && snapshot.is_self_signed();
            let remark = if self_signed { " (self-signed: there are no ssls)" } else { "" };
            addresses.push_str(&format!("listening on {scheme}://{}{remark}\n", addr.address));
        }
        if let Some(listener) = &self.metrics_page {
            addresses.push_str(&format!("metrics on http://{}{}\n", listener.local_addr()?, settings.metrics.path));
        }
        if let Some(listener) = &self.status_page {
            addresses.push_str(&format!("status on http://{}/status\n", listener.local_addr()?));
        }
        if let Some((admin, listener)) = &self.admin {
            addresses.push_str(&admin.announcement(listener)?);
        }
        if let Some(listener) = &self.control {
            addresses.push_str(&format!("control on http://{}/v1\n", listener.local_addr()?));
        }
        if let Some((_, listener)) = &self.threescale {
            addresses.push_str(&format!("3scale backend on http://{}/transactions\n", listener.local_addr()?));
        }
        if let Source::Store { data, .. } = source
            && data.etcd.is_none()
        {
            let folder = data.folder.path();
            let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
            addresses.push_str(&format!("store in {}\n", folder.display()));
        }
        Ok(addresses)
    }

    async fn start<'a>(
        self,
        keeping: &'a Keeping,
        predecessor: &mut Option<Predecessor>,
    ) -> anyhow::Result<Running<'a>> {
        let addresses = self.addresses()?;
        let Self { gateway, signals, hangup, listening, metrics_page, status_page, .. } = self;
        let (admin, control, threescale, data_plane) = (self.admin, self.control, self.threescale, self.data_plane);
        let Gateway { program, settings, rules, mut snapshot, mut source, metrics, pages, .. } = gateway;
        let (access_logs, error_log, usage) = (gateway.access_logs, gateway.error_log, gateway.usage);
        let counts = gateway.counts;
        let mut tasks = JoinSet::new();
        let workers = data_plane.workers();
        let draining = Draining::default();
        let vacant = Arc::new(AtomicBool::new(source.is_vacant(&settings)));
        let (leaving, left) = watch::channel(false);
        let (admin_leaving, admin_left) = watch::channel(None);
        let invalid = InvalidItems::new(&metrics);
        let checks = Arc::new(HealthChecks::new(rules.compiler.states()));
        tasks.spawn(Arc::clone(&checks).run(data_plane.snapshots(), Arc::clone(&metrics)));
        let traffic = insight::reachable(data_plane.addresses());
        let data_plane = Arc::new(RwLock::new(data_plane));
        if let Some(listener) = metrics_page {
            let (server, path) = (Server::new(listener, pages), settings.metrics.path.clone());
            tasks.spawn(servers::metrics::run(server, left.clone(), Arc::clone(&metrics), path));
        }
        if let Some(listener) = status_page {
            let status = Status {
                data_plane: Arc::clone(&data_plane),
                draining: Arc::clone(&draining),
                vacant: Arc::clone(&vacant),
                invalid: invalid.clone(),
                checks: Arc::clone(&checks),
                prefix: rules.key_prefix(),
            };
            tasks.spawn(servers::status::run(Server::new(listener, pages), left.clone(), Arc::new(status)));
        }
        tasks.spawn(ocsp::keep(settings.clone()));
        if log_rotation::is_on(&settings) {
            tasks.spawn(log_rotation::keep(settings.clone(), access_logs.clone(), Arc::clone(&error_log)));
        }
        tasks.spawn(systemd::watchdog(Arc::clone(&data_plane)));
        announce(&addresses);

        if let (Some(predecessor), Source::Store { data, state }) = (predecessor.as_ref(), &mut source) {
            // A change that the old process accepted after this point would be missing here.
            predecessor.prepared().context("the old process has ended during the upgrade")?;
            if let Some(newer) = data.catch_up(state, &rules).await? {
                snapshot = newer;
            }
        }
        let services = Arc::clone(rules.compiler.services());
        discovery::start(&settings, &rules.compiler, &mut tasks).context("cannot ask registries (discovery)")?;
        snapshot.await_nodes(&services, NAMES_LIMIT).await;
        let _with_endpoints = snapshot.with_nodes(&services);
        let names = look_up_names(&rules, &settings, &mut tasks).await;
        let (revision, routes) = (snapshot.revision(), snapshot.route_count());
        data_plane.write().await.apply(snapshot);
        metrics.config_applied(revision, SystemTime::now());
        workers_ready(&data_plane).await?;
        announce("ready\n");
        tracing::info!(version = env!("CARGO_PKG_VERSION"), workers, routes, "the gateway is up");
        let predecessor = predecessor.take();
        if let Some(predecessor) = &predecessor {
            predecessor.ready().context("the old process has ended during the upgrade")?;
        }
        systemd::notify(&[NotifyState::Ready, NotifyState::Status(&format!("serving {routes} routes"))]);
        if vacant.load(Ordering::Relaxed) {
            tracing::error!(
                prefix = settings.deployment.etcd.prefix,
                "etcd holds no resource and there is no local copy: /status/ready answers 503 until a resource arrives, or \
                 until POST /v1/store/accept at the control API"
            );
        }
        if let Some(predecessor) = predecessor {
            // A change confirmed here would not apply to connections that the old process accepts afterwards.
            let left = spawn_blocking(move || predecessor.left()).await;
            if let Err(error) = left.context("waiting has ended").flatten() {
                tracing::warn!(
                    "the old process may still accept connections and serve them without later changes: {error:#}"
                );
            }
        }

        let files = SharedFiles::new(gateway.files.into());
        let (plane, metrics_of_changes) = (Arc::clone(&data_plane), Arc::clone(&metrics));
        let serving = Serving { data_plane: plane, metrics: metrics_of_changes, names, services, vacant, invalid };
        let is_standalone = matches!(source, Source::Memory { .. });
        let mut changing = JoinSet::new();
        changing.spawn(serving.clone().follow_nodes());
        let (configuration, stored) = source.follow(&rules, serving, revision, hangup, &files, &mut changing);

        let schemas = Arc::new(schemas::all(&settings.plugins));
        let mut administering = JoinSet::new();
        let etcd = stored.as_ref().and_then(|(data, _)| data.etcd.clone());
        let info = ServerInfo::new(etcd.clone());
        let (gateways, mut presence) = (Arc::<Gateways>::default(), JoinSet::new());
        if let Some(etcd) = etcd {
            let info = info.clone();
            let own = async move {
                let mut own = info.page().await;
                own["product"] = "weir".into();
                own
            };
            let tells = settings.deployment.role != Role::DataPlane;
            let mut leaving = admin_left.clone();
            let left = async move { drop(leaving.wait_for(Option::is_some).await) };
            presence.spawn(Arc::clone(&gateways).meet(etcd, own, tells, left));
        }
        let threescale_backend = threescale.as_ref().map(|(backend, _)| Arc::clone(backend.backend()));
        if let Some((backend, listener)) = threescale {
            administering.spawn(backend.serve(listener, admin_left.clone()));
        }
        let mut rest = None;
        if let (Some((admin, listener)), Some(configuration)) = (admin, configuration.clone()) {
            let (at_rest, kong) = (Arc::<Rest>::default(), rules.is_of_entities());
            rest = Some(Arc::clone(&at_rest));
            let pulse = settings.admin.dashboard.then(|| Pulse::new(Arc::clone(&metrics)));
            if let Some(pulse) = &pulse {
                tasks.spawn(Arc::clone(pulse).run());
            }
            let insight = Arc::new(Insight {
                schemas: Arc::clone(&schemas),
                rules: Arc::clone(&rules),
                settings: Arc::new(settings.clone()),
                curtain: Curtain::new(Arc::new(etcd::keyring(&settings)?)),
                snapshots: data_plane.read().await.snapshots(),
                usage,
                counts,
                pulse,
                checks: Arc::clone(&checks),
                traffic,
                tyk: tyk::door(&rules)?,
                threescale: threescale_backend,
                gateways,
                about: server_info::about(workers),
            });
            if kong {
                let store = stored.as_ref().and_then(|(data, _)| data.embedded.clone());
                let node =
                    KongNode::new(store, Arc::clone(&data_plane), settings.kong_answers.clone(), Arc::clone(&checks));
                let tokens = Tokens::of(rules.compiler.states());
                let api = KongAdmin::new(Arc::clone(&configuration), Arc::new(node), tokens);
                changing.spawn(Arc::clone(&api).follow());
                administering.spawn(admin.serve_kong(listener, admin_left, at_rest, api, configuration, insight));
            } else {
                administering.spawn(admin.serve(listener, admin_left, at_rest, configuration, insight, is_standalone));
            }
        }
        if let (Some(listener), Some(configuration)) = (control, configuration) {
            let hosts = Hosts::new(&settings.admin.hosts);
            let live = stored.as_ref().map(|(_, live)| live.clone());
            let (rules, data_plane) = (Arc::clone(&rules), Arc::clone(&data_plane));
            let discovery = settings.discovery.clone();
            let control = Control { schemas, configuration, live, rules, data_plane, checks, info, discovery, hosts };
            tasks.spawn(servers::control::run(Server::new(listener, pages), left, Arc::new(control)));
        }

        let right = stored.as_ref().and_then(|(data, live): &Stored| data.write_right(live, rest.clone()));
        let upgrades = Upgrades::new(program, settings.timeouts.upgrade.duration(), listening, keeping, right, files);
        Ok(Running {
            settings,
            rules,
            data_plane,
            metrics,
            access_logs,
            error_log,
            signals,
            keeping,
            upgrades,
            is_standalone,
            stored,
            rest,
            tasks,
            changing,
            administering,
            presence,
            draining,
            leaving,
            admin_leaving,
        })
    }
}

impl Running<'_> {
    /// Serves until a signal or another process ends it.
    async fn until_end(&mut self) -> End {
        let mut housekeeping = interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let peaks = Arc::<Mutex<Peaks>>::default();
        loop {
            tokio::select! {
                asked = self.signals.next() => match asked {
                    SignalAction::Stop(name) => return End::Signal(name),
                    SignalAction::Reopen => log_file::reopen(&self.access_logs, &self.error_log).await,
                    SignalAction::Upgrade if self.is_standalone => tracing::error!(
                        "SIGUSR2: the configuration is kept in memory only, and a new process would begin without it; \
                         this one goes on"
                    ),
                    SignalAction::Upgrade => self.upgrades.begin(&*self.data_plane.read().await),
                },
                Some(handed_over) = self.upgrades.handed_over(&self.error_log) => return End::HandedOver(handed_over),
                () = self.keeping.lost() => {
                    return End::Signal("none, but the process that was started first is gone");
                }
                _ = housekeeping.tick() => clean_up(&self.data_plane, &self.rules, &self.metrics, &peaks).await,
                Some(ended) = self.tasks.join_next() => log_end(ended),
                Some(ended) = self.changing.join_next() => log_end(ended),
                Some(ended) = self.administering.join_next() => log_end(ended),
            }
        }
    }

    /// Drains. Returns the task of a process that keeps running after the handover.
    async fn leave(mut self, end: End) -> Option<Keeper> {
        let timeouts = &self.settings.timeouts;
        let logs = (&self.access_logs, &self.error_log);
        match end {
            End::Signal(name) => {
                tracing::info!(
                    signal = name,
                    "stopping: requests in flight are finished, new connections are not accepted"
                );
                systemd::notify(&[NotifyState::Stopping, NotifyState::Status("finishing requests in flight")]);
                // A new process that does not serve yet ends with this one, so that no socket is left without a server.
                drop(self.upgrades);
                self.draining.store(true, Ordering::Relaxed);
                self.admin_leaving.send_replace(Some(drain::idle(timeouts, false)));
                let mut drain = Drain::begin(&self.data_plane, timeouts, false, &mut self.signals, logs).await;
                drain.administration(&mut self.administering).await;
                let _ = timeout(FAREWELL, self.presence.join_next()).await;
                end_changes(&mut self.changing, self.stored.as_ref(), false).await;
                drain.traffic().await;
                None
            }
            End::HandedOver(HandedOver { keeper, channel }) => {
                if let (Some(rest), true) = (&self.rest, self.stored.is_some()) {
                    // The Admin API is paused already if the store is local; with etcd no change arrives from here on.
                    rest.begin().await;
                }
                end_changes(&mut self.changing, self.stored.as_ref(), true).await;
                // Waiting changes are refused now.
                drop(self.upgrades);
                self.leaving.send_replace(true);
                self.admin_leaving.send_replace(Some(drain::idle(timeouts, true)));
                let mut drain = Drain::begin(&self.data_plane, timeouts, true, &mut self.signals, logs).await;
                drop(channel);
                drain.administration(&mut self.administering).await;
                let _ = timeout(FAREWELL, self.presence.join_next()).await;
                drain.traffic().await;
                keeper
            }
        }
    }
}

/// Ends the tasks that change the configuration, and releases the store for the new process.
async fn end_changes(changing: &mut JoinSet<()>, stored: Option<&Stored>, handed_over: bool) {
    changing.abort_all();
    if let Some((data, live)) = stored {
        data.leave(live, handed_over).await;
    }
}

/// Starts the resolver of upstream nodes, and waits at most [`NAMES_LIMIT`] for the names of the first configuration.
async fn look_up_names(rules: &Rules, settings: &Settings, tasks: &mut JoinSet<()>) -> Names {
    let (names, requests) = Names::channel();
    match rules.compiler.resolver(&settings.dns) {
        Ok(resolver) => {
            tasks.spawn(resolver.run(requests));
            names.look_up(settings.dns.timeout.duration().min(NAMES_LIMIT)).await;
        }
        Err(error) => {
            drop(requests);
            tracing::error!("names of upstream nodes cannot be resolved, only IP addresses work: {error}");
        }
    }
    names
}

fn log_end(ended: Result<(), JoinError>) {
    let reason = ended.err().map(|error| error.to_string()).unwrap_or_default();
    tracing::error!(reason, "a task of the control thread has ended; the workers go on");
}

/// The reason why the gateway ends.
enum End {
    Signal(&'static str),
    /// Another process serves.
    HandedOver(HandedOver),
}

/// Prints to standard output. A failure is only logged, because a closed standard output does not keep a gateway from
/// serving.
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

/// Frees superseded configurations and the objects that only they used, and returns memory to the system after a peak.
/// Runs on a thread that may block, because freeing a large configuration takes a while.
async fn clean_up(
    data_plane: &Arc<RwLock<DataPlane>>,
    rules: &Arc<Rules>,
    metrics: &Metrics,
    peaks: &Arc<Mutex<Peaks>>,
) {
    metrics.set_limit_keys(weir_plugins::limit_keys());
    metrics.set_buffers(buffers::taken() as u64, buffers::refused());
    let (data_plane, rules, peaks) = (Arc::clone(data_plane), Arc::clone(rules), Arc::clone(peaks));
    let work = spawn_blocking(move || {
        let unused = data_plane.blocking_write().retire();
        let freed = !unused.is_empty();
        if freed {
            drop(unused);
            rules.compiler.sweep();
        }
        let connections = data_plane.blocking_read().connections();
        let mut peaks = peaks.lock().unwrap_or_else(PoisonError::into_inner);
        if peaks.have_passed(buffers::peak(), connections, freed.then(resident)) {
            give_memory_back();
            peaks.settle(resident());
        }
    });
    if let Err(panicked) = work.await {
        tracing::error!(%panicked, "old configurations were not freed");
    }
}
