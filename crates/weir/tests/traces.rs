//! Traces: what collectors of OpenTelemetry and Zipkin get, and what the upstream is told.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{
    Authority, Connection, Gateway, Kind, LIMIT, Origin, Otlp, RawClient, Refusing, Reload, repository, wait_until,
};
use crate::reports::{await_reports, collector, rules};

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The spans of a batch, as the library of OpenTelemetry for Python reads it.
pub(crate) fn decoded(batch: &[u8]) -> Value {
    let python = repository().join("target/test-tools/bin/python");
    let program = "import sys, json\n\
        from google.protobuf.json_format import MessageToDict\n\
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as R\n\
        request = R(); request.ParseFromString(sys.stdin.buffer.read()); json.dump(MessageToDict(request), sys.stdout)\n";
    let mut command = Command::new(&python);
    command.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", python.display()));
    child.stdin.take().expect("a pipe").write_all(batch).expect("write the batch");
    let output = child.wait_with_output().expect("wait for python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Attributes by their names.
pub(crate) fn attributes(of: &Value) -> Value {
    let all = of["attributes"].as_array().cloned().unwrap_or_default();
    let value = |attribute: &Value| attribute["value"].as_object().and_then(|value| value.values().next().cloned());
    all.iter().map(|one| (one["key"].as_str().expect("a key").to_owned(), value(one).unwrap_or_default())).collect()
}

fn traced(node: &str, conf: &Value, metadata: Value) -> Value {
    let mut rules = rules(node, "opentelemetry", conf);
    rules["routes"][0]["name"] = json!("named");
    rules["plugin_metadata"] = Value::Array(vec![metadata]);
    rules["plugin_metadata"][0]["id"] = json!("opentelemetry");
    rules
}

fn send(client: &mut RawClient, path: &str, fields: &str) {
    client.request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
}

#[test]
fn a_collector_gets_the_spans_of_what_is_sampled() {
    let origin = Origin::hello();
    let (spans, _) = collector(200);
    let refusing = Refusing::bind();
    let conf = json!({
        "sampler": { "name": "parent_base", "options": { "root": { "name": "trace_id_ratio", "options": { "fraction": 0 } } } },
        "additional_attributes": ["arg_a", "http_none"], "additional_header_prefix_attributes": ["X-Shop-*", "X-One"],
    });
    let metadata = |size: usize| {
        json!({ "collector": { "address": spans.node(), "request_headers": { "X-Key": 7 } },
                "resource": { "service.name": "shop", "size": 1.5, "live": true },
                "batch_span_processor": { "max_export_batch_size": size } })
    };
    let gateway = Gateway::start(traced(&origin.node(), &conf, metadata(1)));
    let mut client = gateway.client();
    // Not sampled by its root, and not by its caller.
    send(&mut client, "/none", "");
    send(&mut client, "/none", &format!("traceparent: {}\r\n", CALLER.replace("-01", "-00")));
    let long = "x".repeat(300);
    let fields = format!(
        "traceparent: {CALLER}\r\ntracestate: v=1\r\nX-Shop-A: 1\r\nx-shop-b: {long}\r\nX-One: \u{fc}\r\nUser-Agent: me\r\n"
    );
    send(&mut client, "/a%20b?a=1", &fields);
    await_reports(&gateway, "opentelemetry", "sent", 1);
    let batch = spans.last();
    assert_eq!(
        (batch.target.as_str(), batch.field("content-type"), batch.field("x-key")),
        ("/v1/traces", Some("application/x-protobuf"), Some("7"))
    );
    let found = decoded(&batch.body);
    let resource = &found["resourceSpans"][0];
    let of_gateway = attributes(&resource["resource"]);
    assert_eq!(
        (&of_gateway["service.name"], &of_gateway["size"], &of_gateway["live"]),
        (&json!("shop"), &json!(1.5), &json!(true))
    );
    assert!(of_gateway["hostname"].is_string() && resource["scopeSpans"][0]["scope"]["name"] == "weir", "{found}");
    let all = resource["scopeSpans"][0]["spans"].as_array().expect("spans").clone();
    let names: Vec<_> = all.iter().map(|span| span["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["GET /*", "apisix.request", "apisix.upstream", "apisix.response"]);
    // Bytes are in base64.
    let (trace, parent) = ("CvdlGRbNQ92ESOshHIAxnA==", "t61rcWkgMzE=");
    let root = &all[0];
    assert_eq!(
        (&root["traceId"], &root["parentSpanId"], &root["kind"]),
        (&json!(trace), &json!(parent), &json!("SPAN_KIND_SERVER"))
    );
    assert_eq!(root["traceState"], "v=1");
    assert!(all[1..].iter().all(|span| span["parentSpanId"] == root["spanId"] && span["traceId"] == trace), "{found}");
    let of_root = attributes(root);
    for (name, value) in [
        ("http.method", json!("GET")),
        ("http.target", json!("/a b?a=1")),
        ("url.path", json!("/a b")),
        ("url.scheme", json!("http")),
        ("net.host.name", json!("a.test")),
        ("user_agent.original", json!("me")),
        ("apisix.route_id", json!("all")),
        ("apisix.route_name", json!("named")),
        ("http.route", json!("/*")),
        ("apisix.response_source", json!("upstream")),
        ("http.response.status_code", json!("200")),
        ("arg_a", json!("1")),
        ("x-shop-a", json!("1")),
        ("x-shop-b", json!(long)),
        ("x-one", json!("\u{fc}")),
    ] {
        assert_eq!(of_root[name], value, "{name} of {of_root}");
    }
    assert!(of_root.get("http_none").is_none() && root.get("status").is_none(), "{root}");
    let upstream = attributes(&all[2]);
    assert_eq!((&upstream["server.address"], &all[2]["kind"]), (&json!("127.0.0.1"), &json!("SPAN_KIND_CLIENT")));
    let events: Vec<_> =
        all[2]["events"].as_array().expect("events").iter().map(|event| event["name"].clone()).collect();
    // The connection may have been kept.
    assert_eq!(events.last(), Some(&json!("response head")));
    let time = |span: &Value, name: &str| span[name].as_str().expect("a time").parse::<u64>().expect("a number");
    for span in &all {
        let (begin, end) = (time(span, "startTimeUnixNano"), time(span, "endTimeUnixNano"));
        assert!(
            begin <= end && begin >= time(root, "startTimeUnixNano") && end <= time(root, "endTimeUnixNano"),
            "{found}"
        );
    }
    // The upstream is told the id of the gateway's span.
    let sent = origin.last().field("traceparent").expect("a field").to_owned();
    assert!(sent.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && !sent.contains("b7ad6b7169203331"), "{sent}");
    // A failure, two in a batch, without a route's own sampler.
    let always = json!({ "sampler": { "name": "always_on" } });
    assert_eq!(gateway.reload(traced(&refusing.node(), &always, metadata(2))), Reload::Applied);
    send(&mut client, "/1", "");
    send(&mut client, "/2", "");
    await_reports(&gateway, "opentelemetry", "sent", 3);
    let found = decoded(&spans.last().body);
    let all = found["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans").clone();
    let roots: Vec<_> = all.iter().filter(|span| span["kind"] == "SPAN_KIND_SERVER").collect();
    assert_eq!((roots.len(), roots[0]["traceId"] == roots[1]["traceId"]), (2, false));
    assert_eq!(roots[0]["status"], json!({ "code": "STATUS_CODE_ERROR", "message": "nginx error: 502" }));
}

#[test]
fn a_new_trace_may_have_the_id_of_its_request() {
    let origin = Origin::hello();
    let conf = json!({ "sampler": { "name": "always_off" } });
    let gateway = Gateway::start(traced(&origin.node(), &conf, json!({ "trace_id_source": "x-request-id" })));
    let mut client = gateway.client();
    let mut sent = |fields: &str| {
        send(&mut client, "/", fields);
        origin.last().field("traceparent").expect("a field").to_owned()
    };
    assert!(
        sent("X-Request-Id: 0AF7651916cd43dd8448eb211c80319c\r\n").starts_with("00-0af7651916cd43dd8448eb211c80319c-")
    );
    // One that is no id of a trace gives way to a random one.
    for fields in ["X-Request-Id: 7\r\n", ""] {
        let random = sent(fields);
        let trace = random.get(3..35).filter(|_| random.len() == 55).expect("a traceparent");
        assert!(trace.trim_start_matches('0').len() > 8, "{random}");
    }
}

#[test]
fn spans_that_wait_are_bounded() {
    let origin = Origin::hello();
    let silent = Origin::scripted(Connection::await_close);
    let conf = json!({ "sampler": { "name": "always_on" } });
    let metadata = |batches: Value| json!({ "collector": { "address": silent.node(), "request_timeout": 1 }, "batch_span_processor": batches });
    let idle = json!({ "batch_timeout": 600, "inactive_timeout": 600, "max_queue_size": 3 });
    let gateway = Gateway::with(traced(&origin.node(), &conf, metadata(idle)), json!({ "reports": { "flush": 0 } }));
    let mut client = gateway.client();
    wait_until("spans to be dropped", LIMIT, || {
        send(&mut client, "/", "");
        (gateway.metric("weir_reports_total", &[("outcome", "dropped")]) > 0.0).then_some(())
    });
    assert_eq!(gateway.metric("weir_reports_pending", &[]), 3.0, "it is not time");
    // By age, and by the time without another; the collector does not answer in time.
    for batches in [
        json!({ "batch_timeout": 0.1, "inactive_timeout": 600 }),
        json!({ "batch_timeout": 600, "inactive_timeout": 0.1 }),
    ] {
        let before = gateway.metric("weir_reports_total", &[("outcome", "dropped")]);
        assert_eq!(gateway.reload(traced(&origin.node(), &conf, metadata(batches))), Reload::Applied);
        send(&mut client, "/", "");
        wait_until("the batch to be dropped", LIMIT, || {
            (gateway.metric("weir_reports_total", &[("outcome", "dropped")]) > before).then_some(())
        });
    }
}

#[test]
fn zipkin_gets_the_spans_of_either_version() {
    let origin = Origin::hello();
    let (spans, status) = collector(202);
    let config = |version: u8| {
        let endpoint = format!("http://{}/api/v2/spans", spans.node());
        let conf = json!({ "endpoint": endpoint, "sample_ratio": 1, "service_name": "shop", "server_addr": "10.0.0.1", "span_version": version });
        rules(&origin.node(), "zipkin", &conf)
    };
    for (version, names) in [
        (2, &["apisix.request", "apisix.proxy", "apisix.response_span"][..]),
        (1, &["apisix.request", "apisix.rewrite", "apisix.access", "apisix.proxy", "apisix.body_filter"]),
    ] {
        let gateway = Gateway::start(config(version));
        let mut client = gateway.client();
        send(&mut client, "/x?a=1", "X-B3-TraceId: 64fe8b2a57d3eff7\r\nX-B3-SpanId: e457b5a2e4d86bd1\r\n");
        await_reports(&gateway, "zipkin", "sent", 1);
        assert_eq!(spans.last().target, "/api/v2/spans");
        let all: Vec<Value> = serde_json::from_slice(&spans.last().body).expect("spans");
        assert_eq!(all.iter().map(|span| span["name"].as_str().expect("a name")).collect::<Vec<_>>(), names);
        let root = &all[0];
        assert_eq!(
            (&root["traceId"], &root["parentId"], &root["kind"]),
            (&json!("64fe8b2a57d3eff7"), &json!("e457b5a2e4d86bd1"), &json!("SERVER"))
        );
        let tags = json!({ "component": "apisix", "http.method": "GET", "http.url": "/x?a=1", "http.status_code": "200", "apisix.response_source": "upstream" });
        assert_eq!(root["tags"], tags);
        assert_eq!(
            root["localEndpoint"],
            json!({ "serviceName": "shop", "ipv4": "10.0.0.1", "port": gateway.addr.port() })
        );
        assert_eq!(root["remoteEndpoint"]["ipv4"], "127.0.0.1");
        let proxy = all.iter().find(|span| span["name"] == "apisix.proxy").expect("a span");
        let told = origin.last();
        assert_eq!(
            (told.field("x-b3-spanid"), told.field("x-b3-parentspanid")),
            (proxy["id"].as_str(), root["id"].as_str())
        );
        let number = |span: &Value, name: &str| span[name].as_u64().unwrap_or_else(|| panic!("{name}: {span}"));
        for span in &all {
            let (begin, length) = (number(span, "timestamp"), number(span, "duration"));
            let first = number(root, "timestamp");
            assert!(begin >= first && begin + length <= first + number(root, "duration"), "{all:?}");
        }
    }
    // A collector that answers something else has not taken them.
    status.store(302, std::sync::atomic::Ordering::SeqCst);
    let gateway = Gateway::start(config(2));
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "zipkin", "dropped", 1);
}

/// The field `sw8` with its parts decoded.
fn sw8(value: &str) -> Vec<String> {
    use base64::Engine;
    let decoded = |part: &str| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(part).expect("base64");
        String::from_utf8(bytes).expect("text")
    };
    let parts = value.split('-').enumerate();
    parts.map(|(at, part)| if at == 0 || at == 3 { part.to_owned() } else { decoded(part) }).collect()
}

/// There is no server of SkyWalking to be had as a package: the segments are compared with its documented form.
#[test]
fn skywalking_gets_a_segment_with_two_spans() {
    let origin = Origin::hello();
    let (segments, status) = collector(200);
    let config = |conf: &Value| {
        let mut rules = rules(&origin.node(), "skywalking", conf);
        let endpoint = format!("http://{}", segments.node());
        rules["plugin_metadata"] = json!([{ "id": "skywalking", "service_name": "shop", "service_instance_name": "one",
            "endpoint_addr": endpoint, "report_interval": 1 }]);
        rules
    };
    let gateway = Gateway::start(config(&json!({})));
    let mut client = gateway.client();
    let caller = "1-dHJhY2U=-c2VnbWVudA==-3-Y2FsbGVy-aW5zdGFuY2U=-L2Zyb20=-YS50ZXN0OjgwODA=";
    send(&mut client, "/x?a=1", &format!("sw8: {caller}\r\n"));
    await_reports(&gateway, "skywalking", "sent", 1);
    let told = origin.last();
    let parts = sw8(told.field("sw8").expect("a field"));
    assert_eq!(
        (segments.last().target.as_str(), segments.last().field("Content-Type")),
        ("/v3/segments", Some("application/json"))
    );
    let all: Vec<Value> = serde_json::from_slice(&segments.last().body).expect("segments");
    let segment = &all[0];
    assert_eq!(
        (&segment["traceId"], &segment["service"], &segment["serviceInstance"]),
        (&json!("trace"), &json!("shop"), &json!("one"))
    );
    let own = segment["traceSegmentId"].as_str().expect("an id");
    assert_eq!(parts, ["1", "trace", own, "1", "shop", "one", "/x", "upstream service"]);
    let (entry, exit) = (&segment["spans"][0], &segment["spans"][1]);
    let refs = json!([{ "refType": "CrossProcess", "traceId": "trace", "parentTraceSegmentId": "segment", "parentSpanId": 3,
        "parentService": "caller", "parentServiceInstance": "instance", "parentEndpoint": "/from",
        "networkAddressUsedAtPeer": "a.test:8080" }]);
    assert_eq!(entry["refs"], refs);
    let tag = |span: &Value, key: &str| {
        let found = span["tags"].as_array().expect("tags").iter().find(|tag| tag["key"] == key);
        found.map(|tag| tag["value"].as_str().expect("a text").to_owned())
    };
    assert_eq!(tag(entry, "http.method").as_deref(), Some("GET"));
    assert!(
        tag(entry, "http.params").is_some_and(|url| url.starts_with("http://") && url.ends_with("/x?a=1")),
        "{entry}"
    );
    for (span, kind, number, parent) in [(entry, "Entry", 0, -1), (exit, "Exit", 1, 0)] {
        assert_eq!(
            (&span["spanType"], &span["spanId"], &span["parentSpanId"]),
            (&json!(kind), &json!(number), &json!(parent))
        );
        assert_eq!(
            (&span["operationName"], &span["spanLayer"], &span["isError"]),
            (&json!("/x"), &json!("Http"), &json!(false))
        );
        assert_eq!((&span["componentId"], tag(span, "http.status").as_deref()), (&json!(6002), Some("200")));
        assert!(span["startTime"].as_u64() <= span["endTime"].as_u64(), "{span}");
    }
    assert_eq!(exit["peer"], "upstream service");
    // A field that is none begins a trace, and an upstream that is away is an error.
    let gone = Gateway::start(json!({
        "routes": [{ "id": "gone", "uri": "/*", "upstream": { "nodes": { "127.0.0.1:1": 1 } }, "plugins": { "skywalking": {} } }],
        "plugin_metadata": config(&json!({}))["plugin_metadata"],
    }));
    assert_eq!(gone.client().request("GET /y HTTP/1.1\r\nHost: a\r\nsw8: 1-x\r\n\r\n").status, 502);
    await_reports(&gone, "skywalking", "sent", 1);
    let all: Vec<Value> = serde_json::from_slice(&segments.last().body).expect("segments");
    let (entry, exit) = (&all[0]["spans"][0], &all[0]["spans"][1]);
    assert_eq!((&entry["isError"], &exit["isError"], entry.get("refs")), (&json!(true), &json!(true), None));
    assert_eq!(all[0]["traceId"].as_str().map(str::len), Some(32));
    // Requests that are not reported pass as they came.
    let rare = Gateway::start(config(&json!({ "sample_ratio": 0.00001 })));
    send(&mut rare.client(), "/x", &format!("sw8: {caller}\r\n"));
    assert_eq!(origin.last().field("sw8"), Some(caller));
    // A server that answers with an error has not taken them.
    status.store(500, std::sync::atomic::Ordering::SeqCst);
    let gateway = Gateway::start(config(&json!({})));
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "skywalking", "dropped", 1);
}

#[test]
fn a_collector_gets_spans_over_grpc() {
    let (origin, authority, refusing) = (Origin::hello(), Authority::new(), Refusing::bind());
    let certificate = authority.certificate(Kind::P256, &["localhost"]);
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let conf = json!({ "sampler": { "name": "always_on" } });
    let with = |address: &str, size: usize| {
        let collector = json!({ "address": address, "protocol": "grpc", "request_timeout": 5,
                                "request_headers": { "X-Key": "a b" } });
        let batches = json!({ "max_export_batch_size": size, "batch_timeout": 3600, "inactive_timeout": 3600 });
        traced(&origin.node(), &conf, json!({ "collector": collector, "batch_span_processor": batches }))
    };
    let (mut sent, mut dropped) = (0, 0);
    let plain = Otlp::start(None);
    let gateway = Gateway::with(with(&format!("127.0.0.1:{}", plain.port), 1), &trusted);
    let mut ask = |gateway: &Gateway, path: &str, takes: bool| {
        send(&mut gateway.client(), path, "");
        if takes {
            sent += 1;
            await_reports(gateway, "opentelemetry", "sent", sent);
        } else {
            dropped += 1;
            await_reports(gateway, "opentelemetry", "dropped", dropped);
        }
    };
    for path in ["/one", "/two"] {
        ask(&gateway, path, true);
    }
    let calls = wait_until("two calls", LIMIT, || Some(plain.calls()).filter(|calls| calls.len() == 2));
    for (call, path) in calls.iter().zip(["/one", "/two"]) {
        assert_eq!(call["fields"]["x-key"], "a b");
        let spans = call["request"]["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans");
        assert!(spans.iter().any(|span| attributes(span)["http.target"] == path), "{call}");
    }
    assert_eq!(calls[0]["peer"], calls[1]["peer"], "one connection");
    // A failure is told, and the next call is made anew.
    plain.fail_with(Some("RESOURCE_EXHAUSTED no room: 100 %"));
    ask(&gateway, "/full", false);
    gateway.logged("status 8 of gRPC: no room: 100 %");
    plain.fail_with(None);
    ask(&gateway, "/three", true);
    // One that was started anew has ended the connection.
    let port = plain.port;
    drop(plain);
    let plain = Otlp::start_at(port, None);
    ask(&gateway, "/four", true);
    // Spans of many requests in one call, longer than what may be sent at once.
    assert_eq!(gateway.reload(with(&format!("http://127.0.0.1:{}", plain.port), 400)), Reload::Applied);
    let mut client = gateway.client();
    (0..400).for_each(|number| send(&mut client, &format!("/{}{number}", "x".repeat(300)), ""));
    await_reports(&gateway, "opentelemetry", "sent", 404);
    // TLS, whose certificate is verified.
    let secure = Otlp::start(Some(&certificate));
    let ask = |address: &str, count: usize, outcome: &str| {
        assert_eq!(gateway.reload(with(address, 1)), Reload::Applied);
        send(&mut gateway.client(), "/secure", "");
        await_reports(&gateway, "opentelemetry", outcome, count);
    };
    ask(&format!("https://localhost:{}", secure.port), 405, "sent");
    ask(&format!("https://127.0.0.1:{}", secure.port), 2, "dropped");
    // Nobody, and somebody who speaks something else.
    ask(&refusing.node(), 3, "dropped");
    gateway.logged("Connection refused");
    let other = Origin::scripted(|connection: &mut Connection| {
        connection.send("HTTP/1.1 400 Bad Request\r\n\r\n");
        connection.await_close();
    });
    ask(&other.node(), 4, "dropped");
    let silent = Origin::scripted(|connection: &mut Connection| connection.await_close());
    ask(&silent.node(), 5, "dropped");
    gateway.logged("no answer in time");
    // A field that belongs to the calls.
    let mut wrong = with("127.0.0.1:4317", 1);
    wrong["plugin_metadata"][0]["collector"]["request_headers"] = json!({ "TE": "x" });
    assert_eq!(gateway.reload(wrong), Reload::Rejected);
    gateway.logged("collector.request_headers.TE: this field belongs to calls of gRPC");
}
