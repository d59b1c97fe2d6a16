//! Messages by webhook about quotas, errors and latencies, by the setting `usage.alerts`.
//!
//! Each alert has a thread of its own, so that a server that does not answer holds up no other. A message that cannot be
//! sent is tried again a few times; what waits beyond a bound is dropped and counted.

mod rule;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use weir_config::Settings;
use weir_config::settings::{AlertOn, UsageAlert};
use weir_plugins::{PlanCounts, QuotaUse, QuotaWatch};
use weir_telemetry::metrics::{AlertStatus, Metrics};
use weir_usage::Usage;

use self::rule::{Repeats, Rule};
use crate::agents::Agents;
use crate::process::priority::stand_back;

/// Interval at which notes of quotas are looked at.
const NOTES: Duration = Duration::from_millis(200);
/// Interval at which errors and latencies are looked at.
const LOOK: Duration = Duration::from_secs(5);
/// Longest time that a server may take for a message.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts at a message, and the pause before the second one; each further pause is twice as long.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);
/// Notes of quotas that wait for an alert at most.
const WAITING: usize = 1000;
/// Most bytes of a server's answer that are read to keep its connection.
const MOST: u64 = 64 << 10;

/// The alerts of this process, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Alerts {
    ends: Arc<AtomicBool>,
}

/// Totals of all alerts.
#[derive(Debug, Default)]
struct Totals {
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl Alerts {
    /// Starts what sends messages.
    ///
    /// # Errors
    /// An alert has a wrong setting, or a thread cannot be started.
    pub(crate) fn start(
        settings: &Settings,
        usage: Option<&Arc<Usage>>,
        counts: &PlanCounts,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let alerts = &settings.usage.alerts;
        let this = Self::default();
        if alerts.is_empty() {
            return Ok(this);
        }
        let totals = Arc::new(Totals::default());
        metrics.watch_alerts(Arc::clone(&totals) as Arc<dyn AlertStatus>);
        let mut quotas: Vec<(Vec<u8>, SyncSender<QuotaUse>)> = Vec::new();
        for (at, alert) in alerts.iter().enumerate() {
            let place = || format!("usage.alerts[{at}]");
            let rule = Rule::of(alert).with_context(place)?;
            if alerts.iter().take(at).any(|other| other.name == alert.name) {
                bail!("{}.name: there is another alert with the name {:?}", place(), alert.name);
            }
            let (sender, notes) = sync_channel(WAITING);
            let source = match alert.on {
                AlertOn::Quota => {
                    quotas.push((rule.shares().to_vec(), sender));
                    None
                }
                _ => Some(usage.cloned().with_context(|| format!("{}.on: needs usage.enabled: true", place()))?),
            };
            let sender = Sender {
                url: alert.url.expose().to_owned(),
                verify: alert.ssl_verify,
                agents: Agents::new(&settings.tls.trusted_certificate, Some(TIMEOUT)),
                totals: Arc::clone(&totals),
                name: alert.name.clone(),
                ends: Arc::clone(&this.ends),
            };
            let watcher = Watcher { sender, rule, source, repeats: Repeats::new(alert.repeat.duration()) };
            spawn("weir-alert", settings.config.nice, move || watcher.run(&notes))?;
        }
        if !quotas.is_empty() {
            let mut shares: Vec<u8> = quotas.iter().flat_map(|(shares, _)| shares.clone()).collect();
            shares.sort_unstable();
            shares.dedup();
            let (watch, ends) = (counts.watch(&shares), Arc::clone(&this.ends));
            spawn("weir-alerts", settings.config.nice, move || hand_out(&watch, &quotas, &totals, &ends))?;
        }
        Ok(this)
    }
}

impl Drop for Alerts {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
    }
}

impl AlertStatus for Totals {
    fn counts(&self) -> [u64; 3] {
        [&self.sent, &self.failed, &self.dropped].map(|count| count.load(Ordering::Relaxed))
    }
}

fn spawn(name: &str, nice: u8, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
        stand_back(nice);
        work();
    });
    started.map(drop).context("cannot start a thread")
}

/// Hands notes of quotas to the alerts that name their shares.
fn hand_out(watch: &QuotaWatch, to: &[(Vec<u8>, SyncSender<QuotaUse>)], totals: &Totals, ends: &AtomicBool) {
    while !ends.load(Ordering::Acquire) {
        while let Some(note) = watch.take() {
            for (_, alert) in to.iter().filter(|(shares, _)| shares.contains(&note.share)) {
                if alert.try_send(note.clone()).is_err() {
                    totals.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        thread::sleep(NOTES);
    }
}

/// State of the thread of an alert.
struct Watcher {
    sender: Sender,
    rule: Rule,
    /// The usage that is looked at; `None` for quotas.
    source: Option<Arc<Usage>>,
    repeats: Repeats,
}

impl Watcher {
    fn run(mut self, notes: &Receiver<QuotaUse>) {
        while !self.sender.ends.load(Ordering::Acquire) {
            let messages: Vec<Value> = match &self.source {
                None => match notes.recv_timeout(NOTES) {
                    Ok(note) => self.rule.of_quota(&note, &mut self.repeats).into_iter().collect(),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                },
                Some(usage) => {
                    thread::sleep(LOOK);
                    match usage.ask(&self.rule.question()) {
                        Ok(answer) => self.rule.of_usage(&answer.text, &mut self.repeats),
                        Err(error) => {
                            tracing::warn!(alert = self.sender.name, %error, "usage cannot be read for an alert");
                            continue;
                        }
                    }
                }
            };
            for message in messages {
                self.sender.send(&message);
            }
        }
    }
}

/// The way to the server of an alert.
struct Sender {
    url: String,
    verify: bool,
    agents: Agents,
    totals: Arc<Totals>,
    name: String,
    ends: Arc<AtomicBool>,
}

impl Sender {
    /// Sends a message, in several attempts.
    fn send(&self, message: &Value) {
        let body = message.to_string();
        let mut pause = PAUSE;
        for attempt in 1..=ATTEMPTS {
            let Err(reason) = self.post(&body) else {
                self.totals.sent.fetch_add(1, Ordering::Relaxed);
                return;
            };
            self.totals.failed.fetch_add(1, Ordering::Relaxed);
            // The address may hold a secret.
            tracing::warn!(alert = self.name, attempt, reason, "a message could not be sent");
            if self.ends.load(Ordering::Acquire) {
                break;
            }
            if attempt < ATTEMPTS {
                thread::sleep(pause);
                pause *= 2;
            }
        }
        self.totals.dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn post(&self, body: &str) -> Result<(), String> {
        let request = self.agents.of(&self.url, self.verify)?.post(&self.url);
        let sent = request.header("Content-Type", "application/json").send(body.as_bytes());
        let mut response = sent.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let _ = response.body_mut().with_config().limit(MOST).read_to_vec();
        if status < 300 { Ok(()) } else { Err(format!("status {status}")) }
    }
}

/// True for an address that messages can be sent to.
fn is_address(alert: &UsageAlert) -> bool {
    url::Url::parse(alert.url.expose()).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}
