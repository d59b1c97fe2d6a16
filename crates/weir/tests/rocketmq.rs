//! Brokers of RocketMQ: scripted ones, which lie or are slow, and the real one where it is installed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{
    Authority, Connection, Gateway, Haproxy, Kind, LIMIT, Origin, Process, free_port, post, program, repository,
    wait_until,
};
use crate::loggers::{extend, whole};
use crate::reports::{await_reports, rules};

fn conf(server: &str, more: Value) -> Value {
    let mut conf = json!({ "nameserver_list": [server], "topic": "requests", "batch_max_size": 1, "log_format": { "uri": "$uri" } });
    extend(&mut conf, more);
    conf
}

/// Reads a request: its head, and its body. `None` when there is no more.
fn request(connection: &mut Connection) -> Option<(Value, Vec<u8>)> {
    let length = u32::from_be_bytes(connection.exactly(4).ok()?.try_into().expect("four bytes")) as usize;
    let whole = connection.exactly(length).expect("the request");
    let head = u32::from_be_bytes(whole[..4].try_into().expect("four bytes")) as usize;
    let (head, body) = whole[4..].split_at(head);
    Some((serde_json::from_slice(head).expect("JSON"), body.to_vec()))
}

fn reply(to: &Value, code: i32, remark: &str, body: &str) -> Vec<u8> {
    let head = json!({ "code": code, "flag": 1, "language": "JAVA", "opaque": to["opaque"], "remark": remark, "version": 403 });
    let head = head.to_string();
    let length = (4 + head.len() + body.len()) as u32;
    [&length.to_be_bytes()[..], &(head.len() as u32).to_be_bytes(), head.as_bytes(), body.as_bytes()].concat()
}

/// The list of a broker at this port, as RocketMQ writes it.
fn route(port: u16) -> String {
    format!(
        "{{\"brokerDatas\":[{{\"brokerAddrs\":{{0:\"127.0.0.1:{port}\"}},\"brokerName\":\"a\",\"cluster\":\"c\"}}],\
         \"filterServerTable\":{{}},\"queueDatas\":[{{\"brokerName\":\"a\",\"perm\":6,\"readQueueNums\":8,\"topicSysFlag\":0,\
         \"writeQueueNums\":8}}]}}"
    )
}

type Message = (Value, Vec<u8>);

/// A name server and its broker, which answers messages with this code.
pub(crate) struct Server {
    names: Origin,
    broker: Origin,
    /// The port of the broker that clients are told.
    port: Arc<AtomicU16>,
    messages: Arc<Mutex<Vec<Message>>>,
}

impl Server {
    pub(crate) fn start(code: i32) -> Self {
        let messages = Arc::<Mutex<Vec<Message>>>::default();
        let told = Arc::clone(&messages);
        let broker = Origin::scripted(move |connection| {
            while let Some((head, body)) = request(connection) {
                assert_eq!(head["code"], 310);
                told.lock().expect("the list").push((head.clone(), body));
                connection.send(reply(&head, code, "because\n at Broker.java", ""));
            }
        });
        let port = Arc::new(AtomicU16::new(broker.addr().port()));
        let shown = Arc::clone(&port);
        let names = Origin::scripted(move |connection| {
            while let Some((head, _)) = request(connection) {
                assert_eq!(head["code"], 105);
                connection.send(match head["extFields"]["topic"].as_str() {
                    Some("new") => reply(&head, 17, "No topic route info", ""),
                    _ => reply(&head, 0, "", &route(shown.load(Relaxed))),
                });
            }
        });
        Self { names, broker, port, messages }
    }

    /// The place of the name server.
    pub(crate) fn node(&self) -> String {
        self.names.node()
    }

    /// Bodies of messages.
    pub(crate) fn bodies(&self) -> Vec<Vec<u8>> {
        self.messages.lock().expect("the list").iter().map(|(_, body)| body.clone()).collect()
    }

    /// The messages, once there are so many.
    fn messages(&self, count: usize) -> Vec<Message> {
        let all = || Some(self.messages.lock().expect("the list").clone());
        wait_until("messages", LIMIT, || all().filter(|all| all.len() >= count))
    }

    fn forget(&self) {
        self.messages.lock().expect("the list").clear();
    }
}

#[test]
fn brokers_take_messages() {
    let (origin, server) = (Origin::echo(), Server::start(0));
    let start = |more: Value| Gateway::start(rules(&origin.node(), "rocketmq-logger", &conf(&server.node(), more)));
    // A list of two entries, with key and tag, and an account.
    let more = json!({ "batch_max_size": 2, "key": "k", "tag": "shop", "access_key": "AK", "secret_key": "secret" });
    let gateway = start(more);
    for path in ["/1", "/2"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    let (head, body) = server.messages(1).remove(0);
    let entries: Vec<Value> = serde_json::from_slice(&body).expect("a list");
    assert_eq!(entries.iter().map(|entry| entry["uri"].clone()).collect::<Vec<_>>(), ["/1", "/2"]);
    let fields = &head["extFields"];
    assert_eq!(
        (&fields["b"], &fields["i"]),
        (&json!("requests"), &json!("KEYS\u{1}k\u{2}TAGS\u{1}shop\u{2}WAIT\u{1}true\u{2}"))
    );
    assert!(
        fields["e"].as_str().and_then(|queue| queue.parse::<u32>().ok()).is_some_and(|queue| queue < 8),
        "{fields}"
    );
    assert_eq!((&fields["AccessKey"], fields["Signature"].as_str().map(str::len)), (&json!("AK"), Some(28)));
    server.forget();
    // One by one over a connection that is kept, to a topic that is made.
    let before = server.names.connections();
    let gateway = start(json!({ "topic": "new" }));
    for (at, path) in ["/3", "/4", "/5"].into_iter().enumerate() {
        assert_eq!(gateway.get(path).status, 200);
        server.messages(at + 1);
    }
    let all = server.messages(3);
    let paths: Vec<Value> = all.iter().map(|(_, body)| whole(body)[0]["uri"].clone()).collect();
    assert_eq!(paths, ["/3", "/4", "/5"]);
    assert!(all.iter().all(|(head, _)| head["extFields"]["d"] == "4" && head["extFields"]["c"] == "TBW102"), "{all:?}");
    assert!(all.iter().all(|(head, _)| head["extFields"].get("Signature").is_none()), "{all:?}");
    assert_eq!(server.names.connections() - before, 1);
    server.forget();
    // Requests as they came.
    let gateway = start(json!({ "meta_format": "origin", "include_req_body": true }));
    gateway.client().request(post("/raw", "hello"));
    let (_, body) = server.messages(1).remove(0);
    let text = String::from_utf8(body).expect("text");
    assert!(text.starts_with("POST /raw HTTP/1.1\r\n") && text.ends_with("\r\n\r\nhello"), "{text}");
}

#[test]
fn a_broker_that_refuses_lies_or_is_slow() {
    let origin = Origin::echo();
    let fails = |server: &str, says: &str| {
        let more = json!({ "timeout": 1, "max_retry_count": 0, "inactive_timeout": 1 });
        let gateway = Gateway::start(rules(&origin.node(), "rocketmq-logger", &conf(server, more)));
        assert_eq!(gateway.get("/").status, 200);
        gateway.logged(says);
    };
    let refuses = Server::start(13);
    fails(&refuses.node(), "code 13 of RocketMQ: because");
    for (answer, says) in [
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "none of RocketMQ's"),
        ("\0\0\0\x08\0\0\0\x04{}{}", "none of RocketMQ's"),
        ("\x7f\u{7f}\u{7f}\u{7f}", "none of RocketMQ's"),
    ] {
        let server = Origin::scripted(move |connection| {
            if request(connection).is_some() {
                connection.send(answer);
                connection.await_close();
            }
        });
        fails(&server.node(), says);
    }
    let empty = Origin::scripted(|connection| {
        while let Some((head, _)) = request(connection) {
            connection.send(reply(&head, 0, "", "{\"brokerDatas\":[],\"queueDatas\":[]}"));
        }
    });
    fails(&empty.node(), "no broker takes messages");
    let nowhere = Origin::scripted(|connection| {
        while let Some((head, _)) = request(connection) {
            connection.send(reply(&head, 17, "No topic route info", ""));
        }
    });
    fails(&nowhere.node(), "brokers make none of themselves");
    let silent = Origin::scripted(Connection::await_close);
    fails(&silent.node(), "no answer in time");
    fails("127.0.0.1:1", "127.0.0.1:1");
    // Messages that the disk or the copies of a broker are late with are taken.
    let late = Server::start(10);
    let conf = conf(&late.node(), json!({ "max_retry_count": 5, "retry_delay": 0 }));
    let gateway = Gateway::start(rules(&origin.node(), "rocketmq-logger", &conf));
    gateway.get("/");
    await_reports(&gateway, "rocketmq-logger", "sent", 1);
    assert_eq!(late.bodies().len(), 1);
}

#[test]
fn a_broker_with_tls() {
    let (origin, authority, server) = (Origin::hello(), Authority::new(), Server::start(0));
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let [names, broker] = [server.node(), server.broker.node()].map(|node| Haproxy::with_tls(&own, &node));
    server.port.store(broker.addr.port(), Relaxed);
    let names = format!("127.0.0.1:{}", names.addr.port());
    for (uses_tls, outcome) in [(true, "sent"), (false, "dropped")] {
        let conf = conf(&names, json!({ "use_tls": uses_tls, "timeout": 2, "max_retry_count": 0 }));
        let gateway = Gateway::start(rules(&origin.node(), "rocketmq-logger", &conf));
        assert_eq!(gateway.get("/").status, 200);
        await_reports(&gateway, "rocketmq-logger", outcome, 1);
    }
}

/// A name server, a broker, and a consumer that tells what is in the topic: bodies, keys and tags.
const SERVER: &str = r#"
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.broker.*;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;

public class Server {
    public static void main(String[] arguments) throws Exception {
        String version = Integer.toString(org.apache.rocketmq.common.MQVersion.CURRENT_VERSION);
        System.setProperty("rocketmq.remoting.version", version);
        String names = "127.0.0.1:" + arguments[0];
        NettyServerConfig port = new NettyServerConfig();
        port.setListenPort(Integer.parseInt(arguments[0]));
        NamesrvController nameserver = new NamesrvController(new NamesrvConfig(), port);
        nameserver.initialize();
        nameserver.start();
        BrokerConfig config = new BrokerConfig();
        config.setNamesrvAddr(names);
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerName("a");
        config.setAutoCreateTopicEnable(true);
        port = new NettyServerConfig();
        port.setListenPort(Integer.parseInt(arguments[1]));
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(arguments[2] + "/store");
        store.setStorePathCommitLog(arguments[2] + "/store/log");
        store.setMappedFileSizeCommitLog(16 << 20);
        store.setHaListenPort(Integer.parseInt(arguments[3]));
        BrokerController broker = new BrokerController(config, port, new NettyClientConfig(), store);
        if (!broker.initialize()) throw new IllegalStateException("no broker");
        broker.start();
        System.out.println("ready");
        System.in.read();
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("readers");
        consumer.setNamesrvAddr(names);
        consumer.setConsumeFromWhere(org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("requests", "*");
        consumer.start();
        while (true)
            for (MessageExt message : consumer.poll(1000))
                System.out.println(message.getTags() + " " + message.getKeys() + " " + new String(message.getBody(), StandardCharsets.UTF_8));
    }
}
"#;

#[test]
fn the_real_broker_takes_messages() {
    let libs = repository().join("target/test-tools/rocketmq/libs");
    if !libs.with_file_name("whole").exists() {
        return println!("RocketMQ is not installed: tools/test-peers");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("Server.java");
    fs::write(&source, SERVER).expect("write the source");
    let classes = format!("{}/*:{}", libs.display(), folder.path().display());
    let mut compiler = Command::new(program("javac"));
    compiler.args(["-nowarn", "-cp", &classes, "-d"]).arg(folder.path()).arg(&source);
    assert!(compiler.status().expect("javac starts").success());
    // A broker takes a second port, two below its own.
    let ports = [free_port(), free_port(), free_port()];
    let mut command = Command::new(program("java"));
    command.args([
        "--add-exports",
        "java.base/sun.nio.ch=ALL-UNNAMED",
        "--add-opens",
        "java.base/java.nio=ALL-UNNAMED",
    ]);
    command.args(["--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED", "-Drocketmq.client.logUseSlf4j=true"]);
    command.arg(format!("-Duser.home={}", folder.path().display())).args(["-cp", &classes, "Server"]);
    command.arg(ports[0].to_string()).arg(ports[1].to_string()).arg(folder.path()).arg(ports[2].to_string());
    command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process::spawn(&mut command);
    let output = BufReader::new(process.child().stdout.take().expect("its output"));
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.by_ref().any(|line| line == "ready"), "no broker");
    let origin = Origin::echo();
    let more = json!({ "batch_max_size": 2, "key": "k", "tag": "shop", "max_retry_count": 10, "retry_delay": 1 });
    let conf = conf(&format!("127.0.0.1:{}", ports[0]), more);
    let gateway = Gateway::start(rules(&origin.node(), "rocketmq-logger", &conf));
    for path in ["/1", "/2", "/3", "/4"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    await_reports(&gateway, "rocketmq-logger", "sent", 4);
    std::io::Write::write_all(process.child().stdin.as_mut().expect("its input"), b"\n").expect("tell it");
    let mut found: Vec<String> = lines.filter(|line| line.starts_with("shop ")).take(2).collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "shop k [{\"uri\":\"/1\",\"route_id\":\"all\"},{\"uri\":\"/2\",\"route_id\":\"all\"}]",
            "shop k [{\"uri\":\"/3\",\"route_id\":\"all\"},{\"uri\":\"/4\",\"route_id\":\"all\"}]"
        ]
    );
}
