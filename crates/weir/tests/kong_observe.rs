//! Traces and messages of syslog as Kong's plugins report them.

use std::os::unix::net::UnixDatagram;

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, RawClient, Response, Start, each, weir};
use crate::reports::{await_reports, collector};
use crate::traces::{attributes, decoded};

fn document(node: &str, plugin: &Value) -> Value {
    json!({
        "_format_version": "3.0",
        "services": [{ "name": "orders", "url": format!("http://{node}"), "retries": 0,
                       "routes": [{ "name": "r", "paths": ["/"], "strip_path": false }], "plugins": [plugin] }],
        "consumers": [{ "username": "jo", "keyauth_credentials": [{ "key": "k" }] }],
    })
}

fn send(gateway: &Gateway, path: &str, fields: &str) -> Response {
    let mut client: RawClient = gateway.client();
    client.request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"))
}

#[test]
fn zipkin_gets_the_spans_of_kong() {
    let (origin, (spans, _)) = (Origin::hello(), collector(202));
    let conf = json!({
        "http_endpoint": format!("http://{}/api/v2/spans", spans.node()), "sample_ratio": 1, "local_service_name": "edge",
        "static_tags": [{ "name": "stage", "value": "test" }], "http_span_name": "method_path",
        "http_response_header_for_traceid": "X-Trace",
    });
    let gateway = Start::new(document(&origin.node(), &json!({ "name": "zipkin", "config": conf }))).start();
    let fields = "X-B3-TraceId: 64fe8b2a57d3eff7\r\nX-B3-SpanId: e457b5a2e4d86bd1\r\nZipkin-Tags: team=blue; x=1\r\n";
    let response = send(&gateway, "/x", fields);
    assert_eq!(response.field("X-Trace"), Some("64fe8b2a57d3eff7"));
    await_reports(&gateway, "zipkin", "sent", 1);
    let all: Vec<Value> = serde_json::from_slice(&spans.last().body).expect("spans");
    let names: Vec<_> = all.iter().filter_map(|span| span["name"].as_str()).collect();
    assert_eq!(names, ["GET /x", "GET /x (proxy)", "GET /x (balancer try 1)"]);
    let [root, proxy, attempt] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&root["traceId"], &root["parentId"]), (&json!("64fe8b2a57d3eff7"), &json!("e457b5a2e4d86bd1")));
    assert_eq!((&proxy["parentId"], &attempt["parentId"]), (&root["id"], &root["id"]));
    assert_eq!((&root["kind"], &proxy["kind"]), (&json!("SERVER"), &json!("CLIENT")));
    let tags = json!({
        "lc": "kong", "http.method": "GET", "http.host": "a.test", "http.path": "/x", "http.protocol": "HTTP/1.1",
        "http.status_code": "200", "stage": "test", "team": "blue", "x": "1",
    });
    assert_eq!(root["tags"], tags);
    assert_eq!(
        (&proxy["tags"]["kong.route_name"], &proxy["tags"]["kong.service_name"]),
        (&json!("r"), &json!("orders"))
    );
    assert_eq!(
        (&root["localEndpoint"]["serviceName"], &proxy["remoteEndpoint"]["serviceName"]),
        (&json!("edge"), &json!("orders"))
    );
    assert_eq!(attempt["tags"], json!({ "kong.balancer.try": "1", "http.status_code": "200" }));
    assert_eq!(root["annotations"][0]["value"], "kong.rewrite.start");
    assert_eq!(proxy["annotations"][1]["value"], "kong.access.finish");
    // The upstream's parent is the span of the gateway's own request.
    let told = origin.last();
    assert_eq!((told.field("x-b3-spanid"), told.field("x-b3-sampled")), (proxy["id"].as_str(), Some("1")));
    // The caller's decision counts before the share.
    send(&gateway, "/x", "X-B3-Sampled: 0\r\n");
    assert_eq!(origin.last().field("x-b3-sampled"), Some("0"));
}

#[test]
fn opentelemetry_gets_the_spans_of_kong() {
    let (origin, (spans, _)) = (Origin::answering(|_| Answer::status(503, "no")), collector(200));
    let conf = json!({
        "traces_endpoint": format!("http://{}/v1/traces", spans.node()), "sampling_rate": 1, "headers": { "X-Key": "7" },
        "resource_attributes": { "service.name": "edge", "stage": "test" }, "queue": { "max_batch_size": 1 },
        "http_response_header_for_traceid": "X-Trace",
    });
    let gateway = Start::new(document(&origin.node(), &json!({ "name": "opentelemetry", "config": conf }))).start();
    let caller = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let response = send(&gateway, "/x?a=1", caller);
    assert_eq!(response.field("X-Trace"), Some("0af7651916cd43dd8448eb211c80319c"));
    await_reports(&gateway, "opentelemetry", "sent", 1);
    let request = spans.last();
    assert_eq!((request.target.as_str(), request.field("X-Key")), ("/v1/traces", Some("7")));
    let batch = decoded(&request.body);
    let resource = &batch["resourceSpans"][0];
    assert_eq!(attributes(&resource["resource"]), json!({ "service.name": "edge", "stage": "test" }));
    let all = resource["scopeSpans"][0]["spans"].as_array().expect("spans");
    let names: Vec<_> = all.iter().filter_map(|span| span["name"].as_str()).collect();
    assert_eq!(names, ["kong", "kong.balancer"]);
    let found = attributes(&all[0]);
    for (name, value) in [
        ("http.method", json!("GET")),
        ("http.url", json!("http://a.test/x?a=1")),
        ("http.flavor", json!("1.1")),
        ("net.peer.ip", json!("127.0.0.1")),
        ("kong.route.name", json!("r")),
        ("kong.service.name", json!("orders")),
        ("http.status_code", json!("503")),
    ] {
        assert_eq!(found[name], value, "{name}: {found}");
    }
    assert_eq!(all[1]["parentSpanId"], all[0]["spanId"]);
    assert_eq!(attributes(&all[1])["try_count"], "1");
    assert_eq!(all[0]["status"]["code"], "STATUS_CODE_ERROR");
}

#[test]
fn traces_are_told_in_the_format_that_they_came_in() {
    let origin = Origin::hello();
    let b3 = "b3: 80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-0\r\n";
    let w3c = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\r\n";
    // Plugin, header_type, what the caller sends, the fields that the upstream gets.
    let cases = [
        ("zipkin", "preserve", "", "x-b3-traceid"),
        ("zipkin", "preserve", b3, "b3"),
        ("zipkin", "preserve", w3c, "traceparent"),
        ("zipkin", "w3c", b3, "b3 traceparent"),
        ("opentelemetry", "preserve", "", "traceparent"),
        ("opentelemetry", "preserve", b3, "b3"),
        ("opentelemetry", "b3", w3c, "traceparent x-b3-traceid"),
        ("opentelemetry", "ignore", b3, "b3 traceparent"),
    ];
    each(
        &cases,
        |(plugin, kind, told, _)| format!("{plugin} {kind} {told:?}"),
        |(plugin, kind, told, expected)| {
            let conf = json!({ "name": plugin, "config": { "header_type": kind } });
            let gateway = Start::new(document(&origin.node(), &conf)).start();
            let path = format!("/{plugin}-{kind}-{}", told.len());
            send(&gateway, &path, told);
            let request = origin.requests().into_iter().find(|request| request.target == path).expect("a request");
            let names = ["b3", "traceparent", "x-b3-traceid"];
            let found: Vec<_> = names.into_iter().filter(|name| request.field(name).is_some()).collect();
            assert_eq!(found.join(" "), *expected);
            let is_ours = |value: &str| !value.contains("e457b5a2e4d86bd1") && !value.contains("b7ad6b7169203331");
            let parents = [request.field("traceparent"), request.field("b3").filter(|_| *kind != "ignore")];
            let own =
                |value: &str| value.split('-').nth(if value.starts_with("00-") { 2 } else { 1 }).is_some_and(is_ours);
            assert!(parents.into_iter().flatten().all(own), "the upstream's parent is the gateway: {parents:?}");
        },
    );
}

#[test]
fn syslog_gets_messages_at_its_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(LIMIT)).expect("a limit");
    let origin =
        Origin::answering(|request| Answer::status(request.target.trim_matches('/').parse().unwrap_or(200), ""));
    let conf = json!({
        "facility": "local3", "successful_severity": "debug", "client_errors_severity": "warning", "server_errors_severity": "err",
    });
    let document = document(&origin.node(), &json!({ "name": "syslog", "config": conf }));
    let settings = json!({ "reports": { "syslog": path } });
    let gateway = Start::new(document).settings(settings).start();
    // An answer below the least level is not sent.
    for status in ["/200", "/404", "/500"] {
        send(&gateway, status, "");
    }
    let mut message = vec![0; 64 << 10];
    for (priority, status) in [(19 * 8 + 4, 404), (19 * 8 + 3, 500)] {
        let length = socket.recv(&mut message).expect("a message");
        let text = String::from_utf8_lossy(&message[..length]).into_owned();
        let (head, entry) = text.split_once(" kong: ").unwrap_or_else(|| panic!("{text}"));
        assert!(
            head.starts_with(&format!("<{priority}>")) && head.len() == format!("<{priority}>").len() + 15,
            "{head}"
        );
        let entry: Value = serde_json::from_str(entry).expect("an entry");
        assert_eq!((&entry["response"]["status"], &entry["service"]["name"]), (&json!(status), &json!("orders")));
    }
}

#[test]
fn what_is_not_supported_of_traces_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.json");
    for (plugin, conf, says) in [
        ("zipkin", json!({ "header_type": "jaeger" }), "header_type: not supported: expected preserve, ignore, b3"),
        ("zipkin", json!({ "default_header_type": "preserve" }), "default_header_type: expected b3, b3-single or w3c"),
        ("zipkin", json!({ "traceid_byte_count": 9 }), "traceid_byte_count: expected one of: 8, 16"),
        ("zipkin", json!({ "http_endpoint": "x" }), "http_endpoint: "),
        ("opentelemetry", json!({ "logs_endpoint": "http://a" }), "logs_endpoint: not supported"),
        ("opentelemetry", json!({ "propagation": { "extract": ["w3c"] } }), "propagation.extract: not supported"),
        ("syslog", json!({ "custom_fields_by_lua": { "a": "return 1" } }), "custom_fields_by_lua"),
        ("syslog", json!({ "facility": "local9" }), "facility"),
    ] {
        std::fs::write(&file, document("127.0.0.1:1", &json!({ "name": plugin, "config": conf })).to_string())
            .expect("written");
        let (code, _, told) = weir(&["check", &file.display().to_string()]);
        assert!(code == 1 && told.contains(says), "{plugin} {conf}: {told}");
    }
}
