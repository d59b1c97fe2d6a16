//! Facts about this gateway in Kong's Admin API.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::RwLock;
use weir_config::settings::Kong;
use weir_kong_admin::{CheckedPlace, TargetAddress};
use weir_proxy::{AddressHealth, DataPlane, HealthChecks, UpstreamHealth};
use weir_store::Embedded;

use crate::servers::server_info::host_name;

/// This gateway.
#[derive(Debug)]
pub(crate) struct KongNode {
    id: String,
    store: Option<Arc<Embedded>>,
    data_plane: Arc<RwLock<DataPlane>>,
    kong: Kong,
    checks: Arc<HealthChecks>,
}

impl KongNode {
    /// A gateway that starts now.
    pub(crate) fn new(
        store: Option<Arc<Embedded>>,
        data_plane: Arc<RwLock<DataPlane>>,
        kong: Kong,
        checks: Arc<HealthChecks>,
    ) -> Self {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
        Self { id: id.trim().to_owned(), store, data_plane, kong, checks }
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
        // Clients know this name as a store that can be written to; in memory alone entities come as a whole.
        if self.store.is_some() { "postgres" } else { "off" }
    }

    fn is_store_reachable(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.health().fault.is_none())
    }

    fn status(&self) -> Value {
        let connections = self.data_plane.try_read().map_or(0, |plane| plane.connections());
        json!({ "server": { "connections_active": connections } })
    }

    fn addresses(&self, places: &[CheckedPlace]) -> Option<Vec<TargetAddress>> {
        let mut of_places = self.checks.report();
        of_places.retain(|upstream| is_of(upstream, places));
        if of_places.is_empty() {
            return None;
        }
        let mut all: Vec<TargetAddress> = Vec::new();
        for address in of_places.into_iter().flat_map(|upstream| upstream.addresses).map(|address| described(&address))
        {
            match all.iter_mut().find(|known| known.host == address.host && known.address == address.address) {
                // Places that check a target in different ways have to agree.
                Some(known) => known.is_healthy &= address.is_healthy,
                None => all.push(address),
            }
        }
        Some(all)
    }

    fn mark(&self, places: &[CheckedPlace], chosen: &dyn Fn(&TargetAddress) -> bool, is_healthy: bool) -> usize {
        let chosen =
            |upstream: &UpstreamHealth, address: &AddressHealth| is_of(upstream, places) && chosen(&described(address));
        self.checks.set(&chosen, is_healthy)
    }
}

fn is_of(upstream: &UpstreamHealth, places: &[CheckedPlace]) -> bool {
    places.iter().any(|place| place.kind == upstream.kind && *place.id == *upstream.id)
}

fn described(address: &AddressHealth) -> TargetAddress {
    TargetAddress { host: address.host.clone(), address: address.addr, is_healthy: address.is_up }
}
