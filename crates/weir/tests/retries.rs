//! Nodes that do not answer: retries where they are safe, timeouts, and the responses for failures.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Connection, Full, Gateway, LIMIT, Origin, Protocol, Refusing, Response, Start, each, get, over_both, post,
    route_with, timed, wait_until,
};

over_both!(
    refused_connections_are_tried_at_the_next_node,
    only_what_is_safe_is_sent_again,
    a_body_that_is_gone_is_not_sent_again,
    a_kept_connection_that_was_closed_is_not_noticed,
    a_kept_connection_that_closes_on_a_request_is_replaced_where_that_is_safe,
    retry_timeout_ends_the_tries,
    every_timeout_of_an_upstream_ends_a_try,
    the_read_timeout_counts_between_two_reads,
    the_routes_timeout_goes_before_the_upstreams,
    an_answer_of_the_upstream_is_not_a_failure_of_the_gateway,
);

/// An upstream with these nodes in this order, and further fields.
fn upstream(nodes: &[String], fields: &Value) -> Value {
    let mut list = Vec::new();
    for node in nodes {
        let (host, port) = node.rsplit_once(':').expect("host:port");
        list.push(json!({ "host": host, "port": port.parse::<u16>().expect("a port"), "weight": 1 }));
    }
    let mut upstream = json!({ "nodes": list });
    upstream.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    upstream
}

fn serving(over: Protocol, nodes: &[String], fields: &Value) -> Gateway {
    Start::new(route_with(json!({}), upstream(nodes, fields))).over(over).start()
}

/// The answer for a failed upstream: a status, its phrase in JSON, and which side it was.
#[track_caller]
fn assert_failure(response: &Response, status: u16, phrase: &str) {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(response.json(), json!({ "error_msg": format!("{status} {phrase}") }), "{response:?}");
    assert_eq!(response.field("content-type"), Some("application/json"), "{response:?}");
    assert!(response.field("x-weir-error").is_some_and(|e| e.starts_with("upstream")), "{response:?}");
    assert!(response.keeps_connection(), "the client has done nothing wrong: {response:?}");
}

const TIMEOUT: &str = "Gateway Timeout";
const BAD: &str = "Bad Gateway";

fn refused_connections_are_tried_at_the_next_node(over: Protocol) {
    let origin = Origin::hello();
    let (refusing, another) = (Refusing::bind(), Refusing::bind());
    let (dead, other, live) = (refusing.node(), another.node(), origin.node());
    for (nodes, fields, status, told) in [
        (vec![dead.clone(), live.clone()], json!({}), 200, None),
        (vec![dead.clone(), other.clone(), live.clone()], json!({}), 200, None),
        (vec![dead.clone(), other.clone(), live.clone()], json!({ "retries": 2 }), 200, None),
        (vec![dead.clone(), other.clone(), live.clone()], json!({ "retries": 1 }), 502, Some("502, 502")),
        (vec![dead.clone(), live], json!({ "retries": 0 }), 502, Some("502")),
        (vec![dead.clone(), other], json!({}), 502, Some("502, 502")),
        (vec![dead.clone()], json!({}), 502, Some("502")),
        (vec![dead], json!({ "retries": 2 }), 502, Some("502, 502, 502")),
    ] {
        for request in [get("/"), post("/", "body")] {
            let before = origin.requests().len();
            // One gateway, one request: the next would begin at the next node.
            let gateway = serving(over, &nodes, &fields);
            let response = gateway.caller().request(&request);
            assert_eq!(response.status, status, "{nodes:?} {fields}");
            assert_eq!(response.field("x-apisix-upstream-status"), told, "{nodes:?} {fields}");
            assert_eq!(origin.requests().len() - before, usize::from(status == 200));
            if status == 502 {
                assert_failure(&response, 502, BAD);
            }
        }
    }
}

/// An origin that fails the first request in a given way.
fn failing(how: &'static str) -> Origin {
    let script = move |connection: &mut Connection| {
        let Some(_) = connection.request() else { return };
        match how {
            "closes" => {}
            "resets" => connection.reset(),
            "is silent" => connection.await_close(),
            "says half" => {
                connection.send("HTTP/1.1 200 OK\r\nContent-Le");
            }
            "fails" => {
                connection.send("HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops");
                connection.await_close();
            }
            other => panic!("no script for {other}"),
        }
    };
    Origin::scripted(script)
}

fn only_what_is_safe_is_sent_again(over: Protocol) {
    let cases = [
        // Before any byte of an answer an idempotent request may be sent again (RFC 9110 section 9.2.2).
        ("closes", "GET", 200, 1),
        ("resets", "GET", 200, 1),
        ("is silent", "GET", 200, 1),
        ("resets", "HEAD", 200, 1),
        ("resets", "PUT", 200, 1),
        ("resets", "DELETE", 200, 1),
        ("resets", "OPTIONS", 200, 1),
        ("closes", "POST", 502, 0),
        ("resets", "POST", 502, 0),
        ("resets", "PATCH", 502, 0),
        ("resets", "FROB", 502, 0),
        ("is silent", "POST", 504, 0),
        // After it nothing is, and an answer is an answer.
        ("says half", "GET", 502, 0),
        ("fails", "GET", 500, 0),
    ];
    each(
        &cases,
        |case| format!("{case:?}"),
        |(how, method, status, resent)| {
            let (first, second) = (failing(how), Origin::hello());
            let read = if *how == "is silent" { 3.0 } else { 20.0 };
            let fields = json!({ "timeout": { "connect": 20, "send": 20, "read": read } });
            let gateway = serving(over, &[first.node(), second.node()], &fields);
            let response =
                gateway.caller().request(format!("{method} / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi"));
            assert_eq!(response.status, *status, "{response:?}");
            assert_eq!((first.requests().len(), second.requests().len()), (1, *resent));
            if *resent == 1 {
                assert_eq!(second.last().body, b"hi", "the body is sent again whole");
            }
        },
    );
}

fn a_body_that_is_gone_is_not_sent_again(over: Protocol) {
    // More than any buffer holds has reached the first node when it fails.
    let first = Origin::scripted(|connection| {
        if connection.head().is_some() && connection.exactly(20 << 20).is_ok() {
            connection.reset();
        }
    });
    let second = Origin::hello();
    let gateway = serving(over, &[first.node(), second.node()], &json!({}));
    let mut client = gateway.caller();
    client.send(format!("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n", 20 << 20));
    client.offer(vec![b'x'; 20 << 20]);
    assert_eq!(client.response().status, 502);
    assert_eq!(second.connections(), 0);
}

fn a_kept_connection_that_was_closed_is_not_noticed(over: Protocol) {
    // The origin answers once and closes, with a reset or not, and with `Connection: close` or not.
    for reset in [false, true] {
        let origin = Origin::scripted(move |connection| {
            if connection.request().is_some() {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
                if reset {
                    connection.reset();
                }
            }
        });
        let gateway = serving(over, &[origin.node()], &json!({ "retries": 0 }));
        let mut client = gateway.caller();
        for (number, request) in [get("/"), get("/"), post("/", "x"), post("/", "y"), get("/")].iter().enumerate() {
            assert_eq!(client.request(request).status, 200, "request {number}");
            wait_until("the origin to close", LIMIT, || (origin.open() == 0).then_some(()));
        }
    }
}

fn a_kept_connection_that_closes_on_a_request_is_replaced_where_that_is_safe(over: Protocol) {
    // The race that cannot be won: the origin closes just when the request is under way.
    for (request, status) in [(get("/second"), 200), (post("/second", "x"), 502)] {
        let origin = Origin::scripted(|connection| {
            while let Some(request) = connection.request() {
                if connection.number == 1 && request.target == "/second" {
                    return;
                }
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
            }
        });
        let gateway = serving(over, &[origin.node()], &json!({ "retries": 0 }));
        let mut client = gateway.caller();
        assert_eq!(client.get("/first").status, 200);
        let response = client.request(&request);
        assert_eq!(response.status, status, "{request:?}");
        let posts = origin.requests().iter().filter(|r| r.method == "POST").count();
        assert!(posts <= 1, "a POST was sent {posts} times");
        assert_eq!(client.get("/third").status, 200);
    }
}

fn retry_timeout_ends_the_tries(over: Protocol) {
    let silent: Vec<_> = (0..5).map(|_| failing("is silent")).collect();
    let nodes: Vec<_> = silent.iter().map(Origin::node).collect();
    let fields = json!({ "retry_timeout": 5, "timeout": { "connect": 20, "send": 20, "read": 3 } });
    let gateway = serving(over, &nodes, &fields);
    let (response, took) = timed(|| gateway.get("/"));
    assert!(matches!(response.status, 502 | 504), "{response:?}");
    let tries = silent.iter().filter(|origin| !origin.requests().is_empty()).count();
    assert_eq!(tries, 2, "a third would begin after five seconds; took {took:?}");
}

fn every_timeout_of_an_upstream_ends_a_try(over: Protocol) {
    let limit =
        |connect: f64, send: f64, read: f64| json!({ "timeout": { "connect": connect, "send": send, "read": read } });
    let close = |took: Duration| assert!(took >= Duration::from_millis(500) && took < LIMIT / 2, "after {took:?}");

    let queue = Full::bind();
    let gateway = serving(over, &[queue.node()], &limit(1.0, 60.0, 60.0));
    let (response, took) = timed(|| gateway.get("/"));
    assert_failure(&response, 504, TIMEOUT);
    close(took);

    let silent = failing("is silent");
    let gateway = serving(over, &[silent.node()], &limit(60.0, 60.0, 1.0));
    let (response, took) = timed(|| gateway.get("/"));
    assert_failure(&response, 504, TIMEOUT);
    assert_eq!(response.field("x-apisix-upstream-status"), Some("504"));
    close(took);

    // A node that does not read: its buffers fill up, and then nothing goes any more.
    let deaf = Origin::scripted(|connection| {
        connection.head();
        std::thread::park_timeout(LIMIT);
    });
    let gateway = serving(over, &[deaf.node()], &limit(60.0, 1.0, 60.0));
    let mut client = gateway.caller();
    client.send(format!("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n", 64 << 20));
    let (response, took) = timed(|| {
        client.offer(vec![b'x'; 64 << 20]);
        client.response()
    });
    assert_eq!((response.status, response.json()), (504, json!({ "error_msg": "504 Gateway Timeout" })));
    close(took);
}

/// Part of the body has gone to a node that broke off; the rest of it still is no request.
#[test]
fn after_an_upload_that_failed_the_next_request_begins_behind_its_body() {
    let origin = Origin::scripted(|connection| {
        let Some(request) = connection.head() else { return };
        if request.target == "/upload" {
            let _ = connection.exactly(35_000);
        } else {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext");
        }
    });
    let gateway = serving(Protocol::Http1, &[origin.node()], &json!({}));
    let mut client = gateway.client();
    client.send("POST /upload HTTP/1.1\r\nHost: a.test\r\nContent-Length: 60000\r\n\r\n");
    client.send(vec![b'x'; 40_000]);
    assert_failure(&client.response(), 502, "Bad Gateway");
    client.send([&[b'x'; 20_000], get("/next").as_bytes()].concat());
    assert_eq!(client.response().text(), "next");
}

fn the_read_timeout_counts_between_two_reads(over: Protocol) {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_none() {
            return;
        }
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n");
        // Longer than the timeout altogether.
        for _ in 0..8 {
            std::thread::park_timeout(Duration::from_millis(450));
            connection.send("x");
        }
    });
    let fields = json!({ "timeout": { "connect": 20, "send": 20, "read": 3 } });
    let gateway = serving(over, &[origin.node()], &fields);
    assert_eq!(gateway.get("/slow").text(), "xxxxxxxx");

    // A body that stops half way is cut: its head has gone out already.
    let stops = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nxxxx");
            connection.await_close();
        }
    });
    let gateway = serving(over, &[stops.node()], &fields);
    let mut client = gateway.caller();
    client.send(get("/"));
    let (answer, took) = timed(|| client.try_response());
    assert!(answer.is_err(), "{answer:?}");
    assert!(took >= Duration::from_millis(2500) && took < LIMIT / 2, "after {took:?}");
}

fn the_routes_timeout_goes_before_the_upstreams(over: Protocol) {
    let silent = failing("is silent");
    let fields = json!({ "timeout": { "connect": 5, "send": 5, "read": 60 } });
    let route = json!({ "timeout": { "connect": 5, "send": 5, "read": 0.3 } });
    let gateway = Start::new(route_with(route, upstream(&[silent.node()], &fields))).over(over).start();
    assert_eq!(gateway.get("/").status, 504);
}

fn an_answer_of_the_upstream_is_not_a_failure_of_the_gateway(over: Protocol) {
    let origin = Origin::answering(|_| Answer::status(502, "its own"));
    let gateway = serving(over, &[origin.node(), Refusing::bind().node()], &json!({}));
    let response = gateway.get("/");
    assert_eq!((response.status, response.text().as_str()), (502, "its own"));
    assert_eq!((response.field("x-weir-error"), response.field("x-apisix-upstream-status")), (None, Some("502")));
}
