use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{GIB, Seconds, Size};

/// Rotation of the files of the access logs and of the error log, as APISIX's `log-rotate` does it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogRotation {
    /// Rotates the files. The name `log-rotate` in the setting `plugins` does so as well.
    pub enabled: bool,
    /// Time after which a file that has something in it is moved to `TIME__NAME` beside it, where TIME is such as
    /// `2026-11-28_17-00-00` in UTC. The times are multiples of it since 1970.
    pub interval: Seconds<1_000, 31_536_000_000>,
    /// Files that are kept of each log, beside the one that is written to; the oldest are removed.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_kept: u32,
    /// Bytes at which a file is moved before its time. It is looked at each second. 0: whatever its size.
    pub max_size: Size<0, { 1024 * GIB }>,
    /// Compresses files that were moved, to `TIME__NAME.gz`.
    pub compress: bool,
}

impl Default for LogRotation {
    fn default() -> Self {
        Self {
            enabled: false,
            interval: Seconds::constant(3_600_000),
            max_kept: 168,
            max_size: Size::constant(0),
            compress: false,
        }
    }
}
