//! Resources with the revisions that made and changed them, and several changes as one.

use std::collections::HashSet;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{ETAG, IF_NONE_MATCH};
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};
use weir_store::{Change, Expectation, Item, Key, Kind};

use super::{Precondition, conflict, etag, object, tags_of};
use crate::answer::{Answer, Outcome, Pieces};
use crate::api::Api;
use crate::read::{bytes_of, conceal};
use crate::request::Request;
use crate::write::{id_text, set_times};
use crate::{Audience, Gateway};

/// Changes in one transaction.
const MOST_CHANGES: usize = 10_000;

impl Api {
    /// All resources, or those of a kind.
    pub(crate) async fn resources(&self, request: &Request) -> Outcome {
        let kind = match request.query.get("kind") {
            None => None,
            Some(name) => Some(named(name)?),
        };
        let wanted = Wanted::read(request)?;
        let turn = self.turns.list().await?;
        let mut listing = self.configuration.listing(kind).await.map_err(|error| Answer::store(&error))?;
        if let Some(wanted) = wanted {
            let (gateway, audience) = (Arc::clone(&self.gateway), request.audience());
            let choosing = tokio::task::spawn_blocking(move || {
                let total = wanted.choose(&*gateway, audience, &mut listing.items);
                (listing, total)
            });
            let (listing, total) = choosing.await.map_err(|panicked| {
                tracing::error!(%panicked, "a list of resources could not be made");
                Answer::internal()
            })?;
            let shown: Vec<Value> =
                listing.items.iter().map(|item| shown(&*self.gateway, item, request.audience())).collect();
            let body = json!({ "revision": listing.revision, "total": total, "resources": shown });
            return Ok(Answer::json(StatusCode::OK, &body).with(ETAG, etag(listing.revision)));
        }
        let (revision, total, bytes) = (listing.revision, listing.items.len(), bytes_of(&listing.items));
        let begin = format!("{{\"revision\":{revision},\"total\":{total},\"resources\":[");
        let (gateway, audience) = (Arc::clone(&self.gateway), request.audience());
        let write = move |item: &Item, text: &mut String| {
            text.push_str(&shown(&*gateway, item, audience).to_string());
        };
        let pieces = Pieces::of_list((begin, listing.items, "]}\n".to_owned()), bytes, turn, ",", write);
        Ok(Answer::pieces(pieces).with(ETAG, etag(revision)))
    }

    /// One resource.
    pub(crate) async fn resource_at(&self, path: &[String], request: &Request) -> Outcome {
        let key = key(path)?;
        let item = self.item(&key).await?.ok_or_else(Answer::no_such_key)?;
        let tags = request.fields.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        if tags.is_some_and(|tags| tags == "*" || tags_of(tags).is_ok_and(|tags| tags.contains(&item.modified))) {
            return Ok(Answer::empty(StatusCode::NOT_MODIFIED).with(ETAG, etag(item.modified)));
        }
        Ok(Answer::json(StatusCode::OK, &shown(&*self.gateway, &item, request.audience()))
            .with(ETAG, etag(item.modified)))
    }

    /// Makes or replaces a resource.
    pub(crate) async fn put_resource(&self, path: &[String], request: &Request) -> Outcome {
        let key = key(path)?;
        let precondition = Precondition::of(&request.fields)?;
        let Some(Value::Object(value)) = request.json()? else {
            return Err(Answer::bad("expected a JSON object: the resource"));
        };
        let Prepared { change, expectation, before } = self.prepare(key, Some(value), &precondition).await?;
        let status = if before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
        let shown = change.value.as_ref().map(|text| presented(&*self.gateway, &change.key, text, Audience::Author));
        let more = json!({ "key": change.key.to_string(), "value": shown });
        let done = self.commit(vec![change], vec![expectation], request).await?;
        Ok(done.answer(status, more))
    }

    /// Deletes a resource.
    pub(crate) async fn delete_resource(&self, path: &[String], request: &Request) -> Outcome {
        let key = key(path)?;
        let precondition = Precondition::of(&request.fields)?;
        let prepared = self.prepare(key, None, &precondition).await?;
        if prepared.before.is_none() {
            return Err(Answer::no_such_key());
        }
        let more = json!({ "key": prepared.change.key.to_string() });
        let done = self.commit(vec![prepared.change], vec![prepared.expectation], request).await?;
        Ok(done.answer(StatusCode::OK, more))
    }

    /// Makes several changes as one.
    pub(crate) async fn transaction(&self, request: &Request) -> Outcome {
        let mut body = object(request, &["changes"])?;
        let Some(Value::Array(list)) = body.remove("changes") else {
            return Err(Answer::bad("changes: expected a list of {key, value}"));
        };
        if list.is_empty() || list.len() > MOST_CHANGES {
            let found = list.len();
            return Err(Answer::bad(format!("changes: expected 1 to {MOST_CHANGES}, found {found}")));
        }
        let (mut changes, mut expect) = (Vec::with_capacity(list.len()), Vec::with_capacity(list.len()));
        let mut known = HashSet::new();
        for (at, entry) in list.into_iter().enumerate() {
            let asked = Asked::read(entry).map_err(|reason| Answer::bad(format!("changes[{at}]: {reason}")))?;
            if !known.insert(asked.key.clone()) {
                return Err(Answer::bad(format!("changes[{at}]: {} stands twice", asked.key)));
            }
            let prepared = self.prepare(asked.key, asked.value, &asked.precondition).await?;
            changes.push(prepared.change);
            expect.push(prepared.expectation);
        }
        let keys: Vec<String> = changes.iter().map(|change| change.key.to_string()).collect();
        let done = self.commit(changes, expect, request).await?;
        Ok(done.answer(StatusCode::OK, json!({ "keys": keys })))
    }

    /// A change from the state that a resource is in, if that is the one that was asked for.
    async fn prepare(
        &self,
        key: Key,
        value: Option<Map<String, Value>>,
        precondition: &Precondition,
    ) -> Result<Prepared, Answer> {
        let before = self.item(&key).await?;
        if !precondition.holds(before.as_ref()) {
            return Err(conflict(&key));
        }
        let expectation = Expectation { key: key.clone(), modified: before.as_ref().map(|item| item.modified) };
        let value = match value {
            None => None,
            Some(mut value) => {
                self.restore(&key, &mut value, before.as_ref().map(|item| &*item.value))?;
                complete(&key, &mut value, before.as_ref())?;
                let text = serde_json::to_string(&value).map_err(|error| Answer::bad(error.to_string()))?;
                Some(Arc::from(text))
            }
        };
        Ok(Prepared { change: Change { key, value, expires: None }, expectation, before })
    }
}

/// A search, or a page.
struct Wanted {
    /// Words that have to stand in the key or the text, in any case.
    words: Vec<Regex>,
    /// The page, from 1, and how many are on it.
    page: (usize, usize),
    by_time: bool,
}

impl Wanted {
    /// Resources on a page, unless told.
    const PAGE: usize = 50;
    const MOST: usize = 500;
    /// Words of a search.
    const WORDS: usize = 8;

    /// The search of a request; `None` where everything is asked for.
    fn read(request: &Request) -> Result<Option<Self>, Answer> {
        let query = &request.query;
        if ["q", "page", "page_size", "sort"].iter().all(|name| query.get(name).is_none()) {
            return Ok(None);
        }
        // Of a word in ASCII no letter beyond ASCII is another case, so that it is found by its bytes.
        let word = |word: &str| {
            let mut builder = RegexBuilder::new(&regex::escape(word));
            builder.case_insensitive(true).unicode(!word.is_ascii()).build()
        };
        let words: Result<_, _> =
            query.get("q").unwrap_or_default().split_whitespace().take(Self::WORDS).map(word).collect();
        Ok(Some(Self {
            words: words.map_err(|_| Answer::bad("q: the words are too long"))?,
            page: (query.number("page", 1, usize::MAX)?, query.number("page_size", Self::PAGE, Self::MOST)?),
            by_time: match query.get("sort") {
                None | Some("key") => false,
                Some("modified") => true,
                Some(other) => return Err(Answer::bad(format!("sort: expected key or modified, found {other}"))),
            },
        }))
    }

    /// Leaves the resources of the page, and returns how many there are on all pages.
    fn choose(&self, gateway: &dyn Gateway, audience: Audience, items: &mut Vec<Item>) -> usize {
        if !self.words.is_empty() {
            items.retain(|item| self.fits(gateway, audience, item));
        }
        let total = items.len();
        let order = |one: &Item, other: &Item| match self.by_time {
            true => other.modified.cmp(&one.modified).then_with(|| one.key.cmp(&other.key)),
            false => one.key.cmp(&other.key),
        };
        let (page, size) = self.page;
        let from = (page - 1).saturating_mul(size).min(total);
        let end = from.saturating_add(size).min(total);
        // Entries behind the page and ahead of it stay in any order.
        if end < items.len() {
            items.select_nth_unstable_by(end, order);
            items.truncate(end);
        }
        if from > 0 && from < items.len() {
            items.select_nth_unstable_by(from, order);
        }
        items.drain(..from);
        items.sort_unstable_by(order);
        total
    }

    /// True if all words stand in what the reader is shown: a search must not find what is concealed.
    fn fits(&self, gateway: &dyn Gateway, audience: Audience, item: &Item) -> bool {
        let id = item.key.id();
        if self.words.iter().all(|word| word.is_match(id)) {
            return true;
        }
        let stands = |text: &str| self.words.iter().all(|word| word.is_match(id) || word.is_match(text));
        if !stands(&item.value) {
            return false;
        }
        let may_hide =
            matches!(item.key.kind(), Kind::Ssls | Kind::PluginMetadata) || gateway.may_hold_secrets(&item.value);
        !may_hide || stands(&presented(gateway, &item.key, &item.value, audience).to_string())
    }
}

/// A change on its way.
struct Prepared {
    change: Change,
    expectation: Expectation,
    before: Option<Item>,
}

/// A change of a transaction.
struct Asked {
    key: Key,
    value: Option<Map<String, Value>>,
    precondition: Precondition,
}

impl Asked {
    fn read(entry: Value) -> Result<Self, String> {
        const KNOWN: &[&str] = &["key", "value", "if_match", "if_none_match"];
        let Value::Object(mut entry) = entry else { return Err("expected an object".to_owned()) };
        if let Some(unknown) = entry.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(format!("{unknown}: unknown field; known are {}", KNOWN.join(", ")));
        }
        let key = entry.get("key").and_then(Value::as_str).ok_or("key: expected a text such as routes/1")?;
        let key = key.parse::<Key>().map_err(|error| error.to_string())?;
        let precondition = match (entry.get("if_match"), entry.get("if_none_match")) {
            (None, None) => Precondition::None,
            (Some(Value::String(any)), None) if any == "*" => Precondition::Exists,
            (Some(revision), None) => {
                let revision = revision.as_u64().ok_or("if_match: expected a revision, a whole number, or *")?;
                Precondition::Revisions(vec![revision])
            }
            (None, Some(Value::String(any))) if any == "*" => Precondition::Absent,
            (None, Some(_)) => return Err("if_none_match: expected *".to_owned()),
            (Some(_), Some(_)) => return Err("expected if_match or if_none_match, found both".to_owned()),
        };
        let value = match entry.remove("value") {
            Some(Value::Object(value)) => Some(value),
            Some(Value::Null) => None,
            Some(_) => return Err("value: expected an object, or null to delete".to_owned()),
            None => return Err("value is missing: an object, or null to delete".to_owned()),
        };
        Ok(Self { key, value, precondition })
    }
}

/// The key that a path names.
fn key(path: &[String]) -> Result<Key, Answer> {
    path.join("/").parse::<Key>().map_err(|error| Answer::error(StatusCode::NOT_FOUND, error.to_string()))
}

fn named(name: &str) -> Result<Kind, Answer> {
    Kind::named(name).ok_or_else(|| Answer::bad(format!("kind: there is no kind {name}; one is routes")))
}

/// Puts the id and the times into a value.
fn complete(key: &Key, value: &mut Map<String, Value>, before: Option<&Item>) -> Result<(), Answer> {
    let own = key.own_id();
    // A secret that was stored by itself named no manager.
    let short = own.rsplit('/').next().unwrap_or_default();
    let field = key.kind().id_field();
    if value.get(field).is_some_and(|told| id_text(told).is_none_or(|told| told != own && told != short)) {
        return Err(Answer::bad(format!("{field}: expected {own}, as in the key {key}, or none")));
    }
    value.insert(field.to_owned(), own.into());
    if key.kind().entry().has_times {
        // A client may send back a resource as it was read.
        value.shift_remove("create_time");
        set_times(value, before, None);
    }
    Ok(())
}

/// A resource as it is shown.
fn shown(gateway: &dyn Gateway, item: &Item, audience: Audience) -> Value {
    json!({
        "key": item.key.to_string(),
        "value": presented(gateway, &item.key, &item.value, audience),
        "created": item.created,
        "modified": item.modified,
    })
}

/// A stored value without what is not shown; what is no JSON object stays a text for those who are shown secrets.
fn presented(gateway: &dyn Gateway, key: &Key, text: &str, audience: Audience) -> Value {
    match serde_json::from_str::<Value>(text) {
        Ok(mut value @ Value::Object(_)) => {
            conceal(gateway, key.kind(), &mut value, audience);
            value
        }
        _ if audience == Audience::Administrator => text.into(),
        _ => "***".into(),
    }
}
