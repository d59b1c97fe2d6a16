//! Features for browsers and their pages: the fields of CORS, redirects to HTTPS, request ids.

use std::collections::HashSet;
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, Origin, RawClient, Response, Start, program, route_with, weighted};

/// A configuration with one route for everything, with these plugins, to this origin.
fn route(origin: &Origin, plugins: &Value) -> Value {
    route_with(json!({ "plugins": plugins }), json!({ "nodes": weighted([&origin.node()]) }))
}

fn ask(gateway: &Gateway, method: &str, fields: &str) -> Response {
    gateway.client().request(format!("{method} /x?y HTTP/1.1\r\nHost: a.test:9080\r\n{fields}\r\n"))
}

#[test]
fn an_upstream_allows_no_more_than_the_gateway() {
    let origin = Origin::answering(|_| {
        Answer::keep(
            "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\nAccess-Control-Allow-Credentials: true\r\n\
             Access-Control-Allow-Origin: https://evil.test\r\nAccess-Control-Expose-Headers: X-Theirs\r\n\
             Timing-Allow-Origin: *\r\nVary: Accept\r\nContent-Length: 2\r\n\r\nok",
        )
    });
    let cors = json!({ "allow_origins": "https://a.test,https://b.test", "timing_allow_origins": "https://a.test" });
    let gateway = Gateway::start(route(&origin, &json!({ "cors": cors })));
    for (sent, allowed, timing) in [
        ("https://a.test", Some("https://a.test"), Some("https://a.test")),
        ("https://b.test", Some("https://b.test"), None),
        ("https://evil.test", None, None),
    ] {
        let response = ask(&gateway, "GET", &format!("Origin: {sent}\r\n"));
        assert_eq!(response.text(), "ok", "{sent}");
        assert_eq!(response.fields.all("access-control-allow-origin"), Vec::from_iter(allowed), "{response:?}");
        assert_eq!(response.fields.all("timing-allow-origin"), Vec::from_iter(timing), "{response:?}");
        assert_eq!(response.field("access-control-allow-credentials"), None, "{response:?}");
        assert_eq!(response.fields.all("vary"), ["Accept", "Origin"], "{response:?}");
        assert_eq!(response.field("access-control-expose-headers"), Some("X-Theirs"), "not configured: {response:?}");
    }
    assert_eq!(origin.requests().len(), 3);
    let asked = ask(&gateway, "OPTIONS", "Origin: https://a.test\r\nAccess-Control-Request-Method: PUT\r\n");
    assert_eq!((asked.status, asked.field("access-control-allow-methods")), (200, Some("*")), "{asked:?}");
    assert_eq!(origin.requests().len(), 3, "the upstream is not asked");
}

#[test]
fn a_global_rule_tells_pages_whatever_becomes_of_their_request() {
    let config = json!({
        "routes": [
            { "id": "r", "uri": "/known", "plugins": { "key-auth": {} }, "upstream": { "nodes": { "127.0.0.1:1": 1 } } },
        ],
        "global_rules": [{ "id": 1, "plugins": { "cors": { "allow_origins": "https://a.test" }, "request-id": {} } }],
    });
    let gateway = Gateway::start(config);
    for (path, status) in [("/known", 401), ("/unknown", 404)] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nOrigin: https://a.test\r\n\r\n");
        let response = gateway.client().request(head);
        assert_eq!(response.status, status, "{response:?}");
        assert_eq!(response.field("access-control-allow-origin"), Some("https://a.test"), "{response:?}");
        assert_eq!(response.field("x-request-id").map(str::len), Some(36), "{response:?}");
    }
}

#[test]
fn https_begins_where_a_trusted_proxy_says_or_the_connection() {
    let origin = Origin::hello();
    let config = route(&origin, &json!({ "redirect": { "http_to_https": true } }));
    let proto = |scheme: &str| format!("X-Forwarded-Proto: {scheme}\r\n");
    let trusted = "trusted_proxies: [127.0.0.0/8]\n";
    for (settings, fields, location) in [
        ("", String::new(), Some("https://a.test/x?y")),
        ("", proto("https"), Some("https://a.test/x?y")),
        ("trusted_proxies: [10.0.0.0/8]\n", proto("https"), Some("https://a.test/x?y")),
        (trusted, String::new(), Some("https://a.test/x?y")),
        (trusted, proto("http"), Some("https://a.test/x?y")),
        (trusted, proto("HTTP, https"), Some("https://a.test/x?y")),
        (trusted, proto("https"), None),
        (trusted, proto("HTTPS"), None),
        (trusted, proto("https, http"), None),
        (trusted, proto(""), Some("https://a.test/x?y")),
        (trusted, proto("ftp"), Some("https://a.test/x?y")),
        (trusted, proto("wss, https"), Some("https://a.test/x?y")),
        ("redirect: {https_port: 443}\n", String::new(), Some("https://a.test/x?y")),
        ("redirect: {https_port: 8443}\n", String::new(), Some("https://a.test:8443/x?y")),
    ] {
        let gateway = Gateway::with(&config, settings);
        let response = ask(&gateway, "GET", &fields);
        let status = if location.is_some() { 301 } else { 200 };
        assert_eq!((response.status, response.field("location")), (status, location), "{settings} {fields}");
    }
}

#[test]
fn over_https_nobody_is_sent_to_https() {
    let origin = Origin::hello();
    let gateway = Start::new(route(&origin, &json!({ "redirect": { "http_to_https": true } }))).https().start();
    let https = gateway.https.expect("it listens for TLS");
    let output = Command::new(program("curl"))
        .args(["-sk", "--resolve", &format!("a.test:{}:127.0.0.1", https.port())])
        .arg(format!("https://a.test:{}/x", https.port()))
        .output()
        .expect("run curl");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello", "{output:?}");
    assert_eq!(ask(&gateway, "GET", "").status, 301);
}

#[test]
fn no_two_workers_make_the_same_request_id() {
    const CLIENTS: usize = 16;
    const REQUESTS: usize = 100;
    let origin = Origin::hello();
    let gateway = Start::new(route(&origin, &json!({ "request-id": {} }))).workers(4).start();
    let client = |addr| {
        let mut client = RawClient::connect(addr);
        let mut id = || client.get("/").field("x-request-id").expect("an id").to_owned();
        (0..REQUESTS).map(|_| id()).collect::<Vec<_>>()
    };
    let ids: HashSet<String> = thread::scope(|scope| {
        let running: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| client(gateway.addr))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a client ends")).collect()
    });
    assert_eq!(ids.len(), CLIENTS * REQUESTS);
    // Version 4, variant 1 (RFC 9562 section 5.4).
    for id in &ids {
        let bytes = id.as_bytes();
        assert!(bytes.len() == 36 && bytes[14] == b'4' && b"89ab".contains(&bytes[19]), "{id}");
    }
    let sent: HashSet<String> =
        origin.requests().iter().filter_map(|seen| seen.fields.get("x-request-id").map(str::to_owned)).collect();
    assert_eq!(sent, ids, "the upstream gets the ids that the clients get");
}

#[test]
fn the_access_log_names_the_request_id() {
    let origin = Origin::hello();
    let config = route(&origin, &json!({ "request-id": { "header_name": "X-Trace", "algorithm": "ksuid" } }));
    let settings = "access_log: {path: FOLDER/access, format: '$request_id'}\n";
    let mut gateway = Start::new(config).settings(settings).start();
    let own = ask(&gateway, "GET", "X-Trace: mine\r\n");
    let new = gateway.get("/").field("x-trace").expect("an id").to_owned();
    assert_eq!(own.field("x-trace"), Some("mine"));
    assert_eq!(new.len(), 27, "{new}");
    gateway.signal(Signal::TERM);
    gateway.wait();
    let log = std::fs::read_to_string(gateway.file("access")).expect("read the access log");
    assert_eq!(log, format!("mine\n{new}\n"));
}
