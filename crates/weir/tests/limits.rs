//! Every limit of the settings: what is too much or too slow is refused or cut, what is just within is served.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Fault, Framing, Full, Gateway, LIMIT, Origin, Protocol, Start, chunked, each, get, over_both, post,
    route_to, route_with, timed, wait_until,
};

over_both!(
    request_bodies_are_bounded,
    a_request_body_has_to_go_on,
    a_client_that_drips_its_body_is_cut,
    a_client_that_does_not_read_is_cut,
    response_heads_are_bounded,
    buffered_bodies_are_bounded,
    buffers_are_bounded_in_sum,
    mirrors_leave_memory_to_requests,
    memory_of_a_peak_goes_back_to_the_system,
    bodies_have_no_bound_by_default,
);

fn limited(over: Protocol, origin: &Origin, settings: &Value) -> Gateway {
    Start::new(route_to(&[origin.node()])).settings(settings).over(over).start()
}

/// A request whose head has exactly so many bytes, in fields of at most `most` bytes.
fn head_of(size: usize, most: usize) -> String {
    let mut head = "GET / HTTP/1.1\r\nHost: a.test\r\n".to_owned();
    let end = 2;
    while head.len() + end < size {
        let left = size - end - head.len();
        // A last line too short for a field goes to the one before it.
        let line = if left > most + 16 { most } else { left };
        head += &format!("X-A: {}\r\n", "a".repeat(line - "X-A: \r\n".len()));
    }
    head += "\r\n";
    assert_eq!(head.len(), size);
    head
}

#[test]
fn heads_are_bounded() {
    let origin = Origin::hello();
    let settings = json!({ "limits": { "head_size": 2048, "header_count": 10, "target_length": 500 } });
    let gateway = limited(Protocol::Http1, &origin, &settings);
    let fields = |count: usize| {
        let lines: String = (1..count).map(|i| format!("X-{i}: v\r\n")).collect();
        format!("GET / HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n")
    };
    let target = |length: usize| get(&format!("/{}", "a".repeat(length - 1)));
    let cases = [
        ("a head of 2048", head_of(2048, 400), 200),
        ("a head of 2049", head_of(2049, 400), 431),
        ("one huge field", head_of(100_000, 99_000), 431),
        ("10 fields", fields(10), 200),
        ("11 fields", fields(11), 431),
        ("500 fields", fields(500), 431),
        ("a target of 500", target(500), 200),
        ("a target of 501", target(501), 414),
        ("a target of 100,000", target(100_000), 414),
    ];
    each(
        &cases,
        |(name, ..)| name.to_string(),
        |(_, bytes, status)| {
            let mut client = gateway.client();
            // The gateway may answer and close before it has everything.
            client.offer(bytes);
            let response = client.response();
            assert_eq!(response.status, *status, "{response:?}");
            if *status != 200 {
                assert!(!response.keeps_connection());
                client.expect_close();
            }
        },
    );
    // An endless line is cut off without an end in sight.
    let mut client = gateway.client();
    client.offer(format!("GET / HTTP/1.1\r\nHost: a.test\r\nX-A: {}", "a".repeat(4096)));
    assert_eq!(client.response().status, 431);
    let errors = |reason| gateway.metric("weir_client_errors_total", &[("reason", reason)]);
    assert!(errors("head_too_large") >= 3.0 && errors("too_many_headers") >= 1.0 && errors("target_too_long") >= 2.0);
}

fn request_bodies_are_bounded(over: Protocol) {
    let origin = Origin::hello();
    let gateway = limited(over, &origin, &json!({ "limits": { "body_size": 1000 } }));
    let length = |count: usize| post("/", &"a".repeat(count)).into_bytes();
    let chunks = |count: usize, size: usize| {
        let head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
        [head.as_bytes(), &chunked(&b"a".repeat(count), size)].concat()
    };
    let cases = [
        ("1000 bytes", length(1000), 200),
        ("1001 bytes", length(1001), 413),
        ("1001 bytes that do not come", length(1001)[..120].to_vec(), 413),
        ("1000 bytes in chunks", chunks(1000, 100), 200),
        ("1000 bytes in tiny chunks", chunks(1000, 1), 200),
        ("1001 bytes in chunks", chunks(1001, 100), 413),
        ("1001 bytes in one chunk", chunks(1001, 1001), 413),
        ("a million bytes in chunks", chunks(1_000_000, 10_000), 413),
    ];
    each(
        &cases,
        |(name, ..)| name.to_string(),
        |(_, bytes, status)| {
            let mut client = gateway.caller();
            client.offer(bytes);
            let response = client.response();
            assert_eq!(response.status, *status, "{response:?}");
            if *status != 200 {
                client.expect_close();
            }
        },
    );
    assert!(origin.complete().iter().all(|request| request.body.len() <= 1000), "too long a body came through whole");
    gateway.await_metric("weir_upstream_connections", &[("state", "active")], 0.0);
}

#[test]
fn a_head_has_to_come_in_time() {
    let origin = Origin::hello();
    let gateway = limited(Protocol::Http1, &origin, &json!({ "timeouts": { "head": "2s", "idle": "60s" } }));
    let check = |bytes: &str, drip: bool| {
        let mut client = gateway.client();
        let ((), took) = timed(|| {
            client.offer(bytes);
            // Bytes that keep coming do not help: the head has to end.
            while drip && client.offer("X") && client.try_response_within(Duration::from_millis(20)).is_none() {}
            if !drip {
                assert_eq!(client.response().status, 408, "{bytes:?}");
                client.expect_close();
            }
        });
        assert!(took >= Duration::from_secs(1) && took < LIMIT / 2, "{bytes:?}: after {took:?}");
    };
    each(
        &[("GET / HTTP/1.1\r\nHo", false), ("G", false), ("GET / HTTP/1.1\r\nHost: a.test\r\nX-A: ", true)],
        |case| format!("{case:?}"),
        |(bytes, drip)| check(bytes, *drip),
    );
    // The first head after accepting, of which not even the first byte comes: closed, with or without a word.
    let mut client = gateway.client();
    match client.try_response() {
        Ok(response) => assert_eq!(response.status, 408),
        Err(fault) => assert_eq!(fault, Fault::Closed),
    }
    // The second head on a connection.
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    client.send("GET /");
    assert_eq!(client.response().status, 408);
    client.expect_close();
    assert!(origin.requests().iter().all(|request| request.complete));
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let origin = Origin::hello();
    let gateway = limited(Protocol::Http1, &origin, &json!({ "timeouts": { "head": "10s", "idle": "2s" } }));
    let mut client = gateway.client();
    let ((), took) = timed(|| {
        assert_eq!(client.get("/").status, 200);
        client.expect_close();
    });
    assert!(took >= Duration::from_secs(1) && took < LIMIT / 2, "after {took:?}");
}

fn a_request_body_has_to_go_on(over: Protocol) {
    let origin = Origin::hello();
    let gateway = limited(over, &origin, &json!({ "timeouts": { "body": "3s", "idle": "60s" } }));
    let heads = ["Content-Length: 1000", "Transfer-Encoding: chunked"];
    each(
        &heads,
        |head| head.to_string(),
        |framing| {
            let mut client = gateway.caller();
            let (response, took) = timed(|| {
                client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n3\r\nabc\r\n"));
                client.response()
            });
            assert_eq!(response.status, 408);
            assert!(took >= Duration::from_secs(1) && took < LIMIT / 2, "after {took:?}");
            client.expect_close();
        },
    );
    assert!(origin.complete().is_empty());
    // The time between two reads counts, not that of the whole body.
    let mut client = gateway.caller();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 6\r\n\r\n");
    for _ in 0..6 {
        client.expect_quiet(Duration::from_millis(600));
        client.send("x");
    }
    assert_eq!(client.response().status, 200);
}

fn a_client_that_drips_its_body_is_cut(over: Protocol) {
    let origin = Origin::hello();
    let settings = json!({ "limits": { "body_rate": 10_000, "body_rate_grace": "3s" }, "timeouts": { "body": "60s" } });
    let gateway = limited(over, &origin, &settings);
    let mut client = gateway.caller();
    let (response, took) = timed(|| {
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000\r\n\r\n");
        loop {
            let sent = client.offer("x");
            if let Some(answer) = client.try_response_within(Duration::from_millis(50)) {
                return answer;
            }
            assert!(sent, "cut without an answer");
        }
    });
    assert_eq!(response.map(|r| r.status), Ok(408));
    assert!(took >= Duration::from_secs(2) && took < LIMIT / 2, "after {took:?}");
    // A fast one is not.
    assert_eq!(gateway.caller().request(post("/", &"x".repeat(100_000))).status, 200);
}

fn a_client_that_does_not_read_is_cut(over: Protocol) {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let chunk = [b"10000\r\n", &[b'x'; 65536][..], b"\r\n"].concat();
            while connection.send(&chunk) {}
        }
    });
    let gateway = limited(over, &origin, &json!({ "timeouts": { "send": "300ms" } }));
    let mut client = gateway.caller();
    client.send(get("/"));
    client.head();
    wait_until("the upstream connection to be closed", LIMIT, || (origin.open() == 0).then_some(()));
    gateway.await_metric("weir_client_errors_total", &[("reason", "write_timeout")], 1.0);
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 0.0);
    // The bytes sent before are received, and are not a whole response.
    assert!(client.body(Framing::Chunked).is_err(), "it must not look whole");
}

/// Short answers wait in the gateway when the kernel takes no more: the client has as long for these.
#[test]
fn a_client_that_does_not_read_short_answers_is_cut() {
    let mock = json!({ "mocking": { "response_example": "x".repeat(3000) } });
    let config = json!({ "routes": [{ "id": "mock", "uri": "/*", "plugins": mock }] });
    let gateway = Gateway::with(config, json!({ "timeouts": { "send": "100ms" } }));
    let client = || {
        let client = gateway.client();
        rustix::net::sockopt::set_socket_recv_buffer_size(client.sender(), 4096).expect("a small receive buffer");
        client
    };
    let cut = || gateway.metric("weir_client_errors_total", &[("reason", "write_timeout")]) as usize;
    // The number of requests that fit, found by a client that sends more.
    let mut greedy = client();
    greedy.offer(get("/").repeat(20_000));
    wait_until("the first one to be cut", LIMIT, || (cut() == 1).then_some(()));
    let fit = gateway.metric("apisix_http_requests_total", &[]) as usize;
    // Then one at a time, with more than the limit for each: none of them finds another one waiting.
    let mut modest = client();
    let mut asked = fit.saturating_sub(20);
    modest.send(get("/").repeat(asked));
    while cut() == 1 {
        assert!(asked < fit + 100, "nothing is ever full");
        modest.offer(get("/"));
        asked += 1;
        std::thread::sleep(Duration::from_millis(250));
    }
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 0.0);
}

/// The connection that has waited longest for a request, the first or the next, whole or in part, is closed; connections
/// with a request in flight never are.
#[test]
fn connections_are_bounded() {
    let held = Arc::new(Mutex::new(false));
    let (hold, let_go) = (held.clone(), || *held.lock().unwrap() = false);
    let origin = Origin::answering(move |request| {
        while request.target == "/held" && *hold.lock().unwrap() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Answer::ok("hello")
    });
    let settings = json!({ "limits": { "connections": 3 }, "timeouts": { "idle": "60s", "head": "60s" } });
    let gateway = Start::new(route_to(&[origin.node()])).settings(settings).workers(1).start();
    let gave_way = || gateway.metric("weir_client_errors_total", &[("reason", "too_many_connections")]);
    let asked = |path| {
        let mut client = gateway.client();
        client.send(get(path));
        client
    };
    let answered = || {
        let mut client = asked("/");
        assert_eq!(client.response().status, 200);
        client
    };
    // All are known to the gateway, whose clock moves on before it hears of anything else.
    let settle = |open| {
        gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], open);
        std::thread::sleep(Duration::from_millis(150));
    };

    let mut kept = answered();
    settle(1.0);
    let mut silent = gateway.client();
    settle(2.0);
    let mut begun = gateway.client();
    begun.send("GET / HTTP/1.1\r\nHost:");
    settle(3.0);
    assert_eq!(gave_way(), 0.0);
    let mut next = answered();
    kept.expect_close();
    settle(3.0);
    let mut last = answered();
    silent.expect_close();
    settle(3.0);
    // A request that comes after all is served, and has its place at the end of the line.
    begun.send(" a.test\r\n\r\n");
    assert_eq!(begun.response().status, 200);
    settle(3.0);
    let _newest = answered();
    next.expect_close();
    assert_eq!(gave_way(), 3.0);
    gateway.logged("for each new one the longest idle is closed");

    // With a request under way on each the new one waits.
    *held.lock().unwrap() = true;
    let mut busy: Vec<_> = (0..3).map(|_| asked("/held")).collect();
    last.expect_close();
    wait_until("the requests to be held", LIMIT, || {
        (origin.requests().iter().filter(|request| request.target == "/held").count() == 3).then_some(())
    });
    let mut waiting = asked("/");
    waiting.expect_quiet(Duration::from_millis(200));
    let_go();
    for client in &mut busy {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(waiting.response().status, 200);
}

/// The same where one worker has all that is idle.
#[test]
fn idle_connections_of_other_workers_give_way() {
    let origin = Origin::hello();
    let settings = json!({ "limits": { "connections": 8 }, "timeouts": { "idle": "60s", "head": "60s" } });
    let gateway = Start::new(route_to(&[origin.node()])).settings(settings).workers(4).start();
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(gateway.client());
        assert_eq!(clients.last_mut().expect("just pushed").get("/").status, 200);
    }
    let open = gateway.metric("apisix_nginx_http_current_connections", &[("state", "active")]);
    assert!(open <= 8.0, "{open} are open");
}

#[test]
fn requests_on_a_connection_are_bounded() {
    let origin = Origin::hello();
    let gateway = limited(Protocol::Http1, &origin, &json!({ "limits": { "requests_per_connection": 3 } }));
    let mut client = gateway.client();
    for number in 1..=3 {
        let response = client.get("/");
        assert_eq!((response.status, response.keeps_connection()), (200, number < 3), "{number}");
    }
    client.expect_close();
    let unbounded = limited(Protocol::Http1, &origin, &json!({ "limits": { "requests_per_connection": 0 } }));
    let mut client = unbounded.client();
    for _ in 0..50 {
        assert!(client.get("/").keeps_connection());
    }
    // Pipelined ones behind the last are not served.
    let mut client = gateway.client();
    client.send(get("/").repeat(5));
    for _ in 0..3 {
        assert_eq!(client.response().status, 200);
    }
    client.expect_close();
}

#[test]
fn connections_have_an_age() {
    let origin = Origin::hello();
    let gateway = limited(Protocol::Http1, &origin, &json!({ "timeouts": { "connection_age": "1s" } }));
    let kept = limited(Protocol::Http1, &origin, &json!({ "timeouts": { "connection_age": 0 } }));
    let mut others = kept.client();
    let mut client = gateway.client();
    let ((), took) = timed(|| {
        while client.get("/").keeps_connection() {
            assert!(others.get("/").keeps_connection());
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    client.expect_close();
    assert!(took > Duration::from_millis(800), "after {took:?}");
    assert!(others.get("/").keeps_connection());
}

fn response_heads_are_bounded(over: Protocol) {
    let origin = Origin::answering(|request| {
        let count: usize = request.target.rsplit('/').next().and_then(|n| n.parse().ok()).expect("a number");
        let lines = match request.target.split('/').nth(1) {
            Some("bytes") => format!("X-A: {}\r\n", "a".repeat(count)),
            _ => (0..count).map(|i| format!("X-{i}: v\r\n")).collect(),
        };
        crate::harness::Answer::keep(format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: 0\r\n\r\n"))
    });
    let settings = json!({ "limits": { "response_head_size": 2048, "header_count": 20 } });
    let gateway = limited(over, &origin, &settings);
    for (path, status) in
        [("/bytes/1900", 200), ("/bytes/2100", 502), ("/bytes/200000", 502), ("/fields/15", 200), ("/fields/30", 502)]
    {
        assert_eq!(gateway.get(path).status, status, "{path}");
    }
}

fn buffered_bodies_are_bounded(over: Protocol) {
    // A plugin that needs the whole body must not let one pass that it has not seen.
    let origin = Origin::answering(|request| {
        let count = request.target.trim_start_matches('/').parse().expect("a number");
        crate::harness::Answer::ok(&"a".repeat(count))
    });
    let plugins = json!({ "plugins": { "response-rewrite": { "filters": [{ "regex": "a", "scope": "global", "replace": "b" }] } } });
    let config = route_with(plugins, json!({ "nodes": { (origin.node()): 1 } }));
    let gateway = Start::new(config).settings(json!({ "limits": { "buffered_body": 10_000 } })).over(over).start();
    for (count, status) in [(0, 200), (100, 200), (10_000, 200), (10_001, 502), (1_000_000, 502)] {
        let response = gateway.get(&format!("/{count}"));
        assert_eq!(response.status, status, "{count}");
        assert!(status != 200 || response.text() == "b".repeat(count), "{count}: {:.20}", response.text());
    }
}

/// The buffers of all clients have a bound in sum. Requests beyond it are refused, and freed buffers serve later requests.
fn buffers_are_bounded_in_sum(over: Protocol) {
    const CLIENTS: usize = 30;
    let body = || "x".repeat(700_000);
    let text = || format!("\"{}\"", body());
    let validated = json!({ "request-validation": { "body_schema": { "type": "string" } }, "mocking": { "response_example": "ok" } });
    let filters = json!({ "response-rewrite": { "filters": [{ "regex": "y", "replace": "z" }] } });
    let begun = Arc::new(AtomicUsize::new(0));
    let (told, may_end) = (begun.clone(), Arc::new(AtomicBool::new(false)));
    let ends = may_end.clone();
    // Answers stop in the middle.
    let origin = Origin::scripted(move |connection| {
        while connection.request().is_some() {
            let body = "x".repeat(700_000);
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.len(), &body[..600_000]));
            told.fetch_add(1, SeqCst);
            while !ends.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            connection.send(&body[600_000..]);
        }
    });
    let config = json!({ "routes": [
        { "id": "sent", "uri": "/sent", "plugins": validated },
        { "id": "got", "uri": "/got", "plugins": filters, "upstream": { "nodes": { origin.node(): 1 } } },
    ] });
    let settings = json!({ "limits": { "buffers": "4MiB", "head_size": "1MiB" } });
    let chunks = [
        &b"POST /sent HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            [..],
        &chunked(text().as_bytes(), 50_000),
    ];
    let plain = post("/sent", &text());
    let head = format!("GET /sent HTTP/1.1\r\nHost: a.test\r\nX-A: {}\r\n\r\n", "a".repeat(150_000));
    let cases = [
        ("a body", plain.into_bytes(), 200),
        ("a body in chunks", chunks.concat(), 200),
        ("a head", head.into_bytes(), 400),
        ("an answer", get("/got").into_bytes(), 200),
    ];
    for (name, bytes, served) in cases {
        if over == Protocol::Http2 && name == "a head" {
            continue; // None is kept before it is whole, or over `limits.head_size`.
        }
        let gateway = Start::new(&config).settings(&settings).over(over).start();
        let before = gateway.process.resident();
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| gateway.caller()).collect();
        let (all, last) = match name {
            "an answer" => (&bytes[..], &b""[..]),
            _ => bytes.split_at(bytes.len() - 2),
        };
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| client.offer(all));
            }
        });
        if name == "an answer" {
            wait_until("all answers to have begun", LIMIT, || (begun.load(SeqCst) >= CLIENTS).then_some(()));
        }
        wait_until("what has no room to be refused", LIMIT, || {
            (gateway.metric("weir_buffers_refused_total", &[]) > 0.0).then_some(())
        });
        let more = gateway.process.resident().saturating_sub(before);
        assert!(more < 30 << 20, "{name}: {more} bytes more than before");
        assert!(gateway.metric("weir_buffers_bytes", &[]) <= f64::from(4 << 20), "{name}");
        may_end.store(true, SeqCst);
        let mut found = [0, 0];
        for client in &mut clients {
            client.offer(last);
            let response = client.response();
            let refused = response.status == 503;
            assert!(refused || response.status == served, "{name}: {response:?}");
            if refused {
                assert_eq!(response.field("x-weir-error"), Some("gateway; no room in limits.buffers"), "{name}");
            }
            found[usize::from(refused)] += 1;
        }
        assert!(found[0] > 0 && found[1] > 0, "{name}: {found:?}");
        // The whole budget is free again.
        drop(clients);
        wait_until("the memory to come back", LIMIT, || {
            (gateway.metric("weir_buffers_bytes", &[]) < f64::from(512 << 10)).then_some(())
        });
        assert_eq!(gateway.caller().request(&bytes).status, served, "{name}");
    }
}

/// Copies for mirrors do without, and requests never.
fn mirrors_leave_memory_to_requests(over: Protocol) {
    let origin = Origin::hello();
    let mirror = Full::bind();
    let plugins = json!({ "plugins": { "proxy-mirror": { "host": format!("http://{}", mirror.node()) } } });
    let config = route_with(plugins, json!({ "nodes": { (origin.node()): 1 } }));
    let settings = json!({ "limits": { "buffers": "4MiB", "mirror_body": "1MiB" } });
    let gateway = Start::new(config).settings(settings).over(over).start();
    let body = "x".repeat(300_000);
    let mut client = gateway.caller();
    for _ in 0..20 {
        assert_eq!(client.request(post("/", &body)).status, 200);
    }
    gateway.await_metric("weir_buffers_refused_total", &[], 0.0);
    assert!(gateway.metric("weir_mirror_requests_total", &[("outcome", "dropped")]) >= 10.0);
}

fn memory_of_a_peak_goes_back_to_the_system(over: Protocol) {
    const CLIENTS: usize = 60;
    let validated = json!({ "request-validation": { "body_schema": { "type": "string" } }, "mocking": { "response_example": "ok" } });
    let gateway =
        Start::new(json!({ "routes": [{ "id": "r", "uri": "/*", "plugins": validated }] })).over(over).start();
    let bytes = post("/", &format!("\"{}\"", "x".repeat(1_000_000)));
    assert_eq!(gateway.caller().request(&bytes).status, 200);
    let before = gateway.process.resident();
    let (most, last) = bytes.split_at(bytes.len() - 1);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| gateway.caller()).collect();
    for client in &mut clients {
        client.send(most);
    }
    wait_until("all bodies to be held", LIMIT, || {
        (gateway.process.resident() > before + CLIENTS as u64 * 900_000).then_some(())
    });
    for client in &mut clients {
        client.send(last);
        assert_eq!(client.response().status, 200);
    }
    drop(clients);
    wait_until("the memory to go back", LIMIT, || (gateway.process.resident() < before + (12 << 20)).then_some(()));
}

fn bodies_have_no_bound_by_default(over: Protocol) {
    let origin = Origin::answering(|request| crate::harness::Answer::ok(&request.body.len().to_string()));
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let size = 3 << 20;
    assert_eq!(gateway.caller().request(post("/", &"x".repeat(size))).text(), size.to_string());
}
