//! Frames of HTTP/2 (RFC 9113 sections 4 and 6): headers, the rules that one frame alone can break, and writing.
//!
//! A reader takes [`Header::read`], then [`Header::check`] before it waits for the payload, then [`payload`] or the
//! function of the kind.

use super::{DEFAULT_FRAME_SIZE, Error, ErrorCode, MAX_FRAME_SIZE, MAX_STREAM, MAX_WINDOW};

/// Flag of DATA and HEADERS: the last frame of the message.
pub const END_STREAM: u8 = 0x1;
/// Flag of SETTINGS and PING: an acknowledgement.
pub const ACK: u8 = 0x1;
/// Flag of HEADERS, PUSH_PROMISE and CONTINUATION: the last frame of the header block.
pub const END_HEADERS: u8 = 0x4;
/// Flag of DATA, HEADERS and PUSH_PROMISE: the payload is padded.
pub const PADDED: u8 = 0x8;
/// Flag of HEADERS: the payload begins with a priority of RFC 7540.
pub const PRIORITY: u8 = 0x20;

/// Type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the registered frame types")]
pub enum Kind {
    Data,
    Headers,
    Priority,
    ResetStream,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// PRIORITY_UPDATE of RFC 9218.
    PriorityUpdate,
    /// Any other type. Such frames are ignored (RFC 9113 section 5.5).
    Unknown(u8),
}

impl Kind {
    const fn from_number(number: u8) -> Self {
        match number {
            0x0 => Self::Data,
            0x1 => Self::Headers,
            0x2 => Self::Priority,
            0x3 => Self::ResetStream,
            0x4 => Self::Settings,
            0x5 => Self::PushPromise,
            0x6 => Self::Ping,
            0x7 => Self::GoAway,
            0x8 => Self::WindowUpdate,
            0x9 => Self::Continuation,
            0x10 => Self::PriorityUpdate,
            other => Self::Unknown(other),
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Data => 0x0,
            Self::Headers => 0x1,
            Self::Priority => 0x2,
            Self::ResetStream => 0x3,
            Self::Settings => 0x4,
            Self::PushPromise => 0x5,
            Self::Ping => 0x6,
            Self::GoAway => 0x7,
            Self::WindowUpdate => 0x8,
            Self::Continuation => 0x9,
            Self::PriorityUpdate => 0x10,
            Self::Unknown(other) => other,
        }
    }
}

/// First nine bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the payload in bytes, at most [`MAX_FRAME_SIZE`].
    pub length: u32,
    /// Type.
    pub kind: Kind,
    /// Flags; those that the type does not define have no meaning.
    pub flags: u8,
    /// Stream identifier without its reserved bit; 0 is the connection.
    pub stream: u32,
}

impl Header {
    /// Length of a frame header in bytes.
    pub const LEN: usize = 9;

    /// Reads the header at the start of `bytes`; `None` if there are fewer than nine.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<9>()?;
        Some(Self {
            length: u32::from_be_bytes([0, a, b, c]),
            kind: Kind::from_number(kind),
            flags,
            stream: u32::from_be_bytes(stream) & MAX_STREAM,
        })
    }

    /// Appends the header.
    pub fn push(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    fn bytes(self) -> [u8; Self::LEN] {
        let [_, a, b, c] = self.length.to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind.number(), self.flags, d, e, f, g]
    }

    /// True if a flag is set.
    #[must_use]
    pub const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks the length and the stream identifier against the rules of the type.
    ///
    /// `max_frame_size` is our own SETTINGS_MAX_FRAME_SIZE. A payload that is too long is always an error of the
    /// connection here, for the connection would have to be read past it.
    ///
    /// # Errors
    /// PROTOCOL_ERROR for a wrong stream identifier, FRAME_SIZE_ERROR for a wrong length.
    pub fn check(self, max_frame_size: u32) -> Result<(), Error> {
        let size = Error::connection(ErrorCode::FrameSizeError, "frame of a wrong length");
        if self.length > max_frame_size {
            return Err(Error::connection(ErrorCode::FrameSizeError, "frame longer than SETTINGS_MAX_FRAME_SIZE"));
        }
        let of_stream = match self.kind {
            Kind::Data
            | Kind::Headers
            | Kind::Priority
            | Kind::ResetStream
            | Kind::PushPromise
            | Kind::Continuation => true,
            Kind::Settings | Kind::Ping | Kind::GoAway | Kind::PriorityUpdate => false,
            Kind::WindowUpdate | Kind::Unknown(_) => self.stream != 0,
        };
        if of_stream != (self.stream != 0) {
            return Err(Error::connection(ErrorCode::ProtocolError, "frame on a wrong stream"));
        }
        let fits = match self.kind {
            Kind::Priority if self.length != 5 => {
                return Err(Error::stream(ErrorCode::FrameSizeError, "PRIORITY of a wrong length"));
            }
            Kind::ResetStream | Kind::WindowUpdate => self.length == 4,
            Kind::Settings if self.has(ACK) => self.length == 0,
            Kind::Settings => self.length.is_multiple_of(6),
            Kind::Ping => self.length == 8,
            Kind::GoAway => self.length >= 8,
            Kind::PriorityUpdate => self.length >= 4,
            _ => true,
        };
        if fits { Ok(()) } else { Err(size) }
    }
}

/// Content of a frame of DATA, HEADERS or CONTINUATION: its payload without padding and priority. Payloads of other
/// types are returned as they are.
///
/// # Errors
/// PROTOCOL_ERROR of the connection for padding as long as the payload or longer, FRAME_SIZE_ERROR for a payload
/// without room for its fixed parts.
pub fn payload(header: Header, payload: &[u8]) -> Result<&[u8], Error> {
    let short = Error::connection(ErrorCode::FrameSizeError, "frame too short for its fixed parts");
    let mut content = payload;
    if header.has(PADDED) && matches!(header.kind, Kind::Data | Kind::Headers) {
        let (padding, rest) = content.split_first().ok_or(short)?;
        let end = rest.len().checked_sub(usize::from(*padding));
        content = end
            .and_then(|end| rest.get(..end))
            .ok_or(Error::connection(ErrorCode::ProtocolError, "padding longer than the frame"))?;
    }
    if header.has(PRIORITY) && header.kind == Kind::Headers {
        content = content.get(5..).ok_or(short)?;
    }
    Ok(content)
}

/// True if a frame of HEADERS or PRIORITY makes its stream depend on itself, an error of the stream (RFC 7540 section
/// 5.3.1). Dependencies have no other meaning since RFC 9113.
///
/// The header block of such a HEADERS frame has to be decoded all the same.
#[must_use]
pub fn depends_on_itself(header: Header, payload: &[u8]) -> bool {
    let at = match header.kind {
        Kind::Priority => 0,
        Kind::Headers if header.has(PRIORITY) => usize::from(header.has(PADDED)),
        _ => return false,
    };
    number(payload, at).is_some_and(|dependency| dependency & MAX_STREAM == header.stream)
}

/// Setting (RFC 9113 section 6.5.2), with a value in its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Largest dynamic table that the peer's encoder may use, in bytes.
    HeaderTableSize(u32),
    /// True if the server may push.
    EnablePush(bool),
    /// Number of streams that the peer may have open.
    MaxConcurrentStreams(u32),
    /// Initial window of streams in bytes, at most [`MAX_WINDOW`].
    InitialWindowSize(u32),
    /// Longest payload of a frame in bytes, [`DEFAULT_FRAME_SIZE`] to [`MAX_FRAME_SIZE`].
    MaxFrameSize(u32),
    /// Largest field section in bytes, counted as HPACK counts entries.
    MaxHeaderListSize(u32),
    /// True if extended CONNECT is accepted (RFC 8441).
    EnableConnectProtocol(bool),
    /// True if priorities of RFC 7540 are not used (RFC 9218 section 2.1).
    NoRfc7540Priorities(bool),
    /// Any other setting, which is ignored.
    Unknown(u16, u32),
}

impl Setting {
    fn read(id: u16, value: u32) -> Result<Self, Error> {
        let protocol = |reason| Error::connection(ErrorCode::ProtocolError, reason);
        let flag = |reason| if value <= 1 { Ok(value == 1) } else { Err(protocol(reason)) };
        Ok(match id {
            1 => Self::HeaderTableSize(value),
            2 => Self::EnablePush(flag("SETTINGS_ENABLE_PUSH is neither 0 nor 1")?),
            3 => Self::MaxConcurrentStreams(value),
            4 if value > MAX_WINDOW => {
                let reason = "SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1";
                return Err(Error::connection(ErrorCode::FlowControlError, reason));
            }
            4 => Self::InitialWindowSize(value),
            5 if !(DEFAULT_FRAME_SIZE..=MAX_FRAME_SIZE).contains(&value) => {
                return Err(protocol("SETTINGS_MAX_FRAME_SIZE out of range"));
            }
            5 => Self::MaxFrameSize(value),
            6 => Self::MaxHeaderListSize(value),
            8 => Self::EnableConnectProtocol(flag("SETTINGS_ENABLE_CONNECT_PROTOCOL is neither 0 nor 1")?),
            9 => Self::NoRfc7540Priorities(flag("SETTINGS_NO_RFC7540_PRIORITIES is neither 0 nor 1")?),
            _ => Self::Unknown(id, value),
        })
    }

    fn parts(self) -> (u16, u32) {
        match self {
            Self::HeaderTableSize(value) => (1, value),
            Self::EnablePush(on) => (2, on.into()),
            Self::MaxConcurrentStreams(value) => (3, value),
            Self::InitialWindowSize(value) => (4, value),
            Self::MaxFrameSize(value) => (5, value),
            Self::MaxHeaderListSize(value) => (6, value),
            Self::EnableConnectProtocol(on) => (8, on.into()),
            Self::NoRfc7540Priorities(on) => (9, on.into()),
            Self::Unknown(id, value) => (id, value),
        }
    }
}

/// Settings of a SETTINGS frame in their order, each checked against its range. An error ends the connection.
pub fn settings(payload: &[u8]) -> impl Iterator<Item = Result<Setting, Error>> {
    payload.chunks_exact(6).filter_map(|entry| {
        let [a, b, c, d, e, f] = *entry.first_chunk()?;
        Some(Setting::read(u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f])))
    })
}

/// Increment of a WINDOW_UPDATE frame, 1 to [`MAX_WINDOW`].
///
/// # Errors
/// PROTOCOL_ERROR for an increment of 0: of the stream, or of the connection for its own window.
pub fn window_update(header: Header, payload: &[u8]) -> Result<u32, Error> {
    let reason = "WINDOW_UPDATE with an increment of 0";
    match (number(payload, 0).unwrap_or_default() & MAX_WINDOW, header.stream) {
        (0, 0) => Err(Error::connection(ErrorCode::ProtocolError, reason)),
        (0, _) => Err(Error::stream(ErrorCode::ProtocolError, reason)),
        (increment, _) => Ok(increment),
    }
}

/// Code of a RST_STREAM frame.
#[must_use]
pub fn reset_stream(payload: &[u8]) -> ErrorCode {
    ErrorCode::from_number(number(payload, 0).unwrap_or_default())
}

/// Bytes of a PING frame, which its answer returns.
#[must_use]
pub fn ping(payload: &[u8]) -> [u8; 8] {
    payload.first_chunk().copied().unwrap_or_default()
}

/// Content of a GOAWAY frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoAway<'a> {
    /// Highest stream that the sender has processed or may process; those above may be sent again elsewhere.
    pub last_stream: u32,
    /// Reason.
    pub code: ErrorCode,
    /// Text for diagnosis, of the peer's choice.
    pub debug: &'a [u8],
}

/// Content of a GOAWAY frame.
#[must_use]
pub fn go_away(payload: &[u8]) -> GoAway<'_> {
    GoAway {
        last_stream: number(payload, 0).unwrap_or_default() & MAX_STREAM,
        code: ErrorCode::from_number(number(payload, 4).unwrap_or_default()),
        debug: payload.get(8..).unwrap_or_default(),
    }
}

/// Stream that a PRIORITY_UPDATE frame is about, and the value for [`Priority::parse`](super::priority::Priority).
///
/// # Errors
/// PROTOCOL_ERROR of the connection for stream 0 (RFC 9218 section 7.1).
pub fn priority_update(payload: &[u8]) -> Result<(u32, &[u8]), Error> {
    match number(payload, 0).unwrap_or_default() & MAX_STREAM {
        0 => Err(Error::connection(ErrorCode::ProtocolError, "PRIORITY_UPDATE of stream 0")),
        stream => Ok((stream, payload.get(4..).unwrap_or_default())),
    }
}

/// Four bytes as a number.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Header block that is being written: HEADERS, and CONTINUATION for what one frame cannot hold.
#[derive(Debug)]
#[must_use = "the frame has no length before it is finished"]
pub struct HeaderBlock {
    /// Offset of the frame's header.
    start: usize,
    stream: u32,
}

impl HeaderBlock {
    /// Begins a block at the end of `out`; the fields follow, appended by the [encoder](super::hpack::Encoder).
    pub fn begin(out: &mut Vec<u8>, stream: u32) -> Self {
        let start = out.len();
        Header { length: 0, kind: Kind::Headers, flags: 0, stream }.push(out);
        Self { start, stream }
    }

    /// Ends the block, which reaches up to the end of `out`, and cuts it into frames of at most `max_frame_size`, the
    /// peer's SETTINGS_MAX_FRAME_SIZE.
    pub fn finish(self, out: &mut Vec<u8>, max_frame_size: u32, end_stream: bool) {
        let max = max_frame_size.clamp(1, MAX_FRAME_SIZE) as usize;
        let block = self.start + Header::LEN;
        let len = out.len().saturating_sub(block);
        let frames = len.div_ceil(max).max(1);
        // Room for the headers of CONTINUATION; parts move to their places from the last one on.
        out.resize(out.len() + (frames - 1) * Header::LEN, 0);
        for part in (0..frames).rev() {
            let from = part * max;
            let size = max.min(len - from);
            let to = block + from + part * Header::LEN;
            if part > 0 {
                out.copy_within(block + from..block + from + size, to);
            }
            let first = part == 0;
            let last = part + 1 == frames;
            let header = Header {
                length: size as u32,
                kind: if first { Kind::Headers } else { Kind::Continuation },
                flags: if last { END_HEADERS } else { 0 } | if first && end_stream { END_STREAM } else { 0 },
                stream: self.stream,
            };
            if let Some(place) = out.get_mut(to - Header::LEN..to) {
                place.copy_from_slice(&header.bytes());
            }
        }
    }

    /// Takes back the whole block.
    pub fn discard(self, out: &mut Vec<u8>) {
        out.truncate(self.start);
    }
}

/// Appends the header of a DATA frame; `len` bytes follow, at most the peer's SETTINGS_MAX_FRAME_SIZE.
pub fn push_data_header(out: &mut Vec<u8>, stream: u32, len: u32, end_stream: bool) {
    Header { length: len, kind: Kind::Data, flags: if end_stream { END_STREAM } else { 0 }, stream }.push(out);
}

/// Appends a SETTINGS frame.
pub fn push_settings(out: &mut Vec<u8>, settings: &[Setting]) {
    Header { length: settings.len() as u32 * 6, kind: Kind::Settings, flags: 0, stream: 0 }.push(out);
    for setting in settings {
        let (id, value) = setting.parts();
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of the peer's SETTINGS.
pub fn push_settings_ack(out: &mut Vec<u8>) {
    Header { length: 0, kind: Kind::Settings, flags: ACK, stream: 0 }.push(out);
}

/// Appends a PING frame, or the answer to one (`ack`), which has the bytes of the question.
pub fn push_ping(out: &mut Vec<u8>, ack: bool, data: [u8; 8]) {
    Header { length: 8, kind: Kind::Ping, flags: if ack { ACK } else { 0 }, stream: 0 }.push(out);
    out.extend_from_slice(&data);
}

/// Appends a WINDOW_UPDATE frame with an increment of 1 to [`MAX_WINDOW`]; stream 0 is the connection.
pub fn push_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    Header { length: 4, kind: Kind::WindowUpdate, flags: 0, stream }.push(out);
    out.extend_from_slice(&increment.to_be_bytes());
}

/// Appends a RST_STREAM frame.
pub fn push_reset_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    Header { length: 4, kind: Kind::ResetStream, flags: 0, stream }.push(out);
    out.extend_from_slice(&code.number().to_be_bytes());
}

/// Appends a GOAWAY frame; `debug` is a short text for whoever reads the peer's log.
pub fn push_go_away(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug: &[u8]) {
    Header { length: 8 + debug.len() as u32, kind: Kind::GoAway, flags: 0, stream: 0 }.push(out);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.number().to_be_bytes());
    out.extend_from_slice(debug);
}

#[cfg(test)]
mod tests;
