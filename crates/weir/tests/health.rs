//! Health checks: sick nodes get no requests, and get them again when they are well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{
    Answer, Authority, Gateway, Kind, LIMIT, Nginx, Origin, RawClient, Refusing, Reload, Request, Response, Start,
    each, route_with, wait_until, weighted,
};

/// Checks so seldom that only the first one falls into a test.
pub(crate) const SELDOM: u32 = 3600;

/// One route for everything, without retries, so that a failing node is seen.
pub(crate) fn config(nodes: &[String], checks: &Value) -> Value {
    let timeout = json!({ "connect": 4, "send": 4, "read": 4 });
    let upstream = json!({ "nodes": weighted(nodes), "checks": checks, "retries": 0, "timeout": timeout });
    route_with(json!({}), upstream)
}

/// Active checks of `/check` each second that change a node's state at once.
pub(crate) fn active(fields: &Value) -> Value {
    let mut active = json!({
        "http_path": "/check",
        "timeout": 5,
        "healthy": { "interval": 1, "successes": 1 },
        "unhealthy": { "interval": 1, "http_failures": 1, "tcp_failures": 1, "timeouts": 1 },
    });
    active.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    json!({ "active": active })
}

fn status_page(gateway: &Gateway, path: &str) -> Response {
    RawClient::connect(gateway.status).request(format!("GET {path} HTTP/1.1\r\nHost: s\r\nConnection: close\r\n\r\n"))
}

/// The entry of a node in `/v1/healthcheck`.
pub(crate) fn node(gateway: &Gateway, node: &str) -> Option<Value> {
    let all = status_page(gateway, "/v1/healthcheck").json();
    let nodes = all.as_array().expect("a list").iter().flat_map(|u| u["nodes"].as_array().expect("nodes").clone());
    nodes.into_iter().find(|n| format!("{}:{}", n["ip"].as_str().expect("an address"), n["port"]) == node)
}

pub(crate) fn await_state(gateway: &Gateway, name: &str, wanted: &str) {
    wait_until(&format!("{name} to be {wanted}"), LIMIT, || (node(gateway, name)?["status"] == wanted).then_some(()));
}

/// A line of the log, which is written a moment after the reported event.
fn await_line(gateway: &Gateway, part: &str) -> String {
    wait_until(&format!("{part:?} in the log"), LIMIT, || {
        gateway.stderr().lines().find(|line| line.contains(part)).map(str::to_owned)
    })
}

/// Requests that are not checks.
fn requests(origin: &Origin) -> Vec<Request> {
    origin.requests().into_iter().filter(|request| request.target != "/check").collect()
}

fn checks(origin: &Origin) -> usize {
    origin.requests().iter().filter(|request| request.target == "/check").count()
}

/// Maximum number of checks since `began`, at an interval of a second less a tenth.
fn most_checks(began: Instant) -> usize {
    (began.elapsed().as_secs_f64() / 0.9).ceil() as usize + 1
}

/// An origin that answers every request with the status that it is set to.
pub(crate) fn settable(status: u16) -> (Origin, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(status));
    let answered = Arc::clone(&status);
    (Origin::answering(move |_| Answer::status(answered.load(SeqCst), "set")), status)
}

/// Every one of some requests is answered 200.
pub(crate) fn assert_all_well(gateway: &Gateway) {
    let statuses: Vec<u16> = (0..20).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses, [200; 20]);
}

#[test]
fn a_node_that_is_killed_is_left_alone_until_it_is_back() {
    let (mut first, second) = (Nginx::start("return 200 first;"), Nginx::start("return 200 second;"));
    let name = first.node();
    let gateway = Start::new(config(&[first.node(), second.node()], &active(&json!({})))).workers(2).start();
    await_state(&gateway, &name, "healthy");
    let answers = || (0..10).map(|_| gateway.get("/").text()).collect::<Vec<_>>();
    let seen = answers();
    assert!(seen.iter().any(|a| a == "first") && seen.iter().any(|a| a == "second"), "{seen:?}");

    first.stop();
    await_state(&gateway, &name, "unhealthy");
    assert_eq!(answers(), vec!["second"; 10]);
    await_line(&gateway, "a node is unhealthy");

    first.start_again();
    await_state(&gateway, &name, "healthy");
    assert!(answers().iter().any(|a| a == "first"));
    await_line(&gateway, "a node is healthy again");
}

#[test]
fn a_hung_node_is_unhealthy() {
    let hung = Origin::scripted(|connection| connection.await_close());
    let well = Origin::hello();
    let gateway = Gateway::start(config(&[hung.node(), well.node()], &active(&json!({}))));
    await_state(&gateway, &hung.node(), "unhealthy");
    assert_eq!(node(&gateway, &hung.node()).expect("the node")["counter"]["timeout_failure"], 1);
    assert_all_well(&gateway);
}

#[test]
fn statuses_of_checks_are_judged_by_the_two_lists() {
    let table = [
        // Status, whether it counts as a failure with APISIX's lists.
        (200, false),
        (302, false),
        (404, true),
        (429, true),
        (500, true),
        (505, true),
        // In neither list: counts as nothing.
        (201, false),
        (403, false),
        (599, false),
    ];
    let origins: Vec<_> = table.iter().map(|(status, _)| settable(*status).0).collect();
    let nodes: Vec<String> = origins.iter().map(Origin::node).collect();
    let gateway = Gateway::start(config(&nodes, &active(&json!({}))));
    for ((status, fails), origin) in table.iter().zip(&origins) {
        wait_until("two checks", LIMIT, || (checks(origin) >= 2).then_some(()));
        let wanted = if *fails { "unhealthy" } else { "healthy" };
        let found = node(&gateway, &origin.node()).expect("the node");
        assert_eq!(found["status"], wanted, "{status}: {found}");
    }
}

#[test]
fn an_answer_that_is_no_http_is_a_failure_and_interim_ones_are_passed_over() {
    let says = |bytes: &'static str| {
        Origin::scripted(move |connection| {
            if connection.request().is_some() {
                connection.send(bytes);
            }
        })
    };
    let garbage = says("SSH-2.0-OpenSSH_9.2\r\n");
    let empty = says("");
    let interim = says("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    // The response never ends: its status line is followed by endless bytes.
    let endless = Origin::scripted(|connection| {
        if connection.request().is_some() && connection.send("HTTP/1.1 200 OK\r\n") {
            while connection.send(format!("X: {}\r\n", "x".repeat(1000))) {}
        }
    });
    let nodes = [garbage.node(), empty.node(), interim.node(), endless.node()];
    let gateway = Gateway::start(config(&nodes, &active(&json!({}))));
    for (origin, state, counter) in [
        (&garbage, "unhealthy", "http_failure"),
        (&empty, "unhealthy", "tcp_failure"),
        (&endless, "unhealthy", "http_failure"),
    ] {
        await_state(&gateway, &origin.node(), state);
        let found = node(&gateway, &origin.node()).expect("the node");
        assert_eq!(found["counter"][counter], 1, "{found}");
    }
    wait_until("two checks", LIMIT, || (checks(&interim) >= 2).then_some(()));
    assert_eq!(node(&gateway, &interim.node()).expect("the node")["status"], "healthy");
}

#[test]
fn thresholds_lead_through_the_four_states() {
    // The status of the next response to a check. Later checks get a status of neither list, which has no effect.
    let next = Arc::new(AtomicU16::new(200));
    let answered = Arc::clone(&next);
    let origin = Origin::answering(move |request| match request.target.as_str() {
        "/check" => Answer::status(answered.swap(201, SeqCst), "set"),
        _ => Answer::ok("hello"),
    });
    let well = Origin::hello();
    let fields = json!({ "healthy": { "successes": 2 }, "unhealthy": { "http_failures": 3 } });
    let gateway = Gateway::start(config(&[origin.node(), well.node()], &active(&fields)));
    let name = origin.node();
    await_state(&gateway, &name, "healthy");

    // The node flaps: it never fails often enough in a row, so it keeps its requests.
    let check = |status: u16, state: &str| {
        next.store(status, SeqCst);
        wait_until("the next check", LIMIT, || (next.load(SeqCst) == 201).then_some(()));
        await_state(&gateway, &name, state);
    };
    for _ in 0..2 {
        check(500, "mostly_healthy");
        check(200, "mostly_healthy");
        check(200, "healthy");
    }
    assert!(!gateway.stderr().contains("a node is unhealthy"), "{}", gateway.stderr());
    assert_all_well(&gateway);
    assert!(!requests(&origin).is_empty());

    for state in ["mostly_healthy", "mostly_healthy", "unhealthy"] {
        check(500, state);
    }
    assert_eq!(node(&gateway, &name).expect("the node")["counter"]["http_failure"], 3);
    assert_all_well(&gateway);

    check(200, "mostly_unhealthy");
    assert_all_well(&gateway);
    check(200, "healthy");
}

#[test]
fn a_tcp_check_is_a_connection_and_no_request() {
    let accepts = Origin::scripted(|connection| connection.await_close());
    let refuses = Refusing::bind();
    let gateway = Gateway::start(config(&[accepts.node(), refuses.node()], &active(&json!({ "type": "tcp" }))));
    await_state(&gateway, &refuses.node(), "unhealthy");
    wait_until("two checks", LIMIT, || (accepts.connections() >= 2).then_some(()));
    let found = node(&gateway, &accepts.node()).expect("the node");
    assert_eq!(found["status"], "healthy", "{found}");
    assert!(accepts.requests().is_empty());
}

#[test]
fn checks_over_tls_verify_what_they_are_told_to() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["node.test"]);
    let client = authority.certificate(Kind::P256, &["gateway"]);
    let with_client = json!({ "scheme": "https", "tls": { "client_cert": client.cert, "client_key": client.key } });
    let unverified = json!({ "https_verify_certificate": false });
    let cases = [
        ("anything goes", json!({}), unverified.clone(), &authority, Ok("/check")),
        ("its authority and its name", json!({}), json!({ "host": "node.test" }), &authority, Ok("/named")),
        ("with a certificate to show", with_client, unverified.clone(), &authority, Ok("/known")),
        ("without one", json!({}), unverified, &authority, Err(("/known", "status 503"))),
        ("another name", json!({}), json!({ "host": "a.test" }), &authority, Err(("/check", "certificate"))),
        ("an address for a name", json!({}), json!({}), &authority, Err(("/check", "certificate"))),
        ("another authority", json!({}), json!({ "host": "node.test" }), &other, Err(("/check", "certificate"))),
    ];
    each(
        &cases,
        |(name, ..)| (*name).to_owned(),
        |(_, upstream, fields, trusted, expected)| {
            let mut nginx = Nginx::start_tls(&format!(
                "ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {}; ssl_verify_client optional;\n\
                 location /check {{ return 200; }}\n\
                 location /named {{ if ($ssl_server_name != node.test) {{ return 503; }} return 200; }}\n\
                 location /known {{ if ($ssl_client_verify != SUCCESS) {{ return 503; }} return 200; }}",
                server.cert_file.display(),
                server.key_file.display(),
                authority.file().display(),
            ));
            let mut fields = fields.clone();
            fields["type"] = json!("https");
            fields["http_path"] = json!(match expected {
                Ok(path) | Err((path, _)) => path,
            });
            let mut config = config(&[nginx.node()], &active(&fields));
            let object = config["routes"][0]["upstream"].as_object_mut().expect("an upstream");
            object.extend(upstream.as_object().expect("fields").clone());
            let settings = json!({ "tls": { "trusted_certificate": trusted.file() } });
            match expected {
                Ok(_) => {
                    // Down at first, so that it takes a check to see it well.
                    nginx.stop();
                    let gateway = Gateway::with(config, settings);
                    await_state(&gateway, &nginx.node(), "unhealthy");
                    nginx.start_again();
                    await_state(&gateway, &nginx.node(), "healthy");
                }
                Err((_, cause)) => {
                    let gateway = Gateway::with(config, settings);
                    await_state(&gateway, &nginx.node(), "unhealthy");
                    let line = await_line(&gateway, "a node is unhealthy");
                    assert!(line.contains(cause), "{line}");
                }
            }
        },
    );
}

#[test]
fn a_check_is_sent_as_configured() {
    let seen = |upstream: Value, active: Value| {
        let origin = Origin::hello();
        let mut upstream = upstream;
        upstream["nodes"] = weighted(&[origin.node()]);
        upstream["checks"] = json!({ "active": active });
        let _gateway = Gateway::start(route_with(json!({}), upstream));
        let request = wait_until("a check", LIMIT, || origin.complete().pop());
        (request, origin.node())
    };
    let (request, name) = seen(json!({}), json!({}));
    assert_eq!((request.method.as_str(), request.target.as_str(), request.minor), ("GET", "/", 1));
    assert_eq!(request.fields.get("host"), Some(name.as_str()));
    assert_eq!(request.fields.get("connection"), Some("close"));
    assert!(request.fields.get("user-agent").is_some_and(|agent| agent.starts_with("weir/")), "{request:?}");

    let (request, _) = seen(
        json!({ "pass_host": "rewrite", "upstream_host": "rewritten.test" }),
        json!({
            "http_method": "POST", "http_path": "/health?deep=1", "http_req_body": "{\"a\":1}",
            "req_headers": ["User-Agent: probe/1", "X-Token: a: b", "Content-Length: 99"],
        }),
    );
    assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/health?deep=1"));
    assert_eq!((request.body.as_slice(), request.fields.get("host")), (&b"{\"a\":1}"[..], Some("rewritten.test")));
    assert_eq!((request.fields.get("user-agent"), request.fields.get("x-token")), (Some("probe/1"), Some("a: b")));

    let (request, _) = seen(json!({ "pass_host": "node" }), json!({ "host": "checks.test" }));
    assert_eq!(request.fields.get("host"), Some("checks.test"));
    let (request, _) = seen(json!({}), json!({ "host": "checks.test", "req_headers": ["Host: own.test"] }));
    assert_eq!(request.fields.get("host"), Some("own.test"));
}

#[test]
fn checks_may_go_to_a_port_of_their_own() {
    let (node, admin) = (Origin::hello(), Origin::answering(|_| Answer::status(503, "maintenance")));
    let fields = json!({ "port": admin.addr().port() });
    let gateway = Gateway::start(config(&[node.node()], &active(&fields)));
    await_state(&gateway, &node.node(), "unhealthy");
    assert_eq!(checks(&node), 0);
    // The node is the only one, so its health is ignored.
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn where_all_nodes_are_down_health_is_ignored() {
    let origins = [settable(500).0, settable(500).0];
    let nodes: Vec<String> = origins.iter().map(Origin::node).collect();
    let gateway = Gateway::start(config(&nodes, &active(&json!({}))));
    for name in &nodes {
        await_state(&gateway, name, "unhealthy");
    }
    for _ in 0..10 {
        let response = gateway.get("/");
        assert_eq!((response.status, response.text().as_str()), (500, "set"), "the node's own answer");
    }
    assert!(origins.iter().all(|origin| requests(origin).len() == 5));
}

#[test]
fn a_retry_does_not_go_to_an_unhealthy_node() {
    let (hung, refuses) = (Origin::scripted(|connection| connection.await_close()), Refusing::bind());
    // Only the hung node is found out: refused connections take longer to count.
    let fields = json!({ "unhealthy": { "timeouts": 1, "tcp_failures": 254 } });
    let mut config = config(&[hung.node(), refuses.node()], &active(&fields));
    config["routes"][0]["upstream"]["retries"] = json!(5);
    let gateway = Gateway::start(config);
    await_state(&gateway, &hung.node(), "unhealthy");
    let before = hung.connections();
    let response = gateway.get("/");
    assert_eq!(response.status, 502, "{response:?}");
    assert_eq!(response.field("x-apisix-upstream-status"), Some("502"), "one try");
    assert!(hung.connections() - before <= 1, "but for a check");
}

#[test]
fn requests_that_change_the_state_all_the_time_put_off_no_check() {
    let turn = AtomicUsize::new(0);
    let origin = Origin::answering(move |request| match request.target.as_str() {
        "/check" => Answer::ok("well"),
        _ => Answer::status(if turn.fetch_add(1, SeqCst).is_multiple_of(2) { 500 } else { 200 }, "flaps"),
    });
    let mut checks_of_both = active(&json!({}));
    checks_of_both["passive"] = json!({ "healthy": { "successes": 1 }, "unhealthy": { "http_failures": 254 } });
    let gateway = Gateway::start(config(&[origin.node()], &checks_of_both));
    let mut client = gateway.client();
    wait_until("three checks", LIMIT, || {
        for _ in 0..10 {
            assert!(matches!(client.get("/").status, 200 | 500));
        }
        (checks(&origin) >= 3).then_some(())
    });
}

#[test]
fn one_checker_for_a_node_whatever_uses_it() {
    let origin = Origin::hello();
    let upstream = json!({ "nodes": weighted(&[origin.node()]), "checks": active(&json!({})) });
    let mut named = upstream.clone();
    named["id"] = json!("named");
    let config = json!({
        "upstreams": [named],
        "services": [{ "id": "s", "upstream": upstream }],
        "routes": [
            { "id": "a", "uri": "/a", "upstream": upstream },
            { "id": "b", "uri": "/b", "upstream": upstream },
            { "id": "c", "uri": "/c", "upstream_id": "named" },
            { "id": "d", "uri": "/d", "upstream_id": "named" },
            { "id": "e", "uri": "/e", "service_id": "s" },
        ],
    });
    let began = Instant::now();
    let gateway = Start::new(config).workers(2).start();
    wait_until("nine checks", LIMIT, || (checks(&origin) >= 9).then_some(()));
    // Intervals of at least 0.9 s; another checker would make as many again in that time.
    let most = most_checks(began);
    assert!(checks(&origin) <= most, "{} checks, at most {most}", checks(&origin));
    let names: Vec<_> = status_page(&gateway, "/v1/healthcheck").json().as_array().expect("a list").clone();
    let mut names: Vec<_> = names.iter().map(|u| u["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    assert_eq!(
        names,
        ["/routes/a", "/routes/b", "/services/s", "/upstreams/named"],
        "each upstream once, however many routes refer to it"
    );
}

#[test]
fn health_outlives_a_change_of_the_configuration() {
    let (sick, well) = (settable(500).0, Origin::hello());
    let nodes = [sick.node(), well.node()];
    let version = |number: usize| {
        let mut config = config(&nodes, &active(&json!({ "healthy": { "interval": 1, "successes": 254 } })));
        let plugins = json!({ "mocking": { "response_example": number.to_string() } });
        let route = json!({ "id": "version", "uri": "/version", "plugins": plugins });
        config["routes"].as_array_mut().expect("routes").push(route);
        config
    };
    let gateway = Start::new(version(0)).workers(2).start();
    await_state(&gateway, &sick.node(), "unhealthy");
    let (before, began) = (checks(&sick), Instant::now());
    for number in 1..=5 {
        let next = Instant::now() + Duration::from_secs(1);
        assert_eq!(gateway.reload(version(number)), Reload::Applied);
        assert_eq!(gateway.get("/version").text(), number.to_string());
        assert_all_well(&gateway);
        assert_eq!(node(&gateway, &sick.node()).expect("the node")["status"], "unhealthy");
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let most = most_checks(began);
    let made = checks(&sick) - before;
    assert!((1..=most).contains(&made), "{made} checks, at most {most}: a change starts no new ones");

    // Other checks judge anew, and none do not judge at all.
    let mut other = version(6);
    other["routes"][0]["upstream"]["checks"]["active"]["unhealthy"]["http_failures"] = json!(254);
    assert_eq!(gateway.reload(&other), Reload::Applied);
    wait_until("the other checks", LIMIT, || {
        let status = node(&gateway, &sick.node())?["status"].clone();
        status.as_str()?.ends_with("healthy").then_some(()).filter(|()| status != "unhealthy")
    });
    other["routes"][0]["upstream"].as_object_mut().expect("an upstream").remove("checks");
    assert_eq!(gateway.reload(&other), Reload::Applied);
    wait_until("no checks", LIMIT, || (status_page(&gateway, "/v1/healthcheck").text() == "{}").then_some(()));
    let count = checks(&sick);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(checks(&sick), count, "nobody checks any more");
}

#[test]
fn no_more_checks_are_under_way_than_concurrency_allows() {
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let origins: Vec<Origin> = (0..6)
        .map(|_| {
            let (open, most) = (Arc::clone(&open), Arc::clone(&most));
            Origin::answering(move |_| {
                most.fetch_max(open.fetch_add(1, SeqCst) + 1, SeqCst);
                thread::sleep(Duration::from_millis(100));
                open.fetch_sub(1, SeqCst);
                Answer::close("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            })
        })
        .collect();
    let nodes: Vec<String> = origins.iter().map(Origin::node).collect();
    let _gateway = Gateway::start(config(&nodes, &active(&json!({ "concurrency": 2, "timeout": 20 }))));
    wait_until("two rounds", LIMIT, || origins.iter().all(|origin| checks(origin) >= 2).then_some(()));
    assert!((1..=2).contains(&most.load(SeqCst)), "{most:?} at one time");
}

#[test]
fn health_is_shown() {
    let (sick, well) = (settable(500).0, Origin::hello());
    let mut upstream =
        json!({ "id": "u1", "nodes": weighted(&[sick.node(), well.node()]), "checks": active(&json!({})) });
    upstream["checks"]["active"]["unhealthy"]["interval"] = json!(SELDOM);
    let gateway = Gateway::start(json!({
        "upstreams": [upstream, { "id": "unchecked", "nodes": weighted(&[well.node()]) }],
        "routes": [{ "id": 1, "uri": "/*", "upstream_id": "u1" }, { "id": 2, "uri": "/b", "upstream_id": "unchecked" }],
    }));
    await_state(&gateway, &sick.node(), "unhealthy");

    let one = status_page(&gateway, "/v1/healthcheck/upstreams/u1");
    assert_eq!((one.status, one.field("content-type")), (200, Some("application/json")));
    let one = one.json();
    let of = |origin: &Origin, status: &str, http_failure: u8| {
        json!({
            "ip": "127.0.0.1", "hostname": "127.0.0.1", "port": origin.addr().port(), "status": status,
            "counter": { "tcp_failure": 0, "http_failure": http_failure, "success": 0, "timeout_failure": 0 },
        })
    };
    assert_eq!((&one["name"], &one["type"]), (&json!("/upstreams/u1"), &json!("http")));
    let mut nodes = one["nodes"].as_array().expect("nodes").clone();
    nodes.sort_by_key(|node| node["status"] == "healthy");
    assert_eq!(nodes, [of(&sick, "unhealthy", 1), of(&well, "healthy", 0)]);
    assert_eq!(status_page(&gateway, "/v1/healthcheck").json(), json!([one]));
    for (path, status, said) in [
        ("/v1/healthcheck/upstreams/unchecked", 404, "upstreams[unchecked] not found"),
        ("/v1/healthcheck/routes/1", 404, "routes[1] not found"),
        ("/v1/healthcheck/consumers/x", 400, "invalid src type consumers"),
    ] {
        let response = status_page(&gateway, path);
        assert_eq!((response.status, response.json()), (status, json!({ "error_msg": said })), "{path}");
    }
    assert_eq!(status_page(&gateway, "/v1/other").status, 404);

    let page = gateway.metrics_page();
    for (origin, healthy) in [(&sick, 0.0), (&well, 1.0)] {
        let port = origin.addr().port().to_string();
        let labels = [("name", "/apisix/upstreams/u1"), ("ip", "127.0.0.1"), ("port", port.as_str())];
        assert_eq!(page.value("apisix_upstream_status", &labels), Some(healthy));
    }
    assert!(page.0.contains("# TYPE apisix_upstream_status gauge\n"));
}
