//! Kong's Admin API without a database: a whole declarative configuration at once, as an ingress controller sends it.

use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, Gateway, Origin, RawClient, Start, each, get};

fn start() -> Gateway {
    Start::standalone().argument("--family").argument("kong").variable("KONG_DATABASE", "off").start()
}

fn send(gateway: &Gateway, method: &str, path: &str, kind: &str, body: &str) -> (u16, Value) {
    let mut client = RawClient::connect(gateway.admin.expect("an Admin API"));
    let length = body.len();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nKong-Admin-Token: {ADMIN_KEY}\r\nConnection: close\r\n\
         Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    let response = client.response_to(method);
    let body = if response.body.is_empty() { Value::Null } else { response.json() };
    (response.status, body)
}

fn post(gateway: &Gateway, query: &str, document: &str) -> (u16, Value) {
    let kind = if document.starts_with('{') { "application/json" } else { "text/yaml" };
    send(gateway, "POST", &format!("/config{query}"), kind, document)
}

fn document(node: &str) -> String {
    format!(
        "_format_version: '3.0'
services:
- name: s
  url: http://{node}/base
  routes: [{{name: r, paths: [/a], tags: [t]}}]
  plugins: [{{name: key-auth}}]
consumers:
- {{username: jo, keyauth_credentials: [{{key: k1}}], basicauth_credentials: [{{username: jo, password: secret}}]}}
"
    )
}

#[test]
fn a_whole_configuration_replaces_the_one_before() {
    let (gateway, origin) = (start(), Origin::echo());
    let hash = || send(&gateway, "GET", "/status", "", "").1["configuration_hash"].as_str().map(str::to_owned);
    assert_eq!(hash().as_deref(), Some("00000000000000000000000000000000"));
    let text = document(&origin.node());
    let (status, all) = post(&gateway, "?check_hash=1", &text);
    assert_eq!(status, 201, "{all}");
    let services = all["services"].as_object().expect("services");
    let (id, service) = services.iter().next().expect("a service");
    assert_eq!((&service["name"], &service["path"], &service["retries"]), (&json!("s"), &json!("/base"), &json!(5)));
    let status_of = |path: &str| gateway.client().request(get(path)).status;
    assert_eq!((status_of("/a"), status_of("/a?apikey=k1")), (401, 200));
    assert_eq!(origin.last().target, "/base?apikey=k1");
    let (_, route) = send(&gateway, "GET", "/routes/r", "", "");
    assert_eq!((&route["service"]["id"], &route["protocols"]), (&json!(id), &json!(["http", "https"])));
    let before = hash();
    assert_eq!(post(&gateway, "?check_hash=1", &text).0, 304);
    assert_eq!(post(&gateway, "", &text).0, 201);
    assert!(before == hash() && before.is_some_and(|hash| hash.len() == 32));
    assert_eq!(send(&gateway, "GET", "/config", "", "").1["config"], json!(text));
    // Ids follow from names, so a service that comes again is the same one.
    let other = json!({ "_format_version": "3.0", "services": [
        { "name": "s", "url": format!("http://{}", origin.node()), "routes": [{ "name": "r2", "paths": ["/b"] }] },
    ] });
    for _ in 0..2 {
        let (status, all) = post(&gateway, "?check_hash=1", &other.to_string());
        assert!(status == 201 && all["services"][id].is_object(), "{status} {all}");
    }
    assert_eq!((status_of("/a?apikey=k1"), status_of("/b")), (404, 200));
    assert_eq!(send(&gateway, "GET", "/consumers", "", "").1["data"], json!([]));
    let form = "config=_format_version%3A+%223.0%22%0A";
    assert_eq!(send(&gateway, "POST", "/config", "application/x-www-form-urlencoded", form).0, 201);
    assert_eq!(status_of("/b"), 404);
}

#[test]
fn faults_are_told_by_document_or_by_entity() {
    let gateway = start();
    let bad = "_format_version: '3.0'
services:
- {name: a, host: a}
- {name: b, port: many, tags: [x], routes: [{name: r, paths: [bad]}]}
plugins: [{name: nope}, {name: key-auth, config: {key_name: [x]}}]
";
    let (status, told) = post(&gateway, "", bad);
    assert_eq!((status, &told["code"], &told["name"]), (400, &json!(14), &json!("invalid declarative configuration")));
    let fields = &told["fields"];
    assert_eq!(fields["services"][0], Value::Null, "{told}");
    assert!(fields["services"][1]["port"].is_string() && fields["services"][1]["host"].is_string(), "{told}");
    let message = told["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("declarative config is invalid: {") && message.contains("port="), "{message}");
    let (_, told) = post(&gateway, "?flatten_errors=1", bad);
    assert_eq!(told["fields"], json!({}), "{told}");
    let all = told["flattened_errors"].as_array().expect("errors");
    let of = |kind: &str| all.iter().find(|one| one["entity_type"] == kind).unwrap_or_else(|| panic!("{kind}: {told}"));
    let service = of("service");
    assert_eq!((&service["entity_name"], &service["entity_tags"]), (&json!("b"), &json!(["x"])));
    assert!(service["errors"].as_array().is_some_and(|errors| errors.iter().any(|error| error["field"] == "host")));
    assert!(of("plugin")["errors"].to_string().contains("nope"), "{told}");
    assert_eq!(send(&gateway, "GET", "/services", "", "").1["data"], json!([]));
    for (body, says) in [("", "expected a declarative configuration"), ("- a", "expected an object")] {
        let (status, told) = post(&gateway, "", body);
        assert!(status == 400 && told.to_string().contains(says), "{body:?}: {status} {told}");
    }
}

#[test]
fn single_entities_are_not_changed_without_a_database() {
    let gateway = start();
    assert_eq!(post(&gateway, "", "_format_version: '3.0'\nservices: [{name: s, host: a}]\n").0, 201);
    let cases = [
        ("POST", "/services", "cannot create 'services' entities when not using a database"),
        ("PATCH", "/services/s", "cannot update 'services' entities by 'name' when not using a database"),
        ("PUT", "/services/s", "cannot create or update 'services' entities by 'name' when not using a database"),
        ("DELETE", "/services/s", "cannot remove 'services' entities by 'name' when not using a database"),
    ];
    each(
        &cases,
        |(method, path, _)| format!("{method} {path}"),
        |&(method, path, says)| {
            let (status, told) = send(&gateway, method, path, "application/json", "{\"host\":\"b\"}");
            assert_eq!((status, &told["code"], told["message"].as_str()), (405, &json!(12), Some(says)), "{told}");
        },
    );
    assert_eq!(send(&gateway, "DELETE", "/services/none", "", "").0, 204);
    assert_eq!(send(&gateway, "GET", "/", "", "").1["configuration"]["database"], "off");
    // With a store there is no such call.
    let stored = Start::stored().argument("--family").argument("kong").start();
    assert_eq!(post(&stored, "", "_format_version: '3.0'\n").0, 400);
}
