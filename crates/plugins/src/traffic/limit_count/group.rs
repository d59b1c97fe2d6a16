//! The rule that all places of a group have the same settings.

#![allow(clippy::disallowed_types, reason = "no worker takes this lock: only building does")]

use std::sync::{Mutex, PoisonError};

/// The place that joined a group last, and its settings.
#[derive(Debug, Default)]
pub(super) struct Group(Mutex<(String, String)>);

impl Group {
    /// Joins; returns the place that joined before, when its settings were others.
    pub(super) fn join(&self, place: &str, settings: String) -> Option<String> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (other, others) = std::mem::replace(&mut *last, (place.to_owned(), settings));
        (!other.is_empty() && other != place && others != last.1).then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::Group;

    #[test]
    fn a_group_tells_who_joined_it_with_other_settings() {
        let group = Group::default();
        let joins = |place: &str, settings: &str| group.join(place, settings.to_owned());
        assert_eq!(joins("route/1", "a"), None);
        assert_eq!(joins("route/2", "a"), None);
        assert_eq!(joins("route/3", "b"), Some("route/2".to_owned()));
        assert_eq!(joins("route/3", "c"), None, "a place may change its own");
        assert_eq!(joins("route/1", "b"), Some("route/3".to_owned()));
    }
}
