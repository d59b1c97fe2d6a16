//! Heads of requests over HTTP/2: made of the text that HTTP/1.1 would send, so that both say the same.

use weir_plugin::host::Exchange;
use weir_wire::http2::hpack::Encoder;
use weir_wire::list;
use weir_wire::name::Known;

/// True if the client takes trailers, as gRPC clients say.
pub(super) fn takes_trailers(x: &Exchange) -> bool {
    let fields = &x.request.head.fields;
    let mut values = fields.all_received(x.request.buffer.bytes(), Known::Te);
    fields.may_have(Known::Te) && values.any(|value| list(value).any(|coding| coding.eq_ignore_ascii_case(b"trailers")))
}

/// Encodes the head of a request that is written as in HTTP/1.1.
pub(super) fn push_request(text: &[u8], scheme: &[u8], takes_trailers: bool, encoder: &mut Encoder, out: &mut Vec<u8>) {
    let (line, fields) = split_line(text);
    let mut parts = line.split(|byte| *byte == b' ');
    let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    encoder.push_method(out, method);
    encoder.push_scheme(out, scheme);
    if let Some((_, host)) = lines(fields).find(|(name, _)| Known::classify(name) == Known::Host) {
        encoder.push_authority(out, host);
    }
    encoder.push_path(out, target);
    push_lines(fields, encoder, out);
    if takes_trailers {
        encoder.push(out, b"te", b"trailers");
    }
}

/// Encodes field lines, without those that concern an HTTP/1 connection.
pub(super) fn push_lines(text: &[u8], encoder: &mut Encoder, out: &mut Vec<u8>) {
    for (name, value) in lines(text) {
        match Known::classify(name) {
            // RFC 9113 sections 8.2.2 and 8.3.1.
            Known::Host
            | Known::Connection
            | Known::TransferEncoding
            | Known::Upgrade
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::Http2Settings
            | Known::Te => {}
            _ => encoder.push(out, name, value),
        }
    }
}

/// Names and values of field lines, up to an empty line.
fn lines(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (line, after) = split_line(rest);
        rest = after;
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        Some((name, weir_wire::trim_ows(value.get(1..)?)))
    })
}

/// Splits off the first line, without its end.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.windows(2).position(|two| two == b"\r\n").unwrap_or(text.len());
    (text.get(..end).unwrap_or_default(), text.get(end + 2..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use weir_wire::http2::hpack::{Decoder, Encoder};

    fn decoded(text: &str, takes_trailers: bool) -> Vec<String> {
        let mut out = Vec::new();
        super::push_request(text.as_bytes(), b"https", takes_trailers, &mut Encoder::new(), &mut out);
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let sink = |f: weir_wire::http2::hpack::Field<'_>| fields.push(format!("{}={}", text(f.name), text(f.value)));
        let _ = Decoder::new(4096).decode(&out, usize::MAX, &mut Vec::new(), sink).unwrap();
        fields
    }

    #[test]
    fn heads_say_the_same_as_over_http1() {
        let text = "POST /a?b HTTP/1.1\r\nX-One: 1\r\nHost: a.test:8080\r\nConnection: close\r\nTE: trailers\r\n\
            Transfer-Encoding: chunked\r\nCookie: a=b; c=d\r\nX-Empty: \r\n\r\nBody: no\r\n";
        let expected = [
            ":method=POST",
            ":scheme=https",
            ":authority=a.test:8080",
            ":path=/a?b",
            "x-one=1",
            "cookie=a=b; c=d",
            "x-empty=",
        ];
        assert_eq!(decoded(text, false), expected);
        assert_eq!(decoded(text, true).last().unwrap(), "te=trailers");
    }
}
