//! Merging of plugins from global rules, services, plugin configs, routes, consumer groups and consumers.

use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Response};

/// A plugin that writes into the answer where it stood.
fn mark(place: &str) -> Value {
    json!({ "response-rewrite": { "headers": { "set": { "X-Place": place } } } })
}

/// Another one, for the same purpose.
fn other_mark(place: &str) -> Value {
    json!({ "mocking": { "response_example": "mocked", "response_headers": { "X-Other": place } } })
}

fn both(first: Value, second: Value) -> Value {
    let (Value::Object(mut first), Value::Object(second)) = (first, second) else { panic!("two objects") };
    first.extend(second);
    Value::Object(first)
}

fn get(gateway: &Gateway, path: &str, key: &str) -> Response {
    gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\napikey: {key}\r\n\r\n"))
}

#[test]
fn the_nearest_place_decides_and_replaces_the_whole_configuration() {
    let key_auth = json!({ "key-auth": {} });
    let with_key = |key: &str, plugins: Value| both(json!({ "key-auth": { "key": key } }), plugins);
    let gateway = Gateway::start(json!({
        "services": [{ "id": "s", "plugins": both(mark("service"), other_mark("service")) }],
        "plugin_configs": [{ "id": "pc", "plugins": mark("plugin config") }],
        "consumer_groups": [{ "id": "g", "plugins": mark("group") }],
        "routes": [
            { "id": 1, "uri": "/service", "service_id": "s" },
            { "id": 2, "uri": "/config", "service_id": "s", "plugin_config_id": "pc" },
            { "id": 3, "uri": "/route", "service_id": "s", "plugin_config_id": "pc", "plugins": mark("route") },
            { "id": 4, "uri": "/keyed", "service_id": "s", "plugins": both(key_auth, mark("route")) },
        ],
        "consumers": [
            { "username": "plain", "plugins": with_key("plain", json!({})) },
            { "username": "member", "group_id": "g", "plugins": with_key("member", json!({})) },
            { "username": "own", "group_id": "g", "plugins": with_key("own", mark("consumer")) },
        ],
    }));
    for (path, key, place) in [
        ("/service", "", "service"),
        ("/config", "", "plugin config"),
        ("/route", "", "route"),
        ("/keyed", "plain", "route"),
        ("/keyed", "member", "group"),
        ("/keyed", "own", "consumer"),
    ] {
        let response = get(&gateway, path, key);
        assert_eq!(response.status, 200, "{path} {key}: {response:?}");
        assert_eq!(response.fields.all("x-place"), [place], "{path} {key}");
        assert_eq!(response.fields.all("x-other"), ["service"], "{path} {key}: what is not replaced stays");
    }
    assert_eq!(get(&gateway, "/keyed", "nobody").status, 401);
}

#[test]
fn a_plugin_that_only_a_consumer_has_runs_for_this_consumer() {
    let origin = Origin::hello();
    let rewrite = json!({ "proxy-rewrite": { "headers": { "set": { "X-Who": "$consumer_name" } } } });
    let limit =
        json!({ "limit-count": { "count": 2, "time_window": 600, "rejected_code": 429, "key": "consumer_name" } });
    let gateway = Gateway::start(json!({
        "routes": [{ "id": 1, "uri": "/*", "plugins": { "key-auth": {} }, "upstream": { "nodes": { (origin.node()): 1 } } }],
        "consumers": [
            { "username": "jack", "plugins": both(json!({ "key-auth": { "key": "jacks" } }), both(rewrite, limit)) },
            { "username": "jill", "plugins": { "key-auth": { "key": "jills" } } },
        ],
    }));
    for status in [200, 200, 429] {
        assert_eq!(get(&gateway, "/", "jacks").status, status);
    }
    assert_eq!(origin.last().field("x-who"), Some("jack"));
    for _ in 0..4 {
        assert_eq!(get(&gateway, "/", "jills").status, 200);
    }
    assert_eq!(origin.last().field("x-who"), None);
}

#[test]
fn a_plugin_that_a_consumer_or_its_group_switches_off_does_not_run_for_this_consumer() {
    let limit =
        |meta: Value| json!({ "limit-count": { "count": 1, "time_window": 600, "rejected_code": 429, "_meta": meta } });
    let off = || limit(json!({ "disable": true }));
    let with_key = |key: &str, plugins: Value| both(json!({ "key-auth": { "key": key } }), plugins);
    let mocking = json!({ "mocking": { "response_example": "x" }, "key-auth": {} });
    let gateway = Gateway::start(json!({
        // Mocking answers before a limit of the usual priority.
        "routes": [{ "id": 1, "uri": "/*", "plugins": both(mocking, limit(json!({ "priority": 20_000 }))) }],
        "consumer_groups": [{ "id": "g", "plugins": off() }],
        "consumers": [
            { "username": "vip", "plugins": with_key("vip", off()) },
            { "username": "member", "group_id": "g", "plugins": with_key("member", json!({})) },
            { "username": "plain", "plugins": with_key("plain", json!({})) },
        ],
    }));
    for (key, statuses) in [("vip", [200, 200]), ("member", [200, 200]), ("plain", [200, 429])] {
        assert_eq!(statuses.map(|_| get(&gateway, "/", key).status), statuses, "{key}");
    }
}

#[test]
fn global_rules_run_beside_everything_and_for_unknown_paths() {
    let limit = |count: usize| json!({ "count": count, "time_window": 600, "rejected_code": 429, "key_type": "constant", "key": "all" });
    let gateway = Gateway::start(json!({
        "global_rules": [
            { "id": "mark", "plugins": { "response-rewrite": { "headers": { "set": { "X-Global": "yes" } } } } },
            { "id": "limit", "plugins": { "limit-count": limit(5) } },
        ],
        "routes": [{ "id": 1, "uri": "/known", "plugins": both(mark("route"), json!({ "limit-count": limit(100), "mocking": { "response_example": "x" } })) }],
    }));
    for (path, status) in [("/known", 200), ("/unknown", 404), ("/known", 200), ("/unknown", 404), ("/known", 200)] {
        let response = gateway.get(path);
        assert_eq!(response.status, status, "{path}");
        assert_eq!(response.field("x-global"), Some("yes"), "{path}");
        assert_eq!(response.field("x-place"), (path == "/known").then_some("route"), "{path}");
    }
    // The sixth is refused by the global rule, wherever it goes.
    assert_eq!((gateway.get("/known").status, gateway.get("/unknown").status), (429, 429));
}

#[test]
fn meta_steers_a_plugin() {
    let origin = Origin::hello();
    let upstream = json!({ "nodes": { (origin.node()): 1 } });
    let limit = |meta: Value| json!({ "limit-count": { "count": 1000, "time_window": 600, "_meta": meta }, "mocking": { "response_example": "m" } });
    let keyed = |meta: Value| json!({ "key-auth": { "_meta": meta } });
    let route = |uri: &str, plugins: Value| json!({ "id": uri.trim_start_matches('/'), "uri": uri, "upstream": upstream, "plugins": plugins });
    let gateway = Gateway::start(json!({ "routes": [
        route("/disabled", keyed(json!({ "disable": true }))),
        route("/enabled", keyed(json!({ "disable": false }))),
        route("/usual", limit(json!({}))),
        route("/before", limit(json!({ "priority": 20_000 }))),
        route("/filtered", keyed(json!({ "filter": [["arg_open", "~=", "1"]] }))),
        route("/changed", json!({
            "cors": { "_meta": { "filter": [["http_x_a", "==", "1"]] } },
            "proxy-rewrite": { "headers": { "remove": ["X-A"] } },
        })),
        route("/object", keyed(json!({ "error_response": { "code": 7 } }))),
        route("/text", keyed(json!({ "error_response": "go away" }))),
    ]}));
    assert_eq!(gateway.get("/disabled").status, 200);
    assert_eq!(gateway.get("/enabled").status, 401);
    // mocking has the higher priority and answers first, unless the limit is moved before it.
    assert_eq!(gateway.get("/usual").field("x-ratelimit-limit"), None);
    assert_eq!(gateway.get("/before").field("x-ratelimit-limit"), Some("1000"));
    assert_eq!((gateway.get("/filtered?open=1").status, gateway.get("/filtered?open=2").status), (200, 401));
    // A filter is asked when its plugin first is to run; what plugins change after that makes no difference.
    for (field, allowed) in [("1", Some("*")), ("2", None)] {
        let response = gateway.client().request(format!("GET /changed HTTP/1.1\r\nHost: a\r\nX-A: {field}\r\n\r\n"));
        assert_eq!(response.field("access-control-allow-origin"), allowed, "{field}");
        assert_eq!(origin.last().field("x-a"), None);
    }
    for (path, body) in [("/object", "{\"code\":7}\n"), ("/text", "go away")] {
        let response = gateway.get(path);
        assert_eq!((response.status, response.text().as_ref()), (401, body), "{path}");
        assert_eq!(response.field("content-type"), Some("text/plain; charset=utf-8"), "{path}");
    }
}
