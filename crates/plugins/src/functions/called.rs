//! Requests to functions of a cloud, and their answers to clients.

use weir_plugin::{Callout, Flow, RequestCx};
use weir_wire::name::FieldName;

/// True for fields that belong to a connection or frame a body.
fn is_own(name: &[u8]) -> bool {
    const OWN: [&str; 11] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    ];
    OWN.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// Copies the fields of a request.
pub(crate) fn copy_fields(cx: &RequestCx<'_>, callout: &mut Callout) {
    let request = cx.request();
    for (name, value) in request.head.fields.iter(request.buffer.bytes()).filter(|(name, _)| !is_own(name)) {
        if let Some(name) = std::str::from_utf8(name).ok().and_then(FieldName::new) {
            callout.add_field(&name, value);
        }
    }
}

/// Answers a request with what a function has said. Names and values that no message may have are left out.
pub(crate) fn answer<'f>(
    cx: &mut RequestCx<'_>,
    status: u16,
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
    body: &[u8],
) -> Flow {
    let mut answer = cx.reply(status);
    for (name, value) in fields.filter(|(name, _)| !is_own(name)) {
        let is_name = !name.is_empty() && name.iter().all(|byte| weir_wire::is_tchar(*byte));
        if is_name && value.iter().all(|byte| weir_wire::is_field_byte(*byte)) {
            answer = answer.named_bytes(name, value);
        }
    }
    answer.body(body).done()
}
