//! Parts of definitions in the OAS form, as parts of definitions in the classic form.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{at, is_enabled, operation};

pub(super) fn proxy(tyk: &Value) -> Value {
    let mut proxy = json!({
        "listen_path": at(tyk, "server.listenPath.value"),
        "strip_listen_path": at(tyk, "server.listenPath.strip").cloned().unwrap_or_else(|| json!(false)),
        "target_url": at(tyk, "upstream.url"),
        "preserve_host_header": is_enabled(at(tyk, "upstream.preserveHostHeader")),
    });
    if let Some(balancing) = at(tyk, "upstream.loadBalancing").filter(|balancing| is_enabled(Some(balancing))) {
        let mut targets = Vec::new();
        for target in balancing.get("targets").and_then(Value::as_array).into_iter().flatten() {
            let weight = target.get("weight").and_then(Value::as_u64).unwrap_or(1).min(1000);
            targets.extend((0..weight).filter_map(|_| target.get("url").cloned()));
        }
        proxy["enable_load_balancing"] = true.into();
        proxy["target_list"] = Value::Array(targets);
        let skips = balancing.get("skipUnavailableHosts") == Some(&Value::Bool(true));
        proxy["check_host_against_uptime_tests"] = skips.into();
    }
    if let Some(part) = at(tyk, "upstream.serviceDiscovery").filter(|part| is_enabled(Some(part))) {
        let cache = part.get("cache");
        proxy["service_discovery"] = json!({
            "use_discovery_service": true, "query_endpoint": part["queryEndpoint"], "data_path": part["dataPath"],
            "use_nested_query": part["useNestedQuery"], "parent_data_path": part["parentDataPath"],
            "port_data_path": part["portDataPath"], "use_target_list": part["useTargetList"],
            "target_path": part["targetPath"], "endpoint_returns_list": part["endpointReturnsList"],
            "cache_disabled": !is_enabled(cache), "cache_timeout": cache.map(|cache| cache["timeout"].clone()),
        });
    }
    if at(tyk, "upstream.tlsTransport.insecureSkipVerify") == Some(&Value::Bool(true)) {
        proxy["transport"] = json!({ "ssl_insecure_skip_verify": true });
    }
    proxy
}

/// Operations of a document that requests have to follow, under the listen path, by the status of a refusal.
pub(super) fn validation(tyk: &Value, document: &Value) -> Option<Value> {
    let mut statuses: BTreeMap<u64, Map<String, Value>> = BTreeMap::new();
    let listen = at(tyk, "server.listenPath.value").and_then(Value::as_str).unwrap_or_default().trim_end_matches('/');
    for (id, middleware) in at(tyk, "middleware.operations").and_then(Value::as_object).into_iter().flatten() {
        let Some(part) = middleware.get("validateRequest").filter(|part| is_enabled(Some(part))) else { continue };
        let Some((path, method)) = operation(document, id) else { continue };
        let status = part["errorResponseCode"].as_u64().filter(|status| *status > 0).unwrap_or(422);
        let item = &document["paths"][&path];
        let own = statuses.entry(status).or_default().entry(format!("{listen}{path}")).or_insert_with(|| json!({}));
        if let Some(shared) = item.get("parameters") {
            own["parameters"] = shared.clone();
        }
        let method = method.to_ascii_lowercase();
        own[&method] = item[&method].clone();
    }
    let of = |(status, paths): (u64, Map<String, Value>)| {
        let part = json!({
            "openapi": document["openapi"], "info": document["info"], "components": document["components"], "paths": paths,
        });
        json!({ "status": status, "document": part.to_string() })
    };
    let documents: Vec<Value> = statuses.into_iter().map(of).collect();
    (!documents.is_empty()).then_some(Value::Array(documents))
}

/// Status, media type and text of an example that a document has for an operation.
pub(super) fn example(document: &Value, id: &str, wanted: &Value) -> Option<(u64, String, String)> {
    let (path, method) = operation(document, id)?;
    let responses = &document["paths"][&path][method.to_ascii_lowercase()]["responses"];
    let code = wanted["code"].as_u64().filter(|code| *code > 0).unwrap_or(200);
    let content = responses[code.to_string()]["content"].as_object()?;
    let kind = wanted["contentType"].as_str().filter(|kind| !kind.is_empty()).unwrap_or("application/json");
    let media = content.get(kind)?;
    let examples = media["examples"].as_object();
    let named = match wanted["exampleName"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => examples?.get(name)?.get("value"),
        None => media.get("example").or_else(|| examples?.values().next()?.get("value")),
    };
    let value = named.or_else(|| media["schema"].get("example"))?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some((code, kind.to_owned(), text))
}

/// Conditions of a rewrite: `triggers` in the classic form.
///
/// # Errors
/// A condition looks at something that is not looked at.
pub(super) fn triggers(part: &Value) -> Result<Value, String> {
    let mut made = Vec::new();
    for trigger in part["triggers"].as_array().into_iter().flatten() {
        let mut options = json!({});
        for rule in trigger["rules"].as_array().into_iter().flatten() {
            let list = match rule["in"].as_str().unwrap_or_default() {
                "header" => "header_matches",
                "query" => "query_val_matches",
                "path" => "path_part_matches",
                "sessionMetadata" => "session_meta_matches",
                "requestContext" => "request_context_matches",
                other => {
                    let expected = "expected one of: header, query, path, sessionMetadata, requestContext";
                    return Err(format!("in: {expected}; found '{other}'"));
                }
            };
            let name = rule["name"].as_str().unwrap_or_default();
            options[list][name] =
                json!({ "match_rx": rule["pattern"], "reverse": rule["negate"] == Value::Bool(true) });
        }
        made.push(json!({ "on": trigger["condition"], "options": options, "rewrite_to": trigger["rewriteTo"] }));
    }
    Ok(Value::Array(made))
}

/// Uptime tests: `check_list`.
///
/// # Errors
/// A time is none.
pub(super) fn uptime_tests(part: &Value) -> Result<Value, String> {
    let mut made = Vec::new();
    for test in part["tests"].as_array().into_iter().flatten() {
        let timeout = match test["timeout"].as_str().filter(|text| !text.is_empty()) {
            Some(text) => {
                super::seconds(text).ok_or_else(|| format!("timeout: expected a time such as 10s, found '{text}'"))?
            }
            None => 0.0,
        };
        let url = test["url"].as_str().unwrap_or_default();
        let protocol = if url.starts_with("tcp://") { "tcp" } else { "" };
        made.push(json!({
            "url": url, "protocol": protocol, "method": test["method"], "headers": test["headers"], "body": test["body"],
            "timeout": (timeout * 1e9) as i64, "commands": test["commands"],
            "enable_proxy_protocol": test["enableProxyProtocol"],
        }));
    }
    Ok(Value::Array(made))
}

/// Handlers of events by the names of the events.
///
/// # Errors
/// A handler is none that is run.
pub(super) fn events(part: Option<&Value>) -> Result<Value, String> {
    let mut made = json!({});
    for handler in part.and_then(Value::as_array).into_iter().flatten().filter(|handler| is_enabled(Some(handler))) {
        let event = handler["trigger"].as_str().unwrap_or_default();
        let (name, meta) = match handler["type"].as_str().unwrap_or_default() {
            "webhook" => {
                let headers = handler["headers"].as_array().into_iter().flatten();
                let headers: Map<String, Value> = headers
                    .filter_map(|header| Some((header["name"].as_str()?.to_owned(), header["value"].clone())))
                    .collect();
                let quiet = handler["cooldownPeriod"].as_str().and_then(super::seconds).unwrap_or_default();
                let meta = json!({
                    "method": handler["method"], "target_path": handler["url"], "header_map": headers,
                    "template_path": handler["bodyTemplate"], "event_timeout": quiet as u64,
                });
                ("eh_web_hook_handler", meta)
            }
            "log" => ("eh_log_handler", json!({ "prefix": handler["logPrefix"] })),
            "custom" => ("eh_dynamic_handler", json!({ "name": handler["functionName"], "path": handler["path"] })),
            other => return Err(format!("type: expected one of: webhook, log, custom; found '{other}'")),
        };
        if !made[event].is_array() {
            made[event] = json!([]);
        }
        if let Some(list) = made[event].as_array_mut() {
            list.push(json!({ "handler_name": name, "handler_meta": meta }));
        }
    }
    Ok(made)
}

/// Places of credentials in requests, in the fields of `auth_configs`.
pub(super) fn places(scheme: &Value) -> Map<String, Value> {
    let mut config = Map::new();
    let place = |name: &str| scheme.get(name).filter(|place| place.get("enabled") != Some(&Value::Bool(false)));
    if let Some(header) = place("header").and_then(|header| header.get("name")) {
        config.insert("auth_header_name".to_owned(), header.clone());
    }
    for (written, switch, field) in [("query", "use_param", "param_name"), ("cookie", "use_cookie", "cookie_name")] {
        if let Some(place) = place(written) {
            config.insert(switch.to_owned(), true.into());
            config.insert(field.to_owned(), place.get("name").cloned().unwrap_or_default());
        }
    }
    config
}

/// The fields of providers of OpenID.
pub(super) fn openid(oidc: &Value) -> Value {
    let providers = oidc.get("providers").and_then(Value::as_array).into_iter().flatten();
    let providers = providers.map(|provider| {
        let pairs = provider.get("clientToPolicyMapping").and_then(Value::as_array).into_iter().flatten();
        let clients = pairs.filter_map(|pair| {
            let id = pair.get("clientId")?.as_str()?;
            Some((STANDARD.encode(id), pair.get("policyId")?.clone()))
        });
        json!({ "issuer": provider["issuer"], "client_ids": clients.collect::<Map<_, _>>() })
    });
    json!({
        "providers": providers.collect::<Vec<_>>(),
        "segregate_by_client": oidc.get("segregateByClientId") == Some(&Value::Bool(true)),
    })
}

/// The fields of a scheme with tokens.
pub(super) fn jwt(scheme: &Value) -> Map<String, Value> {
    let mut made = Map::new();
    for (written, field) in [
        ("signingMethod", "jwt_signing_method"),
        ("source", "jwt_source"),
        ("jwksURIs", "jwt_jwks_uris"),
        ("identityBaseField", "jwt_identity_base_field"),
        ("skipKid", "jwt_skip_kid"),
        ("policyFieldName", "jwt_policy_field_name"),
        ("defaultPolicies", "jwt_default_policies"),
        ("issuedAtValidationSkew", "jwt_issued_at_validation_skew"),
        ("expiresAtValidationSkew", "jwt_expires_at_validation_skew"),
        ("notBeforeValidationSkew", "jwt_not_before_validation_skew"),
    ] {
        if let Some(value) = scheme.get(written).filter(|value| !value.is_null()) {
            made.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(scopes) = scheme.get("scopes") {
        let pairs = scopes.get("scopeToPolicyMapping").and_then(Value::as_array).into_iter().flatten();
        let pairs =
            pairs.filter_map(|pair| Some((pair.get("scope")?.as_str()?.to_owned(), pair.get("policyId")?.clone())));
        let scopes = json!({ "scope_claim_name": scopes["claimName"].as_str().unwrap_or_default(), "scope_to_policy": Value::Object(pairs.collect()) });
        made.insert("scopes".to_owned(), json!({ "jwt": scopes }));
    }
    made
}

/// A function of middleware.
fn hook(written: &Value) -> Value {
    json!({ "name": written["functionName"], "path": written["path"], "raw_body_only": written["rawBodyOnly"] == true })
}

/// The hooks of middleware.
pub(super) fn middleware(tyk: &Value) -> Value {
    let mut made = json!({ "driver": at(tyk, "middleware.global.pluginConfig.driver") });
    for (written, field) in [
        ("prePlugins", "pre"),
        ("postAuthenticationPlugins", "post_key_auth"),
        ("postPlugins", "post"),
        ("responsePlugins", "response"),
    ] {
        let hooks = at(tyk, &format!("middleware.global.{written}")).and_then(Value::as_array).into_iter().flatten();
        let hooks = hooks.filter(|hook| is_enabled(Some(hook)));
        made[field] = hooks.map(hook).collect();
    }
    let check =
        at(tyk, "server.authentication.custom.config").filter(|_| is_enabled(at(tyk, "server.authentication.custom")));
    if let Some(check) = check {
        made["auth_check"] = hook(check);
        made["id_extractor"] = json!({
            "extract_from": check["idExtractor"]["source"], "extract_with": check["idExtractor"]["with"],
            "disabled": check["idExtractor"]["enabled"] != true,
        });
    }
    made
}

pub(super) fn cache(cache: &Value) -> Value {
    let mut made = json!({ "enable_cache": true });
    for (written, field) in [
        ("timeout", "cache_timeout"),
        ("cacheAllSafeRequests", "cache_all_safe_requests"),
        ("cacheResponseCodes", "cache_response_codes"),
        ("cacheByHeaders", "cache_by_headers"),
        ("enableUpstreamCacheControl", "enable_upstream_cache_control"),
        ("controlTTLHeaderName", "cache_control_ttl_header"),
    ] {
        if let Some(value) = cache.get(written).filter(|value| !value.is_null()) {
            made[field] = value.clone();
        }
    }
    made
}

pub(super) fn cors(cors: &Value) -> Value {
    let mut made = json!({ "enable": true });
    for (written, field) in [
        ("allowedOrigins", "allowed_origins"),
        ("allowedMethods", "allowed_methods"),
        ("allowedHeaders", "allowed_headers"),
        ("exposedHeaders", "exposed_headers"),
        ("allowCredentials", "allow_credentials"),
        ("maxAge", "max_age"),
        ("optionsPassthrough", "options_passthrough"),
    ] {
        if let Some(value) = cors.get(written).filter(|value| !value.is_null()) {
            made[field] = value.clone();
        }
    }
    made
}

/// An OAuth server: `oauth_meta` and `notifications`. The grants are those of the flows that the document describes.
pub(super) fn oauth(scheme: &Value, described: &Value) -> Map<String, Value> {
    let flows = [
        ("authorizationCode", "authorization_code"),
        ("clientCredentials", "client_credentials"),
        ("password", "password"),
    ];
    let has = |flow: &str| described["flows"].get(flow).is_some_and(|flow| !flow.is_null());
    let refreshes = scheme.get("refreshToken") == Some(&Value::Bool(true));
    let grants = flows.iter().filter(|(flow, _)| has(flow)).map(|(_, grant)| *grant);
    let grants: Vec<&str> = grants.chain(refreshes.then_some("refresh_token")).collect();
    let told = scheme.get("notifications").cloned().unwrap_or_default();
    Map::from_iter([
        (
            "oauth_meta".to_owned(),
            json!({
                "allowed_access_types": grants, "allowed_authorize_types": scheme["allowedAuthorizeTypes"],
                "auth_login_redirect": scheme["authLoginRedirect"],
            }),
        ),
        (
            "notifications".to_owned(),
            json!({ "shared_secret": told["sharedSecret"], "oauth_on_keychange_url": told["onKeyChangeUrl"] }),
        ),
    ])
}

/// Versions that are APIs of their own: `version_definition`.
pub(super) fn versioning(part: &Value) -> Value {
    let listed = part["versions"].as_array().into_iter().flatten();
    let versions: Map<String, Value> =
        listed.filter_map(|version| Some((version["name"].as_str()?.to_owned(), version["id"].clone()))).collect();
    json!({
        "enabled": true, "name": part["name"], "default": part["default"], "location": part["location"], "key": part["key"],
        "strip_versioning_data": part["stripVersioningData"], "fallback_to_default": part["fallbackToDefault"],
        "url_versioning_pattern": part["urlVersioningPattern"], "versions": versions,
    })
}

/// Signatures of requests: `signature`.
pub(super) fn signature(part: &Value) -> Value {
    json!({
        "algorithm": part["algorithm"], "header": part["header"], "use_param": is_enabled(part.get("query")),
        "param_name": part["query"]["name"], "secret": part["secret"], "allowed_clock_skew": part["allowedClockSkew"],
        "error_code": part["errorCode"], "error_message": part["errorMessage"],
    })
}
