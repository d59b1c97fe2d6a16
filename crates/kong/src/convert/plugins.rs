//! Plugins: from Kong's configurations to those of APISIX.

use serde_json::{Map, Value, json};

use super::values::{flag, list, seconds_of, text, texts, without_templates};

/// The plugins that were made of those of one place.
#[derive(Clone, Debug, Default)]
pub(super) struct Made {
    /// Name of Kong's plugin, name of the plugin that it became, and its configuration.
    parts: Vec<(String, &'static str, Value)>,
    pub(super) notes: Vec<String>,
    pub(super) missing: Vec<String>,
}

/// What a conversion of one plugin says.
type Outcome = Result<(&'static str, Value), String>;

impl Made {
    pub(super) fn of(plugins: &Map<String, Value>) -> Self {
        let mut made = Self::default();
        for (name, conf) in plugins {
            let filter = conf.get("_meta").cloned();
            match counterpart(name, conf, &mut made.notes) {
                Ok((to, mut value)) => {
                    if let (Some(filter), Value::Object(value)) = (filter, &mut value) {
                        value.insert("_meta".to_owned(), filter);
                    }
                    made.add(name, to, value);
                }
                Err(reason) if only_reports(name) => made.missing.push(format!("{name}: {reason}: left out")),
                Err(reason) => {
                    made.missing.push(format!("{name}: {reason}: requests are answered with 503"));
                    made.close(&format!("{name}: {reason}"));
                }
            }
        }
        made
    }

    /// Adds a configuration that `from` became. Several of one plugin are laid over each other.
    pub(super) fn add(&mut self, from: &str, to: &'static str, conf: Value) {
        self.parts.push((from.to_owned(), to, conf));
    }

    pub(super) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// Answers all requests with 503, so that none passes without what is missing.
    pub(super) fn close(&mut self, reason: &str) {
        let body = json!({ "message": format!("no counterpart: {reason}") }).to_string().replace('$', "");
        let abort = json!({ "http_status": 503, "body": body });
        self.notes.push(format!("Closed, because there is no counterpart for {reason}"));
        self.add("", "fault-injection", json!({ "abort": abort }));
    }

    /// True if a plugin answers in the place of an upstream.
    pub(super) fn answers(&self) -> bool {
        self.parts.iter().any(|(_, to, _)| matches!(*to, "fault-injection" | "redirect"))
    }

    /// Adds what the service's plugins became where one of these takes the place of it: a plugin of a route lies over that of
    /// its service as a whole. `own` are Kong's plugins of the route.
    pub(super) fn lie_over(&mut self, service: &Self, own: &Map<String, Value>) {
        let is_here = |to: &str| self.parts.iter().any(|(_, own, _)| *own == to);
        let shared = |(from, to, _): &&(String, &'static str, Value)| is_here(to) && !own.contains_key(from);
        let shared: Vec<_> = service.parts.iter().filter(shared).cloned().collect();
        self.parts.splice(0..0, shared);
    }

    /// Refuses what would take the place of a route's own rewriting of paths. True if there is any.
    pub(super) fn refuse_rewrites(&mut self) -> bool {
        let is_rewrite = |(_, to, _): &(String, &'static str, Value)| *to == "proxy-rewrite";
        let has_any = self.parts.iter().any(is_rewrite);
        if has_any {
            self.parts.retain(|part| !is_rewrite(part));
            self.close("request-transformer of a consumer");
        }
        has_any
    }

    /// The configurations by the names of plugins.
    pub(super) fn plugins(&self) -> Map<String, Value> {
        let mut all = Map::new();
        for (_, to, conf) in &self.parts {
            match all.get_mut(*to) {
                // An answer to all requests takes precedence over one to some.
                Some(held) if *to == "fault-injection" && held["abort"]["vars"].is_null() => {}
                Some(held) if *to == "fault-injection" => *held = conf.clone(),
                Some(held) => lay_over(held, conf),
                None => drop(all.insert((*to).to_owned(), conf.clone())),
            }
        }
        all
    }
}

fn lay_over(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (name, value) in over {
                match under.get_mut(name) {
                    Some(held) => lay_over(held, value),
                    None => drop(under.insert(name.clone(), value.clone())),
                }
            }
        }
        (under, over) => *under = over.clone(),
    }
}

/// True for plugins without which a request is served as well.
fn only_reports(name: &str) -> bool {
    const REPORTS: [&str; 14] = [
        "correlation-id",
        "datadog",
        "file-log",
        "http-log",
        "loggly",
        "opentelemetry",
        "prometheus",
        "proxy-cache",
        "statsd",
        "syslog",
        "tcp-log",
        "udp-log",
        "upstream-timeout",
        "zipkin",
    ];
    REPORTS.contains(&name)
}

fn counterpart(name: &str, conf: &Value, notes: &mut Vec<String>) -> Outcome {
    match name {
        "key-auth" => key_auth(conf, notes),
        "basic-auth" => Ok(("basic-auth", with_caller(json!({ "realm": text(conf, "realm", "service") }), conf))),
        "jwt" => jwt(conf, notes),
        "acl" => acl(conf),
        "rate-limiting" => rate_limiting(conf, notes),
        "request-size-limiting" => request_size_limiting(conf),
        "cors" => cors(conf, notes),
        "ip-restriction" => ip_restriction(conf, notes),
        "bot-detection" => bot_detection(conf, notes),
        "request-termination" => request_termination(conf),
        "redirect" => redirect(conf),
        "request-transformer" | "request-transformer-advanced" => request_transformer(conf, notes),
        "response-transformer" => response_transformer(conf, notes),
        "correlation-id" => correlation_id(conf, notes),
        "proxy-cache" => proxy_cache(conf, notes),
        "grpc-web" => Ok(("grpc-web", json!({}))),
        "prometheus" => {
            notes.push("prometheus: metrics have APISIX's names, and those of this gateway.".to_owned());
            Ok(("prometheus", json!({ "prefer_name": true })))
        }
        "file-log" => {
            notes.push("file-log: entries have APISIX's fields.".to_owned());
            Ok(("file-logger", json!({ "path": conf["path"] })))
        }
        "http-log" => {
            notes.push("http-log: entries have APISIX's fields and come in lists, 1000 at most.".to_owned());
            Ok(("http-logger", json!({ "uri": conf["http_endpoint"] })))
        }
        "tcp-log" | "udp-log" => {
            notes.push(format!("{name}: entries have APISIX's fields."));
            let mut made = json!({ "host": conf["host"], "port": conf["port"] });
            if flag(conf, "tls", false) {
                made["tls"] = true.into();
            }
            Ok((if name == "tcp-log" { "tcp-logger" } else { "udp-logger" }, made))
        }
        // Limits of the route, which have been written there.
        "upstream-timeout" => Err("its limits are those of the route".to_owned()),
        _ => Err("the plugin".to_owned()),
    }
}

/// The fields that plugins that authenticate have in common.
fn with_caller(mut made: Value, conf: &Value) -> Value {
    if flag(conf, "hide_credentials", false) {
        made["hide_credentials"] = true.into();
    }
    if let Some(name) = conf["anonymous"].as_str().filter(|name| !name.is_empty()) {
        made["anonymous_consumer"] = name.into();
    }
    made
}

fn key_auth(conf: &Value, notes: &mut Vec<String>) -> Outcome {
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

fn jwt(conf: &Value, notes: &mut Vec<String>) -> Outcome {
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

fn acl(conf: &Value) -> Outcome {
    let mut made = json!({ "rejected_msg": "You cannot consume this service" });
    for (field, to) in [("allow", "allow_labels"), ("deny", "deny_labels")] {
        let groups = list(conf, field);
        if !groups.is_empty() {
            made[to] = json!({ "groups": groups });
        }
    }
    Ok(("acl", made))
}

fn rate_limiting(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    const WINDOWS: [(&str, u64); 6] =
        [("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400), ("month", 2_592_000), ("year", 31_536_000)];
    let limits: Vec<(u64, u64)> =
        WINDOWS.iter().filter_map(|(field, length)| Some((conf[*field].as_f64()?.ceil() as u64, *length))).collect();
    let by = text(conf, "limit_by", "consumer");
    let variable = match by.as_str() {
        "consumer" | "credential" => "consumer_name".to_owned(),
        "ip" => "remote_addr".to_owned(),
        "service" => "service_id".to_owned(),
        "header" => format!("http_{}", text(conf, "header_name", "").to_ascii_lowercase().replace('-', "_")),
        other => return Err(format!("limit_by {other}")),
    };
    let mut made = json!({ "rejected_code": conf["error_code"].as_i64().unwrap_or(429) });
    made["rejected_msg"] = text(conf, "error_message", "API rate limit exceeded").into();
    made["show_limit_quota_header"] = (!flag(conf, "hide_client_headers", false)).into();
    made["allow_degradation"] = flag(conf, "fault_tolerant", true).into();
    if let [(count, length)] = limits[..] {
        made["count"] = count.into();
        made["time_window"] = length.into();
        made["key"] = variable.into();
    } else {
        // A rule is skipped for requests that have none of its variables: with the address every request is counted.
        let key = if by == "ip" { "$remote_addr".to_owned() } else { format!("${variable} $remote_addr") };
        if by != "ip" {
            notes.push(format!("rate-limiting: with several windows requests are counted by {by} and address."));
        }
        let rule = |(count, length): &(u64, u64)| json!({ "count": count, "time_window": length, "key": key });
        made["rules"] = limits.iter().map(rule).collect();
    }
    match text(conf, "policy", "local").as_str() {
        "local" => {}
        "redis" => redis(conf, &mut made)?,
        other => return Err(format!("policy {other}")),
    }
    Ok(("limit-count", made))
}

fn redis(conf: &Value, made: &mut Value) -> Result<(), String> {
    let nested = &conf["redis"];
    let given = |field: &str| {
        let value = [&nested[field], &conf[format!("redis_{field}").as_str()]];
        value.into_iter().find(|value| !value.is_null()).cloned()
    };
    made["policy"] = "redis".into();
    made["redis_host"] = given("host").ok_or("a Redis without a host")?;
    for (field, to) in [
        ("port", "redis_port"),
        ("username", "redis_username"),
        ("password", "redis_password"),
        ("database", "redis_database"),
        ("timeout", "redis_timeout"),
        ("ssl", "redis_ssl"),
        ("ssl_verify", "redis_ssl_verify"),
    ] {
        if let Some(value) = given(field) {
            made[to] = value;
        }
    }
    Ok(())
}

fn request_size_limiting(conf: &Value) -> Outcome {
    if flag(conf, "require_content_length", false) {
        return Err("require_content_length".to_owned());
    }
    let unit = match text(conf, "size_unit", "megabytes").as_str() {
        "bytes" => 1,
        "kilobytes" => 1024,
        _ => 1024 * 1024,
    };
    let size = conf["allowed_payload_size"].as_f64().unwrap_or(128.0) as u64;
    // 0 stands for no limit there.
    Ok(("client-control", json!({ "max_body_size": (size * unit).max(1) })))
}

fn cors(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    if flag(conf, "preflight_continue", false) {
        notes.push("cors: preflight requests are answered here, whatever preflight_continue says.".to_owned());
    }
    let credentials = flag(conf, "credentials", false);
    let origins = texts(conf, "origins");
    let mut made = json!({ "allow_credential": credentials });
    let is_any = origins.is_empty() || origins.iter().any(|origin| origin == "*");
    let is_plain = |origin: &String| origin.bytes().all(|b| b.is_ascii_alphanumeric() || b".:/-".contains(&b));
    if is_any {
        made["allow_origins"] = if credentials { "**" } else { "*" }.into();
    } else if origins.iter().all(|origin| is_plain(origin) && origin.contains("://")) {
        made["allow_origins"] = origins.join(",").into();
    } else {
        let regex = |origin: &String| match (is_plain(origin), origin.contains(':')) {
            (true, _) => format!("^{}$", regex::escape(origin)),
            (false, true) => format!("^(?:{origin})$"),
            (false, false) => format!("^[a-z]+://(?:{origin})(?::[0-9]+)?$"),
        };
        made["allow_origins_by_regex"] = origins.iter().map(regex).collect();
    }
    let methods = texts(conf, "methods");
    let all = "GET,HEAD,PUT,PATCH,POST,DELETE,OPTIONS,TRACE,CONNECT".to_owned();
    made["allow_methods"] = if methods.is_empty() { all } else { methods.join(",") }.into();
    let headers = texts(conf, "headers");
    made["allow_headers"] = if headers.is_empty() { "**".to_owned() } else { headers.join(",") }.into();
    let exposed = texts(conf, "exposed_headers");
    if !exposed.is_empty() {
        made["expose_headers"] = exposed.join(",").into();
    }
    if let Some(seconds) = conf["max_age"].as_f64() {
        made["max_age"] = (seconds as i64).into();
    }
    Ok(("cors", made))
}

fn ip_restriction(conf: &Value, notes: &mut Vec<String>) -> Outcome {
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

fn bot_detection(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    let deny = list(conf, "deny");
    if deny.is_empty() || !list(conf, "allow").is_empty() {
        return Err("the built-in list of bots, and exceptions from it".to_owned());
    }
    notes.push("bot-detection: Kong's built-in list is not there; what deny names is refused.".to_owned());
    Ok(("ua-restriction", json!({ "denylist": deny, "bypass_missing": true, "message": "Forbidden" })))
}

fn request_termination(conf: &Value) -> Outcome {
    if flag(conf, "echo", false) {
        return Err("echo".to_owned());
    }
    let status = conf["status_code"].as_i64().unwrap_or(503);
    let mut abort = json!({ "http_status": status });
    let literal = |text: &str| text.replace('$', "\\$");
    if let Some(body) = conf["body"].as_str() {
        abort["body"] = literal(body).into();
        if let Some(kind) = conf["content_type"].as_str() {
            abort["headers"] = json!({ "Content-Type": kind });
        }
    } else {
        let message = conf["message"].as_str().map(str::to_owned).or_else(|| default_message(status));
        let Some(message) = message else {
            return Ok(("fault-injection", json!({ "abort": abort })));
        };
        abort["body"] = literal(&json!({ "message": message }).to_string()).into();
        abort["headers"] = json!({ "Content-Type": "application/json; charset=utf-8" });
    }
    if let Some(trigger) = conf["trigger"].as_str() {
        let field = trigger.to_ascii_lowercase().replace('-', "_");
        let is_set = |variable: String| json!([[variable, "!", "==", null]]);
        abort["vars"] = json!([is_set(format!("http_{field}")), is_set(format!("arg_{trigger}"))]);
    }
    Ok(("fault-injection", json!({ "abort": abort })))
}

fn default_message(status: i64) -> Option<String> {
    let text = match status {
        401 => "Unauthorized",
        404 => "Not found",
        405 => "Method not allowed",
        500 => "An unexpected error occurred",
        502 => "Bad Gateway",
        503 => "Service unavailable",
        _ => return None,
    };
    Some(text.to_owned())
}

fn redirect(conf: &Value) -> Outcome {
    let location = text(conf, "location", "");
    let status = conf["status_code"].as_i64().unwrap_or(301);
    let mut uri = location.replace('$', "\\$");
    if flag(conf, "keep_incoming_path", false) {
        let Some((scheme, rest)) = location.split_once("://") else {
            return Err("keep_incoming_path with a location that is no URL".to_owned());
        };
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        uri = format!("{scheme}://{host}$request_uri");
    }
    Ok(("redirect", json!({ "uri": uri, "ret_code": status })))
}

fn request_transformer(conf: &Value, notes: &mut Vec<String>) -> Outcome {
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

fn response_transformer(conf: &Value, notes: &mut Vec<String>) -> Outcome {
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

fn correlation_id(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    if text(conf, "generator", "uuid#counter") != "uuid" {
        notes.push("correlation-id: ids are UUIDs.".to_owned());
    }
    let name = text(conf, "header_name", "Kong-Request-ID");
    Ok(("request-id", json!({ "header_name": name, "include_in_response": flag(conf, "echo_downstream", false) })))
}

fn proxy_cache(conf: &Value, notes: &mut Vec<String>) -> Outcome {
    if text(conf, "strategy", "memory") != "memory" {
        return Err("a strategy other than memory".to_owned());
    }
    let mut made = json!({ "cache_strategy": "memory", "cache_zone": "memory_cache" });
    made["cache_ttl"] = seconds_of(conf, "cache_ttl", 300).into();
    made["cache_control"] = flag(conf, "cache_control", false).into();
    for (field, to) in [("response_code", "cache_http_status"), ("request_method", "cache_method")] {
        let given = list(conf, field);
        if !given.is_empty() {
            made[to] = given.into();
        }
    }
    notes.push("proxy-cache: answers of every media type are kept; fields tell APISIX's names.".to_owned());
    Ok(("proxy-cache", made))
}

/// A credential in the form of APISIX.
pub(super) fn credential(credential: &Value, is_base64: bool) -> Result<Value, String> {
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
