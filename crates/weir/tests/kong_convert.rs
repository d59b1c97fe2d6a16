//! `weir convert`: what it writes answers as the configuration of Kong's that it was made from.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Response, Start, weir};

/// The rules file that is made of a document, and what is said of it.
fn converted(document: &Value) -> (String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.json");
    fs::write(&file, document.to_string()).expect("written");
    let (code, out, told) = weir(&["convert", &file.display().to_string()]);
    assert_eq!(code, 0, "{told}");
    (out, told)
}

/// Both gateways over one document.
fn both(document: &Value) -> [Gateway; 2] {
    let (rules, _) = converted(document);
    [Start::new(document).start(), Start::text(&rules).start()]
}

fn send(gateway: &Gateway, request: &str) -> Response {
    let (line, fields) = request.split_once('\n').unwrap_or((request, ""));
    let fields: String = fields.lines().map(|line| format!("{line}\r\n")).collect();
    let host = if fields.contains("Host:") { "" } else { "Host: a.test\r\n" };
    gateway.client().request(format!("{line} HTTP/1.1\r\n{host}{fields}\r\n"))
}

/// Status and the target that the origin has seen, for each request.
fn compare(document: &Value, origin: &Origin, requests: &[&str]) {
    let [kong, own] = both(document);
    for request in requests {
        let seen = [&kong, &own].map(|gateway| {
            let before = origin.requests().len();
            let status = send(gateway, request).status;
            let target = origin.requests().get(before).map(|request| (request.method.clone(), request.target.clone()));
            (status, target)
        });
        assert_eq!(seen[0], seen[1], "{request}\n{}", converted(document).0);
    }
}

#[test]
fn routes_and_paths_stay_what_they_are() {
    let origin = Origin::echo();
    let node = origin.node();
    let service = |name: &str, path: &str, routes: Value| json!({ "name": name, "url": format!("http://{node}{path}"), "routes": routes });
    let document = json!({ "_format_version": "3.0", "services": [
        service("plain", "", json!([{ "name": "a", "paths": ["/a", "/long/er"] }, { "name": "keep", "paths": ["/keep"], "strip_path": false }])),
        service("based", "/base", json!([{ "name": "b", "paths": ["/b", "/b/deep/"] }, { "name": "bk", "paths": ["/bk"], "strip_path": false }])),
        service("slashed", "/s/", json!([{ "name": "s", "paths": ["/sl"] }, { "name": "h", "hosts": ["h.test"] }])),
        service("all", "/all", json!([{ "name": "root", "paths": ["/"] }, { "name": "post", "paths": ["/m"], "methods": ["POST"] }])),
    ] });
    let requests = [
        "GET /a",
        "GET /a/",
        "GET /a/x?q=1",
        "GET /ax",
        "GET /long/er/x",
        "GET /keep",
        "GET /keep/x",
        "GET /b",
        "GET /b/x",
        "GET /bx",
        "GET /b/deep/x",
        "GET /b/deep/",
        "GET /bk/x",
        "GET /sl",
        "GET /sl/",
        "GET /sl/x",
        "GET /slx",
        "GET /",
        "GET /none/x",
        "GET /x\nHost: h.test",
        "GET /a/x\nHost: h.test",
        "GET /m",
        "POST /m/x\nContent-Length: 0",
        "GET /a%20b",
    ];
    compare(&document, &origin, &requests);
    let (rules, _) = converted(&document);
    assert!(!rules.contains("The order of Kong's router"), "the longest path wins by itself: {rules}");
}

#[test]
fn an_order_that_paths_do_not_give_is_kept_by_priority() {
    let origin = Origin::echo();
    let node = origin.node();
    let routes = json!([
        { "name": "regex", "paths": ["~/aaaa/b"], "strip_path": false },
        { "name": "long", "paths": ["/aaaa/bbbb"], "strip_path": false },
        { "name": "method", "paths": ["/aaaa"], "methods": ["GET"], "headers": { "x": ["1"] }, "strip_path": true },
        { "name": "wild", "hosts": ["*.w.com"], "paths": ["/w"] },
        { "name": "host", "hosts": ["a.w.com"], "strip_path": false },
        { "name": "group", "paths": ["~/re/\\d+"] },
    ]);
    let document = json!({ "_format_version": "3.0", "services": [{ "name": "s", "url": format!("http://{node}/base"), "routes": routes }] });
    compare(
        &document,
        &origin,
        &[
            "GET /aaaa/bbbb\nx: 1",
            "GET /aaaa/c\nx: 1",
            "GET /aaaa/c",
            "GET /aaaa/bbbb",
            "GET /w/x\nHost: a.w.com",
            "GET /w/x\nHost: b.w.com",
            "GET /w/x\nHost: w.com",
            "GET /re/12/x",
            "GET /re/12",
            "GET /re/x",
        ],
    );
    assert!(converted(&document).0.contains("priority"));
}

#[test]
fn plugins_do_what_they_did() {
    let origin = Origin::echo();
    let node = origin.node();
    let route = |name: &str, plugin: Value| json!({ "name": name, "paths": [format!("/{name}")], "plugins": [plugin] });
    let document = json!({
        "_format_version": "3.0",
        "services": [{ "name": "s", "url": format!("http://{node}"), "plugins": [{ "name": "request-size-limiting", "config": { "allowed_payload_size": 5, "size_unit": "bytes" } }], "routes": [
            route("key", json!({ "name": "key-auth", "config": { "key_names": ["apikey"], "hide_credentials": true } })),
            route("basic", json!({ "name": "basic-auth" })),
            route("limit", json!({ "name": "rate-limiting", "config": { "year": 2, "limit_by": "ip" } })),
            route("many", json!({ "name": "rate-limiting", "config": { "hour": 2, "year": 9, "limit_by": "ip" } })),
            route("closed", json!({ "name": "request-termination", "config": { "status_code": 418, "message": "no" } })),
            route("moved", json!({ "name": "redirect", "config": { "location": "https://b.test/y", "status_code": 302 } })),
            route("address", json!({ "name": "ip-restriction", "config": { "deny": ["127.0.0.0/8"] } })),
            route("bots", json!({ "name": "bot-detection", "config": { "deny": ["evil"] } })),
            route("cors", json!({ "name": "cors", "config": { "origins": ["http://o.test"], "credentials": true } })),
            route("fields", json!({ "name": "request-transformer", "config": { "add": { "headers": ["X-A:1"] }, "remove": { "headers": ["X-B"] }, "http_method": "PUT" } })),
            { "name": "tls", "paths": ["/tls"], "protocols": ["https"] },
            { "name": "groups", "paths": ["/groups"], "plugins": [{ "name": "key-auth" }, { "name": "acl", "config": { "allow": ["gold"] } }] },
        ] }],
        "plugins": [{ "name": "response-transformer", "config": { "add": { "headers": ["X-All:yes"] } } }],
        "consumers": [
            { "username": "jo", "keyauth_credentials": [{ "key": "k1" }], "basicauth_credentials": [{ "username": "jo", "password": "pw" }], "acls": [{ "group": "gold" }] },
            { "username": "al", "keyauth_credentials": [{ "key": "k2" }] },
        ],
    });
    compare(
        &document,
        &origin,
        &[
            "GET /key/x",
            "GET /key/x?apikey=k1",
            "GET /key/x\napikey: k2",
            "GET /key/x\napikey: wrong",
            "GET /basic/x",
            "GET /basic/x\nAuthorization: Basic am86cHc=",
            "GET /limit",
            "GET /limit",
            "GET /limit",
            "GET /many",
            "GET /many",
            "GET /many",
            "GET /closed",
            "GET /moved/x",
            "GET /address",
            "GET /bots",
            "GET /bots\nUser-Agent: evil/1",
            "GET /tls",
            "GET /groups\napikey: k1",
            "GET /groups\napikey: k2",
            "GET /groups",
            "POST /fields/x\nContent-Length: 0",
            "POST /cors\nContent-Length: 9",
        ],
    );
    let [kong, own] = both(&document);
    for gateway in [&kong, &own] {
        let response = send(gateway, "GET /cors\nOrigin: http://o.test");
        assert_eq!(
            (response.field("Access-Control-Allow-Origin"), response.field("X-All")),
            (Some("http://o.test"), Some("yes"))
        );
        send(gateway, "GET /fields\nX-B: 2");
        let told = origin.last();
        assert_eq!((told.field("X-A"), told.field("X-B")), (Some("1"), None));
        assert_eq!(send(gateway, "GET /moved/x").field("Location"), Some("https://b.test/y"));
    }
}

#[test]
fn what_has_no_counterpart_is_told_and_closed() {
    let origin = Origin::hello();
    let node = origin.node();
    let document = json!({
        "_format_version": "3.0",
        "services": [
            { "name": "guarded", "url": format!("http://{node}"), "routes": [{ "name": "g", "paths": ["/g"] }], "plugins": [{ "name": "hmac-auth" }] },
            { "name": "seen", "url": format!("http://{node}"), "routes": [{ "name": "s", "paths": ["/s"] }], "plugins": [{ "name": "statsd" }] },
            { "name": "rich", "url": format!("http://{node}"), "routes": [{ "name": "k", "paths": ["/k"] }], "plugins": [{ "name": "key-auth" }] },
        ],
        "consumers": [{ "username": "jo", "keyauth_credentials": [{ "key": "k1" }], "hmacauth_credentials": [{ "username": "jo", "secret": "s" }],
                        "plugins": [{ "name": "request-transformer", "config": { "add": { "headers": ["a:b"] } } }] }],
    });
    let (rules, told) = converted(&document);
    for says in [
        "services[0].plugins[0]: hmac-auth: the plugin: requests are answered with 503",
        "services[1]: statsd: the plugin: left out",
        "consumers[0]: a credential is left out: there is no counterpart of hmac-auth",
        "consumers[0]: request-transformer of a consumer: requests are answered with 503",
    ] {
        let says = says.replace(".plugins[0]", "");
        assert!(told.contains(&format!("no counterpart: {says}")), "no {says:?} in {told}");
    }
    assert!(
        rules.starts_with("# Made from ") && rules.contains("# Without a counterpart:\n# - services[0]: hmac-auth"),
        "{rules}"
    );
    let gateway = Start::text(&rules).start();
    assert_eq!((gateway.get("/g").status, gateway.get("/s").status), (503, 200));
    assert_eq!(gateway.get("/k").status, 401);
    assert_eq!(send(&gateway, "GET /k\napikey: k1").status, 503);
}

#[test]
fn only_what_serves_is_converted_and_only_kongs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, output) = (folder.path().join("a.yaml"), folder.path().join("out.yaml"));
    let run = |text: &str| {
        fs::write(&file, text).expect("written");
        weir(&["convert", &file.display().to_string(), "--output", &output.display().to_string()])
    };
    let (code, _, told) = run("routes:\n  - {id: a, uri: /a, upstream: {nodes: {\"127.0.0.1:1\": 1}}}\n#END\n");
    assert!(code == 2 && told.contains("only configurations of Kong's are converted"), "{told}");
    let (code, _, told) =
        run("_format_version: '3.0'\nservices: [{name: s, url: 'http://a', plugins: [{name: nope}]}]\n");
    assert!(code == 1 && told.contains("plugin 'nope' is not known"), "{told}");
    assert!(!output.exists());
    let (code, said, told) =
        run("_format_version: '3.0'\nservices: [{name: s, url: 'http://a', routes: [{paths: [/]}]}]\n");
    assert!(code == 0 && said.contains("0 places without a counterpart"), "{said}{told}");
    let (code, _, told) = weir(&["check", &output.display().to_string(), "--strict"]);
    assert_eq!(code, 0, "{told}");
}
