//! Counts of applications against limits, in the counts of plans.
//!
//! A count is that of an application, a metric and a period that has begun at some time. A period that is over takes its
//! count along, and a report about it changes nothing any more.

use std::fmt::Write as _;
use std::sync::Arc;

use weir_plugins::PlanCounts;

use crate::catalog::Indexed;
use crate::fault::Fault;
use crate::model::Application;
use crate::period::Period;
use crate::usage::{Amount, Usage};

/// The counts of all applications.
#[derive(Debug, Clone)]
pub(crate) struct Counts(Arc<PlanCounts>);

/// Use of a limit by an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// Position of the metric.
    pub(crate) metric: usize,
    pub(crate) period: Period,
    /// Start of the period in milliseconds since 1970.
    pub(crate) start: u64,
    /// End of the period.
    pub(crate) end: u64,
    pub(crate) max: u64,
    pub(crate) count: u64,
}

impl Counts {
    pub(crate) fn new(counts: Arc<PlanCounts>) -> Self {
        Self(counts)
    }

    /// Use of all limits of an application at a time in milliseconds since 1970, in the order of the metrics.
    pub(crate) fn used(&self, service: &Indexed, application: &Application, now: u64) -> Vec<Used> {
        let limits = service.limits(application.plan_id.as_deref());
        let used = limits.iter().map(|limit| {
            let (start, end) = limit.period.bounds(now);
            let name = name(service, application, limit.metric, limit.period, start);
            let count = self.0.units(&name, now);
            Used { metric: limit.metric, period: limit.period, start, end, max: limit.value, count }
        });
        used.collect()
    }

    /// Counts usage at a time `at`, whatever limits say. Both times are milliseconds since 1970.
    pub(crate) fn charge(
        &self,
        service: &Indexed,
        application: &Application,
        usage: &Usage,
        (at, now): (u64, u64),
    ) -> Result<(), Fault> {
        for limit in service.limits(application.plan_id.as_deref()) {
            let Some(amount) = usage.of(limit.metric) else { continue };
            let (start, end) = limit.period.bounds(at);
            if end <= now {
                continue;
            }
            let name = name(service, application, limit.metric, limit.period, start);
            let has_room = match amount {
                Amount::Add(units) => self.0.add_units(&name, now, end, units),
                Amount::Set(units) => self.0.set_units(&name, now, end, units),
            };
            if !has_room {
                return Err(Fault::NoRoom);
            }
        }
        Ok(())
    }
}

/// The name of a count. A changed limit goes on with the same count, and so does an application on another plan.
fn name(service: &Indexed, application: &Application, metric: usize, period: Period, start: u64) -> Vec<u8> {
    let mut name = "3scale".to_owned();
    for part in [&service.service.id, &application.id, service.metric_id(metric)] {
        name.push(':');
        for c in part.chars() {
            match c {
                ':' => name.push_str("%3A"),
                '%' => name.push_str("%25"),
                c => name.push(c),
            }
        }
    }
    let _ = write!(name, ":{}:{}", period.name(), start / 1000);
    name.into_bytes()
}
