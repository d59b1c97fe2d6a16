//! data-mask: what the access log and loggers get of requests.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Origin, Start, wait_until};

/// A gateway with rules for requests, whose access log has a line with everything of a request.
fn start(origin: &Origin, folder: &Path, mask: &Value) -> Gateway {
    let logger = json!({ "path": folder.join("entries.log"), "include_req_body": true });
    let route = json!({
        "id": "all", "uri": "/*", "upstream": { "nodes": { origin.node(): 1 } },
        "plugins": { "data-mask": mask, "file-logger": logger },
    });
    let format = "$request_uri|$args|$arg_token|$http_x_token|$http_cookie|$request_method";
    let settings = json!({ "access_log": { "path": folder.join("access.log"), "format": format }, "limits": { "buffered_body": "1MiB" } });
    Start::new(json!({ "routes": [route] })).settings(settings).start()
}

/// The last line of a log with so many.
fn line(folder: &Path, file: &str, count: usize) -> String {
    wait_until(&format!("{count} lines in {file}"), LIMIT, || {
        let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        (lines.len() >= count).then(|| lines[count - 1].to_owned())
    })
}

#[test]
fn parts_of_requests_are_masked_in_logs() {
    let (origin, folder) = (Origin::hello(), tempfile::tempdir().expect("a folder"));
    let rules = json!({ "request": [
        { "type": "query", "name": "token", "action": "replace", "value": "a longer text than before" },
        { "type": "query", "name": "gone", "action": "remove" },
        { "type": "header", "name": "X-Token", "action": "regex", "regex": "^(.).*$", "value": "$1***" },
        { "type": "header", "name": "Cookie", "action": "remove" },
        { "type": "body", "body_format": "json", "name": "$.users[*].token", "action": "remove" },
        { "type": "body", "body_format": "urlencoded", "name": "token", "action": "replace", "value": "***" },
    ] });
    let gateway = start(&origin, folder.path(), &rules);
    let send = |target: &str, fields: &str, body: &str| {
        let length = body.len();
        let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {length}\r\n\r\n");
        let response = gateway.client().request(head + body);
        assert_eq!(response.status, 200);
        origin.last()
    };
    let json = "Content-Type: application/json\r\n";
    let fields = format!("{json}X-Token: secret\r\nCookie: session=secret\r\n");
    let body = r#"{"users":[{"name":"a","token":"secret"},{"token":"secret"}]}"#;
    let seen = send("/%61/b?x=1&token=secret&gone=secret", &fields, body);
    assert_eq!((seen.target.as_str(), &*seen.body), ("/a/b?x=1&token=secret&gone=secret", body.as_bytes()));
    assert_eq!((seen.field("X-Token"), seen.field("Cookie")), (Some("secret"), Some("session=secret")));
    let masked = "x=1&token=a%20longer%20text%20than%20before";
    let expected = format!("/%61/b?{masked}|{masked}|a longer text than before|s***|-|POST");
    let access = line(folder.path(), "access.log", 1);
    let entry: Value = serde_json::from_str(&line(folder.path(), "entries.log", 1)).expect("JSON");
    assert!(!access.contains("secret") && !entry.to_string().contains("secret"), "{access}\n{entry}");
    assert_eq!(access, expected);
    assert_eq!(entry["request"]["body"], r#"{"users":[{"name":"a"},{}]}"#);
    assert_eq!(entry["request"]["headers"]["x-token"], "s***");
    assert_eq!(entry["request"]["querystring"], json!({ "x": "1", "token": "a longer text than before" }));
    // A form, and a request without anything to mask, on the same connection as the next one.
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(send("/form", form, "token=secret&b=1").body, b"token=secret&b=1");
    let entry: Value = serde_json::from_str(&line(folder.path(), "entries.log", 2)).expect("JSON");
    assert_eq!(entry["request"]["body"], "token=***&b=1");
    let mut client = gateway.client();
    for number in 3..5 {
        let response = client.request("GET /plain?x=1&gone=secret HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(response.status, 200);
        let entry: Value = serde_json::from_str(&line(folder.path(), "entries.log", number)).expect("JSON");
        assert_eq!(entry["request"]["uri"], "/plain?x=1", "{entry}");
    }
}

#[test]
fn bodies_that_cannot_be_masked_are_not_written_down() {
    let (origin, folder) = (Origin::hello(), tempfile::tempdir().expect("a folder"));
    let rules = json!({
        "request": [
            { "type": "body", "body_format": "json", "name": "$.token", "action": "remove" },
            { "type": "body", "body_format": "urlencoded", "name": "token", "action": "remove" },
        ],
        "max_body_size": 40, "max_req_post_args": 2,
    });
    let gateway = start(&origin, folder.path(), &rules);
    let json = "application/json";
    let form = "application/x-www-form-urlencoded";
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(40));
    for (number, (kind, body, is_chunked, expected)) in [
        (json, r#"{"a":1}"#, false, Some(r#"{"a":1}"#)),
        (json, r#"{"a":1,"token":2"#, false, None),
        (json, long.as_str(), false, None),
        (json, r#"{"a":1}"#, true, None),
        ("text/plain", "token=1", false, None),
        (form, "a=1&token=2&b=3", false, Some("a=1")),
    ]
    .into_iter()
    .enumerate()
    {
        let length = match is_chunked {
            true => "Transfer-Encoding: chunked".to_owned(),
            false => format!("Content-Length: {}", body.len()),
        };
        let sent = if is_chunked { format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()) } else { body.to_owned() };
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n{length}\r\n\r\n");
        assert_eq!(gateway.client().request(head + &sent).status, 200);
        assert_eq!(origin.last().body, body.as_bytes(), "the upstream gets it whole");
        let entry: Value = serde_json::from_str(&line(folder.path(), "entries.log", number + 1)).expect("JSON");
        assert_eq!(entry["request"]["body"].as_str(), expected, "{kind} {body}: {entry}");
    }
}
