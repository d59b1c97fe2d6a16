//! Cookies of requests (RFC 6265).

use weir_plugin::{Request, RequestCx};
use weir_wire::name::{FieldName, Known};

/// True if a cookie may have this name: a token (RFC 6265 section 4.1.1).
pub(crate) fn is_name(name: &str) -> bool {
    FieldName::new(name).is_some()
}

/// Takes every cookie of this name out of the request, for the plugins that follow and for the upstream.
pub(crate) fn remove(cx: &mut RequestCx<'_>, name: &[u8]) {
    let is_it = |pair: &[u8]| pair.strip_prefix(name).is_some_and(|rest| matches!(rest, [] | [b'=', ..]));
    if !pairs(cx.request()).any(is_it) {
        return;
    }
    let mut kept = cx.take_scratch();
    for pair in pairs(cx.request()) {
        if !is_it(pair) && !pair.is_empty() {
            if !kept.is_empty() {
                kept.extend_from_slice(b"; ");
            }
            kept.extend_from_slice(pair);
        }
    }
    let fields = &mut cx.request_mut().head.fields;
    fields.remove_known(Known::Cookie);
    if !kept.is_empty() {
        fields.add(b"Cookie", &kept);
    }
    cx.put_scratch(kept);
}

/// The cookies of all `Cookie` fields.
fn pairs(request: &Request) -> impl Iterator<Item = &[u8]> {
    let fields = request.head.fields.iter(request.buffer.bytes());
    let cookies = fields.filter(|(name, _)| Known::classify(name) == Known::Cookie);
    cookies.flat_map(|(_, cookies)| cookies.split(|b| *b == b';')).map(weir_wire::trim_ows)
}
