//! HTTP/2 to upstreams: streams of many clients on shared connections, refusals, flow control, bodies and trailers.

mod connections;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use serde_json::{Value, json};
use weir_wire::http2::ErrorCode;
use weir_wire::http2::frame::Setting;

use crate::harness::{
    Authority, Framing, Gateway, H2Connection, Kind, LIMIT, News, Nginx, Origin, each, get, h2_echo, h2_origin, post,
    route_with, wait_until, weighted,
};

/// The head of a request in chunks.
const CHUNKED: &str = "POST /a/b?c=d HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A gateway with one route to these origins over HTTP/2, and further fields of the upstream.
fn serving(origins: &[&Origin], fields: &Value) -> Gateway {
    let nodes: Vec<String> = origins.iter().map(|origin| origin.node()).collect();
    let mut upstream = json!({ "http2": true, "nodes": weighted(&nodes) });
    upstream.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    Gateway::start(route_with(json!({}), upstream))
}

/// Runs so many requests at one time; their statuses.
fn at_once(gateway: &Gateway, count: usize, request: &(impl Fn(usize) -> String + Sync)) -> Vec<u16> {
    thread::scope(|scope| {
        let running: Vec<_> =
            (0..count).map(|number| scope.spawn(move || gateway.client().request(request(number)).status)).collect();
        running.into_iter().map(|thread| thread.join().expect("a client")).collect()
    })
}

#[test]
fn heads_and_bodies_are_converted() {
    let origin = h2_echo();
    let gateway = serving(&[&origin], &json!({}));
    let mut client = gateway.client();
    for (body, request) in [
        ("", get("/a/b?c=d")),
        ("hello", post("/a/b?c=d", "hello")),
        ("hello world", format!("{CHUNKED}5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")),
    ] {
        let response = client.request(&request);
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(response.body, body.as_bytes());
        assert_eq!(response.field("x-path"), Some("/a/b?c=d"));
        assert_eq!(response.field("x-authority"), Some("a.test"));
        assert_eq!(response.field("x-scheme"), Some("http"));
        assert!(response.keeps_connection(), "{response:?}");
    }
    assert_eq!(origin.connections(), 1, "all requests went over one connection");
}

#[test]
fn fields_of_the_request_arrive_as_over_http1() {
    let origin = h2_origin([], |connection| {
        while let Some(request) = connection.request() {
            let told: Vec<String> = request.fields.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
            connection.answer(request.stream, &told.join("\n"));
        }
    });
    let gateway = serving(&[&origin], &json!({ "pass_host": "rewrite", "upstream_host": "up.test" }));
    let request = "GET /x HTTP/1.1\r\nHost: a.test\r\nX-One: 1\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
        TE: trailers\r\nCookie: a=b\r\nCookie: c=d\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n";
    // The second time most fields come out of the dynamic table.
    for _ in 0..3 {
        let response = gateway.client().request(request);
        let body = String::from_utf8(response.body).expect("UTF-8");
        let has = |line: &str| body.lines().any(|told| told == line);
        for line in [
            ":method=GET",
            ":scheme=http",
            ":authority=up.test",
            ":path=/x",
            "x-one=1",
            "te=trailers",
            "cookie=a=b",
            "cookie=c=d",
            "x-real-ip=127.0.0.1",
            "x-forwarded-for=9.9.9.9, 127.0.0.1",
            "x-forwarded-proto=http",
        ] {
            assert!(has(line), "{line} in\n{body}");
        }
        for name in ["connection", "x-hop", "host", "transfer-encoding", "keep-alive"] {
            assert!(!body.lines().any(|told| told.starts_with(&format!("{name}="))), "{name} in\n{body}");
        }
        let (pseudo, regular): (Vec<_>, Vec<_>) = body.lines().enumerate().partition(|(_, line)| line.starts_with(':'));
        assert!(pseudo.last().unwrap().0 < regular[0].0, "pseudo-fields come first:\n{body}");
    }
}

#[test]
fn trailers_go_both_ways() {
    let origin = h2_origin([], |connection| {
        while let Some(request) = connection.request() {
            let told = request.trailers.get("x-checksum").unwrap_or("none").to_owned();
            connection.head(request.stream, &[(":status", "200"), ("x-told", &told)], false);
            connection.content(request.stream, &request.body, false);
            connection.head(request.stream, &[("grpc-status", "0"), ("x-sum", "7")], true);
        }
    });
    let gateway = serving(&[&origin], &json!({}));
    let response = gateway.client().request(format!("{CHUNKED}5\r\nhello\r\n0\r\nX-Checksum: 77\r\n\r\n"));
    assert_eq!((response.status, response.body.as_slice()), (200, &b"hello"[..]));
    assert_eq!(response.field("x-told"), Some("77"));
    assert_eq!((response.trailers.get("grpc-status"), response.trailers.get("x-sum")), (Some("0"), Some("7")));
}

#[test]
fn statuses_without_content_have_none() {
    let origin = h2_origin([], |connection| {
        while let Some(request) = connection.request() {
            let status = request.field(":path").expect("a path").trim_start_matches('/').to_owned();
            let fields = [(":status", status.as_str()), ("content-length", "5")];
            match status.as_str() {
                "204" => connection.head(request.stream, &fields[..1], true),
                "304" => connection.head(request.stream, &fields, true),
                _ if request.field(":method") == Some("HEAD") => connection.head(request.stream, &fields, true),
                _ => {
                    connection.head(request.stream, &[(":status", "103"), ("link", "</a>")], false);
                    connection.head(request.stream, &fields, false)
                        && connection.content(request.stream, b"hello", true)
                }
            };
        }
    });
    let gateway = serving(&[&origin], &json!({}));
    let mut client = gateway.client();
    for (request, status, body) in
        [(get("/204"), 204, ""), (get("/304"), 304, ""), (get("/200").replacen("GET", "HEAD", 1), 200, "")]
    {
        let response = client.request(&request);
        assert_eq!((response.status, response.body.as_slice()), (status, body.as_bytes()), "{request}");
    }
    client.send(get("/404"));
    let interim = client.response();
    assert_eq!((interim.status, interim.field("link")), (103, Some("</a>")));
    let response = client.response();
    assert_eq!((response.status, response.framing), (404, Framing::Length(5)));
    assert_eq!(origin.connections(), 1);
}

#[test]
fn clients_share_a_connection() {
    const CLIENTS: usize = 20;
    // No request is answered before all are there.
    let origin = h2_origin([], |connection| {
        for _ in 0..2 {
            let requests: Vec<u32> =
                (0..CLIENTS).map_while(|_| connection.request()).map(|request| request.stream).collect();
            for stream in requests {
                connection.answer(stream, "shared");
            }
        }
        connection.news();
    });
    let gateway = serving(&[&origin], &json!({}));
    for _ in 0..2 {
        assert_eq!(at_once(&gateway, CLIENTS, &|_| get("/")), [200; CLIENTS]);
    }
    assert_eq!(origin.connections(), 1);
    gateway.await_metric("weir_upstream_connections", &[("state", "idle")], 1.0);
}

#[test]
fn another_connection_is_opened_when_one_is_full() {
    let held = Arc::new(AtomicUsize::new(0));
    let origin = h2_origin([Setting::MaxConcurrentStreams(2)], {
        let held = Arc::clone(&held);
        move |connection| {
            while let Some(request) = connection.request() {
                match request.field(":path") {
                    Some("/held") => _ = held.fetch_add(1, SeqCst),
                    _ => connection.answer(request.stream, "answered"),
                }
            }
        }
    });
    let gateway = serving(&[&origin], &json!({}));
    // From here on the gateway knows how many streams the connection takes.
    assert_eq!(gateway.get("/first").status, 200);
    let clients = [(); 2].map(|()| {
        let mut client = gateway.client();
        client.send(get("/held"));
        client
    });
    wait_until("two streams of one connection", LIMIT, || (held.load(SeqCst) == 2).then_some(()));
    assert_eq!(origin.connections(), 1);
    for _ in 0..2 {
        assert_eq!(gateway.get("/other").status, 200);
    }
    assert_eq!(origin.connections(), 2, "a full connection, and one for all others");
    drop(clients);
}

/// Outcome of a request whose first stream ends in some way.
#[test]
fn requests_are_sent_again_where_that_is_safe() {
    let cases = [
        ("refused", "POST", 200),
        ("left behind", "POST", 200),
        ("left behind", "GET", 200),
        ("closed", "GET", 200),
        ("closed", "POST", 502),
        ("cancelled", "POST", 502),
        ("cancelled", "GET", 502),
        ("no headers", "POST", 502),
        ("upper case", "GET", 502),
        ("no status", "GET", 502),
        ("too short", "GET", 502),
        ("frame of stream 2", "GET", 502),
    ];
    each(
        &cases,
        |case| format!("{case:?}"),
        |(how, method, status)| {
            let (how, count) = (*how, AtomicUsize::new(0));
            let origin = h2_origin([], move |connection: &mut H2Connection<'_>| {
                while let Some(request) = connection.request() {
                    let stream = request.stream;
                    if request.field(":path") == Some("/first") || count.fetch_add(1, SeqCst) > 0 {
                        connection.answer(stream, "served");
                        continue;
                    }
                    match how {
                        "refused" => connection.reset(stream, ErrorCode::RefusedStream),
                        "left behind" => connection.go_away(stream - 2, ErrorCode::NoError),
                        "closed" => return,
                        "cancelled" => connection.reset(stream, ErrorCode::InternalError),
                        "no headers" => {
                            connection.some_content(stream, b"hello", true);
                        }
                        "upper case" => {
                            connection.send(&[0, 0, 6, 1, 5, 0, 0, 0, stream as u8]);
                            connection.send(b"\x88\x00\x01A\x01b");
                        }
                        "no status" => {
                            connection.head(stream, &[("a", "b")], true);
                        }
                        "too short" => {
                            connection.head(stream, &[(":status", "200"), ("content-length", "5")], true);
                        }
                        _ => {
                            connection.head(2, &[(":status", "200")], true);
                        }
                    }
                }
            });
            let gateway = serving(&[&origin], &json!({}));
            // The connection is not fresh when it fails.
            assert_eq!(gateway.get("/first").status, 200);
            let request = if *method == "GET" { get("/") } else { post("/", "body") };
            let response = gateway.client().request(request);
            assert_eq!(response.status, *status, "{response:?}");
            assert_eq!(gateway.get("/").status, 200, "the next request is served");
        },
    );
}

#[test]
fn a_client_that_does_not_read_holds_up_no_other() {
    const LARGE: usize = 4 << 20;
    let origin = h2_origin([], |connection| {
        let mut large: Option<(u32, usize)> = None;
        loop {
            if let Some((stream, left)) = &mut large
                && *left > 0
            {
                let n = connection.some_content(*stream, &vec![b'x'; *left], true);
                *left -= n;
                if n > 0 {
                    continue;
                }
            }
            match connection.news() {
                None => return,
                Some(News::Complete(request)) if request.field(":path") == Some("/large") => {
                    connection.head(request.stream, &[(":status", "200")], false);
                    large = Some((request.stream, LARGE));
                }
                Some(News::Complete(request)) => connection.answer(request.stream, "small"),
                Some(_) => {}
            }
        }
    });
    let gateway = serving(&[&origin], &json!({}));
    let mut slow = gateway.client();
    slow.send(get("/large"));
    for _ in 0..20 {
        assert_eq!(gateway.get("/small").body, b"small");
    }
    assert_eq!(slow.response().body.len(), LARGE, "and it gets everything once it reads");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_node_that_does_not_read_holds_back_its_client_alone() {
    let origin = h2_origin([], |connection| {
        connection.gives_credit = false;
        while let Some(news) = connection.news() {
            if let News::Complete(request) = news {
                connection.answer(request.stream, "small");
            }
        }
    });
    let gateway = serving(&[&origin], &json!({}));
    let mut slow = gateway.client();
    slow.send("POST /large HTTP/1.1\r\nHost: a.test\r\nContent-Length: 8388608\r\n\r\n");
    let sender = slow.sender();
    let sent = thread::spawn(move || {
        let mut sender = sender;
        // As much as the gateway takes.
        std::io::Write::write_all(&mut sender, &vec![b'x'; 8 << 20]).is_ok()
    });
    for _ in 0..20 {
        assert_eq!(gateway.get("/small").body, b"small");
    }
    assert_eq!(origin.connections(), 1);
    drop(gateway);
    assert!(!sent.join().expect("the sender"), "the body was not taken whole");
}

#[test]
fn large_bodies_go_both_ways() {
    let origin = h2_echo();
    let gateway = serving(&[&origin], &json!({}));
    let body: String = (0..300_000).map(|number| format!("{number};")).collect();
    for _ in 0..2 {
        let response = gateway.client().request(post("/", &body));
        assert_eq!(response.status, 200);
        assert!(response.body == body.as_bytes(), "{} of {} bytes", response.body.len(), body.len());
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_client_that_goes_cancels_its_stream_alone() {
    let resets = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&resets);
    let origin = h2_origin([], move |connection| {
        while let Some(news) = connection.news() {
            match news {
                News::Complete(request) if request.field(":path") == Some("/answered") => {
                    connection.answer(request.stream, "served");
                }
                News::Reset(ErrorCode::Cancel) => {
                    seen.fetch_add(1, SeqCst);
                }
                _ => {}
            }
        }
    });
    let gateway = serving(&[&origin], &json!({}));
    let mut client = gateway.client();
    client.send(get("/silent"));
    assert_eq!(gateway.get("/answered").status, 200);
    client.reset();
    wait_until("the stream to be cancelled", LIMIT, || (resets.load(SeqCst) == 1).then_some(()));
    assert_eq!(gateway.get("/answered").status, 200);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_node_without_http2_fails() {
    let origin = Origin::scripted(|connection| {
        let _ = connection.some();
        connection.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
    let gateway = serving(&[&origin], &json!({}));
    let response = gateway.get("/");
    assert_eq!(response.status, 502);
    assert_eq!(response.field("x-weir-error"), Some("upstream; upstream broke the rules of HTTP/2"));
}

#[test]
fn grpc_is_http2_that_takes_trailers() {
    let origin = h2_origin([], |connection| {
        while let Some(request) = connection.request() {
            let te = request.field("te").unwrap_or("none").to_owned();
            let fields =
                [(":status", "200"), ("content-type", "application/grpc"), ("x-te", &te), ("grpc-status", "5")];
            connection.head(request.stream, &fields, true);
        }
    });
    let gateway =
        Gateway::start(route_with(json!({}), json!({ "scheme": "grpc", "nodes": weighted([&origin.node()]) })));
    let response = gateway.client().request(post("/a.Service/Method", "\0\0\0\0\0"));
    assert_eq!(
        (response.status, response.field("x-te"), response.field("grpc-status")),
        (200, Some("trailers"), Some("5"))
    );
}

/// A real nginx, with HTTP/2 and without, over TLS and without.
#[test]
fn nginx_is_spoken_to_in_what_it_chooses() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test"]);
    let tls = format!(
        "ssl_certificate {}; ssl_certificate_key {};",
        certificate.cert_file.display(),
        certificate.key_file.display()
    );
    let server = "location /told { return 200 \"$server_protocol $http_host\"; }";
    for (how, upstream, protocol) in [
        (" http2", json!({ "http2": true }), "HTTP/2.0"),
        (" ssl http2", json!({ "scheme": "https", "http2": true }), "HTTP/2.0"),
        (" ssl http2", json!({ "scheme": "https" }), "HTTP/1.1"),
        (" ssl", json!({ "scheme": "https", "http2": true }), "HTTP/1.1"),
        (" ssl http2", json!({ "scheme": "grpcs" }), "HTTP/2.0"),
    ] {
        let directives = if how.contains("ssl") { format!("{tls} {server}") } else { server.to_owned() };
        let nginx = Nginx::listening(how, &directives);
        let large = "0123456789abcdef".repeat(64 << 10);
        nginx.write("large", large.as_bytes());
        let mut upstream = upstream;
        upstream["nodes"] = weighted([&nginx.node()]);
        let gateway = Gateway::start(route_with(json!({}), upstream));
        let mut client = gateway.client();
        for _ in 0..3 {
            let told = client.get("/told");
            assert_eq!(String::from_utf8_lossy(&told.body), format!("{protocol} a.test"), "{how}: {told:?}");
        }
        let response = client.get("/large");
        assert_eq!(response.status, 200);
        assert!(response.body == large.as_bytes(), "{how}: {} bytes", response.body.len());
        let statuses = at_once(&gateway, 30, &|_| get("/large"));
        assert_eq!(statuses, [200; 30], "{how}");
        // nginx answers before it has read the body.
        assert_eq!(client.request(post("/large", &large)).status, 405, "{how}");
        assert_eq!(gateway.get("/told").status, 200);
    }
}
