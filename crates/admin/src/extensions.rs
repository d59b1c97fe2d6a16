//! `/weir/v1`: what this gateway's API has beyond APISIX's. Resources with preconditions, dry runs that tell every
//! finding, several changes as one, history, and a stream of changes.

mod about;
mod applications;
mod audit;
mod developers;
mod events;
mod explain;
mod history;
mod keys;
mod live;
mod products;
mod quotas;
mod resources;
mod rights;
mod self_service;
mod send;
mod threescale;
mod tyk;
mod usage;

use hyper::header::{ETAG, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use hyper::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use weir_config::{Diagnostic, Severity};
use weir_store::{Change, Commit, Expectation, Item, Key, StoreError};

use crate::answer::Answer;
use crate::api::Api;
use crate::request::Request;
use crate::{Audience, Changed, Gateway, Refused};

pub use send::OwnRequest;
pub use threescale::ThreescaleQuestion;

/// State that a client expects a resource to be in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Precondition {
    /// Any.
    #[default]
    None,
    /// Changed last by one of these revisions.
    Revisions(Vec<u64>),
    /// The resource exists.
    Exists,
    /// The resource does not exist.
    Absent,
}

impl Precondition {
    /// That of a request's fields (RFC 9110 section 13.1). Revisions stand there as entity tags: `"12"`.
    fn of(fields: &HeaderMap) -> Result<Self, Answer> {
        let text = |name: HeaderName| fields.get(name).map(|value| value.to_str().unwrap_or_default().trim());
        match (text(IF_MATCH), text(IF_NONE_MATCH)) {
            (None, None) => Ok(Self::None),
            (Some("*"), None) => Ok(Self::Exists),
            (Some(tags), None) => tags_of(tags).map(Self::Revisions),
            (None, Some("*")) => Ok(Self::Absent),
            (None, Some(_)) => Err(Answer::bad("If-None-Match: expected * with a change")),
            (Some(_), Some(_)) => Err(Answer::bad("expected If-Match or If-None-Match, found both")),
        }
    }

    /// True if a resource is in that state.
    fn holds(&self, found: Option<&Item>) -> bool {
        match (self, found) {
            (Self::None, _) | (Self::Exists, Some(_)) | (Self::Absent, None) => true,
            (Self::Revisions(revisions), Some(item)) => revisions.contains(&item.modified),
            (Self::Exists | Self::Revisions(_), None) | (Self::Absent, Some(_)) => false,
        }
    }
}

/// The revisions in a list of entity tags.
fn tags_of(text: &str) -> Result<Vec<u64>, Answer> {
    let tag = |tag: &str| {
        let inner = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
        inner.parse().ok()
    };
    let tags: Option<Vec<u64>> = text.split(',').map(tag).collect();
    tags.ok_or_else(|| Answer::bad(format!("If-Match: expected a revision in quotes, such as \"12\", found {text}")))
}

fn etag(revision: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{revision}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

impl Api {
    /// Makes changes, or only checks them. The state that they were made from must still be that of the resources.
    async fn commit(&self, changes: Vec<Change>, expect: Vec<Expectation>, request: &Request) -> Result<Done, Answer> {
        let dry_run = is_dry_run(request)?;
        let commit = Commit { changes, author: Self::author(&request.by), expect };
        match self.change(commit, dry_run, &request.by).await {
            Ok(changed) => Ok(Done { dry_run, changed }),
            Err(refused) => Err(refusal(&refused)),
        }
    }
}

/// Changes that were made, or would be.
struct Done {
    dry_run: bool,
    changed: Changed,
}

impl Done {
    /// The answer about the changes, with `more`.
    fn answer(&self, status: StatusCode, more: Value) -> Answer {
        let mut body = json!({ "diagnostics": diagnostics(&self.changed.warnings) });
        if self.dry_run {
            body["dry_run"] = true.into();
        } else {
            body["revision"] = self.changed.revision.into();
        }
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        let answer = Answer::json(if self.dry_run { StatusCode::OK } else { status }, &body);
        if self.dry_run { answer } else { answer.with(ETAG, etag(self.changed.revision)) }
    }
}

fn is_dry_run(request: &Request) -> Result<bool, Answer> {
    match request.query.get("dry_run") {
        None | Some("false") => Ok(false),
        Some("true" | "") => Ok(true),
        Some(other) => Err(Answer::bad(format!("dry_run: expected true or false, found {other}"))),
    }
}

/// Changes that were not made: with every finding.
pub(crate) fn refusal(refused: &Refused) -> Answer {
    match refused {
        Refused::Store(StoreError::Conflict { key }) => conflict(key),
        Refused::Store(error) => Answer::store(error),
        Refused::NotAllowed(reason) => Answer::error(StatusCode::FORBIDDEN, reason.as_str()),
        Refused::ReadOnly(reason) => Answer::error(StatusCode::METHOD_NOT_ALLOWED, reason.as_str()),
        Refused::Invalid(found) => {
            let first = found.iter().find(|found| found.is_error()).or(found.first());
            let first = first.map(ToString::to_string).unwrap_or_default();
            let body = json!({
                "error_msg": format!("invalid configuration: {first}"),
                "diagnostics": diagnostics(found),
            });
            Answer::json(StatusCode::BAD_REQUEST, &body)
        }
    }
}

/// A resource is not in the state that a client asked for.
fn conflict(key: &Key) -> Answer {
    Answer::error(StatusCode::PRECONDITION_FAILED, format!("{key} is not as you expect it: it was changed since"))
}

/// Findings for programs.
fn diagnostics(found: &[Diagnostic]) -> Vec<Value> {
    let told = |found: &Diagnostic| {
        let severity = match found.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let mut told = json!({ "severity": severity, "path": found.path, "message": found.message() });
        if let Some(hint) = &found.hint {
            told["hint"] = hint.to_string().into();
        }
        told
    };
    found.iter().map(told).collect()
}

/// A value without its secrets: their place shows that they are there.
fn masked(gateway: &dyn Gateway, key: &Key, text: &str) -> Value {
    match serde_json::from_str::<Value>(text) {
        Ok(mut value) => {
            gateway.conceal(key.kind(), &mut value, Audience::Reader);
            value
        }
        // Nobody knows what is secret in it.
        Err(_) => "***".into(),
    }
}

/// The object in a request's body, with no field but these.
fn object(request: &Request, known: &[&str]) -> Result<serde_json::Map<String, Value>, Answer> {
    let Some(Value::Object(body)) = request.json()? else {
        return Err(Answer::bad(format!("expected a JSON object with {}", known.join(", "))));
    };
    match body.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(Answer::bad(format!("{unknown}: unknown field; known are {}", known.join(", ")))),
        None => Ok(body),
    }
}

/// A revision among the arguments.
fn revision(request: &Request, name: &str) -> Result<Option<u64>, Answer> {
    let Some(text) = request.query.get(name) else { return Ok(None) };
    let parsed = text.parse().map(Some);
    parsed.map_err(|_| Answer::bad(format!("{name}: expected a revision, a whole number, found {text}")))
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;
    use hyper::header::{HeaderName, HeaderValue};
    use weir_store::{Item, Key, Kind};

    use super::Precondition;

    #[test]
    fn preconditions_are_read_and_hold() {
        let item = Item { key: Key::new(Kind::Routes, "1"), value: "{}".into(), created: 3, modified: 7 };
        // The fields, and whether they hold for the item and without it; `None`: they are refused.
        type Case<'a> = (&'a [(&'static str, &'static str)], Option<(bool, bool)>);
        let cases: &[Case<'_>] = &[
            (&[], Some((true, true))),
            (&[("if-match", "*")], Some((true, false))),
            (&[("if-match", "\"7\"")], Some((true, false))),
            (&[("if-match", "\"6\", \"7\"")], Some((true, false))),
            (&[("if-match", "\"8\"")], Some((false, false))),
            (&[("if-none-match", "*")], Some((false, true))),
            (&[("if-none-match", "\"7\"")], None),
            (&[("if-match", "7")], None),
            (&[("if-match", "\"x\"")], None),
            (&[("if-match", "*"), ("if-none-match", "*")], None),
        ];
        for (fields, expected) in cases {
            let mut map = HeaderMap::new();
            for (name, value) in *fields {
                map.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            let found = Precondition::of(&map).ok().map(|found| (found.holds(Some(&item)), found.holds(None)));
            assert_eq!(found, *expected, "{fields:?}");
        }
    }
}
