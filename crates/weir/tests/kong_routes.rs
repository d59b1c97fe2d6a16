//! Routes of Kong's family by SNI, by expressions, and of streams.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use serde_json::json;

use crate::harness::{Authority, Gateway, Kind, LIMIT, Origin, Start, each, weir};
use crate::tls::curl;

/// A route that answers with its name.
fn answering(name: &str, more: &serde_json::Value) -> serde_json::Value {
    let mut route = json!({
        "name": name,
        "plugins": [{ "name": "request-termination", "config": { "status_code": 200, "message": name } }],
    });
    route.as_object_mut().expect("a route").extend(more.as_object().expect("fields").clone());
    route
}

#[test]
fn routes_are_found_by_the_name_that_a_client_asks_for_by_tls() {
    let authority = Authority::new();
    let names = ["a.test", "b.a.test", "c.other", "d.test"];
    let certificate = authority.certificate(Kind::P256, &names);
    let config = json!({
        "_format_version": "3.0",
        "certificates": [{ "cert": certificate.cert, "key": certificate.key, "snis": names }],
        "routes": [
            answering("plain", &json!({ "snis": ["a.test."], "protocols": ["https"] })),
            answering("below", &json!({ "snis": ["*.a.test"], "paths": ["/p"] })),
            answering("start", &json!({ "snis": ["c.*"], "protocols": ["https"] })),
            answering("any", &json!({ "paths": ["/"] })),
        ],
    });
    let gateway = Start::new(config).https().start();
    let message = |host: &str, path: &str| {
        let seen = curl(&gateway, Some(&authority), (host, path), &[]);
        let body: serde_json::Value = serde_json::from_str(&seen.out).unwrap_or_default();
        body["message"].as_str().unwrap_or(&seen.err).to_owned()
    };
    let cases = [
        ("a.test", "/x", "any"),
        ("b.a.test", "/p", "below"),
        ("b.a.test", "/x", "any"),
        ("c.other", "/p", "any"),
        ("d.test", "/p", "any"),
    ];
    // A path counts for more than an SNI alone: their ranks differ by its length.
    for (host, path, expected) in cases {
        assert_eq!(message(host, path), expected, "{host}{path}");
    }
    // Without TLS the condition is met by every request.
    let response = gateway.get("/p");
    assert_eq!(response.json()["message"], "below");
}

#[test]
fn an_sni_alone_finds_its_route() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test", "x.b.test"]);
    let config = json!({
        "_format_version": "3.0",
        "certificates": [{ "cert": certificate.cert, "key": certificate.key, "snis": ["a.test", "*.b.test"] }],
        "routes": [
            answering("a", &json!({ "snis": ["a.test"], "protocols": ["https"] })),
            answering("b", &json!({ "snis": ["*.b.test"], "protocols": ["https"] })),
        ],
    });
    let gateway = Start::new(config).https().start();
    for (arguments, status) in [(["-H", "Host: other.test"], "a"), (["-H", "Host: x.b.test"], "a")] {
        let seen = curl(&gateway, Some(&authority), ("a.test", "/"), &arguments);
        assert!(seen.out.contains(&format!("\"message\":\"{status}\"")), "{} {}", seen.out, seen.err);
    }
    let seen = curl(&gateway, Some(&authority), ("x.b.test", "/"), &["--http1.1"]);
    assert!(seen.out.contains("\"message\":\"b\""), "{} {}", seen.out, seen.err);
    // Without TLS the first of them takes the request, and asks for TLS.
    assert_eq!(gateway.get("/").status, 426);
}

/// Expressions with requests that they take, and others.
const EXPRESSIONS: &[(&str, &[&str], &[&str])] = &[
    (r#"http.path == "/a""#, &["GET /a"], &["GET /a/b", "GET /A"]),
    (r#"http.path ^= "/p" && http.method == "GET""#, &["GET /p", "GET /px?y"], &["POST /p", "GET /q"]),
    (r#"http.path =^ ".json""#, &["GET /x.json"], &["GET /x.jso"]),
    (r#"http.path contains "/v1/""#, &["GET /a/v1/b"], &["GET /a/v1"]),
    (r#"lower(http.path) ^= "/low""#, &["GET /LOW/x", "GET /low"], &["GET /lo"]),
    (r##"http.path ~ r#"^/n/\d+$"#"##, &["GET /n/12"], &["GET /n/x", "GET /n/1/"]),
    (r#"http.method == "PUT" || http.method == "POST""#, &["PUT /", "POST /"], &["GET /"]),
    (
        r#"http.host == "h.test" && !(http.path ^= "/no")"#,
        &["GET /\nHost: h.test:81"],
        &["GET /no\nHost: h.test", "GET /"],
    ),
    (r#"http.headers.x_kind == "One""#, &["GET /\nX-Kind: One"], &["GET /\nX-Kind: one", "GET /"]),
    (r#"lower(http.headers.x-kind) == "one""#, &["GET /\nX-Kind: ONE"], &["GET /\nX-Kind: two"]),
    (r#"http.headers.x_kind != "one""#, &["GET /\nX-Kind: two"], &["GET /\nX-Kind: one", "GET /"]),
    (
        r#"http.queries.a == "1" && (http.queries.b == "2" || http.queries.c == "3")"#,
        &["GET /?a=1&c=3"],
        &["GET /?a=1", "GET /?c=3"],
    ),
    ("net.src.ip in 127.0.0.0/8", &["GET /"], &[]),
    ("net.src.ip not in 127.0.0.0/8", &[], &["GET /"]),
    ("net.src.ip == 127.0.0.1 && net.dst.port > 1", &["GET /"], &[]),
    (r#"net.protocol == "https""#, &[], &["GET /"]),
    (
        r#"(http.path ^= "/x" || http.path ^= "/y") && http.method == "GET""#,
        &["GET /x1", "GET /y"],
        &["GET /z", "POST /x"],
    ),
];

#[test]
fn expressions_take_what_they_say() {
    each(
        EXPRESSIONS,
        |(expression, ..)| (*expression).to_owned(),
        |(expression, taken, others)| {
            let route = answering("taken", &json!({ "expression": expression, "priority": 1 }));
            let gateway = Start::new(json!({ "_format_version": "3.0", "routes": [route] })).start();
            let expected = taken.iter().map(|request| (request, 200)).chain(others.iter().map(|other| (other, 404)));
            for (request, status) in expected {
                let (line, fields) = request.split_once('\n').unwrap_or((request, "Host: o"));
                let host = if fields.contains("Host:") { "" } else { "Host: o\r\n" };
                let text = format!("{line} HTTP/1.1\r\n{host}{fields}\r\nContent-Length: 0\r\n\r\n");
                assert_eq!(gateway.client().request(text).status, status, "{request}");
            }
        },
    );
}

#[test]
fn expressions_go_by_priority_and_before_other_routes() {
    let origin = Origin::echo();
    let service = |routes: serde_json::Value| json!([{ "name": "s", "url": format!("http://{}/base", origin.node()), "routes": routes }]);
    let config = json!({
        "_format_version": "3.0",
        "services": service(json!([
            { "name": "low", "expression": r#"http.path ^= "/a""#, "priority": 1, "strip_path": false },
            { "name": "high", "expression": r#"http.path ^= "/a/b" && http.method == "GET""#, "priority": 5 },
            { "name": "other", "hosts": ["o"], "paths": ["/a/b", "/c"], "methods": ["GET"], "headers": { "x": ["1"] } },
        ])),
    });
    let gateway = Start::new(config).start();
    for (request, target) in [("GET /a/b/c", "/base/c"), ("POST /a/b/c", "/base/a/b/c"), ("GET /c/d", "/base/d")] {
        let text = format!("{request} HTTP/1.1\r\nHost: o\r\nx: 1\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(gateway.client().request(text).status, 200, "{request}");
        assert_eq!(origin.last().target, target, "{request}");
    }
}

#[test]
fn faults_of_expressions_name_their_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("http.pathh == \"/\"", "unknown field http.pathh, at its character 1"),
        ("http.path = \"/\"", "expected one of =="),
        ("http.path == /", "expected a text in quotes, a number, or an address or range, at its character 14"),
        ("(http.path == \"/\"", "expected )"),
        ("http.path == \"/\" http.path == \"/\"", "expected && or ||"),
        ("http.path ~ \"[\"", "invalid regex"),
        ("net.src.ip == \"10.0.0.1\"", "net.src.ip is compared with an address or a range, without quotes"),
        ("http.path.segments.0 == \"a\"", "the field http.path.segments.0 is not supported"),
        ("!http.path == \"/\"", "expected ( after !"),
    ];
    for (at, (expression, says)) in cases.into_iter().enumerate() {
        let file = folder.path().join(format!("{at}.json"));
        let route = json!({ "name": "r", "expression": expression });
        fs::write(&file, json!({ "_format_version": "3.0", "routes": [route] }).to_string()).expect("written");
        let (code, _, told) = weir(&["check", &file.display().to_string()]);
        assert!(code == 1 && told.contains("routes[0].expression") && told.contains(says), "{expression}: {told}");
    }
}

/// A service that says its name, and sends back what it gets.
fn echo(name: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let addr = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(name.as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
        }
    });
    addr
}

fn said(addr: SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).expect("connect");
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    let mut received = String::new();
    let _ = stream.read_to_string(&mut received);
    received
}

#[test]
fn routes_of_streams_go_by_addresses_and_ports() {
    let (near, far, any) = (echo("near"), echo("far"), echo("any"));
    let document = format!(
        "_format_version: '3.0'
services:
- {{name: near, url: 'tcp://{near}', routes: [{{name: near, protocols: [tcp], sources: [{{ip: 10.0.0.1}}, {{ip: 127.0.0.1}}]}}]}}
- {{name: far, url: 'tcp://{far}', routes: [{{name: far, protocols: [tcp], sources: [{{ip: 10.0.0.0/8}}]}}]}}
- name: any
  host: pool
  protocol: tcp
  routes: [{{name: any, protocols: [tcp, tls], destinations: [{{ip: 127.0.0.2}}]}}]
upstreams: [{{name: pool, targets: ['{any}']}}]
"
    );
    let settings = json!({ "listen": { "http": ["127.0.0.1:0"], "https": [], "tcp": ["127.0.0.1:0", "127.0.0.2:0"] } });
    let gateway: Gateway = Start::text(&document).settings(settings).own_listeners().start();
    // A client of 127.0.0.2 comes from 127.0.0.1 as well: of both, the address of a source alone is as specific.
    assert_eq!(said(gateway.addrs[1]), "near");
    assert!(["near", "any"].contains(&said(gateway.addrs[2]).as_str()));
}

#[test]
fn faults_of_routes_of_streams_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("protocols: [tcp], sources: [{ip: x}]", "sources[0]: ip: invalid ip or cidr range"),
        ("protocols: [tcp], sources: [{ip: 10.0.0.1, port: 5}]", "a port of the client is not supported"),
        ("protocols: [tcp], destinations: [{}]", "at least one of these fields must be non-empty: 'ip', 'port'"),
        ("protocols: [tcp], paths: [/a], destinations: [{port: 5}]", "paths: cannot be set on a route of streams"),
        ("protocols: [tcp]", "must set one of 'sources', 'destinations', 'snis'"),
        ("protocols: [tcp, http], paths: [/]", "a route is for requests (http, https, grpc, grpcs) or for streams"),
        ("protocols: [http], paths: [/], sources: [{ip: 10.0.0.1}]", "sources: only for routes of streams"),
    ];
    for (at, (route, says)) in cases.into_iter().enumerate() {
        let file = folder.path().join(format!("{at}.yml"));
        let text = format!(
            "_format_version: '3.0'\nservices: [{{name: s, url: 'tcp://a:5', routes: [{{name: r, {route}}}]}}]\n"
        );
        fs::write(&file, text).expect("written");
        let (code, _, told) = weir(&["check", &file.display().to_string()]);
        assert!(code == 1 && told.contains(says), "{route}: {told}");
    }
}
