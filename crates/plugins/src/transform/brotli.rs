//! `brotli`: bodies in brotli, for whoever takes them.

use std::fmt;
use std::io::Write;

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use brotli::enc::backward_references::BrotliEncoderMode;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Held;
use weir_plugin::{CompileCx, Compiled, Define, Encoder, Failure, Flow, Invalid, Phases, Plugin, ResponseCx};

use super::coding::{Terms, TermsConf, Types, room};

/// The definition.
#[derive(Debug)]
pub(crate) struct Brotli;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The media types of bodies that are compressed, without parameters; `*` for all. One without a type never is.
    types: Types,
    /// Bodies shorter than so many bytes stay as they are, where the length is known beforehand.
    #[schemars(range(min = 1))]
    min_length: u64,
    /// The kind of content: 0 anything, 1 text in UTF-8, 2 fonts in WOFF 2.0.
    #[schemars(range(max = 2))]
    mode: u8,
    /// From 0, the fastest, to 11, the smallest. From 10 on it takes many times as long as before.
    #[schemars(range(max = 11))]
    comp_level: u8,
    /// Logarithm of the window, 10 to 24; 0 is 22. Where the length of a body is known beforehand, a smaller one is
    /// taken for a small body.
    #[schemars(range(max = 24))]
    lgwin: u8,
    /// Logarithm of the input block, 16 to 24; 0 lets the coding choose.
    #[schemars(range(max = 24))]
    lgblock: u8,
    /// The least version of HTTP that a client has to speak: 1.0 or 1.1.
    http_version: f64,
    /// Adds `Vary: Accept-Encoding` to responses that may be compressed, for caches.
    vary: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            types: Types::List(vec!["text/html".into()]),
            min_length: 20,
            mode: 0,
            comp_level: 6,
            lgwin: 19,
            lgblock: 0,
            http_version: 1.1,
            vary: false,
        }
    }
}

impl Define for Brotli {
    const NAME: &'static str = "brotli";
    const PRIORITY: i32 = 996;
    const PHASES: Phases = Phases::ENCODE;
    const DOC: &'static str = "\
Compresses the bodies of responses with brotli for clients whose `Accept-Encoding` takes `br`, by name or by `*`, with a \
weight above 0.

It works on the response as all other plugins have left it, and on those of the gateway as well. Bodies that have a \
`Content-Encoding`, parts of bodies (206) and those with `Cache-Control: no-transform` stay as they are. A strong `ETag` \
becomes a weak one; `Content-Length`, `Accept-Ranges` and digests go.

A body of unknown length is sent on piece by piece as it comes, so events and other long-running streams arrive at once; \
with a known length pieces are put together for better compression. Where `gzip` stands beside it and the client takes \
both, `brotli` goes first.

A response under way takes memory by `comp_level` (0.2 MiB up to 1, 1 MiB up to 4, 2.5 MiB up to 6, 8.5 MiB for 7, 17 MiB \
for 8, 33 MiB for 9) and twice its window; from 10 on ten times its window. With half of `limits.buffers` in \
use, what comes beyond is sent as it is.";
    const EXAMPLE: &'static str = "\
types: [text/html, application/json]
comp_level: 4
vary: true
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let terms = conf.terms().terms(cx);
        let logarithms = cx.ok(conf.logarithms());
        if (10..CHEAP_WINDOW).contains(&conf.lgwin) && TABLES.contains(&conf.comp_level) {
            cx.warn("lgwin", "with comp_level 5 to 9 a window below 17 takes more memory, not less: 33 MiB a response");
        }
        let mode = match conf.mode {
            1 => BrotliEncoderMode::BROTLI_MODE_TEXT,
            2 => BrotliEncoderMode::BROTLI_MODE_FONT,
            _ => BrotliEncoderMode::BROTLI_MODE_GENERIC,
        };
        let (window, block) = logarithms?;
        Some(Compiled::ready(Compressing {
            terms: terms?,
            params: BrotliEncoderParams {
                mode,
                quality: i32::from(conf.comp_level),
                lgwin: i32::from(window),
                lgblock: i32::from(block),
                ..BrotliEncoderParams::default()
            },
        }))
    }
}

impl Conf {
    /// Of the window and of the block.
    fn logarithms(&self) -> Result<(u8, u8), Invalid> {
        match (self.lgwin, self.lgblock) {
            (1..10, _) => Err(Invalid::new("lgwin", "expected 0 or an integer from 10 to 24")),
            (_, 1..16) => Err(Invalid::new("lgblock", "expected 0 or an integer from 16 to 24")),
            (0, block) => Ok((DEFAULT_WINDOW, block)),
            (window, block) => Ok((window, block)),
        }
    }

    fn terms(&self) -> TermsConf<'_> {
        TermsConf { types: &self.types, min_length: self.min_length, http_version: self.http_version, vary: self.vary }
    }
}

/// Logarithms of windows: the coding's own default, and the least that has not the largest tables of all at the levels
/// that have tables.
const DEFAULT_WINDOW: u8 = 22;
const CHEAP_WINDOW: u8 = 17;
const TABLES: std::ops::RangeInclusive<u8> = 5..=9;

/// Bytes of output that are handed on at once.
const OUTPUT: usize = 16 << 10;

/// An instance.
struct Compressing {
    terms: Terms,
    params: BrotliEncoderParams,
}

impl Plugin for Compressing {
    fn encode(&self, cx: &mut ResponseCx<'_>) -> Flow {
        if self.terms.hold(cx, &[b"br"]) {
            let length = cx.response().content_length();
            let params = fitted(&self.params, length);
            if let Some(room) = room(memory(&params)) {
                cx.encode_body(b"br", Box::new(Stream::new(&params, length.is_none(), room)));
            }
        }
        Flow::Continue
    }
}

/// The parameters for a body of this length: a smaller window does for a small body.
fn fitted(params: &BrotliEncoderParams, length: Option<u64>) -> BrotliEncoderParams {
    let mut params = params.clone();
    if let Some(length) = length {
        let enough = u64::BITS.saturating_sub(length.leading_zeros()) as i32;
        params.lgwin = params.lgwin.min(enough.max(i32::from(CHEAP_WINDOW)));
        params.size_hint = usize::try_from(length).unwrap_or(usize::MAX);
    }
    params
}

/// Bytes that a stream takes, as measured: hash tables, and a ring of two windows.
fn memory(params: &BrotliEncoderParams) -> usize {
    const KIB: usize = 1 << 10;
    let window = 1usize << params.lgwin.clamp(0, 24);
    let cheap = params.lgwin >= i32::from(CHEAP_WINDOW);
    match params.quality {
        ..=1 => 256 * KIB,
        2..=4 => 1024 * KIB + 2 * window,
        5 | 6 if cheap => 2560 * KIB + 2 * window,
        7 if cheap => 8704 * KIB + 2 * window,
        8 if cheap => 17_408 * KIB + 2 * window,
        5..=9 => 33_792 * KIB + 2 * window,
        _ => 1024 * KIB + 10 * window,
    }
}

/// A brotli stream being made (RFC 7932).
struct Stream {
    /// `None` once it has ended.
    writer: Option<CompressorWriter<Vec<u8>>>,
    /// True if each piece is to reach the client at once.
    streaming: bool,
    _held: Held,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("streaming", &self.streaming).finish_non_exhaustive()
    }
}

impl Stream {
    fn new(params: &BrotliEncoderParams, streaming: bool, held: Held) -> Self {
        Self { writer: Some(CompressorWriter::with_params(Vec::new(), OUTPUT, params)), streaming, _held: held }
    }
}

const FAILED: Failure = Failure::internal("the body cannot be compressed");

impl Encoder for Stream {
    fn encode(&mut self, piece: &mut Vec<u8>, last: bool) -> Result<(), Failure> {
        let writer = self.writer.as_mut().ok_or(FAILED)?;
        writer.write_all(piece).map_err(|_| FAILED)?;
        if last {
            *piece = self.writer.take().map(CompressorWriter::into_inner).unwrap_or_default();
            return Ok(());
        }
        if self.streaming && !piece.is_empty() {
            writer.flush().map_err(|_| FAILED)?;
        }
        piece.clear();
        std::mem::swap(piece, writer.get_mut());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{BrotliEncoderParams, Stream, fitted, memory, room};
    use std::io::Read;
    use weir_plugin::Encoder;

    fn read(coded: &[u8]) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        let whole = brotli::Decompressor::new(coded, 4096).read_to_end(&mut body).is_ok();
        (body, whole)
    }

    #[test]
    fn what_is_compressed_is_the_body_in_whatever_pieces() {
        let mut random = fastrand::Rng::with_seed(3);
        let noise: Vec<u8> = (0..20_000).map(|_| random.u8(..)).collect();
        for body in [Vec::new(), b"x".to_vec(), b"hello ".repeat(2000), noise] {
            for (size, known, quality, window) in
                [(1 << 20, true, 6, 19), (4096, false, 0, 10), (1000, true, 11, 18), (5000, false, 5, 22)]
            {
                let params = BrotliEncoderParams { quality, lgwin: window, ..BrotliEncoderParams::default() };
                let params = fitted(&params, known.then_some(body.len() as u64));
                let mut stream = Stream::new(&params, !known, room(memory(&params)).expect("room"));
                let mut sent = Vec::new();
                let mut given = 0;
                for piece in body.chunks(size) {
                    given += piece.len();
                    let mut piece = piece.to_vec();
                    stream.encode(&mut piece, false).unwrap();
                    sent.extend_from_slice(&piece);
                    if !known {
                        assert_eq!(read(&sent).0.len(), given, "all that was given can be read");
                    }
                }
                let mut end = Vec::new();
                stream.encode(&mut end, true).unwrap();
                sent.extend_from_slice(&end);
                let (got, whole) = read(&sent);
                assert!(whole && got == body, "{} bytes in pieces of {size}, {quality}, {window}", body.len());
            }
        }
    }
}
