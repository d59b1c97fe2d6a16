//! The chain of a service: its policies in their order, by phases.

use weir_plugin::{BodyCx, Flow, HookCx, Io, LocalFuture, LogCx, PerRequest, Phases, Plugin, RequestCx, ResponseCx};

use super::parts::Parts;
use super::policies::Link;
use super::policy::{Phase, Step};
use super::state::{Kept, State};
use super::text::Around;
use crate::traffic::proxy_cache::Caching;

/// An instance.
#[derive(Debug)]
pub(super) struct Chain {
    parts: Parts,
    links: Box<[Link]>,
    place: PerRequest<Kept>,
    has_log: bool,
    has_cache: bool,
}

/// The phases in their order.
const PHASES: [Phase; 3] = [Phase::Rewrite, Phase::Access, Phase::Content];

impl Chain {
    pub(super) fn new(parts: Parts, links: Vec<Link>) -> Self {
        let has_log = links.iter().any(|link| link.policy.has_log());
        let has_cache = links.iter().any(|link| link.policy.has_cache());
        Self { parts, links: links.into(), place: PerRequest::new(), has_log, has_cache }
    }

    /// Runs the policies from the position of the state on.
    fn run(&self, cx: &mut RequestCx<'_>, state: &mut State) -> Flow {
        let count = self.links.len().max(1);
        while let Some(phase) = PHASES.get(state.position / count) {
            let step = match self.links.get(state.position % count).filter(|link| self.applies(link, cx, state)) {
                None => Step::Next,
                Some(link) => match phase {
                    Phase::Rewrite => link.policy.rewrite(&self.parts, cx, state),
                    Phase::Access => link.policy.access(&self.parts, cx, state),
                    Phase::Content => link.policy.content(&self.parts, cx, state),
                },
            };
            match self.go_on(step, state) {
                None => {}
                Some(Flow::Continue) if *phase == Phase::Content => return self.look_up(cx, state),
                Some(flow) => return flow,
            }
        }
        // No policy has sent the request anywhere.
        cx.reply(404).field("Content-Type", b"text/plain; charset=utf-8").done()
    }

    /// Moves the position on; `Some` when the request is decided, or has to wait.
    fn go_on(&self, step: Step, state: &mut State) -> Option<Flow> {
        let count = self.links.len().max(1);
        match step {
            Step::Next => state.position += 1,
            Step::EndPhase => state.position = (state.position / count + 1) * count,
            Step::Done(flow) => return Some(flow),
        }
        None
    }

    /// The cache for a request that is about to be sent, or for its answer.
    fn cache(&self, state: &State) -> Option<&Caching> {
        let (policy, rule) = state.cached_by?;
        self.links.get(policy)?.policy.cache(rule)
    }

    /// Answers a request out of a cache, where a policy has chosen one and it has the answer.
    fn look_up(&self, cx: &mut RequestCx<'_>, state: &State) -> Flow {
        // Clients may not empty the cache.
        match self.cache(state).filter(|_| cx.request().method_bytes() != b"PURGE") {
            Some(cache) => cache.access(cx),
            None => Flow::Continue,
        }
    }

    fn applies(&self, link: &Link, cx: &impl HookCx, state: &State) -> bool {
        link.conditions.is_empty() || {
            let around = Around { view: cx.view(), state, names: &self.parts.names };
            link.conditions.iter().all(|condition| condition.holds(&around))
        }
    }
}

impl Plugin for Chain {
    fn phases(&self, declared: Phases) -> Phases {
        let declared = if self.has_log { declared } else { declared.without(Phases::LOG) };
        if self.has_cache { declared } else { declared.without(Phases::BODY) }
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut state = self.place.take(cx).unwrap_or_else(Kept::take);
        let flow = self.run(cx, &mut state);
        self.place.put(cx, state);
        flow
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some(mut state) = self.place.take(cx) else { return cx.fail(500, "3scale: a request without a state") };
            let count = self.links.len().max(1);
            let flow = loop {
                let phase = PHASES.get(state.position / count).copied().unwrap_or(Phase::Content);
                let Some(link) = self.links.get(state.position % count) else {
                    break cx.fail(500, "3scale: no policy waits");
                };
                let step = link.policy.wait(&self.parts, cx, &mut state, io, phase).await;
                match self.go_on(step, &mut state) {
                    None => {}
                    Some(Flow::Continue) if phase == Phase::Content => break self.look_up(cx, &state),
                    Some(flow) => break flow,
                }
                match self.run(cx, &mut state) {
                    Flow::Suspend => {}
                    flow => break flow,
                }
            };
            self.place.put(cx, state);
            flow
        })
    }

    fn wait_limit(&self) -> Option<std::time::Duration> {
        // Questions end by their own timeouts, and delays are those of the configuration.
        Some(std::time::Duration::MAX)
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        for field in &self.parts.fields.foreign {
            cx.remove_field(field);
        }
        let Some(mut state) = self.place.take(cx) else { return Flow::Continue };
        for link in &self.links {
            if link.policy.has_response() && self.applies(link, cx, &state) {
                link.policy.response(&self.parts, cx, &mut state);
            }
        }
        if let Some(cache) = self.cache(&state) {
            let _ = cache.response(cx);
        }
        self.place.put(cx, state);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        let cache = self.place.get(cx).and_then(|state| self.cache(state));
        cache.map_or(Flow::Continue, |cache| cache.body(cx, piece, last))
    }

    fn log(&self, cx: &LogCx<'_>) {
        let Some(state) = self.place.get(cx) else { return };
        for link in &self.links {
            if link.policy.has_log() && self.applies(link, cx, state) {
                link.policy.log(&self.parts, cx, state);
            }
        }
    }
}
