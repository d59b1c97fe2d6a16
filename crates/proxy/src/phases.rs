//! The way of one exchange through the plugins, independent of the protocol.

use weir_plugin::host::buffers::NO_ROOM;
use weir_plugin::host::{self, Exchange};
use weir_plugin::{Failure, Flow};
use weir_router::Query;
use weir_telemetry::metrics::Recorder;

use crate::chain::{Chain, Phase, Step, Walk};
use crate::snapshot::{Route, Snapshot};
use crate::upstream::Upstream;

/// Outcome of the request phases.
pub(crate) enum Verdict<'s> {
    /// The request goes to the chosen upstream, with this route.
    Forward(&'s Route),
    /// The answer is in [`Exchange::response`].
    Answered,
    /// The request begins anew at the route that is now the matched one.
    Rerouted,
    /// The request is refused.
    Failed(Failure),
    /// The step waits; [`Requests::resumed`] continues afterwards.
    Suspended(&'s Step),
    /// The step needs the whole request body; [`Requests::collected`] continues afterwards.
    AwaitsBody(&'s Step),
}

/// Progress of a request through the request phases.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Requests {
    stage: Stage,
    walk: Walk,
    /// True at a route that another one has led to.
    skips_global: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Start,
    GlobalRewrite,
    Rewrite,
    ConsumerRewrite,
    GlobalAccess,
    Access,
    Done,
}

/// Finds the route of a request.
///
/// # Errors
/// A condition of a route could not be decided, so nobody knows which route is the one.
pub(crate) fn find_route(x: &mut Exchange, snapshot: &Snapshot) -> Result<(), Failure> {
    x.matched = None;
    let Some(router) = &snapshot.tables.router else { return Ok(()) };
    let mut params = std::mem::take(&mut x.params);
    let query = Query {
        method: x.request.method_bytes(),
        host: x.request.host(),
        host_port: x.request.host_port(),
        path: x.request.path(),
        remote: x.client.addr,
        source: &*x,
    };
    let found = router.find(&query, &mut params);
    x.params = params;
    if weir_expr::take_undecided() {
        return Err(Failure::internal("condition of a route failed"));
    }
    x.matched = found;
    Ok(())
}

pub(crate) fn route<'s>(x: &Exchange, snapshot: &'s Snapshot) -> Option<&'s Route> {
    snapshot.routes.get(x.matched?.route)
}

/// The chains whose plugins see an exchange.
#[derive(Clone, Copy)]
struct Chains<'s> {
    global: &'s Chain,
    /// Empty where there is no route.
    route: &'s Chain,
    /// The consumer's over the route's, once it is known.
    consumer: Option<&'s Chain>,
}

impl<'s> Chains<'s> {
    fn of(x: &Exchange, snapshot: &'s Snapshot) -> Self {
        let route = chain_of(route(x, snapshot));
        Self { global: &snapshot.global, route, consumer: consumer_chain(x, snapshot) }
    }

    /// True if a plugin may have this phase.
    fn may_have(self, phase: Phase) -> bool {
        self.global.has(phase) || self.route.has(phase) || self.consumer.is_some()
    }
}

fn chain_of(route: Option<&Route>) -> &Chain {
    match route {
        Some(route) => &route.chain,
        None => Chain::nothing(),
    }
}

fn consumer_chain<'s>(x: &Exchange, snapshot: &'s Snapshot) -> Option<&'s Chain> {
    let who = x.consumer?;
    Some(snapshot.consumers.get(who.consumer)?.chain(who.credential, x.matched.map(|matched| matched.route)))
}

impl Requests {
    /// The phases of a request that was led to another route: global rules have run.
    pub(crate) fn rerouted() -> Self {
        Self { skips_global: true, ..Self::default() }
    }

    /// Runs the request phases until one plugin waits or all have run.
    pub(crate) fn run<'s>(
        &mut self,
        x: &mut Exchange,
        snapshot: &'s Snapshot,
        route: Option<&'s Route>,
    ) -> Verdict<'s> {
        let base = chain_of(route);
        let mut over = consumer_chain(x, snapshot);
        let mut consumer = x.consumer;
        loop {
            let step = match self.stage {
                Stage::Start => None,
                Stage::GlobalRewrite => self.walk.next(Phase::Rewrite, &snapshot.global, None),
                Stage::Rewrite => self.walk.next(Phase::Rewrite, base, None),
                Stage::ConsumerRewrite => over.and_then(|over| self.walk.next_only_over(Phase::Rewrite, base, over)),
                Stage::GlobalAccess => self.walk.next(Phase::Access, &snapshot.global, None),
                Stage::Access => self.walk.next(Phase::Access, base, over),
                Stage::Done => break,
            };
            let Some(step) = step else {
                if x.consumer != consumer {
                    consumer = x.consumer;
                    over = consumer_chain(x, snapshot);
                }
                self.next_stage(&snapshot.global, base, over);
                continue;
            };
            if step.reads_body && x.request.may_have_values() {
                return Verdict::AwaitsBody(step);
            }
            if !step.applies(x) {
                continue;
            }
            if let Some(verdict) = self.call(step, x) {
                return verdict;
            }
        }
        match route {
            Some(route) => Verdict::Forward(route),
            None => {
                let mut cx = host::request(x);
                let answer = cx.reply(404).field("Content-Type", b"text/plain; charset=utf-8");
                let _ = answer.body(b"{\"error_msg\":\"404 Route Not Found\"}\n").done();
                Verdict::Answered
            }
        }
    }

    fn call<'s>(&self, step: &'s Step, x: &mut Exchange) -> Option<Verdict<'s>> {
        let flow = if self.is_rewrite() {
            step.plugin.rewrite(&mut host::request(x))
        } else {
            step.plugin.access(&mut host::request(x))
        };
        if step.reads_body && x.request.lacks_room_for_values() {
            return Some(Verdict::Failed(NO_ROOM));
        }
        self.judge(flow, step, x)
    }

    /// Continues with the plugin that needed the request body, for itself or for variables of the body, once the body
    /// is complete; `None`: [`Requests::run`] continues.
    pub(crate) fn collected<'s>(&self, step: &'s Step, x: &mut Exchange) -> Option<Verdict<'s>> {
        if !step.applies(x) {
            return x.request.lacks_room_for_values().then_some(Verdict::Failed(NO_ROOM));
        }
        self.call(step, x)
    }

    /// Takes what a suspended plugin came to; `None`: [`Requests::run`] goes on.
    pub(crate) fn resumed<'s>(&self, flow: Flow, step: &'s Step, x: &mut Exchange) -> Option<Verdict<'s>> {
        match flow {
            Flow::Suspend => Some(Verdict::Failed(Failure::internal("plugin suspended twice"))),
            _ => self.judge(flow, step, x),
        }
    }

    fn judge<'s>(&self, flow: Flow, step: &'s Step, x: &mut Exchange) -> Option<Verdict<'s>> {
        match flow {
            Flow::Continue => None,
            Flow::Respond(_) => {
                if let Some(body) = step.meta.as_ref().and_then(|m| m.error_response.as_ref())
                    && x.response.status() >= 400
                {
                    x.response.body.clear();
                    x.response.body.extend_from_slice(body);
                    x.response.head.fields.set_str(b"", b"Content-Type", b"text/plain; charset=utf-8");
                }
                Some(Verdict::Answered)
            }
            Flow::Suspend => Some(Verdict::Suspended(step)),
            Flow::AwaitBody if x.request.body().is_some() => {
                Some(Verdict::Failed(Failure::internal("plugin asked for a body that it has")))
            }
            Flow::AwaitBody => Some(Verdict::AwaitsBody(step)),
            Flow::Reroute(_) => Some(Verdict::Rerouted),
            Flow::Abort(failure) => Some(Verdict::Failed(failure)),
        }
    }

    fn is_rewrite(self) -> bool {
        matches!(self.stage, Stage::GlobalRewrite | Stage::Rewrite | Stage::ConsumerRewrite)
    }

    /// Goes on to the next stage in which there may be something to run.
    fn next_stage(&mut self, global: &Chain, base: &Chain, over: Option<&Chain>) {
        self.walk = Walk::default();
        let has_global = |phase| !self.skips_global && global.has(phase);
        loop {
            let (next, runs) = match self.stage {
                Stage::Start => (Stage::GlobalRewrite, has_global(Phase::Rewrite)),
                Stage::GlobalRewrite => (Stage::Rewrite, base.has(Phase::Rewrite)),
                Stage::Rewrite => (Stage::ConsumerRewrite, over.is_some()),
                Stage::ConsumerRewrite => (Stage::GlobalAccess, has_global(Phase::Access)),
                Stage::GlobalAccess => (Stage::Access, base.has(Phase::Access) || over.is_some()),
                Stage::Access | Stage::Done => (Stage::Done, true),
            };
            self.stage = next;
            if runs {
                return;
            }
        }
    }
}

/// True if a plugin of a later phase, or the choice of a node, reads variables of the request body.
pub(crate) fn reads_body(x: &Exchange, snapshot: &Snapshot, upstream: &Upstream) -> bool {
    let Chains { global, route, consumer } = Chains::of(x, snapshot);
    upstream.reads_body || global.reads_body() || route.reads_body() || consumer.is_some_and(Chain::reads_body)
}

/// Calls `run` for every step of a phase, global rules first, until it refuses.
fn each(
    phase: Phase,
    x: &mut Exchange,
    chains: Chains<'_>,
    mut run: impl FnMut(&Step, &mut Exchange) -> Flow,
) -> Result<(), Failure> {
    if !chains.may_have(phase) {
        return Ok(());
    }
    let Chains { global, route, consumer } = chains;
    for (base, over, is_global) in [(global, None, true), (route, consumer, false)] {
        if over.is_none() && !base.has(phase) {
            continue;
        }
        let mut walk = Walk::default();
        while let Some(step) = walk.next(phase, base, over) {
            let stands_back = is_global && step.prefers_route && route.runs(step.kind);
            if !stands_back
                && step.applies(x)
                && let Flow::Abort(failure) = run(step, x)
            {
                return Err(failure);
            }
        }
    }
    Ok(())
}

/// Before each try at a node.
pub(crate) fn before_upstream(x: &mut Exchange, snapshot: &Snapshot) -> Result<(), Failure> {
    each(Phase::Upstream, x, Chains::of(x, snapshot), |step, x| {
        step.plugin.upstream_request(&mut host::upstream_request(x))
    })
}

/// A piece of the request body; `begins` with the first one of an attempt.
pub(crate) fn on_request_body(
    x: &mut Exchange,
    snapshot: &Snapshot,
    piece: &mut Vec<u8>,
    begins: bool,
    last: bool,
) -> Result<(), Failure> {
    each(Phase::RequestBody, x, Chains::of(x, snapshot), |step, x| {
        step.plugin.request_body(&mut host::request_body(x, begins), piece, last)
    })
}

/// The thing that the response phases wait for.
pub(crate) enum Pause<'s> {
    /// The plugin waits; [`Responses::judge`] continues afterwards.
    Plugin(&'s Step),
    /// The plugin needs the whole body; [`Responses::collected`] continues afterwards.
    Body(&'s Step),
}

/// Progress of an exchange through the response phases: `response` of all plugins, then `encode`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Responses {
    encodes: bool,
    /// True when the global rules are through.
    on_route: bool,
    walk: Walk,
}

impl Responses {
    /// Begins when the head of the answer is known: fields set before are laid over it.
    pub(crate) fn begin(x: &mut Exchange) -> Self {
        let Exchange { early_fields, response, .. } = &mut *x;
        response.head.fields.take_over(response.buffer.bytes(), early_fields);
        Self::default()
    }

    /// Lets the plugins see the head, until one has to wait: [`Responses::run`] goes on behind it.
    pub(crate) fn run<'s>(&mut self, x: &mut Exchange, snapshot: &'s Snapshot) -> Result<Option<Pause<'s>>, Failure> {
        let chains = Chains::of(x, snapshot);
        if !chains.may_have(Phase::Response) && !chains.may_have(Phase::Encode) {
            return Ok(None);
        }
        loop {
            let phase = if self.encodes { Phase::Encode } else { Phase::Response };
            let (base, over) = if self.on_route { (chains.route, chains.consumer) } else { (chains.global, None) };
            while let Some(step) = self.walk.next(phase, base, over) {
                let stands_back = !self.on_route && step.prefers_route && chains.route.runs(step.kind);
                if stands_back || !step.applies(x) {
                    continue;
                }
                if self.encodes {
                    if let Flow::Abort(failure) = step.plugin.encode(&mut host::response(x)) {
                        return Err(failure);
                    }
                    continue;
                }
                let flow = step.plugin.response(&mut host::response(x));
                if let Some(pause) = Self::judge(flow, step, x)? {
                    return Ok(Some(pause));
                }
            }
            self.walk = Walk::default();
            match (self.encodes, self.on_route) {
                (true, true) => return Ok(None),
                (encodes, on_route) => (self.encodes, self.on_route) = (encodes || on_route, !on_route),
            }
        }
    }
}

impl Responses {
    /// Continues with the plugin that needed the body, once it is complete.
    pub(crate) fn collected<'s>(step: &'s Step, x: &mut Exchange) -> Result<Option<Pause<'s>>, Failure> {
        let flow = step.plugin.response(&mut host::response(x));
        Self::judge(flow, step, x)
    }

    /// Takes what a plugin came to; `None`: [`Responses::run`] goes on.
    pub(crate) fn judge<'s>(flow: Flow, step: &'s Step, x: &mut Exchange) -> Result<Option<Pause<'s>>, Failure> {
        match flow {
            Flow::Continue | Flow::Respond(_) | Flow::Reroute(_) => Ok(None),
            Flow::Suspend => Ok(Some(Pause::Plugin(step))),
            Flow::AwaitBody if host::response(x).body().is_some() => {
                Err(Failure::internal("plugin asked for a body that it has"))
            }
            Flow::AwaitBody => Ok(Some(Pause::Body(step))),
            Flow::Abort(failure) => Err(failure),
        }
    }
}

/// A piece of the response body; its content coding comes last.
pub(crate) fn on_body(x: &mut Exchange, snapshot: &Snapshot, chunk: &mut Vec<u8>, last: bool) -> Result<(), Failure> {
    each(Phase::Body, x, Chains::of(x, snapshot), |step, x| step.plugin.body(&mut host::body(x), chunk, last))?;
    x.response.encode(chunk, last)
}

/// True if a plugin sees the exchange after its end.
pub(crate) fn has_log(x: &Exchange, snapshot: &Snapshot, route: Option<&Route>) -> bool {
    let logs = snapshot.global.has(Phase::Log) || route.is_some_and(|r| r.logs);
    logs || consumer_chain(x, snapshot).is_some_and(|c| c.has(Phase::Log))
}

/// After the end of an exchange.
pub(crate) fn on_log(x: &mut Exchange, snapshot: &Snapshot, recorder: &Recorder) {
    // Nothing is refused any more.
    let _ = each(Phase::Log, x, Chains::of(x, snapshot), |step, x| {
        step.plugin.before_log(&mut host::request(x));
        step.plugin.log(&host::log(x, recorder));
        Flow::Continue
    });
}
