//! WebSocket through the gateway: with real peers, its limits and numbers, and its end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_wire::http2::frame::{self, Setting};

use crate::harness::{
    Connection, Frame, Gateway, H2Client, LIMIT, Origin, Process, Start, each, repository, route_with, timed,
    wait_until,
};
use crate::streaming::{repeat, switching, upgraded, websocket_route};

/// Close frame of a server with 1001.
const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];

/// A running client or node, and the lines that it prints.
struct Peer {
    process: Process,
    lines: Receiver<String>,
}

impl Peer {
    fn start(arguments: &[&str]) -> Self {
        let python = repository().join("target/test-tools/bin/python");
        assert!(python.exists(), "{} is missing: tools/install-test-deps installs it", python.display());
        let mut command = Command::new(python);
        command.arg("-I").arg(repository().join("tests/websocket_peer.py")).args(arguments).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let output = process.child().stdout.take().expect("its output");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { process, lines }
    }

    /// The next line that it prints.
    #[track_caller]
    fn says(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("a line")
    }
}

/// A node that echoes, and its address.
fn node() -> (Peer, String) {
    let peer = Peer::start(&["serve"]);
    let node = format!("127.0.0.1:{}", peer.says());
    (peer, node)
}

fn gateway(node: &str, settings: Value) -> Gateway {
    let config = route_with(json!({ "enable_websocket": true }), json!({ "nodes": { (node): 1 } }));
    Start::new(config).settings(settings).http2().https().start()
}

/// The fields of an extended CONNECT (RFC 8441).
const CONNECT: [(&str, &str); 6] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "http"),
    (":authority", "a.test"),
    (":path", "/"),
    ("sec-websocket-version", "13"),
];

/// A stream over HTTP/2 that was upgraded.
fn stream(gateway: &Gateway) -> (H2Client, u32) {
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&CONNECT, false);
    assert_eq!(client.head(id).0, 200);
    (client, id)
}

/// The answer to a key (RFC 6455 section 4.2.2), by openssl.
pub(crate) fn accept(key: &str) -> String {
    let script = "printf %s \"$0\" | openssl dgst -sha1 -binary | openssl base64";
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let output = Command::new("sh").args(["-c", script, &text]).output().expect("run openssl");
    String::from_utf8(output.stdout).expect("base64").trim().to_owned()
}

/// Reads so many bytes of a stream.
fn exactly(client: &mut H2Client, id: u32, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        bytes.extend(client.piece(id).expect("more bytes"));
    }
    assert_eq!(bytes.len(), count);
    bytes
}

#[test]
fn real_peers_speak_through_the_gateway() {
    let (peer, node) = node();
    let gateway = gateway(&node, json!({}));
    let urls = [format!("ws://{}/", gateway.addr), format!("wss://{}/", gateway.https.expect("an address for TLS"))];
    each(&urls, Clone::clone, |url| assert_eq!(Peer::start(&["echo", url]).says(), "ok"));
    for _ in urls {
        assert_eq!(peer.says(), "close 1000");
    }
    gateway.await_metric("weir_websocket_connections", &[], 0.0);
    assert_eq!(gateway.metric("weir_websocket_connections_total", &[]), 2.0);
    for direction in ["received", "sent"] {
        // One message of 16 MiB does not compress.
        let bytes = gateway.metric("weir_websocket_bytes_total", &[("direction", direction)]);
        assert!(bytes > f64::from(32 << 20) && bytes < f64::from(80 << 20), "{bytes}");
    }
}

#[test]
fn streams_of_http2_speak_to_a_real_node() {
    let (peer, node) = node();
    let gateway = gateway(&node, json!({}));
    let (mut client, id) = stream(&gateway);
    gateway.await_metric("weir_websocket_connections", &[], 1.0);
    // "hello", masked with zeros.
    client.data(id, b"\x81\x85\0\0\0\0hello", false);
    assert_eq!(exactly(&mut client, id, 7), b"\x81\x05hello");
    client.data(id, b"\x88\x82\0\0\0\0\x03\xe8", false);
    assert_eq!(exactly(&mut client, id, 4), [0x88, 2, 0x03, 0xe8]);
    assert_eq!((client.piece(id), peer.says()), (None, "close 1000".to_owned()));
    gateway.await_metric("weir_websocket_connections", &[], 0.0);
}

/// A node that takes requests over HTTP/2 switches over HTTP/1.1, which it is offered alone for that.
#[test]
fn nodes_that_choose_http2_switch_over_http1() {
    let (peer, node) = node();
    // Another gateway ends TLS in front of the node, and chooses HTTP/2 where that is offered.
    let front =
        gateway(&node, json!({ "access_log": { "path": "FOLDER/access.log", "format": "$server_protocol $status" } }));
    let upstream = json!({ "scheme": "https", "http2": true, "nodes": { (front.https.expect("an address for TLS").to_string()): 1 } });
    let gateway = Start::new(route_with(json!({ "enable_websocket": true }), upstream)).http2().start();
    for _ in 0..2 {
        // A request that is no WebSocket handshake is refused by the node.
        assert_eq!(gateway.get("/").status, 426);
        assert_eq!(Peer::start(&["echo", &format!("ws://{}/", gateway.addr)]).says(), "ok");
        assert_eq!(peer.says(), "close 1000");
    }
    let (mut client, id) = stream(&gateway);
    client.data(id, b"\x88\x82\0\0\0\0\x03\xe8", true);
    assert_eq!(exactly(&mut client, id, 4), [0x88, 2, 0x03, 0xe8]);
    let log = wait_until("five lines", LIMIT, || {
        let text = std::fs::read_to_string(front.file("access.log")).unwrap_or_default();
        Some(text.lines().map(str::to_owned).collect::<Vec<_>>()).filter(|lines| lines.len() >= 5)
    });
    let over_http1 = "HTTP/1.1 101";
    assert_eq!(log, ["HTTP/2.0 426", over_http1, "HTTP/2.0 426", over_http1, over_http1]);
}

#[test]
fn a_drain_closes_both_sides_with_1001() {
    let (peer, node) = node();
    let mut gateway = gateway(&node, json!({ "timeouts": { "drain_websocket": "300ms", "drain": "60s" } }));
    let url = format!("ws://{}/", gateway.addr);
    let clients = [Peer::start(&["wait", &url]), Peer::start(&["busy", &url])];
    for client in &clients {
        assert_eq!(client.says(), "open");
    }
    let (mut over_http2, id) = stream(&gateway);
    gateway.signal(Signal::TERM);
    let (ended, took) = timed(|| {
        for client in &clients {
            assert_eq!(client.says(), "close 1001");
        }
        assert_eq!(exactly(&mut over_http2, id, 4), GOING_AWAY);
        over_http2.data(id, b"\x88\x82\0\0\0\0\x03\xe9", true);
        assert_eq!(over_http2.piece(id), None);
        for _ in 0..3 {
            assert_eq!(peer.says(), "close 1001");
        }
        gateway.wait()
    });
    assert!(ended.success() && took < Duration::from_secs(15), "{ended:?} after {took:?}");
    for mut client in clients {
        assert!(client.process.wait().success());
    }
}

#[test]
fn a_frame_under_way_is_whole_before_the_close() {
    let origin = switching(|connection| {
        connection.send([&[0x82, 126, 0x10, 0x00][..], &[b'x'; 1000]].concat());
        // The rest follows when the client has asked for it, masked with zeros.
        assert_eq!(connection.exactly(11).expect("a frame"), b"\x81\x85\0\0\0\0again");
        connection.send([b'x'; 3096]);
        connection.send(b"\x81\x01y");
        let close = connection.exactly(8).expect("a Close frame");
        assert_eq!((&close[..2], close[6] ^ close[2], close[7] ^ close[3]), (&[0x88, 0x82][..], 0x03, 0xe9));
        connection.send(GOING_AWAY);
    });
    let settings = json!({ "timeouts": { "drain_websocket": 0, "drain": "60s" } });
    let mut gateway = Start::new(websocket_route(&origin)).settings(settings).start();
    // Half of a frame lies in each direction.
    let mut client = upgraded(&gateway, b"\x81\x85\0\0");
    assert_eq!(client.exactly(1004)[..4], [0x82, 126, 0x10, 0x00]);
    gateway.signal(Signal::TERM);
    client.expect_quiet(Duration::from_millis(500));
    client.send(b"\0\0again");
    assert_eq!(client.exactly(3096), [b'x'; 3096]);
    assert_eq!(client.exactly(4), GOING_AWAY, "and nothing that the node has sent later");
    client.send(b"\x88\x82\0\0\0\0\x03\xe9");
    client.expect_close();
    assert!(gateway.wait().success());
}

#[test]
fn a_side_that_does_not_answer_a_close_is_not_waited_for() {
    let origin = switching(|connection| connection.await_close());
    let settings = json!({ "timeouts": { "drain_websocket": 0, "drain": "60s" } });
    let mut gateway = Start::new(websocket_route(&origin)).settings(settings).start();
    let mut client = upgraded(&gateway, b"");
    gateway.signal(Signal::TERM);
    assert_eq!(client.exactly(4), GOING_AWAY);
    let (ended, took) = timed(|| gateway.wait());
    assert!(ended.success() && took < Duration::from_secs(15), "{ended:?} after {took:?}");
    client.expect_close();
}

/// Reads a handshake that a stream of HTTP/2 was turned into, and switches.
fn switch(connection: &mut Connection) {
    let request = connection.head().expect("a handshake");
    let accept = accept(request.field("sec-websocket-key").expect("a key"));
    connection.send(format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    ));
}

/// A node that takes nothing more has said something before, and that arrives: the client has room for it only when the
/// gateway has noticed that it can send the node nothing.
#[test]
fn what_a_node_has_sent_arrives_when_it_is_gone() {
    let message = [&[0x82, 126, 0x50, 0x00][..], &[b'x'; 0x5000]].concat();
    let sent = [&message[..], &[0x88, 2, 0x03, 0xe8]].concat();
    let origin = Origin::scripted(move |connection| {
        switch(connection);
        connection.send(&sent);
        connection.reset();
    });
    let gateway = Start::new(websocket_route(&origin)).http2().start();
    let mut client = H2Client::bare(gateway.addr);
    client.greet(&[Setting::EnablePush(false), Setting::InitialWindowSize(0)]);
    let id = client.open(&CONNECT, false);
    assert_eq!(client.head(id).0, 200);
    wait_until("the node to be gone", LIMIT, || (origin.open() == 0).then_some(()));
    // A Close frame, and the end of the stream.
    client.data(id, b"\x88\x82\0\0\0\0\x03\xe8", true);
    client.ping();
    let mut out = Vec::new();
    frame::push_window_update(&mut out, id, 1 << 20);
    client.send(&out);
    assert_eq!(exactly(&mut client, id, message.len() + 4)[..message.len()], message);
    assert_eq!(client.piece(id), None);
    gateway.await_metric("weir_websocket_connections", &[], 0.0);
}

/// The answer to a Close frame arrives, and the end behind it, when the node leaves its connection open.
#[test]
fn a_node_that_stays_behind_its_close_is_not_waited_for() {
    let (end, over) = channel::<()>();
    let over = Mutex::new(over);
    let origin = Origin::scripted(move |connection| {
        switch(connection);
        connection.exactly(8).expect("a Close frame");
        connection.send([0x88, 2, 0x03, 0xe8]);
        // The connection stays open: the end that the client sees is not this one's.
        let _ = over.lock().expect("the lock").recv();
    });
    let gateway = Start::new(websocket_route(&origin)).http2().start();
    let (mut client, id) = stream(&gateway);
    client.data(id, b"\x88\x82\0\0\0\0\x03\xe8", true);
    assert_eq!(exactly(&mut client, id, 4), [0x88, 2, 0x03, 0xe8]);
    assert_eq!(client.piece(id), None);
    drop(end);
}

#[test]
fn a_connection_without_a_byte_is_closed() {
    let origin = switching(repeat);
    let start = |idle: &str| {
        Start::new(websocket_route(&origin)).settings(json!({ "timeouts": { "websocket": idle } })).start()
    };
    let (short, long) = (start("1s"), start("0"));
    let mut kept = upgraded(&long, b"");
    let mut client = upgraded(&short, b"");
    for _ in 0..4 {
        client.expect_quiet(Duration::from_millis(400));
        client.send("x");
        assert_eq!(client.exactly(1), b"x");
    }
    let ((), took) = timed(|| client.expect_close());
    assert!(took > Duration::from_millis(500) && took < LIMIT / 2, "after {took:?}");
    short.await_metric("weir_websocket_connections", &[], 0.0);
    // 60 s of the upstream hold where the setting is 0.
    kept.send("x");
    assert_eq!(kept.exactly(1), b"x");
}

#[test]
fn a_change_of_other_routes_leaves_a_connection_alone() {
    let origin = switching(repeat);
    let config = |other: &str| {
        let mut config = websocket_route(&origin);
        let route = json!({ "id": "other", "uri": other, "plugins": { "mocking": { "response_example": "other" } } });
        config["routes"].as_array_mut().expect("routes").push(route);
        config
    };
    let gateway = Gateway::start(config("/one"));
    let mut client = upgraded(&gateway, b"");
    for other in ["/two", "/three"] {
        assert_eq!(gateway.reload(config(other)), crate::harness::Reload::Applied);
        assert_eq!(gateway.get(other).text(), "other");
        client.send("still here");
        assert_eq!(client.exactly(10), b"still here");
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn an_answer_to_another_key_is_no_switch() {
    for accept in ["", "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n"] {
        let origin = Origin::scripted(move |connection| {
            if connection.head().is_some() {
                connection.send(format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{accept}\r\n"
                ));
                connection.await_close();
            }
        });
        let gateway = Start::new(websocket_route(&origin)).http2().start();
        let response = gateway.client().request(crate::streaming::UPGRADE);
        assert_eq!(response.status, 502, "{accept}");
        let told = "upstream; Sec-WebSocket-Accept of the upstream does not belong to the key";
        assert_eq!(response.field("x-weir-error"), Some(told));
        let mut client = H2Client::connect(gateway.addr);
        let id = client.open(&CONNECT, false);
        let Frame::Headers { fields, .. } = client.until(|frame| matches!(frame, Frame::Headers { .. })) else {
            panic!("no answer on stream {id}")
        };
        assert_eq!(fields[0].1, "502", "{accept}");
    }
}
