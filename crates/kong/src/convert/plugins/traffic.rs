//! Plugins that limit, answer or keep.

use serde_json::{Value, json};

use super::Outcome;
use crate::convert::values::{flag, list, seconds_of, text, texts};

pub(super) fn rate_limiting(conf: &Value, notes: &mut Vec<String>) -> Outcome {
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
        // The rules count apart, each under a key of its own.
        let rule = |(count, length): &(u64, u64)| json!({ "count": count, "time_window": length, "key": format!("{length} {key}") });
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

pub(super) fn request_size_limiting(conf: &Value) -> Outcome {
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

pub(super) fn cors(conf: &Value, notes: &mut Vec<String>) -> Outcome {
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

pub(super) fn request_termination(conf: &Value) -> Outcome {
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

pub(super) fn redirect(conf: &Value) -> Outcome {
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

pub(super) fn proxy_cache(conf: &Value, notes: &mut Vec<String>) -> Outcome {
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
