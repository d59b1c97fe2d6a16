//! Scripts of middleware, templates and certificates that API definitions name.

use serde_json::Value;

/// Adds the paths of the files that a definition names, in either form.
pub(super) fn add(definition: &str, paths: &mut Vec<String>) {
    let Ok(definition) = serde_json::from_str::<Value>(definition) else { return };
    add_templates(&definition, paths);
    add_certificates(&definition, paths);
    let at = |path: &str| path.split('.').try_fold(&definition, |value, name| value.get(name));
    let driver =
        at("custom_middleware.driver").or_else(|| at("x-tyk-api-gateway.middleware.global.pluginConfig.driver"));
    if !is_script(driver.and_then(Value::as_str).unwrap_or_default()) {
        return;
    }
    for list in [
        "custom_middleware.pre",
        "custom_middleware.post_key_auth",
        "custom_middleware.post",
        "custom_middleware.response",
        "x-tyk-api-gateway.middleware.global.prePlugins",
        "x-tyk-api-gateway.middleware.global.postAuthenticationPlugins",
        "x-tyk-api-gateway.middleware.global.postPlugins",
        "x-tyk-api-gateway.middleware.global.responsePlugins",
    ] {
        for hook in at(list).and_then(Value::as_array).into_iter().flatten() {
            let is_off =
                hook.get("disabled") == Some(&Value::Bool(true)) || hook.get("enabled") == Some(&Value::Bool(false));
            let path = hook.get("path").and_then(Value::as_str).filter(|_| !is_off);
            push(paths, path);
        }
    }
    let classic = at("custom_middleware.auth_check").filter(|_| definition["enable_coprocess_auth"] == true);
    let custom = &definition["x-tyk-api-gateway"]["server"]["authentication"]["custom"];
    let own = Some(&custom["config"]).filter(|_| custom["enabled"] == true);
    for check in [classic, own].into_iter().flatten() {
        push(paths, check["path"].as_str());
    }
}

/// Adds a path that is not there yet.
fn push(paths: &mut Vec<String>, path: Option<&str>) {
    if let Some(path) = path.filter(|path| !path.is_empty() && !paths.iter().any(|known| known == path)) {
        paths.push(path.to_owned());
    }
}

/// Adds the paths of templates and of functions of virtual endpoints that are in files.
fn add_templates(definition: &Value, paths: &mut Vec<String>) {
    let mut push = |path: &Value| push(paths, path.as_str());
    let versions = definition["version_data"]["versions"].as_object();
    for version in versions.into_iter().flat_map(|versions| versions.values()) {
        for endpoint in version["extended_paths"]["virtual"].as_array().into_iter().flatten() {
            if endpoint["function_source_type"] != "blob" && endpoint["disabled"] != true {
                push(&endpoint["function_source_uri"]);
            }
        }
        for list in ["transform", "transform_response"] {
            let entries = version["extended_paths"][list].as_array();
            for data in entries.into_iter().flatten().map(|entry| &entry["template_data"]) {
                if data["template_mode"] == "file" {
                    push(&data["template_source"]);
                }
            }
        }
    }
    let events = definition["event_handlers"]["events"].as_object();
    for handler in events.into_iter().flat_map(|events| events.values()).filter_map(Value::as_array).flatten() {
        let meta = &handler["handler_meta"];
        match handler["handler_name"].as_str().filter(|_| meta["disabled"] != true) {
            Some("eh_web_hook_handler") => push(&meta["template_path"]),
            Some("eh_dynamic_handler") => push(&meta["path"]),
            _ => {}
        }
    }
    let handlers = definition["x-tyk-api-gateway"]["server"]["eventHandlers"].as_array();
    for handler in handlers.into_iter().flatten() {
        match handler["type"].as_str() {
            Some("webhook") => push(&handler["bodyTemplate"]),
            Some("custom") if handler["enabled"] == true => push(&handler["path"]),
            _ => {}
        }
    }
    let operations = definition["x-tyk-api-gateway"]["middleware"]["operations"].as_object();
    for operation in operations.into_iter().flat_map(|operations| operations.values()) {
        for part in ["transformRequestBody", "transformResponseBody", "virtualEndpoint"].map(|name| &operation[name]) {
            if part["enabled"] == true && part["body"].as_str().is_none_or(str::is_empty) {
                push(&part["path"]);
            }
        }
    }
}

/// Adds the paths of certificates of clients, and of those that upstreams are shown.
fn add_certificates(definition: &Value, paths: &mut Vec<String>) {
    let server = &definition["x-tyk-api-gateway"]["server"]["clientCertificates"];
    let classic = definition["client_certificates"].as_array().filter(|_| definition["use_mutual_tls_auth"] == true);
    let allowed = server["allowlist"].as_array().filter(|_| server["enabled"] == true);
    for path in classic.into_iter().chain(allowed).flatten().filter_map(Value::as_str) {
        push(paths, Some(path).filter(|path| fingerprint(path).is_none()));
    }
    let classic = &definition["upstream_certificates"];
    let classic = classic.as_object().filter(|_| definition["upstream_certificates_disabled"] != true);
    let mutual = &definition["x-tyk-api-gateway"]["upstream"]["mutualTLS"];
    let listed = mutual["domainToCertificates"].as_array().filter(|_| mutual["enabled"] == true);
    let listed = listed.into_iter().flatten().map(|entry| &entry["certificate"]);
    for path in classic.into_iter().flat_map(|map| map.values()).chain(listed).filter_map(Value::as_str) {
        push(paths, Some(path).filter(|path| fingerprint(path).is_none()));
    }
}

/// The SHA-256 of a certificate in its id, which Tyk makes of an organisation and that.
pub(crate) fn fingerprint(id: &str) -> Option<&str> {
    let digits = id.get(id.len().checked_sub(64)?..)?;
    (!id.contains('/') && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digits)
}

/// True for the driver of scripts in JavaScript.
pub(crate) fn is_script(driver: &str) -> bool {
    matches!(driver, "" | "otto" | "javascript")
}
