//! What happened.

mod body;
mod entry;
pub(crate) mod file_logger;
pub(crate) mod http_logger;
mod json;
pub(crate) mod node_status;
pub(crate) mod prometheus;

use std::sync::Arc;

use weir_config::{Diagnostic, Node};
use weir_plugin::{BuildCx, Invalid};
use weir_telemetry::reports::{Channel, ChannelOptions};

use entry::{Entry, Fields, Format};

/// The channel with these options: the same for all places that have the same, before a change and after it.
fn channel(options: ChannelOptions, cx: &BuildCx<'_>) -> Arc<Channel> {
    let key = format!("reports {options:?}");
    cx.states.get_or_create(&key, || Channel::open(options))
}

/// What entries are made of: by the plugin's own configuration, else by its metadata.
fn entry_of(
    format: Option<Format>,
    extra: Option<Format>,
    format_of_all: Format,
    extra_of_all: Format,
    cx: &BuildCx<'_>,
) -> Result<Entry, Invalid> {
    let format = format.unwrap_or(format_of_all);
    let format = (!format.is_empty()).then(|| Fields::new("log_format", &format)).transpose()?;
    let extra = Fields::new("log_format_extra", &extra.unwrap_or(extra_of_all))?;
    let version = cx.product.rsplit('/').next().unwrap_or_default().into();
    Ok(Entry { format, extra, version })
}

/// Checks the formats in the metadata of a logger.
fn check_formats(metadata: &Node, format: &Format, extra: &Format) -> Result<(), Vec<Diagnostic>> {
    let faults = [("log_format", format), ("log_format_extra", extra)].into_iter().filter_map(|(place, format)| {
        let fault = Fields::new(place, format).err()?;
        Some(Diagnostic::error(metadata.mark_of(place), fault.path, *fault.code))
    });
    let faults: Vec<_> = faults.collect();
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}
