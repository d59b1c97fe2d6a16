//! `/config`: a whole declarative configuration at once, for a gateway without a database.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::digest;
use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use weir_admin::{FamilyAnswer, FamilyRequest, Refused};
use weir_config::Diagnostic;
use weir_kong::{Declaration, Declared, declaration};
use weir_store::Change;

use crate::entities::{self, Entities};
use crate::fault::{self, Outcome, answer, empty};
use crate::kinds;
use crate::live::Live;
use crate::read::argument;
use crate::shape::Object;
use crate::target::id_of;
use crate::write::{Asked, take_url};

/// The configuration that was taken last.
#[derive(Debug, Default)]
pub(crate) struct Config(Mutex<Option<Taken>>);

#[derive(Clone, Debug)]
struct Taken {
    text: Bytes,
    hash: String,
}

/// Hash of no configuration.
const EMPTY: &str = "00000000000000000000000000000000";

impl Config {
    /// Hash of the configuration in force, as `/status` tells it.
    pub(crate) fn hash(&self) -> String {
        self.taken().map_or_else(|| EMPTY.to_owned(), |taken| taken.hash)
    }

    fn taken(&self) -> Option<Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `GET /config`: the document.
    pub(crate) fn read(&self) -> Outcome {
        let text = self.taken().map(|taken| String::from_utf8_lossy(&taken.text).into_owned());
        Ok(answer(StatusCode::OK, &json!({ "config": text.unwrap_or_default() })))
    }

    /// `POST /config`: replaces everything.
    pub(crate) async fn replace(&self, live: &Live, request: &FamilyRequest) -> Outcome {
        let (text, is_json) = document(request)?;
        let hash = hash(&text);
        let is_asked = |name: &str| matches!(argument(request, name), Some("1" | "true"));
        // A document in JSON is loaded each time, as in Kong.
        if is_asked("check_hash") && !is_json && self.hash() == hash {
            return Ok(empty(StatusCode::NOT_MODIFIED));
        }
        let read = std::str::from_utf8(&text).map(declaration).unwrap_or_default();
        let refused = |read: &Declaration, faults: &Faults| match is_asked("flatten_errors") {
            true => flattened(read, faults),
            false => nested(faults),
        };
        let mut faults = Faults::default();
        read.found.iter().filter(|found| found.is_error()).for_each(|found| faults.add(&found.path, found));
        let made = made(&read, &mut faults);
        if !faults.0.is_empty() {
            return Err(refused(&read, &faults));
        }
        // The steps below are based on a store that has been read.
        live.entities().await;
        let (flight, ()) = live.prepare(|before| Ok::<_, FamilyAnswer>((changes(before, &made), ())))?;
        if let Err(error) = flight.make(&request.author).await {
            let Refused::Invalid(found) = error else { return Err(crate::write::told(error, "")) };
            for found in found.iter().filter(|found| found.is_error()) {
                // The lowered document has another order: the id in the path says which entity is meant.
                let of_entity = read.entities.iter().find(|entity| found.path.contains(&entity.id));
                let own = of_entity.and_then(|entity| Some((entity, found.path.split_once(&entity.id)?.1)));
                match own {
                    Some((entity, rest)) => faults.add(&format!("{}{rest}", entity.path), found),
                    None => faults.add(&found.path, found),
                }
            }
            return Err(refused(&read, &faults));
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Taken { text, hash });
        let mut all: BTreeMap<&str, Object> = BTreeMap::new();
        for (name, entity) in &made {
            all.entry(name).or_default().insert(id_of(entity), entity.clone());
        }
        Ok(answer(StatusCode::CREATED, &json!(all)))
    }
}

/// Texts of faults by their paths in the document.
#[derive(Debug, Default)]
struct Faults(Vec<(String, String)>);

impl Faults {
    fn add(&mut self, path: &str, found: &Diagnostic) {
        let text = match &found.hint {
            Some(hint) => format!("{} ({hint})", found.code),
            None => found.code.to_string(),
        };
        self.0.push((path.to_owned(), text));
    }
}

/// The document of a request, and whether it is JSON. A form has it in the field `config`.
fn document(request: &FamilyRequest) -> Result<(Bytes, bool), FamilyAnswer> {
    let nothing = || fault::message(StatusCode::BAD_REQUEST, "expected a declarative configuration");
    let kind = request.fields.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (text, is_json) = match kind.as_str() {
        "application/x-www-form-urlencoded" => {
            let field = form_urlencoded::parse(&request.body).find(|(name, _)| name == "config");
            (field.map(|(_, text)| Bytes::from(text.into_owned())).ok_or_else(nothing)?, false)
        }
        "multipart/form-data" => {
            let text = "Unsupported Content-Type: send the document itself, or a form with the field config";
            return Err(fault::message(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        "application/json" => {
            // `{"config": "…"}` holds the document as a text.
            let json: Option<Value> = serde_json::from_slice(&request.body).ok();
            match json.as_ref().and_then(|json| json.get("config")?.as_str()) {
                Some(text) => (Bytes::from(text.to_owned()), false),
                None => (request.body.clone(), true),
            }
        }
        _ => (request.body.clone(), false),
    };
    match text.iter().all(u8::is_ascii_whitespace) {
        true => Err(nothing()),
        false => Ok((text, is_json)),
    }
}

/// 32 hexadecimal digits.
fn hash(text: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, text);
    hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The entities as they are stored, with their kinds.
fn made(read: &Declaration, faults: &mut Faults) -> Vec<(&'static str, Value)> {
    let mut entities = Entities::of(&[]);
    let mut made = Vec::with_capacity(read.entities.len());
    for (number, kind) in kinds::kinds() {
        for declared in read.entities.iter().filter(|declared| declared.section == kind.name) {
            let Value::Object(mut object) = declared.fields.to_json() else { continue };
            object.retain(|_, value| !value.is_null());
            if kind.name == "services" {
                // The URL counts, as in a file.
                if object.contains_key("url") {
                    ["protocol", "host", "port", "path"].iter().for_each(|field| drop(object.shift_remove(*field)));
                }
                if let Err(refusal) = take_url(&mut object) {
                    faults.take(&declared.path, &refusal);
                    continue;
                }
            }
            let asked = Asked { entities: &entities, method: &Method::PUT, skips_hash: read.is_hashed };
            match asked.finish(number, kind, object, None) {
                Ok(entity) => {
                    entities.set(&entities::key(kind, &id_of(&entity)), Some(&entity.to_string().into()));
                    made.push((kind.name, entity));
                }
                Err(refusal) => faults.take(&declared.path, &refusal),
            }
        }
    }
    let is_known = |declared: &&Declared| kinds::named(declared.section).is_none();
    for unknown in read.entities.iter().filter(is_known) {
        faults.0.push((unknown.path.clone(), format!("no entities of this kind: {}", unknown.section)));
    }
    made
}

impl Faults {
    /// Takes the faults of a refusal that was made for one entity.
    fn take(&mut self, path: &str, refusal: &FamilyAnswer) {
        let body = refusal.body.as_deref().and_then(|body| serde_json::from_slice::<Value>(body).ok());
        let Some(body) = body else { return };
        match &body["fields"] {
            Value::Object(fields) if body["code"] == 2 => self.take_fields(path, fields),
            _ => self.0.push((path.to_owned(), body["message"].as_str().unwrap_or_default().to_owned())),
        }
    }

    fn take_fields(&mut self, path: &str, fields: &Object) {
        for (name, fault) in fields {
            match fault {
                Value::Array(texts) if name == "@entity" => {
                    let texts = texts.iter().filter_map(Value::as_str);
                    self.0.extend(texts.map(|text| (path.to_owned(), text.to_owned())));
                }
                Value::Object(inner) => self.take_fields(&format!("{path}.{name}"), inner),
                Value::Array(items) => {
                    for (at, item) in items.iter().enumerate() {
                        let place = format!("{path}.{name}[{at}]");
                        match item {
                            Value::String(text) => self.0.push((place, text.clone())),
                            Value::Object(inner) => self.take_fields(&place, inner),
                            _ => {}
                        }
                    }
                }
                other => {
                    let text = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
                    self.0.push((format!("{path}.{name}"), text));
                }
            }
        }
    }
}

/// All that is there goes, unless it comes again.
fn changes(before: &Entities, made: &[(&'static str, Value)]) -> Vec<Change> {
    let mut changes = Vec::new();
    for (number, kind) in kinds::kinds() {
        for entity in before.after(number, None) {
            let id = id_of(entity);
            if !made.iter().any(|(name, entity)| *name == kind.name && id_of(entity) == id) {
                changes.push(Change { key: entities::key(kind, &id), value: None, expires: None });
            }
        }
    }
    for (name, entity) in made {
        if let Some((_, kind)) = kinds::named(name) {
            changes.push(crate::write::change(kind, entity));
        }
    }
    changes
}

/// The refusal with the faults in the form of the document.
fn nested(faults: &Faults) -> FamilyAnswer {
    let mut fields = Object::new();
    for (path, text) in &faults.0 {
        fault::put(&mut fields, path, text);
    }
    let text = format!("declarative config is invalid: {}", lua(&Value::Object(fields.clone())));
    invalid(&text, fields, None)
}

/// The refusal with the faults entity by entity.
fn flattened(read: &Declaration, faults: &Faults) -> FamilyAnswer {
    let (mut all, mut rest) = (Vec::new(), Object::new());
    for entity in &read.entities {
        let own = |path: &str| {
            let nearest = read.entities.iter().filter(|other| is_below(path, &other.path));
            nearest.max_by_key(|other| other.path.len()).is_some_and(|nearest| nearest.path == entity.path)
        };
        let errors: Vec<Value> = faults
            .0
            .iter()
            .filter(|(path, _)| own(path))
            .map(|(path, text)| {
                let field = path.get(entity.path.len()..).unwrap_or_default().trim_start_matches('.');
                match field.is_empty() {
                    true => json!({ "type": "entity", "message": text }),
                    false => json!({ "type": "field", "field": one_based(field), "message": text }),
                }
            })
            .collect();
        if errors.is_empty() {
            continue;
        }
        let fields = entity.fields.to_json();
        let mut error = json!({
            "entity_type": entity.section.trim_end_matches('s'),
            "entity_id": entity.id,
            "entity": fields,
            "errors": errors,
        });
        if let Some(name) = &entity.name {
            error["entity_name"] = name.as_str().into();
        }
        if fields["tags"].is_array() {
            error["entity_tags"] = fields["tags"].clone();
        }
        all.push(error);
    }
    for (path, text) in &faults.0 {
        if !read.entities.iter().any(|entity| is_below(path, &entity.path)) {
            fault::put(&mut rest, path, text);
        }
    }
    let text = format!("declarative config is invalid: {}", lua(&Value::Object(rest.clone())));
    invalid(&text, rest, Some(all.into()))
}

fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Positions in lists count from 1: `paths[0]` is `paths.1`.
fn one_based(field: &str) -> String {
    let mut parts = field.split('[');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once(']').unwrap_or((part, ""));
        let number = number.parse::<usize>().unwrap_or_default().saturating_add(1);
        text.push_str(&format!(".{number}{rest}"));
    }
    text
}

fn invalid(message: &str, fields: Object, flattened: Option<Value>) -> FamilyAnswer {
    let mut body = json!({ "code": 14, "name": "invalid declarative configuration", "message": message });
    body["fields"] = Value::Object(fields);
    if let Some(flattened) = flattened {
        body["flattened_errors"] = flattened;
    }
    answer(StatusCode::BAD_REQUEST, &body)
}

/// Faults as the text of a table of Lua, in which Kong tells them.
fn lua(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                let name = if is_plain { name.clone() } else { format!("[\"{name}\"]") };
                format!("{name}={}", lua(value))
            };
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            let there = items.iter().enumerate().filter(|(_, item)| !item.is_null());
            let item = |(at, item): (usize, &Value)| format!("[{}]={}", at + 1, lua(item));
            format!("{{{}}}", there.map(item).collect::<Vec<_>>().join(","))
        }
        Value::String(text) => format!("\"{text}\""),
        other => other.to_string(),
    }
}
