//! `/apisix/admin/configs`: the whole configuration as one thing, with a digest and a version for each section.
//!
//! In API-driven standalone mode that is all there is, and what was put is given back as it came. Over a store it is
//! another view of the same resources: what is put is compared with what is there, and the difference is one commit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{Context, SHA256};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use weir_config::Diagnostic;
use weir_config::node::Node;
use weir_config::schema::lua_type_of;
use weir_store::{Change, Commit, Item, Key, Kind, Listing};

use crate::answer::{Answer, Outcome, Pieces};
use crate::api::Api;
use crate::extensions::refusal;
use crate::put::Put;
use crate::read::{bytes_of, conceal};
use crate::request::Request;
use crate::turns::Held;
use crate::words;
use crate::{Audience, Gateway};

const DIGEST: HeaderName = HeaderName::from_static("x-digest");
const LAST_MODIFIED: HeaderName = HeaderName::from_static("x-last-modified");
const YAML: &str = "application/yaml";

/// The largest version that a client may give: the largest whole number of which every program that reads JSON knows
/// all before it. So there is always one more.
const LARGEST_VERSION: u64 = 1 << 53;

type Object = Map<String, Value>;

/// The configuration that is live.
struct Live {
    config: Object,
    digest: Option<String>,
    time: Option<u64>,
    listing: Listing,
}

impl Api {
    /// The whole configuration; `HEAD` gives its digest alone.
    pub(crate) async fn configs(&self, request: &Request) -> Outcome {
        let turn = self.turns.list().await?;
        if !self.standalone {
            return self.stored_configs(request, turn).await;
        }
        let put = self.last_put.lock().await;
        let live = self.live(put.as_ref()).await?;
        drop(put);
        let mut config = live.config;
        for kind in Kind::sections() {
            let items = config.get_mut(kind.directory()).and_then(Value::as_array_mut);
            for item in items.into_iter().flatten() {
                conceal(&*self.gateway, kind, item, request.audience());
            }
        }
        // They are in the body as well.
        config.extend(live.time.map(|time| ("X-Last-Modified".to_owned(), time.into())));
        config.extend(live.digest.as_ref().map(|digest| ("X-Digest".to_owned(), digest.as_str().into())));
        let mut answer = if request.method == hyper::Method::HEAD {
            Answer::empty(StatusCode::OK)
        } else {
            Answer::json(StatusCode::OK, &config.into())
        };
        if wants_yaml(request) {
            answer = answer.with(CONTENT_TYPE, HeaderValue::from_static(YAML));
        }
        Ok(marked(answer, live.digest.as_deref(), live.time))
    }

    /// The configuration that the resources of a store make up, item by item: it may be large.
    async fn stored_configs(&self, request: &Request, turn: Held) -> Outcome {
        let listing = self.configuration.listing(None).await.map_err(|error| Answer::store(&error))?;
        let put = self.last_put.lock().await;
        let put = put.as_ref().filter(|put| put.revision == listing.revision);
        let (digest, time) = match put {
            Some(put) => (put.digest.clone(), Some(put.time)),
            None => (digest_of(&listing), last_change(&listing)),
        };
        let mut answer = if request.method == hyper::Method::HEAD {
            Answer::empty(StatusCode::OK)
        } else {
            let mut end: Object = Kind::sections().map(|kind| (version_key(kind), listing.revision.into())).collect();
            // They are in the body as well.
            end.extend(time.map(|time| ("X-Last-Modified".to_owned(), time.into())));
            end.insert("X-Digest".to_owned(), digest.as_str().into());
            Answer::pieces(configuration_text(&self.gateway, request.audience(), listing, &end, turn))
        };
        if wants_yaml(request) {
            answer = answer.with(CONTENT_TYPE, HeaderValue::from_static(YAML));
        }
        Ok(marked(answer, Some(&digest), time))
    }

    /// Replaces the whole configuration, or the sections of it whose version is another one.
    pub(crate) async fn replace_configs(&self, request: &Request) -> Outcome {
        let digest = request.fields.get(&DIGEST).and_then(|digest| digest.to_str().ok());
        let digest = digest.ok_or_else(|| Answer::bad("missing digest header"))?.to_owned();
        let body = configuration(request)?;
        // One after the other: versions are compared with what is live.
        let mut put = self.last_put.lock().await;
        let live = self.live(put.as_ref()).await?;
        if live.digest.as_ref() == Some(&digest) {
            return Ok(Answer::empty(StatusCode::NO_CONTENT));
        }
        let mut config = Object::new();
        let mut commit = Commit { author: Self::author(&request.by), ..Commit::default() };
        for kind in Kind::sections() {
            let (section, version_key) = (kind.directory(), version_key(kind));
            let current = live.config.get(&version_key).and_then(Value::as_u64).unwrap_or_default();
            let version = version(&body, &version_key, current)?;
            config.insert(version_key, version.into());
            if version == current {
                config.extend(live.config.get(section).map(|items| (section.to_owned(), items.clone())));
                continue;
            }
            let items = items(&body, kind)?;
            let wanted = self.wanted(kind, &items, &live.listing)?;
            if !items.is_empty() {
                config.insert(section.to_owned(), items.into());
            }
            commit.changes.extend(self.difference(kind, wanted, &live.listing)?);
        }
        let mut revision = live.listing.revision;
        if !commit.changes.is_empty() {
            let changed = self.change(commit, false, &request.by).await;
            revision = changed.map_err(|refused| refusal(&refused))?.revision;
        }
        let time = now();
        // The configuration serves by now; 200 says so to clients that ask for it by `wait`.
        let waits =
            request.query.get("wait").and_then(|text| text.trim().parse::<f64>().ok()).is_some_and(|ms| ms > 0.0);
        let answer = Answer::empty(if waits { StatusCode::OK } else { StatusCode::ACCEPTED });
        let answer = marked(answer, Some(&digest), Some(time));
        *put = Some(Put { config, digest, time, revision });
        Ok(answer)
    }

    /// Checks a whole configuration, without regard to the one that is live.
    pub(crate) async fn validate_configs(&self, request: &Request) -> Outcome {
        let body = configuration(request)?;
        let mut document = Object::new();
        let mut errors = Vec::new();
        for kind in Kind::sections() {
            let items = items(&body, kind)?;
            let mut known = HashSet::new();
            let mut listed = Vec::with_capacity(items.len());
            for (index, item) in items.iter().enumerate() {
                let twice = told_id(kind, item).filter(|id| !known.insert(id.clone()));
                if let Some(id) = twice {
                    errors.push(fault_at(kind, index, Some(&id), &duplicate(kind, item, &id)));
                }
                listed.push(without_index(item));
            }
            if !listed.is_empty() {
                document.insert(kind.directory().to_owned(), listed.into());
            }
        }
        let gateway = Arc::clone(&self.gateway);
        let root = Node::from(&document.clone().into());
        let found = tokio::task::spawn_blocking(move || gateway.check_document(root)).await.map_err(|panicked| {
            tracing::error!(%panicked, "a configuration could not be checked");
            Answer::internal()
        })?;
        errors.extend(worst_by_item(&found).iter().map(|error| told(error, &document)));
        if errors.is_empty() {
            return Ok(Answer::json(StatusCode::OK, &json!({})));
        }
        let body = json!({ "error_msg": "Configuration validation failed", "errors": errors });
        Err(Answer::json(StatusCode::BAD_REQUEST, &body))
    }

    /// The live configuration, as it was put if nothing has changed it since.
    async fn live(&self, put: Option<&Put>) -> Result<Live, Answer> {
        let listing = self.configuration.store().list(None).await.map_err(|error| Answer::store(&error))?;
        if let Some(put) = put.filter(|put| self.standalone || put.revision == listing.revision) {
            let (digest, time) = (Some(put.digest.clone()), Some(put.time));
            if self.standalone {
                return Ok(Live { config: put.config.clone(), digest, time, listing });
            }
            return Ok(Live { config: assembled(&listing), digest, time, listing });
        }
        if self.standalone {
            let config = Kind::sections().map(|kind| (version_key(kind), 0.into())).collect();
            return Ok(Live { config, digest: None, time: None, listing });
        }
        let (digest, time) = (digest_of(&listing), last_change(&listing));
        Ok(Live { digest: Some(digest), time, config: assembled(&listing), listing })
    }

    /// The resources that a section's items stand for, each checked by itself.
    fn wanted(&self, kind: Kind, items: &[Value], live: &Listing) -> Result<Vec<(Key, Object)>, Answer> {
        let section = kind.directory();
        let stored = live.items.iter().filter(|item| item.key.kind().directory() == section);
        let stored: HashMap<&Key, &str> = stored.map(|item| (&item.key, &*item.value)).collect();
        let mut known = HashSet::new();
        let mut wanted = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let fault = |error: String| Answer::bad(invalid_at(kind, index, &error));
            let Value::Object(mut value) = without_index(item) else {
                return Err(fault(words::no_object(item)));
            };
            let id = told_id(kind, item);
            if let Some(id) = id.as_ref().filter(|id| !known.insert((*id).clone())) {
                return Err(Answer::bad(duplicate(kind, item, id)));
            }
            let id = id.unwrap_or_else(|| format!("arr_{}", index + 1));
            let key = format!("{section}/{id}").parse::<Key>().map_err(|error| fault(error.to_string()))?;
            self.restore(&key, &mut value, stored.get(&key).copied())?;
            let found = self.gateway.check_item(key.kind(), Node::from(&value.clone().into())).unwrap_or_default();
            if let Some(error) = words::worst(&found) {
                return Err(fault(words::of_listed(key.kind(), error, item)));
            }
            complete(&key, &mut value);
            wanted.push((key, value));
        }
        Ok(wanted)
    }

    /// Changes that make a section as it is wanted.
    fn difference(&self, kind: Kind, wanted: Vec<(Key, Object)>, live: &Listing) -> Result<Vec<Change>, Answer> {
        let of_section = |key: &Key| key.kind().directory() == kind.directory();
        let mut there: HashMap<&Key, &str> =
            live.items.iter().filter(|item| of_section(&item.key)).map(|item| (&item.key, &*item.value)).collect();
        let mut changes = Vec::new();
        for (key, mut value) in wanted {
            let old = there.remove(&key).and_then(|old| serde_json::from_str::<Object>(old).ok());
            if !self.standalone {
                if !renew_times(&key, &mut value, old.as_ref()) {
                    continue;
                }
            } else if old.as_ref() == Some(&value) {
                continue;
            }
            let text = serde_json::to_string(&value).map_err(|error| Answer::bad(error.to_string()))?;
            changes.push(Change { key, value: Some(text.into()), expires: None });
        }
        let gone = there.into_keys().map(|key| Change { key: key.clone(), value: None, expires: None });
        changes.extend(gone);
        Ok(changes)
    }
}

/// The body: JSON, or YAML if it says so.
fn configuration(request: &Request) -> Result<Object, Answer> {
    let refuse = |reason: &str| Answer::bad(format!("invalid request body: {reason}"));
    if request.body.is_empty() {
        return Err(refuse("empty request body"));
    }
    let body = if is_yaml(&request.fields) {
        let text = std::str::from_utf8(&request.body).map_err(|_| refuse("invalid yaml request body: not UTF-8"))?;
        let parsed = Node::parse(text).map_err(|error| refuse(&format!("invalid yaml request body: {error}")))?;
        if let Some(repeated) = parsed.repeated.first() {
            let (path, first, second) = (&repeated.path, repeated.first, repeated.second);
            return Err(refuse(&format!("{path}: the same key stands at {first} and at {second}")));
        }
        parsed.root.to_json()
    } else {
        request.json()?.unwrap_or_default()
    };
    match body {
        Value::Object(config) => Ok(config),
        other => Err(refuse(&format!("wrong type: expected object, got {}", lua_type_of(&other)))),
    }
}

fn is_yaml(fields: &HeaderMap) -> bool {
    fields.get(CONTENT_TYPE).is_some_and(|media_type| media_type.as_bytes().starts_with(YAML.as_bytes()))
}

/// Adds the fields that name the configuration of an answer.
fn marked(mut answer: Answer, digest: Option<&str>, time: Option<u64>) -> Answer {
    if let Some(digest) = digest.and_then(|digest| HeaderValue::from_str(digest).ok()) {
        answer = answer.with(DIGEST, digest);
    }
    match time {
        Some(time) => answer.with(LAST_MODIFIED, time.into()),
        None => answer,
    }
}

fn version_key(kind: Kind) -> String {
    format!("{}_conf_version", kind.directory())
}

/// The version of a section in a body; one more than the present one if the body has none.
fn version(body: &Object, name: &str, current: u64) -> Result<u64, Answer> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(current.saturating_add(1)),
        Some(version) => {
            let version = version.as_u64().ok_or_else(|| Answer::bad(format!("{name} must be a number")))?;
            if version > LARGEST_VERSION {
                return Err(Answer::bad(format!("{name} must be less than or equal to ({LARGEST_VERSION})")));
            }
            if version < current {
                return Err(Answer::bad(format!("{name} must be greater than or equal to ({current})")));
            }
            Ok(version)
        }
    }
}

/// The items of a section in a body.
fn items(body: &Object, kind: Kind) -> Result<Vec<Value>, Answer> {
    match body.get(kind.directory()) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items.clone()),
        Some(other) => {
            let (section, found) = (kind.directory(), lua_type_of(other));
            Err(Answer::bad(format!("invalid {section}: wrong type: expected array, got {found}")))
        }
    }
}

/// An item without what only this interface knows.
fn without_index(item: &Value) -> Value {
    let mut item = item.clone();
    if let Value::Object(fields) = &mut item {
        fields.shift_remove("modifiedIndex");
    }
    item
}

/// Id of an item in its section.
fn told_id(kind: Kind, item: &Value) -> Option<String> {
    let text = |name: &str| match item.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    match kind {
        // An item of the consumers with an id may be a credential.
        Kind::Consumers => text("id").filter(|id| id.contains('/')).or_else(|| text("username")),
        _ => text("id"),
    }
}

fn id_name(kind: Kind, item: &Value) -> &'static str {
    match kind {
        Kind::Consumers if item.get("id").is_some() => "credential id",
        Kind::Consumers => "username",
        _ => "id",
    }
}

/// The form in which a resource is stored: its own part of its key as its id, where it has one.
fn complete(key: &Key, value: &mut Object) {
    if key.kind().id_field() == "id" {
        value.insert("id".into(), key.own_id().into());
    }
}

/// The configuration that resources make up, with the store's revision for all versions.
fn assembled(listing: &Listing) -> Object {
    let mut config = Object::new();
    for item in &listing.items {
        let Some(value) = in_section(item) else { continue };
        let kind = item.key.kind();
        let section = config.entry(kind.directory()).or_insert_with(|| json!([]));
        if let Value::Array(items) = section {
            items.push(value.into());
        }
    }
    config.extend(Kind::sections().map(|kind| (version_key(kind), listing.revision.into())));
    config
}

/// Sets the times of a resource; whether anything else about it is new.
fn renew_times(key: &Key, value: &mut Object, old: Option<&Object>) -> bool {
    const TIMES: [&str; 2] = ["create_time", "update_time"];
    let timeless = |value: &Object| {
        let mut value = value.clone();
        value.retain(|name, _| !TIMES.contains(&name.as_str()));
        value
    };
    if old.is_some_and(|old| timeless(old) == timeless(value)) {
        return false;
    }
    if key.kind().entry().has_times {
        let created = old.and_then(|old| old.get("create_time")).cloned().unwrap_or_else(|| now().into());
        value.insert("create_time".into(), created);
        value.insert("update_time".into(), now().into());
    }
    true
}

/// A digest of resources that nobody has put as a whole.
fn digest_of(listing: &Listing) -> String {
    let mut context = Context::new(&SHA256);
    for item in &listing.items {
        context.update(format!("{}@{}\n", item.key, item.modified).as_bytes());
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The time of the last change, by the data of the resources.
fn last_change(listing: &Listing) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Times {
        update_time: Option<u64>,
    }
    let time = |item: &Item| serde_json::from_str::<Times>(&item.value).ok()?.update_time;
    listing.items.iter().filter_map(time).max()
}

/// Resources as a configuration, with these fields behind them.
fn configuration_text(
    gateway: &Arc<dyn Gateway>,
    audience: Audience,
    listing: Listing,
    end: &Object,
    turn: Held,
) -> Pieces {
    let bytes = bytes_of(&listing.items);
    let mut items = listing.items;
    // Those of nested kinds stand among their owners.
    items.sort_by_cached_key(|item| item.key.kind().section().entry().rank);
    let mut last: Option<&'static str> = None;
    let parts: Vec<(Option<&'static str>, bool, Item)> = items
        .into_iter()
        .filter(|item| {
            item.value.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(&item.value).is_ok()
        })
        .map(|item| {
            let section = item.key.kind().directory();
            let begins = (last != Some(section)).then_some(section);
            let closes = begins.is_some() && last.is_some();
            last = Some(section);
            (begins, closes, item)
        })
        .collect();
    let tail = Value::from(end.clone()).to_string();
    let tail = match last {
        Some(_) => format!("],{}\n", tail.trim_start_matches('{')),
        None => format!("{}\n", tail.trim_start_matches('{')),
    };
    let gateway = Arc::clone(gateway);
    Pieces::of_list(("{".to_owned(), parts, tail), bytes, turn, "", move |(begins, closes, item), text| {
        match (begins, closes) {
            (Some(section), true) => text.push_str(&format!("],\"{section}\":[")),
            (Some(section), false) => text.push_str(&format!("\"{section}\":[")),
            (None, _) => text.push(','),
        }
        let mut value = in_section(item).map(Value::from).unwrap_or_default();
        conceal(&*gateway, item.key.kind(), &mut value, audience);
        text.push_str(&value.to_string());
    })
}

/// A resource as an item of its section.
fn in_section(item: &Item) -> Option<Object> {
    let mut value = serde_json::from_str::<Object>(&item.value).ok()?;
    let kind = item.key.kind();
    if kind.is_nested() || matches!(kind, Kind::Secrets | Kind::PluginMetadata) {
        value.insert("id".into(), item.key.id().into());
    }
    Some(value)
}

/// True where YAML is asked for. JSON is YAML.
fn wants_yaml(request: &Request) -> bool {
    request.fields.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(YAML.as_bytes()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The error of each item that APISIX would find first, and every error that is of no item.
fn worst_by_item(found: &[Diagnostic]) -> Vec<Diagnostic> {
    let mut items: Vec<(&str, Vec<Diagnostic>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for error in found.iter().filter(|found| found.is_error()) {
        let end = error.path.find(']').map_or(0, |end| end + 1);
        let (item, rest) = error.path.split_at(end);
        let inside = Diagnostic { path: rest.trim_start_matches('.').to_owned(), ..error.clone() };
        match places.get(item).filter(|_| !item.is_empty()) {
            Some(place) => items[*place].1.push(inside),
            None => {
                places.insert(item, items.len());
                items.push((item, vec![inside]));
            }
        }
    }
    let worst = items.into_iter().filter_map(|(item, errors)| {
        let error = words::worst(&errors)?;
        let joint = if item.is_empty() || error.path.is_empty() || error.path.starts_with('[') { "" } else { "." };
        Some(Diagnostic { path: format!("{item}{joint}{}", error.path), ..error.clone() })
    });
    worst.collect()
}

/// A finding about a whole configuration, by its item.
fn told(error: &Diagnostic, document: &Object) -> Value {
    let place = error.path.split_once('[').and_then(|(section, rest)| {
        let (index, rest) = rest.split_once(']')?;
        let kind = Kind::sections().find(|kind| kind.directory() == section)?;
        Some((kind, index.parse::<usize>().ok()?, rest.trim_start_matches('.')))
    });
    let Some((kind, index, rest)) = place else {
        return json!({ "error": error.to_string() });
    };
    let item = document.get(kind.directory()).and_then(|items| items.get(index));
    let id = item.and_then(|item| told_id(kind, item));
    let within = Diagnostic { path: rest.to_owned(), ..error.clone() };
    let error = match item {
        Some(item) if !item.is_object() => words::no_object(item),
        _ => {
            let nested = kind.nested().filter(|_| id.as_deref().is_some_and(|id| id.contains('/')));
            let judged = nested.unwrap_or(kind);
            words::of_listed(judged, &within, item.unwrap_or(&Value::Null))
        }
    };
    fault_at(kind, index, id.as_deref(), &invalid_at(kind, index, &error))
}

/// Text of a finding about an item in a list.
fn invalid_at(kind: Kind, index: usize, error: &str) -> String {
    format!("invalid {} at index {index}, err: {error}", kind.directory())
}

fn duplicate(kind: Kind, item: &Value, id: &str) -> String {
    format!("found duplicate {} {id} in {}", id_name(kind, item), kind.directory())
}

fn fault_at(kind: Kind, index: usize, id: Option<&str>, error: &str) -> Value {
    let mut fault = json!({ "resource_type": kind.directory(), "index": index, "error": error });
    if let Some(id) = id {
        fault["resource_id"] = id.into();
    }
    fault
}
