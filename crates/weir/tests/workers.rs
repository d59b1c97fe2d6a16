//! Several workers count together and stop together.

use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Gateway, LIMIT, Origin, RawClient, Start, each, get, route_with, timed, wait_until};

#[test]
fn a_limit_is_exact_across_workers() {
    let origin = Origin::hello();
    each(
        &["fixed", "sliding"],
        |window| window.to_string(),
        |window| {
            let limit = json!({ "count": 100, "time_window": 600, "window_type": window, "rejected_code": 429, "key_type": "constant", "key": "all" });
            let by_address = json!({ "count": 100, "time_window": 600, "window_type": window, "rejected_code": 429 });
            for limit in [limit, by_address] {
                let fields = json!({ "plugins": { "limit-count": limit } });
                let gateway =
                    Start::new(route_with(fields, json!({ "nodes": { (origin.node()): 1 } }))).workers(4).start();
                let (passed, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let begin = Barrier::new(8);
                thread::scope(|scope| {
                    for _ in 0..8 {
                        scope.spawn(|| {
                            begin.wait();
                            for _ in 0..50 {
                                // A new connection each time: any worker may get it.
                                match gateway.get("/").status {
                                    200 => passed.fetch_add(1, SeqCst),
                                    429 => refused.fetch_add(1, SeqCst),
                                    other => panic!("status {other}"),
                                };
                            }
                        });
                    }
                });
                assert_eq!((passed.load(SeqCst), refused.load(SeqCst)), (100, 300), "{limit}");
            }
        },
    );
    assert_eq!(origin.requests().len(), 400);
}

/// Number of connections of each worker.
fn by_worker(gateway: &Gateway, workers: usize) -> Vec<usize> {
    let page = gateway.metrics_page();
    let count = |worker: usize| page.value("weir_worker_connections", &[("worker", &worker.to_string())]);
    (0..workers).map(|worker| count(worker).expect("a metric for each worker") as usize).collect()
}

#[test]
fn few_connections_are_spread_evenly() {
    each(
        &[(2, 10, 1), (2, 100, 1), (4, 10, 1), (4, 100, 1), (2, 10, 0), (4, 100, 0)],
        |case| format!("{case:?}"),
        |&(workers, connections, requests)| {
            let gateway = Start::new(json!({ "routes": [] })).workers(workers).start();
            let mut clients: Vec<_> = (0..connections).map(|_| gateway.client()).collect();
            for client in &mut clients {
                for _ in 0..requests {
                    assert_eq!(client.get("/").status, 404);
                }
            }
            let counts = wait_until("all connections to be open", LIMIT, || {
                let counts = by_worker(&gateway, workers);
                (counts.iter().sum::<usize>() == connections).then_some(counts)
            });
            let (most, least) = (counts.iter().max().expect("workers"), counts.iter().min().expect("workers"));
            // One more where two workers chose the same third one at the same moment.
            assert!(most - least <= 2, "{counts:?}");
            // Half of them go, of whichever workers, and as many come.
            clients.truncate(connections / 2);
            let open = |wanted: usize| {
                wait_until("connections to close", LIMIT, || {
                    (by_worker(&gateway, workers).iter().sum::<usize>() == wanted).then_some(())
                });
            };
            open(connections / 2);
            clients.extend((connections / 2..connections).map(|_| gateway.client()));
            for client in &mut clients {
                assert_eq!(client.get("/").status, 404, "one that was handed over is served");
            }
            let counts = by_worker(&gateway, workers);
            let (most, least) = (counts.iter().max().expect("workers"), counts.iter().min().expect("workers"));
            assert!(most - least <= 2, "after half of them went: {counts:?}");
            drop(clients);
            open(0);
        },
    );
}

/// A handed-over connection keeps the client's address and the options of its listener.
#[test]
fn a_connection_stays_what_it_is_when_it_is_handed_over() {
    let told = "$remote_addr|$remote_port|$server_port|$scheme";
    let config =
        json!({ "routes": [{ "id": "tell", "uri": "/*", "plugins": { "mocking": { "response_example": told } } }] });
    let settings = json!({
        "listen": { "http": ["127.0.0.1:0", "[::1]:0", "127.0.0.1:0"], "https": [] },
    });
    let gateway = Start::new(config).settings(settings).own_listeners().workers(4).start();
    let mut clients: Vec<_> =
        gateway.addrs.iter().cycle().take(30).map(|addr| (RawClient::connect(*addr), addr)).collect();
    for (client, addr) in &mut clients {
        let own = client.sender().local_addr().expect("an address");
        assert_eq!(client.get("/").text(), format!("{}|{}|{}|http", own.ip(), own.port(), addr.port()));
    }
}

/// An origin that answers on command of the test.
fn held() -> (Origin, Arc<Barrier>) {
    let gate = Arc::new(Barrier::new(2));
    let of_origin = Arc::clone(&gate);
    let origin = Origin::answering(move |request| {
        if request.target == "/held" {
            of_origin.wait();
        }
        crate::harness::Answer::ok("done")
    });
    (origin, gate)
}

fn start(origin: &Origin, drain: &str) -> Gateway {
    let config = route_with(json!({}), json!({ "nodes": { (origin.node()): 1 } }));
    Start::new(config).workers(4).settings(json!({ "timeouts": { "drain": drain } })).start()
}

#[test]
fn a_signal_drains() {
    for signal in [Signal::TERM, Signal::INT] {
        let (origin, gate) = held();
        let mut gateway = start(&origin, "30s");
        let mut idle: Vec<_> = (0..20).map(|_| gateway.client()).collect();
        for client in idle.iter_mut().take(10) {
            assert_eq!(client.get("/").status, 200);
        }
        let mut busy = gateway.client();
        busy.send(get("/held"));
        wait_until("the request to reach the origin", LIMIT, || {
            origin.requests().iter().any(|r| r.target == "/held").then_some(())
        });
        gateway.signal(signal);
        for client in &mut idle {
            client.expect_close();
        }
        wait_until("the listeners to close", LIMIT, || TcpStream::connect(gateway.addr).is_err().then_some(()));
        assert!(gateway.process.exited().is_none(), "it waits for the request in flight");
        gate.wait();
        let response = busy.response();
        assert_eq!((response.status, response.text().as_str()), (200, "done"));
        assert!(!response.keeps_connection(), "{response:?}");
        busy.expect_close();
        let status = gateway.wait();
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_drain_has_a_limit() {
    let (origin, gate) = held();
    let mut gateway = start(&origin, "500ms");
    let mut busy = gateway.client();
    busy.send(get("/held"));
    wait_until("the request to reach the origin", LIMIT, || (!origin.requests().is_empty()).then_some(()));
    let (status, took) = timed(|| {
        gateway.signal(Signal::TERM);
        gateway.wait()
    });
    assert!(status.success(), "{status}");
    assert!(took >= Duration::from_millis(400) && took < LIMIT / 2, "after {took:?}");
    assert!(busy.try_response().is_err());
    gate.wait();
}

#[test]
fn a_second_signal_ends_at_once() {
    let (origin, gate) = held();
    let mut gateway = start(&origin, "60s");
    let mut busy = gateway.client();
    busy.send(get("/held"));
    wait_until("the request to reach the origin", LIMIT, || (!origin.requests().is_empty()).then_some(()));
    gateway.signal(Signal::TERM);
    wait_until("the listeners to close", LIMIT, || TcpStream::connect(gateway.addr).is_err().then_some(()));
    gateway.signal(Signal::TERM);
    let (_, took) = timed(|| gateway.wait());
    assert!(took < LIMIT / 2, "after {took:?}");
    gate.wait();
}

#[test]
fn every_worker_takes_connections() {
    let (origin, _gate) = held();
    let gateway = start(&origin, "1s");
    for _ in 0..100 {
        assert_eq!(gateway.get("/").status, 200);
    }
    // Each worker has upstream connections of its own.
    assert!(origin.connections() > 1, "one worker did all the work");
    assert!(origin.connections() <= 4, "{} connections by 4 workers, one request at a time", origin.connections());
}
