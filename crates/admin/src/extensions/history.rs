//! Earlier revisions, differences between revisions, and rollback.

use std::time::UNIX_EPOCH;

use hyper::StatusCode;
use serde_json::{Value, json};
use weir_store::{Change, Difference, Expectation, HistoryQuery, Key, Recorded};

use super::{masked, object, revision};
use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;

/// Commits that are read at one time.
const AT_ONCE: usize = 4;

/// Commits in one answer.
const MOST_COMMITS: usize = 1000;

impl Api {
    /// The commits that are remembered.
    pub(crate) async fn history(&self, request: &Request) -> Outcome {
        let mut query = HistoryQuery { before: revision(request, "before")?, ..HistoryQuery::default() };
        if let Some(key) = request.query.get("key") {
            query.key = Some(key.parse::<Key>().map_err(|error| Answer::bad(format!("key: {error}")))?);
        }
        if let Some(limit) = request.query.get("limit") {
            let limit = limit.parse().ok().filter(|limit| (1..=MOST_COMMITS).contains(limit));
            query.limit = limit.ok_or_else(|| Answer::bad(format!("limit: expected 1 to {MOST_COMMITS}")))?;
        }
        let _turn = self.turns.list().await?;
        let (wanted, mut left, mut commits) = (query.limit, self.answer_size, Vec::new());
        // A few at a time: each may hold many resources.
        let more = loop {
            let limit = (wanted - commits.len()).min(AT_ONCE);
            let some = HistoryQuery { limit, ..query.clone() };
            let some = self.configuration.store().history(some).await.map_err(|error| Answer::store(&error))?;
            let is_last = some.len() < limit;
            query.before = some.last().map(|commit| commit.revision).or(query.before);
            let mut rest = some.iter();
            for commit in rest.by_ref() {
                commits.push(self.commit_told(commit, &mut left));
                if left == 0 {
                    break;
                }
            }
            if left == 0 {
                break !is_last || rest.next().is_some();
            }
            if is_last || commits.len() == wanted {
                break false;
            }
        };
        let mut body = json!({ "commits": commits });
        if more {
            body["more"] = true.into();
        }
        Ok(Answer::json(StatusCode::OK, &body))
    }

    fn commit_told(&self, commit: &Recorded, left: &mut usize) -> Value {
        let time = commit.time.map(|time| time.duration_since(UNIX_EPOCH).unwrap_or_default());
        json!({
            "revision": commit.revision,
            "time": time.map(|time| time.as_millis() as f64 / 1000.0),
            "author": commit.author,
            "changes": self.differences_told(&commit.changes, left),
        })
    }

    /// Differences with their values, for as long as there is room `left`; from then on with their keys alone.
    fn differences_told(&self, differences: &[Difference], left: &mut usize) -> Vec<Value> {
        let told = |difference: &Difference| {
            let Difference { key, old, new } = difference;
            let length = |text: &Option<std::sync::Arc<str>>| text.as_ref().map_or(0, |text| text.len());
            let bytes = length(old) + length(new) + key.id().len() + 64;
            if bytes > *left {
                *left = 0;
                return json!({ "key": key.to_string(), "omitted": true });
            }
            *left -= bytes;
            let side = |text: &Option<std::sync::Arc<str>>| text.as_ref().map(|text| masked(&*self.gateway, key, text));
            json!({ "key": key.to_string(), "old": side(old), "new": side(new) })
        };
        differences.iter().map(told).collect()
    }

    /// Differences between two revisions.
    pub(crate) async fn difference_of(&self, request: &Request) -> Outcome {
        let store = self.configuration.store();
        let from = revision(request, "from")?.ok_or_else(|| Answer::bad("from: expected a revision"))?;
        let to = match revision(request, "to")? {
            Some(to) => to,
            None => store.revision().await.map_err(|error| Answer::store(&error))?,
        };
        let _turn = self.turns.list().await?;
        let changes = store.difference(from, to).await.map_err(|error| Answer::store(&error))?;
        let body = json!({ "from": from, "to": to, "changes": self.differences_told(&changes, &mut self.answer_size.clone()) });
        Ok(Answer::json(StatusCode::OK, &body))
    }

    /// Makes everything as it was at a revision.
    pub(crate) async fn roll_back(&self, request: &Request) -> Outcome {
        let body = object(request, &["revision"])?;
        let to = body.get("revision").and_then(Value::as_u64);
        let to = to.ok_or_else(|| Answer::bad("revision: expected the revision to go back to, a whole number"))?;
        let store = self.configuration.store();
        let now = store.revision().await.map_err(|error| Answer::store(&error))?;
        let turn = self.turns.list().await?;
        let differences = store.difference(now, to).await.map_err(|error| Answer::store(&error))?;
        let told = self.differences_told(&differences, &mut self.answer_size.clone());
        drop(turn);
        if differences.is_empty() {
            return Ok(Answer::json(StatusCode::OK, &json!({ "revision": now, "changes": [], "diagnostics": [] })));
        }
        let (mut changes, mut expect) = (Vec::new(), Vec::new());
        for Difference { key, old, new } in differences {
            // The resource must still be the compared one: another writer may change it meanwhile.
            let found = self.item(&key).await?;
            if found.as_ref().map(|item| &item.value) != old.as_ref() {
                return Err(super::conflict(&key));
            }
            expect.push(Expectation { key: key.clone(), modified: found.map(|item| item.modified) });
            changes.push(Change { key, value: new, expires: None });
        }
        let done = self.commit(changes, expect, request).await?;
        Ok(done.answer(StatusCode::OK, json!({ "restored": to, "changes": told })))
    }
}
