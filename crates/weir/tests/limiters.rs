//! Limiters count for all workers together.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Reload, Start, route_with, timed};

const WORKERS: usize = 4;
const CLIENTS: usize = 16;

fn config(origin: &Origin, plugins: Value) -> Value {
    route_with(json!({ "plugins": plugins }), json!({ "nodes": { (origin.node()): 1 } }))
}

fn start(origin: &Origin, plugins: Value) -> Gateway {
    Start::new(config(origin, plugins)).workers(WORKERS).start()
}

/// How many of the requests of all clients at once, `each` from every one, are answered with this status.
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
        let gateway = start(&origin, json!({ "limit-req": limit }));
        assert_eq!(count(&gateway, 20, 200), 101, "the first and the burst: {limit}");
        assert_eq!(count(&gateway, 1, 429), CLIENTS);
    }
    assert_eq!(origin.requests().len(), 202);
}

#[test]
fn what_is_early_waits_for_its_turn() {
    let origin = Origin::hello();
    let gateway = start(&origin, json!({ "limit-req": { "rate": 20, "burst": 15, "key": "remote_addr" } }));
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
    let gateway = Gateway::start(config(&origin, plugins(2, "first")));
    assert_eq!([gateway.get("/").status, gateway.get("/").status], [200, 200]);
    assert_eq!(gateway.reload(config(&origin, plugins(2, "second"))), Reload::Applied);
    let response = gateway.get("/");
    assert_eq!((response.status, response.field("x-mark")), (200, Some("second")));
    assert_eq!(gateway.get("/").status, 503);
    // A rate that was changed counts anew.
    assert_eq!(gateway.reload(config(&origin, plugins(1, "third"))), Reload::Applied);
    assert_eq!([200, 200, 503], [(); 3].map(|()| gateway.get("/").status));
}
