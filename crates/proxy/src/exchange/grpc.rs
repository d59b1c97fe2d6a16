//! gRPC over HTTP/2: answers made here in the form that gRPC clients read, and the time limit that a call brings.

use weir_plugin::Origin;
use weir_plugin::host::Exchange;
use weir_telemetry::metrics::Recorder;
use weir_wire::name::Known;
use weir_wire::status;

/// Trailer section of an answer whose call has run out of time.
pub(super) const DEADLINE_EXCEEDED: &[u8] = b"grpc-status: 4\r\ngrpc-message: deadline exceeded\r\n";

/// Most bytes of a body that become the message of a status.
const MESSAGE: usize = 1 << 10;

/// Status of a gRPC call for a status of HTTP.
fn status_of(status: u16) -> u64 {
    const CANCELLED: u64 = 1;
    const UNKNOWN: u64 = 2;
    const DEADLINE_EXCEEDED: u64 = 4;
    const PERMISSION_DENIED: u64 = 7;
    const RESOURCE_EXHAUSTED: u64 = 8;
    const UNIMPLEMENTED: u64 = 12;
    const INTERNAL: u64 = 13;
    const UNAVAILABLE: u64 = 14;
    const UNAUTHENTICATED: u64 = 16;
    match status {
        400 | 500 => INTERNAL,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 | 405 | 501 => UNIMPLEMENTED,
        408 | 504 => DEADLINE_EXCEEDED,
        413 | 429 | 431 => RESOURCE_EXHAUSTED,
        499 => CANCELLED,
        502 | 503 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

/// True if the client of a request speaks gRPC; or gRPC-Web, which a plugin has made gRPC. For a client of JSON, whose
/// request a plugin has made a call, answers stay what they are.
fn is_call(x: &Exchange) -> bool {
    let (fields, base) = (&x.request.head.fields, x.request.buffer.bytes());
    if !fields.received(base, b"content-type").is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        return false;
    }
    let kind = fields.get_known(base, Known::ContentType).unwrap_or_default();
    matches!(kind.strip_prefix(b"application/grpc"), Some([] | [b'+' | b';', ..]))
}

/// Records the status of a call whose answer is complete.
pub(super) fn count(x: &Exchange, recorder: &Recorder) {
    recorder.grpc_call(x.response.grpc_status().and_then(|status| std::str::from_utf8(status).ok()?.parse().ok()));
}

/// Turns an answer made here to a gRPC call into one of gRPC, which has the status 200 and tells its own in a field; true
/// for such a call. Successes are left as they are.
pub(super) fn convert(x: &mut Exchange) -> bool {
    let code = x.response.head.status;
    if code < 300 || !is_call(x) {
        return false;
    }
    let response = &mut x.response;
    let reason = match response.origin {
        Origin::Failed(failure) => failure.reason,
        _ => status::reason(code),
    };
    let body = response.body.trim_ascii();
    let is_told = matches!(response.origin, Origin::Failed(_)) || body.is_empty() || body.len() > MESSAGE;
    let message = if is_told { reason.as_bytes() } else { body };
    let kind = response.head.fields.get_known(response.buffer.bytes(), Known::ContentType).unwrap_or_default();
    // A plugin speaks gRPC-Web with the client, where a status may stand in the head as well.
    let is_web = kind.starts_with(b"application/grpc-web");
    let fields = &mut response.head.fields;
    fields.remove_known(Known::ContentEncoding);
    if !is_web {
        fields.remove_known(Known::ContentType);
        fields.add(b"Content-Type", b"application/grpc");
    }
    fields.add_with(b"grpc-status", |out| weir_wire::push_number(out, status_of(code)));
    fields.add_with(b"grpc-message", |out| push_message(out, message));
    response.head.status = 200;
    response.body.clear();
    true
}

/// Appends a message, with `%XX` for what may not stand in it.
fn push_message(out: &mut Vec<u8>, message: &[u8]) {
    for byte in message {
        match byte {
            b' '..=b'~' if *byte != b'%' => out.push(*byte),
            _ => {
                let digit =
                    |nibble: u8| char::from_digit(nibble.into(), 16).map_or(b'0', |d| d.to_ascii_uppercase() as u8);
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
}

/// Milliseconds that a call may take, by its `grpc-timeout`; `u64::MAX`: it does not say.
pub(super) fn time_limit(x: &Exchange) -> u64 {
    let value = x.request.head.fields.get_str(x.request.buffer.bytes(), b"grpc-timeout");
    value.and_then(milliseconds).unwrap_or(u64::MAX)
}

/// Reads a `grpc-timeout`: up to eight digits and a unit. What is below a millisecond counts as one.
fn milliseconds(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount = digits.iter().fold(0, |amount, digit| amount * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => amount * 3_600_000,
        b'M' => amount * 60_000,
        b'S' => amount * 1_000,
        b'm' => amount,
        b'u' => amount.div_ceil(1_000),
        b'n' => amount.div_ceil(1_000_000),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{milliseconds, push_message};

    #[test]
    fn timeouts_are_read() {
        for (text, expected) in [
            ("1S", Some(1_000)),
            ("250m", Some(250)),
            ("2M", Some(120_000)),
            ("99999999H", Some(359_999_996_400_000)),
            ("1500u", Some(2)),
            ("1n", Some(1)),
            ("0m", Some(0)),
            ("123456789S", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("-1S", None),
            ("", None),
        ] {
            assert_eq!(milliseconds(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn messages_are_encoded() {
        let mut out = Vec::new();
        push_message(&mut out, "100 % ü\n".as_bytes());
        assert_eq!(String::from_utf8(out).unwrap(), "100 %25 %C3%BC%0A");
    }
}
