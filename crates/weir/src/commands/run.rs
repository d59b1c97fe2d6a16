//! `weir run`: startup, up to the first request.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use weir_config::load::Ending;
use weir_config::node::Mark;
use weir_config::settings::{
    AccessLog, AccessLogEscape, AccessLogFormat, AccessLogPath, AutoEndpoint, ConfigProvider, Endpoint, ErrorLogPath,
    StreamAccessLog,
};
use weir_config::{Diagnostic, Settings};
use weir_plugins::PlanCounts;
use weir_proxy::{DataPlane, Snapshot, give_memory_back, set_up_allocator};
use weir_store::{Kind, Listing, Memory};
use weir_telemetry::access_log::{AccessLog as Opened, AccessLogOptions, AccessLogs, Format, Target};
use weir_telemetry::metrics::{MetricTypes, Metrics, MetricsOptions};

use crate::alerts::Alerts;
use crate::cli::{FamilyArg, RulesArgs, RunArgs};
use crate::exports::Exports;
use crate::failure::Failure;
use crate::process::control::{self, Gateway, Source};
use crate::process::descriptors;
use crate::process::error_log::ErrorLog;
use crate::process::handover::{Files, Inheritance, Predecessor};
use crate::process::inherited::Inherited;
use crate::process::portal::PortalFile;
use crate::process::priority::{stand_back, yield_to_workers};
use crate::process::threescale::{self, ThreescaleBackend};
use crate::process::upgrade::Program;
use crate::process::{kong_tokens, log_file, plan_counts, reports, systemd, tyk, usage};
use crate::servers::admin::{AdminSetup, KONG_ADMIN};
use crate::servers::server_info::host_name;
use crate::source::findings::log_findings;
use crate::source::live_text::{FileText, LiveText};
use crate::source::rules::{CompiledRules, Rules, is_of_kong};
use crate::source::settings;
use crate::source::watch::Watch;
use crate::stored::data_dir::DataDir;
use crate::stored::etcd::{self, Beginning};
use crate::stored::live::State;

/// Time limit at the end of the process for logs, and for work on other threads that cannot be stopped.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Serves until a signal ends the process. No socket is opened unless the whole configuration is valid.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    set_up_allocator();
    let program = Program::of_this_process()?;
    let (mut predecessor, inheritance) = Predecessor::find()?.unzip();
    let done = run_with(args, program, &mut predecessor, inheritance.unwrap_or_default());
    // The old process of an upgrade logs the failure, in case nobody reads the standard error of this one.
    if let (Err(failure), Some(predecessor)) = (&done, predecessor) {
        predecessor.failed(&failure.text());
    }
    done
}

fn run_with(
    args: &RunArgs,
    program: Program,
    predecessor: &mut Option<Predecessor>,
    inheritance: Inheritance,
) -> Result<(), Failure> {
    let file = args.rules();
    if file.as_ref().is_some_and(RulesArgs::is_stdin) {
        let message = "`run` needs a file that it can read again, not standard input";
        return Err(Failure::Usage(message.to_owned()));
    }
    let loaded = settings::load(&args.settings, args.assignments(), is_of_kong(args))?;
    let settings::Loaded { mut settings, warnings: doubts, ending } = loaded;
    let of_kong = is_of_kong(args);
    let portal = match &file {
        None => PortalFile::open(&settings)?,
        Some(_) => None,
    };
    let file = file.or_else(|| portal.as_ref().map(|(portal, _)| portal.rules()));
    if of_kong && etcd::is_standalone(&settings, file.is_some()) {
        let admin = settings.listen.admin.unless_given(Endpoint::On(KONG_ADMIN));
        settings.listen.admin = AutoEndpoint::Given(admin);
    }
    let without_effect = etcd::settle(&mut settings, file.is_some())?;
    if let Some(file) = &file {
        tyk::listen(&file.file, &mut settings).map_err(Failure::Usage)?;
        threescale::listen(&mut settings).map_err(Failure::Usage)?;
    }
    let Inheritance { mut sockets, keeper, files: before } = inheritance;
    if let (Some(path), Some(ending)) = (&args.settings.settings, ending) {
        not_cut_off(path, ending, before.settings)?;
    }
    sockets.extend(systemd::activated()?);
    let inherited = Inherited::new(sockets, &mut settings.listen)?;
    let descriptors = descriptors::raise();
    if args.family == Some(FamilyArg::Kong) && settings.deployment.config_provider == ConfigProvider::Etcd {
        let message = "--family kong needs the embedded store: deployment.config_provider etcd is not for it";
        return Err(Failure::Usage(message.to_owned()));
    }
    let First { rules, source, snapshot, findings, doubts: of_source } = match &file {
        Some(file) => First::of_file(file, &settings, before.rules)?,
        None if settings.deployment.config_provider == ConfigProvider::Etcd => {
            First::of_etcd(&settings, predecessor.is_some())?
        }
        None if etcd::is_standalone(&settings, false) => First::of_nothing(&settings, args.family)?,
        None => First::of_store(&settings, args.family, predecessor.is_some())?,
    };
    // Reading took several times what is left of it.
    give_memory_back();

    let prepared = match &settings.error_log.path {
        ErrorLogPath::File(path) => log_file::prepare(path),
        ErrorLogPath::Stderr => Ok(()),
    };
    let error_log = prepared
        .and_then(|()| ErrorLog::start(&settings.error_log))
        .with_context(|| format!("cannot open the error log {}", settings.error_log.path))?;
    // Dropped last, so that messages of the shutdown are still written.
    let error_log = Arc::new(error_log);
    log_findings(&doubts);
    let of_portal = portal.as_ref().and_then(|(_, doubt)| doubt.clone());
    for doubt in without_effect.into_iter().chain(of_source).chain(of_portal) {
        tracing::warn!("{doubt}");
    }
    log_findings(&findings);
    if let Source::Store { data, .. } = &source
        && let Some(damage) = &data.damage
    {
        tracing::error!("{damage}");
    }
    let descriptors = descriptors.unwrap_or_else(|error| {
        tracing::warn!("{error}");
        descriptors::limit()
    });

    let wanted = settings.limits.connections;
    let workers = DataPlane::worker_count(&settings) as u64;
    let udp = !settings.listen.udp.is_empty();
    let for_threescale = threescale::connections(&settings, descriptors);
    let open = descriptors::open() + for_threescale as u64;
    let servers = descriptors::share(descriptors, open, workers, udp, &mut settings.limits);
    let connections = settings.limits.connections;
    if connections < wanted {
        tracing::info!(connections, "limits.connections is lowered to what file descriptors (ulimit -n) allow");
    }

    let folder = match &source {
        Source::File { .. } | Source::Memory { .. } => None,
        Source::Store { data, .. } => Some(data.folder.path()),
    };
    let rules_ending = match &source {
        Source::File { text, .. } => Some(text.ending),
        Source::Store { .. } | Source::Memory { .. } => None,
    };
    let files = Files { rules: rules_ending, settings: ending };
    let admin = match rules.is_of_entities() {
        true => AdminSetup::of_kong(&settings, servers.admin)?,
        // A file of Kong's family has no entities that an API could show.
        false if of_kong => {
            if settings.listen.admin.unless_given(Endpoint::Off) != Endpoint::Off {
                tracing::warn!(
                    "listen.admin has no effect: Kong's Admin API is not there beside a file; `weir run --family kong` \
                     has it"
                );
            }
            None
        }
        false => AdminSetup::new(&settings, folder, servers.admin)?,
    };
    let access_logs = AccessLogs {
        requests: open_access_log(&LogSettings::of_requests(&settings))?,
        streams: open_access_log(&LogSettings::of_streams(&settings))?,
    };
    let metrics = Metrics::new(MetricsOptions {
        max_series: settings.limits.metric_series as usize,
        hostname: host_name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        prefix: settings.metrics.prefix.clone(),
        types: match settings.metrics.types {
            weir_config::settings::MetricTypes::Linted => MetricTypes::Linted,
            weir_config::settings::MetricTypes::Apisix => MetricTypes::Apisix,
        },
        ..MetricsOptions::default()
    });
    metrics.set_connections_limit(u64::from(connections));
    for (_, log) in access_logs.open() {
        metrics.watch_access_log(log);
    }
    reports::start(&settings).context("cannot start what sends reports (reports)")?;
    let usage = usage::open(&settings, &metrics).context("cannot record usage (usage.enabled)")?;
    let exports = match &usage {
        Some(_) => Exports::start(&settings, &usage::path(&settings), &metrics).context("cannot export usage")?,
        None if settings.usage.exports.is_empty() => Exports::default(),
        None => return Err(Failure::Other(anyhow::anyhow!("usage.exports: needs usage.enabled: true"))),
    };
    let counts =
        plan_counts::start(&settings, &rules, &metrics).context("cannot keep counts of plans (plans.keep_counts)")?;
    let plan_counts = PlanCounts::of(rules.compiler.states(), settings.limits.limit_keys as usize);
    let alerts = Alerts::start(&settings, usage.as_ref(), &plan_counts, &metrics).context("cannot start alerts")?;
    let threescale = ThreescaleBackend::open(&settings, &plan_counts, for_threescale, predecessor.is_some())
        .context("cannot start the backend of 3scale (listen.threescale_backend)")?;
    let flush = settings.reports.flush.duration();
    let nice = settings.config.nice;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("weir-control")
        // Applies to the threads that may block. The control thread keeps its priority, because its tasks are short and
        // include health checks.
        .on_thread_start(move || stand_back(nice))
        .build()
        .context("cannot start the control thread")?;
    let blocking = runtime.handle().clone();
    rules.apis.start(&metrics, Box::new(move |work| drop(blocking.spawn_blocking(work))));
    let predecessor_writes = predecessor.is_some();
    tyk::start(&settings, &rules, runtime.handle(), predecessor_writes).context("cannot start the gateway API")?;
    let has_tokens = rules.is_of_entities() && matches!(source, Source::Store { .. });
    let tokens = has_tokens.then(|| kong_tokens::start(&settings, &rules, runtime.handle(), predecessor_writes));
    let tokens = tokens.transpose().context("cannot keep tokens of oauth2")?;
    if let Some((portal, _)) = portal {
        portal.watch(runtime.handle());
    }
    let gateway = Gateway {
        program,
        snapshot,
        source,
        admin,
        rules: Arc::new(rules),
        settings,
        metrics,
        access_logs: access_logs.clone(),
        usage: usage.clone(),
        counts: plan_counts,
        threescale,
        error_log: Arc::clone(&error_log),
        inherited,
        pages: servers.pages,
        keeper,
        files,
    };
    yield_to_workers(nice);
    let ended = runtime.block_on(control::serve(gateway, predecessor));
    for (name, log) in access_logs.open() {
        if !log.close(LAST_WRITES) {
            tracing::error!("{name} could not be written to its end");
        }
    }
    if usage.is_some_and(|usage| !usage.close(LAST_WRITES)) {
        tracing::error!("the last usage could not be written");
    }
    if let Some(tokens) = tokens {
        let closing = async { tokio::time::timeout(LAST_WRITES, tokio::task::spawn_blocking(|| tokens.close())).await };
        let closed = runtime.block_on(closing);
        if closed.is_err() {
            tracing::error!("the last tokens of oauth2 could not be written");
        }
    }
    exports.close(LAST_WRITES);
    drop(alerts);
    if counts.is_some_and(|counts| !counts.close(LAST_WRITES)) {
        tracing::error!("the last counts of plans could not be written");
    }
    if !weir_telemetry::reports::close(flush) {
        tracing::error!("not all reports could be sent within reports.flush");
    }
    let ended = match ended {
        Ok(Some(keeper)) => runtime.block_on(keeper.wait()),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    runtime.shutdown_timeout(LAST_WRITES);
    ended.map_err(Failure::Other)
}

/// The first configuration, and its source.
struct First {
    rules: Rules,
    source: Source,
    snapshot: Arc<Snapshot>,
    findings: Vec<Diagnostic>,
    /// Warnings about the source.
    doubts: Vec<String>,
}

impl First {
    /// Reads a rules file. `before` is the evidence about the file from the old process of an upgrade.
    fn of_file(file: &RulesArgs, settings: &Settings, before: Option<Ending>) -> Result<Self, Failure> {
        let rules = Rules::new(file, settings)?;
        let watch = Box::new(Watch::new(&file.file, &settings.config));
        let text = rules.read()?;
        let loaded = rules.load(&text);
        let apis = [settings.listen.admin, settings.listen.control];
        let is_shown = apis.into_iter().any(|api| api.unless_given(Endpoint::Off).addr().is_some());
        let mut live = FileText::new(&text, 1, is_shown);
        drop(text);
        not_cut_off(&file.file, live.ending, before)?;
        let ready = rules.compile(loaded, 1).map_err(Failure::Refused)?;
        let CompiledRules { digest, snapshot, findings, left_out_paths, answers, .. } = ready;
        rules.secrets.serve(answers, true);
        live.kept = live.kept.without(left_out_paths);
        let shown = is_shown.then(|| Arc::new(LiveText::new(live.kept.clone())));
        let source = Source::File { watch, digest: Box::new(digest), text: live, shown };
        Ok(Self { rules, source, snapshot, findings, doubts: Vec::new() })
    }

    fn of_store(settings: &Settings, family: Option<FamilyArg>, succeeds: bool) -> Result<Self, Failure> {
        let (data, listing) = DataDir::open(settings, succeeds)?;
        let rules = match family_of(&listing, family, &data)? {
            FamilyArg::Apisix => Rules::of_store(settings),
            FamilyArg::Kong => {
                weir_acme::set_folder(data.folder.path().join("acme"));
                Rules::of_entities(settings)
            }
        };
        let first = State::first(&rules, listing).map_err(Failure::Refused)?;
        let (state, CompiledRules { snapshot, findings, .. }) = unless_worse(first, succeeds)?;
        Ok(Self {
            rules,
            source: Source::Store { data, state: Box::new(state) },
            snapshot,
            findings,
            doubts: Vec::new(),
        })
    }

    /// Starts without resources, until the Admin API receives some.
    fn of_nothing(settings: &Settings, family: Option<FamilyArg>) -> Result<Self, Failure> {
        let rules = match family {
            Some(FamilyArg::Kong) => Rules::of_entities(settings),
            _ => Rules::of_store(settings),
        };
        let (state, CompiledRules { snapshot, findings, .. }) =
            State::first(&rules, Listing::default()).map_err(Failure::Refused)?;
        let source = Source::Memory { store: Arc::new(Memory::default()), state: Box::new(state) };
        Ok(Self { rules, source, snapshot, findings, doubts: Vec::new() })
    }

    fn of_etcd(settings: &Settings, succeeds: bool) -> Result<Self, Failure> {
        let (data, Beginning { listing, before, from_copy, mut doubts, .. }) = DataDir::of_etcd(settings)?;
        let rules = Rules::of_store(settings);
        let revision = listing.revision;
        let first = match (State::first_after(&rules, listing, before.clone()), before) {
            (Err(findings), Some(copy)) => {
                let (of_copy, listing) = (copy.listing.revision, copy.listing.clone());
                let Ok((state, mut ready)) = State::first_after(&rules, listing, Some(copy)) else {
                    return Err(Failure::Refused(findings));
                };
                doubts.push(format!(
                    "revision {revision} of etcd cannot be served; revision {of_copy} is served from the local copy \
                     until it is put right"
                ));
                ready.findings.extend(findings);
                Ok((state, ready, true))
            }
            (first, _) => first.map(|(state, ready)| (state, ready, from_copy)),
        };
        let (state, ready, from_copy) = first.map_err(Failure::Refused)?;
        let (mut state, CompiledRules { snapshot, findings, .. }) = unless_worse((state, ready), succeeds)?;
        if from_copy {
            state.of_copy();
        }
        Ok(Self { rules, source: Source::Store { data, state: Box::new(state) }, snapshot, findings, doubts })
    }
}

/// Family of what is in a store, or the one that was asked for.
fn family_of(listing: &Listing, asked: Option<FamilyArg>, data: &DataDir) -> Result<FamilyArg, Failure> {
    let Some(item) = listing.items.first() else { return Ok(asked.unwrap_or(FamilyArg::Apisix)) };
    let (found, name) = match item.key.kind() {
        Kind::Entities => (FamilyArg::Kong, "Kong"),
        _ => (FamilyArg::Apisix, "APISIX"),
    };
    if asked.is_some_and(|asked| asked != found) {
        let folder = data.folder.path().display();
        let message = format!("the store in {folder} holds resources of {name}'s family: choose another --data-dir");
        return Err(Failure::Usage(message));
    }
    Ok(found)
}

/// Refuses to succeed a process that serves with a configuration that refuses all requests.
fn unless_worse(first: (State, CompiledRules), succeeds: bool) -> Result<(State, CompiledRules), Failure> {
    match first {
        (state, ready) if succeeds && state.refuses_all() => Err(Failure::Refused(ready.findings)),
        first => Ok(first),
    }
}

/// Refuses a file that is cut off, if the old process of an upgrade read a whole one.
fn not_cut_off(file: &Path, ending: Ending, before: Option<Ending>) -> Result<(), Failure> {
    let code = ending.code().filter(|_| before.is_some_and(|before| ending < before));
    code.map_or(Ok(()), |code| {
        let error = Diagnostic::error(Mark::NONE, "", code).in_file(&file.display().to_string());
        Err(Failure::Refused(vec![error.with_hint("the process that serves read the whole file")]))
    })
}

/// The settings of one access log.
pub(crate) struct LogSettings<'a> {
    /// Name of their group.
    name: &'static str,
    is_of_streams: bool,
    pub(crate) path: &'a AccessLogPath,
    format: &'a AccessLogFormat,
    escape: AccessLogEscape,
    ring_bytes: usize,
    mode: u32,
}

impl<'a> LogSettings<'a> {
    pub(crate) fn of_requests(settings: &'a Settings) -> Self {
        let AccessLog { path, format, escape, buffer, mode, .. } = &settings.access_log;
        Self {
            name: "access_log",
            is_of_streams: false,
            path,
            format,
            escape: *escape,
            ring_bytes: buffer.as_usize(),
            mode: mode.bits().into(),
        }
    }

    pub(crate) fn of_streams(settings: &'a Settings) -> Self {
        let StreamAccessLog { path, format, escape, buffer, mode } = &settings.stream_access_log;
        Self {
            name: "stream_access_log",
            is_of_streams: true,
            path,
            format,
            escape: *escape,
            ring_bytes: buffer.as_usize(),
            mode: mode.bits().into(),
        }
    }

    /// The format of its lines, and a warning for each unknown variable in it.
    pub(crate) fn format(&self) -> (Format, Vec<String>) {
        let setting = match self.format {
            AccessLogFormat::Json => "json",
            AccessLogFormat::Template(template) => template,
        };
        let is_json = self.escape == AccessLogEscape::Json;
        let parse = if self.is_of_streams { Format::parse_for_streams } else { Format::parse };
        let (format, missing) = parse(setting, is_json);
        let written = if is_json { "nothing" } else { "-" };
        let name = self.name;
        let doubts = missing.iter().map(|reason| format!("{name}.format: {reason}: {written} is written for it"));
        (format, doubts.collect())
    }
}

fn open_access_log(options: &LogSettings<'_>) -> anyhow::Result<Option<Arc<Opened>>> {
    let target = match options.path {
        AccessLogPath::Off => return Ok(None),
        AccessLogPath::Stdout => Target::Stdout,
        AccessLogPath::File(path) => Target::File(path.clone()),
    };
    let (format, doubts) = options.format();
    doubts.iter().for_each(|doubt| tracing::warn!("{doubt}"));
    let prepared = match &target {
        Target::File(path) => log_file::prepare(path),
        _ => Ok(()),
    };
    let (ring_bytes, mode) = (options.ring_bytes, options.mode);
    let log = prepared
        .and_then(|()| Opened::open(AccessLogOptions { target, format, ring_bytes, mode }))
        .with_context(|| format!("cannot open the access log {}", options.path))?;
    Ok(Some(log))
}
