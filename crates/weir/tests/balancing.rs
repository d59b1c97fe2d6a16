//! Choice of a node: by key, by load, by latency, and by priority.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Connection, Gateway, LIMIT, Nginx, Origin, Refusing, Start, get, route_with, wait_until, weighted, weir,
};

/// Nodes as a list, with weight and priority.
fn listed(nodes: &[(String, u32, i64)]) -> Value {
    let list = nodes.iter().map(|(node, weight, priority)| {
        let (host, port) = node.rsplit_once(':').expect("host:port");
        json!({ "host": host, "port": port.parse::<u16>().expect("a port"), "weight": weight, "priority": priority })
    });
    list.collect()
}

fn with_key(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")
}

#[test]
fn consistent_hashing_chooses_the_nodes_that_nginx_chooses() {
    let origins = Origin::numbered(4);
    let weights = [1, 3, 1, 2];
    let servers: String =
        origins.iter().zip(weights).map(|(origin, w)| format!("server {} weight={w};", origin.node())).collect();
    // The server block ends here, and the harness ends the upstream.
    let nginx = Nginx::start(&format!(
        "location / {{ proxy_pass http://nodes; }} }} upstream nodes {{ hash $arg_key consistent; {servers}"
    ));
    let nodes: Value = origins.iter().zip(weights).map(|(origin, weight)| (origin.node(), json!(weight))).collect();
    let upstream = json!({ "type": "chash", "key": "arg_key", "nodes": nodes });
    let direct = Gateway::start(route_with(json!({}), upstream));
    let through = Gateway::start(route_with(json!({}), json!({ "nodes": weighted(&[nginx.node()]) })));
    let (mut direct, mut through) = (direct.client(), through.client());
    let mut seen = BTreeMap::new();
    for number in 0..200 {
        let path = format!("/?key=user-{number}");
        let chosen = direct.get(&path).text();
        assert_eq!(chosen, through.get(&path).text(), "{path}");
        *seen.entry(chosen).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 4, "all nodes have keys: {seen:?}");
}

#[test]
fn every_kind_of_key_keeps_its_node() {
    let origins = Origin::numbered(5);
    let nodes = weighted(&origins.iter().map(Origin::node).collect::<Vec<_>>());
    // The part that differs from request to request, and a part that must not matter.
    type Request = fn(usize, usize) -> String;
    let cases: [(Value, Request); 6] = [
        (json!({ "key": "uri" }), |key, other| with_key(&format!("/{key}?{other}"), "")),
        (json!({ "hash_on": "vars", "key": "arg_id" }), |key, other| with_key(&format!("/{other}?id={key}"), "")),
        (json!({ "hash_on": "header", "key": "X-Session" }), |key, other| {
            with_key(&format!("/{other}"), &format!("x-session: {key}\r\n"))
        }),
        (json!({ "hash_on": "cookie", "key": "sid" }), |key, other| {
            with_key("/", &format!("Cookie: a={other}; sid={key}\r\n"))
        }),
        (json!({ "hash_on": "consumer" }), |key, other| {
            with_key(&format!("/{other}"), &format!("apikey: key-{key}\r\n"))
        }),
        (json!({ "hash_on": "vars_combinations", "key": "$host/$arg_a/$http_x_b" }), |key, other| {
            with_key(&format!("/{other}?a={key}"), &format!("X-B: {key}\r\n"))
        }),
    ];
    for (fields, request) in cases {
        let mut upstream = json!({ "type": "chash", "nodes": nodes });
        upstream.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let mut config = route_with(json!({ "plugins": { "key-auth": {} } }), upstream);
        if fields["hash_on"] != "consumer" {
            config["routes"][0]["plugins"] = json!({});
        }
        let consumer =
            |n| json!({ "username": format!("user{n}"), "plugins": { "key-auth": { "key": format!("key-{n}") } } });
        config["consumers"] = (0..20).map(consumer).collect();
        let gateway = Start::new(config).workers(2).start();
        let mut used = BTreeMap::new();
        for key in 0..20 {
            let chosen: Vec<String> =
                (0..3).map(|other| gateway.client().request(request(key, other)).text()).collect();
            assert!(chosen.iter().all(|node| *node == chosen[0]), "{fields} key {key}: {chosen:?}");
            *used.entry(chosen[0].clone()).or_insert(0) += 1;
        }
        assert!(used.len() >= 3, "{fields}: keys are spread: {used:?}");
    }
}

#[test]
fn a_request_without_the_key_is_hashed_on_the_client() {
    let origins = Origin::numbered(5);
    let nodes = weighted(&origins.iter().map(Origin::node).collect::<Vec<_>>());
    let chosen = |fields: Value| {
        let mut upstream = json!({ "type": "chash", "nodes": nodes });
        upstream.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        Gateway::start(route_with(json!({}), upstream)).get("/").text()
    };
    let by_address = chosen(json!({ "key": "remote_addr" }));
    for fields in [
        json!({ "hash_on": "header", "key": "X-None" }),
        json!({ "hash_on": "consumer" }),
        json!({ "hash_on": "vars_combinations", "key": "a$arg_none" }),
    ] {
        assert_eq!(chosen(fields.clone()), by_address, "{fields}");
    }
}

#[test]
fn keys_of_a_dead_node_move_and_come_back() {
    let origins = Origin::numbered(3);
    let nodes = weighted(&origins.iter().map(Origin::node).collect::<Vec<_>>());
    let config = route_with(json!({}), json!({ "type": "chash", "key": "arg_k", "nodes": nodes }));
    let gateway = Gateway::with(config, "{upstream: {set_aside: 200ms}}");
    let all = || (0..60).map(|k| gateway.get(&format!("/?k={k}")).text()).collect::<Vec<_>>();
    let before = all();
    origins[1].die();
    for (was, is) in before.iter().zip(all()) {
        assert!(is != "1" && (*was == "1" || *was == is), "from {was} to {is}");
    }
    origins[1].rise();
    gateway.await_metric("weir_upstream_nodes_set_aside", &[], 0.0);
    assert_eq!(all(), before);
}

/// An origin that answers on command of the test.
struct Held {
    origin: Origin,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Held {
    fn start() -> Self {
        let open = Arc::<(Mutex<bool>, Condvar)>::default();
        let of_script = Arc::clone(&open);
        let origin = Origin::answering(move |request| {
            if request.target.starts_with("/wait") {
                let (is_open, opened) = &*of_script;
                let guard = is_open.lock().expect("the gate");
                drop(opened.wait_timeout_while(guard, LIMIT, |open| !*open).expect("the gate"));
            }
            Answer::ok("held")
        });
        Self { origin, open }
    }

    fn release(&self) {
        *self.open.0.lock().expect("the gate") = true;
        self.open.1.notify_all();
    }
}

#[test]
fn the_node_with_the_fewest_requests_is_taken() {
    let held = [Held::start(), Held::start(), Held::start()];
    let nodes: Vec<_> = held.iter().zip([1, 2, 1]).map(|(held, w)| (held.origin.node(), w, 0)).collect();
    let config = route_with(json!({}), json!({ "type": "least_conn", "nodes": listed(&nodes) }));
    let gateway = Start::new(config).workers(2).start();
    let waiting = || held.each_ref().map(|held| held.origin.requests().iter().filter(|r| r.target == "/wait").count());
    let mut clients = Vec::new();
    for number in 1..=12 {
        let mut client = gateway.client();
        client.send(get("/wait"));
        wait_until("the request to arrive", LIMIT, || (waiting().iter().sum::<usize>() == number).then_some(()));
        clients.push(client);
    }
    assert_eq!(waiting(), [3, 6, 3], "counted over both workers, by weight");
    // A node that gets rid of its requests gets those that follow, one after the other.
    held[2].release();
    wait_until("its clients to be answered", LIMIT, || {
        clients.retain_mut(|client| client.try_response_within(Duration::from_millis(1)).is_none());
        (clients.len() == 9).then_some(())
    });
    let before = held[2].origin.requests().len();
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert_eq!(held[2].origin.requests().len() - before, 5);
    held.iter().for_each(Held::release);
}

#[test]
fn a_request_counts_no_longer_than_it_lasts() {
    // Each way in which a request may end, many times over; a count that stayed would keep the node out for good.
    type End = fn(&mut Connection);
    let ends: [(&str, End); 3] = [
        ("the client goes away before the answer", |connection| connection.await_close()),
        ("the client goes away in the middle of the answer", |connection| {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome");
            connection.await_close();
        }),
        ("the node cuts the answer", |connection| {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome");
        }),
    ];
    for (how, end) in ends {
        let odd = Origin::scripted(move |connection| {
            while let Some(request) = connection.request() {
                if request.target != "/odd" {
                    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nodd");
                    continue;
                }
                return end(connection);
            }
        });
        let even = Origin::answering(|_| Answer::ok("even"));
        let nodes = [(odd.node(), 1000, 0), (even.node(), 999, 0)];
        let upstream = json!({ "type": "least_conn", "nodes": listed(&nodes), "retries": 0 });
        let gateway = Gateway::start(route_with(json!({}), upstream));
        for number in 1..=5 {
            let mut client = gateway.client();
            client.send(get("/odd"));
            wait_until("the request to arrive", LIMIT, || {
                (odd.requests().iter().filter(|r| r.target == "/odd").count() == number).then_some(())
            });
            if how.contains("middle") {
                client.head();
            }
            if how.contains("client") {
                client.reset();
            } else {
                let _ = client.try_response();
            }
            gateway.await_metric("weir_upstream_connections", &[("state", "active")], 0.0);
        }
        // Without requests under way, the node with the larger weight is taken.
        assert_eq!(gateway.get("/").text(), "odd", "{how}");
    }
}

#[test]
fn the_node_that_answers_sooner_gets_more() {
    let slow = Origin::answering(|_| {
        thread::sleep(Duration::from_secs(2));
        Answer::ok("slow")
    });
    let quick = [Origin::hello(), Origin::hello()];
    let nodes = [slow.node(), quick[0].node(), quick[1].node()];
    let config = route_with(json!({}), json!({ "type": "ewma", "nodes": weighted(&nodes) }));
    let gateway = Start::new(config).workers(2).start();
    for _ in 0..60 {
        assert_eq!(gateway.get("/").status, 200);
    }
    let shares = [&slow, &quick[0], &quick[1]].map(|origin| origin.requests().len());
    // Once it is known, it loses against each of the others.
    assert!(shares[0] <= 6 && shares[0] + shares[1] + shares[2] == 60, "{shares:?}");

    // A node that fails at once is not a quick one.
    let fails = Origin::scripted(|connection| drop(connection.request()));
    let nodes = [fails.node(), quick[0].node(), quick[1].node()];
    let gateway = Gateway::start(route_with(json!({}), json!({ "type": "ewma", "nodes": weighted(&nodes) })));
    for _ in 0..60 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert!(fails.requests().len() <= 6, "{}", fails.requests().len());
}

#[test]
fn a_lower_priority_serves_when_the_higher_ones_cannot() {
    for kind in ["roundrobin", "chash", "least_conn", "ewma"] {
        let origins = Origin::numbered(4);
        let nodes: Vec<_> =
            origins.iter().zip([(1, 10), (1, 10), (1, 0), (0, 99)]).map(|(o, (w, p))| (o.node(), w, p)).collect();
        let mut upstream = json!({ "type": kind, "nodes": listed(&nodes) });
        if kind == "chash" {
            upstream["key"] = json!("arg_k");
        }
        let gateway = Gateway::with(route_with(json!({}), upstream), "{upstream: {set_aside: 200ms}}");
        let served = || {
            let mut seen = BTreeMap::new();
            for k in 0..40 {
                let response = gateway.get(&format!("/?k={k}"));
                assert_eq!(response.status, 200, "{kind}");
                *seen.entry(response.text()).or_insert(0) += 1;
            }
            seen.into_keys().collect::<String>()
        };
        assert_eq!(served(), "01", "{kind}");
        origins[0].die();
        assert_eq!(served(), "1", "{kind}: the rest of the priority first");
        origins[1].die();
        assert_eq!(served(), "2", "{kind}");
        origins[0].rise();
        gateway.await_metric("weir_upstream_nodes_set_aside", &[], 1.0);
        assert_eq!(served(), "0", "{kind}");
    }
}

#[test]
fn no_balancer_tries_a_node_twice() {
    for kind in ["roundrobin", "chash", "least_conn", "ewma"] {
        let refusing: Vec<_> = (0..4).map(|_| Refusing::bind()).collect();
        let nodes: Vec<_> = refusing.iter().zip([1, 5, 1, 0]).map(|(r, w)| (r.node(), w, 0)).collect();
        for (retries, told) in
            [(json!(null), "502, 502, 502"), (json!(9), "502, 502, 502"), (json!(1), "502, 502"), (json!(0), "502")]
        {
            let mut upstream = json!({ "type": kind, "nodes": listed(&nodes), "hash_on": "vars" });
            if kind == "chash" {
                upstream["key"] = json!("remote_addr");
            }
            if !retries.is_null() {
                upstream["retries"] = retries.clone();
            }
            let gateway = Gateway::start(route_with(json!({}), upstream));
            for _ in 0..2 {
                let response = gateway.get("/");
                assert_eq!(response.field("x-apisix-upstream-status"), Some(told), "{kind} {retries}");
            }
        }
    }
}

/// Under load from both workers, with a node that is killed and started again: no request fails.
#[test]
fn no_request_is_lost_to_a_flapping_node() {
    for kind in ["roundrobin", "chash", "least_conn", "ewma"] {
        let origins = Origin::numbered(3);
        let nodes: Vec<_> = origins.iter().map(|o| (o.node(), 1, 0)).collect();
        let mut upstream = json!({ "type": kind, "nodes": listed(&nodes) });
        if kind == "chash" {
            upstream["key"] = json!("arg_k");
        }
        let config = route_with(json!({}), upstream);
        let gateway = Start::new(config).settings("{upstream: {set_aside: 100ms}}").workers(2).start();
        let (start, running) = (Barrier::new(5), AtomicUsize::new(4));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    let mut client = gateway.client();
                    for k in 0..300 {
                        let response = client.get(&format!("/?k={k}"));
                        assert_eq!(response.status, 200, "{kind}: {response:?}");
                    }
                    running.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| {
                start.wait();
                while running.load(SeqCst) > 0 {
                    origins[0].die();
                    thread::sleep(Duration::from_millis(30));
                    origins[0].rise();
                    thread::sleep(Duration::from_millis(150));
                }
            });
        });
    }
}

#[test]
fn explain_tells_the_balancer_and_where_it_can_the_node() {
    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("apisix.yaml");
    let explain = |upstream: Value| {
        std::fs::write(&file, format!("{}\n#END\n", route_with(json!({}), upstream))).expect("write the rules");
        let file = file.display().to_string();
        let (code, out, err) = weir(&["explain", &file, "--request", "GET http://a.test/x?id=7"]);
        assert_eq!(code, 0, "{err}");
        out
    };
    let nodes = json!([
        { "host": "10.0.0.1", "port": 80, "weight": 1 }, { "host": "10.0.0.2", "port": 80, "weight": 2, "priority": -1 },
    ]);
    for (fields, told) in [
        (json!({}), "  balancer  roundrobin\n"),
        (json!({ "type": "least_conn" }), "  balancer  least_conn\n"),
        (json!({ "type": "chash", "key": "arg_id" }), "  balancer  chash: 10.0.0.1:80, while it is available\n"),
        (json!({ "type": "chash", "key": "remote_port" }), "  balancer  chash\n"),
        (json!({ "type": "chash", "hash_on": "consumer" }), "  balancer  chash\n"),
        (
            json!({ "nodes": { "10.0.0.1:80": 0, "10.0.0.2:80": 4 } }),
            "  balancer  none: 10.0.0.2:80 alone has a weight\n",
        ),
    ] {
        let mut upstream = json!({ "nodes": nodes });
        upstream.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let out = explain(upstream);
        assert!(out.contains(told), "{fields}: {out}");
    }
    let out = explain(json!({ "nodes": nodes }));
    assert!(out.contains("10.0.0.1:80 weight 1 priority 0, 10.0.0.2:80 weight 2 priority -1"), "{out}");
    assert!(!explain(json!({ "nodes": { "10.0.0.1:80": 1 } })).contains("balancer"));
}
