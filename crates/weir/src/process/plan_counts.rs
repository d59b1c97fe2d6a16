//! Counts of plans, kept beyond the process.

use std::path::PathBuf;
use std::sync::Arc;

use weir_config::Settings;
use weir_plugins::{PlanCount, PlanCounts};
use weir_store::Folder;
use weir_telemetry::metrics::Metrics;
use weir_usage::{Count, Counting, KeptCounts};

use crate::process::priority::stand_back;
use crate::source::rules::Rules;

/// Name of the database in the data directory.
const FILE: &str = "plans.db";

/// Puts back the counts of an earlier process and starts what writes them; `None` where they are not kept.
///
/// # Errors
/// The database cannot be read, or a thread not be started.
pub(crate) fn start(settings: &Settings, rules: &Rules, metrics: &Metrics) -> anyhow::Result<Option<KeptCounts>> {
    if !settings.plans.keep_counts {
        return Ok(None);
    }
    let counts = PlanCounts::of(rules.compiler.states(), settings.limits.limit_keys as usize);
    counts.keep();
    let folder = PathBuf::from(&settings.store.data_dir);
    let path = folder.join(FILE);
    let place = move || match Folder::create(&folder) {
        Ok(folder) => Ok(folder.path().join(FILE)),
        Err(error) => Err(error.to_string()),
    };
    let nice = settings.config.nice;
    let kept =
        KeptCounts::start(&path, Box::new(place), Arc::new(OfPlans(counts)), Box::new(move || stand_back(nice)))?;
    metrics.watch_plan_counts(kept.failures());
    Ok(Some(kept))
}

/// Keeps the counts alive as well, when no plan uses them for a while.
struct OfPlans(Arc<PlanCounts>);

impl Counting for OfPlans {
    fn restore(&self, count: Count) -> bool {
        let Count { name, ends, count, before, linger } = count;
        self.0.restore(&PlanCount { name, ends, count, before, linger })
    }

    fn take_changed(&self, most: usize, out: &mut Vec<Count>) {
        let mut changed = Vec::new();
        self.0.take_changed(most, &mut changed);
        out.extend(changed.into_iter().map(|PlanCount { name, ends, count, before, linger }| Count {
            name,
            ends,
            count,
            before,
            linger,
        }));
    }
}
