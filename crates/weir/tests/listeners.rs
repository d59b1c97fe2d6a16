//! Traffic over other sockets than plain TCP: Unix sockets and the PROXY protocol.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Nginx, Origin, Start, program, route_to, route_with, weir};

/// A route that answers with what is known of the client.
fn telling() -> Value {
    let told = "$remote_addr|$remote_port|$server_addr|$server_port";
    json!({ "routes": [{ "id": "tell", "uri": "/*", "plugins": { "mocking": { "response_example": told } } }] })
}

fn on_unix(config: &Value, settings: &Value) -> Gateway {
    let mut all = json!({ "listen": { "http": ["unix:FOLDER/weir.sock"], "https": [] } });
    all.as_object_mut().expect("settings").extend(settings.as_object().expect("settings").clone());
    Start::new(config).settings(all).workers(2).own_listeners().start()
}

/// Sends a request that ends the connection, and reads all of the answer.
fn unix_get(path: &Path, fields: &str) -> String {
    let mut stream = UnixStream::connect(path).expect("connect to a Unix socket");
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

/// The body printed by curl.
fn curl(arguments: &[&str]) -> String {
    let output =
        Command::new(program("curl")).args(["-sS", "--max-time", "20"]).args(arguments).output().expect("run curl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn clients_come_in_through_a_unix_socket() {
    let log = json!({ "access_log": { "path": "FOLDER/access.log", "format": "$remote_addr $remote_port $status" } });
    let gateway = on_unix(&telling(), &log);
    let socket = gateway.file("weir.sock");
    let path = socket.to_str().expect("a path in UTF-8");
    // Two requests on one connection, then twenty connections for both workers to take.
    let url = "http://a.test/";
    assert_eq!(curl(&["--unix-socket", path, url, url]), "unix:||unix:|".repeat(2));
    for _ in 0..20 {
        assert!(unix_get(&socket, "").ends_with("unix:||unix:|"));
    }
    let lines = crate::harness::wait_until("the access log", LIMIT, || {
        let text = fs::read_to_string(gateway.file("access.log")).ok()?;
        (text.lines().count() == 22).then_some(text)
    });
    assert!(lines.lines().all(|line| line == "unix:  200"), "{lines}");
    assert_eq!(fs::metadata(&socket).expect("the socket").permissions().mode() & 0o777, 0o666);
}

#[test]
fn upstreams_are_told_of_unix_clients_as_nginx_tells() {
    let origin = Origin::hello();
    let told = |gateway: &Gateway, fields: &str| {
        assert!(unix_get(&gateway.file("weir.sock"), fields).starts_with("HTTP/1.1 200"));
        let request = origin.requests().pop().expect("a request");
        ["X-Real-IP", "X-Forwarded-For", "X-Forwarded-Port"]
            .map(|name| request.fields.get(name).unwrap_or("none").to_owned())
    };
    let config = route_to([&origin.node()]);
    let sent = "X-Forwarded-For: 10.9.9.9\r\nX-Forwarded-Port: 8443\r\n";
    let plain = on_unix(&config, &json!({}));
    assert_eq!(told(&plain, ""), ["unix:", "unix:", "80"]);
    assert_eq!(told(&plain, sent), ["unix:", "10.9.9.9, unix:", "80"]);
    let trusting = on_unix(&config, &json!({ "trusted_proxies": ["unix:"] }));
    assert_eq!(told(&trusting, sent), ["unix:", "10.9.9.9, unix:", "8443"]);
    let real = json!({ "real_ip": { "header": "X-Forwarded-For", "trusted": ["unix:"] } });
    assert_eq!(told(&on_unix(&config, &real), sent), ["10.9.9.9", "10.9.9.9, 10.9.9.9", "80"]);
    let others = json!({ "trusted_proxies": ["127.0.0.0/8"], "real_ip": { "header": "X-Forwarded-For", "trusted": ["127.0.0.0/8"] } });
    assert_eq!(told(&on_unix(&config, &others), sent), ["unix:", "unix:", "80"]);
}

#[test]
fn nginx_in_front_speaks_through_a_unix_socket() {
    let gateway = on_unix(&telling(), &json!({ "real_ip": { "trusted": ["unix:"] } }));
    let socket = gateway.file("weir.sock");
    let nginx = Nginx::start(&format!(
        "location / {{ proxy_pass http://unix:{}:/; proxy_set_header X-Real-IP $remote_addr; }}",
        socket.display()
    ));
    let body = curl(&[&format!("http://{}/", nginx.node())]);
    assert!(body.starts_with("127.0.0.1|"), "{body}");
}

#[test]
fn a_socket_has_the_mode_that_was_asked_for_and_goes_with_the_gateway() {
    let settings = json!({ "listen": { "http": ["127.0.0.1:0", { "address": "unix:FOLDER/weir.sock", "mode": "0600" }], "https": [] } });
    let mut gateway = Start::new(telling()).settings(settings).own_listeners().start();
    let socket = gateway.file("weir.sock");
    assert_eq!(fs::metadata(&socket).expect("the socket").permissions().mode() & 0o777, 0o600);
    assert_eq!(gateway.get("/").status, 200);
    assert!(unix_get(&socket, "").starts_with("HTTP/1.1 200"));
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    assert!(!socket.exists(), "the socket is still there");
}

#[test]
fn only_a_dead_socket_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("weir.sock");
    let listen = format!("unix:{}", socket.display());
    let start = || {
        Start::new(telling()).settings(json!({ "listen": { "http": [listen], "https": [] } })).own_listeners().start()
    };
    let mut killed = start();
    killed.signal(Signal::KILL);
    killed.wait();
    assert!(socket.exists());
    let gateway = start();
    assert!(unix_get(&socket, "").starts_with("HTTP/1.1 200"));

    let rules = gateway.config();
    let rules = rules.to_str().expect("a path in UTF-8");
    let another =
        ["run", rules, "--listen-http", &listen, "--listen-https", "off", "--metrics", "off", "--status", "off"];
    let (code, _, stderr) = weir(&another);
    assert_eq!(code, 1);
    assert!(
        stderr.contains(&format!("listen.http: cannot listen on {listen}: another process listens on it")),
        "{stderr}"
    );
    assert!(unix_get(&socket, "").starts_with("HTTP/1.1 200"), "the one that listens is left alone");

    let file = folder.path().join("file");
    fs::write(&file, "precious").expect("write a file");
    let listen = format!("unix:{}", file.display());
    let (code, _, stderr) =
        weir(&["run", rules, "--listen-http", &listen, "--listen-https", "off", "--metrics", "off", "--status", "off"]);
    assert!(code == 1 && stderr.contains("is there already and is no socket"), "{stderr}");
    assert_eq!(fs::read_to_string(&file).expect("the file"), "precious");
}

#[test]
fn a_node_is_reached_through_a_unix_socket() {
    let server =
        "listen unix:FOLDER/node.sock; location / { return 200 \"$http_host $connection $connection_requests\"; }";
    let nginx = Nginx::start(server);
    let node = format!("unix:{}", nginx.file("node.sock").display());
    for (nodes, pass_host, host) in [
        (json!({ (&node): 1 }), "pass", "a.test"),
        (json!({ (&node): 1 }), "node", "localhost"),
        (json!([{ "host": node, "weight": 1 }]), "node", "localhost"),
    ] {
        let config = route_with(json!({}), json!({ "nodes": nodes, "pass_host": pass_host }));
        let format = "$upstream_addr $balancer_port|";
        let log = json!({ "access_log": { "path": "FOLDER/access.log", "format": format } });
        let gateway = Gateway::with(config, log);
        let mut client = gateway.client();
        let (first, second) = (client.get("/").text(), client.get("/").text());
        let words: Vec<&str> = first.split(' ').collect();
        assert_eq!((words[0], words[2]), (host, "1"));
        assert_eq!(second, format!("{host} {} 2", words[1]), "the connection is kept");
        crate::harness::wait_until("the access log", LIMIT, || {
            let text = fs::read_to_string(gateway.file("access.log")).ok()?;
            (text == format!("{node} |\n{node} |\n")).then_some(())
        });
    }
}

#[test]
fn a_node_whose_socket_is_dead_is_passed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let dead = folder.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("bind a Unix socket"));
    let origin = Origin::answering(|_| Answer::ok("alive"));
    for dead in [dead, folder.path().join("none.sock")] {
        let dead = format!("unix:{}", dead.display());
        let gateway = Gateway::start(route_to([&dead, &origin.node()]));
        for _ in 0..4 {
            assert_eq!(gateway.get("/").text(), "alive");
        }
        let gateway = Gateway::start(route_to([&dead]));
        let response = gateway.get("/");
        assert_eq!(response.status, 502, "{response:?}");
    }
}
