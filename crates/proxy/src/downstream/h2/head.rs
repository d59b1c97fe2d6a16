//! Heads of requests: pseudo fields checked (RFC 9113 section 8.3.1), and the head made like one that came over HTTP/1.

use weir_plugin::host::Exchange;
use weir_wire::head::{Content, Limits, TOO_MANY_FIELDS, Version};
use weir_wire::http2::priority::Priority;
use weir_wire::method::Method;
use weir_wire::{Reject, Span};

use crate::downstream::NO_ROOM_FOR_HEAD;
use crate::http1;
use crate::http2::FieldList;

/// Properties of a head that only concern its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// True for an extended CONNECT (RFC 8441).
    pub(super) connects: bool,
    /// Urgency of the `priority` field, if there is one.
    pub(super) priority: Option<Priority>,
}

/// Reasons for not serving a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Not a request of HTTP/2: its stream is reset.
    Malformed(&'static str),
    /// An answer instead.
    Rejected(Reject),
}

/// Pseudo fields of a request.
#[derive(Debug, Default)]
struct Pseudo<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    protocol: Option<&'a [u8]>,
}

const fn malformed<T>(reason: &'static str) -> Result<T, Refusal> {
    Err(Refusal::Malformed(reason))
}

/// Writes a head to the exchange. `ends`: no content follows.
pub(super) fn read(x: &mut Exchange, fields: &FieldList, ends: bool, limits: &Limits) -> Result<Head, Refusal> {
    forget(x);
    if fields.is_too_large() {
        return Err(Refusal::Rejected(Reject::new(431, "head too large")));
    }
    let pseudo = Pseudo::read(fields)?;
    let method = pseudo.method.unwrap_or_default();
    let connects = pseudo.protocol.is_some();
    let target = pseudo.target(method)?;
    let mut has_cookie = false;
    let mut priority = None;
    let mut cookies = std::mem::take(&mut x.scratch);
    cookies.clear();
    for (name, value) in fields.iter() {
        match name {
            b"te" if !value.eq_ignore_ascii_case(b"trailers") => return malformed("TE other than trailers"),
            // The node that is asked over HTTP/1 knows one only (RFC 9113 section 8.2.3).
            b"cookie" => {
                if has_cookie {
                    cookies.extend_from_slice(b"; ");
                }
                has_cookie = true;
                cookies.extend_from_slice(value);
            }
            b"host" if pseudo.authority.is_some_and(|authority| !authority.eq_ignore_ascii_case(value)) => {
                return malformed("host other than :authority");
            }
            b"priority" => priority = Some(Priority::parse(value)),
            b"sec-websocket-key" if connects => return malformed("sec-websocket-key"),
            name if name.iter().any(u8::is_ascii_uppercase) => return malformed("field name in upper case"),
            _ => {}
        }
    }
    if fields.len() + 4 * limits.fields > weir_plugin::host::BUFFER
        && http1::may_hold_head(x, fields.len() + 4 * limits.fields).is_err()
    {
        return Err(Refusal::Rejected(NO_ROOM_FOR_HEAD));
    }
    let kept = fields.iter().filter(|(name, _)| {
        !name.starts_with(b":") && *name != b"cookie" && !(*name == b"host" && pseudo.authority.is_some())
    });
    let host = pseudo.authority.map(|authority| (&b"host"[..], authority));
    let cookie = has_cookie.then_some((&b"cookie"[..], cookies.as_slice()));
    // Fields that ask a node for a WebSocket over HTTP/1 (RFC 8441 section 5.1).
    let nonce = if connects { nonce() } else { [0; 24] };
    let key = connects.then_some((&b"sec-websocket-key"[..], &nonce[..]));
    let method = if connects { &b"GET"[..] } else { method };
    let request = &mut x.request;
    let all = host.into_iter().chain(kept).chain(cookie).chain(key);
    let built = request.head.build(&mut request.buffer, (method, target), all, !ends && !connects, limits);
    request.head_len = request.buffer.len();
    x.scratch = cookies;
    match built {
        Ok(()) => {}
        Err(reject) if reject.status == 400 => return malformed(reject.reason),
        Err(reject) => {
            if reject == TOO_MANY_FIELDS {
                x.request.head.fields.clear();
            }
            return Err(Refusal::Rejected(reject));
        }
    }
    let head = &mut x.request.head;
    head.version = Version::Http2;
    head.websocket = connects;
    match head.content {
        Content::Length(1..) if ends => return malformed("Content-Length without content"),
        Content::None | Content::Length(_) | Content::Unknown => {}
    }
    if connects {
        head.content = Content::None;
    }
    Ok(Head { connects, priority })
}

/// 16 random bytes in base64 (RFC 6455 section 4.1).
fn nonce() -> [u8; 24] {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |step: usize| LETTERS.get(fastrand::usize(..64 / step) * step).copied().unwrap_or(b'A');
    let mut nonce = [b'='; 24];
    for (at, place) in nonce.iter_mut().take(22).enumerate() {
        // The last letter has two bits.
        *place = letter(if at == 21 { 16 } else { 1 });
    }
    nonce
}

/// Forgets the head of the exchange before, which must not be taken for that of a request that is refused.
fn forget(x: &mut Exchange) {
    let request = &mut x.request;
    request.buffer.clear();
    request.head_len = 0;
    let head = &mut request.head;
    head.method = Method::Get;
    head.method_span = Span::default();
    head.target = Span::default();
    head.version = Version::Http2;
    head.fields.clear();
    head.content = Content::None;
    head.expect_continue = false;
    head.websocket = false;
    head.host = None;
}

impl<'a> Pseudo<'a> {
    /// Reads the pseudo fields, which come before all others, each once.
    fn read(fields: &'a FieldList) -> Result<Self, Refusal> {
        let mut pseudo = Self::default();
        let mut is_behind = false;
        for (name, value) in fields.iter() {
            if !name.starts_with(b":") {
                is_behind = true;
                continue;
            }
            let place = match name {
                _ if is_behind => return malformed("pseudo field behind a field"),
                b":method" => &mut pseudo.method,
                b":scheme" => &mut pseudo.scheme,
                b":authority" => &mut pseudo.authority,
                b":path" => &mut pseudo.path,
                b":protocol" => &mut pseudo.protocol,
                _ => return malformed("unknown pseudo field"),
            };
            if place.replace(value).is_some() {
                return malformed("repeated pseudo field");
            }
        }
        Ok(pseudo)
    }

    /// Target of the request as HTTP/1 would have it.
    fn target(&self, method: &[u8]) -> Result<&'a [u8], Refusal> {
        if self.method.is_none() {
            return malformed("no :method");
        }
        let is_connect = method == b"CONNECT";
        match self.protocol {
            // RFC 9113 section 8.5.
            None if is_connect => {
                return match (self.authority, self.scheme, self.path) {
                    (Some(authority), None, None) => Ok(authority),
                    _ => malformed("CONNECT with :scheme or :path, or without :authority"),
                };
            }
            Some(_) if !is_connect || self.authority.is_none() => return malformed(":protocol without CONNECT"),
            Some(protocol) if !protocol.eq_ignore_ascii_case(b"websocket") => {
                return Err(Refusal::Rejected(Reject::new(501, "unknown :protocol")));
            }
            _ => {}
        }
        let is_http = |scheme: &[u8]| scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https");
        if !self.scheme.is_some_and(is_http) {
            return malformed("no :scheme, or another than http and https");
        }
        match self.path {
            Some(path @ ([b'/', ..] | b"*")) => Ok(path),
            _ => malformed("no :path, or one that does not begin with /"),
        }
    }
}
