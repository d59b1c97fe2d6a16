//! `apisix_etcd_reachable` and `apisix_etcd_modify_indexes`: health of the etcd that the configuration comes from.

use std::fmt::Debug;

use super::text::{header, labelled, single};

/// Source of an etcd's status, queried at each scrape.
pub trait EtcdStatus: Debug + Send + Sync {
    /// True if etcd answers.
    fn reachable(&self) -> bool;

    /// Revisions of etcd, by the value of the label `key`.
    fn indexes(&self) -> Vec<(&'static str, u64)>;
}

pub(super) fn write(status: &dyn EtcdStatus, out: &mut String) {
    let name = "apisix_etcd_modify_indexes";
    header(out, name, "gauge", "Etcd modify index for APISIX keys");
    for (key, index) in status.indexes() {
        labelled(out, name, "key", key, index);
    }
    let help = "Config server etcd reachable from APISIX, 0 is unreachable";
    single(out, "apisix_etcd_reachable", "gauge", help, u8::from(status.reachable()));
}
