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
    let mut filled = expression.replace("$__rate_interval", "5s").replace("[1m]", "[5s]");
    for variable in ["$instance", "$route", "$node", "$service", "$consumer", "$upstream"] {
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

/// Waits until every expression has values, while requests go on.
fn have_values(gateway: &Gateway, expressions: impl Iterator<Item = (String, String)>, request: impl Fn()) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_prometheus, address) = prometheus(gateway, folder.path());
    let mut left: BTreeSet<(String, String)> =
        expressions.map(|(place, expression)| (place, filled(&expression))).collect();
    let began = Instant::now();
    while !left.is_empty() {
        assert!(began.elapsed() < 3 * LIMIT, "without a value: {left:#?}");
        request();
        left.retain(|(place, expression)| match values(address, expression) {
            Some(Ok(found)) => found == 0,
            Some(Err(error)) => panic!("{place}: {expression}: {error}"),
            None => true,
        });
        thread::sleep(Duration::from_millis(100));
    }
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
    have_values(&gateway, expressions().into_iter(), || {
        assert_eq!(gateway.get("/hello").status, 200);
        assert_eq!(gateway.get("/fails").status, 500);
        gateway.client().request("BROKEN\r\n\r\n");
    });
}

const OF: &str = r#"service=~"$service",route=~"$route",instance=~"$instance""#;

/// The expressions of APISIX's public board, `apisix-grafana-dashboard.json`. Three of its panels are about etcd and shared
/// dictionaries of nginx, which this gateway may not have or never has.
fn expressions_of_apisix() -> Vec<String> {
    let mut all = vec![
        r#"sum(apisix_http_requests_total{instance=~"$instance"})"#.to_owned(),
        r#"sum(apisix_nginx_http_current_connections{state=~"active|reading|writing|waiting", instance=~"$instance"}) by (state)"#.to_owned(),
        r#"sum(rate(apisix_bandwidth{instance=~"$instance"}[$__rate_interval])) by (type)"#.to_owned(),
        format!("sum(rate(apisix_http_status{{{OF}}}[$__rate_interval])) by (code)"),
        r#"sum(rate(apisix_http_status{instance=~"$instance"}[$__rate_interval]))"#.to_owned(),
        r#"sum(apisix_nginx_metric_errors_total{instance=~"$instance"})"#.to_owned(),
    ];
    for state in ["accepted", "handled"] {
        all.push(format!("sum(apisix_nginx_http_current_connections{{state=\"{state}\", instance=~\"$instance\"}})"));
    }
    for by in ["service", "route"] {
        all.push(format!("sum(irate(apisix_bandwidth{{type=\"ingress\", {OF}}}[$__rate_interval])) by ({by})"));
        all.push(format!("sum(rate(apisix_bandwidth{{type=\"egress\", {OF}}}[$__rate_interval])) by ({by})"));
        all.push(format!("sum(rate(apisix_http_status{{{OF}}}[$__rate_interval])) by ({by})"));
    }
    let of = r#"service=~"$service",consumer=~"$consumer",node=~"$node",route=~"$route""#;
    for (kind, share) in
        ["request", "apisix", "upstream"].into_iter().flat_map(|kind| [0.9, 0.95, 0.99].map(|share| (kind, share)))
    {
        let rate = format!("rate(apisix_http_latency_bucket{{type=~\"{kind}\",{of}}}[$__rate_interval])");
        all.push(format!("histogram_quantile({share}, sum({rate}) by (le))"));
    }
    all.extend(
        ["service", "route", "instance", "consumer", "node"]
            .map(|label| format!("apisix_http_status{{{label}=~\".+\"}}")),
    );
    all
}

#[test]
fn the_public_board_of_apisix_is_filled() {
    let origin = Origin::hello();
    let gateway = Start::new(json!({
        "routes": [{ "id": "r", "uri": "/*", "plugins": { "prometheus": {}, "key-auth": {} }, "service_id": "s" }],
        "services": [{ "id": "s", "upstream": { "nodes": { origin.node(): 1 } } }],
        "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "jacks" } } }],
    }))
    .start();
    let all = expressions_of_apisix().into_iter().map(|expression| ("APISIX".to_owned(), expression));
    have_values(&gateway, all, || {
        let answer = gateway.client().request("GET /x HTTP/1.1\r\nHost: a\r\napikey: jacks\r\n\r\n");
        assert_eq!(answer.status, 200);
    });
}

/// The expressions of Kong's public board, `kong-official.json` of Kong 3. Its two panels about the memory of Lua are empty here.
fn expressions_of_kong() -> Vec<String> {
    let mut all = vec![
        r#"sum(rate(kong_http_requests_total{instance=~"$instance"}[1m]))"#.to_owned(),
        r#"sum(irate(kong_bandwidth_bytes{instance=~"$instance"}[1m])) by (type)"#.to_owned(),
        r#"sum(irate(kong_bandwidth_bytes{direction="ingress", service =~"$service"}[1m])) by (service)"#.to_owned(),
        r#"sum(kong_nginx_connections_total{state=~"active|reading|writing|waiting", instance=~"$instance"}) by (state)"#.to_owned(),
        r#"sum(kong_upstream_target_health{state="healthy",upstream=~"$upstream"}) by (upstream,target,address) * -1 + sum(kong_upstream_target_health{state=~"(unhealthy|dns_error)",upstream=~"$upstream"}) by (upstream,target,address)"#.to_owned(),
        r#"sum(label_replace(label_replace(label_replace(kong_upstream_target_health{upstream=~"$upstream"}, "state_value", "1", "state", "healthy"), "state_value", "0", "state", "healthchecks_off"), "state_value", "-1", "state", "(dns_error|unhealthy)")) by (upstream, target, address, state, state_value) > 0"#.to_owned(),
    ];
    for by in ["service", "route", "service,code", "route,code"] {
        all.push(format!("sum(rate(kong_http_requests_total{{{OF}}}[1m])) by ({by})"));
    }
    for metric in ["kong_kong_latency_ms", "kong_request_latency_ms", "kong_upstream_latency_ms"] {
        for share in [0.9, 0.95, 0.99] {
            for (of, by) in [("", "le"), (OF, "service,le"), (OF, "route,le")] {
                all.push(format!("histogram_quantile({share}, sum(rate({metric}_bucket{{{of}}}[1m])) by ({by}))"));
            }
        }
    }
    all.extend(
        ["service", "route"]
            .map(|by| format!("sum(irate(kong_bandwidth_bytes{{direction=\"egress\", {OF}}}[1m])) by ({by})")),
    );
    all.extend(
        ["total", "handled", "accepted"]
            .map(|state| format!("sum(kong_nginx_connections_total{{state=\"{state}\", instance=~\"$instance\"}})")),
    );
    all.push(r#"kong_upstream_target_health{upstream=~".+"}"#.to_owned());
    all
}

#[test]
fn the_public_board_of_kong_is_filled() {
    let origin = Origin::hello();
    let metrics = json!({ "name": "prometheus", "config": {
        "status_code_metrics": true, "latency_metrics": true, "bandwidth_metrics": true, "upstream_health_metrics": true,
    }});
    let check = json!({ "active": { "type": "tcp", "healthy": { "interval": 1, "successes": 1 }, "unhealthy": { "interval": 1 } } });
    let gateway = Start::new(json!({
        "_format_version": "3.0",
        "plugins": [metrics],
        "upstreams": [{ "name": "u", "healthchecks": check, "targets": [{ "target": origin.node() }] }],
        "services": [{ "name": "s", "host": "u", "routes": [{ "name": "r", "paths": ["/"] }] }],
    }))
    .start();
    let all = expressions_of_kong().into_iter().map(|expression| ("Kong".to_owned(), expression));
    have_values(&gateway, all, || assert_eq!(gateway.get("/x").status, 200));
}
