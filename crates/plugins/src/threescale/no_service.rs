//! `no-service`: the answer to requests for a host that no service has.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx};

/// The definition.
#[derive(Debug)]
pub(crate) struct NoService;

/// Nothing to configure.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Conf {}

impl Define for NoService {
    const NAME: &'static str = "no-service";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Answers 404 with an empty body; on the route that takes what no service takes.";
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
        cx.reply(404).field("Content-Type", b"text/plain; charset=utf-8").done()
    }
}
