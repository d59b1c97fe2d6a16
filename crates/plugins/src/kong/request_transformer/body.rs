//! Changes of bodies: values of a JSON object, and fields of a form.

use serde_json::{Map, Value};
use weir_plugin::RequestCx;

use super::super::arguments::Arguments;
use super::super::media::{Media, appended, has};
use super::{Named, rendered};

/// The changed body; `None` where it stays as it is.
pub(super) fn changed(media: Media, changes: &Named, cx: &RequestCx<'_>) -> Option<Vec<u8>> {
    let body = cx.body()?;
    match media {
        Media::Json => changed_json(body, changes, cx),
        Media::Form => changed_form(body, changes, cx),
    }
}

fn changed_json(body: &[u8], changes: &Named, cx: &RequestCx<'_>) -> Option<Vec<u8>> {
    let mut values = match body.is_empty() {
        true => Map::new(),
        false => serde_json::from_slice::<Map<String, Value>>(body).ok()?,
    };
    let mut is_changed = false;
    // An empty body is given values, and has none to be changed.
    if !body.is_empty() {
        for name in &changes.remove {
            values.shift_remove(&*String::from_utf8_lossy(name.literal().unwrap_or_default()));
            is_changed = true;
        }
        for (old, new) in changes.rename.iter().map(|pair| texts(pair, cx)) {
            match values.shift_remove(&old) {
                Some(value) => drop(values.insert(new, value)),
                None => drop(values.shift_remove(&new)),
            }
            is_changed = true;
        }
        for (name, value) in changes.replace.iter().map(|pair| typed(pair, cx)) {
            if has(&values, &name) {
                values.insert(name, value);
                is_changed = true;
            }
        }
    }
    for (name, value) in changes.add.iter().map(|pair| typed(pair, cx)) {
        if !has(&values, &name) {
            values.insert(name, value);
            is_changed = true;
        }
    }
    for (name, value) in changes.append.iter().map(|pair| typed(pair, cx)) {
        let held = values.shift_remove(&name);
        values.insert(name, appended(held, value));
        is_changed = true;
    }
    is_changed.then(|| serde_json::to_vec(&values).unwrap_or_default())
}

/// The name and the value of a pair; a value that is not of its type stays a text.
fn typed(pair: &super::Pair, cx: &RequestCx<'_>) -> (String, Value) {
    let (name, text) = texts(pair, cx);
    let value = pair.2.value(text.clone()).unwrap_or(Value::String(text));
    (name, value)
}

fn texts(pair: &super::Pair, cx: &RequestCx<'_>) -> (String, String) {
    let (name, value) = rendered(pair, cx);
    (String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(&value).into_owned())
}

fn changed_form(body: &[u8], changes: &Named, cx: &RequestCx<'_>) -> Option<Vec<u8>> {
    let mut all = Arguments::parse(body);
    let mut is_changed = false;
    if !body.is_empty() {
        for name in &changes.remove {
            all.remove(name.literal().unwrap_or_default());
            is_changed = true;
        }
        for pair in &changes.rename {
            let (old, new) = rendered(pair, cx);
            all.rename(old, &new);
            is_changed = true;
        }
        for pair in &changes.replace {
            let (name, value) = rendered(pair, cx);
            if all.has(name) {
                all.set(name, &value);
                is_changed = true;
            }
        }
    }
    for pair in &changes.add {
        let (name, value) = rendered(pair, cx);
        if !all.has(name) {
            all.set(name, &value);
            is_changed = true;
        }
    }
    for pair in &changes.append {
        let (name, value) = rendered(pair, cx);
        all.append(name, &value);
        is_changed = true;
    }
    is_changed.then(|| {
        let mut out = Vec::new();
        all.write(&mut out);
        out
    })
}
