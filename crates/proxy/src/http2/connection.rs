//! A connection: its streams, its windows and what it sends on its own account.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Waker};

use weir_plugin::Client;
use weir_wire::http2::frame::{self, Setting};
use weir_wire::http2::hpack::{self, Decoder, Encoder};
use weir_wire::http2::priority::Priority;
use weir_wire::http2::{DEFAULT_FRAME_SIZE, DEFAULT_WINDOW, Error, ErrorCode};

use super::abuse::Meter;
use super::client::ClientRole;
use super::{Abuse, FieldList, Stream};

/// Number of closed streams that are remembered, for frames that were on their way when they closed.
const REMEMBERED: usize = 64;
/// Bytes of frames that most turns put out.
const WRITE: usize = 4 << 10;
/// Rooms that a worker keeps.
const KEPT_ROOMS: usize = 64;
/// Capacity of buffers that are kept for another connection.
const KEPT: usize = 64 << 10;

/// Bounds of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Streams that the peer may have open at one time.
    pub(crate) streams: u32,
    /// Bytes that the peer may send ahead on a stream.
    pub(crate) stream_window: u32,
    /// Bytes that the peer may send ahead on all streams together.
    pub(crate) connection_window: u32,
    /// Longest payload of a frame that is accepted.
    pub(crate) frame_size: u32,
    /// Bytes of DATA frames that wait to be written.
    pub(crate) write_buffer: usize,
    /// Bytes of the fields of a header section.
    pub(crate) head: usize,
    /// Fields of a header section.
    pub(crate) fields: usize,
    /// CONTINUATION frames of a header block.
    pub(crate) continuations: u32,
    /// Streams reset before their end, in 10 seconds.
    pub(crate) resets: u32,
    /// Control frames in 10 seconds.
    pub(crate) control_frames: u32,
    /// DATA frames with little or no content, in 10 seconds.
    pub(crate) empty_frames: u32,
}

/// A connection as its own task and those of its streams share it.
#[derive(Debug)]
pub(crate) struct Shared {
    /// State of the protocol. No task holds it while it waits.
    pub(crate) connection: RefCell<Connection>,
    /// The client, before the first request.
    pub(crate) client: Client,
    /// Facts of the client's TLS session; `None` without TLS.
    pub(crate) tls: Option<TlsFacts>,
}

/// Facts about a client from its TLS session.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsFacts {
    /// The name it asked for.
    pub(crate) sni: Option<Box<str>>,
    /// True if it showed a certificate, which was verified.
    pub(crate) verified: bool,
}

/// The side that serves what a connection receives.
pub(crate) trait Peer {
    /// Takes the header section of a stream that the peer opens, whose fields are in [`Connection::fields`]. `ends`: no
    /// content follows.
    ///
    /// # Errors
    /// The section is malformed.
    fn head(&mut self, connection: &mut Connection, stream: u32, ends: bool) -> Result<(), Error>;
}

/// Memory of a connection that has work to do; idle ones have none.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Received bytes.
    pub(crate) input: weir_wire::buffer::Buffer,
    /// Frames that are being written.
    pub(crate) writing: Vec<u8>,
    /// Frames to be written.
    pub(super) out: Vec<u8>,
    /// Header block in several frames.
    pub(super) block: Vec<u8>,
    pub(super) fields: FieldList,
    pub(super) scratch: Vec<u8>,
    pub(super) streams: Vec<Stream>,
    pub(super) free: Vec<usize>,
    /// Open streams in the order of their identifiers, with their places.
    pub(super) open: Vec<(u32, usize)>,
    /// Streams that wait for room in the write buffer, in their order.
    pub(super) waiting: Vec<usize>,
}

impl Room {
    /// Prepares the room for another connection.
    fn clear(&mut self) {
        for bytes in [&mut self.writing, &mut self.out, &mut self.block, &mut self.scratch] {
            bytes.clear();
            bytes.shrink_to(KEPT);
        }
        self.input.clear();
        self.input.shrink(KEPT);
        self.fields.shrink(KEPT);
        self.streams.truncate(128);
        self.free.clear();
        self.free.extend(0..self.streams.len());
        self.open.clear();
        self.waiting.clear();
    }
}

/// Rooms of a worker that no connection has.
#[derive(Debug, Default)]
pub(crate) struct Rooms(RefCell<Vec<Room>>);

impl Rooms {
    /// Gives a connection a room, into which it takes what it has put out.
    pub(crate) fn take(&self, to: &mut Room) {
        let mut room = self.0.borrow_mut().pop().unwrap_or_default();
        // Enough for what most turns put out, so that it does not grow bit by bit.
        room.out.reserve(WRITE);
        room.writing.reserve(WRITE);
        room.out.extend_from_slice(&to.out);
        *to = room;
    }

    /// Takes the room of a connection that has nothing to do.
    pub(crate) fn put(&self, mut room: Room) {
        let mut rooms = self.0.borrow_mut();
        if rooms.len() < KEPT_ROOMS && room.input.capacity() > 0 {
            room.clear();
            rooms.push(room);
        }
    }
}

/// Header block that has begun and not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends: bool,
    /// Frames so far, after the first.
    pub(super) frames: u32,
    /// True if its stream was said to depend on itself.
    pub(super) malformed: bool,
}

/// State of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) limits: Limits,
    /// State of a client; `None` for a server.
    pub(super) client: Option<ClientRole>,
    /// Memory while there is something to do.
    pub(crate) room: Room,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    /// Milliseconds, on the clock of the caller.
    pub(super) now: u64,
    /// True once the peer's first SETTINGS have come.
    pub(super) has_settings: bool,
    /// The peer's SETTINGS_INITIAL_WINDOW_SIZE.
    pub(super) peer_window: i64,
    /// The peer's SETTINGS_MAX_FRAME_SIZE.
    pub(super) peer_frame_size: u32,
    /// Bytes of content that may be sent on all streams together.
    pub(super) send_window: i64,
    /// Bytes of room and window that streams have been promised.
    pub(super) reserved: usize,
    /// Bytes of content that the peer may still send.
    pub(super) window: i64,
    /// Bytes that were taken and not announced to the peer.
    pub(super) credit: u32,
    /// Bytes of frames that left the write buffer since the connection began.
    pub(super) out_base: u64,
    /// Bytes of `room.writing` that were not written yet.
    pub(super) unwritten: usize,
    /// Highest stream that the peer has opened.
    pub(super) last_stream: u32,
    pub(super) block: Option<Block>,
    /// Streams that have closed lately: the identifier, and whether we have reset it.
    closed: [(u32, bool); REMEMBERED],
    closed_at: usize,
    /// Priority of a stream that has not begun.
    pub(super) early_priority: Option<(u32, Priority)>,
    pub(super) resets: Meter,
    pub(super) control_frames: Meter,
    pub(super) empty_frames: Meter,
    /// Kind of traffic that there was too much of.
    pub(crate) abuse: Option<Abuse>,
    /// True if a response was cut off since anything was last written.
    pub(crate) has_cut_stream: bool,
    /// The last stream that is served, once the peer was told.
    pub(super) last_served: Option<u32>,
    /// True when nothing is received or sent any more.
    dead: bool,
    pub(super) waker: Option<Waker>,
    woken: bool,
}

impl Connection {
    /// A connection on which nothing was received.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            client: None,
            room: Room::default(),
            decoder: Decoder::new(hpack::DEFAULT_TABLE_SIZE),
            encoder: Encoder::new(),
            now: 0,
            has_settings: false,
            peer_window: i64::from(DEFAULT_WINDOW),
            peer_frame_size: DEFAULT_FRAME_SIZE,
            send_window: i64::from(DEFAULT_WINDOW),
            reserved: 0,
            window: i64::from(DEFAULT_WINDOW),
            credit: 0,
            out_base: 0,
            unwritten: 0,
            last_stream: 0,
            block: None,
            closed: [(0, false); REMEMBERED],
            closed_at: 0,
            early_priority: None,
            resets: Meter::default(),
            control_frames: Meter::default(),
            empty_frames: Meter::default(),
            abuse: None,
            has_cut_stream: false,
            last_served: None,
            dead: false,
            waker: None,
            woken: false,
        }
    }

    /// Puts out the settings of a server, and opens the connection's window.
    pub(crate) fn begin_as_server(&mut self) {
        let limits = self.limits;
        let settings = [
            Setting::MaxConcurrentStreams(limits.streams),
            Setting::InitialWindowSize(limits.stream_window),
            Setting::MaxFrameSize(limits.frame_size),
            Setting::MaxHeaderListSize(u32::try_from(limits.head).unwrap_or(u32::MAX)),
            Setting::EnableConnectProtocol(true),
            Setting::NoRfc7540Priorities(true),
        ];
        frame::push_settings(&mut self.room.out, &settings);
        let more = limits.connection_window.saturating_sub(DEFAULT_WINDOW);
        if more > 0 {
            frame::push_window_update(&mut self.room.out, 0, more);
            self.window += i64::from(more);
        }
    }

    /// Begins a turn of the connection's task at `now_ms`.
    pub(crate) fn begin_turn(&mut self, now_ms: u64, cx: &Context<'_>) {
        self.now = now_ms;
        self.woken = false;
        match &mut self.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            kept => *kept = Some(cx.waker().clone()),
        }
    }

    /// Wakes the connection's task.
    pub(crate) fn wake(&mut self) {
        if !std::mem::replace(&mut self.woken, true)
            && let Some(waker) = &self.waker
        {
            waker.wake_by_ref();
        }
    }

    /// Fields of the header section that is being handed over.
    pub(crate) fn fields(&self) -> &FieldList {
        &self.room.fields
    }

    /// Number of streams whose tasks have not ended.
    pub(crate) fn streams(&self) -> usize {
        self.room.open.len()
    }

    /// True while a header block has begun and not ended.
    pub(crate) fn is_within_head(&self) -> bool {
        self.block.is_some()
    }

    /// True once the peer has sent its first SETTINGS.
    pub(crate) fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// True when nothing is received or sent any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// True when the peer was told that no further stream is served.
    pub(crate) fn is_going_away(&self) -> bool {
        self.last_served.is_some()
    }

    /// Opens a stream of the peer; its key. `expected`: the length of the content, if the head told it.
    pub(crate) fn open(&mut self, id: u32, ends: bool, expected: Option<u64>) -> usize {
        let room = &mut self.room;
        let key = room.free.pop().unwrap_or_else(|| {
            room.streams.push(Stream::default());
            room.streams.len() - 1
        });
        if let Some(stream) = room.streams.get_mut(key) {
            stream.begin(id, i64::from(self.limits.stream_window), self.peer_window);
            stream.remote_ended = ends;
            stream.expected = expected;
            if let Some((_, priority)) = self.early_priority.take_if(|(early, _)| *early == id) {
                stream.prioritise(priority);
            }
        }
        // Identifiers only ever grow.
        room.open.push((id, key));
        key
    }

    /// Sets the priority that the head of a stream asks for, unless the peer has sent a PRIORITY_UPDATE ahead (RFC 9218
    /// section 7).
    pub(crate) fn set_initial_priority(&mut self, key: usize, priority: Priority) {
        if let Some(stream) = self.room.streams.get_mut(key).filter(|stream| !stream.has_priority) {
            stream.prioritise(priority);
        }
    }

    /// Closes a stream whose task has ended: resets it with `code` if our side has not ended, and tells a peer that still
    /// sends to stop.
    pub(crate) fn close(&mut self, key: usize, code: ErrorCode) {
        let Some(stream) = self.room.streams.get_mut(key).filter(|stream| stream.id != 0) else { return };
        let (id, unread, grant) = (stream.id, stream.unread_content(), stream.grant);
        let (is_over, local_ended, remote_ended) = (stream.is_over(), stream.local_ended, stream.remote_ended);
        stream.release();
        self.reserved -= grant;
        self.room.free.push(key);
        self.room.waiting.retain(|waiting| *waiting != key);
        if let Ok(at) = self.room.open.binary_search_by_key(&id, |(open, _)| *open) {
            self.room.open.remove(at);
        }
        self.give_credit(unread);
        let resets = !(is_over || local_ended && remote_ended);
        if resets && !self.dead {
            // RFC 9113 section 8.1: a complete response may precede the end of the request.
            let code = if local_ended && self.client.is_none() { ErrorCode::NoError } else { code };
            frame::push_reset_stream(&mut self.room.out, id, code);
        }
        if !is_over {
            self.resets.earn(self.now, u32::from(local_ended));
            self.remember(id, resets);
        }
        self.grant();
        self.wake();
    }

    /// Resets a stream because of an error of the peer.
    pub(super) fn reset(&mut self, id: u32, code: ErrorCode) -> Result<(), Error> {
        frame::push_reset_stream(&mut self.room.out, id, code);
        if let Some(key) = self.find(id) {
            self.end_early(key, code);
        }
        self.remember(id, true);
        self.count_reset()
    }

    /// Ends a stream for its task, whose side is over.
    pub(super) fn end_early(&mut self, key: usize, code: ErrorCode) {
        let Some(stream) = self.room.streams.get_mut(key) else { return };
        stream.reset = Some(code);
        let unread = stream.unread_content();
        stream.received.clear();
        stream.taken = 0;
        stream.head_unread = 0;
        stream.wake();
        self.give_credit(unread);
    }

    pub(super) fn count_reset(&mut self) -> Result<(), Error> {
        if self.resets.count(self.now, self.limits.resets) { Ok(()) } else { Err(self.abused(Abuse::Resets)) }
    }

    pub(super) fn count_control_frame(&mut self) -> Result<(), Error> {
        let allowed = self.control_frames.count(self.now, self.limits.control_frames);
        if allowed { Ok(()) } else { Err(self.abused(Abuse::ControlFrames)) }
    }

    pub(super) fn abused(&mut self, abuse: Abuse) -> Error {
        self.abuse = Some(abuse);
        Error::connection(ErrorCode::EnhanceYourCalm, abuse.reason())
    }

    /// Place of an open stream.
    pub(super) fn find(&self, id: u32) -> Option<usize> {
        let open = &self.room.open;
        let at = open.binary_search_by_key(&id, |(open, _)| *open).ok()?;
        open.get(at).map(|(_, key)| *key)
    }

    pub(super) fn remember(&mut self, id: u32, is_reset: bool) {
        if let Some(place) = self.closed.iter_mut().find(|(closed, _)| *closed == id) {
            place.1 |= is_reset;
            return;
        }
        if let Some(place) = self.closed.get_mut(self.closed_at) {
            *place = (id, is_reset);
        }
        self.closed_at = (self.closed_at + 1) % REMEMBERED;
    }

    /// Takes note that the peer has reset a stream that we had reset: no frame of it can be on its way any more (RFC 9113
    /// section 5.1).
    pub(super) fn forget_reset(&mut self, id: u32) {
        if let Some(place) = self.closed.iter_mut().find(|(closed, _)| *closed == id) {
            place.1 = false;
        }
    }

    /// `Some` for a stream that has closed lately: true if we have reset it.
    pub(super) fn closed(&self, id: u32) -> Option<bool> {
        self.closed.iter().find(|(closed, _)| *closed == id).map(|(_, is_reset)| *is_reset)
    }

    /// Tells the peer that no stream beyond those it has opened is served.
    pub(crate) fn go_away(&mut self) {
        if self.last_served.is_none() && !self.dead {
            self.last_served = Some(self.last_stream);
            let last = self.last_of_peer();
            frame::push_go_away(&mut self.room.out, last, ErrorCode::NoError, b"");
        }
    }

    /// Highest stream that the peer has opened; servers open none.
    fn last_of_peer(&self) -> u32 {
        if self.client.is_some() { 0 } else { self.last_stream }
    }

    /// Ends the connection for an error of the peer, of which it is told.
    pub(crate) fn fail(&mut self, error: Error) {
        if !self.dead {
            let last = self.last_of_peer();
            frame::push_go_away(&mut self.room.out, last, error.code, error.reason.as_bytes());
            self.die();
        }
    }

    /// Ends all streams: the connection is gone, or about to be closed. Responses that a client has received whole are still
    /// there to be taken.
    pub(crate) fn die(&mut self) {
        self.dead = true;
        for at in 0..self.room.open.len() {
            let Some((_, key)) = self.room.open.get(at).copied() else { continue };
            let is_complete = self.room.streams.get(key).is_some_and(|stream| stream.remote_ended && !stream.is_over());
            if self.client.is_some() && is_complete {
                self.stop_sending(key);
            } else {
                self.end_early(key, ErrorCode::Cancel);
            }
        }
    }
}

impl Shared {
    /// A connection with this client.
    pub(crate) fn new(connection: Connection, client: Client, tls: Option<TlsFacts>) -> Rc<Self> {
        Rc::new(Self { connection: RefCell::new(connection), client, tls })
    }
}
