//! Reading: entities, pages of them, tags.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::StatusCode;
use serde_json::{Value, json};
use weir_admin::FamilyRequest;

use crate::entities::{Entities, Entity};
use crate::fault::{self, Outcome, answer, coded};
use crate::kinds;
use crate::shape::Object;
use crate::target::{Target, id_of};

/// Entities of a page, and the most of them.
const PAGE: usize = 100;
const MOST: usize = 1000;

/// An argument of the query.
pub(crate) fn argument<'r>(request: &'r FamilyRequest, name: &str) -> Option<&'r str> {
    request.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Answers with what a path leads to.
pub(crate) fn read(target: &Target<'_>, entities: &Entities, request: &FamilyRequest) -> Outcome {
    let parent = target.parent_id(entities)?;
    let Some(_) = target.id else {
        let found: Box<dyn Iterator<Item = &Entity>> = match &parent {
            Some((field, id)) => Box::new(entities.children(target.number, field, id)),
            None => Box::new(entities.after(target.number, None)),
        };
        let custom = argument(request, "custom_id").filter(|_| target.kind.name == "consumers");
        let found = found.filter(|entity| custom.is_none_or(|custom| entity["custom_id"] == custom));
        return page(found.map(|entity| Value::clone(entity)), request);
    };
    let entity = target.find(entities, parent.as_ref()).ok_or_else(fault::not_found)?;
    let Some((field, to)) = target.through else { return Ok(answer(StatusCode::OK, entity)) };
    let through = entity[field]["id"].as_str().and_then(|id| entities.get(to, id));
    through.map(|entity| answer(StatusCode::OK, entity)).ok_or_else(fault::not_found)
}

/// A page of entities, which come in the order of their ids.
pub(crate) fn page(all: impl Iterator<Item = Value>, request: &FamilyRequest) -> Outcome {
    let size = match argument(request, "size") {
        None => PAGE,
        Some(text) => match text.parse() {
            Ok(size @ 1..=MOST) => size,
            _ => {
                let text = format!("size must be an integer between 1 and {MOST}");
                return Err(coded(StatusCode::BAD_REQUEST, 9, "invalid size", &text, Object::new()));
            }
        },
    };
    let after = match argument(request, "offset").filter(|offset| !offset.is_empty()) {
        None => None,
        Some(offset) => {
            let read = URL_SAFE_NO_PAD.decode(offset).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let wrong = || {
                let text = format!("'{offset}' is not a valid offset: bad base64 encoding");
                coded(StatusCode::BAD_REQUEST, 7, "invalid offset", &text, Object::new())
            };
            Some(read.ok_or_else(wrong)?)
        }
    };
    let tags = argument(request, "tags").filter(|tags| !tags.is_empty()).map(Tags::read).transpose()?;
    let is_after = |entity: &Value| match (&after, entity["id"].as_str()) {
        (Some(after), Some(id)) => id > after.as_str(),
        _ => true,
    };
    let words = argument(request, "search").map(str::to_lowercase).unwrap_or_default();
    let wanted = all
        .filter(|entity| is_after(entity) && tags.as_ref().is_none_or(|tags| tags.fit(entity)) && has(entity, &words));
    let mut data: Vec<Value> = wanted.take(size + 1).collect();
    let mut body = json!({ "data": null, "next": null });
    if data.len() > size {
        data.truncate(size);
        let offset = URL_SAFE_NO_PAD.encode(data.last().map(id_of).unwrap_or_default());
        let mut arguments = form_urlencoded::Serializer::new(String::new());
        arguments.append_pair("offset", &offset);
        arguments.extend_pairs(request.query.iter().filter(|(name, _)| name != "offset"));
        body["next"] = format!("/{}?{}", request.path.join("/"), arguments.finish()).into();
        body["offset"] = offset.into();
    }
    body["data"] = data.into();
    Ok(answer(StatusCode::OK, &body))
}

/// Fields that a search looks at: nothing in them opens anything.
const SEARCHED: [&str; 14] = [
    "id",
    "name",
    "instance_name",
    "username",
    "custom_id",
    "protocol",
    "host",
    "path",
    "paths",
    "hosts",
    "methods",
    "snis",
    "target",
    "tags",
];

/// True for an entity with a text in one of these fields; `words` are in small letters. The argument `search` is Weir's own.
fn has(entity: &Value, words: &str) -> bool {
    let is_in = |value: &Value| value.as_str().is_some_and(|text| text.to_lowercase().contains(words));
    let any = |value: &Value| is_in(value) || value.as_array().is_some_and(|values| values.iter().any(is_in));
    words.is_empty() || SEARCHED.iter().any(|field| entity.get(*field).is_some_and(any))
}

/// Tags that entities are chosen by.
enum Tags<'t> {
    All(Vec<&'t str>),
    Any(Vec<&'t str>),
}

impl<'t> Tags<'t> {
    fn read(text: &'t str) -> Result<Self, weir_admin::FamilyAnswer> {
        match (text.contains(','), text.contains('/')) {
            (true, true) => {
                let text = "invalid option: tags: invalid filter syntax";
                Err(coded(StatusCode::BAD_REQUEST, 11, "invalid options", text, Object::new()))
            }
            (_, true) => Ok(Self::Any(text.split('/').collect())),
            _ => Ok(Self::All(text.split(',').collect())),
        }
    }

    fn fit(&self, entity: &Value) -> bool {
        let has = |tag: &&str| entity["tags"].as_array().is_some_and(|tags| tags.iter().any(|known| known == *tag));
        match self {
            Self::All(tags) => tags.iter().all(has),
            Self::Any(tags) => tags.iter().any(has),
        }
    }
}

/// Tags with the entities that have them; all of them, or those with one.
pub(crate) fn tags(entities: &Entities, only: Option<&str>, request: &FamilyRequest) -> Outcome {
    let mut found = Vec::new();
    for (number, kind) in kinds::kinds() {
        for entity in entities.after(number, None) {
            for tag in entity["tags"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if only.is_none_or(|only| only == tag) {
                    let id = id_of(entity);
                    found.push(
                        json!({ "tag": tag, "entity_name": kind.name, "entity_id": id, "id": format!("{id}{tag}") }),
                    );
                }
            }
        }
    }
    found.sort_by(|a, b| a["id"].as_str().cmp(&b["id"].as_str()));
    let mut answer = page(found.into_iter(), request)?;
    // The id only orders pages.
    if let Some(Ok(mut body)) = answer.body.as_deref().map(serde_json::from_slice::<Value>) {
        for row in body["data"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            row.remove("id");
        }
        answer.body = Some(body.to_string().into());
    }
    Ok(answer)
}
