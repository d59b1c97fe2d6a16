//! Follows the changes in etcd without losing any, whatever happens to members and connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::{CallError, Client, MAX_ANSWER, is_stale_token};
use super::layout::EtcdKey;
use super::messages::{EventKind, RangeAnswer, WatchAnswer, WatchEvent, WatchLine, stream_fault, under, with};
use super::{Inner, RANGE};
use crate::Event;

const WATCH: &str = "/v3/watch";

/// Number of times that the delay before the next attempt is doubled.
const DOUBLINGS: u32 = 4;

/// One watch, over all connections that it uses.
pub(super) struct Follower {
    shared: Arc<Inner>,
    sender: mpsc::Sender<Event>,
    at: Position,
    /// Number of consecutive failed sessions.
    failures: u32,
    /// Time of the last full listing.
    resynced: Option<Instant>,
    /// True once the loss of etcd has been logged.
    has_logged_loss: bool,
    /// True once the log says that a list of plugins is ignored.
    has_logged_plugins: bool,
}

/// State that the reader has reached, or will have reached when it has read all sent events.
#[derive(Debug, Default)]
struct Position {
    revision: u64,
    /// 0 while it is unknown.
    cluster: u64,
    /// Number of keys under the prefix at that revision.
    count: Option<u64>,
    /// Revision at which the last check found a change that the watch had not delivered.
    suspect: Option<u64>,
}

/// Reason for the end of a session with one member.
enum SessionEnd {
    /// The reader is gone.
    Closed,
    /// The session has lasted as long as a watch may.
    Renew,
    /// The changes since the position are no longer available.
    Lost(String),
    /// The member, or the connection to it, failed.
    Failed(String),
}

impl Follower {
    pub(super) fn new(shared: Arc<Inner>, after: u64, sender: mpsc::Sender<Event>) -> Self {
        let at = Position { revision: after, ..Position::default() };
        Self { shared, sender, at, failures: 0, resynced: None, has_logged_loss: false, has_logged_plugins: false }
    }

    pub(super) async fn run(mut self) {
        loop {
            let member = self.shared.client.current();
            let ended = self.session(member).await;
            let failure = match ended {
                SessionEnd::Closed => return,
                SessionEnd::Renew => continue,
                SessionEnd::Failed(reason) => Some(reason),
                SessionEnd::Lost(reason) => {
                    if self.at.revision > 0 {
                        tracing::warn!(
                            reason,
                            "what changed in etcd cannot be told one by one; everything is read again"
                        );
                    }
                    match self.resync().await {
                        Ok(()) => None,
                        Err(error) => Some(error.to_string()),
                    }
                }
            };
            let delay = match failure {
                Some(reason) => {
                    self.shared.client.leave(member);
                    self.failed(&reason)
                }
                None => self.resynced(),
            };
            tokio::select! {
                () = sleep(delay.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
                () = self.sender.closed() => return,
            }
        }
    }

    /// Counts a failure and returns the delay before the next attempt; longer if all members have failed.
    fn failed(&mut self, reason: &str) -> Duration {
        self.failures += 1;
        let members = self.shared.options.hosts.len() as u32;
        let first = self.shared.options.resync_delay;
        if self.failures < members {
            tracing::info!(reason, "a member of etcd is left for the next");
            return first / 8;
        }
        self.shared.health.failed();
        if !self.has_logged_loss {
            self.has_logged_loss = true;
            tracing::warn!(reason, "etcd is away; what is live stays live");
        }
        tracing::debug!(reason, "etcd is away");
        first * 2_u32.pow((self.failures / members.max(1) - 1).min(DOUBLINGS))
    }

    /// Returns the delay after a full listing, which limits how often etcd has to serve one.
    fn resynced(&mut self) -> Duration {
        let last = self.resynced.replace(Instant::now());
        let first = self.shared.options.resync_delay;
        if last.is_some_and(|last| last.elapsed() < first * 20) { first * 4 } else { Duration::ZERO }
    }

    fn answered(&mut self, revision: u64) {
        self.failures = 0;
        self.shared.health.answered(revision);
        if self.has_logged_loss {
            self.has_logged_loss = false;
            tracing::info!(revision, "etcd is back");
        }
    }

    /// Lists all resources and restarts from there.
    async fn resync(&mut self) -> Result<(), CallError> {
        let listed = self.shared.list(None).await?;
        let revision = listed.listing.revision;
        self.at = Position { revision, cluster: listed.listing.cluster, count: Some(listed.count), suspect: None };
        let _ = self.sender.send(Event::Reset(listed.listing)).await;
        self.delivered_up_to(revision);
        Ok(())
    }

    /// Watches through one member until the session ends.
    async fn session(&mut self, member: usize) -> SessionEnd {
        if self.at.revision == 0 {
            return SessionEnd::Lost("nothing was read yet".to_owned());
        }
        if self.at.count.is_none()
            && let Err(ended) = self.count(member).await
        {
            return ended;
        }
        let mut lines = match self.open(member).await {
            Ok(lines) => lines,
            Err(error) => return SessionEnd::Failed(error.to_string()),
        };
        let interval = self.shared.options.health_check_interval;
        let begun = Instant::now();
        let renew = begun + self.shared.options.watch_timeout.mul_f64(0.9 + fastrand::f64() / 10.0);
        let created_until = begun + self.shared.client.share();
        let mut created = false;
        let mut check = begun + interval;
        let mut pending: Vec<WatchEvent> = Vec::new();
        loop {
            let line = tokio::select! {
                line = lines.next() => match line {
                    Ok(line) => line,
                    Err(reason) => return SessionEnd::Failed(reason),
                },
                () = sleep_until(created_until), if !created => {
                    return SessionEnd::Failed("no watch within the time that an answer may take".to_owned());
                }
                () = sleep_until(check) => {
                    if let Err(ended) = self.check(member).await {
                        return ended;
                    }
                    check = Instant::now() + interval.mul_f64(0.9 + fastrand::f64() / 10.0);
                    continue;
                }
                () = sleep_until(renew), if pending.is_empty() => return SessionEnd::Renew,
                () = self.sender.closed() => return SessionEnd::Closed,
            };
            let answer = match line {
                WatchLine { result: Some(answer), .. } => answer,
                WatchLine { error, .. } => {
                    let words = stream_fault(&error.unwrap_or_default());
                    return self.refused(words);
                }
            };
            if answer.canceled {
                return self.canceled(&answer);
            }
            if answer.created {
                created = true;
                // The member may only lag; the check waits until it has caught up.
                if (answer.header.revision < self.at.revision || answer.header.cluster_id != self.at.cluster)
                    && let Err(ended) = self.check(member).await
                {
                    return ended;
                }
                self.answered(answer.header.revision);
                continue;
            }
            let quiet = answer.events.is_empty() && pending.is_empty();
            pending.extend(answer.events);
            if answer.fragment {
                continue;
            }
            if quiet {
                // A progress notification: it carries the member's revision.
                self.delivered_up_to(self.at.revision.max(answer.header.revision));
                continue;
            }
            self.shared.health.answered(answer.header.revision);
            if self.deliver(std::mem::take(&mut pending)).await.is_err() {
                return SessionEnd::Closed;
            }
        }
    }

    async fn open(&self, member: usize) -> Result<Lines, CallError> {
        let range = under(self.shared.layout.root());
        let start = (self.at.revision + 1).to_string();
        let more = json!({ "start_revision": start, "progress_notify": true, "fragment": true });
        let message = json!({ "create_request": with(range, more) });
        let until = Instant::now() + self.shared.client.share();
        Lines::open(&self.shared.client, member, &message, until).await
    }

    fn refused(&self, words: String) -> SessionEnd {
        // A token unknown to the member and a lack of rights give the same error.
        if is_stale_token(&words) || words.contains("permission denied") {
            self.shared.client.forget_token();
        }
        SessionEnd::Failed(words)
    }

    fn canceled(&self, answer: &WatchAnswer) -> SessionEnd {
        if answer.compact_revision > 0 {
            let (from, to) = (self.at.revision, answer.compact_revision);
            return SessionEnd::Lost(format!("etcd was compacted to revision {to}, beyond revision {from}"));
        }
        self.refused(format!("etcd ended the watch: {}", answer.cancel_reason))
    }

    /// Counts the keys at the position.
    async fn count(&mut self, member: usize) -> Result<(), SessionEnd> {
        let answer = self.look(member, json!({ "count_only": true, "revision": self.at.revision.to_string() })).await?;
        self.at.cluster = answer.header.cluster_id;
        self.at.count = Some(answer.count);
        Ok(())
    }

    /// Compares the delivered state with the stored state, which detects any event that the member withholds: a
    /// change has a later revision than the delivered one, a deletion reduces the number of keys.
    async fn check(&mut self, member: usize) -> Result<(), SessionEnd> {
        let answer = self.look(member, json!({ "count_only": true })).await?;
        if answer.header.cluster_id != self.at.cluster {
            return Err(SessionEnd::Lost("this is another cluster than before".to_owned()));
        }
        if answer.header.revision < self.at.revision {
            return Err(SessionEnd::Lost("etcd was set back to an earlier state".to_owned()));
        }
        self.answered(answer.header.revision);
        if answer.header.revision == self.at.revision {
            if Some(answer.count) != self.at.count {
                return Err(SessionEnd::Lost("keys are missing".to_owned()));
            }
            self.at.suspect = None;
            return Ok(());
        }
        // Something changed; find out whether under the prefix or elsewhere.
        let latest = json!({ "limit": "1", "sort_target": "MOD", "sort_order": "DESCEND", "keys_only": true });
        let answer = self.look(member, latest).await?;
        let modified = answer.kvs.first().map_or(0, |pair| pair.mod_revision);
        if modified <= self.at.revision && Some(answer.count) == self.at.count {
            self.delivered_up_to(answer.header.revision);
            self.at.suspect = None;
            return Ok(());
        }
        // The event may be on its way; it must have arrived by the next check.
        if self.at.suspect == Some(self.at.revision) {
            self.at.suspect = None;
            return Err(SessionEnd::Failed("the watch does not tell what changed".to_owned()));
        }
        self.at.suspect = Some(self.at.revision);
        Ok(())
    }

    async fn look(&self, member: usize, more: Value) -> Result<RangeAnswer, SessionEnd> {
        let message = with(under(self.shared.layout.root()), more);
        match self.shared.client.at(member, RANGE, &message).await {
            Ok(answer) => Ok(answer),
            Err(CallError::Refused(words)) if words.contains("compacted") || words.contains("future revision") => {
                Err(SessionEnd::Lost(words))
            }
            Err(error) => Err(SessionEnd::Failed(error.to_string())),
        }
    }

    /// Delivers events, grouped by revision.
    async fn deliver(&mut self, events: Vec<WatchEvent>) -> Result<(), Closed> {
        let mut revisions: BTreeMap<u64, Vec<WatchEvent>> = BTreeMap::new();
        for event in events {
            if event.kv.mod_revision > self.at.revision {
                revisions.entry(event.kv.mod_revision).or_default().push(event);
            }
        }
        for (revision, events) in revisions {
            let mut changes = Vec::with_capacity(events.len());
            for event in events {
                let count = self.at.count.get_or_insert_default();
                match event.kind {
                    EventKind::Delete => *count = count.saturating_sub(1),
                    EventKind::Put if event.kv.create_revision == event.kv.mod_revision => *count += 1,
                    EventKind::Put => {}
                }
                match self.shared.layout.parse(&event.kv.key) {
                    EtcdKey::Resource(key) => {
                        let put = event.kind == EventKind::Put;
                        self.shared.health.changed(key.kind(), revision);
                        changes.push((key, if put { self.shared.item(event.kv) } else { None }));
                    }
                    EtcdKey::Plugins => self.ignore_plugins(),
                    EtcdKey::Foreign => {
                        let key = String::from_utf8_lossy(&event.kv.key).into_owned();
                        tracing::debug!(key, "a key in etcd that is no resource is passed over");
                    }
                }
            }
            self.delivered_up_to(revision);
            if !changes.is_empty() {
                self.sender.send(Event::Committed { revision, changes }).await.map_err(|_| Closed)?;
            }
        }
        Ok(())
    }

    /// Records that everything up to a revision has been delivered, or is about to be.
    fn delivered_up_to(&mut self, revision: u64) {
        self.at.revision = revision;
        self.shared.health.delivered.store(revision, Ordering::Relaxed);
    }

    fn ignore_plugins(&mut self) {
        if !self.has_logged_plugins {
            self.has_logged_plugins = true;
            tracing::info!("the list of plugins in etcd is passed over: all plugins of this gateway are on");
        }
    }
}

/// The reader is gone.
struct Closed;

/// Lines of a watch's response.
pub(super) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    /// Number of bytes at the start of the buffer known to hold no line end.
    scanned: usize,
}

impl Lines {
    /// Sets up a watch at a member.
    pub(super) async fn open(
        client: &Client,
        member: usize,
        message: &Value,
        until: Instant,
    ) -> Result<Self, CallError> {
        let response = client.open(member, WATCH, message, until).await?;
        Ok(Self { body: response.into_body(), buffer: Vec::new(), scanned: 0 })
    }

    /// Reads the next line. Cancellation safe: no bytes are lost when the future is dropped and `next` called again.
    pub(super) async fn next(&mut self) -> Result<WatchLine, String> {
        loop {
            if let Some(end) = self.buffer.iter().skip(self.scanned).position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(self.scanned + end + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                self.scanned = 0;
                return serde_json::from_slice(&line)
                    .map_err(|error| format!("etcd's watch is not understood: {error}"));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > MAX_ANSWER {
                return Err(CallError::TooLong.to_string());
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(format!("etcd's watch broke off: {error}")),
                None => return Err("etcd ended the watch".to_owned()),
            }
        }
    }
}
