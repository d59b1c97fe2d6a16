//! The plugin that stands for one whose configuration has a reference without a value.

use std::ptr;
use std::sync::{Arc, LazyLock};

use weir_plugin::{Flow, Phases, Plugin, RequestCx};

use crate::chain::Step;

/// Answers every request for which the other plugin would run.
#[derive(Debug)]
struct Unresolved;

impl Plugin for Unresolved {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        cx.fail(503, "a reference in a plugin's configuration has no value")
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.rewrite(cx)
    }
}

/// True for the plugin that stands for one whose reference has no value.
pub(crate) fn stands_in(step: &Step) -> bool {
    ptr::addr_eq(Arc::as_ptr(&step.plugin), Arc::as_ptr(&plugin().0))
}

/// The plugin and its phases: that of a consumer takes the place of the route's in the second phase alone.
pub(super) fn plugin() -> (Arc<dyn Plugin>, Phases) {
    static PLUGIN: LazyLock<Arc<Unresolved>> = LazyLock::new(|| Arc::new(Unresolved));
    (Arc::clone(&PLUGIN) as Arc<dyn Plugin>, Phases::REWRITE.and(Phases::ACCESS))
}
