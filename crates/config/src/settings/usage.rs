use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{GIB, MIB, Size};

/// Recording who has called what: see [usage](usage.md).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Usage {
    /// True if requests are recorded, in the file usage.db of the data directory (`store.data_dir`).
    pub enabled: bool,
    /// Records of 56 bytes that one worker holds back until they are added up. Records beyond are lost and counted:
    /// recording never slows a request.
    #[schemars(range(min = 1024, max = 4_194_304))]
    pub buffer: u32,
    /// Callers with sums of their own in a minute, an hour or a day. Those with fewer requests are added up by API and
    /// route, and shown as `(others)`.
    #[schemars(range(min = 10, max = 1_000_000))]
    pub series: u32,
    /// Days for which sums by the minute are kept.
    #[schemars(range(min = 1, max = 36_500))]
    pub keep_minutes: u32,
    /// Days for which sums by the hour are kept.
    #[schemars(range(min = 1, max = 36_500))]
    pub keep_hours: u32,
    /// Days for which sums by the day are kept.
    #[schemars(range(min = 1, max = 36_500))]
    pub keep_days: u32,
    /// Bytes of the database beyond which the oldest sums by the minute, and then by the hour, are deleted before their
    /// time.
    pub size: Size<MIB, { 1024 * GIB }>,
    /// APIs with totals of their own among the metrics; those of further ones are shown as `(others)`.
    #[schemars(range(min = 1, max = 100_000))]
    pub metric_apis: u32,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            enabled: false,
            buffer: 16_384,
            series: 10_000,
            keep_minutes: 366,
            keep_hours: 1_100,
            keep_days: 3_660,
            size: Size::constant(2 * GIB),
            metric_apis: 200,
        }
    }
}
