//! What answers for routes that are left out.

use std::sync::{Arc, LazyLock};

use weir_plugin::{Flow, Phases, Plugin, RequestCx};

use crate::chain::{Chain, Step};

/// The plugin of a route that is left out; behind the global rules, it answers every request.
#[derive(Debug)]
struct LeftOut;

impl Plugin for LeftOut {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        cx.fail(503, "the route is left out, because it is invalid")
    }
}

/// The plugins of a route that is left out.
pub(super) fn chain() -> Arc<Chain> {
    static CHAIN: LazyLock<Arc<Chain>> = LazyLock::new(|| {
        let plugin = Arc::new(LeftOut);
        let phases = Phases::REWRITE;
        // No plugin of the registry has this number.
        let (prefers_route, reads_body) = (false, false);
        let step = Step { plugin, kind: u8::MAX, priority: i64::MAX, phases, prefers_route, reads_body, meta: None };
        Arc::new(Chain::new(vec![step], &[]))
    });
    Arc::clone(&CHAIN)
}
