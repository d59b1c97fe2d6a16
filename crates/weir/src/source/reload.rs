//! Reloading of the rules file while the gateway runs.

use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;
use tokio::time::sleep_until;
use weir_config::Diagnostic;
use weir_config::load::Ending;

use crate::process::handover::SharedFiles;
use crate::process::serving::Serving;
use crate::process::systemd::{self, NotifyState};
use crate::source::changes::Digest;
use crate::source::findings::log_findings;
use crate::source::live_text::{FileText, LiveText};
use crate::source::rules::{CompiledRules, Rules, fingerprint};
use crate::source::watch::{Change, Seen, Watch, look};

/// Time for which a file without an end marker has to stay unchanged before it is checked, so that a program that writes
/// it in pieces, with pauses, is done.
const STILL: Duration = Duration::from_secs(1);

/// Reads the file again when it has changed, and publishes the result to the workers.
#[derive(Debug)]
pub(crate) struct Reloader {
    pub(crate) rules: Arc<Rules>,
    pub(crate) serving: Serving,
    /// Fingerprint of the text that was read last, valid or not.
    pub(crate) fingerprint: u64,
    /// Digest of the live rules.
    pub(crate) digest: Digest,
    pub(crate) revision: u64,
    /// The live text.
    pub(crate) text: FileText,
    /// The same text for the APIs, if one shows it.
    pub(crate) live: Option<Arc<LiveText>>,
    /// Evidence about the file for the new process of an upgrade.
    pub(crate) files: SharedFiles,
}

/// A text without an end marker that may still be being written.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    seen: Seen,
    fingerprint: u64,
    /// Time at which the text counts as complete if it stays unchanged.
    until: Instant,
    anyway: bool,
}

/// Result of reading the file.
enum Outcome {
    Same,
    /// The file has to be read again once it has been unchanged for [`STILL`].
    Unsettled {
        seen: Seen,
        fingerprint: u64,
    },
    Compiled {
        ready: Box<CompiledRules>,
        text: FileText,
    },
    Refused {
        findings: Vec<Diagnostic>,
        fingerprint: u64,
    },
    Unreadable(anyhow::Error),
}

impl Reloader {
    /// Follows the file, and SIGHUP, for ever.
    pub(crate) async fn run(mut self, mut watch: Watch, mut hangup: Signal) {
        let mut unsettled: Option<Unsettled> = None;
        loop {
            let settled = async {
                match &unsettled {
                    Some(unsettled) => sleep_until(unsettled.until.into()).await,
                    None => pending().await,
                }
            };
            let change = tokio::select! {
                change = watch.changed() => Some(change),
                () = settled => Some(Change::Content),
                _ = hangup.recv() => None,
                number = self.rules.reloads.asked() => {
                    let before = self.revision;
                    unsettled = self.reload(true, unsettled).await;
                    self.rules.reloads.meet(number, self.revision > before);
                    continue;
                }
                () = self.rules.secrets.due() => {
                    if self.rules.secrets.changed().await {
                        unsettled = self.reload(true, unsettled).await;
                    }
                    continue;
                }
            };
            match change {
                Some(Change::Content) => {
                    let is_asked_for = unsettled.is_some_and(|unsettled| unsettled.anyway);
                    let before = self.revision;
                    unsettled = self.reload(is_asked_for, unsettled).await;
                    if is_asked_for && unsettled.is_none() {
                        self.rules.reloads.note(self.revision > before);
                        systemd::notify(&[NotifyState::Ready]);
                    }
                }
                Some(Change::Vanished) => {
                    let file = &self.rules.name;
                    tracing::warn!(
                        file,
                        "the rules file does not exist any more; the configuration read last stays in force"
                    );
                    unsettled = None;
                }
                None => {
                    systemd::reloading();
                    self.rules.secrets.expire();
                    let before = self.revision;
                    unsettled = self.reload(true, unsettled).await;
                    if unsettled.is_none() {
                        self.rules.reloads.note(self.revision > before);
                        systemd::notify(&[NotifyState::Ready]);
                    }
                }
            }
        }
    }

    /// Reads the file. With `anyway`, an unchanged text is compiled again as well. Returns a text that may still be being
    /// written and has to be read once more; `unsettled` is the one returned by the previous call.
    async fn reload(&mut self, anyway: bool, unsettled: Option<Unsettled>) -> Option<Unsettled> {
        let began = Instant::now();
        let rules = Arc::clone(&self.rules);
        let (known, revision) = ((!anyway).then_some(self.fingerprint), self.revision + 1);
        let (text, shown) = (self.text.clone(), self.live.is_some());
        // A large file takes a while, which must not delay signals, status and metrics.
        let work = tokio::task::spawn_blocking(move || read(&rules, known, &text, unsettled, revision, shown));
        let file = self.rules.name.as_str();
        match work.await {
            Ok(Outcome::Same) => tracing::debug!(file, "the rules file was written with the same content"),
            Ok(Outcome::Unsettled { seen, fingerprint }) => {
                let same = unsettled.filter(|known| known.seen == seen && known.fingerprint == fingerprint);
                let until = same.map_or_else(|| Instant::now() + STILL, |known| known.until);
                return Some(Unsettled { seen, fingerprint, until, anyway });
            }
            Ok(Outcome::Compiled { ready, text }) => {
                self.fingerprint = text.fingerprint;
                self.serving.invalid.set(text.kept.left_out());
                self.take(*ready, began).await;
                if let Some(live) = &self.live {
                    live.set(text.kept.clone());
                }
                self.files.lock().unwrap_or_else(PoisonError::into_inner).rules = Some(text.ending);
                self.text = text;
            }
            Ok(Outcome::Refused { findings, fingerprint }) => {
                self.fingerprint = fingerprint;
                let errors = findings.iter().filter(|found| found.is_error()).count();
                log_findings(&findings);
                tracing::error!(
                    file,
                    errors,
                    live = self.revision,
                    "the rules file is refused; the live configuration stays in force"
                );
                self.serving.metrics.config_rejected();
            }
            Ok(Outcome::Unreadable(error)) => {
                tracing::error!("{error:#}; the live configuration stays in force");
                self.serving.metrics.config_rejected();
            }
            Err(panicked) => {
                tracing::error!(file, %panicked, "the rules file could not be compiled; the live configuration stays in force");
                self.serving.metrics.config_rejected();
            }
        }
        None
    }

    async fn take(&mut self, ready: CompiledRules, began: Instant) {
        self.revision = ready.snapshot.revision();
        let routes = ready.snapshot.route_count();
        self.serving.take(ready.snapshot).await;
        self.rules.secrets.serve(ready.answers, true);
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

/// Reads and compiles the file. Must run on a thread that may block.
fn read(
    rules: &Rules,
    known: Option<u64>,
    live: &FileText,
    unsettled: Option<Unsettled>,
    revision: u64,
    shown: bool,
) -> Outcome {
    let seen = rules.path().map_or(Seen::Nothing, look);
    let text = match rules.read() {
        Ok(text) => text,
        Err(error) => return Outcome::Unreadable(error),
    };
    let fingerprint = fingerprint(&text);
    if known == Some(fingerprint) {
        return Outcome::Same;
    }
    if fingerprint != live.fingerprint {
        if Ending::of(&text) != Ending::Shown {
            let is_still = unsettled.is_some_and(|earlier| {
                let is_same = earlier.seen == seen && earlier.fingerprint == fingerprint;
                is_same && earlier.until <= Instant::now()
            });
            if !is_still {
                return Outcome::Unsettled { seen, fingerprint };
            }
        }
        if let Some(error) = live.refuses(&text) {
            return Outcome::Refused { findings: vec![error.in_file(&rules.name)], fingerprint };
        }
    }
    let loaded = rules.load(&text);
    let mut next = FileText::new(&text, revision, shown);
    drop(text);
    match rules.compile(loaded, revision) {
        Ok(mut ready) => {
            next.kept = next.kept.without(std::mem::take(&mut ready.left_out_paths));
            Outcome::Compiled { ready: Box::new(ready), text: next }
        }
        Err(findings) => {
            // The parts built before the error are dropped, but their keys are still in the compiler.
            rules.compiler.sweep();
            Outcome::Refused { findings, fingerprint }
        }
    }
}
