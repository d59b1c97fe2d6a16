//! What one reading of a configuration asked secret managers for, and what came of it.

use std::collections::{HashMap, HashSet};
use std::fmt;

use weir_config::NoSecret;

use super::Place;

/// The answers to the references of a configuration, or of a change of one.
#[derive(Default)]
pub(crate) struct Answers {
    /// Values by their references.
    pub(super) values: HashMap<String, String>,
    /// Places where there was none.
    pub(super) waiting: HashSet<Place>,
}

impl Answers {
    /// Takes the answers to further references in.
    pub(crate) fn extend(&mut self, more: Self) {
        self.values.extend(more.values);
        self.waiting.extend(more.waiting);
    }

    pub(super) fn note(&mut self, reference: &str, place: Place, said: &Result<String, NoSecret>) {
        match said {
            Ok(value) => self.keep(reference, value),
            Err(NoSecret::Absent(_)) => drop(self.waiting.insert(place)),
            Err(NoSecret::Refused(_)) => {}
        }
    }

    pub(super) fn keep(&mut self, reference: &str, value: &str) {
        self.values.insert(reference.to_owned(), value.to_owned());
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values, {} missing", self.values.len(), self.waiting.len())
    }
}
