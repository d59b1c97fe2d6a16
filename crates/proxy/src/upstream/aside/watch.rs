//! Setting a node aside, and what brings it back: a connection that is opened apart from any request.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use weir_config::NodeHost;
use weir_net::sys::Socket;
use weir_runtime::{sleep, timeout};

use super::Ejection;
use crate::upstream::endpoint::Endpoint;
use crate::worker::Worker;

/// Time that a new connection has to stay open before its node is back. A proxy that accepts for a service that is
/// gone, as container runtimes have, closes within this time.
const STANDS: Duration = Duration::from_millis(100);

/// Sets a node aside, and starts what brings it back.
#[cold]
pub(crate) fn set(worker: &Rc<Worker>, endpoint: &Arc<Endpoint>, reason: &'static str, connect_ms: u64) {
    let period = Duration::from_millis(worker.options.set_aside_ms);
    if period.is_zero() {
        return;
    }
    let Some(since) = endpoint.aside.set() else { return };
    worker.recorder.node_set_aside();
    let seconds = period.as_secs_f64();
    tracing::warn!(node = %endpoint, reason, seconds, "node set aside; other nodes of its upstreams serve");
    let watch = Watch {
        worker: Rc::clone(worker),
        endpoint: Arc::downgrade(endpoint),
        aside: Arc::clone(&endpoint.aside),
        since,
        period,
        // A node that lets connections time out is not waited for longer than it is set aside.
        limit: Duration::from_millis(connect_ms).min(period),
    };
    weir_runtime::spawn(watch.run());
}

/// A request has found that a node takes connections.
pub(crate) fn clear(worker: &Worker, endpoint: &Endpoint) {
    if endpoint.aside.is_set() && endpoint.aside.clear() {
        told_back(worker, endpoint);
    }
}

#[cold]
fn told_back(worker: &Worker, endpoint: &Endpoint) {
    worker.recorder.node_back();
    tracing::info!(node = %endpoint, "node is back");
}

/// Watch of a node that is set aside; one for each node, whatever the number of workers.
struct Watch {
    worker: Rc<Worker>,
    endpoint: Weak<Endpoint>,
    aside: Arc<Ejection>,
    since: u64,
    period: Duration,
    limit: Duration,
}

impl Watch {
    async fn run(self) {
        loop {
            sleep(self.period).await;
            if self.aside.since() != self.since {
                return;
            }
            let Some(endpoint) = self.endpoint.upgrade() else {
                // No configuration names it any more.
                if self.aside.end(self.since) {
                    self.worker.recorder.node_back();
                }
                return;
            };
            if self.takes_connections(&endpoint).await {
                if self.aside.end(self.since) {
                    told_back(&self.worker, &endpoint);
                }
                return;
            }
        }
    }

    /// True if one of the addresses accepts a connection and does not close it at once.
    async fn takes_connections(&self, endpoint: &Endpoint) -> bool {
        for addr in endpoint.all_addrs() {
            let begun = match &endpoint.host {
                NodeHost::Unix(path) => Socket::connect_unix(path),
                NodeHost::Ip(_) | NodeHost::Name(_) => Socket::begin_connect(addr),
            };
            let Ok(stream) = begun else { continue };
            let connected = poll_fn(|cx| stream.poll_connected(cx));
            if let Some(Ok(())) = timeout(self.limit, connected).await {
                sleep(STANDS).await;
                if stream.is_quiet() {
                    return true;
                }
            }
        }
        false
    }
}
