//! Stream routes over UDP: a real name server and its client, sessions, matching, balancers, plugins, limits, metrics.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::dns::Dnsmasq;
use crate::harness::{Gateway, LIMIT, Start, each, free_port, program, wait_until};

/// A gateway with listeners for datagrams: `addrs[1]` and on.
fn start(config: &Value, udp: &Value, more: &Value) -> Gateway {
    let mut settings = json!({ "listen": { "http": ["127.0.0.1:0"], "https": [], "udp": udp } });
    settings.as_object_mut().expect("settings").extend(more.as_object().expect("settings").clone());
    Start::new(config).settings(settings).workers(2).own_listeners().start()
}

fn plain(config: &Value) -> Gateway {
    start(config, &json!(["127.0.0.1:0"]), &json!({}))
}

fn route(fields: &Value, node: SocketAddr) -> Value {
    let mut route = json!({ "upstream": { "scheme": "udp", "nodes": { node.to_string(): 1 } } });
    route.as_object_mut().expect("a route").extend(fields.as_object().expect("fields").clone());
    route
}

/// A service that answers each datagram with its name and the datagram.
fn echo(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let addr = socket.local_addr().expect("an address");
    thread::spawn(move || {
        let mut room = vec![0; 1 << 16];
        while let Ok((length, from)) = socket.recv_from(&mut room) {
            let _ = socket.send_to(&[name.as_bytes(), &room[..length]].concat(), from);
        }
    });
    addr
}

/// A client with an address of its own.
fn client(gateway: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("bind");
    socket.connect(gateway).expect("connect");
    socket.set_read_timeout(Some(LIMIT)).expect("a time limit");
    socket
}

fn receive(client: &UdpSocket) -> String {
    let mut room = vec![0; 1 << 16];
    let length = client.recv(&mut room).expect("an answer");
    String::from_utf8_lossy(&room[..length]).into_owned()
}

/// Answer to a datagram.
fn exchange(gateway: SocketAddr, sent: &str) -> String {
    let client = client(gateway);
    client.send(sent.as_bytes()).expect("send");
    receive(&client)
}

/// Answer to a datagram within a moment.
fn answers(client: &UdpSocket, sent: &str) -> Option<String> {
    client.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit");
    client.send(sent.as_bytes()).expect("send");
    let mut room = vec![0; 1 << 16];
    client.recv(&mut room).ok().map(|length| String::from_utf8_lossy(&room[..length]).into_owned())
}

fn ended(gateway: &Gateway, status: &str) -> f64 {
    gateway.metric("weir_streams_total", &[("status", status)])
}

#[test]
fn names_are_asked_for_through_the_gateway() {
    let server = Dnsmasq::start("192.0.2.7 seven.test\n192.0.2.8 eight.test\n");
    let node = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port));
    let gateway = plain(&json!({ "stream_routes": [route(&json!({ "id": "names" }), node)] }));
    let dig = |name: &str, more: &[&str]| {
        let port = gateway.addrs[1].port().to_string();
        let mut dig = Command::new(program("dig"));
        let output = dig.args(["@127.0.0.1", "-p", &port, "+short", "+tries=1", name]).args(more).output();
        String::from_utf8_lossy(&output.expect("run dig").stdout).trim().to_owned()
    };
    assert_eq!(dig("seven.test", &[]), "192.0.2.7");
    assert_eq!(dig("eight.test", &["+bufsize=4096"]), "192.0.2.8");
    assert!(dig("none.test", &["+comments", "+noshort"]).contains("NXDOMAIN"));
    // Many clients at once, over both workers.
    let clients: Vec<_> = (0..40)
        .map(|at| {
            let (name, expected) = if at % 2 == 0 { ("seven.test", "192.0.2.7") } else { ("eight.test", "192.0.2.8") };
            let port = gateway.addrs[1].port().to_string();
            thread::spawn(move || {
                let output = Command::new(program("dig")).args(["@127.0.0.1", "-p", &port, "+short", name]).output();
                assert_eq!(String::from_utf8_lossy(&output.expect("run dig").stdout).trim(), expected);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("an answer"));
}

#[test]
fn datagrams_of_all_lengths_keep_their_borders_and_order() {
    let gateway = plain(&json!({ "stream_routes": [route(&json!({}), echo("a"))] }));
    let client = client(gateway.addrs[1]);
    for length in [0, 1, 512, 1472, 1473, 4096, 9000, 60_000, 65_000] {
        client.send(&vec![b'x'; length]).expect("send");
        let answer = receive(&client);
        assert!(answer.len() == length + 1 && answer.starts_with('a'), "{} of {length} bytes", answer.len());
    }
    // Bursts, of which each datagram has an answer of its own.
    for burst in 0..20 {
        let sent: Vec<String> = (0..40).map(|at| format!("{burst} {at}")).collect();
        sent.iter().for_each(|one| assert_eq!(client.send(one.as_bytes()).expect("send"), one.len()));
        let received: Vec<String> = sent.iter().map(|_| receive(&client)[1..].to_owned()).collect();
        assert_eq!(received, sent);
    }
}

#[test]
fn routes_are_matched_by_port_address_client_and_transport() {
    let (one, two) = (free_port(), free_port());
    let udp = json!([format!("127.0.0.1:{one}"), format!("127.0.0.1:{two}"), "127.0.0.2:0", "0.0.0.0:0", "[::]:0"]);
    let everywhere = route(&json!({ "remote_addr": "127.0.0.9" }), echo("e"));
    let mut unsaid = route(&json!({ "server_addr": "127.0.0.2" }), echo("b"));
    unsaid["upstream"].as_object_mut().expect("an upstream").remove("scheme");
    let mut tcp = route(&json!({}), echo("t"));
    tcp["upstream"]["scheme"] = json!("tcp");
    let config = json!({ "stream_routes": [
        tcp,
        route(&json!({ "server_port": one, "remote_addr": "10.0.0.0/8" }), echo("c")),
        route(&json!({ "server_port": one, "remote_addr": "127.0.0.0/8" }), echo("a")),
        route(&json!({ "sni": "*" }), echo("s")),
        unsaid,
        everywhere,
        route(&json!({ "server_addr": "127.0.0.3" }), echo("3")),
        route(&json!({ "server_addr": "127.0.0.4" }), echo("4")),
    ] });
    let gateway = start(&config, &udp, &json!({}));
    assert_eq!(exchange(gateway.addrs[1], "x"), "ax");
    assert_eq!(exchange(gateway.addrs[3], "x"), "bx");
    assert_eq!(answers(&client(gateway.addrs[2]), "x"), None);
    wait_until("the refusal to be counted", LIMIT, || (ended(&gateway, "404") >= 1.0).then_some(()));
    // A listener of all addresses answers from the one that was asked: a connected socket takes nothing else.
    for at in [4, 5] {
        let port = gateway.addrs[at].port();
        for (host, expected) in [(3, "3x"), (4, "4x")] {
            assert_eq!(exchange(SocketAddr::from(([127, 0, 0, host], port)), "x"), expected, "listener {at}");
        }
    }
    let other = UdpSocket::bind("127.0.0.9:0").expect("bind");
    other.set_read_timeout(Some(LIMIT)).expect("a time limit");
    other.connect(("127.0.0.1", gateway.addrs[4].port())).expect("connect");
    other.send(b"x").expect("send");
    assert_eq!(receive(&other), "ex");
}

#[test]
fn a_session_keeps_its_node_and_clients_share_them() {
    let (a, b) = (echo("a"), echo("b"));
    let upstream = |kind: Value| {
        let mut upstream = json!({ "scheme": "udp", "nodes": { a.to_string(): 1, b.to_string(): 1 } });
        upstream.as_object_mut().expect("an upstream").extend(kind.as_object().expect("fields").clone());
        json!({ "stream_routes": [{ "upstream": upstream }] })
    };
    let gateway = plain(&upstream(json!({ "type": "roundrobin" })));
    let mut seen = BTreeSet::new();
    for _ in 0..16 {
        let client = client(gateway.addrs[1]);
        client.send(b"1").expect("send");
        let first = receive(&client);
        client.send(b"1").expect("send");
        assert_eq!(receive(&client), first);
        seen.insert(first);
    }
    assert_eq!(seen.len(), 2);
    let hashed = plain(&upstream(json!({ "type": "chash", "hash_on": "vars", "key": "remote_addr" })));
    let seen: BTreeSet<String> = (0..16).map(|_| exchange(hashed.addrs[1], "1")).collect();
    assert_eq!(seen.len(), 1);
}

#[test]
fn a_node_that_is_not_there_gives_way_to_another() {
    let gone = UdpSocket::bind("127.0.0.1:0").expect("bind").local_addr().expect("an address");
    let there = echo("a");
    let upstream = json!({ "scheme": "udp", "nodes": { gone.to_string(): 100, there.to_string(): 1 } });
    let gateway = plain(&json!({ "stream_routes": [{ "upstream": upstream }] }));
    let client = client(gateway.addrs[1]);
    wait_until("an answer of the other node", LIMIT, || answers(&client, "x").filter(|answer| answer == "ax"));
    assert!(ended(&gateway, "502") >= 1.0);
    // One alone is asked again each time.
    let alone = plain(&json!({ "stream_routes": [route(&json!({}), gone)] }));
    let client = self::client(alone.addrs[1]);
    assert_eq!(answers(&client, "x"), None);
    let socket = UdpSocket::bind(gone).expect("bind");
    socket.set_read_timeout(Some(LIMIT)).expect("a time limit");
    wait_until("the datagram", LIMIT, || {
        let _ = client.send(b"y");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a time limit");
        socket.recv_from(&mut [0; 8]).ok()
    });
}

#[test]
fn sessions_end_when_they_are_idle_and_have_a_bound() {
    let node = echo("a");
    let mut of_upstream = route(&json!({}), node);
    of_upstream["upstream"]["timeout"] = json!({ "connect": 5, "send": 0.3, "read": 0.3 });
    let cases = [(of_upstream, json!({})), (route(&json!({}), node), json!({ "timeouts": { "udp_idle": 0.3 } }))];
    each(
        &cases,
        |(route, _)| route.to_string(),
        |(route, settings)| {
            let gateway = start(&json!({ "stream_routes": [route] }), &json!(["127.0.0.1:0"]), settings);
            assert_eq!(exchange(gateway.addrs[1], "x"), "ax");
            wait_until("the session to end", LIMIT, || (ended(&gateway, "200") == 1.0).then_some(()));
            assert_eq!(gateway.metric("weir_stream_connections", &[]), 0.0);
        },
    );
    let settings = json!({ "limits": { "udp_sessions": 3 }, "timeouts": { "udp_idle": 1 } });
    let gateway = start(&json!({ "stream_routes": [route(&json!({}), node)] }), &json!(["127.0.0.1:0"]), &settings);
    let kept: Vec<UdpSocket> = (0..3).map(|_| client(gateway.addrs[1])).collect();
    for client in &kept {
        client.send(b"x").expect("send");
        assert_eq!(receive(client), "ax");
    }
    let further = client(gateway.addrs[1]);
    assert_eq!(answers(&further, "x"), None);
    assert!(gateway.metric("weir_udp_sessions_refused_total", &[]) >= 1.0);
    wait_until("a place", LIMIT, || answers(&further, "x"));
}

#[test]
fn a_session_is_a_line_of_the_log() {
    let settings = json!({ "stream_access_log": { "path": "stdout", "format": "$protocol $status $bytes_received $bytes_sent" },
        "timeouts": { "udp_idle": 0.3 } });
    let gateway =
        start(&json!({ "stream_routes": [route(&json!({}), echo("a"))] }), &json!(["127.0.0.1:0"]), &settings);
    let client = client(gateway.addrs[1]);
    for _ in 0..2 {
        client.send(b"x").expect("send");
        assert_eq!(receive(&client), "ax");
    }
    assert_eq!(gateway.line(), "UDP 200 2 4");
}

#[test]
fn plugins_guard_sessions() {
    let (node, other) = (echo("a"), echo("b"));
    let with = |plugins: Value| json!({ "stream_routes": [route(&json!({ "id": "r", "plugins": plugins }), node)] });
    let refused = plain(&with(json!({ "ip-restriction": { "blacklist": ["127.0.0.0/8"] } })));
    assert_eq!(answers(&client(refused.addrs[1]), "x"), None);
    wait_until("the refusal to be counted", LIMIT, || (ended(&refused, "403") >= 1.0).then_some(()));

    let limit = json!({ "limit-conn": {
        "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr", "rejected_code": 503,
    } });
    let idle = json!({ "timeouts": { "udp_idle": 1 } });
    let limited = start(&with(limit), &json!(["127.0.0.1:0"]), &idle);
    assert_eq!(exchange(limited.addrs[1], "x"), "ax");
    let second = client(limited.addrs[1]);
    assert_eq!(answers(&second, "x"), None);
    wait_until("the place to be free", LIMIT, || answers(&second, "x"));
    assert!(ended(&limited, "503") >= 1.0);

    let split = |scheme: &str| {
        json!({ "traffic-split": { "rules": [{ "weighted_upstreams": [
            { "weight": 1, "upstream": { "scheme": scheme, "nodes": { other.to_string(): 1 } } },
        ] }] } })
    };
    assert_eq!(exchange(plain(&with(split("udp"))).addrs[1], "x"), "bx");

    let idle = json!({ "timeouts": { "udp_idle": 0.3 } });
    let counted = start(&with(json!({ "prometheus": {} })), &json!(["127.0.0.1:0"]), &idle);
    assert_eq!(exchange(counted.addrs[1], "x"), "ax");
    counted.await_metric("apisix_stream_connection_total", &[("route", "r")], 1.0);
}

#[test]
fn an_upgrade_keeps_the_address_and_a_stop_waits_for_answers() {
    let node = echo("a");
    let settings = json!({ "timeouts": { "upgrade": "20s" } });
    let gateway = start(&json!({ "stream_routes": [route(&json!({}), node)] }), &json!(["127.0.0.1:0"]), &settings);
    let client = client(gateway.addrs[1]);
    client.send(b"1").expect("send");
    assert_eq!(receive(&client), "a1");
    crate::upgrade::upgrade(&gateway);
    wait_until("the new process to answer", LIMIT, || answers(&client, "2").filter(|answer| answer == "a2"));

    // The node answers after the stop has begun.
    let slow = UdpSocket::bind("127.0.0.1:0").expect("bind");
    slow.set_read_timeout(Some(LIMIT)).expect("a time limit");
    let slow_addr = slow.local_addr().expect("an address");
    let mut gateway = plain(&json!({ "stream_routes": [route(&json!({}), slow_addr)] }));
    let client = self::client(gateway.addrs[1]);
    client.send(b"x").expect("send");
    let (_, session) = slow.recv_from(&mut [0; 8]).expect("the datagram");
    gateway.signal(Signal::TERM);
    wait_until("the stop to begin", LIMIT, || {
        gateway.stderr().lines().any(|line| line.contains("SIGTERM")).then_some(())
    });
    slow.send_to(b"late", session).expect("send");
    assert_eq!(receive(&client), "late");
    assert!(gateway.wait().success());
}
