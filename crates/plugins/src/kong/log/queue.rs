//! The part of a logger's configuration that says the queue of its entries.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_telemetry::reports::{ChannelOptions, Destination, Frame};

/// Queue of entries.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::kong) struct Queue {
    /// Most entries in a request.
    #[schemars(range(min = 1, max = 1000000))]
    pub(in crate::kong) max_batch_size: usize,
    /// Seconds after which entries are sent.
    #[schemars(range(min = 0, max = 3600))]
    max_coalescing_delay: f64,
    /// Most entries that wait.
    #[schemars(range(min = 1, max = 1000000))]
    max_entries: usize,
    /// Most bytes that wait; the setting `reports.memory` bounds them.
    #[serde(rename = "max_bytes")]
    _max_bytes: Option<f64>,
    /// Seconds before the first repetition, doubled for each further one.
    #[schemars(range(min = 0.001, max = 1000000))]
    initial_retry_delay: f64,
    /// The longest of these; the gateway's is a minute.
    #[serde(rename = "max_retry_delay")]
    _max_retry_delay: f64,
    /// Seconds after which a request is given up.
    #[schemars(range(min = 0))]
    max_retry_time: f64,
    /// Requests at one time.
    #[serde(rename = "concurrency_limit")]
    _concurrency_limit: f64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            max_batch_size: 1,
            max_coalescing_delay: 1.0,
            max_entries: 10_000,
            _max_bytes: None,
            initial_retry_delay: 0.01,
            _max_retry_delay: 60.0,
            max_retry_time: 60.0,
            _concurrency_limit: 1.0,
        }
    }
}

impl Queue {
    /// A queue whose batches have this many entries.
    pub(in crate::kong) fn of_batches(max_batch_size: usize) -> Self {
        Self { max_batch_size, ..Self::default() }
    }

    /// The channel of a plugin. `queue_size` and `flush_timeout` are fields of older versions.
    pub(in crate::kong) fn channel(
        &self,
        (plugin, name): (&'static str, String),
        destination: Destination,
        frame: Frame,
        (queue_size, flush_timeout): (Option<usize>, Option<f64>),
    ) -> ChannelOptions {
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let age = seconds(flush_timeout.unwrap_or(self.max_coalescing_delay));
        ChannelOptions {
            plugin,
            name,
            destination,
            frame,
            batch_records: queue_size.unwrap_or(self.max_batch_size).max(1),
            batch_age: age,
            batch_idle: age,
            max_pending: Some(self.max_entries),
            retries: self.retries(),
            retry_delay: seconds(self.initial_retry_delay),
        }
    }

    /// Number of repetitions within `max_retry_time`.
    fn retries(&self) -> u32 {
        let (mut delay, mut total, mut count) = (self.initial_retry_delay, 0.0, 0);
        while total + delay <= self.max_retry_time && count < 100 {
            total += delay;
            delay = (delay * 2.0).min(60.0);
            count += 1;
        }
        count
    }
}

/// The channel of a plugin that sends each entry at once and does not try again, as Kong's loggers without a queue do.
pub(in crate::kong) fn at_once(plugin: &'static str, destination: Destination, frame: Frame) -> ChannelOptions {
    ChannelOptions {
        plugin,
        name: plugin.to_owned(),
        destination,
        frame,
        batch_records: 10_000,
        batch_age: Duration::ZERO,
        batch_idle: Duration::ZERO,
        max_pending: None,
        retries: 0,
        retry_delay: Duration::ZERO,
    }
}
