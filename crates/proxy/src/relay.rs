//! Moving a body from one connection to another: decoded by the framing it came with, framed anew, never more in memory
//! than one buffer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_plugin::BUFFER;
use weir_plugin::buffers::Held;
use weir_wire::Reject;
use weir_wire::buffer::Buffer;
use weir_wire::chunked::{self, Decoder, Event};
use weir_wire::head::Framing;

/// Most bytes framed anew before they are written.
const STAGE: usize = 64 << 10;

/// How a body is framed on its way out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Encode {
    /// As it is: the length is announced, or the connection's end is the body's.
    #[default]
    Plain,
    /// In chunks.
    Chunked,
}

/// A body in motion.
#[derive(Debug, Default)]
pub(crate) struct Pump {
    incoming: Incoming,
    encode: Encode,
    /// Where the body begins in its buffer: the length of the head.
    base: usize,
    /// The first byte of the buffer that has not been taken.
    pos: usize,
    /// Plain bytes of the buffer that are ready to be written: up to `pos`, from here.
    ready: usize,
    /// Whether the chunk of length 0 was sent; trailers follow it.
    last_chunk: bool,
    /// Body bytes taken so far, framing not counted.
    pub(crate) taken: u64,
    /// Whether bytes were dropped from the buffer, so that the body cannot be sent again.
    pub(crate) dropped: bool,
    /// The part of the budget that a large buffer has.
    large: Held,
}

#[derive(Debug, Clone, Default)]
enum Incoming {
    Length(u64),
    Chunked(Decoder),
    UntilClose,
    #[default]
    Done,
}

impl Pump {
    /// A body that begins at `base` of its buffer.
    pub(crate) fn new(framing: Framing, encode: Encode, base: usize) -> Self {
        let incoming = match framing {
            Framing::None | Framing::Length(0) => Incoming::Done,
            Framing::Length(n) => Incoming::Length(n),
            Framing::Chunked => Incoming::Chunked(Decoder::default()),
            Framing::UntilClose => Incoming::UntilClose,
        };
        let large = Held::default();
        Self { incoming, encode, base, pos: base, ready: base, last_chunk: false, taken: 0, dropped: false, large }
    }

    /// Whether the whole body was taken in.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.incoming, Incoming::Done)
    }

    /// Where in the buffer the body has been taken up to; once complete, where the next message begins.
    pub(crate) fn position(&self) -> usize {
        self.pos
    }

    /// Whether only the connection's end ends the body.
    pub(crate) fn ends_by_close(&self) -> bool {
        matches!(self.incoming, Incoming::UntilClose)
    }

    /// Takes what the buffer holds and appends it, framed, to `out`: for small bodies that go out with the head.
    pub(crate) fn append(&mut self, buffer: &Buffer, out: &mut Vec<u8>) -> Result<(), Reject> {
        self.take(buffer, out)?;
        let plain = buffer.bytes().get(self.ready..self.pos).unwrap_or_default();
        // A long piece is written from where it stands.
        if plain.len() <= STAGE {
            out.extend_from_slice(plain);
            self.ready = self.pos;
        }
        Ok(())
    }

    /// Takes what the buffer holds and appends the decoded bytes to `out`; trailers are dropped.
    pub(crate) fn decode(&mut self, buffer: &Buffer, out: &mut Vec<u8>) -> Result<(), Reject> {
        let bytes = buffer.bytes();
        match &mut self.incoming {
            Incoming::Chunked(decoder) => loop {
                match decoder.next(bytes, &mut self.pos)? {
                    Event::NeedMore => break,
                    Event::Data(span) => {
                        self.taken += span.len() as u64;
                        out.extend_from_slice(span.of(bytes));
                    }
                    Event::Trailer(_) => {}
                    Event::End => {
                        self.incoming = Incoming::Done;
                        break;
                    }
                }
            },
            _ => {
                let from = self.pos;
                self.take_plain(bytes.len());
                out.extend_from_slice(bytes.get(from..self.pos).unwrap_or_default());
            }
        }
        self.ready = self.pos;
        Ok(())
    }

    /// Takes `pos` forward over plain bytes.
    fn take_plain(&mut self, filled: usize) {
        let room = filled.saturating_sub(self.pos);
        let n = match &mut self.incoming {
            Incoming::Length(left) => {
                let n = room.min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= n as u64;
                if *left == 0 {
                    self.incoming = Incoming::Done;
                }
                n
            }
            Incoming::UntilClose => room,
            Incoming::Chunked(_) | Incoming::Done => 0,
        };
        self.pos += n;
        self.taken += n as u64;
    }

    /// Takes what the buffer holds. Plain bytes stay where they are (`ready..pos`); framed ones go to `stage`.
    fn take(&mut self, buffer: &Buffer, stage: &mut Vec<u8>) -> Result<(), Reject> {
        let bytes = buffer.bytes();
        if matches!(self.incoming, Incoming::Chunked(_)) {
            self.take_chunks(bytes, stage)?;
            self.ready = self.pos;
        } else if !matches!(self.incoming, Incoming::Done) {
            let from = self.pos;
            self.take_plain(bytes.len());
            if self.encode == Encode::Chunked {
                push_chunk(stage, bytes.get(from..self.pos).unwrap_or_default());
                self.ready = self.pos;
                if self.is_complete() {
                    self.push_end(stage);
                }
            }
        }
        Ok(())
    }

    fn take_chunks(&mut self, bytes: &[u8], stage: &mut Vec<u8>) -> Result<(), Reject> {
        let start = stage.len();
        while stage.len() - start < STAGE {
            let Incoming::Chunked(decoder) = &mut self.incoming else { break };
            match decoder.next(bytes, &mut self.pos)? {
                Event::NeedMore => break,
                Event::Data(span) => {
                    self.taken += span.len() as u64;
                    match self.encode {
                        Encode::Chunked => push_chunk(stage, span.of(bytes)),
                        Encode::Plain => stage.extend_from_slice(span.of(bytes)),
                    }
                }
                Event::Trailer(span) => {
                    if self.encode == Encode::Chunked && chunked::may_forward_trailer(span.of(bytes)) {
                        self.push_last_chunk(stage);
                        stage.extend_from_slice(span.of(bytes));
                    }
                }
                Event::End => {
                    self.incoming = Incoming::Done;
                    if self.encode == Encode::Chunked {
                        self.push_end(stage);
                    }
                }
            }
        }
        Ok(())
    }

    fn push_last_chunk(&mut self, stage: &mut Vec<u8>) {
        if !self.last_chunk {
            self.last_chunk = true;
            stage.extend_from_slice(b"0\r\n");
        }
    }

    fn push_end(&mut self, stage: &mut Vec<u8>) {
        self.push_last_chunk(stage);
        stage.extend_from_slice(b"\r\n");
    }

    /// The connection has ended: whether that is where the body ends. What has to follow goes to `stage`.
    pub(crate) fn end_by_close(&mut self, stage: &mut Vec<u8>) -> bool {
        if self.ends_by_close() {
            self.incoming = Incoming::Done;
            if self.encode == Encode::Chunked {
                self.push_end(stage);
            }
        }
        self.is_complete()
    }

    /// Writes what is ready: first `stage` (from `*written`), then plain bytes of the buffer. Ready when all is written.
    pub(crate) fn poll_flush<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
        buffer: &Buffer,
        stage: &mut Vec<u8>,
        written: &mut usize,
        total: &mut u64,
    ) -> Poll<io::Result<()>> {
        while *written < stage.len() {
            let n = ready!(poll_write(cx, to, stage.get(*written..).unwrap_or_default()))?;
            *written += n;
            *total += n as u64;
        }
        stage.clear();
        *written = 0;
        while self.ready < self.pos {
            let n = ready!(poll_write(cx, to, buffer.bytes().get(self.ready..self.pos).unwrap_or_default()))?;
            self.ready += n;
            *total += n as u64;
        }
        Poll::Ready(Ok(()))
    }

    /// Drops from the buffer what has been taken and written, and takes more of it. Whether there is something to write.
    pub(crate) fn refill(&mut self, buffer: &Buffer, stage: &mut Vec<u8>) -> Result<bool, Reject> {
        self.take(buffer, stage)?;
        Ok(!stage.is_empty() || self.ready < self.pos)
    }

    /// The bytes of the buffer from the body's begin to `at` were dropped by another pump, which is not ahead.
    pub(crate) fn skip(&mut self, at: usize) {
        self.pos = self.pos.saturating_sub(at.saturating_sub(self.base)).max(self.base);
        self.ready = self.pos;
    }

    /// Makes room in the buffer by dropping what has been written; call when everything is.
    pub(crate) fn make_room(&mut self, buffer: &mut Buffer) {
        if self.pos > self.base {
            self.dropped = true;
            buffer.cut(self.base, self.pos);
            self.pos = self.base;
            self.ready = self.base;
        }
        // The head may fill the buffer to its end, and a trailer line is only taken whole.
        if buffer.spare().len() < LEAST_ROOM {
            buffer.grow(buffer.len() + 4 * LEAST_ROOM);
        }
        // There is more to come, so the room it began with is too small. A long body is worth a still larger buffer, if
        // there is memory; it is cut back when the exchange ends.
        let long = self.taken > LONG_BODY && buffer.capacity() < LONG_BUFFER;
        buffer.grow(if long && self.large.grow_if_plenty(2 * LONG_BUFFER) { LONG_BUFFER } else { BUFFER });
    }
}

/// Room that there is always for the next piece of a body.
const LEAST_ROOM: usize = 1 << 10;
/// From here on a body is long.
const LONG_BODY: u64 = 32 << 10;
/// What a long body is moved in.
const LONG_BUFFER: usize = 64 << 10;

fn push_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        chunked::push_size(out, data.len());
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a piece of a body made here as a chunk; with `last`, also the end of the body.
pub(crate) fn push_piece(out: &mut Vec<u8>, data: &[u8], encode: Encode, last: bool) {
    match encode {
        Encode::Plain => out.extend_from_slice(data),
        Encode::Chunked => {
            push_chunk(out, data);
            if last {
                out.extend_from_slice(b"0\r\n\r\n");
            }
        }
    }
}

/// Reads into the spare room of a buffer; 0: the other side has ended, or there is no room.
pub(crate) fn poll_read<R: AsyncRead + Unpin>(
    cx: &mut Context<'_>,
    from: &mut R,
    buffer: &mut Buffer,
) -> Poll<io::Result<usize>> {
    let mut room = ReadBuf::new(buffer.spare());
    ready!(Pin::new(from).poll_read(cx, &mut room))?;
    let n = room.filled().len();
    buffer.advance(n);
    Poll::Ready(Ok(n))
}

/// Writes some bytes; never 0.
pub(crate) fn poll_write<W: AsyncWrite + Unpin>(
    cx: &mut Context<'_>,
    to: &mut W,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(to).poll_write(cx, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        n => Poll::Ready(Ok(n)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Encode, Pump};
    use weir_wire::buffer::Buffer;
    use weir_wire::head::Framing;

    /// Relays `input`, arriving in pieces of `step`: what goes out, and how much of the input was taken.
    fn relay(input: &[u8], framing: Framing, encode: Encode, step: usize, close: bool) -> (String, bool) {
        let mut buffer = Buffer::new(64);
        buffer.extend(b"HEAD");
        let mut pump = Pump::new(framing, encode, 4);
        let mut out = Vec::new();
        for piece in input.chunks(step) {
            buffer.extend(piece);
            pump.append(&buffer, &mut out).unwrap();
            pump.make_room(&mut buffer);
        }
        if close {
            pump.end_by_close(&mut out);
        }
        (String::from_utf8(out).unwrap(), pump.is_complete())
    }

    #[test]
    fn bodies_keep_their_content_in_every_framing() {
        let chunked_in = b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nX-T: 1\r\nHost: evil\r\n\r\n";
        for step in [1, 3, 100] {
            let (out, done) = relay(chunked_in, Framing::Chunked, Encode::Plain, step, false);
            assert_eq!((out.as_str(), done), ("hello!", true));
            let (out, done) = relay(b"hello", Framing::Length(5), Encode::Plain, step, false);
            assert_eq!((out.as_str(), done), ("hello", true));
            let (out, done) = relay(b"hello", Framing::UntilClose, Encode::Plain, step, true);
            assert_eq!((out.as_str(), done), ("hello", true));
            let (_, done) = relay(b"hell", Framing::Length(5), Encode::Plain, step, true);
            assert!(!done, "a cut body is not complete");
        }
        let whole = |framing, input: &[u8]| relay(input, framing, Encode::Chunked, 100, true).0;
        assert_eq!(whole(Framing::Chunked, chunked_in), "5\r\nhello\r\n1\r\n!\r\n0\r\nX-T: 1\r\n\r\n");
        assert_eq!(whole(Framing::Length(5), b"hello"), "5\r\nhello\r\n0\r\n\r\n");
        assert_eq!(whole(Framing::UntilClose, b"hello"), "5\r\nhello\r\n0\r\n\r\n");
    }

    #[test]
    fn what_follows_a_body_is_not_taken() {
        let mut buffer = Buffer::new(64);
        buffer.extend(b"HEADhelloGET /");
        let mut pump = Pump::new(Framing::Length(5), Encode::Plain, 4);
        let mut out = Vec::new();
        pump.append(&buffer, &mut out).unwrap();
        assert_eq!((out.as_slice(), pump.position()), (&b"hello"[..], 9));
    }
}
