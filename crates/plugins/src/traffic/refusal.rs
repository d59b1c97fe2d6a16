//! Verdicts of limits, and the answers of limiters to them.

use weir_plugin::{Flow, RequestCx};

use crate::rejection;

/// Verdict of a limit on a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    Passed,
    /// The request passes, but late.
    Waits,
    /// The rule does not concern the request.
    Skipped,
    Rejected,
    /// The request could not be counted.
    Failed(&'static str),
}

/// Verdicts of the limits so far.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// One of them concerns the request.
    pub(crate) asked: bool,
    /// One of them makes it wait.
    pub(crate) waits: bool,
}

/// Answers of a limiter to requests that do not pass.
#[derive(Debug)]
pub(crate) struct Refusal {
    code: u16,
    body: Vec<u8>,
    /// Requests that cannot be counted pass.
    degrades: bool,
}

impl Refusal {
    /// Rejects with this status, and this text in the body.
    pub(crate) fn new(code: u16, message: Option<&str>, degrades: bool) -> Self {
        Self { code, body: rejection::error_msg(code, message), degrades }
    }

    /// The consequence of a verdict; `None`: the next limit is asked.
    pub(crate) fn conclude(&self, verdict: Verdict, told: &mut Told, cx: &mut RequestCx<'_>) -> Option<Flow> {
        match verdict {
            Verdict::Passed => told.asked = true,
            Verdict::Waits => *told = Told { asked: true, waits: true },
            Verdict::Skipped => {}
            Verdict::Rejected => return Some(self.reject(cx)),
            Verdict::Failed(reason) => return Some(self.fail(cx, reason)),
        }
        None
    }

    /// Answers a request over a limit.
    pub(crate) fn reject(&self, cx: &mut RequestCx<'_>) -> Flow {
        cx.reply(self.code).field("Content-Type", b"text/plain; charset=utf-8").body(&self.body).done()
    }

    /// Ends with a request that could not be counted.
    pub(crate) fn fail(&self, cx: &RequestCx<'_>, reason: &'static str) -> Flow {
        if self.degrades { Flow::Continue } else { cx.fail(500, reason) }
    }
}
