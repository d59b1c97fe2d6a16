//! The body of a refusal.

/// `{"error_msg":"…"}` and a line end, with this message or else with status and reason phrase: APISIX answers with a
/// page of nginx's where there is no message.
pub(crate) fn error_msg(status: u16, message: Option<&str>) -> Vec<u8> {
    let reason = || format!("{status} {}", weir_wire::status::reason(status)).trim_end().to_owned();
    let text = message.map_or_else(reason, str::to_owned);
    let mut body = serde_json::json!({ "error_msg": text }).to_string().into_bytes();
    body.push(b'\n');
    body
}
