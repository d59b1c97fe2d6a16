//! Plugins that wait. Their deadline and the reset of the client are looked after here, and by no plugin.

use std::future::poll_fn;
use std::task::Poll;

use weir_plugin::host::{self, Exchange};
use weir_plugin::{Failure, Flow, LocalFuture, Side};

use super::Runner;
use super::body::client_gone;
use super::callout::WorkerIo;
use super::response::Rest;
use crate::chain::Step;
use crate::downstream::Presence;
use crate::phases::{self, Pause, Responses};
use crate::snapshot::Local;

/// A plugin has not come to an end within its time.
const WAITED_TOO_LONG: Failure = Failure { status: 504, side: Side::Gateway, reason: "plugin waited too long" };

impl<D: Presence> Runner<D> {
    /// Goes on with a plugin that has to wait in a request phase.
    pub(crate) async fn wait_for_request(&self, x: &mut Exchange, step: &Step, local: &Local) -> Result<Flow, Failure> {
        let upstream = x.upstream.chosen.or_else(|| phases::route(x, &local.snapshot)?.upstream);
        let io = WorkerIo::new(&self.worker, local, step.kind).with_upstream(upstream);
        let mut cx = host::request(x);
        let flow = self.wait(step, step.plugin.request_io(&mut cx, &io)).await;
        x.times.now = self.worker.clock.refresh();
        flow
    }

    /// Runs the response phases, with the plugins in them that have to wait. `rest` is what may be still to come of an
    /// upstream's answer.
    pub(super) async fn response_phases(
        &mut self,
        x: &mut Exchange,
        local: &Local,
        mut rest: Option<Rest<'_>>,
    ) -> Result<(), Failure> {
        let mut responses = Responses::begin(x);
        while let Some(mut pause) = responses.run(x, &local.snapshot)? {
            // A plugin may wait several times.
            loop {
                let next = match pause {
                    Pause::Body(step) => {
                        self.collect_for_plugin(x, rest.as_mut()).await?;
                        Responses::collected(step, x)?
                    }
                    Pause::Plugin(step) => {
                        let io = WorkerIo::new(&self.worker, local, step.kind);
                        let mut cx = host::response(x);
                        let flow = self.wait(step, step.plugin.response_io(&mut cx, &io)).await?;
                        x.times.now = self.worker.clock.refresh();
                        if flow == Flow::Suspend {
                            return Err(Failure::internal("plugin suspended twice"));
                        }
                        Responses::judge(flow, step, x)?
                    }
                };
                let Some(next) = next else { break };
                pause = next;
            }
        }
        Ok(())
    }

    /// The result of `work`, unless its deadline comes first, or the client goes: then it is dropped.
    async fn wait(&self, step: &Step, mut work: LocalFuture<'_, Flow>) -> Result<Flow, Failure> {
        let limit = step.plugin.wait_limit().map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        self.timer.set(limit.unwrap_or(self.worker.options.plugin_ms));
        poll_fn(|cx| {
            if let Poll::Ready(flow) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(flow));
            }
            if self.down.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(client_gone()));
            }
            self.timer.poll_expired(cx).map(|()| Err(WAITED_TOO_LONG))
        })
        .await
    }
}
