//! The node that gets a request, and the time its connections are kept.

use std::sync::Arc;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Gateway, LIMIT, Nginx, Origin, Start, get, route_to, route_with, timed, wait_until, weighted,
};

/// Number of requests that each origin received.
fn shares(origins: &[Origin]) -> Vec<usize> {
    origins.iter().map(|origin| origin.requests().len()).collect()
}

fn nodes(origins: &[Origin], weights: &[u32]) -> Value {
    origins.iter().zip(weights).map(|(origin, weight)| (origin.node(), json!(weight))).collect()
}

#[test]
fn requests_are_shared_by_weight() {
    for (weights, requests, expected) in [
        (&[1, 1][..], 100, &[50, 50][..]),
        (&[5, 1, 1], 70, &[50, 10, 10]),
        (&[100, 200, 700], 100, &[10, 20, 70]),
        (&[1, 0], 20, &[20, 0]),
        (&[0, 3, 0, 1], 40, &[0, 30, 0, 10]),
    ] {
        let origins = Origin::numbered(weights.len());
        let config = route_with(json!({}), json!({ "type": "roundrobin", "nodes": nodes(&origins, weights) }));
        let gateway = Start::new(config).workers(2).start();
        // Each on a connection of its own, so that both workers take part.
        for _ in 0..requests {
            assert_eq!(gateway.get("/").status, 200);
        }
        assert_eq!(shares(&origins), expected, "weights {weights:?}");
    }
}

#[test]
fn heavy_nodes_are_spread_among_light_ones() {
    let origins = Origin::numbered(3);
    let gateway = Gateway::start(route_with(json!({}), json!({ "nodes": nodes(&origins, &[5, 1, 1]) })));
    let mut client = gateway.client();
    let turns: String = (0..14).map(|_| client.get("/").text()).collect();
    // Smooth weighted round robin of weights 5, 1, 1 gives a, a, b, a, c, a, a.
    assert_eq!(turns, "00102000010200");
}

#[test]
fn an_upstream_without_a_node_to_pick_is_a_503() {
    let origin = Origin::hello();
    for upstream in [json!({ "nodes": {} }), json!({ "nodes": { (origin.node()): 0 } })] {
        let gateway = Gateway::start(route_with(json!({}), upstream.clone()));
        let response = gateway.get("/");
        assert_eq!(response.status, 503, "{upstream}");
        assert_eq!(response.json(), json!({ "error_msg": "503 Service Unavailable" }), "{upstream}");
        assert_eq!(response.field("x-apisix-upstream-status"), None, "no upstream was asked");
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn upstreams_of_routes_services_and_references_are_used() {
    let origins = Origin::numbered(3);
    let upstream = |index: usize| json!({ "nodes": weighted(&[origins[index].node()]) });
    let mut named = upstream(1);
    named["id"] = json!("named");
    let gateway = Gateway::start(json!({
        "upstreams": [named],
        "services": [{ "id": "s", "upstream": upstream(2) }],
        "routes": [
            { "id": 1, "uri": "/own", "upstream": upstream(0) },
            { "id": 2, "uri": "/named", "upstream_id": "named" },
            { "id": 3, "uri": "/service", "service_id": "s" },
            { "id": 4, "uri": "/both", "service_id": "s", "upstream_id": "named" },
        ],
    }));
    let mut client = gateway.client();
    for (path, origin) in [("/own", "0"), ("/named", "1"), ("/service", "2"), ("/both", "1")] {
        assert_eq!(client.get(path).text(), origin, "{path}");
    }
    let response = client.get("/none");
    assert_eq!((response.status, response.text().as_str()), (404, "{\"error_msg\":\"404 Route Not Found\"}\n"));
}

/// An origin whose answers wait until so many requests are there.
fn gathering(count: usize) -> Origin {
    let barrier = Arc::new(Barrier::new(count));
    Origin::answering(move |request| {
        if request.target == "/together" {
            barrier.wait();
        }
        Answer::ok("hello")
    })
}

fn pooled(origin: &Origin, pool: &Value) -> Gateway {
    Gateway::start(route_with(json!({}), json!({ "nodes": weighted(&[origin.node()]), "keepalive_pool": pool })))
}

/// Sends so many requests at the same time.
fn together(gateway: &Gateway, count: usize) {
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| assert_eq!(gateway.get("/together").status, 200));
        }
    });
}

#[test]
fn no_more_idle_connections_are_kept_than_the_pool_holds() {
    let origin = gathering(6);
    let gateway = pooled(&origin, &json!({ "size": 2, "idle_timeout": 60, "requests": 1000 }));
    together(&gateway, 6);
    assert_eq!(origin.connections(), 6);
    wait_until("all but 2 connections to be closed", LIMIT, || (origin.open() == 2).then_some(()));
    gateway.await_metric("weir_upstream_connections", &[("state", "idle")], 2.0);
    for _ in 0..10 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert_eq!((origin.connections(), origin.open()), (6, 2), "what is kept is used");
}

#[test]
fn one_worker_keeps_no_more_than_the_settings_say() {
    let origins = [gathering(4), gathering(4)];
    let route = |id: &str, origin: &Origin| json!({ "id": id, "host": id, "uri": "/*", "upstream": { "nodes": weighted(&[origin.node()]) } });
    let config = json!({ "routes": [route("a.test", &origins[0]), route("b.test", &origins[1])] });
    let gateway = Gateway::with(config, json!({ "limits": { "upstream_idle_connections": 5 } }));
    for host in ["a.test", "b.test"] {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let request = format!("GET /together HTTP/1.1\r\nHost: {host}\r\n\r\n");
                    assert_eq!(gateway.client().request(request).status, 200);
                });
            }
        });
    }
    gateway.await_metric("weir_upstream_connections", &[("state", "idle")], 5.0);
    wait_until("3 of 8 connections to be closed", LIMIT, || (origins[0].open() + origins[1].open() == 5).then_some(()));
}

#[test]
fn idle_connections_are_closed_in_time() {
    let origin = Origin::hello();
    let gateway = pooled(&origin, &json!({ "size": 10, "idle_timeout": 1, "requests": 1000 }));
    assert_eq!(gateway.get("/").status, 200);
    let ((), took) =
        timed(|| wait_until("the idle connection to be closed", LIMIT, || (origin.open() == 0).then_some(())));
    assert!(took > Duration::from_millis(800), "after {took:?}");
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(origin.connections(), 2);
}

#[test]
fn a_connection_carries_no_more_requests_than_allowed() {
    let origin = Origin::hello();
    let gateway = pooled(&origin, &json!({ "size": 10, "idle_timeout": 60, "requests": 3 }));
    let mut client = gateway.client();
    for _ in 0..9 {
        assert_eq!(client.get("/").status, 200);
    }
    let mut of_connections = [0; 3];
    for request in origin.requests() {
        of_connections[request.connection - 1] += 1;
    }
    assert_eq!(of_connections, [3, 3, 3]);
    wait_until("all connections to be closed", LIMIT, || (origin.open() == 0).then_some(()));
}

#[test]
fn clients_on_one_worker_share_upstream_connections() {
    let nginx = Nginx::start("location / { return 200 '$connection'; }");
    let gateway = Gateway::start(route_to(&[nginx.node()]));
    let first = gateway.get("/").text();
    for _ in 0..20 {
        assert_eq!(gateway.get("/").text(), first);
    }
}

#[test]
fn an_upstream_that_does_not_keep_connections_is_served_too() {
    let answers = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\n\r\nhello",
    ];
    for answer in answers {
        let origin = Origin::answering(move |_| Answer::close(answer));
        let gateway = Gateway::start(route_to(&[origin.node()]));
        let mut client = gateway.client();
        for number in 1..=3 {
            let response = client.request(get("/"));
            assert_eq!((response.status, response.text().as_str()), (200, "hello"));
            assert!(response.keeps_connection(), "the upstream's close is not the client's: {response:?}");
            assert_eq!(origin.connections(), number);
        }
    }
}
