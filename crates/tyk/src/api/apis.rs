//! API definitions: `/tyk/apis`, which are files, and take effect with a reload.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use weir_config::file;
use weir_config::node::MAX_TEXT_BYTES;
use weir_plugins::tyk::ApiRequest;

use super::{GatewayApi, Outcome, is_safe, method_not_supported, pretty, random_id, write};
use crate::conf::Conf;
use crate::oas;

/// The definitions that were read last.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    classic: Vec<Value>,
    oas: Vec<Value>,
    /// Policies by their ids.
    pub(super) policies: Vec<(String, Value)>,
}

/// An API as clients of OAuth belong to it.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) id: String,
    pub(super) org: String,
    /// True if it has an OAuth server.
    pub(super) is_oauth: bool,
    /// True if it takes tokens of JWT, for whose providers clients are written down as well.
    pub(super) is_jwt: bool,
}

impl Loaded {
    /// An API by its id.
    pub(super) fn server(&self, id: &str) -> Option<Server> {
        self.servers().find(|server| server.id == id)
    }

    /// All APIs.
    pub(super) fn servers(&self) -> impl Iterator<Item = Server> {
        let classic = self.classic.iter().map(|api| Server {
            id: id_of(api).to_owned(),
            org: api["org_id"].as_str().unwrap_or_default().to_owned(),
            is_oauth: api["use_oauth2"] == true,
            is_jwt: api["enable_jwt"] == true,
        });
        let oas = self.oas.iter().map(|document| {
            let (is_oauth, is_jwt) = oas::ways(document);
            let org = document["x-tyk-api-gateway"]["info"]["orgId"].as_str().unwrap_or_default().to_owned();
            Server { id: oas_id_of(document).to_owned(), org, is_oauth, is_jwt }
        });
        classic.chain(oas)
    }

    /// Seconds for which sessions of an API stay, and true if none goes before its key expires. 0: for ever.
    pub(super) fn lifetime(&self, id: &str) -> Option<(i64, bool)> {
        if let Some(api) = self.classic.iter().find(|api| id_of(api) == id) {
            let waits = api["session_lifetime_respects_key_expiration"] == true;
            return Some((api["session_lifetime"].as_i64().unwrap_or(0), waits));
        }
        let document = self.oas.iter().find(|document| oas_id_of(document) == id)?;
        let part = &document["x-tyk-api-gateway"]["server"]["authentication"]["customKeyLifetime"];
        let seconds = part["value"].as_str().filter(|_| part["enabled"] == true).and_then(oas::seconds);
        Some((seconds.map_or(0, |seconds| seconds as i64), part["respectValidity"] == true))
    }

    pub(super) fn read(conf: &Conf) -> Self {
        let mut loaded = Self { policies: super::policies::read(conf), ..Self::default() };
        let entries = conf.app_path.as_ref().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten();
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
            let text = file::read(path, MAX_TEXT_BYTES).ok();
            let Some(value) = text.and_then(|text| serde_json::from_slice::<Value>(&text).ok()) else {
                continue;
            };
            if value.get("x-tyk-api-gateway").is_some() {
                loaded.oas.push(value);
            } else if value.get("proxy").is_some() || value.get("api_id").is_some() {
                loaded.classic.push(value);
            }
        }
        loaded
    }
}

fn id_of(classic: &Value) -> &str {
    classic.get("api_id").and_then(Value::as_str).unwrap_or_default()
}

fn oas_id_of(oas: &Value) -> &str {
    oas["x-tyk-api-gateway"]["info"]["id"].as_str().unwrap_or_default()
}

/// Answers a request for definitions in the classic form.
pub(super) fn answer(api: &GatewayApi, request: &ApiRequest, method: &str, rest: &[&str]) -> Outcome {
    let loaded = api.loaded();
    let find = |id: &str| loaded.classic.iter().find(|definition| id_of(definition) == id);
    match (method, rest) {
        ("GET", []) => Ok(Value::Array(loaded.classic.clone())),
        ("GET", [id]) => find(id).cloned().ok_or((404, "API not found".to_owned())),
        ("POST", []) => {
            let mut definition = body(request)?;
            let id = match id_of(&definition) {
                "" => random_id()?,
                id => id.to_owned(),
            };
            definition["api_id"] = id.clone().into();
            put(api, &id, "", &definition, "added")
        }
        ("PUT", [id]) => {
            let definition = body(request)?;
            if id_of(&definition) != *id {
                let text = "Request APIID does not match that in Definition! For Update operations these must match.";
                return Err((400, text.to_owned()));
            }
            match file(api, id, "")?.exists() || find(id).is_some() {
                true => put(api, id, "", &definition, "modified"),
                false => Err((404, "API not found".to_owned())),
            }
        }
        ("DELETE", [id]) => delete(api, id, ""),
        _ => method_not_supported(),
    }
}

/// Answers a request for definitions in the OAS form.
pub(super) fn answer_oas(api: &GatewayApi, request: &ApiRequest, method: &str, rest: &[&str]) -> Outcome {
    const END: &str = "-oas";
    let loaded = api.loaded();
    let find = |id: &str| loaded.oas.iter().find(|definition| oas_id_of(definition) == id);
    match (method, rest) {
        ("GET", []) => Ok(Value::Array(loaded.oas.clone())),
        ("GET", [id]) => find(id).cloned().ok_or((404, "API not found".to_owned())),
        ("POST", []) => {
            let mut definition = oas_body(request)?;
            let id = match oas_id_of(&definition) {
                "" => random_id()?,
                id => id.to_owned(),
            };
            definition["x-tyk-api-gateway"]["info"]["id"] = id.clone().into();
            put(api, &id, END, &definition, "added")
        }
        ("PUT", [id]) => {
            let mut definition = oas_body(request)?;
            definition["x-tyk-api-gateway"]["info"]["id"] = (*id).into();
            match file(api, id, END)?.exists() {
                true => put(api, id, END, &definition, "modified"),
                false => Err((404, "API not found".to_owned())),
            }
        }
        ("DELETE", [id]) => delete(api, id, END),
        _ => method_not_supported(),
    }
}

fn body(request: &ApiRequest) -> Outcome {
    let value = serde_json::from_slice::<Value>(&request.body).ok().filter(Value::is_object);
    value.ok_or((400, "Request malformed".to_owned()))
}

fn oas_body(request: &ApiRequest) -> Outcome {
    let definition = body(request)?;
    if !definition.get("x-tyk-api-gateway").is_some_and(|part| part["info"].is_object()) {
        return Err((400, "the payload should contain x-tyk-api-gateway".to_owned()));
    }
    Ok(definition)
}

fn file(api: &GatewayApi, id: &str, end: &str) -> Result<PathBuf, (u16, String)> {
    if !is_safe(id) {
        return Err((400, "Request malformed".to_owned()));
    }
    let folder = api.conf.app_path.as_ref().ok_or((500, "app_path of tyk.conf is not set".to_owned()))?;
    Ok(folder.join(format!("{id}{end}.json")))
}

fn put(api: &GatewayApi, id: &str, end: &str, definition: &Value, action: &str) -> Outcome {
    write(&file(api, id, end)?, &pretty(definition))?;
    Ok(json!({ "key": id, "status": "ok", "action": action }))
}

fn delete(api: &GatewayApi, id: &str, end: &str) -> Outcome {
    match fs::remove_file(file(api, id, end)?) {
        Ok(()) => Ok(json!({ "key": id, "status": "ok", "action": "deleted" })),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err((404, "API not found".to_owned())),
        Err(error) => Err((500, format!("Delete failed: {error}"))),
    }
}
