//! `proxy-buffering`: responses that are not held back.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases, Plugin};

/// The definition.
#[derive(Debug)]
pub(crate) struct ProxyBuffering;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Passes a response on as it comes. `false` has no effect: no response is held back.
    #[serde(default)]
    disable_proxy_buffering: bool,
}

impl Define for ProxyBuffering {
    const NAME: &'static str = "proxy-buffering";
    const PRIORITY: i32 = 21991;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "\
Says that responses go on to the client piece by piece, as they come. That is so here for every response, with the plugin and \
without it: one is held whole only where another plugin has to see all of it. In APISIX the plugin switches off the buffers of \
nginx, which hold back server-sent events.";
    const EXAMPLE: &'static str = "disable_proxy_buffering: true\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if !conf.disable_proxy_buffering {
            cx.warn("disable_proxy_buffering", "without true it has no effect: responses go on as they come");
        }
        Some(Compiled::ready(Nothing))
    }
}

/// An instance, which does nothing.
struct Nothing;

impl Plugin for Nothing {}
