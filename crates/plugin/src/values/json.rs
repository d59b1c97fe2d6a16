//! Values at a path of a JSON body.

use std::ops::Range;

use weir_expr::{BodyPath, JsonPart, JsonParts, PathStep, unescaped};

use super::Found;

/// Depth to which `..` looks: each level of a body is read once more for it.
const DEEPEST: usize = 32;

/// The value at a path of a body that is JSON.
pub(super) fn find(json: &str, path: &BodyPath) -> Found {
    if path.finds_list() {
        let mut list = String::from("[");
        collect(json, path.steps(), 0, &mut list);
        if list.len() == 1 {
            return Found::Nothing;
        }
        // A comma stands behind the last one.
        list.pop();
        list.push(']');
        return Found::List(list);
    }
    let mut value = json.trim();
    for step in path.steps() {
        let PathStep::Member(name) = step else { return Found::Nothing };
        match last_member(value, name) {
            Some(member) => value = member,
            None => return Found::Nothing,
        }
    }
    match (value, text(value)) {
        ("true", _) => Found::Boolean(true),
        ("false", _) => Found::Boolean(false),
        (_, Some(text)) if text.contains('\\') => Found::Decoded(unescaped(text).into_owned().into_bytes()),
        (_, Some(text)) => Found::Text(place(json, text)),
        (value, None) => Found::Json(place(json, value)),
    }
}

/// The text in a member of an object, when it is one.
pub(super) fn member<'j>(json: &'j str, name: &str) -> Option<std::borrow::Cow<'j, str>> {
    last_member(json, name).and_then(text).map(unescaped)
}

/// Of members with the same name the last one counts, as with most parsers.
fn last_member<'j>(json: &'j str, name: &str) -> Option<&'j str> {
    JsonParts::of(json).filter(|part| part.is_member(name)).last().map(|part| part.value)
}

fn text(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"')
}

/// Position of a part of the text in it.
fn place(whole: &str, part: &str) -> Range<usize> {
    let begin = (part.as_ptr().addr()).saturating_sub(whole.as_ptr().addr());
    begin..begin + part.len()
}

/// Writes what the steps lead to, a comma behind each, in the order of the text.
fn collect(value: &str, steps: &[PathStep], depth: usize, list: &mut String) {
    let Some((step, rest)) = steps.split_first() else {
        list.push_str(value.trim());
        list.push(',');
        return;
    };
    match step {
        PathStep::Member(name) => {
            if let Some(member) = last_member(value, name) {
                collect(member, rest, depth, list);
            }
        }
        PathStep::Element(position) => {
            let mut elements = JsonParts::of(value).filter(|part| part.name.is_none());
            let index = match usize::try_from(*position) {
                Ok(index) => Some(index),
                Err(_) => elements.clone().count().checked_sub(usize::try_from(position.unsigned_abs()).unwrap_or(0)),
            };
            if let Some(JsonPart { value, .. }) = index.and_then(|index| elements.nth(index)) {
                collect(value, rest, depth, list);
            }
        }
        PathStep::Every => JsonParts::of(value).for_each(|part| collect(part.value, rest, depth, list)),
        PathStep::Within => {
            let before = list.len();
            collect(value, rest, depth, list);
            // Values within a found one are part of it already, so the list is never longer than the body.
            if list.len() == before && depth < DEEPEST {
                JsonParts::of(value).for_each(|part| collect(part.value, steps, depth + 1, list));
            }
        }
    }
}
