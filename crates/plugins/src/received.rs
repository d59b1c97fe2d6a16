//! Requests as they came, in the form of HTTP/1.1.

use weir_plugin::Request;

/// Appends the head of a request, with the empty line behind it.
pub(crate) fn write_head(request: &Request, out: &mut Vec<u8>) {
    out.extend_from_slice(request.method_bytes());
    out.push(b' ');
    out.extend_from_slice(request.received_target());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let host = request.host_port();
    for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    if request.field_str("host").is_none() {
        for part in [b"host: ", host, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
}
