//! The gateways that share an etcd: each tells its version under APISIX's key of server-info, and sees those of the others.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use weir_store::Etcd;

/// Seconds after which a gateway that does not tell of itself any more is gone.
const TTL: u64 = 60;
/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(20);
/// Limit of the last word to etcd.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// The gateways that were there at the last look.
#[derive(Debug, Default)]
pub(crate) struct Gateways(watch::Sender<Vec<Value>>);

impl Gateways {
    /// All of them, this one too where it tells of itself.
    pub(crate) fn seen(&self) -> Vec<Value> {
        self.0.borrow().clone()
    }

    /// Tells of this gateway and looks for others, until it has `left`. A data plane only looks: it writes nothing to etcd.
    pub(crate) async fn meet(
        self: Arc<Self>,
        etcd: Arc<Etcd>,
        own: impl Future<Output = Value>,
        tells: bool,
        left: impl Future<Output = ()>,
    ) {
        let mut left = pin!(left);
        let own = own.await;
        let (id, value) = (own["id"].as_str().unwrap_or_default().to_owned(), own.to_string());
        let mut lease = None;
        loop {
            if tells {
                lease = tell(&etcd, (&id, &value), lease).await;
            }
            match etcd.announced().await {
                Ok(values) => {
                    let read = values.iter().filter_map(|value| serde_json::from_str(value).ok());
                    self.0.send_replace(read.collect());
                }
                Err(error) => tracing::debug!(%error, "other gateways cannot be looked for"),
            }
            tokio::select! {
                () = sleep(INTERVAL) => {}
                () = &mut left => break,
            }
        }
        if let Some(lease) = lease {
            // A word that does not arrive is not needed: the lease ends by itself.
            let _ = timeout(FAREWELL, etcd.withdraw(&lease)).await;
        }
    }
}

/// Keeps what was told, or tells it; the lease that holds it.
async fn tell(etcd: &Etcd, (id, value): (&str, &str), lease: Option<String>) -> Option<String> {
    if let Some(lease) = lease
        && etcd.keep(&lease).await.unwrap_or(false)
    {
        return Some(lease);
    }
    etcd.announce(id, value, TTL)
        .await
        .inspect_err(|error| tracing::debug!(%error, "other gateways are not told of this one"))
        .ok()
}
