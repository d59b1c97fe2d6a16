//! `client-control`: how much a client may send.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx};

/// The definition.
#[derive(Debug)]
pub(crate) struct ClientControl;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Most bytes of a request body; 0: no limit.
    max_body_size: Option<u64>,
}

impl Define for ClientControl {
    const NAME: &'static str = "client-control";
    const PRIORITY: i32 = 22000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Bounds the request body, in place of the setting `limits.body_size`, which may be less or more. A body that is announced \
as longer is refused with 413 at once; one in chunks is cut where it passes the bound, and the upstream's connection is \
closed, so that it never takes what it has received for the whole.

A body that another plugin needs whole is bounded by `limits.buffered_body` as well.";
    const EXAMPLE: &'static str = "\
max_body_size: 1048576
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.max_body_size.is_none() {
            cx.warn("", "without max_body_size nothing is changed");
        }
        Some(Compiled::ready(Bounded { max_body_size: conf.max_body_size }))
    }
}

/// An instance.
#[derive(Debug)]
struct Bounded {
    max_body_size: Option<u64>,
}

impl Plugin for Bounded {
    fn phases(&self, declared: Phases) -> Phases {
        if self.max_body_size.is_some() { declared } else { Phases::NONE }
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        match self.max_body_size {
            Some(bytes) => cx.limit_body(bytes),
            None => Flow::Continue,
        }
    }
}
