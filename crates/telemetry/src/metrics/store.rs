//! Metrics of the embedded store.

use std::fmt::Debug;

use super::text::single;

/// Source of a store's status, queried at each scrape.
pub trait StoreStatus: Debug + Send + Sync {
    /// True if the last attempt to read or write the store succeeded.
    fn is_up(&self) -> bool;

    /// Revision of the last change.
    fn revision(&self) -> u64;
}

/// Writes the metrics.
pub(super) fn write(status: &dyn StoreStatus, out: &mut String) {
    let help = "Whether the store could be read and written the last time";
    single(out, "weir_store_up", "gauge", help, u8::from(status.is_up()));
    single(out, "weir_store_revision", "gauge", "Revision of the last change in the store", status.revision());
}
