//! Plugins that log and count.

mod body;
pub(crate) mod entry;
mod entry_conf;
pub(crate) mod file_logger;
pub(crate) mod http_logger;
pub(crate) mod json;
pub(crate) mod node_status;
pub(crate) mod prometheus;

use std::sync::Arc;

use weir_plugin::BuildCx;
use weir_telemetry::reports::{Channel, ChannelOptions};

/// The channel with these options: the same for all places that have the same, before a change and after it.
pub(crate) fn channel(options: ChannelOptions, cx: &BuildCx<'_>) -> Arc<Channel> {
    let key = format!("reports {options:?}");
    cx.states.get_or_create(&key, || Channel::open(options))
}
