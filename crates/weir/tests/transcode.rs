//! REST on a gRPC service (`grpc-transcode`), with Debian's grpcio as the service: it gives messages back.

use serde_json::{Value, json};
use weir_config::Proto;

use crate::grpc::Service;
use crate::harness::{Gateway, H2Client, Response, Start, h2_origin};
use crate::signatures::base64;

const PROTO: &str = r#"
syntax = "proto3";
package test;
import "google/api/annotations.proto";

service T {
  rpc Unary(All) returns (All) {
    option (google.api.http) = {
      patch: "/v1/{message.text=shelves/*}/books/{i32}"
      body: "message"
      response_body: "message"
      additional_bindings { get: "/v1/{text=**}:get" }
    };
  }
  rpc Fail(M) returns (M);
  rpc Details(M) returns (M);
  rpc None(M) returns (M);
}

message M { string name = 1; }
message All {
  string text = 1;
  int32 i32 = 2;
  int64 i64 = 3;
  uint64 u64 = 4;
  double d = 5;
  float f = 6;
  bool b = 7;
  bytes raw = 8;
  Color color = 9;
  All message = 10;
  repeated int64 list = 11;
  map<string, int64> map = 12;
  map<bool, M> by_bool = 13;
  oneof one { string a = 14; int32 c = 15; }
  optional int32 maybe = 16;
  sint64 snake_case = 17;
}
enum Color { RED = 0; BLUE = 2; }
"#;

fn route(method: &str, uri: &str, conf: &Value) -> Value {
    let mut plugin = json!({ "proto_id": "p", "service": "test.T", "method": method });
    for (name, value) in conf.as_object().into_iter().flatten() {
        plugin[name] = value.clone();
    }
    json!({ "id": uri.replace(['/', '*'], "_"), "uri": uri, "upstream_id": "u", "plugins": { "grpc-transcode": plugin } })
}

fn serving(content: &str, service: &Service, routes: &[Value]) -> Gateway {
    Start::new(json!({
        "routes": routes,
        "protos": [{ "id": "p", "content": content }],
        "upstreams": [{ "id": "u", "scheme": "grpc", "nodes": { &service.node: 1 } }],
    }))
    .http2()
    .start()
}

fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    let len = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
    )
}

/// The answer over each protocol, which is the same.
fn ask(gateway: &Gateway, request: &str) -> Response {
    let [one, other] = [gateway.client().request(request), H2Client::connect(gateway.addr).request(request)];
    assert_eq!((one.status, one.text()), (other.status, other.text()), "{one:?} {other:?}");
    one
}

#[test]
fn messages_go_there_and_back() {
    let service = Service::start();
    let no_defaults = json!({ "pb_option": ["no_default_values"] });
    let gateway = serving(PROTO, &service, &[route("Unary", "/echo", &no_defaults)]);
    let all = json!({
        "text": "ü\n", "i32": -5, "i64": i64::MIN, "u64": u64::MAX, "d": 0.1, "f": 0.1, "b": true, "raw": "AP/+",
        "color": "BLUE", "message": { "text": "in", "message": {} }, "list": [1, 0, -1], "map": { "a": 1, "": 2 },
        "by_bool": { "false": {}, "true": { "name": "x" } }, "a": "", "maybe": 0, "snake_case": -7,
    });
    let answer = ask(&gateway, &post("/echo", &all));
    assert_eq!((answer.status, answer.field("content-type")), (200, Some("application/json")), "{answer:?}");
    assert_eq!(answer.json(), all);
    // The same values in other words.
    let cases = [
        (json!({ "i64": "12", "u64": "#18446744073709551615" }), json!({ "i64": 12, "u64": u64::MAX })),
        (json!({ "i64": "#-0x10", "i32": 4.0 }), json!({ "i64": -16, "i32": 4 })),
        (json!({ "color": 2, "b": "1", "d": "1e3" }), json!({ "color": "BLUE", "b": true, "d": 1000.0 })),
        (json!({ "color": 7, "d": "-Infinity", "f": "NaN" }), json!({ "color": 7, "d": "-Infinity", "f": "NaN" })),
        (json!({ "raw": "-_8", "snakeCase": 1, "text": 5 }), json!({ "raw": "+/8=", "snake_case": 1, "text": "5" })),
        (json!({ "list": 3, "byBool": { "1": {} } }), json!({ "list": [3], "by_bool": { "true": {} } })),
        (json!({ "i32": null, "unknown": {}, "list": [] }), json!({})),
    ];
    for (sent, expected) in cases {
        let answer = ask(&gateway, &post("/echo", &sent));
        assert_eq!((answer.status, answer.json()), (200, expected), "{sent}");
    }
    for (sent, says) in [
        (json!({ "i64": 9_223_372_036_854_775_808_u64 }), "i64: expected an integer of 64 bits"),
        (json!({ "u64": -1 }), "u64: expected an integer of 64 bits, 0 or more"),
        (json!({ "u64": "--1" }), "u64: expected"),
        (json!({ "i32": 1.5 }), "i32: expected"),
        (json!({ "f": 1e39 }), "f: expected a number"),
        (json!({ "b": 1 }), "b: expected true or false"),
        (json!({ "raw": "*" }), "raw: expected a text in base64"),
        (json!({ "color": "GREEN" }), "color: expected a name or number of test.Color"),
        (json!({ "message": [] }), "message: expected an object"),
        (json!({ "list": [1, "x"] }), "list.1: expected an integer"),
        (json!({ "map": { "a": "x" } }), "map.a: expected an integer"),
        (json!({ "by_bool": { "x": {} } }), "by_bool.x: expected true or false"),
        (json!({ "a": "x", "c": 1 }), "c: expected one field of one"),
        (json!({ "text": [] }), "text: expected a text"),
    ] {
        let answer = ask(&gateway, &post("/echo", &sent));
        assert!(answer.status == 400 && answer.text().contains(says), "{sent}: {answer:?}");
    }
    // Over several writes and reads.
    let long = json!({ "text": "x".repeat(300_000) });
    assert_eq!(gateway.client().request(post("/echo", &long)).json(), long);
    let head = gateway.client().request("HEAD /echo?text=a HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!((head.status, &*head.text()), (200, ""));
}

#[test]
fn values_are_written_in_the_form_that_was_chosen() {
    let service = Service::start();
    let old = "syntax = \"proto2\";\npackage test;\nservice T { rpc Unary(M) returns (M); }\n\
        message M { optional int32 n = 1 [default = 7]; repeated int32 list = 2; optional M m = 3; }\n";
    let forms = [
        ("/plain", json!(["enum_as_name"])),
        ("/value", json!(["enum_as_value", "no_default_values"])),
        ("/string", json!(["int64_as_string", "use_default_metatable"])),
        ("/hex", json!(["int64_as_hexstring", "no_default_values"])),
        ("/number", json!(["int64_as_number", "no_default_values", "disable_hooks"])),
        ("/all", json!(["use_default_values"])),
    ];
    let routes = forms.map(|(uri, options)| route("Unary", uri, &json!({ "pb_option": options })));
    let gateway = serving(PROTO, &service, &routes);
    let ask = |path: &str, body: Value| ask(&gateway, &post(path, &body)).json();
    let mut defaults = json!({
        "text": "", "i32": 0, "i64": 0, "u64": 0, "d": 0.0, "f": 0.0, "b": false, "raw": "", "color": "RED", "list": [],
        "map": {}, "by_bool": {}, "snake_case": 0,
    });
    assert_eq!(ask("/plain", json!({})), defaults);
    defaults["maybe"] = 0.into();
    assert_eq!(ask("/all", json!({})).get("maybe"), None, "proto3 has it within a oneof");
    assert_eq!(ask("/value", json!({ "color": "BLUE" })), json!({ "color": 2 }));
    let large = json!({ "i64": -5_000_000_000_i64, "u64": 10, "list": [4_294_967_295_u64, 4_294_967_296_u64] });
    assert_eq!(ask("/number", large.clone()), large);
    let texts = json!({ "i64": "#-5000000000", "u64": 10, "list": [4_294_967_295_u64, "#4294967296"] });
    assert_eq!(ask("/string", large.clone()), texts);
    assert_eq!(
        ask("/string", texts),
        json!({ "i64": "#-5000000000", "u64": 10, "list": [4_294_967_295_u64, "#4294967296"] })
    );
    let hexadecimal = json!({ "i64": "#-0x12a05f200", "u64": 10, "list": [4_294_967_295_u64, "#0x100000000"] });
    assert_eq!(ask("/hex", large.clone()), hexadecimal);
    assert_eq!(ask("/number", hexadecimal), large);
    let gateway = serving(old, &service, &routes);
    for (path, expected) in [("/plain", json!({})), ("/all", json!({ "n": 7, "list": [] })), ("/value", json!({}))] {
        assert_eq!(self::ask(&gateway, &post(path, &json!({}))).json(), expected, "{path}");
    }
}

#[test]
fn a_status_is_one_of_http() {
    let service = Service::start();
    let shown = json!({ "show_status_in_body": true });
    let typed = json!({ "show_status_in_body": true, "status_detail_type": "test.M" });
    let gateway = serving(
        PROTO,
        &service,
        &[
            route("Fail", "/fail", &json!({})),
            route("Fail", "/fail/shown", &shown),
            route("Details", "/details", &json!({})),
            route("Details", "/details/shown", &shown),
            route("Details", "/details/typed", &typed),
            route("None", "/none", &shown),
        ],
    );
    let get = |path: &str| ask(&gateway, &format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
    for path in ["/fail", "/details"] {
        let answer = get(path);
        assert_eq!((answer.status, &*answer.text(), answer.field("grpc-status")), (404, "", Some("5")), "{answer:?}");
        assert!(answer.field("grpc-message").is_some() && answer.trailers.0.is_empty(), "{answer:?}");
    }
    assert!(get("/details").field("grpc-status-details-bin").is_some());
    assert_eq!(get("/fail/shown").json(), json!({ "error": { "code": 5, "message": "no such thing: ü" } }));
    let detail = json!({ "type_url": "type.googleapis.com/test.M", "value": "CgN3aHk=" });
    let expected = |detail: Value| json!({ "error": { "code": 5, "message": "gone", "details": [detail] } });
    assert_eq!(get("/details/shown").json(), expected(detail));
    assert_eq!(get("/details/typed").json(), expected(json!({ "name": "why" })));
    assert_eq!(get("/none").status, 501);
    gateway.await_metric("weir_grpc_calls_total", &[("status", "NOT_FOUND")], 12.0);
}

#[test]
fn a_deadline_is_the_time_of_the_call() {
    let origin = h2_origin([], |connection| while connection.news().is_some() {});
    let mut route = route("Unary", "/r", &json!({ "deadline": 200 }));
    route["upstream_id"] = Value::Null;
    route["upstream"] = json!({ "scheme": "grpc", "nodes": { origin.node(): 1 } });
    let protos = json!([{ "id": "p", "content": PROTO }]);
    let gateway = Start::new(json!({ "routes": [route], "protos": protos })).http2().start();
    let answer = ask(&gateway, "GET /r HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!((answer.status, answer.field("content-type")), (504, Some("application/json")), "{answer:?}");
}

#[test]
fn requests_are_those_of_the_option() {
    let service = Service::start();
    let conf = json!({ "pb_option": ["no_default_values"] });
    // Of a descriptor set the options are kept as well.
    let set = base64(&Proto::compile(PROTO).expect("a proto").encode_to_vec());
    for content in [PROTO, &set] {
        let gateway = serving(content, &service, &[route("Unary", "/v1/*", &conf)]);
        let body = r#"{"list": [1], "text": "not this"}"#;
        let head = "PATCH /v1/shelves/a%20b/books/7?text=x&i32=8 HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/json\r\n";
        let answer = ask(&gateway, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(answer.json(), json!({ "list": [1], "text": "shelves/a b" }), "the field of the answer");
        let get = |path: &str| ask(&gateway, &format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n")).json();
        let expected = json!({ "text": "a/b", "list": [1, 2], "message": { "b": true } });
        assert_eq!(get("/v1/a/b:get?list=1&list=2&message.b=true&text=c"), expected);
        // None of those: as without the option.
        assert_eq!(get("/v1/a/b?text=c"), json!({ "text": "c" }));
    }
}

#[test]
fn a_proto_that_changes_is_in_force_at_once() {
    let service = Service::start();
    let gateway = Start::stored().http2().start();
    let proto = |field: &str| {
        let text = format!(
            "syntax = \"proto3\";\npackage test;\nservice T {{ rpc Unary(M) returns (M); }}\nmessage M {{ {field}; }}\n"
        );
        json!({ "content": text }).to_string()
    };
    gateway.must("PUT", "protos/p", &proto("string one = 1"));
    gateway.must("PUT", "upstreams/u", &json!({ "scheme": "grpc", "nodes": { &service.node: 1 } }).to_string());
    gateway.must("PUT", "routes/r", &route("Unary", "/r", &json!({})).to_string().replace("\"id\":\"_r\",", ""));
    let get = |query: &str| ask(&gateway, &format!("GET /r?{query} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
    assert_eq!(get("one=a&two=b").json(), json!({ "one": "a" }));
    gateway.must("PUT", "protos/p", &proto("string two = 2"));
    assert_eq!(get("one=a&two=b").json(), json!({ "two": "b" }));
    // A method that a route needs cannot be taken out of a proto, and the proto cannot be deleted.
    let (status, answer) = gateway.ask("PUT", "protos/p", &proto("string two = 2").replace("Unary", "Other"));
    let message = answer["error_msg"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains("test.T has no such method"), "{answer}");
    let expected = json!({ "error_msg": "can not delete this proto, route [r] is still using it now" });
    assert_eq!(gateway.ask("DELETE", "protos/p", ""), (400, expected));
    assert_eq!(get("two=b").json(), json!({ "two": "b" }));
    gateway.must("DELETE", "routes/r", "");
    gateway.must("DELETE", "protos/p", "");
}

#[test]
fn kongs_gateway_calls_the_methods_of_a_file() {
    let service = Service::start();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("test.proto");
    std::fs::write(&file, PROTO).expect("written");
    let (host, port) = service.node.rsplit_once(':').expect("host and port");
    let document = |file: &str| {
        format!(
            "_format_version: '3.0'\nservices:\n- {{name: s, protocol: grpc, host: {host}, port: {port}, routes: [{{name: r, paths: [/], \
             strip_path: false, plugins: [{{name: grpc-gateway, config: {{proto: {file}}}}}]}}]}}\n"
        )
    };
    let gateway = Start::text(&document(&file.display().to_string())).http2().start();
    let get = gateway.client().request("GET /v1/a/b:get?i32=7&color=BLUE HTTP/1.1\r\nHost: a\r\n\r\n");
    let told: Value = serde_json::from_str(&get.text()).unwrap_or_default();
    assert_eq!(
        (get.status, &told["text"], &told["i32"], &told["color"]),
        (200, &json!("a/b"), &json!(7), &json!("BLUE")),
        "{get:?}"
    );
    assert_eq!(get.field("content-type"), Some("application/json"));
    let body = r#"{"i64":5}"#;
    let patch = format!(
        "PATCH /v1/shelves/x/books/7 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let patch = gateway.client().request(patch);
    let told: Value = serde_json::from_str(&patch.text()).unwrap_or_default();
    assert_eq!((patch.status, &told["text"], &told["i64"]), (200, &json!("shelves/x"), &json!(5)), "{patch:?}");
    for (request, status) in [("GET /v1/none", 400), ("POST /test.T/Unary", 400), ("OPTIONS /v1/a:get", 200)] {
        let response = gateway.client().request(format!("{request} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(response.status, status, "{request}: {response:?}");
    }
    for (name, text, says) in [
        ("none.proto", None, "the file cannot be read"),
        ("wrong.proto", Some("syntax ="), "no .proto file"),
        (
            "bare.proto",
            Some("syntax = \"proto3\"; message M {}"),
            "no method in the file has the option google.api.http",
        ),
        ("file.txt", Some(""), "expected the path of a .proto file"),
    ] {
        let (proto, rules) = (folder.path().join(name), folder.path().join("kong.yml"));
        if let Some(text) = text {
            std::fs::write(&proto, text).expect("written");
        }
        std::fs::write(&rules, document(&proto.display().to_string())).expect("written");
        let (code, _, told) = crate::harness::weir(&["check", &rules.display().to_string()]);
        assert!(code == 1 && told.contains(says), "{name}: {told}");
    }
}
