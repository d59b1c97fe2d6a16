//! Brokers of Kafka: librdkafka's cluster, scripted ones that lie or are slow, and the real one where it is installed.

use std::fs;
use std::ops::RangeInclusive;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::{Value, json};

use crate::harness::{
    Authority, Connection, Gateway, Haproxy, Kafka, Kind, LIMIT, Origin, Process, Reload, each, free_port, post,
    program, repository, wait_until,
};
use crate::loggers::{extend, whole};
use crate::reports::{await_reports, rules};

fn conf(port: u16, more: Value) -> Value {
    let mut conf = json!({ "brokers": [{ "host": "127.0.0.1", "port": port }], "kafka_topic": "requests",
                           "batch_max_size": 1, "log_format": { "uri": "$uri" } });
    extend(&mut conf, more);
    conf
}

fn text(message: &Value) -> &str {
    message["value"].as_str().expect("a text")
}

#[test]
fn brokers_take_messages() {
    let (origin, kafka) = (Origin::echo(), Kafka::start(2, "requests"));
    let brokers: Vec<_> = kafka.brokers.iter().map(|(host, port)| json!({ "host": host, "port": port })).collect();
    let with = |more: Value| {
        let mut conf = conf(0, json!({ "brokers": brokers }));
        extend(&mut conf, more);
        rules(&origin.node(), "kafka-logger", &conf)
    };
    let messages = |count: usize| {
        wait_until("messages", LIMIT, || Some(kafka.messages()).filter(|messages| messages.len() >= count))
    };
    // A list of two entries, at the partition of the key: the CRC-32 of "shop" is 0xac6a4ca2.
    let gateway = Gateway::start(with(json!({ "batch_max_size": 2, "key": "shop", "required_acks": -1 })));
    for path in ["/1", "/2"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    let message = messages(1).remove(0);
    let paths = whole(text(&message).as_bytes())[0]
        .as_array()
        .map(|all| all.iter().map(|one| one["uri"].clone()).collect::<Vec<_>>());
    assert_eq!(paths, Some(vec![json!("/1"), json!("/2")]), "{message}");
    assert_eq!((&message["key"], &message["partition"]), (&json!("shop"), &json!(0xac6a_4ca2_u32 % 4)));
    assert!(message["time"].as_u64().is_some_and(|ms| ms > 1_700_000_000_000), "{message}");
    // One by one, without a key; over a connection that is kept.
    let (name, port) = &kafka.brokers[1];
    let mut older = with(json!({ "broker_list": { name: port } }));
    older["routes"][0]["plugins"]["kafka-logger"].as_object_mut().expect("an object").remove("brokers");
    assert_eq!(gateway.reload(&older), Reload::Applied);
    for path in ["/3", "/4", "/5"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    let found: Vec<_> = messages(4)
        .into_iter()
        .skip(1)
        .map(|message| {
            assert_eq!(message["key"], Value::Null);
            whole(text(&message).as_bytes())[0]["uri"].clone()
        })
        .collect();
    assert_eq!(found, ["/3", "/4", "/5"]);
    // Requests as they came.
    assert_eq!(
        gateway.reload(with(json!({ "meta_format": "origin", "include_req_body": true, "key": "a" }))),
        Reload::Applied
    );
    gateway.client().request(post("/6?a=%22", "body of it"));
    let request = messages(5).into_iter().find(|message| message["key"] == "a").expect("a message");
    let request = text(&request);
    assert!(request.starts_with("POST /6?a=%22 HTTP/1.1\r\n") && request.ends_with("\r\n\r\nbody of it"), "{request}");
    assert!(request.to_lowercase().contains("\r\nhost: a.test\r\n"), "{request}");
    assert_eq!(
        gateway.reload(with(json!({ "meta_format": "origin", "batch_max_size": 2, "key": "b" }))),
        Reload::Applied
    );
    for path in ["/7", "/8"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    let list = messages(6).into_iter().find(|message| message["key"] == "b").expect("a message");
    let list: Vec<String> = serde_json::from_str(text(&list)).expect("a list of texts");
    assert!(list.len() == 2 && list[1].starts_with("GET /8 HTTP/1.1\r\n"), "{list:?}");
}

/// Numbers and contents of requests.
type Requests = Arc<Mutex<Vec<(i16, Vec<u8>)>>>;

/// A broker of its own, which leads the only partition.
struct Scripted {
    origin: Origin,
    requests: Requests,
    /// Address that it names as its own.
    address: Arc<OnceLock<(String, u16)>>,
}

impl Scripted {
    /// A broker with this answer to all requests of a number but those for metadata, without the number of the request.
    fn start(answer: impl Fn(i16, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        let (requests, address) = (Requests::default(), Arc::<OnceLock<(String, u16)>>::default());
        let (noted, named) = (Arc::clone(&requests), Arc::clone(&address));
        let origin = Origin::scripted(move |connection: &mut Connection| {
            while let Ok(length) = connection.exactly(4) {
                let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
                let Ok(request) = connection.exactly(length) else { return };
                let api = i16::from_be_bytes([request[0], request[1]]);
                let content = request.get(14..).expect("a request of weir's").to_vec();
                let answer = match api {
                    3 => {
                        let (host, port) = named.wait();
                        let mut metadata = b"\0\0\0\0\0\0\0\x01\0\0\0\x07".to_vec();
                        metadata.extend_from_slice(&(host.len() as u16).to_be_bytes());
                        metadata.extend_from_slice(host.as_bytes());
                        metadata.extend_from_slice(&u32::from(*port).to_be_bytes());
                        metadata
                            .extend_from_slice(b"\xff\xff\xff\xff\0\0\0\x07\0\0\0\x01\0\0\0\x08requests\0\0\0\0\x01");
                        metadata.extend_from_slice(b"\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0");
                        Some(metadata)
                    }
                    api => answer(api, &content),
                };
                noted.lock().expect("requests").push((api, content));
                let Some(answer) = answer else { return connection.await_close() };
                let mut whole = ((answer.len() + 4) as u32).to_be_bytes().to_vec();
                whole.extend_from_slice(&request[4..8]);
                whole.extend_from_slice(&answer);
                if !connection.send(whole) {
                    return;
                }
            }
        });
        Self { origin, requests, address }
    }

    /// The same, which names itself by its own address.
    fn alone(answer: impl Fn(i16, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        let broker = Self::start(answer);
        broker.address.set(("127.0.0.1".to_owned(), broker.origin.addr().port())).expect("set once");
        broker
    }

    fn of(&self, api: i16) -> Vec<Vec<u8>> {
        let requests = self.requests.lock().expect("requests");
        requests.iter().filter(|(number, _)| *number == api).map(|(_, content)| content.clone()).collect()
    }
}

/// The answer to a message, with a code.
fn produced(code: i16) -> Vec<u8> {
    [&b"\0\0\0\x01\0\x08requests\0\0\0\x01\0\0\0\0"[..], &code.to_be_bytes(), &[0; 20]].concat()
}

#[test]
fn a_broker_that_lies_or_is_slow() {
    let origin = Origin::hello();
    type Answer = fn(i16, &[u8]) -> Option<Vec<u8>>;
    // The broker's answer to messages, the words of the log, and the number of messages that it is sent at least and at most:
    // one that denies to be the leader is asked again, every tenth of a second.
    let cases: [(&str, Answer, &str, RangeInclusive<usize>); 6] = [
        ("a message that is too large", |_, _| Some(produced(10)), "message.max.bytes", 1..=1),
        ("another leader", |_, _| Some(produced(6)), "no leader for the partition", 2..=12),
        ("no right", |_, _| Some(produced(29)), "may not write", 1..=1),
        ("an unknown code", |_, _| Some(produced(87)), "error 87", 1..=1),
        ("no answer of Kafka's", |_, _| Some(b"\0\0\0\x05".to_vec()), "none of Kafka's", 1..=1),
        ("silence", |_, _| None, "no answer in time", 1..=1),
    ];
    each(
        &cases,
        |(name, ..)| (*name).to_owned(),
        |(_, answer, says, count)| {
            let broker = Scripted::alone(*answer);
            let conf = conf(broker.origin.addr().port(), json!({ "timeout": 1, "required_acks": -1 }));
            let gateway = Gateway::start(rules(&origin.node(), "kafka-logger", &conf));
            assert_eq!(gateway.get("/").status, 200);
            await_reports(&gateway, "kafka-logger", "dropped", 1);
            gateway.logged(says);
            let messages = broker.of(0);
            assert!(count.contains(&messages.len()), "{} messages", messages.len());
            // No transaction, all replicas, a second.
            assert!(messages[0].starts_with(b"\xff\xff\xff\xff\0\0\x03\xe8"), "{messages:x?}");
        },
    );
    // One that leads a partition a little later than it says, as for a topic that is new.
    let asked = AtomicUsize::new(0);
    let late = Scripted::alone(move |_, _| Some(produced(if asked.fetch_add(1, Relaxed) < 2 { 6 } else { 0 })));
    let gateway = Gateway::start(rules(&origin.node(), "kafka-logger", &conf(late.origin.addr().port(), json!({}))));
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "kafka-logger", "sent", 1);
    assert_eq!(late.of(0).len(), 3);
    // One that takes a message, and one that is no broker.
    let broker = Scripted::alone(|_, _| Some(produced(0)));
    let gateway = Gateway::start(rules(&origin.node(), "kafka-logger", &conf(broker.origin.addr().port(), json!({}))));
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "kafka-logger", "sent", 1);
    assert!(broker.of(0)[0].starts_with(b"\xff\xff\0\x01\0\0\x0b\xb8"), "one replica, three seconds");
    let liar = Origin::scripted(|connection: &mut Connection| {
        connection.send("HTTP/1.1 400 Bad Request\r\n\r\n");
        connection.await_close();
    });
    assert_eq!(
        gateway.reload(rules(&origin.node(), "kafka-logger", &conf(liar.addr().port(), json!({})))),
        Reload::Applied
    );
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "kafka-logger", "dropped", 1);
    gateway.logged("which is none of Kafka's");
}

#[test]
fn logins_are_shown() {
    let origin = Origin::hello();
    let takes = |answer: &'static [u8]| {
        Scripted::alone(move |api, content| match api {
            17 => Some(b"\0\0\0\0\0\0".to_vec()),
            36 => Some(if content.ends_with(answer) {
                b"\0\0\xff\xff\0\0\0\0".to_vec()
            } else {
                b"\0\x3a\0\x02no\0\0\0\0".to_vec()
            }),
            _ => Some(produced(0)),
        })
    };
    let broker = takes(b"\0jack\0p w");
    let with = |mechanism: &str, password: &str| {
        let login = json!({ "mechanism": mechanism, "user": "jack", "password": password });
        let port = broker.origin.addr().port();
        let conf = conf(port, json!({ "brokers": [{ "host": "127.0.0.1", "port": port, "sasl_config": login }] }));
        rules(&origin.node(), "kafka-logger", &conf)
    };
    let gateway = Gateway::start(with("PLAIN", "p w"));
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "kafka-logger", "sent", 1);
    for (number, (mechanism, password)) in
        [("PLAIN", "other"), ("SCRAM-SHA-256", "p w"), ("SCRAM-SHA-512", "p w")].into_iter().enumerate()
    {
        assert_eq!(gateway.reload(with(mechanism, password)), Reload::Applied);
        assert_eq!(gateway.get("/").status, 200);
        await_reports(&gateway, "kafka-logger", "dropped", number + 1);
    }
    gateway.logged("the broker refuses the login: no (error 58 of Kafka)");
    assert_eq!(broker.of(0).len(), 1, "no message without a login");
    let names: Vec<_> = broker.of(17).iter().map(|name| String::from_utf8_lossy(&name[2..]).into_owned()).collect();
    assert_eq!(names, ["PLAIN", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]);
    let first = broker.of(36).into_iter().nth(2).expect("a first message");
    assert!(first[4..].starts_with(b"n,,n=jack,r="), "{first:x?}");
}

#[test]
fn brokers_with_tls_are_verified() {
    let (origin, authority) = (Origin::hello(), Authority::new());
    let broker = Scripted::start(|_, _| Some(produced(0)));
    let proxy = Haproxy::with_tls(&authority.certificate(Kind::P256, &["localhost"]), &broker.origin.node());
    broker.address.set(("localhost".to_owned(), proxy.addr.port())).expect("set once");
    let with = |host: &str, tls: Value| {
        let brokers = json!([{ "host": host, "port": proxy.addr.port() }]);
        rules(&origin.node(), "kafka-logger", &conf(0, json!({ "brokers": brokers, "tls": tls, "timeout": 2 })))
    };
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let gateway = Gateway::with(with("localhost", json!({ "verify": true })), &trusted);
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, "kafka-logger", "sent", 1);
    // Under another name, which is taken where nobody looks, and without TLS.
    let mut plain = with("localhost", json!({}));
    plain["routes"][0]["plugins"]["kafka-logger"].as_object_mut().expect("an object").remove("tls");
    for (rules, outcome, count) in [
        (with("127.0.0.1", json!({ "verify": true })), "dropped", 1),
        (with("127.0.0.1", json!({})), "sent", 2),
        (plain, "dropped", 2),
    ] {
        assert_eq!(gateway.reload(&rules), Reload::Applied);
        assert_eq!(gateway.get("/").status, 200);
        await_reports(&gateway, "kafka-logger", outcome, count);
    }
}

/// Kafka itself, with a listener that wants logins, as far as `make test-peers` has fetched its packages.
struct RealKafka {
    /// Of the listener that wants logins.
    port: u16,
    /// Of the one that wants none.
    open_port: u16,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl RealKafka {
    fn start() -> Option<Self> {
        let packages = repository().join("target/test-tools/kafka");
        if !packages.join("whole").is_file() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let (port, open_port, controller) = (free_port(), free_port(), free_port());
        let conf = folder.path().join("server.properties");
        let plain = "org.apache.kafka.common.security.plain.PlainLoginModule required user_jack=\"p w\";";
        let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
        let text = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=127.0.0.1:{controller}\n\
             listeners=LOGIN://127.0.0.1:{port},OPEN://127.0.0.1:{open_port},CONTROLLER://127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\ninter.broker.listener.name=OPEN\n\
             listener.security.protocol.map=LOGIN:SASL_PLAINTEXT,OPEN:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             listener.name.login.plain.sasl.jaas.config={plain}\nlistener.name.login.scram-sha-256.sasl.jaas.config={scram}\n\
             listener.name.login.scram-sha-512.sasl.jaas.config={scram}\nlog.dirs={}\nnum.partitions=4\n\
             offsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n",
            folder.path().join("data").display()
        );
        fs::write(&conf, text).expect("write a file");
        let java = |class: &str| {
            let mut command = Command::new(program("java"));
            command.args(["-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp"]).arg(packages.join("libs/*")).arg(class);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let mut format = java("kafka.tools.StorageTool");
        format.args(["format", "--standalone", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c"]).arg(&conf);
        for hash in ["256", "512"] {
            format.args(["--add-scram", &format!("SCRAM-SHA-{hash}=[name=jack,password=\"p w\"]")]);
        }
        assert!(format.status().expect("run java").success(), "a folder for Kafka");
        let process = Process::spawn(java("kafka.Kafka").arg(&conf));
        for port in [port, open_port] {
            wait_until("Kafka to listen", LIMIT * 3, || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        }
        Some(Self { port, open_port, _process: process, _folder: folder })
    }
}

#[test]
fn the_real_server_takes_messages() {
    let Some(server) = RealKafka::start() else {
        return println!("left out: there is no Kafka (make test-peers)");
    };
    let origin = Origin::hello();
    let with = |port: u16, login: Value, more: Value| {
        let mut conf = conf(port, json!({ "brokers": [{ "host": "127.0.0.1", "port": port }], "timeout": 20 }));
        if !login.is_null() {
            conf["brokers"][0]["sasl_config"] = login;
        }
        extend(&mut conf, more);
        rules(&origin.node(), "kafka-logger", &conf)
    };
    // The topic is made with the first message.
    let gateway = Gateway::start(with(server.open_port, Value::Null, json!({ "key": "shop", "required_acks": -1 })));
    assert_eq!(gateway.get("/open").status, 200);
    await_reports(&gateway, "kafka-logger", "sent", 1);
    for (number, mechanism) in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"].into_iter().enumerate() {
        let login = |password: &str| json!({ "mechanism": mechanism, "user": "jack", "password": password });
        assert_eq!(gateway.reload(with(server.port, login("p w"), json!({}))), Reload::Applied);
        assert_eq!(gateway.get(&format!("/{mechanism}")).status, 200);
        await_reports(&gateway, "kafka-logger", "sent", number + 2);
        assert_eq!(gateway.reload(with(server.port, login("other"), json!({}))), Reload::Applied);
        assert_eq!(gateway.get("/refused").status, 200);
        await_reports(&gateway, "kafka-logger", "dropped", number + 1);
    }
    let reader = Kafka::of("127.0.0.1", server.open_port, "requests");
    let messages = wait_until("all messages", LIMIT, || Some(reader.messages()).filter(|messages| messages.len() >= 4));
    let mut paths: Vec<_> =
        messages.iter().map(|message| whole(text(message).as_bytes())[0]["uri"].to_string()).collect();
    paths.sort();
    assert_eq!(paths, ["\"/PLAIN\"", "\"/SCRAM-SHA-256\"", "\"/SCRAM-SHA-512\"", "\"/open\""]);
    let first = messages.iter().find(|message| message["key"] == "shop").expect("that with a key");
    assert_eq!(first["partition"], 2);
}
