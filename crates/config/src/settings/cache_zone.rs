use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{GIB, MIB, Size};

/// A zone of answers, for the plugins `proxy-cache` and `graphql-proxy-cache`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CacheZone {
    /// Name of the zone, as in `cache_zone` of a plugin.
    #[schemars(length(min = 1, max = 100))]
    pub name: String,
    /// Bytes in memory: of a zone without a folder all that is kept; of one with a folder keys and fields of answers, and as
    /// much again for bodies on their way. `plugin_metadata` of the plugin may have another size.
    pub memory_size: Size<{ MIB }, { 1024 * GIB }>,
    /// Folder for the bodies of answers, on a disk of this machine. It is made where it is not there, and used by one zone.
    /// Empty: none.
    #[schemars(length(max = 500))]
    pub disk_path: String,
    /// Bytes of the bodies in the folder.
    pub disk_size: Size<{ MIB }, { 1024 * 1024 * GIB }>,
}

impl Default for CacheZone {
    fn default() -> Self {
        Self {
            name: String::new(),
            memory_size: Size::constant(50 * MIB),
            disk_path: String::new(),
            disk_size: Size::constant(GIB),
        }
    }
}
