//! Copies of requests: what a mirror receives, and that nobody waits for it.

use std::sync::mpsc::channel;

use serde_json::{Value, json};

use crate::harness::{
    Connection, Framing, Gateway, H2Client, LIMIT, Origin, Protocol, Refusing, Start, chunked, get, h2_origin,
    over_both, post, route_to, timed, wait_until,
};

over_both!(
    nobody_waits_for_a_mirror,
    a_mirror_that_fails_is_only_counted,
    a_request_that_is_sent_again_is_copied_once,
    what_is_too_long_or_not_whole_is_not_copied,
);

/// A route for everything whose requests are copied.
fn mirrored(over: Protocol, node: &str, plugins: &Value, settings: Value) -> Gateway {
    let upstream = json!({ "nodes": { node: 1 } });
    let route = json!({ "id": "all", "uri": "/*", "upstream": upstream, "plugins": plugins });
    Start::new(json!({ "routes": [route] })).settings(settings).over(over).start()
}

fn to(mirror: &str) -> Value {
    json!({ "proxy-mirror": { "host": format!("http://{mirror}") } })
}

fn copies(gateway: &Gateway, outcome: &str, count: usize) {
    gateway.await_metric("weir_mirror_requests_total", &[("outcome", outcome)], count as f64);
}

#[test]
fn a_mirror_receives_what_the_upstream_does() {
    let (origin, mirror) = (Origin::echo(), Origin::echo());
    let gateway = mirrored(Protocol::Http1, &origin.node(), &to(&mirror.node()), json!({}));
    let body = "x".repeat(200_000);
    let chunks = |body: &str, size: usize| {
        let head = "PUT /chunks HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
        String::from_utf8([head.as_bytes(), &chunked(body.as_bytes(), size)].concat()).expect("text")
    };
    let requests = [
        get("/a/../b?c=d&e=%20"),
        "HEAD /head HTTP/1.1\r\nHost: a.test\r\nX-A: b\r\nX-A: c\r\n\r\n".to_owned(),
        "FROB /frob HTTP/1.1\r\nHost: A.test:81\r\nConnection: x-b\r\nX-B: c\r\n\r\n".to_owned(),
        post("/empty", ""),
        post("/length", "hello"),
        post("/long", &body),
        chunks("hello", 2),
        chunks(&body, 1000),
        chunks(&body, 150_000),
    ];
    for (number, request) in requests.iter().enumerate() {
        let mut client = gateway.client();
        client.send(request);
        let method = request.split(' ').next().expect("a method");
        assert_eq!(client.response_to(method).status, 200, "{number}");
        copies(&gateway, "answered", number + 1);
        let (sent, copy) = (origin.last(), mirror.last());
        assert_eq!((&copy.method, &copy.target), (&sent.method, &sent.target));
        assert!(copy.body == sent.body, "{}: another body, of {} bytes", sent.target, copy.body.len());
        let but_framing = |request: &crate::harness::Request| -> Vec<(String, String)> {
            let framing = ["content-length", "transfer-encoding"];
            let fields = request.fields.0.iter().filter(|(name, _)| !framing.contains(&&*name.to_ascii_lowercase()));
            fields.cloned().collect()
        };
        assert_eq!(but_framing(&copy), but_framing(&sent), "{}", sent.target);
        assert_ne!(copy.framing, Framing::Chunked, "a copy tells its length");
    }
    assert_eq!(mirror.requests().len(), requests.len());
    assert!(mirror.connections() < requests.len(), "connections to a mirror are kept");
}

#[test]
fn a_mirror_may_speak_tls() {
    let (origin, mirror) = (Origin::echo(), Origin::echo());
    // Another gateway terminates TLS in front of the mirror.
    let front = Start::new(route_to(&[mirror.node()])).https().start();
    let addr = front.https.expect("a gateway with TLS");
    let plugins = json!({ "proxy-mirror": { "host": format!("https://{addr}") } });
    let gateway = mirrored(Protocol::Http1, &origin.node(), &plugins, json!({}));
    let mut client = gateway.client();
    for number in 1..=3 {
        assert_eq!(client.request(post("/tls", "hello")).text(), "hello");
        copies(&gateway, "answered", number);
    }
    let copy = mirror.last();
    assert_eq!(
        (copy.target.as_str(), copy.body.as_slice(), copy.field("host")),
        ("/tls", &b"hello"[..], Some("a.test"))
    );
    assert_eq!(copy.field("x-forwarded-proto"), Some("https"), "by the gateway in front of it");
}

/// Calls go over HTTP/2 to the node and to the mirror alike, from clients of either protocol.
#[test]
fn a_mirror_may_speak_grpc() {
    let node = h2_origin([], |connection| {
        while let Some(request) = connection.request() {
            connection.head(request.stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
            connection.content(request.stream, &request.body, false);
            connection.head(request.stream, &[("grpc-status", "0")], true);
        }
    });
    let (sender, copies_of) = channel();
    let mirror = h2_origin([], move |connection| {
        while let Some(request) = connection.request() {
            let _ = sender.send(request.clone());
            connection.head(request.stream, &[(":status", "200"), ("grpc-status", "12")], true);
        }
    });
    let plugins = json!({ "proxy-mirror": { "host": format!("grpc://{}", mirror.node()) } });
    let upstream = json!({ "scheme": "grpc", "nodes": { node.node(): 1 } });
    let route = json!({ "id": "all", "uri": "/*", "upstream": upstream, "plugins": plugins });
    let gateway = Start::new(json!({ "routes": [route] })).http2().start();
    let message = [b"\0\0\0\xea\x60".to_vec(), vec![b'm'; 60_000]].concat();
    let head = format!(
        "POST /a.T/M HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/grpc\r\nX-Some-Bin: AAE=\r\nTE: trailers\r\n\
         Grpc-Timeout: 20S\r\nContent-Length: {}\r\n\r\n",
        message.len()
    );
    for number in 1..=4 {
        let call = [head.as_bytes(), &message].concat();
        let answer = match number % 2 {
            0 => gateway.client().request(call),
            _ => H2Client::connect(gateway.addr).request(call),
        };
        assert_eq!((answer.status, answer.trailers.get("grpc-status")), (200, Some("0")), "{:?}", answer.fields);
        copies(&gateway, "answered", number);
        let copy = copies_of.recv_timeout(LIMIT).expect("a copy");
        let fields = [":method", ":path", ":authority", "content-type", "te", "x-some-bin", "grpc-timeout"];
        let seen: Vec<_> = fields.iter().map(|name| copy.field(name).unwrap_or("-")).collect();
        assert_eq!(seen, ["POST", "/a.T/M", "a.test", "application/grpc", "trailers", "AAE=", "20S"]);
        assert!(copy.body == message, "{} bytes", copy.body.len());
    }
    assert_eq!(mirror.connections(), 1, "calls share a connection to the mirror");
}

#[test]
fn a_copy_may_have_another_path() {
    let (origin, mirror) = (Origin::echo(), Origin::echo());
    let rewrite = json!({ "uri": "/new/$arg_a" });
    let cases = [
        (json!({}), json!(null), "/a?b=1&a=2", "/a?b=1&a=2"),
        (json!({}), rewrite.clone(), "/a?a=2", "/new/2?a=2"),
        (json!({ "path": "/m" }), json!(null), "/a?b=1", "/m?b=1"),
        (json!({ "path": "/m" }), json!(null), "/a?", "/m"),
        (json!({ "path": "/m", "path_concat_mode": "replace" }), rewrite.clone(), "/a?a=2", "/m?a=2"),
        (json!({ "path": "/m", "path_concat_mode": "prefix" }), json!(null), "/a/b?b=1", "/m/a/b?b=1"),
        (json!({ "path": "/m", "path_concat_mode": "prefix" }), rewrite, "/a?a=2", "/m/new/2?a=2"),
    ];
    for (fields, rewrite, path, target) in cases {
        let mut plugins = to(&mirror.node());
        plugins["proxy-mirror"].as_object_mut().expect("a conf").extend(fields.as_object().expect("fields").clone());
        if !rewrite.is_null() {
            plugins["proxy-rewrite"] = rewrite;
        }
        let gateway = mirrored(Protocol::Http1, &origin.node(), &plugins, json!({}));
        assert_eq!(gateway.get(path).status, 200);
        copies(&gateway, "answered", 1);
        assert_eq!(mirror.last().target, target, "{plugins}");
    }
}

fn nobody_waits_for_a_mirror(over: Protocol) {
    let origin = Origin::hello();
    // The mirror accepts requests and never answers.
    let silent = Origin::scripted(|connection| connection.await_close());
    let settings = json!({ "limits": { "mirror_copies": 5 } });
    let gateway = mirrored(over, &origin.node(), &to(&silent.node()), settings);
    let mut client = gateway.caller();
    let (_, took) = timed(|| {
        for _ in 0..50 {
            assert_eq!(client.get("/").status, 200);
        }
    });
    assert!(took < LIMIT / 2, "50 requests took {took:?}");
    copies(&gateway, "dropped", 45);
    assert_eq!(gateway.metric("weir_mirror_requests_total", &[]), 45.0);
}

fn a_mirror_that_fails_is_only_counted(over: Protocol) {
    let origin = Origin::hello();
    let refusing = Refusing::bind();
    let gateway = mirrored(over, &origin.node(), &to(&refusing.node()), json!({}));
    for number in 1..=3 {
        assert_eq!(gateway.get("/").status, 200);
        copies(&gateway, "failed", number);
    }
    let closing = Origin::scripted(|connection: &mut Connection| drop(connection.request()));
    let gateway = mirrored(over, &origin.node(), &to(&closing.node()), json!({}));
    assert_eq!(gateway.caller().request(post("/", "x")).status, 200);
    copies(&gateway, "failed", 1);
    assert_eq!(closing.requests().len(), 1, "a copy is sent once");
}

#[test]
fn a_mirror_receives_what_the_upstream_could_not() {
    let (refusing, mirror) = (Refusing::bind(), Origin::echo());
    let gateway = mirrored(Protocol::Http1, &refusing.node(), &to(&mirror.node()), json!({}));
    assert_eq!(gateway.caller().request(post("/", "hello")).status, 502);
    copies(&gateway, "answered", 1);
    assert_eq!(mirror.last().body, b"hello");
}

fn a_request_that_is_sent_again_is_copied_once(over: Protocol) {
    let resetting = Origin::scripted(|connection| {
        if connection.head().is_some() {
            connection.reset();
        }
    });
    let (origin, mirror) = (Origin::echo(), Origin::echo());
    let nodes = json!({ (resetting.node()): 1, (origin.node()): 1 });
    let route = json!({ "id": "all", "uri": "/*", "upstream": { "nodes": nodes }, "plugins": to(&mirror.node()) });
    let gateway = Start::new(json!({ "routes": [route] })).over(over).start();
    for number in 1..=4 {
        // The body comes when the first try may have failed already.
        let mut client = gateway.caller();
        client.send("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\n");
        wait_until("the last node to see the head", LIMIT, || (origin.requests().len() == number).then_some(()));
        client.send("hello");
        client.send("world");
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (200, "helloworld"));
        copies(&gateway, "answered", number);
        assert_eq!(mirror.last().body, b"helloworld");
    }
    assert_eq!(mirror.requests().len(), 4);
    assert!(!resetting.requests().is_empty(), "some were sent again");
}

fn what_is_too_long_or_not_whole_is_not_copied(over: Protocol) {
    let (origin, mirror) = (Origin::echo(), Origin::echo());
    let settings = json!({ "limits": { "mirror_body": 1000 } });
    let gateway = mirrored(over, &origin.node(), &to(&mirror.node()), settings);
    let long = "x".repeat(1001);
    assert_eq!(gateway.caller().request(post("/", &long)).text(), long);
    copies(&gateway, "dropped", 1);
    let head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    let response = gateway.caller().request([head.as_bytes(), &chunked(long.as_bytes(), 10)].concat());
    assert_eq!(response.text(), long);
    copies(&gateway, "dropped", 2);

    let mut client = gateway.caller();
    client.send(format!("{head}5\r\nhello\r\n"));
    wait_until("the upstream to see the head", LIMIT, || (origin.requests().len() == 3).then_some(()));
    client.reset();
    gateway.await_metric("weir_client_errors_total", &[("reason", "aborted")], 1.0);
    assert_eq!(gateway.get("/after").status, 200);
    copies(&gateway, "answered", 1);
    assert_eq!(mirror.requests().iter().map(|request| request.target.as_str()).collect::<Vec<_>>(), ["/after"]);
}

#[test]
fn a_share_of_the_requests_is_copied() {
    let (origin, mirror) = (Origin::hello(), Origin::hello());
    let mut plugins = to(&mirror.node());
    plugins["proxy-mirror"]["sample_ratio"] = json!(0.5);
    let gateway = mirrored(Protocol::Http1, &origin.node(), &plugins, json!({}));
    let mut client = gateway.client();
    for _ in 0..400 {
        assert_eq!(client.get("/").status, 200);
    }
    // Further off than this by chance is one run in more than 10^14.
    let copied = || gateway.metric("weir_mirror_requests_total", &[]);
    // The last ones are counted when they are done.
    wait_until("enough copies", LIMIT, || (copied() >= 120.0).then_some(()));
    assert!(copied() < 280.0, "{} of 400", copied());
}
