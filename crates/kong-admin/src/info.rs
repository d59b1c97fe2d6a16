//! Answers about the gateway: `/`, `/status`, schemas, the list of paths.

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use weir_admin::FamilyRequest;

use crate::api::Gateway;
use crate::entities::Entities;
use crate::fault::{self, Outcome, answer};
use crate::kinds;
use crate::plugins::PLUGINS;

/// `/`: version, plugins and the settings that clients look at.
pub(crate) fn node(gateway: &dyn Gateway, entities: &Entities) -> Value {
    let version = gateway.kong().version.as_str();
    let available: Map<String, Value> = PLUGINS
        .iter()
        .map(|plugin| (plugin.name.to_owned(), json!({ "version": version, "priority": plugin.priority })))
        .collect();
    let names: Map<String, Value> = available.keys().map(|name| (name.clone(), true.into())).collect();
    json!({
        "version": version,
        "edition": "community",
        "tagline": concat!("Weir ", env!("CARGO_PKG_VERSION")),
        "hostname": gateway.hostname(),
        "node_id": gateway.node_id(),
        "lua_version": "none",
        "plugins": { "available_on_server": available, "enabled_in_cluster": enabled(entities) },
        "configuration": {
            "database": gateway.database(),
            "router_flavor": "traditional_compatible",
            "plugins": ["bundled"],
            "loaded_plugins": names,
        },
        "timers": { "running": 0, "pending": 0 },
        "pids": { "master": std::process::id() },
    })
}

/// Names of the plugins that are in use.
fn enabled(entities: &Entities) -> Vec<String> {
    let Some((plugins, _)) = kinds::named("plugins") else { return Vec::new() };
    let names = entities.after(plugins, None).filter_map(|plugin| plugin["name"].as_str().map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// `/schemas/…`
pub(crate) fn schema(rest: &[&str]) -> Outcome {
    match rest {
        ["plugins", name] => match PLUGINS.iter().find(|plugin| plugin.name == *name) {
            Some(plugin) => Ok(answer(StatusCode::OK, &plugin.described)),
            None => Err(fault::message(StatusCode::NOT_FOUND, &format!("No plugin named '{name}'"))),
        },
        ["vaults", "env"] => {
            let fields = json!([{ "config": { "type": "record", "required": true, "fields": [
                { "prefix": { "type": "string" } }
            ] } }]);
            Ok(answer(StatusCode::OK, &json!({ "fields": fields })))
        }
        ["vaults", name] => Err(fault::message(StatusCode::NOT_FOUND, &format!("No vault named '{name}'"))),
        [name] => match kinds::named(name) {
            Some((_, kind)) => Ok(answer(StatusCode::OK, &json!({ "fields": kind.described }))),
            None => Err(fault::message(StatusCode::NOT_FOUND, &format!("No entity named '{name}'"))),
        },
        _ => Err(fault::not_found()),
    }
}

/// `/endpoints`: every path.
pub(crate) fn endpoints() -> Value {
    let mut paths: Vec<String> = ["/", "/config", "/endpoints", "/plugins/enabled", "/status", "/tags", "/tags/{tags}"]
        .iter()
        .chain(&["/schemas/plugins/validate", "/schemas/plugins/{name}", "/schemas/vaults/{name}"])
        .chain(&["/schemas/{name}", "/schemas/{db_entity_name}/validate"])
        .map(|path| (*path).to_owned())
        .collect();
    for (number, kind) in kinds::kinds() {
        if let Some(path) = kind.path {
            paths.extend([format!("/{path}"), format!("/{path}/{{{}}}", kind.name)]);
            paths.extend(kind.references().map(|(field, _)| format!("/{path}/{{{}}}/{}", kind.name, field.name)));
        }
        for (_, child) in kinds::kinds() {
            let Some(path) = kind.path.filter(|_| child.references().any(|(_, to)| to == number)) else { continue };
            let below = format!("/{path}/{{{}}}/{}", kind.name, child.nested);
            paths.extend([format!("{below}/{{{}}}", child.name), below]);
        }
    }
    paths.sort_unstable();
    paths.dedup();
    json!({ "data": paths })
}

/// `/status`; `hash` is that of the document in force.
pub(crate) fn status(gateway: &dyn Gateway, entities: &Entities, hash: &str) -> Value {
    let mut status = gateway.status();
    if gateway.database() == "off" {
        status["configuration_hash"] = hash.into();
    }
    status["database"] = json!({ "reachable": gateway.is_store_reachable() });
    status["entities"] = entities.len().into();
    status
}

/// `/plugins/enabled`.
pub(crate) fn plugin_names() -> Value {
    json!({ "enabled_plugins": PLUGINS.iter().map(|plugin| plugin.name).collect::<Vec<_>>() })
}

/// Methods that an OPTIONS request is told.
pub(crate) fn methods(request: &FamilyRequest) -> &'static str {
    match request.path.len() {
        0 => "GET, HEAD, OPTIONS",
        odd if odd % 2 == 1 => "GET, HEAD, OPTIONS, POST",
        _ => "DELETE, GET, HEAD, OPTIONS, PATCH, PUT",
    }
}
