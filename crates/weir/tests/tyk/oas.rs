//! Parts of definitions in the OAS form: validation by the document, examples, triggers of rewrites, uptime tests, events.

use serde_json::{Value, json};

use super::{Site, error, send, told};
use crate::harness::{Answer, Gateway, LIMIT, Origin, Start, wait_until, weir};

/// A definition whose operations have middleware, with further parts of Tyk's.
#[expect(clippy::needless_pass_by_value, reason = "definitions are written where they are passed")]
fn definition(operations: Value, more: Value) -> Value {
    let mut tyk = json!({
        "info": {"name": "a", "id": "a", "orgId": "o1", "state": {"active": true}},
        "upstream": {"url": "http://ORIGIN/base"},
        "server": {"listenPath": {"value": "/a/", "strip": true}},
        "middleware": {"operations": operations},
    });
    crate::loggers::extend(&mut tyk, more);
    json!({
        "openapi": "3.0.3", "info": {"title": "a", "version": "1"},
        "components": {"schemas": {"Order": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}}},
        "paths": {
            "/orders": {"post": {
                "operationId": "make",
                "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}},
                "responses": {"201": {"description": "made", "content": {"application/json": {"examples": {
                    "small": {"value": {"id": 1}}, "text": {"value": "plain"}}}}}},
            }},
            "/orders/{id}": {
                "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "integer"}}],
                "get": {"operationId": "show", "parameters": [{"name": "full", "in": "query", "schema": {"type": "boolean"}}],
                        "responses": {"200": {"description": "one", "content": {"application/json": {"example": {"id": 2}}}}}},
                "delete": {"operationId": "end", "responses": {"204": {"description": "gone"}}},
            },
        },
        "x-tyk-api-gateway": tyk,
    })
}

fn start(site: &Site, definition: Value) -> Gateway {
    site.api("a", definition);
    Start::at(&site.apps()).start()
}

#[test]
fn requests_have_to_follow_the_document_where_an_operation_says_so() {
    let site = Site::new();
    let gateway = start(
        &site,
        definition(
            json!({
                "make": {"validateRequest": {"enabled": true}},
                "show": {"validateRequest": {"enabled": true, "errorResponseCode": 400}},
                "end": {"validateRequest": {"enabled": false}},
            }),
            json!({}),
        ),
    );
    let kind = "Content-Type: application/json";
    for (request, expected) in [
        (format!("POST /a/orders\n{kind}\n\n{{\"id\": 1}}"), 200),
        (format!("POST /a/orders\n{kind}\n\n{{\"id\": \"x\"}}"), 422),
        (format!("POST /a/orders\n{kind}\n\n{{}}"), 422),
        (format!("POST /a/orders\n{kind}\n\nno JSON"), 422),
        ("GET /a/orders/7?full=true".to_owned(), 200),
        ("GET /a/orders/x".to_owned(), 400),
        ("GET /a/orders/7?full=maybe".to_owned(), 400),
        ("DELETE /a/orders/x".to_owned(), 200),
        ("GET /a/elsewhere".to_owned(), 200),
    ] {
        let (status, body) = told(&send(&gateway, &request));
        assert_eq!(status, expected, "{request}: {body}");
        if expected != 200 {
            assert!(body.contains("\"error\": \"request validation error: "), "{request}: {body}");
        }
    }
    // A document that cannot be followed refuses the definition.
    let mut wrong = definition(json!({"make": {"validateRequest": {"enabled": true}}}), json!({}));
    wrong["components"] = json!({});
    site.api("a", wrong);
    let (status, out, err) = weir(&["check", site.apps().to_str().expect("a path")]);
    let text = out + &err;
    assert!(status != 0 && text.contains("#/components/schemas/Order"), "{text}");
}

#[test]
fn examples_of_the_document_are_answers() {
    let site = Site::new();
    let examples = |more: Value| {
        let mut part = json!({"enabled": true});
        crate::loggers::extend(&mut part, more);
        json!({"mockResponse": {"enabled": true, "fromOASExamples": part}})
    };
    let gateway = start(
        &site,
        definition(
            json!({
                "make": examples(json!({"code": 201, "exampleName": "text"})), "show": examples(json!({})),
            }),
            json!({}),
        ),
    );
    let shown = send(&gateway, "GET /a/orders/1");
    assert_eq!((shown.field("Content-Type"), told(&shown)), (Some("application/json"), (200, "{\"id\":2}".to_owned())));
    assert_eq!(told(&send(&gateway, "POST /a/orders\nContent-Length: 0")), (201, "plain".to_owned()));
    for more in [json!({"code": 404}), json!({"exampleName": "none"}), json!({"contentType": "text/csv"})] {
        site.api("a", definition(json!({"show": examples(more)}), json!({})));
        let (status, out, err) = weir(&["check", site.apps().to_str().expect("a path")]);
        assert!(status != 0 && (out + &err).contains("the document has no such example"));
    }
}

#[test]
fn rewrites_have_triggers() {
    let site = Site::new();
    let rule = |place: &str, name: &str, pattern: &str, negate: bool| json!({"in": place, "name": name, "pattern": pattern, "negate": negate});
    let rewrite = json!({"urlRewrite": {"enabled": true, "pattern": ".*", "rewriteTo": "/plain", "triggers": [
        {"condition": "all", "rules": [rule("header", "X-Kind", "^gold$", false), rule("query", "full", "yes", false)], "rewriteTo": "/gold"},
        {"condition": "any", "rules": [rule("path", "part", "9", false), rule("header", "X-Kind", "..", true)], "rewriteTo": "/other"},
    ]}});
    let gateway = start(&site, definition(json!({"show": rewrite}), json!({})));
    for (request, expected) in [
        ("GET /a/orders/1?full=yes\nX-Kind: gold", "/base/gold"),
        ("GET /a/orders/1\nX-Kind: gold", "/base/plain"),
        ("GET /a/orders/9\nX-Kind: gold", "/base/other"),
    ] {
        assert_eq!(send(&gateway, request).status, 200);
        assert_eq!(site.last_target().split('?').next(), Some(expected), "{request}");
    }
    let body = json!({"urlRewrite": {"enabled": true, "pattern": ".*", "rewriteTo": "/", "triggers": [
        {"condition": "any", "rules": [rule("requestBody", "", "x", false)], "rewriteTo": "/x"}]}});
    site.api("a", definition(json!({"show": body}), json!({})));
    let (status, out, err) = weir(&["check", site.apps().to_str().expect("a path")]);
    assert!(status != 0 && (out + &err).contains("urlRewrite.triggers: in: expected one of: header, query, path,"));
}

#[test]
fn targets_are_tested_and_events_told() {
    let [good, bad] = [200, 500].map(|status| {
        Origin::answering(move |request| match request.target.as_str() {
            "/health" => Answer::keep(format!("HTTP/1.1 {status} S\r\nContent-Length: 0\r\n\r\n")),
            _ => Answer::ok(if status == 200 { "good" } else { "bad" }),
        })
    });
    let hook = Origin::echo();
    let site = Site::new();
    let urls = [&good, &bad].map(|origin| format!("http://{}", origin.node()));
    let tests: Vec<Value> =
        urls.iter().map(|url| json!({"url": format!("{url}/health"), "timeout": "2s", "method": "GET"})).collect();
    let more = json!({
        "upstream": {"url": urls[0], "uptimeTests": {"enabled": true, "tests": tests},
            "loadBalancing": {"enabled": true, "skipUnavailableHosts": true, "targets": [{"url": urls[0], "weight": 1}, {"url": urls[1], "weight": 1}]}},
        "server": {"listenPath": {"value": "/a/", "strip": true}, "eventHandlers": [
            {"enabled": true, "trigger": "VersionFailure", "type": "webhook", "url": format!("http://{}/hook", hook.node()), "method": "POST",
             "headers": [{"name": "X-Own", "value": "told"}]}]},
    });
    site.api("a", definition(json!({"end": {"block": {"enabled": true}}}), more));
    let conf = site.conf(json!({"uptime_tests": {"config": {"time_wait": 1, "failure_trigger_sample_size": 1}}}));
    let gateway = Start::at(&conf).start();
    wait_until("the tested targets", LIMIT, || {
        let seen: Vec<String> = (0..4).map(|_| told(&send(&gateway, "GET /a/orders/1")).1).collect();
        seen.iter().all(|body| body == "good").then_some(())
    });
    assert_eq!(told(&send(&gateway, "DELETE /a/orders/1")), (403, error("Requested endpoint is forbidden")));
    let told = wait_until("an event", LIMIT, || hook.requests().pop());
    let body: Value = serde_json::from_slice(&told.body).expect("JSON");
    assert_eq!(
        (told.target.as_str(), told.field("X-Own"), &body["event"]),
        ("/hook", Some("told"), &json!("VersionFailure"))
    );
}
