//! Nodes with names: looked up off the way of a request, again when their time is over, and kept when no answer comes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Answer, Gateway, LIMIT, Origin, Process, free_port, program, route_with, wait_until};

/// A real name server that answers from a hosts file with a TTL of one second.
struct Dnsmasq {
    process: Process,
    folder: TempDir,
    port: u16,
}

impl Dnsmasq {
    fn start(hosts: &str) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        fs::write(folder.path().join("hosts"), hosts).expect("write the hosts");
        let port = free_port();
        let mut command = Command::new(program("dnsmasq"));
        command.args([
            "--keep-in-foreground",
            "--no-resolv",
            "--no-hosts",
            "--no-poll",
            "--conf-file=/dev/null",
            "--pid-file=",
        ]);
        command.args(["--listen-address=127.0.0.1", "--bind-interfaces", "--local-ttl=1", "--log-facility=-"]);
        command.arg(format!("--port={port}"));
        command.arg(format!("--addn-hosts={}", folder.path().join("hosts").display()));
        // As whoever runs the tests: it would otherwise become `nobody` and not be able to read the hosts again.
        let user = Command::new("id").arg("-un").output().expect("run id");
        command.arg(format!("--user={}", String::from_utf8_lossy(&user.stdout).trim()));
        let process = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let server = Self { process, folder, port };
        wait_until("the name server to answer", LIMIT, || server.answers().then_some(()));
        server
    }

    /// Whether it answers a query for the root's name servers, in whatever way.
    fn answers(&self) -> bool {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
        socket.set_read_timeout(Some(std::time::Duration::from_millis(50))).expect("set the read timeout");
        let query = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
        let sent = socket.send_to(&query, (Ipv4Addr::LOCALHOST, self.port));
        sent.is_ok() && socket.recv(&mut [0; 512]).is_ok()
    }

    fn change(&self, hosts: &str) {
        fs::write(self.folder.path().join("hosts"), hosts).expect("write the hosts");
        self.process.signal(Signal::HUP);
    }
}

/// Two origins on one port of two addresses, each of which answers with its address.
fn pair() -> (Origin, Origin, u16) {
    let named = |ip: Ipv4Addr, port: u16| {
        Origin::scripted_on(SocketAddr::from((ip, port)), move |connection| {
            connection.answer_all(&|_| Answer::close(format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{ip}")));
        })
    };
    wait_until("a port that is free on both addresses", LIMIT, || {
        let first = named(Ipv4Addr::new(127, 0, 0, 1), 0).expect("bind an origin");
        let port = first.addr().port();
        let second = named(Ipv4Addr::new(127, 0, 0, 2), port).ok()?;
        Some((first, second, port))
    })
}

#[test]
fn names_follow_their_ttl_and_the_last_good_answer_is_kept() {
    let (_first, _second, port) = pair();
    let mut server = Dnsmasq::start("127.0.0.1 svc.test\n");
    let config = route_with(json!({}), json!({ "nodes": { (format!("svc.test:{port}")): 1 } }));
    let settings =
        json!({ "dns": { "servers": [format!("127.0.0.1:{}", server.port)], "min_ttl": 0, "timeout": "500ms" } });
    let gateway = Gateway::with(config, settings);
    let answer = || gateway.get("/").text();
    wait_until("the name to be known", LIMIT, || (answer() == "127.0.0.1").then_some(()));

    server.change("127.0.0.2 svc.test\n");
    wait_until("the new address to be used", LIMIT, || (answer() == "127.0.0.2").then_some(()));

    // The name is gone: no answer is better than the last good one.
    server.change("127.0.0.9 other.test\n");
    wait_until("the resolver to have asked", LIMIT, || gateway.stderr().contains("svc.test").then_some(()));
    assert_eq!(answer(), "127.0.0.2");

    // So is the server.
    server.process.signal(Signal::KILL);
    server.process.wait();
    for _ in 0..20 {
        assert_eq!(answer(), "127.0.0.2");
    }
}

#[test]
fn all_addresses_of_a_name_are_used() {
    let (_first, _second, port) = pair();
    let server = Dnsmasq::start("127.0.0.1 svc.test\n127.0.0.2 svc.test\n");
    let config = route_with(json!({}), json!({ "nodes": { (format!("svc.test:{port}")): 1 } }));
    let settings = json!({ "dns": { "servers": [format!("127.0.0.1:{}", server.port)] } });
    let gateway = Gateway::with(config, settings);
    let mut seen = std::collections::BTreeSet::new();
    wait_until("both addresses to be used", LIMIT, || {
        seen.insert(gateway.get("/").text());
        (seen.contains("127.0.0.1") && seen.contains("127.0.0.2")).then_some(())
    });
}

#[test]
fn localhost_is_known_without_a_server() {
    let origin = Origin::hello();
    let nodes = json!({ (format!("localhost:{}", origin.addr().port())): 1 });
    let gateway = Gateway::start(route_with(json!({}), json!({ "nodes": nodes })));
    // Looked up before the gateway is ready, or soon after.
    wait_until("localhost to be known", LIMIT, || (gateway.get("/").status == 200).then_some(()));
    for _ in 0..10 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
}

#[test]
fn a_name_without_an_address_is_a_502() {
    let server = Dnsmasq::start("127.0.0.1 svc.test\n");
    let config = route_with(json!({}), json!({ "nodes": { "nowhere.test:80": 1 } }));
    let settings = json!({ "dns": { "servers": [format!("127.0.0.1:{}", server.port)] } });
    let gateway = Gateway::with(config, settings);
    for _ in 0..3 {
        let response = gateway.get("/");
        assert!(matches!(response.status, 502 | 503), "{response:?}");
        assert!(response.field("x-weir-error").is_some(), "{response:?}");
    }
}
