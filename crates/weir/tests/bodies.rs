//! Request bodies that a plugin needs whole: collected, looked at, and sent on as if nothing had been.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Fault, Framing, Gateway, Origin, Protocol, RawClient, Start, chunked, each, over_both, post, route_with, weighted,
};

over_both!(
    a_collected_body_goes_up_whole_with_its_length,
    a_refused_body_leaves_the_connection_to_the_next_request,
    a_client_that_holds_its_body_back_is_asked_for_it,
    a_body_over_a_limit_is_refused,
    a_collected_body_can_be_sent_again,
    a_route_may_have_its_own_limit,
);

/// One route to these nodes whose plugin reads all bodies and takes whatever is JSON.
fn reading(over: Protocol, nodes: &[String], settings: Value) -> Gateway {
    let fields = json!({ "plugins": { "request-validation": { "body_schema": {} } } });
    let upstream = json!({ "nodes": weighted(nodes), "timeout": { "connect": 5, "send": 5, "read": 5 } });
    Start::new(route_with(fields, upstream)).settings(settings).over(over).start()
}

/// A JSON text of so many bytes.
fn json_of(size: usize) -> String {
    format!("\"{}\"", "x".repeat(size - 2))
}

fn in_chunks(body: &str, size: usize) -> Vec<u8> {
    let head = "POST /chunks HTTP/1.1\r\nHost: a.test\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut bytes = [head.as_bytes(), &chunked(body.as_bytes(), size)].concat();
    bytes.truncate(bytes.len() - 2);
    bytes.extend(b"X-T: 1\r\n\r\n");
    bytes
}

fn a_collected_body_goes_up_whole_with_its_length(over: Protocol) {
    let origin = Origin::echo();
    let gateway = reading(over, &[origin.node()], json!({}));
    // DATA frames of one byte are an abuse of HTTP/2.
    let tiny = if over == Protocol::Http1 { 1 } else { 100 };
    let cases: Vec<(String, Vec<u8>, String)> = [2, 100, 16 << 10, 70_000, 1 << 20]
        .into_iter()
        .flat_map(|size| {
            let body = json_of(size);
            let length = post("/length", &body).into_bytes();
            let of = |how: &str| format!("{size} bytes {how}");
            [
                (of("with a length"), length, body.clone()),
                (of("in chunks"), in_chunks(&body, 1000), body.clone()),
                (of("in large chunks"), in_chunks(&body, 1 << 20), body),
            ]
        })
        .chain([("tiny chunks".to_owned(), in_chunks(&json_of(5000), tiny), json_of(5000))])
        .collect();
    each(
        &cases,
        |(name, ..)| name.clone(),
        |(_, bytes, body)| {
            let mut client = gateway.caller();
            // The bytes after a body are the next request, even if the body was not used.
            client.send([bytes.as_slice(), post("/next", "1").as_bytes()].concat());
            for expected in [body.as_str(), "1"] {
                let response = client.response();
                assert_eq!((response.status, response.text() == expected), (200, true), "{}", response.body.len());
            }
        },
    );
    for request in origin.complete() {
        assert_eq!(request.framing, Framing::Length(request.body.len()));
        assert_eq!(request.fields.all("content-length"), [request.body.len().to_string()]);
        assert_eq!((request.field("transfer-encoding"), request.field("trailer")), (None, None));
    }
}

fn a_refused_body_leaves_the_connection_to_the_next_request(over: Protocol) {
    let origin = Origin::echo();
    let gateway = reading(over, &[origin.node()], json!({}));
    for refused in [post("/", "no JSON").into_bytes(), in_chunks("no JSON", 3), post("/", "").into_bytes()] {
        let mut client = gateway.caller();
        client.send([refused.as_slice(), post("/next", "7").as_bytes()].concat());
        assert_eq!(client.response().status, 400);
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (200, "7"));
    }
    assert!(origin.requests().iter().all(|request| request.target == "/next"));
}

fn a_client_that_holds_its_body_back_is_asked_for_it(over: Protocol) {
    let origin = Origin::echo();
    let gateway = reading(over, &[origin.node()], json!({ "limits": { "buffered_body": 1000 } }));
    let head = |length: usize| {
        format!("POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n")
    };
    let mut client = gateway.caller();
    for body in ["[1]", "[22]"] {
        client.send(head(body.len()));
        assert_eq!(client.head().start, "HTTP/1.1 100 Continue");
        client.send(body);
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (200, body));
        assert_eq!(origin.last().field("expect"), None, "nobody asks again");
    }
    // The body is sent without waiting for 100 (Continue).
    client.send(head(3) + "[3]");
    assert_eq!(client.response().text(), "[3]");
    // A body that is too long gets no 100 (Continue).
    client.send(head(1001));
    assert_eq!(client.response().status, 413);
    client.expect_close();
}

fn a_body_over_a_limit_is_refused(over: Protocol) {
    let origin = Origin::echo();
    for (limits, most) in
        [(json!({ "buffered_body": 1000 }), 1000), (json!({ "buffered_body": 5000, "body_size": 1000 }), 1000)]
    {
        let gateway = reading(over, &[origin.node()], json!({ "limits": limits }));
        let cases = [
            ("fits", post("/", &json_of(most)).into_bytes(), 200),
            ("fits in chunks", in_chunks(&json_of(most), 10), 200),
            ("too long", post("/", &json_of(most + 1)).into_bytes(), 413),
            ("too long, without its body", post("/", &json_of(most + 1)).as_bytes()[..100].to_vec(), 413),
            ("too long in chunks", in_chunks(&json_of(most + 1), 10), 413),
            ("far too long in chunks", in_chunks(&json_of(1 << 20), 10_000), 413),
        ];
        each(
            &cases,
            |(name, ..)| format!("{name} of {most}"),
            |(_, bytes, status)| {
                let mut client = gateway.caller();
                client.offer(bytes);
                let response = client.response();
                assert_eq!(response.status, *status, "{response:?}");
                if *status != 200 {
                    assert_eq!(response.field("x-weir-error"), Some("client; request body too large"));
                    client.expect_close();
                }
            },
        );
        gateway.await_metric("weir_client_errors_total", &[("reason", "body_too_large")], 4.0);
    }
    assert!(origin.requests().iter().all(|request| request.body.len() <= 1000));
}

#[test]
fn a_body_that_breaks_off_reaches_nobody() {
    let origin = Origin::echo();
    let errors = |gateway: &Gateway, reason: &str| {
        gateway.await_metric("weir_client_errors_total", &[("reason", reason)], 1.0);
    };
    let start = |client: &mut RawClient| {
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\"hell\r\n");
    };
    let gateway = reading(Protocol::Http1, &[origin.node()], json!({ "timeouts": { "body": 0.3 } }));
    let mut late = gateway.client();
    start(&mut late);
    assert_eq!(late.response().status, 408);
    late.expect_close();
    errors(&gateway, "body_timeout");

    let rate = json!({ "body_rate": 1_000_000, "body_rate_grace": "1s" });
    let gateway = reading(Protocol::Http1, &[origin.node()], json!({ "timeouts": { "body": 20 }, "limits": rate }));
    let mut slow = gateway.client();
    start(&mut slow);
    let mut sender = slow.sender();
    let dripping = std::thread::spawn(move || {
        use std::io::Write;
        while sender.write_all(b"1\r\nx\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!(slow.response().field("x-weir-error"), Some("client; request body too slow"));
    drop(slow);
    dripping.join().expect("the sender");
    errors(&gateway, "body_timeout");

    let gateway = reading(Protocol::Http1, &[origin.node()], json!({}));
    let mut malformed = gateway.client();
    start(&mut malformed);
    malformed.send("zz\r\n");
    assert_eq!(malformed.response().status, 400);
    malformed.expect_close();

    let mut gone = gateway.client();
    start(&mut gone);
    gone.finish_sending();
    assert!(matches!(gone.try_response(), Err(Fault::Closed | Fault::Reset)), "nobody is there to be answered");
    errors(&gateway, "aborted");
    assert_eq!(origin.requests().len(), 0);
}

fn a_collected_body_can_be_sent_again(over: Protocol) {
    let body = json_of(900_000);
    for (method, status, resent) in [("PUT", 200, 1), ("POST", 502, 0)] {
        // The origin reads a part of the body, or all of it, and closes.
        for takes in [1000, body.len()] {
            let first = Origin::scripted(move |connection| {
                if connection.head().is_some() && connection.exactly(takes).is_ok() {
                    connection.reset();
                }
            });
            let second = Origin::echo();
            let gateway = reading(over, &[first.node(), second.node()], json!({}));
            let mut client = gateway.caller();
            let head = format!("{method} / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n", body.len());
            let response = client.request(head + &body);
            assert_eq!(response.status, status, "{method} {takes}");
            assert_eq!((first.connections(), second.complete().len()), (1, resent), "{method} {takes}");
            assert!(resent == 0 || response.text() == body, "{method} {takes}: another body came back");
        }
    }
}

fn a_route_may_have_its_own_limit(over: Protocol) {
    let origin = Origin::echo();
    let limit = |bytes: usize| json!({ "client-control": { "max_body_size": bytes } });
    let reads = json!({ "client-control": { "max_body_size": 100 }, "request-validation": { "body_schema": {} } });
    let route = |id: &str, plugins: &Value| {
        json!({ "id": id, "uri": format!("/{id}"), "plugins": plugins,
                "upstream": { "nodes": weighted(&[origin.node()]) } })
    };
    let plain = json!({});
    let routes = [
        route("less", &limit(100)),
        route("more", &limit(5000)),
        route("any", &limit(0)),
        route("reads", &reads),
        route("setting", &plain),
    ];
    let gateway =
        Start::new(json!({ "routes": routes })).settings(json!({ "limits": { "body_size": 1000 } })).over(over).start();
    let cases = [
        ("less", 100, 200),
        ("less", 101, 413),
        ("more", 5000, 200),
        ("more", 5001, 413),
        ("any", 1 << 20, 200),
        ("reads", 100, 200),
        ("reads", 101, 413),
        ("setting", 1000, 200),
        ("setting", 1001, 413),
        ("setting", 1 << 20, 413),
    ];
    each(
        &cases,
        |case| format!("{case:?}"),
        |(path, size, status)| {
            let body = json_of(*size);
            let head = format!("POST /{path} HTTP/1.1\r\nHost: a.test\r\n");
            let length = format!("{head}Content-Length: {size}\r\n\r\n{body}").into_bytes();
            let chunks = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
            for bytes in [length, [chunks, chunked(body.as_bytes(), 70)].concat()] {
                let mut client = gateway.caller();
                client.offer(&bytes);
                let response = client.response();
                assert_eq!(response.status, *status, "{response:?}");
                assert_eq!(response.text() == body, *status == 200);
                if *status != 200 {
                    client.expect_close();
                }
            }
        },
    );
    assert!(origin.complete().iter().all(|r| r.target != "/less" || r.body.len() <= 100), "too long a body passed");
}
