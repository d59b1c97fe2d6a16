//! The page of metrics, from a worker's recording to the text that Prometheus reads.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use weir_telemetry::access_log::{AccessLog, AccessLogOptions, Format, Target};
use weir_telemetry::metrics::{
    ClientError, ConnectionState, EtcdStatus, HiddenLabels, HttpLabel, HttpMetric, HttpSeries, Label, MetricTypes,
    Metrics, MetricsOptions, Mirrored, NodeHealth, Recorder, ResponseSource, Sample, StoreStatus, UpstreamState,
    UpstreamStatus,
};

const MODEL: &str = r#"request_type="traditional_http",request_llm_model="",llm_model="""#;

fn metrics(mut options: MetricsOptions) -> Arc<Metrics> {
    options.hostname = "node-1".to_owned();
    options.version = "0.1.0".to_owned();
    Metrics::new(options)
}

fn page(metrics: &Arc<Metrics>) -> String {
    let mut page = String::new();
    metrics.render(&mut page);
    page
}

/// Lines of the page about one metric, in order.
fn family(page: &str, name: &str) -> Vec<String> {
    let is_sample = |line: &str| {
        let rest = line.strip_prefix(name).unwrap_or("!");
        ["{", " ", "_bucket{", "_sum", "_count"].iter().any(|next| rest.starts_with(next))
    };
    page.lines().filter(|line| is_sample(line)).map(str::to_owned).collect()
}

fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn route(metrics: &Metrics, id: &str) -> HttpSeries {
    let label = |text: &str| metrics.labels().intern(text);
    HttpSeries {
        route: label(id),
        matched_uri: label("/hello/*"),
        matched_host: label("*.example.com"),
        service: label("s1"),
        consumer: label("jack"),
        node: label("127.0.0.1"),
        code: 200,
        source: ResponseSource::Upstream,
        hidden: HiddenLabels::NONE,
    }
}

#[test]
fn answered_requests_fill_the_three_families() {
    let metrics = metrics(MetricsOptions::default());
    let (one, two) = (metrics.recorder(), metrics.recorder());
    let matched = route(&metrics, "1");
    // 7.25 ms is in the bucket up to 10; 1.000 ms is the last value in the bucket up to 1, 1.001 ms is in the bucket
    // up to 2.
    let proxied =
        Sample { request_us: 7250, upstream_us: Some(1001), gateway_us: 1000, ingress_bytes: 100, egress_bytes: 300 };
    one.http(&matched, &proxied);
    two.http(&matched, &proxied);
    two.http(&HttpSeries { code: 502, source: ResponseSource::Nginx, ..matched }, &proxied);
    let refused =
        Sample { request_us: 70_000_000, gateway_us: 12, ingress_bytes: 5, egress_bytes: 6, ..Sample::default() };
    one.http(&HttpSeries::unmatched(404, ResponseSource::Apisix), &refused);

    let page = page(&metrics);
    let empty = format!(r#"route="",service="",consumer="",node="",{MODEL}"#);
    let full = format!(r#"route="1",service="s1",consumer="jack",node="127.0.0.1",{MODEL}"#);
    assert_eq!(
        family(&page, "apisix_bandwidth"),
        [
            format!(r#"apisix_bandwidth{{type="ingress",{empty}}} 5"#),
            format!(r#"apisix_bandwidth{{type="egress",{empty}}} 6"#),
            format!(r#"apisix_bandwidth{{type="ingress",{full}}} 300"#),
            format!(r#"apisix_bandwidth{{type="egress",{full}}} 900"#),
        ]
    );
    let no_route = r#"route="",matched_uri="",matched_host="",service="",consumer="",node="""#;
    let with_route = concat!(
        r#"route="1",matched_uri="/hello/*",matched_host="*.example.com","#,
        r#"service="s1",consumer="jack",node="127.0.0.1""#
    );
    assert_eq!(
        family(&page, "apisix_http_status"),
        [
            format!(r#"apisix_http_status{{code="404",{no_route},{MODEL},response_source="apisix"}} 1"#),
            format!(r#"apisix_http_status{{code="200",{with_route},{MODEL},response_source="upstream"}} 2"#),
            format!(r#"apisix_http_status{{code="502",{with_route},{MODEL},response_source="nginx"}} 1"#),
        ]
    );

    let mut expected = Vec::new();
    let bounds = [
        "1", "2", "5", "10", "20", "50", "100", "200", "500", "1000", "2000", "5000", "10000", "30000", "60000", "+Inf",
    ];
    let mut histogram = |kind: &str, labels: &str, first: &str, count: u64, sum: &str| {
        let first = bounds.iter().position(|bound| *bound == first).expect("one of the bounds");
        for bound in &bounds[first..] {
            expected.push(format!(r#"apisix_http_latency_bucket{{type="{kind}",{labels},le="{bound}"}} {count}"#));
        }
        expected.push(format!(r#"apisix_http_latency_sum{{type="{kind}",{labels}}} {sum}"#));
        expected.push(format!(r#"apisix_http_latency_count{{type="{kind}",{labels}}} {count}"#));
    };
    histogram("request", &empty, "+Inf", 1, "70000");
    histogram("apisix", &empty, "1", 1, "0.012");
    histogram("request", &full, "10", 3, "21.75");
    histogram("upstream", &full, "2", 3, "3.003");
    histogram("apisix", &full, "1", 3, "3");
    assert_eq!(family(&page, "apisix_http_latency"), expected);
}

#[test]
fn buckets_add_up() {
    let metrics = metrics(MetricsOptions::default());
    let recorder = metrics.recorder();
    for (request_us, times) in [(1500, 2), (60_000_000, 3), (60_000_001, 4)] {
        for _ in 0..times {
            recorder
                .http(&HttpSeries::unmatched(200, ResponseSource::Apisix), &Sample { request_us, ..Sample::default() });
        }
    }
    let page = page(&metrics);
    let bucket = |le: &str| {
        let labels = format!(r#"type="request",route="",service="",consumer="",node="",{MODEL},le="{le}""#);
        value(&page, &format!("apisix_http_latency_bucket{{{labels}}}"))
    };
    let cases = [("1", None), ("2", Some(2.0)), ("30000", Some(2.0)), ("60000", Some(5.0)), ("+Inf", Some(9.0))];
    for (le, count) in cases {
        assert_eq!(bucket(le), count, "le {le}");
    }
}

#[test]
fn plain_counters_and_gauges_sum_over_workers() {
    use ConnectionState::{Reading, Waiting, Writing};
    use UpstreamState::{Active, Idle};

    type Action = fn(&Metrics, &Recorder, &Recorder);
    let cases: &[(Action, &[(&str, f64)])] = &[
        (|_, a, b| [a, a, b].iter().for_each(|r| r.request_started()), &[("apisix_http_requests_total", 3.0)]),
        (
            |_, a, b| {
                a.connection_accepted();
                b.connection_accepted();
                a.connection_opened(Reading);
                a.connection_moved(Reading, Writing);
            },
            &[
                ("apisix_nginx_http_current_connections{state=\"accepted\"}", 2.0),
                ("apisix_nginx_http_current_connections{state=\"active\"}", 1.0),
                ("apisix_nginx_http_current_connections{state=\"handled\"}", 1.0),
                ("apisix_nginx_http_current_connections{state=\"reading\"}", 0.0),
                ("apisix_nginx_http_current_connections{state=\"waiting\"}", 0.0),
                ("apisix_nginx_http_current_connections{state=\"writing\"}", 1.0),
            ],
        ),
        (
            // Opened by one worker, closed by another.
            |_, a, b| {
                a.connection_opened(Waiting);
                a.connection_opened(Waiting);
                b.connection_closed(Waiting);
            },
            &[
                ("apisix_nginx_http_current_connections{state=\"active\"}", 1.0),
                ("apisix_nginx_http_current_connections{state=\"handled\"}", 2.0),
                ("apisix_nginx_http_current_connections{state=\"waiting\"}", 1.0),
            ],
        ),
        (
            |_, a, b| {
                a.upstream_opened(Active);
                a.upstream_moved(Active, Idle);
                b.upstream_opened(Active);
                b.upstream_opened(Active);
                b.upstream_closed(Active);
            },
            &[("weir_upstream_connections{state=\"active\"}", 1.0), ("weir_upstream_connections{state=\"idle\"}", 1.0)],
        ),
        (
            |_, a, b| {
                a.client_error(ClientError::HeadTooLarge);
                b.client_error(ClientError::HeadTooLarge);
                b.client_error(ClientError::TlsHandshake);
            },
            &[
                ("weir_client_errors_total{reason=\"head_too_large\"}", 2.0),
                ("weir_client_errors_total{reason=\"tls_handshake\"}", 1.0),
                ("weir_client_errors_total{reason=\"bad_request\"}", 0.0),
            ],
        ),
        (
            |_, a, b| {
                a.node_set_aside();
                a.node_set_aside();
                b.node_back();
            },
            &[("weir_upstream_nodes_set_aside", 1.0), ("weir_upstream_set_aside_total", 2.0)],
        ),
        (
            |_, a, b| {
                a.grpc_call(Some(0));
                b.grpc_call(Some(0));
                b.grpc_call(Some(16));
                b.grpc_call(Some(400));
                b.grpc_call(None);
                a.mirrored(Mirrored::Answered);
                b.mirrored(Mirrored::Answered);
                b.mirrored(Mirrored::Dropped);
            },
            &[
                ("weir_grpc_calls_total{status=\"OK\"}", 2.0),
                ("weir_grpc_calls_total{status=\"UNAUTHENTICATED\"}", 1.0),
                ("weir_grpc_calls_total{status=\"none\"}", 2.0),
                ("weir_mirror_requests_total{outcome=\"answered\"}", 2.0),
                ("weir_mirror_requests_total{outcome=\"failed\"}", 0.0),
                ("weir_mirror_requests_total{outcome=\"dropped\"}", 1.0),
            ],
        ),
        (|_, a, _| a.worker_panicked(), &[("weir_worker_panics_total", 1.0)]),
        (
            |_, a, b| {
                a.websocket_opened();
                a.websocket_opened();
                a.websocket_moved(7, 5);
                b.websocket_moved(1, 0);
                a.websocket_closed();
            },
            &[
                ("weir_websocket_connections", 1.0),
                ("weir_websocket_connections_total", 2.0),
                ("weir_websocket_bytes_total{direction=\"received\"}", 8.0),
                ("weir_websocket_bytes_total{direction=\"sent\"}", 5.0),
            ],
        ),
        (
            |m, _, _| {
                m.config_applied(7, UNIX_EPOCH + Duration::from_millis(1_700_000_000_250));
                m.config_rejected();
                m.config_applied(9, UNIX_EPOCH + Duration::from_millis(1_800_000_000_500));
            },
            &[
                ("weir_config_revision", 9.0),
                ("weir_config_last_change_timestamp_seconds", 1_800_000_000.5),
                ("weir_config_rejected_total", 1.0),
                ("weir_config_reload_total", 2.0),
            ],
        ),
        (|m, _, _| m.set_config_left_out(3), &[("weir_config_left_out", 3.0)]),
        (|m, _, _| m.set_config_withheld(true), &[("weir_config_withheld", 1.0)]),
        (|m, _, _| m.watch_store(Arc::new(Broken)), &[("weir_store_up", 0.0), ("weir_store_revision", 41.0)]),
        (
            |m, _, _| m.watch_etcd(Arc::new(Followed)),
            &[
                ("apisix_etcd_reachable", 1.0),
                ("apisix_etcd_modify_indexes{key=\"routes\"}", 5.0),
                ("apisix_etcd_modify_indexes{key=\"x_etcd_index\"}", 7.0),
            ],
        ),
        (|m, _, _| m.set_limit_keys(12), &[("weir_limit_keys", 12.0)]),
        (|m, _, _| m.set_buffers(4096, 3), &[("weir_buffers_bytes", 4096.0), ("weir_buffers_refused_total", 3.0)]),
        (|m, _, _| m.set_connections_limit(300), &[("weir_client_connections_limit", 300.0)]),
        (|_, _, _| {}, &[("apisix_node_info{hostname=\"node-1\",version=\"0.1.0\"}", 1.0)]),
    ];
    for (action, expected) in cases {
        let metrics = metrics(MetricsOptions::default());
        let (a, b) = (metrics.recorder(), metrics.recorder());
        action(&metrics, &a, &b);
        drop((a, b)); // what a worker counted outlives it
        let page = page(&metrics);
        for (series, number) in *expected {
            assert_eq!(value(&page, series), Some(*number), "{series} in\n{page}");
        }
    }
}

/// A store that could not be written.
#[derive(Debug)]
struct Broken;

impl StoreStatus for Broken {
    fn is_up(&self) -> bool {
        false
    }

    fn revision(&self) -> u64 {
        41
    }
}

/// An etcd that answers.
#[derive(Debug)]
struct Followed;

impl EtcdStatus for Followed {
    fn reachable(&self) -> bool {
        true
    }

    fn indexes(&self) -> Vec<(&'static str, u64)> {
        vec![("routes", 5), ("x_etcd_index", 7)]
    }
}

#[test]
fn without_etcd_there_is_no_word_of_it() {
    let page = page(&metrics(MetricsOptions::default()));
    assert!(!page.contains("apisix_etcd"), "{page}");
}

#[test]
fn process_figures_are_there() {
    let page = page(&metrics(MetricsOptions::default()));
    for name in [
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    ] {
        assert!(value(&page, name).is_some_and(|number| number >= 0.0), "{name} in\n{page}");
    }
}

#[test]
fn past_the_bound_requests_are_counted_as_other() {
    for max_series in [0, 1, 3] {
        let metrics = metrics(MetricsOptions { max_series, ..MetricsOptions::default() });
        let (one, two) = (metrics.recorder(), metrics.recorder());
        let sample = Sample { egress_bytes: 10, ..Sample::default() };
        for index in 0..10 {
            let series = route(&metrics, &format!("r{index}"));
            one.http(&series, &sample);
            // A series that another worker has already added is known, whether or not the set is full.
            two.http(&series, &sample);
            two.http(&series, &sample);
        }
        let page = page(&metrics);
        let others = 3 * (10 - max_series);
        let labels =
            r#"route="other",matched_uri="other",matched_host="other",service="other",consumer="other",node="other""#;
        let other = format!(r#"apisix_http_status{{code="200",{labels},{MODEL},response_source="upstream"}}"#);
        let egress = r#"type="egress",route="other",service="other",consumer="other",node="other""#;
        let known = family(&page, "apisix_http_status").iter().filter(|line| line.ends_with(" 3")).count();
        let expected = [
            (other, others as f64),
            (format!("apisix_bandwidth{{{egress},{MODEL}}}"), 10.0 * others as f64),
            ("weir_metric_series".to_owned(), max_series as f64),
            ("weir_metric_series_overflow_total".to_owned(), others as f64),
            ("apisix_nginx_metric_errors_total".to_owned(), others as f64),
        ];
        for (series, number) in expected {
            assert_eq!(value(&page, &series), Some(number), "{series} with {max_series} in\n{page}");
        }
        assert_eq!(known, max_series, "with {max_series}");
    }
}

#[test]
fn label_values_are_escaped() {
    let cases = [
        ("plain", "plain"),
        (r#"a"b"#, r#"a\"b"#),
        (r"a\b", r"a\\b"),
        ("a\nb", r"a\nb"),
        ("\"\\\n", r#"\"\\\n"#),
        ("grüße\t", "grüße\t"),
    ];
    for (text, escaped) in cases {
        let metrics = metrics(MetricsOptions { types: MetricTypes::Linted, ..MetricsOptions::default() });
        let series =
            HttpSeries { route: metrics.labels().intern(text), ..HttpSeries::unmatched(200, ResponseSource::Apisix) };
        metrics.recorder().http(&series, &Sample::default());
        let page = page(&metrics);
        let expected = format!(r#"apisix_http_status{{code="200",route="{escaped}",matched_uri"#);
        assert!(page.contains(&expected), "{text:?} in\n{page}");
        promtool(&page, &[]);
    }
}

#[derive(Debug)]
struct Node(AtomicBool);

impl NodeHealth for Node {
    fn is_healthy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn upstream_status_is_asked_for_at_each_scrape() {
    let metrics = metrics(MetricsOptions { types: MetricTypes::Linted, ..MetricsOptions::default() });
    assert!(!page(&metrics).contains("apisix_upstream_status"), "nothing is checked");
    let nodes = [true, false].map(|healthy| Arc::new(Node(AtomicBool::new(healthy))));
    let series = ["10.0.0.1:80", "[fd00::1]:8080"].into_iter().zip(&nodes).map(|(addr, node)| UpstreamStatus {
        title: None,
        name: "/apisix/upstreams/u1".into(),
        addr: addr.parse().expect("an address"),
        health: Arc::clone(node) as Arc<dyn NodeHealth>,
    });
    metrics.set_upstream_status(series.collect());
    let expected = |first: u8, second: u8| {
        let labels = [r#"ip="10.0.0.1",port="80""#, r#"ip="fd00::1",port="8080""#];
        [first, second]
            .into_iter()
            .zip(labels)
            .map(|(value, labels)| format!(r#"apisix_upstream_status{{name="/apisix/upstreams/u1",{labels}}} {value}"#))
            .collect::<Vec<_>>()
    };
    let first = page(&metrics);
    assert_eq!(family(&first, "apisix_upstream_status"), expected(1, 0));
    promtool(&first, &[]);
    nodes[0].0.store(false, Ordering::Relaxed);
    nodes[1].0.store(true, Ordering::Relaxed);
    assert_eq!(family(&page(&metrics), "apisix_upstream_status"), expected(0, 1));
    metrics.set_upstream_status(Vec::new());
    assert!(!page(&metrics).contains("apisix_upstream_status"));
}

/// Runs `promtool check metrics`; `findings` are the expected messages of its lint.
fn promtool(page: &str, findings: &[&str]) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool is needed for this test (Debian package prometheus): {error}"));
    child.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("promtool reads the page");
    let output = child.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&output.stderr);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, findings, "{page}");
    // 3 is promtool's status for "parsed, but the lint complains".
    assert_eq!(output.status.code(), Some(if findings.is_empty() { 0 } else { 3 }), "{said}");
}

#[test]
fn promtool_accepts_the_page() {
    let cases: [(MetricTypes, &[&str]); 2] = [
        (MetricTypes::Linted, &[]),
        (
            MetricTypes::Apisix,
            &[
                "apisix_bandwidth counter metrics should have \"_total\" suffix",
                "apisix_http_requests_total non-counter metrics should not have \"_total\" suffix",
                "apisix_http_status counter metrics should have \"_total\" suffix",
            ],
        ),
    ];
    for (types, findings) in cases {
        let metrics = metrics(MetricsOptions { types, max_series: 20, ..MetricsOptions::default() });
        let recorder = metrics.recorder();
        for index in 0..30 {
            let sample = Sample { request_us: 700 << index, upstream_us: Some(650 << index), ..Sample::default() };
            recorder.http(&route(&metrics, &format!("r{index}")), &sample);
            recorder.http(&HttpSeries::unmatched(404, ResponseSource::Apisix), &sample);
        }
        promtool(&page(&metrics), findings);
    }
    promtool(&page(&metrics(MetricsOptions { types: MetricTypes::Linted, ..MetricsOptions::default() })), &[]);
}

#[test]
fn hidden_labels_are_empty_and_their_series_one() {
    let metrics = metrics(MetricsOptions { types: MetricTypes::Linted, ..MetricsOptions::default() });
    let recorder = metrics.recorder();
    let sample = Sample { request_us: 1, ingress_bytes: 10, egress_bytes: 1, ..Sample::default() };
    let series = |id: &str| HttpSeries { code: 404, ..route(&metrics, id) };
    // Recorded before any label is hidden: its labels are empty, so it is the same series on the page afterwards.
    recorder.http(&HttpSeries { consumer: Label::EMPTY, node: Label::EMPTY, ..series("1") }, &sample);
    let mut hidden = HiddenLabels::NONE;
    for label in [HttpLabel::Consumer, HttpLabel::Node] {
        hidden.hide(HttpMetric::Bandwidth, label);
        hidden.hide(HttpMetric::Latency, label);
    }
    hidden.hide(HttpMetric::Bandwidth, HttpLabel::Route);
    hidden.hide(HttpMetric::Latency, HttpLabel::RequestType);
    for label in [HttpLabel::Node, HttpLabel::MatchedUri, HttpLabel::MatchedHost, HttpLabel::ResponseSource] {
        hidden.hide(HttpMetric::Status, label);
    }
    for (id, source) in [("1", ResponseSource::Upstream), ("2", ResponseSource::Upstream), ("2", ResponseSource::Nginx)]
    {
        recorder.http(&HttpSeries { source, ..series(id) }.without(hidden), &sample);
    }
    let page = page(&metrics);
    assert_eq!(
        family(&page, "apisix_bandwidth"),
        [
            format!(r#"apisix_bandwidth{{type="ingress",route="",service="s1",consumer="",node="",{MODEL}}} 30"#),
            format!(r#"apisix_bandwidth{{type="egress",route="",service="s1",consumer="",node="",{MODEL}}} 3"#),
            format!(r#"apisix_bandwidth{{type="ingress",route="1",service="s1",consumer="",node="",{MODEL}}} 10"#),
            format!(r#"apisix_bandwidth{{type="egress",route="1",service="s1",consumer="",node="",{MODEL}}} 1"#),
        ]
    );
    let status =
        |route: &str, rest: &str| format!(r#"apisix_http_status{{code="404",route="{route}",matched_uri="{rest}"#);
    let gone = format!(r#"",matched_host="",service="s1",consumer="jack",node="",{MODEL},response_source=""}}"#);
    let whole = r#"/hello/*",matched_host="*.example.com",service="s1",consumer="",node="","#;
    assert_eq!(
        family(&page, "apisix_http_status"),
        [
            format!("{} 1", status("1", &format!(r#"{whole}{MODEL},response_source="upstream"}}"#))),
            format!("{} 1", status("1", &gone)),
            format!("{} 2", status("2", &gone)),
        ]
    );
    let untyped = MODEL.replace("traditional_http", "");
    for (route, model, count) in [("1", MODEL, 1), ("1", &untyped, 1), ("2", &untyped, 2)] {
        let line = format!(
            r#"apisix_http_latency_count{{type="request",route="{route}",service="s1",consumer="",node="",{model}}} {count}"#
        );
        assert!(page.contains(&line), "{line} is not in\n{page}");
    }
    promtool(&page, &[]);
}

#[test]
fn a_long_page_comes_in_pieces_while_workers_go_on() {
    let metrics = metrics(MetricsOptions::default());
    let recorder = metrics.recorder();
    // Slower than the last bucket: a page with all of them would take 100 MB.
    let sample = Sample { request_us: 70_000_000, upstream_us: Some(69_000_000), ..Sample::default() };
    let routes: Vec<_> = (0..10_000).map(|index| route(&metrics, &format!("route-{index}"))).collect();
    for series in &routes {
        recorder.http(series, &sample);
    }
    let whole = page(&metrics);

    let mut scrape = metrics.scrape();
    let (mut chunk, mut joined, mut pieces, mut largest) = (String::new(), String::new(), 0, 0);
    while scrape.write_chunk(&mut chunk) {
        // A worker records known and new series with the scrape half read: it must neither wait nor be seen.
        recorder.http(&routes[pieces % routes.len()], &sample);
        recorder.http(&route(&metrics, &format!("late-{pieces}")), &sample);
        pieces += 1;
        largest = largest.max(chunk.len());
        joined.push_str(&chunk);
        chunk.clear();
    }
    assert!(pieces > 100 && largest < 90 * 1024, "{pieces} pieces, the largest of {largest} bytes");
    let traffic = |page: &str| page.find("# HELP apisix_http_requests_total").expect("the first of the small metrics");
    assert_eq!(traffic(&joined), traffic(&whole));
    assert!(joined[..traffic(&joined)] == whole[..traffic(&whole)], "the pieces differ from the page");
    assert!(page(&metrics).contains("route=\"late-0\""));
}

#[test]
fn nothing_is_lost_between_recorders_and_a_scraper() {
    const WORKERS: u64 = 3;
    const REQUESTS: u64 = 30_000;
    let metrics = metrics(MetricsOptions::default());
    let done = AtomicBool::new(false);
    let pages = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let recorder = metrics.recorder();
                scope.spawn(move || {
                    let labels: Vec<Label> =
                        (0..40).map(|index| recorder.labels().intern(&format!("r{}", index + 10 * worker))).collect();
                    for index in 0..REQUESTS {
                        recorder.request_started();
                        let route = labels[index as usize * labels.len() / REQUESTS as usize];
                        let series = HttpSeries { route, ..HttpSeries::unmatched(200, ResponseSource::Upstream) };
                        recorder.http(&series, &Sample { request_us: index, egress_bytes: 3, ..Sample::default() });
                    }
                })
            })
            .collect();
        let scraper = scope.spawn(|| {
            let mut totals: Vec<BTreeMap<&str, f64>> = Vec::new();
            loop {
                let last = done.load(Ordering::Acquire);
                totals.push(sums(&page(&metrics)));
                if last {
                    return totals;
                }
            }
        });
        for worker in workers {
            worker.join().expect("a worker");
        }
        done.store(true, Ordering::Release);
        scraper.join().expect("the scraper")
    });
    for pair in pages.windows(2) {
        for (name, sum) in &pair[0] {
            assert!(pair[1].get(name) >= Some(sum), "{name} went back from {sum} to {:?}", pair[1].get(name));
        }
    }
    let requests = (WORKERS * REQUESTS) as f64;
    let expected = [("requests", requests), ("answers", requests), ("latency", requests), ("bytes", 3.0 * requests)];
    let last = pages.last().expect("the scraper wrote at least one page");
    for (name, number) in expected {
        assert_eq!(last.get(name), Some(&number), "{name}");
    }
}

fn sums(page: &str) -> BTreeMap<&'static str, f64> {
    let families = [
        ("requests", "apisix_http_requests_total "),
        ("answers", "apisix_http_status{"),
        ("latency", "apisix_http_latency_count{type=\"request\""),
        ("bytes", "apisix_bandwidth{type=\"egress\""),
    ];
    let sum = |prefix: &str| {
        let lines = page.lines().filter(|line| line.starts_with(prefix));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    families.iter().map(|(name, prefix)| (*name, sum(prefix))).collect()
}

#[test]
fn dropped_log_lines_stay_counted_when_their_log_is_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let metrics = metrics(MetricsOptions::default());
    for round in 1..=3 {
        let log = AccessLog::open(AccessLogOptions {
            target: Target::File(directory.path().join("access.log")),
            format: Format::parse(&"x".repeat(5000), false).0,
            ring_bytes: 4096,
            mode: 0o600,
        })
        .expect("a log");
        metrics.watch_access_log(&log);
        metrics.watch_access_log(&log);
        log.writer().write(&Nothing);
        assert_eq!(value(&page(&metrics), "weir_access_log_dropped_total"), Some(f64::from(round)));
    }
}

struct Nothing;

impl weir_expr::Source for Nothing {
    fn variable(&self, _: &weir_expr::Variable) -> Option<weir_expr::Value<'_>> {
        None
    }
}
