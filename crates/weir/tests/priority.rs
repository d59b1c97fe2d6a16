//! The threads that work on the configuration stand back behind the workers.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;

use crate::harness::{Gateway, LIMIT, Start, each, wait_until};

const ROUTE: &str = r#"{"uri": "/a", "plugins": {"mocking": {"response_example": "a"}}}"#;

/// The priority of each kind of thread of a process, as `nice` counts it, without numbers at the ends of names. None for
/// threads that come and go.
fn priorities(process: u32) -> BTreeMap<String, i64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the threads of a process");
    let priority = |stat: String| {
        let (head, fields) = stat.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit());
        // The 19th field of all, the third being the first after the name.
        Some((name.to_owned(), fields.split(' ').nth(16)?.parse().ok()?))
    };
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    stats.filter_map(priority).collect()
}

/// The policy of the threads of one kind, as the kernel counts: 0 is the usual one, 3 a batch that interrupts nobody.
fn policy(process: u32, name: &str) -> u32 {
    let thread = fs::read_dir(format!("/proc/{process}/task")).expect("the threads of a process").find_map(|thread| {
        let stat = fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        let (head, fields) = stat.rsplit_once(") ")?;
        // The 41st field of all.
        head.split_once('(')?.1.starts_with(name).then(|| fields.split(' ').nth(38)?.parse().ok())?
    });
    thread.unwrap_or_else(|| panic!("a thread {name}"))
}

/// That of the threads of one kind, once there are such.
fn priority(process: u32, name: &str) -> i64 {
    wait_until(&format!("a thread {name}"), LIMIT, || priorities(process).get(name).copied())
}

fn check(gateway: &Gateway, process: u32, steps: i64) {
    // So that a thread that may block has had something to do. A process that has handed over refuses.
    wait_until("a change", LIMIT, || (gateway.ask("PUT", "routes/a", ROUTE).0 < 300).then_some(()));
    let workers = priority(process, "weir-worker");
    for name in ["weir-store", "weir-control"] {
        assert_eq!(priority(process, name), (workers + steps).min(19), "{name}: {:?}", priorities(process));
    }
    let batch = if steps > 0 { 3 } else { 0 };
    for (name, expected) in [("weir-worker", 0), ("weir-store", batch), ("weir-control", batch)] {
        assert_eq!(policy(process, name), expected, "{name}");
    }
    // The control thread, whose name is the program's, answers for health checks and signals.
    let main = fs::read_to_string(format!("/proc/{process}/comm")).expect("the name of a process");
    assert_eq!(priority(process, main.trim_end()), workers, "{:?}", priorities(process));
    assert_eq!(policy(process, main.trim_end()), batch, "the control thread");
}

#[test]
fn what_works_on_the_configuration_stands_back_behind_the_workers() {
    each(
        &[None, Some(0), Some(3)],
        |nice| format!("{nice:?}"),
        |nice| {
            let start = match nice {
                None => Start::stored(),
                Some(nice) => Start::stored().argument("--set").argument(&format!("config.nice={nice}")),
            };
            let gateway = start.workers(2).start();
            check(&gateway, gateway.process.id(), nice.unwrap_or(10));
        },
    );
}

/// Whoever starts at a lower priority stays there for good, workers and all.
#[test]
fn a_process_that_takes_over_does_not_inherit_it() {
    let gateway = Start::stored().start();
    gateway.must("PUT", "routes/a", ROUTE);
    let workers = priority(gateway.process.id(), "weir-worker");
    gateway.signal(Signal::USR2);
    gateway.logged("a new process serves");
    let children = format!("/proc/{0}/task/{0}/children", gateway.process.id());
    let children = fs::read_to_string(children).expect("the children of a process");
    let successor = children.split_whitespace().next().and_then(|id| id.parse().ok()).expect("a new process");
    assert_eq!(priority(successor, "weir-worker"), workers);
    check(&gateway, successor, 10);
}
