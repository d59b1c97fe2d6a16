//! Facts about this gateway in Kong's Admin API.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::RwLock;
use weir_config::settings::Kong;
use weir_proxy::DataPlane;
use weir_store::Embedded;

use crate::servers::server_info::host_name;

/// This gateway.
#[derive(Debug)]
pub(crate) struct KongNode {
    id: String,
    store: Option<Arc<Embedded>>,
    data_plane: Arc<RwLock<DataPlane>>,
    kong: Kong,
}

impl KongNode {
    /// A gateway that starts now.
    pub(crate) fn new(store: Option<Arc<Embedded>>, data_plane: Arc<RwLock<DataPlane>>, kong: Kong) -> Self {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
        Self { id: id.trim().to_owned(), store, data_plane, kong }
    }
}

impl weir_kong_admin::Gateway for KongNode {
    fn hostname(&self) -> String {
        host_name()
    }

    fn node_id(&self) -> String {
        self.id.clone()
    }

    fn kong(&self) -> &Kong {
        &self.kong
    }

    fn database(&self) -> &'static str {
        // What clients know as a store that can be written to; in memory alone entities come as a whole.
        if self.store.is_some() { "postgres" } else { "off" }
    }

    fn is_store_reachable(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.health().fault.is_none())
    }

    fn status(&self) -> Value {
        let connections = self.data_plane.try_read().map_or(0, |plane| plane.connections());
        json!({ "server": { "connections_active": connections } })
    }
}
