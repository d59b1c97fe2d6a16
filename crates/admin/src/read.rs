//! GET: one resource, or a list of them.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use regex::Regex;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tokio::time::timeout;
use weir_store::{Item, Key, Kind};

use crate::answer::{Answer, Body, Outcome};
use crate::api::Api;
use crate::kinds::Place;
use crate::request::{Query, Request};

/// What stands before the key of a resource: APISIX's prefix in etcd, which clients see in every answer.
const PREFIX: &str = "/apisix/";

/// Lists that are read, or are on their way to clients, at one time: each holds all resources of its kind.
pub(crate) const LISTS: usize = 8;

/// How long one more waits for its turn.
const LIST_WAIT: Duration = Duration::from_secs(10);

/// Bytes of values from which on a list is put together on a thread that may take its time.
const LARGE: usize = 256 * 1024;

impl Api {
    pub(crate) async fn get(&self, place: &Place, request: &Request) -> Outcome {
        if !place.inside.is_empty() {
            return Err(Answer::no_such_key());
        }
        match &place.id {
            Some(id) => self.get_one(place, id).await,
            None => self.get_list(place, &request.query).await,
        }
    }

    async fn get_one(&self, place: &Place, id: &str) -> Outcome {
        let key = place.key(id).ok_or_else(Answer::no_such_key)?;
        let item = self.item(&key).await?.ok_or_else(Answer::no_such_key)?;
        let mut body = String::with_capacity(item.value.len() + 128);
        write_item(&item, &mut body);
        Ok(Answer::text(StatusCode::OK, body))
    }

    async fn get_list(&self, place: &Place, query: &Query) -> Outcome {
        let wanted = Wanted::new(query)?;
        let waited = timeout(LIST_WAIT, Arc::clone(&self.lists).acquire_owned()).await;
        let Ok(Ok(turn)) = waited else {
            let message = "too many lists are being read: try again";
            return Err(Answer::error(StatusCode::SERVICE_UNAVAILABLE, message));
        };
        let listing =
            self.configuration.store().list(Some(place.kind())).await.map_err(|error| Answer::store(&error))?;
        let mut items = listing.items;
        if let Some(parent) = &place.parent {
            let belongs = |key: &Key| key.id().split('/').next() == Some(parent.as_str());
            items.retain(|item| belongs(&item.key));
            // Other lists have a place of their own in etcd, which is there with nothing in it.
            if items.is_empty() && place.kind() == Kind::Credentials {
                return Err(Answer::no_such_key());
            }
        }
        if items.iter().map(|item| item.value.len()).sum::<usize>() < LARGE {
            return Ok(Answer::text(StatusCode::OK, wanted.write(items)));
        }
        let body = tokio::task::spawn_blocking(move || wanted.write(items)).await.map_err(|panicked| {
            tracing::error!(%panicked, "a list of resources could not be written");
            Answer::internal()
        })?;
        let mut answer = Answer::text(StatusCode::OK, body);
        if let Body::Whole(body) = answer.body {
            answer.body = Body::Large { body, _turn: turn };
        }
        Ok(answer)
    }

    /// A resource, if there is one.
    pub(crate) async fn item(&self, key: &Key) -> Result<Option<Item>, Answer> {
        self.configuration.store().get(key).await.map_err(|error| Answer::store(&error))
    }
}

/// What a list is to hold.
struct Wanted {
    name: Option<Regex>,
    label: Option<String>,
    uri: Option<Regex>,
    /// Fields and the texts that they must have.
    fields: Vec<(String, String)>,
    /// The page, from 1, and how many items are on it.
    page: Option<(usize, usize)>,
}

impl Wanted {
    fn new(query: &Query) -> Result<Self, Answer> {
        const PAGE_SIZES: std::ops::RangeInclusive<f64> = 10.0..=500.0;
        let pattern = |name: &str| {
            let Some(text) = query.get(name) else { return Ok(None) };
            let compiled = Regex::new(text).map(Some);
            compiled.map_err(|_| Answer::bad(format!("invalid argument {name}: should be a regular expression")))
        };
        // What is no number asks for no page, and one without the other neither.
        let number = |name: &str| query.get(name).and_then(|text| text.trim().parse::<f64>().ok());
        let page = match number("page").zip(number("page_size")) {
            Some((_, size)) if !PAGE_SIZES.contains(&size) => {
                return Err(Answer::bad_text("page_size must be between 10 and 500"));
            }
            Some((page, size)) => Some(((page as usize).max(1), size as usize)),
            None => None,
        };
        let fields = query.get("filter").unwrap_or_default();
        Ok(Self {
            name: pattern("name")?,
            label: query.get("label").map(str::to_owned),
            uri: pattern("uri")?,
            fields: form_urlencoded::parse(fields.as_bytes()).into_owned().collect(),
            page,
        })
    }

    fn is_filtered(&self) -> bool {
        self.name.is_some() || self.label.is_some() || self.uri.is_some() || !self.fields.is_empty()
    }

    fn write(&self, mut items: Vec<Item>) -> String {
        if self.is_filtered() {
            items.retain(|item| serde_json::from_str(&item.value).is_ok_and(|value| self.fits(&value)));
        }
        let total = items.len();
        let mut shown = items.as_slice();
        if let Some((page, size)) = self.page {
            items.sort_by_key(|item| item.created);
            let from = (page - 1).saturating_mul(size).min(total);
            shown = &items[from..from.saturating_add(size).min(total)];
        }
        let mut body = String::with_capacity(64 + shown.iter().map(|item| item.value.len() + 128).sum::<usize>());
        body.push_str("{\"list\":[");
        for (at, item) in shown.iter().enumerate() {
            if at > 0 {
                body.push(',');
            }
            write_item(item, &mut body);
        }
        let _ = write!(body, "],\"total\":{total}}}");
        body
    }

    fn fits(&self, value: &Map<String, Value>) -> bool {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let name = self.name.as_ref().is_none_or(|name| text("name").is_some_and(|found| name.is_match(found)));
        let label = self.label.as_ref().is_none_or(|label| value.get("labels").is_some_and(|l| l.get(label).is_some()));
        let uri = self.uri.as_ref().is_none_or(|uri| {
            let several = value.get("uris").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            text("uri").into_iter().chain(several).any(|found| uri.is_match(found))
        });
        let has = |(name, wanted): &(String, String)| match value.get(name) {
            Some(Value::String(found)) => found == wanted,
            Some(Value::Number(found)) => found.to_string().as_str() == wanted,
            Some(Value::Bool(found)) => wanted == if *found { "true" } else { "false" },
            _ => false,
        };
        name && label && uri && self.fields.iter().all(has)
    }
}

/// Writes a resource as answers to GET have it.
fn write_item(item: &Item, body: &mut String) {
    body.push_str("{\"key\":");
    body.push_str(&Value::String(public_key(&item.key)).to_string());
    body.push_str(",\"value\":");
    write_value(item, body);
    let _ = write!(body, ",\"createdIndex\":{},\"modifiedIndex\":{}}}", item.created, item.modified);
}

/// The key of a resource as clients know it: `/apisix/routes/1`.
pub(crate) fn public_key(key: &Key) -> String {
    format!("{PREFIX}{key}")
}

/// Writes a value, without what is never shown.
fn write_value(item: &Item, body: &mut String) {
    let (kind, text) = (item.key.kind(), &*item.value);
    if matches!(kind, Kind::Ssls | Kind::PluginMetadata)
        && let Ok(Value::Object(mut value)) = serde_json::from_str(text)
    {
        hide(kind, &mut value);
        if kind == Kind::PluginMetadata {
            // It may be stored without, and comes without from a rules file.
            value.entry("id").or_insert_with(|| item.key.id().into());
        }
        body.push_str(&Value::Object(value).to_string());
    } else if serde_json::from_str::<IgnoredAny>(text).is_ok() {
        body.push_str(text);
    } else {
        // Another program wrote it. As a text it breaks nothing.
        body.push_str(&Value::String(text.to_owned()).to_string());
    }
}

/// Takes out of a value what is never shown: the private keys of certificates.
pub(crate) fn hide(kind: Kind, value: &mut Map<String, Value>) {
    if kind == Kind::Ssls {
        value.shift_remove("key");
        value.shift_remove("keys");
    }
}
