//! Takes over changes of the rules file while the gateway runs.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::signal::unix::Signal;
use tokio::sync::RwLock;
use tokio::time::{MissedTickBehavior, interval_at, sleep};
use weir_config::Diagnostic;
use weir_proxy::DataPlane;
use weir_telemetry::metrics::Metrics;

use crate::changes::Digest;
use crate::names::Names;
use crate::rules::{Ready, Rules, fingerprint};
use crate::systemd::{self, NotifyState};
use crate::watch::{Change, Watch};

/// How long a change may wait for the names of its upstream nodes to be resolved before it is live without them.
const NAMES_LIMIT: Duration = Duration::from_millis(100);

/// How long it is waited for all workers to serve with a change, and how often it is looked.
const TAKEN_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);

/// Findings that are logged of one refused file; `weir check` tells the rest.
const LOGGED: usize = 200;

/// Reads the file again when it changed, and hands what came of it to the workers.
#[derive(Debug)]
pub(crate) struct Reloader {
    pub(crate) rules: Arc<Rules>,
    pub(crate) data_plane: Arc<RwLock<DataPlane>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) names: Names,
    /// Of the text that was read last, whatever came of it.
    pub(crate) fingerprint: u64,
    /// Of the rules that are live, and their revision.
    pub(crate) digest: Digest,
    pub(crate) revision: u64,
}

/// What came of reading the file.
enum Outcome {
    Same,
    Ready { ready: Box<Ready>, fingerprint: u64 },
    Refused { findings: Vec<Diagnostic>, fingerprint: u64 },
    Unreadable(anyhow::Error),
}

impl Reloader {
    /// Follows the file, and SIGHUP, for ever.
    pub(crate) async fn run(mut self, mut watch: Watch, mut hangup: Signal) {
        let ttl = self.rules.secrets.ttl();
        let mut secrets = interval_at(tokio::time::Instant::now() + ttl, ttl);
        secrets.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let change = tokio::select! {
                change = watch.changed() => Some(change),
                _ = hangup.recv() => None,
                _ = secrets.tick() => {
                    self.refresh_secrets().await;
                    continue;
                }
            };
            match change {
                Some(Change::Content) => self.reload(false).await,
                Some(Change::Vanished) => {
                    let file = &self.rules.name;
                    tracing::warn!(file, "the rules file is gone; what was read last stays live");
                }
                None => {
                    systemd::reloading();
                    self.rules.secrets.expire();
                    self.reload(true).await;
                    systemd::notify(&[NotifyState::Ready]);
                }
            }
        }
    }

    /// Asks for secrets again, and takes over those that are other ones now.
    async fn refresh_secrets(&mut self) {
        let rules = Arc::clone(&self.rules);
        let changed = tokio::task::spawn_blocking(move || rules.secrets.refresh()).await;
        if changed.unwrap_or(false) {
            tracing::info!("a secret is another one now, so the rules are read again");
            self.reload(true).await;
        }
    }

    /// With `anyway` the same text is compiled again as well.
    async fn reload(&mut self, anyway: bool) {
        let began = Instant::now();
        let rules = Arc::clone(&self.rules);
        let (known, revision) = (self.fingerprint, self.revision + 1);
        // A large file takes a while, which signals, status and metrics shall not wait for.
        let work = tokio::task::spawn_blocking(move || read(&rules, (!anyway).then_some(known), revision));
        let file = self.rules.name.as_str();
        match work.await {
            Ok(Outcome::Same) => tracing::debug!(file, "the rules file was written, with the same content"),
            Ok(Outcome::Ready { ready, fingerprint }) => {
                self.fingerprint = fingerprint;
                self.take(*ready, began).await;
            }
            Ok(Outcome::Refused { findings, fingerprint }) => {
                self.fingerprint = fingerprint;
                self.metrics.config_rejected();
                let errors = findings.iter().filter(|found| found.is_error()).count();
                log_findings(&findings);
                tracing::error!(
                    file,
                    errors,
                    live = self.revision,
                    "the rules file is refused; what is live stays live"
                );
            }
            Ok(Outcome::Unreadable(error)) => {
                self.metrics.config_rejected();
                tracing::error!("{error:#}; what is live stays live");
            }
            Err(panicked) => {
                self.metrics.config_rejected();
                tracing::error!(file, %panicked, "the rules file could not be compiled; what is live stays live");
            }
        }
    }

    async fn take(&mut self, ready: Ready, began: Instant) {
        // Requests for a new name fail until it has an address, so it gets a moment before it is live.
        self.names.look_up(NAMES_LIMIT).await;
        self.revision = ready.snapshot.revision();
        self.data_plane.write().await.apply(Arc::clone(&ready.snapshot));
        // A worker takes it between two requests, so this is a matter of microseconds.
        let until = Instant::now() + TAKEN_LIMIT;
        while !self.data_plane.read().await.serves(self.revision) {
            if Instant::now() > until {
                tracing::error!(revision = self.revision, "a worker does not take the change; it may hang");
                break;
            }
            sleep(LOOK).await;
        }
        self.metrics.config_applied(self.revision, SystemTime::now());
        log_findings(&ready.findings);
        let changes = self.digest.changes_to(&ready.digest);
        self.digest = ready.digest;
        let routes = ready.snapshot.route_count();
        systemd::notify(&[NotifyState::Status(&format!("serving {routes} routes"))]);
        tracing::info!(
            revision = self.revision,
            routes,
            %changes,
            left_out = ready.left_out,
            took_ms = began.elapsed().as_millis() as u64,
            "a change of the rules is live"
        );
    }
}

/// On a thread that may block.
fn read(rules: &Rules, known: Option<u64>, revision: u64) -> Outcome {
    let text = match rules.read() {
        Ok(text) => text,
        Err(error) => return Outcome::Unreadable(error),
    };
    let fingerprint = fingerprint(&text);
    if known == Some(fingerprint) {
        return Outcome::Same;
    }
    match rules.compile(&text, revision) {
        Ok(ready) => Outcome::Ready { ready: Box::new(ready), fingerprint },
        Err(findings) => {
            // What was built until the error was found is gone, but for its keys.
            rules.compiler.sweep();
            Outcome::Refused { findings, fingerprint }
        }
    }
}

/// Logs findings, errors first when there are too many.
pub(crate) fn log_findings(findings: &[Diagnostic]) {
    let errors = findings.iter().filter(|found| found.is_error());
    let warnings = findings.iter().filter(|found| !found.is_error());
    for found in errors.chain(warnings).take(LOGGED) {
        if found.is_error() {
            tracing::error!("{found}");
        } else {
            tracing::warn!("{found}");
        }
    }
    if findings.len() > LOGGED {
        tracing::error!("{} more findings; `weir check` prints all of them", findings.len() - LOGGED);
    }
}
