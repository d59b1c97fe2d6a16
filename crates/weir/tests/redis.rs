//! Limits that gateways share in a real Redis: exact, whatever happens to the servers.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{
    Authority, Gateway, Kind, LIMIT, Origin, Redis, RedisCluster, Sentinels, Start, route_with, timed, wait_until,
};

const WORKERS: usize = 2;
const CLIENTS: usize = 8;

fn config(origin: &Origin, plugin: &str, conf: &Value, more: &Value) -> Value {
    let mut conf = conf.clone();
    conf.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    let upstream = json!({ "nodes": { (origin.node()): 1 } });
    route_with(json!({ "plugins": { plugin: conf } }), upstream)
}

pub(crate) fn start(origin: &Origin, plugin: &str, conf: &Value, more: &Value) -> Gateway {
    Start::new(config(origin, plugin, conf, more)).workers(WORKERS).start()
}

/// Fields with which a limit reaches one server.
pub(crate) fn at(redis: &Redis) -> Value {
    json!({ "policy": "redis", "redis_host": "127.0.0.1", "redis_port": redis.port, "rejected_code": 429, "key": "remote_addr" })
}

/// An origin that takes requests and never answers.
fn silent() -> Origin {
    Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.await_close();
        }
    })
}

/// Statuses of so many requests, one after the other.
fn statuses(gateway: &Gateway, requests: usize) -> Vec<u16> {
    (0..requests).map(|_| gateway.get("/").status).collect()
}

/// Number of answers with this status, to `each` requests of every client at every gateway, all clients at the same time.
fn count(gateways: &[&Gateway], each: usize, status: u16) -> usize {
    let (begin, counted) = (Barrier::new(CLIENTS), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                begin.wait();
                for _ in 0..each {
                    for gateway in gateways {
                        counted.fetch_add(usize::from(gateway.get("/").status == status), SeqCst);
                    }
                }
            });
        }
    });
    counted.into_inner()
}

#[test]
fn a_limit_is_exact_over_gateways() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    for more in [json!({}), json!({ "window_type": "sliding" })] {
        let limit = json!({ "count": 50, "time_window": 600 });
        let limit = [limit, more].iter().fold(at(&redis), |mut all, more| {
            all.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            all
        });
        let gateways = [0, 1].map(|_| start(&origin, "limit-count", &limit, &json!({})));
        assert_eq!(count(&[&gateways[0], &gateways[1]], 5, 200), 50, "{limit}");
        let refused = gateways[0].get("/");
        assert_eq!((refused.status, refused.field("x-ratelimit-remaining")), (429, Some("0")));
        assert_eq!(refused.field("x-ratelimit-limit"), Some("50"));
        let reset: f64 = refused.field("x-ratelimit-reset").and_then(|text| text.parse().ok()).expect("seconds");
        assert!((500.0..=600.0).contains(&reset), "{reset}");
    }
    let keys = redis.keys();
    assert_eq!(keys.len(), 2, "{keys:?}");
    for key in keys {
        assert!(key.starts_with("weir:limit-count:route/all:") && key.ends_with(":0:ip:127.0.0.1"), "{key}");
        let left: i64 = redis.cli(&["PTTL", &key]).parse().expect("milliseconds");
        assert!((500_000..=1_200_000).contains(&left), "{key} expires in {left} ms");
    }
}

#[test]
fn rules_and_groups_count_in_redis() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let rules = json!([
        { "count": 2, "time_window": 600, "key": "$http_x_tenant" },
        { "count": 1, "time_window": 600, "key": "$arg_user", "header_prefix": "User" },
    ]);
    let mut limit = at(&redis);
    limit.as_object_mut().expect("a map").remove("key");
    let gateway = start(&origin, "limit-count", &limit, &json!({ "rules": rules }));
    let mut client = gateway.client();
    let long = "t".repeat(500);
    let mut ask = |path: &str, tenant: &str| {
        let response = client.request(format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Tenant: {tenant}\r\n\r\n"));
        (response.status, response.field("x-1-ratelimit-remaining").map(str::to_owned))
    };
    assert_eq!(ask("/?user=a", "t"), (200, Some("1".to_owned())));
    assert_eq!(ask("/?user=a", "t"), (429, Some("0".to_owned())), "the second rule");
    assert_eq!(ask("/?user=b", "t").0, 429, "the first rule");
    assert_eq!(ask("/?user=b", &long).0, 200);
    // Neither rule concerns a request without their variables.
    assert_eq!(gateway.get("/").status, 500);
    let keys = redis.keys();
    assert!(keys.iter().any(|key| key.ends_with(":1:val:t")), "{keys:?}");
    assert!(
        keys.iter().any(|key| key.contains(":1:sha256:")) && !keys.iter().any(|key| key.contains(&long)),
        "{keys:?}"
    );

    let group = json!({ "count": 1, "time_window": 600, "group": "shared" });
    let gateways = ["a", "b"].map(|id| {
        let mut config = config(&origin, "limit-count", &at(&redis), &group);
        config["routes"][0]["id"] = json!(id);
        Start::new(config).start()
    });
    assert_eq!([gateways[0].get("/").status, gateways[1].get("/").status], [200, 429], "other places, one group");
}

#[test]
fn a_rate_is_exact_over_gateways() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let limit = json!({ "rate": 0.001, "burst": 20, "nodelay": true });
    let gateways = [0, 1].map(|_| start(&origin, "limit-req", &at(&redis), &limit));
    assert_eq!(count(&[&gateways[0], &gateways[1]], 2, 200), 21, "the first and the burst");
    let waits = start(&origin, "limit-req", &at(&redis), &json!({ "rate": 10, "burst": 5 }));
    let (found, took) = timed(|| statuses(&waits, 4));
    assert_eq!(found, [200; 4]);
    assert!(took >= Duration::from_millis(250), "after {took:?}");
}

#[test]
fn requests_under_way_count_until_they_end() {
    let (origin, redis) = (silent(), Redis::start());
    let limit = json!({ "conn": 2, "burst": 0, "default_conn_delay": 0.1, "key_ttl": 600 });
    let gateways = [0, 1].map(|_| start(&origin, "limit-conn", &at(&redis), &limit));
    let members = |redis: &Redis| {
        let keys = redis.keys();
        keys.iter().map(|key| redis.cli(&["ZCARD", key]).parse::<usize>().expect("a number")).sum::<usize>()
    };
    let ask = |gateway: &Gateway| {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client
    };
    let waiting = gateways.each_ref().map(ask);
    wait_until("two requests to be under way", LIMIT, || (members(&redis) == 2).then_some(()));
    assert_eq!(gateways.each_ref().map(|gateway| gateway.get("/").status), [429, 429]);
    let [first, second] = waiting;
    first.reset();
    wait_until("the request of a client that went to count no longer", LIMIT, || (members(&redis) == 1).then_some(()));
    let third = ask(&gateways[1]);
    wait_until("another to take its place", LIMIT, || (members(&redis) == 2).then_some(()));
    assert_eq!(gateways[0].get("/").status, 429);
    // A gateway that dies leaves its requests behind until they expire.
    let [_, dies] = gateways;
    let key = redis.keys().pop().expect("a key");
    let left: i64 = redis.cli(&["PTTL", &key]).parse().expect("milliseconds");
    assert!((500_000..=600_000).contains(&left), "{left}");
    drop((second, third, dies));
}

#[test]
fn entries_of_a_gateway_that_died_expire() {
    let (origin, redis) = (silent(), Redis::start());
    let limit = json!({ "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key_ttl": 1 });
    let [dies, other] = [0, 1].map(|_| start(&origin, "limit-conn", &at(&redis), &limit));
    let mut client = dies.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("a request to be under way", LIMIT, || (!redis.keys().is_empty()).then_some(()));
    drop(dies);
    let is_let_in = || {
        let mut client = other.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        // The origin never answers: who is let in waits.
        client.try_response_within(Duration::from_millis(500)).is_none()
    };
    wait_until("the place to be free", LIMIT, || is_let_in().then_some(()));
}

#[test]
fn credentials_and_databases_are_used() {
    let origin = Origin::hello();
    let rule = ["--user", "default", "off", "--user", "limits", "on", ">s3cret", "~weir:*", "+@all"];
    let redis = Redis::with(&rule, &["--user", "limits", "--pass", "s3cret", "-n", "3"]);
    let limit = json!({ "count": 1, "time_window": 600, "redis_username": "limits", "redis_database": 3 });
    let with = |password: Value| {
        let mut limit = limit.clone();
        limit["redis_password"] = password;
        limit
    };
    let gateway =
        Start::new(config(&origin, "limit-count", &at(&redis), &with(json!("$env://GATEWAY_REDIS_PASSWORD"))))
            .variable("GATEWAY_REDIS_PASSWORD", "s3cret")
            .start();
    assert_eq!(statuses(&gateway, 2), [200, 429]);
    assert_eq!(redis.keys().len(), 1, "in the database that is named");
    let wrong = start(&origin, "limit-count", &at(&redis), &with(json!("another")));
    assert_eq!(wrong.get("/").status, 500);
    assert!(!wrong.logged("WRONGPASS").contains("another"), "the password is not told");
}

#[test]
fn tls_is_verified_where_that_is_asked_for() {
    let origin = Origin::hello();
    let authority = Authority::new();
    let redis = Redis::with_tls(&authority.certificate(Kind::P256, &["localhost"]));
    let limit = json!({ "count": 4, "time_window": 600, "redis_ssl": true });
    let with = |host: &str, verify: bool| {
        let mut limit = limit.clone();
        limit["redis_host"] = json!(host);
        limit["redis_ssl_verify"] = json!(verify);
        let settings = format!("tls: {{trusted_certificate: {}}}", authority.file().display());
        Start::new(config(&origin, "limit-count", &at(&redis), &limit)).settings(settings).start()
    };
    assert_eq!(statuses(&with("localhost", true), 2), [200, 200]);
    assert_eq!(statuses(&with("127.0.0.1", false), 3), [200, 200, 429], "how Redis is reached changes no counter");
    let other = with("127.0.0.1", true);
    assert_eq!(other.get("/").status, 500, "the certificate is for another name");
    other.logged("the certificate is for");

    let cluster = Redis::cluster_with_tls(&authority.certificate(Kind::P256, &["localhost"]));
    let with = |host: &str, verify: bool| {
        let limit = json!({
            "policy": "redis-cluster", "redis_cluster_nodes": [format!("{host}:{}", cluster.port)], "redis_cluster_name": "cases",
            "redis_cluster_ssl": true, "redis_cluster_ssl_verify": verify, "count": 4, "time_window": 600,
        });
        let settings = format!("tls: {{trusted_certificate: {}}}", authority.file().display());
        Start::new(config(&origin, "limit-count", &limit, &json!({}))).settings(settings).start()
    };
    assert_eq!(statuses(&with("localhost", true), 2), [200, 200]);
    assert_eq!(statuses(&with("127.0.0.1", false), 3), [200, 200, 503]);
    assert_eq!(with("127.0.0.1", true).get("/").status, 500, "the certificate is for another name");
}

#[test]
fn without_redis_requests_fail_or_pass_at_once() {
    let origin = Origin::hello();
    let mut redis = Redis::start();
    let limit = json!({ "count": 1000, "time_window": 600, "redis_timeout": 400 });
    let closed = start(&origin, "limit-count", &at(&redis), &limit);
    let mut degrades = limit;
    degrades["allow_degradation"] = json!(true);
    let open = start(&origin, "limit-count", &at(&redis), &degrades);
    assert_eq!([closed.get("/").status, open.get("/").status], [200, 200]);

    redis.hang();
    let (found, took) = timed(|| open.get("/"));
    assert_eq!((found.status, found.field("x-ratelimit-limit")), (200, None));
    assert!(took < Duration::from_millis(300), "{took:?}: waits for 50 ms");
    let (found, took) = timed(|| closed.get("/").status);
    assert!(found == 500 && took < Duration::from_secs(2), "{found} after {took:?}");
    // By then the worker knows that nothing answers.
    wait_until("requests to fail at once", LIMIT, || {
        let (found, took) = timed(|| closed.get("/").status);
        assert_eq!(found, 500);
        (took < Duration::from_millis(100)).then_some(())
    });
    redis.go_on();
    for gateway in [&closed, &open] {
        wait_until("Redis to be asked again", LIMIT, || {
            gateway.get("/").field("x-ratelimit-remaining").is_some().then_some(())
        });
    }

    redis.kill();
    wait_until("requests to fail", LIMIT, || (closed.get("/").status == 500).then_some(()));
    assert_eq!(statuses(&open, 3), [200; 3]);
    redis.restart();
    for gateway in [&closed, &open] {
        wait_until("Redis to be asked again", LIMIT, || {
            // A server that has just started knows no script.
            gateway.get("/").field("x-ratelimit-remaining").is_some().then_some(())
        });
    }
}

/// The port of a server that sends these bytes to whoever comes.
fn hostile(bytes: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // The client closes the connection when it has enough.
            let _ = stream.and_then(|mut stream| stream.write_all(&bytes));
        }
    });
    port
}

/// A program in Redis' place may send anything.
#[test]
fn a_hostile_server_costs_a_connection() {
    let origin = Origin::hello();
    for bytes in [
        "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        "*1\r\n".repeat(20_000),
        format!("${}\r\n{}", 1 << 29, "a".repeat(1 << 20)),
    ] {
        let hostile = hostile(bytes.into_bytes());
        let limit = json!({ "count": 5, "time_window": 600, "redis_timeout": 300 });
        let mut conf =
            json!({ "policy": "redis", "redis_host": "127.0.0.1", "redis_port": hostile, "key": "remote_addr" });
        conf.as_object_mut().expect("a map").extend(limit.as_object().expect("a map").clone());
        let gateway = start(&origin, "limit-count", &conf, &json!({}));
        let before = gateway.process.resident();
        assert_eq!(statuses(&gateway, 5), [500; 5]);
        let after = gateway.process.resident();
        assert!(after < before + (16 << 20), "{before} bytes before, {after} after");
        assert_eq!(gateway.metric("weir_worker_panics_total", &[]), 0.0);
    }
}

#[test]
fn a_failover_of_sentinels_is_followed() {
    let origin = Origin::hello();
    let mut group = Sentinels::start("s3cret", "w4tch");
    let limit = json!({
        "policy": "redis-sentinel", "redis_sentinels": group.addresses(), "redis_master_name": "cases",
        "redis_password": "s3cret", "sentinel_username": "default", "sentinel_password": "w4tch", "count": 1000, "time_window": 600,
        "redis_connect_timeout": 500, "redis_read_timeout": 500,
    });
    let gateway = start(&origin, "limit-count", &limit, &json!({ "key": "remote_addr" }));
    let used =
        || gateway.get("/").field("x-ratelimit-remaining").map(|left| 1000 - left.parse::<u32>().expect("a number"));
    assert_eq!((0..5).filter_map(|_| used()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    wait_until("the replica to have the count", LIMIT, || {
        let replica = &group.servers[1];
        replica.keys().iter().any(|key| replica.cli(&["GET", key]) == "5").then_some(())
    });
    group.servers[0].kill();
    group.await_failover();
    let after = wait_until("the new master to be asked", LIMIT, used);
    assert_eq!(after, 6, "the count goes on where it was");
    // One of the sentinels is enough to begin with, when it has heard of it.
    let master = group.servers[1].port.to_string();
    wait_until("the last sentinel to know the master", LIMIT, || {
        group.sentinels[2].cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "cases"]).ends_with(&master).then_some(())
    });
    group.sentinels[0].kill();
    group.sentinels[1].kill();
    let late = start(&origin, "limit-count", &limit, &json!({ "key": "remote_addr" }));
    let left = wait_until("another gateway to find the master", LIMIT, || {
        late.get("/").field("x-ratelimit-remaining").map(str::to_owned)
    });
    assert_eq!(left, "993");
}

#[test]
fn a_cluster_is_resharded_under_load_and_loses_a_master() {
    let origin = Origin::hello();
    let mut cluster = RedisCluster::start();
    let limit = json!({
        "policy": "redis-cluster", "redis_cluster_nodes": cluster.seeds(), "redis_cluster_name": "cases",
        "rejected_code": 429, "count": 60, "time_window": 600, "key": "http_x_key", "redis_timeout": 5000,
    });
    let gateway = start(&origin, "limit-count", &limit, &json!({}));
    const KEYS: usize = 40;
    let (stop, passed) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; KEYS]);
    let asked = AtomicUsize::new(0);
    thread::scope(|scope| {
        for first in 0..4 {
            let (gateway, stop, passed, asked) = (&gateway, &stop, &passed, &asked);
            scope.spawn(move || {
                let mut client = gateway.client();
                let mut key = first;
                // Every key is asked for until it has no request left, and some more.
                while !stop.load(SeqCst) || asked.load(SeqCst) < 100 * KEYS {
                    let response = client.request(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Key: k{key}\r\n\r\n"));
                    assert!(matches!(response.status, 200 | 429), "{}: {}", response.status, response.text());
                    passed[key].fetch_add(usize::from(response.status == 200), SeqCst);
                    asked.fetch_add(1, SeqCst);
                    key = (key + 1) % KEYS;
                }
            });
        }
        let masters = cluster.masters();
        let slots = (masters[0].1 - 100).to_string();
        let to = cluster.servers[0].address();
        let moved = cluster.manage(&[
            "reshard",
            &to,
            "--cluster-from",
            &masters[0].0,
            "--cluster-to",
            &masters[1].0,
            "--cluster-slots",
            &slots,
            "--cluster-yes",
        ]);
        assert!(moved.contains("Moving slot"), "{moved}");
        stop.store(true, SeqCst);
    });
    let passed: Vec<usize> = passed.iter().map(|count| count.load(SeqCst)).collect();
    assert!(passed.iter().all(|count| *count == 60), "each key has its count to the last request: {passed:?}");

    // A master that goes is replaced by its replica, which has the counts.
    let ask =
        |key: usize| gateway.client().request(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Key: k{key}\r\n\r\n")).status;
    let has_most = cluster.masters()[1].0.clone();
    let lost = cluster.servers.iter().position(|server| server.cli(&["CLUSTER", "MYID"]) == has_most);
    cluster.servers[lost.expect("the master")].kill();
    wait_until("requests to fail", LIMIT, || (0..KEYS).any(|key| ask(key) == 500).then_some(()));
    wait_until("the replica to take over", LIMIT, || (0..KEYS).all(|key| ask(key) == 429).then_some(()));
}

#[test]
fn workers_that_count_by_themselves_are_over_by_little() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let limit = json!({ "count": 100, "time_window": 600, "sync_interval": 0.1 });
    let gateway = start(&origin, "limit-count", &at(&redis), &limit);
    let used = |redis: &Redis| redis.keys().iter().find_map(|key| redis.cli(&["GET", key]).parse::<usize>().ok());
    let passed = statuses(&gateway, 30).iter().filter(|status| **status == 200).count();
    assert_eq!(passed, 30);
    wait_until("Redis to be told", LIMIT, || (used(&redis) == Some(30)).then_some(()));
    let told = Instant::now();
    let other = start(&origin, "limit-count", &at(&redis), &limit);
    assert_eq!(other.get("/").field("x-ratelimit-remaining"), Some("69"));
    // A worker forgets the count of a key that has had no request for an interval.
    wait_until("two intervals to be over", LIMIT, || (told.elapsed() >= Duration::from_millis(500)).then_some(()));
    let passed = 31 + count(&[&gateway, &other], 60, 200);
    // Each worker asks once, and then lets pass what was left after its question, at most.
    assert!((100..=31 + 2 * WORKERS * 69).contains(&passed), "{passed} of 100");
    wait_until("the limit to be known everywhere", LIMIT, || {
        (count(&[&gateway, &other], 1, 429) == 2 * CLIENTS).then_some(())
    });
}

/// Requests that come while Redis is asked wait for that answer. A question of their own would let them pass by a count that
/// lacks the requests of this worker since the first answer.
#[test]
fn a_worker_asks_once_for_all_requests_of_a_key() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let limit = json!({ "count": 5, "time_window": 600, "sync_interval": 300, "redis_timeout": 60_000 });
    let gateway = Start::new(config(&origin, "limit-count", &at(&redis), &limit)).workers(1).start();
    redis.hang();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "writing")], CLIENTS as f64);
    redis.go_on();
    let mut statuses: Vec<u16> = clients.iter_mut().map(|client| client.response().status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429], "a single worker is exact");
    let counted: Vec<String> = redis.keys().iter().map(|key| redis.cli(&["GET", key])).collect();
    assert_eq!(counted, ["1"], "the other requests are reported after the interval");
}

#[test]
fn a_connection_that_nobody_uses_is_closed() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let limit = json!({ "count": 100, "time_window": 600, "redis_keepalive_timeout": 1000 });
    let gateway = Start::new(config(&origin, "limit-count", &at(&redis), &limit)).workers(1).start();
    let clients = || redis.cli(&["CLIENT", "LIST", "TYPE", "NORMAL"]).lines().count();
    assert_eq!(statuses(&gateway, 2), [200, 200]);
    assert_eq!(clients(), 2, "one of the worker, one of the question");
    wait_until("the connection to be closed", LIMIT, || (clients() == 1).then_some(()));
    assert_eq!(statuses(&gateway, 1), [200]);
}
