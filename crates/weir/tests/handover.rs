//! Changes over the Admin API while one process takes over from another: none is refused, and none is lost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;
use serde_json::json;

use crate::harness::{ADMIN_KEY, EtcdCluster, Fault, Gateway, LIMIT, RawClient, Response, Start, wait_until};

const UPGRADES: usize = 5;

/// A client that changes one upstream again and again, and does what HTTP allows and no more: what may be repeated, on a
/// connection that was used before and ended before any byte of an answer.
struct Writer {
    addr: SocketAddr,
    name: String,
    keeps: bool,
    kept: Option<RawClient>,
}

impl Writer {
    /// Makes a change. Succeeds if the change was confirmed.
    fn put(&mut self, number: usize) -> Result<(), String> {
        let request = self.request("PUT", &json!({ "nodes": {}, "desc": number.to_string() }).to_string());
        if let Some(client) = self.kept.take() {
            match self.send(client, &request) {
                Err(Fault::Closed | Fault::Reset) => {}
                outcome => return self.judge(outcome),
            }
        }
        let stream = TcpStream::connect(self.addr).map_err(|error| format!("connect: {error}"))?;
        let outcome = self.send(RawClient::over(stream), &request);
        self.judge(outcome)
    }

    fn send(&mut self, mut client: RawClient, request: &str) -> Result<Response, Fault> {
        if !client.offer(request) {
            return Err(Fault::Reset);
        }
        let response = client.try_response_to("PUT")?;
        if self.keeps && response.keeps_connection() {
            self.kept = Some(client);
        }
        Ok(response)
    }

    fn judge(&self, outcome: Result<Response, Fault>) -> Result<(), String> {
        match outcome {
            Ok(response) if response.status < 300 => Ok(()),
            Ok(response) => Err(format!("{}: {} {}", self.name, response.status, response.text())),
            Err(fault) => Err(format!("{}: {fault:?}", self.name)),
        }
    }

    fn request(&self, method: &str, body: &str) -> String {
        let connection = if self.keeps { "" } else { "Connection: close\r\n" };
        format!(
            "{method} /apisix/admin/upstreams/{} HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\n{connection}\
             Content-Length: {}\r\n\r\n{body}",
            self.name,
            body.len()
        )
    }
}

/// Stops the writers, however the test ends.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Number of completed upgrades.
fn upgrades(gateway: &Gateway) -> usize {
    gateway.stderr().matches("a new process serves").count()
}

fn stored(gateway: &Gateway, name: &str) -> Option<usize> {
    gateway.must("GET", &format!("upstreams/{name}"), "")["value"]["desc"].as_str()?.parse().ok()
}

#[test]
fn changes_go_on_while_processes_take_over() {
    take_over_under_changes(&Start::stored().start());
}

#[test]
fn changes_go_on_while_processes_take_over_that_share_an_etcd() {
    let cluster = EtcdCluster::start(1);
    let deployment = json!({ "config_provider": "etcd", "etcd": { "host": cluster.urls() } });
    take_over_under_changes(&Start::stored().settings(json!({ "deployment": deployment })).start());
}

fn take_over_under_changes(gateway: &Gateway) {
    let addr = gateway.admin.expect("an Admin API");
    // Milliseconds between two changes, on connections that are kept and on new ones.
    let clients = [(0, true), (7, true), (150, true), (0, false), (13, false), (90, false)];
    let (stop, made) = (AtomicBool::new(false), clients.map(|_| AtomicUsize::new(0)));
    thread::scope(|scope| {
        let (until, stop, made) = (Until(&stop), &stop, &made);
        let writers: Vec<_> = clients
            .into_iter()
            .zip(made)
            .enumerate()
            .map(|(index, ((pause, keeps), made))| {
                scope.spawn(move || {
                    let mut writer = Writer { addr, name: format!("u{index}"), keeps, kept: None };
                    let mut number = 0;
                    while !stop.load(SeqCst) {
                        writer.put(number + 1)?;
                        number += 1;
                        made.fetch_add(1, SeqCst);
                        thread::sleep(Duration::from_millis(pause));
                    }
                    Ok::<_, String>((writer.name, number))
                })
            })
            .collect();
        for round in 0..UPGRADES {
            gateway.signal(Signal::USR2);
            let ended = || writers.iter().any(thread::ScopedJoinHandle::is_finished);
            wait_until("an upgrade", LIMIT, || (ended() || upgrades(gateway) > round).then_some(()));
            let before = made.each_ref().map(|made| made.load(SeqCst));
            let all_go_on = || made.iter().zip(before).all(|(made, before)| made.load(SeqCst) > before + 1);
            wait_until("changes of each after it", LIMIT, || (ended() || all_go_on()).then_some(()));
        }
        drop(until);
        for writer in writers {
            let (name, number) = writer.join().expect("a writer").unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(stored(gateway, &name), Some(number), "{name}: the last change that was answered for");
        }
    });
    assert_eq!(upgrades(gateway), UPGRADES);
}

/// The old process serves the connections that it accepts with the old configuration, so a change may be confirmed only
/// afterwards.
#[test]
fn nothing_is_changed_while_another_process_accepts() {
    let (before, channel) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair of sockets");
    rustix::io::write(&before, br#"{"kind":"end"}"#).expect("pass nothing on");
    let gateway = Start::stored().following(channel).start();
    let addr = gateway.admin.expect("an Admin API");
    let writer = Writer { addr, name: "u".to_owned(), keeps: false, kept: None };
    let mut client = RawClient::connect(addr);
    client.send(writer.request("PUT", r#"{"nodes":{}}"#));
    client.expect_quiet(Duration::from_millis(300));
    assert_eq!(gateway.get("/").status, 404, "it serves all the same");
    drop(before);
    assert_eq!(client.response().status, 201);
}

/// A connection without a request does not keep a new process from taking over, nor does a stream of events.
#[test]
fn who_asks_for_nothing_holds_up_no_upgrade() {
    let gateway = Start::stored().start();
    let addr = gateway.admin.expect("an Admin API");
    let mut silent = TcpStream::connect(addr).expect("connect");
    let mut stream = TcpStream::connect(addr).expect("connect");
    let mut idle = RawClient::connect(addr);
    write!(stream, "GET /weir/v1/events HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\n\r\n").expect("send");
    let writer = Writer { addr, name: "u".to_owned(), keeps: true, kept: None };
    assert_eq!(idle.request(writer.request("PUT", r#"{"nodes":{}}"#)).status, 201);
    gateway.signal(Signal::USR2);
    wait_until("the upgrade", LIMIT, || (upgrades(&gateway) > 0).then_some(()));
    for connection in [&mut silent, &mut stream] {
        connection.set_read_timeout(Some(LIMIT)).expect("set a timeout");
        let mut rest = Vec::new();
        let ended = connection.read_to_end(&mut rest);
        assert!(ended.is_ok() || rest.is_empty(), "{ended:?}");
    }
    assert!(!idle.offer(writer.request("GET", "")) || idle.try_response().is_err(), "it was idle, so it is closed");
    assert_eq!(stored(&gateway, "u"), None);
}
