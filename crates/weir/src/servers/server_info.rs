//! Identity of this gateway in the format of APISIX's plugin server-info: `/v1/server_info` of the control API.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::system::uname;
use serde_json::{Value, json};
use tokio::time::timeout;
use weir_store::Etcd;

/// APISIX's text for an unknown value.
const UNKNOWN: &str = "unknown";

/// Time limit of etcd to report its version.
const ETCD_TIME: Duration = Duration::from_secs(2);

/// This gateway.
#[derive(Debug, Clone)]
pub(crate) struct ServerInfo {
    /// Random id of this process.
    id: String,
    /// Start of the process, in seconds since 1970.
    boot_time: u64,
    etcd: Option<Arc<Etcd>>,
}

impl ServerInfo {
    /// Describes a gateway that starts now.
    pub(crate) fn new(etcd: Option<Arc<Etcd>>) -> Self {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid");
        let id = id.map_or_else(|_| UNKNOWN.to_owned(), |id| id.trim().to_owned());
        let boot_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { id, boot_time, etcd }
    }

    pub(crate) async fn page(&self) -> Value {
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

/// Properties of this process, which starts now, for the dashboard.
pub(crate) fn about(workers: usize) -> Value {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    json!({
        "version": env!("CARGO_PKG_VERSION"), "host": host_name(), "started": started, "workers": workers,
    })
}

/// The name of this machine.
pub(crate) fn host_name() -> String {
    uname().nodename().to_string_lossy().into_owned()
}
