//! `gzip`: bodies in gzip, for whoever takes them.

use std::cell::RefCell;

use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Held;
use weir_plugin::{CompileCx, Compiled, Define, Encoder, Failure, Flow, Phases, Plugin, ResponseCx};

use super::coding::{Terms, TermsConf, Types, room};

/// The definition.
#[derive(Debug)]
pub(crate) struct Gzip;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The media types of bodies that are compressed, without parameters; `*` for all. One without a type never is.
    types: Types,
    /// Bodies shorter than so many bytes stay as they are, where the length is known beforehand.
    #[schemars(range(min = 1))]
    min_length: u64,
    /// From 1, the fastest, to 9, the smallest.
    #[schemars(range(min = 1, max = 9))]
    comp_level: u32,
    /// The least version of HTTP that a client has to speak: 1.0 or 1.1.
    http_version: f64,
    /// nginx's buffers. Without effect: memory is what one response needs, whatever its length.
    buffers: Option<Buffers>,
    /// Adds `Vary: Accept-Encoding` to responses that may be compressed, for caches.
    vary: bool,
}

/// Number and size.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Buffers {
    /// The number of buffers.
    #[schemars(range(min = 1))]
    #[serde(rename = "number")]
    _number: u32,
    /// Bytes of each.
    #[schemars(range(min = 1))]
    #[serde(rename = "size")]
    _size: u32,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            types: Types::List(vec!["text/html".into()]),
            min_length: 20,
            comp_level: 1,
            http_version: 1.1,
            buffers: None,
            vary: false,
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self { _number: 32, _size: 4096 }
    }
}

impl Define for Gzip {
    const NAME: &'static str = "gzip";
    const PRIORITY: i32 = 995;
    const PHASES: Phases = Phases::ENCODE;
    const DOC: &'static str = "\
Compresses the bodies of responses with gzip for clients whose `Accept-Encoding` takes it, by name or by `*`, with a \
weight above 0.

It works on the response as all other plugins have left it, and on those of the gateway as well. Bodies that have a \
`Content-Encoding`, parts of bodies (206) and those with `Cache-Control: no-transform` stay as they are. A strong `ETag` \
becomes a weak one; `Content-Length`, `Accept-Ranges` and digests go.

A body of unknown length is sent on piece by piece as it comes, so events and other long-running streams arrive at once; \
with a known length pieces are put together for better compression. Each response under way takes 380 KiB of memory, \
whatever its length; with half of `limits.buffers` in use, what comes beyond is sent as it is. Where `brotli` stands beside it and the client takes both, `brotli` goes first.

Other than with APISIX, responses of every status are compressed, not only those of 200, 403 and 404.";
    const EXAMPLE: &'static str = "\
types: [text/html, text/css, application/json]
comp_level: 5
vary: true
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let terms = conf.terms().terms(cx);
        if conf.buffers.is_some() {
            cx.warn("buffers", "nginx's buffers have no effect here");
        }
        Some(Compiled::ready(Gzipping { terms: terms?, level: conf.comp_level }))
    }
}

impl Conf {
    fn terms(&self) -> TermsConf<'_> {
        TermsConf { types: &self.types, min_length: self.min_length, http_version: self.http_version, vary: self.vary }
    }
}

/// An instance.
#[derive(Debug)]
struct Gzipping {
    terms: Terms,
    level: u32,
}

impl Plugin for Gzipping {
    fn encode(&self, cx: &mut ResponseCx<'_>) -> Flow {
        // The older name is the same coding (RFC 9110 section 8.4.1.3).
        if self.terms.hold(cx, &[b"gzip", b"x-gzip"]) {
            let streaming = cx.response().content_length().is_none();
            if let Some(room) = room(MEMORY) {
                cx.encode_body(b"gzip", Box::new(Stream::new(self.level, streaming, room)));
            }
        }
        Flow::Continue
    }
}

/// A gzip stream being made (RFC 1952).
#[derive(Debug)]
struct Stream {
    deflate: Option<Compress>,
    level: u32,
    crc: Crc,
    out: Vec<u8>,
    begun: bool,
    /// True if each piece is to reach the client at once.
    streaming: bool,
    _held: Held,
}

/// Memory of a stream in bytes, at every level.
const MEMORY: usize = 380 << 10;

/// No name, no time, and a system that is none's business.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

/// Least room for the output of one call.
const ROOM: usize = 1 << 10;

/// Compressors that a worker keeps for the next responses, since a new one has to clear much memory.
const KEPT: usize = 8;

thread_local! {
    static IDLE: RefCell<Vec<(u32, Compress)>> = const { RefCell::new(Vec::new()) };
}

impl Stream {
    fn new(level: u32, streaming: bool, held: Held) -> Self {
        let kept = IDLE.with_borrow_mut(|idle| {
            let at = idle.iter().rposition(|(other, _)| *other == level)?;
            Some(idle.swap_remove(at).1)
        });
        let deflate = kept.unwrap_or_else(|| Compress::new(Compression::new(level), false));
        let out = Vec::new();
        Self { deflate: Some(deflate), level, crc: Crc::new(), out, begun: false, streaming, _held: held }
    }

    fn compress(&mut self, mut input: &[u8], flush: FlushCompress) -> Result<(), Failure> {
        let deflate = self.deflate.as_mut().ok_or(FAILED)?;
        loop {
            self.out.reserve(ROOM.max(input.len() / 2));
            let before = deflate.total_in();
            let status = deflate.compress_vec(input, &mut self.out, flush).map_err(|_| FAILED)?;
            let taken = usize::try_from(deflate.total_in() - before).unwrap_or(input.len());
            input = input.get(taken..).unwrap_or_default();
            // With room left over there is nothing more to come.
            let settled = input.is_empty() && self.out.len() < self.out.capacity();
            if status == Status::StreamEnd || (settled && !matches!(flush, FlushCompress::Finish)) {
                return Ok(());
            }
        }
    }
}

const FAILED: Failure = Failure::internal("the body cannot be compressed");

impl Encoder for Stream {
    fn encode(&mut self, piece: &mut Vec<u8>, last: bool) -> Result<(), Failure> {
        self.out.clear();
        if !self.begun {
            self.begun = true;
            self.out.extend_from_slice(&HEADER);
        }
        self.crc.update(piece);
        match (last, self.streaming) {
            (true, _) => self.compress(piece, FlushCompress::Finish)?,
            (false, _) if piece.is_empty() => {}
            (false, true) => self.compress(piece, FlushCompress::Sync)?,
            (false, false) => self.compress(piece, FlushCompress::None)?,
        }
        if last {
            self.out.extend_from_slice(&self.crc.sum().to_le_bytes());
            self.out.extend_from_slice(&self.crc.amount().to_le_bytes());
        }
        std::mem::swap(piece, &mut self.out);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(mut deflate) = self.deflate.take() else { return };
        // At the end of a thread there is nothing to keep it for.
        let _ = IDLE.try_with(|idle| {
            if let Ok(mut idle) = idle.try_borrow_mut() {
                if idle.len() >= KEPT {
                    idle.remove(0);
                }
                deflate.reset();
                idle.push((self.level, deflate));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{HEADER, MEMORY, Stream, room};
    use std::io::Read;
    use weir_plugin::Encoder;

    fn stream(level: u32, streaming: bool) -> Stream {
        Stream::new(level, streaming, room(MEMORY).expect("room"))
    }

    /// Bodies that compress well and badly.
    fn bodies() -> Vec<Vec<u8>> {
        let mut random = fastrand::Rng::with_seed(3);
        let noise: Vec<u8> = (0..20_000).map(|_| random.u8(..)).collect();
        vec![Vec::new(), b"x".to_vec(), b"hello ".repeat(2000), noise]
    }

    #[test]
    fn what_is_compressed_is_the_body_in_whatever_pieces() {
        for body in bodies() {
            for (size, streaming, level) in
                [(1 << 20, false, 1), (4096, true, 1), (1000, false, 9), (5000, true, 6), (70, true, 1)]
            {
                let mut stream = stream(level, streaming);
                let mut sent = Vec::new();
                for piece in body.chunks(size) {
                    let mut piece = piece.to_vec();
                    stream.encode(&mut piece, false).unwrap();
                    sent.extend_from_slice(&piece);
                    if streaming {
                        // All of it can be read as soon as it has come.
                        let mut seen = Vec::new();
                        let _ = flate2::read::GzDecoder::new(&*sent).read_to_end(&mut seen);
                        assert!(body.starts_with(&seen) && seen.len() >= piece.len().min(1), "{}", seen.len());
                    }
                }
                let mut end = Vec::new();
                stream.encode(&mut end, true).unwrap();
                sent.extend_from_slice(&end);
                assert!(sent.starts_with(&HEADER));
                let mut read = Vec::new();
                flate2::read::GzDecoder::new(&*sent).read_to_end(&mut read).unwrap();
                assert!(read == body, "{} bytes in pieces of {size}, {streaming}, {level}", body.len());
            }
        }
    }

    #[test]
    fn a_broken_stream_leaves_nothing_behind() {
        for _ in 0..20 {
            let mut cut = stream(1, true);
            cut.encode(&mut b"never finished".to_vec(), false).unwrap();
            drop(cut);
            let mut body = b"hello hello hello".to_vec();
            stream(1, true).encode(&mut body, true).unwrap();
            let mut read = String::new();
            flate2::read::GzDecoder::new(&*body).read_to_string(&mut read).unwrap();
            assert_eq!(read, "hello hello hello");
        }
    }
}
