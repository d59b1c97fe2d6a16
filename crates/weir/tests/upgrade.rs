//! A new process takes over: nothing is refused, reset or lost, and one that fails changes nothing.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Fault, Gateway, LIMIT, Origin, RawClient, Start, each, get, replace, route_to, wait_until};

/// Clients that ask without end until they are told to stop.
struct Load {
    stop: AtomicBool,
    kept: AtomicUsize,
    fresh: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Load {
    /// Runs `work` under load: clients that keep their connections, some of which ask rarely, and clients that make a
    /// new one for each request. Gives the number of requests; none may fail.
    fn under(addr: SocketAddr, work: impl FnOnce()) -> usize {
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
                scope.spawn(move || load.renew(addr, Duration::from_millis(pause.min(20))));
            }
            work();
            drop(until);
        });
        let failures = load.failures.into_inner().expect("failures");
        let (kept, fresh) = (load.kept.into_inner(), load.fresh.into_inner());
        assert!(failures.is_empty(), "{} of {} requests failed: {failures:#?}", failures.len(), kept + fresh);
        assert!(kept > 0 && fresh > 0, "{kept} requests on kept connections, {fresh} on new ones");
        kept + fresh
    }

    /// Asks on one connection as long as it is kept.
    fn keep(&self, addr: SocketAddr, pause: Duration) {
        while !self.stop.load(SeqCst) {
            let Some(mut client) = self.connect(addr) else { continue };
            let mut number = 0;
            while !self.stop.load(SeqCst) && self.ask(&mut client, &format!("request {number} on a connection")) {
                self.kept.fetch_add(1, SeqCst);
                number += 1;
                thread::sleep(pause);
            }
        }
    }

    fn renew(&self, addr: SocketAddr, pause: Duration) {
        while !self.stop.load(SeqCst) {
            if let Some(mut client) = self.connect(addr) {
                self.ask(&mut client, "request on a new connection");
                self.fresh.fetch_add(1, SeqCst);
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

    /// Whether the connection may be used again.
    fn ask(&self, client: &mut RawClient, what: &str) -> bool {
        let answer = if client.offer(get("/")) { client.try_response() } else { Err(Fault::Reset) };
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
fn upgrade(gateway: &Gateway) {
    let before = upgrades(gateway);
    gateway.signal(Signal::USR2);
    wait_until("the new process to serve", LIMIT, || (upgrades(gateway) > before).then_some(()));
}

/// How often a new process has taken over.
fn upgrades(gateway: &Gateway) -> usize {
    gateway.stderr().matches("a new process serves").count()
}

/// The ids of the gateway's processes that have not ended.
fn processes(gateway: &Gateway) -> Vec<u32> {
    let folder = gateway.config().display().to_string();
    let ids = fs::read_dir("/proc").expect("read /proc").filter_map(|entry| {
        let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let command = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        String::from_utf8_lossy(&command).contains(&folder).then_some(id)
    });
    ids.collect()
}

fn await_processes(gateway: &Gateway, count: usize) {
    wait_until(&format!("{count} processes"), LIMIT, || (processes(gateway).len() == count).then_some(()));
}

fn start(origin: &Origin, workers: usize) -> Gateway {
    let settings = json!({
        "timeouts": { "drain_idle": "2s", "upgrade": "20s" },
        "access_log": { "path": "FOLDER/access.log" },
    });
    Start::new(route_to([&origin.node()])).settings(settings).workers(workers).linked().start()
}

#[test]
fn twenty_upgrades_under_load_lose_nothing() {
    let origin = Origin::hello();
    let mut gateway = start(&origin, 2);
    let first = gateway.process.id();
    let requests = Load::under(gateway.addr, || {
        for _ in 0..20 {
            upgrade(&gateway);
        }
    });
    assert!(gateway.process.exited().is_none(), "the first process stays");
    // It, and the one that serves, once the others have drained.
    await_processes(&gateway, 2);
    assert!(processes(&gateway).contains(&first));

    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    assert_eq!(processes(&gateway), [] as [u32; 0]);
    assert!(TcpStream::connect(gateway.addr).is_err());
    // Whichever process wrote them: as many lines as answers, and each is whole.
    let log = fs::read_to_string(gateway.file("access.log")).expect("read the access log");
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    }
    assert_eq!(log.lines().count(), requests);
}

/// A minute as operators have it on a bad day. The default is shorter; `UPGRADE_SECONDS=60` is the whole.
#[test]
fn reloads_and_upgrades_lose_nothing() {
    let seconds = std::env::var("UPGRADE_SECONDS").map_or(15, |text| text.parse().expect("UPGRADE_SECONDS"));
    let origin = Origin::hello();
    let gateway = start(&origin, 2);
    let began = Instant::now();
    let mut upgraded = 0;
    Load::under(gateway.addr, || {
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
    assert!(gateway.stderr().contains("a change of the rules is live"));
}

#[test]
fn a_new_process_that_fails_leaves_the_old_one_serving() {
    type Break = fn(&Gateway);
    let cases: [(&str, Break, &str); 6] = [
        ("no file", |gateway| fs::remove_file(gateway.file("weir")).expect("remove the link"), "cannot start"),
        ("no program", |gateway| put_program(&gateway.file("weir"), "no program at all"), "cannot start"),
        ("ends", |gateway| put_program(&gateway.file("weir"), "#!/bin/sh\nexit 7\n"), "exit status: 7"),
        (
            "hangs",
            |gateway| put_program(&gateway.file("weir"), "#!/bin/sh\nexec sleep 60\n"),
            "did not serve within 3 s",
        ),
        ("settings", |gateway| replace(&gateway.file("weir.yaml"), "workres: 2\n"), "workres: unknown setting"),
        (
            "rules",
            |gateway| {
                // Not watched, so the old process has not read it.
                replace(&gateway.config(), "routes: [{id: a, uri: /a, upstream_id: none}]\n#END\n");
            },
            "upstream_id",
        ),
    ];
    let origin = Origin::hello();
    each(
        &cases,
        |(name, ..)| (*name).to_owned(),
        |(_, break_it, told)| {
            let settings = json!({ "timeouts": { "upgrade": "3s" }, "config": { "watch": false } });
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

fn put_program(file: &Path, text: &str) {
    fs::remove_file(file).expect("remove the link");
    fs::write(file, text).expect("write a file");
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("make it a program");
}
