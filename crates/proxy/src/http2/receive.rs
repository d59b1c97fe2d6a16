//! Received frames (RFC 9113 sections 4 to 6).

use weir_wire::http2::frame::{self, ACK, END_HEADERS, END_STREAM, Header, Kind, Setting};
use weir_wire::http2::hpack::{FIELD_OVERHEAD, Outcome};
use weir_wire::http2::priority::Priority;
use weir_wire::http2::{Error, ErrorCode, MAX_WINDOW, Scope};

use super::connection::{Block, Connection, Peer};
use super::{Abuse, Stream};

/// Content of a DATA frame below which the frame counts as empty, unless it ends its stream.
const LITTLE: usize = 4;

const fn protocol(reason: &'static str) -> Error {
    Error::connection(ErrorCode::ProtocolError, reason)
}

impl Connection {
    /// Handles the whole frames at the start of `input`; the number of bytes that they have. It stops before a frame that
    /// would begin more than there may be under way.
    ///
    /// # Errors
    /// An error of the connection. Errors of streams are answered here.
    pub(crate) fn receive(&mut self, input: &[u8], peer: &mut impl Peer) -> Result<usize, Error> {
        let mut at = 0;
        while !self.is_congested() {
            let rest = input.get(at..).unwrap_or_default();
            let Some(header) = Header::read(rest) else { break };
            if !self.has_settings && (header.kind != Kind::Settings || header.has(ACK)) {
                return Err(protocol("no SETTINGS frame first"));
            }
            if let Some(block) = self.block
                && (header.kind != Kind::Continuation || header.stream != block.stream)
            {
                return Err(protocol("frame within a header block"));
            }
            if header.kind == Kind::Headers && self.is_full() {
                break;
            }
            let checked = header.check(self.limits.frame_size);
            if let Err(error) = checked
                && error.scope == Scope::Connection
            {
                return Err(error);
            }
            let end = Header::LEN + header.length as usize;
            let Some(payload) = rest.get(Header::LEN..end) else { break };
            at += end;
            match checked.and_then(|()| self.frame(header, payload, peer)) {
                Ok(()) => {}
                Err(error) if error.scope == Scope::Connection => return Err(error),
                Err(_) if self.is_idle(header.stream) => return Err(protocol("frame of an idle stream")),
                Err(error) => self.reset(header.stream, error.code)?,
            }
        }
        Ok(at)
    }

    /// True when streams that the peer counts as closed are still being wound up, so that there is no place for another.
    fn is_full(&self) -> bool {
        let over = || self.room.open.iter().filter(|(_, key)| self.room.streams.get(*key).is_some_and(Stream::is_over));
        self.client.is_none() && self.room.open.len() >= self.limits.streams as usize && over().next().is_some()
    }

    fn frame(&mut self, header: Header, payload: &[u8], peer: &mut impl Peer) -> Result<(), Error> {
        match header.kind {
            Kind::Data => self.data(header, payload),
            Kind::Headers => self.headers(header, payload, peer),
            Kind::Continuation => self.continuation(header, payload, peer),
            Kind::Priority => {
                self.count_control_frame()?;
                if frame::depends_on_itself(header, payload) {
                    return Err(Error::stream(ErrorCode::ProtocolError, "stream depends on itself"));
                }
                Ok(())
            }
            Kind::ResetStream => self.reset_by_peer(header, payload),
            Kind::Settings => self.settings(header, payload),
            Kind::PushPromise => Err(protocol("PUSH_PROMISE, which nobody has allowed")),
            Kind::Ping => {
                self.count_control_frame()?;
                if !header.has(ACK) {
                    frame::push_ping(&mut self.room.out, true, frame::ping(payload));
                }
                Ok(())
            }
            Kind::GoAway => {
                self.leave(payload);
                self.count_control_frame()
            }
            Kind::WindowUpdate => self.window_update(header, payload),
            Kind::PriorityUpdate => self.priority_update(payload),
            Kind::Unknown(_) => self.count_control_frame(),
        }
    }

    fn data(&mut self, header: Header, payload: &[u8]) -> Result<(), Error> {
        let length = i64::from(header.length);
        if length > self.window {
            return Err(Error::connection(ErrorCode::FlowControlError, "DATA beyond the connection's window"));
        }
        self.window -= length;
        let content = frame::payload(header, payload)?;
        let ends = header.has(END_STREAM);
        let is_empty = content.len() < LITTLE || content.len() < payload.len() / 4;
        if is_empty && !ends && !self.empty_frames.count(self.now, self.limits.empty_frames) {
            return Err(self.abused(Abuse::EmptyFrames));
        }
        let Some(stream) = self.find(header.stream).and_then(|key| self.room.streams.get_mut(key)) else {
            self.give_credit(header.length);
            return self.on_no_stream(header);
        };
        if stream.is_over() {
            let by_peer = stream.reset_by_peer;
            self.give_credit(header.length);
            return self.on_stream_over(by_peer);
        }
        if stream.waits_for_head {
            self.give_credit(header.length);
            return Err(Error::stream(ErrorCode::ProtocolError, "DATA before the head of the response"));
        }
        let refused = if stream.remote_ended {
            Some(Error::stream(ErrorCode::StreamClosed, "DATA after the end of the stream"))
        } else if length > stream.window {
            Some(Error::stream(ErrorCode::FlowControlError, "DATA beyond the stream's window"))
        } else {
            count_content(stream, content.len(), ends).err()
        };
        if let Some(error) = refused {
            self.give_credit(header.length);
            return Err(error);
        }
        stream.window -= length;
        stream.remote_ended |= ends;
        // Padding is taken at once.
        let waste = header.length - content.len() as u32;
        stream.framing += Header::LEN as u64 + u64::from(waste);
        stream.credit += waste;
        let dropped = if stream.abandoned {
            content.len() as u32
        } else {
            stream.put(content);
            0
        };
        if stream.waits_for_data && (ends || !content.is_empty()) {
            stream.waits_for_data = false;
            stream.wake();
        }
        self.give_credit(waste + dropped);
        Ok(())
    }

    fn headers(&mut self, header: Header, payload: &[u8], peer: &mut impl Peer) -> Result<(), Error> {
        if header.stream.is_multiple_of(2) || self.client.is_some() && header.stream > self.last_stream {
            return Err(protocol("HEADERS of a stream that was not opened"));
        }
        let content = frame::payload(header, payload)?;
        let (ends, malformed) = (header.has(END_STREAM), frame::depends_on_itself(header, payload));
        let block = Block { stream: header.stream, ends, frames: 0, malformed };
        if header.has(END_HEADERS) {
            return self.header_block(block, content, peer);
        }
        self.room.block.clear();
        self.room.block.extend_from_slice(content);
        self.block = Some(block);
        Ok(())
    }

    fn continuation(&mut self, header: Header, payload: &[u8], peer: &mut impl Peer) -> Result<(), Error> {
        let Some(mut block) = self.block else { return Err(protocol("CONTINUATION without a header block")) };
        block.frames += 1;
        let len = self.room.block.len() + payload.len();
        if block.frames > self.limits.continuations || len > self.limits.head + self.limits.frame_size as usize {
            return Err(self.abused(Abuse::HeaderBlock));
        }
        self.room.block.extend_from_slice(payload);
        self.block = Some(block);
        if !header.has(END_HEADERS) {
            return Ok(());
        }
        self.block = None;
        let bytes = std::mem::take(&mut self.room.block);
        let done = self.header_block(block, &bytes, peer);
        self.room.block = bytes;
        done
    }

    fn header_block(&mut self, block: Block, bytes: &[u8], peer: &mut impl Peer) -> Result<(), Error> {
        let most = self.limits.head + FIELD_OVERHEAD * (self.limits.fields + 8);
        let fields = &mut self.room.fields;
        fields.clear();
        let outcome =
            self.decoder.decode(bytes, most, &mut self.room.scratch, |field| fields.push(field.name, field.value))?;
        if outcome == Outcome::TooLarge {
            fields.set_too_large();
        }
        let id = block.stream;
        if block.malformed {
            self.last_stream = self.last_stream.max(id);
            return Err(Error::stream(ErrorCode::ProtocolError, "stream depends on itself"));
        }
        if let Some(key) = self.find(id) {
            if self.room.streams.get(key).is_some_and(|stream| stream.waits_for_head && !stream.is_over()) {
                return self.response_head(key, block.ends);
            }
            return self.trailers(key, block.ends);
        }
        if id <= self.last_stream {
            return match self.closed(id) {
                // The frame was on its way when the stream was reset.
                Some(true) => self.count_control_frame(),
                Some(false) => Err(Error::connection(ErrorCode::StreamClosed, "HEADERS of a closed stream")),
                // Of a stream that was given up long ago.
                None if self.client.is_some() => self.count_control_frame(),
                None => Err(protocol("HEADERS of a stream below the last one")),
            };
        }
        self.last_stream = id;
        if self.is_going_away() {
            // The peer knows, or is about to, that the stream is not served.
            return self.count_control_frame();
        }
        if self.room.open.len() >= self.limits.streams as usize {
            return Err(Error::stream(ErrorCode::RefusedStream, "more streams than SETTINGS_MAX_CONCURRENT_STREAMS"));
        }
        self.control_frames.earn(self.now, 1);
        peer.head(self, id, block.ends)
    }

    /// A header section behind the content (RFC 9113 section 8.1).
    fn trailers(&mut self, key: usize, ends: bool) -> Result<(), Error> {
        let Some(stream) = self.room.streams.get_mut(key) else { return Ok(()) };
        if stream.is_over() {
            let by_peer = stream.reset_by_peer;
            return self.on_stream_over(by_peer);
        }
        if stream.remote_ended {
            return Err(Error::stream(ErrorCode::StreamClosed, "HEADERS after the end of the stream"));
        }
        if !ends {
            return Err(Error::stream(ErrorCode::ProtocolError, "trailers that do not end the stream"));
        }
        count_content(stream, 0, true)?;
        if self.room.fields.is_too_large() {
            return Err(Error::stream(ErrorCode::EnhanceYourCalm, "trailers too large"));
        }
        if !self.room.fields.write_trailers(&mut stream.trailers) {
            return Err(Error::stream(ErrorCode::ProtocolError, "malformed trailers"));
        }
        stream.remote_ended = true;
        stream.framing += Header::LEN as u64 + stream.trailers.len() as u64;
        stream.waits_for_data = false;
        stream.wake();
        Ok(())
    }

    fn reset_by_peer(&mut self, header: Header, payload: &[u8]) -> Result<(), Error> {
        if self.is_idle(header.stream) {
            return Err(protocol("RST_STREAM of an idle stream"));
        }
        match self.find(header.stream) {
            Some(key) => {
                // RFC 9113 section 8.1: a complete response counts, though its server does not read on.
                if self.client.is_some() && self.room.streams.get(key).is_some_and(|stream| stream.remote_ended) {
                    self.stop_sending(key);
                    return self.count_control_frame();
                }
                let Some(stream) = self.room.streams.get_mut(key) else { return Ok(()) };
                stream.reset_by_peer = true;
                let was_over = stream.is_over();
                self.end_early(key, frame::reset_stream(payload));
                self.remember(header.stream, false);
                if was_over { self.count_control_frame() } else { self.count_reset() }
            }
            None => {
                if self.client.is_none() {
                    self.forget_reset(header.stream);
                }
                self.count_control_frame()
            }
        }
    }

    fn settings(&mut self, header: Header, payload: &[u8]) -> Result<(), Error> {
        self.has_settings = true;
        self.count_control_frame()?;
        if header.has(ACK) {
            self.decoder.settings_acknowledged();
            return Ok(());
        }
        for setting in frame::settings(payload) {
            match setting? {
                Setting::HeaderTableSize(size) => self.encoder.set_peer_limit(size),
                Setting::MaxFrameSize(size) => self.peer_frame_size = size,
                Setting::InitialWindowSize(size) => self.set_peer_window(i64::from(size))?,
                setting => self.client_setting(setting)?,
            }
        }
        frame::push_settings_ack(&mut self.room.out);
        Ok(())
    }

    fn set_peer_window(&mut self, size: i64) -> Result<(), Error> {
        let change = size - self.peer_window;
        self.peer_window = size;
        for (_, key) in &self.room.open {
            let Some(stream) = self.room.streams.get_mut(*key) else { continue };
            stream.send_window += change;
            if stream.send_window > i64::from(MAX_WINDOW) {
                return Err(Error::connection(ErrorCode::FlowControlError, "window above 2^31-1"));
            }
        }
        self.grant();
        Ok(())
    }

    fn window_update(&mut self, header: Header, payload: &[u8]) -> Result<(), Error> {
        self.count_control_frame()?;
        let increment = match frame::window_update(header, payload) {
            Err(_) if header.stream != 0 && self.is_idle(header.stream) => {
                return Err(protocol("WINDOW_UPDATE of an idle stream"));
            }
            increment => i64::from(increment?),
        };
        if header.stream == 0 {
            self.send_window += increment;
            if self.send_window > i64::from(MAX_WINDOW) {
                return Err(Error::connection(ErrorCode::FlowControlError, "window above 2^31-1"));
            }
        } else if self.is_idle(header.stream) {
            return Err(protocol("WINDOW_UPDATE of an idle stream"));
        } else if let Some(stream) = self.find(header.stream).and_then(|key| self.room.streams.get_mut(key)) {
            if stream.is_over() {
                return Ok(());
            }
            stream.send_window += increment;
            if stream.send_window > i64::from(MAX_WINDOW) {
                return Err(Error::stream(ErrorCode::FlowControlError, "window above 2^31-1"));
            }
        }
        self.grant();
        Ok(())
    }

    fn priority_update(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.count_control_frame()?;
        let (id, value) = frame::priority_update(payload)?;
        let priority = Priority::parse(value);
        match self.find(id).and_then(|key| self.room.streams.get_mut(key)) {
            Some(stream) => stream.prioritise(priority),
            None if id > self.last_stream => self.early_priority = Some((id, priority)),
            None => {}
        }
        Ok(())
    }

    /// A frame of a stream that was reset.
    fn on_stream_over(&mut self, by_peer: bool) -> Result<(), Error> {
        if by_peer {
            return Err(Error::stream(ErrorCode::StreamClosed, "frame after RST_STREAM"));
        }
        // It was on its way when the stream was reset.
        self.count_control_frame()
    }

    /// A frame of a stream that is not open.
    fn on_no_stream(&mut self, header: Header) -> Result<(), Error> {
        if self.is_idle(header.stream) {
            return Err(protocol("frame of an idle stream"));
        }
        self.count_control_frame()?;
        match self.closed(header.stream) {
            Some(true) => Ok(()),
            // Of a stream that was not served; or one of long ago.
            None if self.is_going_away() => Ok(()),
            _ => {
                frame::push_reset_stream(&mut self.room.out, header.stream, ErrorCode::StreamClosed);
                self.remember(header.stream, true);
                Ok(())
            }
        }
    }

    /// True for a stream that nobody has opened.
    fn is_idle(&self, id: u32) -> bool {
        id.is_multiple_of(2) || id > self.last_stream
    }
}

/// Holds the content of a stream against its Content-Length (RFC 9113 section 8.1.1).
fn count_content(stream: &mut Stream, len: usize, ends: bool) -> Result<(), Error> {
    let Some(left) = stream.expected else { return Ok(()) };
    match left.checked_sub(len as u64) {
        Some(left) if left == 0 || !ends => {
            stream.expected = Some(left);
            Ok(())
        }
        _ => Err(Error::stream(ErrorCode::ProtocolError, "content that is not as long as Content-Length says")),
    }
}
