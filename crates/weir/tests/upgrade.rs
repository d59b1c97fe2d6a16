//! A new process takes over: nothing is refused, reset or lost, and one that fails changes nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::json;
use weir_wire::http2::ErrorCode;

use crate::harness::{
    Answer, EtcdCluster, Fault, Frame, Gateway, H2Client, LIMIT, Origin, Page, RawClient, Start, each, get, program,
    put_program, replace, route_to, wait_until,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Clients that send requests continuously until they are stopped.
pub(crate) struct Load {
    stop: AtomicBool,
    kept: AtomicUsize,
    fresh: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Load {
    /// Runs `work` under load: clients that keep their connections, some of which ask rarely, and clients that make a
    /// new one for each request. Gives the number of requests; none may fail.
    pub(crate) fn under(addr: SocketAddr, work: impl FnOnce(&Self)) -> usize {
        let load = Self {
            stop: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
            fresh: AtomicUsize::new(0),
            failures: Mutex::default(),
        };
        // Milliseconds between two requests.
        const PAUSES: [u64; 6] = [2, 5, 20, 70, 150, 400];
        thread::scope(|scope| {
            let (load, until) = (&load, Until(&load.stop));
            for pause in PAUSES {
                scope.spawn(move || load.keep(addr, Duration::from_millis(pause)));
                scope.spawn(move || load.renew(addr, Duration::from_millis(pause.clamp(10, 40))));
            }
            work(load);
            drop(until);
        });
        let failures = load.failures.into_inner().expect("failures");
        let (kept, fresh) = (load.kept.into_inner(), load.fresh.into_inner());
        assert!(failures.is_empty(), "{} of {} requests failed: {failures:#?}", failures.len(), kept + fresh);
        assert!(kept > 0 && fresh > 0, "{kept} requests on kept connections, {fresh} on new ones");
        kept + fresh
    }

    /// Waits for so many more requests.
    pub(crate) fn go_on(&self, requests: usize) {
        let count = || self.kept.load(SeqCst) + self.fresh.load(SeqCst);
        let until = count() + requests;
        wait_until("requests", LIMIT, || (count() >= until).then_some(()));
    }

    /// Asks on one connection as long as it is kept.
    fn keep(&self, addr: SocketAddr, pause: Duration) {
        while !self.stop.load(SeqCst) {
            let Some(mut client) = self.connect(addr) else { continue };
            let mut number = 0;
            while !self.stop.load(SeqCst) && self.ask(&mut client, &self.kept, &format!("request {number}")) {
                number += 1;
                thread::sleep(pause);
            }
        }
    }

    fn renew(&self, addr: SocketAddr, pause: Duration) {
        while !self.stop.load(SeqCst) {
            if let Some(mut client) = self.connect(addr) {
                self.ask(&mut client, &self.fresh, "request on a new connection");
            }
            thread::sleep(pause);
        }
    }

    fn connect(&self, addr: SocketAddr) -> Option<RawClient> {
        match TcpStream::connect(addr) {
            Ok(stream) => Some(RawClient::over(stream)),
            Err(error) => {
                self.failed(format!("connect: {error}"));
                None
            }
        }
    }

    /// Sends a request. Returns true if the connection may be used again.
    fn ask(&self, client: &mut RawClient, counter: &AtomicUsize, what: &str) -> bool {
        let answer = if client.offer(get("/")) { client.try_response() } else { Err(Fault::Reset) };
        counter.fetch_add(1, SeqCst);
        match answer {
            Ok(response) if response.status == 200 => response.keeps_connection(),
            Ok(response) => {
                self.failed(format!("{what}: {response:?}"));
                false
            }
            Err(fault) => {
                self.failed(format!("{what}: {fault:?}"));
                false
            }
        }
    }

    fn failed(&self, what: String) {
        self.failures.lock().expect("failures").push(what);
    }
}

/// Stops the load, however the work ends.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Upgrades once and waits until the new process serves.
pub(crate) fn upgrade(gateway: &Gateway) {
    let before = upgrades(gateway);
    gateway.signal(Signal::USR2);
    wait_until("the new process to serve", LIMIT, || (upgrades(gateway) > before).then_some(()));
}

/// Number of completed upgrades.
fn upgrades(gateway: &Gateway) -> usize {
    gateway.stderr().matches("a new process serves").count()
}

fn await_processes(gateway: &Gateway, count: usize) {
    wait_until(&format!("{count} processes"), LIMIT, || (gateway.processes().len() == count).then_some(()));
}

fn start(origin: &Origin, workers: usize) -> Gateway {
    let settings = json!({
        "timeouts": { "drain_idle": "15s", "upgrade": "20s" },
        "access_log": { "path": "FOLDER/access.log" },
    });
    Start::new(route_to([&origin.node()])).settings(settings).workers(workers).linked().https().start()
}

#[test]
fn twenty_upgrades_under_load_lose_nothing() {
    let origin = Origin::hello();
    let mut gateway = start(&origin, 2);
    let first = gateway.process.id();
    let requests = Load::under(gateway.addr, |load| {
        for _ in 0..20 {
            upgrade(&gateway);
            load.go_on(50);
        }
    });
    assert!(gateway.process.exited().is_none(), "the first process stays");
    let secure = format!("https://{}/", gateway.https.expect("an address for TLS"));
    let output = Command::new(program("curl")).args(["--silent", "--insecure", "--max-time", "10", &secure]).output();
    assert!(output.expect("run curl").status.success(), "{secure}");
    let requests = requests + 1;
    // This process, and the one that serves, once the others have drained.
    await_processes(&gateway, 2);
    assert!(gateway.processes().contains(&first));

    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    assert_eq!(gateway.processes(), [] as [u32; 0]);
    assert!(TcpStream::connect(gateway.addr).is_err());
    // Whichever process wrote them: as many lines as answers, and each is whole.
    let log = fs::read_to_string(gateway.file("access.log")).expect("read the access log");
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    }
    assert_eq!(log.lines().count(), requests);
}

#[test]
fn a_unix_socket_is_taken_over_and_goes_with_the_last_process() {
    let origin = Origin::hello();
    let settings = json!({
        "listen": { "http": ["unix:FOLDER/weir.sock", "127.0.0.1:0"], "https": [] },
        "timeouts": { "drain_idle": "15s", "upgrade": "20s" },
    });
    let start = Start::new(route_to([&origin.node()])).settings(settings).workers(2);
    let mut gateway = start.own_listeners().linked().start();
    let socket = gateway.file("weir.sock");
    let asked = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let ask = || {
        let mut stream = UnixStream::connect(&socket).expect("somebody listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").expect("send");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        asked.fetch_add(1, SeqCst);
    };
    thread::scope(|scope| {
        let until = Until(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    ask();
                }
            });
        }
        for _ in 0..5 {
            let before = asked.load(SeqCst);
            upgrade(&gateway);
            wait_until("requests", LIMIT, || (asked.load(SeqCst) > before + 50).then_some(()));
        }
        drop(until);
    });
    await_processes(&gateway, 2);
    ask();
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    wait_until("the socket to go", LIMIT, || (!socket.exists()).then_some(()));
}

/// A reload each second and an upgrade each five, for a quarter of a minute, or as long as `UPGRADE_SECONDS` says: a
/// minute in `make test`.
#[test]
fn reloads_and_upgrades_lose_nothing() {
    let seconds = std::env::var("UPGRADE_SECONDS").map_or(15, |text| text.parse().expect("UPGRADE_SECONDS"));
    let origin = Origin::hello();
    let gateway = start(&origin, 2);
    let began = Instant::now();
    let mut upgraded = 0;
    Load::under(gateway.addr, |_| {
        for second in 1..=seconds {
            let mut rules = route_to([&origin.node()]);
            rules["routes"][0]["desc"] = json!(format!("second {second}"));
            replace(&gateway.config(), &format!("{rules}\n#END\n"));
            if second % 5 == 0 {
                upgrade(&gateway);
                upgraded += 1;
            }
            thread::sleep((began + Duration::from_secs(second)).saturating_duration_since(Instant::now()));
        }
    });
    assert_eq!(upgrades(&gateway), upgraded);
    gateway.logged("a change of the rules is live");
}

#[test]
fn a_new_process_that_fails_leaves_the_old_one_serving() {
    type Break = fn(&Gateway);
    let cases: [(&str, Break, &str); 9] = [
        ("no file", |gateway| fs::remove_file(gateway.file("weir")).expect("remove the link"), "cannot start"),
        ("no program", |gateway| put_program(&gateway.file("weir"), "no program at all"), "cannot start"),
        ("ends", |gateway| put_program(&gateway.file("weir"), "#!/bin/sh\nexit 7\n"), "exit status: 7"),
        (
            "hangs",
            |gateway| put_program(&gateway.file("weir"), "#!/bin/sh\nexec sleep 60\n"),
            "did not serve within 1 s",
        ),
        ("settings", |gateway| replace(&gateway.file("weir.yaml"), "workres: 2\n"), "workres: unknown field"),
        (
            "rules",
            |gateway| {
                // Not watched, so the old process has not read it.
                replace(&gateway.config(), "routes: [{id: a, uri: /a, upstream_id: none}]\n#END\n");
            },
            "upstream_id",
        ),
        // A file that is cut off just now is no reason to serve less than before.
        (
            "half of the rules",
            |gateway| replace(&gateway.config(), "routes: []\n"),
            "apisix.yaml: the file does not end with a line #END, so it may be incomplete",
        ),
        ("none of the rules", |gateway| replace(&gateway.config(), ""), "apisix.yaml: the file is empty"),
        ("none of the settings", |gateway| replace(&gateway.file("weir.yaml"), ""), "weir.yaml: the file is empty"),
    ];
    let origin = Origin::hello();
    each(
        &cases,
        |(name, ..)| (*name).to_owned(),
        |(name, break_it, told)| {
            let limit = if *name == "hangs" { "1s" } else { "20s" };
            let settings = json!({ "timeouts": { "upgrade": limit }, "config": { "watch": false } });
            let gateway = Start::new(route_to([&origin.node()])).settings(settings).workers(2).linked().start();
            let mut kept = gateway.client();
            assert_eq!(kept.get("/").status, 200);
            break_it(&gateway);
            gateway.signal(Signal::USR2);
            wait_until("the upgrade to fail", LIMIT, || {
                gateway.stderr().lines().find(|line| line.contains("the upgrade has failed")).map(str::to_owned)
            });
            let log = gateway.stderr();
            assert!(log.contains(told), "{told:?} is not in {log}");
            assert!(kept.get("/").keeps_connection(), "nothing drains");
            assert_eq!(gateway.get("/").status, 200);
            await_processes(&gateway, 1);
        },
    );
}

/// Such as a version, or settings, without a plugin that a global rule has.
#[test]
fn a_new_process_that_would_refuse_every_request_does_not_take_over() {
    let settings = json!({ "timeouts": { "upgrade": "20s" } });
    let gateway = Start::stored().settings(settings).linked().start();
    gateway.must("PUT", "routes/a", r#"{"uri": "/a", "plugins": {"mocking": {"response_example": "a"}}}"#);
    gateway.must("PUT", "global_rules/g", r#"{"plugins": {"request-id": {}}}"#);
    replace(&gateway.file("weir.yaml"), "plugins: [mocking]\ntimeouts: {upgrade: 20s}\n");
    gateway.signal(Signal::USR2);
    let log = gateway.logged("the upgrade has failed");
    assert!(log.contains("global_rules/g"), "{log}");
    assert_eq!(gateway.get("/a").status, 200);
    gateway.must("PUT", "routes/b", r#"{"uri": "/b", "plugins": {"mocking": {"response_example": "b"}}}"#);
    await_processes(&gateway, 1);
}

#[test]
fn the_number_of_workers_may_change() {
    let origin = Origin::hello();
    let gateway = Start::new(route_to([&origin.node()])).settings("workers: 3").workers_by_settings().start();
    Load::under(gateway.addr, |load| {
        // With fewer workers, some accept from two sockets: none is closed with connections in its queue.
        for workers in [1, 4, 2] {
            replace(&gateway.file("weir.yaml"), &format!("workers: {workers}\n"));
            upgrade(&gateway);
            load.go_on(300);
            gateway.logged(&format!("the gateway is up version=\"{VERSION}\" workers={workers}"));
        }
    });
}

#[test]
fn unix_sockets_are_taken_over() {
    let origin = Origin::hello();
    let settings = "listen: {http: ['127.0.0.1:0', 'unix:FOLDER/a', 'unix:FOLDER/b'], https: []}";
    let start = Start::new(route_to([&origin.node()])).settings(settings).own_listeners().workers(2);
    let mut gateway = start.start();
    let (a, b) = (gateway.file("a"), gateway.file("b"));
    for path in [&a, &b] {
        assert_eq!(get_by(path), "200");
    }
    upgrade(&gateway);
    for path in [&a, &b] {
        assert_eq!(get_by(path), "200");
    }
    replace(
        &gateway.file("weir.yaml"),
        &format!("listen: {{http: ['127.0.0.1:0', 'unix:{}'], https: []}}", a.display()),
    );
    upgrade(&gateway);
    // Nobody listens there any more, so the file goes when the old process does.
    wait_until("the file to be removed", LIMIT, || (!b.exists()).then_some(()));
    assert_eq!(get_by(&a), "200");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    assert!(!a.exists());
}

/// The status of an answer over a Unix socket.
pub(crate) fn get_by(path: &Path) -> String {
    let mut curl = Command::new(program("curl"));
    curl.args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--max-time", "10"]);
    let output = curl.arg("--unix-socket").arg(path).arg("http://a.test/").output().expect("run curl");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asks for a page on a connection to the metrics or status server; whether the connection is kept.
pub(crate) fn page(client: &mut RawClient, path: &str) -> (String, bool) {
    let answer = client.request(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(answer.status, 200, "{answer:?}");
    (answer.text(), answer.keeps_connection())
}

#[test]
fn connections_of_the_old_process_get_one_more_answer() {
    let gate = Arc::new(Barrier::new(2));
    let of_origin = Arc::clone(&gate);
    let origin = Origin::answering(move |request| {
        if request.target == "/held" {
            of_origin.wait();
        }
        Answer::ok("done")
    });
    let settings = json!({ "timeouts": { "drain_idle": "5s", "head": "60s" } });
    let gateway = Start::new(route_to([&origin.node()])).settings(settings).workers(2).start();
    let [mut used, mut unused, mut idle, mut busy, mut begun] = [(); 5].map(|()| gateway.client());
    for client in [&mut used, &mut idle] {
        assert!(client.get("/").keeps_connection());
    }
    let (mut metrics, mut status) = (RawClient::connect(gateway.metrics), RawClient::connect(gateway.status));
    assert!(page(&mut metrics, "/metrics").1 && page(&mut status, "/status/ready").1);
    begun.send("GET /begun HTTP/1.1\r\nHo");
    busy.send(get("/held"));
    wait_until("the request to reach the origin", LIMIT, || {
        origin.requests().iter().any(|r| r.target == "/held").then_some(())
    });

    upgrade(&gateway);
    let mut asked = 3;
    for client in [&mut used, &mut unused] {
        // Workers learn of the upgrade a moment later.
        wait_until("the last answer", LIMIT, || {
            asked += 1;
            (!client.get("/").keeps_connection()).then_some(())
        });
        client.expect_close();
    }
    // While it drains, the old process serves its metrics and status on open connections; the new one on later ones.
    let (old, kept) = page(&mut metrics, "/metrics");
    let requests = |page: &str| Page(page.to_owned()).value("apisix_http_requests_total", &[]);
    assert_eq!((requests(&old), kept), (Some(f64::from(asked)), false));
    assert_eq!(page(&mut status, "/status/ready"), (r#"{"status":"ok"}"#.to_owned(), false));
    assert_eq!(gateway.metric("apisix_http_requests_total", &[]), 0.0);
    idle.expect_close();
    begun.send("st: a.test\r\n\r\n");
    let answer = begun.response();
    assert_eq!((answer.status, answer.keeps_connection()), (200, false), "{answer:?}");
    gate.wait();
    let answer = busy.response();
    assert_eq!((answer.status, answer.text().as_str(), answer.keeps_connection()), (200, "done", false));
    wait_until("the old process to drain", LIMIT, || {
        gateway.stderr().contains("stopped; all requests in flight were finished").then_some(())
    });
}

/// Sends requests over HTTP/2, one after the other, until `stop`; their number. A connection that gets GOAWAY is left, and a
/// request above its last stream goes to the next one (RFC 9113 section 6.8).
fn ask_over_http2(gateway: &Gateway, stop: &AtomicBool) -> usize {
    let mut answered = 0;
    let mut client = H2Client::connect(gateway.addr);
    while !stop.load(SeqCst) {
        if client.gone.is_some() {
            client = H2Client::connect(gateway.addr);
        }
        let id = client.open(&REQUEST, true);
        match client.try_response(id) {
            Ok(response) => {
                assert_eq!(response.status, 200);
                answered += 1;
            }
            Err(fault) => assert!(client.gone.is_some_and(|(last, _)| id > last), "{fault:?} {:?}", client.gone),
        }
    }
    answered
}

const REQUEST: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", "/")];

#[test]
fn streams_end_and_clients_over_http2_go_to_the_new_process() {
    let hold = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&hold);
    let origin = Origin::answering(move |request| {
        while request.target == "/held" && held.load(SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        Answer::ok("hello")
    });
    let settings = json!({ "timeouts": { "drain_idle": "1s", "upgrade": "20s" } });
    let gateway = Start::new(route_to([&origin.node()])).settings(settings).http2().workers(2).linked().start();
    let stop = AtomicBool::new(false);
    let mut busy = H2Client::connect(gateway.addr);
    let mut idle = H2Client::connect(gateway.addr);
    idle.ping();
    let answered = thread::scope(|scope| {
        let until = Until(&stop);
        let load: Vec<_> = (0..4).map(|_| scope.spawn(|| ask_over_http2(&gateway, &stop))).collect();
        let mut fields = REQUEST;
        fields[3].1 = "/held";
        let id = busy.open(&fields, true);
        wait_until("the request to be held", LIMIT, || {
            origin.requests().iter().any(|request| request.target == "/held").then_some(())
        });
        upgrade(&gateway);
        // Told while its stream is still under way, which ends all the same.
        let gone = busy.until(|frame| matches!(frame, Frame::GoAway { .. }));
        assert_eq!(gone, Frame::GoAway { last: id, code: ErrorCode::NoError });
        hold.store(false, SeqCst);
        assert_eq!(busy.response(id).status, 200);
        assert_eq!(busy.until_end(), Some(ErrorCode::NoError));
        assert_eq!(idle.until_end(), Some(ErrorCode::NoError));
        await_processes(&gateway, 2);
        drop(until);
        load.into_iter().map(|one| one.join().expect("no request is lost")).sum::<usize>()
    });
    // A request that was sent again had not been seen.
    assert_eq!(origin.requests().len(), answered + 1);
    assert!(answered > 100, "{answered}");
}

#[test]
fn one_upgrade_at_a_time_and_a_stop_ends_it() {
    let origin = Origin::hello();
    let mut gateway = start(&origin, 1);
    put_program(&gateway.file("weir"), "#!/bin/sh\nexec sleep 60\n");
    gateway.signal(Signal::USR2);
    gateway.logged("starting a new process to take over");
    gateway.signal(Signal::USR2);
    gateway.logged("SIGUSR2 ignored: an upgrade is in progress");
    assert_eq!(gateway.get("/").status, 200);
    let starting = children(gateway.process.id());
    assert_eq!(starting.len(), 1);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    wait_until("the new process to end", LIMIT, || (!runs(starting[0])).then_some(()));
}

#[test]
fn the_first_process_passes_signals_on_and_ends_with_the_last() {
    let origin = Origin::hello();
    let start = || {
        let mut gateway = start(&origin, 1);
        upgrade(&gateway);
        upgrade(&gateway);
        await_processes(&gateway, 2);
        let first = gateway.process.id();
        let main = *gateway.processes().iter().find(|id| **id != first).expect("another process");
        assert!(gateway.process.exited().is_none());
        (gateway, main)
    };

    let (mut gateway, main) = start();
    gateway.signal(Signal::HUP);
    gateway.await_metric("weir_config_revision", &[], 2.0);
    fs::rename(gateway.file("access.log"), gateway.file("access.log.1")).expect("move the log away");
    gateway.signal(Signal::USR1);
    wait_until("a new access log", LIMIT, || gateway.file("access.log").exists().then_some(()));
    kill(main, Signal::KILL);
    assert_eq!(gateway.wait().code(), Some(1), "as the one that served");
    gateway.logged("was ended");

    let (mut gateway, main) = start();
    let before = gateway.addr;
    gateway.signal(Signal::KILL);
    gateway.wait();
    wait_until("the others to stop", LIMIT, || (!runs(main)).then_some(()));
    assert!(TcpStream::connect(before).is_err());
}

#[test]
fn a_signal_to_a_process_that_is_about_to_stay_reaches_the_new_one() {
    if let Some(reason) = crate::budget::tracing_is_refused() {
        println!("skipped: {reason}");
        return;
    }
    // The step after the line in the log begins with this system call, which is delayed here.
    let slowly = ["strace", "-D", "-f", "-q", "-o", "/dev/null", "-e", "inject=fcntl:delay_enter=50000"];
    let mut gateway = Start::new(route_to([&Origin::hello().node()])).wrapper(&slowly).start();
    gateway.signal(Signal::USR2);
    gateway.logged("a new process serves");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success(), "{}", gateway.stderr());
}

pub(crate) fn kill(id: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(id.cast_signed()).expect("a process id"), signal)
        .expect("send a signal");
}

/// True if a process has not ended.
pub(crate) fn runs(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn children(parent: u32) -> Vec<u32> {
    let ids = fs::read_dir("/proc").expect("read /proc").filter_map(|entry| {
        let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (_, rest) = status.rsplit_once(") ")?;
        (rest.split(' ').nth(1)? == parent.to_string()).then_some(id)
    });
    ids.collect()
}

/// Inodes of the sockets that a process has open.
fn sockets(id: u32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let links = files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.display().to_string()));
    links.filter(|link| link.starts_with("socket:")).collect()
}

/// A new process that hangs while it takes over does not keep the sockets when the process that serves is killed.
#[test]
fn a_killed_process_leaves_no_socket_to_one_that_hangs() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Hangs {
        /// A gateway that waits for etcd.
        Waiting,
        /// One that does nothing any more.
        Stopped,
        /// A program that is no gateway.
        Stranger,
    }
    each(
        &[Hangs::Waiting, Hangs::Stopped, Hangs::Stranger],
        |how| format!("{how:?}"),
        |how| {
            let cluster = EtcdCluster::start(1);
            let settings = json!({
                "deployment": {
                    "config_provider": "etcd",
                    "etcd": { "host": cluster.urls(), "timeout": "600s", "startup_retry": 0 },
                },
                "timeouts": { "upgrade": "600s" },
            });
            let mut gateway = Start::stored().settings(settings).linked().start();
            assert_eq!(gateway.get("/").status, 404);
            let mine = sockets(gateway.process.id());
            cluster.freeze(0);
            if *how == Hangs::Stranger {
                put_program(&gateway.file("weir"), "#!/bin/sh\nexec sleep 60\n");
            }
            gateway.signal(Signal::USR2);
            let child = wait_until("a new process", LIMIT, || children(gateway.process.id()).first().copied());
            if *how == Hangs::Stranger {
                let name = || fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
                wait_until("the program to run", LIMIT, || (name().trim() == "sleep").then_some(()));
            } else {
                // Before it is a program of its own it has a copy of everything.
                let is_program = || {
                    fs::read(format!("/proc/{child}/environ"))
                        .is_ok_and(|variables| String::from_utf8_lossy(&variables).contains("WEIR_HANDOVER="))
                };
                wait_until("the sockets to be passed on", LIMIT, || {
                    (is_program() && sockets(child).iter().any(|socket| mine.contains(socket))).then_some(())
                });
            }
            if *how == Hangs::Stopped {
                kill(child, Signal::STOP);
            }
            gateway.signal(Signal::KILL);
            gateway.wait();
            wait_until("the sockets to be closed", LIMIT, || TcpStream::connect(gateway.addr).is_err().then_some(()));
            if *how == Hangs::Stranger {
                kill(child, Signal::KILL);
            }
            wait_until("the new process to end", LIMIT, || (!runs(child)).then_some(()));
        },
    );
}
