//! Streams beside each other: windows, priorities, limits of time and number, and the end of a connection.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use weir_wire::http2::frame::{self, Setting};
use weir_wire::http2::{DEFAULT_WINDOW, ErrorCode};

use super::{gateway, get, post};
use crate::harness::{
    Answer, Fault, Frame, Gateway, H2Client, Origin, Reload, Start, route_to, route_with, wait_until,
};

#[test]
fn streams_do_not_wait_for_each_other() {
    let origin = Origin::answering(|request| {
        if request.target == "/slow" {
            std::thread::sleep(Duration::from_millis(300));
        }
        Answer::ok(&request.target)
    });
    let gateway = gateway(&origin, "");
    let mut client = H2Client::connect(gateway.addr);
    let slow = client.open(&get("/slow"), true);
    let stuck = client.open(&post("/stuck"), false);
    let many: Vec<_> = (0..50).map(|n| (n, client.open(&get(&format!("/{n}")), true))).collect();
    for (n, id) in many {
        assert_eq!(client.response(id).text(), format!("/{n}"));
    }
    assert_eq!(client.response(slow).text(), "/slow");
    client.data(stuck, b"", true);
    assert_eq!(client.response(stuck).text(), "/stuck");
}

#[test]
fn content_keeps_within_the_windows_of_both_sides() {
    let origin = Origin::echo();
    let gateway = gateway(&origin, "");
    let mut client = H2Client::bare(gateway.addr);
    client.greet(&[Setting::InitialWindowSize(1000)]);
    client.stay_silent();
    let body = "0123456789".repeat(1000);
    let id = client.open(&post("/"), false);
    client.data(id, body.as_bytes(), true);
    let mut received = Vec::new();
    let mut windows = (1000, i64::from(DEFAULT_WINDOW));
    let mut out = Vec::new();
    while received.len() < body.len() {
        match client.until(|frame| matches!(frame, Frame::Data { .. })) {
            Frame::Data { content, .. } => {
                windows.0 -= content.len() as i64;
                windows.1 -= content.len() as i64;
                assert!(windows.0 >= 0 && windows.1 >= 0, "{windows:?}");
                received.extend(content);
            }
            other => panic!("{other:?}"),
        }
        if windows.0 == 0 {
            windows.0 += 700;
            out.clear();
            frame::push_window_update(&mut out, id, 700);
            client.send(&out);
        }
    }
    assert!(received == body.as_bytes());

    // A window that shrinks below zero and grows again.
    let id = client.open(&post("/"), false);
    client.data(id, body.as_bytes(), true);
    client.until(|frame| matches!(frame, Frame::Data { stream, .. } if *stream == id));
    out.clear();
    frame::push_settings(&mut out, &[Setting::InitialWindowSize(0)]);
    frame::push_window_update(&mut out, id, 500);
    client.send(&out);
    let quiet = client.frames_within(Duration::from_millis(100));
    assert!(!quiet.iter().any(|frame| matches!(frame, Frame::Data { .. })), "{quiet:?}");
    out.clear();
    frame::push_settings(&mut out, &[Setting::InitialWindowSize(100_000)]);
    client.send(&out);
    assert_eq!(client.response(id).body.len(), body.len());
}

/// A client that sends without end, to a node that does not read, is held up; others on its connection are not.
#[test]
fn a_stream_that_is_held_up_holds_up_no_other() {
    let origin = Origin::scripted(|connection| {
        let Some(request) = connection.head() else { return };
        if request.target == "/stuck" {
            std::thread::sleep(Duration::from_secs(4));
            return;
        }
        if connection.body_of(request).is_some() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    let gateway = gateway(&origin, "http2: {stream_window: 64KiB, connection_window: 256KiB}");
    let mut client = H2Client::connect(gateway.addr);
    let stuck = client.open(&post("/stuck"), false);
    // As much as the window of the stream allows, until it opens no more.
    let mut window = 64 << 10;
    loop {
        client.data(stuck, &vec![b'x'; window], false);
        let frames = client.frames_within(Duration::from_millis(150));
        window = frames
            .iter()
            .filter_map(|frame| match frame {
                Frame::WindowUpdate { stream, increment } if *stream == stuck => Some(*increment as usize),
                _ => None,
            })
            .sum();
        if window == 0 {
            break;
        }
    }
    for _ in 0..20 {
        let id = client.open(&post("/"), false);
        client.data(id, &vec![b'y'; 60 << 10], true);
        assert_eq!(client.response(id).text(), "ok");
    }
}

/// A client whose connection window of 64 KiB is used up, and that opens it by itself.
fn without_window(gateway: &Gateway) -> H2Client {
    let mut client = H2Client::bare(gateway.addr);
    client.greet(&[Setting::InitialWindowSize(1 << 20)]);
    client.stay_silent();
    let filler: Vec<_> = (0..3).map(|_| client.open(&get("/"), true)).collect();
    let mut used = 0;
    while used < DEFAULT_WINDOW as usize {
        used += content(&mut client).1;
    }
    for id in &filler {
        client.reset(*id, ErrorCode::Cancel);
    }
    client
}

/// The stream and the length of the next content.
fn content(client: &mut H2Client) -> (u32, usize) {
    match client.until(|frame| matches!(frame, Frame::Data { .. })) {
        Frame::Data { stream, content, .. } => (stream, content.len()),
        other => panic!("{other:?}"),
    }
}

/// Waits for the heads on these streams, and opens the connection's window for so much; the content, as the streams in
/// their order with what came on each at a time.
fn contents(client: &mut H2Client, mut streams: Vec<u32>, size: usize) -> Vec<(u32, usize)> {
    while !streams.is_empty() {
        match client.until(|frame| matches!(frame, Frame::Headers { .. })) {
            Frame::Headers { stream, .. } => streams.retain(|id| *id != stream),
            other => panic!("{other:?}"),
        }
    }
    let mut out = Vec::new();
    frame::push_window_update(&mut out, 0, size as u32);
    client.send(&out);
    let (mut left, mut came): (_, Vec<(u32, usize)>) = (size, Vec::new());
    while left > 0 {
        let (stream, length) = content(client);
        left -= length;
        match came.last_mut().filter(|(last, _)| *last == stream) {
            Some((_, sum)) => *sum += length,
            None => came.push((stream, length)),
        }
    }
    came
}

/// Answers with 30,000 bytes. A response that is made here is there as a whole when its head is sent.
fn answering() -> Gateway {
    let plugins = json!({ "plugins": { "mocking": { "response_example": "x".repeat(30_000) } } });
    Start::new(route_with(plugins, json!({ "nodes": { "127.0.0.1:1": 1 } }))).http2().start()
}

/// A frame PRIORITY_UPDATE.
fn priority_update(id: u32, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let length = 4 + value.len() as u32;
    frame::Header { length, kind: frame::Kind::PriorityUpdate, flags: 0, stream: 0 }.push(&mut out);
    out.extend(id.to_be_bytes());
    out.extend(value.bytes());
    out
}

/// RFC 9218: a stream that is urgent goes before others that wait for the same window.
#[test]
fn urgent_streams_go_first() {
    let gateway = answering();
    for by_frame in [false, true] {
        let mut client = without_window(&gateway);
        let late: Vec<_> = (0..3).map(|_| client.open(&get("/"), true)).collect();
        let urgent = if by_frame {
            let id = client.open(&get("/"), true);
            client.send(&priority_update(id, "u=0"));
            id
        } else {
            client.open(&[&get("/")[..], &[("priority", "u=0")]].concat(), true)
        };
        let all = late.iter().copied().chain([urgent]).collect();
        assert_eq!(contents(&mut client, all, 30_000), [(urgent, 30_000)], "by a frame: {by_frame}");
    }
}

/// RFC 9218 section 10: what is incremental, or has no priority, shares the connection, other streams follow one another.
#[test]
fn streams_that_are_not_incremental_follow_one_another() {
    let gateway = answering();
    for (priority, follow) in [(Some("u=2"), true), (Some("i=?0"), true), (Some("i"), false), (None, false)] {
        let mut client = without_window(&gateway);
        let fields: Vec<_> = get("/").into_iter().chain(priority.map(|value| ("priority", value))).collect();
        let streams: Vec<_> = (0..3).map(|_| client.open(&fields, true)).collect();
        let came = contents(&mut client, streams.clone(), 90_000);
        let one_by_one: Vec<_> = streams.iter().map(|id| (*id, 30_000)).collect();
        assert_eq!(came == one_by_one, follow, "{priority:?}: {came:?}");
    }
    // PRIORITY_UPDATE ahead of the stream holds, and not the field.
    let mut client = without_window(&gateway);
    let first = client.open(&[&get("/")[..], &[("priority", "u=5")]].concat(), true);
    client.send(&priority_update(first + 2, "u=1"));
    let second = client.open(&[&get("/")[..], &[("priority", "u=7")]].concat(), true);
    assert_eq!(contents(&mut client, vec![first, second], 60_000), [(second, 30_000), (first, 30_000)]);
}

#[test]
fn one_stream_more_than_allowed_is_refused() {
    let origin = Origin::answering(|_| {
        std::thread::sleep(Duration::from_millis(200));
        Answer::ok("late")
    });
    let gateway = gateway(&origin, "http2: {concurrent_streams: 3}");
    let mut client = H2Client::connect(gateway.addr);
    let Frame::Settings(settings) = client.until(|frame| matches!(frame, Frame::Settings(_))) else { panic!() };
    assert!(settings.contains(&Setting::MaxConcurrentStreams(3)), "{settings:?}");
    let ids: Vec<_> = (0..4).map(|_| client.open(&get("/"), true)).collect();
    assert_eq!(client.try_response(ids[3]).map(|_| ()), Err(Fault::Malformed("REFUSED_STREAM".into())));
    for id in &ids[..3] {
        assert_eq!(client.response(*id).text(), "late");
    }
    assert_eq!(client.get("/").status, 200);
}

/// The node learns that nobody waits any more.
#[test]
fn a_reset_cancels_the_request() {
    let origin = Origin::scripted(|connection| {
        if connection.head().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin");
            let _ = connection.some();
        }
    });
    let gateway = gateway(&origin, "");
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&get("/"), true);
    client.until(|frame| matches!(frame, Frame::Data { .. }));
    assert_eq!(origin.open(), 1);
    client.reset(id, ErrorCode::Cancel);
    wait_until("the node's connection to close", crate::harness::LIMIT, || (origin.open() == 0).then_some(()));
    assert_eq!(gateway.metric("weir_client_errors_total", &[("reason", "aborted")]), 1.0);
}

/// RFC 9113 section 5.1: behind its own RST_STREAM a client sends nothing more, whoever has reset the stream first.
#[test]
fn frames_behind_a_reset_are_answered_as_those_of_a_closed_stream() {
    let gateway = answering();
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&post("/"), false);
    assert_eq!(client.response(id).status, 200);
    client.until(|frame| matches!(frame, Frame::Reset { code: ErrorCode::NoError, .. }));
    // On its way when the gateway reset the stream.
    client.data(id, b"late", false);
    assert_eq!(client.get("/").status, 200);
    client.reset(id, ErrorCode::Cancel);
    client.data(id, b"later", false);
    let answer = client.until(|frame| matches!(frame, Frame::Reset { .. }));
    assert_eq!(answer, Frame::Reset { stream: id, code: ErrorCode::StreamClosed });
    assert_eq!(client.get("/").status, 200, "the connection goes on");
}

/// The client must not take what it has for whole.
#[test]
fn a_response_that_is_cut_off_resets_its_stream() {
    let origin = Origin::scripted(|connection| {
        if connection.head().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin");
        }
    });
    let gateway = gateway(&origin, "");
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&get("/"), true);
    assert_eq!(client.try_response(id).map(|_| ()), Err(Fault::Malformed("INTERNAL_ERROR".into())));
}

#[test]
fn time_limits_hold_for_each_stream() {
    let origin = Origin::answering(|request| Answer::ok(&"x".repeat(if request.target == "/" { 2 } else { 300_000 })));
    let settings = "timeouts: {head: 300ms, idle: 300ms, body: 300ms, send: 300ms}";
    let gateway = gateway(&origin, settings);
    // A body that does not come.
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&post("/"), false);
    assert_eq!(client.response(id).status, 408);
    // A window that does not open.
    let mut client = H2Client::bare(gateway.addr);
    client.greet(&[Setting::InitialWindowSize(0)]);
    let id = client.open(&get("/"), true);
    assert_eq!(client.try_response(id).map(|_| ()), Err(Fault::Malformed("INTERNAL_ERROR".into())));
    // A header section that does not end, and a preface that does not.
    for bytes in [&[] as &[u8], &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]] {
        let mut client = H2Client::bare(gateway.addr);
        // An acknowledgement would be more than it sends.
        client.stay_silent();
        match bytes {
            [] => client.send(weir_wire::http2::PREFACE),
            bytes => {
                client.greet(&[]);
                client.send(bytes);
            }
        }
        assert_eq!(client.until_end(), Some(ErrorCode::NoError));
    }
    // A connection without a request.
    let mut client = H2Client::connect(gateway.addr);
    assert_eq!(client.get("/").status, 200);
    assert_eq!(client.until_end(), Some(ErrorCode::NoError));
    let errors = |reason: &str| gateway.metric("weir_client_errors_total", &[("reason", reason)]);
    assert_eq!((errors("body_timeout"), errors("write_timeout"), errors("head_timeout")), (1.0, 1.0, 2.0));
}

#[test]
fn a_connection_ends_after_so_many_requests() {
    let origin = Origin::hello();
    let gateway = gateway(&origin, "limits: {requests_per_connection: 3}");
    let mut client = H2Client::connect(gateway.addr);
    let ids: Vec<_> = (0..3).map(|_| client.open(&get("/"), true)).collect();
    for id in &ids {
        assert_eq!(client.response(*id).text(), "hello");
    }
    assert_eq!(client.until_end(), Some(ErrorCode::NoError));
    assert_eq!(client.gone.map(|(last, _)| last), Some(ids[2]));
}

/// Streams go on, whatever the age of their connection; the client is told to open no further one.
#[test]
fn a_connection_ends_at_its_age() {
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.head() {
            if request.target == "/long" {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n");
                for _ in 0..60 {
                    std::thread::sleep(Duration::from_millis(40));
                    connection.send("x");
                }
            } else {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
            }
        }
    });
    let gateway = gateway(&origin, "timeouts: {connection_age: 1s}");
    let mut client = H2Client::connect(gateway.addr);
    assert_eq!(client.get("/").text(), "hello");
    let long = client.open(&get("/long"), true);
    let gone = client.until(|frame| matches!(frame, Frame::GoAway { .. }));
    assert_eq!(gone, Frame::GoAway { last: long, code: ErrorCode::NoError });
    assert_eq!(client.response(long).body, [b'x'; 60]);
    assert_eq!(client.until_end(), Some(ErrorCode::NoError));
}

#[test]
fn streams_under_way_end_before_the_process_does() {
    let origin = Origin::answering(|_| {
        std::thread::sleep(Duration::from_millis(400));
        Answer::ok("late")
    });
    let mut gateway = gateway(&origin, "");
    let mut busy = H2Client::connect(gateway.addr);
    let mut idle = H2Client::connect(gateway.addr);
    idle.until(|frame| *frame == Frame::SettingsAck);
    let id = busy.open(&get("/"), true);
    wait_until("the request at the origin", crate::harness::LIMIT, || (origin.requests().len() == 1).then_some(()));
    gateway.signal(Signal::TERM);
    assert_eq!(idle.until_end(), Some(ErrorCode::NoError), "an idle connection is closed");
    assert_eq!(busy.response(id).text(), "late");
    assert_eq!(busy.until_end(), Some(ErrorCode::NoError));
    assert_eq!(busy.gone.map(|(last, _)| last), Some(id));
    assert!(gateway.wait().success());
}

#[test]
fn a_reload_touches_no_stream() {
    let origin = Origin::answering(|_| {
        std::thread::sleep(Duration::from_millis(300));
        Answer::ok("old")
    });
    let gateway = gateway(&origin, "");
    let mut client = H2Client::connect(gateway.addr);
    let id = client.open(&get("/"), true);
    wait_until("the request at the origin", crate::harness::LIMIT, || (origin.requests().len() == 1).then_some(()));
    let fields = json!({ "plugins": { "mocking": { "response_example": "new" } } });
    let changed = route_with(fields, json!({ "nodes": { (origin.node()): 1 } }));
    assert_eq!(gateway.reload(changed), Reload::Applied);
    assert_eq!(client.get("/").text(), "new");
    assert_eq!(client.response(id).text(), "old");
    assert_eq!(client.gone, None);
}

/// Addresses of a PROXY header hold for all streams.
#[test]
fn clients_behind_a_proxy_have_their_address() {
    let origin = Origin::hello();
    let settings = "listen: {http: [{address: '127.0.0.1:0', http2: true, proxy_protocol: true}], https: []}\n\
                    proxy_protocol: {trusted: ['127.0.0.1']}";
    let gateway = Start::new(route_to(&[origin.node()])).settings(settings).own_listeners().start();
    let mut client = H2Client::bare(gateway.addr);
    client.send(b"PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\n");
    client.greet(&[]);
    for _ in 0..2 {
        assert_eq!(client.get("/").status, 200);
        assert_eq!(origin.last().field("x-real-ip"), Some("192.0.2.7"));
    }
}
