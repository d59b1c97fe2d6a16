//! gRPC through the gateway, with Debian's grpcio on both sides.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use weir_wire::http2::frame;

use crate::harness::{
    Full, Gateway, H2Client, LIMIT, News, Origin, Refusing, Response, Start, each, h2_origin, repository, timed,
    wait_until,
};

/// A gRPC service, until it is dropped.
pub(crate) struct Service {
    child: Child,
    pub(crate) node: String,
}

impl Service {
    pub(crate) fn start() -> Self {
        Self::of(peer("grpc_peer.py").arg("serve"))
    }

    /// The service of a program that tells its port.
    pub(crate) fn of(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start the service: run tools/install-test-deps");
        let mut port = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut port).expect("its port");
        Self { child, node: format!("127.0.0.1:{}", port.trim()) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program of `tests` on Debian's grpcio.
pub(crate) fn peer(name: &str) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-I").arg(repository().join("tests").join(name));
    command
}

/// Runs a case of the client through the gateway.
fn run(case: &str, gateway: &Gateway) {
    run_at(case, &gateway.addr.to_string());
}

fn run_at(case: &str, target: &str) {
    let output = peer("grpc_peer.py").args([case, target]).output().expect("run the client");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.ends_with("ok\n"), "{case}: {out}\n{err}");
}

fn serving(config: &Value) -> Gateway {
    Start::new(config).http2().start()
}

#[test]
fn calls_of_all_kinds_go_through() {
    let service = Service::start();
    let route =
        json!({ "id": "t", "uri": "/test.T/*", "upstream": { "scheme": "grpc", "nodes": { &service.node: 1 } } });
    let gateway = serving(&json!({ "routes": [route] }));
    let before = gateway.process.resident();
    each(&["unary", "streams", "errors", "ends"], |case| (*case).to_owned(), |case| run(case, &gateway));
    let grown = gateway.process.resident().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more, after messages of 64 MiB");
}

#[test]
fn health_is_asked_of_the_service() {
    let service = Service::start();
    let healthy = json!({ "interval": 1, "successes": 1 });
    let unhealthy = json!({ "interval": 1, "http_failures": 1 });
    let checks = json!({ "active": { "type": "grpc", "healthy": healthy, "unhealthy": unhealthy } });
    let upstream = json!({ "scheme": "grpc", "nodes": { &service.node: 1 }, "checks": checks });
    let gateway = serving(&json!({ "routes": [{ "id": "t", "uri": "/*", "upstream": upstream }] }));
    // Set at the service itself, whatever the gateway thinks of it.
    for (health, value) in [("up", 1.0), ("down", 0.0), ("up", 1.0)] {
        run_at(health, &service.node);
        let (ip, port) = service.node.split_once(':').expect("an address");
        let labels = [("name", "/apisix/routes/t"), ("ip", ip), ("port", port)];
        gateway.await_metric("apisix_upstream_status", &labels, value);
    }
}

#[test]
fn a_call_is_given_up_at_its_own_time() {
    let origin = h2_origin([], |connection| while connection.news().is_some() {});
    let upstream = json!({ "scheme": "grpc", "nodes": { origin.node(): 1 } });
    let gateway = serving(&json!({ "routes": [{ "id": "t", "uri": "/*", "upstream": upstream }] }));
    let call = "POST /a.T/M HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/grpc\r\nGrpc-Timeout: 200m\r\n\
        Content-Length: 5\r\n\r\n\0\0\0\0\0";
    let answer = gateway.client().request(call);
    assert_eq!((answer.status, answer.field("grpc-status")), (200, Some("4")), "{answer:?}");
    assert_eq!(answer.field("grpc-message"), Some("read timed out"));
    assert_eq!(answer.field("content-type"), Some("application/grpc"));
}

#[test]
fn answers_of_the_gateway_are_grpc() {
    let (refusing, full, origin) = (Refusing::bind(), Full::bind(), Origin::hello());
    let to = |node: String| json!({ "scheme": "grpc", "nodes": { node: 1 }, "timeout": { "connect": 0.2, "send": 1, "read": 1 } });
    let gateway = serving(&json!({ "routes": [
        { "id": "locked", "uri": "/locked/*", "plugins": { "key-auth": {} }, "upstream": to(origin.node()) },
        { "id": "limited", "uri": "/limited/*", "upstream": to(origin.node()), "plugins": {
            "fault-injection": { "abort": { "http_status": 429, "body": "too many" } },
        } },
        { "id": "dead", "uri": "/dead/*", "upstream": to(refusing.node()) },
        { "id": "slow", "uri": "/slow/*", "upstream": to(full.node()) },
    ] }));
    run("gateway", &gateway);
}

const CALL: &str = "POST /a.T/M HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/grpc\r\nContent-Length: 5\r\n";

/// An answer over each protocol.
fn answers(gateway: &Gateway, request: &str) -> [Response; 2] {
    [gateway.client().request(request), H2Client::connect(gateway.addr).request(request)]
}

#[test]
fn a_stream_ends_with_its_time() {
    // Says something all the time, so that no single read is late.
    let origin = h2_origin([], |connection| {
        while let Some(request) = connection.request() {
            connection.head(request.stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
            for _ in 0..100 {
                connection.content(request.stream, b"\0\0\0\0\x01x", false);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    // A connection for each call: the origin serves one after the other on each.
    let pool = json!({ "size": 1, "idle_timeout": 60, "requests": 1 });
    let upstream = json!({ "scheme": "grpc", "nodes": { origin.node(): 1 }, "keepalive_pool": pool });
    let gateway = serving(&json!({ "routes": [
        { "id": "t", "uri": "/a.T/*", "upstream": &upstream },
        { "id": "w", "uri": "/web/*", "upstream": &upstream, "plugins": { "grpc-web": {} } },
    ] }));
    let limited = format!("{CALL}Grpc-Timeout: 400m\r\n\r\n\0\0\0\0\0");
    let (ended, took) = timed(|| answers(&gateway, &limited));
    for answer in ended {
        assert_eq!((answer.status, answer.trailers.get("grpc-status")), (200, Some("4")), "{answer:?}");
        assert_eq!(answer.trailers.get("grpc-message"), Some("deadline exceeded"));
        assert!(answer.body.starts_with(b"\0\0\0\0\x01x"), "what had come was passed on");
    }
    assert!(took < Duration::from_secs(4), "{took:?}");
    for answer in answers(&gateway, &limited.replace("/a.T", "/web/a.T").replace("/grpc", "/grpc-web")) {
        let frame = b"grpc-status:4\r\ngrpc-message:deadline exceeded\r\n";
        assert!(answer.body.ends_with(frame), "{answer:?}");
        assert_eq!(answer.trailers.get("grpc-status"), None);
    }
    gateway.await_metric("weir_grpc_calls_total", &[("status", "DEADLINE_EXCEEDED")], 4.0);
}

#[test]
fn browsers_call_services() {
    let service = Service::start();
    let upstream = json!({ "scheme": "grpc", "nodes": { &service.node: 1 } });
    let route = json!({ "id": "w", "uri": "/web/*", "upstream": upstream, "plugins": { "grpc-web": {} } });
    let gateway = serving(&json!({ "routes": [route] }));
    each(&["web", "web-text"], |case| (*case).to_owned(), |case| run(case, &gateway));
    let request = CALL.replace("/a.T/M", "/web/test.T/Unary").replace("/grpc", "/grpc-web");
    for answer in answers(&gateway, &format!("{request}\r\n\0\0\0\0\0")) {
        assert_eq!((answer.status, answer.field("content-type")), (200, Some("application/grpc-web")), "{answer:?}");
        let (message, end) = answer.body.split_at(5);
        assert_eq!((message, &end[..4]), (&b"\0\0\0\0\0"[..], &b"\x80\0\0\0"[..]), "{answer:?}");
        assert!(end[5..].starts_with(b"grpc-status:0\r\n"), "{answer:?}");
        assert_eq!(answer.trailers.0, [], "they are in the body");
    }
}

#[test]
fn browsers_call_services_behind_kongs_plugin() {
    let service = Service::start();
    let (host, port) = service.node.rsplit_once(':').expect("host and port");
    let gateway = Start::text(&format!(
        "_format_version: '3.0'\nservices:\n- {{name: s, protocol: grpc, host: {host}, port: {port}, routes: [{{name: r, paths: [/], \
         strip_path: false, plugins: [{{name: grpc-web, config: {{allow_origin_header: 'http://a.test'}}}}]}}]}}\n"
    ));
    let gateway = gateway.http2().start();
    let request = CALL.replace("/a.T/M", "/test.T/Unary").replace("/grpc", "/grpc-web");
    for answer in answers(&gateway, &format!("{request}\r\n\0\0\0\0\0")) {
        let fields = ["content-type", "access-control-allow-origin"].map(|name| answer.field(name));
        assert_eq!((answer.status, fields), (200, [Some("application/grpc-web"), Some("http://a.test")]), "{answer:?}");
        let (message, end) = answer.body.split_at(5);
        assert_eq!((message, &end[..4]), (&b"\0\0\0\0\0"[..], &b"\x80\0\0\0"[..]), "{answer:?}");
        assert!(end[5..].starts_with(b"grpc-status:0\r\n"), "{answer:?}");
    }
    let preflight = gateway.client().request("OPTIONS /test.T/Unary HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((preflight.status, preflight.text().as_str()), (200, "OK"), "{preflight:?}");
    assert_eq!(preflight.field("access-control-allow-headers"), Some("content-type,x-grpc-web,x-user-agent"));
    let other = gateway.client().request("GET /test.T/Unary HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(other.status, 400, "{other:?}");
}

#[test]
fn the_status_of_a_call_is_logged_and_counted() {
    let origin = h2_origin([], |connection| {
        while let Some(request) = connection.request() {
            let path = request.field(":path").unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            let (head, end) = ((":status", "200"), [("grpc-status", "9"), ("grpc-message", "no")]);
            if path.ends_with("/Short") {
                connection.head(request.stream, &[head, ("grpc-status", "7")], true);
            } else {
                connection.head(request.stream, &[head], false);
                connection.content(request.stream, b"\0\0\0\0\0", false);
                if path.ends_with("/Whole") {
                    // The answer shows that the content has been read before the end comes.
                    let mut ping = Vec::new();
                    frame::push_ping(&mut ping, false, [0; 8]);
                    connection.send(&ping);
                    while !matches!(connection.news(), Some(News::Other) | None) {}
                }
                connection.head(request.stream, &end, true);
            }
        }
    });
    let upstream = json!({ "scheme": "grpc", "nodes": { origin.node(): 1 } });
    let limited = json!({ "fault-injection": { "abort": { "http_status": 429 } } });
    let tenant = json!([["http_x_tenant", "==", "a"]]);
    let routes = json!([
        { "id": "tenant", "uri": "/a.T/*", "priority": 1, "vars": tenant, "upstream": &upstream, "plugins": limited },
        { "id": "all", "uri": "/a.T/*", "upstream": &upstream, "plugins": {
            "response-rewrite": { "vars": [["arg_whole", "==", "1"]], "filters": [{ "regex": "x", "replace": "y" }] },
        } },
    ]);
    let format = "$uri $grpc_status $upstream_trailer_grpc_message $status";
    let settings = format!("access_log: {{path: FOLDER/access.log, format: '{format}'}}\n");
    let gateway = Start::new(json!({ "routes": routes })).http2().settings(settings).start();
    let call = |path: &str, fields: &str| {
        let request = CALL.replace("/a.T/M", path);
        H2Client::connect(gateway.addr).request(format!("{request}{fields}\r\n\0\0\0\0\0"))
    };
    assert_eq!(call("/a.T/Long", "").trailers.get("grpc-status"), Some("9"));
    assert_eq!(call("/a.T/Short", "").field("grpc-status"), Some("7"));
    // Metadata chooses the route.
    assert_eq!(call("/a.T/Long", "X-Tenant: a\r\n").field("grpc-status"), Some("8"));
    assert_eq!(call("/a.T/Long", "X-Tenant: b\r\n").trailers.get("grpc-status"), Some("9"));
    // A plugin has had the body whole; the trailers stay.
    assert_eq!(call("/a.T/Whole?whole=1", "").trailers.get("grpc-status"), Some("9"));
    let expected =
        ["/a.T/Long 9 no 200", "/a.T/Short 7 - 200", "/a.T/Long 8 - 200", "/a.T/Long 9 no 200", "/a.T/Whole 9 no 200"];
    let log = wait_until("five lines", LIMIT, || {
        let text = std::fs::read_to_string(gateway.file("access.log")).unwrap_or_default();
        Some(text.lines().map(str::to_owned).collect::<Vec<_>>()).filter(|lines| lines.len() >= 5)
    });
    assert_eq!(log, expected);
    for (status, count) in [("FAILED_PRECONDITION", 3.0), ("PERMISSION_DENIED", 1.0), ("RESOURCE_EXHAUSTED", 1.0)] {
        gateway.await_metric("weir_grpc_calls_total", &[("status", status)], count);
    }
    assert_eq!(gateway.metric("weir_grpc_calls_total", &[("status", "OK")]), 0.0);
}
