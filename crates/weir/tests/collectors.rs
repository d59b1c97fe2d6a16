//! Collectors of several makers: what each takes, and collectors that fail, are slow or refuse a part.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Authority, Connection, Gateway, Kind, LIMIT, Nginx, Origin, Receiver, Reload, each, wait_until,
};
use crate::loggers::{extend, json_text, tencent_logs, whole};
use crate::reports::{await_reports, collector, rules};

#[test]
fn loggly_takes_messages_or_batches() {
    let origin = Origin::hello();
    let agent = Receiver::udp();
    let (bulk, _) = collector(200);
    let config = |conf: Value, metadata: Value| {
        let mut rules = rules(&origin.node(), "loggly", &conf);
        rules["plugin_metadata"] = json!([metadata]);
        rules["routes"][0]["plugins"]["response-rewrite"] =
            json!({ "status_code": 503, "vars": [["uri", "==", "/503"]] });
        rules
    };
    let conf = json!({ "customer_token": "token-1", "severity": "warning", "severity_map": { "503": "CRIT" },
                       "tags": ["one", "a\"b"], "batch_max_size": 2, "log_format": { "uri": "$uri" } });
    let udp = json!({ "id": "loggly", "host": "127.0.0.1", "port": agent.port() });
    let gateway = Gateway::start(config(conf.clone(), udp));
    for path in ["/", "/503"] {
        gateway.get(path);
    }
    let messages = wait_until("two messages", LIMIT, || Some(agent.texts()).filter(|texts| texts.len() == 2));
    for (message, (priority, path)) in messages.iter().zip([(8 + 4, "/"), (8 + 2, "/503")]) {
        assert!(message.starts_with(&format!("<{priority}>1 20")), "{message}");
        let data = "[token-1@41058 tag=\"one\" tag=\"a\\\"b\"] ";
        let entry = message.split_once(data).unwrap_or_else(|| panic!("no data: {message}")).1;
        assert_eq!(whole(entry.as_bytes())[0]["uri"], path);
    }
    let http = json!({ "id": "loggly", "host": bulk.node(), "protocol": "http", "timeout": 60000 });
    assert_eq!(gateway.reload(config(conf.clone(), http)), Reload::Applied);
    for path in ["/1", "/2"] {
        gateway.get(path);
    }
    await_reports(&gateway, "loggly", "sent", 4);
    let batch = bulk.last();
    assert_eq!((batch.target.as_str(), batch.field("x-loggly-tag")), ("/bulk/token-1/tag/bulk", Some("one,a\"b")));
    assert_eq!(batch.body.iter().filter(|byte| **byte == b'\n').count(), 1);
    // TLS that nobody speaks there, and an answer that does not come.
    let silent = Origin::scripted(Connection::await_close);
    for (number, (protocol, node, verify)) in
        [("https", silent.node(), true), ("https", silent.node(), false), ("http", silent.node(), true)]
            .into_iter()
            .enumerate()
    {
        let mut conf = conf.clone();
        extend(&mut conf, json!({ "ssl_verify": verify, "batch_max_size": 1 }));
        let metadata = json!({ "id": "loggly", "host": node, "protocol": protocol, "timeout": 100 });
        assert_eq!(gateway.reload(config(conf, metadata)), Reload::Applied);
        gateway.get("/");
        await_reports(&gateway, "loggly", "dropped", number + 1);
    }
}

#[test]
fn tencent_takes_signed_logs() {
    let origin = Origin::hello();
    let (collector, _) = collector(200);
    let conf = json!({
        "cls_host": collector.node(), "scheme": "http", "cls_topic": "topic-1", "secret_id": "id", "secret_key": "secret",
        "global_tag": { "env": "test", "status": "none", "list": [1] }, "batch_max_size": 2,
        "log_format": { "uri": "$uri", "status": "$status", "nested": { "at": "$time_iso8601" } },
    });
    let gateway = Gateway::start(rules(&origin.node(), "tencent-cloud-cls", &conf));
    for path in ["/1", "/2"] {
        gateway.get(path);
    }
    await_reports(&gateway, "tencent-cloud-cls", "sent", 2);
    let batch = collector.last();
    assert_eq!((batch.method.as_str(), batch.target.as_str()), ("POST", "/structuredlog?topic_id=topic-1"));
    assert_eq!(batch.field("content-type"), Some("application/x-protobuf"));
    let signed = batch.field("authorization").expect("a signature");
    let time = signed.split("q-sign-time=").nth(1).and_then(|rest| rest.split('&').next()).expect("a time");
    let mac = |key: &str, text: &str| {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        digits(aws_lc_rs::hmac::sign(&key, text.as_bytes()).as_ref())
    };
    // The SHA-1 of `post`, the path and two empty lines.
    let text = format!("sha1\n{time}\nf099b7e511157f8fb9f637eda1f98472050c00e5\n");
    let signature = mac(&mac("secret", time), &text);
    let expected = format!(
        "q-sign-algorithm=sha1&q-ak=id&q-sign-time={time}&q-key-time={time}&q-header-list=&q-url-param-list=&q-signature={signature}"
    );
    assert_eq!(signed, expected);
    let logs = tencent_logs(&batch.body);
    assert_eq!(logs.iter().map(|log| log["contents"]["uri"].clone()).collect::<Vec<_>>(), ["/1", "/2"]);
    let first = &logs[0];
    assert!(
        first["time"].as_u64().is_some_and(|time| time > 1_700_000_000_000) && first["source"].is_string(),
        "{first}"
    );
    let contents = &first["contents"];
    assert_eq!(
        (&contents["env"], &contents["status"], &contents["list"]),
        (&json!("test"), &json!("none"), &json!([1]))
    );
    assert!(contents["nested"]["at"].is_string(), "{first}");
    // A share of the exchanges; a service that refuses, and one whose certificate nobody knows.
    let mut few = conf.clone();
    extend(&mut few, json!({ "sample_ratio": 0.00001 }));
    assert_eq!(gateway.reload(rules(&origin.node(), "tencent-cloud-cls", &few)), Reload::Applied);
    for _ in 0..20 {
        gateway.get("/few");
    }
    let refusing = crate::reports::collector(403).0;
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    for (more, outcome, number) in [
        (json!({ "cls_host": refusing.node() }), "dropped", 1),
        (json!({ "cls_host": nginx.node(), "scheme": "https" }), "dropped", 2),
        (json!({ "cls_host": nginx.node(), "scheme": "https", "ssl_verify": false }), "sent", 3),
    ] {
        let mut conf = conf.clone();
        extend(&mut conf, json!({ "batch_max_size": 1 }));
        extend(&mut conf, more);
        assert_eq!(gateway.reload(rules(&origin.node(), "tencent-cloud-cls", &conf)), Reload::Applied);
        gateway.get("/other");
        await_reports(&gateway, "tencent-cloud-cls", outcome, number);
    }
    assert_eq!(collector.requests().len(), 1, "20 exchanges at one in 100,000");
}

#[test]
fn collectors_get_what_they_take() {
    let origin = Origin::hello();
    let bulk =
        "{\"errors\":true,\"items\":[{\"index\":{\"error\":{\"type\":\"mapping\"}}},{\"index\":{\"status\":201}}]}";
    let collector = Origin::answering(move |request| match request.target.as_str() {
        "/_bulk" => Answer::ok(bulk),
        _ => Answer::status(204, ""),
    });
    let uri = format!("http://{}", collector.node());
    let base = json!({ "batch_max_size": 2, "log_format": { "uri": "$uri" } });
    let send = |plugin: &str, more: Value, sent: usize| {
        let mut conf = base.clone();
        extend(&mut conf, more);
        let gateway = Gateway::start(rules(&origin.node(), plugin, &conf));
        for path in ["/1", "/2"] {
            let fields = "sw8: 1-dHJhY2U=-c2VnbWVudA==-007-c-i-e-a\r\n";
            gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
        }
        await_reports(&gateway, plugin, "sent", sent);
        (collector.last(), gateway)
    };
    // Loki
    let more = json!({ "endpoint_addrs": [uri], "endpoint_uri": "/push", "tenant_id": "me", "headers": { "X-A": "a" },
                       "log_labels": { "job": "w", "from": "$host-\"$arg_none" } });
    let (push, _) = send("loki-logger", more, 2);
    let names = ["x-scope-orgid", "x-a", "content-type"].map(|name| push.field(name));
    assert_eq!((push.target.as_str(), names), ("/push", [Some("me"), Some("a"), Some("application/json")]));
    let body: Value = serde_json::from_slice(&push.body).expect("JSON");
    for (stream, path) in body["streams"].as_array().expect("streams").iter().zip(["/1", "/2"]) {
        assert_eq!(stream["stream"], json!({ "job": "w", "from": "a.test-\"" }));
        let time: u128 = stream["values"][0][0].as_str().expect("a text").parse().expect("a number");
        assert!(time > 1_700_000_000_000_000_000, "nanoseconds: {time}");
        assert_eq!(json_text(&stream["values"][0][1])["uri"], path);
    }
    // Elasticsearch, which refuses one of the two.
    let more = json!({ "endpoint_addr": uri, "field": { "index": "w-{%Y}-$host" },
                       "auth": { "username": "u", "password": "p" }, "headers": { "accept": "x/y" } });
    let (batch, gateway) = send("elasticsearch-logger", more, 1);
    await_reports(&gateway, "elasticsearch-logger", "dropped", 1);
    gateway.logged("mapping");
    let names = ["authorization", "accept", "content-type"].map(|name| batch.field(name));
    assert_eq!(
        (batch.target.as_str(), names),
        ("/_bulk", [Some("Basic dTpw"), Some("x/y"), Some("application/x-ndjson")])
    );
    let found = whole(&batch.body);
    let index = found[0]["index"]["_index"].as_str().expect("a text");
    assert!(index.starts_with("w-20") && index.ends_with("-a.test"), "{index}");
    assert_eq!(
        (&found[1]["uri"], &found[3]["uri"], found.len(), batch.body.last()),
        (&json!("/1"), &json!("/2"), 4, Some(&b'\n'))
    );
    // ClickHouse
    let more = json!({ "endpoint_addr": uri, "user": "u", "password": "p", "database": "d", "logtable": "t" });
    let (insert, _) = send("clickhouse-logger", more, 2);
    let names = ["x-clickhouse-user", "x-clickhouse-key", "x-clickhouse-database"].map(|name| insert.field(name));
    assert_eq!((insert.target.as_str(), names), ("/", [Some("u"), Some("p"), Some("d")]));
    assert!(insert.body.starts_with(b"INSERT INTO t FORMAT JSONEachRow {\"uri\":\"/1\""), "{insert:?}");
    // SkyWalking
    let more = json!({ "endpoint_addr": uri, "service_name": "s", "service_instance_name": "$hostname" });
    let (logs, _) = send("skywalking-logger", more, 2);
    assert_eq!(logs.target, "/v3/logs");
    let log = &whole(&logs.body)[0][0];
    assert_eq!(log["traceContext"], json!({ "traceId": "trace", "traceSegmentId": "segment", "spanId": 7 }));
    assert_eq!((&log["service"], &log["endpoint"]), (&json!("s"), &json!("/1")));
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(log["serviceInstance"], name.trim());
    // Splunk, with fields of one's own and with APISIX's.
    let endpoint = json!({ "uri": format!("{uri}/hec"), "token": "t", "channel": "c" });
    let (events, gateway) = send("splunk-hec-logging", json!({ "endpoint": endpoint }), 2);
    let names = ["authorization", "x-splunk-request-channel"].map(|name| events.field(name));
    assert_eq!((events.target.as_str(), names), ("/hec", [Some("Splunk t"), Some("c")]));
    let found = whole(&events.body);
    assert_eq!((found.len(), &found[0]["event"]["uri"], &found[0]["sourcetype"]), (2, &json!("/1"), &json!("_json")));
    assert_eq!((&found[0]["host"], found[0]["time"].is_f64()), (&json!(name.trim()), true));
    for (conf, metadata, key) in [
        (json!({ "log_format_extra": { "more": "$host" } }), json!({}), "more"),
        (json!({}), json!({ "log_format_extra": { "all": "$host" } }), "all"),
        (json!({}), json!({ "log_format": { "own": "$host" } }), "own"),
    ] {
        let mut whole_conf = json!({ "endpoint": endpoint, "batch_max_size": 1 });
        extend(&mut whole_conf, conf);
        let mut config = rules(&origin.node(), "splunk-hec-logging", &whole_conf);
        config["plugin_metadata"] = json!([{ "id": "splunk-hec-logging" }]);
        extend(&mut config["plugin_metadata"][0], metadata);
        assert_eq!(gateway.reload(&config), Reload::Applied);
        let before = collector.complete().len();
        assert_eq!(gateway.get("/x?a=1").status, 200);
        wait_until("the event", LIMIT, || (collector.complete().len() > before).then_some(()));
        let event = whole(&collector.last().body)[0]["event"].clone();
        assert_eq!(event[key], "a.test", "{event}");
        if key != "own" {
            assert_eq!((&event["request_method"], &event["response_status"]), (&json!("GET"), &json!(200)), "{event}");
            assert_eq!(
                (&event["request_query"], &event["upstream"]),
                (&json!({ "a": "1" }), &json!(origin.node())),
                "{event}"
            );
            assert!(
                event["request_url"].as_str().is_some_and(|url| url.ends_with("/x?a=1"))
                    && event["latency"].is_number()
            );
        }
    }
}

fn lago(uri: &str, more: Value) -> Value {
    let mut conf = json!({ "endpoint_addrs": [uri], "token": "t", "event_transaction_id": "req_${request_id}",
                           "event_subscription_id": "cus_${http_x_customer}", "event_code": "calls" });
    extend(&mut conf, more);
    conf
}

#[test]
fn lago_gets_events() {
    let origin = Origin::hello();
    let (server, _) = collector(200);
    let more = json!({ "endpoint_uri": "/events", "batch_max_size": 2, "token": "key-1",
                       "event_properties": { "status": "$status", "path \"": "to $uri", "fixed": "x" } });
    let conf = lago(&format!("http://{}", server.node()), more);
    let gateway = Gateway::start(rules(&origin.node(), "lago", &conf));
    for path in ["/1", "/2"] {
        gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nX-Customer: a\"b\r\n\r\n"));
    }
    await_reports(&gateway, "lago", "sent", 2);
    let batch = server.last();
    let names = ["authorization", "content-type"].map(|name| batch.field(name));
    assert_eq!((batch.target.as_str(), names), ("/events", [Some("Bearer key-1"), Some("application/json")]));
    let body: Value = serde_json::from_slice(&batch.body).expect("JSON");
    let events = body["events"].as_array().expect("events");
    assert_eq!(events.len(), 2);
    for (event, path) in events.iter().zip(["/1", "/2"]) {
        let id = event["transaction_id"].as_str().expect("a text");
        assert!(id.len() > 20 && id.starts_with("req_"), "{event}");
        assert_eq!((&event["external_subscription_id"], &event["code"]), (&json!("cus_a\"b"), &json!("calls")));
        assert!(event["timestamp"].as_f64().is_some_and(|seconds| seconds > 1_700_000_000.0), "{event}");
        assert_eq!(event["properties"], json!({ "fixed": "x", "path \"": format!("to {path}"), "status": "200" }));
    }
    assert_ne!(events[0]["transaction_id"], events[1]["transaction_id"]);
}

#[test]
fn collectors_that_fail_or_are_slow() {
    let origin = Origin::hello();
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    let secure = format!("https://localhost:{}", nginx.node().rsplit(':').next().expect("a port"));
    let silent = Origin::scripted(Connection::await_close);
    let (moved, _) = collector(302);
    let (silent, moved) = (format!("http://{}", silent.node()), format!("http://{}", moved.node()));
    type Conf = fn(&str) -> Value;
    // The configuration for a URI, the unit of its timeout, and where certificates may be verified.
    let plugins: [(&str, Conf, u64, Option<&str>); 6] = [
        ("loki-logger", |uri| json!({ "endpoint_addrs": [uri] }), 100, Some("/ssl_verify")),
        (
            "elasticsearch-logger",
            |uri| json!({ "endpoint_addrs": [uri], "field": { "index": "i" } }),
            1,
            Some("/ssl_verify"),
        ),
        (
            "clickhouse-logger",
            |uri| json!({ "endpoint_addrs": [uri], "user": "", "password": "", "database": "", "logtable": "t" }),
            1,
            Some("/ssl_verify"),
        ),
        ("splunk-hec-logging", |uri| json!({ "endpoint": { "uri": uri, "token": "t" } }), 1, Some("/ssl_verify")),
        ("skywalking-logger", |uri| json!({ "endpoint_addr": uri }), 1, None),
        ("lago", |uri| lago(uri, json!({})), 100, Some("/ssl_verify")),
    ];
    each(
        &plugins,
        |(plugin, ..)| (*plugin).to_owned(),
        |(plugin, conf, timeout, verify)| {
            let with = |uri: &str, more: Value| {
                let mut conf = conf(uri);
                extend(&mut conf, json!({ "batch_max_size": 1 }));
                extend(&mut conf, more);
                rules(&origin.node(), plugin, &conf)
            };
            let mut slow = with(&silent, json!({}));
            let place = &mut slow["routes"][0]["plugins"][*plugin];
            match *plugin {
                "splunk-hec-logging" => place["endpoint"]["timeout"] = json!(timeout),
                _ => place["timeout"] = json!(timeout),
            }
            let gateway = Gateway::start(slow);
            assert_eq!(gateway.get("/").status, 200);
            await_reports(&gateway, plugin, "dropped", 1);
            let Some(_) = verify else { return };
            assert_eq!(gateway.reload(with(&moved, json!({}))), Reload::Applied);
            assert_eq!(gateway.get("/").status, 200);
            await_reports(&gateway, plugin, "dropped", 2);
            for (verify, outcome, count) in [(true, "dropped", 3), (false, "sent", 1)] {
                assert_eq!(gateway.reload(with(&secure, json!({ "ssl_verify": verify }))), Reload::Applied);
                assert_eq!(gateway.get("/").status, 200);
                await_reports(&gateway, plugin, outcome, count);
            }
        },
    );
}

#[test]
fn datadog_gets_metrics() {
    let origin = Origin::hello();
    let agent = Receiver::udp();
    let config = |conf: Value, more: Value| {
        let mut rules = rules(&origin.node(), "datadog", &conf);
        extend(&mut rules["routes"][0], json!({ "name": "named", "service_id": "s" }));
        extend(&mut rules, json!({ "services": [{ "id": "s", "name": "shop" }] }));
        rules["plugin_metadata"] = json!([{ "id": "datadog", "host": "127.0.0.1", "port": agent.port() }]);
        extend(&mut rules["plugin_metadata"][0], more);
        rules
    };
    let one = json!({ "batch_max_size": 1 });
    let gateway = Gateway::start(config(one, json!({})));
    let metrics = |path: &str, count: usize| {
        assert_eq!(gateway.get(path).status, 200);
        wait_until("metrics", LIMIT, || agent.texts().get(count - 1).cloned())
    };
    let text = metrics("/a", 1);
    let (ip, _) = origin.node().rsplit_once(':').map(|(ip, port)| (ip.to_owned(), port.to_owned())).expect("a node");
    let tags = format!(
        "|#source:apisix,route_name:named,service_name:shop,balancer_ip:{ip},response_status:200,response_status_class:2xx,scheme:http"
    );
    let names: Vec<_> = text.lines().map(|line| line.split_once(':').expect("a name").0).collect();
    let all =
        ["request.counter", "request.latency", "upstream.latency", "apisix.latency", "ingress.size", "egress.size"];
    assert_eq!(names, all.map(|name| format!("apisix.{name}")));
    assert!(text.lines().all(|line| line.ends_with(&tags)), "{text}");
    assert_eq!(text.lines().next(), Some(&*format!("apisix.request.counter:1|c{tags}")));
    let conf = json!({ "batch_max_size": 1, "prefer_name": false, "include_path": true, "include_method": true, "constant_tags": ["own:1"] });
    let more = json!({ "namespace": "", "constant_tags": ["all"] });
    assert_eq!(gateway.reload(config(conf, more)), Reload::Applied);
    let text = metrics("/b", 2);
    assert!(
        text.starts_with("request.counter:1|c|#all,own:1,route_name:all,path:/*,method:GET,service_name:s,"),
        "{text}"
    );
}
