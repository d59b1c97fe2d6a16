//! Chunked transfer coding (RFC 9112 section 7.1), decoded strictly and encoded in its simplest form.
//!
//! The received framing is never forwarded: chunk sizes are written anew and extensions dropped, so the next hop
//! cannot interpret the boundaries differently.

use crate::name::{Known, SET_FOR_UPSTREAMS, same_in_cgi};
use crate::{Reject, Span, is_field_byte, is_tchar};

/// Maximum number of hexadecimal digits in a chunk size, including leading zeros; 15 digits keep sums below 2^63.
const MAX_SIZE_DIGITS: u8 = 15;
/// Maximum size in bytes of all chunk extensions in one body. The limit bounds the cost of extensions, which are
/// dropped.
const MAX_EXTENSION_BYTES: u32 = 16 << 10;
/// Maximum size of a trailer section in bytes.
pub const MAX_TRAILER_BYTES: u32 = 8 << 10;

/// Next element of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The whole input is consumed and the body continues.
    NeedMore,
    /// Body bytes, as a span of the input.
    Data(Span),
    /// A whole trailer line with its CRLF, as a span of the input.
    Trailer(Span),
    /// The body has ended.
    End,
}

/// Decoder of one chunked body, fed piece by piece.
#[derive(Debug, Clone)]
pub struct Decoder {
    state: State,
    /// Bytes of the current chunk that have not arrived yet.
    left: u64,
    digits: u8,
    extensions: u32,
    trailers: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    /// White space after the size, which only an extension may follow (RFC 9112 section 7.1.1, BWS).
    SizeBlank,
    ExtStart,
    ExtName,
    ExtNameBlank,
    ExtEquals,
    ExtValue,
    ExtQuoted,
    ExtEscape,
    /// After a quoted value, or white space after a value.
    ExtEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerLine,
    Done,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { state: State::Size, left: 0, digits: 0, extensions: 0, trailers: 0 }
    }
}

impl Decoder {
    /// True once the body has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Decodes from `*pos`, which advances past the consumed bytes. Spans are positions in `input`.
    ///
    /// A trailer line is only consumed as a whole: after [`Event::NeedMore`], the caller passes the rest of the input
    /// from `*pos` on again, with the next bytes behind it. The rest is never longer than [`MAX_TRAILER_BYTES`].
    ///
    /// # Errors
    /// 400 for anything that violates the grammar, 431 for a trailer section above its bound.
    pub fn next(&mut self, input: &[u8], pos: &mut usize) -> Result<Event, Reject> {
        loop {
            match self.state {
                State::Data => return Ok(self.data(input, pos)),
                State::TrailerLine => return self.trailer(input, pos),
                State::Done => return Ok(Event::End),
                _ => {}
            }
            let Some(&b) = input.get(*pos) else { return Ok(Event::NeedMore) };
            *pos += 1;
            self.framing_byte(b)?;
        }
    }

    fn data(&mut self, input: &[u8], pos: &mut usize) -> Event {
        let room = input.len().saturating_sub(*pos);
        let n = room.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if n == 0 {
            return Event::NeedMore;
        }
        let span = Span::new(*pos, *pos + n);
        *pos += n;
        self.left -= n as u64;
        if self.left == 0 {
            self.state = State::DataCr;
        }
        Event::Data(span)
    }

    /// Processes one byte of a chunk-size line, or of the CRLF after the data.
    fn framing_byte(&mut self, b: u8) -> Result<(), Reject> {
        use State::{
            DataCr, DataLf, ExtEnd, ExtEquals, ExtEscape, ExtName, ExtNameBlank, ExtQuoted, ExtStart, ExtValue, Size,
            SizeBlank, SizeLf,
        };
        let blank = matches!(b, b' ' | b'\t');
        if !matches!(self.state, Size | SizeLf | DataCr | DataLf) {
            self.extensions += 1;
            if self.extensions > MAX_EXTENSION_BYTES {
                return Err(Reject::bad("too many chunk extensions"));
            }
        }
        self.state = match self.state {
            Size => match b {
                b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' => {
                    self.digits += 1;
                    if self.digits > MAX_SIZE_DIGITS {
                        return Err(Reject::bad("chunk size too long"));
                    }
                    self.left = self.left << 4 | u64::from((b as char).to_digit(16).unwrap_or_default());
                    Size
                }
                _ if self.digits == 0 => return Err(Reject::bad("invalid chunk size")),
                b'\r' => SizeLf,
                b';' => ExtStart,
                _ if blank => SizeBlank,
                _ => return Err(Reject::bad("invalid chunk size")),
            },
            SizeBlank if blank => SizeBlank,
            SizeBlank if b == b';' => ExtStart,
            ExtStart if blank => ExtStart,
            ExtStart | ExtName if is_tchar(b) => ExtName,
            ExtName | ExtNameBlank if b == b'=' => ExtEquals,
            ExtName | ExtNameBlank if blank => ExtNameBlank,
            ExtEquals if blank => ExtEquals,
            ExtEquals if b == b'"' => ExtQuoted,
            ExtEquals | ExtValue if is_tchar(b) => ExtValue,
            ExtQuoted if b == b'"' => ExtEnd,
            ExtQuoted if b == b'\\' => ExtEscape,
            ExtQuoted | ExtEscape if is_field_byte(b) => ExtQuoted,
            ExtValue | ExtEnd if blank => ExtEnd,
            ExtName | ExtNameBlank | ExtValue | ExtEnd if b == b';' => ExtStart,
            ExtName | ExtValue | ExtEnd if b == b'\r' => SizeLf,
            SizeLf if b == b'\n' => {
                self.digits = 0;
                if self.left == 0 { State::TrailerLine } else { State::Data }
            }
            DataCr if b == b'\r' => DataLf,
            DataLf if b == b'\n' => Size,
            SizeLf => return Err(Reject::bad("bare CR in a chunk size line")),
            DataCr | DataLf => return Err(Reject::bad("chunk data not followed by CRLF")),
            _ => return Err(Reject::bad("malformed chunk extension")),
        };
        Ok(())
    }

    fn trailer(&mut self, input: &[u8], pos: &mut usize) -> Result<Event, Reject> {
        let rest = input.get(*pos..).unwrap_or_default();
        let Some(lf) = memchr::memchr(b'\n', rest) else {
            // Refuses a malformed end of the body at once, since the line end may never arrive.
            if matches!(rest, [b'\r', b, ..] if *b != b'\n') {
                return Err(Reject::bad("malformed end of a chunked body"));
            }
            return if rest.len() as u64 + u64::from(self.trailers) > u64::from(MAX_TRAILER_BYTES) {
                Err(Reject::new(431, "trailer section too large"))
            } else {
                Ok(Event::NeedMore)
            };
        };
        let span = Span::new(*pos, *pos + lf + 1);
        let Some(line) = rest.get(..lf + 1).and_then(|l| l.strip_suffix(b"\r\n")) else {
            return Err(Reject::bad("bare LF in the trailer section"));
        };
        *pos += lf + 1;
        self.trailers = self.trailers.saturating_add(lf as u32 + 1);
        if self.trailers > MAX_TRAILER_BYTES {
            return Err(Reject::new(431, "trailer section too large"));
        }
        if line.is_empty() {
            self.state = State::Done;
            return Ok(Event::End);
        }
        let (name, value) = split_line(line).ok_or(Reject::bad("malformed trailer field"))?;
        if name.is_empty() || !name.iter().all(|b| is_tchar(*b)) || !value.iter().all(|b| is_field_byte(*b)) {
            return Err(Reject::bad("malformed trailer field"));
        }
        Ok(Event::Trailer(span))
    }
}

fn split_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    Some((line.get(..colon)?, line.get(colon + 1..)?))
}

/// True if a trailer line may be forwarded. Fields for framing, routing, authentication or this connection may not
/// (RFC 9110 section 6.5.1), nor may the fields with which the gateway describes the client to an upstream.
#[must_use]
pub fn may_forward_trailer(line: &[u8]) -> bool {
    let Some((name, _)) = split_line(line) else { return false };
    let known_bad = !matches!(Known::classify(name), Known::Other | Known::Date | Known::Server);
    let other_bad: [&[u8]; 7] = [
        b"cache-control",
        b"content-range",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"set-cookie",
        b"www-authenticate",
        b"range",
    ];
    let framing: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];
    let lookalike = framing.iter().chain(&SET_FOR_UPSTREAMS).any(|ours| same_in_cgi(name, ours));
    !known_bad && !lookalike && !other_bad.iter().any(|bad| name.eq_ignore_ascii_case(bad))
}

/// Appends the size line of a chunk of `len` bytes, which must not be 0.
pub fn push_size(out: &mut Vec<u8>, len: usize) {
    debug_assert!(len > 0, "a chunk of no bytes ends the body");
    let mut digits = [0u8; 16];
    let (mut at, mut n) = (digits.len(), len);
    while n > 0 && at > 0 {
        at -= 1;
        digits[at] = b"0123456789abcdef"[n & 15];
        n >>= 4;
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::{Decoder, Event, may_forward_trailer, push_size};

    /// Decodes `input` in pieces of `step` bytes; returns body, trailers and the end position.
    fn decode(input: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>, usize), &'static str> {
        let (mut d, mut pos, mut end) = (Decoder::default(), 0, 0);
        let (mut body, mut trailers) = (Vec::new(), Vec::new());
        loop {
            match d.next(&input[..end], &mut pos).map_err(|r| r.reason)? {
                Event::NeedMore if end == input.len() => return Err("unfinished"),
                Event::NeedMore => end = (end + step).min(input.len()),
                Event::Data(s) => body.extend_from_slice(s.of(input)),
                Event::Trailer(s) => trailers.extend_from_slice(s.of(input)),
                Event::End => return Ok((body, trailers, pos)),
            }
        }
    }

    #[test]
    fn well_formed_bodies_decode_in_any_split() {
        let cases: [(&str, &str, &str); 8] = [
            ("0\r\n\r\n", "", ""),
            ("5\r\nhello\r\n0\r\n\r\n", "hello", ""),
            ("00005\r\nhello\r\n000\r\n\r\n", "hello", ""),
            ("A\r\nhellohello\r\na\r\nHELLOHELLO\r\n0\r\n\r\n", "hellohelloHELLOHELLO", ""),
            ("5;a=b;c=\"d e\"\r\nhello\r\n0;z\r\n\r\n", "hello", ""),
            ("5 ; a = b\r\nhello\r\n0\r\n\r\n", "hello", ""),
            ("5;a=\"\\\"\"\r\nhello\r\n0\r\n\r\n", "hello", ""),
            ("5\r\nhello\r\n0\r\nX-T: 1\r\nY:\r\n\r\n", "hello", "X-T: 1\r\nY:\r\n"),
        ];
        for (input, body, trailers) in cases {
            for step in 1..=input.len() {
                let got = decode(input.as_bytes(), step);
                assert_eq!(got, Ok((body.into(), trailers.into(), input.len())), "{input:?} by {step}");
            }
        }
        let (_, _, used) = decode(b"0\r\n\r\nGET / HTTP/1.1\r\n", 99).unwrap();
        assert_eq!(used, 5, "what follows the body stays");
    }

    #[test]
    fn anything_else_is_refused() {
        let long_extension = format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(20_000));
        let long_trailer = format!("0\r\nX: {}\r\n\r\n", "a".repeat(10_000));
        let cases = [
            "\r\nhello",
            "g\r\n",
            "+5\r\n",
            "-5\r\n",
            "0x5\r\n",
            "0_5\r\n",
            " 5\r\n",
            "5 \r\n",
            "5\n",
            "5\rh",
            "5\r\r\n",
            "5.0\r\n",
            "ffffffffffffffff\r\n",
            "8000000000000000\r\n",
            "0000000000000005\r\n",
            "5,5\r\n",
            "\"5\"\r\n",
            "5\0\r\n",
            "5\r\nhello\n",
            "5\r\nhello0\r\n",
            "5\r\nhello\rX",
            "5;\r\n",
            "5;=b\r\n",
            "5;a=\r\n",
            "5;a=\"b\r\n",
            "5;a=\"\u{1}\"\r\n",
            "5;a\n",
            "5;a\rb",
            "5;a=\"b\"c\r\n",
            "5 a\r\n",
            "5;a \r\n",
            "0\r\n\n",
            "0\r\nX\r\n\r\n",
            "0\r\nX : 1\r\n\r\n",
            "0\r\n: 1\r\n\r\n",
            "0\r\nX: a\0\r\n\r\n",
            "0\r\nX: a\rb\r\n\r\n",
            "0\r\nX: a\r\n b\r\n\r\n",
            "0\r\nX: 1\n\r\n",
            "-0\r\n",
            "5\r\nhello\r\n\r\n0\r\n\r\n",
            "0\r\n\rX",
            &long_extension,
            &long_trailer,
        ];
        for input in cases {
            for step in [1, 3, input.len()] {
                let got = decode(input.as_bytes(), step);
                assert!(matches!(got, Err(e) if e != "unfinished"), "{input:?} by {step}: {got:?}");
            }
        }
    }

    #[test]
    fn sizes_are_plain_hexadecimal() {
        for (n, text) in [(1, "1\r\n"), (15, "f\r\n"), (16, "10\r\n"), (65_536, "10000\r\n")] {
            let mut out = Vec::new();
            push_size(&mut out, n);
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn trailers_for_framing_and_routing_stay_here() {
        for (line, ok) in [
            ("X-Checksum: 1\r\n", true),
            ("Server-Timing: x\r\n", true),
            ("Content-Length: 50\r\n", false),
            ("transfer-encoding: chunked\r\n", false),
            ("HOST: evil\r\n", false),
            ("Authorization: Basic x\r\n", false),
            ("X-Forwarded-For: 1.1.1.1\r\n", false),
            ("Set-Cookie: a=b\r\n", false),
        ] {
            assert_eq!(may_forward_trailer(line.as_bytes()), ok, "{line}");
        }
    }
}
