//! The boards for Grafana: every expression has values in a real Prometheus that scrapes a gateway.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, Process, RawClient, Start, free_port, program, repository};

/// The expressions of all boards, with the panels that have them, and the queries of their variables.
fn expressions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository().join("dashboards")).expect("read the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let board: Value = serde_json::from_str(&fs::read_to_string(&path).expect("read a board")).expect("JSON");
        let title = board["title"].as_str().expect("a title");
        for panel in board["panels"].as_array().expect("panels") {
            for target in panel["targets"].as_array().expect("targets") {
                let expression = target["expr"].as_str().expect("an expression");
                found.push((format!("{title}, {}", panel["title"]), expression.to_owned()));
            }
        }
        for variable in board["templating"]["list"].as_array().expect("variables") {
            let Some(query) = variable["query"]["query"].as_str() else { continue };
            let inner = query.strip_prefix("label_values(").and_then(|query| query.rsplit_once(", ")).expect(query);
            found.push((format!("{title}, variable {}", variable["name"]), inner.0.to_owned()));
        }
    }
    assert!(found.len() > 40, "{} expressions", found.len());
    found
}

/// As Grafana puts them in.
fn filled(expression: &str) -> String {
    let mut filled = expression.replace("$__rate_interval", "5s");
    for variable in ["$instance", "$route", "$node"] {
        filled = filled.replace(variable, ".*");
    }
    assert!(!filled.contains('$'), "{expression}");
    filled
}

/// A Prometheus that scrapes a gateway.
fn prometheus(gateway: &Gateway, folder: &std::path::Path) -> (Process, SocketAddr) {
    let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let config = json!({
        "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms" },
        "scrape_configs": [{
            "job_name": "weir", "metrics_path": "/metrics",
            "static_configs": [{ "targets": [gateway.metrics.to_string()] }],
        }],
    });
    let file = folder.join("prometheus.yml");
    fs::write(&file, config.to_string()).expect("write a file");
    let mut command = Command::new(program("prometheus"));
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    (Process::spawn(&mut command), address)
}

/// The number of values that an expression has now; `None` while Prometheus does not answer.
fn values(address: SocketAddr, expression: &str) -> Option<Result<usize, String>> {
    std::net::TcpStream::connect(address).ok()?;
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let head = format!("GET /api/v1/query?query={encoded} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = RawClient::connect(address).request(head);
    if answer.status == 503 {
        return None;
    }
    let told = answer.json();
    Some(match told["data"]["result"].as_array() {
        Some(result) => Ok(result.len()),
        None => Err(told.to_string()),
    })
}

#[test]
fn every_expression_has_values_in_prometheus() {
    let origin = Origin::answering(|request| match request.target.as_str() {
        "/fails" => Answer::status(500, "no"),
        _ => Answer::ok("hello"),
    });
    let checks = json!({ "active": { "type": "tcp", "healthy": { "interval": 1 }, "unhealthy": { "interval": 1 } } });
    let gateway = Start::new(json!({
        "routes": [{ "id": "r", "uri": "/*", "plugins": { "prometheus": {} }, "upstream_id": "u" }],
        "upstreams": [{ "id": "u", "nodes": { origin.node(): 1 }, "checks": checks }],
    }))
    .start();
    let folder = tempfile::tempdir().expect("a folder");
    let (_prometheus, address) = prometheus(&gateway, folder.path());
    let all = expressions().into_iter().map(|(place, expression)| (place, filled(&expression)));
    await_values(address, all.collect(), || {
        assert_eq!(gateway.get("/hello").status, 200);
        assert_eq!(gateway.get("/fails").status, 500);
        gateway.client().request("BROKEN\r\n\r\n");
    });
}

/// Waits until every expression has a value; `traffic` is made meanwhile.
fn await_values(address: SocketAddr, mut left: BTreeSet<(String, String)>, traffic: impl Fn()) {
    let began = Instant::now();
    while !left.is_empty() {
        assert!(began.elapsed() < 3 * LIMIT, "without a value: {left:#?}");
        traffic();
        left.retain(|(place, expression)| match values(address, expression) {
            Some(Ok(found)) => found == 0,
            Some(Err(error)) => panic!("{place}: {expression}: {error}"),
            None => true,
        });
        thread::sleep(Duration::from_millis(100));
    }
}

/// What the panels of Kong's own board (7424 of Grafana's) ask for, apart from the memory of Lua, of which there is none.
#[test]
fn kongs_board_has_values_in_prometheus() {
    let mut all: Vec<String> = Vec::new();
    let chosen = "service=~\".*\", route=~\".*\", instance=~\".*\"";
    for by in ["", " by (service)", " by (route)", " by (service,code)", " by (route,code)"] {
        all.push(format!("sum(rate(kong_http_requests_total{{{chosen}}}[5s])){by}"));
    }
    for name in ["kong_kong_latency_ms", "kong_request_latency_ms", "kong_upstream_latency_ms"] {
        for by in ["le", "service,le", "route,le"] {
            all.push(format!("histogram_quantile(0.95, sum(rate({name}_bucket{{{chosen}}}[5s])) by ({by}))"));
        }
    }
    for direction in ["ingress", "egress"] {
        for by in ["", " by (service)", " by (route)"] {
            all.push(format!("sum(irate(kong_bandwidth_bytes{{direction=\"{direction}\", {chosen}}}[5s])){by}"));
        }
    }
    for states in ["active|reading|writing|waiting", "accepted|handled|total"] {
        all.push(format!("sum(kong_nginx_connections_total{{state=~\"{states}\", instance=~\".*\"}}) by (state)"));
    }
    all.push(
        "sum(kong_upstream_target_health{state=\"healthy\",upstream=~\"pool\"}) by (upstream,target,address)".into(),
    );
    all.push("kong_datastore_reachable".into());
    let origin = Origin::hello();
    let checks = json!({ "active": { "type": "tcp", "healthy": { "interval": 1, "successes": 1 }, "unhealthy": { "interval": 1 } } });
    let told = ["status_code_metrics", "latency_metrics", "bandwidth_metrics", "upstream_health_metrics"];
    let told: Value = told.into_iter().map(|name| (name.to_owned(), Value::Bool(true))).collect();
    let gateway = Start::new(json!({
        "_format_version": "3.0",
        "services": [{ "name": "s", "host": "pool", "routes": [{ "name": "r", "paths": ["/"] }] }],
        "upstreams": [{ "name": "pool", "targets": [{ "target": origin.node() }], "healthchecks": checks }],
        "plugins": [{ "name": "prometheus", "config": told }],
    }))
    .start();
    let folder = tempfile::tempdir().expect("a folder");
    let (_prometheus, address) = prometheus(&gateway, folder.path());
    let all = all.into_iter().map(|expression| ("Kong's board".to_owned(), expression));
    await_values(address, all.collect(), || assert_eq!(gateway.get("/x").status, 200));
}
