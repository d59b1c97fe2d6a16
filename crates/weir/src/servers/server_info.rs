//! Which gateway this is, as APISIX's plugin server-info tells it: `/v1/server_info` of the control API.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::system::uname;
use serde_json::{Value, json};
use tokio::time::timeout;
use weir_store::Etcd;

/// What is not known is called by APISIX.
const UNKNOWN: &str = "unknown";

/// How long etcd may take to tell its version.
const ETCD_TIME: Duration = Duration::from_secs(2);

/// This gateway.
#[derive(Debug)]
pub(crate) struct ServerInfo {
    /// Of this process: another one has another.
    id: String,
    /// Seconds since 1970.
    boot_time: u64,
    etcd: Option<Arc<Etcd>>,
}

impl ServerInfo {
    /// A gateway that starts now.
    pub(crate) fn new(etcd: Option<Arc<Etcd>>) -> Self {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid");
        let id = id.map_or_else(|_| UNKNOWN.to_owned(), |id| id.trim().to_owned());
        let boot_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { id, boot_time, etcd }
    }

    pub(crate) async fn told(&self) -> Value {
        let etcd_version = match &self.etcd {
            Some(etcd) => timeout(ETCD_TIME, etcd.version()).await.unwrap_or_default(),
            None => None,
        };
        json!({
            "id": self.id,
            "hostname": host_name(),
            "version": env!("CARGO_PKG_VERSION"),
            "etcd_version": etcd_version.as_deref().unwrap_or(UNKNOWN),
            "boot_time": self.boot_time,
        })
    }
}

/// The name of this machine.
pub(crate) fn host_name() -> String {
    uname().nodename().to_string_lossy().into_owned()
}
