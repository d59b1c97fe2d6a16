//! The PROXY protocol: in, from HAProxy and from raw sockets; and out, to nginx.

use std::net::{Shutdown, SocketAddr};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Gateway, Haproxy, LIMIT, Nginx, Origin, Start, each, get, program, route_to, wait_until};

/// A header of version 2 in which 198.51.100.7:4567 came to 203.0.113.1:80, with a TLV.
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x12\xc6\x33\x64\x07\xcb\0\x71\x01\x11\xd7\0\x50\x04\0\x03abc";
const LINE: &[u8] = b"PROXY TCP4 198.51.100.7 203.0.113.1 4567 80\r\n";
const LINE6: &[u8] = b"PROXY TCP6 2001:db8::7 2001:db8::1 4567 80\r\n";
const MAPPED: &[u8] = b"PROXY TCP6 ::ffff:198.51.100.7 ::ffff:203.0.113.1 4567 80\r\n";
const UNKNOWN: &[u8] = b"PROXY UNKNOWN 198.51.100.7 203.0.113.1 4567 80\r\n";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x11\0\x0c\xc6\x33\x64\x07\xcb\0\x71\x01\x11\xd7\0\x50";

/// A route that answers with what is known of the client.
fn telling() -> Value {
    let told = "$remote_addr|$remote_port|$server_port";
    json!({ "routes": [{ "id": "tell", "uri": "/*", "plugins": { "mocking": { "response_example": told } } }] })
}

/// Everywhere with the PROXY protocol, believing these.
fn gateway(config: &Value, trusted: &str, more: &Value) -> Gateway {
    let on = |address: &str| json!([{ "address": address, "proxy_protocol": true }]);
    let mut settings = json!({
        "listen": { "http": on("127.0.0.1:0"), "https": on("127.0.0.1:0") },
        "proxy_protocol": { "trusted": [trusted] },
        "timeouts": { "head": 5 },
    });
    settings["listen"]["http"]
        .as_array_mut()
        .expect("a list")
        .extend(on("unix:FOLDER/weir.sock").as_array().cloned().expect("a list"));
    settings.as_object_mut().expect("settings").extend(more.as_object().expect("settings").clone());
    Start::new(config).settings(settings).workers(2).own_listeners().start()
}

fn refused(gateway: &Gateway) -> f64 {
    gateway.metric("weir_client_errors_total", &[("reason", "proxy_header")])
}

#[test]
fn a_header_tells_the_client() {
    let gateway = gateway(&telling(), "127.0.0.0/8", &json!({}));
    let port = gateway.addr.port();
    for (header, addr) in [
        (LINE, Some("198.51.100.7|4567")),
        (LINE6, Some("2001:db8::7|4567")),
        (MAPPED, Some("198.51.100.7|4567")),
        (BINARY, Some("198.51.100.7|4567")),
        (UNKNOWN, None),
        (LOCAL, None),
    ] {
        let shown = String::from_utf8_lossy(header);
        let expected =
            |own: SocketAddr| addr.map_or(format!("127.0.0.1|{}|{port}", own.port()), |a| format!("{a}|{port}"));
        // All at once, and then another request on the connection.
        let mut client = gateway.client();
        let own = client.sender().local_addr().expect("an address");
        assert_eq!(client.request([header, get("/").as_bytes()].concat()).text(), expected(own), "{shown}");
        assert_eq!(client.get("/").text(), expected(own), "{shown}");
        // Byte for byte.
        let mut client = gateway.client();
        let own = client.sender().local_addr().expect("an address");
        for byte in header {
            client.send([*byte]);
        }
        assert_eq!(client.get("/").text(), expected(own), "{shown}");
    }
    assert_eq!(refused(&gateway), 0.0);
}

#[test]
fn connections_without_a_good_header_are_closed() {
    let gateway = gateway(&telling(), "127.0.0.0/8", &json!({}));
    let plain = get("/");
    let too_long = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff";
    let cases: &[&[u8]] = &[
        plain.as_bytes(),
        b"PROXY TCP4 1 2 3 4\r\n",
        too_long,
        b"\x16\x03\x01\x02\0",
        b"PROXY TCP4 198.51.100.7 203.0.113.1 4567 80\nGET / HTTP/1.1\r\n",
    ];
    for bytes in cases {
        let mut client = gateway.client();
        client.offer(bytes);
        assert!(client.try_response().is_err());
    }
    let count = cases.len() as f64;
    gateway.await_metric("weir_client_errors_total", &[("reason", "proxy_header")], count);
    gateway.logged("no PROXY header");

    // Half of a header: the time for a head, or the client's end.
    let mut late = gateway.client();
    late.send(&LINE[..20]);
    late.expect_close();
    gateway.await_metric("weir_client_errors_total", &[("reason", "proxy_header")], count + 1.0);
    let mut cut = gateway.client();
    cut.send(&BINARY[..20]);
    cut.sender().shutdown(Shutdown::Write).expect("end one side");
    cut.expect_close();
    gateway.await_metric("weir_client_errors_total", &[("reason", "proxy_header")], count + 2.0);

    // A probe that connects and sends nothing is no error.
    let silent = gateway.client();
    silent.sender().shutdown(Shutdown::Both).expect("end both sides");
    drop(silent);
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 0.0);
    assert_eq!(refused(&gateway), count + 2.0);
}

#[test]
fn only_trusted_peers_are_believed() {
    let gateway = gateway(&telling(), "192.0.2.0/24", &json!({}));
    let mut client = gateway.client();
    client.offer([LINE, get("/").as_bytes()].concat());
    assert!(client.try_response().is_err());
    gateway.await_metric("weir_client_errors_total", &[("reason", "proxy_header")], 1.0);
    wait_until("the log", LIMIT, || {
        gateway.stderr().contains("the peer is not in proxy_protocol.trusted").then_some(())
    });
}

/// The one whom the header names has sent the fields, and not the proxy that passes bytes on.
#[test]
fn fields_are_believed_of_whom_the_header_names() {
    let origin = Origin::hello();
    each(
        &[
            ("127.0.0.1", "127.0.0.1", ["198.51.100.7", "198.51.100.7"]),
            ("198.51.100.0/24", "127.0.0.1", ["198.51.100.7", "10.9.9.9, 198.51.100.7"]),
            ("127.0.0.1", "198.51.100.7", ["10.9.9.9", "10.9.9.9"]),
        ],
        |case| format!("{case:?}"),
        |(proxies, real_ip, expected)| {
            let real_ip = json!({ "header": "X-Forwarded-For", "trusted": [real_ip] });
            let more = json!({ "trusted_proxies": [proxies], "real_ip": real_ip });
            let gateway = gateway(&route_to([&origin.node()]), "127.0.0.1", &more);
            let path = format!("/{proxies}/{}", expected[0]).replace('/', "-");
            let request = format!("GET /{path} HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 10.9.9.9\r\n\r\n");
            assert_eq!(gateway.client().request([LINE, request.as_bytes()].concat()).status, 200);
            let seen = origin.requests().into_iter().find(|r| r.target == format!("/{path}")).expect("the request");
            let told = ["X-Real-IP", "X-Forwarded-For"].map(|name| seen.fields.get(name).unwrap_or("none").to_owned());
            assert_eq!(told, *expected);
        },
    );
}

/// The body, and the port that curl had.
fn curl(url: &str) -> (String, String) {
    let arguments = ["-sS", "-k", "--max-time", "20", "-w", "#%{local_port}", url];
    let output = Command::new(program("curl")).args(arguments).output().expect("run curl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let (body, port) = text.rsplit_once('#').expect("a body and a port");
    (body.to_owned(), port.to_owned())
}

#[test]
fn haproxy_tells_the_client_ahead_of_http_and_of_tls() {
    let gateway = gateway(&telling(), "127.0.0.1", &json!({}));
    let https = gateway.https.expect("a listener with TLS");
    let socket = gateway.file("weir.sock");
    each(
        &[
            (gateway.addr.to_string(), "http", gateway.addr.port().to_string()),
            (https.to_string(), "https", https.port().to_string()),
            (format!("unix@{}", socket.display()), "http", String::new()),
        ],
        |(server, ..)| server.clone(),
        |(server, scheme, server_port)| {
            for option in ["send-proxy", "send-proxy-v2", "send-proxy-v2-ssl-cn", "send-proxy check inter 50ms"] {
                let haproxy = Haproxy::to(&format!("{server} {option}"));
                let (body, port) = curl(&format!("{scheme}://{}/", haproxy.addr));
                assert_eq!(body, format!("127.0.0.1|{port}|{server_port}"), "{server} {option}");
            }
        },
    );
    assert_eq!(refused(&gateway), 0.0);
}

#[test]
fn nodes_are_told_the_client() {
    let told = "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_port $connection $connection_requests";
    let server = format!("listen unix:FOLDER/node.sock proxy_protocol; location / {{ return 200 \"{told}\"; }}");
    let nginx = Nginx::start(&server);
    let node = format!("unix:{}", nginx.file("node.sock").display());
    for version in ["v1", "v2"] {
        let with = json!({ "nodes": { (&node): 1 }, "proxy_protocol": version });
        let without = json!({ "nodes": { (&node): 1 } });
        let config = json!({ "routes": [
            { "id": "with", "uri": "/with", "upstream": with },
            { "id": "without", "uri": "/without", "upstream": without },
        ] });
        let gateway = Gateway::start(&config);
        let mut client = gateway.client();
        let own = client.sender().local_addr().expect("an address").port();
        let mut connections = Vec::new();
        for _ in 0..3 {
            let text = client.get("/with").text();
            let words: Vec<&str> = text.split(' ').collect();
            assert_eq!(words[..3], ["127.0.0.1", &own.to_string(), &gateway.addr.port().to_string()], "{version}");
            assert_eq!(words[4], "1", "{version}: a connection is for one request");
            connections.push(words[3].to_owned());
            // nginx waits for a header here; a kept connection would not need one.
            assert_eq!(client.get("/without").status, 502, "{version}");
        }
        connections.dedup();
        assert_eq!(connections.len(), 3, "{version}: {connections:?}");
        let idle = gateway.metric("weir_upstream_connections", &[("state", "idle")]);
        assert_eq!(idle, 0.0, "{version}");
    }
}

/// A client given in a PROXY header is passed on in the header to the node; a header without an address is passed on as
/// unknown.
#[test]
fn a_client_is_passed_on() {
    let server = "listen unix:FOLDER/node.sock proxy_protocol; location / { return 200 \"$proxy_protocol_addr|$proxy_protocol_port\"; }";
    let nginx = Nginx::start(server);
    let node = format!("unix:{}", nginx.file("node.sock").display());
    for version in ["v1", "v2"] {
        let upstream = json!({ "nodes": { (&node): 1 }, "proxy_protocol": version });
        let config = json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }] });
        let gateway = gateway(&config, "127.0.0.1", &json!({}));
        for (header, client) in
            [(LINE, "198.51.100.7|4567"), (LINE6, "2001:db8::7|4567"), (BINARY, "198.51.100.7|4567")]
        {
            let answer = gateway.client().request([header, get("/").as_bytes()].concat());
            assert_eq!(answer.text(), client, "{version}");
        }
        let mut stream = std::os::unix::net::UnixStream::connect(gateway.file("weir.sock")).expect("connect");
        stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
        let request = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
        std::io::Write::write_all(&mut stream, &[b"PROXY UNKNOWN\r\n", &request[..]].concat()).expect("send");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).expect("read");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n|"), "{version}: {answer}");
    }
}
