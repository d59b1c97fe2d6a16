//! Messages from end to end over either protocol of the client: every framing of the origin, trailers, interim responses,
//! early answers, and answers that break off.

use serde_json::json;

use crate::harness::{
    Answer, Fault, Framing, Nginx, Origin, Protocol, Start, chunked, each, get, over_both, route_to, route_with,
};

over_both!(
    bodies_cross_both_ways_in_every_framing,
    trailers_cross_both_ways,
    answers_without_a_body_end_with_their_head,
    interim_responses_reach_the_client,
    an_expectation_may_be_answered_without_the_body,
    an_answer_may_come_before_the_request_has_ended,
    a_body_that_is_cut_off_upstream_does_not_look_whole,
    an_nginx_origin_is_served_through,
);

/// Deterministic bytes in which a shift or a repetition shows.
pub(crate) fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// An origin that gives every request's body back, in the framing that the target names.
pub(crate) fn mirror() -> Origin {
    Origin::answering(|request| {
        let body = &request.body;
        let head = |framing: &str| format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n").into_bytes();
        match request.target.as_str() {
            "/length" => Answer::keep([head(&format!("Content-Length: {}", body.len())), body.clone()].concat()),
            "/chunked" => Answer::keep([head("Transfer-Encoding: chunked"), chunked(body, 7001)].concat()),
            "/close" => Answer::close([head("X-Until: close"), body.clone()].concat()),
            "/old" => Answer::close([b"HTTP/1.0 200 OK\r\n\r\n".to_vec(), body.clone()].concat()),
            other => panic!("no answer for {other}"),
        }
    })
}

fn bodies_cross_both_ways_in_every_framing(over: Protocol) {
    let origin = mirror();
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut cases = Vec::new();
    for size in [0, 1, 13, 4095, 16 << 10, (64 << 10) + 1, 1 << 20] {
        for sent in ["length", "chunked"] {
            for answered in ["length", "chunked", "close", "old"] {
                cases.push((size, sent, answered));
            }
        }
    }
    let name = |case: &(usize, &str, &str)| format!("{case:?}");
    each(&cases, name, |(size, sent, answered)| {
        let body = pattern(*size);
        let (framing, encoded) = match *sent {
            "length" => (format!("Content-Length: {size}"), body.clone()),
            _ => ("Transfer-Encoding: chunked".to_owned(), chunked(&body, 3001)),
        };
        let head = format!("POST /{answered} HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n");
        let mut client = gateway.caller();
        // Twice on one connection: what the first message leaves behind would show in the second.
        for _ in 0..2 {
            let response = client.request([head.as_bytes(), &encoded].concat());
            assert_eq!(response.status, 200);
            assert!(response.body == body, "{} bytes came back, or others", response.body.len());
            assert!(response.keeps_connection(), "the upstream's close is not the client's: {response:?}");
            match *answered {
                "length" => assert_eq!(response.framing, Framing::Length(*size)),
                _ => assert_eq!(response.framing, Framing::Chunked),
            }
        }
    });
    assert!(origin.requests().iter().all(|r| r.minor == 1 && r.field("connection").is_none()), "{:?}", origin.last());
}

fn trailers_cross_both_ways(over: Protocol) {
    let origin = Origin::answering(|_| {
        Answer::keep(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Down\r\n\r\n\
             2\r\nhi\r\n0\r\nX-Down: 2\r\nContent-Length: 9\r\n\r\n",
        )
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();
    for _ in 0..2 {
        // Over HTTP/2 a field of the connection would be malformed.
        let framing = if over == Protocol::Http1 { "Transfer-Encoding: chunked\r\n" } else { "" };
        let response = client.request(format!(
            "POST / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nConnection: TE\r\nTransfer-Encoding: chunked\r\n\r\n\
             2\r\nhi\r\n0\r\nX-Up: 1\r\n{framing}Host: evil.test\r\n\r\n",
        ));
        assert_eq!((response.trailers.0.len(), response.trailers.get("x-down")), (1, Some("2")), "no framing field");
        let seen = origin.last().trailers;
        assert_eq!((seen.0.len(), seen.get("x-up")), (1, Some("1")), "no routing field in a trailer");
    }
}

fn answers_without_a_body_end_with_their_head(over: Protocol) {
    let origin = Origin::answering(|request| {
        let answer = match request.target.as_str() {
            "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n",
            "/head-chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
            "/304" => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 99\r\n\r\n",
            "/empty" => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "/205" => "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
            other => panic!("no answer for {other}"),
        };
        Answer::keep(answer)
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();
    for (method, path, status, length) in [
        ("HEAD", "/head", 200, Some("1234")),
        ("HEAD", "/head-chunked", 200, None),
        ("HEAD", "/304", 304, Some("99")),
        ("GET", "/204", 204, None),
        ("GET", "/304", 304, Some("99")),
        ("GET", "/empty", 200, Some("0")),
        ("GET", "/205", 205, Some("0")),
    ] {
        let response = client.request(format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        assert_eq!((response.status, response.field("content-length")), (status, length), "{method} {path}");
        assert!(over == Protocol::Http2 || !response.reason.is_empty(), "{method} {path}");
    }
    assert_eq!(origin.connections(), 1, "each answer left a connection that could be used again");
}

fn interim_responses_reach_the_client(over: Protocol) {
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.head() {
            match request.target.as_str() {
                "/continue" => {
                    assert_eq!(request.field("expect"), Some("100-continue"));
                    connection.send("HTTP/1.1 100 Continue\r\n\r\n");
                }
                "/hints" => {
                    connection
                        .send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n");
                    connection.send("HTTP/1.1 103 Early Hints\r\nLink: </b.css>\r\n\r\n");
                }
                _ => {}
            }
            let Some(request) = connection.body_of(request) else { return };
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len()));
            connection.send(&request.body);
        }
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();

    client.send("POST /continue HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.head().status(), Ok((100, "Continue", 1)));
    client.send("hello");
    assert_eq!(client.response().text(), "hello");

    // The body is there already: an interim response may come or not (RFC 9110 section 10.1.1), the answer has to.
    client.send("POST /continue HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    let head = client.head();
    let (status, ..) = head.status().expect("a status line");
    let text = match status {
        100 => client.response().body,
        _ => client.body(Framing::Length(5)).expect("the body").0,
    };
    assert_eq!(text, b"hello");

    client.send(get("/hints"));
    for link in ["</a.css>", "</b.css>"] {
        let head = client.head();
        assert_eq!(head.status().map(|(status, ..)| status), Ok(103));
        assert_eq!((head.fields.get("link"), head.fields.get("x-hop")), (Some(link), None));
    }
    assert_eq!(client.response().status, 200);

    // RFC 9110 section 15.2: no interim response to an HTTP/1.0 client.
    assert_eq!(gateway.client().request("GET /hints HTTP/1.0\r\nHost: a.test\r\n\r\n").status, 200);
}

fn an_expectation_may_be_answered_without_the_body(over: Protocol) {
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.head() {
            connection.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
            if request.method == "POST" {
                return;
            }
        }
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    let mut client = gateway.caller();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 50\r\n\r\n");
    let response = client.response();
    assert_eq!((response.status, response.text().as_str()), (403, "no"));
    // RFC 9110 section 10.1.1: it is closed now, or what follows is the body that was announced.
    if response.keeps_connection() {
        // Over HTTP/2 the stream is over, and only the next one goes on.
        let rest = if over == Protocol::Http1 { "x".repeat(50) } else { String::new() };
        client.send(rest + &get("/next"));
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (403, "no"));
        assert_eq!(origin.last().target, "/next");
    } else {
        client.expect_close();
    }
}

fn an_answer_may_come_before_the_request_has_ended(over: Protocol) {
    let origin = Origin::scripted(|connection| {
        if connection.head().is_some() {
            connection.send("HTTP/1.1 413 Too Large\r\nContent-Length: 6\r\nConnection: close\r\n\r\nenough");
            connection.finish_sending();
            connection.await_close();
        }
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    for framing in ["Content-Length: 100000000", "Transfer-Encoding: chunked"] {
        let mut client = gateway.caller();
        client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n"));
        client.send("5\r\nhello\r\n");
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (413, "enough"), "{framing}");
        assert!(over == Protocol::Http2 || !response.keeps_connection(), "{framing}: the rest is still to come");
        if over == Protocol::Http2 {
            client.expect_close();
        }
    }
    assert_eq!(origin.connections(), 2, "a connection with half a request on it is not used again");
}

fn a_body_that_is_cut_off_upstream_does_not_look_whole(over: Protocol) {
    let origin = Origin::scripted(|connection| {
        let Some(request) = connection.request() else { return };
        connection.send(match request.target.as_str() {
            "/length" => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
            "/chunked" | "/chunked-reset" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "/chunk" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
            "/bad-chunk" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n",
            other => panic!("no answer for {other}"),
        });
        if request.target.ends_with("-reset") {
            connection.reset();
        }
    });
    let gateway = Start::new(route_to(&[origin.node()])).over(over).start();
    each(
        &["/length", "/chunked", "/chunked-reset", "/chunk", "/bad-chunk"],
        |path| path.to_string(),
        |path| {
            let mut client = gateway.caller();
            client.send(get(path));
            let answer = client.try_response();
            // A failure before the head was sent may also be answered as an error.
            let told = answer.as_ref().is_ok_and(|r| r.status == 502);
            let cut = match &answer {
                Err(Fault::Malformed(code)) => over == Protocol::Http2 && code == "INTERNAL_ERROR",
                Err(Fault::Closed | Fault::Reset) => over == Protocol::Http1,
                _ => false,
            };
            assert!(told || cut, "{answer:?}");
        },
    );
}

fn an_nginx_origin_is_served_through(over: Protocol) {
    let nginx = Nginx::start(
        "location /upload { client_body_in_file_only off; return 200 \"$request_length\"; }\n\
         location /gone { return 404 'nothing here'; }\n\
         location /moved { return 302 /elsewhere; }\n\
         location /gzip { gzip on; gzip_min_length 1; gzip_types text/plain; alias FOLDER; }",
    );
    let file = pattern(300_000);
    nginx.write("file", &file);
    let gateway = Start::new(route_with(json!({}), json!({ "nodes": { (nginx.node()): 1 } }))).over(over).start();
    let mut client = gateway.caller();

    let response = client.get("/file");
    assert_eq!((response.status, response.framing), (200, Framing::Length(300_000)));
    assert!(response.body == file);
    let etag = response.field("etag").expect("nginx sends an ETag").to_owned();

    let with = |fields: &str| format!("GET /file HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\n");
    let response = client.request(with(&format!("If-None-Match: {etag}")));
    assert_eq!((response.status, response.body.len()), (304, 0));
    let response = client.request(with("Range: bytes=100-199"));
    assert_eq!((response.status, &response.body[..]), (206, &file[100..200]));
    let response = client.request("HEAD /file HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!((response.status, response.field("content-length")), (200, Some("300000")));
    // nginx answers this one before it has read the body, which may cost the connection.
    let response = gateway.caller().request(
        [b"PUT /upload HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), chunked(&file, 5000)]
            .concat(),
    );
    assert_eq!(response.status, 200);
    assert_eq!(client.get("/gone").text(), "nothing here");
    assert_eq!(client.get("/moved").status, 302);
    let response = client.request("GET /gzip/file HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: gzip\r\n\r\n");
    assert_eq!((response.field("content-encoding"), response.framing), (Some("gzip"), Framing::Chunked));
}
