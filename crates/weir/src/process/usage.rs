//! The record of who has called what.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_config::Settings;
use weir_store::Folder;
use weir_telemetry::metrics::Metrics;
use weir_usage::{Keep, Options, Usage};

use crate::process::priority::stand_back;

/// Name of the database in the data directory.
const FILE: &str = "usage.db";

/// The path of the database.
pub(crate) fn path(settings: &Settings) -> PathBuf {
    Path::new(&settings.store.data_dir).join(FILE)
}

/// Opens the database and starts what writes to it; `None` where nothing is recorded.
///
/// # Errors
/// The data directory or the database cannot be opened, or a thread not be started.
pub(crate) fn open(settings: &Settings, metrics: &Arc<Metrics>) -> anyhow::Result<Option<Arc<Usage>>> {
    let options = &settings.usage;
    if !options.enabled {
        return Ok(None);
    }
    let folder = Folder::create(Path::new(&settings.store.data_dir))?;
    let nice = settings.config.nice;
    let options = Options {
        path: folder.path().join(FILE),
        ring: options.buffer as usize,
        series: options.series as usize,
        metric_apis: options.metric_apis as usize,
        keep: Keep {
            minutes: options.keep_minutes.into(),
            hours: options.keep_hours.into(),
            days: options.keep_days.into(),
            size: options.size.bytes(),
        },
        at_start: Box::new(move || stand_back(nice)),
    };
    Ok(Some(Usage::open(options, Arc::clone(metrics))?))
}
