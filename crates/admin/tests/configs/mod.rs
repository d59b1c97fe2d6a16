//! The configuration as a whole, schemas, and checks.

use serde_json::{Value, json};

use crate::memory::Server;
use crate::{contains, options};

const ADMIN: &str = "X-API-KEY: admin-key\r\n";

/// Puts a configuration; gives status and body.
fn put(server: &Server, digest: &str, body: &str) -> (u16, String) {
    let fields = format!("{ADMIN}X-Digest: {digest}\r\n");
    let (status, _, body) = server.send("PUT", "/apisix/admin/configs", &fields, body);
    (status, body)
}

fn configs(server: &Server) -> (String, Value) {
    let (status, head, body) = server.send("GET", "/apisix/admin/configs", ADMIN, "");
    assert_eq!(status, 200, "{body}");
    (head, serde_json::from_str(&body).unwrap())
}

#[test]
fn standalone_mode_takes_whole_configurations() {
    let server = Server::standalone(options());
    let (head, config) = configs(&server);
    assert!(!head.contains("x-digest"), "{head}");
    assert_eq!(config.as_object().unwrap().len(), 14);
    assert!(config.as_object().unwrap().values().all(|version| *version == 0), "{config}");
    let routes = r#""routes":[{"id":"r1","uri":"/a","service_id":"s","modifiedIndex":5}]"#;
    let one = format!(r#"{{{routes},"routes_conf_version":10,"services":[{{"id":"s"}}]}}"#);
    let (admin, digest) = (ADMIN.to_owned(), format!("{ADMIN}X-Digest: x\r\n"));
    // Nothing of this is taken.
    for (fields, body, said) in [
        (&admin, one.as_str(), "missing digest header"),
        (&digest, "", "invalid request body: empty request body"),
        (&digest, "{", "invalid request body: "),
        (&digest, "[]", "invalid request body: wrong type"),
        (&digest, r#"{"routes":{}}"#, "invalid routes: wrong type: expected array"),
        (
            &digest,
            r#"{"routes":[1]}"#,
            "invalid routes at index 0, err: invalid configuration: wrong type: expected object, got number",
        ),
        (
            &digest,
            r#"{"routes":[{"uri":"/a","upstream_id":"u"},{"uri":1}]}"#,
            "invalid routes at index 1, err: invalid configuration: property \"uri\" validation failed: wrong type",
        ),
        (
            &digest,
            r#"{"routes":[{"uri":"/a","plugins":{"x":{}}}]}"#,
            "invalid routes at index 0, err: unknown plugin [x]",
        ),
        (&digest, r#"{"services":[{"id":"s"},{"id":"s"}]}"#, "found duplicate id s in services"),
        (&digest, r#"{"consumers":[{"username":"a"},{"username":"a"}]}"#, "found duplicate username a in consumers"),
        (&digest, r#"{"routes_conf_version":"1"}"#, "routes_conf_version must be a number"),
        (
            &digest,
            r#"{"routes_conf_version":18446744073709551615}"#,
            "routes_conf_version must be less than or equal to (9007199254740992)",
        ),
    ] {
        let (status, _, answer) = server.send("PUT", "/apisix/admin/configs", fields, body);
        assert_eq!(status, 400, "{body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["error_msg"].as_str().unwrap().starts_with(said), "{body}: {answer}");
    }
    assert_eq!(configs(&server).1["routes_conf_version"], 0);

    let fields = format!("{ADMIN}X-Digest: d1\r\n");
    let (status, head, body) = server.send("PUT", "/apisix/admin/configs", &fields, &one);
    assert_eq!((status, body), (202, String::new()));
    assert!(head.contains("x-digest: d1") && head.contains("x-last-modified: "), "{head}");
    assert_eq!(put(&server, "d1", r#"{"routes":[]}"#), (204, String::new()), "the same digest");
    let (head, config) = configs(&server);
    assert!(head.contains("x-digest: d1") && head.contains("x-last-modified: "), "{head}");
    assert_eq!(config["X-Digest"], "d1");
    let time = config["X-Last-Modified"].as_u64().unwrap();
    assert!(head.contains(&format!("x-last-modified: {time}")), "{head}");
    let wanted = json!({
        "routes": [{"id": "r1", "uri": "/a", "service_id": "s", "modifiedIndex": 5}], "routes_conf_version": 10,
        "services": [{"id": "s"}], "services_conf_version": 1, "upstreams_conf_version": 1,
    });
    assert!(contains(&config, &wanted), "{config}");
    let (status, head, body) = server.send("HEAD", "/apisix/admin/configs", ADMIN, "");
    assert!(status == 200 && head.contains("x-digest: d1") && body.is_empty(), "{status} {head}");

    // Resources with the version of before stay, older ones are refused, and those not named are gone.
    let (status, body) = put(&server, "d2", r#"{"routes_conf_version":9}"#);
    assert_eq!(status, 400);
    assert!(body.contains("routes_conf_version must be greater than or equal to (10)"), "{body}");
    let body =
        r#"{"routes_conf_version":10,"services_conf_version":1,"upstreams":[{"id":"u","nodes":{"a.test:80":1}}]}"#;
    assert_eq!(put(&server, "d2", body).0, 202);
    let (_, config) = configs(&server);
    let wanted = json!({
        "routes": [{"id": "r1"}], "services": [{"id": "s"}], "upstreams": [{"id": "u"}],
        "routes_conf_version": 10, "services_conf_version": 1, "upstreams_conf_version": 2,
    });
    assert!(contains(&config, &wanted), "{config}");
    assert_eq!(server.keys(), ["routes/r1", "services/s", "upstreams/u"]);
    assert_eq!(put(&server, "d3", "{}").0, 202);
    assert!(server.keys().is_empty());

    // The largest version there may be has a next one.
    assert_eq!(put(&server, "d5", r#"{"routes_conf_version":9007199254740992}"#).0, 202);
    assert_eq!(put(&server, "d6", r#"{"routes":[{"id":"r","uri":"/a","service_id":"s"}]}"#).0, 202);
    assert_eq!(configs(&server).1["routes_conf_version"], 9_007_199_254_740_993_u64);
    assert_eq!(server.keys(), ["routes/r"]);

    // A request with `wait` is answered 200, since the configuration serves.
    for (wait, digest, expected) in
        [("5000", "w1", 200), ("0.5", "w2", 200), ("0", "w3", 202), ("x", "w4", 202), ("-1", "w5", 202)]
    {
        let fields = format!("{ADMIN}X-Digest: {digest}\r\n");
        let (status, head, body) =
            server.send("PUT", &format!("/apisix/admin/configs?wait={wait}"), &fields, r#"{"routes":[]}"#);
        assert_eq!((status, body.as_str()), (expected, ""), "{wait}: {head}");
        assert!(head.contains(&format!("x-digest: {digest}")) && head.contains("x-last-modified: "), "{head}");
    }

    // YAML is taken and given.
    let fields = format!("{ADMIN}X-Digest: d4\r\nContent-Type: application/yaml\r\n");
    let yaml = "consumers:\n- username: jack\n- id: jack/credentials/c1\n  plugins: {}\n";
    assert_eq!(server.send("PUT", "/apisix/admin/configs", &fields, yaml).0, 202);
    assert_eq!(server.keys(), ["consumers/jack", "consumers/jack/credentials/c1"]);
    let (_, head, _) = server.send("GET", "/apisix/admin/configs", &format!("{ADMIN}Accept: application/yaml\r\n"), "");
    assert!(head.contains("content-type: application/yaml"), "{head}");

    for (method, path) in
        [("GET", "/apisix/admin/routes"), ("PUT", "/apisix/admin/routes/1"), ("GET", "/weir/v1/resources")]
    {
        let (status, _, body) = server.send(method, path, ADMIN, "");
        assert!(status == 404 && body.contains("/apisix/admin/configs"), "{method} {path}: {status} {body}");
    }
}

#[test]
fn over_a_store_the_whole_is_another_view_of_the_resources() {
    let server = Server::start(options());
    assert_eq!(server.ask("PUT", "/apisix/admin/routes/1", r#"{"uri":"/a","service_id":"s"}"#).0, 201);
    assert_eq!(server.ask("PUT", "/apisix/admin/routes/2", r#"{"uri":"/b","service_id":"s"}"#).0, 201);
    let certificate = format!(
        r#"{{"sni":"a.test","cert":"{0}","key":"{0}"}}"#,
        format!("-----BEGIN CERTIFICATE-----\\n{}\\n-----END CERTIFICATE-----", "x".repeat(128))
    );
    assert_eq!(server.ask("PUT", "/apisix/admin/ssls/1", &certificate).0, 201);
    let (head, config) = configs(&server);
    assert!(head.contains("x-digest: "), "{head}");
    assert_eq!((&config["routes_conf_version"], &config["services_conf_version"]), (&json!(3), &json!(3)));
    assert!(config["ssls"][0].get("key").is_none(), "{config}");

    // One route is changed, one goes, the certificate stays as it is: key, times and all.
    let mut changed = config;
    changed["routes"] = json!([{ "id": "2", "uri": "/c", "service_id": "s" }]);
    for version in ["routes_conf_version", "ssls_conf_version"] {
        changed[version] = 4.into();
    }
    assert_eq!(put(&server, "mine", &changed.to_string()), (202, String::new()));
    assert_eq!(server.keys(), ["routes/2", "ssls/1"]);
    let (_, route) = server.ask("GET", "/apisix/admin/routes/2", "");
    assert!(contains(&route, &json!({ "value": { "uri": "/c" }, "createdIndex": 2, "modifiedIndex": 4 })), "{route}");
    let (_, ssl) = server.ask("GET", "/apisix/admin/ssls/1", "");
    assert_eq!(ssl["modifiedIndex"], 3, "nothing about it is new");
    assert_eq!(put(&server, "mine", "{}").0, 204);
    assert!(configs(&server).0.contains("x-digest: mine"));
    // Once somebody changes something, it is not what was put any more.
    assert_eq!(server.ask("DELETE", "/apisix/admin/routes/2", "").0, 200);
    let (head, config) = configs(&server);
    assert!(!head.contains("x-digest: mine") && config.get("routes").is_none(), "{head} {config}");
    let (status, body) = put(&server, "other", &changed.to_string());
    assert!(status == 400 && body.contains("routes_conf_version must be greater than or equal to (5)"), "{body}");
}

#[test]
fn whole_configurations_are_checked() {
    let server = Server::start(options());
    let check = |body: &str| server.ask("POST", "/apisix/admin/configs/validate", body);
    assert_eq!(
        check(r#"{"routes":[{"uri":"/a","upstream_id":"u","modifiedIndex":3}],"upstreams":[{"id":"u","nodes":{}}]}"#),
        (200, json!({}))
    );
    let (status, answer) = check(
        r#"{"routes":[{"uri":"/a","upstream_id":"u"},{"id":"x","uri":7}],"services":[{"id":"s"},{"id":"s"}],"upstreams_conf_version":3}"#,
    );
    assert_eq!((status, &answer["error_msg"]), (400, &json!("Configuration validation failed")));
    let errors = answer["errors"].as_array().unwrap();
    let places: Vec<_> =
        errors.iter().map(|e| (e["resource_type"].as_str().unwrap(), e["index"].as_u64().unwrap())).collect();
    for place in [("routes", 0), ("routes", 1), ("services", 1)] {
        assert!(places.contains(&place), "{answer}");
    }
    let named = errors.iter().find(|error| error["index"] == 1 && error["resource_type"] == "routes").unwrap();
    assert_eq!(named["resource_id"], "x");
    let uri = "property \"uri\" validation failed: wrong type: expected string, got number";
    let uri = format!("invalid routes at index 1, err: invalid configuration: {uri}");
    assert!(errors.iter().any(|error| error["error"] == uri), "{answer}");
    let twice = errors.iter().find(|error| error["resource_type"] == "services").unwrap();
    assert_eq!(twice["error"], "found duplicate id s in services");
    assert!(errors.iter().all(|error| error["error"].is_string()), "{answer}");
}

#[test]
fn schemas_are_told_and_checked_with() {
    let server = Server::start(options());
    let cases = [
        ("GET", "plugins/list", "", 200, json!(["key-auth", "echo"])),
        ("GET", "plugins/list?subsystem=stream", "", 200, json!(["echo"])),
        (
            "GET",
            "plugins/key-auth?subsystem=stream",
            "",
            404,
            json!({ "error_msg": "plugin not found in subsystem stream" }),
        ),
        ("GET", "plugins/echo?subsystem=stream", "", 200, json!({ "type": "object", "properties": { "_meta": {} } })),
        ("GET", "plugins/echo?subsystem=x", "", 400, json!({ "error_msg": "unsupported subsystem: x" })),
        ("GET", "plugins?all=true", "", 200, json!({ "echo": { "priority": -1 }, "key-auth": { "type": "auth" } })),
        ("GET", "plugins/echo", "", 200, json!({ "type": "object", "properties": { "_meta": {} } })),
        ("GET", "plugins/key-auth?schema_type=consumer", "", 200, json!({ "type": "object" })),
        ("GET", "plugins/echo?schema_type=consumer", "", 400, json!({ "error_msg": "not found schema" })),
        ("GET", "plugins/x", "", 404, json!({ "error_msg": "plugin not found in subsystem http" })),
        ("GET", "schema/route", "", 200, json!({ "properties": { "uri": { "type": "string" } } })),
        ("GET", "schema/plugins/echo", "", 200, json!({ "type": "object" })),
        ("GET", "schema/x", "", 400, json!({ "error_msg": "not found schema: x" })),
        ("POST", "schema/validate/x", "{}", 404, json!({ "error_msg": "Unsupported resource type: x" })),
        ("POST", "plugins/list", "", 405, json!({})),
        (
            "GET",
            "plugins/reload",
            "",
            405,
            json!({ "error_msg": "please use PUT method to reload the plugins, GET method is not allowed." }),
        ),
    ];
    for (method, path, body, status, expected) in cases {
        let (found, answer) = server.ask(method, &format!("/apisix/admin/{path}"), body);
        assert!(found == status && contains(&answer, &expected), "{method} {path}: {found} {answer}");
    }
    let (status, _, body) = server.send("GET", "/apisix/admin/plugins/list?subsystem=x", ADMIN, "");
    assert_eq!((status, body.as_str()), (400, "invalid subsystem passed"));
    let validate = |body: &str| server.send("POST", "/apisix/admin/schema/validate/routes", ADMIN, body);
    let (status, head, body) = validate(r#"{"uri":"/a","upstream_id":"nowhere"}"#);
    assert!(status == 200 && body.is_empty() && !head.contains("x-api-version"), "{status} {head} {body}");
    let (status, _, body) = validate(r#"{"uri":1}"#);
    let uri = r#"{"error_msg":"property \"uri\" validation failed: wrong type: expected string, got number"}"#;
    assert_eq!((status, body.trim_end()), (400, uri), "the form goes first");
    let (status, _, body) = validate(r#"{"uri":1,"upstream_id":"nowhere"}"#);
    assert!(
        status == 400 && body.starts_with(r#"{"error_msg":""#) && !body.contains("invalid configuration"),
        "{body}"
    );
    let (status, _, body) = server.send("PUT", "/apisix/admin/plugins/reload", ADMIN, "");
    assert_eq!((status, body.trim()), (200, "done"));
}
