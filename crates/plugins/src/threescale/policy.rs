//! Policies: the links of a chain.

use weir_plugin::{Flow, Io, LocalFuture, LogCx, RequestCx, ResponseCx};

use super::parts::Parts;
use super::state::State;
use crate::traffic::proxy_cache::Caching;

/// A phase of a request. All policies run for one phase before the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Rewrite,
    Access,
    Content,
}

/// Continuation after a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The next policy.
    Next,
    /// The next phase.
    EndPhase,
    /// The request is decided: answered, or on its way to an upstream; or the policy has to wait.
    Done(Flow),
}

/// A policy. The defaults do nothing.
pub(super) trait Policy: Send + Sync + std::fmt::Debug {
    /// Changes the request, and finds out who calls.
    fn rewrite(&self, _parts: &Parts, _cx: &mut RequestCx<'_>, _state: &mut State) -> Step {
        Step::Next
    }

    /// Decides whether the request may pass.
    fn access(&self, _parts: &Parts, _cx: &mut RequestCx<'_>, _state: &mut State) -> Step {
        Step::Next
    }

    /// Sends the request to an upstream, or answers it.
    fn content(&self, _parts: &Parts, _cx: &mut RequestCx<'_>, _state: &mut State) -> Step {
        Step::Next
    }

    /// Goes on where a hook returned [`Flow::Suspend`].
    fn wait<'a>(
        &'a self,
        _parts: &'a Parts,
        cx: &'a mut RequestCx<'_>,
        _state: &'a mut State,
        _io: &'a dyn Io,
        _phase: Phase,
    ) -> LocalFuture<'a, Step> {
        let flow = cx.fail(500, "3scale: a policy waits for nothing");
        Box::pin(std::future::ready(Step::Done(flow)))
    }

    /// True if [`Policy::cache`] may have one.
    fn has_cache(&self) -> bool {
        false
    }

    /// The cache of one of its rules.
    fn cache(&self, _rule: usize) -> Option<&Caching> {
        None
    }

    /// True if [`Policy::response`] does something.
    fn has_response(&self) -> bool {
        false
    }

    /// Changes the response.
    fn response(&self, _parts: &Parts, _cx: &mut ResponseCx<'_>, _state: &mut State) {}

    /// True if [`Policy::log`] does something.
    fn has_log(&self) -> bool {
        false
    }

    /// Looks at the exchange that is over.
    fn log(&self, _parts: &Parts, _cx: &LogCx<'_>, _state: &State) {}
}
