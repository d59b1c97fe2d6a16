//! Reports of loggers: entries, batches, collectors that fail, files, and the end of the process.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Answer, Authority, Connection, Framing, Gateway, Kind, LIMIT, Nginx, Origin, Refusing, Reload, Start, chunked, get,
    post, timed, wait_until,
};
use crate::loggers::Sink;

/// A route for everything with this plugin.
pub(crate) fn rules(node: &str, plugin: &str, conf: &Value) -> Value {
    let upstream = json!({ "nodes": { node: 1 } });
    json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": upstream, "plugins": { plugin: conf } }] })
}

fn to(collector: &str, more: Value) -> Value {
    let Value::Object(mut conf) = json!({ "uri": format!("http://{collector}/logs?a=1") }) else { panic!("an object") };
    let Value::Object(more) = more else { panic!("fields are an object") };
    conf.extend(more);
    conf.into()
}

/// A collector that answers with this status, which may change.
pub(crate) fn collector(status: u16) -> (Origin, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(status));
    let answers = Arc::clone(&status);
    (Origin::answering(move |_| Answer::status(answers.load(SeqCst), "")), status)
}

/// The batches that have come, each a list of entries.
fn batches(collector: &Origin) -> Vec<Vec<Value>> {
    let parsed =
        |body: &[u8]| serde_json::from_slice(body).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(body)));
    collector.complete().iter().map(|request| parsed(&request.body)).collect()
}

fn await_entries(collector: &Origin, count: usize) -> Vec<Value> {
    wait_until(&format!("{count} entries"), LIMIT, || {
        let entries: Vec<Value> = batches(collector).into_iter().flatten().collect();
        (entries.len() >= count).then_some(entries)
    })
}

pub(crate) fn await_reports(gateway: &Gateway, plugin: &str, outcome: &str, count: usize) {
    gateway.await_metric("weir_reports_total", &[("plugin", plugin), ("outcome", outcome)], count as f64);
}

pub(crate) fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line:?}"))).collect()
}

#[test]
fn an_entry_says_what_apisix_says() {
    let origin = Origin::answering(|request| {
        let length = request.body.len();
        let head = format!("HTTP/1.1 201 Made\r\nX-A: 1\r\nX-A: \"2\"\r\nContent-Length: {length}\r\n\r\n");
        Answer::keep([head.as_bytes(), &request.body].concat())
    });
    let (collector, _) = collector(200);
    let more = json!({
        "batch_max_size": 2, "include_req_body": true, "include_resp_body": true, "max_resp_body_bytes": 3,
        "auth_header": "Basic eA==", "log_format_extra": { "tenant": "$http_x_tenant", "server": { "name": "x $host" } },
    });
    let gateway = Gateway::start(rules(&origin.node(), "http-logger", &to(&collector.node(), more)));
    let mut client = gateway.client();
    client.send(
        "POST /a%20b?x=1&y&x=%C3%BC&z=+ HTTP/1.1\r\nHost: a.test\r\nX-Tenant: t1\r\nX-B: 1\r\nX-b: 2\r\nContent-Length: 5\r\n\r\nhello",
    );
    assert_eq!(client.response_to("POST").text(), "hello");
    assert_eq!(client.get("/second").status, 201);
    let entries = await_entries(&collector, 2);
    let entry = &entries[0];
    let port = gateway.addr.port();
    let request = &entry["request"];
    assert_eq!(request["url"], format!("http://a.test:{port}/a b?x=1&y&x=%C3%BC&z=+"));
    assert_eq!(request["uri"], "/a b?x=1&y&x=%C3%BC&z=+");
    assert_eq!(request["method"], "POST");
    assert_eq!(request["querystring"], json!({ "x": ["1", "ü"], "y": true, "z": " " }));
    assert_eq!((&request["headers"]["host"], &request["headers"]["x-b"]), (&json!("a.test"), &json!(["1", "2"])));
    assert_eq!(request["body"], "hello");
    assert!(request["size"].as_u64().is_some_and(|size| size > 100), "{request}");
    let response = &entry["response"];
    assert_eq!((&response["status"], &response["body"]), (&json!(201), &json!("hel")));
    assert_eq!(response["headers"]["x-a"], json!(["1", "\"2\""]));
    assert!(response["size"].as_u64().is_some_and(|size| size > 50), "{response}");
    assert_eq!(entry["server"], json!({ "name": "x a.test" }), "laid over the entry");
    assert_eq!(entry["tenant"], "t1");
    assert_eq!(entry["upstream"], origin.node());
    assert_eq!((&entry["route_id"], &entry["service_id"]), (&json!("all"), &json!("")));
    assert_eq!(entry["client_ip"], "127.0.0.1");
    assert!(entry.get("consumer").is_none(), "{entry}");
    for name in ["start_time", "latency", "upstream_latency", "apisix_latency"] {
        assert!(entry[name].is_number(), "{name}: {entry}");
    }
    let second = &entries[1];
    assert!(second.get("tenant").is_none() && second["request"].get("body").is_none(), "{second}");
    assert_eq!(second["request"]["querystring"], json!({}));
    let batch = collector.last();
    assert_eq!((batch.method.as_str(), batch.target.as_str()), ("POST", "/logs?a=1"));
    assert_eq!(batch.field("content-type"), Some("application/json"));
    assert_eq!(batch.field("authorization"), Some("Basic eA=="));
    await_reports(&gateway, "http-logger", "sent", 2);
}

#[test]
fn a_format_of_ones_own() {
    let origin = Origin::hello();
    let (collector, _) = collector(200);
    let format = json!({ "host": "$host", "status": "$status", "text": "fixed", "both": "$host/$arg_a", "none": "$arg_b", "in": { "a": "$arg_a" } });
    let conf = to(&collector.node(), json!({ "batch_max_size": 1, "log_format": format, "concat_method": "new_line" }));
    let gateway = Gateway::start(rules(&origin.node(), "http-logger", &conf));
    assert_eq!(gateway.get("/?a=%22").status, 200);
    wait_until("the entry", LIMIT, || (collector.complete().len() == 1).then_some(()));
    let entry: Value = serde_json::from_slice(&collector.last().body).expect("an entry alone");
    let expected = json!({ "host": "a.test", "status": 200, "text": "fixed", "both": "a.test/\"", "in": { "a": "\"" }, "route_id": "all" });
    assert_eq!(entry, expected);
    assert_eq!(collector.last().field("content-type"), Some("text/plain"));
    let format = json!({ "uri": "$uri" });
    let conf = to(&collector.node(), json!({ "batch_max_size": 3, "log_format": format, "concat_method": "new_line" }));
    assert_eq!(gateway.reload(rules(&origin.node(), "http-logger", &conf)), Reload::Applied);
    for path in ["/1", "/2", "/3"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    wait_until("the batch", LIMIT, || (collector.complete().len() == 2).then_some(()));
    let text = String::from_utf8(collector.last().body).expect("text");
    let uris: Vec<_> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an entry")["uri"].clone()).collect();
    assert_eq!((uris, text.ends_with('\n')), (vec![json!("/1"), json!("/2"), json!("/3")], false));
}

#[test]
fn batches_are_sent_by_number_and_by_age() {
    let origin = Origin::hello();
    let (collector, _) = collector(200);
    let conf = to(&collector.node(), json!({ "batch_max_size": 4, "inactive_timeout": 1, "buffer_duration": 600 }));
    let gateway = Start::new(rules(&origin.node(), "http-logger", &conf)).workers(2).start();
    for _ in 0..10 {
        assert_eq!(gateway.get("/x").status, 200);
    }
    let entries = await_entries(&collector, 10);
    assert_eq!(entries.len(), 10, "each once");
    let sizes: Vec<_> = batches(&collector).iter().map(Vec::len).collect();
    assert_eq!(sizes, [4, 4, 2]);
    assert_eq!(collector.connections(), 1, "the connection is kept");
    gateway.await_metric("weir_reports_pending", &[("plugin", "http-logger")], 0.0);
    let conf = to(&collector.node(), json!({ "inactive_timeout": 600, "buffer_duration": 1 }));
    assert_eq!(gateway.reload(rules(&origin.node(), "http-logger", &conf)), Reload::Applied);
    assert_eq!(gateway.get("/x").status, 200);
    assert_eq!(await_entries(&collector, 11).len(), 11, "by the age of the first");
}

#[test]
fn a_collector_that_fails_is_asked_again_and_the_rest_is_counted() {
    let origin = Origin::hello();
    let (failing, status) = collector(500);
    let conf = to(
        &failing.node(),
        json!({ "batch_max_size": 1, "max_retry_count": 2, "retry_delay": 0, "name": "the name of it" }),
    );
    let gateway = Gateway::start(rules(&origin.node(), "http-logger", &conf));
    assert_eq!(gateway.get("/lost").status, 200);
    await_reports(&gateway, "http-logger", "dropped", 1);
    assert_eq!(failing.complete().len(), 3);
    assert_eq!(gateway.metric("weir_reports_retries_total", &[]), 2.0);
    gateway.logged("reports are not taken");
    gateway.logged("the name of it");
    status.store(204, SeqCst);
    assert_eq!(gateway.get("/kept").status, 200);
    await_reports(&gateway, "http-logger", "sent", 1);
    gateway.logged("reports are taken again");
    // Others are no better.
    let refusing = Refusing::bind();
    let silent = Origin::scripted(Connection::await_close);
    for node in [refusing.node(), silent.node()] {
        let conf = to(&node, json!({ "batch_max_size": 1, "timeout": 1 }));
        let gateway = Gateway::start(rules(&origin.node(), "http-logger", &conf));
        let (answer, took) = timed(|| gateway.get("/x"));
        assert!(answer.status == 200 && took < LIMIT / 4, "{took:?}");
        await_reports(&gateway, "http-logger", "dropped", 1);
    }
}

#[test]
fn entries_that_wait_are_bounded() {
    let origin = Origin::hello();
    let silent = Origin::scripted(Connection::await_close);
    let mut config =
        rules(&origin.node(), "http-logger", &to(&silent.node(), json!({ "batch_max_size": 5, "timeout": 60 })));
    config["plugin_metadata"] = json!([{ "id": "http-logger", "max_pending_entries": 20 }]);
    let gateway = Gateway::with(config, json!({ "reports": { "flush": 0 } }));
    let mut client = gateway.client();
    wait_until("entries to be dropped", LIMIT, || {
        assert_eq!(client.get("/x").status, 200);
        (gateway.metric("weir_reports_total", &[("outcome", "dropped")]) > 10.0).then_some(())
    });
    assert_eq!(gateway.metric("weir_reports_pending", &[]), 20.0);
}

#[test]
fn what_cannot_be_sent_is_spilled_and_sent_later() {
    let origin = Origin::hello();
    let (failing, status) = collector(503);
    let folder = tempfile::tempdir().expect("a folder");
    let spill = folder.path().join("spill");
    let conf = to(&failing.node(), json!({ "batch_max_size": 1 }));
    let settings = json!({ "reports": { "spill": spill.display().to_string() } });
    let gateway = Gateway::with(rules(&origin.node(), "http-logger", &conf), settings.clone());
    for path in ["/1", "/2"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    await_reports(&gateway, "http-logger", "spilled", 2);
    let file = std::fs::read_dir(&spill).expect("the folder").next().expect("a file").expect("an entry");
    assert_eq!(file.metadata().expect("metadata").permissions().mode() & 0o777, 0o600);
    let mut gateway = gateway;
    gateway.signal(Signal::TERM);
    gateway.wait();
    // Another process finds them when the collector is back.
    let before = failing.complete().len();
    status.store(200, SeqCst);
    let gateway = Gateway::with(rules(&origin.node(), "http-logger", &conf), settings);
    await_reports(&gateway, "http-logger", "sent", 2);
    let sent = failing.complete().split_off(before);
    let uris: Vec<Value> = sent
        .iter()
        .map(|request| serde_json::from_slice::<Value>(&request.body).expect("an entry")["request"]["uri"].clone())
        .collect();
    assert_eq!(uris, ["/1", "/2"]);
}

#[test]
fn what_waits_is_sent_at_the_end_and_after_a_change() {
    let origin = Origin::hello();
    let (collector, _) = collector(200);
    let conf = to(&collector.node(), json!({ "inactive_timeout": 600, "buffer_duration": 600 }));
    let gateway = Gateway::start(rules(&origin.node(), "http-logger", &conf));
    assert_eq!(gateway.get("/1").status, 200);
    // The same collector somewhere else, and elsewhere as well: what waits stays with it.
    let mut more = rules(&origin.node(), "http-logger", &conf);
    more["routes"][0]["id"] = json!("renamed");
    assert_eq!(gateway.reload(&more), Reload::Applied);
    assert_eq!(gateway.get("/2").status, 200);
    gateway.await_metric("weir_reports_pending", &[("plugin", "http-logger")], 2.0);
    assert_eq!(collector.complete().len(), 0, "it is not time");
    // Nobody reports to it any more.
    assert_eq!(gateway.reload(rules(&origin.node(), "request-id", &json!({}))), Reload::Applied);
    let entries = await_entries(&collector, 2);
    assert_eq!((&entries[0]["route_id"], &entries[1]["route_id"]), (&json!("all"), &json!("renamed")));
    assert_eq!(collector.complete().len(), 1, "in one batch");
    assert_eq!(gateway.reload(&more), Reload::Applied);
    assert_eq!(gateway.get("/3").status, 200);
    let mut gateway = gateway;
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    assert_eq!(batches(&collector).concat().len(), 3);
}

#[test]
fn a_file_has_a_line_for_each_exchange() {
    let origin = Origin::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("requests.log");
    let conf = json!({ "path": file.display().to_string(), "match": [[["uri", "==", "/a"]], [["uri", "==", "/b"]]] });
    let gateway = Start::new(rules(&origin.node(), "file-logger", &conf)).workers(2).start();
    for path in ["/a", "/none", "/b", "/a?x=1"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    await_reports(&gateway, "file-logger", "sent", 3);
    let found = lines(&file);
    let mut uris: Vec<_> =
        found.iter().map(|line| line["request"]["uri"].as_str().expect("a text").to_owned()).collect();
    uris.sort();
    assert_eq!(uris, ["/a", "/a?x=1", "/b"]);
    assert_eq!(std::fs::metadata(&file).expect("metadata").permissions().mode() & 0o777, 0o600);
    // Rotated: the next line makes the file anew.
    let old = folder.path().join("requests.log.1");
    std::fs::rename(&file, &old).expect("rename");
    assert_eq!(gateway.get("/b").status, 200);
    await_reports(&gateway, "file-logger", "sent", 4);
    assert_eq!((lines(&old).len(), lines(&file).len()), (3, 1));
    // A file that cannot be written costs its lines, and no request.
    let conf = json!({ "path": folder.path().join("none/requests.log").display().to_string() });
    assert_eq!(gateway.reload(rules(&origin.node(), "file-logger", &conf)), Reload::Applied);
    assert_eq!(gateway.get("/lost").status, 200);
    await_reports(&gateway, "file-logger", "dropped", 1);
}

#[test]
fn bodies_stand_in_entries_where_they_are_asked_for() {
    for sink in Sink::with_bodies() {
        let origin = Origin::echo();
        let conf = sink.conf(json!({
            "include_req_body": true, "max_req_body_bytes": 1000, "include_req_body_expr": [["status", "==", 200]],
            "include_resp_body": true, "max_resp_body_bytes": 3, "include_resp_body_expr": [["arg_resp", "==", "1"]],
        }));
        let gateway = Gateway::start(sink.rules(&origin.node(), &conf));
        let mut client = gateway.client();
        let long = "x".repeat(2000);
        for request in [post("/?resp=1", "a\"bcd"), post("/", "hello"), post("/", &long), get("/")] {
            assert_eq!(client.request(&request).status, 200);
        }
        // Of one in chunks the beginning, and the node gets it in chunks as well.
        for body in ["hello", &long] {
            let head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
            let request = [head.as_bytes(), &chunked(body.as_bytes(), 600)].concat();
            assert_eq!(client.request(request).text(), body);
            assert_eq!(origin.last().framing, Framing::Chunked);
        }
        let entries = sink.entries(&gateway, 6);
        let bodies: Vec<_> =
            entries.iter().map(|entry| [&entry["request"]["body"], &entry["response"]["body"]]).collect();
        let null = &Value::Null;
        let (whole, begin, hello, cut) = (&json!("a\"bcd"), &json!("a\"b"), &json!("hello"), &json!("x".repeat(1000)));
        let none = [null, null];
        let expected = [[whole, begin], [hello, null], none, none, [hello, null], [cut, null]];
        assert_eq!(bodies, expected, "{}", sink.plugin());
        // A request of which the condition does not hold.
        let mut config = sink.rules(&origin.node(), &conf);
        config["routes"][0]["plugins"]["response-rewrite"] = json!({ "status_code": 202 });
        assert_eq!(gateway.reload(&config), Reload::Applied);
        assert_eq!(client.request(post("/", "hello")).status, 202);
        assert_eq!(sink.entries(&gateway, 7)[6]["request"].get("body"), None, "{}", sink.plugin());
    }
}

#[test]
fn the_metadata_serves_where_a_place_has_nothing_of_its_own() {
    for sink in Sink::with_bodies() {
        let origin = Origin::hello();
        let rules = |conf: Value, metadata: Value| {
            let mut rules = rules(&origin.node(), sink.plugin(), &conf);
            rules["plugin_metadata"] = json!([sink.metadata(metadata)]);
            rules
        };
        let own = sink.conf(json!({ "log_format": { "own": "$host" } }));
        let format = json!({ "log_format": { "all": "$host" } });
        let extra = json!({ "log_format_extra": { "all": "$host" } });
        let gateway = Gateway::start(rules(own, format.clone()));
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200);
        let own = json!({ "log_format_extra": { "own": "$host" } });
        for config in [
            rules(sink.conf(json!({})), format),
            rules(sink.conf(own), extra.clone()),
            rules(sink.conf(json!({})), extra),
        ] {
            assert_eq!(gateway.reload(&config), Reload::Applied);
            assert_eq!(client.get("/").status, 200);
        }
        let entries = sink.entries(&gateway, 4);
        assert_eq!(entries[0], json!({ "own": "a.test", "route_id": "all" }), "{}", sink.plugin());
        assert_eq!(entries[1], json!({ "all": "a.test", "route_id": "all" }), "{}", sink.plugin());
        let found: Vec<_> = entries.iter().map(|entry| (entry["own"].is_string(), entry["all"].is_string())).collect();
        assert_eq!(found, [(true, false), (false, true), (true, false), (false, true)], "{}", sink.plugin());
        assert!(entries[2]["request"].is_object() && entries[3]["request"].is_object(), "{}", sink.plugin());
        let Some(folder) = sink.folder() else { continue };
        // The file as well.
        let path = folder.join("of-all.log");
        let conf = rules(json!({}), json!({ "path": path.display().to_string() }));
        assert_eq!(gateway.reload(&conf), Reload::Applied);
        assert_eq!(client.get("/").status, 200);
        await_reports(&gateway, sink.plugin(), "sent", 5);
        assert_eq!(lines(&path).len(), 1);
    }
}

#[test]
fn the_certificate_of_a_collector_is_verified_where_that_is_asked_for() {
    let origin = Origin::hello();
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    let port = nginx.node().rsplit(':').next().expect("a port").to_owned();
    let conf = |verify: bool| {
        let uri = format!("https://localhost:{port}/logs");
        rules(&origin.node(), "http-logger", &json!({ "uri": uri, "batch_max_size": 1, "ssl_verify": verify }))
    };
    let gateway = Gateway::start(conf(true));
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "http-logger", "dropped", 1);
    assert_eq!(gateway.reload(conf(false)), Reload::Applied);
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "http-logger", "sent", 1);
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let gateway = Gateway::with(conf(true), trusted);
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "http-logger", "sent", 1);
}
