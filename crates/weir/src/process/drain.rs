//! Graceful shutdown: requests in flight are finished, within `timeouts.drain`.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use weir_config::settings::Timeouts;
use weir_proxy::DataPlane;
use weir_telemetry::access_log::AccessLogs;

use crate::process::error_log::ErrorLog;
use crate::process::log_file;
use crate::process::signals::{SignalAction, Signals};

/// Time that idle connections stay open after SIGTERM, for requests already sent by clients.
const STOP_IDLE: Duration = Duration::from_millis(100);

/// A process that accepts no more connections.
pub(crate) struct Drain<'a> {
    data_plane: &'a RwLock<DataPlane>,
    signals: &'a mut Signals,
    logs: (&'a AccessLogs, &'a Arc<ErrorLog>),
    /// Time that connections without a request stay open.
    idle: Duration,
    /// Time limit for the whole drain.
    limit: Duration,
    began: Instant,
    /// Number of further signals after which the process ends at once.
    patience: u32,
}

/// Time that connections without a request stay open.
pub(crate) fn idle(timeouts: &Timeouts, handed_over: bool) -> Duration {
    if handed_over { timeouts.drain_idle.duration() } else { STOP_IDLE }
}

impl<'a> Drain<'a> {
    /// Stops accepting connections. No worker accepts one after this function has returned.
    pub(crate) async fn begin(
        data_plane: &'a RwLock<DataPlane>,
        timeouts: &Timeouts,
        handed_over: bool,
        signals: &'a mut Signals,
        logs: (&'a AccessLogs, &'a Arc<ErrorLog>),
    ) -> Self {
        let closed = data_plane.write().await.stop_accepting(handed_over);
        let limit = timeouts.drain.duration();
        let idle = idle(timeouts, handed_over).min(limit);
        // A service manager may send its signal to both processes, so the first signal does not count here.
        let patience = if handed_over { 2 } else { 1 };
        let mut drain = Self { data_plane, signals, logs, idle, limit, began: Instant::now(), patience };
        drain.unless_stopped(timeout(limit, closed)).await;
        drain
    }

    /// Waits until the Admin API has answered its requests in flight. Changes are made and served until then.
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
                    tracing::warn!("requests to the Admin API were cut off at the time limit (timeouts.drain)");
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
            tracing::info!(took_ms, "stopped; all requests in flight were finished");
        } else {
            tracing::warn!(
                took_ms,
                connections = cut,
                "stopped; connections were cut off at the time limit (timeouts.drain)"
            );
        }
    }

    /// Waits for `work`. Returns `None` if the process is to end at once.
    async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        while self.patience > 0 {
            tokio::select! {
                done = &mut work => return Some(done),
                asked = self.signals.next() => match asked {
                    SignalAction::Stop(name) => {
                        self.patience -= 1;
                        if self.patience == 0 {
                            tracing::warn!(signal = name, "stopped at once by a second signal");
                        }
                    }
                    SignalAction::Reopen => log_file::reopen(self.logs.0, self.logs.1).await,
                    SignalAction::Upgrade => tracing::debug!("SIGUSR2 ignored: this process is stopping"),
                },
            }
        }
        None
    }
}
