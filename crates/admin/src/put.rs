//! The configuration that a client has put as a whole, remembered as it came.

use serde_json::{Map, Value};
use tokio::sync::Mutex;

/// The last configuration that was put; `None` until there is one.
pub(crate) type LastPut = Mutex<Option<Put>>;

/// A configuration that was put and is live.
#[derive(Debug)]
pub(crate) struct Put {
    /// The configuration as it came, with versions for all sections.
    pub(crate) config: Map<String, Value>,
    /// The client's digest of it.
    pub(crate) digest: String,
    /// Time of the request, in seconds since 1970.
    pub(crate) time: u64,
    /// Revision of the store with this configuration.
    pub(crate) revision: u64,
}
