//! Plugins and credentials that say who may pass.

use serde_json::{Value, json};

use super::Outcome;
use crate::convert::values::{flag, list, text, texts};

/// The fields that plugins that authenticate have in common.
pub(super) fn with_caller(mut made: Value, conf: &Value) -> Value {
    if flag(conf, "hide_credentials", false) {
        made["hide_credentials"] = true.into();
    }
    if let Some(name) = conf["anonymous"].as_str().filter(|name| !name.is_empty()) {
        made["anonymous_consumer"] = name.into();
    }
    made
}

pub(super) fn key_auth(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    let names = texts(conf, "key_names");
    let first = names.first().cloned().unwrap_or_else(|| "apikey".to_owned());
    if names.len() > 1 {
        notes.push(format!("key-auth: of the names of keys the first alone is read: {first}."));
    }
    if flag(conf, "key_in_body", false) {
        notes.push("key-auth: keys in bodies are not read.".to_owned());
    }
    let place = |field: &str| if flag(conf, field, true) { first.clone() } else { String::new() };
    let mut made = json!({ "header": place("key_in_header"), "query": place("key_in_query") });
    if let Some(realm) = conf["realm"].as_str() {
        made["realm"] = realm.into();
    }
    Ok(("key-auth", with_caller(made, conf)))
}

pub(super) fn jwt(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    if conf["maximum_expiration"].as_f64().is_some_and(|seconds| seconds > 0.0) {
        return Err("maximum_expiration".to_owned());
    }
    let mut first = |field: &str, default: &str| {
        let names = texts(conf, field);
        if names.len() > 1 {
            notes.push(format!("jwt: of {field} the first alone is read."));
        }
        names.first().cloned().unwrap_or_else(|| if conf[field].is_null() { default.to_owned() } else { String::new() })
    };
    let mut made = json!({
        "header": first("header_names", "authorization"),
        "query": first("uri_param_names", "jwt"),
        "cookie": first("cookie_names", ""),
        "key_claim_name": text(conf, "key_claim_name", "iss"),
    });
    let claims = list(conf, "claims_to_verify");
    if !claims.is_empty() {
        made["claims_to_verify"] = claims.into();
    }
    if let Some(realm) = conf["realm"].as_str() {
        made["realm"] = realm.into();
    }
    notes.push("jwt: without claims_to_verify, exp and nbf are checked where a token has them.".to_owned());
    Ok(("jwt-auth", with_caller(made, conf)))
}

pub(super) fn acl(conf: &Value) -> Outcome {
    let mut made = json!({ "rejected_msg": "You cannot consume this service" });
    for (field, to) in [("allow", "allow_labels"), ("deny", "deny_labels")] {
        let groups = list(conf, field);
        if !groups.is_empty() {
            made[to] = json!({ "groups": groups });
        }
    }
    Ok(("acl", made))
}

pub(super) fn ip_restriction(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    let (allow, deny) = (list(conf, "allow"), list(conf, "deny"));
    let mut made = match (allow.is_empty(), deny.is_empty()) {
        (false, true) => json!({ "whitelist": allow }),
        (true, false) => json!({ "blacklist": deny }),
        _ => return Err("allow and deny in one place".to_owned()),
    };
    match conf["status"].as_i64() {
        None | Some(403) => {}
        Some(404) => made["response_code"] = 404.into(),
        Some(other) => notes.push(format!("ip-restriction: the status is 403, not {other}.")),
    }
    if let Some(message) = conf["message"].as_str() {
        made["message"] = message.into();
    }
    Ok(("ip-restriction", made))
}

pub(super) fn bot_detection(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    let deny = list(conf, "deny");
    if deny.is_empty() || !list(conf, "allow").is_empty() {
        return Err("the built-in list of bots, and exceptions from it".to_owned());
    }
    notes.push("bot-detection: Kong's built-in list is not there; what deny names is refused.".to_owned());
    Ok(("ua-restriction", json!({ "denylist": deny, "bypass_missing": true, "message": "Forbidden" })))
}

/// A credential in the form of APISIX.
pub(in crate::convert) fn credential(credential: &Value, is_base64: bool) -> Result<Value, String> {
    let held = credential["plugins"].as_object().and_then(|plugins| plugins.iter().next());
    let (plugin, conf) = held.ok_or("it belongs to no plugin")?;
    let (to, made) = match plugin.as_str() {
        "key-auth" => ("key-auth", json!({ "key": conf["key"] })),
        "basic-auth" if conf["is_hashed"] == true => return Err("its password is hashed as Kong hashes it".to_owned()),
        "basic-auth" => ("basic-auth", json!({ "username": conf["username"], "password": conf["password"] })),
        "jwt" => {
            let algorithm = text(conf, "algorithm", "HS256");
            let mut made = json!({ "key": conf["key"], "algorithm": algorithm });
            if algorithm.starts_with("HS") {
                made["secret"] = conf["secret"].clone();
                if is_base64 {
                    made["base64_secret"] = true.into();
                }
            } else {
                made["public_key"] = conf["rsa_public_key"].clone();
            }
            ("jwt-auth", made)
        }
        other => return Err(format!("there is no counterpart of {other}")),
    };
    let mut value = json!({ "id": credential["id"], "plugins": { to: made } });
    if !credential["plan"].is_null() {
        value["plan"] = credential["plan"].clone();
    }
    Ok(value)
}
