//! Attacks in which clients cost more than they pay: each kind is cut, counted, and takes no memory.

use weir_wire::http2::frame::{self, Header, Kind, Setting};
use weir_wire::http2::{ErrorCode, PREFACE};

use super::{gateway, get, post};
use crate::harness::{Frame, Gateway, H2Client, Origin, each};

/// One kind of abuse: what it is, the metric's reason, and the client.
type Case = (&'static str, &'static str, fn(&mut H2Client));

const SETTINGS: &str = "http2: {resets: 50, control_frames: 100, empty_frames: 100, continuations: 8}\n\
                        limits: {head_size: 16KiB}";

fn push(out: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    Header { length: payload.len() as u32, kind, flags, stream }.push(out);
    out.extend_from_slice(payload);
}

fn repeat(client: &mut H2Client, times: u32, push_one: impl Fn(&mut Vec<u8>, u32)) {
    let mut out = Vec::new();
    for n in 0..times {
        push_one(&mut out, n);
        if out.len() > 1 << 14 {
            if !client.offer(&out) {
                return;
            }
            out.clear();
        }
    }
    client.offer(&out);
}

/// Opens streams, and resets each in some way.
fn resets(client: &mut H2Client, end: impl Fn(&mut Vec<u8>, u32)) {
    for n in 0..200 {
        let mut out = Vec::new();
        client.push_head(&mut out, 1 + 2 * n, &post("/slow"), false);
        end(&mut out, 1 + 2 * n);
        if !client.offer(&out) {
            return;
        }
    }
}

const CASES: &[Case] = &[
    ("rapid reset", "http2_resets", |client| {
        resets(client, |out, id| frame::push_reset_stream(out, id, ErrorCode::Cancel));
    }),
    ("resets by WINDOW_UPDATE of 0", "http2_resets", |client| {
        resets(client, |out, id| push(out, Kind::WindowUpdate, 0, id, &[0; 4]));
    }),
    ("resets by windows that overflow", "http2_resets", |client| {
        resets(client, |out, id| frame::push_window_update(out, id, (1 << 31) - 1));
    }),
    ("resets by PRIORITY of a wrong length", "http2_resets", |client| {
        resets(client, |out, id| push(out, Kind::Priority, 0, id, &[0; 4]));
    }),
    ("resets by streams that depend on themselves", "http2_resets", |client| {
        resets(client, |out, id| push(out, Kind::Priority, 0, id, &[&id.to_be_bytes()[..], &[1]].concat()));
    }),
    ("resets by malformed heads", "http2_resets", |client| {
        for _ in 0..200 {
            client.open(&[(":method", "GET"), ("Upper", "1")], true);
        }
    }),
    ("resets by HEADERS within the body", "http2_resets", |client| {
        for _ in 0..200 {
            let id = client.open(&post("/slow"), false);
            let mut out = Vec::new();
            client.push_head(&mut out, id, &[("x", "1")], false);
            client.send(&out);
        }
    }),
    ("CONTINUATION without end", "http2_header_block", |client| {
        let mut out = Vec::new();
        push(&mut out, Kind::Headers, 0, 1, &[0x82]);
        client.send(&out);
        repeat(client, 100_000, |out, _| push(out, Kind::Continuation, 0, 1, b""));
    }),
    ("large CONTINUATION frames", "http2_header_block", |client| {
        let mut out = Vec::new();
        push(&mut out, Kind::Headers, 0, 1, &[0x82]);
        client.send(&out);
        repeat(client, 1000, |out, _| push(out, Kind::Continuation, 0, 1, &[0x82; 16_000]));
    }),
    ("SETTINGS", "http2_control_frames", |client| {
        repeat(client, 100_000, |out, _| frame::push_settings(out, &[Setting::InitialWindowSize(1000)]));
    }),
    ("PING", "http2_control_frames", |client| {
        repeat(client, 100_000, |out, n| frame::push_ping(out, false, u64::from(n).to_be_bytes()));
    }),
    ("PRIORITY", "http2_control_frames", |client| {
        repeat(client, 100_000, |out, n| push(out, Kind::Priority, 0, 2 * n + 1, &[0, 0, 0, 0, 1]));
    }),
    ("PRIORITY_UPDATE", "http2_control_frames", |client| {
        repeat(client, 100_000, |out, _| push(out, Kind::PriorityUpdate, 0, 0, b"\0\0\0\x01u=1"));
    }),
    ("WINDOW_UPDATE", "http2_control_frames", |client| {
        repeat(client, 100_000, |out, _| frame::push_window_update(out, 0, 1));
    }),
    ("frames of unknown types", "http2_control_frames", |client| {
        repeat(client, 100_000, |out, _| push(out, Kind::Unknown(0xfe), 0, 0, b""));
    }),
    ("RST_STREAM of one closed stream", "http2_control_frames", |client| {
        let id = client.open(&get("/"), true);
        client.response(id);
        repeat(client, 100_000, |out, _| frame::push_reset_stream(out, id, ErrorCode::Cancel));
    }),
    ("DATA of a closed stream", "http2_control_frames", |client| {
        let id = client.open(&get("/"), true);
        client.response(id);
        repeat(client, 100_000, |out, _| frame::push_data_header(out, id, 0, true));
    }),
    ("empty DATA", "http2_empty_frames", |client| {
        client.open(&post("/slow"), false);
        repeat(client, 100_000, |out, _| frame::push_data_header(out, 1, 0, false));
    }),
    ("DATA of one byte", "http2_empty_frames", |client| {
        client.open(&post("/slow"), false);
        repeat(client, 1000, |out, _| push(out, Kind::Data, 0, 1, b"x"));
    }),
    ("DATA of padding", "http2_empty_frames", |client| {
        client.open(&post("/slow"), false);
        repeat(client, 200, |out, _| push(out, Kind::Data, frame::PADDED, 1, &[&[200][..], &[0; 205]].concat()));
    }),
    ("an index that HPACK does not have", "http2_protocol", |client| {
        let mut out = Vec::new();
        push(&mut out, Kind::Headers, frame::END_HEADERS, 1, &[0xff, 0xff, 0x01]);
        client.send(&out);
    }),
];

fn resident(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.processes()[0])).expect("the status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_ascii_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("KiB")
}

fn origin() -> Origin {
    Origin::scripted(|connection| {
        while let Some(request) = connection.head() {
            if request.target != "/" {
                // Its body may never end.
                std::thread::sleep(std::time::Duration::from_millis(1500));
                return;
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    })
}

#[test]
fn abuse_is_cut_and_counted() {
    let origin = origin();
    each(
        CASES,
        |(what, ..)| (*what).to_owned(),
        |(what, reason, abuse)| {
            let gateway = gateway(&origin, SETTINGS);
            let mut beside = H2Client::connect(gateway.addr);
            assert_eq!(beside.get("/").status, 200);
            let mut client = H2Client::connect(gateway.addr);
            abuse(&mut client);
            let code = client.until_end();
            if *reason == "http2_protocol" {
                assert!(code.is_some(), "{what}: no GOAWAY");
            } else {
                // A client that goes on sending may find the connection reset before it has read.
                assert!(matches!(code, None | Some(ErrorCode::EnhanceYourCalm)), "{what}: {code:?}");
            }
            gateway.await_metric("weir_client_errors_total", &[("reason", reason)], 1.0);
            assert_eq!(beside.get("/").status, 200, "{what}: others are served");
            assert!(resident(&gateway) < 200 << 10, "{what}: {} KiB", resident(&gateway));
        },
    );
}

/// A header bomb: an entry of the dynamic table, named thousands of times.
#[test]
fn header_bombs_are_answered_in_flat_memory() {
    let origin = origin();
    let gateway = gateway(&origin, SETTINGS);
    let mut client = H2Client::connect(gateway.addr);
    assert_eq!(client.get("/").status, 200);
    let before = resident(&gateway);
    for n in 0..40u32 {
        let mut block = vec![0x82, 0x86, 0x84, 0x41, 6];
        block.extend(b"a.test");
        // A name and a value of 4,000 bytes enter the table, and are named 10,000 times: 40 MB.
        block.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
        block.extend([b'v'; 4000]);
        block.extend([0xbe; 10_000]);
        let mut out = Vec::new();
        push(&mut out, Kind::Headers, frame::END_HEADERS | frame::END_STREAM, 1001 + 2 * n, &block);
        client.send(&out);
        assert_eq!(client.response(1001 + 2 * n).status, 431);
    }
    assert!(resident(&gateway) < before + (20 << 10), "{before} and then {} KiB", resident(&gateway));
    assert_eq!(gateway.metric("weir_client_errors_total", &[("reason", "head_too_large")]), 40.0);
}

/// Answers to control frames are not piled up for a client that does not read.
#[test]
fn a_client_that_reads_no_answers_is_not_read_from() {
    let origin = origin();
    let gateway = gateway(&origin, "http2: {control_frames: 10000000}\ntimeouts: {send: 500ms}");
    let before = resident(&gateway);
    let mut client = H2Client::bare(gateway.addr);
    client.greet(&[]);
    repeat(&mut client, 3_000_000, |out, n| frame::push_ping(out, false, u64::from(n).to_be_bytes()));
    gateway.await_metric("weir_client_errors_total", &[("reason", "write_timeout")], 1.0);
    assert!(resident(&gateway) < before + (20 << 10), "{before} and then {} KiB", resident(&gateway));
}

/// Many small frames take no more memory than few large ones, and no more than the window allows.
#[test]
fn content_that_nobody_takes_is_bounded() {
    let origin = origin();
    let gateway = gateway(&origin, "http2: {empty_frames: 10000000, connection_window: 1MiB}");
    let before = resident(&gateway);
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = H2Client::connect(gateway.addr);
        for n in 0..8 {
            let id = client.open(&post("/slow"), false);
            assert_eq!(id, 1 + 2 * n);
            let mut out = Vec::new();
            // Frames of 5 bytes, up to the window of the stream.
            for _ in 0..13_000 {
                push(&mut out, Kind::Data, 0, id, b"12345");
            }
            client.send(&out);
        }
        clients.push(client);
    }
    // Windows of 1 MiB, and an exchange for each stream.
    let most = before + 4 * (1 << 10) + 4 * 8 * 100 + (20 << 10);
    assert!(resident(&gateway) < most, "{before} and then {} KiB", resident(&gateway));
    let mut beside = H2Client::connect(gateway.addr);
    assert_eq!(beside.get("/").status, 200);
}

/// Bytes that are no HTTP/2 at all.
#[test]
fn broken_beginnings_end_the_connection() {
    let origin = origin();
    let gateway = gateway(&origin, "");
    let mut ping = PREFACE.to_vec();
    frame::push_ping(&mut ping, false, [0; 8]);
    let mut large = PREFACE.to_vec();
    push(&mut large, Kind::Settings, 0, 0, &[]);
    Header { length: 1 << 20, kind: Kind::Data, flags: 0, stream: 1 }.push(&mut large);
    for (code, bytes) in [(ErrorCode::ProtocolError, ping), (ErrorCode::FrameSizeError, large)] {
        let mut client = H2Client::bare(gateway.addr);
        client.send(&bytes);
        let gone = client.until(|frame| matches!(frame, Frame::GoAway { .. }));
        assert_eq!(gone, Frame::GoAway { last: 0, code });
        assert_eq!(client.until_end(), Some(code));
    }
}
