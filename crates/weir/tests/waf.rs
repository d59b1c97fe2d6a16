//! chaitin-waf. SafeLine itself cannot be had here, so its part is played by a server that speaks T1K as the firewall's own
//! clients expect it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{Connection, Gateway, Origin, Refusing, Response};

/// The parts of a question by their tags.
type Question = BTreeMap<u8, Vec<u8>>;

/// Reads a question; `None` when there is no more.
fn question(connection: &mut Connection) -> Option<Question> {
    let mut parts = Question::new();
    loop {
        let head = connection.exactly(5).ok()?;
        assert_eq!(head[0] & 0x40 != 0, parts.is_empty(), "the first part is marked");
        let length = u32::from_le_bytes(head[1..].try_into().expect("four bytes")) as usize;
        let content = connection.exactly(length).expect("the part");
        parts.insert(head[0] & 0x3f, content);
        if head[0] & 0x80 != 0 {
            return Some(parts);
        }
    }
}

fn answer(parts: &[(u8, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, (tag, content)) in parts.iter().enumerate() {
        let marks = if at == 0 { 0x40 } else { 0 } | if at + 1 == parts.len() { 0x80 } else { 0 };
        out.push(tag | marks);
        out.extend_from_slice(&(content.len() as u32).to_le_bytes());
        out.extend_from_slice(content.as_bytes());
    }
    out
}

/// A firewall that decides by the head of the request, and what it was asked.
fn firewall() -> (Origin, Arc<Mutex<Vec<Question>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&asked);
    let server = Origin::scripted(move |connection| {
        while let Some(question) = question(connection) {
            let head = String::from_utf8_lossy(&question[&1]).into_owned();
            told.lock().expect("the list").push(question);
            let sent = match head.split(' ').nth(1).expect("a target") {
                target if target.contains("union+select") => connection.send(answer(&[
                    (1, "?"),
                    (2, "403"),
                    (0x24, "<!-- event_id: 1e902e84bf5a4ead8f7760a0fe2c7719 TYPE: A -->"),
                    (0x23, "Set-Cookie:waf=1\n"),
                ])),
                "/bare" => connection.send(answer(&[(1, "?")])),
                "/fields" => connection.send(answer(&[(1, "."), (0x23, "X-Waf:seen\n")])),
                "/broken" => connection.send(b"220 another protocol\r\n"),
                "/unknown" => connection.send(answer(&[(1, "!")])),
                "/long" => connection.send([0x41, 0xff, 0xff, 0xff, 0x7f]),
                "/cut" => connection.send([0x41, 9, 0, 0, 0, b'.']),
                "/silent" => return connection.await_close(),
                _ => connection.send(answer(&[(1, ".")])),
            };
            if !sent || ["/broken", "/cut", "/long"].iter().any(|path| head.contains(path)) {
                return;
            }
        }
    });
    (server, asked)
}

fn node(server: &Origin) -> Value {
    json!({ "host": "127.0.0.1", "port": server.addr().port() })
}

fn rules(origin: &Origin, conf: Value, metadata: Option<Value>) -> Value {
    let mut rules = json!({
        "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": {} }],
    });
    rules["routes"][0]["plugins"]["chaitin-waf"] = conf;
    if let Some(mut metadata) = metadata {
        metadata["id"] = json!("chaitin-waf");
        rules["plugin_metadata"] = json!([metadata]);
    }
    rules
}

fn ask(gateway: &Gateway, target: &str, fields: &str, body: &str) -> Response {
    let length = body.len();
    gateway
        .client()
        .request(format!("POST {target} HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n{fields}\r\n{body}"))
}

fn told<'r>(response: &'r Response, names: &[&str]) -> Vec<Option<&'r str>> {
    names.iter().map(|name| response.field(&format!("x-apisix-chaitin-waf{name}"))).collect()
}

#[test]
fn a_firewall_rejects_requests() {
    let (origin, (server, asked)) = (Origin::hello(), firewall());
    let metadata = json!({ "mode": "block", "nodes": [node(&server)] });
    let gateway = Gateway::start(rules(&origin, json!({}), Some(metadata)));
    let response = ask(&gateway, "/a?b=c", "X-A: d\r\n", "hello");
    assert_eq!(response.status, 200);
    assert_eq!(told(&response, &["", "-action", "-status"]), [Some("yes"), Some("pass"), Some("200")]);
    assert!(response.field("x-apisix-chaitin-waf-time").is_some_and(|ms| ms.parse::<u64>().is_ok()));
    assert_eq!(told(&response, &["-server", "-error"]), [None, None]);
    let parts = asked.lock().expect("the list").remove(0);
    let head = String::from_utf8_lossy(&parts[&1]).into_owned();
    assert!(head.starts_with("POST /a?b=c HTTP/1.1\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("\r\nX-A: d\r\n") && head.contains("\r\nHost: a.test\r\n"), "{head}");
    assert_eq!((&*parts[&2], &*parts[&0x20]), (&b"hello"[..], &b"Proto:3\n"[..]));
    let facts: BTreeMap<u8, String> = parts[&3]
        .split(|byte| *byte == b'\n')
        .filter_map(|line| Some((*line.first()?, String::from_utf8_lossy(&line[1..]).into_owned())))
        .collect();
    assert_eq!((facts[&0x13].as_str(), facts[&0x14].as_str()), ("127.0.0.1", "127.0.0.1"));
    assert_eq!((facts[&0x12].clone(), facts[&0x16].as_str()), (gateway.addr.port().to_string(), "http"));
    assert!(
        facts[&0x18].len() == 32 && facts[&0x1b].parse::<u64>().is_ok_and(|us| us > 1_700_000_000_000_000),
        "{facts:?}"
    );

    let response = ask(&gateway, "/?q=1+union+select+2", "", "");
    assert_eq!(response.status, 403);
    assert_eq!(
        response.text(),
        "{\"code\": 403, \"success\":false, \"message\": \"blocked by Chaitin SafeLine Web Application Firewall\", \
         \"event_id\": \"1e902e84bf5a4ead8f7760a0fe2c7719\"}\n"
    );
    assert_eq!(told(&response, &["", "-action", "-status"]), [Some("yes"), Some("reject"), Some("403")]);
    assert_eq!(response.field("set-cookie"), Some("waf=1"));
    // One that names no status and no event is one as well.
    let response = ask(&gateway, "/bare", "", "");
    assert_eq!((response.status, response.text().contains("\"event_id\": \"\"")), (403, true));
    assert_eq!(ask(&gateway, "/fields", "", "").field("x-waf"), Some("seen"));
    assert_eq!(origin.requests().len(), 2);
    // A connection is kept.
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_firewall_is_asked_by_mode_and_conditions() {
    let (origin, (server, asked)) = (Origin::hello(), firewall());
    let metadata = json!({ "nodes": [node(&server)] });
    let attack = "/?q=1+union+select+2";
    for (conf, fields, status, seen) in [
        (json!({}), "", 200, [Some("yes"), Some("reject")]),
        (json!({ "mode": "monitor" }), "", 200, [Some("yes"), Some("reject")]),
        (json!({ "mode": "off" }), "", 200, [Some("off"), None]),
        (json!({ "mode": "block", "match": [] }), "", 403, [Some("yes"), Some("reject")]),
        (json!({ "mode": "block", "append_waf_resp_header": false }), "", 403, [None, None]),
    ]
    .into_iter()
    .chain(["X-A: 1\r\n", "X-B: 2\r\n", "X-A: 2\r\n"].map(|fields| {
        let vars = json!([{ "vars": [["http_x_a", "==", "1"]] }, { "vars": [["http_x_b", "==", "2"]] }]);
        let is_meant = fields != "X-A: 2\r\n";
        let seen = if is_meant { [Some("yes"), Some("reject")] } else { [Some("no"), None] };
        (json!({ "mode": "block", "match": vars }), fields, if is_meant { 403 } else { 200 }, seen)
    })) {
        let gateway = Gateway::start(rules(&origin, conf.clone(), Some(metadata.clone())));
        let response = ask(&gateway, attack, fields, "");
        assert_eq!((response.status, told(&response, &["", "-action"])), (status, seen.to_vec()), "{conf} {fields}");
    }
    // A part of the body, and the address of the peer. Settings of the place come before those of all places.
    let mut metadata = metadata;
    metadata["config"] = json!({ "req_body_size": 2, "real_client_ip": false });
    let mut rules = rules(&origin, json!({ "config": { "req_body_size": 1 } }), Some(metadata));
    rules["routes"][0]["plugins"]["real-ip"] = json!({ "source": "http_x_from" });
    let gateway = Gateway::start(rules);
    assert_eq!(ask(&gateway, "/", "X-From: 10.1.2.3\r\n", &"x".repeat(3000)).status, 200);
    let parts = asked.lock().expect("the list").pop().expect("a question");
    assert_eq!(parts[&2].len(), 1024);
    assert!(String::from_utf8_lossy(&parts[&3]).contains("\u{13}127.0.0.1\n"));
    assert_eq!(origin.last().body.len(), 3000);
}

#[test]
fn a_firewall_that_lies_or_is_slow() {
    let (origin, (server, _)) = (Origin::hello(), firewall());
    for mode in ["block", "monitor"] {
        let conf = json!({ "mode": mode, "append_waf_debug_header": true, "config": { "read_timeout": 300 } });
        let gateway = Gateway::start(rules(&origin, conf, Some(json!({ "nodes": [node(&server)] }))));
        for (target, asked, says) in [
            ("/broken", "waf-err", "none of T1K"),
            ("/unknown", "waf-err", "without an action"),
            ("/long", "waf-err", "too long"),
            ("/cut", "waf-err", ""),
            ("/silent", "timeout", "timeout"),
        ] {
            let response = ask(&gateway, target, "", "");
            assert_eq!(response.status, if mode == "block" { 500 } else { 200 }, "{target} {mode}");
            let seen = told(&response, &["", "-server", "-action"]);
            assert_eq!(seen, [Some(asked), Some("127.0.0.1"), None], "{target}");
            let error = response.field("x-apisix-chaitin-waf-error").expect("an error");
            assert!(error.contains(says), "{target}: {error}");
        }
        // Others are answered all the same.
        assert_eq!(ask(&gateway, "/", "", "").status, 200);
    }
}

#[test]
fn servers_take_turns_and_one_that_is_away_is_passed_over() {
    let (origin, one, other, away) = (Origin::hello(), firewall(), firewall(), Refusing::bind());
    let away: Value = json!({ "host": "127.0.0.1", "port": away.node().rsplit(':').next().and_then(|port| port.parse::<u16>().ok()) });
    let conf = json!({ "mode": "block", "append_waf_debug_header": true });
    let metadata = json!({ "nodes": [node(&one.0), away, node(&other.0)] });
    let gateway = Gateway::start(rules(&origin, conf.clone(), Some(metadata)));
    for _ in 0..6 {
        assert_eq!(ask(&gateway, "/", "", "").status, 200);
    }
    let counts = [&one.1, &other.1].map(|asked| asked.lock().expect("the list").len());
    assert_eq!(counts, [2, 4]);
    // All of them are away, or none is known.
    for (metadata, says) in [(Some(json!({ "nodes": [away] })), "failed to connect"), (None, "missing metadata")] {
        let gateway = Gateway::start(rules(&origin, conf.clone(), metadata));
        let response = ask(&gateway, "/", "", "");
        assert_eq!(response.status, 500);
        assert!(response.field("x-apisix-chaitin-waf-error").is_some_and(|error| error.contains(says)), "{says}");
    }
}
