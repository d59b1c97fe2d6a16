//! Body of a message that arrives on a stream, in the buffer of its exchange behind the head.

use weir_plugin::host::buffers::Held;
use weir_wire::Span;
use weir_wire::buffer::Buffer;

use crate::http1;
use crate::relay::Piece;

/// Position within a body that lies in a buffer.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Start of the body in the buffer: the length of the head.
    base: usize,
    /// Offset of the first byte that was not handed on.
    pos: usize,
    /// Offset of the end of the content, once that is known; trailer lines follow it.
    end: Option<usize>,
    /// Bytes of content that were handed on and dropped from the buffer.
    taken: u64,
    /// True when bytes were dropped, so that the body cannot be taken again.
    dropped: bool,
    /// Part of the memory budget for a large buffer.
    large: Held,
}

impl Incoming {
    /// Begins with a body at `base` of the buffer.
    pub(crate) fn begin(&mut self, base: usize) {
        self.base = base;
        self.pos = base;
        self.end = None;
        self.taken = 0;
        self.dropped = false;
        self.large.shrink_to(0);
    }

    /// Records that the content ends where the buffer ends now. Trailer lines may be appended after it.
    pub(crate) fn end(&mut self, buffer: &Buffer) {
        self.end = Some(buffer.len());
    }

    /// True once the body has a place in the buffer.
    pub(crate) fn has_begun(&self) -> bool {
        self.base > 0
    }

    /// True when all of the body has arrived.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Next piece of what has arrived.
    #[inline]
    pub(crate) fn next(&mut self, buffer: &Buffer) -> Piece {
        let content = self.end.unwrap_or(buffer.len());
        if self.pos < content {
            let begin = std::mem::replace(&mut self.pos, content);
            return Piece::Data(Span::new(begin, content));
        }
        if self.end.is_none() {
            return Piece::More;
        }
        let rest = buffer.bytes().get(self.pos..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let begin = self.pos;
                self.pos += at + 1;
                Piece::Trailer(Span::new(begin, self.pos))
            }
            None => Piece::End,
        }
    }

    /// Begins again with the same body; false when bytes of it have left the buffer.
    pub(crate) fn rewind(&mut self) -> bool {
        if !self.dropped {
            self.pos = self.base;
        }
        !self.dropped
    }

    /// Offset up to which the body was handed on.
    pub(crate) fn position(&self) -> usize {
        self.pos
    }

    /// Records that the whole body lies decoded in the buffer, in place of what was received of it.
    pub(crate) fn replaced(&mut self, len: usize) {
        self.begin(self.base);
        self.end = Some(self.base + len);
    }

    /// Makes room in the buffer by dropping what was handed on.
    pub(crate) fn make_room(&mut self, buffer: &mut Buffer) {
        let cut = self.pos - self.base;
        if cut > 0 {
            self.dropped = true;
            self.taken += cut as u64;
            buffer.cut(self.base, self.pos);
            self.pos = self.base;
            self.end = self.end.map(|end| end.saturating_sub(cut).max(self.base));
        }
        http1::grow_for_body(buffer, self.taken, &mut self.large);
    }

    /// Returns the part of the memory budget; for the end of an exchange.
    pub(crate) fn settle(&mut self) {
        self.large.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use weir_wire::Span;
    use weir_wire::buffer::Buffer;

    use super::Incoming;
    use crate::relay::Piece;

    #[test]
    fn content_and_trailers_come_in_pieces_and_again() {
        let mut buffer = Buffer::new(16);
        let mut body = Incoming::default();
        buffer.extend(b"HEAD");
        body.begin(4);
        assert_eq!(body.next(&buffer), Piece::More);
        buffer.extend(b"abc");
        assert_eq!(body.next(&buffer), Piece::Data(Span::new(4, 7)));
        assert_eq!(body.next(&buffer), Piece::More);
        body.end(&buffer);
        buffer.extend(b"a: 1\r\nb: 2\r\n");
        let rest = [Piece::Trailer(Span::new(7, 13)), Piece::Trailer(Span::new(13, 19)), Piece::End, Piece::End];
        assert_eq!(rest.map(|_| body.next(&buffer)), rest);
        assert!(body.rewind());
        assert_eq!(body.next(&buffer), Piece::Data(Span::new(4, 7)));
        body.make_room(&mut buffer);
        assert!(!body.rewind());
        assert_eq!(buffer.bytes(), b"HEADa: 1\r\nb: 2\r\n");
        assert_eq!(body.next(&buffer), Piece::Trailer(Span::new(4, 10)));
    }
}
