//! MQTT's CONNECT: whoever the client is, it is known from the first byte that suffices on, and what follows the packet
//! does not change it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::mqtt::parse;

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    let mut first = None;
    for len in 0..=data.len() {
        let found = parse(&data[..len]);
        match first {
            None if found == Ok(None) => {}
            // A packet that turns out to be too short for its contents was not known to be before its end.
            None => first = Some(found),
            Some(Ok(_)) => assert_eq!(found.is_ok(), whole.is_ok()),
            Some(Err(_)) => assert!(found.is_err(), "what was refused stays refused"),
        }
    }
});
