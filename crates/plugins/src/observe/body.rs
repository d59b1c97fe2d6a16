//! The bodies that loggers report: so much of each as the configuration asks for.

use weir_expr::Expr;
use weir_plugin::{BodyCx, Flow, LogCx, Mark, RequestCx, ResponseCx};
use weir_wire::head::Content;

use super::entry::Bodies;

/// Bodies of requests or responses that stand in the entries.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Bytes of a body that are reported.
    pub(crate) most: usize,
    /// Only where this holds.
    pub(crate) when: Option<Expr>,
}

/// What of an exchange's bodies stands in its entry.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) request: Option<Wanted>,
    pub(crate) response: Option<Wanted>,
    pub(crate) mark: Mark,
}

impl Capture {
    /// Asks for the body of a request that is known to be no longer than what is reported.
    pub(crate) fn on_request(&self, cx: &RequestCx<'_>) -> Flow {
        let Some(wanted) = &self.request else { return Flow::Continue };
        match cx.request().head.content {
            Content::Length(length) if length <= wanted.most as u64 && cx.body().is_none() => Flow::AwaitBody,
            _ => Flow::Continue,
        }
    }

    pub(crate) fn on_response(&self, cx: &mut ResponseCx<'_>) {
        if let Some(wanted) = &self.response
            && wanted.when.as_ref().is_none_or(|when| when.eval(cx.source()))
        {
            cx.filter_body(false);
            cx.put_state(self.mark, Vec::<u8>::new());
        }
    }

    pub(crate) fn on_body(&self, cx: &mut BodyCx<'_>, piece: &[u8]) {
        if let (Some(wanted), Some(body)) = (&self.response, cx.state::<Vec<u8>>(self.mark)) {
            let room = wanted.most.saturating_sub(body.len());
            body.extend_from_slice(piece.get(..room).unwrap_or(piece));
        }
    }

    /// The bodies, when the exchange is over.
    pub(crate) fn bodies<'x>(&self, cx: &LogCx<'x>) -> Bodies<'x> {
        let holds = |wanted: &&Wanted| wanted.when.as_ref().is_none_or(|when| when.eval(cx.exchange));
        let request = self.request.as_ref().filter(holds).and_then(|wanted| {
            let body = cx.exchange.request.body().filter(|body| !body.is_empty())?;
            Some(body.get(..wanted.most).unwrap_or(body))
        });
        let response = cx.state::<Vec<u8>>(self.mark).map(Vec::as_slice);
        Bodies { request, response }
    }
}
