//! `batch-requests`: several requests in one, each of which goes the whole way through the gateway.

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, Response, Start, post, wait_until};

const API: &str = "/apisix/batch-requests";

fn config(origin: &Origin) -> Value {
    let upstream = json!({ "nodes": { (origin.node()): 1 } });
    json!({ "routes": [
        { "id": "batch", "uri": API, "plugins": { "public-api": {} } },
        { "id": "limited", "uri": "/limited", "upstream": upstream, "plugins": {
            "limit-count": { "count": 2, "time_window": 600 }, "prometheus": {} } },
        { "id": "all", "uri": "/*", "upstream": upstream, "plugins": { "prometheus": {} } },
    ] })
}

fn ask(gateway: &Gateway, batch: &Value) -> Response {
    gateway.client().request(post(API, &batch.to_string()))
}

fn entries(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.text());
    let Ok(Value::Array(entries)) = serde_json::from_slice(&response.body) else { panic!("{}", response.text()) };
    entries
}

#[test]
fn each_request_is_one_of_its_own() {
    let origin = Origin::echo();
    let gateway = Gateway::start(config(&origin));
    let batch = json!({
        "headers": { "X-Common": "c" },
        "pipeline": [
            { "method": "PUT", "path": "/one", "query": { "a": 1 }, "headers": { "Host": "b.test" }, "body": "first" },
            { "method": "HEAD", "path": "/two" },
            { "path": "/three", "version": 1.0 },
            { "path": "/limited" }, { "path": "/limited" }, { "path": "/limited" },
        ],
    });
    let response = gateway.client().request(post(API, &batch.to_string()).replacen(
        "\r\n",
        "\r\nX-Mine: m\r\nAccept-Encoding: gzip\r\nX-Consumer-Username: forged\r\n",
        1,
    ));
    let entries = entries(&response);
    let statuses: Vec<_> = entries.iter().map(|entry| entry["status"].as_u64().unwrap_or(0)).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 503]);
    assert_eq!((&entries[0]["body"], &entries[0]["reason"]), (&json!("first"), &json!("OK")));
    assert_eq!(entries[1].get("body"), None, "HEAD has none");
    assert_eq!(entries[5]["headers"]["X-RateLimit-Remaining"], "0");
    let seen = origin.requests();
    assert_eq!(
        seen.iter().map(|request| request.target.as_str()).collect::<Vec<_>>(),
        ["/one?a=1", "/two", "/three", "/limited", "/limited"]
    );
    let first = &seen[0];
    assert_eq!(
        (first.method.as_str(), first.field("host"), first.field("x-common")),
        ("PUT", Some("b.test"), Some("c"))
    );
    assert_eq!((first.field("x-mine"), first.field("accept-encoding")), (Some("m"), None));
    assert_eq!((first.field("x-consumer-username"), first.field("x-forwarded-for")), (None, Some("127.0.0.1")));
    gateway.await_metric("apisix_http_status", &[("route", "all"), ("code", "200")], 3.0);
    gateway.await_metric("apisix_http_status", &[("route", "limited"), ("code", "503")], 1.0);
    // Its connections are closed with it.
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "writing")], 0.0);
    wait_until("only this client's connection", LIMIT, || {
        (gateway.metric("apisix_nginx_http_current_connections", &[("state", "active")]) <= 1.0).then_some(())
    });
}

#[test]
fn answers_that_do_not_come_have_their_place() {
    let origin = Origin::answering(|request| match request.target.as_str() {
        "/late" => {
            std::thread::sleep(std::time::Duration::from_secs(2));
            Answer::ok("late")
        }
        "/cut" => Answer::close("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"),
        _ => Answer::ok("soon"),
    });
    let gateway = Gateway::start(config(&origin));
    let batch = json!({ "timeout": 500, "pipeline": [{ "path": "/late" }, { "path": "/soon" }, { "path": "/cut" }, { "path": "/soon" }] });
    let entries = entries(&ask(&gateway, &batch));
    assert_eq!(entries[0], json!({ "status": 504, "reason": "upstream timeout" }));
    assert_eq!([&entries[1]["body"], &entries[3]["body"]], ["soon", "soon"]);
    assert_eq!((&entries[2]["status"], &entries[2]["read_body_err"]), (&json!(200), &json!("the answer broke off")));
}

#[test]
fn answers_are_bounded() {
    let origin = Origin::answering(|_| Answer::ok(&"x".repeat(9 << 20)));
    let gateway = Gateway::start(config(&origin));
    let batch = json!({ "pipeline": [{ "path": "/a" }, { "path": "/b" }] });
    let found = entries(&ask(&gateway, &batch));
    assert_eq!(found[0]["body"].as_str().map(str::len), Some(9 << 20));
    assert_eq!(found[1]["read_body_err"], "the answers of a batch have at most 16 MiB");
    // And by the budget of the gateway.
    let gateway = Start::new(config(&origin)).settings(json!({ "limits": { "buffers": "4MiB" } })).start();
    assert_eq!(ask(&gateway, &batch).status, 503);
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "writing")], 0.0);
}

#[test]
fn without_a_route_there_is_no_batch() {
    let origin = Origin::echo();
    let gateway = Gateway::start(
        json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } } }] }),
    );
    let response = ask(&gateway, &json!({ "pipeline": [{ "path": "/" }] }));
    assert_eq!((response.status, origin.last().target.as_str()), (200, API), "it goes to the upstream");
    let without =
        Start::new(config(&origin)).settings(json!({ "plugins": ["public-api", "limit-count", "prometheus"] })).start();
    assert_eq!(ask(&without, &json!({ "pipeline": [{ "path": "/" }] })).status, 404);
}
