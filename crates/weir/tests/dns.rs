//! Nodes with names: looked up off the way of a request, again when their time is over, and kept when no answer comes.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    Answer, Gateway, LIMIT, Origin, Process, Request, each, free_port, program, route_with, wait_until,
};

/// A real name server that answers from a hosts file with a TTL of one second.
pub(crate) struct Dnsmasq {
    pub(crate) process: Process,
    folder: TempDir,
    pub(crate) port: u16,
}

/// Option that makes dnsmasq the only authority for the names of the tests.
const NOBODY_ELSE: &str = "--local=/test/";

impl Dnsmasq {
    pub(crate) fn start(hosts: &str) -> Self {
        Self::with(hosts, &[NOBODY_ELSE])
    }

    /// With further arguments.
    pub(crate) fn with(hosts: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        fs::write(folder.path().join("hosts"), hosts).expect("write the hosts");
        let port = free_port();
        let process = Self::spawn(&folder, port, arguments);
        let server = Self { process, folder, port };
        server.await_answers();
        server
    }

    /// Starts it anew at the same port, with other hosts and arguments.
    fn again(&mut self, hosts: &str, arguments: &[&str]) {
        self.process.signal(Signal::KILL);
        self.process.wait();
        fs::write(self.folder.path().join("hosts"), hosts).expect("write the hosts");
        self.process = Self::spawn(&self.folder, self.port, arguments);
        self.await_answers();
    }

    fn spawn(folder: &TempDir, port: u16, arguments: &[&str]) -> Process {
        let mut command = Command::new(program("dnsmasq"));
        command.args([
            "--keep-in-foreground",
            "--no-resolv",
            "--no-hosts",
            "--no-poll",
            "--conf-file=/dev/null",
            "--pid-file=",
        ]);
        command.args(["--listen-address=127.0.0.1", "--bind-interfaces", "--log-facility=-"]);
        if !arguments.iter().any(|argument| argument.starts_with("--local-ttl")) {
            command.arg("--local-ttl=1");
        }
        command.arg(format!("--port={port}"));
        command.arg(format!("--addn-hosts={}", folder.path().join("hosts").display()));
        // Runs as the user of the tests. By default dnsmasq changes to `nobody`, who cannot read the hosts file again.
        let user = Command::new("id").arg("-un").output().expect("run id");
        command.arg(format!("--user={}", String::from_utf8_lossy(&user.stdout).trim()));
        command.args(arguments);
        Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    fn await_answers(&self) {
        wait_until("the name server to answer", LIMIT, || self.answers().then_some(()));
    }

    /// The settings of a gateway that asks it.
    fn settings(&self) -> Value {
        json!({ "dns": { "servers": [format!("127.0.0.1:{}", self.port)], "min_ttl": 0, "timeout": "500ms" } })
    }

    /// True if the server gives any answer to a query for the name servers of the root.
    fn answers(&self) -> bool {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
        socket.set_read_timeout(Some(std::time::Duration::from_millis(50))).expect("set the read timeout");
        let query = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
        let sent = socket.send_to(&query, (Ipv4Addr::LOCALHOST, self.port));
        sent.is_ok() && socket.recv(&mut [0; 512]).is_ok()
    }

    pub(crate) fn change(&self, hosts: &str) {
        fs::write(self.folder.path().join("hosts"), hosts).expect("write the hosts");
        self.process.signal(Signal::HUP);
    }
}

/// Two origins on one port of two addresses, each of which answers with its address and keeps connections.
pub(crate) fn pair() -> (Origin, Origin, u16) {
    pair_answering(|ip, _| Answer::ok(&ip.to_string()))
}

/// The same, with other answers.
fn pair_answering(
    answer: impl Fn(Ipv4Addr, &Request) -> Answer + Clone + Send + Sync + 'static,
) -> (Origin, Origin, u16) {
    let named = |ip: Ipv4Addr, port: u16| {
        let answer = answer.clone();
        Origin::scripted_on(SocketAddr::from((ip, port)), move |connection| {
            connection.answer_all(&|request| answer(ip, request));
        })
    };
    wait_until("a port that is free on both addresses", LIMIT, || {
        let first = named(Ipv4Addr::new(127, 0, 0, 1), 0).expect("bind an origin");
        let port = first.addr().port();
        let second = named(Ipv4Addr::new(127, 0, 0, 2), port).ok()?;
        Some((first, second, port))
    })
}

/// One route to one node.
fn route_to_node(node: &str) -> Value {
    route_with(json!({}), json!({ "nodes": { (node): 1 } }))
}

/// Number of times that each answer occurs in `count` requests.
fn answers(gateway: &Gateway, count: usize) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    for _ in 0..count {
        *seen.entry(gateway.get("/").text()).or_default() += 1;
    }
    seen
}

fn await_answer(gateway: &Gateway, expected: &str) {
    wait_until(&format!("the answer {expected}"), LIMIT, || (gateway.get("/").text() == expected).then_some(()));
}

#[test]
fn names_follow_their_ttl_and_the_last_good_answer_is_kept() {
    let (first, _second, port) = pair();
    let mut server = Dnsmasq::start("127.0.0.1 svc.test\n");
    let gateway = Gateway::with(route_to_node(&format!("svc.test:{port}")), server.settings());
    await_answer(&gateway, "127.0.0.1");
    assert_eq!(first.open(), 1, "the connection is kept");

    server.change("127.0.0.2 svc.test\n");
    await_answer(&gateway, "127.0.0.2");
    assert_eq!(
        answers(&gateway, 10),
        BTreeMap::from([("127.0.0.2".into(), 10)]),
        "a kept connection is not gone back to"
    );
    wait_until("the kept connection to be closed", LIMIT, || (first.open() == 0).then_some(()));

    // The name is gone: no answer is better than the last good one.
    server.change("127.0.0.9 other.test\n");
    wait_until("the resolver to have asked", LIMIT, || gateway.stderr().contains("svc.test").then_some(()));
    assert_eq!(gateway.get("/").text(), "127.0.0.2");

    // So is the server.
    server.process.signal(Signal::KILL);
    server.process.wait();
    for _ in 0..20 {
        assert_eq!(gateway.get("/").text(), "127.0.0.2");
    }
}

/// A name server that says of every name that it has failed, and counts how often.
fn failing_server() -> (u16, UdpSocket, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
    let port = socket.local_addr().expect("its address").port();
    let serving = socket.try_clone().expect("a second handle");
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((len, from)) = serving.recv_from(&mut query) {
            if len < 12 {
                return;
            }
            counter.fetch_add(1, SeqCst);
            // An answer, and SERVFAIL (RFC 1035 section 4.1.1).
            (query[2], query[3]) = (query[2] | 0x80, 2);
            let _ = serving.send_to(&query[..len], from);
        }
    });
    (port, socket, asked)
}

#[test]
fn whatever_way_a_name_fails_its_last_addresses_stay_and_it_comes_back() {
    let (failing, socket, _) = failing_server();
    let forward = format!("--server=127.0.0.1#{failing}");
    let cases: &[(&str, &[&str])] = &[
        ("NXDOMAIN", &[NOBODY_ELSE]),
        ("REFUSED", &[]),
        ("SERVFAIL", &[&forward]),
        ("no address", &[NOBODY_ELSE, "--txt-record=svc.test,text"]),
        ("silence", &["--port=0"]),
    ];
    each(
        cases,
        |(what, _)| (*what).to_owned(),
        |(what, arguments)| {
            let (_first, _second, port) = pair();
            let mut server = Dnsmasq::start("127.0.0.1 svc.test\n");
            let gateway = Gateway::with(route_to_node(&format!("svc.test:{port}")), server.settings());
            await_answer(&gateway, "127.0.0.1");
            if *what == "silence" {
                server.process.signal(Signal::STOP);
            } else {
                server.again("", arguments);
            }
            let told = "cannot resolve an upstream node; its last addresses stay in use";
            wait_until("the resolver to have asked", LIMIT, || gateway.stderr().contains(told).then_some(()));
            assert_eq!(answers(&gateway, 5), BTreeMap::from([("127.0.0.1".into(), 5)]));

            server.again("127.0.0.2 svc.test\n", &[NOBODY_ELSE]);
            await_answer(&gateway, "127.0.0.2");
            let told = || gateway.stderr().contains("can be resolved again").then_some(());
            wait_until("the log to tell that the name is back", LIMIT, told);
        },
    );
    // Less than a head of a query ends its thread.
    let _ = socket.send_to(&[], socket.local_addr().expect("its address"));
}

#[test]
fn a_family_whose_question_fails_keeps_its_addresses() {
    let (failing, socket, asked) = failing_server();
    let origin = Origin::hello();
    let mut server = Dnsmasq::start("127.0.0.1 svc.test\n::1 svc.test\n");
    let gateway = Gateway::with(route_to_node(&format!("svc.test:{}", origin.addr().port())), server.settings());
    await_answer(&gateway, "hello");

    // Only the IPv6 address is known now, and nobody is there; whether there is another one cannot be found out.
    server.again("::1 svc.test\n", &[&format!("--server=127.0.0.1#{failing}")]);
    wait_until("the resolver to have asked again and again", LIMIT, || (asked.load(SeqCst) > 8).then_some(()));
    assert_eq!(answers(&gateway, 10), BTreeMap::from([("hello".into(), 10)]));

    // There is none.
    server.again("::1 svc.test\n", &[NOBODY_ELSE]);
    wait_until("the address to be gone", LIMIT, || (gateway.get("/").status == 502).then_some(()));
    // Less than a head of a query ends its thread.
    let _ = socket.send_to(&[], socket.local_addr().expect("its address"));
}

#[test]
fn all_addresses_of_a_name_have_their_share() {
    let (first, second, port) = pair();
    let server = Dnsmasq::start("127.0.0.1 svc.test\n127.0.0.2 svc.test\n");
    let gateway = Gateway::with(route_to_node(&format!("svc.test:{port}")), server.settings());
    wait_until("the name to be known", LIMIT, || (gateway.get("/").status == 200).then_some(()));
    let halves = BTreeMap::from([("127.0.0.1".into(), 10), ("127.0.0.2".into(), 10)]);
    assert_eq!(answers(&gateway, 20), halves);
    assert!(first.connections() + second.connections() <= 3, "connections are kept for each address");
}

#[test]
fn an_answer_is_used_no_longer_and_no_shorter_than_asked_for() {
    let (_first, _second, port) = pair();
    let server = Dnsmasq::with("127.0.0.1 svc.test\n", &[NOBODY_ELSE, "--local-ttl=86400"]);
    let gateway = |least: &str, most: &str| {
        let mut settings = server.settings();
        settings["dns"]["min_ttl"] = json!(least);
        settings["dns"]["max_ttl"] = json!(most);
        Gateway::with(route_to_node(&format!("svc.test:{port}")), settings)
    };
    let (soon, late) = (gateway("0s", "1s"), gateway("1h", "2h"));
    await_answer(&soon, "127.0.0.1");
    await_answer(&late, "127.0.0.1");
    server.change("127.0.0.2 svc.test\n");
    await_answer(&soon, "127.0.0.2");
    assert_eq!(late.get("/").text(), "127.0.0.1");

    let short = Dnsmasq::start("127.0.0.1 svc.test\n");
    let mut settings = short.settings();
    let witness = Gateway::with(route_to_node(&format!("svc.test:{port}")), settings.clone());
    settings["dns"]["min_ttl"] = json!("1h");
    settings["dns"]["max_ttl"] = json!("1h");
    let patient = Gateway::with(route_to_node(&format!("svc.test:{port}")), settings);
    await_answer(&witness, "127.0.0.1");
    await_answer(&patient, "127.0.0.1");
    short.change("127.0.0.2 svc.test\n");
    await_answer(&witness, "127.0.0.2");
    assert_eq!(patient.get("/").text(), "127.0.0.1");
}

#[test]
fn an_unhealthy_address_of_a_name_is_passed_over() {
    let sick = Arc::new(AtomicBool::new(false));
    let is_sick = Arc::clone(&sick);
    let (_first, _second, port) = pair_answering(move |ip, request| {
        let fails = request.target == "/check" && ip.octets()[3] == 2 && is_sick.load(SeqCst);
        Answer::status(if fails { 500 } else { 200 }, &ip.to_string())
    });
    let server = Dnsmasq::start("127.0.0.1 svc.test\n127.0.0.2 svc.test\n");
    let mut config = route_to_node(&format!("svc.test:{port}"));
    config["routes"][0]["upstream"]["checks"] = json!({ "active": {
        "http_path": "/check", "healthy": { "successes": 1 }, "unhealthy": { "http_failures": 1 },
    }});
    let gateway = Gateway::with(&config, server.settings());
    let port = port.to_string();
    let series = |ip| {
        let labels = [("name", "/apisix/routes/all"), ("ip", ip), ("port", port.as_str())];
        gateway.metrics_page().value("apisix_upstream_status", &labels)
    };
    let await_series = |ip, value| wait_until("the metric", LIMIT, || (series(ip) == value).then_some(()));
    await_series("127.0.0.2", Some(1.0));
    let halves = BTreeMap::from([("127.0.0.1".into(), 10), ("127.0.0.2".into(), 10)]);
    assert_eq!(answers(&gateway, 20), halves);

    sick.store(true, SeqCst);
    await_series("127.0.0.2", Some(0.0));
    assert_eq!(answers(&gateway, 20), BTreeMap::from([("127.0.0.1".into(), 20)]));
    assert_eq!(series("127.0.0.1"), Some(1.0));

    // The last one there is, is used whatever its health.
    server.change("127.0.0.2 svc.test\n");
    await_series("127.0.0.1", None);
    assert_eq!(answers(&gateway, 5), BTreeMap::from([("127.0.0.2".into(), 5)]));

    sick.store(false, SeqCst);
    await_series("127.0.0.2", Some(1.0));
    server.change("127.0.0.1 svc.test\n127.0.0.2 svc.test\n");
    await_series("127.0.0.1", Some(1.0));
    wait_until("both addresses", LIMIT, || (answers(&gateway, 20) == halves).then_some(()));
}

#[test]
fn a_name_that_does_not_answer_delays_no_other() {
    let (_first, _second, port) = pair();
    // The server of one name never answers.
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a socket");
    let slow = format!("--server=/slow.test/127.0.0.1#{}", silent.local_addr().expect("its address").port());
    let server = Dnsmasq::with("127.0.0.1 svc.test\n", &[&slow]);
    let config = json!({ "routes": [
        { "id": "slow", "uri": "/slow", "upstream": { "nodes": { "slow.test:80": 1 } } },
        { "id": "all", "uri": "/*", "upstream": { "nodes": { (format!("svc.test:{port}")): 1 } } },
    ] });
    let mut settings = server.settings();
    settings["dns"]["timeout"] = json!("60s");
    let gateway = Gateway::with(config, settings);
    await_answer(&gateway, "127.0.0.1");
    server.change("127.0.0.2 svc.test\n");
    await_answer(&gateway, "127.0.0.2");
    assert!(!gateway.stderr().contains("slow.test"), "the silent one is still being waited for");
    assert_eq!(gateway.get("/slow").status, 502);
}

/// Addresses on a port at which nobody answers: connections are neither accepted nor refused.
fn hung(ip: Ipv4Addr, port: u16) -> Option<(TcpListener, Vec<TcpStream>)> {
    let listener = TcpListener::bind((ip, port)).ok()?;
    rustix::net::listen(&listener, 0).expect("shorten the queue");
    // The queue is filled, so that the kernel drops what comes after.
    let connect = || TcpStream::connect_timeout(&SocketAddr::from((ip, port)), Duration::from_millis(200));
    let waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).take(16).collect();
    assert!(waiting.len() < 16, "connections are still taken");
    Some((listener, waiting))
}

#[test]
fn an_address_that_does_not_answer_is_overtaken() {
    let (origin, _queue) = wait_until("a port that is free on both addresses", LIMIT, || {
        let origin = Origin::scripted(|connection| {
            connection.answer_all(&|_| Answer::close("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhere"));
        });
        let queue = hung(Ipv4Addr::new(127, 0, 0, 2), origin.addr().port())?;
        Some((origin, queue))
    });
    let server = Dnsmasq::start("127.0.0.1 svc.test\n127.0.0.2 svc.test\n");
    // Longer than a test waits for an answer.
    let upstream = json!({
        "nodes": { (format!("svc.test:{}", origin.addr().port())): 1 },
        "timeout": { "connect": 600, "send": 600, "read": 600 },
    });
    let gateway = Gateway::with(route_with(json!({}), upstream), server.settings());
    wait_until("the name to be known", LIMIT, || (gateway.get("/").status == 200).then_some(()));
    assert_eq!(answers(&gateway, 20), BTreeMap::from([("here".into(), 20)]));
}

#[test]
fn an_address_that_refuses_is_passed_over_in_either_family() {
    let origin = Origin::hello();
    let port = origin.addr().port();
    for other in ["::1", "127.0.0.3"] {
        let server = Dnsmasq::start(&format!("127.0.0.1 svc.test\n{other} svc.test\n"));
        let config = route_with(json!({}), json!({ "nodes": { (format!("svc.test:{port}")): 1 }, "retries": 0 }));
        let gateway = Gateway::with(config, server.settings());
        wait_until("the name to be known", LIMIT, || (gateway.get("/").status == 200).then_some(()));
        assert_eq!(answers(&gateway, 20), BTreeMap::from([("hello".into(), 20)]), "{other}");
    }
}

#[test]
fn the_targets_of_a_service_have_their_ports_shares_and_priorities() {
    let mut origins = Origin::numbered(3);
    let record = |at: usize, priority: u16, weight: u16| {
        let port = origins[at].addr().port();
        format!("--srv-host=_http._tcp.svc.test,host{at}.test,{port},{priority},{weight}")
    };
    let records = [record(0, 10, 3), record(1, 10, 1), record(2, 20, 5)];
    let arguments = [NOBODY_ELSE, &records[0], &records[1], &records[2]];
    let server = Dnsmasq::with("127.0.0.1 host0.test host1.test host2.test\n", &arguments);
    let upstream = json!({ "nodes": { "_http._tcp.svc.test": 1 }, "pass_host": "node", "retries": 0 });
    let gateway = Gateway::with(route_with(json!({}), upstream), server.settings());
    wait_until("the service to be known", LIMIT, || (gateway.get("/").status == 200).then_some(()));
    assert_eq!(answers(&gateway, 20), BTreeMap::from([("0".into(), 15), ("1".into(), 5)]));
    assert_eq!(origins[0].last().field("host"), Some("svc.test"));

    // Those of the lower priority come when all of the higher one are gone.
    let last = origins.split_off(2);
    drop(origins);
    assert_eq!(answers(&gateway, 10), BTreeMap::from([("2".into(), 10)]));
    drop(last);
}

#[test]
fn search_domains_count() {
    let (_first, _second, port) = pair();
    let server = Dnsmasq::start("127.0.0.1 svc.corp.test\n127.0.0.2 svc.corp\n");
    let cases = [
        ("search corp.test\n", "svc", "127.0.0.1"),
        ("search nowhere.test corp.test\n", "svc", "127.0.0.1"),
        ("search test\noptions ndots:2\n", "svc.corp", "127.0.0.1"),
        ("search test\n", "svc.corp", "127.0.0.2"),
        ("search test\noptions ndots:2\n", "svc.corp.", "127.0.0.2"),
    ];
    each(
        &cases,
        |case| format!("{case:?}"),
        |(text, name, expected)| {
            let folder = tempfile::tempdir().expect("create a folder");
            fs::write(folder.path().join("resolv.conf"), text).expect("write a file");
            let mut settings = server.settings();
            settings["dns"]["resolv_conf"] = json!(folder.path().join("resolv.conf"));
            let gateway = Gateway::with(route_to_node(&format!("{name}:{port}")), settings);
            await_answer(&gateway, expected);
        },
    );
}

#[test]
fn the_hosts_file_goes_before_the_name_server() {
    let (_first, _second, port) = pair();
    let server = Dnsmasq::start("127.0.0.2 svc.test\n::1 svc.test\n");
    let folder = tempfile::tempdir().expect("create a folder");
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "127.0.0.1 other SVC.test # ours\n").expect("write the hosts");
    let mut settings = server.settings();
    settings["dns"]["hosts"] = json!(hosts);
    let gateway = Gateway::with(route_to_node(&format!("svc.test:{port}")), settings);
    await_answer(&gateway, "127.0.0.1");
    assert_eq!(answers(&gateway, 10), BTreeMap::from([("127.0.0.1".into(), 10)]), "no family comes from elsewhere");

    fs::write(&hosts, "").expect("write the hosts");
    await_answer(&gateway, "127.0.0.2");
}

#[test]
fn localhost_is_known_without_a_server() {
    let origin = Origin::hello();
    let folder = tempfile::tempdir().expect("create a folder");
    let nowhere = folder.path().join("none");
    for dns in [json!({}), json!({ "hosts": nowhere, "resolv_conf": nowhere })] {
        let config = route_to_node(&format!("localhost:{}", origin.addr().port()));
        let gateway = Gateway::with(config, json!({ "dns": dns }));
        // Looked up before the gateway is ready, or soon after.
        wait_until("localhost to be known", LIMIT, || (gateway.get("/").status == 200).then_some(()));
        assert_eq!(answers(&gateway, 10), BTreeMap::from([("hello".into(), 10)]));
    }
}

#[test]
fn a_name_without_an_address_is_a_502() {
    let server = Dnsmasq::start("127.0.0.1 svc.test\n");
    let gateway = Gateway::with(route_to_node("nowhere.test:80"), server.settings());
    for _ in 0..3 {
        let response = gateway.get("/");
        assert_eq!(response.status, 502, "{response:?}");
        assert_eq!(response.field("x-weir-error"), Some("upstream; node name has no address"));
    }
}
