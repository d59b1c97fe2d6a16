//! Heads of responses as text (RFC 9112 sections 4 and 5).

use weir_plugin::Response;
use weir_plugin::host::Exchange;
use weir_wire::fields::Fields;
use weir_wire::head::Version;
use weir_wire::name::Known;
use weir_wire::status;

use crate::downstream::Following;
use crate::worker::Worker;

/// Puts the head of a final response on [`Exchange::out`].
#[inline]
pub(super) fn push_head(x: &mut Exchange, worker: &Worker, following: Following, chunked: bool, keeps: bool) {
    let Exchange { response, request, out, sent_head, .. } = &mut *x;
    out.clear();
    push_status(response, out);
    let fields = &mut response.head.fields;
    push_general(worker, fields, out);
    fields.write(response.buffer.bytes(), out);
    if let Following::Length(length) = following {
        out.extend_from_slice(b"Content-Length: ");
        weir_wire::push_number(out, length);
        out.extend_from_slice(b"\r\n");
    }
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    // `Connection`, where it is not what the version implies.
    if !keeps {
        out.extend_from_slice(b"Connection: close\r\n");
    } else if request.head.version == Version::Http10 {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
    *sent_head = out.len() as u64;
}

/// Puts the head of an interim response on [`Exchange::out`].
pub(super) fn push_interim(x: &mut Exchange) {
    let Exchange { response, out, .. } = &mut *x;
    push_status(response, out);
    response.head.fields.write(response.buffer.bytes(), out);
    out.extend_from_slice(b"\r\n");
}

/// Puts the head of a switch to WebSocket on [`Exchange::out`].
pub(super) fn push_switch(x: &mut Exchange) {
    let Exchange { response, out, sent_head, .. } = &mut *x;
    out.clear();
    push_status(response, out);
    response.head.fields.write(response.buffer.bytes(), out);
    out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    *sent_head = out.len() as u64;
}

/// `Date` and `Server`, by the gateway's own rules, which come first as in APISIX.
fn push_general(worker: &Worker, fields: &mut Fields, out: &mut Vec<u8>) {
    // RFC 9110 section 6.6.1: a response without a date gets one when it is passed on.
    if !fields.may_have(Known::Date) {
        out.extend_from_slice(worker.date.borrow_mut().at(worker.clock.unix_ms() / 1000));
    }
    let server = &worker.options.server_line;
    if !server.is_empty() {
        fields.hold_back(Known::Server);
        if !fields.has_added(Known::Server) {
            out.extend_from_slice(server);
        }
    }
}

/// The status line: an upstream's reason phrase goes on unless the status was changed.
fn push_status(response: &Response, out: &mut Vec<u8>) {
    let head = &response.head;
    if head.reason.is_empty() {
        status::push_line(out, head.status);
        return;
    }
    let received = response.buffer.bytes();
    match received.get(..head.reason.end as usize + 2) {
        // As it came: it stands at the front, with its phrase last.
        Some(line) if line.starts_with(b"HTTP/1.1 ") => out.extend_from_slice(line),
        _ => {
            out.extend_from_slice(b"HTTP/1.1 ");
            weir_wire::push_number(out, u64::from(head.status));
            out.push(b' ');
            out.extend_from_slice(head.reason.of(received));
            out.extend_from_slice(b"\r\n");
        }
    }
}
