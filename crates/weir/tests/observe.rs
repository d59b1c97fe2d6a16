//! Observability of traffic: access log and metrics.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, Refusing, Start, get, post, program, route_to, wait_until};

/// The lines of a log, once there are so many.
fn lines(file: &Path, count: usize) -> Vec<String> {
    wait_until(&format!("{count} lines in {}", file.display()), LIMIT, || {
        let text = fs::read_to_string(file).unwrap_or_default();
        // The last one may be on its way.
        let lines: Vec<_> =
            text.split_inclusive('\n').filter_map(|l| l.strip_suffix('\n')).map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Routes that bring about every source of an answer, all of them counted.
fn traffic(origin: &Origin, refusing: &Refusing) -> Value {
    let counted = json!({ "prometheus": {} });
    let upstream = json!({ "nodes": { (origin.node()): 1 } });
    let dead = json!({ "nodes": { (refusing.node()): 1 } });
    json!({
        "services": [{ "id": "svc", "name": "service", "upstream": upstream }],
        "routes": [
            { "id": "plain", "name": "named", "uri": "/plain/*", "host": "a.test", "service_id": "svc", "plugins": counted },
            { "id": "keyed", "uri": "/keyed", "upstream": upstream, "plugins": { "prometheus": {}, "key-auth": {} } },
            { "id": "dead", "uri": "/dead", "upstream": dead, "plugins": counted },
            { "id": "nodes", "uri": "/nodes", "upstream": { "nodes": {} }, "plugins": counted },
            { "id": "mock", "uri": "/mock", "plugins": { "prometheus": {}, "mocking": { "response_example": "mocked" } } },
            { "id": "uncounted", "uri": "/uncounted", "upstream": upstream },
        ],
        "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "secret" } } }],
    })
}

#[test]
fn the_json_log_tells_everything_about_a_request() {
    let origin = Origin::answering(|request| {
        if request.target.starts_with("/plain/slow") {
            thread::sleep(Duration::from_millis(300));
        }
        Answer::status(201, "hello")
    });
    let refusing = Refusing::bind();
    let gateway = Gateway::with(traffic(&origin, &refusing), json!({ "access_log": { "path": "FOLDER/access.log" } }));
    let mut client = gateway.client();
    let request =
        "POST /plain/slow?a=1 HTTP/1.1\r\nHost: a.test\r\nUser-Agent: t\"est\\\r\nContent-Length: 4\r\n\r\nbody";
    assert_eq!(client.request(request).status, 201);
    assert_eq!(client.request("GET /keyed HTTP/1.1\r\nHost: b.test\r\napikey: secret\r\n\r\n").status, 201);
    assert_eq!(client.get("/keyed").status, 401);
    assert_eq!(client.get("/dead").status, 502);
    assert_eq!(client.get("/none").status, 404);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
    assert_eq!(client.response().status, 400);

    let log = lines(&gateway.file("access.log"), 6);
    let log: Vec<Value> = log.iter().map(|line| parse(line)).collect();
    assert_eq!(log.len(), 6);
    let told = |line: &Value, fields: &[(&str, Value)]| {
        for (name, value) in fields {
            assert_eq!(&line[name], value, "{name} in {line}");
        }
    };
    told(
        &log[0],
        &[
            ("remote_addr", json!("127.0.0.1")),
            ("method", json!("POST")),
            ("scheme", json!("http")),
            ("host", json!("a.test")),
            ("uri", json!("/plain/slow?a=1")),
            ("protocol", json!("HTTP/1.1")),
            ("status", json!(201)),
            ("request_length", json!(request.len())),
            ("body_bytes_sent", json!(5)),
            ("upstream_addr", json!(origin.node())),
            ("route_id", json!("plain")),
            ("service_id", json!("svc")),
            ("consumer_name", Value::Null),
            ("user_agent", json!("t\"est\\")),
        ],
    );
    let seconds = |name: &str| log[0][name].as_f64().unwrap_or_else(|| panic!("no number {name} in {}", log[0]));
    // The origin took 300 ms, and that is not the gateway's time.
    for name in ["request_time", "upstream_latency"] {
        assert!((0.29..10.0).contains(&seconds(name)), "{name} in {}", log[0]);
    }
    assert!(seconds("gateway_latency") < seconds("upstream_latency"), "{}", log[0]);
    assert!(seconds("bytes_sent") > 5.0, "{}", log[0]);
    told(&log[1], &[("status", json!(201)), ("consumer_name", json!("jack")), ("route_id", json!("keyed"))]);
    told(&log[2], &[("status", json!(401)), ("upstream_addr", Value::Null), ("consumer_name", Value::Null)]);
    told(&log[3], &[("status", json!(502)), ("route_id", json!("dead")), ("upstream_addr", json!(refusing.node()))]);
    told(&log[4], &[("status", json!(404)), ("route_id", Value::Null)]);
    told(&log[5], &[("status", json!(400))]);
}

#[test]
fn the_template_log_cannot_be_forged() {
    let origin = Origin::hello();
    let settings = json!({ "access_log": {
        "path": "FOLDER/access.log",
        "format": "$remote_addr \"$request_method $request_uri\" $status ${body_bytes_sent}b \"$http_user_agent\" $http_none",
    }});
    let gateway = Gateway::with(route_to(&[origin.node()]), settings);
    let mut client = gateway.client();
    for agent in ["plain", "\" 200 \"forged", "caf\u{e9}"] {
        let bytes = format!("GET /x?y HTTP/1.1\r\nHost: a.test\r\nUser-Agent: {agent}\r\n\r\n");
        assert_eq!(client.request(bytes).status, 200);
    }
    assert_eq!(
        lines(&gateway.file("access.log"), 3),
        [
            "127.0.0.1 \"GET /x?y\" 200 5b \"plain\" -",
            "127.0.0.1 \"GET /x?y\" 200 5b \"\\x22 200 \\x22forged\" -",
            "127.0.0.1 \"GET /x?y\" 200 5b \"caf\\xC3\\xA9\" -",
        ]
    );
}

#[test]
fn the_log_goes_to_standard_output_too() {
    let origin = Origin::hello();
    let settings = json!({ "access_log": { "path": "stdout", "format": "$status $request_uri $nobody" } });
    let gateway = Gateway::with(route_to(&[origin.node()]), settings);
    assert_eq!(gateway.get("/seen").status, 200);
    assert_eq!(gateway.line(), "200 /seen -");
    assert_eq!(gateway.get("/x/..//s%65en?a=%20").status, 200);
    assert_eq!(gateway.line(), "200 /x/..//s%65en?a=%20 -", "as it was sent");
    let log = gateway.logged("the gateway is up");
    assert!(log.contains("access_log.format: ") && log.contains(": - is written for it"), "{log}");
}

#[test]
fn a_reopened_log_loses_no_line() {
    const THREADS: usize = 4;
    let origin = Origin::hello();
    let config = route_to(&[origin.node()]);
    let gateway =
        Start::new(config).workers(2).settings(json!({ "access_log": { "path": "FOLDER/access.log" } })).start();
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let file = gateway.file("access.log");
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut client = gateway.client();
                while !stop.load(SeqCst) {
                    assert_eq!(client.get("/").status, 200);
                    sent.fetch_add(1, SeqCst);
                }
            });
        }
        for round in 0..5 {
            let before = sent.load(SeqCst);
            wait_until("traffic", LIMIT, || (sent.load(SeqCst) > before + 200).then_some(()));
            fs::rename(&file, gateway.file(&format!("access.log.{round}"))).expect("move the log away");
            gateway.signal(Signal::USR1);
            wait_until("a new log", LIMIT, || file.exists().then_some(()));
        }
        stop.store(true, SeqCst);
    });
    let names: Vec<_> = (0..5).map(|round| gateway.file(&format!("access.log.{round}"))).chain([file]).collect();
    wait_until("a line for each request", LIMIT, || {
        let count = |name: &std::path::PathBuf| fs::read_to_string(name).map_or(0, |text| text.lines().count());
        (names.iter().map(count).sum::<usize>() == sent.load(SeqCst)).then_some(())
    });
    for name in &names {
        for line in fs::read_to_string(name).expect("read a log").lines() {
            assert_eq!(parse(line)["status"], 200);
        }
    }
    assert_eq!(gateway.metric("weir_access_log_dropped_total", &[]), 0.0);
}

#[test]
fn metrics_count_known_traffic() {
    let origin = Origin::hello();
    let refusing = Refusing::bind();
    let gateway = Gateway::start(traffic(&origin, &refusing));
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/plain/x").status, 200);
    }
    assert_eq!(client.request("GET /keyed HTTP/1.1\r\nHost: a.test\r\napikey: secret\r\n\r\n").status, 200);
    for (path, status) in
        [("/keyed", 401), ("/dead", 502), ("/nodes", 503), ("/mock", 200), ("/uncounted", 200), ("/none", 404)]
    {
        assert_eq!(client.get(path).status, status, "{path}");
    }
    let response = client.request(post("/plain/upload", &"x".repeat(10_000)));
    assert_eq!(response.status, 200);
    gateway.await_metric("apisix_http_status", &[("route", "plain")], 4.0);

    let status = |labels: &[(&str, &str)]| gateway.metric("apisix_http_status", labels);
    let plain = [
        ("code", "200"),
        ("route", "plain"),
        ("matched_uri", "/plain/*"),
        ("matched_host", "a.test"),
        ("service", "svc"),
        ("consumer", ""),
        ("node", "127.0.0.1"),
        ("request_type", "traditional_http"),
        ("request_llm_model", ""),
        ("llm_model", ""),
        ("response_source", "upstream"),
    ];
    assert_eq!(status(&plain), 4.0);
    for (count, labels) in [
        (1.0, &[("route", "keyed"), ("code", "200"), ("consumer", "jack"), ("response_source", "upstream")][..]),
        (1.0, &[("route", "keyed"), ("code", "401"), ("consumer", ""), ("node", ""), ("response_source", "apisix")]),
        (1.0, &[("route", "dead"), ("code", "502"), ("node", "127.0.0.1"), ("response_source", "nginx")]),
        (1.0, &[("route", "nodes"), ("code", "503"), ("node", ""), ("response_source", "apisix")]),
        (1.0, &[("route", "mock"), ("code", "200"), ("node", ""), ("response_source", "apisix")]),
        (0.0, &[("route", "uncounted")]),
    ] {
        assert_eq!(status(labels), count, "{labels:?}");
    }
    let page = gateway.metrics_page();
    let line = page
        .0
        .lines()
        .find(|line| line.starts_with("apisix_http_status{") && line.contains("\"plain\""))
        .expect("a line");
    let order: Vec<_> =
        line.split_once('{').expect("labels").1.split(',').filter_map(|l| Some(l.split_once('=')?.0)).collect();
    assert_eq!(order, plain.map(|(name, _)| name), "labels in the order of the reference");

    let ingress = [("type", "ingress"), ("route", "plain")];
    let sent = 3 * get("/plain/x").len() + post("/plain/upload", &"x".repeat(10_000)).len();
    assert_eq!(gateway.metric("apisix_bandwidth", &ingress), sent as f64);
    assert!(gateway.metric("apisix_bandwidth", &[("type", "egress"), ("route", "plain")]) > 4.0 * 5.0);
    for kind in ["request", "upstream", "apisix"] {
        assert_eq!(gateway.metric("apisix_http_latency_count", &[("type", kind), ("route", "plain")]), 4.0, "{kind}");
    }
    assert_eq!(gateway.metric("apisix_http_latency_count", &[("type", "upstream"), ("route", "mock")]), 0.0);
    assert_eq!(gateway.metric("apisix_http_requests_total", &[]), 11.0);
    assert_eq!(gateway.metric("apisix_nginx_http_current_connections", &[("state", "active")]), 1.0);
    assert_eq!(gateway.metric("apisix_nginx_http_current_connections", &[("state", "waiting")]), 1.0);
    assert_eq!(gateway.metric("weir_upstream_connections", &[("state", "idle")]), 1.0);
    drop(client);
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 0.0);
}

#[test]
fn latency_is_split_between_gateway_and_upstream() {
    let origin = Origin::answering(|_| {
        thread::sleep(Duration::from_millis(250));
        Answer::ok("slow")
    });
    let refusing = Refusing::bind();
    let gateway = Gateway::start(traffic(&origin, &refusing));
    assert_eq!(gateway.get("/plain/x").status, 200);
    gateway.await_metric("apisix_http_latency_count", &[("type", "request"), ("route", "plain")], 1.0);
    let sum = |kind| gateway.metric("apisix_http_latency_sum", &[("type", kind), ("route", "plain")]);
    let (request, upstream, own) = (sum("request"), sum("upstream"), sum("apisix"));
    assert!(upstream >= 249.0 && request >= upstream, "request {request}, upstream {upstream}, gateway {own} ms");
    assert!(
        own < 200.0 && (request - upstream - own).abs() < 20.0,
        "request {request}, upstream {upstream}, gateway {own} ms"
    );
    let bucket =
        |kind, le| gateway.metric("apisix_http_latency_bucket", &[("type", kind), ("route", "plain"), ("le", le)]);
    assert_eq!((bucket("upstream", "200"), bucket("upstream", "+Inf")), (0.0, 1.0));
}

#[test]
fn names_take_the_place_of_ids_where_that_is_preferred() {
    let origin = Origin::hello();
    let refusing = Refusing::bind();
    let mut config = traffic(&origin, &refusing);
    config["routes"][0]["plugins"]["prometheus"] = json!({ "prefer_name": true });
    let gateway = Gateway::start(config);
    assert_eq!(gateway.get("/plain/x").status, 200);
    gateway.await_metric("apisix_http_status", &[("route", "named"), ("service", "service")], 1.0);
}

#[test]
fn a_request_counts_once_where_the_plugin_stands_on_its_route_and_in_a_global_rule() {
    let counted = |meta: Value| json!({ "prometheus": { "prefer_name": true, "_meta": meta }, "mocking": { "response_example": "x" } });
    let mocking = json!({ "mocking": { "response_example": "x" } });
    let on = counted(json!({}));
    let gateway = Gateway::start(json!({
        "global_rules": [{ "id": 1, "plugins": { "prometheus": {} } }],
        "services": [{ "id": "s", "plugins": on }],
        "routes": [
            { "id": "r1", "name": "own", "uri": "/own", "plugins": on },
            { "id": "r2", "name": "inherited", "uri": "/inherited", "service_id": "s" },
            { "id": "r3", "name": "off", "uri": "/off", "plugins": counted(json!({ "disable": true })) },
            { "id": "r4", "name": "none", "uri": "/none", "plugins": mocking },
        ],
    }));
    for path in ["/own", "/inherited", "/off", "/none", "/unknown"] {
        gateway.get(path);
    }
    for route in ["own", "inherited", "r3", "r4", ""] {
        gateway.await_metric("apisix_http_status", &[("route", route)], 1.0);
        assert_eq!(
            gateway.metric("apisix_http_latency_count", &[("type", "request"), ("route", route)]),
            1.0,
            "{route}"
        );
    }
    for route in ["r1", "r2", "off", "none"] {
        assert_eq!(gateway.metric("apisix_http_status", &[("route", route)]), 0.0, "{route}");
    }
}

#[test]
fn types_are_declared_for_promtool_or_as_apisix_does() {
    let config = || json!({ "routes": [{ "id": "r", "uri": "/*", "plugins": { "prometheus": {}, "mocking": { "response_example": "x" } } }] });
    for (setting, status, requests) in [("metrics: {types: linted}", "untyped", "counter"), ("", "counter", "gauge")] {
        let gateway = Start::new(config()).settings(setting).start();
        gateway.get("/");
        gateway.await_metric("apisix_http_status", &[("route", "r")], 1.0);
        let page = gateway.metrics_page().0;
        for (name, kind) in [("http_status", status), ("bandwidth", status), ("http_requests_total", requests)] {
            let line = format!("# TYPE apisix_{name} {kind}\n");
            assert!(page.contains(&line), "{setting}: no {line}{page}");
        }
    }
}

#[test]
fn labels_that_metadata_disables_are_empty() {
    let origin = Origin::hello();
    let mut config = json!({
        "routes": [{ "id": "r", "uri": "/*", "plugins": { "prometheus": {}, "key-auth": {} }, "upstream": { "nodes": { (origin.node()): 1 } } }],
        "consumers": (["jack", "jill"].map(|name| json!({ "username": name, "plugins": { "key-auth": { "key": name } } }))),
        "plugin_metadata": [{ "id": "prometheus", "disabled_labels": {
            "http_status": ["consumer", "response_source"], "http_latency": ["consumer", "node"], "bandwidth": ["consumer", "route"],
        } }],
    });
    let gateway = Gateway::start(config.clone());
    let ask =
        |key: &str| gateway.client().request(format!("GET / HTTP/1.1\r\nHost: a.test\r\napikey: {key}\r\n\r\n")).status;
    assert_eq!([ask("jack"), ask("jill")], [200, 200]);
    gateway.await_metric("apisix_http_status", &[("consumer", ""), ("response_source", "")], 2.0);
    let page = gateway.metrics_page();
    for (name, labels, there) in [
        ("apisix_http_status", [("consumer", ""), ("node", "127.0.0.1")], true),
        ("apisix_http_latency_count", [("node", ""), ("route", "r")], true),
        ("apisix_http_latency_count", [("node", "127.0.0.1"), ("route", "r")], false),
        ("apisix_bandwidth", [("node", "127.0.0.1"), ("route", "")], true),
        ("apisix_bandwidth", [("node", "127.0.0.1"), ("route", "r")], false),
    ] {
        assert_eq!(page.value(name, &labels).is_some(), there, "{name} {labels:?} in\n{}", page.0);
        for consumer in ["jack", "jill"] {
            assert_eq!(page.value(name, &[("consumer", consumer)]), None, "{name}");
        }
    }
    config["plugin_metadata"] = json!([]);
    gateway.reload(&config);
    assert_eq!(ask("jack"), 200);
    gateway.await_metric("apisix_http_status", &[("consumer", "jack"), ("response_source", "upstream")], 1.0);
}

#[test]
fn promtool_finds_nothing_wrong_with_a_live_page() {
    let origin = Origin::hello();
    let refusing = Refusing::bind();
    let gateway = Start::new(traffic(&origin, &refusing)).settings("metrics: {types: linted}").start();
    for path in ["/plain/x", "/keyed", "/dead", "/nodes", "/mock", "/none"] {
        gateway.get(path);
    }
    gateway.await_metric("apisix_http_status", &[("route", "mock")], 1.0);
    let mut child = Command::new(program("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start promtool");
    let page = gateway.metrics_page().0;
    child.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("write to promtool");
    let output = child.wait_with_output().expect("wait for promtool");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    // Names that the reference gives cannot be changed for a linter: its exit status 3 stands for such remarks alone.
    assert!(!said.contains("error while linting") && matches!(output.status.code(), Some(0 | 3)), "{said}");
}

#[test]
fn metrics_are_an_api_where_they_have_no_port_of_their_own() {
    let route = |id: &str, uri: &str, conf: serde_json::Value| json!({ "id": id, "uri": uri, "plugins": { "public-api": conf, "prometheus": {} } });
    let api = "/apisix/prometheus/metrics";
    let routes = json!({ "routes": [
        route("own", api, json!({})),
        route("renamed", "/m", json!({ "uri": api })),
        route("other", "/other", json!({ "uri": "/page" })),
    ] });
    let get = |gateway: &Gateway, path: &str| {
        gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n"))
    };
    let without_port =
        |routes: &Value, settings: Value| Start::new(routes).settings(settings).without_metrics().start();
    let gateway = without_port(&routes, json!({}));
    for path in ["/m", api] {
        let response = get(&gateway, path);
        assert_eq!((response.status, response.field("content-type")), (200, Some("text/plain; version=0.0.4")));
        assert!(response.text().contains("apisix_nginx_http_current_connections{state=\"writing\"} 1"), "{path}");
    }
    let page = get(&gateway, "/m").text();
    assert!(page.contains("apisix_http_status{code=\"200\",route=\"renamed\""), "what it answered is counted: {page}");
    assert_eq!(get(&gateway, "/other").status, 404);
    let gateway = without_port(&routes, json!({ "metrics": { "path": "/page" } }));
    assert_eq!(["/other", "/m", api].map(|path| get(&gateway, path).status), [200, 404, 404]);
    // Whoever has a port for them does not show them to clients, nor does a gateway without the plugin.
    let gateway = Gateway::start(&routes);
    assert_eq!(get(&gateway, api).status, 404);
    let routes = json!({ "routes": [{ "id": "own", "uri": api, "plugins": { "public-api": {} } }] });
    assert_eq!(get(&without_port(&routes, json!({ "plugins": ["public-api"] })), api).status, 404);
}
