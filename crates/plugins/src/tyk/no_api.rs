//! `no-api`: the answer to requests that no API takes.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx};

/// The definition.
#[derive(Debug)]
pub(crate) struct NoApi;

/// Nothing to configure.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Conf {}

impl Define for NoApi {
    const NAME: &'static str = "no-api";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Answers 404; on the route that takes what no API takes.";
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
        cx.reply(404).field("Content-Type", b"text/plain; charset=utf-8").body(b"Not Found").done()
    }
}
