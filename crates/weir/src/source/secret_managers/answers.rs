//! Answers of secret managers to the references of one configuration.

use std::collections::{HashMap, HashSet};
use std::fmt;

use weir_config::NoSecret;

use super::Location;

/// The answers to the references of a configuration, or of a change of one.
#[derive(Default)]
pub(crate) struct Answers {
    /// Values by their references.
    pub(super) values: HashMap<String, String>,
    /// Locations of missing secrets.
    pub(super) waiting: HashSet<Location>,
}

impl Answers {
    /// Adds the answers to further references.
    pub(crate) fn extend(&mut self, more: Self) {
        self.values.extend(more.values);
        self.waiting.extend(more.waiting);
    }

    pub(super) fn note(&mut self, reference: &str, place: Location, value: &Result<String, NoSecret>) {
        match value {
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
