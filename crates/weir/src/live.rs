//! The configuration that lives in a store: checked, kept, and served.
//!
//! ```text
//!  change ──► check (load and compile the candidate) ──► store.commit ──► workers ──► answer
//!  store.watch (ttl, other gateways) ────────────────────────────────────────┘
//! ```
//!
//! One change at a time goes this way, so each is checked against what the one before it left. When it is answered for,
//! it is kept and every worker serves with it.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard, mpsc};
use tokio::time::sleep;
use weir_admin::{Changed, Configuration, Refused};
use weir_config::node::Mark;
use weir_config::{Diagnostic, Model, Node, Place};
use weir_proxy::Snapshot;
use weir_store::{Change, Commit, Embedded, Event, Item, Key, Listing, Store, StoreError};

use crate::changes::{Changes, Digest};
use crate::reload::log_findings;
use crate::resources::{Resources, Step, Undo};
use crate::rules::{Ready, Rules};
use crate::serving::Serving;
use crate::systemd::{self, NotifyState};

/// How soon a store is watched again that has ended a watch.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// How often a change is tried that is based on what others have changed meanwhile, and how long the watch has each time
/// to tell of it.
const CATCHING_UP: u32 = 10;
const CATCH_UP: Duration = Duration::from_millis(20);

/// How many resources may change between two snapshots for these to be made from each other. With more of them
/// compiling the whole is hardly slower.
const MOST_STEPS: usize = 10_000;

/// The live configuration.
#[derive(Clone, Debug)]
pub(crate) struct Live(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    /// The store, where other processes may write to it in turn.
    embedded: Option<Arc<Embedded>>,
    rules: Arc<Rules>,
    serving: Serving,
    state: Arc<Mutex<State>>,
    /// Told of every change that is live.
    changed: Notify,
}

/// What serves now.
#[derive(Debug)]
pub(crate) struct State {
    resources: Resources,
    /// The store's revision that they are of.
    revision: u64,
    /// The number of the configuration that the workers have.
    generation: u64,
    /// Resources that are left out, because something is wrong with them.
    broken: HashSet<Key>,
    /// How resources were before something was wrong with them. Those of them that are broken serve like this.
    good: HashMap<Key, Item>,
    digest: Digest,
    /// What serves, to be changed piece by piece; `None`: something is left out, so that the whole is compiled again.
    base: Option<Base>,
    /// What has happened since; `None`: anything.
    steps: Option<Vec<Step>>,
    /// Whether the resources may be others than those of the store.
    unsure: bool,
}

/// Resources that all are as they should be, and what was made of them.
#[derive(Debug)]
struct Base {
    model: Model,
    snapshot: Arc<Snapshot>,
}

/// Nothing is changed as long as this is there: whoever asks for a change waits.
#[derive(Debug)]
pub(crate) struct Paused {
    /// The right to change anything.
    _state: OwnedMutexGuard<State>,
    embedded: Option<Arc<Embedded>>,
}

impl Paused {
    /// Changes are made again.
    pub(crate) fn resume(self) {
        if let Some(embedded) = &self.embedded {
            embedded.resume();
        }
    }
}

/// Resources that may be served.
#[derive(Debug)]
struct Candidate {
    ready: Ready,
    /// Which resource each of the findings is about.
    about: Vec<Option<Key>>,
    /// Resources that do not serve as they stand.
    broken: HashSet<Key>,
    /// Resources that serve as they were before they became broken.
    kept: HashMap<Key, Item>,
    /// The resources in the form in which they can be changed, unless something is left out.
    model: Option<Model>,
    /// Where they differ from the base, when it was made from that.
    places: Option<Vec<Place>>,
}

/// Resources that may not be served.
#[derive(Debug)]
struct Unfit {
    findings: Vec<Diagnostic>,
    /// The resources that they are about.
    broken: HashSet<Key>,
}

impl State {
    /// Resources of a store, checked and compiled for the first time.
    ///
    /// # Errors
    /// Why they cannot be served, not even without those that are wrong.
    pub(crate) fn first(rules: &Rules, listing: Listing) -> Result<(Self, Ready), Vec<Diagnostic>> {
        Self::first_after(rules, listing, Listing::default())
    }

    /// As [`State::first`]; what is wrong serves as it was in `before`.
    pub(crate) fn first_after(
        rules: &Rules,
        listing: Listing,
        before: Listing,
    ) -> Result<(Self, Ready), Vec<Diagnostic>> {
        let mut state = Self::unserved(listing);
        state.good = before.items.into_iter().map(|item| (item.key.clone(), item)).collect();
        let candidate = state.compile(rules)?;
        let (_, ready) = state.took(candidate);
        Ok((state, ready))
    }

    /// Whether a commit leaves what can be served; gives what is doubtful about it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check_alone(
        rules: &Rules,
        listing: Listing,
        commit: &Commit,
    ) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
        // What cannot be served at all can only become better.
        let mut state = match Self::first(rules, listing.clone()) {
            Ok((state, _)) => state,
            Err(_) => Self::unserved(listing),
        };
        match state.check(rules, commit, false) {
            Ok((candidate, _)) => Ok(candidate.warnings_of(commit)),
            Err(Refused::Invalid(findings)) => Err(findings),
            Err(Refused::Store(error)) => Err(vec![Diagnostic::error(Mark::NONE, "", error.to_string())]),
            Err(Refused::ReadOnly(reason)) => Err(vec![Diagnostic::error(Mark::NONE, "", reason)]),
        }
    }

    /// The sizes of the sections: `2 routes, 1 upstream`.
    pub(crate) fn inventory(&self) -> String {
        self.digest.inventory()
    }

    /// How many resources are left out, because something is wrong with them.
    pub(crate) fn left_out(&self) -> usize {
        self.broken.len()
    }

    fn unserved(listing: Listing) -> Self {
        Self {
            revision: listing.revision,
            resources: Resources::new(listing),
            generation: 0,
            broken: HashSet::new(),
            good: HashMap::new(),
            digest: Digest::default(),
            base: None,
            steps: None,
            unsure: false,
        }
    }

    /// Takes note that a candidate serves; tells what has changed with it.
    fn took(&mut self, candidate: Candidate) -> (Changes, Ready) {
        let Candidate { mut ready, broken, kept, model, places, .. } = candidate;
        let changes = match (&model, &places) {
            (Some(model), Some(places)) => self.digest.follow(model, places),
            _ => {
                let before = std::mem::replace(&mut self.digest, std::mem::take(&mut ready.digest));
                before.changes_to(&self.digest)
            }
        };
        self.generation = ready.snapshot.revision();
        (self.broken, self.good) = (broken, kept);
        self.base = model.map(|model| Base { model, snapshot: Arc::clone(&ready.snapshot) });
        self.steps = Some(Vec::new());
        (changes, ready)
    }

    /// Compiles the resources as they are: what has happened since the last time, where that is known.
    fn compile(&self, rules: &Rules) -> Result<Candidate, Vec<Diagnostic>> {
        let steps = self.steps.as_deref().filter(|steps| !steps.is_empty());
        if let Some(Ok(candidate)) = steps.and_then(|steps| self.compile_steps(rules, steps)) {
            return Ok(candidate);
        }
        self.compile_whole(rules, &self.good)
    }

    /// Compiles what some steps have changed of what serves; `None`: it takes the whole.
    fn compile_steps(&self, rules: &Rules, steps: &[Step]) -> Option<Result<Candidate, Vec<Diagnostic>>> {
        let base = self.base.as_ref()?;
        let compiled = match self.resources.steps(steps)? {
            Ok(changes) => rules.compile_changes((&base.model, &base.snapshot), changes, self.generation + 1),
            Err(fault) => Err(vec![fault]),
        };
        Some(compiled.map(|(ready, model, places)| self.clean(ready, model, Some(places))))
    }

    /// A candidate with nothing left out.
    fn clean(&self, ready: Ready, model: Model, places: Option<Vec<Place>>) -> Candidate {
        let about = ready.findings.iter().map(|found| self.resources.named(&found.path)).collect();
        Candidate { ready, about, broken: HashSet::new(), kept: HashMap::new(), model: Some(model), places }
    }

    /// Compiles all resources; those that are wrong as they were when they were good, where that is known.
    fn compile_whole(&self, rules: &Rules, good: &HashMap<Key, Item>) -> Result<Candidate, Vec<Diagnostic>> {
        // Not where something was wrong before: as a rule it still is.
        let pieces = self.resources.pieces().filter(|_| self.broken.is_empty());
        if let Some((ready, model)) = pieces.and_then(|pieces| rules.compile_pieces(pieces, self.generation + 1)) {
            return Ok(self.clean(ready, model, None));
        }
        let outcome = self.attempt(rules, &HashMap::new());
        let broken = match &outcome {
            Ok(candidate) => &candidate.broken,
            Err(unfit) => &unfit.broken,
        };
        let known = |key: &Key| good.get(key).map(|item| (key.clone(), item.clone()));
        let kept: HashMap<Key, Item> = broken.iter().filter_map(known).collect();
        let second = if kept.is_empty() { None } else { self.attempt(rules, &kept).ok() };
        let Some(mut candidate) = second else { return outcome.map_err(|unfit| unfit.findings) };
        // It is told what is wrong with what stands there, and not with what serves in its place.
        match outcome {
            Ok(Candidate { ready, about, .. }) => {
                let wrong = ready.findings.into_iter().zip(about);
                for (found, key) in wrong.filter(|(_, key)| key.as_ref().is_some_and(|key| kept.contains_key(key))) {
                    candidate.ready.findings.push(found);
                    candidate.about.push(key);
                }
            }
            Err(unfit) => {
                candidate.about.extend(unfit.findings.iter().map(|_| None));
                candidate.ready.findings.extend(unfit.findings);
            }
        }
        candidate.ready.left_out += kept.len();
        candidate.broken.extend(kept.keys().cloned());
        candidate.kept = kept;
        Ok(candidate)
    }

    /// Compiles the resources, with others in the place of some.
    fn attempt(&self, rules: &Rules, instead: &HashMap<Key, Item>) -> Result<Candidate, Unfit> {
        let mut assembled = self.resources.assemble(instead);
        let root = std::mem::replace(&mut assembled.root, Node::empty_map());
        let (keys, faults): (Vec<Key>, Vec<Diagnostic>) = std::mem::take(&mut assembled.faults).into_iter().unzip();
        match rules.compile_tree(root, self.generation + 1) {
            Ok(mut ready) => {
                let mut about: Vec<Option<Key>> =
                    ready.findings.iter_mut().map(|found| assembled.name(found)).collect();
                ready.left_out += faults.len();
                ready.findings.extend(faults);
                about.extend(keys.into_iter().map(Some));
                let errors = ready.findings.iter().zip(&about).filter(|(found, _)| found.is_error());
                let broken = errors.filter_map(|(_, key)| key.clone()).collect();
                Ok(Candidate { ready, about, broken, kept: HashMap::new(), model: None, places: None })
            }
            Err(mut findings) => {
                let mut broken: HashSet<Key> = keys.into_iter().collect();
                for found in &mut findings {
                    let key = assembled.name(found);
                    broken.extend(key.filter(|_| found.is_error()));
                }
                findings.extend(faults);
                Err(Unfit { findings, broken })
            }
        }
    }

    /// Checks a commit with everything else. The resources are those of the candidate then; when it is refused they are
    /// as before.
    fn check(&mut self, rules: &Rules, commit: &Commit, force: bool) -> Result<(Candidate, Undo), Refused> {
        for expectation in &commit.expect {
            let modified = self.resources.get(&expectation.key).map(|item| item.modified);
            if modified != expectation.modified {
                return Err(Refused::Store(StoreError::Conflict { key: expectation.key.clone() }));
            }
        }
        let undo = self.resources.change(self.changes_of(commit));
        let refused = match self.compile_commit(rules, commit, force) {
            Ok(candidate) => {
                let touched = |key: &Key| commit.changes.iter().any(|change| change.key == *key);
                // What was wrong before is no reason against a change of something else.
                let counts = |key: &Key| touched(key) || (!force && !self.broken.contains(key));
                if !candidate.broken.iter().any(counts) {
                    return Ok((candidate, undo));
                }
                let Candidate { ready, about, .. } = candidate;
                let all = ready.findings.into_iter().zip(about);
                // That a resource would be left out is no news: it is refused.
                let left_out = |found: &Diagnostic, key: &Key| !found.is_error() && found.path == key.to_string();
                let told = |(found, key): &(Diagnostic, Option<Key>)| {
                    key.as_ref().is_some_and(|key| counts(key) && !left_out(found, key))
                };
                all.filter(told).map(|(found, _)| found).collect()
            }
            Err(findings) => findings,
        };
        self.resources.undo(undo);
        // What was built until then is gone, but for its keys.
        rules.compiler.sweep();
        Err(Refused::Invalid(refused))
    }

    /// Compiles the resources with a commit that is among them already.
    fn compile_commit(&self, rules: &Rules, commit: &Commit, force: bool) -> Result<Candidate, Vec<Diagnostic>> {
        let of_commit = commit.changes.iter().map(Step::of);
        let steps = self.steps.as_ref().map(|steps| steps.iter().cloned().chain(of_commit).collect::<Vec<_>>());
        match steps.and_then(|steps| self.compile_steps(rules, &steps)) {
            // With force something may be left out, which only the whole tells.
            Some(compiled) if compiled.is_ok() || !force => compiled,
            _ => {
                let untouched = |key: &Key| !commit.changes.iter().any(|change| change.key == *key);
                let good = self.good.iter().filter(|(key, _)| untouched(key));
                self.compile_whole(rules, &good.map(|(key, item)| (key.clone(), item.clone())).collect())
            }
        }
    }

    /// What a commit makes of resources.
    fn changes_of(&self, commit: &Commit) -> Vec<(Key, Option<Item>)> {
        let revision = self.revision + 1;
        let state = |change: &Change| {
            let key = change.key.clone();
            let created = self.resources.get(&key).map_or(revision, |item| item.created);
            let value = change.value.clone();
            (change.key.clone(), value.map(|value| Item { key, value, created, modified: revision }))
        };
        commit.changes.iter().map(state).collect()
    }

    /// Takes over everything that a store has, if it has anything new, and compiles it.
    ///
    /// # Errors
    /// Why it cannot be served.
    pub(crate) fn catch_up(&mut self, rules: &Rules, listing: Listing) -> Result<Option<Ready>, Vec<Diagnostic>> {
        if listing.revision == self.revision {
            return Ok(None);
        }
        self.follow(Event::Reset(listing));
        let candidate = self.compile(rules)?;
        Ok(Some(self.took(candidate).1))
    }

    /// Takes over what a store tells; whether that was news.
    fn follow(&mut self, event: Event) -> bool {
        match event {
            Event::Committed { revision, .. } if revision <= self.revision => false,
            Event::Committed { revision, changes } => {
                if let Some(steps) = self.steps.as_mut().filter(|steps| steps.len() + changes.len() < MOST_STEPS) {
                    steps.extend(changes.iter().map(|(key, item)| Step { key: key.clone(), deleted: item.is_none() }));
                } else {
                    self.steps = None;
                }
                for (key, item) in &changes {
                    self.remember(key, item.as_ref());
                }
                self.resources.change(changes);
                self.revision = revision;
                true
            }
            Event::Reset(listing) => {
                let mut there = HashSet::new();
                for item in &listing.items {
                    self.remember(&item.key, Some(item));
                    there.insert(item.key.clone());
                }
                self.good.retain(|key, _| there.contains(key));
                self.revision = listing.revision;
                self.steps = None;
                self.resources = Resources::new(listing);
                true
            }
        }
    }

    /// Keeps what a resource was before a change, in case something is wrong with what it becomes.
    fn remember(&mut self, key: &Key, becomes: Option<&Item>) {
        let Some(becomes) = becomes else {
            self.good.remove(key);
            return;
        };
        if self.broken.contains(key) || self.good.contains_key(key) {
            return;
        }
        if let Some(was) = self.resources.get(key).filter(|was| was.value != becomes.value) {
            let was = was.clone();
            self.good.insert(key.clone(), was);
        }
    }

    /// A commit happened at another revision than the next.
    fn settle(&mut self, commit: &[Key], revision: u64) {
        let assumed = self.revision + 1;
        for key in commit {
            if let Some(mut item) = self.resources.get(key).cloned() {
                let created = if item.created == assumed { revision } else { item.created };
                (item.created, item.modified) = (created, revision);
                self.resources.change([(key.clone(), Some(item))]);
            }
        }
    }

    /// All of it, as it serves.
    fn listing(&self) -> Listing {
        let items = self.resources.iter().map(|item| self.good.get(&item.key).unwrap_or(item).clone());
        Listing { revision: self.revision, items: items.collect() }
    }
}

impl Live {
    /// `embedded` is the store itself, where other processes may write to it in turn.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        embedded: Option<Arc<Embedded>>,
        rules: Arc<Rules>,
        serving: Serving,
        state: State,
    ) -> Self {
        let (state, changed) = (Arc::new(Mutex::new(state)), Notify::new());
        changed.notify_one();
        Self(Arc::new(Shared { store, embedded, rules, serving, state, changed }))
    }

    /// Waits for the change under way, and lets another process write from then on.
    pub(crate) async fn pause(&self) -> Paused {
        let state = Arc::clone(&self.0.state).lock_owned().await;
        let embedded = self.0.embedded.clone();
        if let Some(embedded) = &embedded {
            embedded.release().await;
        }
        Paused { _state: state, embedded }
    }

    /// Follows what is committed by others, for ever.
    pub(crate) async fn follow(self) {
        loop {
            let revision = self.0.state.lock().await.revision;
            let mut events = self.0.store.watch(revision);
            while let Some(event) = events.recv().await {
                self.0.followed(event, &mut events).await;
            }
            // The store is closed, or had no room for a watcher.
            sleep(WATCH_AGAIN).await;
        }
    }

    /// Reads everything anew on each SIGHUP, for ever.
    pub(crate) async fn reload_on(self, mut hangup: Signal) {
        while hangup.recv().await.is_some() {
            systemd::reloading();
            self.0.rules.secrets.expire();
            self.reload().await;
            systemd::notify(&[NotifyState::Ready]);
        }
    }

    /// Asks for secrets again that have been used for `secrets.ttl`, for ever.
    pub(crate) async fn refresh_secrets(self) {
        let secrets = &self.0.rules.secrets;
        loop {
            sleep(secrets.ttl()).await;
            if secrets.changed().await {
                let state = Arc::clone(&self.0.state).lock_owned().await;
                self.0.serve_as_it_is(state).await;
            }
        }
    }

    /// Reads everything anew from the store, and compiles it whatever it is.
    async fn reload(&self) {
        match self.0.store.list(None).await {
            Ok(listing) => {
                let mut state = Arc::clone(&self.0.state).lock_owned().await;
                // A change that was made meanwhile is newer than what was read.
                if listing.revision >= state.revision {
                    state.follow(Event::Reset(listing));
                }
                self.0.serve_as_it_is(state).await;
            }
            Err(error) => {
                self.0.serving.metrics.config_rejected();
                tracing::error!("{error}; what is live stays live");
            }
        }
    }

    /// Waits for a change, or for the beginning.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// What is live now.
    pub(crate) async fn listing(&self) -> Listing {
        let state = Arc::clone(&self.0.state).lock_owned().await;
        // Of a large configuration this takes a while.
        tokio::task::spawn_blocking(move || state.listing()).await.unwrap_or_default()
    }

    async fn make(&self, commit: Commit, dry_run: bool, force: bool) -> Result<Changed, Refused> {
        let shared = Arc::clone(&self.0);
        // Whoever asked may go away; what was begun is brought to its end.
        let work = tokio::spawn(async move { shared.change(commit, dry_run, force).await });
        work.await.unwrap_or_else(|panicked| {
            tracing::error!(%panicked, "a change could not be made");
            Err(Refused::Store(StoreError::Unavailable(
                "the change could not be checked: the log tells why".to_owned(),
            )))
        })
    }
}

impl Configuration for Live {
    fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    fn change(
        &self,
        commit: Commit,
        dry_run: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        Box::pin(self.make(commit, dry_run, false))
    }

    fn change_by_force(&self, commit: Commit) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        Box::pin(self.make(commit, false, true))
    }
}

impl Shared {
    async fn change(&self, commit: Commit, dry_run: bool, force: bool) -> Result<Changed, Refused> {
        let mut tries = CATCHING_UP;
        loop {
            let state = Arc::clone(&self.state).lock_owned().await;
            let outcome = self.change_once(state, commit.clone(), dry_run, force, tries > 0).await?;
            if let Some(changed) = outcome {
                return Ok(changed);
            }
            // Somebody else was first; the watch tells of it in a moment.
            tries -= 1;
            sleep(CATCH_UP).await;
        }
    }

    /// Makes a change, based on what is known now. `None` where that is not what the store has any more; without `again` that
    /// is an error.
    async fn change_once(
        &self,
        mut state: OwnedMutexGuard<State>,
        mut commit: Commit,
        dry_run: bool,
        force: bool,
        again: bool,
    ) -> Result<Option<Changed>, Refused> {
        let began = Instant::now();
        self.make_sure(&mut state).await.map_err(Refused::Store)?;
        let (rules, mut checked) = (Arc::clone(&self.rules), commit.clone());
        let shared = self.store.is_shared() && !dry_run;
        if shared {
            // The store itself knows best.
            checked.expect.clear();
        }
        let (mut state, checked) = blocking(state, move |state| state.check(&rules, &checked, force)).await?;
        let (candidate, undo) = checked.inspect_err(|refused| self.note(refused, dry_run))?;
        let warnings = candidate.warnings_of(&commit);
        if dry_run {
            state.resources.undo(undo);
            return Ok(Some(Changed { revision: state.revision, warnings }));
        }
        let implied = if shared { undo.expectations(&commit.expect) } else { Vec::new() };
        commit.expect.extend(implied.iter().cloned());
        let (author, keys) = (commit.author.clone(), commit.changes.iter().map(|change| change.key.clone()));
        let keys: Vec<Key> = keys.collect();
        let revision = match self.store.commit(commit).await {
            Ok(revision) => revision,
            Err(error) => {
                state.resources.undo(undo);
                let is_implied = |key: &Key| implied.iter().any(|expected| expected.key == *key);
                if again && matches!(&error, StoreError::Conflict { key } if is_implied(key)) {
                    return Ok(None);
                }
                let refused = Refused::Store(error);
                self.note(&refused, dry_run);
                return Err(refused);
            }
        };
        if revision == state.revision + 1 {
            state.revision = revision;
        } else {
            // Others have committed as well: the watch tells what, and this commit once more, in their order.
            state.settle(&keys, revision);
        }
        self.serve(state, candidate, began, &author).await;
        Ok(Some(Changed { revision, warnings }))
    }

    /// Takes over what the store tells, and what else it has to tell already.
    async fn followed(&self, event: Event, events: &mut mpsc::Receiver<Event>) {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        let mut news = state.follow(event);
        while let Ok(event) = events.try_recv() {
            news |= state.follow(event);
        }
        if news {
            self.serve_as_it_is(state).await;
        }
    }

    /// Compiles what is there and serves it, if it can be.
    async fn serve_as_it_is(&self, state: OwnedMutexGuard<State>) {
        let (began, rules) = (Instant::now(), Arc::clone(&self.rules));
        let Ok((state, compiled)) = blocking(state, move |state| {
            let compiled = state.compile(&rules);
            if compiled.is_err() {
                rules.compiler.sweep();
            }
            compiled
        })
        .await
        else {
            self.serving.metrics.config_rejected();
            return;
        };
        match compiled {
            Ok(candidate) => {
                log_findings(&candidate.ready.findings);
                self.serve(state, candidate, began, "the store").await;
            }
            Err(findings) => {
                self.serving.metrics.config_rejected();
                log_findings(&findings);
                tracing::error!(
                    revision = state.revision,
                    "the store's state cannot be served; what is live stays live"
                );
            }
        }
    }

    async fn serve(&self, mut state: OwnedMutexGuard<State>, candidate: Candidate, began: Instant, author: &str) {
        self.serving.metrics.set_config_left_out(candidate.broken.len() as u64);
        let routes = candidate.ready.snapshot.route_count();
        self.serving.take(Arc::clone(&candidate.ready.snapshot)).await;
        let (changes, ready) = state.took(candidate);
        self.changed.notify_one();
        tracing::info!(
            revision = state.revision,
            author,
            routes,
            %changes,
            left_out = ready.left_out,
            kept = state.good.len(),
            took_ms = began.elapsed().as_millis() as u64,
            "a change is live"
        );
    }

    /// Reads the resources anew when it is not certain that those in memory are those of the store.
    async fn make_sure(&self, state: &mut State) -> Result<(), StoreError> {
        if state.unsure {
            let listing = self.store.list(None).await?;
            state.follow(Event::Reset(listing));
            state.unsure = false;
        }
        Ok(())
    }

    fn note(&self, refused: &Refused, dry_run: bool) {
        if dry_run {
            return;
        }
        self.serving.metrics.config_rejected();
        match refused {
            // The words go to whoever asked; they may hold what nobody else should see.
            Refused::Invalid(findings) => tracing::info!(findings = findings.len(), "a change is refused"),
            Refused::Store(StoreError::Conflict { key }) => tracing::info!(%key, "a change is refused: a conflict"),
            Refused::Store(error) => tracing::error!(%error, "a change cannot be kept; what is live stays live"),
            Refused::ReadOnly(_) => {}
        }
    }
}

impl Step {
    fn of(change: &Change) -> Self {
        Self { key: change.key.clone(), deleted: change.value.is_none() }
    }
}

impl Candidate {
    /// What is doubtful about the resources of a commit.
    fn warnings_of(&self, commit: &Commit) -> Vec<Diagnostic> {
        let about = |key: &Key| commit.changes.iter().any(|change| change.key == *key);
        let all = self.ready.findings.iter().zip(&self.about);
        all.filter(|(_, key)| key.as_ref().is_some_and(about)).map(|(found, _)| found.clone()).collect()
    }
}

/// Works on the state on a thread that may block.
async fn blocking<T: Send + 'static>(
    mut state: OwnedMutexGuard<State>,
    work: impl FnOnce(&mut State) -> T + Send + 'static,
) -> Result<(OwnedMutexGuard<State>, T), Refused> {
    let done = tokio::task::spawn_blocking(move || {
        // Should the work panic, nobody knows what it left.
        state.unsure = true;
        let result = work(&mut state);
        state.unsure = false;
        (state, result)
    });
    done.await.map_err(|panicked| {
        tracing::error!(%panicked, "a configuration could not be compiled; what is live stays live");
        Refused::Store(StoreError::Unavailable("the change could not be checked: the log tells why".to_owned()))
    })
}
