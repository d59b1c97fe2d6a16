//! Takes over changes of the rules file while the gateway runs.

use std::sync::Arc;
use std::time::Instant;

use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval_at};
use weir_config::Diagnostic;

use crate::changes::Digest;
use crate::live_text::{Kept, LiveText};
use crate::rules::{Ready, Rules, fingerprint};
use crate::serving::Serving;
use crate::systemd::{self, NotifyState};
use crate::watch::{Change, Watch};

/// Findings that are logged of one refused file; `weir check` tells the rest.
const LOGGED: usize = 200;

/// Reads the file again when it changed, and hands what came of it to the workers.
#[derive(Debug)]
pub(crate) struct Reloader {
    pub(crate) rules: Arc<Rules>,
    pub(crate) serving: Serving,
    /// Of the text that was read last, whatever came of it.
    pub(crate) fingerprint: u64,
    /// Of the rules that are live, and their revision.
    pub(crate) digest: Digest,
    pub(crate) revision: u64,
    /// Where the text of what is live is kept, for whoever asks.
    pub(crate) live: Option<Arc<LiveText>>,
}

/// What came of reading the file.
enum Outcome {
    Same,
    Ready { ready: Box<Ready>, fingerprint: u64, kept: Kept },
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
                    if self.rules.secrets.changed().await {
                        self.reload(true).await;
                    }
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

    /// With `anyway` the same text is compiled again as well.
    async fn reload(&mut self, anyway: bool) {
        let began = Instant::now();
        let rules = Arc::clone(&self.rules);
        let (known, revision) = (self.fingerprint, self.revision + 1);
        // A large file takes a while, which signals, status and metrics shall not wait for.
        let keep = self.live.is_some();
        let work = tokio::task::spawn_blocking(move || read(&rules, (!anyway).then_some(known), revision, keep));
        let file = self.rules.name.as_str();
        match work.await {
            Ok(Outcome::Same) => tracing::debug!(file, "the rules file was written, with the same content"),
            Ok(Outcome::Ready { ready, fingerprint, kept }) => {
                self.fingerprint = fingerprint;
                self.take(*ready, began).await;
                if let Some(live) = &self.live {
                    live.set(kept);
                }
            }
            Ok(Outcome::Refused { findings, fingerprint }) => {
                self.fingerprint = fingerprint;
                let errors = findings.iter().filter(|found| found.is_error()).count();
                log_findings(&findings);
                tracing::error!(
                    file,
                    errors,
                    live = self.revision,
                    "the rules file is refused; what is live stays live"
                );
                self.serving.metrics.config_rejected();
            }
            Ok(Outcome::Unreadable(error)) => {
                tracing::error!("{error:#}; what is live stays live");
                self.serving.metrics.config_rejected();
            }
            Err(panicked) => {
                tracing::error!(file, %panicked, "the rules file could not be compiled; what is live stays live");
                self.serving.metrics.config_rejected();
            }
        }
    }

    async fn take(&mut self, ready: Ready, began: Instant) {
        self.revision = ready.snapshot.revision();
        let routes = ready.snapshot.route_count();
        self.serving.take(ready.snapshot).await;
        log_findings(&ready.findings);
        let changes = self.digest.changes_to(&ready.digest);
        self.digest = ready.digest;
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
fn read(rules: &Rules, known: Option<u64>, revision: u64, keep: bool) -> Outcome {
    let text = match rules.read() {
        Ok(text) => text,
        Err(error) => return Outcome::Unreadable(error),
    };
    let fingerprint = fingerprint(&text);
    if known == Some(fingerprint) {
        return Outcome::Same;
    }
    let loaded = rules.load(&text);
    let kept = if keep { Kept::new(&text, revision) } else { Kept::default() };
    drop(text);
    match rules.compile(loaded, revision) {
        Ok(mut ready) => {
            let gone = std::mem::take(&mut ready.gone);
            Outcome::Ready { ready: Box::new(ready), fingerprint, kept: kept.without(gone) }
        }
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
