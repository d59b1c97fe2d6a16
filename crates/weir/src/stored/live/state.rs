//! The resources of a store as they serve, and what a change makes of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weir_admin::Refused;
use weir_config::node::Mark;
use weir_config::{Diagnostic, Model, Place, SharedMap};
use weir_proxy::Snapshot;
use weir_store::{Change, Commit, Event, Item, Key, Kind, Listing, Served, StoreError};

use crate::source::changes::{Changes, Digest};
use crate::source::resources::{Resources, Step, Undo, piece};
use crate::source::rules::{Ready, Rules};

use super::withheld::Withheld;

/// How many resources may change between two snapshots for these to be made from each other. With more of them
/// compiling the whole is hardly slower.
const MOST_STEPS: usize = 10_000;

/// Resources that are wrong and are tried again with each change, one by one; with more of them everything is compiled anew.
const MOST_BROKEN: usize = 64;

/// What serves now.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) resources: Resources,
    /// The store's revision that they are of, and the cluster that counts it.
    pub(super) revision: u64,
    pub(super) cluster: u64,
    /// What a shared store holds, where that must not replace the resources before somebody accepts it.
    pub(super) withheld: Option<Withheld>,
    /// The resources are those of a copy, so the store is read as a whole before it is followed.
    pub(super) from_copy: bool,
    /// The number of the configuration that the workers have.
    pub(super) generation: u64,
    /// Resources that are left out, because something is wrong with them.
    broken: HashSet<Key>,
    /// How resources were before something was wrong with them. Those of them that are broken serve like this.
    pub(super) good: HashMap<Key, Item>,
    /// Global rules of what serves, or of what served before this process; `None`: nothing has served that is known.
    pub(super) in_force: Option<HashSet<Key>>,
    /// The resources that serve, whatever the store has become.
    served: Held,
    digest: Digest,
    /// What serves, to be changed piece by piece; `None`: the whole is compiled again.
    base: Option<Base>,
    /// What has happened since; `None`: anything.
    steps: Option<Vec<Step>>,
    /// Whether the resources may be others than those of the store.
    pub(super) unsure: bool,
}

/// The resources that serve, without those that are left out, and what was made of them.
#[derive(Debug)]
struct Base {
    model: Model,
    snapshot: Arc<Snapshot>,
}

/// Resources that may be served.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) ready: Ready,
    /// Which resource each of the findings is about.
    pub(super) about: Vec<Option<Key>>,
    /// Resources that do not serve as they stand.
    pub(super) broken: HashSet<Key>,
    /// Resources that serve as they were before they became broken.
    pub(super) kept: HashMap<Key, Item>,
    /// The resources that serve, in the form in which they can be changed, if they can be.
    pub(super) model: Option<Model>,
    /// Where they differ from the base, when it was made from that.
    pub(super) places: Option<Vec<Place>>,
}

impl State {
    /// Resources of a store, checked and compiled for the first time.
    ///
    /// # Errors
    /// Why they cannot be served, not even without those that are wrong.
    pub(crate) fn first(rules: &Rules, listing: Listing) -> Result<(Self, Ready), Vec<Diagnostic>> {
        Self::first_after(rules, listing, None)
    }

    /// As [`State::first`]; what is wrong serves as it was in `before`, and is not there where it was not there then.
    pub(crate) fn first_after(
        rules: &Rules,
        listing: Listing,
        before: Option<Served>,
    ) -> Result<(Self, Ready), Vec<Diagnostic>> {
        let mut state = Self::unserved(listing);
        if let Some(Served { listing, left_out }) = before {
            let served = listing.items.into_iter().filter(|item| !left_out.contains(&item.key));
            state.good = served.map(|item| (item.key.clone(), item)).collect();
            let rules = state.good.keys().filter(|key| key.kind() == Kind::GlobalRules);
            state.in_force = Some(rules.cloned().collect());
        }
        let candidate = state.compile(rules)?;
        let (_, ready) = state.took(rules, candidate);
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

    /// The resources are those of a copy: whatever became of them in the store is to be read.
    pub(crate) fn of_copy(&mut self) {
        self.from_copy = true;
    }

    /// The revision to follow the store from; 0: it is read as a whole.
    pub(super) fn known(&self) -> u64 {
        if self.from_copy { 0 } else { self.revision }
    }

    /// How many resources are left out, because something is wrong with them.
    pub(crate) fn left_out(&self) -> usize {
        self.broken.len()
    }

    fn unserved(listing: Listing) -> Self {
        Self {
            revision: listing.revision,
            cluster: listing.cluster,
            withheld: None,
            from_copy: false,
            resources: Resources::new(listing),
            generation: 0,
            broken: HashSet::new(),
            good: HashMap::new(),
            in_force: None,
            served: Held::default(),
            digest: Digest::default(),
            base: None,
            steps: None,
            unsure: false,
        }
    }

    /// Takes note that a candidate serves; tells what has changed with it.
    pub(super) fn took(&mut self, rules: &Rules, candidate: Candidate) -> (Changes, Ready) {
        let Candidate { mut ready, broken, kept, model, places, .. } = candidate;
        rules.secrets.serve(std::mem::take(&mut ready.answers), places.is_none());
        let changes = match (&model, &places) {
            (Some(model), Some(places)) => self.digest.follow(model, places),
            _ => {
                let before = std::mem::replace(&mut self.digest, std::mem::take(&mut ready.digest));
                before.changes_to(&self.digest)
            }
        };
        self.generation = ready.snapshot.revision();
        self.served = Held {
            at: (self.cluster, self.revision),
            broken: broken.clone(),
            items: self.resources.items(),
            good: kept.clone(),
        };
        (self.broken, self.good) = (broken, kept);
        let serves = |key: &&Key| !self.broken.contains(*key) || self.good.contains_key(*key);
        self.in_force = Some(self.resources.global_rules().filter(serves).cloned().collect());
        self.base = model.map(|model| Base { model, snapshot: Arc::clone(&ready.snapshot) });
        self.steps = Some(Vec::new());
        (changes, ready)
    }

    /// Compiles the resources as they are: what has happened since the last time, where that is known.
    pub(super) fn compile(&self, rules: &Rules) -> Result<Candidate, Vec<Diagnostic>> {
        let steps = self.steps.as_deref().filter(|steps| !steps.is_empty());
        if let Some(Ok(candidate)) = steps.and_then(|steps| self.compile_steps(rules, steps)) {
            return Ok(candidate);
        }
        self.compile_whole(rules, &self.good)
    }

    /// Compiles what some steps have changed of what serves; `None`: it takes the whole. So does an error, unless nothing
    /// is broken: it may be about something that could as well be left out.
    fn compile_steps(&self, rules: &Rules, steps: &[Step]) -> Option<Result<Candidate, Vec<Diagnostic>>> {
        let base = self.base.as_ref().filter(|_| self.broken.len() <= MOST_BROKEN)?;
        let compiled = match self.resources.steps(steps)? {
            Ok(changes) => rules.compile_changes((&base.model, &base.snapshot), vec![changes], self.generation + 1),
            Err(fault) => Err(vec![fault]),
        };
        Some(compiled.map(|(ready, model, mut places)| {
            let mut candidate = self.clean(ready, model, None);
            let broken = self.broken.iter().filter(|key| !steps.iter().any(|step| step.key == **key));
            places.extend(self.mend(rules, broken.cloned().collect(), &self.good, &mut candidate));
            candidate.places = Some(places);
            candidate
        }))
    }

    /// Puts those of the broken resources in place, as they stand, that are right with all that serves now; it tells
    /// where. What serves in place of the others, where that is right at least, is in `good`.
    fn mend(
        &self,
        rules: &Rules,
        mut broken: Vec<Key>,
        good: &HashMap<Key, Item>,
        candidate: &mut Candidate,
    ) -> Vec<Place> {
        broken.sort_unstable();
        let mut places = Vec::new();
        let mut put = |item: Option<&Item>, missing: bool| {
            let changed = self.put(rules, item?, missing, candidate)?;
            places.extend(changed);
            Some(())
        };
        let mut again = true;
        // One may be right only with another.
        while std::mem::take(&mut again) {
            broken.retain(|key| {
                let mended = put(self.resources.get(key), false).is_some();
                again |= mended || put(good.get(key), true).is_some();
                !mended
            });
        }
        let kept = broken.iter().filter_map(|key| Some((key.clone(), good.get(key)?.clone())));
        candidate.kept = kept.collect();
        candidate.ready.left_out = broken.len();
        candidate.broken = broken.into_iter().collect();
        places
    }

    /// Puts a resource in place, unless it is wrong, or only one that is `missing` is to be; it tells where.
    fn put(&self, rules: &Rules, item: &Item, missing: bool, candidate: &mut Candidate) -> Option<Vec<Place>> {
        let before = candidate.model.as_ref()?;
        let change = piece(&item.key, Some(item))?.ok()?;
        if missing && before.contains(change.section, &change.id) {
            return None;
        }
        let base = (before, &*candidate.ready.snapshot);
        let (ready, model, places) = rules.compile_changes(base, vec![vec![change]], self.generation + 1).ok()?;
        let Candidate { ready, about, model, .. } = self.clean(ready, model, None);
        candidate.ready.answers.extend(ready.answers);
        if !missing {
            // It is as it should be now.
            candidate.forget_errors_of(&item.key);
        }
        candidate.ready.findings.extend(ready.findings);
        candidate.about.extend(about);
        candidate.ready.snapshot = ready.snapshot;
        candidate.model = model;
        Some(places)
    }

    /// A candidate with nothing left out.
    fn clean(&self, ready: Ready, model: Model, places: Option<Vec<Place>>) -> Candidate {
        let about = ready.findings.iter().map(|found| self.resources.named(&found.path)).collect();
        Candidate { ready, about, broken: HashSet::new(), kept: HashMap::new(), model: Some(model), places }
    }

    /// Compiles all resources; those that are wrong as they were when they were good, where that is known.
    fn compile_whole(&self, rules: &Rules, good: &HashMap<Key, Item>) -> Result<Candidate, Vec<Diagnostic>> {
        // Not where something was wrong before: as a rule it still is.
        if self.broken.is_empty()
            && let Some((ready, model)) = self.compile_pieces(rules, &HashSet::new(), &HashMap::new())
        {
            return Ok(self.clean(ready, model, None));
        }
        let (mut candidate, absent) = self.compile_what_is_right(rules, good)?;
        // From here on it can be changed piece by piece again. What was found is told already.
        if let Some((ready, model)) = self.compile_pieces(rules, &absent, &candidate.kept) {
            (candidate.ready.snapshot, candidate.ready.digest) = (ready.snapshot, ready.digest);
            candidate.ready.answers = ready.answers;
            candidate.model = Some(model);
            if candidate.broken.len() <= MOST_BROKEN {
                // What was wrong only because of what it refers to may do with what serves in the place of that.
                let broken = candidate.broken.iter().cloned().collect();
                let places = self.mend(rules, broken, good, &mut candidate);
                if let Some(model) = &candidate.model {
                    candidate.ready.digest.follow(model, &places);
                }
            }
        }
        Ok(candidate)
    }

    fn compile_pieces(
        &self,
        rules: &Rules,
        without: &HashSet<Key>,
        instead: &HashMap<Key, Item>,
    ) -> Option<(Ready, Model)> {
        rules.compile_pieces(self.resources.pieces(without, instead)?, self.generation + 1)
    }

    /// Checks a commit with everything else. The resources are those of the candidate then; when it is refused they are
    /// as before.
    pub(super) fn check(&mut self, rules: &Rules, commit: &Commit, force: bool) -> Result<(Candidate, Undo), Refused> {
        if let Some(key) = self.unexpected(commit) {
            return Err(Refused::Store(StoreError::Conflict { key: key.clone() }));
        }
        let undo = self.resources.change(self.changes_of(commit, self.revision + 1));
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
            Some(compiled) if compiled.is_ok() || (!force && self.broken.is_empty()) => compiled,
            _ => {
                let untouched = |key: &Key| !commit.changes.iter().any(|change| change.key == *key);
                let good = self.good.iter().filter(|(key, _)| untouched(key));
                self.compile_whole(rules, &good.map(|(key, item)| (key.clone(), item.clone())).collect())
            }
        }
    }

    /// Checks commits that wait for their turn, each with what those before it leave, and compiles them together. The
    /// resources are those of the candidate then. `None`: they are not all right, or not of the usual kind; nothing has
    /// changed, and each will be told what is the matter with it when it is checked alone.
    pub(super) fn check_together(&mut self, rules: &Rules, commits: &[Commit]) -> Option<(Candidate, Undo)> {
        let changeable = self.base.is_some() && self.broken.is_empty();
        if !changeable || self.steps.as_ref().is_none_or(|steps| !steps.is_empty()) {
            return None;
        }
        let mut undo = Undo::default();
        let Some(candidate) = self.compile_together(rules, commits, &mut undo) else {
            self.resources.undo(undo);
            rules.compiler.sweep();
            return None;
        };
        Some((candidate, undo))
    }

    fn compile_together(&mut self, rules: &Rules, commits: &[Commit], undo: &mut Undo) -> Option<Candidate> {
        let mut changes = Vec::with_capacity(commits.len());
        for (commit, revision) in commits.iter().zip(self.revision + 1..) {
            // What goes may have been referred to in between.
            let goes = commit.changes.iter().any(|change| change.value.is_none());
            if goes || self.unexpected(commit).is_some() {
                return None;
            }
            undo.and(self.resources.change(self.changes_of(commit, revision)));
            let steps: Vec<Step> = commit.changes.iter().map(Step::of).collect();
            changes.push(self.resources.steps(&steps)?.ok()?);
        }
        let base = self.base.as_ref()?;
        let compiled = rules.compile_changes((&base.model, &base.snapshot), changes, self.generation + 1);
        compiled.ok().map(|(ready, model, places)| self.clean(ready, model, Some(places)))
    }

    /// The first resource that is not as a commit expects it to be.
    fn unexpected<'c>(&self, commit: &'c Commit) -> Option<&'c Key> {
        let modified = |key: &Key| self.resources.get(key).map(|item| item.modified);
        commit.expect.iter().find(|expected| modified(&expected.key) != expected.modified).map(|expected| &expected.key)
    }

    /// What a commit at a revision makes of resources.
    fn changes_of(&self, commit: &Commit, revision: u64) -> Vec<(Key, Option<Item>)> {
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
        Ok(Some(self.took(rules, candidate).1))
    }

    /// Takes over what a store tells; whether that was news.
    pub(super) fn follow(&mut self, event: Event) -> bool {
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
                (self.cluster, self.revision, self.from_copy) = (listing.cluster, listing.revision, false);
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
            if let Some(in_force) = &mut self.in_force {
                in_force.remove(key);
            }
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

    /// A commit happened at another revision than was assumed.
    pub(super) fn settle(&mut self, commit: &[Key], assumed: u64, revision: u64) {
        for key in commit {
            if let Some(mut item) = self.resources.get(key).cloned() {
                let created = if item.created == assumed { revision } else { item.created };
                (item.created, item.modified) = (created, revision);
                self.resources.change([(key.clone(), Some(item))]);
            }
        }
    }

    /// All of it, as it serves, whatever becomes of it.
    pub(super) fn held(&self) -> Held {
        self.served.clone()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.resources.len() == 0
    }
}

/// The resources as they served at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// The store's cluster and revision then.
    pub(crate) at: (u64, u64),
    /// Those that do not serve as they stand.
    broken: HashSet<Key>,
    items: SharedMap<u64, Item>,
    /// In the place of those that were broken.
    good: HashMap<Key, Item>,
}

impl Held {
    /// In the order of their creation, each with whether it is left out.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Item, bool)> {
        self.items.into_iter().map(|(_, item)| match self.good.get(&item.key) {
            Some(good) => (good, false),
            None => (item, self.broken.contains(&item.key)),
        })
    }
}

impl Step {
    fn of(change: &Change) -> Self {
        Self { key: change.key.clone(), deleted: change.value.is_none() }
    }
}

impl Candidate {
    fn forget_errors_of(&mut self, key: &Key) {
        let all = std::mem::take(&mut self.ready.findings).into_iter().zip(std::mem::take(&mut self.about));
        let others = all.filter(|(found, about)| !found.is_error() || about.as_ref() != Some(key));
        (self.ready.findings, self.about) = others.unzip();
    }

    /// What is doubtful about the resources of a commit, and what others wait for because of it.
    pub(super) fn warnings_of(&self, commit: &Commit) -> Vec<Diagnostic> {
        let about = |key: &Key| commit.changes.iter().any(|change| change.key == *key);
        let causes: Vec<String> = commit.changes.iter().filter_map(cause).collect();
        let is_caused = |found: &Diagnostic| causes.iter().any(|cause| found.message.contains(cause));
        let all = self.ready.findings.iter().zip(&self.about);
        let of_commit = all.filter(|(found, key)| key.as_ref().is_some_and(about) || is_caused(found));
        of_commit.map(|(found, _)| found.clone()).collect()
    }
}

/// The words with which others tell that they wait for what a change has made of a resource.
fn cause(change: &Change) -> Option<String> {
    let id = change.key.id();
    match change.key.kind() {
        Kind::Secrets => Some(format!("$secret://{id}/")),
        Kind::Consumers if change.value.is_none() => Some(format!("there is no consumer '{id}'")),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
