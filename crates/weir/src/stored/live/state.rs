//! The resources in force of a store, and candidates for the next configuration.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weir_admin::Refused;
use weir_config::node::Mark;
use weir_config::{Code, Diagnostic, Model, SharedMap};
use weir_proxy::Snapshot;
use weir_store::{Change, Commit, Event, Item, Key, Kind, Listing, Served, StoreError};

use crate::source::changes::{Changes, Digest};
use crate::source::resources::{Resources, Step, Undo, piece};
use crate::source::rules::{CompiledRules, Rules};

use super::candidate::Candidate;
use super::withheld::Withheld;

/// Maximum number of changed resources for an incremental compilation. With more of them, compiling everything is hardly
/// slower.
const MOST_STEPS: usize = 10_000;

/// Maximum number of invalid resources that are tried again one by one with each change. With more of them, everything is
/// compiled again.
const MOST_BROKEN: usize = 64;

/// The state of the configuration in force.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) resources: Resources,
    /// The store's revision of the resources, and the cluster that counts the revisions.
    pub(super) revision: u64,
    pub(super) cluster: u64,
    /// The state of a shared store that must not replace the resources before an operator accepts it.
    pub(super) withheld: Option<Withheld>,
    /// True if the resources are those of a copy, so that the whole store is read before it is followed.
    pub(super) from_copy: bool,
    /// The number of the configuration that serves on the workers.
    pub(super) generation: u64,
    /// Resources that are invalid as stored.
    broken: HashSet<Key>,
    /// The last valid version of resources. Broken resources serve in this version.
    pub(super) good: HashMap<Key, Item>,
    /// Global rules in force, in this process or the one before; `None` if no earlier configuration is known.
    pub(super) in_force: Option<HashSet<Key>>,
    /// The resources in force, even if the store has changed since.
    served: Held,
    digest: Digest,
    /// The configuration in force in a form for incremental changes; `None` if the next change compiles everything.
    base: Option<Base>,
    /// Changes since `base`; `None` if they are unknown.
    steps: Option<Vec<Step>>,
    /// True if the resources may differ from those of the store.
    pub(super) unsure: bool,
}

/// The resources in force, without those that are left out, and their compiled form.
#[derive(Debug)]
struct Base {
    model: Model,
    snapshot: Arc<Snapshot>,
}

impl State {
    /// Checks and compiles the resources of a store for the first time.
    ///
    /// # Errors
    /// The resources cannot be served, not even without the invalid ones.
    pub(crate) fn first(rules: &Rules, listing: Listing) -> Result<(Self, CompiledRules), Vec<Diagnostic>> {
        Self::first_after(rules, listing, None)
    }

    /// As [`State::first`], but an invalid resource serves in its version of `before`, or is left out if `before` does not
    /// have it.
    pub(crate) fn first_after(
        rules: &Rules,
        listing: Listing,
        before: Option<Served>,
    ) -> Result<(Self, CompiledRules), Vec<Diagnostic>> {
        let mut state = Self::unserved(listing);
        if let Some(Served { listing, left_out }) = before {
            let served = listing.items.into_iter().filter(|item| !left_out.contains(&item.key));
            state.good = served.map(|item| (item.key.clone(), item)).collect();
            let rules = state.good.keys().filter(|key| key.kind() == Kind::GlobalRules);
            state.in_force = Some(rules.cloned().collect());
        }
        let candidate = state.compile(rules)?;
        let (_, ready) = state.record_served(rules, candidate);
        Ok((state, ready))
    }

    /// Checks that a commit leaves resources that can be served. Returns the warnings about the commit.
    ///
    /// # Errors
    /// The findings about the commit.
    pub(crate) fn check_alone(
        rules: &Rules,
        listing: Listing,
        commit: &Commit,
    ) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
        // A commit cannot make a store worse that cannot be served at all.
        let mut state = match Self::first(rules, listing.clone()) {
            Ok((state, _)) => state,
            Err(_) => Self::unserved(listing),
        };
        match state.check(rules, commit, false) {
            Ok((candidate, _)) => Ok(candidate.warnings_of(commit)),
            Err(Refused::Invalid(findings)) => Err(findings),
            Err(Refused::Store(error)) => {
                Err(vec![Diagnostic::error(Mark::NONE, "", Code::Store { reason: error.to_string() })])
            }
            Err(Refused::ReadOnly(reason) | Refused::NotAllowed(reason)) => {
                Err(vec![Diagnostic::error(Mark::NONE, "", Code::Store { reason })])
            }
        }
    }

    /// The sizes of the sections: `2 routes, 1 upstream`.
    pub(crate) fn inventory(&self) -> String {
        self.digest.inventory()
    }

    /// Marks the resources as those of a copy, so that the whole store is read before it is followed.
    pub(crate) fn of_copy(&mut self) {
        self.from_copy = true;
    }

    /// The revision from which to follow the store; 0 to read the whole store.
    pub(super) fn known(&self) -> u64 {
        if self.from_copy { 0 } else { self.revision }
    }

    /// True if every request is answered 503, because an invalid resource may guard any of them.
    pub(crate) fn refuses_all(&self) -> bool {
        self.served.refuses_all
    }

    /// Serves without the invalid resources that may guard any request. Returns true if they were the reason for refusing
    /// all requests.
    pub(super) fn serve_without_placeless(&mut self) -> bool {
        let refused = self.refuses_all();
        if refused {
            self.in_force = Some(HashSet::new());
        }
        refused
    }

    /// Names of the resources that are invalid as stored.
    pub(crate) fn invalid(&self) -> impl Iterator<Item = String> {
        self.broken.iter().map(Key::to_string)
    }

    /// Number of resources that are invalid as stored.
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

    /// Records that a candidate serves. Returns the numbers of changed resources.
    pub(super) fn record_served(&mut self, rules: &Rules, candidate: Candidate) -> (Changes, CompiledRules) {
        let Candidate { mut ready, broken, kept, refuses_all, model, places, .. } = candidate;
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
            refuses_all,
        };
        (self.broken, self.good) = (broken, kept);
        let serves = |key: &&Key| !self.broken.contains(*key) || self.good.contains_key(*key);
        // A configuration that refuses everything is none to compare later ones with.
        self.in_force = (!refuses_all).then(|| self.resources.global_rules().filter(serves).cloned().collect());
        self.base = model.map(|model| Base { model, snapshot: Arc::clone(&ready.snapshot) });
        self.steps = Some(Vec::new());
        (changes, ready)
    }

    /// Compiles the resources, incrementally if the changes since the last time are known.
    pub(super) fn compile(&self, rules: &Rules) -> Result<Candidate, Vec<Diagnostic>> {
        let steps = self.steps.as_deref().filter(|steps| !steps.is_empty());
        if let Some(Ok(candidate)) = steps.and_then(|steps| self.compile_steps(rules, steps)) {
            return Ok(candidate);
        }
        self.compile_whole(rules, &self.good)
    }

    /// Compiles incrementally the resources that `steps` have changed. Returns `None` if everything has to be compiled. An
    /// error requires that too, unless no resource is broken, because it may be about a resource that can be left out.
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

    /// Puts the broken resources in place that are valid as stored together with the resources in force. Returns their
    /// places. The last valid versions of the others, as far as they are still valid, are in `good`.
    fn mend(
        &self,
        rules: &Rules,
        mut broken: Vec<Key>,
        good: &HashMap<Key, Item>,
        candidate: &mut Candidate,
    ) -> Vec<Key> {
        broken.sort_unstable();
        let mut places = Vec::new();
        let mut put = |item: Option<&Item>, missing: bool| {
            let changed = self.put(rules, item?, missing, candidate)?;
            places.extend(changed);
            Some(())
        };
        let mut again = true;
        // A resource may be valid only together with another one.
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

    /// Puts a resource in place, unless it is invalid, or `missing` is set and it is not missing. Returns its places.
    fn put(&self, rules: &Rules, item: &Item, missing: bool, candidate: &mut Candidate) -> Option<Vec<Key>> {
        let before = candidate.model.as_ref()?;
        let change = piece(&item.key, Some(item))?.ok()?;
        if missing && before.contains(&change.key) {
            return None;
        }
        let base = (before, &*candidate.ready.snapshot);
        let (ready, model, places) = rules.compile_changes(base, vec![vec![change]], self.generation + 1).ok()?;
        let Candidate { ready, about, model, .. } = self.clean(ready, model, None);
        candidate.ready.answers.extend(ready.answers);
        if !missing {
            // The resource is valid now.
            candidate.forget_errors_of(&item.key);
        }
        candidate.ready.findings.extend(ready.findings);
        candidate.about.extend(about);
        candidate.ready.snapshot = ready.snapshot;
        candidate.model = model;
        Some(places)
    }

    /// A candidate with nothing left out.
    fn clean(&self, ready: CompiledRules, model: Model, places: Option<Vec<Key>>) -> Candidate {
        let about = ready.findings.iter().map(|found| self.resources.named(&found.path)).collect();
        let (broken, kept, refuses_all) = (HashSet::new(), HashMap::new(), false);
        Candidate { ready, about, broken, kept, refuses_all, model: Some(model), places }
    }

    /// Compiles all resources, with the last valid version of invalid ones, where that is known.
    fn compile_whole(&self, rules: &Rules, good: &HashMap<Key, Item>) -> Result<Candidate, Vec<Diagnostic>> {
        // Skipped if a resource was invalid before, because usually it still is.
        if self.broken.is_empty()
            && let Some((ready, model)) = self.compile_pieces(rules, &HashSet::new(), &HashMap::new())
        {
            return Ok(self.clean(ready, model, None));
        }
        let (mut candidate, absent) = self.compile_what_is_right(rules, good)?;
        if candidate.refuses_all {
            return Ok(candidate);
        }
        // The result allows incremental changes again. Its findings have been reported already.
        if let Some((ready, model)) = self.compile_pieces(rules, &absent, &candidate.kept) {
            (candidate.ready.snapshot, candidate.ready.digest) = (ready.snapshot, ready.digest);
            candidate.ready.answers = ready.answers;
            candidate.model = Some(model);
            if candidate.broken.len() <= MOST_BROKEN {
                // A resource that is invalid only because of its reference may be valid with the version served instead.
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
    ) -> Option<(CompiledRules, Model)> {
        rules.compile_pieces(self.resources.pieces(without, instead)?, self.generation + 1)
    }

    /// Checks a commit together with all other resources. The resources are those of the candidate afterwards, or
    /// unchanged if the commit is refused.
    pub(super) fn check(&mut self, rules: &Rules, commit: &Commit, force: bool) -> Result<(Candidate, Undo), Refused> {
        if let Some(key) = self.unexpected(commit) {
            return Err(Refused::Store(StoreError::Conflict { key: key.clone() }));
        }
        let undo = self.resources.change(self.changes_of(commit, self.revision + 1));
        let refused = match self.compile_commit(rules, commit, force) {
            Ok(candidate) => {
                let touched = |key: &Key| commit.changes.iter().any(|change| change.key == *key);
                // A resource that was invalid before does not block a change of another one.
                let counts = |key: &Key| touched(key) || (!force && !self.broken.contains(key));
                if !candidate.broken.iter().any(counts) {
                    return Ok((candidate, undo));
                }
                let Candidate { ready, about, .. } = candidate;
                let all = ready.findings.into_iter().zip(about);
                // The finding that a resource would be left out is dropped, because the commit is refused anyway.
                let left_out = |found: &Diagnostic, key: &Key| !found.is_error() && found.path == key.to_string();
                let is_reported = |(found, key): &(Diagnostic, Option<Key>)| {
                    key.as_ref().is_some_and(|key| counts(key) && !left_out(found, key))
                };
                all.filter(is_reported).map(|(found, _)| found).collect()
            }
            Err(findings) => findings,
        };
        self.resources.undo(undo);
        // The parts built so far are dropped, but their keys are still in the compiler.
        rules.compiler.sweep();
        Err(Refused::Invalid(refused))
    }

    /// Compiles the resources, which contain the commit already.
    fn compile_commit(&self, rules: &Rules, commit: &Commit, force: bool) -> Result<Candidate, Vec<Diagnostic>> {
        let of_commit = commit.changes.iter().map(Step::of);
        let steps = self.steps.as_ref().map(|steps| steps.iter().cloned().chain(of_commit).collect::<Vec<_>>());
        match steps.and_then(|steps| self.compile_steps(rules, &steps)) {
            // With force, a resource may be left out, which only a full compilation finds.
            Some(compiled) if compiled.is_ok() || (!force && self.broken.is_empty()) => compiled,
            _ => {
                let untouched = |key: &Key| !commit.changes.iter().any(|change| change.key == *key);
                let good = self.good.iter().filter(|(key, _)| untouched(key));
                self.compile_whole(rules, &good.map(|(key, item)| (key.clone(), item.clone())).collect())
            }
        }
    }

    /// Checks queued commits of entities together, as one document.
    fn check_entities(&mut self, rules: &Rules, commits: &[Commit]) -> Option<(Candidate, Undo)> {
        let mut undo = Undo::default();
        for (commit, revision) in commits.iter().zip(self.revision + 1..) {
            if self.unexpected(commit).is_some() {
                self.resources.undo(undo);
                return None;
            }
            undo.and(self.resources.change(self.changes_of(commit, revision)));
        }
        let compiled = self.compile_whole(rules, &HashMap::new()).ok();
        let Some(candidate) = compiled.filter(|candidate| candidate.broken.is_empty() && self.broken.is_empty()) else {
            self.resources.undo(undo);
            rules.compiler.sweep();
            return None;
        };
        Some((candidate, undo))
    }

    /// Checks queued commits, each against the result of those before it, and compiles them together. The resources are
    /// those of the candidate afterwards. Returns `None`, with the resources unchanged, if a commit is invalid or not of
    /// the usual kind; each commit then has to be checked alone, which reports its errors.
    pub(super) fn check_together(&mut self, rules: &Rules, commits: &[Commit]) -> Option<(Candidate, Undo)> {
        if rules.is_of_entities() {
            return self.check_entities(rules, commits);
        }
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
            // A deleted resource may have been referred to by an earlier commit of the group.
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

    /// The first resource that does not meet an expectation of a commit.
    fn unexpected<'c>(&self, commit: &'c Commit) -> Option<&'c Key> {
        let modified = |key: &Key| self.resources.get(key).map(|item| item.modified);
        commit.expect.iter().find(|expected| modified(&expected.key) != expected.modified).map(|expected| &expected.key)
    }

    /// The new state of each resource that a commit at a revision changes.
    fn changes_of(&self, commit: &Commit, revision: u64) -> Vec<(Key, Option<Item>)> {
        let state = |change: &Change| {
            let key = change.key.clone();
            let created = self.resources.get(&key).map_or(revision, |item| item.created);
            let value = change.value.clone();
            (change.key.clone(), value.map(|value| Item { key, value, created, modified: revision }))
        };
        commit.changes.iter().map(state).collect()
    }

    /// Takes over the listing of a store, if it is newer, and compiles it.
    ///
    /// # Errors
    /// The listing cannot be served.
    pub(crate) fn catch_up(
        &mut self,
        rules: &Rules,
        listing: Listing,
    ) -> Result<Option<CompiledRules>, Vec<Diagnostic>> {
        if listing.revision == self.revision {
            return Ok(None);
        }
        self.follow(Event::Reset(listing));
        let candidate = self.compile(rules)?;
        Ok(Some(self.record_served(rules, candidate).1))
    }

    /// Applies an event of a store. Returns true if it changed the resources.
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

    /// Keeps the version of a resource before a change, in case the new version is invalid.
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

    /// Corrects the revision of a commit that was assumed before it was made.
    pub(super) fn settle(&mut self, commit: &[Key], assumed: u64, revision: u64) {
        for key in commit {
            if let Some(mut item) = self.resources.get(key).cloned() {
                let created = if item.created == assumed { revision } else { item.created };
                (item.created, item.modified) = (created, revision);
                self.resources.change([(key.clone(), Some(item))]);
            }
        }
    }

    /// A copy of the resources in force, which later changes do not affect.
    pub(super) fn held(&self) -> Held {
        self.served.clone()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.resources.len() == 0
    }
}

/// The resources in force at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// The store's cluster and revision at that moment.
    pub(crate) at: (u64, u64),
    /// Resources that are invalid as stored.
    broken: HashSet<Key>,
    items: SharedMap<u64, Item>,
    /// Last valid versions, served in place of broken resources.
    good: HashMap<Key, Item>,
    /// True if every request is refused, so that this is no state to fall back to.
    pub(crate) refuses_all: bool,
}

impl Held {
    /// The resources in the order of their creation, each with a flag that is true if the resource is left out.
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

#[cfg(test)]
mod tests;
