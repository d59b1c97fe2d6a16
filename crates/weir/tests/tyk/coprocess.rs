//! Middleware over gRPC (`driver: grpc`), with a service on Debian's grpcio.

use std::process::Stdio;

use serde_json::{Value, json};

use super::{Site, error, key, keyed, keyless, right, send, told};
use crate::grpc::{Service, peer};
use crate::harness::{Answer, Gateway, Origin, Start, h2_origin, weir};

/// The service with the functions of `tests/coprocess_peer.py`.
fn service() -> Service {
    Service::of(peer("coprocess_peer.py").stderr(Stdio::null()))
}

/// An API with functions before and behind authentication.
fn with_hooks(pre: &[&str], post: &[&str]) -> Value {
    let hooks = |names: &[&str]| names.iter().map(|name| json!({"name": name, "path": ""})).collect::<Vec<_>>();
    let mut definition = keyless("gr", "/gr/", "/base");
    definition["config_data"] = json!({"a": 1});
    definition["custom_middleware"] = json!({"pre": hooks(pre), "post": hooks(post), "driver": "grpc"});
    definition
}

/// The same, whose callers the service knows.
fn with_check() -> Value {
    let mut definition = with_hooks(&[], &[]);
    definition["use_keyless"] = false.into();
    definition["enable_coprocess_auth"] = true.into();
    definition["custom_middleware"]["auth_check"] = json!({"name": "know", "path": ""});
    definition["custom_middleware"]["post_key_auth"] = json!([{"name": "tell", "path": ""}]);
    definition
}

fn start(site: &Site, node: &str) -> Gateway {
    let options = json!({"enable_coprocess": true, "coprocess_grpc_server": format!("tcp://{node}")});
    Start::at(&site.conf(json!({"coprocess_options": options}))).start()
}

/// Told facts of a call, which the origin got in a header.
fn told_of(site: &Site, hook: &str) -> Value {
    let last = site.origin.last();
    serde_json::from_str(last.field(&format!("x-told-{}", hook.to_lowercase())).expect("facts")).expect("JSON")
}

#[test]
fn functions_see_requests_and_change_them() {
    let (site, service) = (Site::new(), service());
    site.api("gr", with_hooks(&["tell", "change"], &["tell"]));
    let gateway = start(&site, &service.node);
    let response = send(&gateway, "POST /gr/x?p=1&p=2&gone=1\nX-In: in\nX-Gone: g\n\nhello");
    assert_eq!(response.status, 200, "{response:?}");
    let last = site.origin.last();
    assert_eq!((last.method.as_str(), last.target.as_str()), ("PUT", "/base/x?p=1&p=2&added=a%20b"));
    assert_eq!((last.body.as_slice(), last.field("X-New"), last.field("X-Gone")), (&b"hello!"[..], Some("new"), None));
    assert_eq!(
        told_of(&site, "Pre"),
        json!({
            "hook": "Pre", "url": "/gr/x?p=1&p=2&gone=1", "uri": "/gr/x?p=1&p=2&gone=1", "method": "POST", "scheme": "http",
            "body": "hello", "raw": 5, "host": "o", "in": "in", "params": {"p": "1", "gone": "1"}, "meta": {}, "rate": 0.0,
            "spec": {"APIID": "gr", "OrgID": "o1", "config_data": "{\"a\":1}"}, "rights": [], "code": -1,
        })
    );
    assert_eq!(told_of(&site, "Post")["body"], "hello!");
    // Bytes that are no text.
    assert_eq!(send(&gateway, "POST /gr/x\n\n\u{1}").status, 200);
    assert_eq!((&told_of(&site, "Pre")["body"], &told_of(&site, "Pre")["raw"]), (&json!("\u{1}"), &json!(1)));
    site.api("gr", with_hooks(&[], &["move"]));
    let gateway = start(&site, &service.node);
    assert_eq!(send(&gateway, "GET /gr/x?a=1").status, 200);
    assert_eq!(site.origin.last().target, "/base/moved?a=1");
}

#[test]
fn functions_answer_in_the_upstreams_place() {
    let (site, service) = (Site::new(), service());
    site.api("gr", with_hooks(&["refuse"], &[]));
    let gateway = start(&site, &service.node);
    for (query, status, body) in [
        ("code=403&text=no", 403, error("no")),
        ("code=403", 403, error("Key not authorised")),
        ("code=403&text=no&override=1", 403, "no".to_owned()),
        ("code=201&text=made", 201, "made".to_owned()),
        ("code=1000", 500, error("Middleware error")),
    ] {
        let response = send(&gateway, &format!("GET /gr/?{query}"));
        assert_eq!(told(&response), (status, body), "{query}");
        let own = (status != 500).then_some("own");
        assert_eq!(response.field("X-Own"), own, "{query}");
    }
    assert_eq!(send(&gateway, "GET /gr/?code=0").status, 200);
    assert_eq!(site.origin.requests().len(), 1);
}

/// A definition with functions for answers.
fn with_answer_hooks(mut definition: Value, names: &[&str]) -> Value {
    let hooks: Vec<_> = names.iter().map(|name| json!({"name": name, "path": ""})).collect();
    definition["custom_middleware"] = json!({"response": hooks, "driver": "grpc"});
    definition
}

#[test]
fn functions_change_answers() {
    let origin = Origin::answering(|request| {
        let status = if request.target.contains("none") { "204 None" } else { "200 OK" };
        let length = if request.target.contains("none") { "" } else { "Content-Length: 5\r\n" };
        let body = if request.target.contains("none") || request.method == "HEAD" { "" } else { "hello" };
        Answer::keep(format!("HTTP/1.1 {status}\r\nX-Two: 1\r\nX-Two: 2\r\nX-Gone: g\r\n{length}\r\n{body}"))
    });
    let (site, service) = (Site::at(origin), service());
    site.api("an", with_answer_hooks(keyed("an"), &["tell_answer", "change_answer"]));
    site.api("mv", with_answer_hooks(keyless("mv", "/mv/", "/"), &["all_values"]));
    let gateway = start(&site, &service.node);
    let session = json!({"quota_max": 9, "quota_renewal_rate": 60, "meta_data": {"name": "n"}});
    let key = key(&gateway, &right("an", session));
    let response = send(&gateway, &format!("POST /an/x?p=1\nAuthorization: {key}\n\nbody"));
    assert_eq!(told(&response), (201, "HELLO".to_owned()));
    let fields = ["X-New", "X-Gone", "X-RateLimit-Remaining", "Content-Length"].map(|name| response.field(name));
    assert_eq!(fields, [Some("new"), None, Some("8"), Some("5")], "{response:?}");
    assert_eq!(response.fields.all("X-Two"), ["first", "2"]);
    let facts: Value = serde_json::from_str(response.field("X-Told").expect("facts")).expect("JSON");
    assert_eq!(
        facts,
        json!({
            "hook": "Response", "status": 200, "body": "hello", "raw": 5, "single": "1", "two": [["1", "2"]],
            "method": "POST", "url": "/an/x?p=1", "name": "n",
        })
    );
    // Answers without a body, and those of the gateway's own.
    let response = send(&gateway, &format!("HEAD /an/x\nAuthorization: {key}"));
    assert_eq!((response.status, response.field("X-New")), (201, Some("new")));
    assert_eq!(send(&gateway, &format!("GET /an/none\nAuthorization: {key}")).field("X-New"), Some("new"));
    assert_eq!(send(&gateway, "GET /an/x").field("X-New"), None);
    // Headers of several values, where those of single values were left as they are.
    let response = send(&gateway, "GET /mv/x");
    assert_eq!((response.fields.all("X-Many"), response.fields.all("X-Two")), (vec!["a", "b"], vec!["1", "2"]));
}

#[test]
fn an_answer_that_cannot_be_changed_is_not_sent() {
    let (site, service) = (Site::new(), service());
    for name in ["fail", "no_answer", "bad_status", "answer_of_two_lines", "tell_answer"] {
        let path = format!("/{name}/");
        site.api(name, with_answer_hooks(keyless(name, &path, "/"), &[name]));
    }
    let gateway = start(&site, &service.node);
    let failed = (500, error("Middleware error"));
    for target in ["/fail/", "/no_answer/", "/bad_status/?code=0", "/bad_status/?code=1000", "/answer_of_two_lines/"] {
        assert_eq!(told(&send(&gateway, &format!("GET {target}"))), failed, "{target}");
    }
    assert_eq!(send(&gateway, "GET /tell_answer/").status, 200);
    drop(service);
    assert_eq!(told(&send(&gateway, "GET /tell_answer/")), failed);
}

#[test]
fn a_service_knows_the_callers() {
    let (site, service) = (Site::new(), service());
    site.api("gr", with_check());
    let right = json!({"gr": {"api_id": "gr", "versions": ["Default"]}});
    site.write(
        "policies.json",
        json!({"policy": {"rate": 7, "per": 1, "quota_max": -1, "active": true, "access_rights": right}}),
    );
    let gateway = start(&site, &service.node);
    let ask = |path: &str, key: &str| told(&send(&gateway, &format!("GET /gr{path}\nAuthorization: {key}")));
    let elsewhere = error("Access to this API has been disallowed");
    for (key, path, status, body) in [
        ("", "/", 403, error("Forbidden")),
        ("other", "/", 403, error("Forbidden")),
        ("stop", "/", 401, error("Go away")),
        ("key-elsewhere", "/", 403, elsewhere),
        ("key-path", "/no", 403, error("Access to this resource has been disallowed")),
        ("key-policy-none", "/", 403, error("Forbidden")),
    ] {
        assert_eq!(ask(path, key), (status, body), "{key}");
    }
    assert_eq!(site.origin.requests().len(), 0);
    assert_eq!((ask("/ok", "key-path").0, ask("/a", "key-policy").0), (200, 200));
    let facts = told_of(&site, "PostKeyAuth");
    assert_eq!((&facts["rate"], &facts["meta"]["name"], &facts["rights"]), (&json!(7.0), &json!("n"), &json!(["gr"])));
    assert_eq!(site.origin.last().field("X-Known"), Some("key-policy"));
    // Two in an hour, for each token apart.
    assert_eq!((ask("/", "key-1").0, ask("/", "key-1").0, ask("/", "key-2").0), (200, 200, 200));
    assert_eq!(ask("/", "key-1"), (403, error("Quota exceeded")));
}

#[test]
fn a_service_that_is_away_or_fails_lets_nobody_through() {
    let (site, service) = (Site::new(), service());
    site.api("gr", with_hooks(&["fail"], &[]));
    let mut two_lines = with_hooks(&[], &["header_of_two_lines"]);
    (two_lines["api_id"], two_lines["proxy"]["listen_path"]) = ("lines".into(), "/lines/".into());
    site.api("lines", two_lines);
    let mut check = with_check();
    (check["api_id"], check["proxy"]["listen_path"]) = ("check".into(), "/check/".into());
    site.api("check", check);
    let gateway = start(&site, &service.node);
    let failed = (500, error("Middleware error"));
    assert_eq!(told(&send(&gateway, "GET /gr/")), failed);
    assert_eq!(told(&send(&gateway, "GET /lines/")), failed);
    drop(service);
    assert_eq!(told(&send(&gateway, "GET /gr/")), failed);
    assert_eq!(told(&send(&gateway, "GET /check/\nAuthorization: key-1")), (403, error("Key not authorised")));
    // One that says nothing until the time of plugins is over.
    site.api("gr", with_hooks(&["tell"], &[]));
    let silent = h2_origin([], |connection| while connection.news().is_some() {});
    let options = json!({"enable_coprocess": true, "coprocess_grpc_server": silent.node()});
    let conf = site.conf(json!({"coprocess_options": options}));
    let gateway = Start::at(&conf).settings(json!({"timeouts": {"plugin": "500ms"}})).start();
    assert_eq!(send(&gateway, "GET /gr/").status, 504);
    assert_eq!(site.origin.requests().iter().filter(|request| request.target.starts_with("/base")).count(), 0);
}

#[test]
fn settings_that_are_missing_are_told() {
    let site = Site::new();
    let told = |conf: Value, definition: Value| {
        site.api("gr", definition);
        let conf = site.conf(conf);
        let (_, out, err) = weir(&["check", conf.to_str().expect("a path")]);
        out + &err
    };
    let needs = "middleware over gRPC needs coprocess_options.enable_coprocess and coprocess_grpc_server of tyk.conf";
    let (none, off) = (json!({}), json!({"coprocess_options": {"coprocess_grpc_server": "tcp://127.0.0.1:5555"}}));
    let mut scripted = with_check();
    scripted["custom_middleware"]["driver"] = "lua".into();
    for (conf, definition, says) in [
        (none.clone(), with_hooks(&["tell"], &[]), needs),
        (off, with_check(), needs),
        (none, scripted, "authentication by middleware is supported in JavaScript and over gRPC alone"),
        (
            json!({"coprocess_options": {"enable_coprocess": true, "coprocess_grpc_server": "unix:///x"}}),
            with_check(),
            "coprocess_options.coprocess_grpc_server: expected tcp://HOST:PORT, found 'unix:///x'",
        ),
    ] {
        let found = told(conf, definition);
        assert!(found.contains(says), "{found}");
    }
}
