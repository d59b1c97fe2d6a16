//! The requests that a plan includes, and those that count in its metrics.

use weir_expr::{Value, Variable};
use weir_plugin::{Plan, PlanAccess, PlanLimit, PlanPath, RequestCx};

/// True if a plan lets a request through.
pub(super) fn includes(plan: &Plan, cx: &RequestCx<'_>) -> bool {
    plan.access.as_ref().is_none_or(|entries| entries.iter().any(|entry| fits(entry, cx, false)))
}

/// Units that a request uses of a limit; `None`: the limit does not concern it.
pub(super) fn units(plan: &Plan, limit: &PlanLimit, cx: &RequestCx<'_>) -> Option<u64> {
    let Some(at) = limit.metric else { return Some(1) };
    let metric = plan.metrics.get(usize::from(at))?;
    let fitting = metric.rules.iter().filter(|(entry, _)| fits(entry, cx, true));
    Some(fitting.fold(0, |sum: u64, (_, units)| sum.saturating_add(*units)))
}

/// True if a request fits all fields of an entry. `doubtful` is the verdict on a path that servers read in different ways.
fn fits(entry: &PlanAccess, cx: &RequestCx<'_>, doubtful: bool) -> bool {
    let has = |ids: &Option<Box<[Box<str>]>>, variable: &Variable| {
        ids.as_ref().is_none_or(|ids| match cx.variable(variable) {
            Some(Value::Bytes(id)) => ids.iter().any(|one| one.as_bytes() == id),
            _ => false,
        })
    };
    let request = cx.request();
    has(&entry.routes, &Variable::RouteId)
        && has(&entry.services, &Variable::ServiceId)
        && entry.methods.as_ref().is_none_or(|all| all.iter().any(|one| one.as_bytes() == request.method_bytes()))
        && entry.paths.as_ref().is_none_or(|paths| {
            let path = request.path();
            // A right must not come from such a path, nor a metric be evaded by it.
            if request.has_other_readings() {
                return doubtful;
            }
            paths.iter().any(|one| match one {
                PlanPath::Whole(whole) => path == whole.as_bytes(),
                PlanPath::Beginning(beginning) => path.starts_with(beginning.as_bytes()),
            })
        })
}
