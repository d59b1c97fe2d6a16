//! Three gateways with one Redis for their quotas and one PostgreSQL for their usage: no count is lost or doubled beyond what
//! is stated, whatever ends meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::exports::recorded;
use crate::harness::{Gateway, LIMIT, Origin, Redis, Start, wait_until};
use crate::streams_postgres::{Postgres, ask as query};

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\napikey: jacks\r\n\r\n";
/// Clients of each gateway.
const CLIENTS: usize = 2;
/// Requests of the plan.
const COUNT: usize = 4_000;
/// Time before a kill whose requests may be lost: a second is stated, and a machine under load may be late.
const LOST: Duration = Duration::from_secs(3);

/// Answers that a client has got.
#[derive(Debug, Default)]
struct Answers {
    passed: usize,
    refused: usize,
    /// Those that could not be counted.
    failed: usize,
    /// Times of all of them.
    times: Vec<Instant>,
    /// True if the connection ended with a request under way.
    was_cut: bool,
}

impl Answers {
    fn total(&self) -> usize {
        self.times.len()
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.refused += other.refused;
        self.failed += other.failed;
        self.times.extend(other.times);
        self.was_cut |= other.was_cut;
    }
}

/// Sends requests until the end is told, or the gateway is gone.
fn client(gateway: &Gateway, ends: &AtomicBool) -> Answers {
    let (mut client, mut answers) = (gateway.client(), Answers::default());
    while !ends.load(SeqCst) {
        client.send(REQUEST);
        let Ok(response) = client.try_response() else {
            answers.was_cut = true;
            break;
        };
        match response.status {
            200 => answers.passed += 1,
            429 => answers.refused += 1,
            500 => answers.failed += 1,
            status => panic!("{status}: {response:?}"),
        }
        answers.times.push(Instant::now());
    }
    answers
}

/// Load on all gateways while `meanwhile` goes on; the answers of each gateway.
fn load(gateways: &[Gateway], meanwhile: impl FnOnce()) -> Vec<Answers> {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<Vec<_>> = gateways
            .iter()
            .map(|gateway| (0..CLIENTS).map(|_| scope.spawn(|| client(gateway, &ends))).collect())
            .collect();
        meanwhile();
        ends.store(true, SeqCst);
        let joined = |clients: Vec<thread::ScopedJoinHandle<'_, Answers>>| {
            let mut all = Answers::default();
            clients.into_iter().for_each(|client| all.add(client.join().expect("a client")));
            all
        };
        clients.into_iter().map(joined).collect()
    })
}

fn start(name: &str, folder: &Path, origin: &Origin, redis: &Redis, database: &Postgres) -> Gateway {
    let url = format!("postgresql://postgres@localhost:{}/postgres", database.port);
    let rules = json!({
        "plugin_metadata": [{ "id": "plan", "policy": "redis", "redis_host": "127.0.0.1", "redis_port": redis.port,
                              "redis_timeout": 300 }],
        "plans": [{ "id": "gold", "limits": [{ "count": COUNT, "per": "year", "window": "calendar" }] }],
        "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "jacks" }, "plan": { "plans": ["gold"] } } }],
        "routes": [{ "id": "all", "uri": "/*", "plugins": { "key-auth": {} }, "upstream": { "nodes": { (origin.node()): 1 } } }],
    });
    let settings = json!({
        "listen": { "admin": "127.0.0.1:0" },
        "usage": { "enabled": true, "gateway": name, "export_interval": "1s",
                   "exports": [{ "name": "pg", "to": "postgresql", "url": url }] },
        "tls": { "trusted_certificate": database.authority.file() },
    });
    Start::new(rules)
        .settings(settings)
        .data_dir(folder)
        .variable("WEIR_ADMIN_KEY", crate::harness::ADMIN_KEY)
        .workers(2)
        .start()
}

#[test]
fn no_count_is_lost_or_doubled_beyond_what_is_stated() {
    let (origin, redis, database) = (Origin::hello(), Redis::start(), Postgres::start());
    let folders = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let names = ["g0", "g1", "g2"];
    let run = |at: usize| start(names[at], folders[at].path(), &origin, &redis, &database);
    let mut gateways: Vec<Gateway> = (0..3).map(run).collect();
    let counted = || redis.cli(&["GET", "weir:plan:count:jack:gold:year:calendar:plan:"]).parse::<usize>().unwrap_or(0);
    let grows = |by: usize| {
        let before = counted();
        wait_until("requests to count", LIMIT, || (counted() >= before + by).then_some(()));
    };
    let sum = |name: &str| {
        let text = format!("select coalesce(sum(requests), 0) from weir_usage where gateway = '{name}'");
        query(database.port, "require", &text).parse::<usize>().unwrap_or(0)
    };
    let mut all: [Answers; 3] = Default::default();
    let mut take = |answers: Vec<Answers>| all.iter_mut().zip(answers).for_each(|(all, more)| all.add(more));

    // Redis hangs for a while: what cannot be counted is refused, and counts go on afterwards.
    take(load(&gateways, || {
        grows(200);
        redis.hang();
        thread::sleep(Duration::from_secs(2));
        redis.go_on();
        grows(200);
    }));
    // One gateway is killed in the middle.
    let mut killed_at = Instant::now();
    take(load(&gateways, || {
        grows(200);
        killed_at = Instant::now();
        gateways[2].signal(Signal::KILL);
        grows(200);
    }));
    gateways.truncate(2);
    gateways.push(run(2));
    // Up to the limit and beyond.
    wait_until("the limit", 3 * LIMIT, || {
        take(load(&gateways, || thread::sleep(Duration::from_millis(200))));
        (counted() >= COUNT).then_some(())
    });
    take(load(&gateways, || thread::sleep(Duration::from_millis(200))));

    let passed: usize = all.iter().map(|answers| answers.passed).sum();
    let failed: usize = all.iter().map(|answers| answers.failed).sum();
    let cut = all.iter().filter(|answers| answers.was_cut).count() * CLIENTS;
    assert!(all[0].failed > 0 && all[2].was_cut && !all[0].was_cut, "{failed} failed");
    assert!(passed <= COUNT, "{passed} of {COUNT} passed");
    assert!(passed + failed + cut >= COUNT, "{passed} passed, {failed} failed and {cut} were cut, of {COUNT}");
    assert!(all.iter().all(|answers| answers.refused > 0), "every gateway knows that the limit is reached");

    // Usage: exact where nobody was killed, else less by the last second at most, and nothing twice.
    for at in [0, 1] {
        let total = all[at].total();
        wait_until("the usage to be there", LIMIT, || (sum(names[at]) >= total).then_some(()));
        assert_eq!((sum(names[at]), recorded(&gateways[at])), (total, total as u64), "{}", names[at]);
    }
    let total = all[2].total();
    let may_be_lost = all[2].times.iter().filter(|time| (killed_at - LOST..=killed_at + LOST).contains(*time)).count();
    let known = wait_until("the usage of the gateway that was killed", LIMIT, || {
        let known = recorded(&gateways[2]) as usize;
        (known + may_be_lost >= total && sum(names[2]) == known).then_some(known)
    });
    assert!(known <= total + CLIENTS, "{known} of {total}: nothing counts twice");
    gateways.iter_mut().for_each(|gateway| {
        gateway.signal(Signal::TERM);
        assert!(gateway.wait().success());
    });
    let known: Vec<usize> = names.iter().map(|name| sum(name)).collect();
    assert_eq!((known[0], known[1]), (all[0].total(), all[1].total()), "a stop sends nothing twice");
}
