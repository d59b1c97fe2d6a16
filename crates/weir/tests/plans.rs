//! Plans: what callers may call, and how much, changed while they call.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::documentation::document;
use crate::harness::{Gateway, LIMIT, Origin, Redis, Response, Start, repository, wait_until};

fn ask(gateway: &Gateway, method: &str, path: &str, key: &str) -> Response {
    gateway
        .client()
        .request(format!("{method} {path} HTTP/1.1\r\nHost: a\r\napikey: {key}\r\nContent-Length: 0\r\n\r\n"))
}

/// A store with a route and the consumer `jack`, whose plan is `gold`.
fn with_plan(origin: &Origin, plan: &str) -> Gateway {
    let gateway = Start::stored().workers(2).start();
    configure(&gateway, origin, plan);
    gateway
}

fn configure(gateway: &Gateway, origin: &Origin, plan: &str) {
    gateway.must("PUT", "plans/gold", plan);
    let route = json!({ "uri": "/*", "plugins": { "key-auth": {} }, "upstream": { "nodes": { (origin.node()): 1 } } });
    gateway.must("PUT", "routes/all", &route.to_string());
    gateway.must("PUT", "consumers", &jack(&json!({ "plans": ["gold"] })));
    wait_until("the route to be live", LIMIT, || (ask(gateway, "GET", "/", "none").status == 401).then_some(()));
}

fn jack(plan: &serde_json::Value) -> String {
    json!({ "username": "jack", "plugins": { "key-auth": { "key": "jacks" }, "plan": plan } }).to_string()
}

#[test]
fn the_documented_example_works() {
    let example = fs::read_to_string(repository().join("examples/plans.yaml")).expect("read the example");
    assert!(document("docs/plans.md").contains(example.trim_end()), "docs/plans.md shows another example");
    let origin = Origin::hello();
    let gateway = Start::text(&example.replace("127.0.0.1:1980", &origin.node())).start();
    let status = |method: &str, path: &str, key: &str| ask(&gateway, method, path, key).status;
    assert_eq!(status("GET", "/reports/1", "anna-key"), 200);
    assert_eq!(status("GET", "/reports/1", "bert-key"), 403);
    assert_eq!(status("POST", "/weather/today", "bert-key"), 403);
    assert_eq!(status("GET", "/weather/today", "carl-key"), 401);
    assert_eq!(status("GET", "/weather/today", "nobodys-key"), 401);
    for remaining in ["2", "1", "0"] {
        let found = ask(&gateway, "GET", "/weather/today", "bert-key");
        assert_eq!((found.status, found.field("x-ratelimit-remaining")), (200, Some(remaining)));
    }
    let refused = ask(&gateway, "GET", "/weather/today", "bert-key");
    assert_eq!((refused.status, refused.field("x-ratelimit-limit")), (429, Some("3")));
    let after: u64 = refused.field("retry-after").and_then(|text| text.parse().ok()).expect("seconds");
    assert!((1..=60).contains(&after), "{after}");
}

#[test]
fn a_changed_limit_holds_for_the_next_request() {
    let origin = Origin::hello();
    let plan = |count: u32| json!({ "limits": [{ "count": count, "per": "year", "window": "calendar" }] }).to_string();
    let gateway = with_plan(&origin, &plan(2));
    let next = || ask(&gateway, "GET", "/", "jacks").status;
    assert_eq!([next(), next(), next()], [200, 200, 429]);
    gateway.must("PUT", "plans/gold", &plan(5));
    let told = wait_until("the plan to be live", LIMIT, || {
        let found = ask(&gateway, "GET", "/", "jacks");
        (found.field("x-ratelimit-limit") == Some("5")).then_some(found)
    });
    assert_eq!((told.status, told.field("x-ratelimit-remaining")), (200, Some("2")), "counts go on");
    assert_eq!([next(), next(), next()], [200, 200, 429]);
    gateway.must("PATCH", "plans/gold", r#"{"limits": null}"#);
    wait_until("the limit to be gone", LIMIT, || (next() == 200).then_some(()));
    gateway.must("PATCH", "plans/gold", r#"{"access": [{"paths": ["/open/*"]}]}"#);
    wait_until("the access to be restricted", LIMIT, || (next() == 403).then_some(()));
    assert_eq!(ask(&gateway, "GET", "/open/x", "jacks").status, 200);

    gateway.must("PUT", "consumers", &jack(&json!({ "plans": ["gold"], "suspended": true })));
    wait_until("the key to be suspended", LIMIT, || {
        (ask(&gateway, "GET", "/open/x", "jacks").text().contains("suspended")).then_some(())
    });
}

#[test]
fn a_key_has_plans_of_its_own() {
    let origin = Origin::hello();
    let gateway = with_plan(&origin, r#"{"limits": [{"count": 2, "per": "year"}]}"#);
    gateway.must("PUT", "plans/tin", r#"{"limits": [{"count": 1, "per": "year"}]}"#);
    let key = |name: &str, plan: serde_json::Value| {
        let credential = json!({ "plugins": { "key-auth": { "key": name } }, "plan": plan });
        gateway.must("PUT", &format!("consumers/jack/credentials/{name}"), &credential.to_string());
    };
    let plain = json!({ "plugins": { "key-auth": { "key": "plain" } } });
    gateway.must("PUT", "consumers/jack/credentials/plain", &plain.to_string());
    key("one", json!({ "plans": ["tin"] }));
    key("other", json!({ "plans": ["tin"] }));
    key("late", json!({ "plans": ["tin"], "expires": 1_700_000_000 }));
    key("held", json!({ "plans": ["tin"], "suspended": true }));
    let status = |key: &str| ask(&gateway, "GET", "/", key).status;
    wait_until("the last key to be live", LIMIT, || (status("held") == 403).then_some(()));
    assert_eq!(status("late"), 401);
    // Each with a plan of its own counts apart; the others together, on the plan of their consumer.
    assert_eq!(["one", "one", "other", "other"].map(status), [200, 429, 200, 429]);
    assert_eq!(["plain", "jacks", "plain"].map(status), [200, 200, 429]);
    // Without its plan a key is on that of its consumer, and with another one it begins anew.
    let plain = json!({ "plugins": { "key-auth": { "key": "one" } } });
    gateway.must("PUT", "consumers/jack/credentials/one", &plain.to_string());
    wait_until("the plan to be gone", LIMIT, || {
        (ask(&gateway, "GET", "/", "one").field("x-ratelimit-limit") == Some("2")).then_some(())
    });
    assert_eq!(status("other"), 429);
    key("one", json!({ "plans": ["gold"] }));
    wait_until("the plan to be there", LIMIT, || (status("one") == 200).then_some(()));
    for (plan, expected) in [
        (json!({ "plans": ["lead"] }), "there is no plan 'lead'"),
        (json!({ "plans": [] }), "plans"),
        (json!({ "plans": ["tin"], "rate": 1 }), "rate"),
    ] {
        let credential = json!({ "plugins": { "key-auth": { "key": "new" } }, "plan": plan });
        let (status, answer) = gateway.ask("PUT", "consumers/jack/credentials/new", &credential.to_string());
        assert!(status == 400 && answer.to_string().contains(expected), "{status} {answer}");
    }
    let (status, answer) = gateway.ask("DELETE", "plans/tin", "");
    assert!(
        status == 400 && answer.to_string().contains(".plan.plans[0]: there is no plan 'tin'"),
        "{status} {answer}"
    );
    gateway.must("DELETE", "consumers/jack", "");
    gateway.must("DELETE", "plans/tin", "");
}

#[test]
fn what_does_not_fit_is_refused() {
    let origin = Origin::hello();
    let gateway = with_plan(&origin, "{}");
    let long = json!({ "limits": [{ "count": 1, "per": "week", "window": "sliding" }] });
    let twice = json!({ "limits": [{ "count": 1, "per": "day" }, { "count": 2, "per": "day", "window": "fixed" }] });
    let cases = [
        ("plans/a", long.to_string(), "limits[0].window: expected fixed or calendar for a period longer than a day"),
        ("plans/a", twice.to_string(), "limits[1]: expected one limit of each per, window, scope and metric"),
        ("plans/a", json!({ "limits": [{ "count": -1, "per": "day" }] }).to_string(), "limits"),
        ("plans/a", json!({ "limits": [{ "count": 1, "per": "decade" }] }).to_string(), "limits"),
        ("plans/a", json!({ "access": [{ "paths": ["open"] }] }).to_string(), "access"),
        ("plans/a", json!({ "rights": [] }).to_string(), "rights"),
        (
            "plans/a",
            json!({ "limits": [{ "count": 1, "per": "day", "metric": "hits" }] }).to_string(),
            "limits[0].metric: expected the name of an entry of metrics",
        ),
        (
            "plans/a",
            json!({ "metrics": [{ "name": "a", "rules": [{}] }, { "name": "a", "rules": [{}] }] }).to_string(),
            "metrics[1].name: expected one metric of each name",
        ),
        ("plans/a", json!({ "metrics": [{ "name": "a:b", "rules": [{}] }] }).to_string(), "failed to match pattern"),
        ("plans/a", json!({ "metrics": [{ "name": "a", "rules": [] }] }).to_string(), "rules"),
        ("plans/a", json!({ "metrics": [{ "name": "a", "rules": [{ "units": 0 }] }] }).to_string(), "units"),
        ("consumers", jack(&json!({ "plans": ["gold", "tin"] })), "there is no plan 'tin'"),
    ];
    for (path, body, expected) in cases {
        let (status, answer) = gateway.ask("PUT", path, &body);
        assert!(status == 400 && answer.to_string().contains(expected), "{path} {body}: {status} {answer}");
    }
    // Somebody is on it.
    let (status, answer) = gateway.ask("DELETE", "plans/gold", "");
    assert!(status == 400 && answer.to_string().contains("there is no plan 'gold'"), "{status} {answer}");
    assert_eq!(ask(&gateway, "GET", "/", "jacks").status, 200);
    gateway.must("DELETE", "consumers/jack", "");
    gateway.must("DELETE", "plans/gold", "");
}

#[test]
fn a_quota_is_exact_over_workers() {
    let origin = Origin::hello();
    let limits = json!([{ "count": 100, "per": "month" }, { "count": 1000, "per": "day", "window": "sliding" }]);
    let gateway = with_plan(&origin, &json!({ "limits": limits }).to_string());
    let (begin, passed) = (Barrier::new(8), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                begin.wait();
                for _ in 0..25 {
                    let status = ask(&gateway, "GET", "/", "jacks").status;
                    assert!(matches!(status, 200 | 429), "{status}");
                    passed.fetch_add(usize::from(status == 200), SeqCst);
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 100);
}

#[test]
fn quotas_in_redis_outlive_a_gateway() {
    let (origin, mut redis) = (Origin::hello(), Redis::start());
    let limits = json!([{ "count": 5, "per": "month", "window": "calendar" }, { "count": 50, "per": "day" }]);
    let start = |degrades: bool| {
        let metadata = json!({
            "id": "plan", "policy": "redis", "redis_host": "127.0.0.1", "redis_port": redis.port,
            "allow_degradation": degrades,
        });
        Start::new(json!({
            "plugin_metadata": [metadata],
            "plans": [{ "id": "gold", "limits": limits }],
            "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "jacks" }, "plan": { "plans": ["gold"] } } }],
            "routes": [{ "id": "all", "uri": "/*", "plugins": { "key-auth": {} }, "upstream": { "nodes": { (origin.node()): 1 } } }],
        }))
        .workers(2)
        .start()
    };
    let (one, other) = (start(false), start(true));
    let status = |gateway: &Gateway| ask(gateway, "GET", "/", "jacks").status;
    assert_eq!([status(&one), status(&other), status(&one)], [200; 3]);
    let mut keys = redis.keys();
    keys.sort();
    let expected = ["weir:plan:count:jack:gold:day:fixed:plan:", "weir:plan:count:jack:gold:month:calendar:plan:"];
    assert_eq!(keys, expected);
    // Killed, without a word.
    drop(one);
    let again = start(false);
    let found = ask(&again, "GET", "/", "jacks");
    assert_eq!(
        (found.status, found.field("x-ratelimit-limit"), found.field("x-ratelimit-remaining")),
        (200, Some("5"), Some("1"))
    );
    assert_eq!([status(&other), status(&again), status(&other)], [200, 429, 429]);
    redis.kill();
    wait_until("Redis to be missed", LIMIT, || (status(&again) == 500).then_some(()));
    wait_until("requests to pass uncounted", LIMIT, || (status(&other) == 200).then_some(()));
}

/// Number of requests that pass, of `each` that four clients send to every gateway, all at the same time.
fn overload(gateways: &[Gateway], each: usize) -> usize {
    let passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for gateway in gateways {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut client = gateway.client();
                    for _ in 0..each {
                        let status = client.request("GET / HTTP/1.1\r\nHost: a\r\napikey: jacks\r\n\r\n").status;
                        assert!(matches!(status, 200 | 429), "{status}");
                        passed.fetch_add(usize::from(status == 200), SeqCst);
                    }
                });
            }
        }
    });
    passed.into_inner()
}

/// Three gateways with one Redis, of which one is killed under load; then Redis goes away and comes back.
#[test]
fn gateways_share_quotas_by_leases() {
    const COUNT: usize = 1_500;
    let (origin, mut redis) = (Origin::hello(), Redis::start());
    // Requests count two units, and a limit that is far away has a lease of its own.
    let plan = json!({
        "id": "gold",
        "metrics": [{ "name": "units", "rules": [{ "units": 2 }] }],
        "limits": [
            { "count": 2 * COUNT, "per": "year", "window": "calendar", "metric": "units" },
            { "count": 1_000_000, "per": "day", "window": "sliding" },
        ],
    });
    let metadata = json!({
        "id": "plan", "policy": "redis", "redis_host": "127.0.0.1", "redis_port": redis.port, "redis_timeout": 2000,
        "lease": true,
    });
    let rules = json!({
        "plugin_metadata": [metadata],
        "plans": [plan],
        "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "jacks" }, "plan": { "plans": ["gold"] } } }],
        "routes": [{ "id": "all", "uri": "/*", "plugins": { "key-auth": {} }, "upstream": { "nodes": { (origin.node()): 1 } } }],
    });
    let start = || Start::new(&rules).workers(2).start();
    let mut gateways = vec![start(), start(), start()];
    let key = "weir:plan:lease:jack:gold:year:calendar:plan/units:";
    let granted = |redis: &Redis| redis.cli(&["HGET", key, "now"]).parse::<usize>().expect("a number");
    let mut passed = overload(&gateways, 80);
    assert_eq!(passed, 3 * 4 * 80, "all below the limit");
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    let asked: usize = calls.map(|calls| calls.parse::<usize>().expect("a number")).sum();
    assert!(asked < passed * 3 / 2, "{asked} scripts for {passed} requests with two limits");
    // Killed in the middle: what it held is lost, and nobody passes twice for it.
    let killed = gateways.pop().expect("a gateway");
    let answered = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut client = killed.client();
            let mut answered = 0;
            loop {
                client.send("GET / HTTP/1.1\r\nHost: a\r\napikey: jacks\r\n\r\n");
                match client.try_response() {
                    Ok(response) => answered += usize::from(response.status == 200),
                    Err(_) => break answered,
                }
            }
        });
        let before = granted(&redis);
        wait_until("requests to be under way", LIMIT, || (granted(&redis) > before).then_some(()));
        killed.signal(Signal::KILL);
        load.join().expect("a client")
    });
    drop(killed);
    passed += answered;
    passed += overload(&gateways, 200);
    assert!(passed <= COUNT, "{passed}");
    wait_until("the last share to be used", LIMIT, || {
        passed += overload(&gateways, 1);
        (granted(&redis) == 2 * COUNT).then_some(())
    });
    passed += overload(&gateways, 20);
    // The lease of the killed gateway: two workers, each with a quarter of the rest at the most.
    assert!(passed > COUNT / 2, "{passed}");
    // A gateway that starts holds nothing by itself.
    gateways.push(start());
    passed += overload(&gateways, 10);
    assert!(passed <= COUNT, "{passed}");
    redis.kill();
    let statuses = || gateways.iter().map(|gateway| ask(gateway, "GET", "/", "jacks").status).collect::<Vec<_>>();
    wait_until("Redis to be missed", LIMIT, || statuses().iter().all(|status| *status == 500).then_some(()));
    redis.restart();
    wait_until("Redis to be asked again", LIMIT, || statuses().iter().all(|status| *status == 200).then_some(()));
}

#[test]
fn counts_outlive_a_kill_under_load() {
    let (origin, folder) = (Origin::hello(), tempfile::tempdir().expect("a folder"));
    let plan = json!({ "limits": [
        { "count": 1_000_000, "per": "month", "window": "calendar" },
        { "count": 2_000_000, "per": "day", "window": "sliding" },
    ] });
    let start = || Start::stored().data_dir(folder.path()).workers(2).start();
    let gateway = start();
    configure(&gateway, &origin, &plan.to_string());
    let used = |gateway: &Gateway| {
        let found = ask(gateway, "GET", "/", "jacks");
        let remaining: u64 = found.field("x-ratelimit-remaining").and_then(|text| text.parse().ok()).expect("a number");
        1_000_000 - remaining
    };
    let (answers, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let before = used(&gateway);
    assert_eq!(before, 1);
    let killed = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = gateway.client();
                while !stop.load(SeqCst) {
                    client.send("GET / HTTP/1.1\r\nHost: a\r\napikey: jacks\r\n\r\n");
                    let Ok(_) = client.try_response() else { break };
                    answers.lock().expect("answers").push(Instant::now());
                }
            });
        }
        // Long enough that most of it has to be on the disk.
        let began = Instant::now();
        wait_until("three seconds of load", LIMIT, || {
            (began.elapsed() > Duration::from_secs(3) && answers.lock().expect("answers").len() > 1_000).then_some(())
        });
        let killed = Instant::now();
        gateway.signal(Signal::KILL);
        stop.store(true, SeqCst);
        killed
    });
    drop(gateway);
    let answers = answers.into_inner().expect("answers");
    // A second, and as much again for a machine that has other things to do.
    let long_before = answers.iter().filter(|at| **at + Duration::from_secs(2) < killed).count() as u64;
    assert!(long_before > 100, "{long_before}");
    let mut gateway = start();
    let found = used(&gateway);
    let all = answers.len() as u64 + 6;
    assert!((long_before..=all).contains(&found), "{found}: {long_before} to {all}");
    // A stop loses nothing.
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    let gateway = start();
    assert_eq!(used(&gateway), found + 1);
    assert_eq!(gateway.metric("weir_plan_write_failures_total", &[]), 0.0);
    // A count that goes on refuses where the limit is below it.
    gateway.must("PUT", "plans/gold", r#"{"limits": [{"count": 50, "per": "month", "window": "calendar"}]}"#);
    wait_until("the limit to hold", LIMIT, || (ask(&gateway, "GET", "/", "jacks").status == 429).then_some(()));
}

#[test]
fn counts_that_are_not_kept_begin_anew() {
    let (origin, folder) = (Origin::hello(), tempfile::tempdir().expect("a folder"));
    let start = || Start::stored().data_dir(folder.path()).settings("plans: {keep_counts: false}").start();
    let mut gateway = start();
    configure(&gateway, &origin, r#"{"limits": [{"count": 1, "per": "year"}]}"#);
    assert_eq!([200, 429], [(); 2].map(|()| ask(&gateway, "GET", "/", "jacks").status));
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    assert!(!folder.path().join("plans.db").exists());
    assert_eq!(ask(&start(), "GET", "/", "jacks").status, 200);
}

#[test]
fn a_file_that_has_no_counts_stops_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("plans.db"), "a text where a database should be, longer than its head would be")
        .expect("write a file");
    let settings = folder.path().join("weir.yaml");
    let text = format!(
        "store: {{data_dir: {:?}}}\nlisten: {{http: [\"127.0.0.1:0\"], https: [], admin: off, control: off}}\n",
        folder.path()
    );
    std::fs::write(&settings, text).expect("write the settings");
    let (status, _, said) = crate::harness::weir(&["run", "--settings", &settings.display().to_string()]);
    assert!(status != 0 && said.contains("plans.db") && said.contains("plans.keep_counts"), "{status}: {said}");
}

/// A document of Kong's with plans beside it.
const KONG: &str = "
_format_version: '3.0'
plans:
- {id: gold, limits: [{count: 2, per: year, window: calendar}]}
- {id: tin, access: [{methods: [GET]}], limits: [{count: 1, per: year}]}
services:
- name: a
  url: http://ORIGIN
  plugins: [{name: key-auth}]
  routes: [{name: all, paths: [/]}]
consumers:
- username: jack
  plugins: [{name: plan, config: {plans: [gold]}}]
  keyauth_credentials:
  - {key: jacks}
  - {key: phone, plan: {plans: [tin]}}
  - {key: late, plan: {plans: [tin], expires: 1700000000}}
- username: jill
  keyauth_credentials: [{key: jills}]
";

#[test]
fn plans_hold_in_documents_of_kong() {
    let origin = Origin::hello();
    let gateway = Start::text(&KONG.replace("ORIGIN", &origin.node())).start();
    let status = |method: &str, key: &str| ask(&gateway, method, "/", key).status;
    let first = ask(&gateway, "GET", "/", "jacks");
    assert_eq!(
        (first.status, first.field("x-ratelimit-limit"), first.field("x-ratelimit-remaining")),
        (200, Some("2"), Some("1"))
    );
    assert_eq!([status("GET", "jacks"), status("GET", "jacks")], [200, 429]);
    assert_eq!([status("POST", "phone"), status("GET", "phone"), status("GET", "phone")], [403, 200, 429]);
    assert_eq!([status("GET", "late"), status("GET", "jills"), status("GET", "nobodys")], [401, 200, 401]);
    let folder = tempfile::tempdir().expect("a folder");
    for (from, to, reason) in [
        ("plans: [gold]}}]", "plans: [lead]}}]", "there is no plan 'lead'"),
        ("per: year, window", "per: decade, window", "plans[0].limits[0].per"),
        ("plan: {plans: [tin]}}", "plan: {plan: tin}}", "consumers[0].keyauth_credentials[1].plan"),
        (
            "_format_version: '3.0'\nplans:",
            "_format_version: '3.0'\nplans: 5\n_comment:",
            "plans: expected an array, found 5",
        ),
    ] {
        let file = folder.path().join("kong.yaml");
        let text = KONG.replace("ORIGIN", &origin.node());
        assert!(text.contains(from), "{from}");
        fs::write(&file, text.replace(from, to)).expect("write a document");
        let (status, said, errors) = crate::harness::weir(&["check", &file.display().to_string()]);
        assert!(status != 0 && format!("{said}{errors}").contains(reason), "{to}: {status} {said} {errors}");
    }
}
