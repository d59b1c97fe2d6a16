//! systemd: notifications, socket activation, and the units.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::{
    LIMIT, Origin, Process, RawClient, Start, binary, free_port, program, repository, route_to, wait_until,
};
use crate::upgrade::{Load, get_by, kill, runs};

#[test]
fn systemd_is_told() {
    let folder = tempfile::tempdir().expect("create a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bind a socket");
    socket.set_read_timeout(Some(LIMIT)).expect("set a time limit");
    let heard = |wanted: &str| {
        let mut seen = Vec::new();
        loop {
            let mut message = [0; 4096];
            let count = socket.recv(&mut message).unwrap_or_else(|error| panic!("{error}: no {wanted} in {seen:?}"));
            let message = String::from_utf8_lossy(&message[..count]).into_owned();
            if message.contains(wanted) {
                return message;
            }
            seen.push(message);
        }
    };
    let origin = Origin::hello();
    let start = |watchdog: bool| {
        let path = path.to_str().expect("a path in UTF-8");
        let start = Start::new(route_to([&origin.node()])).variable("NOTIFY_SOCKET", path);
        if watchdog { start.variable("WATCHDOG_USEC", "2000000").start() } else { start.start() }
    };

    let mut gateway = start(false);
    assert_eq!(heard("READY=1"), "READY=1\nSTATUS=serving 1 routes\n");
    gateway.signal(Signal::HUP);
    assert!(heard("RELOADING=1").contains("\nMONOTONIC_USEC="));
    heard("STATUS=serving 1 routes");
    assert_eq!(heard("READY=1"), "READY=1\n");
    gateway.signal(Signal::USR2);
    let message = heard("MAINPID=");
    let main: u32 = message.trim().trim_start_matches("MAINPID=").parse().expect("a process id");
    assert_ne!(main, gateway.process.id());
    // systemd follows the new process, so the old one need not stay.
    assert!(gateway.wait().success());
    assert_eq!(gateway.get("/").status, 200);
    kill(main, Signal::TERM);
    heard("STOPPING=1");
    wait_until("the new process to end", LIMIT, || (!runs(main)).then_some(()));

    let gateway = start(true);
    heard("WATCHDOG=1");
    gateway.signal(Signal::USR2);
    let main: u32 = heard("MAINPID=").trim().trim_start_matches("MAINPID=").parse().expect("a process id");
    wait_until("the old process to end", LIMIT, || (!runs(gateway.process.id())).then_some(()));
    // Whatever the old one has said waits before this.
    socket.set_nonblocking(true).expect("set non-blocking");
    while socket.recv(&mut [0; 1]).is_ok() {}
    socket.set_nonblocking(false).expect("set blocking");
    heard("WATCHDOG=1");
    kill(main, Signal::TERM);
    heard("STOPPING=1");
}

#[test]
fn systemd_opens_the_sockets() {
    let origin = Origin::hello();
    let folder = tempfile::tempdir().expect("create a folder");
    let rules = folder.path().join("apisix.yaml");
    fs::write(&rules, format!("{}\n#END\n", route_to([&origin.node()]))).expect("write the rules");
    let [traffic, status] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let log = folder.path().join("stderr");
    let mut command = Command::new(program("systemd-socket-activate"));
    let unix = folder.path().join("s");
    command.args(["-l", &traffic.to_string(), "-l", &status.to_string(), "--fdname=http:status:http", "-l"]).arg(&unix);
    command.arg(binary()).arg("run").arg(&rules);
    // The addresses of listen.http and listen.status are replaced, so these may be wrong.
    command.args(["--listen-http", "192.0.2.1:80", "--status", "192.0.2.1:81", "--metrics", "off"]);
    command.args(["--listen-https", "off", "--workers", "3"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).expect("create a file"));
    let mut process = Process::spawn(&mut command);
    let log = || fs::read_to_string(&log).expect("read standard error");
    wait_until("systemd-socket-activate to listen", LIMIT, || log().contains("Listening on").then_some(()));

    // One worker may answer before the others have the configuration.
    let ready = || {
        wait_until("the gateway to be ready", LIMIT, || {
            (RawClient::connect(status).get("/status/ready").status == 200).then_some(())
        });
    };

    // The first connection starts the gateway and waits in the queue until it serves.
    let answer = RawClient::connect(traffic).get("/");
    assert_eq!(answer.status, 200, "{}", log());
    ready();
    Load::under(traffic, |load| {
        for count in 1..=3 {
            load.go_on(50);
            process.signal(Signal::USR2);
            wait_until("the new process", LIMIT, || {
                (log().matches("a new process serves").count() == count).then_some(())
            });
        }
        load.go_on(50);
    });
    ready();
    assert_eq!(get_by(&unix), "200", "{}", log());
    process.signal(Signal::TERM);
    assert!(process.wait().success(), "{}", log());
    assert!(unix.exists(), "the file is systemd's");
}

#[test]
fn the_units_are_what_systemd_takes() {
    let folder = tempfile::tempdir().expect("create a folder");
    let mut command = Command::new(program("systemd-analyze"));
    command.args(["verify", "--man=no"]);
    for name in ["weir.service", "weir.socket", "weir-https.socket"] {
        let text = fs::read_to_string(repository().join("packaging/systemd").join(name)).expect("read a unit");
        let file = folder.path().join(name);
        // systemd-analyze checks that the started program exists.
        fs::write(&file, text.replace("/usr/bin/weir ", &format!("{} ", binary().display()))).expect("write it");
        command.arg(file);
    }
    let output = command.output().expect("run systemd-analyze");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{told}");
}

/// The system calls of a filter's word: a group's, or one.
fn expand(word: &str) -> BTreeSet<String> {
    if !word.starts_with('@') {
        return [word.to_owned()].into();
    }
    let output = Command::new(program("systemd-analyze")).args(["syscall-filter", word]).output().expect("run it");
    assert!(output.status.success(), "{word}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names");
    let members = text.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| !line.starts_with('#'));
    members.flat_map(expand).collect()
}

/// The system calls that a unit allows. The first list names the allowed calls, the others modify it in turn.
fn allowed(unit: &str) -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for list in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (denies, words) = list.strip_prefix('~').map_or((false, list), |words| (true, words));
        for call in words.split_whitespace().flat_map(expand) {
            if denies {
                calls.remove(&call);
            } else {
                calls.insert(call);
            }
        }
    }
    calls
}

/// A denied system call fails silently: a gateway that cannot lower the priority of its threads continues without it.
#[test]
fn the_unit_allows_what_the_gateway_asks_the_kernel_for() {
    if let Some(reason) = crate::budget::tracing_is_refused() {
        println!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().expect("create a folder");
    let trace = folder.path().join("trace");
    let trace = trace.to_str().expect("a path in UTF-8");
    let origin = Origin::hello();
    // With -D the gateway itself is the process that was started.
    let mut gateway = Start::stored().https().wrapper(&["strace", "-D", "-f", "-q", "-o", trace]).start();
    gateway.must("PUT", "routes/all", &route_to([&origin.node()])["routes"][0].to_string());
    assert_eq!(gateway.get("/").status, 200);
    gateway.signal(Signal::USR2);
    gateway.logged("a new process serves");
    assert_eq!(gateway.get("/").status, 200);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success(), "{}", gateway.stderr());

    // The process, which is padded to five places, and what it did: `1234  openat(AT_FDCWD, …`, `12345 +++ exited with 0`.
    let parted = |line: &'_ str| line.split_once(' ').map(|(id, did)| (id.to_owned(), did.trim_start().to_owned()));
    let first = gateway.process.id().to_string();
    let text = wait_until("strace to end", LIMIT, || {
        let text = fs::read_to_string(trace).expect("read the trace");
        let mut lines = text.lines().filter_map(parted);
        lines.any(|(id, did)| id == first && did.starts_with("+++ exited")).then_some(text)
    });
    let call = |line: &str| Some(parted(line)?.1.split_once('(')?.0.to_owned());
    let is_name = |name: &String| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let asked: BTreeSet<String> = text.lines().filter_map(call).filter(is_name).collect();
    assert!(asked.contains("sched_setattr") && asked.contains("setpriority"), "{asked:?}");
    let unit = fs::read_to_string(repository().join("packaging/systemd/weir.service")).expect("read the unit");
    let mut denied: Vec<_> = asked.difference(&allowed(&unit)).cloned().collect();
    // SQLite gives its files to the owner of the database only when it runs as root, which the service does not.
    denied.retain(|call| call != "fchown");
    assert!(denied.is_empty(), "not allowed: {denied:?}");
}
