//! A compiled configuration that may become live.

use std::collections::{HashMap, HashSet};

use weir_config::{Code, Diagnostic, Model};
use weir_store::{Change, Commit, Item, Key, Kind};

use crate::source::rules::CompiledRules;

/// A compiled configuration that may be served.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) ready: CompiledRules,
    /// The resource that each finding is about.
    pub(super) about: Vec<Option<Key>>,
    /// Resources that are invalid as stored.
    pub(super) broken: HashSet<Key>,
    /// Broken resources that serve in their last valid version.
    pub(super) kept: HashMap<Key, Item>,
    /// True if every request is answered 503, because a broken resource may guard any of them.
    pub(super) refuses_all: bool,
    /// The resources in a form for incremental changes, if they have one.
    pub(super) model: Option<Model>,
    /// The places that differ from the base, if the candidate was compiled from the base.
    pub(super) places: Option<Vec<Key>>,
}

impl Candidate {
    pub(super) fn forget_errors_of(&mut self, key: &Key) {
        let all = std::mem::take(&mut self.ready.findings).into_iter().zip(std::mem::take(&mut self.about));
        let others = all.filter(|(found, about)| !found.is_error() || about.as_ref() != Some(key));
        (self.ready.findings, self.about) = others.unzip();
    }

    pub(super) fn drop_findings(&mut self, is_dropped: impl Fn(&Diagnostic) -> bool) {
        let all = std::mem::take(&mut self.ready.findings).into_iter().zip(std::mem::take(&mut self.about));
        (self.ready.findings, self.about) = all.filter(|(found, _)| !is_dropped(found)).unzip();
    }

    /// The warnings about the resources of a commit, and those of other resources that the commit causes.
    pub(super) fn warnings_of(&self, commit: &Commit) -> Vec<Diagnostic> {
        let about = |key: &Key| commit.changes.iter().any(|change| change.key == *key);
        let is_caused = |found: &Diagnostic| commit.changes.iter().any(|change| is_cause(change, &found.code));
        let all = self.ready.findings.iter().zip(&self.about);
        let of_commit = all.filter(|(found, key)| key.as_ref().is_some_and(about) || is_caused(found));
        of_commit.map(|(found, _)| found.clone()).collect()
    }
}

/// True for a finding about another resource that waits for the changed one.
fn is_cause(change: &Change, code: &Code) -> bool {
    let id = change.key.id();
    match (change.key.kind(), code) {
        (Kind::Secrets, Code::ReferenceAwaited { reason, .. } | Code::StaleSecret { reason }) => {
            reason.contains(&format!("$secret://{id}/"))
        }
        (Kind::Consumers, Code::ConsumerAwaited { consumer }) => change.value.is_none() && consumer == id,
        _ => false,
    }
}
