//! Frames of streams on their way out, and the room that they compete for.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use weir_wire::http2::frame::{self, END_STREAM, Header, HeaderBlock};
use weir_wire::http2::hpack::Encoder;
use weir_wire::http2::{DEFAULT_FRAME_SIZE, ErrorCode};

use super::Connection;
use super::stream::Received;
use crate::relay;

/// Most bytes of content that a stream may put out before it is another one's turn.
const TURN: usize = DEFAULT_FRAME_SIZE as usize;
/// Offset of the flags in a frame.
const FLAGS: u64 = 4;

impl Connection {
    /// Puts out the fields that `write` encodes as a header section of a stream; its length in bytes.
    pub(crate) fn push_fields(
        &mut self,
        key: usize,
        ends: bool,
        write: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> usize {
        let is_dead = self.is_dead();
        let Some(stream) = self.room.streams.get_mut(key) else { return 0 };
        if stream.is_over() || stream.local_ended || is_dead {
            return 0;
        }
        let out = &mut self.room.out;
        let start = out.len();
        stream.last_frame = Some(self.out_base + start as u64);
        stream.local_ended = ends;
        let block = HeaderBlock::begin(out, stream.id);
        self.encoder.begin(out);
        write(&mut self.encoder, out);
        block.finish(out, self.peer_frame_size, ends);
        let len = out.len() - start;
        self.wake();
        len
    }

    /// Keeps the end of the stream out of the frames that were put out: a frame of DATA or another section says so.
    pub(crate) fn seal(&mut self, key: usize) {
        if let Some(stream) = self.room.streams.get_mut(key) {
            stream.last_frame = None;
        }
    }

    /// Puts out some of `data`; the number of bytes once there is room, and a window that is open. An error if the stream is
    /// over.
    pub(crate) fn poll_data(&mut self, cx: &Context<'_>, key: usize, data: &[u8]) -> Poll<Result<usize, ErrorCode>> {
        let mut free = self.free_room();
        if self.reserved > 0 && self.has_urgent_grant(key) {
            free = 0;
        }
        let Some(stream) = self.room.streams.get_mut(key) else { return Poll::Ready(Err(ErrorCode::Cancel)) };
        if let Some(code) = stream.reset {
            return Poll::Ready(Err(code));
        }
        if stream.stopped {
            return Poll::Ready(Err(ErrorCode::NoError));
        }
        // Nothing is free while a stream of the same urgency waits that could use it.
        let room = if stream.grant > 0 { stream.grant } else { free.min(TURN) };
        let window = usize::try_from(stream.send_window).unwrap_or(0);
        let n = room.min(window).min(data.len()).min(self.peer_frame_size as usize);
        if n == 0 {
            stream.wait(cx);
            if !std::mem::replace(&mut stream.waits_for_room, true) {
                self.room.waiting.push(key);
            }
            self.grant();
            return Poll::Pending;
        }
        let used = n.min(stream.grant);
        stream.grant -= used;
        self.reserved -= used;
        stream.send_window -= n as i64;
        self.send_window -= n as i64;
        let out = &mut self.room.out;
        stream.last_frame = Some(self.out_base + out.len() as u64);
        frame::push_data_header(out, stream.id, n as u32, false);
        out.extend_from_slice(data.get(..n).unwrap_or_default());
        self.control_frames.earn(self.now, 2);
        self.wake();
        Poll::Ready(Ok(n))
    }

    /// Ends our side of a stream.
    pub(crate) fn end_stream(&mut self, key: usize) {
        self.release_grant(key);
        let Some(stream) = self.room.streams.get_mut(key) else { return };
        if stream.is_over() || stream.local_ended {
            return;
        }
        stream.local_ended = true;
        // The stream's last frame says so, if it has not left.
        let flags = stream.last_frame.and_then(|at| (at + FLAGS).checked_sub(self.out_base));
        match flags.and_then(|at| self.room.out.get_mut(at as usize)) {
            Some(flags) => *flags |= END_STREAM,
            None => frame::push_data_header(&mut self.room.out, stream.id, 0, true),
        }
        self.wake();
    }

    /// Checks that the stream goes on; returns room that it was promised and does not need.
    pub(crate) fn flush(&mut self, key: usize) -> Result<(), ErrorCode> {
        self.release_grant(key);
        match self.room.streams.get(key).map(|stream| stream.reset) {
            Some(None) => Ok(()),
            Some(Some(code)) => Err(code),
            None => Err(ErrorCode::Cancel),
        }
    }

    /// Ready when the stream is over before its end.
    pub(crate) fn poll_reset(&mut self, cx: &Context<'_>, key: usize) -> Poll<()> {
        match self.room.streams.get_mut(key) {
            Some(stream) if !stream.is_over() => {
                stream.wait(cx);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Copies received content into `room`.
    pub(crate) fn take_received(&mut self, cx: &Context<'_>, key: usize, room: &mut [u8]) -> Received {
        let Some(stream) = self.room.streams.get_mut(key) else { return Received::Reset };
        if stream.is_over() {
            return Received::Reset;
        }
        let n = stream.take(room);
        if n == 0 {
            if stream.remote_ended && stream.unread() == 0 {
                return Received::End;
            }
            stream.wait(cx);
            stream.waits_for_data = true;
            return Received::Nothing;
        }
        let of_head = n.min(stream.head_unread);
        stream.head_unread -= of_head;
        let content = (n - of_head) as u32;
        stream.credit += content;
        self.give_credit(content);
        self.announce_stream(key);
        Received::Bytes(n)
    }

    /// True when the peer has ended its side and everything was taken.
    pub(crate) fn has_taken_all(&self, key: usize) -> bool {
        self.room.streams.get(key).is_some_and(|stream| stream.remote_ended && stream.unread() == 0)
    }

    /// True if nothing of the content was received.
    pub(crate) fn has_received_nothing(&self, key: usize) -> bool {
        self.room.streams.get(key).is_some_and(|stream| stream.unread() == 0 && !stream.remote_ended)
    }

    /// Bytes of framing that were received with the content since the last call.
    pub(crate) fn take_framing(&mut self, key: usize) -> u64 {
        self.room.streams.get_mut(key).map_or(0, |stream| std::mem::take(&mut stream.framing))
    }

    /// Appends the trailer lines that were received.
    pub(crate) fn take_trailers(&mut self, key: usize, buffer: &mut weir_wire::buffer::Buffer) {
        if let Some(stream) = self.room.streams.get_mut(key) {
            buffer.extend(&stream.trailers);
            stream.trailers.clear();
        }
    }

    /// Drops what the peer sends on a stream from now on.
    pub(crate) fn abandon(&mut self, key: usize) {
        let Some(stream) = self.room.streams.get_mut(key) else { return };
        stream.abandoned = true;
        let unread = stream.unread() as u32;
        stream.received.clear();
        stream.taken = 0;
        self.give_credit(unread);
    }

    /// Bytes of frames that wait to be written.
    pub(crate) fn pending(&self) -> usize {
        self.room.out.len() + self.unwritten
    }

    /// True when so much waits to be written that nothing more is read: whoever does not take answers gets no more of
    /// them.
    pub(crate) fn is_congested(&self) -> bool {
        // A client's requests are bounded by the number of its streams; it reads on, so that no two wait for each other.
        self.client.is_none() && self.pending() > 2 * self.limits.write_buffer
    }

    /// Writes some of the frames that were put out; 0: none is left. The room goes to streams that wait for it.
    pub(crate) fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
    ) -> Poll<io::Result<usize>> {
        if self.unwritten == 0 {
            if self.pending() == 0 {
                return Poll::Ready(Ok(0));
            }
            self.out_base += self.room.out.len() as u64;
            std::mem::swap(&mut self.room.out, &mut self.room.writing);
            self.unwritten = self.room.writing.len();
        }
        let writing = &self.room.writing;
        let rest = writing.get(writing.len() - self.unwritten..).unwrap_or_default();
        let n = ready!(relay::poll_write(cx, to, rest))?;
        self.unwritten -= n;
        if self.unwritten == 0 {
            self.room.writing.clear();
        }
        self.grant();
        Poll::Ready(Ok(n))
    }

    /// Bytes of content that may be put out now, by the room and the connection's window.
    fn free_room(&self) -> usize {
        let room = self.limits.write_buffer.saturating_sub(self.pending());
        room.min(usize::try_from(self.send_window).unwrap_or(0)).saturating_sub(self.reserved)
    }

    /// True if a stream that goes before this one has been promised room: it may want more.
    fn has_urgent_grant(&self, key: usize) -> bool {
        let streams = &self.room.streams;
        let Some(own) = streams.get(key) else { return false };
        let promised = |key: &usize| streams.get(*key).filter(|stream| stream.grant > 0);
        self.room.open.iter().any(|(_, key)| promised(key).is_some_and(|stream| stream.goes_before(own)))
    }

    /// Promises free room to streams that wait: urgent ones first, others in their order, each for one turn; the turns of
    /// those that are to be sent one after the other go to the first one of them. While a stream uses what it was promised,
    /// none that it goes before gets any.
    pub(super) fn grant(&mut self) {
        while !self.room.waiting.is_empty() {
            let free = self.free_room();
            if free == 0 {
                return;
            }
            let streams = &self.room.streams;
            let ready = self.room.waiting.iter().enumerate().filter_map(|(at, key)| {
                let stream = streams.get(*key)?;
                (stream.send_window > 0 || stream.is_over()).then_some((at, stream))
            });
            let Some((at, next)) = ready.clone().min_by_key(|(at, stream)| (stream.urgency, *at)) else { return };
            let before = ready.filter(|(_, stream)| stream.goes_before(next)).min_by_key(|(_, stream)| stream.id);
            let at = before.map_or(at, |(at, _)| at);
            let Some(key) = self.room.waiting.get(at).copied() else { return };
            if self.reserved > 0 && self.has_urgent_grant(key) {
                return;
            }
            self.room.waiting.remove(at);
            if let Some(stream) = self.room.streams.get_mut(key) {
                stream.waits_for_room = false;
                stream.grant = free.min(TURN).min(usize::try_from(stream.send_window).unwrap_or(0));
                self.reserved += stream.grant;
                stream.wake();
            }
        }
    }

    fn release_grant(&mut self, key: usize) {
        let Some(stream) = self.room.streams.get_mut(key) else { return };
        self.reserved -= std::mem::take(&mut stream.grant);
        self.grant();
    }

    /// Lets the peer send more on the connection, for content that was taken or dropped.
    pub(super) fn give_credit(&mut self, bytes: u32) {
        self.credit += bytes;
        // Often enough that the peer never waits, and seldom enough that it costs little.
        if self.credit >= self.limits.connection_window / 4 && !self.is_dead() {
            self.window += i64::from(self.credit);
            frame::push_window_update(&mut self.room.out, 0, std::mem::take(&mut self.credit));
            self.wake();
        }
    }

    /// The same for one stream.
    pub(super) fn announce_stream(&mut self, key: usize) {
        let Some(stream) = self.room.streams.get_mut(key) else { return };
        if stream.credit >= self.limits.stream_window / 4 && !stream.remote_ended && !stream.is_over() {
            stream.window += i64::from(stream.credit);
            frame::push_window_update(&mut self.room.out, stream.id, std::mem::take(&mut stream.credit));
            self.wake();
        }
    }
}

const _: () = assert!(Header::LEN as u64 > FLAGS);
