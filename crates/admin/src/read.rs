//! GET: one resource, or a list of them.

use std::fmt::Write;
use std::sync::Arc;

use hyper::StatusCode;
use regex::Regex;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use weir_store::{Item, Key, Kind};

use crate::answer::{Answer, Outcome, Pieces};
use crate::api::Api;
use crate::kinds::Target;
use crate::request::{Query, Request};
use crate::{Audience, Gateway};

/// Prefix of the key of a resource: APISIX's prefix in etcd, which clients see in every answer.
const PREFIX: &str = "/apisix/";

/// Bytes of values from which on the items of a list are chosen on a thread that may take its time.
const LARGE: usize = 256 * 1024;

impl Api {
    pub(crate) async fn get(&self, target: &Target, request: &Request) -> Outcome {
        if !target.inside.is_empty() {
            return Err(Answer::no_such_key());
        }
        match &target.id {
            Some(id) => self.get_one(target, id, request.audience()).await,
            None => self.get_list(target, request).await,
        }
    }

    async fn get_one(&self, target: &Target, id: &str, audience: Audience) -> Outcome {
        let key = target.key(id).ok_or_else(Answer::no_such_key)?;
        let item = self.item(&key).await?.ok_or_else(Answer::no_such_key)?;
        let mut body = String::with_capacity(item.value.len() + 128);
        write_item(&*self.gateway, &item, audience, &mut body);
        Ok(Answer::text(StatusCode::OK, body))
    }

    async fn get_list(&self, target: &Target, request: &Request) -> Outcome {
        let audience = request.audience();
        let wanted = Wanted::new(&request.query)?;
        let turn = self.turns.list().await?;
        let listing = self.configuration.listing(Some(target.kind)).await.map_err(|error| Answer::store(&error))?;
        let mut items = listing.items;
        if let Some(parent) = &target.parent {
            let belongs = |key: &Key| key.id().split('/').next() == Some(parent.as_str());
            items.retain(|item| belongs(&item.key));
            // Other lists have a place of their own in etcd, which is there with nothing in it.
            if items.is_empty() && target.kind.is_nested() {
                return Err(Answer::no_such_key());
            }
        }
        let (items, total) = match bytes_of(&items) < LARGE {
            true => wanted.choose(items),
            false => tokio::task::spawn_blocking(move || wanted.choose(items)).await.map_err(|panicked| {
                tracing::error!(%panicked, "a list of resources could not be made");
                Answer::internal()
            })?,
        };
        let bytes = bytes_of(&items);
        let list = ("{\"list\":[".to_owned(), items, format!("],\"total\":{total}}}\n"));
        let gateway = Arc::clone(&self.gateway);
        let write = move |item: &Item, text: &mut String| write_item(&*gateway, item, audience, text);
        Ok(Answer::pieces(Pieces::of_list(list, bytes, turn, ",", write)))
    }

    /// A resource, if there is one.
    pub(crate) async fn item(&self, key: &Key) -> Result<Option<Item>, Answer> {
        self.configuration.store().get(key).await.map_err(|error| Answer::store(&error))
    }
}

/// Filters and page of a list.
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
        // A value that is no number asks for no page, and so does one of the two without the other.
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

    /// The items that are shown, and how many there are without regard to the page. A page is in the order of creation, all
    /// of a kind are in that of their keys.
    fn choose(&self, mut items: Vec<Item>) -> (Vec<Item>, usize) {
        if self.is_filtered() {
            items.retain(|item| serde_json::from_str(&item.value).is_ok_and(|value| self.fits(&value)));
        }
        let total = items.len();
        match self.page {
            Some((page, size)) => {
                items.sort_by_key(|item| item.created);
                let from = (page - 1).saturating_mul(size).min(total);
                items.truncate(from.saturating_add(size));
                items.drain(..from);
            }
            None => items.sort_by(|one, other| one.key.id().cmp(other.key.id())),
        }
        (items, total)
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

/// Bytes of the values of items.
pub(crate) fn bytes_of(items: &[Item]) -> usize {
    items.iter().map(|item| item.value.len() + 128).sum()
}

/// Writes a resource as answers to GET have it.
fn write_item(gateway: &dyn Gateway, item: &Item, audience: Audience, body: &mut String) {
    body.push_str("{\"key\":");
    body.push_str(&Value::String(public_key(&item.key)).to_string());
    body.push_str(",\"value\":");
    write_value(gateway, item, audience, body);
    let _ = write!(body, ",\"createdIndex\":{},\"modifiedIndex\":{}}}", item.created, item.modified);
}

/// The key of a resource as clients know it: `/apisix/routes/1`.
pub(crate) fn public_key(key: &Key) -> String {
    format!("{PREFIX}{key}")
}

/// Writes a value, without what is not shown.
fn write_value(gateway: &dyn Gateway, item: &Item, audience: Audience, body: &mut String) {
    let (kind, text) = (item.key.kind(), &*item.value);
    if (matches!(kind, Kind::Ssls | Kind::PluginMetadata) || gateway.may_hold_secrets(text))
        && let Ok(mut value @ Value::Object(_)) = serde_json::from_str(text)
    {
        conceal(gateway, kind, &mut value, audience);
        if kind == Kind::PluginMetadata
            && let Value::Object(value) = &mut value
        {
            // Stored resources may lack the id, and those of a rules file do.
            value.entry("id").or_insert_with(|| item.key.id().into());
        }
        body.push_str(&value.to_string());
    } else if serde_json::from_str::<IgnoredAny>(text).is_ok() {
        body.push_str(text);
    } else {
        // Another program wrote it. As a text it breaks nothing; nobody knows what is secret in it.
        let shown = if audience == Audience::Administrator { text } else { "***" };
        body.push_str(&Value::String(shown.to_owned()).to_string());
    }
}

/// Takes out of a value what is not shown. The private keys of certificates leave no trace, as with APISIX.
pub(crate) fn conceal(gateway: &dyn Gateway, kind: Kind, value: &mut Value, audience: Audience) {
    if let (Kind::Ssls, Value::Object(fields)) = (kind, &mut *value) {
        for name in SSL_KEYS {
            fields.shift_remove(name);
        }
    }
    gateway.conceal(kind, value, audience);
}

/// The private keys of an `ssl`.
const SSL_KEYS: [&str; 2] = ["key", "keys"];

impl Api {
    /// Puts what is stored back into a value that a client has read before: secrets that were shown as something else, and
    /// the private keys of a certificate that comes without them.
    pub(crate) fn restore(
        &self,
        key: &Key,
        value: &mut Map<String, Value>,
        before: Option<&str>,
    ) -> Result<(), Answer> {
        let before = before.and_then(|before| serde_json::from_str::<Value>(before).ok());
        if let (Kind::Ssls, Some(before)) = (key.kind(), &before) {
            for name in SSL_KEYS {
                if let (None, Some(kept)) = (value.get(name), before.get(name)) {
                    value.insert(name.to_owned(), kept.clone());
                }
            }
        }
        let mut whole = Value::Object(std::mem::take(value));
        let restored = self.gateway.restore(key.kind(), &mut whole, before.as_ref());
        if let Value::Object(whole) = whole {
            *value = whole;
        }
        restored.map_err(|fault| Answer::bad(format!("invalid configuration: {fault}")))
    }
}
