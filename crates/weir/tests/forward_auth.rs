//! Callouts, by their first user `forward-auth`: what the service receives, services that fail or take their time, and
//! clients that go while they wait.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Authority, Connection, Full, Gateway, Kind, LIMIT, Nginx, Origin, Reload, Start, get, post, timed,
    wait_until,
};

const CALLOUTS: &str = "weir_callouts_total";

/// A route for everything that a service guards.
fn rules(node: &str, conf: &Value) -> Value {
    let upstream = json!({ "nodes": { node: 1 } });
    let route = json!({ "id": "all", "uri": "/*", "upstream": upstream, "plugins": { "forward-auth": conf } });
    json!({ "routes": [route] })
}

fn guarded(node: &str, conf: &Value, settings: Value) -> Gateway {
    Gateway::with(rules(node, conf), settings)
}

fn at(service: &str) -> Value {
    json!({ "uri": format!("http://{service}/auth") })
}

fn with(mut conf: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("fields are an object") };
    conf.as_object_mut().expect("a configuration").extend(more);
    conf
}

fn await_callouts(gateway: &Gateway, outcome: &str, count: usize) {
    gateway.await_metric(CALLOUTS, &[("plugin", "forward-auth"), ("outcome", outcome)], count as f64);
}

/// A service that takes a question and keeps it until it is let go.
fn slow() -> (Origin, Arc<AtomicBool>) {
    let go = Arc::<AtomicBool>::default();
    let goes = Arc::clone(&go);
    let service = Origin::scripted(move |connection: &mut Connection| {
        while connection.request().is_some() {
            while !goes.load(SeqCst) {
                thread::yield_now();
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    (service, go)
}

#[test]
fn the_service_is_told_of_the_request() {
    let (origin, service) = (Origin::echo(), Origin::echo());
    let conf = json!({
        "uri": format!("http://{}/auth?from=weir", service.node()),
        "request_headers": ["Authorization", "X-Extra", "Cookie"],
        "extra_headers": { "X-Extra": "$remote_addr of $arg_a", "X-Forwarded-Method": "OURS" },
    });
    let gateway = guarded(&origin.node(), &conf, json!({}));
    let mut client = gateway.client();
    let request = "PUT /a/../b?a=1%202&b HTTP/1.1\r\nHost: A.test:81\r\nAuthorization: Bearer x\r\nX-Extra: theirs\r\n\
                   Cookie: a=1\r\nX-Other: y\r\nX-Forwarded-For: 10.0.0.1\r\nContent-Length: 5\r\n\r\nhello";
    let answer = client.request(request);
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    let asked = service.last();
    assert_eq!((asked.method.as_str(), asked.target.as_str()), ("GET", "/auth?from=weir"));
    for (name, value) in [
        ("host", service.node().as_str()),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-method", "OURS"),
        ("x-forwarded-host", "a.test"),
        ("x-forwarded-uri", "/b?a=1%202&b"),
        ("x-forwarded-for", "127.0.0.1"),
        ("authorization", "Bearer x"),
        ("x-extra", "127.0.0.1 of 1 2"),
        ("cookie", "a=1"),
    ] {
        assert_eq!(asked.fields.all(name), [value], "{name}");
    }
    for name in ["x-other", "x-real-ip", "content-length", "x-forwarded-port", "expect"] {
        assert_eq!(asked.field(name), None, "{name}");
    }
    // The connection to the service is kept.
    for _ in 0..5 {
        assert_eq!(client.get("/").status, 200);
    }
    assert_eq!((service.requests().len(), service.connections()), (6, 1));
    await_callouts(&gateway, "answered", 6);
    let page = gateway.metrics_page();
    assert_eq!(page.value("weir_callout_duration_seconds_count", &[("plugin", "forward-auth")]), Some(6.0));
}

#[test]
fn the_service_receives_the_body_with_post() {
    let (origin, service) = (Origin::echo(), Origin::echo());
    let conf = with(at(&service.node()), json!({ "request_method": "POST", "keepalive": false }));
    let gateway = guarded(&origin.node(), &conf, json!({}));
    let mut client = gateway.client();
    let long = "x".repeat(300_000);
    let chunked = "POST /c HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nContent-Encoding: x\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for (request, body) in [(post("/a", "hello"), "hello"), (post("/b", &long), &long), (chunked.to_owned(), "hello")] {
        let answer = client.request(&request);
        assert_eq!(answer.status, 200);
        assert!(answer.text() == body, "the upstream has it as well");
        let asked = service.last();
        assert!(asked.method == "POST" && asked.body == body.as_bytes(), "{} bytes", asked.body.len());
    }
    assert_eq!(service.last().field("content-encoding"), Some("x"));
    assert_eq!(client.get("/none").status, 200);
    assert_eq!((service.last().body.len(), service.last().field("content-length")), (0, Some("0")));
    assert_eq!(service.connections(), 4, "none is kept");
    let refused = client.request(post("/too-long", &"x".repeat(2 << 20)));
    assert_eq!(refused.status, 413);
}

#[test]
fn nginx_may_decide() {
    let origin = Origin::echo();
    let nginx = Nginx::start(
        "location = /auth { if ($http_authorization = \"yes\") { add_header X-User-ID jack; return 200; }\n\
         add_header WWW-Authenticate 'Basic realm=\"a\"' always; return 401 'not you'; }",
    );
    let fields = json!({
        "request_headers": ["Authorization"], "upstream_headers": ["X-User-ID"], "client_headers": ["WWW-Authenticate"],
    });
    let gateway = guarded(&origin.node(), &with(at(&nginx.node()), fields), json!({}));
    let mut client = gateway.client();
    for _ in 0..3 {
        let allowed =
            client.request("GET /x HTTP/1.1\r\nHost: a.test\r\nAuthorization: yes\r\nX-User-ID: root\r\n\r\n");
        assert_eq!(allowed.status, 200);
        assert_eq!(origin.last().fields.all("x-user-id"), ["jack"]);
        let refused = client.get("/x");
        assert_eq!((refused.status, refused.text().as_str()), (401, "not you"));
        assert_eq!(refused.field("www-authenticate"), Some("Basic realm=\"a\""));
    }
    assert_eq!(origin.requests().len(), 3);
}

#[test]
fn the_certificate_of_a_service_is_verified() {
    let origin = Origin::echo();
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    let port = nginx.node().rsplit(':').next().expect("a port").to_owned();
    let uri = format!("https://localhost:{port}/auth");
    let gateway = guarded(&origin.node(), &json!({ "uri": uri }), json!({}));
    assert_eq!(gateway.get("/x").status, 403, "nobody knows who signed it");
    assert_eq!(gateway.reload(rules(&origin.node(), &json!({ "uri": uri, "ssl_verify": false }))), Reload::Applied);
    assert_eq!(gateway.get("/x").status, 200);
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let gateway = guarded(&origin.node(), &json!({ "uri": uri }), trusted);
    wait_until("the name of the service", LIMIT, || (gateway.get("/x").status == 200).then_some(()));
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn a_service_that_gives_no_answer_refuses() {
    let origin = Origin::hello();
    let silent = Origin::scripted(Connection::await_close);
    let closing = Origin::scripted(|connection: &mut Connection| drop(connection.request()));
    let broken = Origin::scripted(|connection: &mut Connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello");
    });
    let cut = Origin::scripted(|connection: &mut Connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello");
    });
    let stuck = Origin::scripted(|connection: &mut Connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello");
        connection.await_close();
    });
    let long = Origin::answering(|_| Answer::ok(&"x".repeat(20_000)));
    let endless = Origin::scripted(|connection: &mut Connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while connection.send("10\r\n0123456789abcdef\r\n") {}
    });
    let full = Full::bind();
    let settings = json!({ "limits": { "callout_body": "10KiB" } });
    let services = [
        (silent.node(), "timed_out"),
        (full.node(), "timed_out"),
        (stuck.node(), "timed_out"),
        (closing.node(), "failed"),
        (broken.node(), "failed"),
        (cut.node(), "failed"),
        (long.node(), "failed"),
        (endless.node(), "failed"),
    ];
    for (node, outcome) in services {
        let conf = with(at(&node), json!({ "timeout": 300 }));
        let gateway = guarded(&origin.node(), &conf, settings.clone());
        let (answer, took) = timed(|| gateway.get("/x"));
        assert_eq!(answer.status, 403, "{node}: {outcome}");
        assert!(took < LIMIT / 2, "{took:?}");
        await_callouts(&gateway, outcome, 1);
        assert_eq!(origin.requests().len(), 0, "{node}: never failing open");
        // Nothing of it stays.
        gateway.await_metric("weir_upstream_connections", &[("state", "active")], 0.0);
        let degrades = with(conf, json!({ "allow_degradation": true }));
        assert_eq!(gateway.reload(rules(&Origin::hello().node(), &degrades)), Reload::Applied);
        assert_ne!(gateway.get("/x").status, 403, "{node}: it may pass unasked");
    }
}

#[test]
fn a_callout_ends_with_its_client() {
    let origin = Origin::hello();
    let silent = Origin::scripted(|connection: &mut Connection| {
        connection.request();
        connection.await_close();
    });
    let conf = with(at(&silent.node()), json!({ "timeout": 60_000 }));
    let settings = json!({ "limits": { "callouts": 3 } });
    let gateway = guarded(&origin.node(), &conf, settings);
    for round in 1..=3 {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let mut client = gateway.client();
                client.send(get("/x"));
                client
            })
            .collect();
        wait_until("the questions", LIMIT, || (silent.requests().len() == 3 * round).then_some(()));
        for client in clients {
            client.reset();
        }
        // The questions are given up, and so are their connections and their places.
        await_callouts(&gateway, "cancelled", 3 * round);
        wait_until("the connections to the service to close", LIMIT, || (silent.open() == 0).then_some(()));
        gateway.await_metric("weir_upstream_connections", &[("state", "active")], 0.0);
    }
    gateway.await_metric("weir_client_errors_total", &[("reason", "aborted")], 9.0);
    assert_eq!(gateway.metric(CALLOUTS, &[("outcome", "refused")]), 0.0);
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn a_callout_ends_with_its_client_while_it_connects() {
    let (origin, full) = (Origin::hello(), Full::bind());
    let conf = with(at(&full.node()), json!({ "timeout": 60_000 }));
    let gateway = guarded(&origin.node(), &conf, json!({ "limits": { "callouts": 1 } }));
    let mut client = gateway.client();
    client.send(get("/x"));
    // Another is refused as long as the first waits.
    wait_until("the first to wait", LIMIT, || {
        let mut second = gateway.client();
        second.send(get("/y"));
        let answer = second.try_response_within(std::time::Duration::from_millis(50));
        let refused = matches!(answer, Some(Ok(answer)) if answer.status == 503);
        // One that came before the first is the first.
        if !refused {
            second.reset();
        }
        refused.then_some(())
    });
    let before = gateway.metric(CALLOUTS, &[("outcome", "cancelled")]) as usize;
    client.reset();
    await_callouts(&gateway, "cancelled", before + 1);
    let mut client = gateway.client();
    client.send(get("/z"));
    client.expect_quiet(std::time::Duration::from_millis(100));
}

#[test]
fn callouts_are_bounded() {
    let origin = Origin::hello();
    let (service, go) = slow();
    let conf = with(at(&service.node()), json!({ "allow_degradation": true }));
    let gateway = guarded(&origin.node(), &conf, json!({ "limits": { "callouts": 4 } }));
    let mut waiting: Vec<_> = (0..4)
        .map(|_| {
            let mut client = gateway.client();
            client.send(get("/x"));
            client
        })
        .collect();
    wait_until("the questions", LIMIT, || (service.requests().len() == 4).then_some(()));
    for _ in 0..3 {
        let refused = gateway.get("/x");
        assert_eq!(refused.status, 503, "not even where it may pass unasked");
        assert_eq!(refused.field("x-weir-error"), Some("gateway; forward-auth: too many callouts under way"));
    }
    await_callouts(&gateway, "refused", 3);
    go.store(true, SeqCst);
    for client in &mut waiting {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(gateway.get("/x").status, 200);
    await_callouts(&gateway, "answered", 5);
}

#[test]
fn many_ask_at_once() {
    let origin = Origin::hello();
    let service = Origin::answering(|request| match request.field("authorization") {
        Some("yes") => Answer::ok(""),
        _ => Answer::status(401, "no"),
    });
    let conf = with(at(&service.node()), json!({ "request_headers": ["Authorization"] }));
    let gateway = Start::new(rules(&origin.node(), &conf)).workers(2).start();
    let barrier = Barrier::new(16);
    thread::scope(|scope| {
        for number in 0..16 {
            let (gateway, barrier) = (&gateway, &barrier);
            scope.spawn(move || {
                let mut client = gateway.client();
                barrier.wait();
                for round in 0..50 {
                    let allowed = (number + round) % 2 == 0;
                    let word = if allowed { "yes" } else { "no" };
                    let answer =
                        client.request(format!("GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: {word}\r\n\r\n"));
                    assert_eq!(answer.status, if allowed { 200 } else { 401 });
                }
            });
        }
    });
    await_callouts(&gateway, "answered", 800);
    assert_eq!(origin.requests().len(), 400);
}

#[test]
fn answers_are_remembered_by_their_key() {
    let origin = Origin::hello();
    let service = Origin::answering(|request| match request.field("authorization") {
        Some("yes") => Answer::keep("HTTP/1.1 200 OK\r\nX-User-ID: jack\r\nContent-Length: 0\r\n\r\n"),
        _ => Answer::status(401, "no"),
    });
    let conf = json!({
        "request_headers": ["Authorization"], "upstream_headers": ["X-User-ID"],
        "remember": { "key": ["$http_authorization", "$host"], "ttl": 600, "refused_ttl": 600 },
    });
    let gateway = Start::new(rules(&origin.node(), &with(at(&service.node()), conf))).workers(2).start();
    let ask = |word: &str, host: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nAuthorization: {word}\r\n\r\n");
        gateway.client().request(request).status
    };
    for _ in 0..5 {
        assert_eq!((ask("yes", "a.test"), ask("no", "a.test"), ask("yes", "b.test")), (200, 401, 200));
    }
    assert_eq!(service.requests().len(), 3, "one question for each key");
    assert_eq!(origin.last().field("x-user-id"), Some("jack"));
    // A question without an answer is not remembered.
    service.die();
    assert_eq!((ask("yes", "a.test"), ask("yes", "c.test"), ask("yes", "c.test")), (200, 403, 403));
    service.rise();
    assert_eq!(ask("yes", "c.test"), 200);
}

#[test]
fn a_crowd_with_one_key_asks_once() {
    let origin = Origin::hello();
    let (service, go) = slow();
    let conf = with(at(&service.node()), json!({ "remember": { "key": ["$host"], "ttl": 600 }, "timeout": 60_000 }));
    let gateway = Start::new(rules(&origin.node(), &conf)).workers(2).start();
    let mut first = gateway.client();
    first.send(get("/first"));
    wait_until("the question", LIMIT, || (service.requests().len() == 1).then_some(()));
    let mut crowd: Vec<_> = (0..20)
        .map(|_| {
            let mut client = gateway.client();
            client.send(get("/crowd"));
            client
        })
        .collect();
    crowd[0].expect_quiet(std::time::Duration::from_millis(100));
    assert_eq!(service.requests().len(), 1);
    // The one who has asked goes: another asks in its place.
    first.reset();
    wait_until("the second question", LIMIT, || (service.requests().len() == 2).then_some(()));
    go.store(true, SeqCst);
    for client in &mut crowd {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(service.requests().len(), 2);
    assert_eq!(gateway.get("/later").status, 200);
    assert_eq!(service.requests().len(), 2);
}

#[test]
fn no_more_answers_are_remembered_than_may() {
    let origin = Origin::hello();
    let service = Origin::answering(|request| match request.field("x-forwarded-host") {
        Some("long.test") => Answer::status(401, &"x".repeat(2000)),
        _ => Answer::status(401, "no"),
    });
    let asked = |remember: Value, hosts: &[&str]| {
        let conf = with(at(&service.node()), json!({ "remember": remember }));
        let gateway = Gateway::start(rules(&origin.node(), &conf));
        let before = service.requests().len();
        for host in hosts {
            let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(gateway.client().request(request).status, 401);
        }
        service.requests().len() - before
    };
    let most = |name: &str, most: u32| {
        let mut remember = json!({ "key": ["$host"], "ttl": 600, "refused_ttl": 600 });
        remember[name] = json!(most);
        remember
    };
    assert_eq!(asked(most("max_entries", 1), &["a.test", "a.test", "b.test", "b.test", "a.test"]), 3);
    assert_eq!(asked(most("max_bytes", 1024), &["a.test", "a.test", "long.test", "long.test"]), 3);
    assert_eq!(asked(most("refused_ttl", 0), &["a.test", "a.test"]), 2);
}

#[test]
fn a_plugin_that_waits_has_a_deadline() {
    let origin = Origin::hello();
    // A delay is the plugin's own: the deadline of others does not cut it.
    let route = json!({
        "id": "all", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } },
        "plugins": { "fault-injection": { "delay": { "duration": 0.3 } } },
    });
    let gateway = Gateway::with(json!({ "routes": [route] }), json!({ "timeouts": { "plugin": "100ms" } }));
    let (answer, took) = timed(|| gateway.get("/x"));
    assert_eq!(answer.status, 200);
    assert!(took.as_millis() >= 300, "{took:?}");
    // A client that goes ends the wait.
    let long = json!({
        "id": "all", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } },
        "plugins": { "fault-injection": { "delay": { "duration": 600 } } },
    });
    assert_eq!(gateway.reload(json!({ "routes": [long] })), Reload::Applied);
    let mut client = gateway.client();
    client.send(get("/gone"));
    client.expect_quiet(std::time::Duration::from_millis(50));
    client.reset();
    gateway.await_metric("weir_client_errors_total", &[("reason", "aborted")], 1.0);
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 0.0);
}

#[test]
fn connections_to_the_service_are_kept_as_the_fields_say() {
    const AT_ONCE: usize = 4;
    let (origin, together) = (Origin::hello(), Barrier::new(AT_ONCE));
    let service = Origin::answering(move |request| {
        if request.target == "/together" {
            together.wait();
        }
        Answer::ok("")
    });
    let keeps = |uri: &str, pool: usize, timeout: u64| {
        let uri = format!("http://{}{uri}", service.node());
        let conf = json!({ "uri": uri, "keepalive_pool": pool, "keepalive_timeout": timeout });
        guarded(&origin.node(), &conf, json!({ "workers": 1 }))
    };

    let gateway = keeps("/together", 2, 60_000);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| assert_eq!(gateway.get("/").status, 200));
        }
    });
    assert_eq!(service.connections(), AT_ONCE);
    wait_until("all but 2 connections to be closed", LIMIT, || (service.open() == 2).then_some(()));
    drop(gateway);

    wait_until("the connections of that gateway to be closed", LIMIT, || (service.open() == 0).then_some(()));
    let gateway = keeps("/auth", 5, 1000);
    assert_eq!(gateway.get("/").status, 200);
    wait_until("the idle connection to be closed", LIMIT, || (service.open() == 0).then_some(()));
}
