//! Nodes that do not take connections: passed over for a while, tried apart from any request, and taken back.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Full, Gateway, LIMIT, Origin, Refusing, Reload, Start, each, post, route_with, timed, wait_until, weighted,
};

/// A gateway with two workers that reports the nodes tried, with the given duration of an ejection.
fn serving(nodes: &[String], fields: &Value, set_aside: &str) -> Gateway {
    let settings = format!("{{upstream: {{set_aside: {set_aside}}}, show_upstream_status_in_response_header: true}}");
    Start::new(config(nodes, fields)).settings(settings).workers(2).start()
}

fn config(nodes: &[String], fields: &Value) -> Value {
    let mut upstream = json!({ "nodes": weighted(nodes), "timeout": { "connect": 0.3, "send": 5, "read": 5 } });
    upstream.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    route_with(json!({}), upstream)
}

/// The statuses of the nodes tried for each of `requests` requests.
fn tries(gateway: &Gateway, requests: usize) -> Vec<String> {
    let statuses = |_| gateway.get("/").field("x-apisix-upstream-status").unwrap_or("none").to_owned();
    (0..requests).map(statuses).collect()
}

/// Number of ejected nodes, and number of ejections.
fn aside(gateway: &Gateway) -> (f64, f64) {
    let page = gateway.metrics_page();
    let value = |name| page.value(name, &[]).expect("a metric");
    (value("weir_upstream_nodes_set_aside"), value("weir_upstream_set_aside_total"))
}

fn said(gateway: &Gateway, what: &str) -> usize {
    gateway.stderr().lines().filter(|line| line.contains(what)).count()
}

/// Nodes that take no connections, each in its way, with the status of a try; and those that do.
#[test]
fn only_the_first_request_sees_that_a_node_takes_no_connections() {
    let refusing = Refusing::bind();
    let full = Full::bind();
    let resets = Origin::scripted(|connection| connection.reset());
    let closes = Origin::scripted(|connection| drop(connection.request()));
    let fails = Origin::answering(|_| Answer::status(500, "no"));
    let cases = [
        ("refuses", refusing.node(), "502, 200", true),
        ("lets connections time out", full.node(), "504, 200", true),
        ("resets connections", resets.node(), "502, 200", true),
        ("closes connections after a request", closes.node(), "502, 200", false),
        ("answers 500", fails.node(), "500", false),
    ];
    each(
        &cases,
        |(how, ..)| format!("a node that {how}"),
        |(how, node, status, set_aside)| {
            let live = [Origin::hello(), Origin::hello()];
            let nodes = [live[0].node(), node.clone(), live[1].node()];
            let gateway = serving(&nodes, &json!({}), "1h");
            if *set_aside {
                let mut failed = 0;
                wait_until("the node to be set aside", LIMIT, || {
                    let (told, took) = timed(|| tries(&gateway, 1));
                    assert!(told == ["200"] || told == [*status], "{told:?}");
                    // A reset counts as a refused connection only if it arrives within 100 ms of the gateway's clock.
                    let late = *how == "resets connections" && took >= Duration::from_millis(50);
                    failed += usize::from(told == [*status] && !late);
                    (aside(&gateway).0 > 0.0).then_some(())
                });
                assert!(failed <= 1, "{failed} requests have met it");
                let before = live.each_ref().map(|origin| origin.requests().len());
                assert_eq!(tries(&gateway, 30), ["200"; 30]);
                let shares = [0, 1].map(|n: usize| live[n].requests().len() - before[n]);
                assert!(shares.iter().all(|share| share.abs_diff(15) <= 1), "what is left is shared: {shares:?}");
                gateway.logged("node set aside");
                assert_eq!((aside(&gateway), said(&gateway, "node set aside")), ((1.0, 1.0), 1));
            } else {
                let tries = tries(&gateway, 30);
                let failed = tries.iter().filter(|told| *told == status).count();
                let served = tries.iter().filter(|told| *told == "200").count();
                assert_eq!((failed, served), (10, 20), "{tries:?}");
                assert_eq!((aside(&gateway), said(&gateway, "node set aside")), ((0.0, 0.0), 0));
            }
        },
    );
}

#[test]
fn a_request_that_may_not_be_sent_twice_is_spared_too() {
    let (live, refusing) = (Origin::hello(), Refusing::bind());
    let gateway = serving(&[refusing.node(), live.node()], &json!({ "retries": 0 }), "1h");
    let statuses: Vec<u16> = (0..10).map(|_| gateway.client().request(post("/", "x")).status).collect();
    let failed = statuses.iter().filter(|status| **status == 502).count();
    assert_eq!(failed, 1, "{statuses:?}");
}

#[test]
fn a_node_that_comes_and_goes_is_followed() {
    let origins = [Origin::hello(), Origin::hello()];
    let nodes = origins.each_ref().map(Origin::node);
    let gateway = serving(&nodes, &json!({}), "200ms");
    for round in 1..=3 {
        assert_eq!(tries(&gateway, 4), ["200"; 4]);
        origins[0].die();
        let told = tries(&gateway, 10);
        assert!(told.iter().all(|told| told.ends_with("200")), "no request is lost: {told:?}");
        assert_eq!(aside(&gateway), (1.0, f64::from(round)));

        let before = origins[0].requests().len();
        origins[0].rise();
        gateway.await_metric("weir_upstream_nodes_set_aside", &[], 0.0);
        wait_until("the line in the log", LIMIT, || (said(&gateway, "node is back") == round as usize).then_some(()));
        assert_eq!(tries(&gateway, 10), ["200"; 10]);
        assert_eq!(origins[0].requests().len() - before, 5, "it has its share again");
    }
}

#[test]
fn a_node_is_tried_apart_from_any_request() {
    // The node accepts and resets connections, so that no request may be used as a probe. If the reset is late, a connection
    // was open for long enough to end the ejection, and the next attempt repeats the test.
    for attempt in 1..=10 {
        let dead = Origin::scripted(|connection| connection.reset());
        let live = Origin::hello();
        let gateway = serving(&[dead.node(), live.node()], &json!({}), "100ms");
        wait_until("the node to be set aside", LIMIT, || {
            tries(&gateway, 1);
            (aside(&gateway).1 > 0.0).then_some(())
        });
        let before = dead.connections();
        wait_until("connections that are tried without a request", LIMIT, || {
            (dead.connections() > before + 2).then_some(())
        });
        let told = tries(&gateway, 20);
        if aside(&gateway) == (1.0, 1.0) || attempt == 10 {
            assert_eq!(told, ["200"; 20]);
            assert_eq!((aside(&gateway), said(&gateway, "node is back")), ((1.0, 1.0), 0));
            assert_eq!(dead.requests().len(), 0);
            break;
        }
    }
}

#[test]
fn with_all_nodes_set_aside_all_are_tried() {
    let origins = [Origin::hello(), Origin::hello()];
    let nodes = origins.each_ref().map(Origin::node);
    origins.iter().for_each(Origin::die);
    let gateway = serving(&nodes, &json!({}), "1h");
    assert_eq!(tries(&gateway, 3), ["502, 502"; 3]);
    assert_eq!(aside(&gateway), (2.0, 2.0));
    origins[1].rise();
    let told = tries(&gateway, 2);
    assert!(told.iter().all(|told| told.ends_with("200")), "{told:?}");
    assert_eq!(aside(&gateway), (1.0, 2.0), "the request that reached it has brought it back");
    assert_eq!(tries(&gateway, 10), ["200"; 10]);
}

#[test]
fn the_only_node_and_a_time_of_0_set_nothing_aside() {
    let refusing = Refusing::bind();
    let gateway = serving(&[refusing.node()], &json!({}), "1h");
    assert_eq!(tries(&gateway, 3), ["502"; 3]);
    assert_eq!((aside(&gateway), said(&gateway, "node set aside")), ((0.0, 0.0), 0));

    let live = Origin::hello();
    let gateway = serving(&[refusing.node(), live.node()], &json!({}), "0");
    let told = tries(&gateway, 20);
    assert_eq!(told.iter().filter(|told| *told == "502, 200").count(), 10, "{told:?}");
    assert_eq!((aside(&gateway), said(&gateway, "node set aside")), ((0.0, 0.0), 0));
}

#[test]
fn what_is_set_aside_outlives_a_change() {
    let (live, refusing) = (Origin::hello(), Refusing::bind());
    let nodes = [refusing.node(), live.node()];
    let gateway = serving(&nodes, &json!({}), "200ms");
    tries(&gateway, 2);
    for n in 0..3 {
        assert_eq!(gateway.reload(config(&nodes, &json!({ "desc": n.to_string() }))), Reload::Applied);
        assert_eq!(tries(&gateway, 4), ["200"; 4]);
    }
    assert_eq!(aside(&gateway), (1.0, 1.0));
    // Once no configuration names it, nobody tries it any more.
    assert_eq!(gateway.reload(config(&nodes[1..], &json!({}))), Reload::Applied);
    gateway.await_metric("weir_upstream_nodes_set_aside", &[], 0.0);
}
