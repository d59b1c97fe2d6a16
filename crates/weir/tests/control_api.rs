//! The control API of a running gateway.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::harness::{EtcdCluster, Gateway, LIMIT, Origin, RawClient, Response, Start, wait_until};
use crate::listings::{self, contains};

fn request(gateway: &Gateway, line: &str, fields: &str) -> Response {
    let addr = gateway.control.expect("a control API");
    RawClient::connect(addr).request(format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"))
}

fn get(gateway: &Gateway, path: &str) -> (u16, Value) {
    let answer = request(gateway, &format!("GET /v1/{path}"), "");
    (answer.status, answer.json())
}

#[test]
fn what_is_in_force_is_told() {
    let config = r#"
routes:
- {id: r1, uri: /a, upstream: {nodes: {"127.0.0.1:1": 1}}, plugins: {limit-count: {count: 2, time_window: 60, key: $remote_addr, key_type: var_combination}}}
- {uri: /b, service_id: s1}
services:
- {id: s1, upstream_id: u1, plugins: {key-auth: {header: $env://KEY_FIELD}}}
upstreams:
- {id: u1, nodes: {localhost: 1}, name: named}
ssls: []
plugin_metadata:
- {id: cors, allow_origins: {a: "http://a.test"}}
"#;
    let gateway = Start::new(config).control().variable("KEY_FIELD", "X-Key").start();
    let upstream = json!({
        "id": "u1", "name": "named", "type": "roundrobin", "hash_on": "vars", "scheme": "http", "pass_host": "pass",
        "nodes": [{ "host": "localhost", "port": 80, "weight": 1, "priority": 0 }],
        "resource_key": "/upstreams/u1", "resource_id": "u1", "resource_version": 1,
    });
    let upstream =
        json!({ "key": "/upstreams/u1", "createdIndex": 1, "modifiedIndex": 1, "has_domain": true, "value": upstream });
    let limit = json!({
        "count": 2, "time_window": 60, "policy": "local", "window_type": "fixed", "allow_degradation": false,
        "show_limit_quota_header": true, "sync_interval": -1, "rejected_code": 503, "_meta": {},
    });
    let route = json!({
        "key": "/routes/r1", "has_domain": false,
        "value": { "uri": "/a", "status": 1, "priority": 0, "plugins": { "limit-count": limit } },
    });
    let metadata = json!({ "id": "cors", "allow_origins": { "a": "http://a.test" } });
    let cases = [
        ("routes", 200, json!([route, { "key": "/routes/arr_2", "value": { "service_id": "s1" } }])),
        ("route/r1", 200, route),
        ("route/arr_2", 200, json!({ "value": { "id": "arr_2", "uri": "/b" } })),
        ("route/x", 404, json!({ "error_msg": "route[x] not found" })),
        ("services", 200, json!([{ "key": "/services/s1" }])),
        ("service/s1", 200, json!({ "value": { "plugins": { "key-auth": { "header": "$env://KEY_FIELD" } } } })),
        ("service/x", 404, json!({ "error_msg": "service[x] not found" })),
        ("upstreams", 200, json!([upstream])),
        ("upstream/u1", 200, upstream),
        ("upstream/x", 404, json!({ "error_msg": "upstream[x] not found" })),
        ("plugin_metadatas", 200, json!([metadata])),
        ("plugin_metadata/cors", 200, metadata),
        ("plugin_metadata/x", 404, json!({ "error_msg": "plugin metadata[x] not found" })),
        (
            "discovery/dns/dump",
            404,
            json!({ "error_msg": "no servers are set: discovery.dns in the settings names them" }),
        ),
        ("healthcheck", 200, json!({})),
        ("healthcheck/upstreams/u1", 404, json!({ "error_msg": "upstreams[u1] not found" })),
        ("healthcheck/upstreams", 404, json!({ "error_msg": "missing src id for src type upstreams" })),
        ("healthcheck/stream_routes/1", 404, json!({ "error_msg": "stream_routes[1] not found" })),
        ("healthcheck/foos/1", 400, json!({ "error_msg": "invalid src type foos" })),
    ];
    for (path, status, expected) in cases {
        let (found, answer) = get(&gateway, path);
        assert!(found == status && contains(&answer, &expected), "{path}: {found} {answer}");
    }
    // Fields that are neither written nor filled in by APISIX's schemas are not shown.
    let written = get(&gateway, "upstream/u1").1["value"].clone();
    for name in ["timeout", "keepalive_pool", "retry_timeout", "retries", "checks"] {
        assert_eq!(written.get(name), None, "{name}");
    }
    assert_eq!(get(&gateway, "route/r1").1["value"]["upstream"].get("timeout"), None);
    for (line, status, body) in [
        ("POST /v1/gc", 200, ""),
        ("GET /v1/gc", 404, "404 Not Found\n"),
        ("PUT /v1/plugins/reload", 200, "done"),
        ("POST /v1/routes", 405, "405 Method Not Allowed\n"),
        ("GET /v1/nothing", 404, "404 Not Found\n"),
        ("GET /", 404, "404 Not Found\n"),
    ] {
        let answer = request(&gateway, line, "");
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{line}");
    }

    // The API shows the live configuration, not the refused content of the file.
    gateway.reload("routes: [{id: r2, uri: 1}]");
    assert_eq!(get(&gateway, "route/r1").0, 200);
    gateway.reload("routes: [{id: r2, uri: /c, plugins: {}}]");
    wait_until("the new file to be told", LIMIT, || (get(&gateway, "route/r2").0 == 200).then_some(()));
    assert_eq!(get(&gateway, "routes").1.as_array().map(Vec::len), Some(1));
    assert_eq!(get(&gateway, "plugin_metadatas").1, json!({}), "as Lua writes an empty table");
}

#[test]
fn a_gateway_tells_which_it_is() {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
    let gateway = Start::stored().control().start();
    let (status, info) = get(&gateway, "server_info");
    let version = env!("CARGO_PKG_VERSION");
    assert!(status == 200 && contains(&info, &json!({ "version": version, "etcd_version": "unknown" })), "{info}");
    assert_eq!(info["id"].as_str().map(str::len), Some(36), "{info}");
    assert!(info["hostname"].as_str().is_some_and(|name| !name.is_empty()), "{info}");
    assert!(info["boot_time"].as_u64().is_some_and(|time| time >= began), "{info}");
    assert_eq!(get(&gateway, "server_info").1, info);
    let cluster = EtcdCluster::start(1);
    let hosts = cluster.urls().join(", ");
    let settings = format!("deployment: {{config_provider: etcd, etcd: {{host: [{hosts}]}}}}");
    let gateway = Start::stored().settings(settings).control().start();
    wait_until("the version of etcd", LIMIT, || {
        let (_, info) = get(&gateway, "server_info");
        info["etcd_version"].as_str()?.starts_with("3.").then_some(())
    });
}

#[test]
fn schemas_are_told() {
    let gateway = Start::new("routes: []").control().start();
    let (status, schema) = get(&gateway, "schema");
    assert_eq!(status, 200);
    for name in
        ["route", "service", "upstream", "consumer", "consumer_group", "ssl", "global_rule", "plugin_config", "proto"]
    {
        assert_eq!(schema["main"][name]["type"], "object", "{name}");
    }
    let on_streams: Vec<&String> = schema["stream_plugins"].as_object().expect("plugins").keys().collect();
    assert_eq!(on_streams, ["ip-restriction", "limit-conn", "mqtt-proxy", "traffic-split", "prometheus"]);
    assert!(schema["plugins"].get("mqtt-proxy").is_none() && schema["plugins"].get("limit-conn").is_some());
    for definition in weir_plugins::definitions() {
        let subsystem = if definition.is_for_requests() { "plugins" } else { "stream_plugins" };
        let plugin = &schema[subsystem][definition.name()];
        assert!(plugin["schema"].is_object() && plugin["version"].is_number(), "{}: {plugin}", definition.name());
        assert_eq!(plugin["priority"], definition.priority(), "{}", definition.name());
        let authenticates = definition.is_auth() || definition.name() == "multi-auth";
        assert_eq!(plugin.get("type").is_some(), authenticates, "{}", definition.name());
        assert_eq!(plugin.get("consumer_schema").is_some(), definition.is_auth(), "{}", definition.name());
    }
    assert!(schema["plugins"]["cors"]["metadata_schema"]["properties"]["allow_origins"].is_object());
}

#[test]
fn health_is_told_to_programs_and_to_people() {
    let origin = Origin::hello();
    let node = origin.node();
    let checks = r#"{"active": {"http_path": "/", "healthy": {"interval": 1, "successes": 1}}}"#;
    let gateway = Start::new(format!(
        r#"{{"routes": [{{"id": "r", "uri": "/*", "upstream": {{"nodes": {{"{node}": 1}}, "checks": {checks}}}}}]}}"#
    ))
    .control()
    .start();
    let healthy = wait_until("the node to be looked at", LIMIT, || {
        let (status, answer) = get(&gateway, "healthcheck/routes/r");
        (status == 200 && answer["nodes"][0]["status"] == "healthy").then_some(answer)
    });
    assert_eq!((&healthy["name"], &healthy["type"]), (&json!("/routes/r"), &json!("http")));
    assert_eq!(get(&gateway, "healthcheck").1.as_array().map(Vec::len), Some(1));
    for path in ["/v1/healthcheck", "/v1/healthcheck/routes/r"] {
        let page = request(&gateway, &format!("GET {path}"), "Accept: text/html,*/*\r\n");
        assert_eq!((page.status, page.field("content-type")), (200, Some("text/html; charset=utf-8")));
        let text = page.text();
        assert!(text.contains(&node) && text.contains("<td>healthy"), "{text}");
    }
}

#[test]
fn a_store_is_told_of_and_secrets_are_not() {
    let gateway = Start::stored().control().start();
    gateway.must("PUT", "upstreams/u", r#"{"nodes":{"127.0.0.1:1":1}}"#);
    gateway.must("PUT", "upstreams/u", r#"{"nodes":{"a.test:1":1}}"#);
    let (_, upstream) = get(&gateway, "upstream/u");
    assert!(contains(&upstream, &json!({ "createdIndex": 1, "modifiedIndex": 2, "has_domain": true })), "{upstream}");
    let route = r#"{"uri":"/a","upstream_id":"u","plugins":{"csrf":{"key":"the-secret-key"}}}"#;
    gateway.must("PUT", "routes/r", route);
    let (_, route) = get(&gateway, "route/r");
    assert_eq!(route["value"]["plugins"]["csrf"]["key"], "***", "{route}");
    assert!(!get(&gateway, "routes").1.to_string().contains("the-secret-key"));
}

#[test]
fn the_listings_of_the_document_do_what_they_say() {
    let config = "routes: [{id: 1, uri: /orders/*, upstream: {nodes: {\"localhost:8080\": 1}}, \
                  plugins: {limit-count: {count: 100, time_window: 60}}}]";
    let gateway = Start::new(config).control().start();
    let addr = format!("http://{}", gateway.control.expect("a control API"));
    assert_eq!(listings::run("docs/control-api.md", &[("control", &addr)]), 2);
}
