//! Documents of GraphQL in the bodies of requests, for the plugins that count their operations and keep their answers.

use std::borrow::Cow;

use apollo_compiler::parser::Parser;
use serde_json::{Map, Value, json};
use weir_plugin::{Flow, RequestCx};

/// The message of a refusal of a document, with the reason.
pub(super) fn invalid(reason: &str) -> String {
    format!("Invalid graphql request: {reason}")
}

/// Bounds of a document: levels of its nesting, and words and signs of it.
pub(crate) const DEEPEST: usize = 128;
const MOST_TOKENS: usize = 15_000;

/// A parser of documents from clients.
pub(crate) fn parser() -> Parser {
    Parser::new().recursion_limit(DEEPEST).token_limit(MOST_TOKENS)
}

/// A request of GraphQL over HTTP.
#[derive(Debug, Default)]
pub(super) struct Asked<'b> {
    /// The document.
    pub(super) query: Cow<'b, [u8]>,
    /// The operation of the document that is asked for.
    pub(super) operation: Option<String>,
    /// Values of its variables.
    pub(super) variables: Map<String, Value>,
}

/// The request in a body with this media type.
///
/// # Errors
/// The message of a refusal.
pub(super) fn document<'b>(kind: &[u8], body: &'b [u8]) -> Result<Asked<'b>, String> {
    if body.is_empty() {
        return Err(invalid("can't get graphql request body"));
    }
    if kind.starts_with(b"application/json") {
        let mut read: Value =
            serde_json::from_slice(body).map_err(|error| format!("invalid graphql request, {error}"))?;
        let text = |field: &str| read[field].as_str().map(str::to_owned);
        let query = text("query").ok_or("invalid graphql request, json body[query] is nil")?;
        let operation = text("operationName");
        let variables = match read.get_mut("variables").map(Value::take) {
            Some(Value::Object(variables)) => variables,
            _ => Map::new(),
        };
        return Ok(Asked { query: query.into_bytes().into(), operation, variables });
    }
    if kind.starts_with(b"application/graphql") {
        return Ok(Asked { query: body.into(), ..Asked::default() });
    }
    Err(format!("invalid graphql request, error content-type: {}", String::from_utf8_lossy(kind)))
}

/// Refuses a request with a message in JSON.
pub(super) fn refuse(cx: &mut RequestCx<'_>, status: u16, message: &str) -> Flow {
    let body = json!({ "message": message }).to_string();
    cx.reply(status).field("Content-Type", b"application/json").body(body.as_bytes()).done()
}
