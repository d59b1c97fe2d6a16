//! Policies: `/tyk/policies`, which are files, and take effect with a reload.

use std::fs;

use serde_json::{Map, Value, json};
use weir_config::file;
use weir_config::node::MAX_TEXT_BYTES;
use weir_plugins::tyk::ApiRequest;

use super::{GatewayApi, Outcome, is_safe, method_not_supported, pretty, random_id, write};
use crate::conf::Conf;

/// The policies in the files.
pub(super) fn read(conf: &Conf) -> Vec<(String, Value)> {
    let Some(place) = &conf.policies else { return Vec::new() };
    let mut files = vec![place.clone()];
    if place.is_dir() {
        let entries = fs::read_dir(place).into_iter().flatten();
        files = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|path| path.extension().is_some_and(|end| end == "json"));
        files.sort();
    }
    let mut all = Vec::new();
    for path in files {
        let text = file::read(&path, MAX_TEXT_BYTES).unwrap_or_default();
        let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(&text) else { continue };
        if fields.contains_key("access_rights") || fields.contains_key("quota_max") {
            let policy = Value::Object(fields);
            all.push((id_of(&policy).to_owned(), policy));
        } else {
            all.extend(fields);
        }
    }
    all
}

fn id_of(policy: &Value) -> &str {
    ["id", "_id"].into_iter().find_map(|name| policy.get(name).and_then(Value::as_str)).unwrap_or_default()
}

/// Answers a request for policies.
pub(super) fn answer(api: &GatewayApi, request: &ApiRequest, method: &str, rest: &[&str]) -> Outcome {
    let loaded = api.loaded();
    let with_id = |(id, policy): &(String, Value)| {
        let mut policy = policy.clone();
        if let Some(fields) = policy.as_object_mut() {
            fields.entry("id").or_insert_with(|| id.as_str().into());
        }
        policy
    };
    match (method, rest) {
        ("GET", []) => Ok(Value::Array(loaded.policies.iter().map(with_id).collect())),
        ("GET", [id]) => {
            let found = loaded.policies.iter().find(|(known, _)| known == id).map(with_id);
            found.ok_or((404, "Policy not found".to_owned()))
        }
        ("POST", []) => {
            let mut policy = body(request)?;
            let id = match id_of(&policy) {
                "" => random_id()?,
                id => id.to_owned(),
            };
            policy["id"] = id.clone().into();
            put(api, &id, policy, "added")
        }
        ("PUT", [id]) => {
            let mut policy = body(request)?;
            let own = id_of(&policy);
            if !own.is_empty() && own != *id {
                let text = "Request ID does not match that in policy! For Update operations these must match.";
                return Err((400, text.to_owned()));
            }
            policy["id"] = (*id).into();
            put(api, id, policy, "modified")
        }
        ("DELETE", [id]) => delete(api, id),
        _ => method_not_supported(),
    }
}

fn body(request: &ApiRequest) -> Outcome {
    let value = serde_json::from_slice::<Value>(&request.body).ok().filter(Value::is_object);
    value.ok_or((400, "Request malformed".to_owned()))
}

fn put(api: &GatewayApi, id: &str, policy: Value, action: &str) -> Outcome {
    if !is_safe(id) {
        return Err((400, "Request malformed".to_owned()));
    }
    let unset = || (500, "policies.policy_path of tyk.conf is not set".to_owned());
    let place = api.conf.policies.as_ref().ok_or_else(unset)?;
    if place.is_dir() {
        write(&place.join(format!("{id}.json")), &pretty(&policy))?;
    } else {
        let mut all: Map<String, Value> = read(&api.conf).into_iter().collect();
        all.insert(id.to_owned(), policy);
        write(place, &pretty(&Value::Object(all)))?;
    }
    Ok(json!({ "key": id, "status": "ok", "action": action }))
}

fn delete(api: &GatewayApi, id: &str) -> Outcome {
    let failed = || (500, "Delete failed".to_owned());
    let place = api.conf.policies.as_ref().ok_or_else(failed)?;
    if place.is_dir() {
        if !is_safe(id) || fs::remove_file(place.join(format!("{id}.json"))).is_err() {
            return Err(failed());
        }
    } else {
        let mut all: Map<String, Value> = read(&api.conf).into_iter().collect();
        all.shift_remove(id).ok_or_else(failed)?;
        write(place, &pretty(&Value::Object(all)))?;
    }
    Ok(json!({ "key": id, "status": "ok", "action": "deleted" }))
}
