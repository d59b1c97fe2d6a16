//! What is said of the embedded store.

use std::fmt::Debug;

use super::text::single;

/// A store that can be asked how it is.
pub trait StoreStatus: Debug + Send + Sync {
    /// Whether it could be read and written the last time that somebody tried.
    fn is_up(&self) -> bool;

    /// The revision of its last change.
    fn revision(&self) -> u64;
}

/// Writes it down.
pub(super) fn write(status: &dyn StoreStatus, out: &mut String) {
    let help = "Whether the store could be read and written the last time";
    single(out, "weir_store_up", "gauge", help, u8::from(status.is_up()));
    single(out, "weir_store_revision", "gauge", "Revision of the last change in the store", status.revision());
}
