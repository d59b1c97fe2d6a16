//! Passive health checks: what requests show of a node.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, Refusing, Start, get, wait_until};
use crate::health::{SELDOM, active, assert_all_well, await_state, config, node, settable};

/// Passive checks under which only one kind of failure counts, beside active ones that are as good as not there.
fn passive(unhealthy: &Value) -> Value {
    let mut limits = json!({ "http_failures": 0, "tcp_failures": 0, "timeouts": 0 });
    limits.as_object_mut().expect("an object").extend(unhealthy.as_object().expect("an object").clone());
    json!({
        "active": {
            "http_path": "/check",
            "healthy": { "interval": SELDOM, "http_statuses": [299] },
            "unhealthy": { "interval": SELDOM, "http_statuses": [298], "tcp_failures": 254, "timeouts": 254 },
        },
        "passive": { "healthy": { "successes": 3 }, "unhealthy": limits },
    })
}

#[test]
fn passive_checks_count_what_requests_show() {
    let resets = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.reset();
        }
    });
    let hangs = Origin::scripted(|connection| {
        connection.request();
        connection.await_close();
    });
    let (fails, _) = settable(500);
    let refuses = Refusing::bind();
    for (sick, limits, counter) in [
        (fails.node(), json!({ "http_failures": 3 }), "http_failure"),
        (fails.node(), json!({ "http_statuses": [500], "http_failures": 1 }), "http_failure"),
        (refuses.node(), json!({ "tcp_failures": 1 }), "tcp_failure"),
        (resets.node(), json!({ "tcp_failures": 1 }), "tcp_failure"),
        (hangs.node(), json!({ "timeouts": 1 }), "timeout_failure"),
    ] {
        let well = Origin::hello();
        // A node that is set aside at its first failure would show no second one.
        let start = Start::new(config(&[sick.clone(), well.node()], &passive(&limits))).workers(2);
        let gateway = start.settings("{upstream: {set_aside: 0}}").start();
        wait_until("the node to be known", LIMIT, || node(&gateway, &sick));
        let failed = (0..20).filter(|_| gateway.get("/").status != 200).count();
        let expected = limits.as_object().expect("an object").values().filter_map(Value::as_u64).max();
        let expected = expected.expect("a threshold") as usize;
        // The first active check may have counted one more failure.
        assert!(failed >= 1 && (failed == expected || failed + 1 == expected), "{sick} {limits}: {failed} failures");
        let found = node(&gateway, &sick).expect("the node");
        let counted = found["counter"][counter].as_u64().expect("a counter") as usize;
        assert!(found["status"] == "unhealthy" && counted >= expected, "{found}");
        assert_all_well(&gateway);
    }
}

#[test]
fn passive_checks_of_the_type_tcp_leave_statuses_aside() {
    let (fails, _) = settable(500);
    let mut checks = passive(&json!({ "http_failures": 1 }));
    checks["passive"]["type"] = json!("tcp");
    let gateway = Gateway::start(config(&[fails.node()], &checks));
    wait_until("the node to be known", LIMIT, || node(&gateway, &fails.node()));
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status, 500);
    }
    assert_eq!(node(&gateway, &fails.node()).expect("the node")["status"], "healthy");
}

#[test]
fn what_a_client_does_is_no_fault_of_a_node() {
    let origin = Origin::answering(|request| {
        if request.target == "/slow" {
            thread::sleep(Duration::from_millis(100));
        }
        Answer::ok("hello")
    });
    let gateway = Gateway::start(config(&[origin.node()], &passive(&json!({ "tcp_failures": 1, "timeouts": 1 }))));
    wait_until("the node to be known", LIMIT, || node(&gateway, &origin.node()));
    for request in ["POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf", &get("/slow")] {
        let mut client = gateway.client();
        client.send(request);
        wait_until("the origin to have it", LIMIT, || (origin.open() > 0).then_some(()));
        client.reset();
    }
    assert_all_well(&gateway);
    let found = node(&gateway, &origin.node()).expect("the node");
    assert_eq!((&found["status"], &found["counter"]["tcp_failure"]), (&json!("healthy"), &json!(0)), "{found}");
}

#[test]
fn active_checks_bring_back_what_passive_ones_took_out() {
    let (origin, status) = settable(500);
    let well = Origin::hello();
    let mut checks = active(&json!({ "healthy": { "successes": 2 }, "unhealthy": { "http_failures": 254 } }));
    checks["passive"] = json!({ "unhealthy": { "http_failures": 2 } });
    let gateway = Gateway::start(config(&[origin.node(), well.node()], &checks));
    wait_until("requests to show it", LIMIT, || {
        gateway.get("/");
        (node(&gateway, &origin.node())?["status"] == "unhealthy").then_some(())
    });
    assert_all_well(&gateway);
    status.store(200, SeqCst);
    await_state(&gateway, &origin.node(), "healthy");
}
