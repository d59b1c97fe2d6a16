//! mqtt-proxy on stream routes: a real broker and real clients, versions 3.1.1 and 5, balancing by client id, refusals.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Gateway, LIMIT, Process, Start, each, free_port, program, wait_until};

/// A broker, which tells its clients in a log.
struct Broker {
    port: u16,
    _process: Process,
    folder: TempDir,
}

impl Broker {
    fn start() -> Self {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let conf = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\nlog_type all\nlog_dest file {}\nuser root\n",
            folder.path().join("log").display()
        );
        fs::write(folder.path().join("conf"), conf).expect("write the configuration");
        let mut command = Command::new(program("mosquitto"));
        command.arg("-c").arg(folder.path().join("conf")).stdout(Stdio::null()).stderr(Stdio::null());
        let broker = Self { port, _process: Process::spawn(&mut command), folder };
        wait_until("the broker to listen", LIMIT, || TcpStream::connect(("127.0.0.1", port)).ok());
        broker
    }

    fn node(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn has_seen(&self, client: &str) -> bool {
        fs::read_to_string(self.log()).unwrap_or_default().contains(&format!(" as {client} ("))
    }
}

fn start(route: &Value, more: &Value) -> Gateway {
    let mut settings = json!({ "listen": { "http": ["127.0.0.1:0"], "https": [], "tcp": ["127.0.0.1:0"] } });
    settings.as_object_mut().expect("settings").extend(more.as_object().expect("settings").clone());
    Start::new(json!({ "stream_routes": [route] })).settings(settings).workers(2).own_listeners().start()
}

fn route(level: u8, nodes: &[String]) -> Value {
    let nodes: BTreeMap<&String, u32> = nodes.iter().map(|node| (node, 1)).collect();
    json!({
        "id": "brokers",
        "plugins": { "mqtt-proxy": { "protocol_name": "MQTT", "protocol_level": level } },
        "upstream": { "scheme": "tcp", "type": "chash", "key": "mqtt_client_id", "nodes": nodes },
    })
}

/// Output of a client of mosquitto's; `None` where it fails.
fn run(name: &str, gateway: &Gateway, version: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program(name));
    command.args(["-h", "127.0.0.1", "-p", &gateway.addrs[1].port().to_string(), "-V", version]).args(arguments);
    let output = command.output().expect("run a client");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn refused(gateway: &Gateway, status: &str) -> f64 {
    gateway.metric("weir_streams_total", &[("route", "brokers"), ("status", status)])
}

#[test]
fn messages_go_through_in_both_versions() {
    let broker = Broker::start();
    each(
        &[(4, "mqttv311", "mqttv5"), (5, "mqttv5", "mqttv311")],
        |(level, ..)| format!("level {level}"),
        |(level, version, other)| {
            let gateway = start(&route(*level, &[broker.node()]), &json!({}));
            let topic = format!("t{level}");
            // A broker ends the session of a client when another one comes with its name.
            let sender = format!("sender{level}");
            let sent = ["-t", &topic, "-m", "hello", "-q", "1", "-r", "-i", &sender];
            assert_eq!(run("mosquitto_pub", &gateway, version, &sent).as_deref(), Some(""));
            let wanted = ["-t", &topic, "-C", "1", "-W", "10"];
            assert_eq!(run("mosquitto_sub", &gateway, version, &wanted).as_deref(), Some("hello"));
            let long = "x".repeat(300_000);
            let file = tempfile::NamedTempFile::new().expect("a file");
            fs::write(file.path(), &long).expect("write the message");
            let path = file.path().display().to_string();
            let sent = ["-t", &topic, "-f", &path, "-q", "1", "-r", "-i", &sender];
            assert_eq!(run("mosquitto_pub", &gateway, version, &sent).as_deref(), Some(""));
            assert_eq!(run("mosquitto_sub", &gateway, version, &wanted).as_deref(), Some(&*long));
            assert_eq!(refused(&gateway, "400"), 0.0);
            assert_eq!(run("mosquitto_pub", &gateway, other, &sent), None);
            wait_until("the refusal to be counted", LIMIT, || (refused(&gateway, "400") >= 1.0).then_some(()));
        },
    );
}

#[test]
fn a_client_comes_back_to_its_broker() {
    let brokers = [Broker::start(), Broker::start()];
    let gateway = start(&route(5, &[brokers[0].node(), brokers[1].node()]), &json!({}));
    for round in 0..3 {
        for client in 0..12 {
            let id = format!("client-{client}");
            let sent = ["-t", "t", "-m", "x", "-q", "1", "-i", &id];
            assert!(run("mosquitto_pub", &gateway, "mqttv5", &sent).is_some(), "{id} in round {round}");
        }
    }
    let seen = |broker: &Broker| (0..12).filter(|client| broker.has_seen(&format!("client-{client}"))).count();
    let (first, second) = (seen(&brokers[0]), seen(&brokers[1]));
    assert!(first > 0 && second > 0 && first + second == 12, "{first} and {second}");
}

/// A service that sends back what it gets.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let addr = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut from = stream.try_clone().expect("a handle");
                let _ = std::io::copy(&mut from, &mut stream);
            });
        }
    });
    addr
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("connect");
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    stream.set_nodelay(true).expect("no delay");
    stream
}

#[test]
fn what_the_plugin_has_read_reaches_the_broker() {
    let gateway = start(&route(4, &[echo()]), &json!({}));
    let packet = b"\x10\x0f\0\x04MQTT\x04\x02\0\x3c\0\x03abcmore";
    let mut stream = connect(gateway.addrs[1]);
    for byte in packet {
        stream.write_all(&[*byte]).expect("send");
    }
    let mut back = vec![0; packet.len()];
    stream.read_exact(&mut back).expect("receive");
    assert_eq!(back, packet);
}

#[test]
fn what_is_no_mqtt_is_closed() {
    let gateway = start(&route(4, &[echo()]), &json!({ "timeouts": { "handshake": 0.3 } }));
    let endless = [b"\x10\xff\xff\x7f\0\x04MQTT\x05\x02\0\x3c\xff\xff\x7f".to_vec(), vec![0; 128 << 10]].concat();
    let cases: [(&[u8], &str); 4] =
        [(b"GET / HTTP/1.1\r\n\r\n", "400"), (b"\x10\x02\0\x04", "400"), (&endless, "400"), (b"\x10", "408")];
    for (sent, status) in cases {
        let before = refused(&gateway, status);
        let mut stream = connect(gateway.addrs[1]);
        let _ = stream.write_all(sent);
        let mut back = Vec::new();
        let _ = stream.read_to_end(&mut back);
        assert!(back.is_empty(), "{back:?}");
        wait_until("the refusal to be counted", LIMIT, || (refused(&gateway, status) > before).then_some(()));
    }
}
