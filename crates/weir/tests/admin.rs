//! The Admin API of a running gateway, as an operator would use it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::documentation::document;
use crate::harness::{ADMIN_KEY, Authority, Gateway, Kind, LIMIT, Origin, RawClient, Start, program, wait_until};

/// Puts a route with this id and path to an origin.
fn route(gateway: &Gateway, id: &str, path: &str, origin: &Origin) -> Value {
    let node = origin.addr();
    gateway.must(
        "PUT",
        &format!("routes/{id}"),
        &format!(r#"{{"uri":"{path}","upstream":{{"nodes":{{"{node}":1}}}}}}"#),
    )
}

#[test]
fn what_is_answered_serves() {
    let origin = Origin::hello();
    let gateway = Start::stored().workers(2).start();
    assert_eq!(gateway.get("/a").status, 404);
    for turn in 0..20 {
        let path = format!("/a{turn}");
        route(&gateway, "1", &path, &origin);
        assert_eq!(gateway.get(&path).status, 200, "{path}");
        assert_eq!(gateway.get(&format!("/a{}", turn + 1)).status, 404);
    }
    gateway.must("PATCH", "routes/1", r#"{"uri":"/patched","plugins":{"mocking":{"response_example":"mocked"}}}"#);
    assert_eq!(gateway.get("/patched").text(), "mocked");
    gateway.must("PATCH", "routes/1/plugins", "null");
    assert_eq!(gateway.get("/patched").status, 200);
    gateway.must("DELETE", "routes/1", "");
    assert_eq!(gateway.get("/patched").status, 404);
}

#[test]
fn consumers_and_their_credentials_open_routes() {
    let origin = Origin::hello();
    let gateway = Start::stored().start();
    route(&gateway, "1", "/*", &origin);
    gateway.must("PATCH", "routes/1", r#"{"plugins":{"key-auth":{}}}"#);
    let ask = |key: &str| {
        let request = format!("GET /x HTTP/1.1\r\nHost: a.test\r\napikey: {key}\r\n\r\n");
        gateway.client().request(request).status
    };
    assert_eq!(ask("k1"), 401);
    gateway.must("PUT", "consumers", r#"{"username":"jack","plugins":{"key-auth":{"key":"k1"}}}"#);
    gateway.must("PUT", "consumers/jack/credentials/c", r#"{"plugins":{"key-auth":{"key":"k2"}}}"#);
    assert_eq!((ask("k1"), ask("k2"), ask("k3")), (200, 200, 401));
    let (status, refused) =
        gateway.ask("PUT", "consumers", r#"{"username":"jill","plugins":{"key-auth":{"key":"k1"}}}"#);
    let message = refused["error_msg"].as_str().expect("a message");
    assert!(status == 400 && message.starts_with("duplicate key of plugin key-auth "), "{refused}");
    gateway.must("DELETE", "consumers/jack/credentials/c", "");
    assert_eq!((ask("k1"), ask("k2")), (200, 401));
    gateway.must("DELETE", "consumers/jack", "");
    assert_eq!(ask("k1"), 401);
}

#[test]
fn refusals_say_what_is_wrong_in_the_known_words() {
    let gateway = Start::stored().start();
    gateway.must("PUT", "global_rules/1", r#"{"plugins":{"limit-count":{"count":1000,"time_window":1}}}"#);
    let cases = [
        (
            "routes/1",
            r#"{"uri":5,"plugins":{}}"#,
            r#"invalid configuration: property "uri" validation failed: wrong type: expected string, got number"#,
        ),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{},"foo":1}"#,
            "invalid configuration: additional properties forbidden, found foo",
        ),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{},"methods":["NO"]}"#,
            r#"invalid configuration: property "methods" validation failed: failed to validate item 1: matches none of the enum values"#,
        ),
        ("routes/1", r#"{"uri":"/","plugins":{"nope":{}}}"#, "unknown plugin [nope]"),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{"limit-count":{"count":0,"time_window":60}}}"#,
            r#"failed to check the configuration of plugin limit-count err: property "count" validation failed: value should match only one schema, but matches none"#,
        ),
        (
            "routes/1",
            r#"{"uri":"/","upstream_id":"zz"}"#,
            "failed to fetch upstream info by upstream id [zz], response code: 404",
        ),
        (
            "routes/1",
            r#"{"uri":"/","service_id":9}"#,
            "failed to fetch service info by service id [9], response code: 404",
        ),
        (
            "routes/1",
            r#"{"uri":"/","plugin_config_id":"p"}"#,
            "failed to fetch plugin config info by plugin config id [p], response code: 404",
        ),
        (
            "routes/1",
            r#"{"uri":"/","upstream_id":"zz","plugins":{"nope":{}}}"#,
            "failed to fetch upstream info by upstream id [zz], response code: 404",
        ),
        (
            "consumers",
            r#"{"username":"a","group_id":"g"}"#,
            "failed to fetch consumer group info by consumer group id [g], response code: 404",
        ),
        (
            "upstreams/1",
            r#"{"type":"roundrobin"}"#,
            "invalid configuration: value should match only one schema, but matches none",
        ),
        (
            "global_rules/2",
            r#"{"plugins":{"limit-count":{"count":1,"time_window":1}}}"#,
            "plugin 'limit-count' already exists in global rule with id '1'",
        ),
        ("stream_routes/1", "{}", "stream mode is disabled, can not add stream routes"),
        ("protos/1", r#"{"content":"x"}"#, "invalid configuration: not supported yet: gRPC transcoding"),
    ];
    for (path, body, expected) in cases {
        let (status, answer) = gateway.ask("PUT", path, body);
        assert_eq!((status, answer["error_msg"].as_str()), (400, Some(expected)), "{path} {body}");
    }
    for kind in ["routes", "upstreams", "stream_routes", "protos", "secrets"] {
        assert_eq!(gateway.must("GET", kind, "")["total"], 0, "{kind}");
    }
    // Whoever reads the log learns of the change, and of no body.
    let log = gateway.logged("apisix/admin/routes/1");
    assert!(!log.contains("zz"), "{log}");
}

#[test]
fn what_is_used_is_deleted_by_force_alone() {
    let origin = Origin::hello();
    let gateway = Start::stored().start();
    let node = origin.addr();
    gateway.must("PUT", "upstreams/u", &format!(r#"{{"nodes":{{"{node}":1}}}}"#));
    gateway.must("PUT", "routes/1", r#"{"uri":"/a","upstream_id":"u"}"#);
    let (status, answer) = gateway.ask("DELETE", "upstreams/u", "");
    assert_eq!(status, 400);
    assert_eq!(answer["error_msg"], "can not delete this upstream, route [1] is still using it now");
    assert_eq!(gateway.get("/a").status, 200);
    gateway.must("DELETE", "upstreams/u?force=true", "");
    assert_eq!(gateway.get("/a").status, 404);
    // The route is still there, and serves again with its upstream.
    gateway.must("GET", "routes/1", "");
    gateway.must("PUT", "upstreams/u", &format!(r#"{{"nodes":{{"{node}":1}}}}"#));
    assert_eq!(gateway.get("/a").status, 200);
}

#[test]
fn resources_with_a_time_to_live_go_away() {
    let origin = Origin::hello();
    let gateway = Start::stored().start();
    let body = format!(r#"{{"uri":"/a","upstream":{{"nodes":{{"{}":1}}}}}}"#, origin.addr());
    gateway.must("PUT", "routes/1?ttl=1", &body);
    assert_eq!(gateway.get("/a").status, 200);
    wait_until("the route to be gone", LIMIT, || (gateway.get("/a").status == 404).then_some(()));
    assert_eq!(gateway.ask("GET", "routes/1", "").0, 404);
}

#[test]
fn many_changes_at_once_are_all_made() {
    let gateway = Start::stored().start();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let gateway = &gateway;
            scope.spawn(move || {
                for turn in 0..5 {
                    gateway.must("POST", "routes", &format!(r#"{{"uri":"/{thread}/{turn}","plugins":{{}}}}"#));
                    let path = format!("upstreams/shared/labels/t{thread}x{turn}");
                    if gateway.ask("PUT", "upstreams/shared", r#"{"nodes":{}}"#).0 < 300 {
                        gateway.must("PATCH", &path, r#""x""#);
                    }
                }
            });
        }
    });
    let list = gateway.must("GET", "routes", "");
    assert_eq!(list["total"], 20);
    let ids: std::collections::BTreeSet<&str> =
        list["list"].as_array().expect("a list").iter().filter_map(|item| item["value"]["id"].as_str()).collect();
    assert!(ids.len() == 20 && ids.iter().all(|id| id.len() == 20), "{ids:?}");
}

#[test]
fn keys_are_made_at_the_first_start_and_shown_once() {
    // Without a key in the environment.
    let mut gateway = Start::stored().variable("WEIR_ADMIN_KEY", "").start();
    let shown = gateway.logged("viewer key");
    let key = |role: &str| {
        let line = shown.lines().find(|line| line.trim_start().starts_with(role)).expect("a line with the key");
        line.rsplit(' ').next().expect("a key").to_owned()
    };
    let (admin, viewer) = (key("admin key"), key("viewer key"));
    let ask = |gateway: &Gateway, method: &str, key: &str| {
        let body = r#"{"uri":"/","plugins":{}}"#;
        gateway.send_to_admin(method, "routes/1", &format!("X-API-KEY: {key}\r\n"), body).status
    };
    assert_eq!(ask(&gateway, "PUT", &viewer), 401);
    assert_eq!(ask(&gateway, "PUT", &admin), 201);
    assert_eq!(ask(&gateway, "GET", &viewer), 200);
    assert_eq!(ask(&gateway, "GET", ADMIN_KEY), 401);
    let kept = fs::read_to_string(gateway.file("data/admin-keys.json")).expect("read the kept keys");
    assert!(!kept.contains(&admin) && !kept.contains(&viewer), "{kept}");
    gateway.signal(Signal::TERM);
    gateway.wait();
}

#[test]
fn tls_and_certificates_of_clients_stand_in_front() {
    let authority = Authority::new();
    let server = authority.certificate(Kind::P256, &["localhost"]);
    let client = authority.certificate(Kind::P256, &["operator.test"]);
    let settings = format!(
        "admin: {{tls: {{cert: {}, key: {}, client_ca: {}}}}}",
        server.cert_file.display(),
        server.key_file.display(),
        authority.file().display()
    );
    let gateway = Start::stored().settings(settings).start();
    let port = gateway.admin.expect("an Admin API").port();
    let curl = |more: &[&str]| {
        let output = Command::new(program("curl"))
            .args(["-s", "--cacert", &authority.file().display().to_string()])
            .args(["-H", &format!("X-API-KEY: {ADMIN_KEY}"), &format!("https://localhost:{port}/apisix/admin/routes")])
            .args(["--resolve", &format!("localhost:{port}:127.0.0.1")])
            .args(more)
            .output()
            .expect("run curl");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let path = |file: &PathBuf| file.display().to_string();
    let (done, body) = curl(&["--cert", &path(&client.cert_file), "--key", &path(&client.key_file)]);
    assert!(done && body == "{\"list\":[],\"total\":0}\n", "{body}");
    let (done, body) = curl(&[]);
    assert!(!done && body.is_empty(), "without a certificate: {body}");
}

#[test]
fn a_rules_file_is_read_and_not_changed() {
    let gateway = Start::new("routes: [{id: a, uri: /a, plugins: {}}]\nconsumers: [{username: jack}]")
        .variable("WEIR_ADMIN_KEY", ADMIN_KEY)
        .argument("--admin")
        .argument("127.0.0.1:0")
        .start();
    assert_eq!(gateway.must("GET", "routes/a", "")["value"]["uri"], "/a");
    assert_eq!(gateway.must("GET", "consumers", "")["total"], 1);
    for (method, path, body) in [
        ("PUT", "routes/a", r#"{"uri":"/b","plugins":{}}"#),
        ("POST", "routes", r#"{"uri":"/b","plugins":{}}"#),
        ("PATCH", "routes/a", r#"{"uri":"/b"}"#),
        ("DELETE", "routes/a", ""),
    ] {
        let (status, answer) = gateway.ask(method, path, body);
        let message = answer["error_msg"].as_str().expect("a message");
        assert!(status == 405 && message.contains("apisix.yaml"), "{method}: {status} {answer}");
    }
    gateway.reload("routes: [{id: b, uri: /b, plugins: {}}]");
    wait_until("the new file to be told", LIMIT, || (gateway.ask("GET", "routes/b", "").0 == 200).then_some(()));
    assert_eq!(gateway.ask("GET", "routes/a", "").0, 404);
}

#[test]
fn a_slow_client_holds_nobody_up() {
    let gateway = Start::stored().start();
    let addr = gateway.admin.expect("an Admin API");
    let mut slow = RawClient::connect(addr);
    slow.send(format!(
        "PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: a.test\r\nX-API-KEY: {ADMIN_KEY}\r\nContent-Length: 24\r\n\r\n"
    ));
    slow.send(r#"{"uri":"/","#);
    gateway.must("PUT", "routes/2", r#"{"uri":"/x","plugins":{}}"#);
    slow.send(r#""plugins":{}}"#);
    assert_eq!(slow.response().status, 201);
}

/// The listings of the document, run by a shell one after the other; what they print has to be what it shows.
#[test]
fn the_listings_of_the_document_do_what_they_say() {
    let gateway = Start::stored().start();
    let admin = format!("http://{}/apisix/admin", gateway.admin.expect("an Admin API"));
    let text = document("docs/admin-api.md");
    let listings: Vec<(&str, &str)> =
        text.split("```").skip(1).step_by(2).filter_map(|listing| listing.split_once('\n')).collect();
    let mut run = 0;
    for pair in listings.windows(2) {
        let [("sh", script), ("json", expected)] = pair else { continue };
        let output = Command::new("sh")
            .args(["-c", script])
            .envs([("admin", admin.as_str()), ("key", ADMIN_KEY)])
            .output()
            .expect("run a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        let values = |text: &str| -> Vec<Value> {
            let lines = text.lines().filter(|line| !line.is_empty());
            lines
                .map(|line| without_times(serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))))
                .collect()
        };
        assert_eq!(values(&said), values(expected), "{script}");
        run += script.lines().count();
    }
    assert!(run >= 12, "only {run} commands");
}

/// A value with the same times everywhere.
fn without_times(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                *field = match name.as_str() {
                    "create_time" | "update_time" => json!(0),
                    _ => without_times(field.take()),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_times(item.take())),
        _ => {}
    }
    value
}
