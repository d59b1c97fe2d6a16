//! Frames of WebSocket: boundaries do not depend on how the bytes were cut, what is announced as missing is never too much,
//! and behind a boundary a Close frame of ours is found to be one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::websocket::{Frames, close_of_client, close_of_server};

fuzz_target!(|data: &[u8]| {
    let Some((size, data)) = data.split_first() else { return };
    let mut whole = Frames::default();
    whole.advance(data);
    let mut pieces = Frames::default();
    for piece in data.chunks(usize::from(*size).max(1)) {
        pieces.advance(piece);
    }
    assert_eq!((pieces.to_boundary(), pieces.has_closed()), (whole.to_boundary(), whole.has_closed()));
    // As many bytes as are missing lead to a boundary, or to more that is known; a header has 14 bytes at most.
    for _ in 0..4 {
        let missing = whole.to_boundary();
        if missing == 0 || missing > 1 << 20 {
            break;
        }
        whole.advance(&vec![0; missing as usize]);
    }
    if whole.to_boundary() == 0 {
        for close in [&close_of_server()[..], &close_of_client([1, 2, 3, 4])] {
            let mut closing = whole.clone();
            closing.advance(close);
            assert!(closing.has_closed() && closing.to_boundary() == 0);
        }
    }
});
