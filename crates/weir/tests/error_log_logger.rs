//! error-log-logger: messages of the gateway's own log, as collectors receive them.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Authority, Connection, Gateway, Kafka, Kind, LIMIT, Origin, Receiver, Reload, free_port, wait_until,
};
use crate::loggers::{TlsServer, extend, whole};
use crate::reports::collector;

/// The message of each SIGUSR1, at the level of INFO.
const OPENED: &str = "log files were opened again";

fn rules(metadata: Value) -> Value {
    let mut own = json!({ "id": "error-log-logger", "level": "INFO", "inactive_timeout": 1 });
    extend(&mut own, metadata);
    json!({
        "routes": [{ "uri": "/*", "plugins": { "mocking": { "response_example": "hello" } } }],
        "plugin_metadata": [own],
    })
}

fn to(receiver: &Receiver) -> Value {
    json!({ "host": "127.0.0.1", "port": receiver.port() })
}

/// The text of a byte stream, once it contains this.
fn await_text(receiver: &Receiver, text: &str) -> String {
    wait_until(&format!("{text:?} to arrive"), LIMIT, || {
        let all = receiver.texts().concat();
        (all.contains(text) && all.ends_with('\n')).then_some(all)
    })
}

fn await_opened(gateway: &Gateway, times: usize) {
    wait_until("the log files to be opened again", LIMIT, || {
        (gateway.stderr().matches(OPENED).count() >= times).then_some(())
    });
}

/// Waits until no worker has the configuration before any more, which then reports nothing.
fn settle() {
    std::thread::sleep(Duration::from_secs(1));
}

#[test]
fn lines_go_to_a_server_from_a_level_on() {
    let [infos, errors, others] = [(); 3].map(|()| Receiver::tcp());
    let gateway = Gateway::start(rules(json!({ "tcp": to(&infos) })));
    gateway.signal(Signal::USR1);
    let text = await_text(&infos, OPENED);
    let line = text.lines().find(|line| line.contains(OPENED)).expect("a line");
    assert!(line.contains(" INFO "), "{line}");
    gateway.logged(line);
    // The same place, from a higher level on. Then no place at all.
    assert_eq!(gateway.reload(rules(json!({ "tcp": to(&errors), "level": "ERR" }))), Reload::Applied);
    settle();
    let before = infos.texts().concat().len();
    gateway.signal(Signal::USR1);
    await_opened(&gateway, 2);
    assert_eq!(gateway.reload("routes: 5"), Reload::Rejected);
    let text = await_text(&errors, "ERROR");
    assert!(text.lines().all(|line| line.contains("ERROR")), "{text}");
    let mut without = rules(json!({ "tcp": to(&errors) }));
    without.as_object_mut().expect("an object").remove("plugin_metadata");
    assert_eq!(gateway.reload(without), Reload::Applied);
    settle();
    let count = errors.texts().concat().len();
    assert_eq!(gateway.reload("routes: 6"), Reload::Rejected);
    assert_eq!(gateway.reload(rules(json!({ "tcp": to(&others) }))), Reload::Applied);
    gateway.signal(Signal::USR1);
    await_text(&others, OPENED);
    assert_eq!(errors.texts().concat().len(), count, "nobody asked for it any more");
    assert!(!infos.texts().concat().get(before..).is_some_and(|more| more.contains(OPENED)));
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn the_older_form_and_tls() {
    let [plain, hello] = [(); 2].map(|()| Receiver::tcp());
    let gateway = Gateway::start(rules(to(&plain)));
    gateway.signal(Signal::USR1);
    await_text(&plain, OPENED);
    // The name stands in the client's first message, before anything is encrypted.
    for form in ["older", "newer"] {
        let mut tcp = to(&hello);
        let name = format!("{form}.test");
        extend(&mut tcp, json!({ "tls": true, "tls_server_name": name }));
        let metadata = if form == "older" { tcp } else { json!({ "tcp": tcp }) };
        assert_eq!(gateway.reload(rules(metadata)), Reload::Applied);
        gateway.signal(Signal::USR1);
        wait_until("a message of TLS", LIMIT, || hello.texts().concat().contains(&name).then_some(()));
    }
    assert!(!hello.texts().concat().contains(OPENED));
    let server = TlsServer::start(&Authority::new().certificate(Kind::P256, &["localhost"]));
    let tcp = json!({ "host": "localhost", "port": server.port, "tls": true });
    assert_eq!(gateway.reload(rules(json!({ "tcp": tcp }))), Reload::Applied);
    gateway.signal(Signal::USR1);
    wait_until("a line over TLS", LIMIT, || server.output().contains(OPENED).then_some(()));
}

#[test]
fn collectors_get_what_they_take() {
    let (collector, _) = collector(200);
    let uri = format!("http://{}", collector.node());
    let bodies = || collector.complete().iter().map(|one| String::from_utf8_lossy(&one.body).into_owned()).collect();
    // Signals that come together are one.
    let await_opened = |gateway: &Gateway, begin: &str| {
        wait_until("a batch", LIMIT, || {
            gateway.signal(Signal::USR1);
            std::thread::sleep(Duration::from_millis(50));
            let mut bodies: Vec<String> = bodies();
            bodies.retain(|body| body.starts_with(begin));
            bodies.iter().any(|body| body.contains(OPENED)).then_some(bodies)
        })
    };
    let pairs = json!({ "batch_max_size": 2, "inactive_timeout": 60 });
    let with = |mut metadata: Value| {
        extend(&mut metadata, pairs.clone());
        rules(metadata)
    };
    let skywalking =
        json!({ "endpoint_addr": format!("{uri}/v3/logs"), "service_name": "s", "service_instance_name": "i" });
    let gateway = Gateway::start(with(json!({ "skywalking": skywalking })));
    for body in await_opened(&gateway, "[") {
        let logs = whole(body.as_bytes()).remove(0);
        let logs = logs.as_array().expect("a list");
        assert_eq!(logs.len(), 2);
        for log in logs {
            let mut log = log.clone();
            assert!(log["body"]["text"]["text"].take().as_str().is_some_and(|line| line.contains(" INFO ")), "{body}");
            let wanted =
                json!({ "service": "s", "serviceInstance": "i", "endpoint": "", "body": { "text": { "text": null } } });
            assert_eq!(log, wanted);
        }
    }
    let last = collector.last();
    assert_eq!((last.target.as_str(), last.field("content-type")), ("/v3/logs", Some("application/json")));
    drop(gateway);
    let clickhouse = json!({ "endpoint_addr": uri, "user": "u", "password": "p", "database": "d", "logtable": "t" });
    let gateway = Gateway::start(with(json!({ "clickhouse": clickhouse })));
    let insert = await_opened(&gateway, "INSERT").remove(0);
    let rows = whole(insert.strip_prefix("INSERT INTO t FORMAT JSONEachRow ").expect("a statement").as_bytes());
    assert!(rows.len() == 2 && rows.iter().all(|row| row["data"].is_string()), "{insert}");
    let names = ["x-clickhouse-user", "x-clickhouse-key", "x-clickhouse-database"];
    let last = collector.last();
    assert_eq!(names.map(|name| last.field(name)), [Some("u"), Some("p"), Some("d")]);
    wait_until("both to count as sent", LIMIT, || {
        (gateway.metric("weir_reports_total", &[("outcome", "sent")]) >= 2.0).then_some(())
    });
}

#[test]
fn messages_of_a_topic() {
    let kafka = Kafka::start(1, "messages");
    let (host, port) = kafka.brokers[0].clone();
    let to = json!({ "brokers": [{ "host": host, "port": port }], "kafka_topic": "messages", "key": "one", "required_acks": -1 });
    let gateway = Gateway::start(rules(json!({ "kafka": to })));
    gateway.signal(Signal::USR1);
    let message = wait_until("a message", LIMIT, || {
        let mut all = kafka.messages().into_iter();
        all.find(|message| message["value"].as_str().is_some_and(|value| value.contains(OPENED)))
    });
    assert_eq!(message["key"], "one");
    let line = whole(message["value"].as_str().expect("a text").as_bytes()).remove(0);
    gateway.logged(line.as_str().expect("a line"));
}

#[test]
fn a_collector_that_is_away_or_slow() {
    let nobody =
        json!({ "tcp": { "host": "127.0.0.1", "port": free_port() }, "name": "my messages", "batch_max_size": 1 });
    let with = |more: Value| {
        let mut metadata = nobody.clone();
        extend(&mut metadata, more);
        rules(metadata)
    };
    let gateway = Gateway::start(with(json!({ "max_retry_count": 1, "retry_delay": 0 })));
    gateway.signal(Signal::USR1);
    let plugin = "error-log-logger";
    wait_until("dropped messages", LIMIT, || {
        (gateway.metric("weir_reports_total", &[("plugin", plugin), ("outcome", "dropped")]) >= 2.0).then_some(())
    });
    assert!(gateway.metric("weir_reports_retries_total", &[("plugin", plugin)]) >= 2.0);
    assert_eq!(gateway.get("/").status, 200);
    // The message that the collector is away is one as well, and is not reported for ever.
    let log = gateway.logged("reports are not taken");
    let told = log.lines().filter(|line| line.contains("reports are not taken") && line.contains("my messages"));
    assert_eq!(told.count(), 1, "{log}");
    // A retry that is far away keeps all messages.
    let dropped =
        |gateway: &Gateway| gateway.metric("weir_reports_total", &[("plugin", plugin), ("outcome", "dropped")]);
    drop(gateway);
    let gateway = Gateway::start(with(json!({ "max_retry_count": 1, "retry_delay": 60 })));
    gateway.logged("reports are not taken");
    assert!(dropped(&gateway) < 1.0);
    drop(gateway);
    // An answer that does not come.
    let silent = Origin::scripted(Connection::await_close);
    let clickhouse = json!({ "endpoint_addr": format!("http://{}", silent.node()), "user": "u", "password": "p",
                             "database": "d", "logtable": "t" });
    let gateway = Gateway::start(rules(json!({ "clickhouse": clickhouse, "timeout": 1 })));
    wait_until("dropped messages", LIMIT, || (dropped(&gateway) >= 1.0).then_some(()));
    gateway.logged("timeout");
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn batches_follow_the_metadata() {
    let [aged, waiting] = [(); 2].map(|()| Receiver::tcp());
    let gateway = |receiver: &Receiver, more: Value| {
        let mut metadata = json!({ "tcp": to(receiver), "inactive_timeout": 60 });
        extend(&mut metadata, more);
        let gateway = Gateway::start(rules(metadata));
        gateway.signal(Signal::USR1);
        gateway
    };
    let _waits = gateway(&waiting, json!({}));
    let _sends = gateway(&aged, json!({ "buffer_duration": 1 }));
    await_text(&aged, OPENED);
    // A second more than without the setting.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(waiting.texts().concat(), "");
}
