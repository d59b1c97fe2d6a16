//! API definitions in the OAS form, as definitions in the classic form.

mod parts;

use serde_json::{Map, Value, json};
use weir_config::diagnostic::nearest;
use weir_config::{Diagnostic, Hint, Node};

use crate::rule::rule;

/// Key of Tyk's part of an OpenAPI document.
const EXTENSION: &str = "x-tyk-api-gateway";

/// True for a definition in the OAS form.
pub(crate) fn is_oas(root: &Node) -> bool {
    root.get("openapi").is_some() && root.get(EXTENSION).is_some()
}

/// The classic form of a definition; `None` with an error among the findings.
pub(crate) fn classic(root: &Node, file: &str, found: &mut Vec<Diagnostic>) -> Option<Node> {
    let document = root.to_json();
    let mut reading = Reading { root, file, found, refused: false };
    let made = reading.classic(&document)?;
    let mut node = Node::from(&Value::Object(made));
    node.mark = root.mark;
    (!reading.refused).then_some(node)
}

/// True for a definition with an OAuth server, and true for one that takes tokens of JWT.
pub(crate) fn ways(document: &Value) -> (bool, bool) {
    let schemes = at(document, "x-tyk-api-gateway.server.authentication.securitySchemes").and_then(Value::as_object);
    let (mut is_oauth, mut is_jwt) = (false, false);
    for (name, scheme) in schemes.into_iter().flatten().filter(|(_, scheme)| is_enabled(Some(scheme))) {
        let described = document["components"]["securitySchemes"].get(name).unwrap_or(&Value::Null);
        is_oauth |= described["type"] == "oauth2" && scheme.get("providers").is_none();
        is_jwt |= described["type"] == "http" && described["scheme"] == "bearer";
    }
    (is_oauth, is_jwt)
}

struct Reading<'r> {
    root: &'r Node,
    file: &'r str,
    found: &'r mut Vec<Diagnostic>,
    refused: bool,
}

/// Keys of each part that are read; others are told.
const PARTS: &[(&str, &[&str])] = &[
    ("", &["info", "upstream", "server", "middleware"]),
    ("info", &["name", "id", "dbId", "orgId", "state", "versioning", "expiration"]),
    (
        "upstream",
        &[
            "url",
            "loadBalancing",
            "rateLimit",
            "preserveHostHeader",
            "tlsTransport",
            "serviceDiscovery",
            "uptimeTests",
            "mutualTLS",
        ],
    ),
    (
        "server",
        &[
            "listenPath",
            "authentication",
            "customDomain",
            "ipAccessControl",
            "detailedActivityLogs",
            "gatewayTags",
            "batchProcessing",
            "clientCertificates",
            "eventHandlers",
        ],
    ),
    (
        "middleware.global",
        &[
            "cors",
            "contextVariables",
            "trafficLogs",
            "transformRequestHeaders",
            "transformResponseHeaders",
            "requestSizeLimit",
            "ignoreCase",
            "skipRateLimit",
            "skipQuota",
            "skipQuotaReset",
            "pluginConfig",
            "prePlugins",
            "postAuthenticationPlugins",
            "postPlugins",
            "cache",
        ],
    ),
];

/// Parts without an effect, with the reason.
const DOUBTED: &[(&str, &str)] =
    &[("server.detailedTracing", "traces are not sent"), ("server.gatewayTags", "tags of segments are not looked at")];

impl Reading<'_> {
    fn fault(&mut self, path: &str, text: impl Into<String>) {
        let place = format!("{}.{EXTENSION}.{path}", self.file);
        let node = std::iter::once(EXTENSION).chain(path.split('.')).try_fold(self.root, |node, name| node.get(name));
        let mark = node.map_or(self.root.mark, |node| node.mark);
        self.found.push(Diagnostic::error(mark, place, rule(text)));
        self.refused = true;
    }

    fn doubt(&mut self, path: &str, text: impl Into<String>, hint: Option<Hint>) {
        let place = format!("{}.{EXTENSION}.{path}", self.file);
        let node = std::iter::once(EXTENSION).chain(path.split('.')).try_fold(self.root, |node, name| node.get(name));
        let mark = node.map_or(self.root.mark, |node| node.mark);
        self.found.push(Diagnostic { hint, ..Diagnostic::warning(mark, place, rule(text)) });
    }

    fn classic(&mut self, document: &Value) -> Option<Map<String, Value>> {
        let tyk = document.get(EXTENSION)?;
        self.check_parts(tyk);
        for required in ["info.name", "info.state.active", "server.listenPath.value", "upstream.url"] {
            if at(tyk, required).is_none_or(Value::is_null) {
                self.fault(required, format!("{} is required", required.rsplit('.').next().unwrap_or_default()));
            }
        }
        let mut made = Map::new();
        let mut set = |name: &str, value: Option<&Value>| {
            if let Some(value) = value.filter(|value| !value.is_null()) {
                made.insert(name.to_owned(), value.clone());
            }
        };
        set("name", at(tyk, "info.name"));
        set("api_id", at(tyk, "info.id"));
        set("org_id", at(tyk, "info.orgId"));
        set("active", at(tyk, "info.state.active"));
        set("expiration", at(tyk, "info.expiration"));
        set("internal", at(tyk, "info.state.internal"));
        if let Some(versioning) = at(tyk, "info.versioning").filter(|part| is_enabled(Some(part))) {
            set("version_definition", Some(&parts::versioning(versioning)));
        }
        set("enable_context_vars", at(tyk, "middleware.global.contextVariables.enabled"));
        set("enable_batch_request_support", at(tyk, "server.batchProcessing.enabled"));
        set("disable_rate_limit", at(tyk, "middleware.global.skipRateLimit"));
        set("disable_quota", at(tyk, "middleware.global.skipQuota"));
        if is_enabled(at(tyk, "server.detailedActivityLogs")) {
            set("enable_detailed_recording", Some(&Value::Bool(true)));
        }
        if is_enabled(at(tyk, "server.customDomain")) {
            set("domain", at(tyk, "server.customDomain.name"));
        }
        if let Some(clients) = at(tyk, "server.clientCertificates").filter(|clients| is_enabled(Some(clients))) {
            set("use_mutual_tls_auth", Some(&Value::Bool(true)));
            set("client_certificates", clients.get("allowlist"));
        }
        if let Some(mutual) = at(tyk, "upstream.mutualTLS").filter(|mutual| is_enabled(Some(mutual))) {
            let entries = mutual["domainToCertificates"].as_array().into_iter().flatten();
            let of = |entry: &Value| Some((entry["domain"].as_str()?.to_owned(), entry["certificate"].clone()));
            set("upstream_certificates", Some(&Value::Object(entries.filter_map(of).collect())));
        }
        if let Some(control) = at(tyk, "server.ipAccessControl").filter(|control| is_enabled(Some(control))) {
            for (list, switch, field) in [
                ("allow", "enable_ip_whitelisting", "allowed_ips"),
                ("block", "enable_ip_blacklisting", "blacklisted_ips"),
            ] {
                let addresses = control.get(list).filter(|list| list.as_array().is_some_and(|list| !list.is_empty()));
                set(switch, addresses.map(|_| &Value::Bool(true)));
                set(field, addresses);
            }
        }
        if let Some(limit) = at(tyk, "upstream.rateLimit").filter(|limit| is_enabled(Some(limit))) {
            match limit.get("per").and_then(Value::as_str).and_then(seconds) {
                Some(per) => set("global_rate_limit", Some(&json!({ "rate": limit["rate"], "per": per }))),
                None => self.fault("upstream.rateLimit.per", "expected a time such as 10s, 1m or 1h30m"),
            }
        }
        if let Some(part) = at(tyk, "middleware.global.cache").filter(|part| is_enabled(Some(part))) {
            made.insert("cache_options".to_owned(), parts::cache(part));
        }
        made.insert("custom_middleware".to_owned(), parts::middleware(tyk));
        made.insert("proxy".to_owned(), parts::proxy(tyk));
        self.authentication(tyk, &mut made);
        made.insert("version_data".to_owned(), self.versions(tyk, document));
        if let Some(validation) = parts::validation(tyk, document) {
            made.insert("oas".to_owned(), json!({ "validation": validation }));
        }
        if let Some(tests) = at(tyk, "upstream.uptimeTests").filter(|part| is_enabled(Some(part))) {
            match parts::uptime_tests(tests) {
                Ok(list) => drop(made.insert("uptime_tests".to_owned(), json!({ "check_list": list }))),
                Err(text) => self.fault("upstream.uptimeTests", text),
            }
        }
        match parts::events(at(tyk, "server.eventHandlers")) {
            Ok(events) => drop(made.insert("event_handlers".to_owned(), json!({ "events": events }))),
            Err(text) => self.fault("server.eventHandlers", text),
        }
        if let Some(cors) = at(tyk, "middleware.global.cors").filter(|cors| is_enabled(Some(cors))) {
            made.insert("CORS".to_owned(), parts::cors(cors));
        }
        Some(made)
    }

    /// Tells the parts that are not read.
    fn check_parts(&mut self, tyk: &Value) {
        for (part, known) in PARTS {
            let node = if part.is_empty() { Some(tyk) } else { at(tyk, part) };
            for (name, value) in node.and_then(Value::as_object).into_iter().flatten() {
                let path = if part.is_empty() { name.clone() } else { format!("{part}.{name}") };
                let is_on = match value {
                    Value::Null | Value::Bool(false) => false,
                    Value::Array(items) => !items.is_empty(),
                    Value::Object(fields) => !fields.is_empty() && value.get("enabled") != Some(&Value::Bool(false)),
                    _ => true,
                };
                if !is_on {
                    continue;
                }
                if let Some((_, reason)) = DOUBTED.iter().find(|(doubted, _)| *doubted == path) {
                    self.doubt(&path, *reason, None);
                } else if !known.contains(&name.as_str()) {
                    let hint = Hint::nearest(nearest(name, known.iter().copied()));
                    match KNOWN.contains(&name.as_str()) {
                        true => self.fault(&path, "not supported yet"),
                        false => self.doubt(&path, "unknown field", hint),
                    }
                }
            }
        }
    }

    fn authentication(&mut self, tyk: &Value, made: &mut Map<String, Value>) {
        let authentication = at(tyk, "server.authentication").filter(|auth| is_enabled(Some(auth)));
        let Some(authentication) = authentication else {
            made.insert("use_keyless".to_owned(), true.into());
            return;
        };
        if authentication.get("stripAuthorizationData") == Some(&Value::Bool(true)) {
            made.insert("strip_auth_data".to_owned(), true.into());
        }
        let mut configs = Map::new();
        let schemes = authentication.get("securitySchemes").and_then(Value::as_object);
        let described = |name: &str| self.root.get("components")?.get("securitySchemes")?.get(name).map(Node::to_json);
        let mut refused = Vec::new();
        for (name, scheme) in schemes.into_iter().flatten().filter(|(_, scheme)| is_enabled(Some(scheme))) {
            let described = described(name).unwrap_or_default();
            let kind =
                (described["type"].as_str().unwrap_or("apiKey"), described["scheme"].as_str().unwrap_or_default());
            let place = |name: &str| scheme.get(name).filter(|place| place.get("enabled") != Some(&Value::Bool(false)));
            let mut config = Map::new();
            if let Some(header) = place("header").and_then(|header| header.get("name")) {
                config.insert("auth_header_name".to_owned(), header.clone());
            } else if kind.0 == "apiKey" && described["in"] == "header" {
                config.insert("auth_header_name".to_owned(), described["name"].clone());
            }
            for (written, switch, field) in
                [("query", "use_param", "param_name"), ("cookie", "use_cookie", "cookie_name")]
            {
                let described_here = kind.0 == "apiKey" && described["in"] == written;
                if place(written).is_some() || described_here {
                    config.insert(switch.to_owned(), true.into());
                    let named = place(written).and_then(|place| place.get("name")).unwrap_or(&described["name"]);
                    config.insert(field.to_owned(), named.clone());
                }
                if described_here {
                    config.insert("disable_header".to_owned(), true.into());
                }
            }
            match kind {
                ("apiKey", _) => {
                    made.insert("use_standard_auth".to_owned(), true.into());
                    if let Some(part) = scheme.get("signatureValidation").filter(|part| is_enabled(Some(part))) {
                        config.insert("validate_signature".to_owned(), true.into());
                        config.insert("signature".to_owned(), parts::signature(part));
                    }
                    if scheme.get("enableClientCertificate") == Some(&Value::Bool(true)) {
                        config.insert("use_certificate".to_owned(), true.into());
                    }
                    configs.insert("authToken".to_owned(), Value::Object(config));
                }
                ("http", "basic") => {
                    made.insert("use_basic_auth".to_owned(), true.into());
                    configs.insert("basic".to_owned(), Value::Object(config));
                }
                ("http", "bearer") => {
                    made.insert("enable_jwt".to_owned(), true.into());
                    made.extend(parts::jwt(scheme));
                    configs.insert("jwt".to_owned(), Value::Object(config));
                }
                ("oauth2", _) if scheme.get("providers").is_none() => {
                    made.insert("use_oauth2".to_owned(), true.into());
                    made.extend(parts::oauth(scheme, &described));
                    configs.insert("oauth".to_owned(), Value::Object(config));
                }
                (kind, scheme) => refused.push((name.clone(), format!("{kind} {scheme}"))),
            }
        }
        if let Some(custom) = authentication.get("custom").filter(|custom| is_enabled(Some(custom))) {
            made.insert("enable_coprocess_auth".to_owned(), true.into());
            configs.insert("coprocess".to_owned(), Value::Object(parts::places(custom)));
        }
        if let Some(hmac) = authentication.get("hmac").filter(|hmac| is_enabled(Some(hmac))) {
            made.insert("enable_signature_checking".to_owned(), true.into());
            made.insert("hmac_allowed_algorithms".to_owned(), hmac["allowedAlgorithms"].clone());
            made.insert("hmac_allowed_clock_skew".to_owned(), hmac["allowedClockSkew"].clone());
            configs.insert("hmac".to_owned(), Value::Object(parts::places(hmac)));
        }
        if let Some(oidc) = authentication.get("oidc").filter(|oidc| is_enabled(Some(oidc))) {
            made.insert("use_openid".to_owned(), true.into());
            made.insert("openid_options".to_owned(), parts::openid(oidc));
            configs.insert("oidc".to_owned(), Value::Object(parts::places(oidc)));
        }
        if let Some(lifetime) = authentication.get("customKeyLifetime").filter(|part| is_enabled(Some(part))) {
            match lifetime["value"].as_str().and_then(seconds) {
                Some(seconds) => drop(made.insert("session_lifetime".to_owned(), seconds.into())),
                None => {
                    let text = "expected a time such as 10s, 1m or 1h30m";
                    self.fault("server.authentication.customKeyLifetime.value", text);
                }
            }
        }
        if let Some(base) = authentication.get("baseIdentityProvider").filter(|base| !base.is_null()) {
            made.insert("base_identity_provided_by".to_owned(), base.clone());
        }
        for (name, kind) in refused {
            let text = format!("authentication by {} is not supported yet", kind.trim());
            self.fault(&format!("server.authentication.securitySchemes.{name}"), text);
        }
        made.insert("auth_configs".to_owned(), Value::Object(configs));
    }

    /// The only version, with the paths of the operations.
    fn versions(&mut self, tyk: &Value, document: &Value) -> Value {
        let mut paths = Map::new();
        let mut push = |list: &str, entry: Value| {
            let held = paths.entry(list.to_owned()).or_insert_with(|| json!([]));
            if let Value::Array(held) = held {
                held.push(entry);
            }
        };
        let operations = at(tyk, "middleware.operations").and_then(Value::as_object);
        for (id, middleware) in operations.into_iter().flatten() {
            let Some((path, method)) = operation(document, id) else {
                self.doubt(&format!("middleware.operations.{id}"), "no operation of the document has this id", None);
                continue;
            };
            for (name, part) in middleware.as_object().into_iter().flatten().filter(|(_, part)| is_enabled(Some(part)))
            {
                let mut entry = json!({ "path": path, "method": method });
                let mut set = |field: &str, value: Value| entry[field] = value;
                let list = match name.as_str() {
                    "allow" => "white_list",
                    "block" => "black_list",
                    "ignoreAuthentication" => "ignored",
                    "internal" => "internal",
                    "trackEndpoint" => "track_endpoints",
                    "doNotTrackEndpoint" => "do_not_track_endpoints",
                    "transformRequestMethod" => {
                        set("to_method", part["toMethod"].clone());
                        "method_transforms"
                    }
                    "requestSizeLimit" => {
                        set("size_limit", part["value"].clone());
                        "size_limits"
                    }
                    "enforceTimeout" => {
                        set("timeout", part["value"].clone());
                        "hard_timeouts"
                    }
                    "transformRequestHeaders" | "transformResponseHeaders" => {
                        set("add_headers", added(part));
                        set("delete_headers", part.get("remove").cloned().unwrap_or_else(|| json!([])));
                        if name == "transformRequestHeaders" {
                            "transform_headers"
                        } else {
                            "transform_response_headers"
                        }
                    }
                    "mockResponse"
                        if part.get("fromOASExamples").is_some_and(|examples| is_enabled(Some(examples))) =>
                    {
                        let Some((code, kind, body)) = parts::example(document, id, &part["fromOASExamples"]) else {
                            let path = format!("middleware.operations.{id}.mockResponse.fromOASExamples");
                            self.fault(&path, "the document has no such example: write one, or body and code");
                            continue;
                        };
                        set("code", code.into());
                        set("headers", json!({ "Content-Type": kind }));
                        set("body", body.into());
                        "mock_response"
                    }
                    "mockResponse"
                        if part.get("fromOASExamples").is_none_or(|examples| !is_enabled(Some(examples))) =>
                    {
                        set("code", part.get("code").cloned().unwrap_or_else(|| json!(200)));
                        set("body", part.get("body").cloned().unwrap_or_else(|| json!("")));
                        set("headers", named(part.get("headers")));
                        "mock_response"
                    }
                    "urlRewrite" => {
                        set("match_pattern", part["pattern"].clone());
                        set("rewrite_to", part["rewriteTo"].clone());
                        match parts::triggers(part) {
                            Ok(triggers) => set("triggers", triggers),
                            Err(text) => {
                                self.fault(&format!("middleware.operations.{id}.urlRewrite.triggers"), text);
                                continue;
                            }
                        }
                        "url_rewrites"
                    }
                    // Of the document itself.
                    "validateRequest" => continue,
                    "rateLimit" => match part.get("per").and_then(Value::as_str).and_then(seconds) {
                        Some(per) => {
                            set("rate", part["rate"].clone());
                            set("per", per.into());
                            "rate_limit"
                        }
                        None => {
                            let path = format!("middleware.operations.{id}.rateLimit.per");
                            self.fault(&path, "expected a time such as 10s, 1m or 1h30m");
                            continue;
                        }
                    },
                    "transformRequestBody" | "transformResponseBody" => {
                        let body = part["body"].as_str().filter(|body| !body.is_empty());
                        let source = body.or(part["path"].as_str()).unwrap_or_default();
                        let mode = if body.is_some() { "blob" } else { "file" };
                        set(
                            "template_data",
                            json!({ "input_type": part["format"], "template_mode": mode, "template_source": source }),
                        );
                        if name == "transformRequestBody" { "transform" } else { "transform_response" }
                    }
                    "virtualEndpoint" => {
                        let body = part["body"].as_str().filter(|body| !body.is_empty());
                        set("response_function_name", part["functionName"].clone());
                        set("function_source_type", if body.is_some() { "blob" } else { "file" }.into());
                        set("function_source_uri", body.or(part["path"].as_str()).unwrap_or_default().into());
                        set("use_session", part["requireSession"].clone());
                        set("proxy_on_error", part["proxyOnError"].clone());
                        "virtual"
                    }
                    "circuitBreaker" => {
                        set("threshold_percent", part["threshold"].clone());
                        set("samples", part["sampleSize"].clone());
                        set("return_to_service_after", part["coolDownPeriod"].clone());
                        let has_trials = part["halfOpenStateEnabled"] != Value::Bool(false);
                        set("disable_half_open_state", (!has_trials).into());
                        "circuit_breakers"
                    }
                    "cache" => {
                        set("cache_key_regex", part["cacheKeyRegex"].clone());
                        set("cache_response_codes", part["cacheResponseCodes"].clone());
                        set("timeout", part["timeout"].clone());
                        "advance_cache_config"
                    }
                    _ => {
                        self.fault(&format!("middleware.operations.{id}.{name}"), "not supported yet");
                        continue;
                    }
                };
                push(list, entry);
            }
        }
        let global = |name: &str| at(tyk, &format!("middleware.global.{name}")).filter(|part| is_enabled(Some(part)));
        let mut version = json!({ "name": "Default", "use_extended_paths": true, "extended_paths": paths });
        for (name, add, remove) in [
            ("transformRequestHeaders", "global_headers", "global_headers_remove"),
            ("transformResponseHeaders", "global_response_headers", "global_response_headers_remove"),
        ] {
            if let Some(part) = global(name) {
                version[add] = added(part);
                version[remove] = part.get("remove").cloned().unwrap_or_else(|| json!([]));
            }
        }
        if let Some(limit) = global("requestSizeLimit") {
            version["global_size_limit"] = limit["value"].clone();
        }
        if global("ignoreCase").is_some() {
            version["ignore_endpoint_case"] = true.into();
        }
        json!({ "not_versioned": true, "versions": { "Default": version } })
    }
}

/// Parts that Tyk has and that are not supported yet.
const KNOWN: &[&str] = &["certificatePinning", "authentication", "proxy", "enforceTimeout", "protocol", "port"];

fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

/// True for a part that is there and not switched off.
fn is_enabled(part: Option<&Value>) -> bool {
    part.is_some_and(|part| part.get("enabled") == Some(&Value::Bool(true)))
}

/// Headers of a list of names and values.
fn named(list: Option<&Value>) -> Value {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    let named =
        list.filter_map(|header| Some((header.get("name")?.as_str()?.to_owned(), header.get("value")?.clone())));
    Value::Object(named.collect())
}

fn added(part: &Value) -> Value {
    named(part.get("add"))
}

/// Path and method of an operation of the document.
fn operation(document: &Value, id: &str) -> Option<(String, String)> {
    let paths = document.get("paths")?.as_object()?;
    paths.iter().find_map(|(path, item)| {
        let method =
            item.as_object()?.iter().find(|(_, operation)| operation.get("operationId").is_some_and(|own| own == id));
        method.map(|(method, _)| (path.clone(), method.to_ascii_uppercase()))
    })
}

/// Seconds of a time as Go writes it: `10s`, `1h30m`.
pub(crate) fn seconds(text: &str) -> Option<f64> {
    let (mut total, mut rest) = (0.0, text.trim());
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(end);
        let length = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        let (unit, after) = unit.split_at(length);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * factor;
        rest = after;
    }
    (total > 0.0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn times_of_go_are_read() {
        for (text, expected) in
            [("10s", Some(10.0)), ("1h30m", Some(5400.0)), ("500ms", Some(0.5)), ("", None), ("10", None), ("1x", None)]
        {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
