//! Compilation of resources of which some are invalid: the last valid version serves instead, or the resource is left out.

use std::collections::{HashMap, HashSet};

use weir_config::{Diagnostic, Node};
use weir_store::{Item, Key, Kind};

use super::state::{Candidate, State};
use crate::source::rules::Rules;

/// Findings of resources that cannot be served.
#[derive(Debug)]
struct Unfit {
    findings: Vec<Diagnostic>,
    /// The resource that each finding is about.
    about: Vec<Option<Key>>,
    /// The invalid resources.
    broken: HashSet<Key>,
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
        let (mut second, mut reported) = (None, Vec::new());
        // An error in one resource may hide an error in another.
        while second.is_none() {
            let known = |key: &Key| good.get(key).map(|item| (key.clone(), item.clone()));
            kept.extend(broken.iter().filter_map(known));
            without.extend(broken.iter().filter(|key| !good.contains_key(*key) && self.is_new_rule(key)).cloned());
            if kept.is_empty() && without.is_empty() {
                break;
            }
            match self.attempt(rules, &kept, &without) {
                Ok(candidate) => second = Some(candidate),
                Err(unfit) => {
                    let known = |key: &Key| kept.contains_key(key) || without.contains(key);
                    broken = unfit.broken.into_iter().filter(|key| !known(key)).collect();
                    reported.extend(unfit.findings.into_iter().zip(unfit.about));
                    if !broken.iter().any(|key| good.contains_key(key) || self.is_new_rule(key)) {
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
        candidate.ready.left_out += without.len();
        candidate.broken.extend(without);
        let absent = candidate.broken.clone();
        candidate.ready.left_out += kept.len();
        candidate.broken.extend(kept.keys().cloned());
        candidate.kept = kept;
        Ok((candidate, absent))
    }

    /// True for a global rule that was not in force before, so that leaving it out opens nothing that was guarded. A
    /// global rule that was in force is never left out.
    fn is_new_rule(&self, key: &Key) -> bool {
        key.kind() == Kind::GlobalRules && self.in_force.as_ref().is_some_and(|in_force| !in_force.contains(key))
    }

    /// Compiles the resources without those in `without`, and with those in `instead` in place of the stored ones.
    fn attempt(&self, rules: &Rules, instead: &HashMap<Key, Item>, without: &HashSet<Key>) -> Result<Candidate, Unfit> {
        let mut assembled = self.resources.assemble(instead, without);
        let root = std::mem::replace(&mut assembled.root, Node::empty_map());
        let (keys, faults): (Vec<Key>, Vec<Diagnostic>) = std::mem::take(&mut assembled.faults).into_iter().unzip();
        if keys.iter().any(|key| key.kind() == Kind::GlobalRules) {
            // A global rule guards everything, so nothing is served without it.
            let about = keys.iter().cloned().map(Some).collect();
            return Err(Unfit { findings: faults, about, broken: keys.into_iter().collect() });
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
                Ok(Candidate { ready, about, broken, kept: HashMap::new(), model: None, places: None })
            }
            Err(mut findings) => {
                let mut about: Vec<Option<Key>> = findings.iter_mut().map(|found| assembled.name(found)).collect();
                findings.extend(faults);
                about.extend(keys.into_iter().map(Some));
                let errors = findings.iter().zip(&about).filter(|(found, _)| found.is_error());
                let broken = errors.filter_map(|(_, key)| key.clone()).collect();
                Err(Unfit { findings, about, broken })
            }
        }
    }
}
