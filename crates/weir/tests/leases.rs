//! Limits that gateways share in a real Redis by leases: never above the limit, whatever happens to Redis.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Origin, RawClient, Redis, Relay, Start, route_with, timed, wait_until};
use crate::redis::{at, start};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const CLIENTS: usize = 4;

/// Number of requests that pass, of `each` that every client sends to every gateway, all at the same time.
fn overload(gateways: &[Gateway], each: usize) -> usize {
    let passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for gateway in gateways {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut client = gateway.client();
                    for _ in 0..each {
                        let status = client.request(GET).status;
                        assert!(matches!(status, 200 | 429), "{status}");
                        passed.fetch_add(usize::from(status == 200), SeqCst);
                    }
                });
            }
        }
    });
    passed.into_inner()
}

/// Shares that Redis has granted in the window.
fn granted(redis: &Redis) -> usize {
    let keys = redis.keys();
    keys.iter().map(|key| redis.cli(&["HGET", key, "now"]).parse::<usize>().expect("a number")).sum()
}

/// Scripts that Redis has run.
fn scripts(redis: &Redis) -> usize {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    calls.map(|calls| calls.parse::<usize>().expect("a number")).sum()
}

fn limit(count: usize, more: &Value) -> Value {
    let mut limit = json!({ "count": count, "time_window": 600, "lease": true });
    limit.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    limit
}

/// One worker, whose leases a test knows.
fn single(origin: &Origin, redis: (u16, &Redis), more: &Value) -> Gateway {
    let mut conf = at(redis.1);
    conf["redis_port"] = json!(redis.0);
    conf.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    let upstream = json!({ "nodes": { (origin.node()): 1 } });
    Start::new(route_with(json!({ "plugins": { "limit-count": conf } }), upstream)).workers(1).start()
}

fn passes(client: &mut RawClient, requests: usize) -> usize {
    (0..requests).filter(|_| client.request(GET).status == 200).count()
}

#[test]
fn gateways_share_a_limit_by_leases() {
    let origin = Origin::hello();
    for more in [json!({}), json!({ "window_type": "sliding" })] {
        let redis = Redis::start();
        let gateways = [0, 1, 2].map(|_| start(&origin, "limit-count", &at(&redis), &limit(1500, &more)));
        let mut passed = overload(&gateways, 100);
        assert_eq!(passed, 1200, "all below the limit");
        let asked = scripts(&redis);
        assert!(asked < passed / 2, "{asked} scripts for {passed} requests");
        passed += overload(&gateways, 100);
        assert!((1450..=1500).contains(&passed), "{passed}");
        // Unused shares go back after a second, and are used elsewhere.
        wait_until("the last share to be used", LIMIT, || {
            passed += usize::from(gateways[0].get("/").status == 200);
            (passed == 1500).then_some(())
        });
        assert_eq!(overload(&gateways, 5), 0);
        assert_eq!(granted(&redis), 1500);
        let refused = gateways[0].get("/");
        assert_eq!(
            (refused.field("x-ratelimit-limit"), refused.field("x-ratelimit-remaining")),
            (Some("1500"), Some("0"))
        );
    }
}

#[test]
fn a_gateway_that_stops_gives_its_shares_back() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let mut gateway = single(&origin, (redis.port, &redis), &limit(1000, &json!({})));
    let mut client = gateway.client();
    let mut passed = 0;
    wait_until("shares to lie unused", LIMIT, || {
        passed += passes(&mut client, 20);
        (granted(&redis) > passed).then_some(())
    });
    drop(client);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    assert_eq!(granted(&redis), passed);
}

#[test]
fn shares_stay_good_while_redis_is_away() {
    let (origin, mut redis) = (Origin::hello(), Redis::start());
    wait_until("shares to be held while Redis goes", LIMIT, || {
        redis.restart();
        let gateway = single(&origin, (redis.port, &redis), &limit(1000, &json!({ "redis_timeout": 500 })));
        let mut client = gateway.client();
        assert_eq!(passes(&mut client, 50), 50);
        let last = Instant::now();
        let held = granted(&redis) - 50;
        redis.kill();
        let statuses: Vec<u16> = (0..held + 5).map(|_| client.request(GET).status).collect();
        // After a second without a request they are given up: a slow machine tries again.
        if held == 0 || last.elapsed() > Duration::from_millis(900) {
            return None;
        }
        let expected: Vec<u16> = (0..held + 5).map(|at| if at < held { 200 } else { 500 }).collect();
        assert_eq!(statuses, expected, "{held} are held");
        redis.restart();
        wait_until("Redis to be asked again", LIMIT, || (client.request(GET).status == 200).then_some(()));
        Some(())
    });
    // The policy that is stated holds for what is beyond the lease.
    redis.restart();
    let open = single(&origin, (redis.port, &redis), &limit(1000, &json!({ "allow_degradation": true })));
    assert_eq!(open.get("/").field("x-ratelimit-remaining"), Some("999"));
    redis.kill();
    let mut client = open.client();
    assert_eq!(passes(&mut client, 5), 5);
}

#[test]
fn requests_do_not_wait_for_a_redis_that_is_far() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let relay = Relay::delayed(redis.port, Duration::from_millis(5));
    let gateway = single(&origin, (relay.addr.port(), &redis), &limit(100_000, &json!({})));
    let mut client = gateway.client();
    let (passed, took) = timed(|| passes(&mut client, 400));
    assert_eq!(passed, 400);
    // Each would wait for 10 ms.
    assert!(took < Duration::from_secs(2), "{took:?}");
    let asked = scripts(&redis);
    assert!(asked < 200, "{asked} scripts");
}
