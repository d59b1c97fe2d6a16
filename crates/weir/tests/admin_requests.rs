//! Requests of clients of APISIX's Admin API, in their original forms.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::harness::{ADMIN_KEY, Gateway, LIMIT, Origin, RawClient, Response, Start, wait_until};

/// A request to an API without a key, for this host.
fn sent(addr: SocketAddr, line: &str, host: &str, fields: &str, body: &str) -> Response {
    let length = body.len();
    RawClient::connect(addr).request(format!(
        "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
    ))
}

#[test]
fn without_keys_pages_of_others_change_and_read_nothing() {
    let settings = "admin: {key_required: false, hosts: [weir.test]}\n";
    let gateway = Start::stored().settings(settings).control().start();
    let (admin, control) = (gateway.admin.expect("an Admin API"), gateway.control.expect("a control API"));
    let route = r#"{"uri":"/a","plugins":{"mocking":{"response_example":"a"}}}"#;
    let (own, foreign) = (format!("Origin: http://{admin}\r\n"), "Origin: http://evil.test\r\n");
    let rebound = ("evil.test:9180", "Origin: http://evil.test:9180\r\nSec-Fetch-Site: same-origin\r\n");
    let here = admin.to_string();
    for (host, fields) in [(here.as_str(), foreign), ("localhost", "Sec-Fetch-Site: cross-site\r\n"), rebound] {
        let answer = sent(admin, "PUT /apisix/admin/routes/1", host, fields, route);
        assert!(answer.status == 403 && answer.text().contains("admin.hosts"), "{host} {fields}: {}", answer.text());
        for (addr, line) in [
            (admin, "GET /apisix/admin/routes"),
            (admin, "GET /weir/v1/resources"),
            (control, "GET /v1/routes"),
            (control, "POST /v1/gc"),
        ] {
            let answer = sent(addr, line, host, fields, "");
            assert_eq!(answer.status, 403, "{line} {host} {fields}");
            assert_eq!(answer.field("access-control-allow-origin"), None, "{line} {host} {fields}");
        }
    }
    assert_eq!(gateway.get("/a").status, 404);
    for (host, fields) in [(here.as_str(), own.as_str()), ("localhost:9180", ""), ("weir.test", "")] {
        let answer = sent(admin, "PUT /apisix/admin/routes/1", host, fields, route);
        assert!(answer.status < 300, "{host} {fields}: {}", answer.text());
    }
    for host in ["localhost", "weir.test", "127.0.0.1:1"] {
        assert_eq!(sent(control, "GET /v1/routes", host, "", "").status, 200, "{host}");
    }
    assert_eq!(gateway.get("/a").text(), "a");
}

#[test]
fn a_key_is_enough_whatever_the_page_and_the_proxy() {
    let gateway = Start::stored().start();
    let admin = gateway.admin.expect("an Admin API");
    let key = format!("X-API-KEY: {ADMIN_KEY}\r\nOrigin: https://dashboard.test\r\nSec-Fetch-Site: cross-site\r\n");
    let answer = sent(admin, "GET /apisix/admin/routes", "admin.example.com", &key, "");
    assert_eq!((answer.status, answer.field("access-control-allow-origin")), (200, Some("*")));
    let asked =
        sent(admin, "OPTIONS /apisix/admin/routes", "admin.example.com", "Origin: https://dashboard.test\r\n", "");
    assert_eq!(asked.status, 200);
    for (name, value) in [
        ("content-type", "text/plain"),
        ("content-length", "0"),
        ("access-control-allow-methods", "POST, GET, PUT, OPTIONS, DELETE, PATCH"),
        ("access-control-allow-headers", "*"),
        ("access-control-allow-origin", "*"),
        ("access-control-max-age", "3600"),
    ] {
        assert_eq!(asked.field(name), Some(value), "{name}");
    }
    let closed = Start::stored().settings("admin: {cors: false}\n").start();
    let asked = sent(closed.admin.expect("an Admin API"), "OPTIONS /apisix/admin/routes", "localhost", "", "");
    assert_eq!((asked.status, asked.field("access-control-allow-origin")), (200, None));
}

/// The status and the words of an answer to PUT.
fn put(gateway: &Gateway, path: &str, body: &str) -> (u16, String) {
    let (status, answer) = gateway.ask("PUT", path, body);
    (status, answer["error_msg"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn texts_may_hold_line_feeds() {
    let gateway = Start::stored().start();
    let body = "{\"uri\":\"/a\",\"plugins\":{\"mocking\":{\"response_example\":\"one\n\ttwo\"}}}";
    let stored = gateway.must("PUT", "routes/1", body);
    assert_eq!(stored["value"]["plugins"]["mocking"]["response_example"], "one\n\ttwo");
    assert_eq!(gateway.get("/a").text(), "one\n\ttwo");
    gateway.must("PATCH", "routes/1/desc", "\"a\r\nb\"");
    assert_eq!(gateway.must("GET", "routes/1", "")["value"]["desc"], "a\r\nb");
}

#[test]
fn a_key_that_stands_twice_is_refused() {
    let gateway = Start::stored().start();
    let twice = "the key \"uri\" stands twice in one object";
    for (method, path, body) in [
        ("PUT", "routes/1", r#"{"uri":"/a","plugins":{},"uri":"/b"}"#),
        ("POST", "routes", r#"{"uri":"/a","plugins":{},"uri":"/b"}"#),
        ("POST", "schema/validate/routes", r#"{"uri":"/a","plugins":{},"uri":"/b"}"#),
        ("POST", "configs/validate", r#"{"routes":[{"id":1,"uri":"/a","plugins":{},"uri":"/b"}]}"#),
    ] {
        let (status, answer) = gateway.ask(method, path, body);
        let words = answer["error_msg"].as_str().unwrap_or_default();
        assert!(status == 400 && words.contains(twice), "{method} {path}: {status} {answer}");
    }
    let (status, words) = put(&gateway, "routes/1", r#"{"uri":"/a","plugins":{"mocking":{"delay":1,"delay":2}}}"#);
    assert!(status == 400 && words.contains("the key \"delay\" stands twice"), "{words}");
    let yaml = "routes:\n- id: 1\n  uri: /a\n  uri: /b\n  plugins: {}\n";
    let fields = format!("X-API-KEY: {}\r\nContent-Type: application/yaml\r\n", ADMIN_KEY);
    let answer = gateway.send_to_admin("POST", "configs/validate", &fields, yaml);
    assert!(answer.status == 400 && answer.text().contains("the same key stands at"), "{}", answer.text());
    assert_eq!(gateway.must("GET", "routes", "")["total"], 0);
}

#[test]
fn dots_are_no_ids() {
    let gateway = Start::stored().start();
    gateway.must("PUT", "consumers", r#"{"username":"jack"}"#);
    let (route, id) = (r#"{"uri":"/a","plugins":{}}"#, "property \"id\" validation failed");
    for path in ["routes", "services", "upstreams", "ssls", "protos", "plugin_configs", "consumers/jack/credentials"] {
        for dots in [".", ".."] {
            let (status, words) = put(&gateway, path, &json!({ "id": dots }).to_string());
            assert!(status == 400 && words.contains(id), "{path} {dots}: {status} {words}");
        }
    }
    for dots in ["%2e", "%2E%2e"] {
        let (status, words) = put(&gateway, &format!("routes/{dots}"), route);
        assert!(status == 400 && words.contains(id), "{dots}: {status} {words}");
    }
    let body = r#"{"routes":[{"id":"..","uri":"/a","plugins":{}}]}"#;
    let (status, answer) = gateway.ask("POST", "configs/validate", body);
    assert!(status == 400 && answer.to_string().contains("id"), "{answer}");
    gateway.must("PUT", "routes/...", route);
    gateway.must("PUT", "routes/.a", route);
}

/// Forms that APISIX accepts, the response to them, and the response to a request of the route.
#[test]
fn forms_that_apisix_takes() {
    let origin = Origin::hello();
    let gateway = Start::stored().start();
    let node = origin.addr();
    let port = node.port();
    let listed = json!([{ "host": node.to_string(), "weight": 1 }]);
    for (name, upstream) in [
        ("a host with its port", json!({ "nodes": listed })),
        ("the same port twice", json!({ "nodes": [{ "host": node.to_string(), "port": port, "weight": 1 }] })),
        ("no arguments", json!({ "nodes": { node.to_string(): 1 }, "discovery_args": {} })),
        ("arguments", json!({ "nodes": { node.to_string(): 1 }, "discovery_args": { "group_name": "g" } })),
    ] {
        let stored = gateway.must("PUT", "upstreams/u", &upstream.to_string());
        for (field, value) in upstream.as_object().expect("an object") {
            assert_eq!(stored["value"][field], *value, "{name}");
        }
        assert_eq!(
            gateway.must("GET", "upstreams/u", "")["value"]["discovery_args"],
            upstream["discovery_args"],
            "{name}"
        );
        let route = json!({ "uri": "/a", "upstream": upstream });
        gateway.must("PUT", "routes/1", &route.to_string());
        assert_eq!(gateway.get("/a").text(), "hello", "{name}");
    }
    let other = json!({ "nodes": [{ "host": node.to_string(), "port": 1, "weight": 1 }] }).to_string();
    assert_eq!(put(&gateway, "upstreams/u", &other).0, 400, "two ports");
    let discovered = r#"{"service_name":"s","discovery_type":"dns","discovery_args":{}}"#;
    let route = format!(r#"{{"uri":"/d","upstream":{discovered}}}"#);
    gateway.must("PUT", "routes/d", &route);
    assert_eq!(gateway.get("/d").status, 503, "no servers of the registry are set");
    gateway.must("PUT", "plugin_metadata/limit-count", r#"{"limit_header":"X-L","log_format":{"host":"$host"}}"#);
    gateway.must("PUT", "plugin_metadata/cors", r#"{"nothing":1}"#);
    assert_eq!(gateway.must("GET", "plugin_metadata/cors", "")["value"]["nothing"], 1);
    let (status, words) = put(&gateway, "plugin_metadata/kafka-proxy", r#"{"log_format":{}}"#);
    assert_eq!(
        (status, words.as_str()),
        (400, "invalid plugin name: the plugin kafka-proxy is known and not supported yet")
    );
    let vault = r#"{"uri":"https://vault.test:8200/some/path","prefix":"kv","token":"t"}"#;
    gateway.must("PUT", "secrets/vault/1", vault);
}

#[test]
fn a_configuration_that_is_checked_is_told_one_error_an_item() {
    let gateway = Start::stored().start();
    let config = json!({
        "routes": [
            { "id": "r", "uri": 1, "foo": 2, "plugins": { "nope": {}, "limit-count": { "count": 0 } } },
            { "id": "fine", "uri": "/", "plugins": {} },
            { "id": "s", "uri": "/", "plugins": { "nope": {}, "nothing": {} } },
        ],
        "upstreams": [{ "id": "u", "nodes": 1, "retries": "x" }],
    });
    let (status, answer) = gateway.ask("POST", "configs/validate", &config.to_string());
    let errors = answer["errors"].as_array().expect("errors").clone();
    let places: Vec<_> =
        errors.iter().map(|error| (error["resource_type"].as_str(), error["index"].as_u64())).collect();
    assert_eq!(status, 400);
    let (routes, upstreams) = (Some("routes"), Some("upstreams"));
    let mut sorted = places.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [(routes, Some(0)), (routes, Some(2)), (upstreams, Some(0))], "{answer}");
    let of = |place: (Option<&str>, Option<u64>)| &errors[places.iter().position(|found| *found == place).expect("it")];
    assert!(
        of((routes, Some(0)))["error"].as_str().is_some_and(|error| error.contains("property \"uri\"")),
        "{answer}"
    );
    assert_eq!(of((routes, Some(2)))["resource_id"], "s");
}

#[test]
fn a_folder_is_shown_at_ui() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("dist");
    let file = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("make a folder");
        fs::write(path, text).expect("write a file");
    };
    let long = "x".repeat(300_000);
    for (path, text) in
        [("index.html", "<p>index"), ("assets/a-1.js", "js"), ("a.css", "css"), (".env", "hidden"), ("long.txt", &long)]
    {
        file(path, text);
    }
    fs::write(folder.path().join("secret.txt"), "secret").expect("write a file");
    symlink(folder.path().join("secret.txt"), root.join("out.txt")).expect("a link out");
    symlink(folder.path(), root.join("up")).expect("a link up");
    symlink(root.join("a.css"), root.join("b.css")).expect("a link inside");
    let gateway = Start::stored().settings(format!("admin: {{ui: {}}}\n", root.display())).start();
    let admin = gateway.admin.expect("an Admin API");
    let page = "Accept: text/html,*/*\r\n";
    let html = Some("text/html; charset=utf-8");
    let (none, kept, again) = (None, Some("public, max-age=31536000, immutable"), Some("no-cache"));
    for (path, fields, status, media_type, cache, body) in [
        ("/ui/", "", 200, html, again, "<p>index"),
        ("/ui/index.html", "", 200, html, again, "<p>index"),
        ("/ui/assets/a-1.js", "", 200, Some("text/javascript; charset=utf-8"), kept, "js"),
        ("/ui/a.css?v=1", "", 200, Some("text/css; charset=utf-8"), again, "css"),
        ("/ui/b.css", "", 200, Some("text/css; charset=utf-8"), again, "css"),
        ("/ui/long.txt", "", 200, Some("text/plain; charset=utf-8"), again, &long),
        ("/ui/routes/detail/1", "", 200, html, again, "<p>index"),
        ("/ui/routes/detail/a.b", page, 200, html, again, "<p>index"),
        ("/ui/assets", "", 200, html, again, "<p>index"),
        ("/ui/nothing.js", "", 404, none, none, ""),
        ("/ui/.env", "", 404, none, none, ""),
        ("/ui/out.txt", "", 404, none, none, ""),
        ("/ui/up/secret.txt", "", 404, none, none, ""),
        ("/ui/../secret.txt", "", 404, none, none, ""),
        ("/ui/%2e%2e/secret.txt", "", 404, none, none, ""),
        ("/ui/..%2fsecret.txt", "", 404, none, none, ""),
        ("/ui/a.css%00", "", 404, none, none, ""),
    ] {
        let answer = sent(admin, &format!("GET {path}"), "localhost", fields, "");
        assert_eq!(answer.status, status, "{path}");
        if status == 200 {
            assert_eq!((answer.field("content-type"), answer.field("cache-control")), (media_type, cache), "{path}");
            assert_eq!(answer.text(), body, "{path}");
            assert_eq!(answer.field("x-content-type-options"), Some("nosniff"), "{path}");
            let tag = answer.field("etag").expect("a tag");
            let known =
                sent(admin, &format!("GET {path}"), "localhost", &format!("{fields}If-None-Match: {tag}\r\n"), "");
            assert_eq!((known.status, known.text().as_str()), (304, ""), "{path}");
        } else {
            assert!(!answer.text().contains("secret") && !answer.text().contains("hidden"), "{path}");
        }
    }
    let moved = sent(admin, "GET /ui", "localhost", "", "");
    assert_eq!((moved.status, moved.field("location")), (302, Some("/ui/")));
    assert_eq!(sent(admin, "POST /ui/", "localhost", "", "").status, 405);
    assert_eq!(sent(admin, "GET /apisix/admin/routes", "localhost", "", "").status, 401, "the API asks for a key");
    let plain = Start::stored().start();
    assert_eq!(sent(plain.admin.expect("an Admin API"), "GET /ui/", "localhost", "", "").status, 404);
}

/// More than a client may make the gateway hold: resources of 512 KiB, and clients that read nothing.
#[test]
fn readers_that_read_nothing_cost_little_memory() {
    let settings = "limits: {admin_memory: 4MiB, admin_lists: 2, admin_answer: 1MiB}\nviewer: {key: viewer-key}\n";
    let gateway = Start::stored().settings(settings).start();
    let admin = gateway.admin.expect("an Admin API");
    let example = "x".repeat(512 * 1024);
    for id in 0..16 {
        let route = json!({ "uri": format!("/{id}"), "plugins": { "mocking": { "response_example": example } } });
        gateway.must("PUT", &format!("routes/{id}"), &route.to_string());
    }
    let memory = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", gateway.processes()[0])).expect("its status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
        line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number")
    };
    let before = memory();
    let paths = [
        "/apisix/admin/routes",
        "/apisix/admin/routes/1",
        "/apisix/admin/configs",
        "/weir/v1/resources",
        "/weir/v1/history?limit=1000",
        "/weir/v1/diff?from=0",
    ];
    let silent: Vec<TcpStream> = (0..120)
        .map(|at| {
            let mut stream = TcpStream::connect(admin).expect("connect");
            let path = paths[at % paths.len()];
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: viewer-key\r\n\r\n").expect("send");
            stream
        })
        .collect();
    // A request that cannot be answered in time is refused.
    let mut last = silent.last().expect("a client");
    last.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut status = [0; 12];
    last.read_exact(&mut status).expect("a status");
    let grown = memory().saturating_sub(before) / 1024;
    assert!(grown < 100, "{grown} MiB more for 120 clients that read nothing");
    drop(silent);
    let list = wait_until("a list for who reads", LIMIT, || {
        let (status, list) = gateway.ask("GET", "routes", "");
        (status == 200).then_some(list)
    });
    assert_eq!(list["total"], 16);
    let keys: Vec<_> = list["list"].as_array().expect("a list").iter().map(|item| item["key"].clone()).collect();
    assert!(keys.is_sorted_by_key(|key| key.as_str().map(str::to_owned)), "{keys:?}");
    let config = gateway.must("GET", "configs", "");
    assert_eq!(config["routes"].as_array().map(Vec::len), Some(16));
}

#[test]
fn what_was_is_told_within_bounds() {
    let gateway = Start::stored().settings("limits: {admin_answer: 64KiB}\n").start();
    let admin = gateway.admin.expect("an Admin API");
    for turn in 0..8 {
        let example = format!("{turn}").repeat(12 * 1024);
        let route = json!({ "uri": "/a", "plugins": { "mocking": { "response_example": example } } });
        gateway.must("PUT", "routes/1", &route.to_string());
    }
    let key = format!("X-API-KEY: {ADMIN_KEY}\r\n");
    let get = |path: &str| sent(admin, &format!("GET /weir/v1/{path}"), "localhost", &key, "").json();
    let mut told = Vec::new();
    let mut before = String::new();
    for _ in 0..20 {
        let page = get(&format!("history?limit=100{before}"));
        let commits = page["commits"].as_array().expect("commits").clone();
        assert!(page.to_string().len() < 128 * 1024);
        told.extend(commits.iter().map(|commit| commit["revision"].as_u64().expect("a revision")));
        if page["more"] != true {
            break;
        }
        before = format!("&before={}", told.last().expect("a commit"));
    }
    assert_eq!(told, [8, 7, 6, 5, 4, 3, 2, 1]);
    let large = "y".repeat(80 * 1024);
    let route = json!({ "uri": "/a", "plugins": { "mocking": { "response_example": large } } });
    gateway.must("PUT", "routes/1", &route.to_string());
    let omitted = json!([{ "key": "routes/1", "omitted": true }]);
    assert_eq!(get("diff?from=1")["changes"], omitted);
    assert_eq!(get("history?limit=1")["commits"][0]["changes"], omitted);
}

#[test]
fn every_plugin_of_apisix_is_listed_with_what_is_not_supported_marked() {
    let gateway = Start::stored().control().start();
    let names = gateway.must("GET", "plugins/list", "");
    let all = gateway.must("GET", "plugins?all=true", "");
    let control = sent(gateway.control.expect("a control API"), "GET /v1/schema", "localhost", "", "").json();
    let priorities: Vec<i64> = names
        .as_array()
        .expect("names")
        .iter()
        .map(|name| all[name.as_str().expect("a name")]["priority"].as_i64().expect("a priority"))
        .collect();
    assert!(priorities.is_sorted_by(|one, other| one >= other), "{names}");
    for (name, priority) in weir_config::catalog::APISIX_DEFAULT_PLUGINS {
        assert!(names.as_array().expect("names").contains(&json!(name)), "{name}");
        let supported = weir_plugins::definitions().iter().any(|definition| definition.name() == *name);
        for told in [&all[*name], &control["plugins"][*name]] {
            assert_eq!(told["priority"], *priority, "{name}");
            assert!(told["schema"]["type"] == "object" || supported, "{name}");
            assert_eq!(told.get("x-weir-supported"), (!supported).then_some(&json!(false)), "{name}");
        }
        let schema = gateway.must("GET", &format!("schema/plugins/{name}"), "");
        assert_eq!(schema.get("x-weir-supported").is_some(), !supported, "{name}");
    }
    assert_eq!(all.as_object().map(|all| all.len()), names.as_array().map(Vec::len));
    let is_missing = |name: &str| weir_plugins::definitions().iter().all(|definition| definition.name() != name);
    let missing = weir_config::catalog::APISIX_DEFAULT_PLUGINS.iter().find(|(name, _)| is_missing(name));
    let (name, _) = missing.expect("one that is not supported yet");
    let refused = put(&gateway, "routes/1", &json!({ "uri": "/a", "plugins": { *name: {} } }).to_string());
    assert_eq!(refused, (400, format!("unknown plugin [{name}]: it is not supported yet")));
}
