//! History in etcd: resources at earlier revisions, and the changes in between, until compaction.
//!
//! A range can be read at any revision. Changes are read with a watch that starts in the past, which delivers them in
//! ascending order, while a query wants the latest: so a short span of revisions is read first, and then longer spans
//! before it until there are enough commits.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};

use super::client::CallError;
use super::follow::Lines;
use super::layout::EtcdKey;
use super::messages::{EventKind, RangeAnswer, WatchEvent, WatchLine, stream_fault, under, with};
use super::{Inner, RANGE};
use crate::{Difference, HistoryQuery, Key, Recorded, StoreError};

/// Maximum size of the resources in one answer in bytes; earlier commits are left out.
const MAX_BYTES: usize = 16 << 20;

/// Number of revisions in the first span; each further span is four times as long.
const FIRST_SPAN: u64 = 1000;

/// Silence after which a watch is taken to have delivered everything, if no change says so because the last revisions
/// changed other keys than resources. etcd looks for undelivered events ten times a second.
const SETTLED: Duration = Duration::from_millis(500);

/// Result of replaying a span of revisions.
enum Replayed {
    /// Latest commits in the span, in ascending order; and true if earlier ones did not fit.
    Commits(VecDeque<Recorded>, bool),
    /// etcd has compacted everything before this revision, and possibly the changes at it.
    Compacted(u64),
}

impl Inner {
    /// As [`Store::difference`](crate::Store::difference).
    pub(super) async fn difference(&self, from: u64, to: u64) -> Result<Vec<Difference>, StoreError> {
        let mut old = self.state(from).await?;
        let new = self.state(to).await?;
        let mut differences = Vec::new();
        for (key, new) in new {
            let old = old.remove(&key);
            if old.as_ref() != Some(&new) {
                differences.push(Difference { key, old, new: Some(new) });
            }
        }
        differences.extend(old.into_iter().map(|(key, old)| Difference { key, old: Some(old), new: None }));
        differences.sort_by_cached_key(|difference| difference.key.to_string());
        Ok(differences)
    }

    /// All resources at a revision.
    async fn state(&self, revision: u64) -> Result<BTreeMap<Key, Arc<str>>, StoreError> {
        // etcd reads revision 0 as the present.
        let read = if revision == 0 { None } else { Some(self.pages(self.layout.root(), Some(revision)).await) };
        match read {
            Some(Ok(listed)) => Ok(listed.listing.items.into_iter().map(|item| (item.key, item.value)).collect()),
            Some(Err(error)) if !is_unavailable_revision(&error) => Err(self.unavailable(&error)),
            _ => {
                let (first, last) = self.known().await?.into_inner();
                Err(StoreError::Refused(format!(
                    "revision {revision} is not known: etcd remembers those from {first} to {last}"
                )))
            }
        }
    }

    /// Range of the revisions that can be read.
    async fn known(&self) -> Result<RangeInclusive<u64>, StoreError> {
        let first = with(under(self.layout.root()), json!({ "count_only": true, "revision": "1" }));
        match self.client.ask::<RangeAnswer>(RANGE, &first).await {
            Ok(answer) => Ok(1..=answer.header.revision),
            Err(error) if is_unavailable_revision(&error) => {
                let now = with(under(self.layout.root()), json!({ "count_only": true }));
                let answer: RangeAnswer =
                    self.client.ask(RANGE, &now).await.map_err(|error| self.unavailable(&error))?;
                // Only a watch reports the compacted revision.
                match self.replay(1..=1, &HistoryQuery::default(), 0).await? {
                    Replayed::Compacted(first) => Ok(first..=answer.header.revision),
                    Replayed::Commits(..) => Err(StoreError::Unavailable("etcd tells no oldest revision".to_owned())),
                }
            }
            Err(error) => Err(self.unavailable(&error)),
        }
    }

    /// As [`Store::history`](crate::Store::history).
    pub(super) async fn history(&self, query: HistoryQuery) -> Result<Vec<Recorded>, StoreError> {
        let (oldest, now) = self.known().await?.into_inner();
        // The previous values of resources deleted at the oldest revision may be lost.
        let mut first = (oldest + 1).max((now + 1).saturating_sub(self.options.history));
        let mut last = query.before.map_or(now, |before| before.saturating_sub(1).min(now));
        let (mut found, mut room, mut span) = (Vec::new(), MAX_BYTES, FIRST_SPAN);
        while last >= first && found.len() < query.limit {
            let from = first.max((last + 1).saturating_sub(span));
            let wanted = HistoryQuery { limit: query.limit - found.len(), ..query.clone() };
            match self.replay(from..=last, &wanted, room).await? {
                Replayed::Compacted(to) => first = to.max(from) + 1,
                Replayed::Commits(commits, cut) => {
                    room = room.saturating_sub(commits.iter().map(size).sum());
                    found.extend(commits.into_iter().rev());
                    if cut {
                        break;
                    }
                    (last, span) = (from - 1, span * 4);
                }
            }
        }
        Ok(found)
    }

    /// Latest commits in a span of revisions, from the first member that answers.
    async fn replay(
        &self,
        revisions: RangeInclusive<u64>,
        wanted: &HistoryQuery,
        room: usize,
    ) -> Result<Replayed, StoreError> {
        let mut last = CallError::NotSent("there is no member to ask".to_owned());
        for _ in 0..self.options.hosts.len() {
            let member = self.client.current();
            match self.replay_at(member, &revisions, wanted, room).await {
                Ok(replayed) => return Ok(replayed),
                Err(error) if error.may_succeed_elsewhere() => {
                    self.client.leave(member);
                    last = error;
                }
                Err(error) => return Err(self.unavailable(&error)),
            }
        }
        Err(self.unavailable(&last))
    }

    async fn replay_at(
        &self,
        member: usize,
        revisions: &RangeInclusive<u64>,
        wanted: &HistoryQuery,
        room: usize,
    ) -> Result<Replayed, CallError> {
        let (first, last) = (*revisions.start(), *revisions.end());
        let range = under(self.layout.root());
        let latest = json!({ "limit": "1", "sort_target": "MOD", "sort_order": "DESCEND", "keys_only": true });
        let latest = with(with(range.clone(), latest), json!({ "revision": last.to_string() }));
        // Last visible change. Deletions do not show; they follow it, most often in the same revision.
        let shown = match self.client.at::<RangeAnswer>(member, RANGE, &latest).await {
            Ok(answer) => answer.kvs.first().map_or(0, |pair| pair.mod_revision),
            // The watch reports the bound instead.
            Err(error) if is_unavailable_revision(&error) => u64::MAX,
            Err(error) => return Err(error),
        };
        let more = json!({ "start_revision": first.to_string(), "prev_kv": true, "fragment": true });
        let message = json!({ "create_request": with(range, more) });
        let share = self.client.share();
        let mut lines = Lines::open(&self.client, member, &message, Instant::now() + share).await?;
        let mut gathered = Gathered { wanted, room, commits: VecDeque::new(), bytes: 0, cut: false };
        // Revision up to which all events have arrived.
        let (mut created, mut arrived) = (false, first - 1);
        loop {
            let may_end = created && arrived >= shown;
            let line = match timeout(if may_end { SETTLED } else { share }, lines.next()).await {
                Ok(line) => line.map_err(CallError::NoAnswer)?,
                Err(_) if may_end => break,
                Err(_) => return Err(self.client.too_slow(self.client.member(member))),
            };
            let answer = match line {
                WatchLine { result: Some(answer), .. } => answer,
                WatchLine { error, .. } => return Err(CallError::Refused(stream_fault(&error.unwrap_or_default()))),
            };
            match answer.compact_revision {
                0 if answer.canceled => return Err(CallError::Refused(answer.cancel_reason)),
                0 => {}
                compacted => return Ok(Replayed::Compacted(compacted)),
            }
            created |= answer.created;
            for event in answer.events {
                arrived = arrived.max(event.kv.mod_revision);
                if event.kv.mod_revision <= last
                    && let Err(revision) = self.gather(event, &mut gathered)
                {
                    return Ok(Replayed::Compacted(revision));
                }
            }
            // The next fragment may continue a revision.
            if arrived > last || (arrived == last && !answer.fragment) {
                break;
            }
        }
        gathered.finish_commit();
        Ok(Replayed::Commits(gathered.commits, gathered.cut))
    }

    /// Adds an event to the commit of its revision. `Err` has that revision if the previous value is no longer known.
    fn gather(&self, event: WatchEvent, gathered: &mut Gathered<'_>) -> Result<(), u64> {
        let revision = event.kv.mod_revision;
        let EtcdKey::Resource(key) = self.layout.parse(&event.kv.key) else { return Ok(()) };
        let is_new = event.kind == EventKind::Put && event.kv.create_revision == revision;
        if event.prev_kv.is_none() && !is_new {
            return Err(revision);
        }
        let value = |pair| self.item(pair).map(|item| item.value);
        let old = event.prev_kv.and_then(value);
        let new = if event.kind == EventKind::Put { value(event.kv) } else { None };
        if old.is_some() || new.is_some() {
            gathered.add(revision, Difference { key, old, new });
        }
        Ok(())
    }
}

/// Commits collected for an answer.
struct Gathered<'a> {
    wanted: &'a HistoryQuery,
    room: usize,
    commits: VecDeque<Recorded>,
    /// Size of the commits in bytes, without the one that is still incomplete.
    bytes: usize,
    /// True if some commits did not fit.
    cut: bool,
}

impl Gathered<'_> {
    fn add(&mut self, revision: u64, change: Difference) {
        if let Some(commit) = self.commits.back_mut().filter(|commit| commit.revision == revision) {
            commit.changes.push(change);
            return;
        }
        self.finish_commit();
        self.commits.push_back(Recorded { revision, time: None, author: None, changes: vec![change] });
    }

    /// Finishes the last commit, all of whose changes have arrived.
    fn finish_commit(&mut self) {
        let is_wanted = |commit: &Recorded| {
            self.wanted.key.as_ref().is_none_or(|key| commit.changes.iter().any(|change| change.key == *key))
        };
        match self.commits.back() {
            Some(commit) if is_wanted(commit) => self.bytes += size(commit),
            _ => {
                self.commits.pop_back();
            }
        }
        while self.commits.len() > self.wanted.limit || (self.commits.len() > 1 && self.bytes > self.room) {
            self.cut |= self.commits.len() <= self.wanted.limit;
            self.bytes -= self.commits.pop_front().as_ref().map_or(0, size);
        }
    }
}

fn size(commit: &Recorded) -> usize {
    let side = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
    commit.changes.iter().map(|change| side(&change.old) + side(&change.new)).sum()
}

/// True if the requested revision was compacted, or does not exist yet.
fn is_unavailable_revision(error: &CallError) -> bool {
    matches!(error, CallError::Refused(words) if words.contains("compacted") || words.contains("future revision"))
}
