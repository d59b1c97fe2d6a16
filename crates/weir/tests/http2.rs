//! HTTP/2 with clients: requests as over HTTP/1.1, streams beside each other, and what ends a stream or a connection.

mod abuse;
mod streams;

use serde_json::json;
use weir_wire::http2::ErrorCode;

use crate::harness::{
    Fault, Frame, Gateway, H2Client, Origin, RawClient, Start, each, made_with_go, program, route_to, route_with,
};

/// A gateway with one route to this origin, and these settings, that takes HTTP/2 without TLS.
fn gateway(origin: &Origin, settings: &str) -> Gateway {
    Start::new(route_to(&[origin.node()])).settings(settings).http2().start()
}

fn get(path: &str) -> [(&str, &str); 4] {
    [(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", path)]
}

fn post(path: &str) -> [(&str, &str); 4] {
    [(":method", "POST"), (":scheme", "http"), (":authority", "a.test"), (":path", path)]
}

#[test]
fn a_message_is_the_same_over_both_protocols() {
    let origin = Origin::echo();
    let gateway = gateway(&origin, "");
    let chunked = "POST /c HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTrailer: x-t\r\n\r\n\
                   5\r\nhello\r\n0\r\nx-t: 1\r\n\r\n";
    let requests = [
        "GET /a?b=%20 HTTP/1.1\r\nHost: a.test\r\nX-A: 1\r\nX-A: 2\r\nCookie: a=1; b=2\r\n\r\n",
        "HEAD /head HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "POST /b HTTP/1.1\r\nHost: a.test:8080\r\nContent-Length: 5\r\n\r\nhello",
        chunked,
        "GET /x/../%61 HTTP/1.1\r\nHost: A.TEST\r\n\r\n",
        "DELETE /d HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n",
        // Refused by both, with the same answer.
        "TRACE / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET /%zz HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nExpect: teapot\r\n\r\n",
    ];
    let mut many = H2Client::connect(gateway.addr);
    for request in requests {
        let mut seen = Vec::new();
        for over_http2 in [false, true] {
            let before = origin.requests().len();
            let response = match over_http2 {
                false => RawClient::connect(gateway.addr).request(request),
                true => many.request(request),
            };
            let mut fields: Vec<_> = response.fields.0.clone();
            fields.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
            fields.retain(|(name, _)| !["date", "connection", "transfer-encoding"].contains(&name.as_str()));
            fields.sort();
            let upstream: Vec<_> = origin.requests().split_off(before);
            let upstream: Vec<_> = upstream
                .into_iter()
                .map(|request| {
                    let mut fields = request.fields.0;
                    fields.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
                    fields.sort();
                    (request.method, request.target, fields, request.body, request.trailers)
                })
                .collect();
            seen.push((response.status, response.body, fields, upstream));
        }
        assert_eq!(seen[0], seen[1], "{request}");
    }
    assert_eq!(many.gone, None, "one connection carried them all");
}

#[test]
fn heads_that_are_too_large_are_answered() {
    let origin = Origin::hello();
    let gateway = gateway(&origin, "limits: {head_size: 2KiB, header_count: 8, target_length: 100}");
    let mut client = H2Client::connect(gateway.addr);
    let long = "x".repeat(1 << 12);
    for (status, fields) in [
        (414, vec![(":path", &long[..200])]),
        (431, vec![(":path", "/"), ("x-long", long.as_str())]),
        (431, [vec![(":path", "/")], vec![("x", "1"); 20]].concat()),
        (431, [vec![(":path", "/")], vec![("x", "1"); 1000]].concat()),
        (200, vec![(":path", "/")]),
    ] {
        let path = if fields[0].1.starts_with('/') { fields[0].1.to_owned() } else { format!("/{}", fields[0].1) };
        let mut all = get(&path).to_vec();
        all.extend(&fields[1..]);
        let id = client.open(&all, true);
        assert_eq!(client.response(id).status, status, "{} fields", all.len());
    }
    assert_eq!(origin.requests().len(), 1);
    let errors = |reason: &str| gateway.metric("weir_client_errors_total", &[("reason", reason)]);
    assert_eq!((errors("target_too_long"), errors("head_too_large") + errors("too_many_headers")), (1.0, 3.0));
}

/// RFC 9113 section 8: the stream is reset, and the connection goes on.
#[test]
fn malformed_requests_are_reset() {
    let origin = Origin::echo();
    let gateway = gateway(&origin, "");
    let with = |name, value| [get("/").to_vec(), vec![(name, value)]].concat();
    let without = |name: &str| get("/").into_iter().filter(|(known, _)| *known != name).collect::<Vec<_>>();
    let instead = |name: &'static str, value: &'static str| {
        get("/").into_iter().map(|field| if field.0 == name { (name, value) } else { field }).collect::<Vec<_>>()
    };
    let cases = [
        ("upper case", with("X-Upper", "1")),
        ("connection", with("connection", "close")),
        ("keep-alive", with("keep-alive", "timeout=5")),
        ("proxy-connection", with("proxy-connection", "close")),
        ("transfer-encoding", with("transfer-encoding", "chunked")),
        ("upgrade", with("upgrade", "websocket")),
        ("te", with("te", "gzip")),
        ("unknown pseudo field", with(":version", "2")),
        ("pseudo field twice", with(":path", "/b")),
        ("pseudo field of a response", with(":status", "200")),
        ("pseudo field behind a field", [vec![("x-a", "1")], get("/").to_vec()].concat()),
        ("no method", without(":method")),
        ("no scheme", without(":scheme")),
        ("no path", without(":path")),
        ("no authority", without(":authority")),
        ("empty path", instead(":path", "")),
        ("absolute path", instead(":path", "http://a.test/")),
        ("relative path", instead(":path", "a")),
        ("other scheme", instead(":scheme", "ftp")),
        ("user in the authority", instead(":authority", "user@a.test")),
        ("space in the method", instead(":method", "GE T")),
        ("space in the path", instead(":path", "/a b")),
        ("other host", with("host", "b.test")),
        ("two hosts", [without(":authority"), vec![("host", "a.test"), ("host", "a.test")]].concat()),
        ("space in a name", with("x y", "1")),
        ("colon in a name", with("x:y", "1")),
        ("space before a value", with("x-y", " 1")),
        ("line end in a value", with("x-y", "1\r\nx-z: 2")),
        ("NUL in a value", with("x-y", "1\0")),
        ("length without content", with("content-length", "5")),
        ("two lengths", [post("/").to_vec(), vec![("content-length", "0"), ("content-length", "0")]].concat()),
        ("CONNECT with a path", instead(":method", "CONNECT")),
        (":protocol without CONNECT", with(":protocol", "websocket")),
    ];
    let mut client = H2Client::connect(gateway.addr);
    for (what, fields) in &cases {
        let id = client.open(fields, true);
        let answer = client.try_response(id).map(|response| response.status);
        assert_eq!(answer, Err(Fault::Malformed("PROTOCOL_ERROR".into())), "{what}");
    }
    for (length, content, ends) in [("5", "hello!", true), ("5", "hell", true), ("5", "hello!", false)] {
        let id = client.open(&[post("/").to_vec(), vec![("content-length", length)]].concat(), false);
        client.data(id, content.as_bytes(), ends);
        let answer = client.try_response(id).map(|response| response.status);
        assert_eq!(answer, Err(Fault::Malformed("PROTOCOL_ERROR".into())), "{length} {content}");
    }
    // Trailers with a pseudo field, in upper case, or that do not end the stream.
    for (trailer, ends) in [((":path", "/"), true), (("X-T", "1"), true), (("x-t", "1"), false)] {
        let id = client.open(&post("/"), false);
        client.data(id, b"hello", false);
        let mut out = Vec::new();
        client.push_head(&mut out, id, &[trailer], ends);
        client.send(&out);
        let answer = client.try_response(id).map(|response| response.status);
        assert_eq!(answer, Err(Fault::Malformed("PROTOCOL_ERROR".into())), "{trailer:?}");
    }
    assert_eq!(client.get("/after").status, 200, "the connection goes on");
    assert_eq!(origin.complete().len(), 1, "no other request has reached the origin whole");
    let refused = gateway.metric("weir_client_errors_total", &[("reason", "bad_request")]);
    assert_eq!(refused, cases.len() as f64);
}

#[test]
fn cookies_become_one_field_and_host_may_stand_for_authority() {
    let origin = Origin::hello();
    let gateway = gateway(&origin, "");
    let mut client = H2Client::connect(gateway.addr);
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/"),
        ("cookie", "a=1"),
        ("host", "b.test"),
        ("cookie", "b=2"),
        ("te", "trailers"),
    ];
    let id = client.open(&fields, true);
    assert_eq!(client.response(id).status, 200);
    let seen = origin.last();
    assert_eq!((seen.fields.all("cookie"), seen.fields.all("host")), (vec!["a=1; b=2"], vec!["b.test"]));
    assert_eq!(seen.field("te"), None);
}

#[test]
fn trailers_and_interim_responses_come_through() {
    let origin = Origin::scripted(|connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n");
            connection.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\n\r\n",
            );
        }
    });
    let gateway = gateway(&origin, "");
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&post("/"), false);
    client.data(id, b"abc", false);
    let mut out = Vec::new();
    client.push_head(&mut out, id, &[("x-check", "2"), ("content-length", "3")], true);
    client.send(&out);
    client.until(|frame| matches!(frame, Frame::Headers { fields, .. } if fields[0].1 == "200"));
    assert_eq!(client.interim(id), [103]);
    let response = client.response(id);
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
    assert_eq!(response.trailers.0, [("x-sum".to_owned(), "1".to_owned())]);
    let seen = origin.last();
    assert_eq!((&seen.body[..], seen.trailers.0), (&b"abc"[..], vec![("x-check".to_owned(), "2".to_owned())]));
}

/// RFC 9113 section 8.1: a response that is complete before its request ends with RST_STREAM of NO_ERROR.
#[test]
fn an_answer_may_come_before_the_request_has_ended() {
    let origin = Origin::hello();
    let config = route_with(
        json!({ "plugins": { "mocking": { "response_status": 202, "response_example": "early" } } }),
        json!({ "nodes": { (origin.node()): 1 } }),
    );
    let gateway = Start::new(config).http2().start();
    let mut client = H2Client::connect(gateway.addr);
    for _ in 0..3 {
        let id = client.open(&post("/"), false);
        client.data(id, &[b'x'; 40_000], false);
        let response = client.response(id);
        assert_eq!((response.status, response.text().as_str()), (202, "early"));
        let reset = client.until(|frame| matches!(frame, Frame::Reset { .. }));
        assert_eq!(reset, Frame::Reset { stream: id, code: ErrorCode::NoError });
        // Frames on their way are dropped.
        client.data(id, b"late", true);
    }
    assert_eq!(client.get("/").status, 202);
}

#[test]
fn a_client_that_waits_is_asked_for_its_body() {
    let origin = Origin::echo();
    let config = route_with(
        json!({ "plugins": { "request-validation": { "body_schema": { "type": "object" } } } }),
        json!({ "nodes": { (origin.node()): 1 } }),
    );
    let gateway = Start::new(config).http2().start();
    let mut client = H2Client::connect(gateway.addr);
    let expects = [("expect", "100-continue"), ("content-length", "2"), ("content-type", "application/json")];
    let id = client.open(&[&post("/")[..], &expects].concat(), false);
    client.until(|frame| matches!(frame, Frame::Headers { .. }));
    assert_eq!(client.interim(id), [100]);
    client.data(id, b"{}", true);
    assert_eq!(client.response(id).text(), "{}");
}

/// RFC 8441.
#[test]
fn websockets_are_streams() {
    let origin = Origin::scripted(|connection| {
        let Some(request) = connection.head() else { return };
        let is_upgrade =
            request.field("upgrade") == Some("websocket") && request.field("connection") == Some("Upgrade");
        let key = request.field("sec-websocket-key").unwrap_or_default().to_owned();
        if !is_upgrade || key.len() != 24 {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain");
            return;
        }
        connection.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: chat\r\n\r\n",
            crate::websocket::accept(&key),
        ));
        while let Ok(bytes) = connection.some() {
            if bytes.is_empty() || !connection.send(bytes) {
                return;
            }
        }
    });
    let connect = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "a.test"),
        (":path", "/chat"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "chat"),
    ];
    let route =
        |allowed: bool| route_with(json!({ "enable_websocket": allowed }), json!({ "nodes": { (origin.node()): 1 } }));
    let gateway = Start::new(route(true)).http2().start();
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&connect, false);
    let other = client.open(&get("/beside"), true);
    let Frame::Headers { fields, ends: false, .. } =
        client.until(|frame| matches!(frame, Frame::Headers { stream, .. } if *stream == id))
    else {
        panic!("no switch")
    };
    assert_eq!(fields[0], (":status".to_owned(), "200".to_owned()));
    let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"sec-websocket-protocol") && !names.contains(&"sec-websocket-accept"), "{names:?}");
    let long = "long ".repeat(10_000);
    for word in ["alpha", "beta", long.as_str()] {
        client.data(id, word.as_bytes(), false);
        let mut back = Vec::new();
        while back.len() < word.len() {
            match client.until(|frame| matches!(frame, Frame::Data { stream, .. } if *stream == id)) {
                Frame::Data { content, .. } => back.extend(content),
                other => panic!("{other:?}"),
            }
        }
        assert!(back == word.as_bytes());
    }
    assert_eq!(client.response(other).status, 200, "a stream beside it");
    client.data(id, b"", true);
    client.until(|frame| matches!(frame, Frame::Data { stream, ends: true, .. } if *stream == id));

    // On a route that does not allow it, nothing may look like success.
    let gateway = Start::new(route(false)).http2().start();
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&connect, false);
    assert_eq!(client.response(id).status, 501);
    let unknown = connect.map(|field| if field.0 == ":protocol" { (field.0, "connect-udp") } else { field });
    let id = client.open(&unknown, false);
    assert_eq!(client.response(id).status, 501);
    let id = client.open(&[(":method", "CONNECT"), (":authority", "a.test:80")], false);
    assert_eq!(client.response(id).status, 400);
}

#[test]
fn logs_and_metrics_tell_the_protocol() {
    let origin = Origin::hello();
    let gateway = gateway(&origin, "access_log: {path: FOLDER/access.log}");
    let mut client = H2Client::connect(gateway.addr);
    assert_eq!(client.get("/a").text(), "hello");
    let log = crate::harness::wait_until("a line of the access log", crate::harness::LIMIT, || {
        std::fs::read_to_string(gateway.file("access.log")).ok().filter(|text| text.ends_with('\n'))
    });
    let line: serde_json::Value = serde_json::from_str(log.lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&line["protocol"], &line["status"], &line["body_bytes_sent"]),
        (&json!("HTTP/2.0"), &json!(200), &json!(5))
    );
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 1.0);
    assert_eq!(client.get("/b").status, 200);
    assert_eq!(gateway.metric("apisix_http_requests_total", &[]), 2.0);
    drop(client);
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 0.0);
}

/// A client over HTTP/1.1 is served at the same port, whatever it begins with.
#[test]
fn a_listener_of_both_protocols_knows_its_clients() {
    let origin = Origin::hello();
    let gateway = gateway(&origin, "timeouts: {head: 500ms}");
    for begin in ["G", "P", "PR", "PRI", "POST / HT"] {
        let request = match begin {
            "G" => "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
            "PR" | "PRI" => format!("{begin}X / HTTP/1.1\r\nHost: a.test\r\n\r\n"),
            _ => "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n".to_owned(),
        };
        let mut client = gateway.client();
        let (first, rest) = request.split_at(begin.len());
        client.send(first);
        std::thread::sleep(std::time::Duration::from_millis(20));
        client.send(rest);
        assert_eq!(client.response().status, 200, "{begin}");
    }
    gateway.client().expect_close();
    // By default a listener without TLS takes HTTP/1.1 alone.
    let plain = Gateway::start(route_to(&[origin.node()]));
    let mut client = plain.client();
    client.send(weir_wire::http2::PREFACE);
    assert_eq!(client.response().status, 505);
}

/// curl speaks HTTP/2 over TLS, where it is offered.
#[test]
fn curl_agrees_on_http2_by_alpn() {
    let origin = Origin::echo();
    each(
        &[("", "2"), ("http2: {enabled: false}", "1.1")],
        |case| case.0.to_owned(),
        |(settings, version)| {
            let gateway = Start::new(route_to(&[origin.node()])).settings(settings).https().start();
            let url = format!("https://{}/x", gateway.https.expect("it speaks TLS"));
            let arguments = ["-sk", "--max-time", "20", "--data", "hello", "-w", " %{http_version} %{http_code}", &url];
            let output = std::process::Command::new("curl").args(arguments).output().expect("curl runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("hello {version} 200"));
        },
    );
}

/// nghttp2's client, with many streams at once.
#[test]
fn h2load_sees_no_failure() {
    let origin = Origin::echo();
    let gateway = Start::new(route_to(&[origin.node()])).http2().https().start();
    let body = gateway.file("body");
    std::fs::write(&body, vec![b'x'; 30_000]).expect("write a file");
    for url in [format!("http://{}/x", gateway.addr), format!("https://{}/x", gateway.https.expect("it speaks TLS"))] {
        for data in [None, Some(&body)] {
            let mut command = std::process::Command::new(program("h2load"));
            command.args(["-n", "600", "-c", "3", "-m", "40", &url]);
            if let Some(body) = data {
                command.arg("-d").arg(body);
            }
            let output = command.output().expect("h2load runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("600 succeeded, 0 failed, 0 errored, 0 timeout"), "{url}: {text}");
            assert!(text.contains("status codes: 600 2xx"), "{url}: {text}");
        }
    }
    assert_eq!(origin.complete().len(), 2400);
}

/// Every test of h2spec, in both of its modes. It is a program in Go: `tools/install-test-deps` installs it where Go is, and
/// without Go this test says so and does nothing.
#[test]
fn h2spec_finds_nothing() {
    let Some(program) = made_with_go("h2spec") else { return };
    let origin = Origin::hello();
    let gateway = Start::new(route_to(&[origin.node()])).https().start();
    let port = gateway.https.expect("it speaks TLS").port().to_string();
    for (mode, count) in [(&[][..], 145), (&["--strict"][..], 146)] {
        let arguments = [mode, &["-t", "-k", "-o", "5", "-h", "127.0.0.1", "-p", &port]].concat();
        let output = std::process::Command::new(&program).args(arguments).output().expect("h2spec runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let failures = text.split_once("Failures:").map_or("", |(_, failures)| failures);
        assert!(output.status.success(), "{failures}");
        let last = text.lines().rfind(|line| line.contains("tests,")).unwrap_or_default();
        assert_eq!(last, format!("{count} tests, {count} passed, 0 skipped, 0 failed"));
    }
}
