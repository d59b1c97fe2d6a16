//! The heads that the node and the client receive.

use weir_expr::Value;
use weir_plugin::Exchange;
use weir_wire::head::Framing;
use weir_wire::name::Known;
use weir_wire::status;

use crate::upstream::{Node, PassHost, Upstream};

/// Writes the request head for a node to [`Exchange::out`].
pub(super) fn encode(x: &mut Exchange, upstream: &Upstream, node: &Node, websocket: bool) {
    let mut out = std::mem::take(&mut x.out);
    out.clear();
    match x.request.upstream.method {
        Some(method) => out.extend_from_slice(method.as_str().as_bytes()),
        None => out.extend_from_slice(x.request.method_bytes()),
    }
    out.push(b' ');
    x.request.write_upstream_target(&mut out);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    push_host(x, upstream, node, &mut out);
    hold_back_forwarded(x);
    let request = &x.request;
    request.head.fields.write(request.buffer.bytes(), &mut out);
    push_forwarded(x, &mut out);
    // A length goes out as it came; whatever else came as Transfer-Encoding, chunked is what is sent.
    if request.head.framing == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if websocket && request.head.websocket {
        out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n");
    } else {
        x.request.head.websocket = false;
    }
    out.extend_from_slice(b"\r\n");
    x.out = out;
}

/// Writes the head as it stands in the buffer to [`Exchange::out`].
pub(super) fn put_received(x: &mut Exchange) {
    x.out.clear();
    x.out.extend_from_slice(x.request.buffer.bytes().get(..x.request.head.len).unwrap_or_default());
}

/// The Host that a node is sent, by `pass_host`.
pub(super) fn host_for<'a>(x: &'a Exchange, upstream: &'a Upstream, node: &'a Node) -> &'a [u8] {
    let request = &x.request;
    match &upstream.host {
        // As in APISIX, a plugin changes the Host only where the upstream does not name one.
        PassHost::Pass if !request.upstream.host.is_empty() => &request.upstream.host,
        // Without any (HTTP/1.0), the node's.
        PassHost::Pass if !request.host_port().is_empty() => request.host_port(),
        PassHost::Pass | PassHost::Node => &node.host,
        PassHost::Rewrite(host) => host,
    }
}

/// Writes the Host; the client's own line stays where it is when it is the one to send.
fn push_host(x: &mut Exchange, upstream: &Upstream, node: &Node, out: &mut Vec<u8>) {
    let request = &x.request;
    let passed = matches!(upstream.host, PassHost::Pass) && request.upstream.host.is_empty();
    if passed && request.host_line_is_good() {
        return;
    }
    out.extend_from_slice(b"Host: ");
    out.extend_from_slice(host_for(x, upstream, node));
    out.extend_from_slice(b"\r\n");
    x.request.head.fields.hold_back(Known::Host);
}

/// Holds back the fields that are written anew for each try.
fn hold_back_forwarded(x: &mut Exchange) {
    let fields = &mut x.request.head.fields;
    fields.hold_back(Known::XForwardedFor);
    fields.hold_back(Known::XRealIp);
    fields.hold_back(Known::Forwarded);
}

/// Tells the node who asks. What an untrusted peer said is gone ([`crate::options::Options::distrust`]): what is there stands, be it a
/// trusted peer's or a plugin's, and X-Forwarded-For is continued unless a plugin has set it.
fn push_forwarded(x: &Exchange, out: &mut Vec<u8>) {
    let request = &x.request;
    let fields = &request.head.fields;
    let base = request.buffer.bytes();
    if !fields.has_added(Known::XRealIp) {
        out.extend_from_slice(b"X-Real-IP: ");
        push_addr(x, out);
    }
    if !fields.has_added(Known::XForwardedFor) {
        out.extend_from_slice(b"X-Forwarded-For: ");
        if fields.may_have(Known::XForwardedFor) {
            for (name, value) in fields.iter(base) {
                if Known::classify(name) == Known::XForwardedFor {
                    out.extend_from_slice(value);
                    out.extend_from_slice(b", ");
                }
            }
        }
        push_addr(x, out);
    }
    if !fields.sends(Known::XForwardedProto) {
        let line: &[u8] = if x.client.https { b"X-Forwarded-Proto: https\r\n" } else { b"X-Forwarded-Proto: http\r\n" };
        out.extend_from_slice(line);
    }
    if !fields.sends(Known::XForwardedHost) {
        let host = x.forwarded_host();
        if !host.is_empty() {
            out.extend_from_slice(b"X-Forwarded-Host: ");
            out.extend_from_slice(host);
            out.extend_from_slice(b"\r\n");
        }
    }
    if !fields.sends(Known::XForwardedPort) {
        out.extend_from_slice(b"X-Forwarded-Port: ");
        match x.forwarded_port() {
            Value::Number(port) => weir_wire::push_number(out, port),
            port => port.write_to(out),
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn push_addr(x: &Exchange, out: &mut Vec<u8>) {
    out.extend_from_slice(x.client.addr_text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes the status line of a response: an upstream's reason phrase goes on unless the status was changed.
pub(crate) fn push_status(x: &Exchange, out: &mut Vec<u8>) {
    let head = &x.response.head;
    if head.reason.is_empty() {
        status::push_line(out, head.status);
        return;
    }
    let received = x.response.buffer.bytes();
    if head.minor == 1 {
        // As it came: it stands at the front, with its phrase last.
        out.extend_from_slice(received.get(..head.reason.end as usize + 2).unwrap_or_default());
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    weir_wire::push_number(out, u64::from(head.status));
    out.push(b' ');
    out.extend_from_slice(head.reason.of(received));
    out.extend_from_slice(b"\r\n");
}
