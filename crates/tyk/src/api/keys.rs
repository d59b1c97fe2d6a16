//! Keys: `/tyk/keys`.

use serde_json::{Map, Value, json};
use weir_plugins::tyk::ApiRequest;
use weir_plugins::tyk::sessions::records::certificate;
use weir_plugins::tyk::sessions::{HashFunction, Naming};

use super::held::Held;
use super::records::Records;
use super::{GatewayApi, Outcome, argument, method_not_supported, random_id};

/// Answers a request for keys.
pub(super) fn answer(api: &GatewayApi, request: &ApiRequest, method: &str, rest: &[&str]) -> Outcome {
    match (method, rest) {
        ("GET", []) => list(api, request),
        ("POST", ["create"]) => create(api, request, None),
        ("POST", ["preview"]) => {
            let session = session_of(request, 400)?;
            api.sessions.applied(&session).map_err(|error| (500, format!("Failed to create key - {error}")))
        }
        ("POST", ["policy", key]) => set_policies(api, request, key),
        ("GET", [key]) => {
            let name = find(api, request, key)?.ok_or((404, "Key not found".to_owned()))?;
            shown(api, request, &name)
        }
        ("POST", [key]) => create(api, request, Some(key)),
        ("PUT", [key]) => update(api, request, key),
        ("DELETE", [key]) => {
            let name = find(api, request, key)?.ok_or((404, "There is no such key found".to_owned()))?;
            Held::of(api, request).remove(&name)?;
            Ok(json!({ "key": key, "status": "ok", "action": "deleted" }))
        }
        _ => method_not_supported(),
    }
}

fn list(api: &GatewayApi, request: &ApiRequest) -> Outcome {
    if api.naming.hashes && !api.conf.lists_hashed_keys {
        let text = "Hashed key listing is disabled in config (enable_hashed_keys_listing)";
        return Err((404, text.to_owned()));
    }
    let (filter, of_api) = (argument(request, "filter").unwrap_or_default(), argument(request, "api_id"));
    let held = Held::of(api, request);
    let mut names = held.names()?;
    names.retain(|name| filter.is_empty() || api.naming.hashes || name.starts_with(filter));
    if let Some(id) = of_api {
        let mut with_right = Vec::new();
        for name in names {
            if held.has_right(&name, id)? {
                with_right.push(name);
            }
        }
        names = with_right;
    }
    Ok(json!({ "keys": names }))
}

/// The session of a body.
fn session_of(request: &ApiRequest, status: u16) -> Outcome {
    let text = if status == 500 { "Unmarshalling failed" } else { "Request malformed" };
    let value = serde_json::from_slice::<Value>(&request.body).ok().filter(Value::is_object);
    value.ok_or((status, text.to_owned()))
}

/// Name of the session that a key of a request means.
fn find(api: &GatewayApi, request: &ApiRequest, key: &str) -> Result<Option<String>, (u16, String)> {
    if matches!(argument(request, "hashed"), Some("1" | "true")) {
        return Ok(Held::of(api, request).written(key)?.map(|_| key.to_owned()));
    }
    find_in(api, request, argument(request, "org_id").unwrap_or_default(), key)
}

/// Name of the session of a key, or of an id in an organisation.
fn find_in(api: &GatewayApi, request: &ApiRequest, org: &str, key: &str) -> Result<Option<String>, (u16, String)> {
    let mut names = vec![api.naming.name(key)];
    if !org.is_empty() {
        names.push(api.naming.name(&api.naming.key(org, key)));
        names.push(api.naming.name(&format!("{org}{key}")));
    }
    let held = Held::of(api, request);
    for name in names {
        if held.written(&name)?.is_some() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn has_rights(session: &Map<String, Value>) -> bool {
    let is_filled = |field: &str| {
        session.get(field).is_some_and(|value| match value {
            Value::Object(fields) => !fields.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::String(text) => !text.is_empty(),
            _ => false,
        })
    };
    ["access_rights", "apply_policies", "apply_policy_id"].into_iter().any(is_filled)
}

fn create(api: &GatewayApi, request: &ApiRequest, own: Option<&str>) -> Outcome {
    let Value::Object(mut session) = session_of(request, if own.is_none() { 500 } else { 400 })? else {
        return Err((500, "Unmarshalling failed".to_owned()));
    };
    check(api, &session)?;
    let org = session.get("org_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let text = |field: &str| session.get(field).and_then(Value::as_str).unwrap_or_default();
    let certificate = text("certificate");
    check_bindings(api, request, &session, &[])?;
    let key = match own {
        None if !certificate.is_empty() => {
            let key = api.naming.key(&org, certificate.strip_prefix(&*org).unwrap_or(certificate));
            if Held::of(api, request).written(&api.naming.name(&key))?.is_some() {
                return Err((500, format!("Failed to create key - Key with given certificate already found:{key}")));
            }
            key
        }
        Some(own) if Naming::is_self_describing(own) || !org.is_empty() && own.starts_with(&org) => own.to_owned(),
        // Users and texts of one's own are known without a function, as ORG and text.
        Some(own) if session.contains_key("basic_auth_data") => format!("{org}{own}"),
        Some(own) => api.naming.key(&org, own),
        None => api.naming.key(&org, &random_id()?),
    };
    let is_user = hash_password(api, &mut session, None);
    let session = complete(session, None, false);
    let name = api.naming.name(&key);
    let failed = |(status, text): (u16, String)| (status, format!("Failed to create key - {text}"));
    Held::of(api, request).put(&name, &session, false).map_err(failed)?;
    let shown = if is_user && api.naming.hashes { "" } else { key.as_str() };
    let mut answer = json!({ "key": shown, "status": "ok", "action": "added" });
    if api.naming.hashes {
        answer["key_hash"] = name.into();
    }
    Ok(answer)
}

/// Refuses certificates that are not in the store. Those that the session had are not looked for.
fn check_bindings(
    api: &GatewayApi,
    request: &ApiRequest,
    session: &Map<String, Value>,
    before: &[Value],
) -> Result<(), (u16, String)> {
    let org = session.get("org_id").and_then(Value::as_str).unwrap_or_default();
    let given = session.get("mtls_static_certificate_bindings").and_then(Value::as_array).into_iter().flatten();
    for id in given.filter(|id| !before.contains(id)).filter_map(Value::as_str) {
        if !id.starts_with(org) {
            return Err((400, format!("invalid certificate ID: {id}")));
        }
        if Records::of(api, request).get(&certificate(id))?.is_none() {
            return Err((400, format!("certificate not found: {id}")));
        }
    }
    Ok(())
}

/// Refuses what no session may be.
fn check(api: &GatewayApi, session: &Map<String, Value>) -> Result<(), (u16, String)> {
    if has_rights(session) || api.conf.allow_master_keys {
        return Ok(());
    }
    Err((400, "Failed to create key, keys must have at least one Access Rights record set.".to_owned()))
}

fn update(api: &GatewayApi, request: &ApiRequest, key: &str) -> Outcome {
    let Value::Object(mut session) = session_of(request, 400)? else {
        return Err((400, "Request malformed".to_owned()));
    };
    check(api, &session)?;
    let org = session.get("org_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let found = match find(api, request, key)? {
        Some(found) => Some(found),
        None => find_in(api, request, &org, key)?,
    };
    let name = found.ok_or((404, "Key is not found".to_owned()))?;
    let held = Held::of(api, request);
    let before = held.written(&name)?.unwrap_or_default();
    let own = session.get("certificate").and_then(Value::as_str).unwrap_or_default();
    if own != before["certificate"].as_str().unwrap_or_default() {
        if own.is_empty() {
            return Err((400, "Key cannot be used without a certificate".to_owned()));
        }
        if Records::of(api, request).get(&certificate(own))?.is_none() {
            return Err((400, "Key must be used with an existent certificate".to_owned()));
        }
    }
    let bindings = before["mtls_static_certificate_bindings"].as_array().map_or(&[][..], Vec::as_slice);
    check_bindings(api, request, &session, bindings)?;
    hash_password(api, &mut session, Some(&before));
    let keeps = matches!(argument(request, "suppress_reset"), Some("1"));
    held.put(&name, &complete(session, Some(&before), keeps), keeps)
        .map_err(|(status, text)| (status, format!("Failed to create key - {text}")))?;
    Ok(json!({ "key": key, "status": "ok", "action": "modified" }))
}

fn set_policies(api: &GatewayApi, request: &ApiRequest, key: &str) -> Outcome {
    let given = session_of(request, 400)?;
    let policy = given.get("policy").and_then(Value::as_str).filter(|policy| !policy.is_empty());
    let policy = policy.ok_or((400, "Request malformed".to_owned()))?;
    let name = find(api, request, key)?.ok_or((404, "Key not found".to_owned()))?;
    let held = Held::of(api, request);
    let mut session = held.written(&name)?.unwrap_or_default();
    if let Some(fields) = session.as_object_mut() {
        fields.shift_remove("apply_policy_id");
        fields.insert("apply_policies".to_owned(), json!([policy]));
        fields.insert("last_updated".to_owned(), now().to_string().into());
    }
    held.put(&name, &session, true)?;
    Ok(json!({ "key": key, "status": "ok", "action": "updated" }))
}

/// The session as it is told: without the password, with what is left of the quota.
pub(super) fn shown(api: &GatewayApi, request: &ApiRequest, name: &str) -> Outcome {
    let held = Held::of(api, request);
    let written = held.written(name)?.unwrap_or_default();
    let quota = held.quota(name, &written, now_ms())?;
    let mut session = api.sessions.applied(&written).unwrap_or(written);
    if let Some(fields) = session.as_object_mut() {
        if let Some(Value::Object(basic)) = fields.get_mut("basic_auth_data") {
            basic.shift_remove("password");
        }
        if let Some((left, ends)) = quota {
            fields.insert("quota_remaining".to_owned(), left.into());
            if let Some(ends) = ends {
                fields.insert("quota_renews".to_owned(), ends.into());
            }
        }
    }
    Ok(session)
}

/// Puts the hash of the password in its place where keys are hashed; true for a session with a password. One that is left
/// out stays what it was.
fn hash_password(api: &GatewayApi, session: &mut Map<String, Value>, before: Option<&Value>) -> bool {
    let held = before.and_then(|before| before.get("basic_auth_data"));
    let Some(Value::Object(basic)) = session.get_mut("basic_auth_data") else { return false };
    let password = basic.get("password").and_then(Value::as_str).unwrap_or_default().to_owned();
    if password.is_empty() {
        if let Some(held) = held {
            session.insert("basic_auth_data".to_owned(), held.clone());
            return true;
        }
        session.shift_remove("basic_auth_data");
        return false;
    }
    if api.naming.hashes {
        basic.insert("password".to_owned(), HashFunction::Sha256.text(&password).into());
        basic.insert("hash_type".to_owned(), HashFunction::Sha256.name().into());
    } else {
        basic.insert("hash_type".to_owned(), "".into());
    }
    true
}

/// Fields of a session, of a right and of a right's limit, in the order in which Tyk writes them. Others follow.
#[rustfmt::skip]
const FIELDS: [&str; 35] = [
    "last_check", "allowance", "rate", "per", "throttle_interval", "throttle_retry_limit", "max_query_depth",
    "date_created", "expires", "quota_max", "quota_renews", "quota_remaining", "quota_renewal_rate", "access_rights",
    "org_id", "oauth_client_id", "oauth_keys", "certificate",
    "mtls_static_certificate_bindings", "basic_auth_data", "jwt_data", "hmac_enabled",
    "enable_http_signature_validation", "hmac_string", "rsa_certificate_id", "is_inactive", "apply_policy_id",
    "apply_policies", "data_expires", "monitor", "enable_detailed_recording", "meta_data", "tags", "alias",
    "last_updated",
];
const RIGHT_FIELDS: [&str; 7] =
    ["api_name", "api_id", "versions", "allowed_urls", "restricted_types", "limit", "allowance_scope"];
#[rustfmt::skip]
const LIMIT_FIELDS: [&str; 8] = [
    "rate", "per", "throttle_interval", "throttle_retry_limit", "max_query_depth", "quota_max", "quota_renews",
    "quota_renewal_rate",
];

/// Sorts fields as Tyk writes them.
fn sort(fields: Map<String, Value>, order: &[&str]) -> Map<String, Value> {
    let place = |name: &str| order.iter().position(|known| *known == name).unwrap_or(order.len());
    let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
    fields.sort_by_key(|(name, _)| place(name));
    fields.into_iter().collect()
}

/// Leaves out what is zero, adds the times, and brings the fields into Tyk's order.
pub(super) fn complete(mut session: Map<String, Value>, before: Option<&Value>, keeps_counts: bool) -> Value {
    session.retain(|_, value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) => true,
    });
    let created = before.and_then(|before| before.get("date_created")).cloned();
    session.insert("date_created".to_owned(), created.unwrap_or_else(|| jiff::Timestamp::now().to_string().into()));
    session.insert("last_updated".to_owned(), now().to_string().into());
    if !keeps_counts {
        let renewal = session.get("quota_renewal_rate").and_then(Value::as_i64).unwrap_or_default();
        session.insert("quota_renews".to_owned(), now().saturating_add(renewal).into());
    }
    if let Some(Value::Object(rights)) = session.get_mut("access_rights") {
        for right in rights.values_mut() {
            let Value::Object(fields) = right else { continue };
            if let Some(Value::Object(limit)) = fields.get_mut("limit") {
                *limit = sort(std::mem::take(limit), &LIMIT_FIELDS);
            }
            *fields = sort(std::mem::take(fields), &RIGHT_FIELDS);
        }
    }
    Value::Object(sort(session, &FIELDS))
}

pub(super) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}
