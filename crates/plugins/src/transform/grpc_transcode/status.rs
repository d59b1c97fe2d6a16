//! Statuses of calls, as HTTP has them and as JSON.

use base64::Engine;
use std::sync::LazyLock;
use weir_config::Proto;
use weir_config::prost_reflect::{DynamicMessage, MessageDescriptor, Value};
use weir_plugin::Response;

use super::json::{self, Form, TooLong};
use crate::transform::BASE64;

/// Status of HTTP for the status of a call, as google.rpc.Code has it.
pub(super) fn http_status(code: u32) -> u16 {
    match code {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

/// google.rpc.Status.
static STATUS: LazyLock<Option<MessageDescriptor>> = LazyLock::new(|| {
    const TEXT: &str = "syntax = \"proto3\";\npackage google.rpc;\nimport \"google/protobuf/any.proto\";\n\
        message Status { int32 code = 1; string message = 2; repeated google.protobuf.Any details = 3; }\n";
    Proto::compile(TEXT).ok()?.get_message_by_name("google.rpc.Status")
});

/// A field of the status of a call, from the trailer section or from the head.
pub(super) fn told<'r>(response: &'r Response, name: &str) -> Option<&'r [u8]> {
    response.trailer(name.as_bytes()).or_else(|| response.field_str(name))
}

/// Code of the status; `None` if the service has sent none.
pub(super) fn code(response: &Response) -> Option<u32> {
    std::str::from_utf8(told(response, "grpc-status")?).ok()?.parse().ok()
}

/// Writes a status as `{"error": {…}}`, with its details: those of the type `detail` as JSON.
pub(super) fn write(
    response: &Response,
    code: u32,
    detail: Option<&MessageDescriptor>,
    form: Form,
    most: usize,
    out: &mut Vec<u8>,
) -> Result<(), TooLong> {
    let details = told(response, "grpc-status-details-bin").and_then(|value| BASE64.decode(value).ok());
    let status = details.zip(STATUS.clone()).and_then(|(bytes, of)| DynamicMessage::decode(of, bytes.as_slice()).ok());
    let Some(status) = status else {
        let message = told(response, "grpc-message").map(decoded).unwrap_or_default();
        out.extend_from_slice(format!("{{\"error\":{{\"code\":{code},\"message\":").as_bytes());
        json::write_text(&message, out);
        out.extend_from_slice(b"}}");
        return Ok(());
    };
    let field = |name: &str| status.get_field_by_name(name);
    let code = field("code").and_then(|code| code.as_i32()).unwrap_or_default();
    out.extend_from_slice(format!("{{\"error\":{{\"code\":{code},\"message\":").as_bytes());
    json::write_text(field("message").as_deref().and_then(Value::as_str).unwrap_or_default(), out);
    if let Some(Value::List(details)) = field("details").as_deref()
        && !details.is_empty()
    {
        out.extend_from_slice(b",\"details\":[");
        for (at, any) in details.iter().filter_map(Value::as_message).enumerate() {
            if at > 0 {
                out.push(b',');
            }
            match detail.and_then(|of| opened(any, of)) {
                Some(message) => json::write(&message, form, most, out)?,
                None => json::write(any, form, most, out)?,
            }
        }
        out.push(b']');
    }
    out.extend_from_slice(b"}}");
    Ok(())
}

/// The message in a `google.protobuf.Any` of this type.
fn opened(any: &DynamicMessage, of: &MessageDescriptor) -> Option<DynamicMessage> {
    let url = any.get_field_by_name("type_url")?;
    if url.as_str()?.rsplit('/').next() != Some(of.full_name()) {
        return None;
    }
    let value = any.get_field_by_name("value")?;
    DynamicMessage::decode(of.clone(), value.as_bytes()?.clone()).ok()
}

/// A `grpc-message` without its `%XX`.
fn decoded(message: &[u8]) -> String {
    String::from_utf8_lossy(&super::http_rule::decoded(message)).into_owned()
}
