//! Limiters count for all workers together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Gateway, LIMIT, Origin, RawClient, Refusing, Reload, Start, each, route_with, timed, wait_until,
};

const WORKERS: usize = 4;
const CLIENTS: usize = 16;

fn config(origin: &Origin, plugins: &Value) -> Value {
    route_with(json!({ "plugins": plugins }), json!({ "nodes": { (origin.node()): 1 } }))
}

fn start(origin: &Origin, plugins: &Value) -> Gateway {
    Start::new(config(origin, plugins)).workers(WORKERS).start()
}

/// Number of responses with this status, of concurrent clients that send `each` requests.
fn count(gateway: &Gateway, each: usize, status: u16) -> usize {
    let (begin, counted) = (Barrier::new(CLIENTS), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                begin.wait();
                for _ in 0..each {
                    // A new connection each time: any worker may get it.
                    if gateway.get("/").status == status {
                        counted.fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    counted.into_inner()
}

#[test]
fn a_rate_is_exact_across_workers() {
    let origin = Origin::hello();
    for key in [json!({ "key": "all", "key_type": "constant" }), json!({ "key": "remote_addr" })] {
        let mut limit = json!({ "rate": 0.001, "burst": 100, "nodelay": true, "rejected_code": 429 });
        limit.as_object_mut().expect("a map").extend(key.as_object().expect("a map").clone());
        let gateway = start(&origin, &json!({ "limit-req": limit }));
        assert_eq!(count(&gateway, 20, 200), 101, "the first and the burst: {limit}");
        assert_eq!(count(&gateway, 1, 429), CLIENTS);
    }
    assert_eq!(origin.requests().len(), 202);
}

#[test]
fn what_is_early_waits_for_its_turn() {
    let origin = Origin::hello();
    let gateway = start(&origin, &json!({ "limit-req": { "rate": 20, "burst": 15, "key": "remote_addr" } }));
    let (passed, took) = timed(|| count(&gateway, 1, 200));
    assert_eq!(passed, CLIENTS);
    // Fifteen wait, the last of them for fifteen twentieths of a second after the first.
    assert!(took >= Duration::from_millis(700), "after {took:?}");
}

#[test]
fn a_bucket_survives_what_does_not_concern_it() {
    let origin = Origin::hello();
    let plugins = |burst: usize, mark: &str| {
        json!({
            "limit-req": { "rate": 0.001, "burst": burst, "nodelay": true, "key": "remote_addr" },
            "response-rewrite": { "headers": { "set": { "X-Mark": mark } } }
        })
    };
    let gateway = Gateway::start(config(&origin, &plugins(2, "first")));
    assert_eq!([gateway.get("/").status, gateway.get("/").status], [200, 200]);
    assert_eq!(gateway.reload(config(&origin, &plugins(2, "second"))), Reload::Applied);
    let response = gateway.get("/");
    assert_eq!((response.status, response.field("x-mark")), (200, Some("second")));
    assert_eq!(gateway.get("/").status, 503);
    // A rate that was changed counts anew.
    assert_eq!(gateway.reload(config(&origin, &plugins(1, "third"))), Reload::Applied);
    assert_eq!([200, 200, 503], [(); 3].map(|()| gateway.get("/").status));
}

/// An origin that answers `/held` when its gate is open, and everything else at once.
fn held() -> (Origin, Arc<AtomicBool>) {
    let gate = Arc::new(AtomicBool::new(false));
    let of_origin = Arc::clone(&gate);
    let origin = Origin::answering(move |request| {
        if request.target == "/held" {
            wait_until("the gate to open", LIMIT * 2, || of_origin.load(SeqCst).then_some(()));
        }
        Answer::ok("done")
    });
    (origin, gate)
}

/// A request for `/held` that has come to the origin. It asks again where it is refused: who has its answer may not have
/// given its place back yet.
fn hold(gateway: &Gateway, origin: &Origin, fields: &str) -> RawClient {
    wait_until("a request to be held", LIMIT, || {
        let before = origin.requests().len();
        let mut client = gateway.client();
        client.send(format!("GET /held HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
        let held = wait_until("the request to be decided", LIMIT, || match origin.requests().len() > before {
            true => Some(true),
            false => client.try_response_within(Duration::from_millis(2)).map(|_| false),
        });
        held.then_some(client)
    })
}

fn one_at_once(more: &Value) -> Value {
    let mut limit = json!({ "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr" });
    limit.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    json!({ "limit-conn": limit })
}

#[test]
fn a_number_under_way_is_exact_across_workers() {
    const MAY: usize = 5;
    for key in [json!({ "key": "remote_addr" }), json!({ "key": "all", "key_type": "constant" })] {
        let (arrived, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let decided = {
            let (arrived, refused) = (Arc::clone(&arrived), Arc::clone(&refused));
            move || (arrived.load(SeqCst) + refused.load(SeqCst) >= CLIENTS).then_some(())
        };
        let at_origin = Arc::clone(&arrived);
        // All that pass are under way until every request has passed or was refused.
        let origin = Origin::answering(move |_| {
            at_origin.fetch_add(1, SeqCst);
            wait_until("all requests to be decided", LIMIT, &decided);
            Answer::ok("done")
        });
        let mut limit = json!({ "conn": 3, "burst": MAY - 3, "default_conn_delay": 0.001, "rejected_code": 429 });
        limit.as_object_mut().expect("a map").extend(key.as_object().expect("a map").clone());
        let gateway = start(&origin, &json!({ "limit-conn": limit }));
        // A client with its response may still be counted for a moment: then fewer pass in the next round, never more.
        let full_round = || {
            arrived.store(0, SeqCst);
            refused.store(0, SeqCst);
            let begin = Barrier::new(CLIENTS);
            thread::scope(|scope| {
                for _ in 0..CLIENTS {
                    scope.spawn(|| {
                        begin.wait();
                        match gateway.get("/").status {
                            200 => {}
                            429 => drop(refused.fetch_add(1, SeqCst)),
                            other => panic!("status {other}"),
                        }
                    });
                }
            });
            let passed = arrived.load(SeqCst);
            assert!(passed <= MAY, "{passed} passed");
            (passed == MAY).then_some(())
        };
        for _ in 0..5 {
            wait_until("all places to be free", LIMIT, full_round);
        }
    }
}

#[test]
fn a_place_is_given_back_however_an_exchange_ends() {
    type End = fn(&Gateway, &Origin, &AtomicBool);
    let late = json!({ "limit-req": { "rate": 0.001, "burst": 0, "key": "remote_addr", "rejected_code": 429 } });
    let filter = json!({ "limit-conn": { "_meta": { "filter": [["upstream_status", "~=", "200"]] } } });
    let ends: [(&str, Value, u16, End); 6] = [
        ("answered", json!({}), 200, |_, _, _| {}),
        ("the filter holds no more", filter, 200, |_, _, _| {}),
        ("another plugin refuses", late, 429, |gateway, _, _| assert_eq!(gateway.get("/").status, 200)),
        ("the client resets", json!({}), 200, |gateway, origin, _| hold(gateway, origin, "").reset()),
        ("the client closes", json!({}), 200, |gateway, origin, gate| {
            // The client might only have closed its sending side, so its slot is free when the upstream has answered.
            drop(hold(gateway, origin, ""));
            gate.store(true, SeqCst);
        }),
        ("the answer is late", json!({}), 200, |gateway, origin, gate| {
            let mut client = hold(gateway, origin, "");
            assert_eq!(gateway.get("/").status, 503);
            gate.store(true, SeqCst);
            assert_eq!(client.response().status, 200);
        }),
    ];
    each(
        &ends,
        |(name, ..)| name.to_string(),
        |(_, more, after, end)| {
            let (origin, gate) = held();
            let mut plugins = one_at_once(&json!({}));
            for (name, conf) in more.as_object().expect("a map") {
                let plugin = &mut plugins[name];
                match plugin.as_object_mut() {
                    Some(known) => known.extend(conf.as_object().expect("a map").clone()),
                    None => *plugin = conf.clone(),
                }
            }
            let gateway = start(&origin, &plugins);
            for _ in 0..3 {
                end(&gateway, &origin, &gate);
                if *after != 200 {
                    break;
                }
                wait_until("the place to be free", LIMIT, || (gateway.get("/").status == 200).then_some(()));
                gate.store(false, SeqCst);
            }
            for _ in 0..3 {
                wait_until("the place to be free", LIMIT, || (gateway.get("/").status == *after).then_some(()));
            }
            gate.store(true, SeqCst);
        },
    );
}

#[test]
fn a_place_is_given_back_by_failures_of_the_upstream() {
    let refusing = Refusing::bind();
    let upstream = json!({ "nodes": { (refusing.node()): 1 } });
    let gateway =
        Start::new(route_with(json!({ "plugins": one_at_once(&json!({})) }), upstream)).workers(WORKERS).start();
    for _ in 0..5 {
        wait_until("the place to be free", LIMIT, || (gateway.get("/").status == 502).then_some(()));
    }
}

#[test]
fn a_websocket_has_a_place_until_it_is_closed() {
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.request() {
            if request.field("upgrade").is_some() {
                connection.send(crate::streaming::SWITCHED);
                return connection.await_close();
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let fields = json!({ "plugins": one_at_once(&json!({})), "enable_websocket": true });
    let gateway = Start::new(route_with(fields, json!({ "nodes": { (origin.node()): 1 } }))).workers(WORKERS).start();
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    assert!(format!("{:?}", client.head()).contains("101"));
    assert_eq!(gateway.get("/").status, 503);
    drop(client);
    wait_until("the place to be free", LIMIT, || (gateway.get("/").status == 200).then_some(()));
}

#[test]
fn who_is_beyond_the_number_waits_or_is_refused() {
    let (origin, gate) = held();
    let more = json!({
        "burst": 1, "default_conn_delay": 0.5, "only_use_default_delay": true, "key": "http_x_tenant",
        "rejected_code": 429, "rejected_msg": "too many"
    });
    let gateway = start(&origin, &one_at_once(&more));
    let mut first = hold(&gateway, &origin, "X-Tenant: a\r\n");
    let ask =
        |tenant: &str| gateway.client().request(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Tenant: {tenant}\r\n\r\n"));
    assert_eq!(ask("b").status, 200);
    let (response, took) = timed(|| ask("a"));
    assert_eq!(response.status, 200);
    assert!(took >= Duration::from_millis(490), "after {took:?}");
    // Counters survive a change that does not affect their limiter.
    let mut plugins = one_at_once(&more);
    plugins["response-rewrite"] = json!({ "headers": { "set": { "X-Mark": "new" } } });
    assert_eq!(gateway.reload(config(&origin, &plugins)), Reload::Applied);
    let mut second = hold(&gateway, &origin, "X-Tenant: a\r\n");
    let refused = ask("a");
    assert_eq!((refused.status, refused.text().as_str()), (429, "{\"error_msg\":\"too many\"}\n"));
    assert_eq!(refused.field("x-mark"), Some("new"));
    gate.store(true, SeqCst);
    assert_eq!([first.response().status, second.response().status], [200, 200]);
}

#[test]
fn a_request_keeps_all_rules() {
    let (origin, gate) = held();
    let rules = json!({
        "default_conn_delay": 0.1,
        "rejected_code": 429,
        "rules": [
            { "conn": 2, "burst": 0, "key": "$remote_addr" },
            { "conn": "$http_x_conn", "burst": 0, "key": "$http_x_tenant" },
        ]
    });
    let gateway = start(&origin, &json!({ "limit-conn": rules }));
    let mut first = hold(&gateway, &origin, "X-Tenant: a\r\nX-Conn: 1\r\n");
    let ask = |fields: &str| gateway.client().request(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).status;
    // A rule that refuses gives back what the rules before it have counted.
    for _ in 0..3 {
        assert_eq!(ask("X-Tenant: a\r\nX-Conn: 1\r\n"), 429);
        wait_until("the place to be free", LIMIT, || (ask("X-Tenant: b\r\nX-Conn: 1\r\n") == 200).then_some(()));
    }
    wait_until("a larger number to let it pass", LIMIT, || (ask("X-Tenant: a\r\nX-Conn: 2\r\n") == 200).then_some(()));
    let mut second = hold(&gateway, &origin, "");
    assert_eq!(ask("X-Tenant: c\r\nX-Conn: 9\r\n"), 429, "the first rule refuses");
    gate.store(true, SeqCst);
    assert_eq!([first.response().status, second.response().status], [200, 200]);
}

#[test]
fn an_upstream_that_fails_is_left_alone_by_all_workers() {
    let together = Barrier::new(CLIENTS);
    let origin = Origin::answering(move |request| {
        if request.target != "/" {
            return Answer::ok("done");
        }
        // All have passed when the first one fails.
        together.wait();
        Answer::status(500, "failed")
    });
    let breaker = json!({
        "break_response_code": 599,
        "break_response_body": "resting",
        "break_response_headers": [
            { "key": "X-Client", "value": "$remote_addr" },
            { "key": "Content-Type", "value": "text/plain" },
            { "key": "X-Client", "value": "again" },
            { "key": "content-type", "value": "text/css" },
        ],
        "max_breaker_sec": 3600,
        // Four times as many happen: it is open for 16 seconds.
        "unhealthy": { "failures": CLIENTS / 4 }
    });
    let gateway = start(&origin, &json!({ "api-breaker": breaker, "prometheus": {} }));
    assert_eq!(count(&gateway, 1, 500), CLIENTS);
    gateway.await_metric("apisix_http_status", &[("code", "500")], CLIENTS as f64);
    assert_eq!(count(&gateway, 5, 599), 5 * CLIENTS);
    let broken = gateway.get("/");
    assert_eq!((broken.status, broken.text().as_str()), (599, "resting"));
    assert_eq!(broken.fields.all("x-client"), ["127.0.0.1", "again"], "a field that may come twice");
    assert_eq!(broken.fields.all("content-type"), ["text/css"], "one that may not");
    assert_eq!(origin.requests().len(), CLIENTS);
    assert_eq!(gateway.get("/other").status, 200, "another path has a circuit of its own");
}

#[test]
fn an_upstream_that_works_again_is_asked_again() {
    let healthy = Arc::new(AtomicBool::new(false));
    let of_origin = Arc::clone(&healthy);
    let origin = Origin::answering(move |_| match of_origin.load(SeqCst) {
        true => Answer::ok("works"),
        false => Answer::status(500, "fails"),
    });
    let breaker = json!({ "api-breaker": { "break_response_code": 503, "unhealthy": { "failures": 1 }, "healthy": { "successes": 2 } } });
    let gateway = start(&origin, &breaker);
    let (_, took) = timed(|| {
        assert_eq!(gateway.get("/").status, 500);
        let broken =
            wait_until("the failure to be counted", LIMIT, || Some(gateway.get("/")).filter(|r| r.status == 503));
        assert_eq!(broken.text(), "{\"error_msg\":\"503 Service Unavailable\"}\n");
        healthy.store(true, SeqCst);
        wait_until("the pause to end", LIMIT, || (gateway.get("/").status == 200).then_some(()));
    });
    assert!(took >= Duration::from_millis(1990), "after {took:?}");
    assert_eq!([gateway.get("/").status, gateway.get("/").status], [200, 200]);
}
