//! The part of a logger's configuration that says when its batches are sent.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_telemetry::reports::{ChannelOptions, Destination, Frame};

/// Batches of a logger, as those of APISIX's batch processor; `MOST` is the number of entries of one unless it is given.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct BatchConf<const MOST: usize = 1000> {
    /// A name for the log. Unset: the plugin's.
    name: Option<String>,
    /// Entries after which a batch is sent.
    #[serde(default = "most::<MOST>")]
    #[schemars(range(min = 1))]
    batch_max_size: usize,
    /// Seconds without a further entry after which a batch is sent.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    inactive_timeout: u64,
    /// Seconds after its first entry at which a batch is sent.
    #[serde(default = "minute")]
    #[schemars(range(min = 1))]
    buffer_duration: u64,
    /// Further attempts to send a batch, after which it is spilled (`reports.spill`) or dropped.
    #[serde(default)]
    max_retry_count: u32,
    /// Seconds before the first of them, and twice as long before each further one, up to a minute.
    #[serde(default = "one")]
    retry_delay: u64,
}

fn one() -> u64 {
    1
}

fn five() -> u64 {
    5
}

fn minute() -> u64 {
    60
}

fn most<const MOST: usize>() -> usize {
    MOST
}

impl<const MOST: usize> BatchConf<MOST> {
    /// True if each batch is a single entry.
    pub(crate) fn is_single(&self) -> bool {
        self.batch_max_size == 1
    }

    /// `[a,b]`, and a single entry alone, as APISIX encodes batches.
    pub(crate) fn array_or_single(&self) -> Frame {
        if self.is_single() { Frame::Single } else { Frame::Array }
    }

    /// The channel of a plugin to this destination.
    pub(crate) fn channel(
        self,
        plugin: &'static str,
        destination: Destination,
        frame: Frame,
        max_pending: Option<usize>,
    ) -> ChannelOptions {
        let seconds = Duration::from_secs;
        ChannelOptions {
            plugin,
            name: self.name.unwrap_or_else(|| plugin.replace('-', " ")),
            destination,
            frame,
            batch_records: self.batch_max_size,
            batch_age: seconds(self.buffer_duration),
            batch_idle: seconds(self.inactive_timeout),
            max_pending,
            retries: self.max_retry_count,
            retry_delay: seconds(self.retry_delay),
        }
    }
}

impl<const MOST: usize> Default for BatchConf<MOST> {
    fn default() -> Self {
        let (batch_max_size, inactive_timeout, buffer_duration) = (MOST, five(), minute());
        Self { name: None, batch_max_size, inactive_timeout, buffer_duration, max_retry_count: 0, retry_delay: one() }
    }
}
