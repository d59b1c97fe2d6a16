//! Extensions of the Admin API of a running gateway beyond APISIX's.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, Gateway, LIMIT, Origin, RawClient, Start, repository, wait_until};
use crate::listings::{self, contains};

/// Sends a request below `/weir/v1`; gives status and JSON.
pub(crate) fn ask(gateway: &Gateway, method: &str, path: &str, body: &str) -> (u16, Value) {
    let addr = gateway.admin.expect("an Admin API");
    let length = body.len();
    let answer = RawClient::connect(addr).request(format!(
        "{method} /weir/v1/{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-API-KEY: {ADMIN_KEY}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    (answer.status, answer.json())
}

#[test]
fn changes_made_as_one_serve_as_one() {
    let origin = Origin::hello();
    let gateway = Start::stored().workers(2).start();
    let route = json!({ "uri": "/a", "upstream_id": "u" });
    let upstream = json!({ "nodes": { origin.node(): 1 } });
    let alone = json!({ "changes": [{ "key": "routes/1", "value": route }] }).to_string();
    let (status, answer) = ask(&gateway, "POST", "transactions", &alone);
    assert!(status == 400 && answer["diagnostics"][0]["path"] == "routes/1.upstream_id", "{answer}");
    let both =
        json!({ "changes": [{ "key": "routes/1", "value": route }, { "key": "upstreams/u", "value": upstream }] });
    assert_eq!(ask(&gateway, "POST", "transactions?dry_run=true", &both.to_string()).0, 200);
    assert_eq!(gateway.get("/a").status, 404);
    let (status, answer) = ask(&gateway, "POST", "transactions", &both.to_string());
    assert_eq!((status, &answer["revision"]), (200, &json!(1)), "{answer}");
    assert_eq!(gateway.get("/a").status, 200);
    let gone = json!({ "changes": [{ "key": "upstreams/u", "value": null }, { "key": "routes/1", "value": null }] });
    assert_eq!(ask(&gateway, "POST", "transactions", &gone.to_string()).0, 200);
    assert_eq!(gateway.get("/a").status, 404);
}

#[test]
fn what_was_serves_again() {
    let origin = Origin::hello();
    let gateway = Start::stored().workers(2).start();
    let put = |path: &str| {
        let route = json!({ "uri": path, "upstream": { "nodes": { origin.node(): 1 } } }).to_string();
        ask(&gateway, "PUT", "resources/routes/1", &route)
    };
    assert_eq!(put("/a").0, 201);
    assert_eq!(put("/b").0, 200);
    let consumer = r#"{"plugins":{"key-auth":{"key":"the-secret-key"}}}"#;
    assert_eq!(ask(&gateway, "PUT", "resources/consumers/jack", consumer).0, 201);
    let (status, answer) = ask(&gateway, "GET", "diff?from=1", "");
    let keys =
        json!({ "changes": [{ "key": "consumers/jack", "old": null }, { "key": "routes/1", "new": { "uri": "/b" } }] });
    assert!(status == 200 && contains(&answer, &keys), "{answer}");
    let (status, answer) = ask(&gateway, "POST", "rollback", r#"{"revision":1}"#);
    assert!(status == 200 && answer["revision"] == 4, "{answer}");
    assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 404));
    let (_, history) = ask(&gateway, "GET", "history", "");
    let revisions: Vec<_> =
        history["commits"].as_array().expect("commits").iter().map(|c| c["revision"].clone()).collect();
    assert_eq!(revisions, [4, 3, 2, 1]);
    assert!(history["commits"][0]["time"].as_f64().is_some_and(|time| time > 1.7e9), "{history}");
    assert_eq!(ask(&gateway, "POST", "rollback", r#"{"revision":99}"#).0, 400);
    for answer in [&answer, &history, &ask(&gateway, "GET", "diff?from=1&to=3", "").1] {
        assert!(!answer.to_string().contains("the-secret-key"), "{answer}");
    }
}

#[test]
fn changes_are_told_while_they_are_made() {
    let gateway = Start::stored().start();
    let mut stream = TcpStream::connect(gateway.admin.expect("an Admin API")).expect("connect");
    stream.set_read_timeout(Some(LIMIT)).expect("set a timeout");
    write!(stream, "GET /weir/v1/events?after=0 HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\n\r\n").expect("send");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let mut next = |wanted: &str| lines.find(|line| line.starts_with(wanted)).unwrap_or_else(|| panic!("no {wanted}"));
    next(": changes follow");
    for revision in 1..=3 {
        gateway.must("PUT", "upstreams/u", r#"{"nodes":{}}"#);
        assert_eq!(next("id: "), format!("id: {revision}"));
        assert_eq!(next("event: "), "event: change");
        assert!(next("data: ").contains(r#""key":"upstreams/u""#));
    }
}

#[test]
fn changes_of_a_rules_file_are_told() {
    let rules = |uri: &str, more: &str| {
        format!("routes: [{{id: a, uri: {uri}, plugins: {{}}}}, {{id: b, uri: /b, plugins: {{}}}}{more}]")
    };
    let more = ", {id: c, uri: /c, plugins: {csrf: {key: the-secret-key}}}";
    let gateway = Start::new(rules("/a", "")).variable("WEIR_ADMIN_KEY", ADMIN_KEY).argument("--admin=127.0.0.1:0");
    let gateway = gateway.start();
    let follow = |query: &str| {
        let mut stream = TcpStream::connect(gateway.admin.expect("an Admin API")).expect("connect");
        stream.set_read_timeout(Some(LIMIT)).expect("set a timeout");
        write!(stream, "GET /weir/v1/events{query} HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\n\r\n")
            .expect("send");
        let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
        move |wanted: &str| lines.find(|line| line.starts_with(wanted)).unwrap_or_else(|| panic!("no {wanted}"))
    };
    let mut next = follow("");
    next(": changes follow");
    for (revision, uri, more, expected) in [
        (2, "/x", "", json!([{ "key": "routes/a", "value": { "uri": "/x" } }])),
        (
            3,
            "/x",
            more,
            json!([{ "key": "routes/c", "value": { "uri": "/c", "plugins": { "csrf": { "key": "***" } } } }]),
        ),
        (4, "/x", "", json!([{ "key": "routes/c", "value": null }])),
    ] {
        gateway.reload(rules(uri, more));
        assert_eq!((next("id: "), next("event: ")), (format!("id: {revision}"), "event: change".to_owned()));
        let data = next("data: ");
        let told: Value = serde_json::from_str(data.trim_start_matches("data: ")).expect("JSON");
        assert!(contains(&told, &json!({ "revision": revision, "changes": expected })), "{told}");
    }
    // Missed events are not kept.
    let mut late = follow("?after=2");
    assert_eq!((late("id: "), late("event: ")), ("id: 4".to_owned(), "event: reset".to_owned()));
    // A refused file causes no event.
    gateway.reload("routes: [{id: a, uri: 1}]");
    gateway.reload(rules("/y", ""));
    for reader in [&mut next, &mut late] {
        assert_eq!((reader("id: "), reader("event: ")), ("id: 5".to_owned(), "event: change".to_owned()));
    }
}

#[test]
fn a_reader_that_does_not_read_is_cut_off() {
    let gateway = Start::stored().start();
    let mut stream = TcpStream::connect(gateway.admin.expect("an Admin API")).expect("connect");
    write!(stream, "GET /weir/v1/events HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\n\r\n").expect("send");
    let mut head = BufReader::new(stream.try_clone().expect("clone"));
    let mut line = String::new();
    while !line.starts_with(": changes follow") {
        line.clear();
        assert!(head.read_line(&mut line).expect("a line") > 0);
    }
    // More than the buffers of both ends hold, at 100 KB a change.
    let text = "x".repeat(256);
    let labels: serde_json::Map<String, Value> = (0..400).map(|n| (format!("l{n}"), text.clone().into())).collect();
    for turn in 0..150 {
        let body = json!({ "nodes": {}, "desc": turn.to_string(), "labels": labels }).to_string();
        gateway.must("PUT", "upstreams/u", &body);
    }
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("set a timeout");
    wait_until("the stream to end", Duration::from_secs(60), || {
        // Nothing is read until the gateway has given up: its end of the connection is gone then.
        let addr = stream.local_addr().expect("an address");
        (!established(&gateway, addr.port())).then_some(())
    });
    // Everybody else is served.
    assert_eq!(ask(&gateway, "GET", "resources/upstreams/u", "").0, 200);
}

/// True if the gateway's end of a connection to this local port is open, according to the kernel.
fn established(gateway: &Gateway, port: u16) -> bool {
    let admin = gateway.admin.expect("an Admin API").port();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("read the table of connections");
    let (from, to) = (format!(":{admin:04X}"), format!(":{port:04X}"));
    table.lines().skip(1).any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        matches!(columns.as_slice(), [_, local, remote, "01", ..] if local.ends_with(&from) && remote.ends_with(&to))
    })
}

#[test]
fn requests_are_explained_by_what_is_live() {
    let gateway = Start::stored().start();
    let explain = |what: &str| ask(&gateway, "GET", &format!("explain?{what}"), "");
    assert_eq!(explain("request=GET%20/a").1["route"], Value::Null);
    let route = r#"{"uri":"/a","methods":["GET"],"upstream":{"nodes":{"127.0.0.1:1":1}},"plugins":{"key-auth":{}}}"#;
    gateway.must("PUT", "routes/1", route);
    let (status, told) = explain("request=GET%20http://a.test/x/../a&header=apikey:%20k");
    let expected = json!({
        "matched_as": "/a", "route": "1", "candidates": [{ "id": "1", "chosen": true, "pattern": "/a" }],
        "plugins": [{ "name": "key-auth", "global": false, "priority": 2500 }],
        "upstream": { "nodes": ["127.0.0.1:1"], "retries": 0, "timeout": { "connect": 60 } },
    });
    assert!(status == 200 && contains(&told, &expected), "{told}");
    let (_, told) = explain("request=POST%20/a");
    assert!(contains(&told, &json!({ "route": null, "candidates": [{ "chosen": false }] })), "{told}");
    let (_, told) = explain("request=GET%20/a%00");
    assert!(told["refused"]["status"] == 400 || told.get("error_msg").is_some(), "{told}");
    assert_eq!(explain("request=nonsense").0, 400);
}

#[test]
fn the_whole_configuration_is_told_replaced_and_checked() {
    let origin = Origin::hello();
    let gateway = Start::stored().start();
    gateway.must("PUT", "routes/old", r#"{"uri":"/old","plugins":{"mocking":{"response_example":"m"}}}"#);
    let config = json!({
        "routes": [{ "id": "new", "uri": "/new", "upstream_id": "u" }],
        "upstreams": [{ "id": "u", "nodes": { origin.node(): 1 } }],
    });
    let (status, answer) = gateway.ask("POST", "configs/validate", &config.to_string());
    assert_eq!((status, answer), (200, json!({})));
    let dangling = json!({ "routes": config["routes"] }).to_string();
    let (status, answer) = gateway.ask("POST", "configs/validate", &dangling);
    assert!(status == 400 && answer["errors"][0]["resource_id"] == "new", "{answer}");
    let fields = format!("X-API-KEY: {ADMIN_KEY}\r\nX-Digest: d1\r\n");
    let put = |body: &str| gateway.send_to_admin("PUT", "configs", &fields, body);
    assert_eq!(put(&dangling).status, 400, "nothing of it is taken");
    assert_eq!((gateway.get("/old").status, gateway.get("/new").status), (200, 404));
    assert_eq!(put(&config.to_string()).status, 202);
    assert_eq!((gateway.get("/old").status, gateway.get("/new").status), (404, 200));
    assert_eq!(put(&config.to_string()).status, 204);
    let told = gateway.must("GET", "configs", "");
    assert!(contains(&told, &json!({ "routes": [{ "id": "new" }], "routes_conf_version": 2 })), "{told}");
}

#[test]
fn plugins_and_schemas_are_told() {
    let gateway = Start::stored().start();
    let names = gateway.must("GET", "plugins/list", "");
    let names: Vec<&str> = names.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    for plugin in weir_plugins::definitions() {
        assert_eq!(names.contains(&plugin.name()), plugin.is_for_requests(), "{}", plugin.name());
    }
    let on_streams = gateway.must("GET", "plugins/list?subsystem=stream", "");
    assert_eq!(on_streams, json!(["ip-restriction", "limit-conn", "mqtt-proxy", "traffic-split", "prometheus"]));
    assert!(names.iter().position(|n| *n == "real-ip") < names.iter().position(|n| *n == "prometheus"), "{names:?}");
    assert_eq!(gateway.must("GET", "plugins/limit-count", "")["properties"]["policy"]["default"], "local");
    assert_eq!(gateway.must("GET", "schema/plugins/cors", "")["type"], "object");
    let route = gateway.must("GET", "schema/route", "");
    assert!(route["properties"]["uri"].is_object(), "{route}");
    let (status, answer) = gateway.ask("POST", "schema/validate/routes", r#"{"uri":1,"upstream_id":"u"}"#);
    let expected =
        json!({ "error_msg": "property \"uri\" validation failed: wrong type: expected string, got number" });
    assert_eq!((status, answer), (400, expected));
}

#[test]
fn the_openapi_document_is_valid() {
    let gateway = Start::stored().start();
    let (status, document) = ask(&gateway, "GET", "openapi.json", "");
    assert_eq!(status, 200);
    let file = gateway.file("openapi.json");
    std::fs::write(&file, document.to_string()).expect("write the document");
    let validator = repository().join("target/test-tools/bin/openapi-spec-validator");
    assert!(validator.exists(), "{} is missing: tools/install-test-deps installs it", validator.display());
    let output = Command::new(&validator).arg("--schema").arg("3.1").arg(&file).output().expect("run the validator");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // The validator refuses an invalid document.
    let broken = document.to_string().replace(r#""operationId":"#, r#""operationIdent":7,"parameters":"#);
    std::fs::write(&file, broken).expect("write the document");
    let output = Command::new(&validator).arg("--schema").arg("3.1").arg(&file).output().expect("run the validator");
    assert!(!output.status.success(), "the validator takes anything");
}

#[test]
fn the_listings_of_the_document_do_what_they_say() {
    let gateway = Start::stored().start();
    let addr = format!("http://{}/weir/v1", gateway.admin.expect("an Admin API"));
    assert_eq!(listings::run("docs/admin-extensions.md", &[("weir", &addr), ("key", ADMIN_KEY)]), 12);
}
