//! Changes that middleware of one's own makes to requests and answers, and its answers in place of the upstream's.

use std::collections::BTreeMap;

use weir_plugin::{Failure, Flow, Request, RequestCx, ResponseCx};
use weir_wire::name::FieldName;

use super::body;

/// The answer where middleware fails: its faults are told in the log.
pub(super) const FAILED: &str = "Middleware error";

const NO_NAME: &str = "a header has no valid name";
const NO_VALUE: &str = "a header has control characters in its value";

/// Changes to a request.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) set_headers: BTreeMap<String, String>,
    pub(super) delete_headers: Vec<String>,
    /// The body in the place of the request's.
    pub(super) body: Option<Vec<u8>>,
    /// Path and query as the middleware returns them.
    pub(super) url: String,
    pub(super) add_params: BTreeMap<String, String>,
    pub(super) extended_params: BTreeMap<String, Vec<String>>,
    pub(super) delete_params: Vec<String>,
    /// The answer in place of the upstream's.
    pub(super) answer: Option<Answer>,
}

/// An answer in place of the upstream's.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) code: i64,
    pub(super) text: String,
    pub(super) headers: BTreeMap<String, String>,
    /// Sends the text as it is where the code is one of an error.
    pub(super) overrides_error: bool,
}

/// The target of a request as its client sent it, with query changes of earlier middleware.
pub(super) fn url(request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    request.write_request_uri(&mut out);
    out
}

impl Changes {
    /// Changes the request.
    ///
    /// # Errors
    /// A header that cannot be sent.
    pub(super) fn apply(&self, cx: &mut RequestCx<'_>) -> Result<(), &'static str> {
        for name in &self.delete_headers {
            cx.request_mut().remove_field(&FieldName::new(name).ok_or(NO_NAME)?);
        }
        for (name, value) in &self.set_headers {
            let name = FieldName::new(name).ok_or(NO_NAME)?;
            if !value.bytes().all(weir_wire::is_field_byte) {
                return Err(NO_VALUE);
            }
            cx.request_mut().set_field(&name, value.as_bytes());
        }
        let set = self.add_params.iter();
        let removed = self.delete_params.iter().chain(self.add_params.keys());
        let more = self.extended_params.iter();
        let more = more.flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
        let added = set.chain(more).map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        cx.request_mut().replace_arguments(removed.map(String::as_bytes), added);
        if let Some(body) = &self.body {
            cx.replace_body(body);
        }
        Ok(())
    }

    /// The URL, where its path has changed.
    pub(super) fn new_url(&self, cx: &RequestCx<'_>) -> Option<Box<[u8]>> {
        let path_of = |url: &[u8]| url.split(|byte| *byte == b'?').next().unwrap_or_default().to_vec();
        let (own, new) = (url(cx.request()), self.url.as_bytes());
        let is_path = new.starts_with(b"/") && new.iter().all(u8::is_ascii_graphic);
        (is_path && path_of(&own) != path_of(new)).then(|| new.into())
    }
}

/// Changes to the answer of an upstream.
#[derive(Debug, Default)]
pub(super) struct AnswerChanges {
    /// The new status; 0: as it is.
    pub(super) status: i64,
    /// Removes all headers first.
    pub(super) clears: bool,
    pub(super) delete_headers: Vec<String>,
    /// Headers with all of their values.
    pub(super) set_headers: Vec<(String, Vec<String>)>,
    /// The body in the place of the upstream's.
    pub(super) body: Option<Vec<u8>>,
}

/// True for headers of an answer that middleware neither sees nor sets: what frames a message, and what the gateway tells.
pub(super) fn is_gateways(name: &[u8]) -> bool {
    const OWN: [&str; 12] = [
        "connection",
        "content-length",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-tyk-api-expires",
    ];
    OWN.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

impl AnswerChanges {
    /// Changes the answer.
    ///
    /// # Errors
    /// A status or a header that cannot be sent.
    pub(super) fn apply(self, cx: &mut ResponseCx<'_>) -> Result<(), &'static str> {
        if self.status != 0 {
            let status = u16::try_from(self.status).ok().filter(|status| (200..600).contains(status));
            cx.set_status(status.ok_or("the status is none of 200 to 599")?);
        }
        let response = cx.response();
        let names = response.head.fields.iter(response.buffer.bytes()).filter(|_| self.clears).map(|(name, _)| name);
        let cleared = names.filter(|name| !is_gateways(name)).filter_map(|name| std::str::from_utf8(name).ok());
        let cleared: Vec<FieldName> = cleared.filter_map(FieldName::new).collect();
        for name in &cleared {
            cx.remove_field(name);
        }
        for name in &self.delete_headers {
            cx.remove_field(&FieldName::new(name).ok_or(NO_NAME)?);
        }
        for (written, values) in self.set_headers.iter().filter(|(name, _)| !is_gateways(name.as_bytes())) {
            let name = FieldName::new(written).ok_or(NO_NAME)?;
            cx.remove_field(&name);
            for value in values {
                if !value.bytes().all(weir_wire::is_field_byte) {
                    return Err(NO_VALUE);
                }
                cx.add_field(&name, value.as_bytes());
            }
        }
        if let Some(body) = &self.body {
            cx.replace_body(body);
        }
        Ok(())
    }
}

/// Sends [`FAILED`] in the place of an answer that middleware could not change.
pub(super) fn refuse_answer(middleware: &str, reason: &str) -> Flow {
    tracing::warn!(middleware, reason, "middleware of answers failed: its request is answered 500");
    Flow::Abort(Failure::internal(FAILED))
}

impl Answer {
    /// True if it refuses a request, in the form of an error.
    pub(super) fn is_error(&self) -> bool {
        self.code >= 400 && !self.overrides_error
    }

    /// Sends it.
    pub(super) fn send(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(code) = u16::try_from(self.code).ok().filter(|code| (200..600).contains(code)) else {
            return body::error(cx, 500, FAILED, &[]);
        };
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let headers: Vec<(&str, &[u8])> = headers.collect();
        let is_sendable = |(name, value): &(&str, &[u8])| {
            FieldName::new(name).is_some() && value.iter().all(|byte| weir_wire::is_field_byte(*byte))
        };
        if !headers.iter().all(is_sendable) {
            return body::error(cx, 500, FAILED, &[]);
        }
        if self.is_error() {
            return body::error(cx, code, &self.text, &headers);
        }
        let mut answer = cx.reply(code);
        for (name, value) in headers {
            answer = answer.field(name, value);
        }
        answer.body(self.text.as_bytes()).done()
    }
}
