//! PROXY headers: a header is found exactly when it is complete, its meaning does not depend on the bytes after it,
//! and it is unchanged after being written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::proxy_protocol::{Header, MAX_LEN, parse, write_binary, write_line};

fuzz_target!(|data: &[u8]| {
    let outcome = parse(data);
    let Ok(Some(header)) = outcome else {
        assert!(outcome.is_err() || data.len() < MAX_LEN, "so many bytes are enough to tell");
        return;
    };
    assert!(header.len <= data.len() && header.len <= MAX_LEN);
    for len in 0..header.len {
        assert_eq!(parse(&data[..len]), Ok(None), "a part of a header");
    }
    assert_eq!(parse(&data[..header.len]), Ok(Some(header)), "what follows changes nothing");

    for write in [write_line, write_binary] {
        let mut written = Vec::new();
        write(&mut written, header.addresses);
        let again = Header { len: written.len(), ..header };
        assert_eq!(parse(&written), Ok(Some(again)));
    }
});
