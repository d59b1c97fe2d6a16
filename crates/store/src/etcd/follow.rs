//! Follows the changes in etcd: whatever happens to members and connections, nothing is missed.

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
use super::layout::Place;
use super::messages::{EventKind, RangeAnswer, WatchAnswer, WatchEvent, WatchLine, stream_fault, under, with};
use super::{Inner, RANGE};
use crate::Event;

const WATCH: &str = "/v3/watch";

/// How often the time before the next try is doubled.
const DOUBLINGS: u32 = 4;

/// One watch, over all connections that it takes.
pub(super) struct Follower {
    shared: Arc<Inner>,
    sender: mpsc::Sender<Event>,
    at: Position,
    /// Sessions that failed in a row.
    failures: u32,
    /// When everything was read last.
    resynced: Option<Instant>,
    /// Whether it was told that etcd is away.
    away: bool,
    /// Whether it was told that a list of plugins is passed over.
    told_plugins: bool,
}

/// What the reader has, or will have when it has read everything that was sent.
#[derive(Debug, Default)]
struct Position {
    revision: u64,
    /// 0 while it is not known.
    cluster: u64,
    /// Keys under the prefix at that revision.
    count: Option<u64>,
    /// The revision at which something that the watch had not told was seen last.
    suspect: Option<u64>,
}

/// How the watching of one member ended.
enum Ended {
    /// Nobody reads any more.
    Closed,
    /// It lasted as long as a watch may.
    Renew,
    /// What changed since the position cannot be learned any more.
    Lost(String),
    /// The member, or the way to it, failed.
    Failed(String),
}

impl Follower {
    pub(super) fn new(shared: Arc<Inner>, after: u64, sender: mpsc::Sender<Event>) -> Self {
        let at = Position { revision: after, ..Position::default() };
        Self { shared, sender, at, failures: 0, resynced: None, away: false, told_plugins: false }
    }

    pub(super) async fn run(mut self) {
        loop {
            let member = self.shared.client.current();
            let ended = self.session(member).await;
            let failure = match ended {
                Ended::Closed => return,
                Ended::Renew => continue,
                Ended::Failed(reason) => Some(reason),
                Ended::Lost(reason) => {
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

    /// How long to wait before the next try: longer when all members have failed.
    fn failed(&mut self, reason: &str) -> Duration {
        self.failures += 1;
        let members = self.shared.options.hosts.len() as u32;
        let first = self.shared.options.resync_delay;
        if self.failures < members {
            tracing::info!(reason, "a member of etcd is left for the next");
            return first / 8;
        }
        self.shared.health.failed();
        if !self.away {
            self.away = true;
            tracing::warn!(reason, "etcd is away; what is live stays live");
        }
        tracing::debug!(reason, "etcd is away");
        first * 2_u32.pow((self.failures / members.max(1) - 1).min(DOUBLINGS))
    }

    /// How long to wait after everything was read: etcd shall not be asked for it again and again.
    fn resynced(&mut self) -> Duration {
        let last = self.resynced.replace(Instant::now());
        let first = self.shared.options.resync_delay;
        if last.is_some_and(|last| last.elapsed() < first * 20) { first * 4 } else { Duration::ZERO }
    }

    fn answered(&mut self, revision: u64) {
        self.failures = 0;
        self.shared.health.answered(revision);
        if self.away {
            self.away = false;
            tracing::info!(revision, "etcd is back");
        }
    }

    /// Reads everything.
    async fn resync(&mut self) -> Result<(), CallError> {
        let listed = self.shared.list(None).await?;
        let revision = listed.listing.revision;
        self.at = Position { revision, cluster: listed.listing.cluster, count: Some(listed.count), suspect: None };
        let _ = self.sender.send(Event::Reset(listed.listing)).await;
        self.reached(revision);
        Ok(())
    }

    /// Watches through one member for as long as it goes.
    async fn session(&mut self, member: usize) -> Ended {
        if self.at.revision == 0 {
            return Ended::Lost("nothing was read yet".to_owned());
        }
        if self.at.count.is_none()
            && let Err(ended) = self.count(member).await
        {
            return ended;
        }
        let mut lines = match self.open(member).await {
            Ok(lines) => lines,
            Err(error) => return Ended::Failed(error.to_string()),
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
                    Err(reason) => return Ended::Failed(reason),
                },
                () = sleep_until(created_until), if !created => {
                    return Ended::Failed("no watch within the time that an answer may take".to_owned());
                }
                () = sleep_until(check) => {
                    if let Err(ended) = self.check(member).await {
                        return ended;
                    }
                    check = Instant::now() + interval.mul_f64(0.9 + fastrand::f64() / 10.0);
                    continue;
                }
                () = sleep_until(renew), if pending.is_empty() => return Ended::Renew,
                () = self.sender.closed() => return Ended::Closed,
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
                // It may only be late; asking it waits until it is not.
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
                // It tells how far it is.
                self.reached(self.at.revision.max(answer.header.revision));
                continue;
            }
            self.shared.health.answered(answer.header.revision);
            if self.tell(std::mem::take(&mut pending)).await.is_err() {
                return Ended::Closed;
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

    fn refused(&self, words: String) -> Ended {
        // A token that a member does not know any more looks the same as a lack of rights.
        if is_stale_token(&words) || words.contains("permission denied") {
            self.shared.client.forget_token();
        }
        Ended::Failed(words)
    }

    fn canceled(&self, answer: &WatchAnswer) -> Ended {
        if answer.compact_revision > 0 {
            let (from, to) = (self.at.revision, answer.compact_revision);
            return Ended::Lost(format!("etcd was compacted to revision {to}, beyond revision {from}"));
        }
        self.refused(format!("etcd ended the watch: {}", answer.cancel_reason))
    }

    /// Learns how many keys there were at the position.
    async fn count(&mut self, member: usize) -> Result<(), Ended> {
        let answer = self.look(member, json!({ "count_only": true, "revision": self.at.revision.to_string() })).await?;
        self.at.cluster = answer.header.cluster_id;
        self.at.count = Some(answer.count);
        Ok(())
    }

    /// Compares what was told with what is there. Whatever the member keeps back is noticed: a change has a later
    /// revision than was told, a deletion makes fewer keys.
    async fn check(&mut self, member: usize) -> Result<(), Ended> {
        let answer = self.look(member, json!({ "count_only": true })).await?;
        if answer.header.cluster_id != self.at.cluster {
            return Err(Ended::Lost("this is another cluster than before".to_owned()));
        }
        if answer.header.revision < self.at.revision {
            return Err(Ended::Lost("etcd was set back to an earlier state".to_owned()));
        }
        self.answered(answer.header.revision);
        if answer.header.revision == self.at.revision {
            if Some(answer.count) != self.at.count {
                return Err(Ended::Lost("keys are missing".to_owned()));
            }
            self.at.suspect = None;
            return Ok(());
        }
        // Something changed: under the prefix, or only elsewhere?
        let latest = json!({ "limit": "1", "sort_target": "MOD", "sort_order": "DESCEND", "keys_only": true });
        let answer = self.look(member, latest).await?;
        let modified = answer.kvs.first().map_or(0, |pair| pair.mod_revision);
        if modified <= self.at.revision && Some(answer.count) == self.at.count {
            self.reached(answer.header.revision);
            self.at.suspect = None;
            return Ok(());
        }
        // It may be on its way; at the next check it must have come.
        if self.at.suspect == Some(self.at.revision) {
            self.at.suspect = None;
            return Err(Ended::Failed("the watch does not tell what changed".to_owned()));
        }
        self.at.suspect = Some(self.at.revision);
        Ok(())
    }

    async fn look(&self, member: usize, more: Value) -> Result<RangeAnswer, Ended> {
        let message = with(under(self.shared.layout.root()), more);
        match self.shared.client.at(member, RANGE, &message).await {
            Ok(answer) => Ok(answer),
            Err(CallError::Refused(words)) if words.contains("compacted") || words.contains("future revision") => {
                Err(Ended::Lost(words))
            }
            Err(error) => Err(Ended::Failed(error.to_string())),
        }
    }

    /// Sends events on, those of one revision as one.
    async fn tell(&mut self, events: Vec<WatchEvent>) -> Result<(), Closed> {
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
                match self.shared.layout.place(&event.kv.key) {
                    Place::Resource(key) => {
                        let put = event.kind == EventKind::Put;
                        self.shared.health.changed(key.kind(), revision);
                        changes.push((key, if put { self.shared.item(event.kv) } else { None }));
                    }
                    Place::Plugins => self.pass_over_plugins(),
                    Place::Foreign => {
                        let key = String::from_utf8_lossy(&event.kv.key).into_owned();
                        tracing::debug!(key, "a key in etcd that is no resource is passed over");
                    }
                }
            }
            self.reached(revision);
            if !changes.is_empty() {
                self.sender.send(Event::Committed { revision, changes }).await.map_err(|_| Closed)?;
            }
        }
        Ok(())
    }

    /// Everything up to a revision is told, or about to be.
    fn reached(&mut self, revision: u64) {
        self.at.revision = revision;
        self.shared.health.told.store(revision, Ordering::Relaxed);
    }

    fn pass_over_plugins(&mut self) {
        if !self.told_plugins {
            self.told_plugins = true;
            tracing::info!("the list of plugins in etcd is passed over: all plugins of this gateway are on");
        }
    }
}

/// Nobody reads any more.
struct Closed;

/// The lines of a watch.
pub(super) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    /// Bytes of the buffer that hold no line end.
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

    /// The next line. Nothing is lost when it is given up and asked for again.
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
