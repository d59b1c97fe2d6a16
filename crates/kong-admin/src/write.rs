//! Creating, changing and deleting entities.

use std::time::{Duration, SystemTime};

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use weir_admin::{FamilyAnswer, FamilyRequest, Refused};
use weir_config::Diagnostic;
use weir_store::{Change, StoreError};

use crate::entities::{self, Entities, Entity};
use crate::fault::{self, Outcome, answer, empty};
use crate::kinds::{self, Kind, KindNumber};
use crate::live::Live;
use crate::plugins;
use crate::read::argument;
use crate::shape::{self, Object, Type};
use crate::target::{Place, Target, id_of};
use crate::{body, made};

/// Answers a request that changes something.
pub(crate) async fn write(target: &Target<'_>, live: &Live, request: &FamilyRequest) -> Outcome {
    // The steps below are based on a store that has been read.
    live.entities().await;
    if request.method == Method::DELETE {
        return delete(target, live, request).await;
    }
    let (given, is_form) = body::read(&request.body, &request.fields)?;
    let skips_hash = argument(request, "skip_hash") == Some("true");
    let (flight, (entity, status)) = live.prepare(|entities| {
        let asked = Asked { entities, method: &request.method, skips_hash };
        let (kind, entity, status) = asked.entity(target, given, is_form)?;
        Ok::<_, FamilyAnswer>((vec![change(kind, &entity)], (entity, status)))
    })?;
    let id = id_of(&entity);
    flight.make(&request.author).await.map_err(|refused| told(refused, &id))?;
    Ok(answer(status, &entity))
}

pub(crate) fn change(kind: &Kind, entity: &Value) -> Change {
    // A credential with a time to live goes by itself.
    let ttl = entity["ttl"].as_u64().filter(|ttl| *ttl > 0);
    let expires = ttl.and_then(|ttl| SystemTime::now().checked_add(Duration::from_secs(ttl)));
    Change { key: entities::key(kind, &id_of(entity)), value: Some(entity.to_string().into()), expires }
}

/// A request on top of the entities that there are.
pub(crate) struct Asked<'a> {
    pub(crate) entities: &'a Entities,
    pub(crate) method: &'a Method,
    pub(crate) skips_hash: bool,
}

impl Asked<'_> {
    /// The entity as it is to be stored, and the status that says so.
    pub(crate) fn entity(
        &self,
        target: &Target<'_>,
        mut given: Object,
        is_form: bool,
    ) -> Result<(&'static Kind, Value, StatusCode), FamilyAnswer> {
        let parent = target.parent_id(self.entities)?;
        let before = target.find(self.entities, parent.as_ref());
        let (number, kind, before, id) = match (target.through, before) {
            (Some(_), None) => return Err(fault::not_found()),
            (Some((field, to)), Some(entity)) => {
                let kind = kinds::kind(to).ok_or_else(fault::not_found)?;
                let id = entity[field]["id"].as_str().ok_or_else(fault::not_found)?;
                (to, kind, self.entities.get(to, id), Some(id))
            }
            (None, before) => (target.number, target.kind, before, target.id),
        };
        if is_form {
            shape::convert(&kind.fields, &mut given);
            let name = given.get("name").or_else(|| before?.get("name")).and_then(Value::as_str);
            let plugin = name.and_then(plugins::named).filter(|_| kind.name == "plugins");
            if let (Some(plugin), Some(Value::Object(config))) = (plugin, given.get_mut("config")) {
                shape::convert(&plugin.fields, config);
            }
        }
        let is_new = before.is_none();
        if is_new && *self.method == Method::PATCH {
            return Err(fault::not_found());
        }
        if let (Some((field, of)), None) = (&parent, target.through) {
            given.insert((*field).to_owned(), json!({ "id": of }));
        }
        if kind.name == "services" {
            take_url(&mut given)?;
        }
        let mut object = match before.and_then(|before| before.as_object()) {
            Some(before) if *self.method == Method::PATCH => merged(before, given),
            Some(before) => {
                // Created again in place: what it is known by stays.
                for field in ["id", "created_at"] {
                    given.entry(field).or_insert_with(|| before.get(field).cloned().unwrap_or_default());
                }
                given
            }
            None => given,
        };
        if *self.method != Method::POST {
            let of_path = id.filter(|id| shape::is_uuid(id)).map(str::to_ascii_lowercase);
            let of_path = of_path.or_else(|| before.map(|before| id_of(before)));
            if let Some(id) = of_path {
                object.insert("id".to_owned(), id.into());
            }
            if let (Some(key), Some(name)) = (kind.key, id.filter(|id| !shape::is_uuid(id))) {
                object.entry(key).or_insert_with(|| name.into());
            }
        }
        self.finish(number, kind, object, before).map(|entity| {
            let status = if *self.method == Method::POST { StatusCode::CREATED } else { StatusCode::OK };
            (kind, entity, status)
        })
    }

    /// Completes and checks the fields of an entity.
    pub(crate) fn finish(
        &self,
        number: KindNumber,
        kind: &'static Kind,
        mut object: Object,
        before: Option<&Entity>,
    ) -> Result<Value, FamilyAnswer> {
        self.resolve(kind, &mut object);
        shape::complete(&kind.fields, &mut object);
        make_up(kind, &mut object, before)?;
        let mut faults = shape::check(&kind.fields, &object);
        let plugin = object.get("name").and_then(Value::as_str).filter(|_| kind.name == "plugins");
        if let Some(plugin) = plugin.map(str::to_owned) {
            let config = object.entry("config").or_insert(Value::Null);
            if config.is_null() {
                *config = json!({});
                faults.shift_remove("config");
            }
            match (plugins::named(&plugin), config) {
                (Some(plugin), Value::Object(config)) => {
                    shape::complete(&plugin.fields, config);
                    let inner = shape::check(&plugin.fields, config);
                    if !inner.is_empty() {
                        faults.insert("config".to_owned(), Value::Object(inner));
                    }
                }
                (None, _) => {
                    let text = format!("plugin '{plugin}' not enabled; add it to the 'plugins' configuration property");
                    faults.insert("name".to_owned(), text.into());
                }
                _ => {}
            }
        }
        if kind.name == "consumers" && ["username", "custom_id"].iter().all(|field| object[*field].is_null()) {
            let text = "at least one of these fields must be non-empty: 'custom_id', 'username'";
            fault::put(&mut faults, "", text);
        }
        if !faults.is_empty() {
            return Err(fault::schema(faults));
        }
        if kind.name == "basicauth_credentials" {
            self.hash(&mut object, before);
        }
        let entity = Value::Object(object);
        let id = id_of(&entity);
        for (field, to) in kind.references() {
            if let Some(of) = entity[&field.name]["id"].as_str()
                && self.entities.get(to, of).is_none()
            {
                let to = kinds::kind(to).map_or("", |kind| kind.name);
                return Err(fault::no_such(&field.name, to, of));
            }
        }
        if self.entities.get(number, &id).is_some() && before.is_none_or(|before| before["id"] != id) {
            return Err(fault::coded(
                StatusCode::CONFLICT,
                3,
                "primary key violation",
                &format!("primary key violation on key '{{id=\"{id}\"}}'"),
                Object::from_iter([("id".to_owned(), id.into())]),
            ));
        }
        if let Some(fields) = self.entities.rival(number, &id, &entity) {
            return Err(fault::unique(&entity, &fields));
        }
        Ok(entity)
    }

    /// Puts ids in the places of names in references.
    fn resolve(&self, kind: &'static Kind, object: &mut Object) {
        for (field, to) in kind.references() {
            let Some(Value::Object(reference)) = object.get_mut(&field.name) else { continue };
            let Some(target) = kinds::kind(to) else { continue };
            let name =
                target.key.filter(|_| !reference.contains_key("id")).and_then(|key| reference.get(key)?.as_str());
            let found = name.and_then(|id| Place { number: to, kind: target, id }.find(self.entities));
            if let Some(entity) = found {
                *reference = Object::from_iter([("id".to_owned(), entity["id"].clone())]);
            }
            // An absent reference in a form.
            if reference.get("id").is_some_and(|id| id == "") {
                object.insert(field.name.clone(), Value::Null);
            }
        }
    }

    /// Puts the hash of the password in its place, unless it is the stored one, or hashed already.
    fn hash(&self, object: &mut Object, before: Option<&Entity>) {
        let consumer = object["consumer"]["id"].as_str().unwrap_or_default().to_owned();
        let Some(Value::String(password)) = object.get_mut("password") else { return };
        let is_stored = *self.method == Method::PATCH && before.is_some_and(|before| before["password"] == **password);
        if !is_stored && !self.skips_hash {
            *password = made::hashed(password, &consumer);
        }
    }
}

/// Makes ids, keys and times where none is given.
fn make_up(kind: &Kind, object: &mut Object, before: Option<&Entity>) -> Result<(), FamilyAnswer> {
    let failed = |_| fault::message(StatusCode::INTERNAL_SERVER_ERROR, "An unexpected error occurred");
    for field in kind.fields.iter().filter(|field| field.is_made) {
        let now = || Value::from(made::now());
        let value = match field.name.as_str() {
            "updated_at" => now(),
            _ if object.get(&field.name).is_some_and(|value| !value.is_null()) => continue,
            "created_at" => before.map_or_else(now, |before| before["created_at"].clone()),
            "id" => made::id().map_err(failed)?.into(),
            _ => made::key().map_err(failed)?.into(),
        };
        object.insert(field.name.clone(), value);
    }
    if let Some(Value::String(id)) = object.get_mut("id") {
        id.make_ascii_lowercase();
    }
    Ok(())
}

/// The fields before with those given: records are merged, everything else is replaced.
fn merged(before: &Object, given: Object) -> Object {
    let mut merged = before.clone();
    for (name, value) in given {
        let value = match (merged.get(&name), value) {
            (Some(Value::Object(inner)), Value::Object(value)) if !inner.contains_key("id") => {
                Value::Object(self::merged(inner, value))
            }
            (_, value) => value,
        };
        merged.insert(name, value);
    }
    merged
}

/// Puts the parts of `url` in their places.
pub(crate) fn take_url(given: &mut Object) -> Result<(), FamilyAnswer> {
    let Some(url) = given.shift_remove("url").filter(|url| !url.is_null()) else { return Ok(()) };
    let refused = |text: &str| fault::schema(Object::from_iter([("url".to_owned(), text.into())]));
    let text = url.as_str().ok_or_else(|| refused("expected a string"))?;
    let parsed: hyper::Uri = text.parse().map_err(|_| refused("expected a URL"))?;
    let (Some(scheme), Some(authority)) = (parsed.scheme_str(), parsed.authority()) else {
        return Err(refused("missing host in url"));
    };
    let port = authority.port_u16().unwrap_or(if matches!(scheme, "https" | "grpcs" | "wss") { 443 } else { 80 });
    given.insert("protocol".to_owned(), scheme.into());
    given.insert("host".to_owned(), authority.host().into());
    given.insert("port".to_owned(), port.into());
    let path = Some(parsed.path()).filter(|path| *path != "/" || text.ends_with('/'));
    given.insert("path".to_owned(), path.map_or(Value::Null, Value::from));
    Ok(())
}

async fn delete(target: &Target<'_>, live: &Live, request: &FamilyRequest) -> Outcome {
    if target.through.is_some() || target.id.is_none() {
        return Err(fault::wrong_method());
    }
    let (flight, id) = live.prepare(|entities| {
        let parent = target.parent_id(entities)?;
        let Some(entity) = target.find(entities, parent.as_ref()) else { return Ok((Vec::new(), String::new())) };
        let mut changes = Vec::new();
        remove(entities, target.number, target.kind, &id_of(entity), &mut changes)?;
        Ok::<_, FamilyAnswer>((changes, id_of(entity)))
    })?;
    flight.make(&request.author).await.map_err(|refused| told(refused, &id))?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// The removal of an entity with those that go along.
fn remove(
    entities: &Entities,
    number: KindNumber,
    kind: &Kind,
    id: &str,
    changes: &mut Vec<Change>,
) -> Result<(), FamilyAnswer> {
    for (child, description) in kinds::kinds() {
        for (field, _) in description.references().filter(|(_, to)| *to == number) {
            for entity in entities.children(child, &field.name, id) {
                if !field.shape.goes_along {
                    return Err(fault::referenced(kind.name, description.name));
                }
                let key = entities::key(description, &id_of(entity));
                if !changes.iter().any(|change| change.key == key) {
                    remove(entities, child, description, &id_of(entity), changes)?;
                }
            }
        }
        // Authorities are named in a list.
        let is_listed = kind.name == "ca_certificates" && description.name == "services";
        let mut services = entities.after(child, None).filter(|_| is_listed);
        let has = |entity: &&Entity| {
            entity["ca_certificates"].as_array().is_some_and(|listed| listed.iter().any(|listed| listed == id))
        };
        if let Some(service) = services.find(has) {
            let text = format!("ca_certificate {id} is still referenced by services (id = {})", id_of(service));
            return Err(fault::coded(StatusCode::BAD_REQUEST, 19, "referenced by others", &text, Object::new()));
        }
    }
    changes.push(Change { key: entities::key(kind, id), value: None, expires: None });
    Ok(())
}

/// Checks an entity as if it were to be created.
pub(crate) async fn validate(kind: KindNumber, live: &Live, request: &FamilyRequest) -> Outcome {
    let entities = live.entities().await;
    let description = kinds::kind(kind).ok_or_else(fault::not_found)?;
    let (mut given, is_form) = body::read(&request.body, &request.fields)?;
    if is_form {
        shape::convert(&description.fields, &mut given);
    }
    if description.name == "services" {
        take_url(&mut given)?;
    }
    // Only the entity itself is looked at: what it refers to may not be there yet.
    for field in description.fields.iter().filter(|field| field.shape.kind == Type::Foreign) {
        if given.get(&field.name).is_some_and(|value| value.is_object()) {
            let known = Asked { entities: &entities, method: &Method::POST, skips_hash: false };
            known.resolve(description, &mut given);
        }
    }
    let nothing = Entities::default();
    let asked = Asked { entities: &nothing, method: &Method::POST, skips_hash: true };
    match asked.finish(kind, description, given, None) {
        Err(refusal) if !is_reference(&refusal) => return Err(refusal),
        _ => {}
    }
    Ok(answer(StatusCode::OK, &json!({ "message": "schema validation successful" })))
}

/// True for a refusal because of what an entity refers to.
fn is_reference(refusal: &FamilyAnswer) -> bool {
    let body = refusal.body.as_deref().and_then(|body| serde_json::from_slice::<Value>(body).ok());
    body.is_some_and(|body| body["code"] == 4)
}

/// A refusal by everything else, in the words of the API. `id` is that of the entity which was to be changed.
pub(crate) fn told(refused: Refused, id: &str) -> FamilyAnswer {
    match refused {
        Refused::Invalid(found) => invalid(&found, id),
        Refused::Store(error) => {
            let status = match error {
                StoreError::Conflict { .. } => StatusCode::CONFLICT,
                StoreError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
                StoreError::Refused(_) => StatusCode::BAD_REQUEST,
            };
            fault::message(status, &error.to_string())
        }
        Refused::ReadOnly(reason) => fault::message(StatusCode::METHOD_NOT_ALLOWED, &reason),
        Refused::NotAllowed(reason) => fault::message(StatusCode::FORBIDDEN, &reason),
    }
}

fn invalid(found: &[Diagnostic], id: &str) -> FamilyAnswer {
    let mut fields = Object::new();
    let text = |found: &Diagnostic| match &found.hint {
        Some(hint) => format!("{} ({hint})", found.code),
        None => found.code.to_string(),
    };
    for found in found.iter().filter(|found| found.is_error()) {
        let own = found.path.split_once(id).filter(|_| !id.is_empty());
        match own.filter(|(place, _)| place.starts_with("entities/")) {
            Some((_, place)) => fault::put(&mut fields, place, &text(found)),
            None => {
                let place = found.path.trim_start_matches("entities/");
                fault::put(&mut fields, "", &format!("{place}: {}", text(found)));
            }
        }
    }
    fault::schema(fields)
}
