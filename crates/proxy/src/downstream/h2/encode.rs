//! Header sections of responses (RFC 9113 section 8.3.2).

use weir_plugin::Response;
use weir_wire::http2::hpack::Encoder;
use weir_wire::name::Known;
use weir_wire::trim_ows;

use crate::downstream::Following;
use crate::http2::is_of_connection;
use crate::worker::Worker;

/// Encodes the head of a final response.
#[inline]
pub(super) fn push_head(
    response: &mut Response,
    worker: &Worker,
    following: Following,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) {
    encoder.push_status(out, response.head.status);
    let fields = &mut response.head.fields;
    // `Date` and `Server`, by the gateway's own rules, which come first as in APISIX.
    if !fields.may_have(Known::Date) {
        let mut date = worker.date.borrow_mut();
        push_line(date.at(worker.clock.unix_ms() / 1000), encoder, out);
    }
    let server = &worker.options.server_line;
    if !server.is_empty() {
        fields.hold_back(Known::Server);
        if !fields.has_added(Known::Server) {
            push_line(server, encoder, out);
        }
    }
    push_fields(response, encoder, out);
    if let Following::Length(length) = following {
        let mut digits = [0; 20];
        encoder.push(out, b"content-length", decimal(length, &mut digits));
    }
}

/// Encodes a head as it is: that of an interim response.
pub(super) fn push_response(response: &Response, encoder: &mut Encoder, out: &mut Vec<u8>) {
    encoder.push_status(out, response.head.status);
    push_fields(response, encoder, out);
}

/// Encodes the head of a switch to WebSocket (RFC 8441 section 5.1).
pub(super) fn push_switch(response: &Response, encoder: &mut Encoder, out: &mut Vec<u8>) {
    encoder.push_status(out, response.head.status);
    for (name, value) in response.head.fields.sent(response.buffer.bytes()) {
        let is_http1 = is_of_connection(name) || name.eq_ignore_ascii_case(b"sec-websocket-accept");
        if !is_http1 && !name.eq_ignore_ascii_case(b"content-length") {
            encoder.push(out, name, value);
        }
    }
}

/// Encodes a trailer section.
pub(super) fn push_trailers(lines: &[u8], encoder: &mut Encoder, out: &mut Vec<u8>) {
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        push_line(line, encoder, out);
    }
}

fn push_fields(response: &Response, encoder: &mut Encoder, out: &mut Vec<u8>) {
    for (name, value) in response.head.fields.sent(response.buffer.bytes()) {
        // A plugin may have set one.
        if !is_of_connection(name) {
            encoder.push(out, name, value);
        }
    }
}

/// Encodes a field that is a line of text.
fn push_line(line: &[u8], encoder: &mut Encoder, out: &mut Vec<u8>) {
    let line = line.strip_suffix(b"\r\n").unwrap_or(line);
    if let Some(colon) = line.iter().position(|byte| *byte == b':') {
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        encoder.push(out, name, trim_ows(value.get(1..).unwrap_or_default()));
    }
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    for place in digits.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
        at -= 1;
        if number == 0 {
            break;
        }
    }
    digits.get(at..).unwrap_or_default()
}
