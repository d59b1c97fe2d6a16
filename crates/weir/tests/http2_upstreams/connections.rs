//! Connections to nodes over HTTP/2: their time limits, PINGs, checks, and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::json;
use weir_wire::http2::ErrorCode;

use super::{at_once, serving};
use crate::harness::{
    Authority, Fault, Gateway, Kind, LIMIT, News, Nginx, each, get, h2_echo, h2_origin, post, route_with, timed,
    wait_until, weighted,
};

/// The stream alone ends: the connection and other requests on it go on.
#[test]
fn time_limits_of_an_upstream_hold_for_each_stream() {
    let resets = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&resets);
    let origin = h2_origin([], move |connection| {
        connection.gives_credit = false;
        while let Some(news) = connection.news() {
            match news {
                News::Complete(request) if request.field(":path") == Some("/begun") => {
                    connection.head(request.stream, &[(":status", "200"), ("content-length", "9")], false);
                    connection.content(request.stream, b"begun", false);
                }
                News::Complete(request) if request.field(":path") == Some("/") => {
                    connection.answer(request.stream, "served");
                }
                News::Reset(ErrorCode::Cancel) => drop(seen.fetch_add(1, SeqCst)),
                _ => {}
            }
        }
    });
    let gateway = serving(&[&origin], &json!({ "timeout": { "connect": 5, "send": 0.4, "read": 0.4 } }));
    // No answer; a node that takes no more of a body than its window; an answer that breaks off.
    assert_eq!(gateway.get("/silent").status, 504);
    let stuck = post("/stuck", &"x".repeat(200_000));
    let mut client = gateway.client();
    client.offer(stuck);
    assert_eq!(client.response().status, 504);
    let mut client = gateway.client();
    client.send(get("/begun"));
    assert_eq!(client.try_response().map(|_| ()), Err(Fault::Closed));
    wait_until("three streams to be reset", LIMIT, || (resets.load(SeqCst) == 3).then_some(()));
    assert_eq!((gateway.get("/").status, origin.connections()), (200, 1));
}

/// Longer than a connection may be silent before a PING goes with the next request.
const SILENCE: Duration = Duration::from_millis(10_300);

#[test]
fn a_ping_goes_with_the_first_request_behind_silence() {
    let pings = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&pings);
    let origin = h2_origin([], move |connection| {
        while let Some(news) = connection.news() {
            match news {
                News::Ping => drop(seen.fetch_add(1, SeqCst)),
                News::Complete(request) => {
                    connection.answer(request.stream, "served");
                    // Reads of an origin have a limit of 10 s.
                    let is_last = request.field(":path") == Some("/last");
                    thread::sleep(if is_last { SILENCE } else { Duration::ZERO });
                }
                _ => {}
            }
        }
    });
    let gateway = serving(&[&origin], &json!({}));
    let mut client = gateway.client();
    for path in ["/", "/last"] {
        assert_eq!(client.get(path).status, 200);
    }
    assert_eq!(pings.load(SeqCst), 0);
    thread::sleep(SILENCE);
    assert_eq!(client.get("/").status, 200);
    wait_until("a PING", LIMIT, || (pings.load(SeqCst) == 1).then_some(()));
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_node_that_answers_no_ping_is_left() {
    let origin = h2_origin([], move |connection| {
        while let Some(request) = connection.request() {
            match request.field(":path") {
                Some("/silent") if request.stream > 1 => {
                    // As if the host were gone: nothing comes, and nobody closes the connection.
                    thread::sleep(2 * SILENCE);
                    return;
                }
                Some("/silent") => connection.answer(request.stream, "served"),
                _ => {
                    connection.answer(request.stream, "served");
                    // Reads of an origin have a limit of 10 s.
                    thread::sleep(SILENCE);
                }
            }
        }
    });
    let gateway = serving(&[&origin], &json!({}));
    let mut client = gateway.client();
    client.sender().set_read_timeout(Some(Duration::from_secs(30))).expect("a time limit");
    assert_eq!(client.get("/").status, 200);
    thread::sleep(SILENCE);
    // The request can be repeated, so another connection has it.
    let (answer, took) = timed(|| client.get("/silent"));
    assert_eq!((answer.status, origin.connections()), (200, 2));
    assert!(took > Duration::from_secs(8) && took < Duration::from_secs(25), "after {took:?}");
}

/// Checks speak what requests speak, and HTTP/1.1 at a port of their own.
#[test]
fn nodes_are_checked_over_their_protocol() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test"]);
    let (cert, key) = (certificate.cert_file.display(), certificate.key_file.display());
    let tls = format!("ssl_certificate {cert}; ssl_certificate_key {key};");
    let logged =
        "log_format checks '$server_protocol $request_method $uri $http_host $http_x_a $content_length $status';";
    let start = |how: &str| {
        let tls = if how.contains("ssl") { &tls } else { "" };
        Nginx::with(
            logged,
            how,
            &format!("{tls} location = /check {{ access_log FOLDER/checks.log checks; return 204; }}"),
        )
    };
    let aside = start("");
    let port = aside.node().rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).expect("a port");
    let cases = [
        (" http2", json!({ "http2": true }), json!({}), "HTTP/2.0"),
        (" http2", json!({ "scheme": "grpc" }), json!({}), "HTTP/2.0"),
        (" ssl http2", json!({ "scheme": "https", "http2": true }), json!({ "type": "https" }), "HTTP/2.0"),
        (" ssl", json!({ "scheme": "https", "http2": true }), json!({ "type": "https" }), "HTTP/1.1"),
        (" ssl http2", json!({ "scheme": "grpcs" }), json!({ "type": "https" }), "HTTP/2.0"),
        (" http2", json!({ "scheme": "grpc" }), json!({ "port": port }), "HTTP/1.1"),
    ];
    each(
        &cases,
        |case| format!("{case:?}"),
        |(how, upstream, more, protocol)| {
            let node = start(how);
            let mut active = json!({
                "http_path": "/check", "http_method": "POST", "http_req_body": "x".repeat(40_000), "timeout": 5, "host": "a.test",
                "req_headers": ["X-A: b", "Connection: close"], "https_verify_certificate": false,
                "healthy": { "interval": 1, "http_statuses": [204] }, "unhealthy": { "interval": 1 },
            });
            active.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let mut upstream = upstream.clone();
            upstream["nodes"] = weighted([&node.node()]);
            upstream["checks"] = json!({ "active": active });
            let _gateway = Gateway::start(route_with(json!({}), upstream));
            let checked = if more.get("port").is_some() { &aside } else { &node };
            let log = wait_until("two checks", LIMIT, || {
                let text = std::fs::read_to_string(checked.file("checks.log")).unwrap_or_default();
                (text.lines().count() >= 2).then_some(text)
            });
            let expected = format!("{protocol} POST /check a.test b 40000 204");
            assert!(log.lines().all(|line| line == expected), "{expected:?}, not {log}");
        },
    );
}

#[test]
fn connections_end_as_the_pool_says() {
    let origin = h2_echo();
    let pool = json!({ "keepalive_pool": { "requests": 3, "idle_timeout": 0.5 } });
    let gateway = serving(&[&origin], &pool);
    for number in 1..=4 {
        assert_eq!(gateway.get("/").status, 200);
        assert_eq!(origin.connections(), if number > 3 { 2 } else { 1 }, "{number}");
    }
    wait_until("idle connections to be closed", LIMIT, || (origin.open() == 0).then_some(()));
    gateway.await_metric("weir_upstream_connections", &[("state", "idle")], 0.0);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(origin.connections(), 3);
}

#[test]
fn streams_of_a_connection_that_is_left_come_to_their_end() {
    let origin = h2_origin([], |connection| {
        let Some(first) = connection.request() else { return };
        if first.field(":path") == Some("/after") {
            return connection.answer(first.stream, "after");
        }
        let Some(second) = connection.request() else { return };
        connection.go_away(first.stream.max(second.stream), ErrorCode::NoError);
        for request in [first, second] {
            connection.answer(request.stream, "under way");
        }
        connection.news();
    });
    let gateway = serving(&[&origin], &json!({}));
    assert_eq!(at_once(&gateway, 2, &|_| post("/", "body")), [200, 200]);
    assert_eq!(gateway.get("/after").body, b"after");
    assert_eq!(origin.connections(), 2);
}
