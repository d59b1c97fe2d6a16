//! The part of the API beyond APISIX's.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use weir_admin::Refused;

use crate::memory::{Server, error};
use crate::{contains, options};

const ADMIN: &str = "X-API-KEY: admin-key\r\n";

/// Sends a request with further fields; gives status, head and JSON (null for none).
fn ask(server: &Server, method: &str, path: &str, fields: &str, body: &str) -> (u16, String, Value) {
    let (status, head, body) = server.send(method, &format!("/weir/v1/{path}"), &format!("{ADMIN}{fields}"), body);
    (status, head, serde_json::from_str(&body).unwrap_or_default())
}

#[test]
fn resources_have_revisions_and_preconditions() {
    let server = Server::start(options());
    let steps: &[(&str, &str, &str, &str, u16, Value)] = &[
        ("GET", "resources/routes/1", "", "", 404, json!({ "message": "Key not found" })),
        ("PUT", "resources/routes/1", "If-Match: *\r\n", r#"{"uri":"/a"}"#, 412, json!({})),
        (
            "PUT",
            "resources/routes/1?dry_run=true",
            "",
            r#"{"uri":"/a"}"#,
            200,
            json!({ "dry_run": true, "diagnostics": [] }),
        ),
        ("GET", "resources/routes/1", "", "", 404, json!({})),
        (
            "PUT",
            "resources/routes/1",
            "If-None-Match: *\r\n",
            r#"{"uri":"/a"}"#,
            201,
            json!({ "revision": 1, "key": "routes/1", "value": { "id": "1", "uri": "/a" } }),
        ),
        ("PUT", "resources/routes/1", "If-None-Match: *\r\n", r#"{"uri":"/b"}"#, 412, json!({})),
        ("PUT", "resources/routes/1", "If-Match: \"1\"\r\n", r#"{"uri":"/b"}"#, 200, json!({ "revision": 2 })),
        ("PUT", "resources/routes/1", "If-Match: \"1\"\r\n", r#"{"uri":"/c"}"#, 412, json!({})),
        ("PUT", "resources/routes/1", "If-Match: 2\r\n", r#"{"uri":"/c"}"#, 400, json!({})),
        ("PUT", "resources/routes/1", "", r#"{"uri":"/c","id":"2"}"#, 400, json!({})),
        ("PUT", "resources/routes/1", "", "[]", 400, json!({})),
        ("PUT", "resources/routes/1?dry_run=maybe", "", r#"{"uri":"/c"}"#, 400, json!({})),
        ("PUT", "resources/foos/1", "", "{}", 404, json!({})),
        (
            "GET",
            "resources/routes/1",
            "",
            "",
            200,
            json!({ "key": "routes/1", "created": 1, "modified": 2, "value": { "uri": "/b" } }),
        ),
        ("GET", "resources/routes/1", "If-None-Match: \"2\"\r\n", "", 304, Value::Null),
        ("GET", "resources/routes/1", "If-None-Match: \"1\"\r\n", "", 200, json!({})),
        ("GET", "resources?kind=routes", "", "", 200, json!({ "revision": 2, "total": 1 })),
        ("GET", "resources?kind=services", "", "", 200, json!({ "revision": 2, "total": 0 })),
        ("GET", "resources?kind=x", "", "", 400, json!({})),
        ("DELETE", "resources/routes/1", "If-Match: \"1\"\r\n", "", 412, json!({})),
        ("DELETE", "resources/routes/1?dry_run=true", "", "", 200, json!({ "dry_run": true })),
        ("DELETE", "resources/routes/1", "If-Match: \"2\"\r\n", "", 200, json!({ "revision": 3, "key": "routes/1" })),
        ("DELETE", "resources/routes/1", "", "", 404, json!({})),
        ("POST", "resources/routes/1", "", "{}", 405, json!({})),
    ];
    for (method, path, fields, body, status, expected) in steps {
        let (found, _, answer) = ask(&server, method, path, fields, body);
        assert!(found == *status && contains(&answer, expected), "{method} {path} {fields}: {found} {answer}");
    }
    ask(&server, "PUT", "resources/consumers/jack", "", r#"{"username":"jack"}"#);
    let (_, head, answer) = ask(&server, "GET", "resources/consumers/jack", "", "");
    assert!(head.contains("etag: \"4\"") && answer["value"].get("id").is_none(), "{head} {answer}");
    // A resource may be sent back as it was read.
    let (status, _, _) =
        ask(&server, "PUT", "resources/consumers/jack", "If-Match: \"4\"\r\n", &answer["value"].to_string());
    assert_eq!(status, 200);
}

#[test]
fn every_finding_is_told() {
    let server = Server::start(options());
    let found = vec![error("routes[0].uri", "one"), error("routes[0].host", "two").with_hint("three")];
    *server.memory.refuses.lock().unwrap() = Some(Refused::Invalid(found));
    let (status, _, answer) = ask(&server, "PUT", "resources/routes/1?dry_run=true", "", r#"{"uri":"/a"}"#);
    let expected = json!([
        { "severity": "error", "path": "routes[0].uri", "message": "one" },
        { "severity": "error", "path": "routes[0].host", "message": "two", "hint": "three" },
    ]);
    assert_eq!((status, &answer["diagnostics"]), (400, &expected));
    *server.memory.refuses.lock().unwrap() = Some(Refused::ReadOnly("it comes from a file".into()));
    let (status, _, answer) = ask(&server, "PUT", "resources/routes/1", "", r#"{"uri":"/a"}"#);
    assert_eq!((status, &answer["error_msg"]), (405, &json!("it comes from a file")));
}

#[test]
fn several_changes_are_made_as_one() {
    let server = Server::start(options());
    let commit = |changes: &Value| {
        let (status, _, answer) = ask(&server, "POST", "transactions", "", &json!({ "changes": changes }).to_string());
        (status, answer)
    };
    let (status, answer) = commit(&json!([
        { "key": "upstreams/u", "value": { "nodes": {} }, "if_none_match": "*" },
        { "key": "routes/1", "value": { "uri": "/a", "upstream_id": "u" } },
    ]));
    assert_eq!((status, &answer["revision"], &answer["keys"]), (200, &json!(1), &json!(["upstreams/u", "routes/1"])));
    for (changes, status) in [
        (json!([]), 400),
        (json!([{ "key": "routes/1" }]), 400),
        (json!([{ "key": "routes/1", "value": 1 }]), 400),
        (json!([{ "key": "routes", "value": {} }]), 400),
        (json!([{ "key": "routes/1", "value": {}, "other": 1 }]), 400),
        (json!([{ "key": "routes/1", "value": {} }, { "key": "routes/1", "value": null }]), 400),
        (json!([{ "key": "routes/2", "value": {} }, { "key": "routes/1", "value": {}, "if_match": 7 }]), 412),
        (json!([{ "key": "routes/2", "value": {} }, { "key": "routes/1", "value": {}, "if_none_match": "*" }]), 412),
    ] {
        assert_eq!(commit(&changes).0, status, "{changes}");
    }
    assert_eq!(server.keys(), ["routes/1", "upstreams/u"], "nothing of those was made");
    let (status, answer) = commit(&json!([
        { "key": "routes/1", "value": null, "if_match": 1 },
        { "key": "upstreams/u", "value": null, "if_match": "*" },
    ]));
    assert_eq!((status, &answer["revision"]), (200, &json!(2)));
    assert!(server.keys().is_empty());
}

#[test]
fn what_was_is_told_and_brought_back() {
    let server = Server::start(options());
    let consumer = r#"{"username":"jack","plugins":{"key-auth":{"key":"k1"}}}"#;
    assert_eq!(ask(&server, "PUT", "resources/consumers/jack", "", consumer).0, 201);
    assert_eq!(ask(&server, "PUT", "resources/routes/1", "", r#"{"uri":"/a"}"#).0, 201);
    let revisions = |path: &str| {
        let (status, _, answer) = ask(&server, "GET", path, "", "");
        assert_eq!(status, 200, "{path}: {answer}");
        let commits = answer["commits"].as_array().unwrap().clone();
        commits.iter().map(|commit| commit["revision"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(revisions("history"), [2, 1]);
    assert_eq!(revisions("history?before=2"), [1]);
    assert_eq!(revisions("history?limit=1"), [2]);
    assert_eq!(revisions("history?key=consumers/jack"), [1]);
    for path in ["history?limit=0", "history?limit=1001", "history?key=x", "history?before=x", "diff", "diff?from=x"] {
        assert_eq!(ask(&server, "GET", path, "", "").0, 400, "{path}");
    }
    let (_, _, answer) = ask(&server, "GET", "history?before=2", "", "");
    let expected = json!({ "author": "admin", "time": 1.5, "changes": [{ "key": "consumers/jack", "old": null }] });
    assert!(contains(&answer["commits"][0], &expected), "{answer}");
    let value = &answer["commits"][0]["changes"][0]["new"];
    assert_eq!(value["plugins"]["key-auth"]["key"], "***", "secrets are not told");

    let (_, _, answer) = ask(&server, "GET", "diff?from=1", "", "");
    let expected =
        json!({ "from": 1, "to": 2, "changes": [{ "key": "routes/1", "old": null, "new": { "uri": "/a" } }] });
    assert!(contains(&answer, &expected), "{answer}");
    let (_, _, answer) = ask(&server, "GET", "diff?from=2&to=1", "", "");
    assert!(contains(&answer["changes"], &json!([{ "old": { "uri": "/a" }, "new": null }])), "{answer}");

    let back = |path: &str, body: &str| ask(&server, "POST", path, "", body);
    for body in ["", "[]", "{}", r#"{"revision":"1"}"#, r#"{"revision":1,"x":2}"#] {
        assert_eq!(back("rollback", body).0, 400, "{body}");
    }
    let (status, _, answer) = back("rollback?dry_run=true", r#"{"revision":1}"#);
    assert!(status == 200 && contains(&answer, &json!({ "dry_run": true, "restored": 1 })), "{answer}");
    assert_eq!(server.keys(), ["consumers/jack", "routes/1"]);
    let (status, _, answer) = back("rollback", r#"{"revision":1}"#);
    assert!(status == 200 && contains(&answer, &json!({ "revision": 3, "restored": 1 })), "{answer}");
    assert_eq!(server.keys(), ["consumers/jack"]);
    let (status, _, answer) = back("rollback", r#"{"revision":3}"#);
    assert!(status == 200 && contains(&answer, &json!({ "revision": 3, "changes": [] })), "{answer}");
}

#[test]
fn changes_are_told_as_they_are_made() {
    let server = Server::start(options());
    let follow = |path: &str, fields: &str| {
        let mut stream = TcpStream::connect(server.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET /weir/v1/{path} HTTP/1.1\r\nHost: a\r\n{ADMIN}{fields}\r\n").unwrap();
        BufReader::new(stream)
    };
    // Reads on to a line that begins like this.
    let await_line = |stream: &mut BufReader<TcpStream>, wanted: &str| loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended before {wanted}");
        if line.to_ascii_lowercase().starts_with(wanted) {
            return line;
        }
    };
    let mut stream = follow("events", "");
    await_line(&mut stream, "content-type: text/event-stream");
    await_line(&mut stream, ": changes follow");
    let consumer = r#"{"username":"jack","plugins":{"key-auth":{"key":"k1"}}}"#;
    assert_eq!(ask(&server, "PUT", "resources/consumers/jack", "", consumer).0, 201);
    assert_eq!(await_line(&mut stream, "id:").trim(), "id: 1");
    assert_eq!(await_line(&mut stream, "event:").trim(), "event: change");
    let data = await_line(&mut stream, "data:");
    let data: Value = serde_json::from_str(data.trim_start_matches("data: ")).unwrap();
    assert_eq!((&data["revision"], &data["changes"][0]["key"]), (&json!(1), &json!("consumers/jack")));
    assert_eq!(data["changes"][0]["value"]["plugins"]["key-auth"]["key"], "***", "secrets are not told");
    assert_eq!(ask(&server, "DELETE", "resources/consumers/jack", "", "").0, 200);
    let data = await_line(&mut stream, "data:");
    assert!(data.contains(r#""value":null"#), "{data}");

    // A follower that has missed something is sent a reset.
    for (path, fields) in [("events?after=0", ""), ("events", "Last-Event-ID: 1\r\n")] {
        let mut stream = follow(path, fields);
        assert_eq!(await_line(&mut stream, "id:").trim(), "id: 2", "{path} {fields}");
        assert_eq!(await_line(&mut stream, "event:").trim(), "event: reset", "{path} {fields}");
    }

    // There is an end to how many may follow.
    let mut open = Vec::new();
    let refused = (0..100).find_map(|_| {
        let mut stream = follow("events", "");
        let mut status = String::new();
        stream.read_line(&mut status).unwrap();
        open.push(stream);
        (!status.contains("200")).then_some(status)
    });
    assert!(refused.is_some_and(|status| status.contains("503")), "{} streams", open.len());
    // The one that was there first still hears.
    assert_eq!(ask(&server, "PUT", "resources/consumers/jane", "", r#"{"username":"jane"}"#).0, 201);
    assert_eq!(await_line(&mut stream, "id:").trim(), "id: 3");
}

#[test]
fn requests_are_explained() {
    let server = Server::start(options());
    let path = "explain?request=GET%20%2Fa&header=A:%20b&header=c:d&remote=10.0.0.7";
    let expected = json!({ "request": "GET /a", "fields": [["A", "b"], ["c", "d"]], "remote": "10.0.0.7" });
    assert_eq!(ask(&server, "GET", path, "", "").2, expected);
    for path in
        ["explain", "explain?request=x", "explain?request=GET%20/a&header=x", "explain?request=GET%20/a&remote=x"]
    {
        assert_eq!(ask(&server, "GET", path, "", "").0, 400, "{path}");
    }
}

#[test]
fn the_document_names_every_path() {
    let server = Server::start(options());
    let (status, _, document) = ask(&server, "GET", "openapi.json", "", "");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/apisix/admin/routes",
        "/apisix/admin/consumers/{username}/credentials/{id}",
        "/apisix/admin/configs/validate",
        "/weir/v1/resources/secrets/{manager}/{id}",
        "/weir/v1/events",
    ] {
        assert!(paths.contains_key(path), "{path}");
    }
    let mut names = Vec::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            names.push(operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path}")).to_owned());
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "names of operations stand once");
    // Each of them leads to a handler.
    for (path, item) in paths {
        for method in item.as_object().unwrap().keys().filter(|name| *name != "parameters" && *name != "put") {
            let place = path.replace(['{', '}'], "");
            if method == "get" && place.ends_with("/events") {
                continue;
            }
            let (status, _, body) = server.send(&method.to_uppercase(), &place, ADMIN, "");
            assert!(status != 405 && !body.contains("404 Not Found"), "{method} {path}: {status} {body}");
        }
    }
}
