//! Compiling resources of which some are wrong: these serve as they were when they were good, or are left out.

use std::collections::{HashMap, HashSet};

use weir_config::{Diagnostic, Node};
use weir_store::{Item, Key, Kind};

use super::state::{Candidate, State};
use crate::source::rules::Rules;

/// Resources that may not be served.
#[derive(Debug)]
struct Unfit {
    findings: Vec<Diagnostic>,
    /// The resources that they are about.
    about: Vec<Option<Key>>,
    /// Those that something is wrong with.
    broken: HashSet<Key>,
}

impl State {
    /// Compiles the resources but for those that are wrong, with a good version in their place where one is known. Gives
    /// also what is not there at all.
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
        let (mut second, mut told) = (None, Vec::new());
        // What is wrong with one may hide what is wrong with another.
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
                    told.extend(unfit.findings.into_iter().zip(unfit.about));
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
        // It is told what is wrong with what stands there, and not with what serves in its place.
        let (findings, about) = match outcome {
            Ok(Candidate { ready, about, .. }) => (ready.findings, about),
            Err(Unfit { findings, about, .. }) => (findings, about),
        };
        let is_absent = |key: &Key| kept.contains_key(key) || without.contains(key);
        told.extend(findings.into_iter().zip(about));
        for (found, key) in told.into_iter().filter(|(_, key)| key.as_ref().is_some_and(is_absent)) {
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

    /// A global rule that was not in force in what served last, so that nothing is open without it that was guarded. One
    /// that was in force is never left out.
    fn is_new_rule(&self, key: &Key) -> bool {
        key.kind() == Kind::GlobalRules && self.in_force.as_ref().is_some_and(|in_force| !in_force.contains(key))
    }

    /// Compiles the resources, without some and with others in the place of some.
    fn attempt(&self, rules: &Rules, instead: &HashMap<Key, Item>, without: &HashSet<Key>) -> Result<Candidate, Unfit> {
        let mut assembled = self.resources.assemble(instead, without);
        let root = std::mem::replace(&mut assembled.root, Node::empty_map());
        let (keys, faults): (Vec<Key>, Vec<Diagnostic>) = std::mem::take(&mut assembled.faults).into_iter().unzip();
        if keys.iter().any(|key| key.kind() == Kind::GlobalRules) {
            // It guards everything, so nothing is served without it as if it were not there.
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
