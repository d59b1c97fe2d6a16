//! `no-route`: the answer to requests that no route takes.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx};

use super::body;

/// The definition.
#[derive(Debug)]
pub(crate) struct NoRoute;

/// Nothing to configure.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {}

impl Define for NoRoute {
    const NAME: &'static str = "no-route";
    const PRIORITY: i32 = i32::MAX;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Answers 404; on the route that takes what no other takes.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(NotFound))
    }
}

/// An instance.
#[derive(Debug)]
struct NotFound;

impl Plugin for NotFound {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        body::error(cx, 404, "no Route matched with those values", &[])
    }
}
