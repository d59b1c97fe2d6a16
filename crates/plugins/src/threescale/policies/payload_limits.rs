//! `payload_limits`: bytes of requests and responses.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, Flow, RequestCx, ResponseCx};
use weir_wire::head::Content;
use weir_wire::name::FieldName;

use super::{DraftLink, read};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Conf {
    request: u64,
    response: u64,
}

/// The policy. 0: no limit.
#[derive(Debug)]
struct Limits {
    request: u64,
    response: u64,
    content_type: FieldName,
    content_encoding: FieldName,
}

const TEXT: &[u8] = b"Payload Too Large";

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let Conf { request, response } = read::<Conf>(conf, field, cx)?;
    let name = FieldName::constant;
    let (content_type, content_encoding) = (name("Content-Type"), name("Content-Encoding"));
    Some(DraftLink::of(Limits { request, response, content_type, content_encoding }))
}

impl Policy for Limits {
    fn access(&self, _: &Parts, cx: &mut RequestCx<'_>, _: &mut State) -> Step {
        if self.request == 0 {
            return Step::Next;
        }
        // A body that came whole already, or whose length is announced, is known; any other one is cut off on its way.
        let length = match (cx.request().body(), cx.request().head.content) {
            (Some(body), _) => body.len() as u64,
            (None, Content::Length(length)) => length,
            (None, _) => 0,
        };
        if length > self.request {
            let body = [TEXT, b"\n"].concat();
            return Step::Done(cx.reply(413).field("Content-Type", b"text/plain; charset=utf-8").body(&body).done());
        }
        match cx.limit_body(self.request) {
            Flow::Continue => Step::Next,
            flow => Step::Done(flow),
        }
    }

    fn has_response(&self) -> bool {
        self.response > 0
    }

    fn response(&self, _: &Parts, cx: &mut ResponseCx<'_>, _: &mut State) {
        let length = cx.response().field_str("content-length").and_then(|text| std::str::from_utf8(text).ok());
        if length.and_then(|text| text.parse::<u64>().ok()).is_some_and(|length| length > self.response) {
            cx.set_status(413);
            cx.remove_field(&self.content_encoding);
            cx.set_field(&self.content_type, b"text/plain; charset=utf-8");
            cx.replace_body(TEXT);
        }
    }
}
