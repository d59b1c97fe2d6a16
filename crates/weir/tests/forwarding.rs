//! Fields that cross the gateway, and those set by it: hop-by-hop fields (RFC 9110 section 7.6.1), X-Forwarded-*,
//! X-Real-IP, Host, Server.

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, Origin, Request, each, get, route_to, route_with};

/// Sends a GET with these field lines and gives what reached the origin.
fn forwarded(gateway: &Gateway, origin: &Origin, fields: &str) -> Request {
    let response = gateway.client().request(format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n"));
    assert_eq!(response.status, 200, "{fields:?}: {response:?}");
    origin.last()
}

#[test]
fn hop_by_hop_fields_of_requests_do_not_cross() {
    let origin = Origin::hello();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    for (fields, gone, kept) in [
        ("Connection: X-Hop\r\nX-Hop: 1\r\nX-End: 2", &["Connection", "X-Hop"][..], &["X-End"][..]),
        ("Connection: close, x-hop , X-HOP2\r\nX-Hop: 1\r\nX-Hop2: 2", &["Connection", "X-Hop", "X-Hop2"], &[]),
        ("X-Hop: 1\r\nConnection: keep-alive\r\nConnection: X-Hop", &["Connection", "X-Hop"], &[]),
        ("Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive", &["Keep-Alive", "Proxy-Connection"], &[]),
        ("TE: trailers, gzip;q=0.5\r\nConnection: TE", &["TE", "Connection"], &[]),
        (
            "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk",
            &["Upgrade", "HTTP2-Settings", "Connection"],
            &[],
        ),
        // A client cannot take away what the gateway sets or what frames the message.
        (
            "Connection: Host, X-Forwarded-For, X-Real-IP, X-Forwarded-Proto",
            &["Connection"],
            &["Host", "X-Forwarded-For", "X-Real-IP", "X-Forwarded-Proto"],
        ),
        ("Connection: , ,\r\nX-End: 1", &["Connection"], &["X-End"]),
        (
            "Authorization: Basic eA==\r\nCookie: a=1\r\nCookie: b=2\r\nX_Under: 1",
            &[],
            &["Authorization", "Cookie", "X_Under"],
        ),
    ] {
        let request = forwarded(&gateway, &origin, &format!("Host: a.test\r\n{fields}"));
        for name in gone {
            assert_eq!(request.field(name), None, "{fields:?} → {request:?}");
        }
        for name in kept {
            assert!(request.field(name).is_some(), "{fields:?}: no {name} in {request:?}");
        }
    }
    // Content-Length named by Connection would move the end of the message.
    let response = gateway
        .client()
        .request("POST / HTTP/1.1\r\nHost: a.test\r\nConnection: Content-Length\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!((response.status, &origin.last().body[..]), (200, &b"hello"[..]));
    let chunked = "POST / HTTP/1.1\r\nHost: a.test\r\nConnection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n0\r\n\r\n";
    assert_eq!((gateway.client().request(chunked).status, &origin.last().body[..]), (200, &b"hello"[..]));
}

#[test]
fn order_case_and_repetition_of_fields_are_kept() {
    let origin = Origin::hello();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let request = forwarded(&gateway, &origin, "X-b: 1\r\nhOsT: A.Test:80\r\nx-B: 2\r\nACCEPT: */*\r\nX-b: 3");
    let own: Vec<_> = request.fields.0.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-b")).collect();
    let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(own, [&line("X-b", "1"), &line("x-B", "2"), &line("X-b", "3")]);
    assert!(request.fields.0.contains(&line("ACCEPT", "*/*")));
    assert_eq!(request.field("host"), Some("A.Test:80"), "Host keeps its case and port");
}

#[test]
fn hop_by_hop_fields_of_responses_do_not_cross() {
    let origin = Origin::answering(|_| {
        Answer::keep(
            "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-End: 1\r\nSet-Cookie: a=1\r\n\
             Set-Cookie: b=2\r\nProxy-Connection: close\r\nUpgrade: h2c\r\nServer: origin/1\r\nContent-Length: 2\r\n\r\nhi",
        )
    });
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let response = gateway.client().request(get("/"));
    for name in ["X-Hop", "Keep-Alive", "Proxy-Connection", "Upgrade", "Connection"] {
        assert_eq!(response.field(name), None, "{response:?}");
    }
    assert_eq!((response.field("x-end"), response.fields.all("set-cookie")), (Some("1"), vec!["a=1", "b=2"]));
    assert_eq!(response.fields.all("server"), ["weir"], "the gateway's name takes the place of the upstream's");
    assert_eq!(response.fields.all("date").len(), 1, "RFC 9110 section 6.6.1: a recipient adds a missing Date");
    assert_eq!(response.field("x-apisix-upstream-status"), None);
}

#[test]
fn server_and_date_follow_the_settings_and_the_upstream() {
    let origin = Origin::answering(|_| {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        Answer::keep(format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nServer: origin/1\r\nContent-Length: 0\r\n\r\n"))
    });
    for (setting, server) in [("gate/1", "gate/1"), ("", "origin/1")] {
        let gateway = Gateway::with(route_to(&[origin.node()]), json!({ "server_header": setting }));
        let response = gateway.get("/");
        assert_eq!(response.fields.all("server"), [server], "{setting:?}");
        assert_eq!(response.fields.all("date"), ["Sun, 06 Nov 1994 08:49:37 GMT"]);
    }
}

/// Settings, field lines sent, and fields that the origin has to see (`None`: absent).
type Case = (Value, &'static str, &'static [(&'static str, Option<&'static str>)]);

#[test]
fn forwarding_fields_tell_who_asks() {
    const SPOOFED: &str = "Host: A.test:81\r\nX-Forwarded-For: 6.6.6.6, 7.7.7.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil.test\r\n\
                           X-Forwarded-Port: 443\r\nX-Real-IP: 6.6.6.6\r\nForwarded: for=6.6.6.6";
    let trusted = |peers: &[&str]| json!({ "trusted_proxies": peers });
    let real_ip = |header: &str, recursive: bool, trusted: &[&str]| json!({ "real_ip": { "header": header, "recursive": recursive, "trusted": trusted } });
    let cases: &[Case] = &[
        // APISIX: appended, overwritten, dropped.
        (
            json!({}),
            "Host: a.test",
            &[
                ("X-Forwarded-For", Some("127.0.0.1")),
                ("X-Forwarded-Proto", Some("http")),
                ("X-Forwarded-Host", Some("a.test")),
                ("X-Real-IP", Some("127.0.0.1")),
            ],
        ),
        (
            json!({}),
            SPOOFED,
            &[
                ("X-Forwarded-For", Some("6.6.6.6, 7.7.7.7, 127.0.0.1")),
                ("X-Forwarded-Proto", Some("http")),
                ("X-Forwarded-Host", Some("A.test:81")),
                ("X-Forwarded-Port", Some("81")),
                ("X-Real-IP", Some("127.0.0.1")),
                ("Forwarded", None),
            ],
        ),
        // A trusted peer's are kept.
        (
            trusted(&["127.0.0.0/8"]),
            SPOOFED,
            &[
                ("X-Forwarded-For", Some("6.6.6.6, 7.7.7.7, 127.0.0.1")),
                ("X-Forwarded-Proto", Some("https")),
                ("X-Forwarded-Host", Some("evil.test")),
                ("X-Forwarded-Port", Some("443")),
                ("X-Real-IP", Some("127.0.0.1")),
            ],
        ),
        // With trusted proxies configured, the fields of all other clients are removed.
        (
            trusted(&["10.0.0.1"]),
            SPOOFED,
            &[
                ("X-Forwarded-For", Some("127.0.0.1")),
                ("X-Forwarded-Proto", Some("http")),
                ("X-Forwarded-Host", Some("A.test:81")),
                ("X-Forwarded-Port", Some("81")),
            ],
        ),
        // The client's address out of a field.
        (real_ip("X-Real-IP", false, &["127.0.0.1"]), SPOOFED, &[("X-Real-IP", Some("6.6.6.6"))]),
        (real_ip("X-Real-IP", false, &["10.0.0.0/8"]), SPOOFED, &[("X-Real-IP", Some("127.0.0.1"))]),
        (
            real_ip("X-Real-IP", false, &["127.0.0.1"]),
            "Host: a\r\nX-Real-IP: nonsense",
            &[("X-Real-IP", Some("127.0.0.1"))],
        ),
        (real_ip("X-Forwarded-For", false, &["127.0.0.1"]), SPOOFED, &[("X-Real-IP", Some("7.7.7.7"))]),
        (real_ip("X-Forwarded-For", true, &["127.0.0.1", "7.7.7.0/24"]), SPOOFED, &[("X-Real-IP", Some("6.6.6.6"))]),
        (real_ip("X-Forwarded-For", true, &["127.0.0.1"]), SPOOFED, &[("X-Real-IP", Some("7.7.7.7"))]),
        (
            real_ip("X-Forwarded-For", true, &["127.0.0.1"]),
            "Host: a\r\nX-Forwarded-For: 2001:db8::7",
            &[("X-Real-IP", Some("2001:db8::7"))],
        ),
        (
            real_ip("X-Forwarded-For", true, &["0.0.0.0/0"]),
            "Host: a\r\nX-Forwarded-For: 1.1.1.1, 2.2.2.2",
            &[("X-Real-IP", Some("1.1.1.1"))],
        ),
    ];
    each(
        cases,
        |(settings, fields, _)| format!("{settings} {fields:?}"),
        |(settings, fields, expected)| {
            let origin = Origin::hello();
            let gateway = Gateway::with(route_to(&[origin.node()]), settings);
            let request = forwarded(&gateway, &origin, fields);
            for (name, value) in *expected {
                let all = request.fields.all(name);
                assert_eq!(all, value.iter().copied().collect::<Vec<_>>(), "{name} in {request:?}");
            }
        },
    );
}

#[test]
fn the_port_is_that_of_host_or_of_the_listener() {
    let origin = Origin::hello();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let own = gateway.addr.port().to_string();
    for (host, port) in [("a.test:8080", "8080"), ("a.test", own.as_str()), ("[::1]:81", "81"), ("[::1]", own.as_str())]
    {
        let request = forwarded(&gateway, &origin, &format!("Host: {host}"));
        assert_eq!(request.fields.all("x-forwarded-port"), [port], "{host}");
    }
}

#[test]
fn host_follows_pass_host() {
    let origin = Origin::hello();
    let (ip, port) = ("127.0.0.1", origin.addr().port());
    let node = format!("{ip}:{port}");
    let nodes = json!({ (node.as_str()): 1 });
    let named = json!([{ "host": "localhost", "port": port, "weight": 1 }]);
    let named_host = format!("localhost:{port}");
    for (upstream, host) in [
        (json!({ "nodes": nodes }), "A.test:81"),
        (json!({ "nodes": nodes, "pass_host": "pass" }), "A.test:81"),
        (json!({ "nodes": nodes, "pass_host": "node" }), node.as_str()),
        (json!({ "nodes": named, "pass_host": "node" }), named_host.as_str()),
        (json!({ "nodes": nodes, "pass_host": "rewrite", "upstream_host": "other.test:82" }), "other.test:82"),
    ] {
        let gateway = Gateway::start(route_with(json!({}), upstream.clone()));
        let request = forwarded(&gateway, &origin, "Host: A.test:81");
        assert_eq!(request.fields.all("host"), [host], "{upstream}");
        assert_eq!(request.field("x-forwarded-host"), Some("A.test:81"), "{upstream}");
    }
}

#[test]
fn the_upstream_status_is_told_as_the_reference_says() {
    let origin = Origin::answering(|request| {
        let status = request.target.trim_start_matches('/').parse().expect("a status");
        Answer::status(status, "")
    });
    let shown = json!({ "show_upstream_status_in_response_header": true });
    for (settings, path, expected) in [
        (json!({}), "/200", None),
        (json!({}), "/404", None),
        (json!({}), "/500", Some("500")),
        (json!({}), "/503", Some("503")),
        (shown.clone(), "/200", Some("200")),
        (shown, "/404", Some("404")),
    ] {
        let gateway = Gateway::with(route_to(&[origin.node()]), &settings);
        assert_eq!(gateway.get(path).field("x-apisix-upstream-status"), expected, "{settings} {path}");
    }
}
