//! A stream from its first byte to its last, whatever carries it.

use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::host::{self, Exchange, StreamInfo};
use weir_plugin::{Client, Failure, Flow, Origin, Side, Try};
use weir_router::Match;
use weir_telemetry::metrics::{StreamSample, UpstreamState};

use super::table::{StreamRoute, Transport};
use crate::chain::{Phase, Step, Walk};
use crate::downstream::Presence;
use crate::exchange::{Attempt, AttemptError, Runner};
use crate::snapshot::Local;
use crate::upstream::Upstream;
use crate::upstream::aside::watch as aside;
use crate::upstream::endpoint::Choice;
use crate::upstream::outgoing::Outgoing;
use crate::worker::Worker;

/// Statuses of streams, as nginx has them.
const DONE: u16 = 200;
const NO_ROUTE: u16 = 404;

/// The client's side of a stream, and what is particular to what carries it.
pub(super) trait Carrier: Presence + Sized {
    /// A way to a node.
    type Node;

    const TRANSPORT: Transport;

    /// Opens a way to an address of a node.
    async fn connect(
        runner: &Runner<Self>,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        choice: Choice,
    ) -> Result<Self::Node, AttemptError>;

    /// Waits for more of what the client sends first, and adds it to [`StreamInfo::first`].
    async fn read_first(session: &mut Session<Self>) -> Result<(), Failure>;

    /// Carries both ways until the stream has ended.
    async fn relay(session: &mut Session<Self>, upstream: &Upstream, node: Self::Node) -> Result<(), Failure>;
}

pub(super) struct Session<P> {
    pub(super) runner: Runner<P>,
    pub(super) x: Box<Exchange>,
    local: Rc<Local>,
    sni: Option<Box<str>>,
}

impl<P: Carrier> Session<P> {
    pub(super) fn new(peer: P, client: Client, sni: Option<Box<str>>, local: Rc<Local>, worker: Rc<Worker>) -> Self {
        // A fresh one: what a pooled one has of somebody's request must not be seen by plugins and logs.
        let mut x = Box::<Exchange>::default();
        let now = worker.clock.refresh();
        x.client = client;
        (x.times.start, x.times.now, x.times.unix_ms) = (now, now, worker.clock.unix_ms());
        x.timed = true;
        // With TLS to a node it is the name that is asked for.
        x.request.upstream.host.extend_from_slice(sni.as_deref().unwrap_or_default().as_bytes());
        x.tables = Some(Rc::new(Arc::clone(&local.snapshot.streams.tables)));
        x.stream =
            Some(Box::new(StreamInfo { protocol: P::TRANSPORT.name(), sni: sni.clone(), ..StreamInfo::default() }));
        Self { runner: Runner::new(peer, worker), x, local, sni }
    }

    pub(super) async fn run(mut self) {
        let local = Rc::clone(&self.local);
        let streams = &local.snapshot.streams;
        let found = streams.find(&self.x.client, self.sni.as_deref(), P::TRANSPORT);
        let route = found.and_then(|at| streams.routes.get(at as usize));
        self.x.matched = found.map(|route| Match { route, path: 0, host: None });
        self.runner.worker.recorder.stream_opened();
        match route {
            _ if local.snapshot.refuses_all => self.end(503),
            None => self.end(NO_ROUTE),
            Some(route) => match self.serve(route).await {
                Ok(()) => self.end(DONE),
                Err(failure) => {
                    self.x.response.origin = Origin::Failed(failure);
                    self.end(failure.status);
                }
            },
        }
        self.log(route);
    }

    fn end(&mut self, status: u16) {
        if self.x.response.status() == 0 {
            self.x.response.head.status = status;
        }
    }

    async fn serve(&mut self, route: &StreamRoute) -> Result<(), Failure> {
        if !self.plugins(route).await? {
            return Ok(());
        }
        let local = Rc::clone(&self.local);
        let number = self.x.upstream.chosen.or(route.upstream);
        let number =
            number.ok_or(Failure { side: Side::Gateway, ..Failure::upstream(503, "stream route has no upstream") })?;
        let upstream = local.snapshot.upstreams.get(number);
        let upstream = upstream.ok_or(Failure::internal("the upstream of the stream route is not there"))?;
        if !P::TRANSPORT.is_for(upstream.scheme) {
            return Err(Failure::internal("the upstream that a plugin has chosen is for another protocol"));
        }
        let node = self.connect(upstream).await?;
        // The values that plugins and logs read stay, the buffers go.
        self.x.request.buffer.shrink(0);
        self.x.response.buffer.shrink(0);
        let turn = self.x.upstream.tried.last().and_then(|turn| upstream.nodes.get(usize::from(*turn)));
        let _active = turn.and_then(|node| upstream.begin(node));
        let ended = P::relay(self, upstream, node).await;
        self.x.times.upstream_end = self.runner.worker.clock.refresh();
        self.runner.worker.recorder.upstream_closed(UpstreamState::Active);
        ended
    }

    /// Runs the plugins; false when one of them has refused the stream.
    async fn plugins(&mut self, route: &StreamRoute) -> Result<bool, Failure> {
        let mut walk = Walk::default();
        while let Some(step) = walk.next(Phase::Access, &route.chain, None) {
            if !step.applies(&mut self.x) {
                continue;
            }
            loop {
                let flow = match step.plugin.access(&mut host::request(&mut self.x)) {
                    Flow::Suspend => self.wait(step).await?,
                    flow => flow,
                };
                match flow {
                    Flow::Continue => break,
                    Flow::Respond(_) => return Ok(false),
                    Flow::Abort(failure) => return Err(failure),
                    Flow::AwaitBody => P::read_first(self).await?,
                    Flow::Suspend | Flow::Reroute(_) => {
                        return Err(Failure::internal("plugin wants what no stream has"));
                    }
                }
            }
        }
        Ok(true)
    }

    async fn wait(&mut self, step: &Step) -> Result<Flow, Failure> {
        let local = Rc::clone(&self.local);
        self.runner.wait_for_request(&mut self.x, step, &local).await
    }

    /// Connects to a node of the upstream, or to several in turn.
    async fn connect(&mut self, upstream: &Upstream) -> Result<P::Node, Failure> {
        let Self { runner, x, local, .. } = self;
        let timeouts = upstream.timeouts;
        let give_up = runner.timer.now().saturating_add(upstream.retry_ms);
        let mut failure = Failure { side: Side::Gateway, ..Failure::upstream(503, "upstream has no node") };
        x.times.upstream_start = x.times.now;
        while let Some(turn) = upstream.pick(x, runner.timer.now()) {
            let Some(node) = upstream.nodes.get(usize::from(turn)) else { break };
            x.upstream.tried.push(turn);
            let begin = runner.worker.clock.refresh();
            x.upstream.tries.push(Try { addr: None, status: 0, begin, connected: 0, head: 0, end: 0 });
            let attempt = Attempt { local, upstream, node, timeouts, outgoing: Outgoing::Subrequest };
            let connected = match node.choose(runner.timer.now()) {
                Some(choice) => P::connect(runner, x, &attempt, choice).await,
                None => Err(AttemptError::failed(Failure::upstream(502, "node name has no address"))),
            };
            x.times.now = runner.worker.clock.refresh();
            let took = x.times.now - begin;
            let error = match connected {
                Ok(stream) => {
                    // Over UDP the first answer shows that a node is there.
                    if P::TRANSPORT == Transport::Tcp {
                        aside::clear(&runner.worker, &node.endpoint);
                    }
                    if let Some(attempt) = x.upstream.tries.last_mut() {
                        (attempt.status, attempt.connected, attempt.end) = (DONE, took, took);
                    }
                    upstream.observe_latency(node, x, false);
                    return Ok(stream);
                }
                Err(error) => error,
            };
            failure = error.failure;
            if let Some(attempt) = x.upstream.tries.last_mut() {
                (attempt.status, attempt.end) = (failure.status, took);
            }
            if failure.side == Side::Upstream {
                upstream.observe_latency(node, x, true);
            }
            if error.unreachable && upstream.nodes.len() > 1 {
                aside::set(&runner.worker, &node.endpoint, failure.reason, timeouts.connect);
            }
            let spent = x.upstream.tried.len() > upstream.retries as usize || runner.timer.now() >= give_up;
            if !error.retryable || spent {
                break;
            }
        }
        tracing::info!(client = %x.client.addr_text, reason = failure.reason, "stream not connected to a node");
        Err(failure)
    }

    /// Ends what plugins hold, and tells logs and metrics.
    fn log(&mut self, route: Option<&StreamRoute>) {
        let Self { runner, x, .. } = self;
        let worker = &runner.worker;
        x.end();
        x.times.now = worker.clock.refresh();
        x.prepare_log();
        let label = x.route().map(|route| worker.recorder.labels().lazy(&route.id.label, || &route.id.text));
        let sample = StreamSample { status: x.response.status(), received: x.received, sent: x.sent };
        worker.recorder.stream_closed(label, &sample);
        if let Some(log) = &worker.stream_log {
            log.write(&**x);
        }
        if let Some(route) = route {
            let mut walk = Walk::default();
            while let Some(step) = walk.next(Phase::Log, &route.chain, None) {
                if step.applies(x) {
                    step.plugin.log(&host::log(x, &worker.recorder));
                }
            }
        }
    }
}
