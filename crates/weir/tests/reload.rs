//! A change of the configuration: nothing that runs, idles or counts notices one that does not concern it.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Nginx, Origin, Reload, Start, get, post, route_to, wait_until};

/// One route for everything, and another one that differs between configurations.
fn config(node: &str, version: usize, plugins: &Value) -> Value {
    json!({ "routes": [
        { "id": "all", "uri": "/*", "upstream": { "nodes": { (node): 1 } }, "plugins": plugins },
        { "id": "version", "uri": "/version", "plugins": { "mocking": { "response_example": version.to_string() } } },
    ]})
}

#[test]
fn no_request_fails_while_the_configuration_changes() {
    let nginx =
        Nginx::start("location / { return 200 hello; }\nlocation /upload { proxy_pass http://unix:FOLDER/none; }");
    let echo = Origin::echo();
    let mut first = config(&nginx.node(), 0, &json!({}));
    let echo_route = json!({ "id": "echo", "uri": "/echo", "upstream": { "nodes": { (echo.node()): 1 } } });
    first["routes"].as_array_mut().expect("routes").push(echo_route.clone());
    let gateway = Start::new(&first).workers(2).start();
    let stop = AtomicBool::new(false);
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..4 {
            let (gateway, stop, served) = (&gateway, &stop, &served);
            scope.spawn(move || {
                let mut client = gateway.client();
                while !stop.load(SeqCst) {
                    // Kept connections, new ones, and requests with a body.
                    let response = match number {
                        0 | 1 => client.get("/"),
                        2 => gateway.get("/"),
                        _ => client.request(post("/echo", "body")),
                    };
                    assert_eq!(response.status, 200, "{response:?}");
                    assert_eq!(response.text(), if number == 3 { "body" } else { "hello" });
                    served.fetch_add(1, SeqCst);
                }
            });
        }
        for version in 1..=20 {
            let next = Instant::now() + Duration::from_millis(100);
            let mut changed = config(&nginx.node(), version, &json!({}));
            changed["routes"].as_array_mut().expect("routes").push(echo_route.clone());
            assert_eq!(gateway.reload(&changed), Reload::Applied);
            assert_eq!(gateway.get("/version").text(), version.to_string());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        stop.store(true, SeqCst);
    });
    assert!(served.load(SeqCst) > 500, "only {served:?} requests");
    assert_eq!(gateway.metric("weir_worker_panics_total", &[]), 0.0);
}

#[test]
fn counters_survive_what_does_not_concern_them() {
    let origin = Origin::hello();
    let limit = |count: usize| json!({ "limit-count": { "count": count, "time_window": 600, "rejected_code": 429 } });
    let gateway = Gateway::start(config(&origin.node(), 0, &limit(5)));
    let statuses = |count: usize| -> Vec<u16> { (0..count).map(|_| gateway.get("/").status).collect() };
    assert_eq!(statuses(3), [200, 200, 200]);

    assert_eq!(gateway.reload(config(&origin.node(), 1, &limit(5))), Reload::Applied);
    let response = gateway.get("/");
    assert_eq!((response.status, response.field("x-ratelimit-remaining")), (200, Some("1")));
    assert_eq!(statuses(2), [200, 429]);

    // A limit that was changed counts anew.
    assert_eq!(gateway.reload(config(&origin.node(), 1, &limit(3))), Reload::Applied);
    assert_eq!(statuses(4), [200, 200, 200, 429]);
}

#[test]
fn idle_connections_survive_on_both_sides() {
    let origin = Origin::hello();
    let gateway = Gateway::start(config(&origin.node(), 0, &json!({})));
    let mut client = gateway.client();
    for version in 1..=5 {
        assert_eq!(client.get("/").status, 200);
        assert_eq!(gateway.reload(config(&origin.node(), version, &json!({}))), Reload::Applied);
    }
    assert_eq!(client.get("/version").text(), "5");
    assert_eq!(client.get("/").status, 200);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn connections_to_nodes_that_are_gone_are_closed() {
    let (before, after) = (Origin::hello(), Origin::hello());
    let gateway = Gateway::start(route_to(&[before.node()]));
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.reload(route_to(&[after.node()])), Reload::Applied);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!((before.requests().len(), after.requests().len()), (1, 1));
    wait_until("the old node's connection to be closed", LIMIT, || (before.open() == 0).then_some(()));
}

#[test]
fn what_is_in_flight_is_not_cut() {
    let gate = Arc::new(Barrier::new(2));
    let of_origin = Arc::clone(&gate);
    let origin = Origin::scripted(move |connection| {
        let Some(request) = connection.head() else { return };
        if request.field("upgrade").is_some() {
            connection.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
            while let Ok(bytes) = connection.some() {
                if bytes.is_empty() || !connection.send(bytes) {
                    return;
                }
            }
        }
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        of_origin.wait();
        connection.send("6\r\nsecond\r\n0\r\n\r\n");
        connection.await_close();
    });
    let other = Origin::hello();
    let config = |node: &str| json!({ "routes": [{ "id": "all", "uri": "/*", "enable_websocket": true, "upstream": { "nodes": { (node): 1 } } }] });
    let gateway = Gateway::start(config(&origin.node()));
    let mut long = gateway.client();
    long.send(get("/"));
    long.head();
    assert_eq!(long.chunk().as_deref(), Some(&b"first"[..]));
    let mut socket = gateway.client();
    socket.send("GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    assert_eq!(socket.head().status().map(|(status, ..)| status), Ok(101));

    // Even their own route and node go.
    assert_eq!(gateway.reload(config(&other.node())), Reload::Applied);
    assert_eq!(gateway.reload(json!({ "routes": [] })), Reload::Applied);
    assert_eq!(gateway.get("/").status, 404);
    socket.send("still here");
    assert_eq!(socket.exactly(10), b"still here");
    gate.wait();
    assert_eq!(long.chunk().as_deref(), Some(&b"second"[..]));
    assert_eq!(long.chunk(), None);
}

#[test]
fn a_bad_configuration_changes_nothing() {
    let origin = Origin::hello();
    let good = config(&origin.node(), 1, &json!({}));
    let gateway = Gateway::start(&good);
    let route = |fields: &str| {
        format!("routes:\n  - {{id: all, uri: /*, upstream: {{nodes: {{\"{}\": 1}}}}, {fields}}}\n", origin.node())
    };
    for (text, named) in [
        ("routes: [".to_owned(), ""),
        ("just a text".to_owned(), ""),
        (route("prioritty: 1"), "prioritty"),
        (route("plugins: {no-such-plugin: {}}"), "no-such-plugin"),
        (route("plugins: {limit-count: {count: many, time_window: 1}}"), "count"),
        (route("plugins: {key-auth: {}, limit-count: {}}"), "limit-count"),
        (route("service_id: missing"), "missing"),
        (route("filter_func: 'function(vars) return true'"), "filter_func"),
    ] {
        assert_eq!(gateway.reload(&text), Reload::Rejected, "{text}");
        assert_eq!(gateway.get("/version").text(), "1", "{text}");
        assert_eq!(gateway.get("/").text(), "hello", "{text}");
        wait_until(&format!("the log to name {named:?}"), LIMIT, || gateway.stderr().contains(named).then_some(()));
    }
    assert_eq!(gateway.metric("weir_config_rejected_total", &[]), 8.0);
    assert_eq!(gateway.reload(config(&origin.node(), 2, &json!({}))), Reload::Applied);
    assert_eq!(gateway.get("/version").text(), "2");
}

#[test]
fn a_file_that_is_written_in_place_is_noticed_too() {
    let origin = Origin::hello();
    let gateway = Gateway::start(config(&origin.node(), 0, &json!({})));
    for version in 1..=3 {
        fs::write(gateway.config(), format!("{}\n#END\n", config(&origin.node(), version, &json!({}))))
            .expect("write the file");
        let version = version.to_string();
        wait_until("the change to be live", LIMIT, || (gateway.get("/version").text() == version).then_some(()));
    }
}
