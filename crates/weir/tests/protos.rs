//! Descriptions of gRPC services: a kind of resource that is checked and kept wherever resources are.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, EtcdCluster, LIMIT, Start, wait_until, weir};
use crate::listings::contains;

const ECHO: &str = "syntax = \"proto3\";\npackage echo;\nimport \"google/protobuf/empty.proto\";\n\
                    message Say { string text = 1; }\n\
                    service Echo { rpc Say(Say) returns (google.protobuf.Empty); }\n";

/// `message A {}` in a file `a.proto`, as protoc writes it.
const SET: &str = "Cg4KB2EucHJvdG8iAwoBQQ==";

fn proto(content: &str) -> String {
    json!({ "content": content }).to_string()
}

#[test]
fn they_are_made_read_and_deleted() {
    let data = tempfile::tempdir().expect("create a folder");
    let mut gateway = Start::stored().data_dir(data.path()).start();
    assert_eq!(gateway.must("GET", "protos", ""), json!({ "list": [], "total": 0 }));
    let (status, answer) = gateway.ask("PUT", "protos/echo", &proto(ECHO));
    let expected = json!({ "key": "/apisix/protos/echo", "value": { "id": "echo", "content": ECHO } });
    assert!(status == 201 && contains(&answer, &expected), "{answer}");
    let more = json!({ "content": SET, "name": "n", "desc": "d", "labels": { "a": "b" } }).to_string();
    let (status, answer) = gateway.ask("PUT", "protos/echo", &more);
    assert!(status == 200 && answer["value"]["content"] == SET, "{answer}");
    let (status, answer) = gateway.ask("POST", "protos", &proto(ECHO));
    assert!(status == 201 && answer["value"]["id"].as_str().is_some_and(|id| id.len() == 20), "{answer}");
    assert_eq!(gateway.must("GET", "protos", "")["total"], 2);
    assert_eq!(gateway.must("GET", "protos/echo", "")["modifiedIndex"], 2);
    assert!(gateway.must("GET", "schema/proto", "")["properties"]["content"].is_object());
    let key = format!("X-API-KEY: {ADMIN_KEY}\r\n");
    assert_eq!(gateway.send_to_admin("POST", "schema/validate/protos", &key, &proto(ECHO)).status, 200);
    let (status, answer) = gateway.ask("PATCH", "protos/echo", &proto(ECHO));
    assert_eq!((status, answer), (405, json!({ "error_msg": "not supported `PATCH` method for proto" })));

    // They are there after a start, and in the whole configuration.
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    let gateway = Start::stored().data_dir(data.path()).start();
    assert_eq!(gateway.must("GET", "protos/echo", "")["value"]["labels"], json!({ "a": "b" }));
    let mut config = gateway.must("GET", "configs", "");
    assert_eq!(config["protos"].as_array().map(Vec::len), Some(2));
    assert_eq!(gateway.ask("POST", "configs/validate", &json!({ "protos": config["protos"] }).to_string()).0, 200);
    config["protos"][0]["content"] = "message".into();
    config["protos_conf_version"] = 100.into();
    let put = |config: &Value| {
        let fields = format!("X-API-KEY: {ADMIN_KEY}\r\nX-Digest: d\r\n");
        gateway.send_to_admin("PUT", "configs", &fields, &config.to_string())
    };
    let refused = put(&config);
    let message = refused.json()["error_msg"].as_str().map(str::to_owned).unwrap_or_default();
    assert!(
        refused.status == 400 && message.contains("protos at index 0") && message.contains("no .proto file"),
        "{message}"
    );
    config["protos"] = json!([{ "id": "one", "content": ECHO }]);
    assert_eq!(put(&config).status, 202);
    assert_eq!(gateway.must("GET", "protos", "")["total"], 1);
    assert_eq!(gateway.must("DELETE", "protos/one", ""), json!({ "key": "/apisix/protos/one", "deleted": "1" }));
    assert_eq!(gateway.ask("DELETE", "protos/one", ""), (404, json!({ "message": "Key not found" })));
}

#[test]
fn what_cannot_be_compiled_is_refused() {
    let gateway = Start::stored().start();
    let long = "/".repeat((1 << 20) + 1);
    let cases = [
        (json!({}), "invalid configuration: property \"content\" is required"),
        (
            json!({ "content": 1 }),
            "invalid configuration: property \"content\" validation failed: wrong type: expected string, got number",
        ),
        (
            json!({ "content": "" }),
            "invalid configuration: property \"content\" validation failed: string too short, expected at least 1, got 0",
        ),
        (
            json!({ "content": long }),
            "invalid configuration: property \"content\" validation failed: string too long, expected at most 1048576",
        ),
        (json!({ "content": ECHO, "foo": 1 }), "invalid configuration: additional properties forbidden, found foo"),
        (json!({ "content": "hello {" }), "invalid configuration: content: no .proto file: 1:1: "),
        (json!({ "content": ECHO.replace("Say {", "Sai {") }), "invalid configuration: content: no .proto file: 5:"),
        (
            json!({ "content": "syntax = \"proto3\";\nimport \"other.proto\";" }),
            "invalid configuration: content: no .proto file: import 'other.proto' not found",
        ),
        (json!({ "content": "AAAA" }), "invalid configuration: content: neither a .proto file ("),
    ];
    for (body, expected) in cases {
        for (method, path) in [("PUT", "protos/1"), ("POST", "protos")] {
            let (status, answer) = gateway.ask(method, path, &body.to_string());
            let message = answer["error_msg"].as_str().unwrap_or_default();
            assert!(status == 400 && message.starts_with(expected), "{message}\n{expected}");
        }
    }
    // A proto that a plugin refers to has to be there.
    let route = r#"{"uri":"/","plugins":{"grpc-transcode":{"proto_id":"1","service":"a","method":"b"}}}"#;
    let (status, answer) = gateway.ask("PUT", "routes/1", route);
    let expected = json!({ "error_msg": "failed to fetch proto info by proto id [1], response code: 404" });
    assert_eq!((status, answer), (400, expected));
    assert_eq!(gateway.must("GET", "protos", "")["total"], 0);
}

#[test]
fn a_rules_file_has_them() {
    let item = json!({ "id": "echo", "content": ECHO });
    let route = json!({ "id": "r", "uri": "/a", "plugins": { "mocking": { "response_example": "m" } } });
    let rules = |item: &Value| json!({ "routes": [route], "protos": [item] });
    let gateway =
        Start::new(rules(&item)).variable("WEIR_ADMIN_KEY", ADMIN_KEY).argument("--admin=127.0.0.1:0").start();
    assert_eq!(gateway.must("GET", "protos/echo", "")["value"], item);
    gateway.reload(rules(&json!({ "id": "echo", "content": "message" })));
    gateway.logged("protos[0].content: no .proto file");
    assert_eq!(gateway.must("GET", "protos/echo", "")["value"], item);
    gateway.reload(rules(&json!({ "id": "other", "content": SET })));
    wait_until("the new file to be told", LIMIT, || (gateway.ask("GET", "protos/other", "").0 == 200).then_some(()));
    let file = gateway.file("strict.yaml");
    fs::write(&file, "routes: []\nprotos: [{id: 1, content: x}]\n#END\n").expect("write a file");
    let (code, out, err) = weir(&["check", &file.display().to_string()]);
    assert!(code == 1 && err.contains("protos[0].content"), "{code}: {out}{err}");
}

#[test]
fn they_lie_in_etcd_where_apisix_looks_for_them() {
    let cluster = EtcdCluster::start(1);
    cluster.put("protos/old", proto(ECHO));
    let hosts = cluster.urls().join(", ");
    let settings = format!("deployment: {{config_provider: etcd, etcd: {{host: [{hosts}]}}}}");
    let gateway = Start::stored().settings(settings).start();
    assert_eq!(gateway.must("GET", "protos/old", "")["value"]["content"], ECHO);
    gateway.must("PUT", "protos/new", &proto(SET));
    assert_eq!(cluster.value("protos/new").map(|value| value["content"].clone()), Some(SET.into()));
}
