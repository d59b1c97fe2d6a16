//! Compilation of resources of which some are invalid: the last valid version serves instead, or else the resource is left
//! out, and what it is for is refused: the requests of a route, the handshakes for the names of a certificate.
//!
//! A resource that may guard any request, such as a global rule, has no such place. If it has not been in force before, it
//! is left out without one, because that opens nothing that was guarded. If that is unknown, every request is refused.

use std::collections::{HashMap, HashSet};

use weir_config::node::Mark;
use weir_config::{Code, Diagnostic, Node};
use weir_store::{Item, Key, Kind};

use super::candidate::Candidate;
use super::state::State;
use crate::source::rules::Rules;

/// Findings of resources that cannot be served.
#[derive(Debug)]
struct Unfit {
    findings: Vec<Diagnostic>,
    /// The resource that each finding is about.
    about: Vec<Option<Key>>,
    /// The invalid resources.
    broken: HashSet<Key>,
    /// Those that may guard any request.
    placeless: Vec<Key>,
}

impl State {
    /// Compiles the resources with the last valid version, where one is known, in place of each invalid resource. Returns
    /// also the resources that are left out.
    pub(super) fn compile_what_is_right(
        &self,
        rules: &Rules,
        good: &HashMap<Key, Item>,
    ) -> Result<(Candidate, HashSet<Key>), Vec<Diagnostic>> {
        let (mut kept, mut without) = (HashMap::new(), HashSet::new());
        let outcome = self.attempt(rules, &kept, &without);
        let mut broken = match &outcome {
            Ok(candidate) => candidate.broken.clone(),
            Err(unfit) => unfit.broken.clone(),
        };
        let mut placeless = match &outcome {
            Ok(_) => Vec::new(),
            Err(unfit) => unfit.placeless.clone(),
        };
        let (mut second, mut reported) = (None, Vec::new());
        // An error in one resource may hide an error in another.
        while second.is_none() {
            let known = |key: &Key| good.get(key).map(|item| (key.clone(), item.clone()));
            kept.extend(broken.iter().filter_map(known));
            let goes = |key: &&Key| !good.contains_key(*key) && !self.was_in_force(key);
            without.extend(placeless.iter().filter(goes).cloned());
            if kept.is_empty() && without.is_empty() {
                break;
            }
            match self.attempt(rules, &kept, &without) {
                Ok(candidate) => second = Some(candidate),
                Err(unfit) => {
                    let is_news = |key: &Key| !kept.contains_key(key) && !without.contains(key);
                    broken = unfit.broken.into_iter().filter(is_news).collect();
                    placeless = unfit.placeless.into_iter().filter(is_news).collect();
                    reported.extend(unfit.findings.into_iter().zip(unfit.about));
                    if !broken.iter().any(|key| good.contains_key(key)) && !placeless.iter().any(|key| goes(&key)) {
                        break;
                    }
                }
            }
        }
        let Some(mut candidate) = second else {
            let candidate = outcome.map_err(|unfit| unfit.findings)?;
            let absent = candidate.broken.clone();
            return Ok((candidate, absent));
        };
        // The diagnostics reported are those of the stored version, not of the last valid version served instead of it.
        let (findings, about) = match outcome {
            Ok(Candidate { ready, about, .. }) => (ready.findings, about),
            Err(Unfit { findings, about, .. }) => (findings, about),
        };
        let is_absent = |key: &Key| kept.contains_key(key) || without.contains(key);
        reported.extend(findings.into_iter().zip(about));
        for (found, key) in reported.into_iter().filter(|(_, key)| key.as_ref().is_some_and(is_absent)) {
            candidate.ready.findings.push(found);
            candidate.about.push(key);
        }
        candidate.refuses_all = self.in_force.is_none() && !without.is_empty();
        if candidate.refuses_all {
            candidate.ready.snapshot = candidate.ready.snapshot.refusing_all();
        }
        // Nothing else is said of the way in which these are left out.
        candidate.drop_findings(|found| without_place(&found.code));
        for key in &without {
            let found = match candidate.refuses_all {
                true => Diagnostic::error(Mark::NONE, key.to_string(), Code::MayGuardAll),
                false => Diagnostic::warning(Mark::NONE, key.to_string(), Code::LeftOut),
            };
            candidate.ready.findings.push(found);
            candidate.about.push(Some(key.clone()));
        }
        candidate.ready.left_out += without.len();
        candidate.broken.extend(without);
        let absent = candidate.broken.clone();
        candidate.ready.left_out += kept.len();
        candidate.broken.extend(kept.keys().cloned());
        candidate.kept = kept;
        Ok((candidate, absent))
    }

    /// True for a global rule that was in force before, which is never left out. All other resources that were in force
    /// serve in their last valid version.
    fn was_in_force(&self, key: &Key) -> bool {
        self.in_force.as_ref().is_some_and(|in_force| in_force.contains(key))
    }

    /// Compiles the resources without those in `without`, and with those in `instead` in place of the stored ones.
    fn attempt(&self, rules: &Rules, instead: &HashMap<Key, Item>, without: &HashSet<Key>) -> Result<Candidate, Unfit> {
        let mut assembled = self.resources.assemble(instead, without);
        let root = std::mem::replace(&mut assembled.root, Node::empty_map());
        let (keys, faults): (Vec<Key>, Vec<Diagnostic>) = std::mem::take(&mut assembled.faults).into_iter().unzip();
        let may_guard =
            |key: &&Key| matches!(key.kind(), Kind::GlobalRules | Kind::Routes | Kind::StreamRoutes | Kind::Ssls);
        if keys.iter().any(|key| may_guard(&key)) {
            // Nothing of it can be read, so its place is unknown.
            let about = keys.iter().cloned().map(Some).collect();
            let placeless = keys.iter().filter(may_guard).cloned().collect();
            return Err(Unfit { findings: faults, about, broken: keys.into_iter().collect(), placeless });
        }
        match rules.compile_tree(root, self.generation + 1) {
            Ok(mut ready) => {
                let mut about: Vec<Option<Key>> =
                    ready.findings.iter_mut().map(|found| assembled.name(found)).collect();
                ready.left_out += faults.len();
                ready.findings.extend(faults);
                about.extend(keys.into_iter().map(Some));
                let errors = ready.findings.iter().zip(&about).filter(|(found, _)| found.is_error());
                let broken = errors.filter_map(|(_, key)| key.clone()).collect();
                Ok(Candidate {
                    ready,
                    about,
                    broken,
                    kept: HashMap::new(),
                    refuses_all: false,
                    model: None,
                    places: None,
                })
            }
            Err(mut findings) => {
                let mut about: Vec<Option<Key>> = findings.iter_mut().map(|found| assembled.name(found)).collect();
                findings.extend(faults);
                about.extend(keys.into_iter().map(Some));
                let errors = findings.iter().zip(&about).filter(|(found, _)| found.is_error());
                let errors = errors.filter_map(|(found, key)| Some((found, key.as_ref()?)));
                let is_placeless = |found: &Diagnostic, key: &Key| {
                    matches!(key.kind(), Kind::GlobalRules | Kind::StreamRoutes) || without_place(&found.code)
                };
                let placeless = errors.clone().filter(|(found, key)| is_placeless(found, key));
                let placeless = placeless.map(|(_, key)| key.clone()).collect();
                let broken = errors.map(|(_, key)| key.clone()).collect();
                Err(Unfit { findings, about, broken, placeless })
            }
        }
    }
}

/// True for the findings that an item cannot be left out, because its place is unknown.
fn without_place(code: &Code) -> bool {
    matches!(
        code,
        Code::GlobalRuleNotLeftOut
            | Code::StreamRouteNotLeftOut
            | Code::ClientVerifierNotLeftOut
            | Code::RouteNotLeftOut
    )
}
