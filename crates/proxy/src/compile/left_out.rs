//! Answers for items that are left out.

use std::sync::{Arc, LazyLock};

use weir_plugin::{Flow, Phases, Plugin, RequestCx};

use crate::chain::{Chain, Step};

/// Answers every request, for a reason.
#[derive(Debug)]
struct LeftOut(&'static str);

impl Plugin for LeftOut {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        cx.fail(503, self.0)
    }
}

/// The plugins of a route that is left out. They run behind the global rules.
pub(super) fn chain() -> Arc<Chain> {
    static CHAIN: LazyLock<Arc<Chain>> =
        LazyLock::new(|| Arc::new(Chain::new(vec![step("the route is left out, because it is invalid")], &[])));
    Arc::clone(&CHAIN)
}

/// Global rules behind one that answers every request; those that log run nevertheless.
pub(crate) fn before(global: &Chain) -> Arc<Chain> {
    let mut steps = vec![step("an invalid resource may guard this request, see the error log")];
    steps.extend(global.steps().iter().cloned());
    Arc::new(Chain::new(steps, &[]))
}

fn step(reason: &'static str) -> Step {
    let (prefers_route, reads_body) = (false, false);
    let (plugin, phases) = (Arc::new(LeftOut(reason)), Phases::REWRITE);
    // No plugin of the registry has this number.
    Step { plugin, kind: u8::MAX, priority: i64::MAX, phases, prefers_route, reads_body, meta: None }
}
