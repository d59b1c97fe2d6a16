//! Kong's `proxy-cache`: entries that gateways share in Redis, and the Admin API's calls for them.

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, Redis, Start, get, wait_until};
use crate::kong_admin;

/// An origin whose answers count its requests.
fn origin() -> Origin {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    Origin::answering(move |_| {
        let number = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let body = format!("answer {number}");
        Answer::keep(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Odd: \u{fc}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    })
}

fn document(origin: &Origin, conf: &Value) -> Value {
    json!({
        "_format_version": "3.0",
        "services": [{ "name": "s", "url": format!("http://{}", origin.node()), "routes": [{ "name": "r", "paths": ["/"] }],
            "plugins": [{ "name": "proxy-cache", "config": conf }] }],
    })
}

/// Body of the response, and what it says of the cache.
fn ask(gateway: &Gateway, path: &str) -> (String, String) {
    let response = gateway.client().request(get(path));
    (response.text(), response.field("x-cache-status").unwrap_or_default().to_owned())
}

fn seen(body: &str, status: &str) -> (String, String) {
    (body.to_owned(), status.to_owned())
}

#[test]
fn gateways_share_responses_in_redis() {
    let (origin, redis) = (origin(), Redis::start());
    let conf = json!({ "strategy": "redis", "cache_ttl": 300, "redis": { "host": "127.0.0.1", "port": redis.port } });
    let document = document(&origin, &conf);
    let gateways = [Start::new(&document).start(), Start::new(&document).start()];
    assert_eq!(ask(&gateways[0], "/a"), seen("answer 0", "Miss"));
    // The response is stored beside the request.
    wait_until("the response in Redis", LIMIT, || (redis.cli(&["DBSIZE"]) == "1").then_some(()));
    for gateway in &gateways {
        assert_eq!(ask(gateway, "/a"), seen("answer 0", "Hit"));
    }
    let response = gateways[1].client().request(get("/a"));
    assert_eq!(
        (response.field("content-type"), response.field("age").is_some()),
        (Some("text/plain; charset=UTF-8"), true)
    );
    let key = redis.cli(&["KEYS", "*"]);
    assert!(key.starts_with("kong_proxy_cache:"), "{key}");
    let ttl: u64 = redis.cli(&["TTL", &key]).parse().expect("a number");
    assert!((290..=300).contains(&ttl), "{ttl}");
    // A text of somebody else is no response.
    redis.cli(&["SET", &key, "nonsense"]);
    assert_eq!(ask(&gateways[0], "/a"), seen("answer 1", "Miss"));
    wait_until("the response in Redis", LIMIT, || (redis.cli(&["STRLEN", &key]) != "8").then_some(()));
    assert_eq!(ask(&gateways[1], "/a"), seen("answer 1", "Hit"));
}

#[test]
fn without_redis_requests_go_to_the_upstream() {
    let (origin, redis) = (origin(), Redis::start());
    let conf = json!({ "strategy": "redis", "redis": { "host": "127.0.0.1", "port": redis.port } });
    let gateway = Start::new(document(&origin, &conf)).start();
    assert_eq!(ask(&gateway, "/a"), seen("answer 0", "Miss"));
    drop(redis);
    assert_eq!(ask(&gateway, "/a"), seen("answer 1", "Bypass"));
}

#[test]
fn the_admin_api_shows_and_removes_entries() {
    let redis = Redis::start();
    let remote = json!({ "strategy": "redis", "redis": { "host": "127.0.0.1", "port": redis.port } });
    for conf in [json!({ "strategy": "memory" }), remote] {
        let origin = origin();
        let gateway = kong_admin::start();
        let made = |path: &str, body: Value| {
            let (status, answer) = kong_admin::ask(&gateway, "POST", path, body);
            assert_eq!(status, 201, "{answer}");
            answer
        };
        made("/services", json!({ "name": "s", "url": format!("http://{}", origin.node()) }));
        made("/services/s/routes", json!({ "paths": ["/"] }));
        let plugin = made("/plugins", json!({ "name": "proxy-cache", "config": conf }));
        let plugin = plugin["id"].as_str().expect("an id");
        let hit = |path: &str| wait_until("a hit", LIMIT, || (ask(&gateway, path).1 == "Hit").then_some(()));
        let first = gateway.client().request(get("/a"));
        assert_eq!(first.field("x-cache-status"), Some("Miss"));
        let key = first.field("x-cache-key").expect("a key").to_owned();
        hit("/a");
        let (status, entry) = kong_admin::ask(&gateway, "GET", &format!("/proxy-cache/{key}"), "");
        assert_eq!(status, 200);
        assert_eq!(
            (&entry["status"], &entry["body_len"], &entry["ttl"]),
            (&json!(200), &json!(8), &json!(300)),
            "{entry}"
        );
        let place = format!("/proxy-cache/{plugin}/caches/{key}");
        let status = |method: &str, path: &str| kong_admin::send(&gateway, method, path, "").status;
        assert_eq!(status("GET", &place), 200);
        assert_eq!(status("DELETE", &place), 204);
        assert_eq!(status("DELETE", &place), 404);
        assert_eq!(ask(&gateway, "/a").1, "Miss");
        hit("/a");
        assert_eq!(ask(&gateway, "/b").1, "Miss");
        hit("/b");
        assert_eq!(status("DELETE", "/proxy-cache"), 204);
        assert_eq!((ask(&gateway, "/a").1, ask(&gateway, "/b").1), seen("Miss", "Miss"));
        for (method, path, expected) in [
            ("GET", "/proxy-cache", 405),
            ("GET", "/proxy-cache/nonsense", 404),
            ("GET", &format!("/proxy-cache/{}", "0".repeat(64)), 404),
            ("GET", "/proxy-cache/other/caches/x", 404),
        ] {
            assert_eq!(status(method, path), expected, "{method} {path}");
        }
    }
}
