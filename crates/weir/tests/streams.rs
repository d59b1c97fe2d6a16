//! Stream routes over TCP: matching, nodes, TLS on both sides, PROXY headers, limits of time, plugins, metrics.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Authority, Certificate, Gateway, Haproxy, Kind, LIMIT, Redis, Start, each, free_port, program, wait_until,
};

/// A gateway with listeners for streams: `addrs[1]` and on.
pub(crate) fn start(config: &Value, tcp: &Value, more: &Value) -> Gateway {
    settled(Start::new(config), tcp, more).start()
}

pub(crate) fn settled(start: Start, tcp: &Value, more: &Value) -> Start {
    let mut settings = json!({ "listen": { "http": ["127.0.0.1:0"], "https": [], "tcp": tcp } });
    settings.as_object_mut().expect("settings").extend(more.as_object().expect("settings").clone());
    start.settings(settings).workers(2).own_listeners()
}

pub(crate) fn plain(config: &Value) -> Gateway {
    start(config, &json!(["127.0.0.1:0"]), &json!({}))
}

/// A service that says its name, and then sends back what it gets until the client's end, and its own.
pub(crate) fn echo(name: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let addr = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let (mut from, mut to) = (stream.try_clone().expect("a handle"), stream);
                let _ = to.write_all(name.as_bytes());
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    addr
}

pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("connect");
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    stream
}

/// All that comes back for `sent`, after which the client ends its side; of a connection that is reset, what came before.
pub(crate) fn exchange(addr: SocketAddr, sent: &[u8]) -> String {
    let mut stream = connect(addr);
    let _ = stream.write_all(sent);
    let _ = stream.shutdown(Shutdown::Write);
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    String::from_utf8_lossy(&received).into_owned()
}

pub(crate) fn route(fields: &Value, node: &str) -> Value {
    let mut route = json!({ "upstream": { "scheme": "tcp", "nodes": { node: 1 } } });
    route.as_object_mut().expect("a route").extend(fields.as_object().expect("fields").clone());
    route
}

fn redis_cli(port: u16, more: &[&str], command: &[&str]) -> String {
    let mut cli = Command::new(program("redis-cli"));
    let output = cli.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(more).args(command).output();
    let output = output.expect("run redis-cli");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)).trim().to_owned()
}

fn ssl(certificate: &Certificate, names: &[&str]) -> Value {
    json!({ "snis": names, "cert": certificate.cert, "key": certificate.key })
}

#[test]
fn routes_are_matched_by_port_address_and_client() {
    let (a, b, c) = (echo("a"), echo("b"), echo("c"));
    let (one, two) = (free_port(), free_port());
    let tcp = json!([format!("127.0.0.1:{one}"), format!("127.0.0.1:{two}"), "127.0.0.2:0"]);
    let config = json!({ "stream_routes": [
        route(&json!({ "server_port": one, "remote_addr": "10.0.0.0/8" }), &c),
        route(&json!({ "server_port": one, "remote_addr": "127.0.0.0/8" }), &a),
        route(&json!({ "server_addr": "127.0.0.2" }), &b),
    ] });
    let gateway = start(&config, &tcp, &json!({}));
    for (at, expected) in [(1, "ahello"), (2, ""), (3, "bhello")] {
        assert_eq!(exchange(gateway.addrs[at], b"hello"), expected, "listener {at}");
    }
    assert_eq!(gateway.metric("weir_streams_total", &[("route", ""), ("status", "404")]), 1.0);
}

#[test]
fn bytes_go_both_ways_and_each_side_ends_by_itself() {
    let gateway = plain(&json!({ "stream_routes": [route(&json!({ "id": "r" }), &echo(""))] }));
    const LENGTH: usize = 8 << 20;
    let sent: Vec<u8> = (0..LENGTH).map(|at| (at * 7 + at / 251) as u8).collect();
    let mut stream = connect(gateway.addrs[1]);
    let mut writing = stream.try_clone().expect("a handle");
    let copy = sent.clone();
    let writer = thread::spawn(move || {
        writing.write_all(&copy).expect("send");
        writing.shutdown(Shutdown::Write).expect("end");
    });
    // Nothing is read before both buffers of the system are full, and the gateway keeps no more than its share.
    wait_until("the node to be held back", LIMIT, || (!writer.is_finished()).then_some(()));
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("receive");
    writer.join().expect("the writer");
    assert!(received == sent, "{} bytes", received.len());
    wait_until("the bytes to be counted", LIMIT, || {
        let bytes = |kind| gateway.metric("weir_stream_bytes_total", &[("route", "r"), ("type", kind)]);
        (bytes("ingress") == LENGTH as f64 && bytes("egress") == LENGTH as f64).then_some(())
    });
    wait_until("the connection to be gone", LIMIT, || {
        (gateway.metric("weir_stream_connections", &[]) == 0.0).then_some(())
    });
}

#[test]
fn redis_is_served_over_tcp_and_tls() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["redis.test"]);
    let (clear, secret) = (Redis::start(), Redis::with_tls(&certificate));
    let node = |redis: &Redis| format!("127.0.0.1:{}", redis.port);
    let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
    let tls = |port: u16| json!({ "address": format!("127.0.0.1:{port}"), "tls": true });
    let tcp =
        json!([format!("127.0.0.1:{}", ports[0]), tls(ports[1]), format!("127.0.0.1:{}", ports[2]), tls(ports[3])]);
    let to = |port: u16, scheme: &str, redis: &Redis| json!({ "server_port": port, "upstream": { "scheme": scheme, "nodes": { node(redis): 1 } } });
    let config = json!({
        "ssls": [ssl(&certificate, &["redis.test"])],
        "stream_routes": [
            to(ports[0], "tcp", &clear), to(ports[1], "tcp", &clear),
            to(ports[2], "tls", &secret), to(ports[3], "tls", &secret),
        ],
    });
    let gateway = start(&config, &tcp, &json!({}));
    let ca = authority.file().display().to_string();
    let with_tls = ["--tls", "--cacert", &ca, "--sni", "redis.test"];
    for (port, more) in [(ports[0], &[][..]), (ports[1], &with_tls), (ports[2], &[]), (ports[3], &with_tls)] {
        assert_eq!(redis_cli(port, more, &["SET", "key", &port.to_string()]), "OK");
        assert_eq!(redis_cli(port, more, &["GET", "key"]), port.to_string());
    }
    assert_eq!((clear.cli(&["GET", "key"]), secret.cli(&["GET", "key"])), (ports[1].to_string(), ports[3].to_string()));
    // A name without a certificate, and no TLS where it is wanted.
    assert_ne!(redis_cli(ports[1], &["--tls", "--insecure", "--sni", "other.test"], &["PING"]), "PONG");
    assert_ne!(redis_cli(ports[1], &[], &["PING"]), "PONG");
    assert!(gateway.metric("weir_client_errors_total", &[("reason", "tls_handshake")]) >= 2.0);
}

/// Sessions go on to the node that the name belongs to, and nobody here could read them.
#[test]
fn tls_is_passed_on_by_name() {
    let authority = Authority::new();
    let names = ["a.test", "b.test"];
    let certificates = names.map(|name| authority.certificate(Kind::P256, &[name]));
    let servers = [Redis::with_tls(&certificates[0]), Redis::with_tls(&certificates[1])];
    let clear = Redis::start();
    let node = |redis: &Redis| format!("127.0.0.1:{}", redis.port);
    let mut routes: Vec<Value> =
        names.iter().zip(&servers).map(|(name, redis)| route(&json!({ "sni": name }), &node(redis))).collect();
    routes.push(route(&json!({}), &node(&clear)));
    let log = json!({ "stream_access_log": { "path": "stdout", "format": "$ssl_preread_server_name $status" } });
    let gateway = start(&json!({ "stream_routes": routes }), &json!(["127.0.0.1:0"]), &log);
    let port = gateway.addrs[1].port();
    let ca = authority.file().display().to_string();
    for (name, server) in names.iter().zip(&servers) {
        let more = ["--tls", "--cacert", &ca, "--sni", name];
        assert_eq!(redis_cli(port, &more, &["SET", "who", name]), "OK");
        assert_eq!(server.cli(&["GET", "who"]), *name);
    }
    // A connection without TLS takes the route that asks for no name.
    assert_eq!(redis_cli(port, &[], &["PING"]), "PONG");
    // Workers write their lines each.
    let mut lines: Vec<_> = (0..3).map(|_| gateway.line()).collect();
    lines.sort();
    assert_eq!(lines, ["- 200", "a.test 200", "b.test 200"]);
}

#[test]
fn a_certificate_that_is_asked_of_clients_is_asked_of_streams() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["s.test"]);
    let client = authority.certificate(Kind::P256, &["client"]);
    let mut item = ssl(&certificate, &["s.test"]);
    item["client"] = json!({ "ca": authority.pem(), "skip_mtls_uri_regex": [".*"] });
    let redis = Redis::start();
    let config = json!({ "ssls": [item], "stream_routes": [route(&json!({}), &format!("127.0.0.1:{}", redis.port))] });
    let gateway = start(&config, &json!([{ "address": "127.0.0.1:0", "tls": true }]), &json!({}));
    let port = gateway.addrs[1].port();
    let (cert, key) = (client.cert_file.display().to_string(), client.key_file.display().to_string());
    let tls = ["--tls", "--insecure", "--sni", "s.test"];
    assert_ne!(redis_cli(port, &tls, &["PING"]), "PONG");
    assert_eq!(redis_cli(port, &[&tls[..], &["--cert", &cert, "--key", &key]].concat(), &["PING"]), "PONG");
}

#[test]
fn proxy_headers_tell_the_client_and_are_sent_to_nodes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let node = listener.local_addr().expect("an address").to_string();
    let refusing = echo("x");
    let config = json!({ "stream_routes": [
        { "remote_addr": "198.51.100.0/24",
          "upstream": { "scheme": "tcp", "proxy_protocol": "v1", "nodes": { node: 1 } } },
        route(&json!({ "remote_addr": "127.0.0.1" }), &refusing),
    ] });
    let tcp = json!([{ "address": "127.0.0.1:0", "proxy_protocol": true }]);
    let gateway = start(&config, &tcp, &json!({ "proxy_protocol": { "trusted": ["127.0.0.0/8"] } }));
    let mut client = connect(gateway.addrs[1]);
    client.write_all(b"PROXY TCP4 198.51.100.7 203.0.113.1 4567 80\r\nhello").expect("send");
    client.shutdown(Shutdown::Write).expect("end");
    let (mut node, _) = listener.accept().expect("a connection");
    let mut seen = String::new();
    node.read_to_string(&mut seen).expect("receive");
    let port = gateway.addrs[1].port();
    assert_eq!(seen, format!("PROXY TCP4 198.51.100.7 127.0.0.1 4567 {port}\r\nhello"));
    // A real one in front.
    let haproxy = Haproxy::to(&format!("{} send-proxy-v2", gateway.addrs[1]));
    assert_eq!(exchange(haproxy.addr, b"hello"), "xhello");
}

#[test]
fn another_node_is_tried_and_shares_are_kept() {
    let (a, b) = (echo("a"), echo("b"));
    let dead = format!("127.0.0.1:{}", free_port());
    let config = json!({ "stream_routes": [
        { "upstream": { "scheme": "tcp", "nodes": { dead: 1, a: 1, b: 1 } } },
    ] });
    let gateway = plain(&config);
    let mut found: Vec<String> = (0..12).map(|_| exchange(gateway.addrs[1], b"")).collect();
    found.sort();
    let (of_a, of_b) = (found.iter().filter(|who| *who == "a").count(), found.iter().filter(|who| *who == "b").count());
    assert!(of_a + of_b == 12 && of_a >= 4 && of_b >= 4, "{found:?}");
    gateway.await_metric("weir_streams_total", &[("status", "200")], 12.0);
}

#[test]
fn nodes_that_cannot_be_reached_end_the_stream() {
    let dead = format!("127.0.0.1:{}", free_port());
    let gateway = plain(&json!({ "stream_routes": [route(&json!({ "id": "r" }), &dead)] }));
    assert_eq!(exchange(gateway.addrs[1], b"hello"), "");
    assert_eq!(gateway.metric("weir_streams_total", &[("route", "r"), ("status", "502")]), 1.0);
}

#[test]
fn silent_streams_are_closed() {
    let node = echo("");
    let mut of_upstream = route(&json!({}), &node);
    of_upstream["upstream"]["timeout"] = json!({ "connect": 5, "send": 0.3, "read": 0.3 });
    let cases = [(of_upstream, json!({})), (route(&json!({}), &node), json!({ "timeouts": { "stream_idle": 0.3 } }))];
    each(
        &cases,
        |(route, _)| route.to_string(),
        |(route, settings)| {
            let gateway = start(&json!({ "stream_routes": [route] }), &json!(["127.0.0.1:0"]), settings);
            let mut client = connect(gateway.addrs[1]);
            client.write_all(b"x").expect("send");
            let mut received = Vec::new();
            let _ = client.read_to_end(&mut received);
            assert_eq!(received, b"x");
        },
    );
}

#[test]
fn plugins_guard_streams() {
    let node = echo("a");
    let other = echo("b");
    let with = |plugins: Value| route(&json!({ "id": "r", "plugins": plugins }), &node);
    let limit = json!({ "limit-conn": {
        "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr", "rejected_code": 503,
    } });
    let split = json!({ "traffic-split": { "rules": [{ "weighted_upstreams": [
        { "weight": 1, "upstream": { "scheme": "tcp", "nodes": { other: 1 } } },
    ] }] } });
    let refused =
        plain(&json!({ "stream_routes": [with(json!({ "ip-restriction": { "blacklist": ["127.0.0.0/8"] } }))] }));
    assert_eq!(exchange(refused.addrs[1], b"hello"), "");
    assert_eq!(refused.metric("weir_streams_total", &[("route", "r"), ("status", "403")]), 1.0);

    let limited = plain(&json!({ "stream_routes": [with(limit)] }));
    let mut first = connect(limited.addrs[1]);
    first.read_exact(&mut [0; 1]).expect("the name of the service");
    assert_eq!(exchange(limited.addrs[1], b"hello"), "");
    first.shutdown(Shutdown::Both).expect("end");
    wait_until("the place to be free", LIMIT, || (exchange(limited.addrs[1], b"hello") == "ahello").then_some(()));

    let parted = plain(&json!({ "stream_routes": [with(split)] }));
    assert_eq!(exchange(parted.addrs[1], b"hello"), "bhello");

    let counted = plain(&json!({ "stream_routes": [with(json!({ "prometheus": {} }))] }));
    assert_eq!(exchange(counted.addrs[1], b"hello"), "ahello");
    wait_until("the count", LIMIT, || {
        (counted.metric("apisix_stream_connection_total", &[("route", "r")]) == 1.0).then_some(())
    });
}

#[test]
fn what_is_not_for_streams_is_refused_by_name() {
    let route = |fields: &Value| route(fields, "127.0.0.1:1");
    let cases = [
        (
            json!({ "stream_routes": [route(&json!({ "plugins": { "key-auth": {} } }))] }),
            "the plugin key-auth cannot be used for streams",
        ),
        (
            json!({ "routes": [{ "uri": "/", "upstream": { "nodes": { "a:1": 1 } },
                "plugins": { "mqtt-proxy": { "protocol_name": "MQTT", "protocol_level": 4 } } }] }),
            "the plugin mqtt-proxy runs on stream routes only",
        ),
        (
            json!({ "routes": [{ "uri": "/", "upstream": { "nodes": { "a:1": 1 } }, "plugins": { "traffic-split": {
                "rules": [{ "weighted_upstreams": [{ "upstream": { "scheme": "tcp", "nodes": { "a:1": 1 } } }] }],
            } } }] }),
            "is for stream routes only",
        ),
        (
            json!({ "stream_routes": [route(&json!({ "protocol": { "name": "redis", "superior_id": "1" } }))] }),
            "not supported yet: protocols above TCP (xRPC)",
        ),
        (
            json!({ "stream_routes": [{ "upstream": { "scheme": "grpc", "nodes": { "a:1": 1 } } }] }),
            "cannot be used for streams",
        ),
        (json!({ "stream_routes": [{ "upstream": { "scheme": "tcp", "nodes": { "a": 1 } } }] }), "needs a port"),
        (
            json!({ "stream_routes": [{ "upstream": { "scheme": "udp", "proxy_protocol": "v1", "nodes": { "a:1": 1 } } }] }),
            "not supported yet: proxy_protocol of an upstream with scheme: udp",
        ),
        (
            json!({ "routes": [{ "uri": "/", "upstream": { "scheme": "tcp", "nodes": { "a:1": 1 } } }] }),
            "is for stream routes only",
        ),
        (
            json!({
                "services": [{ "id": "s", "plugins": { "key-auth": {} }, "upstream": { "nodes": { "a:1": 1 } } }],
                "stream_routes": [{ "service_id": "s" }],
            }),
            "the plugin key-auth of its service cannot be used for streams",
        ),
    ];
    each(
        &cases,
        |(_, said)| (*said).to_owned(),
        |(config, said)| {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("rules.yaml");
            std::fs::write(&file, format!("{config}\n#END\n")).expect("write");
            let output = Command::new(crate::harness::binary()).arg("check").arg(&file).output().expect("run");
            let text =
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(!output.status.success() && text.contains(said), "{text}");
        },
    );
}

#[test]
fn a_store_changes_stream_routes_while_streams_go_on() {
    let (a, b) = (echo("a"), echo("b"));
    let gateway = settled(Start::stored(), &json!(["127.0.0.1:0"]), &json!({})).start();
    let addr = gateway.addrs[1];
    assert_eq!(exchange(addr, b"x"), "");
    gateway.must("PUT", "upstreams/u", &json!({ "scheme": "tcp", "nodes": { a.clone(): 1 } }).to_string());
    let made = gateway.must("PUT", "stream_routes/1", r#"{"upstream_id":"u"}"#);
    assert_eq!(made["value"]["upstream_id"], "u");
    let mut kept = connect(addr);
    kept.read_exact(&mut [0; 1]).expect("the name of the service");
    // The upstream changes under it.
    gateway.must("PUT", "upstreams/u", &json!({ "scheme": "tcp", "nodes": { b: 1 } }).to_string());
    assert_eq!(exchange(addr, b"x"), "bx");
    let (status, answer) = gateway.ask("DELETE", "upstreams/u", "");
    assert_eq!(status, 400, "{answer}");
    let (status, answer) = gateway.ask("PUT", "stream_routes/2", r#"{"upstream_id":"v"}"#);
    assert_eq!(status, 400, "{answer}");
    // Uses by requests are refused.
    let (status, answer) = gateway.ask("PUT", "routes/1", r#"{"uri":"/","upstream_id":"u"}"#);
    assert_eq!(status, 400, "{answer}");
    gateway.must("DELETE", "stream_routes/1", "");
    assert_eq!(exchange(addr, b"x"), "");
    gateway.must("DELETE", "upstreams/u", "");
    // As in APISIX a stream route may come before its upstream; until then its connections are closed.
    gateway.must("PUT", "stream_routes/2", "{}");
    assert_eq!(exchange(addr, b"x"), "");
    let refused = [("route", "2"), ("status", "503")];
    wait_until("the count", LIMIT, || (gateway.metric("weir_streams_total", &refused) == 1.0).then_some(()));
    gateway.must("PUT", "services/s", "{}");
    gateway.must("PUT", "stream_routes/2", r#"{"service_id":"s"}"#);
    assert_eq!(exchange(addr, b"x"), "");
    gateway.must("PUT", "services/s", &json!({ "upstream": { "scheme": "tcp", "nodes": { a: 1 } } }).to_string());
    assert_eq!(exchange(addr, b"x"), "ax");
    kept.write_all(b"still").expect("send");
    let mut back = [0; 5];
    kept.read_exact(&mut back).expect("receive");
    assert_eq!(&back, b"still");
}

#[test]
fn streams_under_way_end_with_the_drain() {
    let config = json!({ "stream_routes": [route(&json!({}), &echo(""))] });
    let mut gateway = start(&config, &json!(["127.0.0.1:0"]), &json!({ "timeouts": { "drain": 20, "drain_idle": 0 } }));
    let mut client = connect(gateway.addrs[1]);
    client.write_all(b"a").expect("send");
    client.read_exact(&mut [0; 1]).expect("receive");
    gateway.signal(Signal::TERM);
    wait_until("nobody to listen", LIMIT, || TcpStream::connect(gateway.addrs[1]).is_err().then_some(()));
    client.write_all(b"b").expect("send");
    client.read_exact(&mut [0; 1]).expect("receive");
    client.shutdown(Shutdown::Write).expect("end");
    assert_eq!(client.read(&mut [0; 1]).expect("the end"), 0);
    assert!(gateway.wait().success());
}

/// The lines of a log, once there are so many.
fn lines(gateway: &Gateway, name: &str, count: usize) -> Vec<String> {
    wait_until("the lines of the log", LIMIT, || {
        let text = std::fs::read_to_string(gateway.file(name)).unwrap_or_default();
        (text.lines().count() >= count).then(|| text.lines().map(str::to_owned).collect())
    })
}

#[test]
fn every_stream_has_a_line_in_a_log_of_its_own() {
    let node = echo("a");
    let refused =
        json!({ "plugins": { "ip-restriction": { "blacklist": ["127.0.0.0/8"] } }, "server_addr": "127.0.0.2" });
    let config = json!({ "stream_routes": [route(&refused, &node), route(&json!({ "id": "r" }), &node)] });
    let logged = |log: Value| {
        let more = json!({ "stream_access_log": log, "access_log": { "path": "FOLDER/requests.log" } });
        start(&config, &json!(["127.0.0.1:0", "127.0.0.2:0"]), &more)
    };
    let gateway = logged(json!({ "path": "FOLDER/streams.log" }));
    assert_eq!(exchange(gateway.addrs[1], b"hello"), "ahello");
    assert_eq!(exchange(gateway.addrs[2], b"hello"), "");
    let told: Vec<Value> =
        lines(&gateway, "streams.log", 2).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    // Workers write their lines each.
    let of = |status: u16| told.iter().find(|line| line["status"] == json!(status)).expect("a line");
    let done = of(200);
    for (field, expected) in [
        ("remote_addr", json!("127.0.0.1")),
        ("server_addr", json!("127.0.0.1")),
        ("server_port", json!(gateway.addrs[1].port())),
        ("protocol", json!("TCP")),
        ("sni", Value::Null),
        ("bytes_received", json!(5)),
        ("bytes_sent", json!(6)),
        ("upstream_addr", json!(node)),
        ("route_id", json!("r")),
        ("service_id", Value::Null),
    ] {
        assert_eq!(done[field], expected, "{field} of {done}");
    }
    assert!(done["session_time"].is_number() && done["upstream_connect_time"].is_number(), "{done}");
    assert_eq!((&of(403)["upstream_addr"], &of(403)["bytes_sent"]), (&Value::Null, &json!(0)));
    assert_eq!(std::fs::read_to_string(gateway.file("requests.log")).unwrap_or_default(), "");

    let form = "$remote_addr [$time_local] $protocol $status $bytes_sent $bytes_received $session_time $nobody";
    let gateway = logged(json!({ "path": "FOLDER/streams.log", "format": form }));
    assert_eq!(exchange(gateway.addrs[1], b"hello"), "ahello");
    let line = lines(&gateway, "streams.log", 1).remove(0);
    assert!(line.starts_with("127.0.0.1 [") && line.contains("] TCP 200 6 5 0.") && line.ends_with(" -"), "{line}");
    let said = gateway.logged("the gateway is up");
    assert!(said.contains("stream_access_log.format: ") && said.contains(": - is written for it"), "{said}");
    // Opened again.
    let moved = gateway.file("moved.log");
    std::fs::rename(gateway.file("streams.log"), &moved).expect("move the log");
    gateway.signal(Signal::USR1);
    wait_until("the log to be opened again", LIMIT, || gateway.file("streams.log").exists().then_some(()));
    assert_eq!(exchange(gateway.addrs[1], b""), "a");
    assert!(lines(&gateway, "streams.log", 1)[0].contains("] TCP 200 1 0 "));
}
