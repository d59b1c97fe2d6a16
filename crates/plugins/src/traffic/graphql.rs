//! Documents of GraphQL in the bodies of requests, for the plugins that count their operations and keep their answers.

use std::borrow::Cow;

use serde_json::{Value, json};
use weir_plugin::{Flow, RequestCx};

/// The message of a refusal of a document, with the reason.
pub(super) fn invalid(reason: &str) -> String {
    format!("Invalid graphql request: {reason}")
}

/// The document in a body with this media type, and the name of the operation that is asked for.
///
/// # Errors
/// The message of a refusal.
pub(super) fn document<'b>(kind: &[u8], body: &'b [u8]) -> Result<(Cow<'b, [u8]>, Option<String>), String> {
    if body.is_empty() {
        return Err(invalid("can't get graphql request body"));
    }
    if kind.starts_with(b"application/json") {
        let read: Value = serde_json::from_slice(body).map_err(|error| format!("invalid graphql request, {error}"))?;
        let text = |field: &str| read[field].as_str().map(str::to_owned);
        let query = text("query").ok_or("invalid graphql request, json body[query] is nil")?;
        return Ok((query.into_bytes().into(), text("operationName")));
    }
    if kind.starts_with(b"application/graphql") {
        return Ok((body.into(), None));
    }
    Err(format!("invalid graphql request, error content-type: {}", String::from_utf8_lossy(kind)))
}

/// Refuses a request with a message in JSON.
pub(super) fn refuse(cx: &mut RequestCx<'_>, status: u16, message: &str) -> Flow {
    let body = json!({ "message": message }).to_string();
    cx.reply(status).field("Content-Type", b"application/json").body(body.as_bytes()).done()
}
