//! Nothing is held back and nothing is held whole: back-pressure, events, early heads, and connections that were upgraded.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Connection, Framing, Gateway, LIMIT, Origin, Protocol, RawClient, Start, get, over_both, route_to,
    route_with, wait_until,
};

over_both!(
    a_slow_reader_holds_the_origin_back,
    a_slow_origin_holds_the_client_back,
    events_arrive_while_the_origin_holds_the_rest,
    a_body_until_close_is_not_held_back_either,
    request_bodies_are_not_held_back,
    an_answer_and_its_request_may_run_at_the_same_time,
    a_client_that_goes_away_takes_its_upstream_connection_with_it,
    a_client_that_goes_away_is_not_waited_for,
);

const MIB: u64 = 1 << 20;

/// Maximum growth of the gateway's memory, in bytes, by one exchange of any size.
const BOUND: u64 = 4 * MIB;

/// Waits until a counter has been unchanged for a while, because its writer is blocked.
fn settled(counter: &AtomicU64) -> u64 {
    let mut last = (counter.load(SeqCst), 0);
    wait_until("a sender to be held up", LIMIT, || {
        thread::sleep(Duration::from_millis(10));
        let now = counter.load(SeqCst);
        last = if now == last.0 { (now, last.1 + 1) } else { (now, 0) };
        (last.1 >= 20 && now > 0).then_some(now)
    })
}

fn a_slow_reader_holds_the_origin_back(over: Protocol) {
    const SIZE: u64 = 200 * MIB;
    let pushed = Arc::new(AtomicU64::new(0));
    let of_origin = Arc::clone(&pushed);
    let origin = Origin::scripted(move |connection| {
        let Some(request) = connection.request() else { return };
        let block = [b'x'; 64 << 10];
        let chunked = request.target == "/chunked";
        connection.send(match chunked {
            true => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            false => format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"),
        });
        for _ in 0..SIZE / block.len() as u64 {
            let sent = match chunked {
                true => connection.send([b"10000\r\n", &block[..], b"\r\n"].concat()),
                false => connection.send(block),
            };
            if !sent {
                return;
            }
            of_origin.fetch_add(block.len() as u64, SeqCst);
        }
        if chunked {
            connection.send("0\r\n\r\n");
        }
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    for path in ["/length", "/chunked"] {
        pushed.store(0, SeqCst);
        let before = gateway.process.resident();
        let mut client = gateway.caller();
        client.send(get(path));
        let head = client.head();
        let held = settled(&pushed);
        assert!(held < SIZE / 2, "{path}: the origin could send {held} bytes that nobody has read");
        let grown = gateway.process.resident().saturating_sub(before);
        assert!(grown < BOUND, "{path}: {grown} bytes for a body that waits");

        let (body, _) = client.body(head.response_framing("GET").expect("a framing")).expect("the whole body");
        assert_eq!(body.len() as u64, SIZE, "{path}");
        let grown = gateway.process.resident().saturating_sub(before);
        assert!(grown < BOUND, "{path}: {grown} bytes after a body that passed through");
    }
}

fn a_slow_origin_holds_the_client_back(over: Protocol) {
    const SIZE: usize = 200 << 20;
    let gate = Arc::new(Barrier::new(2));
    let of_origin = Arc::clone(&gate);
    let origin = Origin::scripted(move |connection| {
        let Some(request) = connection.head() else { return };
        of_origin.wait();
        if let Some(request) = connection.body_of(request) {
            let length = request.body.len().to_string();
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{length}", length.len()));
        }
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let before = gateway.process.resident();
    let pushed = Arc::new(AtomicU64::new(0));
    let mut client = gateway.caller();
    client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {SIZE}\r\n\r\n"));
    let counter = Arc::clone(&pushed);
    let sender = thread::spawn(move || {
        let block = [b'x'; 64 << 10];
        for _ in 0..SIZE / block.len() {
            client.send(block);
            counter.fetch_add(block.len() as u64, SeqCst);
        }
        // The origin may have much of it to read yet.
        client.be_patient(LIMIT);
        client.response()
    });
    let held = settled(&pushed);
    assert!(held < SIZE as u64 / 2, "the client could send {held} bytes that nobody has read");
    let grown = gateway.process.resident().saturating_sub(before);
    assert!(grown < BOUND, "{grown} bytes for a body that waits");
    gate.wait();
    assert_eq!(sender.join().expect("the sender").text(), SIZE.to_string());
    let grown = gateway.process.resident().saturating_sub(before);
    assert!(grown < BOUND, "{grown} bytes after a body that passed through");
}

/// An origin that sends the pieces one by one, each after the client has confirmed the one before.
fn step_by_step(pieces: &'static [&'static str]) -> (Origin, Arc<Barrier>) {
    let gate = Arc::new(Barrier::new(2));
    let of_origin = Arc::clone(&gate);
    let origin = Origin::scripted(move |connection| {
        if connection.request().is_some() {
            for piece in pieces {
                connection.send(piece);
                of_origin.wait();
            }
        }
    });
    (origin, gate)
}

fn events_arrive_while_the_origin_holds_the_rest(over: Protocol) {
    events_arrive(over, &json!({}));
}

#[test]
fn responses_go_on_as_they_come() {
    for plugins in [json!({}), json!({ "proxy-buffering": { "disable_proxy_buffering": true } })] {
        events_arrive(Protocol::Http1, &plugins);
    }
}

fn events_arrive(over: Protocol, plugins: &Value) {
    let (origin, gate) = step_by_step(&[
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        "9\r\ndata: 1\n\n\r\n",
        "9\r\ndata: 2\n\n\r\n",
        "0\r\n\r\n",
    ]);
    let mut rules = route_to(&[origin.node()]);
    rules["routes"][0]["plugins"] = plugins.clone();
    let gateway = Start::new(rules).over(over).start();
    let mut client = gateway.caller();
    client.send(get("/events"));
    assert_eq!(client.head().fields.get("content-type"), Some("text/event-stream"), "the head waits for nothing");
    gate.wait();
    for number in 1..=2 {
        assert_eq!(client.chunk().as_deref(), Some(format!("data: {number}\n\n").as_bytes()));
        gate.wait();
    }
    assert_eq!(client.chunk(), None);
    gate.wait();
}

fn a_body_until_close_is_not_held_back_either(over: Protocol) {
    let (origin, gate) = step_by_step(&["HTTP/1.0 200 OK\r\n\r\n", "one", "two"]);
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();
    client.send(get("/"));
    let framing = client.head().response_framing("GET");
    assert!(over == Protocol::Http2 || framing == Ok(Framing::Chunked), "{framing:?}");
    gate.wait();
    for piece in ["one", "two"] {
        assert_eq!(client.chunk().as_deref(), Some(piece.as_bytes()));
        gate.wait();
    }
    assert_eq!(client.chunk(), None);
}

fn request_bodies_are_not_held_back(over: Protocol) {
    let gate = Arc::new(Barrier::new(2));
    let of_origin = Arc::clone(&gate);
    let origin = Origin::scripted(move |connection| {
        let Some(_) = connection.head() else { return };
        of_origin.wait();
        while let Ok(Some(chunk)) = connection.chunk() {
            assert_eq!(chunk, b"piece");
            of_origin.wait();
        }
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    gate.wait();
    for _ in 0..3 {
        client.send("5\r\npiece\r\n");
        gate.wait();
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.response().status, 200);
}

fn an_answer_and_its_request_may_run_at_the_same_time(over: Protocol) {
    // A conversation over one exchange: each side speaks only after it has heard the other.
    let origin = Origin::scripted(|connection| {
        let Some(_) = connection.head() else { return };
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while let Ok(Some(chunk)) = connection.chunk() {
            connection.send([format!("{:x}\r\n", chunk.len()).as_bytes(), &chunk, b"\r\n"].concat());
        }
        connection.send("0\r\n\r\n");
        connection.await_close();
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.head();
    for word in ["alpha", "beta", "gamma"] {
        client.send(format!("{:x}\r\n{word}\r\n", word.len()));
        assert_eq!(client.chunk().as_deref(), Some(word.as_bytes()));
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.chunk(), None);
}

pub(crate) const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
pub(crate) const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// An origin that switches protocols and then runs a script.
pub(crate) fn switching(then: impl Fn(&mut Connection) + Send + Sync + 'static) -> Origin {
    Origin::scripted(move |connection| {
        let Some(request) = connection.head() else { return };
        if request.field("upgrade").is_some_and(|u| u.eq_ignore_ascii_case("websocket")) {
            let options = request.field("connection").unwrap_or_default();
            assert!(options.eq_ignore_ascii_case("upgrade"), "{request:?}");
            connection.send(SWITCHED);
            then(connection);
        } else {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain");
        }
    })
}

pub(crate) fn repeat(connection: &mut Connection) {
    while let Ok(bytes) = connection.some() {
        if bytes.is_empty() || !connection.send(bytes) {
            return;
        }
    }
}

pub(crate) fn upgraded(gateway: &Gateway, more: &[u8]) -> RawClient {
    let mut client = gateway.client();
    client.send([UPGRADE.as_bytes(), more].concat());
    let head = client.head();
    assert_eq!(head.status().map(|(status, ..)| status), Ok(101), "{head:?}");
    assert!(head.fields.get("upgrade").is_some_and(|u| u.eq_ignore_ascii_case("websocket")), "{head:?}");
    assert!(head.fields.get("connection").is_some_and(|c| c.eq_ignore_ascii_case("upgrade")), "{head:?}");
    assert_eq!(head.fields.get("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    client
}

pub(crate) fn websocket_route(origin: &Origin) -> serde_json::Value {
    route_with(json!({ "enable_websocket": true }), json!({ "nodes": { (origin.node()): 1 } }))
}

#[test]
fn an_upgraded_connection_carries_bytes_both_ways() {
    let origin = switching(repeat);
    let gateway = Gateway::start(websocket_route(&origin));
    // Bytes that the client sends along with its request belong to the new protocol.
    let mut client = upgraded(&gateway, b"early\r\n\r\n");
    assert_eq!(client.exactly(9), b"early\r\n\r\n");
    for size in [1, 100, 70_000] {
        let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        client.send(&bytes);
        assert_eq!(client.exactly(size), bytes);
    }
    // One side that has no more to say does not silence the other.
    client.send("last words");
    client.finish_sending();
    assert_eq!(client.exactly(10), b"last words");
    client.expect_close();
}

#[test]
fn an_upgraded_connection_ends_when_the_origin_ends_it() {
    let origin = switching(|connection| {
        connection.send("bye");
    });
    let gateway = Gateway::start(websocket_route(&origin));
    let mut client = upgraded(&gateway, b"");
    assert_eq!(client.exactly(3), b"bye");
    client.expect_close();
    assert_eq!(gateway.client().request(get("/")).text(), "plain");
}

#[test]
fn an_upgraded_connection_is_held_back_too() {
    let pushed = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&pushed);
    let origin = switching(move |connection| {
        let block = [b'x'; 64 << 10];
        while counter.load(SeqCst) < 200 * MIB && connection.send(block) {
            counter.fetch_add(block.len() as u64, SeqCst);
        }
    });
    let gateway = Gateway::start(websocket_route(&origin));
    let before = gateway.process.resident();
    let mut client = upgraded(&gateway, b"");
    let held = settled(&pushed);
    assert!(held < 100 * MIB, "the origin could send {held} bytes that nobody has read");
    assert!(gateway.process.resident().saturating_sub(before) < BOUND);
    let mut received = 0;
    while let Ok(bytes) = client.some() {
        if bytes.is_empty() {
            break;
        }
        received += bytes.len() as u64;
    }
    assert_eq!(received, 200 * MIB);
}

#[test]
fn an_origin_may_refuse_the_upgrade() {
    let origin = Origin::answering(|_| Answer::status(426, "no"));
    let gateway = Gateway::start(websocket_route(&origin));
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.request(UPGRADE);
        assert_eq!((response.status, response.text().as_str()), (426, "no"));
    }
    assert_eq!(origin.connections(), 1, "an ordinary answer leaves an ordinary connection");
}

#[test]
fn no_upgrade_passes_where_the_route_does_not_allow_it() {
    let origin = switching(|_| panic!("the origin was asked to switch protocols"));
    for (allowed, request) in [
        (false, UPGRADE.to_owned()),
        (true, UPGRADE.replace("websocket", "h2c")),
        (true, UPGRADE.replace("Connection: Upgrade\r\n", "")),
        (true, UPGRADE.replace("HTTP/1.1", "HTTP/1.0")),
    ] {
        let fields = json!({ "enable_websocket": allowed });
        let gateway = Gateway::start(route_with(fields, json!({ "nodes": { (origin.node()): 1 } })));
        let response = gateway.client().request(&request);
        assert_eq!((response.status, response.text().as_str()), (200, "plain"), "{request}");
        assert_eq!(origin.last().field("upgrade"), None, "{request}");
    }
}

#[test]
fn an_origin_does_not_switch_protocols_unasked() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.send(SWITCHED);
            connection.await_close();
        }
    });
    let gateway = Gateway::start(websocket_route(&origin));
    let response = gateway.get("/");
    assert_eq!(response.status, 502, "{response:?}");
}

fn a_client_that_goes_away_takes_its_upstream_connection_with_it(over: Protocol) {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
            connection.await_close();
        }
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();
    client.send(get("/"));
    client.head();
    assert_eq!(client.chunk().as_deref(), Some(&b"hello"[..]));
    let _open = client.reset();
    // Long before any timeout of the origin's or the gateway's.
    wait_until("the upstream connection to be closed", LIMIT / 4, || (origin.open() == 0).then_some(()));
}

fn a_client_that_goes_away_is_not_waited_for(over: Protocol) {
    let origin = Origin::scripted(|connection| {
        connection.request();
        connection.await_close();
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();
    client.send(get("/"));
    wait_until("the request to reach the origin", LIMIT, || (origin.requests().len() == 1).then_some(()));
    let _open = client.reset();
    wait_until("the upstream connection to be closed", LIMIT / 4, || (origin.open() == 0).then_some(()));
    gateway.await_metric("weir_client_errors_total", &[("reason", "aborted")], 1.0);
}
