//! Whole requests and answers in records, in the form of HTTP/1.1 (`enable_detailed_recording`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_plugin::{HookCx, LogCx, PerRequest, Request, View};

use crate::observe::body::{Capture, Wanted};

/// Bytes of each body that are recorded: with those of other requests they have to fit into `reports.buffer`.
const MOST: usize = 64 << 10;

/// A request and its answer, in base64.
#[derive(Debug, Default)]
pub(super) struct Detail {
    pub(super) request: String,
    pub(super) response: String,
}

/// Both bodies, as they pass.
pub(super) fn capture() -> Capture {
    let wanted = || Some(Wanted { most: MOST, when: None, kept: PerRequest::new() });
    Capture { request: wanted(), response: wanted() }
}

impl Detail {
    /// The messages of an exchange that is over.
    pub(super) fn of(cx: &LogCx<'_>, capture: &Capture) -> Self {
        let (x, bodies) = (cx.view(), capture.bodies(cx));
        Self {
            request: STANDARD.encode(request(x.request(), bodies.request.unwrap_or_default())),
            response: STANDARD.encode(response(x, bodies.response.unwrap_or_default())),
        }
    }
}

fn request(request: &Request, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(512 + body.len());
    out.extend_from_slice(request.method_bytes());
    out.push(b' ');
    request.write_request_uri(&mut out);
    out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    out.extend_from_slice(request.host());
    out.extend_from_slice(b"\r\n");
    let fields = request.head.fields.iter(request.buffer.bytes());
    push_rest(fields.filter(|(name, _)| !name.eq_ignore_ascii_case(b"host")), body, !body.is_empty(), &mut out);
    out
}

fn response(x: View<'_>, body: &[u8]) -> Vec<u8> {
    let (response, mut out) = (x.response(), Vec::with_capacity(512 + body.len()));
    weir_wire::status::push_line(&mut out, response.status());
    push_rest(response.head.fields.iter(response.buffer.bytes()), body, true, &mut out);
    out
}

/// Fields, and the body with its length: it is recorded without chunks.
fn push_rest<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])>, body: &[u8], has_length: bool, out: &mut Vec<u8>) {
    const FRAMING: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];
    for (name, value) in fields.filter(|(name, _)| !FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing))) {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    if has_length {
        out.extend_from_slice(b"Content-Length: ");
        weir_wire::push_number(out, body.len() as u64);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
}
