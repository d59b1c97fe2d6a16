//! proxy-cache with answers in a Redis, which gateways share.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, Redis, Response, wait_until};

fn start(node: &str, redis: &Redis, more: &Value) -> Gateway {
    let mut conf = json!({ "cache_strategy": "redis", "cache_zone": "shared", "redis": { "host": "127.0.0.1", "port": redis.port } });
    for (name, value) in more.as_object().expect("fields") {
        conf[name] = value.clone();
    }
    Gateway::start(
        json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { (node): 1 } }, "plugins": { "proxy-cache": conf } }] }),
    )
}

fn ask(gateway: &Gateway, method: &str, path: &str, fields: &str) -> (Response, String) {
    let mut client = gateway.client();
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n{fields}\r\n"));
    let response = client.response_to(method);
    let state = response.field("apisix-cache-status").unwrap_or("none").to_owned();
    (response, state)
}

/// Waits until an answer is in the Redis: nobody waits for that.
fn await_state(gateway: &Gateway, path: &str, fields: &str, state: &str) -> Response {
    wait_until(state, LIMIT, || {
        let (response, found) = ask(gateway, "GET", path, fields);
        (found == state).then_some(response)
    })
}

/// An origin that counts, with tags and variants.
fn counting() -> Origin {
    let count = AtomicUsize::new(0);
    Origin::answering(move |request| {
        let number = count.fetch_add(1, SeqCst);
        let vary = if request.target.starts_with("/vary") { "Vary: X-A, X-B\r\n" } else { "" };
        let tag = request.target.trim_start_matches('/').to_owned();
        let body = format!("{number} {}", request.field("x-a").unwrap_or("none"));
        Answer::keep(format!(
            "HTTP/1.1 200 S\r\nContent-Length: {}\r\nETag: \"e\"\r\nCache-Tag: all, {tag}\r\n{vary}\r\n{body}",
            body.len()
        ))
    })
}

#[test]
fn gateways_share_answers() {
    let (origin, redis) = (counting(), Redis::start());
    let gateways = [0, 1].map(|_| start(&origin.node(), &redis, &json!({ "cache_tags": "Cache-Tag" })));
    let [one, other] = &gateways;
    let (first, state) = ask(one, "GET", "/a", "");
    assert_eq!(state, "MISS");
    let is_there = || redis.keys().iter().any(|key| key.contains(":k:"));
    wait_until("the answer in Redis", LIMIT, || is_there().then_some(()));
    let (found, state) = ask(other, "GET", "/a", "");
    assert_eq!(state, "HIT");
    assert_eq!((found.text(), found.status), (first.text(), 200));
    assert!(found.field("age").is_some());
    assert_eq!(ask(other, "GET", "/a", "If-None-Match: \"e\"\r\n").0.status, 304);
    let (part, _) = ask(other, "GET", "/a", "Range: bytes=0-0\r\n");
    assert_eq!(
        (part.status, part.field("content-range").map(str::to_owned)),
        (206, Some(format!("bytes 0-0/{}", first.text().len())))
    );
    assert_eq!(ask(other, "HEAD", "/a", "").1, "HIT");
    // Variants are apart.
    for value in ["1", "2"] {
        let fields = format!("X-A: {value}\r\n");
        assert_eq!(ask(one, "GET", "/vary", &fields).1, "MISS", "{value}");
        await_state(other, "/vary", &fields, "HIT");
    }
    for value in ["1", "2"] {
        let (found, state) = ask(one, "GET", "/vary", &format!("X-A: {value}\r\n"));
        assert_eq!((state.as_str(), found.text().ends_with(value)), ("HIT", true));
    }
    assert_eq!(ask(one, "GET", "/vary", "X-A: 1\r\nX-B: 2\r\n").1, "MISS");
    // A purge by one gateway is one for the other.
    assert_eq!(ask(one, "PURGE", "/a", "").0.status, 200);
    assert_eq!(ask(one, "PURGE", "/a", "").0.status, 404);
    assert_eq!(ask(other, "GET", "/a", "").1, "MISS");
    await_state(one, "/a", "", "HIT");
    assert_eq!(ask(other, "PURGE", "/", "Cache-Tag: a vary\r\n").0.status, 200);
    assert_eq!(ask(other, "PURGE", "/", "Cache-Tag: a vary\r\n").0.status, 404);
    assert_eq!(["/a", "/vary"].map(|path| ask(one, "GET", path, "X-A: 1\r\n").1), ["MISS", "MISS"]);
    await_state(one, "/a", "", "HIT");
    // So does a request that changes something; nobody waits for the Redis.
    assert_eq!(ask(one, "DELETE", "/a", "").1, "MISS");
    wait_until("MISS", LIMIT, || (ask(other, "GET", "/a", "").1 == "MISS").then_some(()));
}

#[test]
fn answers_in_a_redis_end_with_their_time() {
    let (origin, redis) = (counting(), Redis::start());
    let gateway = start(&origin.node(), &redis, &json!({ "cache_ttl": 1, "cache_lock": true }));
    assert_eq!(ask(&gateway, "GET", "/a", "").1, "MISS");
    await_state(&gateway, "/a", "", "HIT");
    // The key is not there for longer than the answer.
    for key in redis.keys() {
        let ttl = redis.cli(&["TTL", &key]);
        assert!(["-2", "0", "1"].contains(&ttl.as_str()), "{ttl}");
    }
    wait_until("another answer", LIMIT, || (ask(&gateway, "GET", "/a", "").1 != "HIT").then_some(()));
    // One that may be given while a newer one is fetched is there for longer.
    let gateway = start(&origin.node(), &redis, &json!({ "cache_ttl": 1, "stale_while_revalidate": 600 }));
    assert_eq!(ask(&gateway, "GET", "/b", "").1, "MISS");
    let old = await_state(&gateway, "/b", "", "STALE").text();
    wait_until("a newer answer", LIMIT, || (ask(&gateway, "GET", "/b", "").0.text() != old).then_some(()));
}

#[test]
fn a_redis_that_is_away_has_nothing() {
    let (origin, redis) = (counting(), Redis::start());
    let gateway = start(&origin.node(), &redis, &json!({}));
    assert_eq!(ask(&gateway, "GET", "/a", "").1, "MISS");
    await_state(&gateway, "/a", "", "HIT");
    drop(redis);
    for _ in 0..2 {
        let (response, state) = ask(&gateway, "GET", "/a", "");
        assert_eq!((response.status, state.as_str()), (200, "MISS"));
    }
    let (response, _) = ask(&gateway, "PURGE", "/a", "");
    assert_eq!(
        (response.status, response.field("x-weir-error")),
        (503, Some("gateway; proxy-cache: Redis cannot be asked"))
    );
    gateway.logged("Redis cannot be asked");
}
