//! Changes of a large configuration in a store: what they do not concern goes on as it was.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::harness::{ADMIN_KEY, Answer, Gateway, Origin, RawClient, Start};

const ROUTES: usize = 20_000;

/// A gateway on a store with this many routes and a few other resources.
fn start(origin: &Origin) -> Gateway {
    let gateway = Start::stored().settings("limits: {admin_body: 64MiB}").workers(2).start();
    let mut changes = vec![
        json!({ "key": "upstreams/u", "value": { "nodes": { origin.node(): 1 } } }),
        json!({ "key": "services/s", "value": { "upstream_id": "u" } }),
        json!({ "key": "consumers/jack", "value": { "plugins": { "key-auth": { "key": "jacks" } } } }),
    ];
    changes.extend((0..ROUTES).map(|n| {
        let plugins = match n {
            1 => json!({ "limit-count": { "count": 3, "time_window": 3600, "policy": "local" } }),
            2 => json!({ "key-auth": {} }),
            _ => json!({ "response-rewrite": { "headers": { "set": { "X-Route": n.to_string() } } } }),
        };
        json!({ "key": format!("routes/r{n}"), "value": { "uri": format!("/r{n}"), "service_id": "s", "plugins": plugins } })
    }));
    // In pieces that a slow machine checks within the time that a test waits for an answer.
    for changes in changes.chunks(2500) {
        let body = json!({ "changes": changes }).to_string();
        let length = body.len();
        let answer = RawClient::connect(gateway.admin.expect("an Admin API")).request(format!(
            "POST /weir/v1/transactions HTTP/1.1\r\nHost: a.test\r\nX-API-KEY: {ADMIN_KEY}\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    gateway
}

#[test]
fn one_route_among_many_changes_and_the_rest_goes_on() {
    let origin = Origin::answering(|_| Answer::ok("origin"));
    let gateway = start(&origin);
    let status = |path: &str, fields: &str| {
        gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")).status
    };
    let route = |n: usize| gateway.get(&format!("/r{n}")).field("X-Route").map(str::to_owned);
    let put = |path: &str, value: serde_json::Value| gateway.must("PUT", path, &value.to_string());
    let changed = |n: usize, to: &str| {
        json!({ "uri": format!("/r{n}"), "service_id": "s",
                "plugins": { "response-rewrite": { "headers": { "set": { "X-Route": to } } } } })
    };

    // One of three is used up before the changes.
    assert_eq!(status("/r1", ""), 200);
    assert_eq!(status("/r2", "apikey: jacks\r\n"), 200);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let untouched = scope.spawn(|| {
            let mut client = gateway.client();
            let mut asked = 0;
            while !stop.load(Ordering::Relaxed) {
                let answer = client.get("/r19000");
                assert_eq!((answer.status, answer.field("X-Route")), (200, Some("19000")));
                asked += 1;
            }
            asked
        });
        for round in 0..20 {
            let text = format!("round {round}");
            put("routes/r100", changed(100, &text));
            assert_eq!(route(100), Some(text), "live when it is answered for");
        }
        // Every kind of resource that others refer to.
        put("routes/new", json!({ "uri": "/new", "service_id": "s" }));
        assert_eq!(status("/new", ""), 200);
        put("consumers/jill", json!({ "username": "jill", "plugins": { "key-auth": { "key": "jills" } } }));
        assert_eq!((status("/r2", "apikey: jills\r\n"), status("/r2", "apikey: jacks\r\n")), (200, 200));
        put("consumers/jack", json!({ "username": "jack", "plugins": { "key-auth": { "key": "another" } } }));
        assert_eq!((status("/r2", "apikey: another\r\n"), status("/r2", "apikey: jacks\r\n")), (200, 401));
        put("global_rules/1", json!({ "plugins": { "response-rewrite": { "headers": { "set": { "X-All": "1" } } } } }));
        assert_eq!(gateway.get("/new").field("X-All"), Some("1"));
        gateway.must("DELETE", "consumers/jill", "");
        assert_eq!(status("/r2", "apikey: jills\r\n"), 401);
        gateway.must("DELETE", "routes/new", "");
        assert_eq!(status("/new", ""), 404);
        // A refused change has no effect.
        let (refused, _) = gateway.ask("PUT", "routes/r100", r#"{"uri":"/r100","upstream_id":"nowhere"}"#);
        assert_eq!(refused, 400);
        assert_eq!(route(100), Some("round 19".to_owned()));
        stop.store(true, Ordering::Relaxed);
        assert!(untouched.join().expect("requests go on") > 0);
    });
    assert_eq!(route(50), Some("50".to_owned()));

    // The counter has outlived all of this.
    assert_eq!([status("/r1", ""), status("/r1", ""), status("/r1", "")], [200, 200, 503]);
    // An upstream changes under everything that refers to it.
    let other = Origin::answering(|_| Answer::ok("other"));
    put("upstreams/u", json!({ "nodes": { other.node(): 1 } }));
    assert_eq!((gateway.get("/r50").text(), gateway.get("/r100").text()), ("other".into(), "other".into()));
}
