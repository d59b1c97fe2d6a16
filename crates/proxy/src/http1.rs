//! Bodies of HTTP/1 messages (RFC 9112 section 6), for both sides of an exchange: taken from a connection's bytes by
//! their framing, and framed anew for another connection.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use weir_plugin::Failure;
use weir_plugin::host::buffers::{Held, NO_ROOM};
use weir_plugin::host::{BUFFER, Exchange};
use weir_wire::buffer::Buffer;
use weir_wire::chunked::{self, Decoder, Event};
use weir_wire::head::{Framing, Limits};
use weir_wire::{Reject, Span};

use crate::relay::{Piece, poll_write};

/// Most bytes framed anew before they are written.
const STAGE: usize = 64 << 10;
/// Pieces below this length are written together.
const SHORT: usize = 1 << 10;
/// Room that there is always for the next piece of a body.
const LEAST_ROOM: usize = 1 << 10;
/// Bytes from which on a body counts as long.
const LONG_BODY: u64 = 32 << 10;
/// Bytes of the buffer that a long body is moved in.
const LONG_BUFFER: usize = 64 << 10;

/// A body that arrives in a connection's buffer, behind its head.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    framing: Framing,
    state: State,
    /// Offset of the body in the buffer: the length of the head.
    base: usize,
    /// The first byte of the buffer that has not been taken.
    pos: usize,
    /// Bytes taken so far, framing included.
    taken: u64,
    /// Bytes that were received of a body which another one stands in the place of.
    replaced: Option<u64>,
    /// True when bytes were dropped from the buffer, so that the body cannot be taken again.
    dropped: bool,
    /// The part of the budget that a large buffer has.
    large: Held,
}

#[derive(Debug, Clone, Default)]
enum State {
    Length(u64),
    Chunked(Decoder),
    UntilClose,
    #[default]
    Done,
}

impl From<Framing> for State {
    fn from(framing: Framing) -> Self {
        match framing {
            Framing::None | Framing::Length(0) => Self::Done,
            Framing::Length(n) => Self::Length(n),
            Framing::Chunked => Self::Chunked(Decoder::default()),
            Framing::UntilClose => Self::UntilClose,
        }
    }
}

impl Incoming {
    /// Begins with a body at `base` of the buffer.
    pub(crate) fn begin(&mut self, framing: Framing, base: usize) {
        self.framing = framing;
        self.state = framing.into();
        self.base = base;
        self.pos = base;
        self.taken = 0;
        self.replaced = None;
        self.dropped = false;
        self.large.shrink_to(0);
    }

    /// Begins again with the same body; false when bytes of it have left the buffer.
    pub(crate) fn rewind(&mut self) -> bool {
        if !self.dropped {
            self.state = self.framing.into();
            self.pos = self.base;
        }
        !self.dropped
    }

    /// True when the whole body was taken.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Offset in the buffer up to which the body has been taken; once the body is complete, the offset of the next
    /// message.
    pub(crate) fn position(&self) -> usize {
        self.pos
    }

    /// Bytes taken so far, framing included.
    pub(crate) fn taken(&self) -> u64 {
        self.replaced.unwrap_or(self.taken + (self.pos - self.base) as u64)
    }

    /// Bytes that have to come before the body ends, as far as that is known.
    pub(crate) fn left(&self) -> u64 {
        if let State::Length(left) = self.state { left } else { 0 }
    }

    /// The next piece of what has arrived.
    #[inline]
    pub(crate) fn next(&mut self, buffer: &Buffer) -> Result<Piece, Reject> {
        let bytes = buffer.bytes();
        let room = bytes.len().saturating_sub(self.pos);
        let n = match &mut self.state {
            State::Done => return Ok(Piece::End),
            State::Chunked(_) => return self.next_of_chunks(bytes),
            State::Length(left) => {
                let n = room.min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= n as u64;
                if *left == 0 {
                    self.state = State::Done;
                }
                n
            }
            State::UntilClose => room,
        };
        let begin = self.pos;
        self.pos += n;
        Ok(if n == 0 { Piece::More } else { Piece::Data(Span::new(begin, self.pos)) })
    }

    fn next_of_chunks(&mut self, bytes: &[u8]) -> Result<Piece, Reject> {
        let State::Chunked(decoder) = &mut self.state else { return Ok(Piece::More) };
        loop {
            match decoder.next(bytes, &mut self.pos)? {
                Event::NeedMore => return Ok(Piece::More),
                Event::Data(span) => return Ok(Piece::Data(span)),
                Event::Trailer(line) if chunked::may_forward_trailer(line.of(bytes)) => {
                    return Ok(Piece::Trailer(line));
                }
                Event::Trailer(_) => {}
                Event::End => {
                    self.state = State::Done;
                    return Ok(Piece::End);
                }
            }
        }
    }

    /// Takes note that the connection has ended, which is the end of some bodies. True when the body is complete.
    pub(crate) fn end_by_close(&mut self) -> bool {
        if matches!(self.state, State::UntilClose) {
            self.state = State::Done;
        }
        self.is_complete()
    }

    /// Takes note that another body stands in the buffer in place of the one that was received: the same decoded, or a
    /// plugin's.
    pub(crate) fn replaced(&mut self, len: usize) {
        let received = self.taken();
        self.begin(Framing::Length(len as u64), self.base);
        self.replaced = Some(received);
    }

    /// Gives the part of the budget back; for the end of an exchange.
    pub(crate) fn settle(&mut self) {
        self.large.shrink_to(0);
    }

    /// Makes room in the buffer by dropping what has been taken.
    pub(crate) fn make_room(&mut self, buffer: &mut Buffer) {
        if self.pos > self.base {
            self.dropped = true;
            buffer.cut(self.base, self.pos);
            self.taken += (self.pos - self.base) as u64;
            self.pos = self.base;
        }
        grow_for_body(buffer, self.taken, &mut self.large);
    }
}

/// Makes room for more of a body, of which `taken` bytes have come and gone. `large` is the part of the budget that a large
/// buffer has.
pub(crate) fn grow_for_body(buffer: &mut Buffer, taken: u64, large: &mut Held) {
    // The head may fill the buffer to its end, and a trailer line is only taken whole.
    if buffer.spare().len() < LEAST_ROOM {
        buffer.grow(buffer.len() + 4 * LEAST_ROOM);
    }
    // There is more to come, so the room it began with is too small. A long body is worth a still larger buffer, if
    // there is memory; it is cut back when the exchange ends.
    let long = taken > LONG_BODY && buffer.capacity() < LONG_BUFFER;
    buffer.grow(if long && large.grow_if_plenty(2 * LONG_BUFFER) { LONG_BUFFER } else { BUFFER });
}

/// A message that leaves on a connection.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// True when the body goes out in chunks; else its length is announced, or the connection's end is the body's.
    chunked: bool,
    /// True when the chunk of length 0 was put out; trailers follow it.
    last_chunk: bool,
    /// Bytes of the stage that have been written.
    written: usize,
    /// Bytes written to the connection, of this message.
    pub(crate) sent: u64,
}

impl Outgoing {
    /// Begins a message, whose head lies on the stage.
    pub(crate) fn begin(&mut self, chunked: bool) {
        *self = Self { chunked, last_chunk: false, written: 0, sent: 0 };
    }

    /// Goes on with a message of which interim heads have been written.
    pub(crate) fn set_chunked(&mut self, chunked: bool) {
        self.chunked = chunked;
        self.last_chunk = false;
    }

    /// Takes some of `data`: framed or short onto the stage, else right from where it stands.
    #[inline]
    pub(crate) fn poll_data<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
        out: &mut Vec<u8>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.chunked {
            if out.len() >= STAGE {
                ready!(self.poll_flush(cx, to, out))?;
            }
            push_chunk(out, data);
            return Poll::Ready(Ok(data.len()));
        }
        // Short pieces go out with the head, or with their neighbours.
        if out.len() + data.len() <= STAGE && (!out.is_empty() || data.len() < SHORT) {
            out.extend_from_slice(data);
            return Poll::Ready(Ok(data.len()));
        }
        ready!(self.poll_flush(cx, to, out))?;
        let n = ready!(poll_write(cx, to, data))?;
        self.sent += n as u64;
        Poll::Ready(Ok(n))
    }

    /// Puts a field line of the trailer section on the stage; only a body in chunks has one.
    pub(crate) fn push_trailer(&mut self, out: &mut Vec<u8>, line: &[u8]) {
        if self.chunked {
            self.push_last_chunk(out);
            out.extend_from_slice(line);
        }
    }

    /// Puts the end of the body on the stage.
    pub(crate) fn push_end(&mut self, out: &mut Vec<u8>) {
        if self.chunked {
            self.push_last_chunk(out);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn push_last_chunk(&mut self, out: &mut Vec<u8>) {
        if !self.last_chunk {
            self.last_chunk = true;
            out.extend_from_slice(b"0\r\n");
        }
    }

    /// Writes the stage.
    #[inline]
    pub(crate) fn poll_flush<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<()>> {
        while self.written < out.len() {
            let n = ready!(poll_write(cx, to, out.get(self.written..).unwrap_or_default()))?;
            self.written += n;
            self.sent += n as u64;
        }
        out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

/// Reserves room in the budget for a buffer that holds a large head. The head is copied and decoded on its way, so four
/// times its size is reserved.
///
/// # Errors
/// There is no room.
pub(crate) fn may_hold_head(x: &mut Exchange, room: usize) -> Result<(), Failure> {
    if room <= BUFFER || x.may_grow(4 * room) { Ok(()) } else { Err(NO_ROOM) }
}

/// Makes room for more of the head of a response, which is text in the form of HTTP/1 whatever its protocol.
///
/// # Errors
/// There is no room.
pub(crate) fn make_room_for_response_head(x: &mut Exchange, limits: &Limits) -> Result<(), Failure> {
    let buffer = &mut x.response.buffer;
    if buffer.spare().is_empty() {
        let room = (buffer.capacity() * 2).max(BUFFER).min(limits.head + 64);
        may_hold_head(x, room)?;
        x.response.buffer.grow(room);
    }
    Ok(())
}

fn push_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        chunked::push_size(out, data.len());
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::AsyncWrite;
    use weir_wire::buffer::Buffer;
    use weir_wire::head::Framing;

    use super::{Incoming, Outgoing};
    use crate::relay::{Relay, Sink, Source};

    /// A connection that has received everything, or writes to memory.
    #[derive(Default)]
    struct End {
        incoming: Incoming,
        outgoing: Outgoing,
        written: Memory,
    }

    #[derive(Default)]
    struct Memory(Vec<u8>);

    impl AsyncWrite for Memory {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
            // Fewer bytes than requested, as from a socket.
            let n = bytes.len().min(7);
            self.0.extend_from_slice(&bytes[..n]);
            Poll::Ready(Ok(n))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Source for End {
        fn next(&mut self, buffer: &Buffer) -> Result<crate::relay::Piece, weir_wire::Reject> {
            self.incoming.next(buffer)
        }

        fn poll_receive(&mut self, _: &mut Context<'_>, _: &mut Buffer) -> Poll<std::io::Result<usize>> {
            Poll::Pending
        }

        fn make_room(&mut self, buffer: &mut Buffer) {
            self.incoming.make_room(buffer);
        }
    }

    impl Sink for End {
        fn poll_data(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>, data: &[u8]) -> Poll<std::io::Result<usize>> {
            self.outgoing.poll_data(cx, &mut self.written, out, data)
        }

        fn push_trailer(&mut self, out: &mut Vec<u8>, line: &[u8]) {
            self.outgoing.push_trailer(out, line);
        }

        fn push_end(&mut self, out: &mut Vec<u8>) {
            self.outgoing.push_end(out);
        }

        fn poll_flush(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<std::io::Result<()>> {
            self.outgoing.poll_flush(cx, &mut self.written, out)
        }
    }

    /// Relays `input`, arriving in pieces of `step`: what goes out, and whether that was all.
    fn relay(input: &[u8], framing: Framing, chunked: bool, step: usize, close: bool) -> (String, bool) {
        let mut buffer = Buffer::new(64);
        buffer.extend(b"HEAD");
        let (mut from, mut to, mut out, mut relay) = (End::default(), End::default(), Vec::new(), Relay::default());
        from.incoming.begin(framing, 4);
        to.outgoing.begin(chunked);
        let mut cx = Context::from_waker(Waker::noop());
        for piece in input.chunks(step).map(Some).chain([None]) {
            match piece {
                Some(piece) => buffer.extend(piece),
                None if close => drop(from.incoming.end_by_close()),
                None => break,
            }
            let taken = relay.poll_take(&mut cx, (&mut from, &buffer), (&mut to, &mut out), |_, _| Ok(()));
            assert!(matches!(taken, Poll::Ready(Ok(()))));
            assert!(matches!(to.poll_flush(&mut cx, &mut out), Poll::Ready(Ok(()))));
            from.make_room(&mut buffer);
        }
        (String::from_utf8(to.written.0).unwrap(), relay.has_ended())
    }

    #[test]
    fn bodies_keep_their_content_in_every_framing() {
        let chunked_in = b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nX-T: 1\r\nHost: evil\r\n\r\n";
        for step in [1, 3, 100] {
            let (out, done) = relay(chunked_in, Framing::Chunked, false, step, false);
            assert_eq!((out.as_str(), done), ("hello!", true));
            let (out, done) = relay(b"hello", Framing::Length(5), false, step, false);
            assert_eq!((out.as_str(), done), ("hello", true));
            let (out, done) = relay(b"hello", Framing::UntilClose, false, step, true);
            assert_eq!((out.as_str(), done), ("hello", true));
            let (_, done) = relay(b"hell", Framing::Length(5), false, step, true);
            assert!(!done, "a cut body is not complete");
        }
        let whole = |framing, input: &[u8]| relay(input, framing, true, 100, true).0;
        assert_eq!(whole(Framing::Chunked, chunked_in), "5\r\nhello\r\n1\r\n!\r\n0\r\nX-T: 1\r\n\r\n");
        assert_eq!(whole(Framing::Length(5), b"hello"), "5\r\nhello\r\n0\r\n\r\n");
        assert_eq!(whole(Framing::UntilClose, b"hello"), "5\r\nhello\r\n0\r\n\r\n");
    }

    #[test]
    fn long_bodies_are_written_from_where_they_stand() {
        let long = "x".repeat(200 << 10);
        for (framing, chunked) in [(Framing::Length(200 << 10), false), (Framing::UntilClose, false)] {
            assert_eq!(relay(long.as_bytes(), framing, chunked, 50 << 10, true), (long.clone(), true));
        }
        let mut buffer = Buffer::new(64);
        buffer.extend(long.as_bytes());
        let (mut from, mut to, mut out) = (End::default(), End::default(), b"HEAD".to_vec());
        from.incoming.begin(Framing::Length(200 << 10), 0);
        to.outgoing.begin(false);
        let mut cx = Context::from_waker(Waker::noop());
        let taken = Relay::default().poll_take(&mut cx, (&mut from, &buffer), (&mut to, &mut out), |_, _| Ok(()));
        assert!(matches!(taken, Poll::Ready(Ok(()))));
        assert!(out.capacity() <= 2 << 10, "{}", out.capacity());
        assert!(matches!(to.poll_flush(&mut cx, &mut out), Poll::Ready(Ok(()))));
        assert_eq!(to.written.0.len(), 4 + long.len());
    }

    #[test]
    fn what_follows_a_body_is_not_taken() {
        let mut buffer = Buffer::new(64);
        buffer.extend(b"HEADhelloGET /");
        let mut incoming = Incoming::default();
        incoming.begin(Framing::Length(5), 4);
        let mut body = Vec::new();
        let mut end = End { incoming, ..End::default() };
        assert_eq!(crate::relay::take_all(&mut end, &buffer, &mut body), Ok(true));
        assert_eq!((body.as_slice(), end.incoming.position()), (&b"hello"[..], 9));
        assert!(end.incoming.rewind() && !end.incoming.is_complete());
    }

    #[test]
    fn a_body_whose_bytes_are_gone_cannot_begin_again() {
        let mut buffer = Buffer::new(64);
        buffer.extend(b"HEADhel");
        let mut incoming = Incoming::default();
        incoming.begin(Framing::Length(5), 4);
        assert!(incoming.next(&buffer).is_ok() && incoming.rewind());
        assert!(incoming.next(&buffer).is_ok());
        incoming.make_room(&mut buffer);
        assert!(!incoming.rewind());
        assert_eq!((buffer.bytes(), incoming.left(), incoming.taken()), (&b"HEAD"[..], 2, 3));
    }

    #[test]
    fn a_collected_body_is_taken_from_its_beginning() {
        let mut buffer = Buffer::new(64);
        buffer.extend(b"HEAD1\r\na\r\n1\r\nb\r\n0\r\n\r\nGET /");
        let mut incoming = Incoming::default();
        incoming.begin(Framing::Chunked, 4);
        let mut end = End { incoming, ..End::default() };
        assert_eq!(crate::relay::take_all(&mut end, &buffer, &mut Vec::new()), Ok(true));
        let received = end.incoming.taken();
        buffer.replace(4, end.incoming.position(), b"ab");
        end.incoming.replaced(2);
        let mut body = Vec::new();
        assert_eq!(crate::relay::take_all(&mut end, &buffer, &mut body), Ok(true));
        assert_eq!((body.as_slice(), end.incoming.position(), end.incoming.taken()), (&b"ab"[..], 6, received));
    }
}
