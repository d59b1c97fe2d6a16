//! Plugins that change requests and responses.

use serde_json::{Map, Value, json};

use super::Outcome;
use crate::convert::values::{flag, list, text, texts, without_templates};

pub(super) fn request_transformer(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    let edits = ["remove", "rename", "replace", "add", "append"];
    for edit in edits {
        for part in ["querystring", "body"] {
            if !list(&conf[edit], part).is_empty() {
                return Err(format!("{edit}.{part}"));
            }
        }
    }
    if !list(&conf["rename"], "headers").is_empty() {
        return Err("rename.headers".to_owned());
    }
    let mut made = Map::new();
    if let Some(method) = conf["http_method"].as_str() {
        made.insert("method".to_owned(), method.into());
    }
    if let Some(uri) = conf["replace"]["uri"].as_str() {
        made.insert("uri".to_owned(), without_templates(uri)?.into());
    }
    let mut headers = Map::new();
    let removed = list(&conf["remove"], "headers");
    if !removed.is_empty() {
        headers.insert("remove".to_owned(), removed.into());
    }
    for (edit, to) in [("replace", "set"), ("add", "add"), ("append", "add")] {
        let mut fields = headers.remove(to).and_then(|held| held.as_object().cloned()).unwrap_or_default();
        for entry in texts(&conf[edit], "headers") {
            let (name, value) = entry.split_once(':').unwrap_or((&entry, ""));
            fields.insert(name.to_owned(), without_templates(value.trim_start())?.into());
            if edit != "append" {
                let when = if edit == "add" { "where it is there already, too" } else { "where it is not there, too" };
                notes.push(format!("request-transformer: {name} is written {when}."));
            }
        }
        if !fields.is_empty() {
            headers.insert(to.to_owned(), fields.into());
        }
    }
    if !headers.is_empty() {
        made.insert("headers".to_owned(), headers.into());
    }
    if made.is_empty() {
        return Err("a configuration without changes".to_owned());
    }
    Ok(("proxy-rewrite", made.into()))
}

pub(super) fn response_transformer(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    for edit in ["remove", "rename", "replace", "add", "append"] {
        if !list(&conf[edit], "json").is_empty() {
            return Err(format!("{edit}.json"));
        }
    }
    if !list(&conf["rename"], "headers").is_empty() {
        return Err("rename.headers".to_owned());
    }
    let mut headers = Map::new();
    let removed = list(&conf["remove"], "headers");
    if !removed.is_empty() {
        headers.insert("remove".to_owned(), removed.into());
    }
    let literal = |value: &str| value.trim_start().replace('$', "\\$");
    let (mut set, mut add) = (Map::new(), Vec::new());
    for entry in texts(&conf["replace"], "headers") {
        let (name, value) = entry.split_once(':').unwrap_or((&entry, ""));
        notes.push(format!("response-transformer: {name} is written where it is not there, too."));
        set.insert(name.to_owned(), literal(value).into());
    }
    for (edit, entry) in
        ["add", "append"].into_iter().flat_map(|edit| texts(&conf[edit], "headers").into_iter().map(move |e| (edit, e)))
    {
        let (name, value) = entry.split_once(':').unwrap_or((&entry, ""));
        if edit == "add" {
            notes.push(format!("response-transformer: {name} is added where it is there already, too."));
        }
        add.push(Value::from(format!("{name}: {}", literal(value))));
    }
    if !set.is_empty() {
        headers.insert("set".to_owned(), set.into());
    }
    if !add.is_empty() {
        headers.insert("add".to_owned(), add.into());
    }
    if headers.is_empty() {
        return Err("a configuration without changes".to_owned());
    }
    Ok(("response-rewrite", json!({ "headers": headers })))
}

pub(super) fn correlation_id(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    if text(conf, "generator", "uuid#counter") != "uuid" {
        notes.push("correlation-id: ids are UUIDs.".to_owned());
    }
    let name = text(conf, "header_name", "Kong-Request-ID");
    Ok(("request-id", json!({ "header_name": name, "include_in_response": flag(conf, "echo_downstream", false) })))
}
