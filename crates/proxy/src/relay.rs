//! Moves a body from its sender to its receiver: piece by piece, never more in memory than one buffer, and independent
//! of both sides' protocols.
//!
//! A [`Source`] decodes what has arrived in a buffer of the exchange, a [`Sink`] frames what leaves. Both wait where their
//! side does: a source for bytes, a sink for room on its connection or in its window of flow control.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_wire::buffer::Buffer;
use weir_wire::{Reject, Span};

/// A piece of a body, as spans of the buffer that it arrived in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes of the content.
    Data(Span),
    /// A field line of the trailer section, with its line end, that may be passed on.
    Trailer(Span),
    /// Nothing is left of what has arrived, and the body goes on.
    More,
    /// The body has ended.
    End,
}

/// The body of a message as it arrives.
pub(crate) trait Source {
    /// The next piece of what has arrived.
    ///
    /// # Errors
    /// The body is malformed.
    fn next(&mut self, buffer: &Buffer) -> Result<Piece, Reject>;

    /// Receives more of the body; 0: the sender has ended its side.
    fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>>;

    /// Gives the room of all pieces so far back; for when they are written or kept elsewhere.
    fn make_room(&mut self, buffer: &mut Buffer);
}

/// The body of a message as it leaves.
pub(crate) trait Sink {
    /// Takes some of `data`, at least one byte. Bytes that do not leave at once are kept in `out`, which may hold the
    /// head as well.
    fn poll_data(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>, data: &[u8]) -> Poll<io::Result<usize>>;

    /// Takes a field line of the trailer section, with its line end.
    fn push_trailer(&mut self, out: &mut Vec<u8>, line: &[u8]);

    /// Takes note that the body has ended.
    fn push_end(&mut self, out: &mut Vec<u8>);

    /// Ready when everything that was taken has left.
    fn poll_flush(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<()>>;
}

/// A body on its way from a source to a sink.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    /// Data that the sink has not taken yet.
    rest: Span,
    /// Bytes of content so far.
    pub(crate) moved: u64,
    /// True when the sink has been given the end.
    ended: bool,
}

/// The side of a relay that failed.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The body is malformed, or refused.
    Source(Reject),
    /// The sink takes no more.
    Sink,
}

impl From<Reject> for Broken {
    fn from(reject: Reject) -> Self {
        Self::Source(reject)
    }
}

impl Relay {
    /// True when the sink has taken the whole body.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Hands on what has arrived; `see` is shown each piece of content and each trailer line before, and may refuse it.
    /// Ready when all of it was taken; whether it has left is another question ([`Sink::poll_flush`]).
    #[inline]
    pub(crate) fn poll_take<F: Source, T: Sink>(
        &mut self,
        cx: &mut Context<'_>,
        (from, buffer): (&mut F, &Buffer),
        (to, out): (&mut T, &mut Vec<u8>),
        mut see: impl FnMut(Piece, &[u8]) -> Result<(), Reject>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            while !self.rest.is_empty() {
                let data = self.rest.of(buffer.bytes());
                let taken = ready!(to.poll_data(cx, out, data)).map_err(|_| Broken::Sink)?;
                self.rest.start += taken as u32;
            }
            if self.ended {
                return Poll::Ready(Ok(()));
            }
            match from.next(buffer)? {
                piece @ Piece::Data(span) => {
                    self.moved += span.len() as u64;
                    see(piece, span.of(buffer.bytes()))?;
                    self.rest = span;
                }
                piece @ Piece::Trailer(span) => {
                    let line = span.of(buffer.bytes());
                    see(piece, line)?;
                    to.push_trailer(out, line);
                }
                Piece::More => return Poll::Ready(Ok(())),
                Piece::End => self.end(to, out),
            }
        }
    }

    /// Gives the sink the end.
    #[inline]
    pub(crate) fn end<T: Sink>(&mut self, to: &mut T, out: &mut Vec<u8>) {
        self.ended = true;
        to.push_end(out);
    }
}

/// Appends what has arrived of a body to `to`; trailers are dropped. True when that was the end.
pub(crate) fn take_all(from: &mut impl Source, buffer: &Buffer, to: &mut Vec<u8>) -> Result<bool, Reject> {
    take_parts(from, buffer, to, &mut Vec::new())
}

/// The same, with the lines of the trailer section appended to `trailers`.
pub(crate) fn take_parts(
    from: &mut impl Source,
    buffer: &Buffer,
    content: &mut Vec<u8>,
    trailers: &mut Vec<u8>,
) -> Result<bool, Reject> {
    loop {
        match from.next(buffer)? {
            Piece::Data(span) => content.extend_from_slice(span.of(buffer.bytes())),
            Piece::Trailer(line) => trailers.extend_from_slice(line.of(buffer.bytes())),
            Piece::More => return Ok(false),
            Piece::End => return Ok(true),
        }
    }
}

/// Passes over what has arrived of a body. True when that was the end.
pub(crate) fn drop_all(from: &mut impl Source, buffer: &Buffer) -> Result<bool, Reject> {
    loop {
        match from.next(buffer)? {
            Piece::Data(_) | Piece::Trailer(_) => {}
            Piece::More => return Ok(false),
            Piece::End => return Ok(true),
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
