//! Clients take no descriptor that something else needs; and out of descriptors nevertheless, the gateway serves what it
//! has, does not spin, and recovers.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::harness::{Answer, Gateway, LIMIT, Origin, RawClient, Start, get, route_to, route_with, timed, wait_until};

const FEW: usize = 256;

fn may_open(gateway: &Gateway, files: u64) {
    let limit = Rlimit { current: Some(files), maximum: Some(FEW as u64) };
    prlimit(Pid::from_raw(gateway.process.id() as i32), Resource::Nofile, limit).expect("set the limit");
}

/// Most client connections.
fn most(gateway: &Gateway) -> usize {
    gateway.metric("weir_client_connections_limit", &[]) as usize
}

#[test]
fn idle_clients_lock_nobody_out() {
    let origin = Origin::hello();
    let gateway = Start::new(route_to(&[origin.node()])).open_files(FEW).start();
    assert!(!gateway.stderr().contains("escriptor") || !gateway.stderr().contains("WARN"), "{}", gateway.stderr());
    let mut silent = gateway.client();
    let mut kept = gateway.client();
    assert_eq!(kept.get("/").status, 200);
    let mut idle: Vec<RawClient> = (0..2 * FEW).map(|_| gateway.client()).collect();
    // Those that waited longest have gone.
    silent.expect_close();
    kept.expect_close();
    for _ in 0..20 {
        assert_eq!(gateway.get("/").status, 200);
        assert_eq!(RawClient::connect(gateway.status).get("/status").status, 200);
    }
    // The last ones are still there.
    for client in idle.iter_mut().rev().take(5) {
        assert_eq!(client.get("/").status, 200);
    }
    assert!((FEW / 8..FEW / 2).contains(&most(&gateway)), "{} clients of {FEW} descriptors", most(&gateway));
    let gone = gateway.metric("weir_client_errors_total", &[("reason", "too_many_connections")]) as usize;
    assert!(gone >= idle.len() - most(&gateway), "{gone} of {} gave way", idle.len());
    gateway.logged("for each new one the longest idle is closed");
    assert!(!gateway.stderr().contains("cannot accept"), "{}", gateway.stderr());
}

#[test]
fn every_client_finds_a_descriptor_for_its_upstream() {
    let held = Arc::new(Mutex::new(true));
    let hold = held.clone();
    let origin = Origin::answering(move |_| {
        while *hold.lock().unwrap() {
            thread::sleep(Duration::from_millis(5));
        }
        Answer::ok("hello")
    });
    let other = Origin::hello();
    let config = json!({ "routes": [
        { "id": "held", "uri": "/held", "upstream": { "nodes": { origin.node(): 1 } } },
        { "id": "other", "uri": "/*", "upstream": { "nodes": { other.node(): 1 } } },
    ] });
    let gateway = Start::new(config).open_files(FEW).start();
    let mut clients: Vec<RawClient> = (0..most(&gateway)).map(|_| gateway.client()).collect();
    // Connections to one upstream that are kept must not take the room of those to another.
    for client in &mut clients {
        client.send(get("/"));
    }
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
        client.send(get("/held"));
    }
    wait_until("all requests to be at the origin", LIMIT, || (origin.requests().len() == clients.len()).then_some(()));
    let ready = RawClient::connect(gateway.status).get("/status/ready");
    assert_eq!(ready.status, 200);
    *held.lock().unwrap() = false;
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
}

/// The limit is lowered under what is open, as a system that has run out of descriptors does.
#[test]
fn a_gateway_without_descriptors_goes_on_and_recovers() {
    let config =
        route_with(json!({ "plugins": { "mocking": { "response_example": "mocked" } } }), json!({ "nodes": {} }));
    let gateway = Start::new(config).open_files(FEW).start();
    let mut served: Vec<RawClient> = (0..10).map(|_| gateway.client()).collect();
    for client in &mut served {
        assert_eq!(client.get("/").text(), "mocked");
    }
    may_open(&gateway, 8);
    let mut waiting: Vec<RawClient> = (0..5).map(|_| gateway.client()).collect();
    for client in &mut waiting {
        client.send(get("/"));
    }
    gateway.logged("cannot accept connections");
    // Waiting for descriptors is not work.
    let before = gateway.process.cpu();
    let ((), waited) = timed(|| waiting[0].expect_quiet(Duration::from_secs(1)));
    let used = gateway.process.cpu().saturating_sub(before);
    assert!(used < waited / 5, "{used:?} of processor time in {waited:?} of waiting");

    may_open(&gateway, FEW as u64);
    for client in &mut waiting {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(gateway.get("/").status, 200);
}
