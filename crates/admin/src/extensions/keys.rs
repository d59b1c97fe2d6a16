//! Keys of callers: credentials of key-auth that are made here, put on plans, renewed and taken back.

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use weir_store::{Change, Expectation, Item, Key, Kind};

use super::applications::{change, random};
use super::object;
use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;
use crate::write::set_times;

/// Digits of an id that is made.
const ID: usize = 16;

impl Api {
    /// The credentials of all consumers, or of one.
    pub(crate) async fn issued_keys(&self, request: &Request) -> Outcome {
        let consumer = request.query.get("consumer");
        let listing = self.configuration.listing(Some(Kind::Credentials)).await;
        let listing = listing.map_err(|error| Answer::store(&error))?;
        let of_consumer = |item: &&Item| consumer.is_none_or(|consumer| item.key.consumer() == Some(consumer));
        let keys: Vec<Value> = listing.items.iter().filter(of_consumer).map(told).collect();
        Ok(Answer::json(StatusCode::OK, &json!({ "revision": listing.revision, "total": keys.len(), "keys": keys })))
    }

    /// Makes a key.
    pub(crate) async fn issue_key(&self, request: &Request) -> Outcome {
        let mut body = object(request, &["consumer", "id", "name", "desc", "plan"])?;
        let consumer = match body.remove("consumer") {
            Some(Value::String(consumer)) => consumer,
            _ => return Err(Answer::bad("consumer: expected the name of a consumer")),
        };
        let Some(owner) = self.item(&Key::new(Kind::Consumers, &consumer)).await? else {
            return Err(Answer::error(StatusCode::NOT_FOUND, format!("there is no consumer {consumer}")));
        };
        self.make_key(&owner, body, request).await
    }

    /// Makes a key of a consumer, with these fields.
    pub(super) async fn make_key(&self, owner: &Item, mut body: Map<String, Value>, request: &Request) -> Outcome {
        let consumer = owner.key.id().to_owned();
        let secret = random()?;
        let id = match body.shift_remove("id") {
            None => random()?.chars().take(ID).collect(),
            Some(Value::String(id)) => id,
            Some(_) => return Err(Answer::bad("id: expected a text")),
        };
        let key = key_of(&consumer, &id)?;
        if self.item(&key).await?.is_some() {
            return Err(super::conflict(&key));
        }
        let mut value = Map::new();
        value.insert("id".to_owned(), id.clone().into());
        value.extend(body.into_iter().filter(|(_, field)| !field.is_null()));
        value.insert("plugins".to_owned(), json!({ "key-auth": { "key": secret } }));
        set_times(&mut value, None, None);
        let expect = vec![
            Expectation { key: key.clone(), modified: None },
            Expectation { key: owner.key.clone(), modified: Some(owner.modified) },
        ];
        let done = self.commit(vec![change(key, &value)?], expect, request).await?;
        Ok(done.answer(StatusCode::CREATED, json!({ "consumer": consumer, "id": id, "key": secret })))
    }

    /// Changes the plans of a key, or the key itself.
    pub(crate) async fn change_key(&self, path: &[String], request: &Request) -> Outcome {
        let body = object(request, &["plan", "renew"])?;
        self.renew_key(path, body, request).await
    }

    /// Changes a key by these fields.
    pub(super) async fn renew_key(&self, path: &[String], mut body: Map<String, Value>, request: &Request) -> Outcome {
        let (key, item) = self.key_at(path).await?;
        let mut value = match serde_json::from_str::<Value>(&item.value) {
            Ok(Value::Object(value)) => value,
            _ => return Err(Answer::bad(format!("{key} is no JSON object"))),
        };
        match body.remove("plan") {
            None => {}
            Some(Value::Null) => drop(value.shift_remove("plan")),
            Some(plan) => drop(value.insert("plan".to_owned(), plan)),
        }
        let mut more = json!({ "consumer": key.consumer(), "id": key.own_id() });
        match body.remove("renew") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => {
                let place = value.get_mut("plugins").and_then(|plugins| plugins.get_mut("key-auth"));
                let Some(Value::Object(place)) = place else {
                    return Err(Answer::bad("renew: only keys of key-auth can be made here"));
                };
                let secret = random()?;
                place.insert("key".to_owned(), secret.clone().into());
                more["key"] = secret.into();
            }
            Some(_) => return Err(Answer::bad("renew: expected true or false")),
        }
        set_times(&mut value, Some(&item), None);
        let expect = vec![Expectation { key: key.clone(), modified: Some(item.modified) }];
        let done = self.commit(vec![change(key, &value)?], expect, request).await?;
        Ok(done.answer(StatusCode::OK, more))
    }

    /// Takes a key back.
    pub(crate) async fn revoke_key(&self, path: &[String], request: &Request) -> Outcome {
        let (key, item) = self.key_at(path).await?;
        let more = json!({ "consumer": key.consumer(), "id": key.own_id() });
        let expect = vec![Expectation { key: key.clone(), modified: Some(item.modified) }];
        let done = self.commit(vec![Change { key, value: None, expires: None }], expect, request).await?;
        Ok(done.answer(StatusCode::OK, more))
    }

    async fn key_at(&self, path: &[String]) -> Result<(Key, Item), Answer> {
        let [consumer, id] = path else { return Err(Answer::no_such_key()) };
        let key = key_of(consumer, id)?;
        let item = self.item(&key).await?.ok_or_else(Answer::no_such_key)?;
        Ok((key, item))
    }
}

fn key_of(consumer: &str, id: &str) -> Result<Key, Answer> {
    let path = format!("consumers/{consumer}/credentials/{id}");
    path.parse::<Key>().map_err(|error| Answer::bad(error.to_string()))
}

/// A key as it is listed: nothing of its plugins but their names.
pub(super) fn told(item: &Item) -> Value {
    let value = serde_json::from_str::<Value>(&item.value).unwrap_or_default();
    let plugins = value.get("plugins").and_then(Value::as_object);
    let mut told = json!({
        "consumer": item.key.consumer(),
        "id": item.key.own_id(),
        "plugin": plugins.and_then(|plugins| plugins.keys().next()),
        "created": item.created,
        "modified": item.modified,
    });
    for field in ["name", "desc", "labels", "plan", "create_time", "update_time"] {
        if let Some(found) = value.get(field) {
            told[field] = found.clone();
        }
    }
    told
}
