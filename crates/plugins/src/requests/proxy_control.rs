//! `proxy-control`: whether a request body is held before it goes on.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx};

/// The definition.
#[derive(Debug)]
pub(crate) struct ProxyControl;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Receives the whole request body before the upstream is asked; what is longer than `limits.buffered_body` is refused
    /// with 413. With `false` it goes on piece by piece.
    #[serde(default = "yes")]
    request_buffering: bool,
}

fn yes() -> bool {
    true
}

impl Define for ProxyControl {
    const NAME: &'static str = "proxy-control";
    const PRIORITY: i32 = 21990;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Says whether a request body is received as a whole before the upstream is asked. Then a slow client does not keep a \
connection to the upstream busy, and the body has a length there even if it came in chunks.

Without the plugin bodies go on piece by piece, unless another plugin needs the whole one; in APISIX they are buffered.";
    const EXAMPLE: &'static str = "request_buffering: true\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Controlled { buffers: conf.request_buffering }))
    }
}

/// An instance.
#[derive(Debug)]
struct Controlled {
    buffers: bool,
}

impl Plugin for Controlled {
    fn phases(&self, declared: Phases) -> Phases {
        if self.buffers { declared } else { Phases::NONE }
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.body().is_none() { Flow::AwaitBody } else { Flow::Continue }
    }
}
