//! Changes that middleware of one's own makes to a request, and its answers in place of the upstream's.

use std::collections::BTreeMap;

use weir_plugin::{Flow, Request, RequestCx};
use weir_wire::name::FieldName;

use super::body;

/// The answer where middleware fails: its faults are told in the log.
pub(super) const FAILED: &str = "Middleware error";

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
        const NO_NAME: &str = "a header has no valid name";
        for name in &self.delete_headers {
            cx.request_mut().remove_field(&FieldName::new(name).ok_or(NO_NAME)?);
        }
        for (name, value) in &self.set_headers {
            let name = FieldName::new(name).ok_or(NO_NAME)?;
            if !value.bytes().all(weir_wire::is_field_byte) {
                return Err("a header has control characters in its value");
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
