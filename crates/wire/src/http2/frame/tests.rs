use super::super::Scope;
use super::*;

fn header(kind: Kind, flags: u8, stream: u32, length: u32) -> Header {
    Header { length, kind, flags, stream }
}

/// Frames of `bytes`, with their payloads.
fn frames(mut bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some(header) = Header::read(bytes) {
        let (payload, rest) = bytes[Header::LEN..].split_at(header.length as usize);
        frames.push((header, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    frames
}

#[test]
fn headers_round_trip() {
    for number in 0..=255u8 {
        assert_eq!(Kind::from_number(number).number(), number);
    }
    let written = header(Kind::Headers, END_HEADERS | END_STREAM, 5, 0x01_02_03);
    let mut out = Vec::new();
    written.push(&mut out);
    assert_eq!(out, [1, 2, 3, 1, 5, 0, 0, 0, 5]);
    assert_eq!(Header::read(&out), Some(written));
    assert_eq!(Header::read(&out[..8]), None);
    out[5] = 0x80;
    assert_eq!(Header::read(&out), Some(written), "the reserved bit is ignored");
}

#[test]
fn lengths_and_streams_are_checked() {
    use ErrorCode::{FrameSizeError, ProtocolError};
    let connection = |code| Some((Scope::Connection, code));
    for (kind, flags, stream, length, expected) in [
        (Kind::Data, 0, 1, 16_384, None),
        (Kind::Data, 0, 1, 16_385, connection(FrameSizeError)),
        (Kind::Data, 0, 0, 1, connection(ProtocolError)),
        (Kind::Headers, 0, 1, 0, None),
        (Kind::Headers, 0, 0, 0, connection(ProtocolError)),
        (Kind::Continuation, 0, 0, 0, connection(ProtocolError)),
        (Kind::PushPromise, 0, 0, 4, connection(ProtocolError)),
        (Kind::Priority, 0, 1, 5, None),
        (Kind::Priority, 0, 1, 4, Some((Scope::Stream, FrameSizeError))),
        (Kind::Priority, 0, 0, 5, connection(ProtocolError)),
        (Kind::ResetStream, 0, 1, 4, None),
        (Kind::ResetStream, 0, 1, 5, connection(FrameSizeError)),
        (Kind::ResetStream, 0, 0, 4, connection(ProtocolError)),
        (Kind::Settings, 0, 0, 12, None),
        (Kind::Settings, 0, 0, 13, connection(FrameSizeError)),
        (Kind::Settings, ACK, 0, 0, None),
        (Kind::Settings, ACK, 0, 6, connection(FrameSizeError)),
        (Kind::Settings, 0, 1, 6, connection(ProtocolError)),
        (Kind::Ping, 0, 0, 8, None),
        (Kind::Ping, 0, 0, 7, connection(FrameSizeError)),
        (Kind::Ping, 0, 1, 8, connection(ProtocolError)),
        (Kind::GoAway, 0, 0, 9, None),
        (Kind::GoAway, 0, 0, 7, connection(FrameSizeError)),
        (Kind::GoAway, 0, 3, 8, connection(ProtocolError)),
        (Kind::WindowUpdate, 0, 0, 4, None),
        (Kind::WindowUpdate, 0, 9, 4, None),
        (Kind::WindowUpdate, 0, 9, 3, connection(FrameSizeError)),
        (Kind::PriorityUpdate, 0, 0, 4, None),
        (Kind::PriorityUpdate, 0, 0, 3, connection(FrameSizeError)),
        (Kind::PriorityUpdate, 0, 1, 4, connection(ProtocolError)),
        (Kind::Unknown(0x42), 0xff, 0, 5, None),
        (Kind::Unknown(0x42), 0xff, 7, 5, None),
        (Kind::Unknown(0x42), 0, 7, 16_385, connection(FrameSizeError)),
    ] {
        let header = header(kind, flags, stream, length);
        assert_eq!(header.check(DEFAULT_FRAME_SIZE).err().map(|e| (e.scope, e.code)), expected, "{header:?}");
    }
}

#[test]
fn padding_and_priority_are_taken_off() {
    use ErrorCode::{FrameSizeError, ProtocolError};
    for (kind, flags, bytes, expected) in [
        (Kind::Data, 0, &b"abc"[..], Ok(&b"abc"[..])),
        (Kind::Data, PADDED, b"\x00abc", Ok(b"abc")),
        (Kind::Data, PADDED, b"\x02a\0\0", Ok(b"a")),
        (Kind::Data, PADDED, b"\x03\0\0\0", Ok(b"")),
        (Kind::Data, PADDED, b"\x04\0\0\0", Err(ProtocolError)),
        (Kind::Data, PADDED, b"", Err(FrameSizeError)),
        (Kind::Data, PRIORITY, b"abc", Ok(b"abc")),
        (Kind::Headers, PRIORITY, b"\0\0\0\x01\x10abc", Ok(b"abc")),
        (Kind::Headers, PRIORITY, b"\0\0\0\x01", Err(FrameSizeError)),
        (Kind::Headers, PADDED | PRIORITY, b"\x01\0\0\0\x01\x10abc\0", Ok(b"abc")),
        (Kind::Headers, PADDED | PRIORITY, b"\x05\0\0\0\x01\x10abc", Err(FrameSizeError)),
        (Kind::Continuation, PADDED, b"\x09ab", Ok(b"\x09ab")),
    ] {
        let header = header(kind, flags, 1, bytes.len() as u32);
        assert_eq!(payload(header, bytes).map_err(|e| e.code), expected, "{header:?}");
    }
    for (kind, flags, bytes, itself) in [
        (Kind::Priority, 0, &b"\x80\0\0\x03\x10"[..], true),
        (Kind::Priority, 0, b"\0\0\0\x01\x10", false),
        (Kind::Headers, PRIORITY, b"\0\0\0\x03\x10a", true),
        (Kind::Headers, PADDED | PRIORITY, b"\x00\0\0\0\x03\x10a", true),
        (Kind::Headers, 0, b"\0\0\0\x03\x10a", false),
    ] {
        assert_eq!(depends_on_itself(header(kind, flags, 3, bytes.len() as u32), bytes), itself, "{bytes:?}");
    }
}

#[test]
fn settings_round_trip_and_ranges_hold() {
    let all = [
        Setting::HeaderTableSize(0),
        Setting::EnablePush(false),
        Setting::MaxConcurrentStreams(100),
        Setting::InitialWindowSize(MAX_WINDOW),
        Setting::MaxFrameSize(MAX_FRAME_SIZE),
        Setting::MaxHeaderListSize(u32::MAX),
        Setting::EnableConnectProtocol(true),
        Setting::NoRfc7540Priorities(true),
        Setting::Unknown(0x7777, 5),
    ];
    let mut out = Vec::new();
    push_settings(&mut out, &all);
    let (header, payload) = &frames(&out)[0];
    assert_eq!(header.check(DEFAULT_FRAME_SIZE), Ok(()));
    assert_eq!(settings(payload).collect::<Result<Vec<_>, _>>(), Ok(all.to_vec()));
    for (id, value, code) in [
        (2, 2, ErrorCode::ProtocolError),
        (4, MAX_WINDOW + 1, ErrorCode::FlowControlError),
        (5, DEFAULT_FRAME_SIZE - 1, ErrorCode::ProtocolError),
        (5, MAX_FRAME_SIZE + 1, ErrorCode::ProtocolError),
        (8, 2, ErrorCode::ProtocolError),
        (9, 2, ErrorCode::ProtocolError),
    ] {
        let error = Setting::read(id, value).unwrap_err();
        assert_eq!((error.scope, error.code), (Scope::Connection, code), "{id} {value}");
    }
}

#[test]
fn small_frames_round_trip() {
    let mut out = Vec::new();
    push_settings_ack(&mut out);
    push_ping(&mut out, true, *b"12345678");
    push_window_update(&mut out, 3, 77);
    push_reset_stream(&mut out, 5, ErrorCode::Cancel);
    push_go_away(&mut out, 9, ErrorCode::EnhanceYourCalm, b"why");
    push_data_header(&mut out, 7, 0, true);
    let frames = frames(&out);
    for (header, _) in &frames {
        assert_eq!(header.check(DEFAULT_FRAME_SIZE), Ok(()));
    }
    let [ack, answer, update, reset, away, data] = frames.as_slice() else { panic!("{frames:?}") };
    assert!(ack.0.has(ACK) && answer.0.has(ACK) && data.0.has(END_STREAM));
    assert_eq!(ping(&answer.1), *b"12345678");
    assert_eq!(window_update(update.0, &update.1), Ok(77));
    assert_eq!(reset_stream(&reset.1), ErrorCode::Cancel);
    assert_eq!(go_away(&away.1), GoAway { last_stream: 9, code: ErrorCode::EnhanceYourCalm, debug: b"why" });
    for (stream, scope) in [(0, Scope::Connection), (3, Scope::Stream)] {
        let error = window_update(header(Kind::WindowUpdate, 0, stream, 4), &[0x80, 0, 0, 0]).unwrap_err();
        assert_eq!(error.scope, scope);
    }
    assert_eq!(priority_update(b"\0\0\0\x05u=1"), Ok((5, &b"u=1"[..])));
    assert!(priority_update(b"\0\0\0\x00u=1").is_err());
}

#[test]
fn header_blocks_are_cut_at_the_peers_frame_size() {
    for len in [0, 1, 9, 10, 11, 20, 21, 95, 100] {
        for max in [10, 100] {
            let block: Vec<u8> = (0..len).collect();
            let mut out = b"before".to_vec();
            let begun = HeaderBlock::begin(&mut out, 3);
            out.extend_from_slice(&block);
            begun.finish(&mut out, max, true);
            let frames = frames(out.strip_prefix(b"before").unwrap());
            assert_eq!(frames.iter().flat_map(|(_, payload)| payload.clone()).collect::<Vec<_>>(), block);
            for (at, (header, _)) in frames.iter().enumerate() {
                let (first, last) = (at == 0, at + 1 == frames.len());
                assert_eq!(header.kind, if first { Kind::Headers } else { Kind::Continuation });
                assert_eq!((header.has(END_HEADERS), header.has(END_STREAM)), (last, first), "{len} by {max}");
                assert!(header.stream == 3 && header.length <= max && (last || header.length == max));
            }
        }
    }
    let mut out = b"before".to_vec();
    let begun = HeaderBlock::begin(&mut out, 3);
    out.extend_from_slice(b"fields");
    begun.discard(&mut out);
    assert_eq!(out, b"before");
}
