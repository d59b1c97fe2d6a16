//! The dashboard: its files and session at the Admin API, the figures that it shows, and a real browser that goes through
//! its pages.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    ADMIN_KEY, Answer, Gateway, LIMIT, Origin, RawClient, Response, Start, program, repository, weir,
};

const VIEWER: &str = "the-viewer-key";
const OPERATOR: &str = "the-operator-key";

/// A gateway with a store, keys for all roles, and usage.
fn start() -> Gateway {
    let settings = format!(
        "usage: {{enabled: true}}\nviewer: {{key: {VIEWER}}}\nadmin: {{keys: [{{name: olga, key: {OPERATOR}, role: operator}}]}}\n"
    );
    Start::stored().settings(settings).workers(2).start()
}

/// A request to the port of the Admin API.
fn send(gateway: &Gateway, method: &str, path: &str, fields: &str, body: &str) -> Response {
    let addr = gateway.admin.expect("an Admin API");
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    RawClient::connect(addr).request(format!("{head}{fields}\r\n{body}"))
}

/// A session: the fields of its cookie, and of its token.
struct Session {
    cookie: String,
    token: String,
}

fn log_in(gateway: &Gateway, key: &str) -> Session {
    begin(gateway, &json!({ "key": key }))
}

/// Begins a session with a key, or with the token of a developer.
fn begin(gateway: &Gateway, proof: &Value) -> Session {
    let answer = send(gateway, "POST", "/weir/v1/session", "", &proof.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    let set = answer.field("set-cookie").expect("a cookie").to_owned();
    let port = gateway.admin.expect("an Admin API").port();
    assert!(set.starts_with(&format!("weir_session_{port}=")), "{set}");
    for attribute in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age=86400"] {
        assert!(set.contains(attribute), "{set}");
    }
    let told = answer.json();
    let csrf = told["csrf"].as_str().expect("a token");
    assert!(!set.contains(csrf), "the cookie is not the token");
    let cookie = set.split(';').next().expect("a pair");
    Session { cookie: format!("Cookie: {cookie}\r\n"), token: format!("X-CSRF-Token: {csrf}\r\n") }
}

#[test]
fn the_page_is_served_with_a_strict_policy() {
    let gateway = start();
    let page = send(&gateway, "GET", "/", "Accept-Encoding: gzip\r\n", "");
    assert_eq!((page.status, page.field("content-encoding")), (200, Some("gzip")), "{page:?}");
    let policy = page.field("content-security-policy").expect("a policy");
    for part in
        ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
    {
        assert!(policy.contains(part) && !policy.contains("unsafe"), "{policy}");
    }
    assert_eq!(page.field("x-content-type-options"), Some("nosniff"));
    let tag = page.field("etag").expect("a tag").to_owned();
    assert_eq!(send(&gateway, "GET", "/", &format!("If-None-Match: {tag}\r\n"), "").status, 304);
    let plain = send(&gateway, "GET", "/", "", "");
    assert!(plain.field("content-encoding").is_none() && plain.text().starts_with("<!doctype html>"), "{plain:?}");
    let script = send(&gateway, "GET", "/dashboard/app.js", "", "");
    assert_eq!((script.status, script.field("content-type")), (200, Some("text/javascript; charset=utf-8")));
    assert_eq!(send(&gateway, "POST", "/", "", "").status, 405);
    assert_eq!(send(&gateway, "GET", "/dashboard/other.js", "", "").status, 404);
    let off = Start::stored().settings("admin: {dashboard: false}\n").start();
    assert_eq!(send(&off, "GET", "/", "", "").status, 404);
    let live = send(&off, "GET", "/weir/v1/live", &format!("X-API-KEY: {ADMIN_KEY}\r\n"), "");
    assert!(live.status == 404 && live.text().contains("admin.dashboard"), "{live:?}");
}

#[test]
fn a_session_stands_for_a_key_and_changes_need_its_token() {
    let gateway = start();
    let wrong = send(&gateway, "POST", "/weir/v1/session", "", r#"{"key":"wrong"}"#);
    assert_eq!((wrong.status, wrong.field("set-cookie")), (401, None), "{wrong:?}");
    assert_eq!(send(&gateway, "POST", "/weir/v1/session", "", "{}").status, 400);
    assert_eq!(
        send(&gateway, "GET", "/weir/v1/session", "", "").json(),
        json!({ "authenticated": false, "oidc": false })
    );

    let admin = log_in(&gateway, ADMIN_KEY);
    let (cookie, token) = (&admin.cookie, &admin.token);
    let told = send(&gateway, "GET", "/weir/v1/session", cookie, "").json();
    assert_eq!((&told["role"], &told["authenticated"]), (&json!("admin"), &json!(true)), "{told}");
    assert!(!told.to_string().contains(ADMIN_KEY));
    let put = |fields: &str| {
        let upstream = r#"{"nodes":{"127.0.0.1:1":1}}"#;
        send(&gateway, "PUT", "/weir/v1/resources/upstreams/u", fields, upstream).status
    };
    assert_eq!(put(""), 401);
    assert_eq!(put(cookie), 403, "a change without the token");
    assert_eq!(put(&format!("{cookie}X-CSRF-Token: 00\r\n")), 403);
    assert_eq!(put(&format!("{cookie}{token}Origin: http://evil.test\r\n")), 403, "another page that knew everything");
    assert_eq!(put(&format!("{cookie}{token}Sec-Fetch-Site: cross-site\r\n")), 403);
    assert_eq!(put(&format!("{cookie}{token}")), 201);
    let history = send(&gateway, "GET", "/weir/v1/history", cookie, "").json();
    assert_eq!(history["commits"][0]["author"], "admin", "{history}");
    for fields in ["Origin: http://evil.test\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        let login = send(&gateway, "POST", "/weir/v1/session", fields, &json!({ "key": ADMIN_KEY }).to_string());
        assert_eq!((login.status, login.field("set-cookie")), (403, None), "a login of another page");
    }

    let viewer = log_in(&gateway, VIEWER);
    assert_eq!(put(&format!("{}{}", viewer.cookie, viewer.token)), 401, "a viewer changes nothing");
    let operator = log_in(&gateway, OPERATOR);
    let both = format!("{}{}", operator.cookie, operator.token);
    assert_eq!(put(&both), 403);
    let consumer = send(&gateway, "PUT", "/weir/v1/resources/consumers/jack", &both, "{}");
    assert_eq!(consumer.status, 201, "{consumer:?}");

    assert_eq!(send(&gateway, "DELETE", "/weir/v1/session", cookie, "").status, 403);
    let out = send(&gateway, "DELETE", "/weir/v1/session", &format!("{cookie}{token}"), "");
    assert!(out.status == 200 && out.field("set-cookie").is_some_and(|set| set.contains("Max-Age=0")), "{out:?}");
    assert_eq!(send(&gateway, "GET", "/weir/v1/history", cookie, "").status, 401);
    assert_eq!(put(&format!("{cookie}{token}")), 401);
}

/// A stream of events of the Admin API.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(gateway: &Gateway, path: &str) -> Self {
        let mut stream = TcpStream::connect(gateway.admin.expect("an Admin API")).expect("connect");
        stream.set_read_timeout(Some(LIMIT)).expect("set a timeout");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {ADMIN_KEY}\r\n\r\n").expect("send");
        Self(BufReader::new(stream))
    }

    /// The data of the next event of this name.
    fn next(&mut self, name: &str) -> Value {
        let (mut line, mut is_it) = (String::new(), false);
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).expect("an event") > 0, "the stream has ended");
            match line.trim_end().split_once(": ") {
                Some(("event", found)) => is_it = found == name,
                Some(("data", data)) if is_it => return serde_json::from_str(data).expect("JSON"),
                _ => {}
            }
        }
    }
}

#[test]
fn figures_and_requests_are_told_as_they_come() {
    let origin = Origin::hello();
    let gateway = start();
    let route = json!({ "uri": "/hello/*", "upstream": { "nodes": { origin.node(): 1 } } });
    gateway.must("PUT", "routes/greeting", &route.to_string());
    let mut requests = Events::open(&gateway, "/weir/v1/requests?route=greeting&status=2xx");
    let mut live = Events::open(&gateway, "/weir/v1/live");
    let history = live.next("history");
    assert_eq!(history["t"].as_array().map(Vec::len), history["rps"].as_array().map(Vec::len), "{history}");
    // Whoever watches sees what ends from now on: the streams are open when their first frame is there.
    live.next("frame");
    for _ in 0..20 {
        assert_eq!(gateway.get("/hello/there?secret=1").status, 200);
        assert_eq!(gateway.get("/nothing").status, 404);
    }
    let seen = requests.next("requests");
    let first = &seen["requests"][0];
    assert_eq!((&first["path"], &first["status"]), (&json!("/hello/there"), &json!(200)), "{seen}");
    assert!(first["ms"].as_f64().is_some_and(|ms| ms > 0.0) && first["upstream_ms"].is_f64(), "{first}");
    assert!(!seen.to_string().contains("secret"), "the query is left out: {seen}");
    assert!(seen["requests"].as_array().is_some_and(|all| all.iter().all(|one| one["route"] == "greeting")), "{seen}");
    let (mut ok, mut missed) = (0.0, 0.0);
    let mut last = Value::Null;
    while ok < 19.0 || missed < 19.0 {
        last = live.next("frame");
        ok += last["s2"].as_f64().unwrap_or_default();
        missed += last["s4"].as_f64().unwrap_or_default();
    }
    assert!(last["memory"].as_f64().is_some_and(|bytes| bytes > 1e6) && last["cpu"].is_number(), "{last}");
    assert!(last["p50"].as_f64().is_some_and(|ms| ms > 0.0), "{last}");
    assert_eq!(last["top"]["routes"][0]["id"], "greeting", "{last}");
}

#[test]
fn lists_are_searched_and_paged_without_telling_secrets() {
    let gateway = start();
    let changes: Vec<Value> = (0..120)
        .map(|number| json!({ "key": format!("upstreams/node-{number:03}"), "value": { "name": format!("Number {number}"), "nodes": { "127.0.0.1:1": 1 } } }))
        .chain([
            json!({ "key": "consumers/jack", "value": { "plugins": { "key-auth": { "key": "hidden-word" } } } }),
            json!({ "key": "routes/r", "value": { "uri": "/", "upstream_id": "node-007", "plugins": { "key-auth": {} } } }),
        ])
        .collect();
    let body = json!({ "changes": changes }).to_string();
    let key = format!("X-API-KEY: {ADMIN_KEY}\r\n");
    assert_eq!(send(&gateway, "POST", "/weir/v1/transactions", &key, &body).status, 200);
    let ask = |key: &str, path: &str| {
        let answer = send(&gateway, "GET", &format!("/weir/v1/{path}"), &format!("X-API-KEY: {key}\r\n"), "");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    };
    let page = ask(ADMIN_KEY, "resources?kind=upstreams&page=3&page_size=50");
    let keys: Vec<_> = page["resources"].as_array().expect("a list").iter().map(|one| one["key"].clone()).collect();
    assert_eq!((&page["total"], keys.len()), (&json!(120), 20), "{page}");
    assert_eq!((&keys[0], &keys[19]), (&json!("upstreams/node-100"), &json!("upstreams/node-119")));
    let found = ask(ADMIN_KEY, "resources?kind=upstreams&q=NUMBER%20node-07");
    assert_eq!(found["total"], 10, "both words, in any case: {found}");
    assert_eq!(ask(ADMIN_KEY, "resources?kind=upstreams&q=node-007")["total"], 1);
    for wrong in ["page=0", "page_size=501", "sort=size", "page=x"] {
        assert_eq!(send(&gateway, "GET", &format!("/weir/v1/resources?{wrong}"), &key, "").status, 400, "{wrong}");
    }
    assert_eq!(ask(ADMIN_KEY, "resources?kind=consumers&q=hidden-word")["total"], 1);
    assert_eq!(
        ask(VIEWER, "resources?kind=consumers&q=hidden-word")["total"],
        0,
        "a search finds nothing that is concealed"
    );
    assert_eq!(ask(VIEWER, "resources?kind=consumers&q=jack")["total"], 1);
    let used = ask(VIEWER, "references?key=upstreams/node-007");
    assert_eq!((&used["total"], &used["references"][0]["key"]), (&json!(1), &json!("routes/r")), "{used}");
    let about = ask(VIEWER, "about");
    assert_eq!((&about["counts"]["upstreams"], &about["counts"]["plans"]), (&json!(120), &json!(0)), "{about}");
    assert!(about["read_only"].is_null() && about["usage"] == true && about["workers"] == 2, "{about}");
    let plugins = ask(VIEWER, "plugins");
    let cors = plugins["plugins"].as_array().expect("plugins").iter().find(|one| one["name"] == "cors").expect("cors");
    assert!(cors["doc"].as_str().is_some_and(|doc| doc.len() > 20) && cors["supported"] == true, "{cors}");
}

#[test]
fn a_developer_has_a_page_and_nothing_else() {
    let gateway = start();
    let key = format!("X-API-KEY: {ADMIN_KEY}\r\n");
    let admin = |method: &str, path: &str, body: &Value| {
        let answer = send(&gateway, method, &format!("/weir/v1/{path}"), &key, &body.to_string());
        assert!(answer.status < 300, "{path}: {answer:?}");
        answer.json()
    };
    admin("PUT", "resources/plans/free", &json!({ "limits": [{ "count": 3, "per": "day" }] }));
    admin("PUT", "resources/upstreams/u", &json!({ "nodes": { "127.0.0.1:1": 1 } }));
    admin(
        "PUT",
        "resources/routes/shop",
        &json!({ "uri": "/shop", "upstream_id": "u", "plugins": { "key-auth": {} } }),
    );
    let made = admin("POST", "developers", &json!({ "id": "dora", "name": "Dora", "plans": ["free"] }));
    let token = made["token"].as_str().expect("a token").to_owned();
    for wrong in ["dora.x", "x", ""] {
        let answer = send(&gateway, "POST", "/weir/v1/session", "", &json!({ "token": wrong }).to_string());
        assert_eq!((answer.status, answer.field("set-cookie")), (401, None), "{wrong}");
    }
    let dora = begin(&gateway, &json!({ "token": token }));
    let told = send(&gateway, "GET", "/weir/v1/session", &dora.cookie, "").json();
    assert_eq!((&told["role"], &told["name"]), (&json!("developer"), &json!("developer dora")), "{told}");
    let own = |method: &str, path: &str, fields: &str, body: &str| {
        send(&gateway, method, &format!("/weir/v1/self{path}"), &format!("{}{fields}", dora.cookie), body)
    };
    assert_eq!(own("GET", "", "", "").json()["products"][0]["api"], "shop");
    let body = r#"{"desc":"A phone","plans":["free"]}"#;
    assert_eq!(own("POST", "/applications", "", body).status, 403, "without the token of the session");
    assert_eq!(own("POST", "/applications", &format!("{}Origin: http://evil.test\r\n", dora.token), body).status, 403);
    let app = own("POST", "/applications", &dora.token, body);
    assert_eq!(app.status, 201, "{app:?}");
    let id = app.json()["id"].as_str().expect("an id").to_owned();
    let made = own("POST", &format!("/applications/{id}/keys"), &dora.token, "{}");
    assert!(made.status == 201 && made.json()["key"].is_string(), "{made:?}");
    // The session opens nothing else.
    for path in ["resources", "about", "history", "live", "keys", "tyk/apis"] {
        assert_eq!(send(&gateway, "GET", &format!("/weir/v1/{path}"), &dora.cookie, "").status, 401, "{path}");
    }
    assert_eq!(send(&gateway, "GET", "/apisix/admin/routes", &dora.cookie, "").status, 401);
    let both = format!("{}{}", dora.cookie, dora.token);
    assert_eq!(send(&gateway, "PUT", "/weir/v1/resources/plans/free", &both, "{}").status, 401);
    // An administrator's session is not a developer's.
    let administrator = log_in(&gateway, ADMIN_KEY);
    assert_eq!(send(&gateway, "GET", "/weir/v1/self", &administrator.cookie, "").status, 401);
    admin("PATCH", "developers/dora", &json!({ "suspended": true }));
    assert_eq!(own("GET", "", "", "").status, 403);
    admin("PATCH", "developers/dora", &json!({ "suspended": false }));
    assert_eq!(own("GET", "", "", "").status, 200);
    // With another token the session is over.
    admin("PATCH", "developers/dora", &json!({ "renew_token": true }));
    assert_eq!(own("GET", "", "", "").status, 401);
    assert_eq!(send(&gateway, "GET", "/weir/v1/session", &dora.cookie, "").json()["authenticated"], false);
}

#[test]
fn a_request_is_sent_for_real_and_its_phases_are_told() {
    let origin = Origin::answering(|request| {
        std::thread::sleep(Duration::from_millis(30));
        match request.target.as_str() {
            "/hello?a=1" => Answer::ok("hello"),
            _ => Answer::status(404, "no"),
        }
    });
    let gateway = start();
    gateway.must("PUT", "upstreams/u", &json!({ "nodes": { origin.node(): 1 } }).to_string());
    gateway.must("PUT", "routes/r", r#"{"uri":"/*","upstream_id":"u","plugins":{"key-auth":{}}}"#);
    gateway.must("PUT", "consumers/jack", r#"{"username":"jack","plugins":{"key-auth":{"key":"jacks"}}}"#);
    let ask = |key: &str, body: &Value| {
        send(&gateway, "POST", "/weir/v1/explain", &format!("X-API-KEY: {key}\r\n"), &body.to_string())
    };
    let wanted =
        json!({ "request": "POST http://a.test/hello?a=1", "headers": ["apikey: jacks", "X-Own: 7"], "body": "text" });
    let answer = ask(ADMIN_KEY, &wanted);
    let told = answer.json();
    assert_eq!(
        (answer.status, &told["status"], &told["body"], &told["body_bytes"]),
        (200, &json!(200), &json!("hello"), &json!(5)),
        "{told}"
    );
    let seen = origin.last();
    assert_eq!((seen.method.as_str(), seen.field("x-own"), seen.body.as_slice()), ("POST", Some("7"), &b"text"[..]));
    assert_eq!(seen.field("host"), Some("a.test"));
    let gateway_side = &told["gateway"];
    assert_eq!((&gateway_side["route"], &gateway_side["consumer"]), (&json!("r"), &json!("jack")), "{told}");
    let phases = gateway_side["phases"].as_array().expect("phases");
    let ms = |value: &Value| value.as_f64().expect("a number");
    let sum: f64 = phases.iter().map(|phase| ms(&phase["ms"])).sum();
    let wait = phases.iter().find(|phase| phase["name"] == "wait for the node").expect("the wait");
    assert!((sum - ms(&gateway_side["ms"])).abs() < 0.01 && ms(&wait["ms"]) >= 29.0, "{told}");
    assert!(
        ms(&told["times"]["total_ms"]) >= 30.0 && ms(&told["times"]["connect_ms"]) < ms(&told["times"]["head_ms"]),
        "{told}"
    );
    let refused = ask(ADMIN_KEY, &json!({ "request": "/hello" })).json();
    assert_eq!(
        (&refused["status"], refused["gateway"]["phases"].as_array().map(Vec::len)),
        (&json!(401), Some(1)),
        "{refused}"
    );
    for (body, reason) in [
        (json!({}), "request: expected a method and a URL"),
        (json!({ "request": "GET https://a.test/" }), "https is explained and not sent"),
        (json!({ "request": "GET /", "headers": ["bad"] }), "headers: expected a list"),
        (json!({ "request": "GET /", "headers": ["Content-Length: 9"] }), "it is made of the body"),
    ] {
        let answer = ask(ADMIN_KEY, &body);
        assert!(answer.status == 400 && answer.text().contains(reason), "{body}: {answer:?}");
    }
    assert_eq!(ask(OPERATOR, &wanted).status, 403);
    assert_eq!(ask(VIEWER, &wanted).status, 401);
}

#[test]
fn a_hundred_thousand_resources_are_searched() {
    const COUNT: usize = 100_000;
    let folder = tempfile::tempdir().expect("a folder");
    let (file, data) = (folder.path().join("rules.json"), folder.path().join("data"));
    let routes: Vec<Value> = (0..COUNT)
        .map(|number| {
            json!({ "id": format!("route-{number}"), "name": format!("Orders of shop {}", number % 1000), "uri": format!("/orders/{number}/*"),
                    "upstream_id": "u", "plugins": { "key-auth": {} } })
        })
        .collect();
    let rules = json!({ "routes": routes, "upstreams": [{ "id": "u", "nodes": { "127.0.0.1:1": 1 } }] });
    std::fs::write(&file, rules.to_string()).expect("write a file");
    let [file, place] = [&file, &data].map(|path| path.display().to_string());
    let (status, out, err) = weir(&["store", "import", &file, "--data-dir", &place]);
    assert_eq!(status, 0, "{out}{err}");
    let gateway = Start::stored().data_dir(&data).start();
    let addr = gateway.admin.expect("an Admin API");
    for (query, total) in [
        ("q=route-99999", 1),
        ("q=SHOP%20777", 280),
        ("q=orders%20key-auth", COUNT),
        ("q=nowhere", 0),
        ("page=1500&page_size=50", COUNT),
        ("sort=modified", COUNT),
    ] {
        let head = format!(
            "GET /weir/v1/resources?kind=routes&{query} HTTP/1.1\r\nHost: {addr}\r\nX-API-KEY: {ADMIN_KEY}\r\n\r\n"
        );
        let answer = RawClient::connect(addr).request(head);
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        let told = answer.json();
        let shown = told["resources"].as_array().map_or(0, Vec::len);
        assert_eq!((&told["total"], shown), (&json!(total), total.min(50)), "{query}");
    }
    let page = send(
        &gateway,
        "GET",
        "/weir/v1/resources?kind=routes&page=3&page_size=2",
        &format!("X-API-KEY: {ADMIN_KEY}\r\n"),
        "",
    );
    let keys: Vec<_> =
        page.json()["resources"].as_array().expect("a list").iter().map(|one| one["key"].clone()).collect();
    assert_eq!(keys, [json!("routes/route-1000"), json!("routes/route-10000")], "in the order of keys");
}

#[test]
fn a_file_is_shown_and_says_why_it_cannot_be_changed() {
    let config = json!({ "routes": [{ "id": "r", "uri": "/", "upstream": { "nodes": { "127.0.0.1:1": 1 } } }] });
    let gateway =
        Start::new(config).settings("listen: {admin: '127.0.0.1:0'}\n").variable("WEIR_ADMIN_KEY", ADMIN_KEY).start();
    let session = log_in(&gateway, ADMIN_KEY);
    let about = send(&gateway, "GET", "/weir/v1/about", &session.cookie, "").json();
    assert!(about["read_only"].as_str().is_some_and(|reason| reason.contains("apisix.yaml")), "{about}");
    assert_eq!(about["counts"]["routes"], 1);
    let list = send(&gateway, "GET", "/weir/v1/resources?kind=routes&page=1", &session.cookie, "").json();
    assert_eq!(list["resources"][0]["key"], "routes/r", "{list}");
}

#[test]
fn certificates_that_end_and_nodes_that_fail_are_problems() {
    let gateway = start();
    let key = format!("X-API-KEY: {ADMIN_KEY}\r\n");
    let problems = || send(&gateway, "GET", "/weir/v1/problems", &key, "").json();
    assert_eq!(problems()["problems"], json!([]));
    let (cert, private) = short_certificate();
    let ssl = json!({ "snis": ["short.test"], "cert": cert, "key": private }).to_string();
    gateway.must("PUT", "ssls/short", &ssl);
    let checks = json!({ "active": { "type": "tcp", "healthy": { "interval": 1 }, "unhealthy": { "interval": 1, "tcp_failures": 1 } } });
    let upstream = json!({ "nodes": { "127.0.0.1:1": 1 }, "checks": checks });
    gateway.must("PUT", "upstreams/down", &upstream.to_string());
    gateway.must("PUT", "routes/r", r#"{"uri":"/","upstream_id":"down"}"#);
    let found = crate::harness::wait_until("the node fails its checks", LIMIT, || {
        let found = problems();
        (found["problems"].as_array().map(Vec::len) == Some(2)).then_some(found)
    });
    let of = |sort: &str| found["problems"].as_array().expect("a list").iter().find(|one| one["sort"] == sort).cloned();
    let certificate = of("certificate").expect("the certificate");
    assert_eq!(
        (&certificate["key"], &certificate["severity"]),
        (&json!("ssls/short"), &json!("warning")),
        "{certificate}"
    );
    let node = of("node").expect("the node");
    assert_eq!((&node["key"], &node["severity"]), (&json!("upstreams/down"), &json!("error")), "{node}");
}

#[test]
fn kongs_api_has_the_dashboard_beside_it() {
    let gateway = Start::stored().argument("--family=kong").settings(format!("viewer: {{key: {VIEWER}}}\n")).start();
    let page = send(&gateway, "GET", "/", "Accept: text/html\r\n", "");
    assert!(page.text().starts_with("<!doctype html>"), "{page:?}");
    let admin = log_in(&gateway, ADMIN_KEY);
    let node = send(&gateway, "GET", "/", &format!("{}Accept: */*\r\n", admin.cookie), "").json();
    assert!(node["tagline"].is_string(), "programs get Kong's answer: {node}");
    assert_eq!(send(&gateway, "GET", "/services", "", "").status, 401);
    let service = r#"{"name":"s","host":"127.0.0.1"}"#;
    let json = "Content-Type: application/json\r\n";
    let post = |fields: &str| send(&gateway, "POST", "/services", &format!("{fields}{json}"), service).status;
    assert_eq!(post(&admin.cookie), 403, "a change without the token");
    let viewer = log_in(&gateway, VIEWER);
    assert_eq!(post(&format!("{}{}", viewer.cookie, viewer.token)), 403);
    assert_eq!(post(&format!("{}{}", admin.cookie, admin.token)), 201);
    let about = send(&gateway, "GET", "/weir/v1/about", &viewer.cookie, "").json();
    assert_eq!((&about["family"], &about["counts"]), (&json!("kong"), &json!({ "services": 1 })), "{about}");
    // Resources and history would show what Kong's entities hold without a mask.
    for path in ["resources", "history", "events", "transactions", "keys"] {
        let answer = send(&gateway, "GET", &format!("/weir/v1/{path}"), &admin.cookie, "");
        assert!(matches!(answer.status, 404 | 405), "{path}: {answer:?}");
    }
}

/// A certificate for two days, with its key.
fn short_certificate() -> (String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let done = Command::new(program("openssl"))
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args([
            "-subj",
            "/CN=short.test",
            "-addext",
            "subjectAltName=DNS:short.test",
            "-keyout",
            &path("key"),
            "-out",
            &path("cert"),
        ])
        .output()
        .expect("run openssl");
    assert!(done.status.success(), "{done:?}");
    let read = |name: &str| std::fs::read_to_string(path(name)).expect("read a file");
    (read("cert"), read("key"))
}

/// A gateway with APIcast's configuration, which the example has.
fn of_threescale() -> Gateway {
    let file = std::fs::read_to_string(repository().join("examples/threescale/apicast.json")).expect("an example");
    let services = repository().join("examples/threescale-backend/services.yaml");
    let backend = format!("threescale_backend: {{file: {}}}", services.display());
    let settings = format!(
        "listen: {{admin: '127.0.0.1:0', threescale_backend: '127.0.0.1:0'}}\nadmin: {{key: {ADMIN_KEY}}}\n\
         viewer: {{key: {VIEWER}}}\n{backend}\n"
    );
    Start::new(file).settings(settings).start()
}

#[test]
fn secrets_of_a_familys_file_are_masked() {
    let gateway = of_threescale();
    let viewer = log_in(&gateway, VIEWER);
    assert_eq!(send(&gateway, "GET", "/weir/v1/about", &viewer.cookie, "").json()["family"], "3scale");
    let shown = send(&gateway, "GET", "/weir/v1/resources?page_size=500", &viewer.cookie, "").text();
    assert!(shown.contains("\"backend_authentication_value\":\"***\""), "{shown}");
    for secret in ["a-service-token", "a-secret-of-both-sides"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
}

/// Runs the flows of a browser against gateways; `SHOTS` names a folder for pictures of all pages.
#[test]
fn a_browser_goes_through_all_pages() {
    let origin = Origin::hello();
    let gateway = start();
    let file = json!({
        "routes": [{ "id": "from-a-file", "uri": "/*", "upstream": { "nodes": { origin.node(): 1 } } }],
    });
    let of_file =
        Start::new(file).settings("listen: {admin: '127.0.0.1:0'}\n").variable("WEIR_ADMIN_KEY", ADMIN_KEY).start();
    let site = crate::tyk::Site::new();
    site.api("orders", crate::tyk::keyless("orders", "/orders/", "/"));
    let conf = site.conf(json!({}));
    let tyk =
        Start::at(&conf).settings("listen: {admin: '127.0.0.1:0'}\n").variable("WEIR_ADMIN_KEY", ADMIN_KEY).start();
    let kong = Start::stored().argument("--family=kong").settings(format!("admin: {{key: {ADMIN_KEY}}}\n")).start();
    let threescale = of_threescale();
    let url = |addr: std::net::SocketAddr| format!("http://{addr}");
    let output = Command::new(program("node"))
        .arg(repository().join("crates/weir/tests/dashboard/flows.mjs"))
        .arg(repository().join("target/test-tools/node_modules"))
        .env("ADMIN", url(gateway.admin.expect("an Admin API")))
        .env("GATEWAY", url(gateway.addr))
        .env("FILE_ADMIN", url(of_file.admin.expect("an Admin API")))
        .env("KONG_ADMIN", url(kong.admin.expect("an Admin API")))
        .env("KONG_GATEWAY", url(kong.addr))
        .env("TYK_ADMIN", url(tyk.admin.expect("an Admin API")))
        .env("TYK_GATEWAY", url(tyk.addr))
        .env("THREESCALE_ADMIN", url(threescale.admin.expect("an Admin API")))
        .env("ORIGIN", origin.node())
        .env("ADMIN_KEY", ADMIN_KEY)
        .env("VIEWER_KEY", VIEWER)
        .env("CHROMIUM", program("chromium"))
        .output()
        .expect("run node");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let log = gateway.stderr();
    assert!(output.status.success() && out.contains("all flows passed"), "{out}\n{err}\n{log}");
}
