//! Cost of a request and of an idle connection: system calls and memory.

use std::fs;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Origin, Protocol, RawClient, Start, program, wait_until};

/// Key authentication and a rate limit, as on a route of every day.
fn everyday(origin: &Origin) -> Value {
    json!({
        "routes": [{
            "id": "all", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } },
            "plugins": { "key-auth": {}, "limit-count": { "count": 1_000_000_000, "time_window": 600, "key": "consumer_name" } },
        }],
        "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "secret" } } }],
    })
}

const REQUEST: &str = "GET /x HTTP/1.1\r\nHost: a.test\r\napikey: secret\r\n\r\n";

fn ask(client: &mut RawClient) {
    assert_eq!(client.request(REQUEST).status, 200);
}

/// Number of calls of each system call, from a summary of strace.
fn calls(summary: &str) -> Vec<(String, u64)> {
    summary
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            // Time, seconds, microseconds a call, calls, perhaps errors, name.
            let count = words.get(3)?.parse().ok()?;
            Some(((*words.last()?).to_owned(), count)).filter(|(name, _)| name != "total")
        })
        .collect()
}

/// Reason for not counting system calls, if tracing is not allowed (a container without the capability).
pub(crate) fn tracing_is_refused() -> Option<String> {
    let mut probe = Command::new(program("strace"));
    let probe = probe.args(["-f", "-c", "-o", "/dev/null", "true"]).output().expect("run strace");
    let refused = !probe.status.success();
    refused.then(|| format!("strace is refused here: {}", String::from_utf8_lossy(&probe.stderr).trim()))
}

#[test]
fn a_proxied_request_takes_four_system_calls() {
    const REQUESTS: u64 = 2000;
    if let Some(reason) = tracing_is_refused() {
        println!("skipped: {reason}");
        return;
    }
    let origin = Origin::hello();
    let folder = tempfile::tempdir().expect("create a folder");
    let summary = folder.path().join("summary");
    let gateway = Gateway::start(everyday(&origin));
    let mut client = gateway.client();
    ask(&mut client);
    let mut tracer = crate::harness::Process::spawn(
        Command::new(program("strace"))
            .args(["-f", "-c", "-o"])
            .arg(&summary)
            .args(["-p", &gateway.process.id().to_string()])
            .stderr(std::process::Stdio::null()),
    );
    let threads = format!("/proc/{}/task", gateway.process.id());
    let is_traced = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("status")).expect("read status");
        text.lines().any(|l| l.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
    };
    wait_until("strace to attach to all threads", LIMIT, || {
        fs::read_dir(&threads).expect("read task").all(|thread| is_traced(thread.expect("a thread"))).then_some(())
    });
    for _ in 0..REQUESTS {
        ask(&mut client);
    }
    tracer.signal(Signal::INT);
    tracer.wait();
    let text = fs::read_to_string(&summary).expect("read the summary");
    let calls = calls(&text);
    // Occasional calls for the runtime's clock and timers do not count as calls of a request.
    let data = ["read", "readv", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg"];
    let other_per_request = [
        "setsockopt",
        "getsockopt",
        "epoll_ctl",
        "getpeername",
        "getsockname",
        "accept4",
        "connect",
        "socket",
        "close",
        "futex",
    ];
    let total = |names: &[&str]| calls.iter().filter(|(n, _)| names.contains(&n.as_str())).map(|(_, c)| c).sum::<u64>();
    let (moved, others) = (total(&data) as f64 / REQUESTS as f64, total(&other_per_request) as f64 / REQUESTS as f64);
    assert!((3.9..4.1).contains(&moved), "{moved} data calls a request\n{text}");
    assert!(others < 0.1, "{others} other calls a request\n{text}");
}

#[test]
fn an_idle_connection_takes_at_most_three_kib() {
    idle_connections_take_at_most(Protocol::Http1, 3 << 10, 5000);
}

/// Header tables of HPACK belong to a connection for as long as it lasts; buffers do not.
#[test]
fn an_idle_connection_over_http2_takes_at_most_twelve_kib() {
    idle_connections_take_at_most(Protocol::Http2, 12 << 10, 2000);
}

fn idle_connections_take_at_most(over: Protocol, most: u64, count: usize) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum })
        .expect("raise nofile");
    if limit.maximum.is_some_and(|most| most < 2 * count as u64) {
        println!("skipped: {count} connections need more descriptors than {:?}", limit.maximum);
        return;
    }
    let origin = Origin::hello();
    let config = everyday(&origin);
    let gateway = Start::new(config).settings(json!({ "timeouts": { "idle": "600s" } })).over(over).start();
    // Memory allocated with the first connections (shared buffers, pages of the allocator) does not count as theirs.
    let mut clients = Vec::with_capacity(count + 200);
    let mut open = |count: usize| {
        for _ in 0..count {
            let mut client = gateway.caller();
            assert_eq!(client.request(REQUEST).status, 200);
            clients.push(client);
        }
    };
    open(200);
    let before = gateway.process.resident();
    open(count);
    let each = gateway.process.resident().saturating_sub(before) / count as u64;
    println!("{each} bytes for each idle connection");
    assert!(each <= most, "{each} bytes for each idle connection");
    // All of them are still there.
    for client in clients.iter_mut().step_by(100) {
        assert_eq!(client.request(REQUEST).status, 200);
    }
}

#[test]
fn bursts_of_connections_do_not_add_up() {
    const AT_ONCE: usize = 1000;
    let origin = Origin::hello();
    let gateway = Gateway::start(everyday(&origin));
    // All heads are begun before the first one ends.
    let all_begun = Barrier::new(4);
    let burst = || {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut clients: Vec<_> = (0..AT_ONCE / 4).map(|_| gateway.client()).collect();
                    for client in &mut clients {
                        // A head that is not finished keeps a buffer busy.
                        client.send(&REQUEST[..REQUEST.len() - 2]);
                    }
                    all_begun.wait();
                    for client in &mut clients {
                        client.send("\r\n");
                        assert_eq!(client.response().status, 200);
                    }
                });
            }
        });
        gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 0.0);
        gateway.process.resident()
    };
    // Only the memory that the largest burst needed is kept for the next one.
    let first = (0..3).map(|_| burst()).max().unwrap_or_default();
    let after = (0..5).map(|_| burst()).max().unwrap_or_default();
    assert!(after < first + (4 << 20), "{first} bytes after three bursts, {after} after five more");
}
