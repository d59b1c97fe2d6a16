//! Refusals in Kong's words.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use weir_admin::FamilyAnswer;

use crate::shape::Object;

/// Outcome of a request; both go to the client.
pub(crate) type Outcome = Result<FamilyAnswer, FamilyAnswer>;

/// An answer with JSON.
pub(crate) fn answer(status: StatusCode, body: &Value) -> FamilyAnswer {
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    FamilyAnswer { status, fields: vec![(CONTENT_TYPE, json)], body: Some(Bytes::from(body.to_string())) }
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> FamilyAnswer {
    FamilyAnswer { status, fields: Vec::new(), body: None }
}

pub(crate) fn message(status: StatusCode, text: &str) -> FamilyAnswer {
    answer(status, &json!({ "message": text }))
}

pub(crate) fn not_found() -> FamilyAnswer {
    message(StatusCode::NOT_FOUND, "Not found")
}

pub(crate) fn wrong_method() -> FamilyAnswer {
    message(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed")
}

/// A refusal with a code of Kong's.
pub(crate) fn coded(status: StatusCode, code: u8, name: &str, message: &str, fields: Object) -> FamilyAnswer {
    let mut body = json!({ "message": message, "name": name, "code": code });
    if !fields.is_empty() {
        body["fields"] = Value::Object(fields);
    }
    answer(status, &body)
}

/// Fields that are wrong.
pub(crate) fn schema(fields: Object) -> FamilyAnswer {
    let mut told = Vec::new();
    tell(&fields, "", &mut told);
    let text = match told.len() {
        1 => format!("schema violation ({})", told.concat()),
        number => format!("{number} schema violations ({})", told.join("; ")),
    };
    let mut body = json!({ "message": text, "name": "schema violation", "code": 2 });
    body["fields"] = Value::Object(fields);
    answer(StatusCode::BAD_REQUEST, &body)
}

/// Each fault of fields as a text with the path of its field.
pub(crate) fn tell(fields: &Object, path: &str, told: &mut Vec<String>) {
    for (name, fault) in fields {
        let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match fault {
            Value::Object(inner) => tell(inner, &place, told),
            Value::Array(items) if name == "@entity" => {
                told.extend(items.iter().filter_map(Value::as_str).map(Into::into))
            }
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate().filter(|(_, item)| !item.is_null()) {
                    tell(&Object::from_iter([((at + 1).to_string(), item.clone())]), &place, told);
                }
            }
            fault => told.push(format!("{place}: {}", fault.as_str().unwrap_or_default())),
        }
    }
}

/// Adds a fault at a path of fields such as `config.paths[0]`.
pub(crate) fn put(fields: &mut Object, path: &str, text: &str) {
    let path = path.trim_start_matches('.');
    if path.is_empty() {
        let all = fields.entry("@entity").or_insert_with(|| json!([]));
        if let Value::Array(all) = all {
            all.push(text.into());
        }
        return;
    }
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, rest) = path.split_at(end);
    if rest.is_empty() {
        fields.entry(name).or_insert_with(|| text.into());
        return;
    }
    if let Some((number, rest)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let items = fields.entry(name).or_insert_with(|| json!([]));
        let at = number.parse::<usize>().unwrap_or_default().min(MOST_ITEMS);
        if let Value::Array(items) = items {
            while items.len() <= at {
                items.push(Value::Null);
            }
            if let Some(item) = items.get_mut(at) {
                if rest.is_empty() {
                    *item = text.into();
                    return;
                }
                let mut inner = item.as_object().cloned().unwrap_or_default();
                put(&mut inner, rest, text);
                *item = Value::Object(inner);
            }
        }
        return;
    }
    let inner = fields.entry(name).or_insert_with(|| json!({}));
    if let Value::Object(inner) = inner {
        put(inner, rest, text);
    }
}

/// Places of a list that a fault is told in.
const MOST_ITEMS: usize = 1000;

pub(crate) fn unique(entity: &Value, fields: &[&str]) -> FamilyAnswer {
    let shown = |field: &&str| format!("{field}={}", lua(&entity[*field]));
    let mut names = fields.to_vec();
    names.sort_unstable();
    let text = format!("UNIQUE violation detected on '{{{}}}'", names.iter().map(shown).collect::<Vec<_>>().join(","));
    let values = fields.iter().map(|field| ((*field).to_owned(), entity[*field].clone())).collect();
    coded(StatusCode::CONFLICT, 5, "unique constraint violation", &text, values)
}

/// A value as Kong writes it in messages.
fn lua(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let entries = entries.iter().map(|(name, value)| format!("{name}={}", lua(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// A reference to what is not there.
pub(crate) fn no_such(field: &str, kind: &str, id: &str) -> FamilyAnswer {
    let text = format!("the foreign key '{{id=\"{id}\"}}' does not reference an existing '{kind}' entity.");
    let fields = Object::from_iter([(field.to_owned(), json!({ "id": id }))]);
    coded(StatusCode::BAD_REQUEST, 4, "foreign key violation", &text, fields)
}

/// Something else refers to what is to go.
pub(crate) fn referenced(kind: &str, by: &str) -> FamilyAnswer {
    let text = format!("an existing '{by}' entity references this '{kind}' entity");
    let fields = Object::from_iter([("@referenced_by".to_owned(), by.into())]);
    coded(StatusCode::BAD_REQUEST, 4, "foreign key violation", &text, fields)
}
