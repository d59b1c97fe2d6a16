//! Loggers of every kind: destinations, the form of records, batches, and peers that are away, slow or wrong.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::google_cloud_logging::{Google, entries as google_entries};
use crate::harness::{
    Authority, Certificate, Full, Gateway, Kafka, Kind, LIMIT, Origin, Process, Receiver, Reload, each, free_port,
    program, wait_until,
};
use crate::reports::{await_reports, collector, lines, rules};
use crate::rocketmq;

/// Destination of a logger that reports one entry at a time, for tests of all loggers.
pub(crate) struct Sink {
    plugin: &'static str,
    peer: Peer,
    conf: Value,
    metadata: Value,
    /// Reads the entries out of what the peer has received.
    read: fn(&[u8]) -> Vec<Value>,
}

enum Peer {
    Collector(Origin),
    File(tempfile::TempDir),
    Kafka(Kafka),
    Receiver(Receiver),
    RocketMq(rocketmq::Server),
}

pub(crate) fn whole(text: &[u8]) -> Vec<Value> {
    let values = serde_json::Deserializer::from_slice(text).into_iter::<Value>();
    values.map(|value| value.unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(text)))).collect()
}

/// The fields of a message of Protocol Buffers: their numbers, and their bytes or their number as text.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let varint = |message: &mut &[u8]| {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = message.split_first().expect("a number");
            *message = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                break;
            }
        }
        number
    };
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let value = varint(&mut message);
        let content = match key & 7 {
            0 => value.to_string().into_bytes(),
            2 => {
                let (content, rest) = message.split_at(usize::try_from(value).expect("a length"));
                message = rest;
                content.to_vec()
            }
            other => panic!("a field of the kind {other}"),
        };
        found.push((key >> 3, content));
    }
    found
}

/// The logs in a `LogGroupList` of Tencent's: `time`, `source` and `contents`, in which what is JSON is read.
pub(crate) fn tencent_logs(text: &[u8]) -> Vec<Value> {
    let text_of = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a text");
    let mut logs = Vec::new();
    for (_, group) in fields(text) {
        let group = fields(&group);
        let source = group.iter().find(|(number, _)| *number == 4).map(|(_, source)| text_of(source));
        for (_, log) in group.iter().filter(|(number, _)| *number == 1) {
            let mut read = json!({ "source": source, "contents": {} });
            for (number, content) in fields(log) {
                match number {
                    1 => read["time"] = text_of(&content).parse::<u64>().expect("a time").into(),
                    _ => {
                        let [(1, name), (2, value)] = &fields(&content)[..] else { panic!("a content") };
                        let value = text_of(value);
                        let is_json = value.starts_with('{') || value.starts_with('[');
                        let value = if is_json { json_text(&value.into()) } else { value.into() };
                        read["contents"][text_of(name)] = value;
                    }
                }
            }
            logs.push(read);
        }
    }
    logs
}

/// Entries behind a text that ends each head.
fn behind(text: &[u8], head: &str) -> Vec<Value> {
    let text = String::from_utf8_lossy(text);
    let behind =
        |line: &str| whole(line.split_once(head).unwrap_or_else(|| panic!("no {head:?}: {line}")).1.as_bytes());
    text.lines().flat_map(behind).collect()
}

pub(crate) fn json_text(text: &Value) -> Value {
    serde_json::from_str(text.as_str().expect("a text")).expect("JSON in a text")
}

impl Sink {
    /// One of each logger whose entries may have bodies.
    pub(crate) fn with_bodies() -> Vec<Self> {
        let collecting = |plugin, conf: fn(&str) -> Value, read| {
            let (collector, _) = collector(200);
            let conf = conf(&collector.node());
            Self { plugin, peer: Peer::Collector(collector), conf, metadata: json!({}), read }
        };
        let receiving = |plugin, receiver: Receiver, more: Value, read| {
            let mut conf = json!({ "host": "127.0.0.1", "port": receiver.port() });
            extend(&mut conf, more);
            Self { plugin, peer: Peer::Receiver(receiver), conf, metadata: json!({}), read }
        };
        let folder = tempfile::tempdir().expect("a folder");
        let conf = json!({ "path": folder.path().join("entries.log").display().to_string() });
        let file = Self {
            plugin: "file-logger",
            peer: Peer::File(folder),
            conf,
            metadata: json!({}),
            read: |text| whole(text),
        };
        let loggly = Receiver::udp();
        let metadata = json!({ "host": "127.0.0.1", "port": loggly.port() });
        let conf = json!({ "customer_token": "token-1" });
        let loggly =
            Self { plugin: "loggly", peer: Peer::Receiver(loggly), conf, metadata, read: |text| behind(text, "\"] ") };
        let kafka = Kafka::start(1, "requests");
        let (host, port) = kafka.brokers[0].clone();
        let conf = json!({ "brokers": [{ "host": host, "port": port }], "kafka_topic": "requests", "key": "one" });
        let metadata = json!({});
        let kafka = Self { plugin: "kafka-logger", peer: Peer::Kafka(kafka), conf, metadata, read: whole };
        let broker = rocketmq::Server::start(0);
        let conf = json!({ "nameserver_list": [broker.node()], "topic": "requests" });
        let (peer, metadata) = (Peer::RocketMq(broker), json!({}));
        let rocketmq = Self { plugin: "rocketmq-logger", peer, conf, metadata, read: whole };
        vec![
            file,
            kafka,
            rocketmq,
            loggly,
            collecting("http-logger", |node| json!({ "uri": format!("http://{node}/logs") }), whole),
            collecting(
                "loki-logger",
                |node| json!({ "endpoint_addrs": [format!("http://{node}")] }),
                |text| {
                    let streams = whole(text)[0]["streams"].clone();
                    let streams = streams.as_array().expect("streams").clone();
                    streams.iter().map(|stream| json_text(&stream["values"][0][1])).collect()
                },
            ),
            collecting(
                "elasticsearch-logger",
                |node| json!({ "endpoint_addrs": [format!("http://{node}")], "field": { "index": "logs" } }),
                |text| whole(text).into_iter().filter(|line| line.get("index").is_none()).collect(),
            ),
            collecting(
                "clickhouse-logger",
                |node| {
                    json!({ "endpoint_addrs": [format!("http://{node}")], "user": "u", "password": "p",
                            "database": "d", "logtable": "t" })
                },
                |text| behind(text, "INSERT INTO t FORMAT JSONEachRow "),
            ),
            collecting(
                "skywalking-logger",
                |node| json!({ "endpoint_addr": format!("http://{node}") }),
                |text| {
                    let logs = whole(text)[0].as_array().expect("logs").clone();
                    logs.iter().map(|log| json_text(&log["body"]["json"]["json"])).collect()
                },
            ),
            collecting(
                "tencent-cloud-cls",
                |node| json!({ "cls_host": node, "scheme": "http", "cls_topic": "t", "secret_id": "i", "secret_key": "s" }),
                |text| tencent_logs(text).iter().map(|log| log["contents"].clone()).collect(),
            ),
            receiving("tcp-logger", Receiver::tcp(), json!({}), whole),
            receiving("udp-logger", Receiver::udp(), json!({}), whole),
            receiving("syslog", Receiver::tcp(), json!({}), |text| behind(text, " - - ")),
            receiving("syslog", Receiver::udp(), json!({ "sock_type": "udp" }), |text| behind(text, " - - ")),
        ]
    }

    pub(crate) fn plugin(&self) -> &'static str {
        self.plugin
    }

    /// A configuration of the plugin.
    pub(crate) fn conf(&self, more: Value) -> Value {
        let mut conf = self.conf.clone();
        if !matches!(self.peer, Peer::File(_)) {
            conf["batch_max_size"] = json!(1);
        }
        extend(&mut conf, more);
        conf
    }

    /// The plugin's metadata.
    pub(crate) fn metadata(&self, more: Value) -> Value {
        let mut metadata = self.metadata.clone();
        extend(&mut metadata, more);
        metadata["id"] = json!(self.plugin);
        metadata
    }

    /// A route for everything with a configuration of the plugin.
    pub(crate) fn rules(&self, node: &str, conf: &Value) -> Value {
        let mut rules = rules(node, self.plugin, conf);
        rules["plugin_metadata"] = json!([self.metadata(json!({}))]);
        rules
    }

    /// The folder of the file, where the peer is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match &self.peer {
            Peer::File(folder) => Some(folder.path()),
            _ => None,
        }
    }

    /// The entries, once there are so many.
    pub(crate) fn entries(&self, gateway: &Gateway, count: usize) -> Vec<Value> {
        await_reports(gateway, self.plugin, "sent", count);
        match &self.peer {
            Peer::Collector(collector) => {
                collector.complete().iter().flat_map(|request| (self.read)(&request.body)).collect()
            }
            Peer::File(folder) => lines(&folder.path().join("entries.log")),
            Peer::Kafka(kafka) => wait_until(&format!("{count} messages"), LIMIT, || {
                let messages = kafka.messages();
                let entries =
                    messages.iter().flat_map(|one| (self.read)(one["value"].as_str().expect("a text").as_bytes()));
                Some(entries.collect::<Vec<_>>()).filter(|entries| entries.len() >= count)
            }),
            Peer::RocketMq(broker) => broker.bodies().iter().flat_map(|body| (self.read)(body)).collect(),
            Peer::Receiver(receiver) => wait_until(&format!("{count} entries"), LIMIT, || {
                let messages = receiver.messages();
                // A stream may have arrived in part.
                let ends =
                    |message: &Vec<u8>| message.is_empty() || message.ends_with(b"}") || message.ends_with(b"\n");
                let entries = || messages.iter().flat_map(|message| (self.read)(message)).collect::<Vec<_>>();
                messages.iter().all(ends).then(entries).filter(|entries| entries.len() >= count)
            }),
        }
    }
}

pub(crate) fn extend(conf: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("fields are an object") };
    conf.as_object_mut().expect("an object").extend(more);
}

/// All loggers with batches.
fn batching() -> Vec<Sink> {
    let mut sinks = Sink::with_bodies();
    sinks.retain(|sink| sink.plugin != "file-logger");
    let (splunk, _) = collector(200);
    let conf = json!({ "endpoint": { "uri": format!("http://{}/x", splunk.node()), "token": "t" } });
    let (peer, metadata) = (Peer::Collector(splunk), json!({}));
    sinks.push(Sink { plugin: "splunk-hec-logging", peer, conf, metadata, read: whole });
    let (lago, _) = collector(200);
    let conf = json!({ "endpoint_addrs": [format!("http://{}", lago.node())], "token": "t", "event_code": "c",
                       "event_transaction_id": "$request_id", "event_subscription_id": "s" });
    let (peer, metadata) = (Peer::Collector(lago), json!({}));
    sinks.push(Sink {
        plugin: "lago",
        peer,
        conf,
        metadata,
        read: |text| whole(text)[0]["events"].as_array().expect("events").clone(),
    });
    let google = Google::start();
    sinks.push(Sink {
        plugin: "google-cloud-logging",
        conf: json!({ "auth_config": google.account() }),
        peer: Peer::Collector(google.origin),
        metadata: json!({}),
        read: google_entries,
    });
    let agent = Receiver::udp();
    let metadata = json!({ "host": "127.0.0.1", "port": agent.port() });
    let peer = Peer::Receiver(agent);
    sinks.push(Sink { plugin: "datadog", peer, conf: json!({}), metadata, read: |_| vec![json!({})] });
    sinks
}

#[test]
fn batches_follow_the_configuration() {
    each(
        &batching(),
        |sink| sink.plugin.to_owned(),
        |sink| {
            let origin = Origin::hello();
            let conf = |size: usize, idle: u64, age: u64| {
                sink.conf(json!({ "batch_max_size": size, "inactive_timeout": idle, "buffer_duration": age }))
            };
            let gateway = Gateway::start(sink.rules(&origin.node(), &conf(2, 600, 600)));
            for (size, idle, age, requests, sent) in
                [(2, 600, 600, 3, 2), (1000, 1, 600, 1, 4), (1000, 600, 1, 1, 5), (1, 600, 600, 1, 6)]
            {
                if size != 2 {
                    assert_eq!(gateway.reload(sink.rules(&origin.node(), &conf(size, idle, age))), Reload::Applied);
                }
                for _ in 0..requests {
                    assert_eq!(gateway.get("/").status, 200);
                }
                await_reports(&gateway, sink.plugin, "sent", sent);
            }
        },
    );
}

#[test]
fn batches_that_fail_follow_the_configuration() {
    each(
        &batching(),
        |sink| sink.plugin.to_owned(),
        |sink| {
            let origin = Origin::hello();
            // Nobody is there, and nothing may be sent to everybody.
            let lost = |node: &str| node.replace("127.0.0.1", "255.255.255.255");
            let failing = |more: Value| {
                let mut rules = sink.rules(&origin.node(), &sink.conf(more));
                let text = rules["routes"][0]["plugins"].to_string();
                rules["routes"][0]["plugins"] = serde_json::from_str(&lost(&text)).expect("JSON");
                rules["plugin_metadata"] =
                    serde_json::from_str(&lost(&rules["plugin_metadata"].to_string())).expect("JSON");
                rules
            };
            let gateway = Gateway::with(
                failing(json!({ "max_retry_count": 2, "retry_delay": 0, "name": "the name of it" })),
                json!({ "reports": { "flush": 0 } }),
            );
            assert_eq!(gateway.get("/").status, 200);
            await_reports(&gateway, sink.plugin, "dropped", 1);
            assert_eq!(gateway.metric("weir_reports_retries_total", &[]), 2.0);
            gateway.logged("the name of it");
            // One that waits for its next attempt, and others behind it up to the bound.
            let mut rules = failing(json!({ "max_retry_count": 1, "retry_delay": 600 }));
            rules["plugin_metadata"][0]["max_pending_entries"] = json!(3);
            assert_eq!(gateway.reload(&rules), Reload::Applied);
            let mut client = gateway.client();
            wait_until("entries to be dropped", LIMIT, || {
                assert_eq!(client.get("/").status, 200);
                (gateway.metric("weir_reports_total", &[("outcome", "dropped")]) > 2.0).then_some(())
            });
            assert_eq!(gateway.metric("weir_reports_pending", &[]), 3.0);
        },
    );
}

#[test]
fn a_batch_is_a_connection() {
    let origin = Origin::hello();
    let server = Receiver::tcp();
    let conf =
        json!({ "host": "127.0.0.1", "port": server.port(), "batch_max_size": 2, "log_format": { "uri": "$uri" } });
    let gateway = Gateway::start(rules(&origin.node(), "tcp-logger", &conf));
    for path in ["/1", "/2", "/3", "/4"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    let entry = |path: &str| format!("{{\"uri\":\"{path}\",\"route_id\":\"all\"}}");
    let expected = [["/1", "/2"], ["/3", "/4"]].map(|[a, b]| format!("[{},{}]", entry(a), entry(b)));
    wait_until("two batches", LIMIT, || (server.texts() == expected).then_some(()));
}

#[test]
fn a_server_that_does_not_read_is_given_up() {
    let origin = Origin::hello();
    // A queue that is full: nobody accepts.
    let full = Full::bind();
    let port: u16 = full.node().rsplit(':').next().expect("a port").parse().expect("a number");
    let sls = json!({ "project": "p", "logstore": "l", "access_key_id": "i", "access_key_secret": "s" });
    for (plugin, more) in [("tcp-logger", json!({})), ("syslog", json!({})), ("sls-logger", sls)] {
        let mut conf = json!({ "host": "127.0.0.1", "port": port, "timeout": 100, "batch_max_size": 1 });
        extend(&mut conf, more);
        let gateway = Gateway::start(rules(&origin.node(), plugin, &conf));
        assert_eq!(gateway.get("/").status, 200);
        await_reports(&gateway, plugin, "dropped", 1);
    }
}

/// `openssl s_server`, whose output is what clients send.
pub(crate) struct TlsServer {
    pub(crate) port: u16,
    folder: tempfile::TempDir,
    _process: Process,
}

impl TlsServer {
    pub(crate) fn start(certificate: &Certificate) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
        let output = fs::File::create(folder.path().join("output")).expect("a file");
        let mut command = Command::new(program("openssl"));
        command.args(["s_server", "-quiet", "-naccept", "100", "-accept", &format!("127.0.0.1:{port}")]);
        command.arg("-cert").arg(&certificate.cert_file).arg("-key").arg(&certificate.key_file);
        let process = Process::spawn(command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::null()));
        let server = Self { port, folder, _process: process };
        wait_until("openssl to listen", LIMIT, || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        server
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output")).expect("read the output")
    }
}

#[test]
fn tls_to_servers_of_logs() {
    let origin = Origin::hello();
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let server = TlsServer::start(&own);
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let formats = json!({ "batch_max_size": 1, "log_format": { "uri": "$uri" } });
    let conf = |host: &str, more: Value| {
        let mut conf = json!({ "host": host, "port": server.port });
        extend(&mut conf, formats.clone());
        extend(&mut conf, more);
        conf
    };
    let sls = |verify: bool| json!({ "project": "p]", "logstore": "l", "access_key_id": "i", "access_key_secret": "s", "ssl_verify": verify });
    let gateway = Gateway::with(
        rules(&origin.node(), "tcp-logger", &conf("127.0.0.1", json!({ "tls": true, "tls_options": "a.test" }))),
        &trusted,
    );
    assert_eq!(gateway.get("/tcp").status, 200);
    await_reports(&gateway, "tcp-logger", "sent", 1);
    assert_eq!(
        gateway.reload(rules(&origin.node(), "syslog", &conf("localhost", json!({ "tls": true })))),
        Reload::Applied
    );
    assert_eq!(gateway.get("/syslog").status, 200);
    await_reports(&gateway, "syslog", "sent", 1);
    wait_until("both entries", LIMIT, || {
        let output = server.output();
        (output.contains("{\"uri\":\"/tcp\"") && output.contains(" apisix ") && output.contains("\"/syslog\""))
            .then_some(())
    });
    drop(gateway);
    // The certificate is one of localhost.
    let gateway = Gateway::with(rules(&origin.node(), "sls-logger", &conf("localhost", sls(true))), &trusted);
    for path in ["/1", "/2"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    await_reports(&gateway, "sls-logger", "sent", 2);
    let data =
        "[logservice project=\"p\\]\" logstore=\"l\" access-key-id=\"i\" access-key-secret=\"s\"] {\"uri\":\"/2\"";
    wait_until("a message", LIMIT, || server.output().contains(data).then_some(()));
    // Under another name it is nobody's. The server serves one connection at a time, and the last one is kept.
    for (verify, outcome) in [(true, "dropped"), (false, "sent")] {
        let server = TlsServer::start(&own);
        let mut conf = conf("127.0.0.1", sls(verify));
        conf["port"] = json!(server.port);
        let before = gateway.metric("weir_reports_total", &[("outcome", outcome)]);
        assert_eq!(gateway.reload(rules(&origin.node(), "sls-logger", &conf)), Reload::Applied);
        assert_eq!(gateway.get("/").status, 200);
        await_reports(&gateway, "sls-logger", outcome, before as usize + 1);
    }
}

/// rsyslog, which writes the parts of each message as a line of JSON.
struct Rsyslog {
    port: u16,
    folder: tempfile::TempDir,
    _process: Process,
}

impl Rsyslog {
    fn start() -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (output, pid) = (at("output"), at("pid"));
        let parts = [
            "syslogfacility-text",
            "syslogseverity-text",
            "timereported",
            "hostname",
            "app-name",
            "procid",
            "inputname",
            "msg",
        ];
        let parts = parts.map(|part| {
            let format = if part == "timereported" { " dateformat=\"rfc3339\"" } else { "" };
            format!("property(name=\"{part}\" outname=\"{part}\" format=\"jsonf\"{format})")
        });
        let parts = parts.join(" constant(value=\",\")\n");
        let conf = format!(
            "global(workDirectory=\"{}\")\nmodule(load=\"imtcp\")\nmodule(load=\"imudp\")\n\
             input(type=\"imtcp\" address=\"127.0.0.1\" port=\"{port}\")\ninput(type=\"imudp\" address=\"127.0.0.1\" port=\"{port}\")\n\
             template(name=\"parts\" type=\"list\") {{ constant(value=\"{{\")\n{parts}\nconstant(value=\"}}\\n\") }}\n\
             action(type=\"omfile\" file=\"{output}\" template=\"parts\" asyncWriting=\"off\")\n",
            folder.path().display()
        );
        fs::write(folder.path().join("conf"), conf).expect("write a file");
        let mut command = Command::new(program("rsyslogd"));
        command.args(["-n", "-f", &at("conf"), "-i", &pid, "-C"]);
        let process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        wait_until("rsyslog to listen", LIMIT, || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        Self { port, folder, _process: process }
    }

    fn messages(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("output")).unwrap_or_default();
        // The last line may not be whole yet.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

#[test]
fn rsyslog_reads_messages() {
    let origin = Origin::hello();
    let server = Rsyslog::start();
    for (protocol, input) in [("tcp", "imtcp"), ("udp", "imudp")] {
        let conf = json!({ "host": "127.0.0.1", "port": server.port, "sock_type": protocol, "batch_max_size": 2,
                           "log_format": { "uri": "$uri", "quote": "\"$arg_q\"" } });
        let gateway = Gateway::start(rules(&origin.node(), "syslog", &conf));
        let before = server.messages().len();
        for path in ["/1", "/2?q=%0a"] {
            assert_eq!(gateway.get(path).status, 200);
        }
        let messages = wait_until("two messages", LIMIT, || {
            let messages = server.messages().split_off(before);
            (messages.len() >= 2).then_some(messages)
        });
        for (message, path) in messages.iter().zip(["/1", "/2"]) {
            let part =
                |name: &str| message[name].as_str().unwrap_or_else(|| panic!("{name}: {message}")).trim().to_owned();
            assert_eq!([part("syslogfacility-text"), part("syslogseverity-text")], ["syslog", "info"], "{message}");
            assert_eq!(
                [part("hostname"), part("app-name"), part("inputname")],
                ["a.test", "apisix", input],
                "{message}"
            );
            assert!(part("procid").parse::<u32>().is_ok() && part("timereported").starts_with("20"), "{message}");
            let entry: Value = serde_json::from_str(&part("msg")).expect("an entry");
            assert_eq!(entry["uri"], path);
        }
    }
}
