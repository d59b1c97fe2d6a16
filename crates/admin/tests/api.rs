//! The forms of the Admin API over a store in memory: envelopes, statuses, refusals, bounds. What the gateway makes of
//! changes is for the black-box tests.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests wait for nobody's requests")]

mod configs;
mod extensions;
mod memory;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use memory::{Server, error};
use serde_json::{Value, json};
use weir_admin::{Hosts, Keys, Options, Refused, Role, key_digest};
use weir_config::resource::AddrRange;
use weir_store::StoreError;

fn options() -> Options {
    let mut keys = Keys::default();
    keys.add("admin", Role::Admin, key_digest("admin-key"));
    keys.add("viewer", Role::Viewer, key_digest("viewer-key"));
    Options {
        keys,
        allow: Vec::new(),
        cors: false,
        hosts: Hosts::default(),
        ui: None,
        login: None,
        dashboard: true,
        tls: false,
        body_size: 64 * 1024,
        memory: 8 * 1024 * 1024,
        lists: 8,
        answer_size: 1024 * 1024,
    }
}

/// True if an answer has every field that is expected, with its value.
fn contains(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            expected.iter().all(|(name, value)| found.get(name).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len() && found.iter().zip(expected).all(|(found, value)| contains(found, value))
        }
        _ => found == expected,
    }
}

#[test]
fn resources_are_created_read_changed_and_deleted() {
    let server = Server::start(options());
    let not_found = json!({"message": "Key not found"});
    let steps: &[(&str, &str, &str, u16, Value)] = &[
        ("GET", "routes", "", 200, json!({"total": 0, "list": []})),
        (
            "PUT",
            "routes/1",
            r#"{"uri":"/a","name":"one","labels":{"env":"x"},"service_id":7}"#,
            201,
            json!({"key": "/apisix/routes/1", "value": {"id": "1", "uri": "/a"}}),
        ),
        (
            "PUT",
            "routes/1",
            r#"{"uri":"/b","name":"one","labels":{"env":"x"},"service_id":7}"#,
            200,
            json!({"value": {"uri": "/b"}}),
        ),
        (
            "GET",
            "routes/1",
            "",
            200,
            json!({"key": "/apisix/routes/1", "createdIndex": 1, "modifiedIndex": 2, "value": {"uri": "/b"}}),
        ),
        (
            "POST",
            "routes",
            r#"{"uris":["/x","/y/2"],"name":"two"}"#,
            201,
            json!({"key": "/apisix/routes/00000000000000000002", "value": {"id": "00000000000000000002"}}),
        ),
        ("POST", "routes/9", r#"{"uri":"/x"}"#, 400, json!({"error_msg": "wrong route id, do not need it"})),
        ("POST", "routes", r#"{"uri":"/x","id":"9"}"#, 400, json!({"error_msg": "wrong route id, do not need it"})),
        ("GET", "routes", "", 200, json!({"total": 2, "list": [{"createdIndex": 3}, {"key": "/apisix/routes/1"}]})),
        ("GET", "routes?name=tw", "", 200, json!({"total": 1, "list": [{"value": {"name": "two"}}]})),
        ("GET", "routes?name=%5Eo", "", 200, json!({"total": 1, "list": [{"value": {"name": "one"}}]})),
        ("GET", "routes?label=env", "", 200, json!({"total": 1, "list": [{"value": {"name": "one"}}]})),
        ("GET", "routes?label=other", "", 200, json!({"total": 0, "list": []})),
        ("GET", "routes?uri=y", "", 200, json!({"total": 1, "list": [{"value": {"name": "two"}}]})),
        (
            "GET",
            "routes?filter=service_id%3D7%26name%3Done",
            "",
            200,
            json!({"total": 1, "list": [{"value": {"name": "one"}}]}),
        ),
        ("GET", "routes?filter=service_id%3D8", "", 200, json!({"total": 0, "list": []})),
        (
            "GET",
            "routes?name=%28",
            "",
            400,
            json!({"error_msg": "invalid argument name: should be a regular expression"}),
        ),
        ("GET", "routes?page=2&page_size=10", "", 200, json!({"total": 2, "list": []})),
        (
            "GET",
            "routes?page=0&page_size=10",
            "",
            200,
            json!({"total": 2, "list": [{"createdIndex": 1}, {"createdIndex": 3}]}),
        ),
        ("GET", "routes?page=9", "", 200, json!({"total": 2, "list": [{}, {}]})),
        ("GET", "routes?page=9&page_size=x", "", 200, json!({"total": 2, "list": [{}, {}]})),
        ("GET", "routes?page_size=1", "", 200, json!({"total": 2, "list": [{}, {}]})),
        (
            "PATCH",
            "routes/1",
            r#"{"desc":"d","labels":{"env":null,"b":"c"}}"#,
            200,
            json!({"value": {"desc": "d", "uri": "/b", "labels": {"b": "c"}}}),
        ),
        ("PATCH", "routes/1/desc", r#""e""#, 200, json!({"value": {"desc": "e"}})),
        ("PATCH", "routes/1/desc/x", "1", 400, json!({"error_msg": "invalid sub-path: /desc"})),
        ("PATCH", "routes/1", r#"{"id":"2"}"#, 400, json!({"error_msg": "wrong route id"})),
        ("PATCH", "routes/1", "", 400, json!({"error_msg": "missing new configuration"})),
        ("PATCH", "routes", "{}", 400, json!({"error_msg": "missing route id"})),
        ("PATCH", "routes/8", "{}", 404, not_found.clone()),
        (
            "PATCH",
            "routes/1",
            r#"{"update_time":5,"create_time":4}"#,
            200,
            json!({"value": {"update_time": 5, "create_time": 4}}),
        ),
        ("PUT", "routes/1", r#"{"uri":"/c"}"#, 200, json!({"value": {"create_time": 4}})),
        (
            "PUT",
            "routes/1",
            r#"{"uri":"/c","create_time":1}"#,
            400,
            json!({"error_msg": "the property is forbidden:  create_time"}),
        ),
        (
            "PUT",
            "routes/1",
            r#"{"uri":"/c","upstream":{"nodes":{},"update_time":1}}"#,
            400,
            json!({"error_msg": "the property is forbidden:  upstream.update_time"}),
        ),
        (
            "POST",
            "routes",
            r#"{"uri":"/c","plugins":{"create_time":{}}}"#,
            400,
            json!({"error_msg": "the property is forbidden:  plugins.create_time"}),
        ),
        ("PUT", "routes/1", r#"{"uri":"/c","id":"2"}"#, 400, json!({"error_msg": "wrong route id"})),
        ("PUT", "routes", r#"{"uri":"/c","id":5}"#, 201, json!({"key": "/apisix/routes/5", "value": {"id": 5}})),
        ("PUT", "routes", r#"{"uri":"/c"}"#, 400, json!({"error_msg": "missing route id"})),
        (
            "PUT",
            "routes/a%2Fb",
            r#"{"uri":"/c"}"#,
            400,
            json!({"error_msg": "invalid configuration: property \"id\" validation failed: object matches none of the required"}),
        ),
        ("PUT", "routes/1", "", 400, json!({"error_msg": "missing configurations"})),
        (
            "PUT",
            "routes/1",
            "{bad",
            400,
            json!({"error_msg": "invalid request body: Expected object key string but found invalid token at character 2", "req_body": "{bad"}),
        ),
        (
            "PUT",
            "routes/1",
            "[]",
            400,
            json!({"error_msg": "invalid configuration: wrong type: expected object, got table"}),
        ),
        (
            "PUT",
            "routes/1?ttl=x",
            r#"{"uri":"/c"}"#,
            400,
            json!({"error_msg": "invalid argument ttl: should be a number"}),
        ),
        ("PUT", "routes/1?ttl=0", r#"{"uri":"/c"}"#, 200, json!({"value": {"uri": "/c"}})),
        ("PUT", "routes/1?ttl=60", r#"{"uri":"/c"}"#, 200, json!({"value": {"uri": "/c"}})),
        ("GET", "routes/none", "", 404, not_found.clone()),
        ("DELETE", "routes/none", "", 404, not_found.clone()),
        ("DELETE", "routes/5", "", 200, json!({"deleted": "1", "key": "/apisix/routes/5"})),
        ("GET", "routes/5", "", 404, not_found.clone()),
        ("GET", "foos", "", 404, json!({"error_msg": "Unsupported resource type: foos"})),
        // In use.
        ("PUT", "upstreams/u", r#"{"nodes":{}}"#, 201, json!({})),
        ("PUT", "services/s", r#"{"upstream_id":"u"}"#, 201, json!({})),
        ("PUT", "routes/r", r#"{"uri":"/","service_id":"s","plugin_config_id":"p"}"#, 201, json!({})),
        ("PUT", "plugin_configs/p", r#"{"plugins":{}}"#, 201, json!({})),
        (
            "DELETE",
            "upstreams/u",
            "",
            400,
            json!({"error_msg": "can not delete this upstream, service [s] is still using it now"}),
        ),
        (
            "DELETE",
            "services/s",
            "",
            400,
            json!({"error_msg": "can not delete this service directly, route [r] is still using it now"}),
        ),
        (
            "DELETE",
            "plugin_configs/p",
            "",
            400,
            json!({"error_msg": "can not delete this plugin config, route [r] is still using it now"}),
        ),
        ("DELETE", "services/s?force=true", "", 200, json!({"key": "/apisix/services/s"})),
        ("DELETE", "upstreams/u", "", 200, json!({})),
        // Consumers and what is theirs.
        (
            "PUT",
            "consumers",
            r#"{"username":"jack"}"#,
            201,
            json!({"key": "/apisix/consumers/jack", "value": {"username": "jack"}}),
        ),
        ("PUT", "consumers/jack", r#"{"username":"jack","group_id":"g"}"#, 200, json!({})),
        (
            "PUT",
            "consumers",
            r#"{"username":"j k"}"#,
            400,
            json!({"error_msg": "invalid configuration: property \"username\" validation failed: failed to match pattern \"^[a-zA-Z0-9_\\\\-]+$\" with \"j k\""}),
        ),
        ("PUT", "consumers/jill", r#"{"username":"jack"}"#, 400, json!({"error_msg": "wrong username"})),
        (
            "PUT",
            "consumers",
            "{}",
            400,
            json!({"error_msg": "invalid configuration: property \"username\" is required"}),
        ),
        ("POST", "consumers", "{}", 405, json!({"error_msg": "not supported `POST` method for consumer"})),
        ("PATCH", "consumers/jack", "{}", 405, json!({"error_msg": "not supported `PATCH` method for consumer"})),
        ("PUT", "consumer_groups/g", r#"{"plugins":{}}"#, 201, json!({})),
        (
            "DELETE",
            "consumer_groups/g",
            "",
            400,
            json!({"error_msg": "can not delete this consumer group, consumer [jack] is still using it now"}),
        ),
        (
            "PUT",
            "consumers/jack/credentials/c",
            r#"{"plugins":{"key-auth":{"key":"k"}}}"#,
            201,
            json!({"key": "/apisix/consumers/jack/credentials/c", "value": {"id": "c"}}),
        ),
        (
            "PUT",
            "consumers/jack/credentials/c",
            r#"{"id":"jack/credentials/c","plugins":{"key-auth":{"key":"k"}}}"#,
            200,
            json!({"value": {"id": "c"}}),
        ),
        (
            "PUT",
            "consumers/jack/credentials/c",
            r#"{"id":"jill/credentials/c","plugins":{"key-auth":{"key":"k"}}}"#,
            400,
            json!({"error_msg": "wrong credential id"}),
        ),
        ("PUT", "consumers/nobody/credentials/c", r#"{"plugins":{}}"#, 404, json!({"error_msg": "consumer not found"})),
        ("GET", "consumers/jack/credentials", "", 200, json!({"total": 1})),
        ("GET", "consumers/jack/credentials?name=x", "", 200, json!({"total": 0, "list": []})),
        ("GET", "consumers/nobody/credentials", "", 404, not_found.clone()),
        ("GET", "consumers/jack/credentials/c", "", 200, json!({"value": {"plugins": {"key-auth": {"key": "k"}}}})),
        ("GET", "consumers", "", 200, json!({"total": 1, "list": [{"key": "/apisix/consumers/jack"}]})),
        ("DELETE", "consumers/jack", "", 200, json!({"key": "/apisix/consumers/jack"})),
        ("GET", "consumers/jack/credentials/c", "", 404, not_found.clone()),
        ("GET", "consumers/jack/credentials", "", 404, not_found),
        // The rest of the kinds.
        (
            "PUT",
            "ssls/1",
            r#"{"cert":"C","key":"K","certs":["D"],"keys":["L"],"sni":"a"}"#,
            201,
            json!({"value": {"cert": "C", "certs": ["D"]}}),
        ),
        (
            "PUT",
            "plugin_metadata/prometheus",
            r#"{"a":1}"#,
            201,
            json!({"key": "/apisix/plugin_metadata/prometheus", "value": {"a": 1, "id": "prometheus"}}),
        ),
        ("GET", "plugin_metadata/prometheus", "", 200, json!({"value": {"a": 1, "id": "prometheus"}})),
        (
            "PUT",
            "plugin_metadata/prometheus",
            r#"{"id":"cors"}"#,
            400,
            json!({"error_msg": "wrong plugin_metadata id"}),
        ),
        (
            "PATCH",
            "plugin_metadata/prometheus",
            "{}",
            405,
            json!({"error_msg": "not supported `PATCH` method for plugin_metadata"}),
        ),
        ("PUT", "global_rules/1", r#"{"plugins":{}}"#, 201, json!({"value": {"id": "1"}})),
        ("POST", "global_rules", "{}", 405, json!({"error_msg": "not supported `POST` method for global rule"})),
        ("PATCH", "global_rules/1", r#"{"plugins":{"cors":{}}}"#, 200, json!({"value": {"plugins": {"cors": {}}}})),
        (
            "PUT",
            "secrets/vault/1",
            r#"{"uri":"u"}"#,
            201,
            json!({"key": "/apisix/secrets/vault/1", "value": {"id": "vault/1"}}),
        ),
        ("PUT", "secrets/vault/1", r#"{"id":"vault/1","uri":"u"}"#, 200, json!({"value": {"id": "vault/1"}})),
        ("PUT", "secrets/vault/1", r#"{"id":"1"}"#, 400, json!({"error_msg": "wrong secret id"})),
        ("PUT", "secrets/vault/1", r#"{"id":"aws/1"}"#, 400, json!({"error_msg": "wrong secret id"})),
        ("PUT", "secrets/vault", r#"{"id":"vault/1","uri":"u"}"#, 200, json!({"key": "/apisix/secrets/vault/1"})),
        ("PUT", "secrets/vault", "{}", 400, json!({"error_msg": "missing secret id"})),
        ("GET", "secrets", "", 200, json!({"total": 1})),
        (
            "GET",
            "secrets/vault/1",
            "",
            200,
            json!({"key": "/apisix/secrets/vault/1", "value": {"id": "vault/1", "uri": "u"}}),
        ),
        ("PATCH", "secrets/vault/1", r#"{"uri":"v"}"#, 200, json!({"value": {"id": "vault/1", "uri": "v"}})),
        ("PATCH", "secrets/vault/1/uri", r#""w""#, 200, json!({"value": {"id": "vault/1", "uri": "w"}})),
        ("PATCH", "secrets/vault/1", r#"{"id":"1"}"#, 400, json!({"error_msg": "wrong secret id"})),
        ("PATCH", "secrets/vault", "{}", 400, json!({"error_msg": "no secret id"})),
        ("PATCH", "stream_routes/1", "{}", 405, json!({"error_msg": "not supported `PATCH` method for stream route"})),
        ("POST", "secrets/vault", "{}", 405, json!({"error_msg": "not supported `POST` method for secret"})),
    ];
    for (method, path, body, status, expected) in steps {
        let (found_status, found) = server.ask(method, &format!("/apisix/admin/{path}"), body);
        assert_eq!(found_status, *status, "{method} {path} {body}: {found}");
        assert!(contains(&found, expected), "{method} {path} {body}\nis answered {found}\nnot         {expected}");
    }
    for size in ["9", "501", "0", "-1"] {
        let path = format!("/apisix/admin/routes?page=1&page_size={size}");
        let (status, head, body) = server.send("GET", &path, "X-API-KEY: admin-key\r\n", "");
        assert_eq!((status, body.as_str()), (400, "page_size must be between 10 and 500"), "no JSON: {head}");
    }
    for path in ["ssls", "ssls/1"] {
        let (_, found) = server.ask("GET", &format!("/apisix/admin/{path}"), "");
        let text = found.to_string();
        assert!(!text.contains("\"K\"") && !text.contains("\"L\"") && text.contains("\"C\""), "{text}");
    }
}

/// Resources that another gateway, or an earlier version, has stored: a secret with its manager, or without.
#[test]
fn resources_of_others_are_changed() {
    let server = Server::start(options());
    for (id, uri) in [("vault/1", "a"), ("1", "b")] {
        server.store("secrets/vault/1", &json!({ "id": id, "uri": uri }));
        let (_, shown) = server.ask("GET", "/apisix/admin/secrets/vault/1", "");
        assert_eq!(shown["value"]["id"], id);
        let (status, patched) = server.ask("PATCH", "/apisix/admin/secrets/vault/1", r#"{"token":"t"}"#);
        assert_eq!(status, 200, "{patched}");
        assert!(contains(&patched, &json!({ "value": { "id": "vault/1", "uri": uri, "token": "t" } })), "{patched}");
    }
    server.store("plugin_metadata/echo", &json!({ "a": 1 }));
    let (_, shown) = server.ask("GET", "/apisix/admin/plugin_metadata/echo", "");
    assert_eq!(shown["value"], json!({ "a": 1, "id": "echo" }));
}

#[test]
fn who_may_ask() {
    let server = Server::start(options());
    let missing = r#"{"error_msg":"failed to check token","description":"missing apikey"}"#;
    let wrong = r#"{"error_msg":"failed to check token","description":"wrong apikey"}"#;
    let viewer = r#"{"error_msg":"failed to check token","description":"invalid method for role viewer"}"#;
    let cases = [
        ("GET", "/apisix/admin/routes", "", 401, missing),
        ("GET", "/apisix/admin/foos", "", 401, missing),
        ("GET", "/apisix/admin/routes", "X-API-KEY: nope\r\n", 401, wrong),
        ("GET", "/apisix/admin/routes", "X-API-KEY: admin-key\r\n", 200, r#"{"list":[],"total":0}"#),
        ("GET", "/apisix/admin/routes", "x-api-key: viewer-key\r\n", 200, ""),
        ("PUT", "/apisix/admin/routes/1", "X-API-KEY: viewer-key\r\n", 401, viewer),
        ("GET", "/apisix/admin/routes?api_key=admin-key", "", 200, ""),
        ("GET", "/apisix/admin/routes?api_key=nope", "", 401, wrong),
        ("GET", "/apisix/admin/routes?api_key=nope", "X-API-KEY: admin-key\r\n", 401, wrong),
        ("GET", "/apisix/admin/routes?api_key=admin-key", "X-API-KEY: nope\r\n", 200, ""),
        ("GET", "/apisix/admin/routes", "Cookie: a=b; x_api_key=viewer-key\r\n", 200, ""),
        ("HEAD", "/apisix/admin", "", 200, ""),
        ("GET", "/other", "", 404, ""),
        ("OPTIONS", "/apisix/admin/routes", "", 200, ""),
    ];
    for (method, path, fields, status, body) in cases {
        let (found, head, text) = server.send(method, path, fields, "");
        assert_eq!(found, status, "{method} {path} {fields}: {text}");
        assert!(text.starts_with(body), "{method} {path} {fields}: {text}");
        assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
        assert!(head.contains("\r\nserver: apisix/3."), "{head}");
        assert!(!head.contains("access-control-"), "{head}");
        assert_eq!(head.contains("\r\nx-api-version: v3"), status == 200, "{method} {path}: {head}");
        assert!(head.contains("\r\ncontent-type: application/json"), "{head}");
    }
}

#[test]
fn methods_that_a_kind_does_not_know_are_told_with_those_that_it_does() {
    let server = Server::start(options());
    let cases = [("consumers", "get, put, delete"), ("global_rules", "get, put, delete, patch")];
    for (kind, known) in cases {
        let fields = "X-API-KEY: admin-key\r\n";
        let (status, head, _) = server.send("POST", &format!("/apisix/admin/{kind}"), fields, "{}");
        assert!(status == 405 && head.contains(&format!("\r\nallow: {known}")), "{kind}: {head}");
    }
}

#[test]
fn addresses_and_origins_are_let_in_by_setting() {
    let elsewhere = vec![AddrRange::new("10.0.0.0/8").unwrap()];
    let server = Server::start(Options { allow: elsewhere, ..options() });
    let (status, found) = server.ask("GET", "/apisix/admin/routes", "");
    assert_eq!(status, 403);
    assert!(found["error_msg"].as_str().unwrap().contains("127.0.0.1"), "{found}");

    let server = Server::start(Options { cors: true, keys: Keys::none_required(), ..options() });
    let (status, head, body) = server.send("OPTIONS", "/apisix/admin/routes", "", "");
    assert_eq!((status, body.as_str()), (200, ""));
    for field in [
        "access-control-allow-origin: *",
        "access-control-allow-credentials: true",
        "access-control-expose-headers: *",
        "access-control-max-age: 3600",
        "access-control-allow-methods: post, get, put, options, delete, patch",
        "access-control-allow-headers: *",
        "content-type: text/plain",
        "content-length: 0",
    ] {
        assert!(head.contains(&format!("\r\n{field}")), "{field} is not in {head}");
    }
    let (status, head, _) = server.send("GET", "/apisix/admin/routes", "", "");
    assert!(status == 200 && head.contains("access-control-allow-origin: *"), "{head}");
}

/// The `Host`, further fields, and the status with a key that the page shows, with one that the browser adds, and without
/// any where none is asked for.
#[test]
fn pages_of_others_are_answered_with_a_key_alone() {
    let hosts = Hosts::new(&["admin.test".to_owned()]);
    let keyed = Server::start(Options { cors: true, hosts: hosts.clone(), ..options() });
    let open = Server::start(Options { cors: true, keys: Keys::none_required(), hosts, ..options() });
    let send = |server: &Server, method: &str, host: &str, fields: &str| {
        let body = r#"{"uri":"/a"}"#;
        let answer = server.raw(&format!(
            "{method} /apisix/admin/routes/1 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
             Content-Length: {}\r\n{fields}\r\n{body}",
            body.len()
        ));
        let status: u16 = answer.split(' ').nth(1).expect("a status").parse().expect("a status");
        (status, answer.to_ascii_lowercase().contains("\r\naccess-control-allow-origin: *\r\n"))
    };
    let (fine, refused) = ((201, true), (403, false));
    let cases = [
        ("localhost", "", fine, fine),
        ("localhost", "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n", fine, fine),
        ("admin.test", "", fine, fine),
        ("localhost", "Origin: https://admin.test\r\nSec-Fetch-Site: cross-site\r\n", fine, fine),
        ("localhost", "Origin: http://evil.test\r\nSec-Fetch-Site: cross-site\r\n", refused, refused),
        ("localhost", "Origin: null\r\n", refused, refused),
        ("localhost", "Sec-Fetch-Site: same-site\r\n", refused, refused),
        ("evil.test", "", refused, refused),
        ("evil.test", "Origin: http://evil.test\r\nSec-Fetch-Site: same-origin\r\n", refused, refused),
    ];
    for (host, fields, with_cookie, without) in cases {
        let case = format!("{host} {fields}");
        let with = |more: &str| format!("{fields}{more}\r\n");
        let renewed = |found: (u16, bool)| if found.0 == 200 { (201, found.1) } else { found };
        assert_eq!(renewed(send(&keyed, "PUT", host, &with("X-API-KEY: admin-key"))), fine, "{case}");
        assert_eq!(renewed(send(&keyed, "PUT", host, &with("Cookie: x_api_key=admin-key"))), with_cookie, "{case}");
        assert_eq!(send(&keyed, "PUT", host, fields), (401, true), "{case}");
        assert_eq!(renewed(send(&open, "PUT", host, fields)), without, "{case}");
        assert_eq!(send(&keyed, "OPTIONS", host, fields), (200, true), "{case}");
        let asked = if without == fine { (200, true) } else { refused };
        assert_eq!(send(&open, "OPTIONS", host, fields), asked, "{case}");
        assert_eq!(send(&open, "GET", host, fields).0, asked.0, "{case}");
    }
}

#[test]
fn refusals_of_the_configuration_reach_the_client() {
    let server = Server::start(options());
    let unavailable = StoreError::Unavailable("the disk is full".to_owned());
    let cases = [
        (Refused::Invalid(vec![error("routes[0].uri", "expected a text")]), 400, "uri"),
        (Refused::Store(unavailable), 503, "the disk is full"),
        (Refused::ReadOnly("comes from apisix.yaml".to_owned()), 405, "comes from apisix.yaml"),
    ];
    for (refused, status, says) in cases {
        *server.memory.refuses.lock().unwrap() = Some(refused);
        let (found, body) = server.ask("PUT", "/apisix/admin/routes/1", r#"{"uri":"/"}"#);
        assert_eq!(found, status, "{body}");
        assert!(body["error_msg"].as_str().unwrap().contains(says), "{body}");
    }
}

#[test]
fn bodies_are_bounded() {
    let server = Server::start(options());
    let large = format!(r#"{{"uri":"/","desc":"{}"}}"#, "x".repeat(70_000));
    let (status, body) = server.ask("PUT", "/apisix/admin/routes/1", &large);
    assert_eq!(status, 400, "{body}");
    assert!(body["error_msg"].as_str().unwrap().contains("is greater than the maximum size 65536 allowed"), "{body}");

    // The answer reaches a client that sends everything before it reads.
    let larger = "x".repeat(4 * 1024 * 1024);
    let (status, body) = server.ask("PUT", "/apisix/admin/routes/1", &larger);
    assert!(status == 400 && body["error_msg"].as_str().unwrap().contains("request size 4194304 is"), "{body}");

    // Without a length, the limit is reached while the body comes.
    let chunk = format!("{:x}\r\n{}\r\n", 40_000, "x".repeat(40_000));
    let answer = server.raw(&format!(
        "PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: a\r\nX-API-KEY: admin-key\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}"
    ));
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("maximum size"), "{answer}");

    // Nobody without a key gets to send one.
    let answer = server.raw("PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[test]
fn idle_connections_make_room_for_others() {
    let server = Server::start(options());
    let mut idle: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(server.addr).unwrap()).collect();
    let (status, _) = server.ask("GET", "/apisix/admin/routes", "");
    assert_eq!(status, 200);
    // The oldest are those that had to go.
    let mut byte = [0];
    assert_eq!(idle[0].read(&mut byte).unwrap_or(0), 0);
    let last = idle.last_mut().unwrap();
    last.write_all(b"HEAD /apisix/admin HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(last.read(&mut byte).unwrap(), 1);
}

#[test]
fn a_server_that_rests_finishes_what_is_under_way_and_accepts_nothing() {
    let server = Server::start(options());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let request = b"HEAD /apisix/admin HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut answer = [0; 1024];
    let mut kept = TcpStream::connect(server.addr).unwrap();
    kept.write_all(request).unwrap();
    assert!(kept.read(&mut answer).unwrap() > 0);
    let mut silent = TcpStream::connect(server.addr).unwrap();
    let mut slow = [(); 2].map(|()| TcpStream::connect(server.addr).unwrap());
    slow[0].write_all(b"HEAD /apisix/admin HTTP/1.1\r\n").unwrap();
    // They are accepted when another one after them is.
    assert_eq!(server.ask("GET", "/apisix/admin/routes", "").0, 200);

    let finish = std::thread::spawn(move || {
        // Only when it is asked to rest is the idle one closed.
        assert_eq!(kept.read(&mut [0]).unwrap_or(0), 0);
        slow[0].write_all(b"Host: a\r\n\r\n").unwrap();
        slow[1].write_all(request).unwrap();
        slow.map(|mut slow| {
            let mut last = String::new();
            slow.read_to_string(&mut last).unwrap();
            last.to_ascii_lowercase()
        })
    });
    runtime.block_on(server.rest.begin());
    for last in finish.join().unwrap() {
        assert!(last.starts_with("http/1.1 200 ") && last.contains("\r\nconnection: close"), "{last}");
    }
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0, "who asks nothing is waited for, and not for long");
    let mut waiting = TcpStream::connect(server.addr).unwrap();
    waiting.write_all(request).unwrap();
    waiting.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(waiting.read(&mut answer).is_err(), "nobody accepts it yet");
    server.rest.end();
    waiting.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(waiting.read(&mut answer).unwrap() > 0);
}

#[test]
fn connections_get_one_more_answer_when_another_process_serves() {
    let server = Server::start(options());
    let mut kept = TcpStream::connect(server.addr).unwrap();
    let request = b"HEAD /apisix/admin HTTP/1.1\r\nHost: a\r\n\r\n";
    kept.write_all(request).unwrap();
    let mut first = [0; 1024];
    let length = kept.read(&mut first).unwrap();
    assert!(first[..length].starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&first[..length]));
    let mut idle = TcpStream::connect(server.addr).unwrap();
    // The connection is accepted by the time a later one is.
    assert_eq!(server.ask("GET", "/apisix/admin/routes", "").0, 200);
    server.leave.send_replace(Some(Duration::from_secs(5)));
    kept.write_all(request).unwrap();
    let mut last = String::new();
    kept.read_to_string(&mut last).unwrap();
    let last = last.to_ascii_lowercase();
    assert!(last.starts_with("http/1.1 200 ") && last.contains("\r\nconnection: close"), "{last}");
    assert_eq!(idle.read(&mut [0]).unwrap_or(0), 0, "who asks nothing is not waited for");
    assert!(TcpStream::connect(server.addr).is_err());
}
