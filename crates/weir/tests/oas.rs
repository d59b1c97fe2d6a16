//! Documents of OpenAPI that a server has, for the plugin oas-validator.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{
    Answer, Authority, Connection, Gateway, Kind, LIMIT, Nginx, Origin, Reload, Response, wait_until,
};

/// A document in which pages have a number of at least this.
fn document(least: u32) -> String {
    let page =
        json!({ "name": "page", "in": "query", "required": true, "schema": { "type": "integer", "minimum": least } });
    json!({ "openapi": "3.0.3", "paths": { "/list": { "get": { "parameters": [page] } } } }).to_string()
}

fn rules(origin: &Origin, conf: &Value) -> Value {
    json!({
        "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": { "oas-validator": conf } }],
        "plugin_metadata": [{ "id": "oas-validator", "spec_url_ttl": 1 }],
    })
}

fn ask(gateway: &Gateway, page: u32) -> Response {
    gateway.client().request(format!("GET /list?page={page} HTTP/1.1\r\nHost: a.test\r\n\r\n"))
}

#[test]
fn a_document_is_fetched_and_kept() {
    let (origin, text, asked) = (Origin::hello(), Arc::new(Mutex::new(document(1))), Arc::new(AtomicUsize::new(0)));
    let (shown, counted) = (Arc::clone(&text), Arc::clone(&asked));
    let server = Origin::answering(move |request| {
        counted.fetch_add(1, SeqCst);
        match (request.target.as_str(), request.field("x-key")) {
            ("/spec.json?v=1", Some("k")) => Answer::ok(&shown.lock().expect("a text")),
            _ => Answer::status(401, "{}"),
        }
    });
    let url = format!("http://{}/spec.json?v=1", server.node());
    let conf = json!({ "spec_url": url, "spec_url_request_headers": { "X-Key": "k" }, "verbose_errors": true });
    let gateway = Gateway::start(rules(&origin, &conf));
    let refused = ask(&gateway, 0);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("query parameter 'page': expected 0 to be at least 1"), "{refused:?}");
    assert_eq!(ask(&gateway, 1).status, 200);
    // The document changes, and is fetched again.
    *text.lock().expect("a text") = document(5);
    wait_until("the new document", LIMIT, || (ask(&gateway, 1).status == 400).then_some(()));
    assert_eq!(ask(&gateway, 5).status, 200);
    // One that is wrong, or a server that is away, changes nothing.
    *text.lock().expect("a text") = "{\"openapi\":".to_owned();
    let before = asked.load(SeqCst);
    wait_until("a question", LIMIT, || {
        assert_eq!((ask(&gateway, 4).status, ask(&gateway, 5).status), (400, 200));
        (asked.load(SeqCst) > before).then_some(())
    });
    server.die();
    assert_eq!((ask(&gateway, 4).status, ask(&gateway, 5).status), (400, 200));
    // Without its key there is no document.
    server.rise();
    *text.lock().expect("a text") = document(1);
    let gateway = Gateway::start(rules(&origin, &json!({ "spec_url": url })));
    let received = origin.requests().len();
    assert_eq!(ask(&gateway, 1).status, 500);
    assert_eq!(origin.requests().len(), received);
}

#[test]
fn a_crowd_asks_for_a_document_once() {
    let (origin, server) = (Origin::hello(), Origin::answering(|_| Answer::ok(&document(1))));
    let mut rules = rules(&origin, &json!({ "spec_url": format!("http://{}/", server.node()) }));
    rules["plugin_metadata"] = json!([]);
    let gateway = Gateway::start(rules);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(ask(&gateway, 1).status, 200));
        }
    });
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_server_of_documents_that_is_slow_or_lies() {
    let origin = Origin::hello();
    let silent = Origin::scripted(Connection::await_close);
    let endless = Origin::answering(|_| Answer::ok(&format!("{}{}", document(1), " ".repeat(2 << 20))));
    let wrong = Origin::answering(|_| {
        Answer::ok("{\"openapi\":\"3.0.0\",\"paths\":{\"/list\":{\"$ref\":\"#/paths/~1list\"}}}")
    });
    // A chain of schemas, which many parameters take with them.
    let link = |n: u32| json!({ "properties": { "next": { "$ref": format!("#/components/schemas/s{}", n + 1) } } });
    let mut schemas: serde_json::Map<_, _> = (0..900).map(|n| (format!("s{n}"), link(n))).collect();
    schemas.insert("s900".to_owned(), json!({}));
    let parameter = |n: u32| json!({ "name": format!("p{n}"), "in": "query", "schema": { "$ref": format!("#/components/schemas/s{n}") } });
    let parameters: Vec<_> = (0..200).map(parameter).collect();
    let paths = json!({ "/list": { "get": { "parameters": parameters } } });
    let greedy = json!({ "openapi": "3.0.0", "paths": paths, "components": { "schemas": schemas } }).to_string();
    let greedy = Origin::answering(move |_| Answer::ok(&greedy));
    let mut started = Gateway::start(rules(&origin, &json!({ "spec": document(1) })));
    for server in [&silent, &endless, &wrong, &greedy] {
        let conf = json!({ "spec_url": format!("http://{}/", server.node()), "timeout": 1000 });
        assert_eq!(started.reload(rules(&origin, &conf)), Reload::Applied);
        let begun = std::time::Instant::now();
        let response = ask(&started, 1);
        assert_eq!(response.status, 500, "{}", server.node());
        assert!(begun.elapsed() < LIMIT / 2, "the timeout holds");
    }
    assert_eq!(origin.requests().len(), 0);
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 '{}'; }}",
        own.cert_file.display(),
        own.key_file.display(),
        document(1)
    ));
    let url = format!("https://localhost:{}/", nginx.node().rsplit(':').next().expect("a port"));
    for (verifies, status) in [(true, 500), (false, 200)] {
        started = Gateway::start(rules(&origin, &json!({ "spec_url": url, "ssl_verify": verifies })));
        assert_eq!(ask(&started, 1).status, status, "{verifies}");
    }
}
