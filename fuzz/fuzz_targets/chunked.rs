//! Chunked bodies: a body decodes to the same bytes as a whole or in pieces, never to more than was sent, and the
//! decoded bytes survive being encoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::chunked::{Decoder, Event, push_size};

fuzz_target!(|data: &[u8]| {
    let Some((&piece, body)) = data.split_first() else { return };
    let whole = decode(body, body.len());
    let pieces = decode(body, usize::from(piece).max(1));
    assert_eq!(whole.data, pieces.data);
    assert_eq!(whole.trailers, pieces.trailers);
    assert_eq!(whole.end, pieces.end, "the size of the pieces changed the outcome");
    assert!(whole.data.len() <= body.len());

    if let End::At(end) = whole.end {
        assert!(body[..end].ends_with(b"\r\n"));
        let mut encoded = Vec::new();
        if !whole.data.is_empty() {
            push_size(&mut encoded, whole.data.len());
            encoded.extend_from_slice(&whole.data);
            encoded.extend_from_slice(b"\r\n");
        }
        encoded.extend_from_slice(b"0\r\n\r\n");
        let again = decode(&encoded, encoded.len());
        assert_eq!((again.data, again.end), (whole.data, End::At(encoded.len())));
    }
});

#[derive(Debug, PartialEq)]
enum End {
    /// The body ended before this position.
    At(usize),
    /// All bytes were consumed, and the body continues.
    Open,
    Refused,
}

struct Decoded {
    data: Vec<u8>,
    trailers: Vec<u8>,
    end: End,
}

/// Decodes as a connection does: `step` bytes arrive at a time behind the unconsumed ones.
fn decode(body: &[u8], step: usize) -> Decoded {
    let mut decoded = Decoded { data: Vec::new(), trailers: Vec::new(), end: End::Open };
    let (mut decoder, mut used, mut there) = (Decoder::default(), 0, 0);
    while there < body.len() {
        there = (there + step).min(body.len());
        let input = &body[used..there];
        let mut at = 0;
        loop {
            let before = at;
            match decoder.next(input, &mut at) {
                Ok(Event::Data(span)) => {
                    assert!(!span.is_empty() && span.end as usize == at, "data without bytes, or out of place");
                    decoded.data.extend_from_slice(span.of(input));
                }
                Ok(Event::Trailer(span)) => decoded.trailers.extend_from_slice(span.of(input)),
                Ok(Event::NeedMore) => break,
                Ok(Event::End) => {
                    assert!(decoder.is_done());
                    decoded.end = End::At(used + at);
                    return decoded;
                }
                Err(_) => {
                    decoded.end = End::Refused;
                    return decoded;
                }
            }
            assert!(at > before && at <= input.len(), "an event without progress");
        }
        used += at;
    }
    decoded
}
