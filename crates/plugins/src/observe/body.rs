//! The bodies that loggers report: so much of each as the configuration asks for.

use weir_expr::Expr;
use weir_plugin::{BodyCx, Flow, HookCx, LogCx, PerRequest, RequestBodyCx, RequestCx, ResponseCx};
use weir_wire::head::Content;

use super::entry::Bodies;

/// Bodies of requests or responses that stand in the entries.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Bytes of a body that are reported.
    pub(crate) most: usize,
    /// Only where this holds.
    pub(crate) when: Option<Expr>,
    /// The bytes that are kept as they pass.
    pub(crate) kept: PerRequest<Vec<u8>>,
}

impl Wanted {
    /// Keeps so much of a piece as is reported.
    fn keep(&self, body: &mut Vec<u8>, piece: &[u8]) {
        let room = self.most.saturating_sub(body.len());
        body.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }
}

/// The parts of an exchange's bodies that stand in its entry.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) request: Option<Wanted>,
    pub(crate) response: Option<Wanted>,
}

impl Capture {
    /// Asks for the body of a request that is known to be no longer than what is reported, and to see one of unknown
    /// length as it goes up.
    pub(crate) fn on_request(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(wanted) = self.request.as_ref().filter(|_| cx.body().is_none()) else { return Flow::Continue };
        match cx.request().head.content {
            Content::Length(length) if length <= wanted.most as u64 => return Flow::AwaitBody,
            Content::Unknown => {
                cx.filter_body();
                wanted.kept.put(cx, Vec::new());
            }
            _ => {}
        }
        Flow::Continue
    }

    pub(crate) fn on_request_body(&self, cx: &mut RequestBodyCx<'_>, piece: &[u8]) {
        let Some(wanted) = &self.request else { return };
        let begins = cx.begins();
        if let Some(body) = wanted.kept.get_mut(cx) {
            if begins {
                body.clear();
            }
            wanted.keep(body, piece);
        }
    }

    pub(crate) fn on_response(&self, cx: &mut ResponseCx<'_>) {
        let Some(wanted) = &self.response else { return };
        if wanted.when.as_ref().is_none_or(|when| when.eval(cx.source())) {
            cx.filter_body(false);
            wanted.kept.put(cx, Vec::new());
        } else {
            // Of an answer in whose place this one is.
            wanted.kept.take(cx);
        }
    }

    pub(crate) fn on_body(&self, cx: &mut BodyCx<'_>, piece: &[u8]) {
        if let Some(wanted) = &self.response
            && let Some(body) = wanted.kept.get_mut(cx)
        {
            wanted.keep(body, piece);
        }
    }

    /// The bodies, when the exchange is over.
    pub(crate) fn bodies<'x>(&self, cx: &'x LogCx<'_>) -> Bodies<'x> {
        let holds = |wanted: &&Wanted| wanted.when.as_ref().is_none_or(|when| when.eval(cx.source()));
        let request = self.request.as_ref().filter(holds).and_then(|wanted| {
            let request = cx.view().request();
            let kept = wanted.kept.get(cx).map(Vec::as_slice).filter(|_| !request.is_body_masked());
            let body = request.body().or(kept)?;
            Some(body.get(..wanted.most).unwrap_or(body)).filter(|body| !body.is_empty())
        });
        let response = self.response.as_ref().and_then(|wanted| wanted.kept.get(cx));
        let response = response.map(Vec::as_slice);
        Bodies { request, response }
    }
}
