//! The audit log: the history, resource by resource, with the author of each change.

use std::time::UNIX_EPOCH;

use hyper::StatusCode;
use serde_json::{Value, json};
use weir_store::{Difference, HistoryQuery, Key, Kind, Recorded};

use super::revision;
use super::rights::team_of;
use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;

/// Commits that are read at one time: each may hold many resources.
const AT_ONCE: usize = 16;
/// Entries in one answer.
const MOST: usize = 1000;

impl Api {
    /// The changes that are remembered, without the resources.
    pub(crate) async fn audit(&self, request: &Request) -> Outcome {
        let mut query = HistoryQuery { before: revision(request, "before")?, ..HistoryQuery::default() };
        if let Some(key) = request.query.get("key") {
            query.key = Some(key.parse::<Key>().map_err(|error| Answer::bad(format!("key: {error}")))?);
        }
        let kind = match request.query.get("kind") {
            None => None,
            Some(name) => {
                let unknown = || Answer::bad(format!("kind: {name}: unknown kind"));
                Some(Kind::named(name).ok_or_else(unknown)?)
            }
        };
        let limit = match request.query.get("limit") {
            None => 100,
            Some(text) => text
                .parse()
                .ok()
                .filter(|limit| (1..=MOST).contains(limit))
                .ok_or_else(|| Answer::bad(format!("limit: expected 1 to {MOST}")))?,
        };
        let (actor, team) = (request.query.get("actor"), request.by.team.as_deref());
        let _turn = self.turns.list().await?;
        let mut entries: Vec<Value> = Vec::new();
        let more = 'all: loop {
            let some = HistoryQuery { limit: AT_ONCE, ..query.clone() };
            let some = self.configuration.store().history(some).await.map_err(|error| Answer::store(&error))?;
            let is_last = some.len() < AT_ONCE;
            query.before = some.last().map(|commit| commit.revision).or(query.before);
            for commit in some.iter().filter(|commit| actor.is_none_or(|actor| commit.author.as_deref() == Some(actor)))
            {
                let concerns = |change: &&Difference| {
                    let is_of_key = query.key.as_ref().is_none_or(|key| change.key == *key);
                    is_of_key && kind.is_none_or(|kind| change.key.kind() == kind) && is_of(change, team)
                };
                for change in commit.changes.iter().filter(concerns) {
                    if entries.len() == limit {
                        break 'all true;
                    }
                    entries.push(entry(commit, change));
                }
            }
            if is_last {
                break false;
            }
        };
        let mut body = json!({ "entries": entries });
        if more {
            body["more"] = true.into();
        }
        Ok(Answer::json(StatusCode::OK, &body))
    }
}

/// True if a change is one of a resource of a team, or nobody asks for one.
fn is_of(change: &Difference, team: Option<&str>) -> bool {
    let Some(team) = team else { return true };
    change.old.iter().chain(&change.new).any(|text| team_of(text).as_deref() == Some(team))
}

fn entry(commit: &Recorded, change: &Difference) -> Value {
    let action = match (&change.old, &change.new) {
        (None, _) => "create",
        (Some(_), Some(_)) => "update",
        (Some(_), None) => "delete",
    };
    let time = commit.time.map(|time| time.duration_since(UNIX_EPOCH).unwrap_or_default());
    json!({
        "revision": commit.revision,
        "time": time.map(|time| time.as_millis() as f64 / 1000.0),
        "actor": commit.author,
        "action": action,
        "key": change.key.to_string(),
        "fields": changed_fields(change),
    })
}

/// Names of the fields that a change has made, changed or removed.
fn changed_fields(change: &Difference) -> Vec<String> {
    let read = |text: &Option<std::sync::Arc<str>>| {
        let value = text.as_ref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        value.and_then(|value| value.as_object().cloned()).unwrap_or_default()
    };
    let (old, new) = (read(&change.old), read(&change.new));
    let is_changed = |name: &&String| {
        !matches!(name.as_str(), "id" | "create_time" | "update_time") && old.get(*name) != new.get(*name)
    };
    let mut names: Vec<String> =
        new.keys().chain(old.keys().filter(|name| !new.contains_key(*name))).filter(is_changed).cloned().collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::{Difference, changed_fields, is_of};
    use weir_store::{Key, Kind};

    fn change(old: &str, new: &str) -> Difference {
        let text = |text: &str| (!text.is_empty()).then(|| text.into());
        Difference { key: Key::new(Kind::Plans, "p"), old: text(old), new: text(new) }
    }

    #[test]
    fn changed_fields_are_named() {
        let cases = [
            (
                r#"{"id": "p", "a": 1, "b": 2, "c": 3, "update_time": 1}"#,
                r#"{"id": "p", "b": 2, "c": 4, "d": 5, "update_time": 2}"#,
                "a c d",
            ),
            ("", r#"{"id": "p", "a": 1}"#, "a"),
            (r#"{"id": "p", "a": 1}"#, "", "a"),
        ];
        for (old, new, expected) in cases {
            assert_eq!(changed_fields(&change(old, new)).join(" "), expected);
        }
        let moved = change(r#"{"labels": {"team": "a"}}"#, r#"{"labels": {"team": "b"}}"#);
        assert_eq!([None, Some("a"), Some("b"), Some("c")].map(|team| is_of(&moved, team)), [true, true, true, false]);
    }
}
