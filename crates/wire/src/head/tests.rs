use super::{Buffer, Content, Framing, Http1, Limits, Method, RequestHead, ResponseHead, Version};

fn parse_request(text: &str) -> Result<(RequestHead, Http1), u16> {
    let mut head = RequestHead::default();
    let http1 = head.parse(text.as_bytes(), &Limits::default()).map_err(|reject| reject.status)?;
    Ok((head, http1.ok_or(0u16)?))
}

fn request(text: &str) -> Result<RequestHead, u16> {
    parse_request(text).map(|(head, _)| head)
}

fn parse_response(text: &str, to: Method) -> Result<(ResponseHead, Http1), u16> {
    let mut head = ResponseHead::default();
    let http1 = head.parse(text.as_bytes(), &Limits::default(), to).map_err(|reject| reject.status)?;
    Ok((head, http1.ok_or(0u16)?))
}

fn response(text: &str, to: Method) -> Result<ResponseHead, u16> {
    parse_response(text, to).map(|(head, _)| head)
}

#[test]
fn a_request_is_split_and_framed() {
    let text = "\r\nPOST /a?b HTTP/1.1\r\nHost: a.test:80\r\nContent-Length: 5\r\nX-E:\r\n\r\nhello";
    let (head, http1) = parse_request(text).unwrap();
    let base = text.as_bytes();
    assert_eq!((head.method, head.version, head.content), (Method::Post, Version::Http11, Content::Length(5)));
    assert_eq!(head.target.of(base), b"/a?b");
    assert_eq!(head.host.unwrap().of(base), b"a.test:80");
    assert_eq!((&text[http1.len..], http1.framing), ("hello", Framing::Length(5)));
    assert_eq!(head.fields.get_str(base, b"x-e"), Some(&b""[..]));
    assert!(http1.keep_alive && !head.expect_continue && !head.websocket);
}

#[test]
fn fields_for_the_connection_are_held_back() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nConnection: X-Foo, keep-alive, host\r\nX-Foo: 1\r\nX-Bar: 2\r\nTE: trailers\r\nKeep-Alive: 5\r\n\r\n";
    let head = request(text).unwrap();
    let mut out = Vec::new();
    head.fields.write(text.as_bytes(), &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "Host: a\r\nX-Bar: 2\r\n");
    assert_eq!(head.fields.get_str(text.as_bytes(), b"x-foo"), Some(&b"1"[..]), "still readable");
}

#[test]
fn persistence_follows_version_and_connection() {
    for (line, field, keep) in [
        ("HTTP/1.1", "", true),
        ("HTTP/1.1", "Connection: close\r\n", false),
        ("HTTP/1.1", "Connection: ,, ,CLOSE,,\r\n", false),
        ("HTTP/1.0", "", false),
        ("HTTP/1.0", "Connection: keep-alive\r\n", true),
        ("HTTP/1.0", "Connection: keep-alive, close\r\n", false),
    ] {
        let (_, http1) = parse_request(&format!("GET / {line}\r\nHost: a\r\n{field}\r\n")).unwrap();
        assert_eq!(http1.keep_alive, keep, "{line} {field}");
    }
}

#[test]
fn websockets_are_recognised_and_nothing_else() {
    for (method, line, fields, websocket) in [
        ("GET", "HTTP/1.1", "Upgrade: websocket\r\nConnection: Upgrade\r\n", true),
        ("GET", "HTTP/1.1", "Upgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\n", true),
        ("GET", "HTTP/1.0", "Upgrade: websocket\r\nConnection: Upgrade\r\n", false),
        ("GET", "HTTP/1.1", "Upgrade: websocket\r\n", false),
        ("GET", "HTTP/1.1", "Upgrade: h2c\r\nConnection: Upgrade\r\n", false),
        ("POST", "HTTP/1.1", "Upgrade: websocket\r\nConnection: Upgrade\r\n", false),
        ("GET", "HTTP/1.1", "Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 3\r\n", false),
    ] {
        let text = format!("{method} / {line}\r\nHost: a\r\n{fields}\r\n");
        assert_eq!(request(&text).unwrap().websocket, websocket, "{text}");
    }
}

#[test]
fn ambiguous_requests_are_refused() {
    for (status, text) in [
        (400, "GET / HTTP/1.1\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
        (400, "GET / HTTP/1.1\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\n\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nKeep\rAlive: timeout=5\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nContent\rLength: 5\r\nX-Padding: so that more follows\r\n\r\n"),
        (400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.1 \r\nHost: a\r\n\r\n"),
        (400, "GET /\r\nHost: a\r\n\r\n"),
        (400, "G(T / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
        (505, "GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.10\r\nHost: a\r\n\r\n"),
        (400, "GET / http/1.1\r\nHost: a\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775808\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: , chunked\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n"),
        (501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\n\r\n"),
        (417, "GET / HTTP/1.1\r\nHost: a\r\nExpect: teapot\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nExpect: 100-continue\r\n\r\n"),
    ] {
        assert_eq!(request(text).err(), Some(status), "{text:?}");
    }
    let listed = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n", "x,".repeat(100));
    assert_eq!(request(&listed).err(), Some(400));
}

#[test]
fn limits_have_their_own_statuses() {
    let limits = Limits { head: 1000, fields: 4, target: 100 };
    let parse =
        |text: &str| RequestHead::default().parse(text.as_bytes(), &limits).map(|h| h.is_some()).map_err(|r| r.status);
    let long = "a".repeat(2000);
    assert_eq!(parse(&format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", &long[..150])), Err(414));
    assert_eq!(parse(&format!("GET /{}", &long[..200])), Err(414), "before its end is there");
    assert_eq!(parse(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n")), Err(431));
    assert_eq!(
        parse(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", &long[..990])),
        Err(431),
        "before its end is there"
    );
    assert_eq!(parse(&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: 1\r\n".repeat(4))), Err(431));
    assert_eq!(parse(&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: 1\r\n".repeat(3))), Ok(true));
    assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\n"), Ok(false));
}

#[test]
fn a_response_is_framed_by_status_and_method() {
    for (text, to, framing, keep) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Method::Get, Framing::Length(3), true),
        ("HTTP/1.1 200\r\nContent-Length: 3\r\n\r\n", Method::Get, Framing::Length(3), true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Method::Get, Framing::Chunked, true),
        ("HTTP/1.1 200 OK\r\n\r\n", Method::Get, Framing::UntilClose, false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Method::Head, Framing::None, true),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", Method::Get, Framing::None, true),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 60\r\n\r\n", Method::Get, Framing::None, true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", Method::Get, Framing::Length(3), false),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\n", Method::Get, Framing::Length(3), false),
    ] {
        let (head, http1) = parse_response(text, to).unwrap();
        assert_eq!((http1.framing, http1.keep_alive), (framing, keep), "{text}");
        assert_eq!(head.content, framing.into(), "{text}");
    }
    let text = "HTTP/1.1 404 Nicht da\r\nX: 1\r\n\r\n";
    assert_eq!(response(text, Method::Get).unwrap().reason.of(text.as_bytes()), b"Nicht da");
}

#[test]
fn broken_responses_are_502() {
    for text in [
        "HTTP/1.1 099 Odd\r\n\r\n",
        "HTTP/1.1 1000 Odd\r\n\r\n",
        "HTTP/1.1 abc Odd\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "just bytes\n",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 3\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 9\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: foo\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nnocolon\r\n\r\n",
    ] {
        assert_eq!(response(text, Method::Get).err(), Some(502), "{text:?}");
    }
}

#[test]
fn edits_go_to_the_overlay() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nX-B: 2\r\nx-a: 3\r\n\r\n";
    let base = text.as_bytes();
    let mut fields = request(text).unwrap().fields;
    fields.set_str(base, b"X-a", b"new\r\nInjected: 1");
    fields.add(b"X-C", b"4");
    assert!(fields.remove_str(base, b"x-b"));
    assert!(!fields.remove_str(base, b"x-b"));
    let mut out = Vec::new();
    fields.write(base, &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "Host: a\r\nX-a: newInjected: 1\r\nX-C: 4\r\n");
    assert_eq!(fields.get_str(base, b"X-A"), Some(&b"newInjected: 1"[..]));
    assert_eq!(fields.iter(base).count(), 3);
}

#[test]
fn added_fields_can_be_taken_over() {
    let text = "HTTP/1.1 200 OK\r\nX-A: 1\r\nx-b: 2\r\nX-a: 3\r\n\r\n";
    let base = text.as_bytes();
    let mut fields = response(text, Method::Get).unwrap().fields;
    fields.add(b"X-C", b"0");
    let mut early = crate::fields::Fields::default();
    early.add(b"X-A", b"new");
    early.add(b"X-D", b"gone");
    early.remove_str(b"", b"x-d");
    early.add(b"X-C", b"9");
    fields.take_over(base, &early);
    let mut out = Vec::new();
    fields.write(base, &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "x-b: 2\r\nX-A: new\r\nX-C: 9\r\n");
}

#[test]
fn names_of_every_length_are_found() {
    for len in 1..80 {
        let name = "n".repeat(len);
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: 1\r\n\r\n");
        let head = request(&text).unwrap();
        assert_eq!(head.fields.get_str(text.as_bytes(), name.to_uppercase().as_bytes()), Some(&b"1"[..]));
        assert_eq!(head.fields.get_str(text.as_bytes(), "n".repeat(len + 32).as_bytes()), None);
    }
}

/// Fields as another protocol brings them, one `name: value` a line.
fn build(method: &str, lines: &str, is_open: bool) -> Result<(RequestHead, Buffer), u16> {
    let (mut head, mut text) = (RequestHead::default(), Buffer::new(64));
    let limits = Limits { head: 200, fields: 5, target: 20 };
    let (method, target) = method.split_once(' ').unwrap();
    let fields = lines.lines().map(|line| line.split_once(": ").unwrap()).map(|(n, v)| (n.as_bytes(), v.as_bytes()));
    head.build(&mut text, (method.as_bytes(), target.as_bytes()), fields, is_open, &limits).map_err(|r| r.status)?;
    Ok((head, text))
}

#[test]
fn a_head_of_another_protocol_is_like_one_that_was_parsed() {
    let (head, text) = build("POST /a?b", "host: a.test:80\ncontent-length: 5\nx-e: 1", true).unwrap();
    let as_text = format!("{}\r\n", String::from_utf8_lossy(text.bytes())).replace("/a?b", "/a?b HTTP/1.1");
    let parsed = request(&as_text).unwrap();
    assert_eq!((head.method, head.version, head.content), (parsed.method, parsed.version, parsed.content));
    assert_eq!((head.target.of(text.bytes()), head.host_len), (&b"/a?b"[..], parsed.host_len));
    assert_eq!(head.host.unwrap().of(text.bytes()), b"a.test:80");
    let written = |head: &RequestHead, base: &[u8]| {
        let mut out = Vec::new();
        head.fields.write(base, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(written(&head, text.bytes()), written(&parsed, as_text.as_bytes()));
    assert_eq!(head.fields.get_str(text.bytes(), b"X-E"), Some(&b"1"[..]));
    assert_eq!(build("POST /", "host: a", true).unwrap().0.content, Content::Unknown);
    assert_eq!(build("GET /", "host: a", false).unwrap().0.content, Content::None);
}

#[test]
fn a_head_of_another_protocol_is_checked_like_one_that_was_parsed() {
    for (status, line, fields) in [
        (400, "GET /", "x-a: 1"),
        (400, "G(T /", "host: a"),
        (400, "GET /a b", "host: a"),
        (414, "GET /aaaaaaaaaaaaaaaaaaaaaaaaaa", "host: a"),
        (400, "GET /", "host: a\nhost: a"),
        (400, "GET /", "host: a\ntransfer-encoding: chunked"),
        (400, "GET /", "host: a\nconnection: close"),
        (400, "GET /", "host: a\nx y: 1"),
        (400, "GET /", "host: a\nx-a: 1\r"),
        (400, "GET /", "host: a\nx-a:  1"),
        (400, "GET /", "host: a\ncontent_length: 5"),
        (400, "GET /", "host: a\ncontent-length: 5\ncontent-length: 5"),
        (417, "GET /", "host: a\nexpect: teapot"),
        (431, "GET /", "host: a\na: 1\nb: 1\nc: 1\nd: 1\ne: 1"),
    ] {
        assert_eq!(build(line, fields, true).err(), Some(status), "{line} {fields:?}");
    }
    let long = format!("host: a\nx-a: {}", "x".repeat(300));
    assert_eq!(build("GET /", &long, false).err(), Some(431));
}

/// Every proper prefix of a valid head is incomplete, and none is refused.
#[test]
fn the_beginning_of_a_head_is_never_refused() {
    for text in [
        "\r\n\r\nPOST http://[::1]:80/a?b HTTP/1.1\r\nHost: [::1]:80\r\nX-E:\r\nContent-Length: 5\r\nX: a\tb \r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        for cut in 0..text.len() {
            let parsed = RequestHead::default().parse(&text.as_bytes()[..cut], &Limits::default());
            assert_eq!(parsed, Ok(None), "{:?}", &text[..cut]);
        }
        assert!(request(text).is_ok());
    }
    for text in ["HTTP/1.1 200 OK\r\nX: 1\r\n\r\n", "HTTP/1.0 404\r\n\r\n", "HTTP/1.1 200 \r\nA: b\r\n\r\n"] {
        for cut in 0..text.len() {
            let parsed = ResponseHead::default().parse(&text.as_bytes()[..cut], &Limits::default(), Method::Get);
            assert_eq!(parsed, Ok(None), "{:?}", &text[..cut]);
        }
        assert!(response(text, Method::Get).is_ok());
    }
}
