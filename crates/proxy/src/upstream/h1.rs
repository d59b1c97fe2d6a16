//! Connections to nodes over HTTP/1.1 (RFC 9112).

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use weir_expr::Value;
use weir_plugin::Failure;
use weir_plugin::host::Exchange;
use weir_telemetry::metrics::{Label, Recorder};
use weir_wire::Reject;
use weir_wire::buffer::Buffer;
use weir_wire::head::{Content, Limits};
use weir_wire::name::Known;

use super::outgoing::Outgoing;
use super::pool::Pools;
use super::stream::NodeStream;
use super::{Node, PassHost, Upstream};
use crate::http1::{self, Incoming};
use crate::relay::{self, Piece, Sink, Source};

/// A connection, which carries one request at a time.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: NodeStream,
    /// The node's address; without meaning for a Unix socket.
    pub(crate) addr: SocketAddr,
    /// Requests sent on it so far.
    pub(crate) requests: u32,
    /// Metric label of the node's address.
    node: Label,
    /// The body of the response.
    incoming: Incoming,
    /// The request.
    outgoing: http1::Outgoing,
    /// True when the node keeps the connection after its response.
    keep_alive: bool,
}

impl Connection {
    /// A connection that has just been opened.
    pub(crate) fn new(stream: NodeStream, addr: SocketAddr, node: Label) -> Self {
        let (incoming, outgoing) = (Incoming::default(), http1::Outgoing::default());
        Self { stream, addr, requests: 0, node, incoming, outgoing, keep_alive: false }
    }
}

impl Source for Connection {
    #[inline]
    fn next(&mut self, buffer: &Buffer) -> Result<Piece, Reject> {
        self.incoming.next(buffer)
    }

    #[inline]
    fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        relay::poll_read(cx, &mut self.stream, buffer)
    }

    fn make_room(&mut self, buffer: &mut Buffer) {
        self.incoming.make_room(buffer);
    }
}

impl Sink for Connection {
    #[inline]
    fn poll_data(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.outgoing.poll_data(cx, &mut self.stream, out, data)
    }

    fn push_trailer(&mut self, out: &mut Vec<u8>, line: &[u8]) {
        self.outgoing.push_trailer(out, line);
    }

    fn push_end(&mut self, out: &mut Vec<u8>) {
        self.outgoing.push_end(out);
    }

    #[inline]
    fn poll_flush(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<()>> {
        self.outgoing.poll_flush(cx, &mut self.stream, out)
    }
}

impl Connection {
    /// Address of the node; without meaning for a Unix socket.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Metric label of the address.
    pub(crate) fn label(&self) -> Label {
        self.node
    }

    /// Puts the head of a request on [`Exchange::out`].
    pub(crate) fn push_head(&mut self, x: &mut Exchange, upstream: &Upstream, node: &Node, outgoing: Outgoing) {
        self.requests += 1;
        self.outgoing.begin(x.request.head.content == Content::Unknown);
        match outgoing {
            Outgoing::Request { websocket } => push_request(x, upstream, node, websocket),
            Outgoing::Subrequest => push_subrequest(x),
        }
    }

    /// Reads a response head out of what has been received; false when more has to be received for it.
    ///
    /// # Errors
    /// The response is malformed, or over its limits.
    pub(crate) fn take_head(&mut self, x: &mut Exchange, limits: &Limits) -> Result<bool, Failure> {
        let to = x.request.upstream.method.unwrap_or(x.request.method());
        if let Some(http1) = x.response.parse(limits, to)? {
            self.incoming.begin(http1.framing, http1.len);
            self.keep_alive = http1.keep_alive;
            return Ok(true);
        }
        http1::make_room_for_response_head(x, limits)?;
        Ok(false)
    }

    /// Takes note that the node has ended its side. True when the body is complete.
    pub(crate) fn end_by_close(&mut self) -> bool {
        self.incoming.end_by_close()
    }

    /// True when none of the bytes that were written can have reached the node.
    ///
    /// With TLS the bytes that were lost are those of its records: more than what these hold, by less than the head of a
    /// request is long.
    pub(crate) fn is_unsent(&self) -> bool {
        self.outgoing.sent <= self.stream.lost_bytes() as u64
    }

    /// True when the connection carries its first request.
    pub(crate) fn is_first(&self) -> bool {
        self.requests == 1
    }

    /// True when the node goes on taking the request while and after it answers.
    pub(crate) fn reads_on(&self) -> bool {
        self.keep_alive
    }

    /// True when the response is complete and the connection may carry another request.
    pub(crate) fn is_reusable(&self, buffer: &Buffer) -> bool {
        self.keep_alive && self.incoming.is_complete() && self.incoming.position() == buffer.len()
    }

    /// Gives the connection back, for another request.
    pub(crate) fn release(
        mut self: Box<Self>,
        pools: &Pools,
        upstream: &Upstream,
        node: &Node,
        now: u64,
        recorder: &Recorder,
    ) {
        self.incoming.settle();
        pools.put(&node.endpoint, self, upstream.keepalive, now, recorder);
    }
}

/// Writes the request head for a node to [`Exchange::out`].
pub(crate) fn push_request(x: &mut Exchange, upstream: &Upstream, node: &Node, websocket: bool) {
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
    // A length goes out as it came; without one, chunks are what is sent.
    if request.head.content == Content::Unknown {
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
pub(crate) fn push_subrequest(x: &mut Exchange) {
    x.out.clear();
    x.out.extend_from_slice(x.request.buffer.bytes().get(..x.request.head_len).unwrap_or_default());
}

/// Writes the Host; the client's own line stays where it is when it is the one to send.
fn push_host(x: &mut Exchange, upstream: &Upstream, node: &Node, out: &mut Vec<u8>) {
    let request = &x.request;
    let passed = matches!(upstream.host, PassHost::Pass) && request.upstream.host.is_empty();
    if passed && request.host_line_is_good() {
        return;
    }
    out.extend_from_slice(b"Host: ");
    out.extend_from_slice(upstream.host_for(x, node));
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

/// Writes the fields that name the client to the node. Those of an untrusted peer are gone
/// ([`crate::options::Options::distrust`]); the remaining ones, a trusted peer's or a plugin's, are kept, and
/// X-Forwarded-For is continued unless a plugin has set it.
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
