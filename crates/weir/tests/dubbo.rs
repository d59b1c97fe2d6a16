//! Services of Apache Dubbo: scripted nodes, and the real program where it is installed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{Connection, Full, Gateway, Origin, Process, Response, Start, free_port, program, repository};

/// Reads a call: its number and its lines. `None` when there is no more.
fn call(connection: &mut Connection) -> Option<([u8; 8], Vec<String>)> {
    let head = connection.exactly(16).ok()?;
    assert_eq!(head[..4], [0xda, 0xbb, 0xc6, 0]);
    let length = u32::from_be_bytes(head[12..].try_into().expect("four bytes")) as usize;
    let text = String::from_utf8(connection.exactly(length).expect("the call")).expect("text");
    Some((head[4..12].try_into().expect("eight bytes"), text.lines().map(str::to_owned).collect()))
}

fn message(flags: u8, status: u8, number: [u8; 8], body: &str) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[0xda, 0xbb, flags, status][..], &number, &length, body.as_bytes()].concat()
}

fn rules(node: &str, conf: Value) -> Value {
    let mut conf = conf;
    for (name, value) in [("service_name", "org.shop.Orders"), ("method", "find")] {
        if conf[name].is_null() {
            conf[name] = json!(value);
        }
    }
    json!({ "routes": [{ "id": "all", "uri": "/*", "plugins": { "http-dubbo": conf },
                         "upstream": { "retries": 0, "nodes": { (node): 1 } } }] })
}

fn ask(gateway: &Gateway, fields: &str, body: &str) -> Response {
    let length = body.len();
    gateway
        .client()
        .request(format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n{fields}\r\n{body}"))
}

#[test]
fn methods_are_called() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&calls);
    let node = Origin::scripted(move |connection| {
        while let Some((number, lines)) = call(connection) {
            let answer = match lines.get(5).map(String::as_str) {
                Some("\"null\"") => "2\n",
                Some("\"throws\"") => "0\n{\"message\":\"no\"}\n",
                Some("\"more\"") => "4\n[1]\n{\"dubbo\":\"2.0.2\"}\n",
                _ => "1\n{\"id\":1}\n",
            };
            told.lock().expect("the list").push(lines);
            // A heartbeat comes between.
            connection.send(message(0xe6, 0, [9; 8], "null\n"));
            connection.send(message(6, 20, number, answer));
        }
    });
    let conf = json!({ "service_version": "1.2.3", "params_type_desc": "Ljava/lang/Long;" });
    let gateway = Gateway::start(rules(&node.node(), conf));
    let response = ask(&gateway, "", r#"[1, "a\"b"]"#);
    assert_eq!((response.status, response.text().as_str()), (200, "{\"id\":1}"));
    assert_eq!(response.field("content-type"), Some("application/json"));
    let lines = calls.lock().expect("the list").remove(0);
    let begin = ["\"2.0.2\"", "\"org.shop.Orders\"", "\"1.2.3\"", "\"find\"", "\"Ljava/lang/Long;\""];
    assert_eq!(
        (&lines[..5], &lines[5..]),
        (&begin.map(str::to_owned)[..], &["1", "\"a\\\"b\"", "{}"].map(str::to_owned)[..])
    );
    for (body, status, text) in
        [("[\"null\"]", 200, ""), ("[\"throws\"]", 500, ""), ("[\"more\"]", 200, "[1]"), ("", 200, "{\"id\":1}")]
    {
        let response = ask(&gateway, "", body);
        assert_eq!((response.status, response.text().as_str()), (status, text), "{body}");
    }
    gateway.logged("the call has failed");
    calls.lock().expect("the list").clear();
    // Bodies that are serialized, by the configuration or by a field.
    for (more, fields, body, sent) in [
        (json!({ "serialized": true }), "", "1\n2", vec!["1", "2"]),
        (json!({ "serialized": true, "serialization_header_key": "X-S" }), "", "[3]", vec!["3"]),
        (json!({ "serialization_header_key": "X-S" }), "X-S: true\r\n", "4\n", vec!["4"]),
    ] {
        let gateway = Gateway::start(rules(&node.node(), more));
        assert_eq!(ask(&gateway, fields, body).status, 200);
        let lines = calls.lock().expect("the list").remove(0);
        assert_eq!(
            (&lines[2], &lines[5..lines.len() - 1]),
            (&"\"0.0.0\"".to_owned(), &sent.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()[..])
        );
    }
}

#[test]
fn nodes_that_lie_or_are_slow() {
    type Script = fn(&mut Connection, [u8; 8]) -> bool;
    let scripts: [(Script, u16, &str); 8] = [
        (|connection, _| connection.send("HTTP/1.1 200 OK\r\n\r\n"), 502, "none of Dubbo"),
        (|connection, number| connection.send(message(6, 20, number, "7\n")), 502, "none of fastjson"),
        (|connection, number| connection.send(message(6, 20, number, &"x".repeat(2000))), 502, "max_resp_body_size"),
        (|connection, number| connection.send(&message(6, 20, number, "1\n2\n")[..17]), 502, "closed the connection"),
        (|_, _| true, 502, "closed the connection"),
        (|connection, _| connection.exactly(1).is_ok(), 504, "in time"),
        // An answer to another call is none to this one.
        (
            |connection, _| connection.send(message(6, 20, [7; 8], "1\n2\n")) && connection.exactly(1).is_ok(),
            504,
            "in time",
        ),
        (|connection, number| connection.send(message(6, 40, number, "\"no service\"\n")), 500, ""),
    ];
    for (script, status, says) in scripts {
        let node = Origin::scripted(move |connection| {
            if let Some((number, _)) = call(connection) {
                script(connection, number);
            }
        });
        let gateway = Gateway::start(rules(&node.node(), json!({ "read_timeout": 300, "max_resp_body_size": 1000 })));
        let response = ask(&gateway, "", "[]");
        assert_eq!(response.status, status, "{says}");
        assert!(response.field("x-weir-error").unwrap_or_default().contains(says), "{says}");
    }
    // A node whose queue is full, and one that takes nothing.
    let full = Full::bind();
    let gateway = Gateway::start(rules(&full.node(), json!({ "connect_timeout": 200 })));
    assert_eq!(ask(&gateway, "", "[]").status, 504);
    // A node that is there, and reads nothing.
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a port");
    let node = deaf.local_addr().expect("its address").to_string();
    let rules = rules(&node, json!({ "send_timeout": 300, "serialized": true }));
    let gateway =
        Start::new(rules).settings(json!({ "limits": { "buffered_body": "32MiB", "body_size": "32MiB" } })).start();
    assert_eq!(ask(&gateway, "", &"1".repeat(16 << 20)).status, 504);
}

#[test]
fn another_node_is_called_where_one_is_away() {
    let node = Origin::scripted(|connection| {
        while let Some((number, _)) = call(connection) {
            connection.send(message(6, 20, number, "1\n5\n"));
        }
    });
    let mut rules = rules(&node.node(), json!({}));
    rules["routes"][0]["upstream"] = json!({ "nodes": { (node.node()): 1, "127.0.0.1:1": 1 } });
    let gateway = Gateway::start(rules);
    for _ in 0..4 {
        assert_eq!(ask(&gateway, "", "[]").text(), "5");
    }
}

/// A provider in Java with Dubbo's own code.
const PROVIDER: &str = r#"
import java.util.*;
import org.apache.dubbo.config.*;

public class Provider {
    public interface Orders { Map<String, Object> find(Long id, String name); String fail(); void nothing(); }
    public static class Shop implements Orders {
        public Map<String, Object> find(Long id, String name) {
            Map<String, Object> found = new TreeMap<>();
            found.put("id", id + 1);
            found.put("name", name);
            return found;
        }
        public String fail() { throw new IllegalStateException("sold out"); }
        public void nothing() {}
    }
    public static void main(String[] arguments) throws Exception {
        ServiceConfig<Orders> service = new ServiceConfig<>();
        service.setApplication(new ApplicationConfig("shop"));
        service.getApplication().setQosEnable(false);
        service.setRegistry(new RegistryConfig("N/A"));
        ProtocolConfig protocol = new ProtocolConfig("dubbo", Integer.parseInt(arguments[0]));
        protocol.setHost("127.0.0.1");
        protocol.setSerialization("fastjson");
        service.setProtocol(protocol);
        service.setInterface(Orders.class);
        service.setRef(new Shop());
        service.setVersion("1.0.0");
        service.export();
        System.out.println("ready");
        Thread.currentThread().join();
    }
}
"#;

#[test]
fn the_real_dubbo_is_called() {
    let libs = repository().join("target/test-tools/dubbo/libs");
    if !libs.with_file_name("whole").exists() {
        return println!("Dubbo is not installed: tools/test-peers");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("Provider.java");
    fs::write(&source, PROVIDER).expect("write the source");
    let port = free_port();
    let classes = format!("{}/*:{}", libs.display(), folder.path().display());
    let mut compiler = Command::new(program("javac"));
    compiler.arg("-cp").arg(&classes).arg("-d").arg(folder.path()).arg(&source);
    assert!(compiler.status().expect("javac starts").success());
    let mut command = Command::new(program("java"));
    command.args(["--add-opens", "java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/java.math=ALL-UNNAMED"]);
    command.arg("-cp").arg(&classes).args(["Provider", &port.to_string()]).current_dir(folder.path());
    command.env("HOME", folder.path());
    let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut output = BufReader::new(process.child().stdout.take().expect("its output"));
    let mut seen = String::new();
    while !seen.ends_with("ready\n") {
        assert!(output.read_line(&mut seen).expect("a line") > 0, "{seen}");
    }
    let node = format!("127.0.0.1:{port}");
    for (method, types, body, status, text) in [
        ("find", "Ljava/lang/Long;Ljava/lang/String;", "[1, \"sh\\\"irt\"]", 200, "{\"id\":2,\"name\":\"sh\\\"irt\"}"),
        ("fail", "", "", 500, ""),
        ("nothing", "", "[]", 200, ""),
        ("missing", "", "[]", 500, ""),
    ] {
        let conf = json!({ "service_name": "Provider$Orders", "service_version": "1.0.0", "method": method, "params_type_desc": types });
        let gateway = Gateway::start(rules(&node, conf));
        let response = ask(&gateway, "", body);
        assert_eq!((response.status, response.text().as_str()), (status, text), "{method}");
    }
}
