//! `storage` of `tyk.conf`: the Redis of sessions.

use serde_json::{Map, Value, json};

/// Milliseconds to connect, and again for a reply, where `storage.timeout` says nothing.
const TIMEOUT_MS: u64 = 5000;
/// Seconds for which a session is used before Redis is asked again, where `local_session_cache` says nothing.
const CACHE_S: u64 = 10;

/// The fields of a Redis as the plugins have them; `None`: sessions are in the data directory.
///
/// # Errors
/// The field that is wrong, and what was expected.
pub(super) fn read(conf: &Value) -> Result<Option<Value>, String> {
    let Some(storage) = conf.get("storage").and_then(Value::as_object) else { return Ok(None) };
    let text = |name: &str| storage.get(name).and_then(Value::as_str).unwrap_or_default();
    let flag = |name: &str| storage.get(name) == Some(&Value::Bool(true));
    let addresses = addresses(storage)?;
    match text("type") {
        "embedded" => return Ok(None),
        "" if addresses.is_empty() => return Ok(None),
        "" | "redis" => {}
        other => return Err(format!("storage.type: expected one of: redis, embedded; found '{other}'")),
    }
    let first = addresses.first().cloned().unwrap_or_else(|| ("localhost".to_owned(), 6379));
    let timeout = storage.get("timeout").and_then(Value::as_u64).filter(|seconds| *seconds > 0);
    let timeout = timeout.map_or(TIMEOUT_MS, |seconds| seconds.saturating_mul(1000).min(60_000));
    let mut made = json!({ "redis_timeout": timeout, "redis_connect_timeout": timeout, "redis_read_timeout": timeout });
    let mut set = |name: &str, value: Value| made[name] = value;
    let named = |(host, port): &(String, u16)| json!(format!("{host}:{port}"));
    let verifies = !flag("ssl_insecure_skip_verify");
    if flag("enable_cluster") {
        set("policy", "redis-cluster".into());
        set("redis_cluster_name", "tyk".into());
        let nodes = if addresses.is_empty() { vec![named(&first)] } else { addresses.iter().map(named).collect() };
        set("redis_cluster_nodes", Value::Array(nodes));
        set("redis_cluster_ssl", flag("use_ssl").into());
        set("redis_cluster_ssl_verify", verifies.into());
    } else if !text("master_name").is_empty() {
        if flag("use_ssl") {
            return Err("storage.use_ssl: TLS is not supported together with master_name".to_owned());
        }
        set("policy", "redis-sentinel".into());
        set("redis_master_name", text("master_name").into());
        let sentinel = |(host, port): &(String, u16)| json!({ "host": host, "port": port });
        set("redis_sentinels", addresses.iter().map(sentinel).collect());
        if !text("sentinel_password").is_empty() {
            set("sentinel_password", text("sentinel_password").into());
        }
    } else {
        if addresses.len() > 1 {
            let text = "several servers are a cluster (enable_cluster) or sentinels (master_name)";
            return Err(format!("storage.addrs: {text}"));
        }
        set("policy", "redis".into());
        set("redis_host", first.0.into());
        set("redis_port", first.1.into());
        set("redis_ssl", flag("use_ssl").into());
        set("redis_ssl_verify", verifies.into());
    }
    for (written, field) in [("username", "redis_username"), ("password", "redis_password")] {
        if !text(written).is_empty() {
            set(field, text(written).into());
        }
    }
    if let Some(database) = storage.get("database").and_then(Value::as_u64).filter(|database| *database > 0) {
        set("redis_database", database.into());
    }
    let cache = conf.get("local_session_cache");
    let cached = |name: &str| cache.and_then(|cache| cache.get(name));
    let seconds = match cached("disable_cached_session_state") == Some(&Value::Bool(true)) {
        true => 0,
        false => cached("cached_session_timeout").and_then(Value::as_u64).filter(|n| *n > 0).unwrap_or(CACHE_S),
    };
    set("session_cache", seconds.min(3600).into());
    Ok(Some(made))
}

/// The servers: `addrs`, else `hosts`, else `host` and `port`.
fn addresses(storage: &Map<String, Value>) -> Result<Vec<(String, u16)>, String> {
    let number = |value: &Value| match value {
        Value::String(text) => text.parse::<u16>().ok(),
        value => value.as_u64().and_then(|port| u16::try_from(port).ok()),
    };
    let mut found = Vec::new();
    for address in storage.get("addrs").and_then(Value::as_array).into_iter().flatten() {
        let parts = address.as_str().and_then(|text| text.rsplit_once(':'));
        let parsed =
            parts.and_then(|(host, port)| Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?)));
        found.push(parsed.ok_or_else(|| format!("storage.addrs: expected HOST:PORT, found {address}"))?);
    }
    if found.is_empty() {
        for (host, port) in storage.get("hosts").and_then(Value::as_object).into_iter().flatten() {
            let port = number(port).ok_or_else(|| format!("storage.hosts.{host}: expected a port, found {port}"))?;
            found.push((host.clone(), port));
        }
    }
    let host = storage.get("host").and_then(Value::as_str).unwrap_or_default();
    let port = storage.get("port").filter(|port| !port.is_null() && **port != json!(0));
    if found.is_empty() && (!host.is_empty() || port.is_some()) {
        let port = match port {
            Some(port) => number(port).ok_or_else(|| format!("storage.port: expected a port, found {port}"))?,
            None => 6379,
        };
        found.push((if host.is_empty() { "localhost" } else { host }.to_owned(), port));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::read;

    #[test]
    fn each_form_of_a_redis_is_read() {
        for (storage, expected) in [
            (json!({}), None),
            (json!({"type": "embedded", "host": "redis"}), None),
            (json!({"type": "redis"}), Some(("redis_host", json!("localhost")))),
            (json!({"type": "redis", "host": "redis", "port": 6380}), Some(("redis_port", json!(6380)))),
            (json!({"hosts": {"redis": "6381"}}), Some(("redis_port", json!(6381)))),
            (json!({"addrs": ["a:1"], "database": 3}), Some(("redis_database", json!(3)))),
            (json!({"host": "redis", "timeout": 2}), Some(("redis_timeout", json!(2000)))),
            (json!({"host": "redis", "use_ssl": true}), Some(("redis_ssl_verify", json!(true)))),
            (
                json!({"addrs": ["a:1", "b:2"], "enable_cluster": true}),
                Some(("redis_cluster_nodes", json!(["a:1", "b:2"]))),
            ),
            (
                json!({"addrs": ["[::1]:26379"], "master_name": "m"}),
                Some(("redis_sentinels", json!([{"host": "::1", "port": 26379}]))),
            ),
            (json!({"host": "redis"}), Some(("session_cache", json!(10)))),
        ] {
            let made = read(&json!({ "storage": storage })).expect("a storage");
            let found =
                expected.as_ref().map(|(field, _)| made.as_ref().map_or(Value::Null, |made| made[*field].clone()));
            assert_eq!((made.is_some(), found), (expected.is_some(), expected.map(|(_, value)| value)), "{storage}");
        }
        let cache = json!({"storage": {"host": "r"}, "local_session_cache": {"disable_cached_session_state": true}});
        assert_eq!(read(&cache).expect("a storage").expect("a Redis")["session_cache"], 0);
        for (storage, fault) in [
            (json!({"type": "mongo"}), "storage.type: expected one of"),
            (json!({"addrs": ["a"]}), "storage.addrs: expected HOST:PORT"),
            (json!({"addrs": ["a:1", "b:1"]}), "storage.addrs: several servers"),
            (json!({"host": "a", "port": "x"}), "storage.port: expected a port"),
            (json!({"addrs": ["a:1"], "master_name": "m", "use_ssl": true}), "storage.use_ssl"),
        ] {
            let error = read(&json!({ "storage": storage })).expect_err("a fault");
            assert!(error.starts_with(fault), "{error}");
        }
    }
}
