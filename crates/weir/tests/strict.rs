//! Malformed or ambiguous messages (RFC 9110, RFC 9112) are refused, from clients and from upstreams alike.

use crate::harness::{Gateway, Origin, each, get, route_to};

/// A request that must be refused: name, bytes, and the statuses that say so.
type Refused = (&'static str, String, &'static [u16]);

fn refused_heads() -> Vec<Refused> {
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\n0\r\n\r\n");
    let line = |line: &str| format!("{line}\r\nHost: a.test\r\n\r\n");
    let mut cases: Vec<Refused> = vec![
        // Framing (RFC 9112 section 6.3).
        ("length and chunked", with("Content-Length: 5\r\nTransfer-Encoding: chunked"), &[400]),
        ("chunked and length", with("Transfer-Encoding: chunked\r\nContent-Length: 5"), &[400]),
        ("two lengths that differ", with("Content-Length: 5\r\nContent-Length: 6"), &[400]),
        ("a list of lengths that differ", with("Content-Length: 5, 6"), &[400]),
        ("length with a sign", with("Content-Length: +5"), &[400]),
        ("negative length", with("Content-Length: -5"), &[400]),
        ("hexadecimal length", with("Content-Length: 0x5"), &[400]),
        ("length with a blank", with("Content-Length: 5 5"), &[400]),
        ("empty length", with("Content-Length:"), &[400]),
        ("length over 2^64", with("Content-Length: 18446744073709551617"), &[400, 413]),
        ("unknown coding", with("Transfer-Encoding: gzip, chunked"), &[501]),
        ("unknown coding alone", with("Transfer-Encoding: cow"), &[400, 501]),
        ("chunked not last", with("Transfer-Encoding: chunked, gzip"), &[400, 501]),
        ("chunked twice", with("Transfer-Encoding: chunked, chunked"), &[400]),
        ("chunked in two fields", with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), &[400]),
        ("identity", with("Transfer-Encoding: identity"), &[400, 501]),
        ("a coding that begins with chunked", with("Transfer-Encoding: chunked\u{b}"), &[400]),
        ("a quoted coding", with("Transfer-Encoding: \"chunked\""), &[400, 501]),
        ("chunked in HTTP/1.0", with("Transfer-Encoding: chunked").replace("HTTP/1.1", "HTTP/1.0"), &[400]),
        ("an underscore for a dash", with("Transfer_Encoding: chunked\r\nContent-Length: 5"), &[400]),
        // Field lines (RFC 9112 section 5).
        ("blank before the colon", with("X-A : 1"), &[400]),
        ("tab before the colon", with("X-A\t: 1"), &[400]),
        ("no colon", with("X-A"), &[400]),
        ("no name", with(": 1"), &[400]),
        ("a name with a blank", with("X A: 1"), &[400]),
        ("a name beyond ASCII", with("X-\u{e9}: 1"), &[400]),
        ("folded", with("X-A: 1\r\n 2"), &[400]),
        ("folded with a tab", with("X-A: 1\r\n\t2"), &[400]),
        ("folded first", "GET / HTTP/1.1\r\n X-A: 1\r\nHost: a.test\r\n\r\n".into(), &[400]),
        ("bare LF", with("X-A: 1\nX-B: 2"), &[400]),
        ("bare LF all over", get("/").replace("\r\n", "\n"), &[400]),
        ("bare LF at the end", "GET / HTTP/1.1\r\nHost: a.test\r\n\n".into(), &[400]),
        ("bare CR", with("X-A: 1\rX-B: 2"), &[400]),
        ("CR before CRLF", with("X-A: 1\r"), &[400]),
        // Host (RFC 9112 section 3.2).
        ("no Host", "GET / HTTP/1.1\r\n\r\n".into(), &[400]),
        ("two Hosts", with("Host: a.test"), &[400]),
        ("two Hosts that differ", with("Host: b.test"), &[400]),
        ("empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n".into(), &[400]),
        ("Host with a path", "GET / HTTP/1.1\r\nHost: a.test/x\r\n\r\n".into(), &[400]),
        ("Host with user information", "GET / HTTP/1.1\r\nHost: u@a.test\r\n\r\n".into(), &[400]),
        ("Host with a bad port", "GET / HTTP/1.1\r\nHost: a.test:80x\r\n\r\n".into(), &[400]),
        ("Host with a blank", "GET / HTTP/1.1\r\nHost: a test\r\n\r\n".into(), &[400]),
        ("absolute target without Host", "GET http://a.test/ HTTP/1.1\r\n\r\n".into(), &[400]),
        // Request line (RFC 9112 section 3).
        ("no version", line("GET /"), &[400, 505]),
        ("HTTP/2.0", line("GET / HTTP/2.0"), &[505]),
        ("HTTP/0.9", line("GET / HTTP/0.9"), &[505]),
        ("no HTTP", line("GET / XTTP/1.1"), &[400]),
        ("lower case version", line("GET / http/1.1"), &[400]),
        ("two blanks", line("GET  / HTTP/1.1"), &[400]),
        ("blank in the target", line("GET /a b HTTP/1.1"), &[400]),
        ("blank at the end", line("GET / HTTP/1.1 "), &[400]),
        ("blank first", line(" GET / HTTP/1.1"), &[400]),
        ("tab for a blank", line("GET\t/ HTTP/1.1"), &[400]),
        ("a method with a bad byte", line("G(ET / HTTP/1.1"), &[400]),
        ("no method", line("/ HTTP/1.1"), &[400]),
        ("no slash", line("GET x HTTP/1.1"), &[400]),
        ("another scheme", line("GET ftp://a.test/ HTTP/1.1"), &[400]),
        ("user information", line("GET http://u:p@a.test/ HTTP/1.1"), &[400]),
        ("a fragment", line("GET /a#b HTTP/1.1"), &[400]),
        ("an authority", line("GET a.test:80 HTTP/1.1"), &[400]),
        ("CONNECT", "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n".into(), &[400, 405, 501]),
        ("TRACE", line("TRACE / HTTP/1.1"), &[405]),
        ("an unknown expectation", with("Expect: 200-ok"), &[417]),
        ("the HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), &[400, 505]),
        ("TLS", "\u{16}\u{3}\u{1}\u{0}\u{5}\u{1}\u{0}\u{0}\u{1}\u{3}\r\n\r\n".into(), &[400]),
    ];
    // Control bytes (RFC 9110 section 5.5), in a value, a name and a target.
    for byte in [0, 1, 7, 8, 11, 12, 14, 27, 31, 127] {
        let byte = char::from(byte);
        cases.push(("a control byte in a value", with(&format!("X-A: a{byte}b")), &[400]));
        cases.push(("a control byte in a name", with(&format!("X{byte}A: 1")), &[400]));
        cases.push(("a control byte in a target", line(&format!("GET /a{byte} HTTP/1.1")), &[400]));
    }
    cases
}

#[test]
fn malformed_requests_are_refused_and_the_connection_closed() {
    let origin = Origin::hello();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let cases = refused_heads();
    each(
        &cases,
        |(name, bytes, _)| format!("{name}: {bytes:?}"),
        |(_, bytes, statuses)| {
            let bytes: Vec<u8> = bytes.chars().map(|c| u8::try_from(u32::from(c)).expect("ISO 8859-1")).collect();
            let mut client = gateway.client();
            // A request behind it must not be taken for one.
            client.send([&bytes, get("/smuggled").as_bytes()].concat());
            let response = client.response();
            assert!(statuses.contains(&response.status), "{response:?}");
            assert!(!response.keeps_connection(), "{response:?}");
            client.expect_close();
        },
    );
    assert_eq!(origin.connections(), 0, "something reached the origin: {:?}", origin.requests());
}

#[test]
fn malformed_bodies_are_refused_and_never_look_whole() {
    let origin = Origin::hello();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let cases = [
        "xyz\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "4\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a\u{0}b\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\n\r\n",
        "5\r\nhello\r\n0\r\nX-A : 1\r\n\r\n",
        "5\r\nhello\r\n0\r\nX-A: 1\n\r\n",
        "5\r\nhello\r\n0\r\n folded: 1\r\n\r\n",
        "5\r\nhello\r\n0\r\nX-A\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    ];
    each(
        &cases,
        |body| format!("{body:?}"),
        |body| {
            // At once with the head, and after it, when the head may have gone on already.
            for apart in [false, true] {
                let mut client = gateway.client();
                let head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
                if apart {
                    client.send(head);
                    client.send(format!("{body}{}", get("/smuggled")));
                } else {
                    client.send(format!("{head}{body}{}", get("/smuggled")));
                }
                let response = client.response();
                assert_eq!(response.status, 400, "apart: {apart}: {response:?}");
                client.expect_close();
            }
        },
    );
    gateway.await_metric("weir_upstream_connections", &[("state", "active")], 0.0);
    assert!(origin.complete().is_empty(), "the origin took a malformed request for one: {:?}", origin.complete());
}

#[test]
fn unusual_requests_that_are_correct_are_served() {
    let origin = Origin::echo();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let post = |fields: &str, body: &str| format!("POST / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\n{body}");
    let cases = [
        ("an empty line first", format!("\r\n{}", get("/")), ""),
        ("an unknown method", "FROB-2 / HTTP/1.1\r\nHost: a.test\r\n\r\n".into(), ""),
        ("a body with GET", "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi".into(), "hi"),
        ("leading zeros", post("Content-Length: 0002", "hi"), "hi"),
        ("upper case", post("TRANSFER-ENCODING: CHUNKED", "2\r\nhi\r\n0\r\n\r\n"), "hi"),
        ("blanks around a value", post("Content-Length: \t 2 \t", "hi"), "hi"),
        ("chunk extensions", post("Transfer-Encoding: chunked", "2;a=b;c=\"d;\\\"e\"\r\nhi\r\n0;x\r\n\r\n"), "hi"),
        ("leading zeros of a chunk", post("Transfer-Encoding: chunked", "0002\r\nhi\r\n000\r\n\r\n"), "hi"),
        ("an IPv6 Host", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n".into(), ""),
        ("a name of all token bytes", post("!#$%&'*+-.^_`|~09aZ: 1\r\nContent-Length: 0", ""), ""),
        ("an empty value", post("X-A:\r\nContent-Length: 0", ""), ""),
        ("a tab in a value", post("X-A: a\tb\r\nContent-Length: 0", ""), ""),
        ("empty list elements", post("Connection: ,, keep-alive ,\r\nContent-Length: 2", "hi"), "hi"),
    ];
    each(
        &cases,
        |(name, ..)| name.to_string(),
        |(_, bytes, body)| {
            let mut client = gateway.client();
            for _ in 0..2 {
                let response = client.request(bytes.trim_start_matches("\r\n"));
                assert_eq!((response.status, response.text().as_str()), (200, *body), "{response:?}");
            }
            client.send(bytes);
            assert_eq!(client.response().status, 200);
        },
    );
}

#[test]
fn malformed_responses_are_a_502_and_their_connection_is_not_used_again() {
    let ok = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\nhello");
    let cases = [
        ("length and chunked", ok("Content-Length: 5\r\nTransfer-Encoding: chunked")),
        ("two lengths that differ", ok("Content-Length: 5\r\nContent-Length: 6")),
        ("a list of lengths", ok("Content-Length: 5, 6")),
        ("no number", ok("Content-Length: five")),
        ("negative length", ok("Content-Length: -1")),
        ("unknown coding", ok("Transfer-Encoding: gzip, chunked")),
        ("chunked not last", ok("Transfer-Encoding: chunked, gzip")),
        ("chunked in HTTP/1.0", ok("Transfer-Encoding: chunked").replace("HTTP/1.1", "HTTP/1.0")),
        ("blank before the colon", ok("Content-Length : 5")),
        ("folded", ok("Content-Length: 5\r\nX-A: 1\r\n 2")),
        ("bare LF", ok("Content-Length: 5\nX-A: 1")),
        ("bare LF all over", ok("Content-Length: 5").replace("\r\n", "\n")),
        ("bare CR", ok("Content-Length: 5\r\nX-A: 1\r2")),
        ("a control byte", ok("Content-Length: 5\r\nX-A: \u{1}")),
        ("NUL", ok("Content-Length: 5\r\nX-A: \u{0}")),
        ("no name", ok("Content-Length: 5\r\n: 1")),
        ("no colon", ok("Content-Length: 5\r\nX-A")),
        ("a bad version", ok("Content-Length: 5").replace("HTTP/1.1", "HTTP/2.0")),
        ("no HTTP", "hello\r\n\r\n".to_owned()),
        ("a status of two digits", ok("Content-Length: 5").replace("200", "20")),
        ("a status that is no number", ok("Content-Length: 5").replace("200", "abc")),
        ("a status of four digits", ok("Content-Length: 5").replace("200", "2000")),
        ("nothing", String::new()),
        ("half a head", "HTTP/1.1 200 OK\r\nContent-".to_owned()),
        ("half a status line", "HTTP/1.1 2".to_owned()),
        ("an empty line first", format!("\r\n{}", ok("Content-Length: 5"))),
    ];
    each(
        &cases,
        |(name, _)| name.to_string(),
        |(_, bytes)| {
            let answer = bytes.clone();
            let origin = Origin::scripted(move |connection| {
                if connection.request().is_some() {
                    connection.send(&answer);
                    connection.finish_sending();
                    connection.await_close();
                }
            });
            let gateway = Gateway::start(route_to(&[origin.node()]));
            let mut client = gateway.client();
            for number in 1..=2 {
                // POST: what was sent once is not sent again.
                let response = client.request("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n");
                assert_eq!(response.status, 502, "{response:?}");
                assert_eq!(response.json(), serde_json::json!({ "error_msg": "502 Bad Gateway" }), "{response:?}");
                assert!(response.field("x-weir-error").is_some_and(|e| e.starts_with("upstream")), "{response:?}");
                assert!(response.keeps_connection(), "the client has done nothing wrong: {response:?}");
                assert_eq!(origin.connections(), number, "the connection was used again");
            }
        },
    );
}

#[test]
fn bytes_behind_a_response_are_never_anybodys_answer() {
    // Each of these leaves something behind the first answer; the second request must not get it.
    let stray = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nEVIL!";
    let cases = [
        ("another response", format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello{stray}")),
        ("after 204", format!("HTTP/1.1 204 No Content\r\n\r\n{stray}")),
        ("after 304", format!("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n{stray}")),
        (
            "after chunks",
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n{stray}"),
        ),
        ("garbage", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\r\n\r\n".to_owned()),
    ];
    each(
        &cases,
        |(name, _)| name.to_string(),
        |(_, bytes)| {
            let first = bytes.clone();
            let origin = Origin::scripted(move |connection| {
                while let Some(request) = connection.request() {
                    connection.send(match request.target.as_str() {
                        "/first" => first.as_str(),
                        _ => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ngood!",
                    });
                }
            });
            let gateway = Gateway::start(route_to(&[origin.node()]));
            let mut client = gateway.client();
            for _ in 0..3 {
                assert!(client.get("/first").status < 400);
                let response = client.get("/second");
                assert_eq!((response.status, response.text().as_str()), (200, "good!"));
            }
        },
    );
}
