//! Callouts of plugins: subrequests whose answer a hook waits for.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;
use weir_plugin::host::buffers::{Held, NO_ROOM};
use weir_plugin::host::{BUFFER, Exchange};
use weir_plugin::{Callout, CalloutError, CalloutResponse, Client, Duplex, Failure, Io, LocalFuture};
use weir_telemetry::metrics::CalloutOutcome;

use super::dial;
use super::response::RESPONSE_TOO_LARGE;
use super::subrequest::{Kind, Message, Slot, Subrequest};
use crate::snapshot::Local;
use crate::worker::Worker;

/// The services of a worker, as a hook of this plugin has them.
pub(super) struct WorkerIo<'w> {
    worker: &'w Rc<Worker>,
    local: &'w Local,
    /// Its position in the registry.
    plugin: u8,
    /// The upstream of the request, in a hook of a request.
    upstream: Option<u32>,
}

impl<'w> WorkerIo<'w> {
    pub(super) fn new(worker: &'w Rc<Worker>, local: &'w Local, plugin: u8) -> Self {
        Self { worker, local, plugin, upstream: None }
    }

    /// The same for a hook of a request that goes to this upstream.
    pub(super) fn with_upstream(self, upstream: Option<u32>) -> Self {
        Self { upstream, ..self }
    }

    fn plugin_name(&self) -> &'static str {
        let definitions = self.local.snapshot.definitions.0;
        definitions.get(usize::from(self.plugin)).map_or("", |definition| definition.name())
    }
}

impl Io for WorkerIo<'_> {
    fn callout(&self, callout: Callout) -> LocalFuture<'_, Result<CalloutResponse, CalloutError>> {
        Box::pin(async move {
            let mut count = Count {
                worker: Rc::clone(self.worker),
                plugin: self.plugin_name(),
                begin: self.worker.clock.refresh(),
                // Unless something else comes of it, its future is dropped.
                outcome: CalloutOutcome::Cancelled,
            };
            let result = ask(self.worker, self.local, callout).await;
            count.outcome = match &result {
                Ok(_) => CalloutOutcome::Answered,
                Err(CalloutError::Busy) => CalloutOutcome::Refused,
                Err(CalloutError::TimedOut) => CalloutOutcome::TimedOut,
                Err(CalloutError::TooLarge | CalloutError::Failed(_)) => CalloutOutcome::Failed,
            };
            result
        })
    }

    fn start(&self, callout: Callout, done: Box<dyn FnOnce(Result<CalloutResponse, CalloutError>)>) {
        let (worker, local, plugin) = (Rc::clone(self.worker), self.local.share(), self.plugin);
        weir_runtime::spawn(async move {
            let io = WorkerIo::new(&worker, &local, plugin);
            done(io.callout(callout).await);
        });
    }

    fn upstream(&self) -> Option<u32> {
        self.upstream
    }

    fn dial(&self, upstream: u32, timeout: Duration) -> LocalFuture<'_, Result<Box<dyn Duplex>, CalloutError>> {
        Box::pin(async move {
            let dialled = dial::dial(self.worker, &self.local.share(), upstream, timeout).await?;
            Ok(Box::new(dialled) as Box<dyn Duplex>)
        })
    }

    fn connect(&self, client: &Client) -> Option<Box<dyn Duplex>> {
        Some((self.worker.connect)(client, self.worker))
    }
}

/// Counts what becomes of a callout, also when its future is dropped.
struct Count {
    worker: Rc<Worker>,
    plugin: &'static str,
    begin: u64,
    outcome: CalloutOutcome,
}

impl Drop for Count {
    fn drop(&mut self) {
        let took = self.worker.clock.refresh().saturating_sub(self.begin);
        self.worker.recorder.callout(self.plugin, self.outcome, took);
    }
}

/// Starts the subrequest and waits for its answer; the subrequest ends with this future.
async fn ask(worker: &Rc<Worker>, local: &Local, callout: Callout) -> Result<CalloutResponse, CalloutError> {
    let slot = Slot::take(worker, Kind::Callout).ok_or(CalloutError::Busy)?;
    let mut held = Held::default();
    // Once as it was made, once where it is sent from.
    if callout.size() > BUFFER && !held.grow_to(2 * callout.size()) {
        return Err(CalloutError::Busy);
    }
    let (alive, gone) = oneshot::channel::<()>();
    let (answer, answered) = oneshot::channel();
    let limit = callout.timeout();
    let gone = async move {
        // Nothing is ever sent: the other half is dropped.
        let _ = gone.await;
    };
    let asked = Asked { slot, _held: held, local: local.share(), callout };
    weir_runtime::spawn(async move {
        let result = asked.run(gone).await;
        // Nobody may be left to take it.
        let _ = answer.send(result);
    });
    let result = match limit {
        Some(limit) => weir_runtime::timeout(limit, answered).await.ok_or(CalloutError::TimedOut)?,
        None => answered.await,
    };
    drop(alive);
    // Without an answer its task has ended by a panic.
    result.unwrap_or(Err(CalloutError::Failed("callout ended early")))
}

/// A callout on its way.
struct Asked {
    slot: Slot,
    _held: Held,
    local: Rc<Local>,
    callout: Callout,
}

impl Asked {
    async fn run(self, gone: impl Future<Output = ()> + 'static) -> Result<CalloutResponse, CalloutError> {
        let worker = Rc::clone(&self.slot.worker);
        let mut x = worker.take_exchange();
        let result = self.exchange(&mut x, gone).await;
        worker.put_exchange(x);
        result
    }

    async fn exchange(
        &self,
        x: &mut Exchange,
        gone: impl Future<Output = ()> + 'static,
    ) -> Result<CalloutResponse, CalloutError> {
        let worker = &self.slot.worker;
        let Some(upstream) = self.local.snapshot.upstreams.get(self.callout.upstream()) else {
            return Err(CalloutError::Failed("callout to an upstream that is not there"));
        };
        let step_ms = self.callout.timeout().map_or(u64::MAX, millis);
        let subrequest = Subrequest { worker, upstream, step_ms, keep: Some(worker.options.callout_body) };
        subrequest.run(x, &self.callout, gone).await.map_err(error_of)?;
        let response = &mut x.response;
        let body = std::mem::take(&mut response.body);
        let mut held = Held::default();
        if body.capacity() > BUFFER && !held.grow_to(body.capacity()) {
            return Err(CalloutError::Busy);
        }
        let fields = response.head.fields.iter(response.buffer.bytes());
        let answer = CalloutResponse::new(response.status(), fields, body, held);
        Ok(answer.with_trailers(response.trailers()))
    }
}

impl Message for Callout {
    fn write(&self, host: Option<&[u8]>, out: &mut Vec<u8>) {
        Callout::write(self, host.unwrap_or(self.host()), out);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn error_of(failure: Failure) -> CalloutError {
    match failure {
        NO_ROOM => CalloutError::Busy,
        RESPONSE_TOO_LARGE => CalloutError::TooLarge,
        Failure { status: 504, .. } => CalloutError::TimedOut,
        Failure { reason, .. } => CalloutError::Failed(reason),
    }
}
