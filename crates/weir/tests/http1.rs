//! HTTP/1.1 with clients: heads and messages in pieces, versions, every kind of connection.

use std::time::Duration;

use serde_json::json;

use crate::harness::{
    Answer, Fault, Framing, Gateway, LIMIT, Origin, chunked, each, get, post, route_to, timed, wait_until,
};
use crate::messages::{mirror, pattern};

#[test]
fn a_message_may_come_in_pieces_of_any_size() {
    let origin = mirror();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let body = pattern(300);
    let message = [
        b"POST /chunked HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n".to_vec(),
        chunked(&body, 11).strip_suffix(b"\r\n").expect("a body ends in an empty line").to_vec(),
        b"X-Sum: 7\r\n\r\n".to_vec(),
    ]
    .concat();
    each(
        &[1, 2, 3, 7, 64],
        |step| format!("pieces of {step}"),
        |step| {
            let mut client = gateway.client();
            for piece in message.chunks(*step) {
                client.send(piece);
            }
            let response = client.response();
            assert_eq!((response.status, &response.body), (200, &body));
        },
    );
}

#[test]
fn a_head_may_fill_a_buffer_to_the_last_byte() {
    // Sizes at which buffers end, of a request and of a response: what follows the head needs room too.
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.request() {
            let size: usize = request.field("x-size").and_then(|s| s.parse().ok()).expect("a size");
            let head = padded("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", size);
            // The body comes later than the head.
            connection.send(head);
            std::thread::yield_now();
            connection.send(&request.body);
        }
    });
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let sizes: Vec<usize> = [4096, 8192, 16_384, 32_768, 65_000].iter().flat_map(|size| size - 2..=size + 2).collect();
    each(
        &sizes,
        |size| format!("{size} bytes"),
        |size| {
            let mut client = gateway.client();
            for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
                let start = format!("POST / HTTP/1.1\r\nHost: a.test\r\n{framing}\r\nX-Size: {size}\r\n");
                client.send(padded(&start, *size));
                // Once the head alone has been seen, there is nothing else in the gateway's buffer.
                client.expect_quiet(std::time::Duration::from_millis(20));
                match framing {
                    "Content-Length: 5" => client.send("hello"),
                    _ => client.send("5\r\nhello\r\n0\r\n\r\n"),
                }
                assert_eq!(client.response().text(), "hello", "{framing}");
            }
        },
    );
}

/// A head of exactly so many bytes.
fn padded(start: &str, size: usize) -> String {
    let room = size - start.len() - "X-Pad: \r\n\r\n".len();
    format!("{start}X-Pad: {}\r\n\r\n", "p".repeat(room))
}

#[test]
fn a_long_trailer_finds_room_behind_a_long_head() {
    let line = |size: usize| format!("X-T: {}\r\n", "t".repeat(size));
    let answer = format!(
        "{}5\r\nhello\r\n0\r\n{}\r\n",
        padded("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", 15_000),
        line(6000)
    );
    let origin = Origin::answering(move |_| Answer::keep(answer.clone()));
    let gateway = Gateway::start(route_to(&[origin.node()]));
    for pieces in [100_000, 1000] {
        let head = padded("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n", 15_000);
        let message = format!("{head}5\r\nhello\r\n0\r\n{}\r\n", line(6000));
        let mut client = gateway.client();
        for piece in message.as_bytes().chunks(pieces) {
            client.send(piece);
        }
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (200, "hello"));
        assert_eq!(response.trailers.get("x-t").map(str::len), Some(6000));
        assert_eq!(origin.last().trailers.get("x-t").map(str::len), Some(6000));
    }
}

#[test]
fn reason_phrases_go_on() {
    let lines = [
        ("HTTP/1.1 200 All is well", "All is well"),
        ("HTTP/1.0 200 All is well", "All is well"),
        ("HTTP/1.1 404 ", "Not Found"),
        ("HTTP/1.0 404", "Not Found"),
        ("HTTP/1.1 599 It (did) not!", "It (did) not!"),
        ("HTTP/1.1 599 ", ""),
    ];
    let origin = Origin::answering(move |request| {
        let (line, _) = lines[request.target[1..].parse::<usize>().unwrap()];
        Answer::keep(format!("{line}\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"))
    });
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let mut client = gateway.client();
    for (at, (line, reason)) in lines.iter().enumerate() {
        let response = client.request(format!("GET /{at} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        assert_eq!((response.reason.as_str(), response.minor), (*reason, 1), "{line}");
    }
}

#[test]
fn http_1_0_clients_are_served() {
    let origin = mirror();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    for (fields, path, framing, kept) in [
        ("", "/length", Framing::Length(5), false),
        ("", "/chunked", Framing::UntilClose, false),
        ("", "/close", Framing::UntilClose, false),
        ("Connection: keep-alive\r\n", "/length", Framing::Length(5), true),
        ("Connection: keep-alive\r\n", "/chunked", Framing::UntilClose, false),
        ("Connection: keep-alive\r\n", "/old", Framing::UntilClose, false),
    ] {
        let mut client = gateway.client();
        let response =
            client.request(format!("POST {path} HTTP/1.0\r\nHost: a.test\r\n{fields}Content-Length: 5\r\n\r\nhello"));
        assert_eq!((response.status, response.text().as_str()), (200, "hello"), "{path} {fields:?}");
        assert_eq!((response.framing, response.keeps_connection()), (framing, kept), "{path} {fields:?}");
        if kept {
            assert_eq!(client.get("/length").status, 200);
        } else if framing != Framing::UntilClose {
            client.expect_close();
        }
    }
    // RFC 9112 section 3.2: Host is optional in HTTP/1.0, and what goes on is HTTP/1.1.
    assert_eq!(gateway.client().request("GET /length HTTP/1.0\r\n\r\n").status, 200);
    assert_eq!((origin.last().minor, origin.last().fields.all("host").len()), (1, 1));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::echo();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for number in 0..30 {
        let (path, body) = (format!("/{number}"), format!("body {number}"));
        match number % 3 {
            0 => bytes.extend(get(&path).bytes()),
            1 => bytes.extend(post(&path, &body).bytes()),
            _ => {
                bytes.extend(
                    format!("PUT {path} HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n").bytes(),
                );
                bytes.extend(chunked(body.as_bytes(), 3));
            }
        }
        expected.push((path, if number % 3 == 0 { String::new() } else { body }));
    }
    each(
        &[usize::MAX, 1, 17, 1000],
        |step| format!("in pieces of {step}"),
        |step| {
            let mut client = gateway.client();
            for piece in bytes.chunks((*step).min(bytes.len())) {
                client.send(piece);
            }
            for (path, body) in &expected {
                let response = client.response();
                assert_eq!((response.field("x-target"), &response.text()), (Some(path.as_str()), body));
            }
        },
    );
}

#[test]
fn connections_are_kept_on_both_sides() {
    let origin = Origin::hello();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let mut client = gateway.client();
    for _ in 0..100 {
        assert_eq!(client.get("/").text(), "hello");
    }
    assert_eq!(origin.connections(), 1);

    let response = client.request("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    assert!(!response.keeps_connection(), "{response:?}");
    client.expect_close();
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(origin.connections(), 1, "the client's close is not the upstream's");
}

#[test]
fn what_follows_the_last_request_does_not_cost_its_answer() {
    // Closing a connection with bytes unread resets it, and a reset takes along what is still on its way to the client.
    let body = pattern(2 << 20);
    let expected = body.clone();
    let origin = Origin::answering(move |_| {
        Answer::keep([format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat())
    });
    let gateway = Gateway::start(route_to(&[origin.node()]));
    let mut whole = 0;
    wait_until("ten whole answers", LIMIT, || {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
        let mut sender = client.sender();
        let junk = std::thread::spawn(move || {
            use std::io::Write;
            // The gateway may be gone before it has taken all of it.
            let _ = sender.write_all(&vec![b'x'; 4 << 20]);
        });
        let (response, took) = timed(|| client.try_response());
        match response {
            Ok(response) => {
                assert!(response.body == expected, "{} bytes, or others", response.body.len());
                whole += 1;
            }
            // The gateway waits a second for a client that reads late.
            Err(fault) => assert!(took >= Duration::from_millis(900), "{fault:?} after {took:?}"),
        }
        drop(client);
        junk.join().expect("the sending thread");
        (whole == 10).then_some(())
    });
}

#[test]
fn a_half_closed_client_gets_its_answers() {
    let origin = Origin::echo();
    let gateway = Gateway::start(route_to(&[origin.node()]));
    for (bytes, answers) in [(get("/1"), 1), (get("/1") + &post("/2", "two") + &get("/3"), 3)] {
        let mut client = gateway.client();
        client.send(bytes);
        client.finish_sending();
        for number in 1..=answers {
            assert_eq!(client.response().field("x-target"), Some(format!("/{number}").as_str()));
        }
        client.expect_close();
    }
    // The end inside a message is no request at all.
    let mut client = gateway.client();
    client.send("GET /cut HTTP/1.1\r\nHost:");
    client.finish_sending();
    let answer = client.try_response();
    assert!(matches!(&answer, Err(Fault::Closed)) || answer.as_ref().is_ok_and(|r| r.status == 400), "{answer:?}");
    assert!(origin.requests().iter().all(|r| r.target != "/cut"));
}

/// Nothing of what it was answered is lost when it ends its side long before it reads, or asks for the end.
#[test]
fn a_client_that_reads_late_gets_all_answers() {
    const ASKED: usize = 3000;
    let mock = json!({ "mocking": { "response_example": "x".repeat(3000) } });
    let gateway = Gateway::start(json!({ "routes": [{ "id": "mock", "uri": "/*", "plugins": mock }] }));
    let last = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    for (ends, bytes) in [(true, get("/").repeat(ASKED)), (false, get("/").repeat(ASKED - 1) + last)] {
        let mut client = gateway.client();
        client.send(bytes);
        if ends {
            client.finish_sending();
        }
        let served = || gateway.metric("apisix_http_requests_total", &[]) as usize;
        let mut before = 0;
        wait_until("the gateway to have no room left", LIMIT, || {
            let now = served();
            (std::mem::replace(&mut before, now) == now && now > 0).then_some(())
        });
        for number in 1..=ASKED {
            let answer = client.response();
            assert_eq!((answer.status, answer.body.len()), (200, 3000), "answer {number} of {ASKED}");
        }
        client.expect_close();
    }
}

#[test]
fn absolute_targets_name_their_host() {
    let origin = Origin::echo();
    let gateway = Gateway::start(json!({ "routes": [
        { "id": "b", "uri": "/*", "host": "b.test", "upstream": { "nodes": { (origin.node()): 1 } } },
    ]}));
    // RFC 9112 section 3.2.2: the target's authority takes the place of Host.
    for (target, host, sent, forwarded) in [
        ("http://b.test/x?y=1", "a.test", "/x?y=1", "b.test"),
        ("HTTP://B.test:8080/x", "b.test", "/x", "B.test:8080"),
        ("http://b.test", "b.test", "/", "b.test"),
        ("http://b.test?q", "b.test", "/?q", "b.test"),
    ] {
        let response = gateway.client().request(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(response.status, 200, "{target}");
        let seen = origin.last();
        assert_eq!(seen.target, sent, "{target}");
        assert!(seen.field("host").is_some_and(|host| host.eq_ignore_ascii_case(forwarded)), "{target}: {seen:?}");
    }
    let elsewhere = gateway.client().request("GET http://c.test/x HTTP/1.1\r\nHost: b.test\r\n\r\n");
    assert_eq!(elsewhere.status, 404, "Host does not count beside an absolute target");
}
