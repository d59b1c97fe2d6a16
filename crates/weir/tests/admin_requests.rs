//! What clients of APISIX's Admin API send, in the forms in which they send it.

use serde_json::json;

use crate::harness::{Gateway, Start};

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
    let fields = format!("X-API-KEY: {}\r\nContent-Type: application/yaml\r\n", crate::harness::ADMIN_KEY);
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
