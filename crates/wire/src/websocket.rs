//! Frames of WebSocket (RFC 6455 section 5), as far as a relay looks at them: where each ends, and which one closes.

/// Longest header of a frame: two bytes, a length of eight, a mask of four.
const LONGEST_HEADER: usize = 14;
/// Opcode of a Close frame (RFC 6455 section 5.5.1).
const CLOSE: u8 = 0x8;
/// Status code of a server that goes away, in a Close frame (RFC 6455 section 7.4.1).
const GOING_AWAY: [u8; 2] = 1001_u16.to_be_bytes();

/// Position within the frames of one direction. Bytes that are no frames lead to no error, and to no boundary that means
/// anything.
#[derive(Debug, Default, Clone)]
pub struct Frames {
    header: [u8; LONGEST_HEADER],
    /// Bytes of the header so far; 0 between two frames.
    known: usize,
    /// Bytes of the payload that are still to come.
    left: u64,
    closes: bool,
    has_closed: bool,
}

impl Frames {
    /// Takes note of bytes that follow.
    pub fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= count as u64;
                bytes = bytes.get(count..).unwrap_or_default();
            } else {
                let missing = self.header_len().saturating_sub(self.known).min(bytes.len());
                let (more, rest) = bytes.split_at_checked(missing).unwrap_or_default();
                if let Some(place) = self.header.get_mut(self.known..self.known + missing) {
                    place.copy_from_slice(more);
                }
                self.known += missing;
                bytes = rest;
                if self.known == self.header_len() {
                    self.begin_payload();
                }
            }
            if self.left == 0 && self.known == 0 {
                self.has_closed |= std::mem::take(&mut self.closes);
            }
        }
    }

    /// Length of the header, as far as its first bytes tell.
    fn header_len(&self) -> usize {
        let [_, second, ..] = self.header;
        if self.known < 2 {
            return 2;
        }
        let length = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        2 + length + if second & 0x80 == 0 { 0 } else { 4 }
    }

    fn begin_payload(&mut self) {
        let [first, second, rest @ ..] = self.header;
        let [a, b, c, d, e, f, g, h, ..] = rest;
        self.left = match second & 0x7f {
            126 => u64::from(u16::from_be_bytes([a, b])),
            127 => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            length => u64::from(length),
        };
        self.closes = first & 0x0f == CLOSE;
        self.known = 0;
    }

    /// Bytes up to the next boundary between two frames, as far as is known: 0 at a boundary, where another frame may be
    /// put in between. Within a header it is the bytes after which more is known.
    #[must_use]
    pub fn to_boundary(&self) -> u64 {
        match self.known {
            0 => self.left,
            known => self.header_len().saturating_sub(known) as u64,
        }
    }

    /// True when a Close frame has passed whole, behind which no other frame may follow.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        self.has_closed
    }
}

/// Close frame of a server with the status code 1001 (going away).
#[must_use]
pub const fn close_of_server() -> [u8; 4] {
    let [high, low] = GOING_AWAY;
    [0x80 | CLOSE, 2, high, low]
}

/// The same of a client, which masks what it sends (RFC 6455 section 5.3).
#[must_use]
pub const fn close_of_client(mask: [u8; 4]) -> [u8; 8] {
    let [high, low] = GOING_AWAY;
    [0x80 | CLOSE, 0x80 | 2, mask[0], mask[1], mask[2], mask[3], high ^ mask[0], low ^ mask[1]]
}

#[cfg(test)]
mod tests {
    use super::{Frames, close_of_client, close_of_server};

    /// A frame with this opcode and so many bytes of payload.
    fn frame(opcode: u8, length: usize, mask: bool) -> Vec<u8> {
        let bit = if mask { 0x80 } else { 0 };
        let mut frame = vec![0x80 | opcode];
        match length {
            0..126 => frame.push(bit | length as u8),
            126..65536 => {
                frame.push(bit | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(bit | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        if mask {
            frame.extend([1, 2, 3, 4]);
        }
        frame.resize(frame.len() + length, 0x88);
        frame
    }

    #[test]
    fn boundaries_are_found_whatever_the_pieces() {
        let frames: Vec<_> = [0, 1, 125, 126, 65535, 65536, 3]
            .into_iter()
            .flat_map(|length| [frame(1, length, false), frame(2, length, true)])
            .collect();
        let mut ends = vec![0];
        frames.iter().for_each(|frame| ends.push(ends.last().unwrap() + frame.len()));
        let all = frames.concat();
        for size in [1, 2, 3, 7, 1000, all.len()] {
            let (mut seen, mut at) = (Frames::default(), 0);
            for piece in all.chunks(size) {
                seen.advance(piece);
                at += piece.len();
                assert_eq!(seen.to_boundary() == 0, ends.contains(&at), "{at} in pieces of {size}");
                assert!(at + seen.to_boundary() as usize <= *ends.iter().find(|end| **end >= at).unwrap());
            }
            assert!(!seen.has_closed());
        }
    }

    #[test]
    fn a_close_frame_has_closed_when_it_is_whole() {
        for close in [close_of_server().to_vec(), close_of_client([9, 8, 7, 6]).to_vec(), frame(8, 0, true)] {
            let mut seen = Frames::default();
            seen.advance(&frame(1, 500, true));
            seen.advance(&close[..close.len() - 1]);
            assert!(!seen.has_closed());
            seen.advance(&close[close.len() - 1..]);
            assert!(seen.has_closed() && seen.to_boundary() == 0);
        }
        assert_eq!(close_of_server(), [0x88, 2, 0x03, 0xe9]);
        let [.., high, low] = close_of_client([1, 2, 3, 4]);
        assert_eq!([high ^ 1, low ^ 2], [0x03, 0xe9]);
    }

    #[test]
    fn bytes_that_are_no_frames_do_no_harm() {
        let mut seed = 1_u32;
        let mut bytes = vec![0; 10_000];
        bytes.iter_mut().for_each(|byte| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (seed >> 24) as u8;
        });
        let mut seen = Frames::default();
        seen.advance(&bytes);
        seen.advance(&[0xff; 100]);
        seen.advance(&bytes);
    }
}
