//! Nodes of stream routes: health checks, balancers, peers that do not read, and configurations that come from elsewhere.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{EtcdCluster, LIMIT, Start, free_port, wait_until};
use crate::health::await_state;
use crate::streams::{connect, echo, exchange, plain, route, settled, start};

/// Checks that find a node dead or alive at once.
fn checks(interval: u32, failures: u32) -> Value {
    json!({
        "type": "tcp", "timeout": 5,
        "healthy": { "interval": interval, "successes": 1 },
        "unhealthy": { "interval": interval, "tcp_failures": failures, "timeouts": failures },
    })
}

fn upstream(nodes: &[&str], more: &Value) -> Value {
    let nodes: serde_json::Map<_, _> = nodes.iter().map(|node| ((*node).to_owned(), json!(1))).collect();
    let mut upstream = json!({ "scheme": "tcp", "nodes": nodes });
    upstream.as_object_mut().expect("an upstream").extend(more.as_object().expect("fields").clone());
    json!({ "stream_routes": [{ "id": "r", "upstream": upstream }] })
}

/// The name that the service behind a connection says; `None` while nothing answers.
fn name(stream: &mut TcpStream, limit: Duration) -> Option<char> {
    stream.set_read_timeout(Some(limit)).expect("a time limit");
    let mut name = [0];
    stream.read_exact(&mut name).ok().map(|()| char::from(name[0]))
}

#[test]
fn streams_go_to_nodes_that_checks_find_well() {
    let well = echo("a");
    let sick = format!("127.0.0.1:{}", free_port());
    let fields = json!({ "retries": 0, "checks": { "active": checks(1, 1) } });
    let gateway = plain(&upstream(&[&well, &sick], &fields));
    await_state(&gateway, &sick, "unhealthy");
    let seen: Vec<_> = (0..10).map(|_| exchange(gateway.addrs[1], b"")).collect();
    assert_eq!(seen, ["a"; 10], "no stream was spent on the other node");
    // Back again.
    let listener = TcpListener::bind(&*sick).expect("bind");
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(|mut s| drop(s.write_all(b"b"))));
    await_state(&gateway, &sick, "healthy");
    wait_until("both nodes to be used", LIMIT, || (exchange(gateway.addrs[1], b"") == "b").then_some(()));
}

#[test]
fn connections_that_fail_count_as_passive_checks() {
    let well = echo("a");
    let sick = format!("127.0.0.1:{}", free_port());
    // The one active check counts as well, and decides nothing with its high threshold.
    let passive = json!({ "type": "tcp", "unhealthy": { "tcp_failures": 3 } });
    let fields = json!({ "retries": 0, "checks": { "active": checks(3600, 200), "passive": passive } });
    let settings = json!({ "upstream": { "set_aside": 0 } });
    let gateway = start(&upstream(&[&well, &sick], &fields), &json!(["127.0.0.1:0"]), &settings);
    wait_until("the node to be unhealthy", LIMIT, || {
        exchange(gateway.addrs[1], b"");
        (crate::health::node(&gateway, &sick)?["status"] == "unhealthy").then_some(())
    });
    let failed = || gateway.metric("weir_streams_total", &[("status", "502")]);
    let before = failed();
    assert!((2.0..=3.0).contains(&before), "{before} streams without a node");
    let seen: Vec<_> = (0..10).map(|_| exchange(gateway.addrs[1], b"")).collect();
    assert_eq!((seen, failed()), (vec!["a".to_owned(); 10], before));
}

/// Nodes of UDP are checked over TCP, where they listen for it or at a port beside.
#[test]
fn sessions_go_to_nodes_that_checks_find_well() {
    let (well, sick) = (answering("a"), answering("b"));
    let beside = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = beside.local_addr().expect("an address").port();
    // A port for each node: the sick one is checked at its own, where nothing listens for TCP.
    let config = |node: &str, port: Option<u16>, server_port: u16| {
        let mut active = checks(1, 1);
        if let Some(port) = port {
            active["port"] = json!(port);
        }
        let nodes = json!([{ "host": "127.0.0.1", "port": node.rsplit(':').next().and_then(|p| p.parse::<u16>().ok()), "weight": 1 }]);
        json!({ "server_port": server_port,
            "upstream": { "scheme": "udp", "nodes": nodes, "checks": { "active": active } } })
    };
    let ports = [free_port(), free_port()];
    let routes = [config(&well, Some(port), ports[0]), config(&sick, None, ports[1])];
    let udp = json!(ports.map(|port| format!("127.0.0.1:{port}")));
    let settings = json!({ "listen": { "http": ["127.0.0.1:0"], "https": [], "udp": udp } });
    let gateway = Start::new(json!({ "stream_routes": routes })).settings(settings).own_listeners().start();
    await_state(&gateway, &sick, "unhealthy");
    await_state(&gateway, &well, "healthy");
    let states = || crate::health::node(&gateway, &well).expect("the node")["counter"]["tcp_failure"].clone();
    assert_eq!(states(), 0);
    // With all nodes of an upstream unhealthy health is ignored.
    for (port, expected) in [(ports[0], "ax"), (ports[1], "bx")] {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        wait_until("an answer", LIMIT, || answer_over_udp(addr).filter(|answer| answer == expected));
    }
}

#[test]
fn datagrams_that_are_refused_count_as_passive_checks() {
    let well = answering("a");
    let sick = UdpSocket::bind("127.0.0.1:0").expect("bind").local_addr().expect("an address").to_string();
    let passive = json!({ "type": "tcp", "unhealthy": { "tcp_failures": 1 } });
    let mut upstream =
        upstream(&[&well, &sick], &json!({ "checks": { "active": checks(3600, 200), "passive": passive } }));
    upstream["stream_routes"][0]["upstream"]["scheme"] = json!("udp");
    let settings = json!({ "listen": { "http": ["127.0.0.1:0"], "https": [], "udp": ["127.0.0.1:0"] },
        "upstream": { "set_aside": 0 } });
    let gateway = Start::new(upstream).settings(settings).own_listeners().start();
    wait_until("the node to be unhealthy", LIMIT, || {
        answer_over_udp(gateway.addrs[1]);
        (crate::health::node(&gateway, &sick)?["status"] == "unhealthy").then_some(())
    });
    for _ in 0..10 {
        wait_until("an answer", LIMIT, || answer_over_udp(gateway.addrs[1]).filter(|answer| answer == "ax"));
    }
}

#[test]
fn balancers_know_the_streams_that_are_open() {
    let (a, b) = (echo("a"), echo("b"));
    let gateway = plain(&upstream(&[&a, &b], &json!({ "type": "least_conn" })));
    let names = |count: usize| -> Vec<(TcpStream, char)> {
        (0..count)
            .map(|_| {
                let mut stream = connect(gateway.addrs[1]);
                let name = name(&mut stream, LIMIT).expect("a service");
                (stream, name)
            })
            .collect()
    };
    let mut open = names(6);
    assert_eq!(open.iter().filter(|(_, name)| *name == 'a').count(), 3);
    // Those of one node end, and the next ones go there.
    open.retain(|(_, name)| *name == 'b');
    wait_until("three streams to end", LIMIT, || (gateway.metric("weir_stream_connections", &[]) == 3.0).then_some(()));
    assert!(names(3).iter().all(|(_, name)| *name == 'a'));

    let hashed = plain(&upstream(&[&a, &b], &json!({ "type": "chash", "key": "remote_addr" })));
    let seen: Vec<_> = (0..8).map(|_| exchange(hashed.addrs[1], b"")).collect();
    assert!(seen.iter().all(|name| *name == seen[0]), "{seen:?}");
}

/// A node that reads nothing holds its clients back, and the gateway holds 64 KiB of each.
#[test]
fn streams_of_a_node_that_does_not_read_take_little_memory() {
    const STREAMS: usize = 8;
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let node = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let gateway = plain(&json!({ "stream_routes": [route(&json!({}), &node)] }));
    let before = gateway.process.resident();
    let mut sent = 0;
    let clients: Vec<_> = (0..STREAMS)
        .map(|_| {
            let mut client = connect(gateway.addrs[1]);
            client.set_write_timeout(Some(Duration::from_millis(200))).expect("a time limit");
            while let Ok(count) = client.write(&[b'x'; 64 << 10]) {
                sent += count;
            }
            client
        })
        .collect();
    assert!(sent > STREAMS << 20, "only {sent} bytes were taken");
    let grown = gateway.process.resident().saturating_sub(before);
    assert!(grown < STREAMS as u64 * (64 << 10) + (4 << 20), "{grown} bytes for {sent}");
    assert_eq!(gateway.metric("weir_stream_connections", &[]), STREAMS as f64);
    drop(clients);
}

#[test]
fn streams_count_as_connections() {
    let settings = json!({ "limits": { "connections": 2 } });
    let config = json!({ "stream_routes": [route(&json!({}), &echo("a"))] });
    let gateway = settled(Start::new(config), &json!(["127.0.0.1:0"]), &settings).workers(1).start();
    let mut first = [connect(gateway.addrs[1]), connect(gateway.addrs[1])];
    first.iter_mut().for_each(|stream| assert_eq!(name(stream, LIMIT), Some('a')));
    // The next one waits for a place.
    let mut next = connect(gateway.addrs[1]);
    assert_eq!(name(&mut next, Duration::from_millis(300)), None);
    first[0].shutdown(Shutdown::Both).expect("end");
    assert_eq!(name(&mut next, LIMIT), Some('a'));
}

/// A service of UDP that answers with its name ahead of what it gets.
fn answering(name: &'static str) -> String {
    let node = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let addr = node.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        let mut room = [0; 16];
        while let Ok((length, from)) = node.recv_from(&mut room) {
            let _ = node.send_to(&[name.as_bytes(), &room[..length]].concat(), from);
        }
    });
    addr
}

fn answer_over_udp(addr: SocketAddr) -> Option<String> {
    let client = UdpSocket::bind("127.0.0.1:0").expect("bind");
    client.set_read_timeout(Some(Duration::from_millis(200))).expect("a time limit");
    client.send_to(b"x", addr).expect("send");
    let mut room = [0; 16];
    let length = client.recv(&mut room).ok()?;
    Some(String::from_utf8_lossy(&room[..length]).into_owned())
}

/// Ports by APISIX's own settings, and stream routes by its keys of etcd.
#[test]
fn ports_come_from_config_yaml_and_routes_from_etcd() {
    let datagrams = answering("u");
    let cluster = EtcdCluster::start(1);
    let (tcp, udp) = (free_port(), free_port());
    let hosts = json!(cluster.urls());
    let settings = json!({
        "apisix": {
            "proxy_mode": "http&stream", "node_listen": [{ "ip": "127.0.0.1", "port": 0 }],
            "ssl": { "enable": false }, "enable_control": false,
            "stream_proxy": { "tcp": [format!("127.0.0.1:{tcp}")], "udp": [format!("127.0.0.1:{udp}")] },
        },
        "deployment": { "role": "data_plane", "role_data_plane": { "config_provider": "etcd" },
            "etcd": { "host": hosts, "prefix": "/apisix", "timeout": 5 } },
    });
    let gateway = Start::stored().settings(settings).own_listeners().admin_by_settings().start();
    let (tcp, udp) = (SocketAddr::from(([127, 0, 0, 1], tcp)), SocketAddr::from(([127, 0, 0, 1], udp)));
    assert_eq!((exchange(tcp, b"x"), answer_over_udp(udp)), (String::new(), None), "no route is there");
    let to = |scheme: &str, port: u16, node: &str| json!({ "server_port": port, "upstream": { "scheme": scheme, "type": "roundrobin", "nodes": { node: 1 } } });
    cluster.put("stream_routes/1", to("tcp", tcp.port(), &echo("t")));
    cluster.put("stream_routes/2", to("udp", udp.port(), &datagrams));
    wait_until("the stream over TCP", LIMIT, || (exchange(tcp, b"x") == "tx").then_some(()));
    wait_until("the session over UDP", LIMIT, || answer_over_udp(udp).filter(|answer| answer == "ux"));
    cluster.put("stream_routes/1", to("tcp", tcp.port(), &echo("n")));
    wait_until("the change", LIMIT, || (exchange(tcp, b"x") == "nx").then_some(()));
    drop(gateway);
}
