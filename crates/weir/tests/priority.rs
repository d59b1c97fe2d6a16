//! The threads that work on the configuration have a lower priority than the workers.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;

use crate::harness::{Gateway, LIMIT, Start, each, wait_until};

const ROUTE: &str = r#"{"uri": "/a", "plugins": {"mocking": {"response_example": "a"}}}"#;

/// Scheduling of a thread: its `nice` value, and its policy, which is 0 for the default and 3 for SCHED_BATCH, which does
/// not preempt other threads.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scheduled {
    nice: i64,
    policy: u32,
}

/// Scheduling of the threads by name, without the numbers at the ends of names. Short-lived threads may be missing.
fn threads(process: u32) -> BTreeMap<String, Scheduled> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the threads of a process");
    let scheduled = |stat: String| {
        let (head, fields) = stat.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit());
        let fields: Vec<&str> = fields.split(' ').collect();
        // The 19th and the 41st field of all, the third being the first after the name.
        Some((
            name.to_owned(),
            Scheduled { nice: fields.get(16)?.parse().ok()?, policy: fields.get(38)?.parse().ok()? },
        ))
    };
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    stats.filter_map(scheduled).collect()
}

/// Scheduling of the threads of one name, once there are any.
fn scheduled(process: u32, name: &str) -> Scheduled {
    wait_until(&format!("a thread {name}"), LIMIT, || threads(process).get(name).copied())
}

fn check(gateway: &Gateway, process: u32, steps: i64) {
    // So that a thread that may block has had something to do. A process that has handed over refuses.
    wait_until("a change", LIMIT, || (gateway.ask("PUT", "routes/a", ROUTE).0 < 300).then_some(()));
    let workers = scheduled(process, "weir-worker");
    assert_eq!(workers.policy, 0);
    let policy = if steps > 0 { 3 } else { 0 };
    let stands_back = Scheduled { nice: (workers.nice + steps).min(19), policy };
    for name in ["weir-store", "weir-control"] {
        assert_eq!(scheduled(process, name), stands_back, "{name}: {:?}", threads(process));
    }
    // The control thread, whose name is the program's, answers for health checks and signals.
    let main = fs::read_to_string(format!("/proc/{process}/comm")).expect("the name of a process");
    assert_eq!(scheduled(process, main.trim_end()), Scheduled { policy, ..workers }, "{:?}", threads(process));
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

/// A process that starts at a lower priority keeps it, its workers included.
#[test]
fn a_process_that_takes_over_does_not_inherit_it() {
    let gateway = Start::stored().start();
    gateway.must("PUT", "routes/a", ROUTE);
    let workers = scheduled(gateway.process.id(), "weir-worker");
    gateway.signal(Signal::USR2);
    gateway.logged("a new process serves");
    let children = format!("/proc/{0}/task/{0}/children", gateway.process.id());
    let children = fs::read_to_string(children).expect("the children of a process");
    let successor = children.split_whitespace().next().and_then(|id| id.parse().ok()).expect("a new process");
    assert_eq!(scheduled(successor, "weir-worker"), workers);
    check(&gateway, successor, 10);
}
