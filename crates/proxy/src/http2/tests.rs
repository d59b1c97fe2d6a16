//! Random frames against connections in both roles: no panic, and sums that hold whatever comes.

use std::task::{Context, Poll, Waker};

use weir_wire::http2::frame::{self, END_HEADERS, END_STREAM, Header, HeaderBlock, Kind, PADDED, Setting};
use weir_wire::http2::hpack::Encoder;
use weir_wire::http2::{DEFAULT_FRAME_SIZE, Error, ErrorCode, PREFACE};

use super::{Connection, Limits, Peer};

const LIMITS: Limits = Limits {
    streams: 8,
    stream_window: 64 << 10,
    connection_window: 160 << 10,
    frame_size: DEFAULT_FRAME_SIZE,
    write_buffer: 16 << 10,
    head: 4 << 10,
    fields: 32,
    continuations: 40,
    resets: 40,
    control_frames: 400,
    empty_frames: 100,
};
/// Most bytes that frames of one step of ours take, and those of one received frame.
const STEP: usize = 1 << 10;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) % u64::from(below)) as u32
    }

    fn is(&mut self, one_in: u32) -> bool {
        self.next(one_in) == 0
    }
}

/// The tasks of streams, as keys of the streams that they serve.
#[derive(Default)]
struct Tasks(Vec<usize>);

impl Peer for Tasks {
    fn head(&mut self, connection: &mut Connection, stream: u32, ends: bool) -> Result<(), Error> {
        if connection.fields().is_too_large() {
            return Err(Error::stream(ErrorCode::ProtocolError, "too large"));
        }
        self.0.push(connection.open(stream, ends, None));
        Ok(())
    }
}

/// The other side, which knows the protocol and does not always keep to it.
struct Other {
    random: Random,
    encoder: Encoder,
    /// Streams that it may name: those below this one.
    next: u32,
    is_client: bool,
}

impl Other {
    fn stream(&mut self) -> u32 {
        match self.random.next(500) {
            0 => 0,
            1 => self.random.next(40),
            _ => (self.next.saturating_sub(2 * self.random.next(6))) | 1,
        }
    }

    /// Appends a frame, or two.
    fn push(&mut self, out: &mut Vec<u8>) {
        let stream = self.stream();
        if self.next == 0 {
            // Frames of streams that nobody has opened end a connection at once.
            return if self.is_client { self.push_head(out, 1) } else { frame::push_ping(out, false, [7; 8]) };
        }
        match self.random.next(16) {
            0..=3 => self.push_head(out, stream),
            4..=9 => {
                let most = if self.random.is(4) { DEFAULT_FRAME_SIZE } else { 600 };
                let length = self.random.next(most);
                let pads = length > 0 && self.random.is(5);
                let flags = (if self.random.is(8) { END_STREAM } else { 0 }) | (if pads { PADDED } else { 0 });
                Header { length, kind: Kind::Data, flags, stream }.push(out);
                let start = out.len();
                out.resize(start + length as usize, b'x');
                if pads && let Some(first) = out.get_mut(start) {
                    // Too much of it now and then.
                    let more = u32::from(self.random.is(40));
                    *first = self.random.next(length.min(250) + more) as u8;
                }
            }
            10 => frame::push_reset_stream(out, stream, ErrorCode::Cancel),
            11 => frame::push_window_update(out, stream, self.random.next(40_000)),
            12 => frame::push_window_update(out, 0, 1 + self.random.next(100_000)),
            13 => {
                let size = self.random.next(100_000);
                let setting = match self.random.next(3) {
                    0 => Setting::InitialWindowSize(size),
                    1 => Setting::HeaderTableSize(size),
                    _ => Setting::MaxConcurrentStreams(size % 20),
                };
                frame::push_settings(out, &[setting]);
            }
            14 => frame::push_ping(out, self.random.is(2), [7; 8]),
            _ => {
                let kinds = [Kind::Priority, Kind::PriorityUpdate, Kind::GoAway, Kind::Continuation];
                let kind = if self.random.is(30) { kinds[self.random.next(4) as usize] } else { Kind::Unknown(0xee) };
                let payload: Vec<u8> = (0..self.random.next(20)).map(|_| self.random.next(256) as u8).collect();
                Header { length: payload.len() as u32, kind, flags: self.random.next(256) as u8, stream }.push(out);
                out.extend_from_slice(&payload);
            }
        }
    }

    fn push_head(&mut self, out: &mut Vec<u8>, stream: u32) {
        let stream = if self.is_client && (self.next == 0 || !self.random.is(6)) {
            self.next = (self.next + 1) | 1;
            self.next
        } else {
            stream
        };
        let start = out.len();
        let block = HeaderBlock::begin(out, stream);
        self.encoder.begin(out);
        if self.is_client {
            self.encoder.push_method(out, b"POST");
            self.encoder.push_path(out, b"/a");
        } else {
            self.encoder.push(out, b":status", if self.random.is(3) { b"103" } else { b"200" });
        }
        for _ in 0..self.random.next(6) {
            let value = vec![b'v'; self.random.next(500) as usize];
            self.encoder.push(out, if self.random.is(9) { b"x a" } else { b"x-a" }, &value);
        }
        // Several frames now and then.
        let size = if self.random.is(4) { 100 } else { DEFAULT_FRAME_SIZE };
        block.finish(out, size, self.random.is(4));
        if self.random.is(50)
            && let Some(flags) = out.get_mut(start + 4)
        {
            *flags ^= END_HEADERS;
        }
    }
}

/// Action of a stream's task: reads, writes, ends.
fn act(connection: &mut Connection, tasks: &mut Tasks, random: &mut Random, cx: &Context<'_>) {
    let Some(at) = (!tasks.0.is_empty()).then(|| random.next(tasks.0.len() as u32) as usize) else { return };
    let key = tasks.0[at];
    match random.next(10) {
        0..=4 => {
            let mut room = vec![0; random.next(30_000) as usize];
            connection.take_received(cx, key, &mut room);
        }
        5 | 6 => {
            let data = vec![b'y'; random.next(20_000) as usize];
            let _ = connection.poll_data(cx, key, &data);
            let _ = random.is(2).then(|| connection.flush(key));
        }
        7 => {
            connection.push_fields(key, random.is(4), |encoder, out| encoder.push(out, b"x-b", b"w"));
        }
        // Only servers throw the rest of a message away.
        8 if connection.client.is_none() && random.is(3) => connection.abandon(key),
        8 => connection.end_stream(key),
        _ => {
            connection.close(key, ErrorCode::Cancel);
            tasks.0.swap_remove(at);
        }
    }
}

fn check(connection: &Connection, seed: u64) {
    let room = &connection.room;
    let of_open = || room.open.iter().filter_map(|(_, key)| room.streams.get(*key));
    let unread: i64 = of_open().map(|stream| i64::from(stream.unread_content())).sum();
    // Every byte that the peer may not send is held, or is announced soon.
    let sum = connection.window + i64::from(connection.credit) + unread;
    assert_eq!(sum, i64::from(LIMITS.connection_window), "seed {seed}: bytes of the window are lost, or made");
    let granted: usize = of_open().map(|stream| stream.grant).sum();
    assert_eq!(granted, connection.reserved, "seed {seed}: room is promised that no stream has");
    assert!(room.open.len() <= LIMITS.streams as usize, "seed {seed}: {} streams", room.open.len());
    assert!(room.open.is_sorted(), "seed {seed}: streams are found by their order");
    let held: usize = of_open().map(|stream| stream.unread()).sum();
    let of_heads: usize = of_open().map(|stream| stream.head_unread).sum();
    assert!(held - of_heads <= LIMITS.connection_window as usize, "seed {seed}: {held} bytes are held");
    assert!(room.block.len() <= LIMITS.head + DEFAULT_FRAME_SIZE as usize, "seed {seed}: {} bytes", room.block.len());
}

/// One connection, up to its end; the number of frames that it took.
fn run(seed: u64, is_server: bool) -> usize {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut connection, mut tasks) = (Connection::new(LIMITS), Tasks::default());
    if is_server {
        connection.begin_as_server()
    } else {
        connection.begin_as_client()
    }
    let mut other = Other { random: Random(random.0 ^ 0xabcd), encoder: Encoder::new(), next: 0, is_client: is_server };
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    let (mut input, mut frames) = (Vec::new(), 0);
    frame::push_settings(&mut input, &[]);
    for now in 0..400 {
        connection.begin_turn(now * 20, &cx);
        if input.len() < 64 << 10 {
            other.push(&mut input);
        }
        // Frames arrive in pieces.
        let there = if random.is(3) { random.next(input.len() as u32 + 1) as usize } else { input.len() };
        match connection.receive(&input[..there], &mut tasks) {
            Ok(used) => drop(input.drain(..used)),
            Err(error) => {
                connection.fail(error);
                assert!(connection.is_dead());
                break;
            }
        }
        frames += 1;
        check(&connection, seed);
        if !is_server && connection.has_place(LIMITS.streams) && random.is(2) {
            let key = connection.open_request(random.is(5));
            connection.push_fields(key, random.is(3), |encoder, out| encoder.push_method(out, b"GET"));
            tasks.0.push(key);
            other.next = connection.last_stream;
        }
        for _ in 0..random.next(4) {
            act(&mut connection, &mut tasks, &mut random, &cx);
            check(&connection, seed);
        }
        let most = 2 * LIMITS.write_buffer + DEFAULT_FRAME_SIZE as usize + 5 * STEP + PREFACE.len();
        assert!(!is_server || connection.pending() <= most, "seed {seed}: {} bytes wait", connection.pending());
        while !random.is(3) {
            match connection.poll_write(&mut cx, &mut Vec::new()) {
                Poll::Ready(Ok(1..)) => {}
                _ => break,
            }
        }
    }
    // Remaining tasks end, whatever has become of the connection.
    for key in tasks.0 {
        connection.close(key, ErrorCode::Cancel);
    }
    assert_eq!((connection.streams(), connection.reserved), (0, 0), "seed {seed}");
    frames
}

#[test]
fn sums_hold_whatever_a_client_sends() {
    let frames: usize = (0..400).map(|seed| run(seed, true)).sum();
    assert!(frames > 6_000, "only {frames} frames before connections failed");
}

#[test]
fn sums_hold_whatever_a_server_sends() {
    let frames: usize = (0..400).map(|seed| run(seed, false)).sum();
    assert!(frames > 6_000, "only {frames} frames before connections failed");
}
