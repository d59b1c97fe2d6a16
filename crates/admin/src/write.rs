//! PUT, POST, PATCH and DELETE: a value is completed, checked against everything that is live, and kept.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use weir_store::{Change, Commit, Expectation, Item, Key, Kind, StoreError};

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::kinds::Target;
use crate::patch;
use crate::read::{conceal, public_key};
use crate::request::Request;
use crate::words;
use crate::{Audience, Refused};

/// Attempts at a change while other gateways change the same resource.
const TRIES: usize = 10;

type Object = Map<String, Value>;

impl Api {
    /// Creates a resource or replaces it.
    pub(crate) async fn put(&self, target: &Target, request: &Request) -> Outcome {
        let mut value = whole(target, request)?;
        let key = settle_id(target, &mut value)?;
        refuse_times(&value)?;
        self.check_owner(target).await?;
        self.check_decoration(target, Some(key.own_id()), &mut value).await?;
        let expires = expiry(request)?;
        let _turn = self.writing.turn(Some(&key)).await;
        for attempt in 0..TRIES {
            let before = self.basis(&key, attempt).await?;
            let mut value = value.clone();
            self.restore(&key, &mut value, before.as_ref().map(|item| &*item.value))?;
            if target.kind.entry().has_times {
                set_times(&mut value, before.as_ref(), None);
            }
            let status = if before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
            match self.keep(&key, value.clone(), before.as_ref(), expires, request).await {
                Err(Refused::Store(StoreError::Conflict { .. })) => let_others_go(attempt).await,
                Err(refused) => return Err(self.refusal(&key, refused, Some(&value)).await),
                Ok(kept) => return Ok(Answer::json(status, &kept)),
            }
        }
        Err(contended(&key))
    }

    /// Creates a resource with an id of its own.
    pub(crate) async fn post(&self, target: &Target, request: &Request) -> Outcome {
        let mut value = whole(target, request)?;
        if target.id.is_some() || value.contains_key("id") {
            return Err(Answer::bad(format!("wrong {} id, do not need it", target.kind.entry().noun)));
        }
        refuse_times(&value)?;
        self.check_owner(target).await?;
        self.check_decoration(target, None, &mut value).await?;
        let expires = expiry(request)?;
        let _turn = self.writing.turn(None).await;
        let revision = self.configuration.store().revision().await.map_err(|error| Answer::store(&error))?;
        for next in 0..TRIES as u64 {
            // As many digits as the largest revision has, so that the order of texts is that of creation.
            let id = format!("{:020}", revision + next);
            let key = target.key(&id).ok_or_else(|| not_an_id("id"))?;
            let mut value = value.clone();
            self.restore(&key, &mut value, None)?;
            value.insert("id".to_owned(), id.into());
            set_times(&mut value, None, None);
            match self.keep(&key, value.clone(), None, expires, request).await {
                Err(Refused::Store(StoreError::Conflict { .. })) => {}
                Err(refused) => return Err(self.refusal(&key, refused, Some(&value)).await),
                Ok(kept) => return Ok(Answer::json(StatusCode::CREATED, &kept)),
            }
        }
        Err(Answer::error(StatusCode::CONFLICT, "others create resources at the same time: try again"))
    }

    /// Changes a part of a resource.
    pub(crate) async fn patch(&self, target: &Target, request: &Request) -> Outcome {
        let id = target.id.as_deref().ok_or_else(|| match target.kind {
            Kind::Secrets => Answer::bad("no secret id"),
            _ => Answer::bad(format!("missing {} id", target.kind.entry().noun)),
        })?;
        let change = request.json()?.ok_or_else(|| Answer::bad("missing new configuration"))?;
        let key = target.key(id).ok_or_else(Answer::no_such_key)?;
        let expires = expiry(request)?;
        if key.kind() == Kind::GraphqlCostDecorations && change.get("service_id").is_some() {
            return Err(Answer::bad("service_id can not be patched"));
        }
        let _turn = self.writing.turn(Some(&key)).await;
        for attempt in 0..TRIES {
            let before = self.basis(&key, attempt).await?.ok_or_else(Answer::no_such_key)?;
            let Ok(Value::Object(mut value)) = serde_json::from_str(&before.value) else {
                return Err(Answer::bad(format!("what is stored as {key} is no JSON object: replace it with PUT")));
            };
            if key.kind() == Kind::Secrets {
                // The stored id may lack the manager.
                value.insert("id".to_owned(), key.own_id().into());
            }
            let patched = if target.inside.is_empty() {
                let Value::Object(change) = change.clone() else { return Err(Answer::bad("invalid configuration")) };
                patch::merge(&mut value, change.clone());
                Some(change)
            } else {
                patch::put(&mut value, &target.inside, change.clone())
                    .map_err(|path| Answer::bad(format!("invalid sub-path: {path}")))?;
                None
            };
            if value.get("id").is_some_and(|found| id_text(found).as_deref() != Some(key.own_id())) {
                return Err(Answer::bad(format!("wrong {} id", target.kind.entry().noun)));
            }
            value.insert("id".to_owned(), key.own_id().into());
            self.check_decoration(target, Some(key.own_id()), &mut value).await?;
            self.restore(&key, &mut value, Some(&before.value))?;
            if target.kind.entry().has_times {
                set_times(&mut value, Some(&before), patched.as_ref());
            }
            match self.keep(&key, value.clone(), Some(&before), expires, request).await {
                Err(Refused::Store(StoreError::Conflict { .. })) => let_others_go(attempt).await,
                Err(refused) => return Err(self.refusal(&key, refused, Some(&value)).await),
                Ok(kept) => return Ok(Answer::json(StatusCode::OK, &kept)),
            }
        }
        Err(contended(&key))
    }

    /// Deletes a resource, with those below it.
    pub(crate) async fn delete(&self, target: &Target, request: &Request) -> Outcome {
        let id = target.id.as_deref().ok_or_else(|| Answer::bad(format!("missing {} id", target.kind.entry().noun)))?;
        if !target.inside.is_empty() {
            return Err(Answer::no_such_key());
        }
        let key = target.key(id).ok_or_else(Answer::no_such_key)?;
        if self.item(&key).await?.is_none() {
            return Err(Answer::no_such_key());
        }
        let force = request.query.get("force") == Some("true");
        if !force {
            self.check_unused_by_plugins(&key).await?;
        }
        let gone = |key: Key| Change { key, value: None, expires: None };
        let mut commit =
            Commit { changes: vec![gone(key.clone())], author: Self::author(&request.by), ..Commit::default() };
        if let Some(nested) = key.kind().nested() {
            let store = self.configuration.store();
            let listing = store.list(Some(nested)).await.map_err(|error| Answer::store(&error))?;
            let own = listing.items.into_iter().filter(|item| item.key.owner() == Some(key.id()));
            commit.changes.extend(own.map(|item| gone(item.key)));
        }
        let changed = match force {
            true => match self.check_rights(&commit, &request.by).await {
                Ok(()) => self.configuration.change_by_force(commit).await,
                Err(refused) => Err(refused),
            },
            false => self.change(commit, false, &request.by).await,
        };
        match changed {
            Ok(_) => Ok(Answer::json(StatusCode::OK, &json!({ "key": public_key(&key), "deleted": "1" }))),
            Err(refused) => {
                // Whatever refers to it would be wrong without it; who that is takes a look at everything.
                if matches!(refused, Refused::Invalid(_)) {
                    self.check_unused(&key).await?;
                }
                Err(self.refusal(&key, refused, None).await)
            }
        }
    }

    /// State that a change of a resource is based on: at the first attempt the last known one, then that in the store.
    async fn basis(&self, key: &Key, attempt: usize) -> Result<Option<Item>, Answer> {
        if attempt > 0 {
            return self.item(key).await;
        }
        self.configuration.recent(key).await.map_err(|error| Answer::store(&error))
    }

    /// Keeps a value and makes it live, unless somebody else changed what was there before. Gives what is answered.
    async fn keep(
        &self,
        key: &Key,
        value: Object,
        before: Option<&Item>,
        expires: Option<SystemTime>,
        request: &Request,
    ) -> Result<Value, Refused> {
        let text = serde_json::to_string(&value).map_err(|error| {
            Refused::Store(StoreError::Refused(format!("the value cannot be written as JSON: {error}")))
        })?;
        let commit = Commit {
            changes: vec![Change { key: key.clone(), value: Some(Arc::from(text)), expires }],
            author: Self::author(&request.by),
            expect: vec![Expectation { key: key.clone(), modified: before.map(|item| item.modified) }],
        };
        self.change(commit, false, &request.by).await?;
        let mut value = Value::Object(value);
        conceal(&*self.gateway, key.kind(), &mut value, Audience::Author);
        Ok(json!({ "key": public_key(key), "value": value }))
    }

    /// A resource of a nested kind needs its owner.
    async fn check_owner(&self, target: &Target) -> Result<(), Answer> {
        let owner = target.kind.section();
        let Some(id) = target.parent.as_ref().filter(|_| target.kind.is_nested()) else { return Ok(()) };
        match self.item(&Key::new(owner, id)).await? {
            Some(_) => Ok(()),
            None => Err(Answer::error(StatusCode::NOT_FOUND, format!("{} not found", owner.entry().noun))),
        }
    }

    /// The weight of a field of GraphQL stands below its service, and no other one of the service is for the same place.
    async fn check_decoration(&self, target: &Target, id: Option<&str>, value: &mut Object) -> Result<(), Answer> {
        let (Kind::GraphqlCostDecorations, Some(service)) = (target.kind, &target.parent) else { return Ok(()) };
        if value.get("service_id").is_some_and(|told| id_text(told).as_ref() != Some(service)) {
            return Err(Answer::bad("wrong service_id, it is taken from the path"));
        }
        value.insert("service_id".to_owned(), service.as_str().into());
        let Some(path) = value.get("field_path").and_then(Value::as_str) else { return Ok(()) };
        let store = self.configuration.store();
        let listing = store.list(Some(target.kind)).await.map_err(|error| Answer::store(&error))?;
        let others = listing.items.iter().filter(|item| item.key.owner() == Some(service));
        for item in others.filter(|item| Some(item.key.own_id()) != id) {
            let other = serde_json::from_str::<Object>(&item.value).unwrap_or_default();
            if other.get("field_path").and_then(Value::as_str) == Some(path) {
                let id = item.key.own_id();
                return Err(Answer::bad(format!("field_path {path} is already decorated on this service by [{id}]")));
            }
        }
        Ok(())
    }
}

/// The object in the body of PUT or POST.
fn whole(target: &Target, request: &Request) -> Result<Object, Answer> {
    if !target.inside.is_empty() {
        return Err(Answer::no_such_key());
    }
    match request.json()? {
        None => Err(Answer::bad("missing configurations")),
        Some(Value::Object(value)) => Ok(value),
        Some(other) => Err(Answer::bad(words::no_object(&other))),
    }
}

/// The key of what is PUT, with the id from the path or the body, which must agree; and the value with it.
fn settle_id(target: &Target, value: &mut Object) -> Result<Key, Answer> {
    let noun = target.kind.entry().noun;
    let wrong = || Answer::bad(format!("wrong {noun} id"));
    let field = target.kind.id_field();
    let told = value.get(field).map(|told| id_text(told).ok_or_else(|| not_an_id(field))).transpose()?;
    let told = match (target.kind, &target.parent, told) {
        // A secret has to be called by its whole name.
        (Kind::Secrets, Some(manager), Some(told)) => {
            Some(told.strip_prefix(&format!("{manager}/")).ok_or_else(wrong)?.to_owned())
        }
        // Others may be.
        (kind, Some(owner), Some(told)) => match kind.split_nested(&told) {
            Some((named, own)) if named == owner => Some(own.to_owned()),
            _ => Some(told),
        },
        (_, _, told) => told,
    };
    let id = match (&target.id, told) {
        (_, None) if field == "username" => {
            return Err(Answer::bad("invalid configuration: property \"username\" is required"));
        }
        (None, None) => return Err(Answer::bad(format!("missing {noun} id"))),
        (Some(id), Some(told)) if *id != told && field == "username" => return Err(Answer::bad("wrong username")),
        (Some(id), Some(told)) if *id != told => return Err(wrong()),
        (Some(id), _) => id.clone(),
        (None, Some(told)) => told,
    };
    let key = target.key(&id).ok_or_else(|| match field {
        "username" => Answer::bad(words::no_username(&id)),
        _ => not_an_id(field),
    })?;
    if field != "id" {
        // A consumer may repeat its name as its id.
        if value.get("id").is_some_and(|found| id_text(found).as_deref() != Some(&id)) {
            return Err(wrong());
        }
    } else if target.id.is_some() {
        value.insert("id".to_owned(), key.own_id().into());
    }
    Ok(key)
}

fn not_an_id(field: &str) -> Answer {
    Answer::bad(format!(
        "invalid configuration: property \"{field}\" validation failed: object matches none of the required"
    ))
}

/// An id as a text; ids may be integers.
pub(crate) fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_u64() => Some(number.to_string()),
        _ => None,
    }
}

/// Times are set here, but by a PATCH; and an upstream in another resource has none.
fn refuse_times(value: &Object) -> Result<(), Answer> {
    let inner = |name: &str| value.get(name).and_then(Value::as_object);
    let places = [("", Some(value)), ("upstream.", inner("upstream")), ("plugins.", inner("plugins"))];
    for (way, fields) in places {
        let time =
            ["create_time", "update_time"].into_iter().find(|name| fields.is_some_and(|f| f.contains_key(*name)));
        if let Some(name) = time {
            return Err(Answer::bad(format!("the property is forbidden:  {way}{name}")));
        }
    }
    Ok(())
}

/// Keeps the time of creation, renews that of the last change, unless a PATCH sets it.
pub(crate) fn set_times(value: &mut Object, before: Option<&Item>, patch: Option<&Object>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if !value.contains_key("create_time") {
        let before = before.and_then(|item| serde_json::from_str::<Object>(&item.value).ok());
        let created = before.and_then(|value| value.get("create_time").cloned());
        value.insert("create_time".to_owned(), created.unwrap_or_else(|| now.into()));
    }
    if patch.is_none_or(|patch| !patch.contains_key("update_time")) {
        value.insert("update_time".to_owned(), now.into());
    }
}

/// The expiry time of the resource.
fn expiry(request: &Request) -> Result<Option<SystemTime>, Answer> {
    // More than any clock can add up.
    const LONGEST: u64 = 100 * 365 * 86_400;
    let Some(text) = request.query.get("ttl") else { return Ok(None) };
    let seconds = text.parse::<u64>().map_err(|_| Answer::bad("invalid argument ttl: should be a number"))?;
    if seconds > LONGEST {
        return Err(Answer::bad(format!("invalid argument ttl: should be a number of seconds from 0 to {LONGEST}")));
    }
    // The shortest time there is, as in etcd.
    Ok(Some(SystemTime::now() + Duration::from_secs(seconds.max(1))))
}

/// Waits for a moment after a change that came second, longer each time and by chance: gateways that change the same resource
/// again and again would meet otherwise.
async fn let_others_go(attempt: usize) {
    let most = 1 << attempt.min(7);
    let chance = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_micros();
    tokio::time::sleep(Duration::from_millis(u64::from(chance % most + 1))).await;
}

fn contended(key: &Key) -> Answer {
    Answer::error(StatusCode::CONFLICT, format!("others change {key} at the same time: try again"))
}
