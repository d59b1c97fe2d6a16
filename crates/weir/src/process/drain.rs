//! The end of a process: what is under way is finished, within `timeouts.drain`.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use weir_config::settings::Timeouts;
use weir_proxy::DataPlane;
use weir_telemetry::access_log::AccessLog;

use crate::process::error_log::ErrorLog;
use crate::process::log_file;
use crate::process::signals::{Asked, Signals};

/// How long idle connections stay open after SIGTERM, for requests that are on their way.
const STOP_IDLE: Duration = Duration::from_millis(100);

/// A process that accepts nothing more.
pub(crate) struct Drain<'a> {
    data_plane: &'a RwLock<DataPlane>,
    signals: &'a mut Signals,
    logs: (Option<&'a Arc<AccessLog>>, &'a Arc<ErrorLog>),
    /// How long connections without a request stay open.
    idle: Duration,
    /// How long all of it may take.
    limit: Duration,
    began: Instant,
    /// Signals that are still needed to end at once.
    patience: u32,
}

/// How long connections without a request stay open.
pub(crate) fn idle(timeouts: &Timeouts, handed_over: bool) -> Duration {
    if handed_over { timeouts.drain_idle.duration() } else { STOP_IDLE }
}

impl<'a> Drain<'a> {
    /// From now on nothing is accepted: when this returns, no worker does any more.
    pub(crate) async fn begin(
        data_plane: &'a RwLock<DataPlane>,
        timeouts: &Timeouts,
        handed_over: bool,
        signals: &'a mut Signals,
        logs: (Option<&'a Arc<AccessLog>>, &'a Arc<ErrorLog>),
    ) -> Self {
        let closed = data_plane.write().await.stop_accepting(handed_over);
        let limit = timeouts.drain.duration();
        let idle = idle(timeouts, handed_over).min(limit);
        // Whoever stops the service may send the signal to both processes, so the first one is not for this one.
        let patience = if handed_over { 2 } else { 1 };
        let mut drain = Self { data_plane, signals, logs, idle, limit, began: Instant::now(), patience };
        drain.unless_stopped(timeout(limit, closed)).await;
        drain
    }

    /// Waits until the Admin API, which knows that the gateway leaves, has answered what is under way. Until then
    /// changes are made and served.
    pub(crate) async fn administration(&mut self, administering: &mut JoinSet<()>) {
        let (data_plane, idle, limit) = (self.data_plane, self.idle, self.limit);
        let answers = async {
            let traffic = async {
                sleep(idle).await;
                data_plane.read().await.close_idle();
                pending::<()>().await;
            };
            tokio::select! {
                _ = administering.join_next() => {}
                () = traffic => {}
                () = sleep(limit) => {
                    tracing::warn!("requests to the Admin API were cut at the limit (timeouts.drain)");
                }
            }
        };
        self.unless_stopped(answers).await;
    }

    /// Waits for the end of the requests in flight.
    pub(crate) async fn traffic(mut self) {
        let (data_plane, passed) = (self.data_plane, self.began.elapsed());
        let (limit, idle) = (self.limit.saturating_sub(passed), self.idle.saturating_sub(passed));
        let drained = async { data_plane.read().await.drain(limit, idle).await };
        let Some(cut) = self.unless_stopped(drained).await else { return };
        let took_ms = self.began.elapsed().as_millis() as u64;
        if cut == 0 {
            tracing::info!(took_ms, "stopped; everything in flight was finished");
        } else {
            tracing::warn!(took_ms, connections = cut, "stopped; connections were cut at the limit (timeouts.drain)");
        }
    }

    /// Waits for something; `None`: the process is to end at once.
    async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        while self.patience > 0 {
            tokio::select! {
                done = &mut work => return Some(done),
                asked = self.signals.next() => match asked {
                    Asked::Stop(name) => {
                        self.patience -= 1;
                        if self.patience == 0 {
                            tracing::warn!(signal = name, "stopped at once by a second signal");
                        }
                    }
                    Asked::Reopen => log_file::reopen(self.logs.0, self.logs.1).await,
                    Asked::Upgrade => tracing::debug!("SIGUSR2: this process takes part in no upgrade any more"),
                },
            }
        }
        None
    }
}
