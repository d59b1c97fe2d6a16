//! HTTP/2: frames and header blocks never panic, hand on no more than their limit, and come out of our own encoder as
//! they went in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::http2::frame::{self, Header, HeaderBlock, Kind};
use weir_wire::http2::hpack::{Decoder, Encoder, FIELD_OVERHEAD, Outcome};
use weir_wire::http2::priority::Priority;

const LIST: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let (mut decoder, mut scratch) = (Decoder::new(4096), Vec::new());
    let (mut encoder, mut other_side) = (Encoder::new(), Decoder::new(4096));
    let mut rest = data;
    while let Some(header) = Header::read(rest) {
        let after = &rest[Header::LEN..];
        let (payload, after) = after.split_at(after.len().min(header.length as usize));
        rest = after;
        let header = Header { length: payload.len() as u32, ..header };
        if header.check(16_384).is_err_and(|error| error.scope == weir_wire::http2::Scope::Connection) {
            return;
        }
        let _ = frame::depends_on_itself(header, payload);
        match header.kind {
            Kind::Settings => {
                for setting in frame::settings(payload).map_while(Result::ok) {
                    if let frame::Setting::HeaderTableSize(size) = setting {
                        encoder.set_peer_limit(size);
                    }
                    let mut out = Vec::new();
                    frame::push_settings(&mut out, &[setting]);
                    assert!(frame::settings(&out[Header::LEN..]).eq([Ok(setting)]));
                }
            }
            Kind::WindowUpdate => drop(frame::window_update(header, payload)),
            Kind::ResetStream => drop(frame::reset_stream(payload)),
            Kind::GoAway => drop(frame::go_away(payload)),
            Kind::PriorityUpdate => drop(frame::priority_update(payload).map(|(_, value)| Priority::parse(value))),
            Kind::Headers | Kind::Continuation | Kind::Data => {
                let Ok(block) = frame::payload(header, payload) else { return };
                let (mut size, mut fields) = (0, Vec::new());
                let outcome = decoder.decode(block, LIST, &mut scratch, |field| {
                    size += field.name.len() + field.value.len() + FIELD_OVERHEAD;
                    fields.push((field.name.to_ascii_lowercase(), field.value.to_vec(), field.never_indexed));
                });
                assert!(size <= LIST);
                if outcome.is_err() {
                    return;
                }
                again(&mut encoder, &mut other_side, fields);
            }
            _ => {}
        }
    }
});

/// Encodes fields and decodes them.
fn again(encoder: &mut Encoder, decoder: &mut Decoder, fields: Vec<(Vec<u8>, Vec<u8>, bool)>) {
    let mut out = Vec::new();
    let block = HeaderBlock::begin(&mut out, 1);
    encoder.begin(&mut out);
    for (name, value, never_indexed) in &fields {
        match never_indexed {
            true => encoder.push_never_indexed(&mut out, name, value),
            false => encoder.push(&mut out, name, value),
        }
    }
    block.finish(&mut out, 16_384, false);
    let mut seen = Vec::new();
    let outcome = decoder.decode(&out[Header::LEN..], LIST, &mut Vec::new(), |field| {
        seen.push((field.name.to_vec(), field.value.to_vec()));
    });
    assert_eq!(outcome, Ok(Outcome::Complete));
    assert!(seen.into_iter().eq(fields.into_iter().map(|(name, value, _)| (name, value))));
}
