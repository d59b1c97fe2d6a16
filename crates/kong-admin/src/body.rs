//! Bodies of requests: JSON, or fields of a form.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use serde_json::{Value, json};
use weir_admin::FamilyAnswer;

use crate::fault;
use crate::shape::Object;

/// Fields of a request, and whether they are texts of a form.
pub(crate) fn read(body: &Bytes, fields: &HeaderMap) -> Result<(Object, bool), FamilyAnswer> {
    if body.is_empty() {
        return Ok((Object::new(), false));
    }
    let kind = fields.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/x-www-form-urlencoded" => Ok((form(body), true)),
        "application/json" | "" => match serde_json::from_slice(body) {
            Ok(Value::Object(object)) => Ok((object, false)),
            _ => Err(fault::message(StatusCode::BAD_REQUEST, "Cannot parse JSON body")),
        },
        _ => Err(fault::message(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported Content-Type")),
    }
}

/// Fields of a form: `config.minute=5`, `paths[]=/a`, `headers.x[1]=a`.
fn form(body: &Bytes) -> Object {
    let mut object = Object::new();
    for (name, value) in form_urlencoded::parse(body) {
        let steps: Vec<&str> = name.split('.').take(MOST_STEPS).collect();
        put(&mut object, &steps, &value);
    }
    object
}

/// Deepest path of a field of a form.
const MOST_STEPS: usize = 16;

fn put(object: &mut Object, steps: &[&str], value: &str) {
    let Some((step, rest)) = steps.split_first() else { return };
    let (name, is_item) = match step.split_once('[') {
        Some((name, _)) => (name, true),
        None => (*step, false),
    };
    if !rest.is_empty() {
        let inner = object.entry(name).or_insert_with(|| json!({}));
        if let Value::Object(inner) = inner {
            put(inner, rest, value);
        }
        return;
    }
    match object.get_mut(name) {
        Some(Value::Array(items)) => items.push(value.into()),
        // A name that comes again makes a list of its values.
        Some(first) => *first = json!([first.take(), value]),
        None => drop(object.insert(name.to_owned(), if is_item { json!([value]) } else { value.into() })),
    }
}
